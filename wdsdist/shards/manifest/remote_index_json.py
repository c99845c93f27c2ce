"""Load a remote ``index.json``: wrong answers of the store are retried.

An answer that is not an index, such as a login page or a truncated body, is retried until the deadline; the same bytes
several times are what the store holds. An index that disagrees with the digest in it is retried once: the same bytes
again were edited by hand.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections import Counter
from collections.abc import Callable

from wdsdist import storage
from wdsdist.errors import IndexFormatError, StorageError
from wdsdist.shards.manifest.index_json import BLANK, DIGEST
from wdsdist.shards.manifest.manifest import Manifest

_STATED = re.compile(rb'"%s": ?"([0-9a-f]{64})"' % DIGEST.encode())
_SAME = 5
"""Answers with the same bytes after which an invalid index is refused."""

_log = logging.getLogger("wdsdist")


def load(
    location: str,
    options: storage.StorageOptions | None,
    deadline: storage.Deadline | None,
    parse: Callable[[bytes], Manifest],
) -> Manifest:
    """Load the manifest at a URL. Raises what ``parse`` and `storage.read` raise."""
    answers: Counter[str] = Counter()
    wrong: IndexFormatError | None = None

    def accept(content: bytes, _: str) -> Manifest | IndexFormatError:
        nonlocal wrong
        digest = hashlib.sha256(content).hexdigest()
        answers[digest] += 1
        wrong = None
        if not _has_its_digest(content):
            if answers[digest] == 1:
                raise storage.Failure("broken", f"{storage.shown(location)} does not have the digest that it states")
            _log.warning("%s does not have the digest that it states: was it edited?", storage.shown(location))
        try:
            return parse(content).with_source(version=digest)
        except IndexFormatError as error:
            wrong = error
            if answers[digest] < _SAME and not _is_index(content):
                raise storage.Failure("broken", str(error)) from None
            return error

    try:
        found = storage.read_until(location, accept, options, deadline=deadline)
    except StorageError as error:
        if wrong is not None:
            storage.raise_alone(IndexFormatError(str(error)))
        raise
    if isinstance(found, IndexFormatError):
        storage.raise_alone(found)
    return found


def _has_its_digest(content: bytes) -> bool:
    """Return whether an index agrees with the digest in it; true if it states no digest."""
    stated = _STATED.search(content)
    if stated is None:
        return True
    blanked = content[: stated.start(1)] + BLANK.encode() + content[stated.end(1) :]
    return hashlib.sha256(blanked).hexdigest().encode() == stated[1]


def _is_index(content: bytes) -> bool:
    """Return whether bytes are complete JSON with the keys of an index, so that a retry cannot help."""
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        return False
    return isinstance(data, dict) and {"wids_version", "shardlist"} <= data.keys()
