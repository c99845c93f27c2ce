"""Lists of values by which samples are kept or left out: iterables, lines, JSON lists, arrays of numpy, and tables."""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from wdsdist import storage
from wdsdist._util.validation import counted
from wdsdist.curation import arrays, fields
from wdsdist.curation.add import making
from wdsdist.curation.columns import ColumnReader, names, unknown
from wdsdist.curation.join import examples, match, opened
from wdsdist.curation.tables import Table, groups_of, kind_of, pyarrow
from wdsdist.errors import ArgumentError, NotFoundError, SampleError, SourceError
from wdsdist.storage import compression

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

_FEW = 1000
"""Values of a list that a view holds, so that it can be made again."""


def is_listed(data: Manifest, argument: str, values: Any, on: str) -> tuple[npt.NDArray[np.bool_], dict[str, Any]]:
    """Return bool [samples]: whether the value of each sample in the column ``on`` is in a list, and a note about it.

    A field of a member that is no column becomes one. Raises `ArgumentError` if no sample is in the list; no column is
    added then.
    """
    with contextlib.ExitStack() as stack:
        folder = None
        try:
            ColumnReader(data, on)
        except ArgumentError:
            if on in names(data):
                raise
            if on not in (known := examples(data, on)):
                raise unknown(data, on, known) from None
            folder = stack.enter_context(making(data, fields.parsed([on], [])))
        if isinstance(values, (str, os.PathLike)):
            location = storage.normalise(os.fspath(values))
            location = location if storage.is_remote(location) else str(Path(location).absolute())
            note: dict[str, Any] = {"from": location, "is_file": True}
            if kind_of(storage.split(location)[1].partition("?")[0]):
                table = stack.enter_context(opened(location, data.client_options))
            else:
                table = _table(_read(location, data.client_options), on, storage.shown(location))
        elif isinstance(values, Iterable) and not isinstance(values, bytes):
            array = arrays.from_values(value.item() if isinstance(value, np.generic) else value for value in values)
            note = {"from": counted(len(array), "value")}
            if len(array) <= _FEW:
                note["list"] = array.cast("large_string").to_pylist()
            table = _table(array, on, note["from"])
        else:
            reason = "it must be a list of keys, or the path of a file"
            raise ArgumentError(f"{argument} is {values!r}: {reason}", argument=argument)
        rows, report = match(ColumnReader(data, on, folder), [table], on, argument)
        return rows >= 0, note | {"values": table.num_rows, "on": on, "samples": report.samples_matched}


def _table(values: Any, on: str, label: str) -> Table:
    batch = pyarrow().record_batch([values], names=[on])
    return Table(label, batch.schema, [*groups_of([batch], label)])


def _read(location: str, options: storage.StorageOptions | None) -> Any:
    """Return the values in a file as an array. Raises `SourceError` if it is no list."""
    shown, name = storage.shown(location), storage.split(location)[1].partition("?")[0].lower()
    try:
        content = storage.read(location, options)
        if name.endswith(".gz"):
            content, name = compression.unzip(content, compression.most_expanded(len(content))), name[:-3]
        if name.endswith(".npy"):
            array = np.load(io.BytesIO(content), allow_pickle=False)
            if array.ndim == 1 and array.dtype.kind in "biufUS":
                return arrays.from_values(array.tolist())
            if array.ndim == 1 and array.dtype == np.dtype("u8,u8"):
                # DataComp's identifiers: two halves of 32 hexadecimal digits.
                return arrays.from_values(f"{int(high):016x}{int(low):016x}" for high, low in array)
            raise ValueError("it must hold strings, numbers, or pairs of uint64, in one dimension")
        if name.endswith(".json"):
            values = json.loads(content)
            if not isinstance(values, list) or not all(isinstance(value, (str, int, float)) for value in values):
                raise ValueError("it must be a JSON list of strings or numbers")
            return arrays.from_values(values)
        if b"\0" in content:  # as a tar has; no sample would be found by its lines
            raise ValueError("it holds bytes that no text has")
        # As bytes: strings are split at further characters, which keys may hold.
        return arrays.from_values(line for line in content.removeprefix(codecs.BOM_UTF8).splitlines() if line)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(f"{shown} does not exist") from error
    except (ValueError, RecursionError, EOFError, MemoryError, zlib.error, SampleError) as error:
        advice = "; JSON Lines end in .jsonl" if name.endswith(".json") else ""
        raise SourceError(f"{shown} is not a list of values: {error}{advice}") from error
