"""Matching of values against a dict of Python."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wdsdist.shards.columns import join as module
from wdsdist.shards.columns.column import Column
from wdsdist.shards.columns.join import ValueIndex

KEYS = st.one_of(
    st.none(),
    st.integers(-3, 3),
    st.sampled_from([0.0, 1.0, 2.5]),
    st.text("ab\0é", max_size=3),
    st.text("ab", min_size=14, max_size=17),
    st.text("0f", min_size=32, max_size=32),
    st.text("0g", min_size=31, max_size=33),
)


def match(column: Column, values: Column) -> np.ndarray:
    return ValueIndex([values]).places(column)


def expected(column: Column, values: Column) -> list[int]:
    first: dict[bytes, int] = {}
    for place, (text, gone) in enumerate(zip(values.texts(), values.missing.tolist(), strict=True)):
        if not gone:
            first.setdefault(text, place)
    rows = zip(column.texts(), column.missing.tolist(), strict=True)
    return [-1 if gone else first.get(text, -1) for text, gone in rows]


@given(st.lists(KEYS, max_size=12), st.lists(KEYS, max_size=12))
def test_each_value_finds_the_first_that_is_equal_as_a_dict_does(one: list[Any], other: list[Any]) -> None:
    column, values = Column.of(one), Column.of(other)
    assert match(column, values).tolist() == expected(column, values)


@given(st.lists(st.lists(KEYS, max_size=5), max_size=4))
def test_places_go_on_over_several_columns_and_repeated_values_are_counted(lists: list[list[Any]]) -> None:
    columns = [Column.of([None if one is None else str(one) for one in listed]) for listed in lists]
    whole = Column.joined([Column.of(["x"]), *columns]).part(1, 99)
    index = ValueIndex(columns)
    assert index.places(whole).tolist() == expected(whole, whole)
    present = [text for text, gone in zip(whole.texts(), whole.missing.tolist(), strict=True) if not gone]
    assert index.num_values == len(whole)
    assert index.num_repeated == len(present) - len(set(present))


def test_many_values_are_matched_over_the_borders_of_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK", 7)
    random = np.random.default_rng(0)
    keys = [uuid.UUID(bytes=random.bytes(16)).hex if n % 2 else f"{n:09}" for n in range(100)]
    order = random.permutation(100)
    assert match(Column.of([keys[n] for n in order]), Column.of(keys)).tolist() == order.tolist()


def test_values_whose_first_words_agree_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def clashing(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
        return np.stack([np.zeros(len(starts) - 1, np.uint64), values[starts[:-1]].astype(np.uint64)], axis=1)

    monkeypatch.setattr(module, "_hashed", clashing)
    assert match(Column.of(["b", "a", "c"]), Column.of(["a", "b"])).tolist() == [1, 0, -1]


def test_keys_that_begin_alike_are_spread_over_all_first_words() -> None:
    words = module._hashes(Column.of([f"{number:09}" for number in range(4096)]))[:, 0]
    assert len(np.unique(words)) == 4096
    assert np.bincount((words >> np.uint64(60)).astype(int), minlength=16).min() > 150
