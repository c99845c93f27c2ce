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
from wdsdist.curation import add, arrays, column_file, fields, join
from wdsdist.curation.columns import ColumnReader, names, unknown
from wdsdist.curation.tables import ArrowTable, Table, kind_of, pyarrow
from wdsdist.errors import ArgumentError, NotFoundError, SampleError, SourceError
from wdsdist.shards.shard_indexes import shard_index
from wdsdist.storage import compression

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

_FEW = 1000
"""Values of a list that a view holds, so that it can be made again."""
_LOOKED_AT = 200
"""Samples whose values are compared with a list that no sample is in."""
_TEXTS = (*fields.JSON, "txt", "url", "id", "cls")
"""Members whose values are compared with such a list."""


def is_listed(data: Manifest, argument: str, values: Any, on: str) -> tuple[npt.NDArray[np.bool_], dict[str, Any]]:
    """Return bool [samples]: whether the value of each sample in the column ``on`` is in a list, and a note about it.

    A field of a member that is no column yet is added first. Raises `ArgumentError` if no sample is in the list.
    """
    try:
        ColumnReader(data, on)
    except ArgumentError:
        if on in names(data):
            raise
        if on not in (examples := _examples(data, on)):
            raise unknown(data, on, examples) from None
        add.warn(add.add_columns(data, fields=[on]))
    with contextlib.ExitStack() as stack:
        table, about = stack.enter_context(_opened(argument, values, on, data.client_options))
        is_found = join.Matches(data, [table], (on, on)).rows >= 0
        if table.num_rows and data.num_samples and not is_found.any():
            reason = f"no sample's {on} is in {storage.shown(about['from'])}{_advice(data, table, on)}"
            raise ArgumentError(f"{argument}: {reason}", argument=argument)
        return is_found, about | {"values": table.num_rows, "on": on, "samples": int(is_found.sum())}


@contextlib.contextmanager
def _opened(
    argument: str, values: Any, on: str, options: storage.StorageOptions
) -> Iterator[tuple[Table, dict[str, Any]]]:
    """Open a list as a table with the column ``on``, with a note on its source."""
    if not isinstance(values, (str, os.PathLike)):
        if not isinstance(values, Iterable) or isinstance(values, bytes):
            reason = "it must be a list of keys, or the path of a file"
            raise ArgumentError(f"{argument} is {values!r}: {reason}", argument=argument)
        array = arrays.from_values(value.item() if isinstance(value, np.generic) else value for value in values)
        source = {"from": counted(len(array), "value")}
        few = {"list": array.cast("large_string").to_pylist()} if len(array) <= _FEW else {}
        yield _table(array, on, source["from"]), source | few
        return
    location = storage.normalise(os.fspath(values))
    if not storage.is_remote(location):
        location = str(Path(location).absolute())
    about: dict[str, Any] = {"from": location, "is_file": True}
    shown = storage.shown(location)
    file = storage.split(location)[1].partition("?")[0].lower()
    if kind_of(file):
        with join.opened(location, options) as opened:
            yield opened, about
        return
    if not storage.is_remote(location) and Path(location).is_dir():
        raise SourceError(f"{shown} is a folder: name a file in it")
    try:
        content = storage.read(location, options)
        if file.endswith(".gz"):
            content, file = compression.unzip(content, compression.most_expanded(len(content))), file[:-3]
        table = _table(_values(file, content), on, shown)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(f"{shown} does not exist") from error
    except (ValueError, RecursionError, EOFError, MemoryError, zlib.error, SampleError) as error:
        hint = "; JSON Lines end in .jsonl" if file.endswith(".json") else ""
        raise SourceError(f"{shown} is not a list of values: {error}{hint}") from error
    yield table, about


def _values(file: str, content: bytes) -> Any:
    """Return the values in a file as an array. Raises ``ValueError`` if it holds no list of them."""
    if file.endswith(".npy"):
        array = np.load(io.BytesIO(content), allow_pickle=False)
        if array.ndim == 1 and array.dtype.kind in "biufUS":
            return arrays.from_values(array.tolist())
        if array.ndim == 1 and array.dtype == np.dtype("u8,u8"):
            # DataComp's identifiers: two halves of 32 hexadecimal digits.
            return arrays.from_values(f"{int(high):016x}{int(low):016x}" for high, low in array)
        raise ValueError("it must hold strings, numbers, or pairs of uint64, in one dimension")
    if file.endswith(".json"):
        values = json.loads(content)
        if not isinstance(values, list) or not all(isinstance(value, (str, int, float)) for value in values):
            raise ValueError("it must be a JSON list of strings or numbers")
        return arrays.from_values(values)
    if b"\0" in content:  # as a tar has; no sample would be found by its lines
        raise ValueError("it holds bytes that no text has")
    # As bytes: strings are split at further characters, which keys may hold.
    return arrays.from_values(line for line in content.removeprefix(codecs.BOM_UTF8).splitlines() if line)


def _table(values: Any, on: str, label: str) -> Table:
    batch = pyarrow().record_batch([values], names=[on])
    return ArrowTable([(batch.schema, [batch])], label, [label])


# What to do if no sample was found


def _advice(data: Manifest, table: Table, on: str) -> str:
    """Return an example of each side, and the column whose values look like those of the list, if there is one."""
    values = arrays.plain(next(table.batches([join.name_in(table, on)])).column(0)).cast("large_string")
    listed = [value for value in values.to_pylist() if value]
    shapes, alike = {_shape(value) for value in listed[:_LOOKED_AT]}, dict[str, tuple[int, int]]()
    examples = _examples(data, on)
    for name, own in examples.items():
        counts = sum(value in set(listed) for value in own), sum(_shape(value) in shapes for value in own)
        if name != on and any(counts):
            alike[name] = counts
    ours, theirs = next(iter(examples.get(on, ())), None), next(iter(listed), None)
    advice = f" (the list has {theirs!r}, a sample {ours!r})"
    if alike:
        best = max(alike, key=lambda name: alike[name])
        return f"{advice}: the values of {best!r} look alike, so pass on={best!r} (--on {best})"
    return f"{advice}: name the column that the list holds with on="


def _shape(value: str) -> str:
    """Return what values of one kind share: letters, digits and separators, as they begin.

    >>> _shape("https://a.b/c") == _shape("http://x.y/z/0.jpg"), _shape("000012") == _shape("cat")
    (True, False)
    """
    return re.sub("[A-Za-z]+", "a", re.sub("[0-9]+", "0", value))[:4]


def _examples(data: Manifest, on: str) -> dict[str, list[str]]:
    """Return some values of the columns, and of the fields in JSON members, of the first samples of a data set."""
    part = next(part for part in data.data_sets if part.num_samples).whole
    shard = int((part.counts > 0).argmax())
    examples: dict[str, list[str]] = {}
    for name in dict.fromkeys([column_file.KEY, on, *column_file.names(part)]):
        with contextlib.suppress(ArgumentError):
            values = ColumnReader(part, name).read([shard]).slice(0, _LOOKED_AT).cast("large_string")
            examples[name] = [value for value in values.to_pylist() if value]
    index = shard_index(part, shard)
    small = [fields.Field("field", one.lower()) for one in index.extensions if fields.kind_of(one) in _TEXTS]
    for member, column in fields.read(part, shard, small, np.arange(min(index.num_samples, _LOOKED_AT))).items():
        for value in filter(None, column.values.cast("large_string").to_pylist()):
            row = json.loads(value) if fields.kind_of(member) in fields.JSON else value
            for name, inner in row.items() if isinstance(row, dict) else [("", row)]:
                if isinstance(inner, (str, int)) and inner != "":
                    examples.setdefault(f"{member}.{name}".removesuffix("."), []).append(str(inner))
    return examples
