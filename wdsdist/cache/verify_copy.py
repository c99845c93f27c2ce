"""Verify a cached copy: its bytes, and the index beside it."""

from __future__ import annotations

from wdsdist._util import files
from wdsdist._util.ownership import is_own_file
from wdsdist.cache import folders
from wdsdist.cache.fetch import scan
from wdsdist.cache.request import ShardRequest
from wdsdist.cache.stamps import Stamp
from wdsdist.errors import IndexFormatError, ShardDamagedError
from wdsdist.shards import index as shard_index
from wdsdist.shards.index import ShardIndex, Stored


def verify_bytes(request: ShardRequest, known: Stamp, *, is_trusted: bool) -> str:
    """Return the digest of a copy. Raises `ShardDamagedError` where it is not the listed shard.

    ``known`` is its stamp, which is trusted where the file has not changed since.
    """
    copy = request.paths.copy
    sha256 = known.sha256 if is_trusted else files.sha256(copy)
    promised = known.sha256 if request.listed.is_compressed else request.listed.sha256 or known.sha256
    if sha256 != promised or known.made_of != request.made_of() or request.listed_size not in (-1, copy.stat().st_size):
        raise ShardDamagedError(f"{copy} is not the shard that is listed")
    return sha256


def verified_index(request: ShardRequest, size: int, sha256: str) -> ShardIndex:
    """Return the index of a verified copy; without one the copy is scanned.

    Raises `ShardDamagedError` where the index is damaged or belongs to another shard.
    """
    kept = request.paths.index
    is_believed = is_own_file(kept)
    for path in (kept if is_believed else None, request.listed_index):
        if path and path.exists():
            try:
                index = shard_index.load(path)
            except IndexFormatError as error:
                raise ShardDamagedError(str(error)) from error
            if index.size != size or (index.sha256 and index.sha256 != sha256):
                raise ShardDamagedError(f"{path} is the index of another shard")
            return index
    index = scan(request, request.paths.copy, Stored(request.listed.size, request.listed.sha256))
    if not is_believed and (kept.is_symlink() or kept.exists()):
        kept.unlink(missing_ok=True)  # not written over: others may have mapped it
        folders.write(kept, shard_index.dumps(index))
    return index
