"""Growing data: which generation of a data set each epoch plays, the same one on all ranks.

An epoch keeps the generation that it begins with. At the start of the next one the ``index.json`` is looked at again.
Of several ranks, the first to start an epoch decides, and tells the others through the store of the process group:
nobody waits for a slower rank, and whoever starts the epoch later, after more was appended, plays the same samples.
"""

from __future__ import annotations

import functools
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from wdsdist import storage
from wdsdist._util.validation import check_flag
from wdsdist.distributed.agreement import first_value
from wdsdist.errors import ArgumentError, StateError, WdsdistError
from wdsdist.shards import open as catalog
from wdsdist.shards.manifest import Manifest, index_json
from wdsdist.shards.manifest.choices import Explode, exploded
from wdsdist.shards.spellings import Shards

_MOST_TOLD = 64
"""Generations that a rank tells of, the last ones: enough to know a list that has not arrived from one that differs."""

_STALE, _AGAIN = 120.0, 1.0
"""Seconds in which a shared file system must show what another rank has read there, and between two looks."""

_FRESH = 1.0
"""Seconds after it was opened in which a remote data set is not looked at again for its first epoch: a round trip."""

_shared: Counter[str] = Counter()
"""Data sets at each place that this process has shared with other ranks: each has epochs of its own."""

_log = logging.getLogger("wdsdist")


def opened(
    shards: Shards,
    follow: bool | None,
    *,
    is_virtual: bool,
    explode: Explode = None,
    stage: bool = False,
    **options: Any,
) -> tuple[Manifest, Growth | None]:
    """Open a data set, and what finds its further generations: ``None`` where it is not to be followed.

    Virtual epochs follow one another through the data set, so that their place in it depends on its size: it is fixed.
    So are the parts of records, which are a view.

    Raises `ArgumentError` where ``follow`` is true for what cannot grow, and what `wdsdist.open` raises.
    """
    follow = None if follow is None else check_flag("follow", follow)
    reopen = functools.partial(_open_staged if check_flag("stage", stage) else catalog.open, shards, **options)
    manifest = exploded(reopen(), explode)
    if follow and is_virtual:
        raise ArgumentError(
            "follow is True, but epochs of samples_per_epoch need a data set that stays as it is: leave one out"
        )
    if follow is not False and not is_virtual and catalog.may_grow(shards, manifest):
        return manifest, Growth(manifest, reopen, unchecked=bool(follow))
    if follow:
        raise ArgumentError(
            "follow is True, but only a folder or URL with an index.json can grow: name that, without explode"
        )
    return manifest, None


def _open_staged(shards: Shards, **options: Any) -> Manifest:
    return catalog.open(shards, **options).staged()


class Growth:
    """The generations of one data set, as they are found at the starts of epochs.

    Args:
        manifest: the data set as it was opened, which has an ``index.json``.
        reopen: opens it again.
        unchecked: whether ranks without a process group follow, each by itself; else they stay with what they opened.
    """

    def __init__(self, manifest: Manifest, reopen: Callable[[], Manifest], *, unchecked: bool) -> None:
        self._latest = self._present = manifest
        self._stamp = manifest.sources[0].stamp
        self._fresh_until = time.monotonic() + (_FRESH if storage.is_remote(manifest.origin) else 0)
        self._reopen = reopen
        self._unchecked = unchecked
        self._found: tuple[int, bool] | None = None
        self._number: int | None = None

    def at_epoch(self, epoch: int, *, is_alone: bool) -> Manifest:
        """Return the data set as an epoch plays it; one process looks once for each epoch.

        Args:
            epoch: that is about to start.
            is_alone: whether there is one rank only.

        Raises `StateError` where this rank cannot find the shards that another one plays in this epoch.
        """
        if (epoch, is_alone) != self._found:
            if self._found is not None or time.monotonic() > self._fresh_until:
                self._look()
            self._present = self._latest if is_alone else self._agreed(epoch)
            self._found = epoch, is_alone
        return self._present

    def _look(self) -> None:
        """Read the ``index.json`` again where it has changed; a data set that cannot be read stays as it is."""
        latest = self._latest
        try:
            stamp = index_json.stamp_of(latest.origin, latest.client_options)
            if stamp and stamp == self._stamp:
                return
            found = self._reopen()
        except (WdsdistError, OSError) as error:
            _log.debug("%s cannot be looked at again: %s", storage.shown(latest.origin), error)
            return
        self._stamp = found.sources[0].stamp
        if found.fingerprint == latest.fingerprint:
            return
        if not _begins_with(found, len(latest.counts), latest.fingerprint):
            _log.warning(
                "%s lists other shards than when it was opened, not only further ones: this run stays with those that "
                "it has",
                storage.shown(latest.origin),
            )
            return
        self._latest = found
        counts = f"{latest.num_samples:,} to {found.num_samples:,}"
        _log.info("%s has grown from %s samples", storage.shown(found.origin), counts)

    def _agreed(self, epoch: int) -> Manifest:
        """Return the generation that the first rank to start an epoch has found."""
        where = f"index.json of {storage.shown(self._latest.base)}"
        if self._number is None:
            _shared[where] += 1
            self._number = _shared[where]
        told = first_value(f"{where} {self._number} in epoch {epoch}", " ".join(_generations(self._latest)))
        if told is None:
            return self._latest if self._unchecked else self._present
        generations = told.value.split()
        length, fingerprint = generations[-1].split(":")
        deadline = time.monotonic() + _STALE
        while not _begins_with(self._latest, int(length), fingerprint):
            if _generations(self._latest)[-1] not in generations or time.monotonic() > deadline:
                raise StateError(
                    f"rank {told.own_rank} reads another {where} than rank {told.rank} ({len(self._latest.counts):,} "
                    f"shards, not {int(length):,}): it was replaced while the job started, or one node used a copy "
                    f"while the store was away; start the job again"
                )
            time.sleep(_AGAIN)
            self._stamp = ""
            self._look()
        return self._latest.prefix(int(length))


def _begins_with(manifest: Manifest, length: int, fingerprint: str) -> bool:
    return length <= len(manifest.counts) and manifest.fingerprints([length]) == [fingerprint]


def _generations(manifest: Manifest) -> list[str]:
    """Return the length and the fingerprint of each generation of a data set."""
    lengths = manifest.generations[-_MOST_TOLD:]
    return [f"{length}:{digest}" for length, digest in zip(lengths, manifest.fingerprints(lengths), strict=True)]
