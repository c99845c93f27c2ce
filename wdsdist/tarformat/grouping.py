"""Member names to samples, all at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from operator import ne

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Samples:
    """The samples that the members of a tar form; ``n`` samples with ``m`` members in all."""

    keys: list[str]
    starts: npt.NDArray[np.int64]
    """int64 [n + 1]: the first member of each sample, and ``m``."""
    extensions: tuple[str, ...]
    """Each extension that occurs, as stored."""
    extension_ids: npt.NDArray[np.uint32]
    """uint32 [m]: each member's place in ``extensions``."""


def group(names: Sequence[str]) -> Samples | None:
    """Group members, in file order, into samples; ``None`` where any name has to be looked at by itself.

    That is a name which belongs to no sample or is reserved, an extension that occurs twice in a sample, or a key
    whose members are not adjacent.

    >>> samples = group(["a/1.jpg", "a/1.cls", "a/2.jpg"])
    >>> samples.keys, samples.starts.tolist(), samples.extensions, samples.extension_ids.tolist()
    (['a/1', 'a/2'], [0, 2, 3], ('jpg', 'cls'), [0, 1, 0])
    >>> group(["a.jpg", "README"]) is None
    True
    """
    text = "\0" + "\0".join(names)
    if "__" in text or "\n" in text or "\0." in text or "/." in text:
        return None
    # Twice, for to keep the pairs would have the garbage collector look through them over and over.
    keys = [name.partition(".")[0] for name in names]
    found = [name.partition(".")[2] for name in names]
    extensions = tuple(dict.fromkeys(found))
    if any(not extension or "/" in extension for extension in extensions):  # no extension, or a dot in a folder
        return None
    places = {extension: place for place, extension in enumerate(extensions)}
    ids = np.fromiter(map(places.__getitem__, found), np.uint32, len(found))
    is_first = np.append(True, np.fromiter(map(ne, islice(keys, 1, None), keys), np.bool_))[: len(keys)]
    starts = np.flatnonzero(is_first)
    sample_keys = [keys[start] for start in starts.tolist()]
    if len(set(sample_keys)) < len(sample_keys) or _has_twins(np.cumsum(is_first), ids, extensions):
        return None
    return Samples(sample_keys, np.append(starts, len(names)).astype(np.int64), extensions, ids)


def _has_twins(samples: npt.NDArray[np.int64], ids: npt.NDArray[np.uint32], extensions: tuple[str, ...]) -> bool:
    """Say whether a sample has two members whose extensions differ in case at most."""
    lower: dict[str, int] = {}
    places = np.array([lower.setdefault(extension.lower(), len(lower)) for extension in extensions], np.int64)
    members = np.sort(samples * len(lower) + places[ids]) if len(ids) else samples
    return bool((members[1:] == members[:-1]).any())
