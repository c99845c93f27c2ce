"""Marks of decode functions and transforms that take a seed, or the number of the part of a record."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from wdsdist.errors import ArgumentError

Function = TypeVar("Function", bound=Callable[..., Any])

_SEEDED, _PARTED = "__wdsdist_seeded__", "__wdsdist_parted__"


class Part(NamedTuple):
    """The part of a record that a sample is, in an exploded data set."""

    number: int
    """The number of the part, from 0."""
    total: int
    """Parts of the record."""


WHOLE = Part(0, 1)


def seeded(function: Function) -> Function:
    """Mark a decode function or transform that takes a seed: ``function(data, seed)``.

    The data set passes an integer in ``[0, 2**63)`` drawn from its own seed, the epoch and the sample, so that
    augmentation is the same on any number of ranks and workers, and after a resume. The mark survives pickling,
    ``functools.partial`` and ``functools.wraps``. A class that is marked, or whose ``__call__`` is, marks its
    instances. A function that cannot carry a mark, such as a bound method, becomes a ``functools.partial``.

    >>> @seeded
    ... def noise(data, seed):
    ...     return len(data) + seed % 2
    >>> is_seeded(noise), is_seeded(len)
    (True, False)

    Raises `ArgumentError` for an object that cannot be called.
    """
    return _marked(function, _SEEDED, "seeded() got {!r}: it marks functions of (data, seed)")


def parted(function: Function) -> Function:
    """Mark a decode function or transform of parts of records: ``function(data, part=0, parts=24)``.

    The data set passes the number of the part, from 0, and the number of parts of the record, as `Manifest.explode`
    planned them; 0 and 1 in a data set that is not exploded. With `seeded` as well, it is called as ``function(data,
    seed, part=0, parts=24)``. The mark survives the same steps as the mark of `seeded`.

    >>> @parted
    ... def page(data, part, parts):
    ...     return data.split(b"|")[part]
    >>> caller(page)(b"one|two|three", 0, Part(1, 3))
    b'two'

    Raises `ArgumentError` for an object that cannot be called.
    """
    return _marked(function, _PARTED, "parted() got {!r}: it marks functions of (data, part, parts)")


def is_seeded(function: object) -> bool:
    """Return whether `seeded` marks a function, so that it is called with a seed."""
    return _has_mark(function, _SEEDED)


def caller(function: Callable[..., Any]) -> Callable[[Any, int, Part | None], Any]:
    """Adapt a decoder to (data, seed, part): pass it only the arguments that its marks ask for."""
    takes_seed = is_seeded(function)
    if _has_mark(function, _PARTED):

        def call(data: Any, seed: int, part: Part | None) -> Any:
            number, total = part or WHOLE
            return function(*((data, seed) if takes_seed else (data,)), part=number, parts=total)

        return call
    return (lambda data, seed, part: function(data, seed)) if takes_seed else lambda data, seed, part: function(data)


def stretch(length: int, part: int, parts: int) -> slice:
    """Return the slice that is part ``part`` of ``parts`` equal, consecutive parts.

    Part ``i`` of ``n`` is ``[i * length // n, (i + 1) * length // n)``, which also plans the lengths of parts.

    >>> [list(range(10))[stretch(10, part, 3)] for part in range(3)]
    [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]
    """
    return slice(part * length // parts, (part + 1) * length // parts)


def _marked(function: Function, mark: str, refusal: str) -> Function:
    if not callable(function):
        raise ArgumentError(refusal.format(function))
    try:
        setattr(function, mark, True)
    except (AttributeError, TypeError):
        function = partial(function)  # type: ignore[assignment]
        setattr(function, mark, True)
    return function


def _has_mark(function: object, mark: str) -> bool:
    if isinstance(function, type) or not callable(function):  # to call a class is to make an instance
        return False
    holders = (function, type(function).__call__)
    if any(getattr(holder, mark, False) is True for holder in holders):  # `is`: mocks have every attribute
        return True
    return isinstance(function, partial) and _has_mark(function.func, mark)
