"""`Column` against lists of Python values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wdsdist.shards.columns.column import Column

TEXTS = st.text(max_size=5)
NUMBERS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-5, 5))
FLOATS = st.floats(allow_nan=False)
LISTS = st.one_of(
    *(
        st.lists(st.one_of(st.none(), values), max_size=8)
        for values in (st.booleans(), NUMBERS, FLOATS, TEXTS, st.one_of(NUMBERS, FLOATS, st.booleans(), TEXTS))
    )
)


def as_text(value: Any) -> str:
    """Return a value as it is compared: whole floats as integers."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else str(value)


def encoded(value: Any) -> bytes:
    """Return a value as the bytes of a text: names of files that are no UTF-8 as they are."""
    try:
        return as_text(value).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return as_text(value).encode("utf-8", "surrogatepass")


def values(column: Column) -> list[Any]:
    """Return the values of a column, ``None`` where one is missing."""
    listed = column.array().tolist() if column.is_missing is None or column.kind == "text" else column.typed().tolist()
    return [None if gone else value for value, gone in zip(listed, column.missing.tolist(), strict=True)]


def is_held(column: Column, expected: list[Any]) -> bool:
    """Return whether a column has the values of a list, as themselves, or in a column of texts as those."""
    if column.kind == "text":
        texts = [None if value is None else encoded(value) for value in expected]
        return [None if gone else one for one, gone in zip(column.texts(), column.missing, strict=True)] == texts
    return values(column) == expected


@given(LISTS)
@example([2**53 + 1, 0.5])
@example(["a\ud800", "\udce4"])
def test_a_column_has_the_values_that_it_was_made_of(listed: list[Any]) -> None:
    column = Column.of(listed)
    assert len(column) == len(listed)
    assert is_held(column, listed)


@pytest.mark.parametrize(
    ("listed", "kind"),
    [
        ([], "float"),
        ([None], "float"),
        ([True, None], "bool"),
        ([True, 2], "int"),
        ([2**63 - 1, -(2**63)], "int"),
        ([2**63], "text"),
        ([1, 2.5], "float"),
        ([2**53 + 1, 2.5], "text"),
        (["a", 1], "text"),
        ([b"a"], "text"),
    ],
)
def test_the_kind_is_the_narrowest_that_changes_no_value(listed: list[Any], kind: str) -> None:
    assert Column.of(listed).kind == kind


@given(LISTS, st.data())
def test_samples_are_taken_by_their_positions(listed: list[Any], data: st.DataObject) -> None:
    places = data.draw(st.lists(st.sampled_from(range(len(listed))), max_size=10)) if listed else []
    taken = Column.of(listed).take(np.array(places, np.int64))
    assert taken.texts() == [Column.of(listed).texts()[place] for place in places]
    assert taken.missing.tolist() == [listed[place] is None for place in places]


@given(LISTS, st.integers(0, 9), st.integers(0, 9))
@example(["a", "bb", "c"], 1, 2)
def test_a_part_is_those_samples_also_when_it_is_joined(listed: list[Any], first: int, count: int) -> None:
    part = Column.of(listed).part(first, first + count)
    expected = Column.of(listed).texts()[first : first + count]
    assert part.texts() == expected
    assert Column.joined([part, part]).texts() == expected * 2


@given(st.lists(LISTS, min_size=1, max_size=4))
@example([[2**53 + 1], [0.5]])
@example([[None, None], ["a"]])
def test_joined_columns_have_the_values_of_all(lists: list[list[Any]]) -> None:
    joined = Column.joined([Column.of(listed) for listed in lists])
    together = [value for listed in lists for value in listed]
    assert joined.missing.tolist() == [value is None for value in together]
    if len({Column.of(listed).kind for listed in lists if any(one is not None for one in listed)}) < 2:
        assert is_held(joined, together)
    elif joined.kind != "text":
        assert values(joined) == together


@given(LISTS)
def test_arrow_has_the_same_values(listed: list[Any]) -> None:
    column = Column.of(listed)
    found = column.arrow().to_pylist()
    assert [one is None for one in found] == [one is None for one in listed]
    if column.kind != "text":
        assert found == listed
    elif all(isinstance(one, str) for one in listed):
        assert found == [encoded(one).decode("utf-8", "replace") for one in listed]


def test_missing_numbers_are_nan_and_missing_texts_none() -> None:
    assert np.isnan(Column.of([1, None]).array()).tolist() == [False, True]
    assert Column.of(["a", None]).array().tolist() == ["a", None]
    assert Column.of([True, False]).array().dtype == np.bool_
