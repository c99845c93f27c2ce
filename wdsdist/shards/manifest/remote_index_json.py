"""Load a remote ``index.json``: retry wrong answers, and keep a copy for times when the store is away.

Wrong shards are found by their digests. For the index the rules are:

- An answer that is no index, such as a login page or a truncated body, is retried until the deadline. The same bytes
  several times are what the store holds: they are refused after a few seconds.
- An index that disagrees with the digest in it is retried once. The same bytes again were edited by hand.
- A copy of the last good one is used only where the store gave no answer, and then is away or reports that it still
  holds the same file; any other answer of the store is respected.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from wdsdist import storage
from wdsdist._util.files import atomic_write
from wdsdist._util.host import make_dirs, private_under, user_cache_dir
from wdsdist.errors import ArgumentError, IndexFormatError, StorageError
from wdsdist.shards.manifest.manifest import Manifest

DIGEST = "index_sha256"
"""Key of the digest of an ``index.json`` in itself: of its bytes, with `BLANK` in the digest's place."""
BLANK = "0" * 64

_STATED = re.compile(rb'"%s": ?"([0-9a-f]{64})"' % DIGEST.encode())
_SAME = 5
"""Answers with the same bytes after which an invalid index is refused."""
_SAYS_WHERE = ("endpoint_url", "account_name")
"""Options that decide which store a URL names; no secrets, because they are part of a file name's digest."""
_LOOK = 2.0
"""Deadline in seconds for a check whether a store is reachable."""

_log = logging.getLogger("wdsdist")


@dataclass(frozen=True, slots=True)
class _Mark:
    """Identity of the index that a copy was made of; the first line of the copy, as JSON."""

    stamp: str
    """The store's version of the content, such as an ETag; empty where it gives none."""
    size: int
    sha256: str


def with_digest(content: bytes) -> bytes:
    """Return an ``index.json`` with its digest in place of `BLANK`.

    >>> len(with_digest(b'{"index_sha256": "%s"}' % BLANK.encode()))
    84
    """
    place = _STATED.search(content)
    return content if place is None else _spliced(content, place, hashlib.sha256(content).hexdigest())


def _spliced(content: bytes, place: re.Match[bytes], digest: str) -> bytes:
    return content[: place.start(1)] + digest.encode() + content[place.end(1) :]


def load(
    location: str,
    options: storage.StorageOptions,
    deadline: storage.Deadline | None,
    parse: Callable[[bytes], Manifest],
    keep: bool,
) -> Manifest:
    """Load the manifest at a URL. Raises what ``parse`` and `storage.read` raise."""
    answers: Counter[str] = Counter()
    wrong: IndexFormatError | None = None

    def accept(content: bytes, stamp: str) -> Manifest | IndexFormatError:
        nonlocal wrong
        mark = _Mark(stamp, len(content), hashlib.sha256(content).hexdigest())
        answers[mark.sha256] += 1
        wrong = None
        if not _has_its_digest(content):
            if answers[mark.sha256] == 1:
                raise storage.UnfitError(f"{storage.shown(location)} does not have the digest that it gives")
            _log.warning("%s does not have the digest that it gives: was it edited?", storage.shown(location))
        try:
            manifest = parse(content).with_source(version=mark.sha256, stamp=stamp)
        except IndexFormatError as error:
            wrong = error
            if answers[mark.sha256] < _SAME and not _is_index(content):
                raise storage.UnfitError(str(error)) from None
            return error
        if keep:
            _keep(location, options, mark, content)
        return manifest

    try:
        found = storage.read_until(location, accept, options, deadline=deadline)
    except storage.AwayError as away:
        copy = _kept(location, options) if keep and not answers else None
        if copy is None or not _stands_in(location, options, copy[0], str(away)):
            raise
        return parse(copy[1]).with_source(version=copy[0].sha256)
    except StorageError as error:
        if wrong is not None:
            storage.raise_alone(IndexFormatError(str(error)))
        raise
    if isinstance(found, IndexFormatError):
        storage.raise_alone(found)
    return found


def _has_its_digest(content: bytes) -> bool:
    """Return whether an index agrees with the digest in it; true where it has none."""
    stated = _STATED.search(content)
    if stated is None:
        return True
    return hashlib.sha256(_spliced(content, stated, BLANK)).hexdigest().encode() == stated[1]


def _is_index(content: bytes) -> bool:
    """Return whether bytes are complete JSON with the keys of an index, so that a retry would not mend them."""
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        return False
    return isinstance(data, dict) and {"wids_version", "shardlist"} <= data.keys()


def _stands_in(location: str, options: storage.StorageOptions, copy: _Mark, why: str) -> bool:
    """Return whether a copy may be used in place of an index that its store could not give."""
    where = storage.shown(location)
    try:
        now = storage.entry(location, options, deadline=storage.Deadline(_LOOK))
    except storage.AwayError:
        _log.warning("%s is away: its index of the last time is used, which may be out of date (%s)", where, why)
        return True
    except OSError:  # it is there, and refuses
        return False
    if not copy.stamp or (now.stamp, now.size) != (copy.stamp, copy.size):
        return False
    _log.warning("%s cannot be read: the copy of the last time is used, which it still holds (%s)", where, why)
    return True


def _place(location: str, options: storage.StorageOptions) -> Path:
    """Return the path of the copy of an index, in a private folder of this user, which is created."""
    given = storage.options_for(location, options)
    places = [str(one.get(name, "")) for one in (given, given.get("client_kwargs", {})) for name in _SAYS_WHERE]
    name = hashlib.sha256("\0".join([location, *places]).encode("utf-8", "surrogateescape")).hexdigest()[:32]
    make_dirs(user_cache_dir())
    return private_under(user_cache_dir(), "manifests") / f"{name}.json"


def _keep(location: str, options: storage.StorageOptions, mark: _Mark, content: bytes) -> None:
    """Keep a copy of an index, if its folder can be written."""
    try:
        kept = _kept(location, options)
        if kept is None or kept[0] != mark:
            with atomic_write(_place(location, options)) as stream:
                stream.write(json.dumps(asdict(mark)).encode() + b"\n" + content)
    except (OSError, ArgumentError) as error:
        _log.debug("no copy of %s is kept: %s", storage.shown(location), error)


def _kept(location: str, options: storage.StorageOptions) -> tuple[_Mark, bytes] | None:
    """Return the copy of an index; ``None`` where there is none, or where it is damaged."""
    try:
        head, _, content = _place(location, options).read_bytes().partition(b"\n")
        mark = _Mark(**json.loads(head))
    except (OSError, ValueError, TypeError):  # also an ArgumentError, where the user has no home folder
        return None
    return (mark, content) if mark.sha256 == hashlib.sha256(content).hexdigest() else None
