"""Lists of values by which samples are kept or left out: iterables, lines, JSON lists, arrays of numpy, and tables."""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from wdsdist import storage
from wdsdist._util.validation import counted
from wdsdist.curation import add, arrays, column_file, join, members
from wdsdist.curation.column_file import KEY
from wdsdist.curation.column_spec import JSON, ColumnSpec, kind_of
from wdsdist.curation.columns import ColumnReader, names, unknown
from wdsdist.curation.join import Joined
from wdsdist.curation.tables import ArrowTable, Table, pyarrow
from wdsdist.curation.tables import kind_of as kind_of_table
from wdsdist.errors import ArgumentError, NotFoundError, SampleError, SourceError
from wdsdist.shards.shard_indexes import shard_index
from wdsdist.storage import compression

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

_FEW = 1000
"""Values of a list that a view holds, so that it can be made again."""
_LOOKED_AT = 200
"""Samples whose values are compared with a list of which no sample was found."""


def is_listed(data: Manifest, name: str, given: Any, on: str) -> tuple[npt.NDArray[np.bool_], dict[str, Any]]:
    """Return bool [samples]: whether the value of each sample in the column ``on`` is in a list, and a note about it.

    A field of a member that is no column yet is added first. Raises `ArgumentError` if no sample is found.
    """
    try:
        ColumnReader(data, on)
    except ArgumentError:
        if on in names(data):
            raise
        examples = _examples(data, on)
        if on not in examples:
            raise unknown(data, on, examples) from None
        add.warn(add.add_columns(data, fields=[on]))
    with contextlib.ExitStack() as stack:
        table, about = stack.enter_context(_opened(name, given, on, data.client_options))
        about |= {"values": table.num_rows, "on": on}
        if not table.num_rows:
            return np.zeros(data.num_samples, np.bool_), about | {"samples": 0}
        listed = Joined(data, [table], (on, on), ()).rows >= 0
        if not listed.any() and data.num_samples:
            reason = f"no sample's {on} is in {storage.shown(about['from'])}{_advice(data, table, on)}"
            raise ArgumentError(f"{name}: {reason}", argument=name)
        return listed, about | {"samples": int(listed.sum())}


@contextlib.contextmanager
def _opened(name: str, given: Any, on: str, options: storage.StorageOptions) -> Iterator[tuple[Table, dict[str, Any]]]:
    """Open a list as a table with the column ``on``, with a note where it came from."""
    if not isinstance(given, (str, os.PathLike)):
        if not isinstance(given, Iterable) or isinstance(given, bytes):
            raise ArgumentError(f"{name} is {given!r}: it must be a list of keys, or the path of a file", argument=name)
        values = arrays.from_values(value.item() if isinstance(value, np.generic) else value for value in given)
        said = counted(len(values), "value")
        few = {"list": arrays.as_strings(values).to_pylist()} if len(values) <= _FEW else {}
        yield _table(values, on, said), {"from": said, **few}
        return
    location = storage.normalise(os.fspath(given))
    if not storage.is_remote(location):
        location = str(Path(location).absolute())
    note, shown = {"from": location, "is_file": True}, storage.shown(location)
    file = storage.split(location)[1].partition("?")[0].lower()
    if kind_of_table(file):
        with join.opened(location, options) as table:
            yield table, note
        return
    if not storage.is_remote(location) and Path(location).is_dir():
        raise SourceError(f"{shown} is a folder: name a file in it")
    try:
        content = storage.read(location, options)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(f"{shown} does not exist") from error
    if file.endswith(".gz"):
        try:
            content, file = compression.unzip(content, compression.most_expanded(len(content))), file[:-3]
        except (SampleError, OSError, EOFError, zlib.error) as error:
            raise SourceError(f"{shown} is not whole gzip data: {error}") from error
    if file.endswith(".npy"):
        yield _table(_of_npy(content, shown), on, shown), note
    elif file.endswith(".json"):
        yield _table(_of_json(content, shown), on, shown), note
    elif b"\0" in content:  # as a tar has; no sample would be found by its lines
        raise SourceError(f"{shown} is not a list of lines: it holds bytes that no text has")
    else:
        # As bytes: strings are split at further characters, which keys may hold.
        lines = content.removeprefix(codecs.BOM_UTF8).splitlines()
        yield _table(arrays.from_values(line for line in lines if line), on, shown), note


def _table(values: Any, on: str, label: str) -> Table:
    batch = pyarrow().record_batch([values], names=[on])
    return ArrowTable([(batch.schema, [batch])], label, [label])


def _of_json(content: bytes, shown: str) -> Any:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{shown} is not JSON: {error}; JSON Lines end in .jsonl") from None
    if not isinstance(found, list) or not all(isinstance(one, (str, int, float)) for one in found):
        raise SourceError(f"{shown} must hold a list of strings or numbers; JSON Lines end in .jsonl")
    return arrays.from_values(found)


def _of_npy(content: bytes, shown: str) -> Any:
    try:
        array = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, EOFError, OSError, MemoryError) as error:
        raise SourceError(f"{shown} is not an array without objects: {error}") from error
    if getattr(array, "ndim", 0) == 1 and array.dtype.names is not None:
        if [array.dtype[name].kind for name in array.dtype.names] == ["u", "u"]:
            # DataComp's identifiers: two halves of 32 hexadecimal digits.
            halves = np.stack([array[name] for name in array.dtype.names], axis=1).astype(">u8")
            return pyarrow().array(np.frombuffer(halves.tobytes().hex().encode(), "S32").astype("U32").tolist())
    elif getattr(array, "ndim", 0) == 1 and array.dtype.kind in "biufUS":
        return arrays.from_values(array.tolist())
    raise SourceError(f"{shown} must hold strings, numbers, or pairs of uint64, in one dimension")


# What to do if no sample was found


def _advice(data: Manifest, table: Table, on: str) -> str:
    """Return an example of each side, and the column whose values look like those of the list, if there is one."""
    key = join.name_in(table, on)
    listed = [one for one in arrays.as_strings(arrays.plain(next(table.batches([key])).column(0))).to_pylist() if one]
    shapes, alike = {_shape(one) for one in listed[:_LOOKED_AT]}, dict[str, float]()
    examples = _examples(data, on)
    for name, values in examples.items():
        found = sum(value in set(listed) for value in values), sum(_shape(value) in shapes for value in values)
        if name != on and values and max(found):
            alike[name] = found[0] + found[1] / (len(values) + 1)
    ours, theirs = next(iter(examples.get(on, ())), None), next(iter(listed), None)
    advice = f" (the list has {theirs!r}, a sample {ours!r})"
    if alike:
        best = max(alike, key=lambda name: alike[name])
        return f"{advice}: the values of {best!r} look alike, so pass on={best!r}"
    return f"{advice}: name the column that the list holds with on="


def _shape(value: str) -> tuple[str, int | bool]:
    """Return what values of one kind share: the separators that they begin with, and for a single word its letters.

    >>> _shape("https://a.b/c") == _shape("http://x.y/z/0.jpg"), _shape("000012") == _shape("cat")
    (True, False)
    """
    pattern = re.sub(r"\w+", "w", value)[:4]
    if pattern != "w":
        return pattern, 0
    is_hexadecimal = len(value) >= 16 and re.fullmatch("[0-9a-f]+", value) is not None
    return ("digits", 0) if value.isdecimal() else ("hexadecimal", len(value)) if is_hexadecimal else ("word", 0)


def _examples(data: Manifest, on: str) -> dict[str, list[str]]:
    """Return some values of the columns, and of the fields in JSON members, of the first samples of a data set."""
    part = next(part for part in data.data_sets if part.num_samples)
    shard = int((part.counts > 0).argmax())
    found: dict[str, list[str]] = {}
    for name in dict.fromkeys([KEY, on, *column_file.names(part)]):
        with contextlib.suppress(ArgumentError):
            values = arrays.as_strings(ColumnReader(part, name).read([shard]).slice(0, _LOOKED_AT))
            found[name] = [value for value in values.to_pylist() if value]
    index = shard_index(part, shard)
    index = index.of_samples(np.arange(min(index.num_samples, _LOOKED_AT)))
    small = [one.lower() for one in index.extensions if kind_of(one) in (*JSON, "txt", "url", "id", "cls")]
    for member, column in members.read(part.whole, shard, index, [ColumnSpec("field", one) for one in small]).items():
        for value in filter(None, arrays.as_strings(column.values).to_pylist()):
            row = json.loads(value) if kind_of(member) in JSON else value
            for name, inner in row.items() if isinstance(row, dict) else [("", row)]:
                if isinstance(inner, (str, int)) and inner != "":
                    found.setdefault(f"{member}.{name}".removesuffix("."), []).append(str(inner))
    return found
