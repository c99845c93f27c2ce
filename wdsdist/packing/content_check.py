"""Members whose bytes are not what their extension says, such as a web page named .jpg, found by their first bytes.

What begins like a web page, JSON, a pointer of Git LFS, a PDF or a zip is no image, sound, video or array; what begins
like a tag is no JSON. Whether the rest decodes, ``check_decode=True`` finds out.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from wdsdist._util.file_types import IMAGE_TYPES, MEDIA_TYPES, RARE_IMAGE_TYPES, last_part

HEAD = 16
"""Bytes that are compared; shorter members are not checked."""

_BINARY = {*IMAGE_TYPES, *RARE_IMAGE_TYPES, *MEDIA_TYPES, "npy"}
_OTHERS = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:<[!?a-zA-Z]|\{\s*\"|\[\s*[\{\[\"])|version https:|%PDF-|PK\x03\x04")
_TAG = re.compile(rb"(?:\xef\xbb\xbf)?\s*<[!?a-zA-Z]")
_SUSPECT = np.zeros(256, np.bool_)
_SUSPECT[list(b"\xef \t\r\n<{[v%P")] = True


def is_checked(extension: str) -> bool:
    """Return whether the first bytes of members with this extension are checked.

    >>> is_checked("seg.PNG"), is_checked("json"), is_checked("txt")
    (True, True, False)
    """
    return last_part(extension) in _BINARY or last_part(extension) == "json"


def suspects(heads: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Return which members `problem` has to look at, by their first bytes, uint8 [members, `HEAD`]."""
    return np.flatnonzero(_SUSPECT[heads[:, 0]])


def problem(name: str, head: bytes) -> str:
    """Return what is wrong with a member that has these first bytes, or an empty string.

    >>> problem("1.jpg", b"<!DOCTYPE html><")[:33], problem("1.jpg", b"\\xff\\xd8\\xff\\xe0")
    ("1.jpg begins with '<!DOCTYPE html", '')
    """
    if not (_TAG if last_part(name) == "json" else _OTHERS).match(head):
        return ""
    return (
        f"{name} begins with {head.decode('utf-8', 'replace')!r}, which is not what its extension says: leave such "
        f"samples out with on_error='skip', or replace it"
    )
