"""Group member names into samples, in bulk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import ne
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsdist.shards.tar.key_rule import Evidence, is_cut_alike, observe, skim
from wdsdist.shards.tar.naming import CLUTTER_NAMES, split_stored_name

_OF_CLUTTER = frozenset(name.partition(".")[2] for name in CLUTTER_NAMES)


@dataclass(frozen=True, slots=True)
class Samples:
    """The samples that the members of a tar form; ``n`` samples with ``m`` members in all."""

    keys: list[bytes]
    """UTF-8, as stored."""
    starts: npt.NDArray[np.int64]
    """int64 [n + 1]: the first member of each sample, and ``m``."""
    extensions: tuple[str, ...]
    """Each extension that occurs, as stored."""
    extension_ids: npt.NDArray[np.uint32]
    """uint32 [m]: each member's place in ``extensions``."""


def group(names: Sequence[str]) -> Samples | None:
    """Group members, in file order, into samples; ``None`` where any name needs the slow path.

    The slow path is for a name which belongs to no sample or is reserved, an extension that occurs twice in a sample,
    and a key whose members are not adjacent.

    >>> samples = group(["a/1.jpg", "a/1.cls", "a/2.jpg"])
    >>> samples.keys, samples.starts.tolist(), samples.extensions, samples.extension_ids.tolist()
    ([b'a/1', b'a/2'], [0, 2, 3], ('jpg', 'cls'), [0, 1, 0])
    >>> group(["a.jpg", "README"]) is None
    True
    """
    if not names:
        return Samples([], np.zeros(1, np.int64), (), np.zeros(0, np.uint32))
    text = "\0".join(names).encode("utf-8", "surrogateescape")
    letters = np.frombuffer(text, np.uint8).copy()
    ends = np.append(np.flatnonzero(letters == 0), len(text))
    begins = np.append(0, ends[:-1] + 1)
    dots = np.append(np.flatnonzero(letters == ord(".")), len(text))
    dots = dots[np.searchsorted(dots, begins)]  # the first of each name
    if len(ends) != len(names) or (dots >= ends - 1).any() or (dots == begins).any():
        return None  # a NUL within, no extension, or no key
    if (letters[dots - 1] == ord("/")).any() or b"\n" in text or b"PaxHeader" in text or _has_pairs(letters, ord("_")):
        return None
    letters[dots] = 0
    parts = letters.tobytes().split(b"\0")  # in one split, so that the parts are adjacent in memory
    keys, found = parts[::2], parts[1::2]
    places = {extension: place for place, extension in enumerate(dict.fromkeys(found))}
    if any(b"/" in extension for extension in places):  # the dot is a folder's
        return None
    extensions = tuple(extension.decode("utf-8", "surrogateescape") for extension in places)
    if any(extension.lower() in _OF_CLUTTER for extension in extensions):
        return None
    ids = np.fromiter(map(places.__getitem__, found), np.uint32, len(found))
    is_first = np.append(True, np.fromiter(map(ne, islice(keys, 1, None), keys), np.bool_))
    starts = np.flatnonzero(is_first)
    sample_keys = [keys[start] for start in starts.tolist()]
    if len(set(sample_keys)) < len(sample_keys) or _has_twins(np.cumsum(is_first), ids, extensions):
        return None
    return Samples(sample_keys, np.append(starts, len(names)), extensions, ids)


def evidence(names: Sequence[str], samples: Samples | None) -> Evidence:
    """Return what names show about the key rule; ``samples`` are what `group` made of them.

    Names with one dot each cost nothing, and those of a few fields such as ``seg.png`` little.
    """
    if samples is not None:
        found = glance(samples.extensions, samples.extension_ids, samples.starts, names.__getitem__)
        if found is not None:
            return found
    groups: dict[str, list[str]] = {}
    for name in names:
        parts = split_stored_name(name)
        if parts is not None:
            groups.setdefault(parts[0], []).append(name)
    return observe(groups.values())


def glance(
    extensions: Sequence[str],
    extension_ids: npt.NDArray[np.integer[Any]],
    starts: npt.NDArray[np.int64],
    name: Callable[[int], str],
) -> Evidence | None:
    """Return what the names of samples by the first dot show, or ``None`` where each has to be looked at.

    The arrays are those of `Samples`; ``name`` gives that of a member.
    """
    compound = np.array([not is_cut_alike(extension) for extension in extensions], np.bool_)
    if not compound.any():
        return Evidence()
    counts = np.add.reduceat(compound[extension_ids].astype(np.int64), starts[:-1])
    several = np.flatnonzero((counts > 0) & (np.diff(starts) > 1))
    first = int(starts[several[0]]) if len(several) else -1
    pair = None if first < 0 else (name(first), name(first + 1))
    return skim(extensions, int(counts.sum()), pair)


def _has_pairs(letters: npt.NDArray[np.uint8], letter: int) -> bool:
    """Return whether a letter occurs twice in a row."""
    places = np.flatnonzero(letters == letter)
    return bool((np.diff(places) == 1).any())


def _has_twins(samples: npt.NDArray[np.int64], ids: npt.NDArray[np.uint32], extensions: tuple[str, ...]) -> bool:
    """Return whether a sample has two members whose extensions are equal but for case."""
    lower: dict[str, int] = {}
    places = np.array([lower.setdefault(extension.lower(), len(lower)) for extension in extensions], np.int64)
    members = np.sort(samples * len(lower) + places[ids]) if len(ids) else samples
    return bool((members[1:] == members[:-1]).any())
