"""The ``index.json`` of a store: asked for again while the answer is none, and kept for when the store is away.

Shards that come wrong are told by their digests. Here the rules are these:

- What is no index at all, such as a page that asks for a login or a body that was cut, is asked for again until the
  deadline. The same bytes time after time are what the store holds: they are refused after a few seconds.
- An index that does not have the digest in it is asked for once more. The same bytes again were edited by hand.
- A copy of the last good one stands in only where the store gave no answer, and then says nothing at all or that it
  still holds just that; an answer of any other kind is obeyed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from wdsdist import storage
from wdsdist._util.host import private_under, user_cache_dir
from wdsdist.errors import ArgumentError, IndexFormatError, StorageError
from wdsdist.shards.manifest.manifest import Manifest

DIGEST = "index_sha256"
"""Key of the digest of an ``index.json`` in itself: of its bytes, with `BLANK` in the digest's place."""
BLANK = "0" * 64

_STATED = re.compile(rb'"%s": ?"([0-9a-f]{64})"' % DIGEST.encode())
_SAME = 5
"""Answers with the same bytes after which what is no index is refused."""
_SAYS_WHERE = ("endpoint_url", "account_name")
"""Options without which a URL may mean another store; no secrets, as they decide the name of a file."""
_LOOK = 2.0
"""Seconds for a store to say whether it is there after all."""

_log = logging.getLogger("wdsdist")


@dataclass(frozen=True, slots=True)
class _Mark:
    """What a copy is of; its first line, as JSON."""

    stamp: str
    """What the store gave to tell contents apart, such as an ETag; empty where nothing."""
    size: int
    sha256: str


def with_digest(content: bytes) -> bytes:
    """Put its digest into an ``index.json`` that has `BLANK` there.

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
    """Return the manifest at a URL. Raises what ``parse`` and `storage.read` raise."""
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
            manifest = replace(parse(content), version=mark.sha256)
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
        return replace(parse(copy[1]), version=copy[0].sha256)
    except StorageError as error:
        if wrong is not None:
            storage.raise_alone(IndexFormatError(str(error)))
        raise
    if isinstance(found, IndexFormatError):
        storage.raise_alone(found)
    return found


def _has_its_digest(content: bytes) -> bool:
    """Say whether the bytes of an index are those that were written; true where it does not tell."""
    stated = _STATED.search(content)
    if stated is None:
        return True
    return hashlib.sha256(_spliced(content, stated, BLANK)).hexdigest().encode() == stated[1]


def _is_index(content: bytes) -> bool:
    """Say whether something is an index in form, whole to its end: what is wrong with it then stays wrong."""
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        return False
    return isinstance(data, dict) and {"wids_version", "shardlist"} <= data.keys()


def _stands_in(location: str, options: storage.StorageOptions, copy: _Mark, why: str) -> bool:
    """Say whether a copy may be used for what its store could not give."""
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
    """Return where the copy of an index is, or would be, in a folder that is made sure to be this user's alone."""
    given = storage.options_for(location, options)
    places = [str(one.get(name, "")) for one in (given, given.get("client_kwargs", {})) for name in _SAYS_WHERE]
    name = hashlib.sha256("\0".join([location, *places]).encode("utf-8", "surrogateescape")).hexdigest()[:32]
    user_cache_dir().mkdir(parents=True, exist_ok=True)
    return private_under(user_cache_dir(), "manifests") / f"{name}.json"


def _keep(location: str, options: storage.StorageOptions, mark: _Mark, content: bytes) -> None:
    """Keep a copy of an index; where that cannot be done there is none."""
    try:
        kept = _kept(location, options)
        if kept is None or kept[0] != mark:
            with storage.atomic_write(_place(location, options)) as stream:
                stream.write(json.dumps(asdict(mark)).encode() + b"\n" + content)
    except (OSError, ArgumentError) as error:
        _log.debug("no copy of %s is kept: %s", storage.shown(location), error)


def _kept(location: str, options: storage.StorageOptions) -> tuple[_Mark, bytes] | None:
    """Return the copy of an index; nothing where there is none, or where it was altered."""
    try:
        head, _, content = _place(location, options).read_bytes().partition(b"\n")
        mark = _Mark(**json.loads(head))
    except (OSError, ValueError, TypeError):  # of which ArgumentError is one: there is no home to keep it in
        return None
    return (mark, content) if mark.sha256 == hashlib.sha256(content).hexdigest() else None
