"""Marks of functions: they say what a function is called with, alone and together, and survive pickling."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from wdsdist.errors import ArgumentError
from wdsdist.samples.marks import Part, call, is_parted, is_seeded, parted, seeded, stretch


@parted
def of_part(data: Any, part: int, parts: int) -> Any:
    return data, part, parts


@seeded
@parted
class Both:
    """As a transform of clips is made."""

    def __call__(self, data: Any, seed: int, part: int = 0, parts: int = 1) -> Any:
        return data, seed, part, parts

    def method(self, data: Any, seed: int, part: int = 0, parts: int = 1) -> Any:
        return self(data, seed, part, parts)


def test_a_function_is_called_with_what_its_marks_ask_for() -> None:
    assert call(of_part, "x", 7, Part(2, 9)) == ("x", 2, 9)
    assert call(of_part, "x", 7, None) == ("x", 0, 1)
    assert call(Both(), "x", 7, Part(2, 9)) == ("x", 7, 2, 9)
    assert call(len, "xy", 7, Part(2, 9)) == 2
    assert not is_parted(len)
    assert not is_parted(Both)


@pytest.mark.parametrize("make", [parted, seeded, lambda function: parted(seeded(function))])
def test_a_method_that_cannot_carry_a_mark_is_wrapped_and_keeps_those_that_it_had(make: Any) -> None:
    wrapped = make(Both().method)
    again = pickle.loads(pickle.dumps(wrapped))
    assert is_parted(again) == is_parted(wrapped) == (make is not seeded)
    assert is_seeded(again) == is_seeded(wrapped) == (make is not parted)
    assert again("x", 1, part=2, parts=3) == ("x", 1, 2, 3)


def test_only_what_can_be_called_is_marked() -> None:
    with pytest.raises(ArgumentError, match=r"parted\(\) got 3: it marks functions of \(data, part, parts\)"):
        parted(3)  # type: ignore[type-var]


@pytest.mark.parametrize(("length", "parts"), [(0, 3), (2, 5), (10, 3), (24, 24), (7, 1)])
def test_stretches_are_even_and_follow_one_another(length: int, parts: int) -> None:
    found = [stretch(length, part, parts) for part in range(parts)]
    assert [number for one in found for number in range(length)[one]] == list(range(length))
    assert max(one.stop - one.start for one in found) - min(one.stop - one.start for one in found) <= 1
