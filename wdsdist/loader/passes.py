"""Which epoch a pass over a data set plays, where a foreign loader makes the passes and tells nobody.

The workers of such a loader may be new processes on each pass, all from the same copy of the data set, so that none of
them can count; and those of one pass must agree, though they start one by one and run ahead of each other. What they
have in common is the seed that torch draws for each iteration of a loader. The n-th start of worker ``w`` under a seed
belongs to the n-th pass under that seed: this also tells passes apart whose workers live on, or whose loader is seeded
anew to the same number each time.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

from torch.utils.data import get_worker_info

from wdsdist.errors import LoaderStateError
from wdsdist.loader.worker_state import EpochRequest, SharedNumbers

_ARRIVALS = 1024
"""Starts of workers that are remembered: how far the workers of one loader may be apart, all together."""


class Pass(NamedTuple):
    """One iteration over a data set, by one process or by all workers of a loader."""

    number: int
    """How many passes began before it."""
    epoch: int


class _Arrival(NamedTuple):
    """A worker that started on a pass."""

    seed: int
    worker: int
    number: int
    epoch: int


_WIDTH = len(_Arrival._fields)


class _Head(NamedTuple):
    """What stands before the arrivals."""

    arrivals: int
    """How many there were."""
    passes: int
    """How many began."""
    following: int
    """The epoch after that of the latest pass."""
    heeded: int
    """How many requests for an epoch had been made when the latest pass began."""


class Passes:
    """Counts the passes over a data set, of this process and of its workers.

    >>> request = EpochRequest()
    >>> passes = Passes(request)
    >>> passes.begin(), passes.begin()
    (Pass(number=0, epoch=0), Pass(number=1, epoch=1))
    >>> request.make(7)
    >>> passes.next_epoch, passes.begin().epoch, passes.begin().epoch
    (7, 7, 8)
    """

    def __init__(self, request: EpochRequest) -> None:
        self._request = request
        # A head, then a ring of arrivals.
        self._numbers = SharedNumbers(len(_Head._fields) + _ARRIVALS * _WIDTH)

    @property
    def next_epoch(self) -> int:
        """The epoch that the next pass plays."""
        head = self._read()[0]
        requested, made = self._request.read()
        return requested if made != head.heeded else head.following

    def begin(self, resumed: int | None = None) -> Pass:
        """Return the pass that this process now starts on, or joins as one of a loader's workers.

        Args:
            resumed: the epoch of a state that was loaded. Another epoch that was asked for discards the state, with
                a warning.

        Raises `LoaderStateError` where the workers of a pass have loaded states of different epochs.
        """
        worker = get_worker_info()
        with self._numbers.locked():
            head, known = self._read()
            requested, made = self._request.read()
            if worker is None:
                return self._next(head, resumed)
            seed = worker.seed - worker.id
            mine = max((one.number for one in known if (one.seed, one.worker) == (seed, worker.id)), default=-1)
            joined = min((Pass(*one[2:]) for one in known if one.seed == seed and one.number > mine), default=None)
            joined = joined or self._next(head, resumed)
            if resumed not in (None, joined.epoch) and (joined.epoch, True) != (requested, made > 0):
                raise LoaderStateError(
                    f"this worker's state is of epoch {resumed}, that of another worker of epoch {joined.epoch}: they "
                    f"were taken while workers repeated the data set at their own pace, and cannot be continued"
                )
            place = len(_Head._fields) + head.arrivals % _ARRIVALS * _WIDTH
            self._numbers.write([seed, worker.id, *joined], at=place)
            self._numbers.write([head.arrivals + 1])
            return joined

    def _next(self, head: _Head, resumed: int | None) -> Pass:
        """Open a new pass."""
        requested, made = self._request.read()
        epoch = head.following if resumed is None else resumed
        if made != head.heeded:
            if resumed not in (None, requested):
                warnings.warn(
                    f"set_epoch({requested}) discards the loaded state of epoch {resumed}: to resume, start with the "
                    f"epoch of the state",
                    stacklevel=4,
                )
            epoch = requested
        self._numbers.write([*_Head(head.arrivals, head.passes + 1, epoch + 1, made)])
        return Pass(head.passes, epoch)

    def _read(self) -> tuple[_Head, list[_Arrival]]:
        numbers = self._numbers.read()
        start = len(_Head._fields)
        head = _Head(*numbers[:start])
        stop = start + min(head.arrivals, _ARRIVALS) * _WIDTH
        return head, [_Arrival(*numbers[place : place + _WIDTH]) for place in range(start, stop, _WIDTH)]
