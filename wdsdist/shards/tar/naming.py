"""Split member names into sample keys and extensions, by the rule of all WebDataset readers."""

from __future__ import annotations

import re

from wdsdist.shards.tar.key_rule import FIRST_DOT, cutter

_FORMAT = re.compile(r"(?:.*/|)[^.]+[.][^/]*$")

# Paths such as `__meta__/info.json` carry notes about a shard, not samples of it.
_META = re.compile(r"(?:^|/)__[^/]*__(?:$|/)")

CLUTTER = "file of a file manager, such as Thumbs.db"
"""What they are counted as."""
CLUTTER_NAMES = frozenset({"thumbs.db", "ehthumbs.db", "desktop.ini"})
"""Those that look like members, in lower case; the others are hidden."""
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
