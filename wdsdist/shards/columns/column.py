"""`Column`: one typed value for each sample of a data set, known without reading the sample."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s, runs

Kind = Literal["int", "float", "bool", "text"]

_EXACT = 2**53
"""The largest integer up to which floats hold all of them."""

_DTYPES: dict[str, str] = {"int": "<i8", "float": "<f8", "bool": "|u1", "text": "|u1"}


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """The values of one column, in the order of the data set's samples; some may be missing."""

    kind: Kind
    values: npt.NDArray[Any]
    """int64, float64 or, of truth values, uint8 [samples]; of texts uint8: their UTF-8, one after another."""
    starts: Int64s | None = None
    """int64 [samples + 1]: where each text starts in ``values``; ``None`` for other kinds."""
    is_missing: npt.NDArray[np.uint8] | None = None
    """uint8 [samples]: 1 where there is no value; ``None`` where there is one for every sample."""

    @classmethod
    def of(cls, values: Iterable[Any]) -> Column:
        """Return the column of Python values, where ``None`` is a missing one.

        Its kind is the narrowest that holds all values without a change: truth values, integers of 64 bits, floats,
        else texts.

        >>> Column.of([1, None, 3]).kind, Column.of([1, 2.5]).kind, Column.of(["a", 1]).kind
        ('int', 'float', 'text')
        """
        listed = list(values)
        missing = np.fromiter((value is None for value in listed), np.uint8, len(listed))
        is_missing = missing if missing.any() else None
        kind = _kind_of([value for value in listed if value is not None])
        if kind == "text":
            texts = [b"" if value is None else _text(value) for value in listed]
            return cls._of_texts(texts, is_missing)
        filled = [0 if value is None else value for value in listed]
        return cls(kind, np.array(filled, _DTYPES[kind]), None, is_missing)

    @classmethod
    def _of_texts(cls, texts: Sequence[bytes], is_missing: npt.NDArray[np.uint8] | None = None) -> Column:
        starts = np.zeros(len(texts) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)), out=starts[1:])
        return cls("text", np.frombuffer(b"".join(texts), np.uint8), starts, is_missing)

    @classmethod
    def joined(cls, parts: Sequence[Column]) -> Column:
        """Concatenate columns; where their kinds differ, the result is of the narrowest kind that holds all."""
        filled = [part for part in parts if len(part)]
        if not filled:
            return parts[0] if parts else cls("float", np.zeros(0))
        kind = _widest([part for part in filled if not part.is_empty] or filled[:1])
        parts = [part.as_kind(kind) for part in filled]
        is_missing = None
        if any(part.is_missing is not None for part in parts):
            is_missing = np.concatenate([part.missing for part in parts])
        values = np.concatenate([part._own_values for part in parts])
        if kind != "text":
            return cls(kind, values, None, is_missing)
        lengths = np.concatenate([np.diff(part.starts) for part in parts if part.starts is not None])
        return cls(kind, values, np.concatenate(([0], np.cumsum(lengths))).astype(np.int64), is_missing)

    def __len__(self) -> int:
        return len(self.values) if self.starts is None else len(self.starts) - 1

    @property
    def is_empty(self) -> bool:
        """Whether no sample has a value."""
        return self.is_missing is not None and bool(self.is_missing.all())

    @property
    def missing(self) -> npt.NDArray[np.uint8]:
        """uint8 [samples]: 1 where there is no value."""
        return np.zeros(len(self), np.uint8) if self.is_missing is None else self.is_missing

    @property
    def _own_values(self) -> npt.NDArray[Any]:
        """The values without those texts that a part of a column does not have."""
        return self.values if self.starts is None else self.values[self.starts[0] : self.starts[-1]]

    def take(self, positions: Int64s) -> Column:
        """Return the column of some samples, by their positions, in the given order."""
        is_missing = None if self.is_missing is None else self.is_missing[positions]
        if self.starts is None:
            return Column(self.kind, self.values[positions], None, is_missing)
        places, starts = runs(self.starts, positions)
        return Column("text", self.values[places], starts, is_missing)

    def part(self, first: int, last: int) -> Column:
        """Return the column of the samples from position ``first`` to ``last``, as views of the same memory."""
        first = min(first, len(self))
        is_missing = None if self.is_missing is None else self.is_missing[first:last]
        if self.starts is None:
            return Column(self.kind, self.values[first:last], None, is_missing)
        return Column("text", self.values, self.starts[first : last + 1], is_missing)

    def texts(self) -> list[bytes]:
        """Return each value as UTF-8 text, as it is hashed and compared; of a missing one nothing."""
        if self.starts is None:
            texts = [_text(value) for value in self.typed().tolist()]
        else:
            begin, end = self.starts[[0, -1]].tolist()
            data = self.values[begin:end].tobytes()
            texts = [data[first:last] for first, last in itertools.pairwise((self.starts - begin).tolist())]
        if self.is_missing is None:
            return texts
        return [b"" if gone else text for text, gone in zip(texts, self.is_missing.tolist(), strict=True)]

    def typed(self) -> npt.NDArray[Any]:
        """Return the values of a kind other than text as int64, float64 or bool [samples], whether missing or not."""
        return self.values.view(np.bool_) if self.kind == "bool" else self.values

    def array(self) -> npt.NDArray[Any]:
        """Return the values as an array.

        Numbers are int64 or float64, truth values bool, texts objects. Where values are missing, numbers and truth
        values are float64 with NaN there, and texts have ``None``.
        """
        if self.kind == "text":
            texts: list[Any] = [text.decode("utf-8", "surrogateescape") for text in self.texts()]
            found = np.array([*texts, None], object)[:-1]  # a list of texts alone could make an array of them
            found[self.missing.view(np.bool_)] = None
            return found
        if self.is_missing is None:
            return self.typed()
        return np.where(self.is_missing.view(np.bool_), np.nan, self.values.astype(np.float64))

    def arrow(self) -> Any:
        """Return the values as an array of pyarrow, which shares the memory of numbers and texts."""
        import pyarrow

        valid = None if self.is_missing is None else pyarrow.array(self.is_missing == 0).buffers()[1]
        if self.starts is not None:
            starts, data = (pyarrow.py_buffer(np.ascontiguousarray(one)) for one in (self.starts, self.values))
            texts = pyarrow.LargeStringArray.from_buffers(len(self), starts, data, valid)
            try:
                texts.validate(full=True)
            except pyarrow.ArrowInvalid:  # a name that is not UTF-8
                return pyarrow.array([text.decode("utf-8", "replace") for text in self.texts()], pyarrow.large_string())
            return texts
        mask = None if self.is_missing is None else self.is_missing.view(np.bool_)
        return pyarrow.array(self.typed(), mask=mask, from_pandas=False)

    def as_kind(self, kind: Kind) -> Column:
        """Return the column of each value in another kind, which holds all of them; texts are those that compare."""
        if kind == self.kind:
            return self
        if kind == "text":
            return Column._of_texts(self.texts(), self.is_missing)
        return Column(kind, self.values.astype(_DTYPES[kind]), None, self.is_missing)


@dataclass(frozen=True, slots=True, eq=False)
class MadeColumn:
    """One column of the samples of one shard."""

    column: Column
    num_failed: int = 0
    """Samples whose member could not be read as asked for; they have no value."""
    first_failed: str = ""
    """The first of them, and why."""


def _kind_of(values: list[Any]) -> Kind:
    types = set(map(type, values))
    if types <= {bool}:
        return "bool" if types else "float"
    if types <= {bool, int} and all(-(2**63) <= value < 2**63 for value in values):
        return "int"
    if types <= {bool, int, float} and all(-_EXACT <= value <= _EXACT for value in values if type(value) is int):
        return "float"
    return "text"


def _widest(parts: Sequence[Column]) -> Kind:
    """Return the narrowest kind that holds the values of all columns."""
    kinds = {part.kind for part in parts}
    if "text" in kinds:
        return "text"
    if "float" in kinds:
        # A float would round larger integers.
        integers = [part.values for part in parts if part.kind == "int"]
        is_exact = all(int(values.min()) >= -_EXACT and int(values.max()) <= _EXACT for values in integers)
        return "float" if is_exact else "text"
    return "int" if "int" in kinds else "bool"


def _text(value: Any) -> bytes:
    """Return a value as UTF-8: a float that is a whole number as that, so that 3 and 3.0 are the same key."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        value = int(value)
    try:
        return str(value).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half of a pair of code units, as JSON may hold it
        return str(value).encode("utf-8", "surrogatepass")
