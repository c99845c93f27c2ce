"""Marks of functions: they say what a function is called with, alone and together, and survive copies."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from wdsdist.errors import ArgumentError
from wdsdist.samples.marks import Part, caller, is_seeded, parted, seeded, stretch
from wdsdist.transforms import RandomResizedCrop


@seeded
def marked(data: Any, seed: int, *, option: int = 0) -> Any:
    return data, seed


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


class MarkedCall:
    @seeded
    def __call__(self, data: Any, seed: int) -> Any:
        return data, seed


class Anything:
    def __getattr__(self, name: str) -> Any:
        return Anything()

    def __call__(self, data: Any) -> Any:
        return data


MARKED: dict[str, Callable[..., Any]] = {
    "function": marked,
    "instance of a marked class": Both(),
    "instance with a marked call": MarkedCall(),
    "bound method": seeded(Both().method),
    "bound method with both marks": parted(seeded(Both().method)),
    "partial of a marked function": functools.partial(marked, option=1),
    "partial of a partial of an instance": functools.partial(functools.partial(Both())),
}


@pytest.mark.parametrize("name", MARKED)
def test_what_is_marked_is_seeded_before_and_after_it_is_copied(name: str) -> None:
    for function in (MARKED[name], pickle.loads(pickle.dumps(MARKED[name])), copy.deepcopy(MARKED[name])):
        assert is_seeded(function)
        assert caller(function)(b"data", 7, None)[:2] == (b"data", 7)
        assert caller(function)(b"data", 7, Part(1, 3)) == caller(MARKED[name])(b"data", 7, Part(1, 3))


@pytest.mark.parametrize(
    "function", [len, functools.partial(len), Both().method, Anything(), Both, RandomResizedCrop, None, 3]
)
def test_what_is_not_marked_is_not_seeded(function: Any) -> None:
    assert not is_seeded(function)


def test_a_wrapper_that_keeps_the_name_keeps_the_mark() -> None:
    assert is_seeded(functools.wraps(marked)(lambda *arguments: marked(*arguments)))


def test_a_function_is_called_with_what_its_marks_ask_for() -> None:
    assert caller(of_part)("x", 7, Part(2, 9)) == ("x", 2, 9)
    assert caller(of_part)("x", 7, None) == ("x", 0, 1)
    assert caller(Both())("x", 7, Part(2, 9)) == ("x", 7, 2, 9)
    assert caller(len)("xy", 7, Part(2, 9)) == 2


def test_only_what_can_be_called_is_marked() -> None:
    for mark in (seeded, parted):
        with pytest.raises(ArgumentError, match=r"ed\(\) got 3: it marks functions of"):
            mark(3)


@pytest.mark.parametrize(("length", "parts"), [(0, 3), (2, 5), (10, 3), (24, 24), (7, 1)])
def test_stretches_are_even_and_follow_one_another(length: int, parts: int) -> None:
    found = [stretch(length, part, parts) for part in range(parts)]
    assert [number for one in found for number in range(length)[one]] == list(range(length))
    assert max(one.stop - one.start for one in found) - min(one.stop - one.start for one in found) <= 1
