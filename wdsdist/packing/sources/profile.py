"""What a column of a manifest in text holds, told by all its values."""

from __future__ import annotations

import os
import re
from typing import Any

from wdsdist.packing.sources.mapping import Column, Content, suffix

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,300})")  # not 007, which is a text
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,300})(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,3})?")
_FIRST = 100  # texts that are looked up as paths


class Profile:
    """Grows with each value; ``written`` says that numbers come as text, and that an empty text is a missing value.

    A column without a name counts as empty: what index columns of pandas hold is no data.

    >>> profile = Profile("n", written=True)
    >>> for value in ("1", "", "2.5"):
    ...     profile.add(value)
    >>> profile.column("/data").content
    'number'
    """

    def __init__(self, name: str, *, written: bool = False) -> None:
        self.name = name
        self._written = written
        self._content: Content = "empty"
        self._first: list[str] = []

    def add(self, value: Any) -> None:
        """Look at one value."""
        if value is None or (self._written and not value):
            return
        found = self._told(value)
        if found != self._content:
            self._content = self._joined(found)
        if len(self._first) < _FIRST and isinstance(value, str):
            self._first.append(value)

    def column(self, root: str) -> Column:
        """Say what the column holds; paths are looked up under ``root``."""
        values = tuple(self._first)
        if not self.name:
            return Column("", "empty")
        if self._content == "text":
            return paths_or_texts(self.name, values, root)
        return Column(self.name, self._content)

    def _told(self, value: Any) -> Content:
        if self._written:
            if self._content == "text":  # and that it stays
                return "text"
            return "integer" if _INTEGER.fullmatch(value) else "number" if _NUMBER.fullmatch(value) else "text"
        if isinstance(value, str):
            return "text"
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return "integer" if isinstance(value, int) else "number"
        return "other"

    def _joined(self, found: Content) -> Content:
        if self._content == "empty":
            return found
        if {self._content, found} == {"integer", "number"}:
            return "number"
        return "text" if self._written else "other"


def paths_or_texts(name: str, values: tuple[str, ...], root: str) -> Column:
    """Return a column of texts, told by its first values: one of paths where any of them names a file."""
    there = next((value for value in values if suffix(value) and _is_file(root, value)), None)
    if there is not None:
        return Column(name, "path", suffix(there), values=values)
    return Column(name, "text", values=values)


def _is_file(root: str, value: str) -> bool:
    try:
        return os.path.isfile(os.path.join(root, value))  # noqa: PTH113, PTH118 - takes what Path refuses, such as NUL
    except ValueError:
        return False
