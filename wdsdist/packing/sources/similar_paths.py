"""Files that a path probably means which names none: for errors, as people do not see how the two differ.

Tables are written on one system and read on another: macOS stores ``é`` as two characters, Windows separates folders by
backslashes and takes ``A.JPG`` for ``a.jpg``, and who writes a table by hand puts blanks behind its commas.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import unicodedata
from collections.abc import Callable

_BLANKS = re.compile(r"\s*/\s*")
_DIFFERENCES: dict[str, Callable[[str], str]] = {
    "separators": lambda path: path.replace("\\", "/"),
    "blanks": lambda path: _BLANKS.sub("/", path.strip()),
    "Unicode normal form": lambda path: unicodedata.normalize("NFC", path),
    "upper and lower case": str.casefold,
}
"""What two paths that look alike may differ in, and how to make them the same."""
_MOST = 100_000
"""Names of a folder that are looked at."""


def similar(path: str) -> str:
    """Return the file that a path means and how the two differ, as the end of a sentence; empty where there is none."""
    found = _found(path)
    if not found:
        return ""
    return f"{found}, which differs in {difference(path, found)}"


def difference(one: str, other: str) -> str:
    """Return the kind of difference between two paths that look alike, such as upper and lower case.

    >>> difference("a/IMG.jpg", "a/img.jpg")
    'upper and lower case'
    """
    found = [name for name in _DIFFERENCES if _without(name, one) != _without(name, other)]
    return " and ".join(found) or "its spelling"


def folded(path: str) -> str:
    """Return the folded form of a path, which is equal for all paths that look alike.

    >>> folded("a\\\\IMG.jpg ") == folded("A/img.jpg")
    True
    """
    for same in _DIFFERENCES.values():
        path = same(path)
    return path


def _found(path: str) -> str:
    place = "/" if path.startswith("/") else ""
    for name in path.replace("\\", "/").split("/"):
        if name in ("", "."):
            continue
        if name == "..":
            return ""
        exact = os.path.join(place, name)  # noqa: PTH118 - the rows of a table hold texts
        if not os.path.lexists(exact):
            alike = _names(place or ".").get(folded(name))
            if alike is None:
                return ""
            exact = os.path.join(place, alike)  # noqa: PTH118
        place = exact
    return place if os.path.isfile(place) else ""  # noqa: PTH113


@functools.lru_cache(maxsize=8)  # many rows may name files of one folder
def _names(folder: str) -> dict[str, str]:
    """Return the names in a folder by their folded form."""
    try:
        with os.scandir(folder) as entries:
            return {folded(entry.name): entry.name for entry in itertools.islice(entries, _MOST)}
    except OSError:
        return {}


def _without(difference: str, path: str) -> str:
    """Return a path of which only one of the differences is left."""
    for other, same in _DIFFERENCES.items():
        path = path if other == difference else same(path)
    return path
