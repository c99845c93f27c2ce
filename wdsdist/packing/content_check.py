"""Members whose bytes are not what their extension says: a web page or an error message named .jpg.

Only the first bytes are compared, many members at once. What begins like text is no image, sound, video or array; what
begins like a tag is no JSON. Whether the rest decodes, ``check_decode=True`` finds out.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wdsdist._util.file_types import IMAGE_TYPES, MEDIA_TYPES, RARE_IMAGE_TYPES, last_part

HEAD = 16
"""Bytes that are compared; shorter members are not checked."""

TEXT, MARKUP = 1, 2
"""What a member must not begin like: any text, or a tag."""

_BINARY = {*IMAGE_TYPES, *RARE_IMAGE_TYPES, *MEDIA_TYPES, "npy", "npz"}
_BINARY -= {"ppm", "pgm", "pbm", "pnm", "ts"}  # formats that begin with letters
_STARTS = (b"GIF8", b"RIFF", b"#!AMR")  # of binary files that begin with letters
_IS_TEXT = np.zeros(256, np.bool_)
_IS_TEXT[list(b"\t\n\r") + list(range(0x20, 0x7F))] = True


def rule_of(extension: str) -> int:
    """Return what a member with this extension must not begin like: `TEXT`, `MARKUP`, or 0 for anything goes.

    >>> rule_of("seg.PNG"), rule_of("json"), rule_of("txt")
    (1, 2, 0)
    """
    last = last_part(extension)
    return TEXT if last in _BINARY else MARKUP if last in ("json", "jsonl") else 0


def wrong_heads(heads: npt.NDArray[np.uint8], rules: npt.NDArray[np.int8]) -> npt.NDArray[np.int64]:
    """Return which members begin like what they must not.

    Args:
        heads: uint8 [members, `HEAD`]: their first bytes.
        rules: int8 [members]: as `rule_of` gives them, none 0.

    >>> page, photo = b"<!DOCTYPE html><", bytes.fromhex("ffd8ffe000104a464946000101000001")
    >>> heads = np.frombuffer(page + photo + page, np.uint8).reshape(3, HEAD)
    >>> wrong_heads(heads, np.array([TEXT, TEXT, MARKUP], np.int8)).tolist()
    [0, 2]
    """
    is_wrong = np.where(rules == TEXT, _IS_TEXT[heads].all(axis=1), heads[:, 0] == ord("<"))
    found = np.flatnonzero(is_wrong)
    return np.array([one for one in found.tolist() if not heads[one].tobytes().startswith(_STARTS)], np.int64)


def problem(name: str, head: bytes) -> str:
    """Return what is wrong with a member, for messages."""
    return (
        f"{name} begins with {head.decode('ascii', 'replace')!r}, which is text and not what its extension says: leave "
        f"such samples out with on_error='skip', or replace it"
    )
