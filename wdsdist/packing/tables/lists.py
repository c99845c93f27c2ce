"""Lists of values in files: lines of text, JSON, ``.npy``, or a column of a table."""

from __future__ import annotations

import codecs
import io
import json
import logging
import zlib
from typing import Any

import numpy as np

from wdsdist import storage
from wdsdist._util.validation import counted
from wdsdist.errors import SampleError, SourceError
from wdsdist.packing.tables.arrays import concatenated, from_values
from wdsdist.packing.tables.open import kind_of, open_at
from wdsdist.storage import compression

_log = logging.getLogger("wdsdist")


def read_list(location: str, on: str, options: storage.StorageOptions | None) -> Any:
    """Return the values in a file, of a table in the column ``on``. Raises `SourceError` if it is not a list.

    A line of a quarantine file that is cut off, as a killed process leaves it, is left out with a warning.
    """
    shown, name = storage.shown(location), storage.split(location)[1].partition("?")[0].lower()
    if kind := kind_of(name):
        table = open_at(location, options, on_error="skip" if kind == "jsonl" else "raise")
        if table.bad_rows:
            row, reason = table.bad_rows[0]
            if not {"key", "field"}.issubset(table.schema.names):
                raise SourceError(f"{shown}, row {row:,}: {reason}")
            _log.warning("%s: %s cut off, such as row %s", shown, counted(len(table.bad_rows), "entry"), f"{row:,}")
        return concatenated(table.values(table.name_of(on))).combine_chunks()
    try:
        content = storage.read(location, options)
        if name.endswith(".gz"):
            content, name = compression.unzip(content, compression.most_expanded(len(content))), name[:-3]
        if name.endswith(".npy"):
            array = np.load(io.BytesIO(content), allow_pickle=False)
            # DataComp's identifiers are two halves of 32 hexadecimal digits.
            if array.ndim == 1 and array.dtype == np.dtype("u8,u8"):
                array = np.array([f"{int(high):016x}{int(low):016x}" for high, low in array])
            values = array.tolist()
        elif name.endswith(".json"):
            values = json.loads(content)
        elif b"\0" in content:  # as a tar has; no sample would be found by its lines
            raise ValueError("it holds bytes that no text has")
        else:  # bytes: strings are split at further characters, which keys may hold
            values = [line for line in content.removeprefix(codecs.BOM_UTF8).splitlines() if line]
        if not isinstance(values, list) or not all(isinstance(value, (str, bytes, int, float)) for value in values):
            raise ValueError("it must be a list of strings or numbers")
        return from_values(values)
    except (ValueError, RecursionError, EOFError, MemoryError, zlib.error, SampleError) as error:
        advice = "; JSON Lines end in .jsonl" if name.endswith(".json") else ""
        raise SourceError(f"{shown} is not a list of values: {error}{advice}") from error
