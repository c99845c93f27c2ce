"""Names of members: where they are cut into a sample's key and an extension, and which belong to no sample.

The key rule of WebDataset is the first dot of the base name. A data set whose keys hold dots needs another rule, which
the user states: nothing is guessed.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping

from wdsdist.errors import ArgumentError, given, printable
from wdsdist.shards.tar import FIRST_DOT, LAST_DOT

_MOST_EXTENSIONS = 100
"""Most distinct extensions of a data set; more are parts of keys, cut at the wrong dot."""

_CLUTTER = frozenset({"thumbs.db", "ehthumbs.db", "desktop.ini"})
"""Files that file managers leave in folders, in lower case, if their names look like members."""
_FORMAT = re.compile(r"(?:.*/|)[^.]+[.][^/]*$")
_LAST = re.compile(r"\.(?:[A-Za-z][\w-]*\.(?:gz|bz2|xz|zst)|[^.]+)$")
_FIELD = re.compile(r"(?!_*\d+(?:[^A-Za-z\d]|$))[\w+-]{1,40}")
"""Part of an extension that names a field: ``seg``, ``mp4``, ``left-cam``, ``512x512``, but no number."""
# Paths such as `__meta__/info.json` carry notes about a shard, not samples of it.
_META = re.compile(r"(?:^|/)__[^/]*__(?:$|/)")
# Extended headers of PAX tars, which tools that do not know them extracted as files: `a/PaxHeaders.17/0001.jpg`.
_EXTRACTED_HEADER = re.compile(r"(?:^|/)PaxHeaders?(?:\.\d+)?/")


def split_name(name: str, rule: str = FIRST_DOT, *, is_stored: bool = False) -> tuple[str, str] | None:
    """Split a member's name into its sample key and its extension.

    The key is the path up to the first dot of the base name; the extension is all that follows, so it may hold
    dots. Returns ``None`` for a name that belongs to no sample: hidden files, names without a dot or with
    nothing after it, names with a line break, files of file managers such as ``Thumbs.db``, ``__meta__/`` paths, and
    extended headers that some tool extracted to files (``PaxHeaders.17/``).

    Names that another tool has written (``is_stored``) may have line breaks, as webdataset reads them. If a folder's
    name holds both a line break and a dot, the pattern of webdataset does not match, and such a member is skipped too.

    Raises ``ValueError`` for a name of a sample in which the key rule finds no key.

    Source: the pattern ``^((?:.*/|)[^.]+)[.]([^/]*)$`` of the WebDataset format.

    >>> split_name("train.v2/cat/0001.seg.PNG"), split_name("line\\nbreak.txt", is_stored=True)
    (('train.v2/cat/0001', 'seg.PNG'), ('line\\nbreak', 'txt'))
    >>> split_name("cat/.DS_Store") is None
    True
    """
    start = name.rfind("/") + 1
    dot = name.find(".", start)
    if dot <= start or dot + 1 == len(name):
        return None
    is_odd = "__" in name or "\n" in name or "PaxHeader" in name or name[-3:].lower() in (".db", "ini")
    if is_odd and why_skipped(name, is_stored=is_stored):
        return None
    if rule != FIRST_DOT:
        dot = start + cutter(rule)(name[start:])
        if dot <= start:
            raise ValueError(f"the key rule {rule!r} finds no key in {name!r}: give another {given('key')}")
    return name[:dot], name[dot + 1 :]


def why_skipped(name: str, *, is_stored: bool = False) -> str:
    """Return the kind of a member that belongs to no sample, for counts; an empty string for a member of a sample.

    ``is_stored`` allows line breaks, as for `split_name`.

    >>> why_skipped("a/PaxHeaders.17/0001.jpg"), why_skipped("README"), why_skipped("a/0001.jpg")
    ('PAX header that was extracted to a file', 'name without a key and an extension', '')
    """
    base = name.rpartition("/")[2]
    if _EXTRACTED_HEADER.search(name):
        return "PAX header that was extracted to a file"
    if base.lower() in _CLUTTER:
        return "file of a file manager, such as Thumbs.db"
    if "\n" in name and not (is_stored and _FORMAT.match(name)):
        return "name with a line break"
    key, _, extension = base.partition(".")
    return "" if key and extension and not _META.search(name) else "name without a key and an extension"


def is_text(name: str) -> bool:
    """Return whether a name can be encoded as UTF-8, as tars require."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_rule(rule: str) -> str:
    """Return a key rule. Raises `ArgumentError` for an unknown one, or an invalid regular expression."""
    rules = f"{FIRST_DOT!r}, {LAST_DOT!r}, or a regular expression of the key in the file's name"
    if not isinstance(rule, str):
        raise ArgumentError(f"key is {rule!r}: it must be {rules}", argument="key")
    try:
        cutter(rule)
    except (re.error, RecursionError, OverflowError) as error:
        raise ArgumentError(
            f"key is {rule!r}, which is not a regular expression ({error}): it must be {rules}", argument="key"
        ) from None
    return rule


@functools.lru_cache(64)
def cutter(rule: str) -> Callable[[str], int]:
    """Return a function from a base name to the place of the dot that ends its key; 0 or less if no key is found.

    ``last-dot`` takes ``json.gz`` and the like for one extension. A regular expression matches the key, from the start
    of the base name up to a dot.

    >>> [cutter(rule)("v1.5_01.json.gz") for rule in ("first-dot", "last-dot", r"v[\\d._]+")]
    [2, 7, 7]
    """
    if rule == FIRST_DOT:
        return lambda name: name.find(".")
    if rule == LAST_DOT:
        return lambda name: match.start() if (match := _LAST.search(name)) else 0
    pattern = re.compile(rf"(?:{rule})(?=\..)", re.DOTALL)
    return lambda name: match.end() if (match := pattern.match(name)) else 0


def escaped(key: str) -> str:
    """Escape the dots of a key, so that every reader ends it at the same dot, whatever the key rule was.

    ``urllib.parse.unquote`` gives the key back. Dots in folders stay.

    >>> escaped("v.2/IMG.2021.01 100%")
    'v.2/IMG%2E2021%2E01 100%25'
    """
    folder, slash, base = key.replace("%", "%25").rpartition("/")
    return folder + slash + base.replace(".", "%2E")


def check_extensions(label: str, names: Mapping[str, str], rule: str = FIRST_DOT, *, strict: bool = False) -> None:
    """Raise `ArgumentError` if the extensions of a data set show that its names are cut at the wrong dot.

    Args:
        label: of the data set or shard.
        names: the name of one member by its extension.
        rule: the key rule by which they were cut.
        strict: refuse also an extension with a number between its dots, such as ``2021.01.jpg``: tars of other tools
            may have it, but files to pack nearly always have dots in their keys then.

    >>> check_extensions("a.tar", {"jpg": "1.jpg", "seg.png": "1.seg.png"}, strict=True)
    >>> check_extensions("photos", {"1.jpg": "a.1.jpg", "2.jpg": "a.2.jpg"}, strict=True)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    wdsdist.errors.ArgumentError: photos: by the key rule 'first-dot' its names have 2 extensions, such as in ...
    """
    cut = cutter(LAST_DOT)  # which takes json.gz for one extension
    odd = {
        extension: name
        for extension, name in names.items()
        if strict and cut(f"x.{extension}") != 1 and not all(map(_FIELD.fullmatch, extension.split(".")[:-1]))
    }
    if not odd and len({extension.lower() for extension in names}) <= _MOST_EXTENSIONS:
        return
    examples = sorted((odd or names).values(), key=len)[-2:]
    shown = " and ".join(map(printable, examples))
    ways = ", ".join(given("key", rule) for rule in ((LAST_DOT, FIRST_DOT) if odd else (LAST_DOT,)))
    raise ArgumentError(
        f"{label}: by the key rule {rule!r} its names have {len(names):,} extensions, such as in {shown}: say "
        f"where keys end by {ways} or a regular expression of the key",
        argument="key",
    )
