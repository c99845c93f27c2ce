"""Find the members of a shard that do not decode as their extensions say."""

from __future__ import annotations

import functools
import mmap
from pathlib import Path

from wdsdist.errors import DecodeError
from wdsdist.shards.index import ShardIndex
from wdsdist.storage.compression import Expansion

_NAMED = 10
"""Members that are named for each shard; a thousand lines would say no more."""


def undecodable_members(path: Path, index: ShardIndex) -> list[str]:
    """Decode every member of a whole shard, images to their last pixel, and say of each that fails what is wrong.

    Members whose extension means nothing to the decoder are passed over; nothing in them is run.

    Raises `DecodeError` where a package is missing that would be needed to tell.
    """
    from wdsdist.samples.sample_spec import Decoder

    decoder = Decoder("rgb8")
    expansion = Expansion(index.file.size, len(index.sizes))
    problems: list[str] = []
    failed = 0
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for sample in range(index.num_samples):
            first = int(index.sample_starts[sample])
            for member, (extension, offset, size) in enumerate(index.members(sample), first):
                try:
                    unzip = functools.partial(expansion.unzip, member)
                    decoder(extension, content[offset : offset + size], unzip=unzip)
                except DecodeError as error:
                    if isinstance(error.__cause__, ImportError):
                        raise
                    failed += 1
                    if failed <= _NAMED:
                        problems.append(f"holds {index.key(sample)}.{extension} at byte {offset:,}, of which {error}")
    if failed > _NAMED:
        problems.append(f"holds {failed - _NAMED:,} more members that do not decode")
    return problems
