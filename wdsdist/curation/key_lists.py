"""Lists of values by which samples are kept or left out: iterables, lines, JSON lists, arrays of numpy, and tables."""

from __future__ import annotations

import codecs
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
from wdsdist.curation import add, arrays, columns, fields
from wdsdist.curation.join import column, examples, match, name_in, opened
from wdsdist.curation.tables import kind_of, pyarrow
from wdsdist.errors import ArgumentError, NotFoundError, SampleError, SourceError
from wdsdist.storage import compression

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

_FEW = 1000
"""Values of a list that a view holds, so that it can be made again."""


def is_listed(data: Manifest, argument: str, values: Any, on: str) -> tuple[npt.NDArray[np.bool_], dict[str, Any]]:
    """Return bool [samples]: whether the value of each sample in the column ``on`` is in a list, and a note about it.

    ``on`` may be a field of a member too, which is no column yet. Raises `ArgumentError` if no sample is in the list.
    """
    if on in columns.names(data):
        own = columns.column(data, on)
    elif on in (known := examples(data)):
        shards = np.flatnonzero(data.counts).tolist()
        own = add.from_members(data.whole, fields.parsed(data.whole, [on], []), shards)[on]
        own = own if data.picks is None else own.take(pyarrow().array(data.picks.positions()))
    else:
        raise columns.unknown(data, on, known)
    if isinstance(values, (str, os.PathLike)):
        location = storage.normalise(os.fspath(values))
        location = location if storage.is_remote(location) else str(Path(location).absolute())
        label = storage.shown(location)
        note: dict[str, Any] = {"from": location, "is_file": True}
        listed = _read(location, on, data.client_options)
    elif isinstance(values, Iterable) and not isinstance(values, bytes):
        listed = arrays.from_values(value.item() if isinstance(value, np.generic) else value for value in values)
        label = counted(len(listed), "value")
        note = {"from": label}
        if len(listed) <= _FEW:
            note["list"] = listed.cast("large_string").to_pylist()
    else:
        reason = "it must be a list of keys, or the path of a file"
        raise ArgumentError(f"{argument} is {values!r}: {reason}", argument=argument)
    rows, report = match(data, on, own, listed, label, argument)
    is_found: npt.NDArray[np.bool_] = rows.is_valid().to_numpy()
    return is_found, note | {"values": report.rows, "on": on, "samples": report.samples_matched}


def _read(location: str, on: str, options: storage.StorageOptions) -> Any:
    """Return the values in a file, of a table in the column ``on``. Raises `SourceError` if it is no list."""
    shown, name = storage.shown(location), storage.split(location)[1].partition("?")[0].lower()
    if kind_of(name):
        with opened(location, options) as table:
            return arrays.concatenated(column(table, name_in(table, on)))
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
