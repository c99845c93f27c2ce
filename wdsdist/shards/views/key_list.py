"""Lists of values that samples are kept or left out by: iterables, and files in the forms that people have."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsdist import storage
from wdsdist.shards.columns import table
from wdsdist.shards.columns.column import Column
from wdsdist.shards.columns.match import match


@dataclass(frozen=True, slots=True, eq=False)
class KeyList:
    """The values of a list."""

    values: Column
    label: str
    """Where they came from, for people."""


def load(given: Iterable[Any] | str | os.PathLike[str], on: str) -> KeyList:
    """Load a list of values: an iterable of them, or a file, whose form its name tells.

    Args:
        given: texts or numbers; or the path or URL of a text file with a value in each line, of JSON Lines, CSV or
            Parquet with the column ``on``, or of a ``.npy``.
        on: the column that the values are of.

    Raises `ArgumentError` where the file is not of the form that its name says, and `SourceNotFoundError` where there
    is none.
    """
    if not isinstance(given, (str, os.PathLike)):
        listed = list(given)
        return KeyList(Column.of(listed), f"{len(listed):,} values")
    location = storage.normalise(os.fspath(given))
    return KeyList(table.values(location, on), storage.shown(location))


def is_listed(column: Column, listed: KeyList) -> npt.NDArray[np.bool_]:
    """Return bool [samples]: whether each value of a column is in a list; a missing value is not."""
    return match(column, listed.values) >= 0
