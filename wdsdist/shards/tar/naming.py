"""Split member names into sample keys and extensions, by the rule of all WebDataset readers, and group them so."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import ne
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsdist.shards.tar.key_rule import FIRST_DOT, Evidence, cutter, is_cut_alike, observe, skim

_FORMAT = re.compile(r"(?:.*/|)[^.]+[.][^/]*$")

# Paths such as `__meta__/info.json` carry notes about a shard, not samples of it.
_META = re.compile(r"(?:^|/)__[^/]*__(?:$|/)")

CLUTTER = "file of a file manager, such as Thumbs.db"
"""What they are counted as."""
CLUTTER_NAMES = frozenset({"thumbs.db", "ehthumbs.db", "desktop.ini"})
"""Those that look like members, in lower case; the others are hidden."""
_OF_CLUTTER = frozenset(name.partition(".")[2] for name in CLUTTER_NAMES)
# Extended headers of PAX tars, which tools that do not know them extracted as files: `a/PaxHeaders.17/0001.jpg`.
_EXTRACTED_HEADER = re.compile(r"(?:^|/)PaxHeaders?(?:\.\d+)?/")

_COMPRESSED = re.compile(r"\.(?:tar\.(?:gz|bz2|xz|zst|lz4|z)|tgz|tbz2?|txz|tzst)$", re.IGNORECASE)


def is_compressed(name: str) -> bool:
    """Return whether a file is a compressed tar, by its name.

    >>> is_compressed("train-00.tar.zst"), is_compressed("train-00.tar")
    (True, False)
    """
    return _COMPRESSED.search(name) is not None


def is_tar(name: str) -> bool:
    """Return whether a file is a tar, compressed or not, by its name.

    >>> is_tar("train-00.tgz"), is_tar("train-00.TAR"), is_tar("train-00.tar.wdsindex")
    (True, True, False)
    """
    return name.lower().endswith(".tar") or is_compressed(name)


def split_name(name: str) -> tuple[str, str] | None:
    """Split a member's name into its sample key and its extension, as wdsdist writes them.

    The key is the path up to the first dot of the base name; the extension is all that follows, so it may hold
    dots. Returns ``None`` for a name that belongs to no sample: hidden files, names without a dot or with
    nothing after it, names with a line break, files of file managers such as ``Thumbs.db``, ``__meta__/`` paths, and
    extended headers that some tool extracted to files (``PaxHeaders.17/``).

    >>> split_name("train.v2/cat/0001.seg.PNG")
    ('train.v2/cat/0001', 'seg.PNG')
    >>> split_name("cat/.DS_Store") is None
    True
    """
    return None if "\n" in name else split_stored_name(name)


def split_stored_name(name: str, rule: str = FIRST_DOT) -> tuple[str, str] | None:
    """Split the name of a member that another tool may have written: as `split_name`, with line breaks as they are.

    Raises ``ValueError`` for a name of a sample in which the key rule finds no key.

    webdataset reads such members, so to pass them over would lose samples. Where a folder's name holds both a line
    break and a dot, its pattern does not match, and it passes them over too.

    Source: the pattern ``^((?:.*/|)[^.]+)[.]([^/]*)$`` of the WebDataset format.

    >>> split_stored_name("line\\nbreak.txt")
    ('line\\nbreak', 'txt')
    """
    start = name.rfind("/") + 1
    dot = name.find(".", start)
    if dot <= start or dot + 1 == len(name):
        return None
    if "__" in name and _META.search(name):
        return None
    if "PaxHeader" in name and _EXTRACTED_HEADER.search(name):
        return None
    if "\n" in name and not _FORMAT.match(name):
        return None
    if is_clutter(name[start:]):
        return None
    if rule != FIRST_DOT:
        dot = start + cutter(rule)(name[start:])
        if dot <= start:
            raise ValueError(f"the key rule {rule!r} finds no key in {name!r}: give another one by --key (key=)")
    return name[:dot], name[dot + 1 :]


def is_clutter(name: str) -> bool:
    """Return whether a file is one that file managers leave in folders.

    >>> is_clutter("cat/Thumbs.db"), is_clutter("cat/thumbs.jpg")
    (True, False)
    """
    return name.rpartition("/")[2].lower() in CLUTTER_NAMES


def why_skipped(name: str) -> str:
    """Return the kind of a member that belongs to no sample, for counts.

    >>> why_skipped("a/PaxHeaders.17/0001.jpg"), why_skipped("README")
    ('PAX header that was extracted to a file', 'name without a key and an extension')
    """
    if is_clutter(name):
        return CLUTTER
    if "\n" in name:
        return "name with a line break"
    is_header = _EXTRACTED_HEADER.search(name)
    return "PAX header that was extracted to a file" if is_header else "name without a key and an extension"


def is_text(name: str) -> bool:
    """Return whether a name can be encoded as UTF-8, as tars require.

    >>> is_text("café/1"), is_text("caf\\udce9/1")
    (True, False)
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


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
