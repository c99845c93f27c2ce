"""Find one sample in a data set by its key or its number, and read one member: from indexes and ranges of a shard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from wdsdist.diagnostics.view.member_reader import shard_of
from wdsdist.diagnostics.view.search import numbers_of, with_key
from wdsdist.errors import SampleError
from wdsdist.samples.shard_reader import ShardReader
from wdsdist.shards.columns import from_members
from wdsdist.shards.columns.from_index import shard_index, shard_indexes
from wdsdist.shards.index import ShardIndex, checksums
from wdsdist.shards.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Located:
    """A sample, and where it lies."""

    number: int
    """In the data set."""
    shard: int
    index: ShardIndex
    """Of its shard."""
    stored: int
    """Its number in the shard, which in a view differs from that among the chosen ones."""


def samples(manifest: Manifest) -> Iterator[Located]:
    """Yield all samples, in the order of their numbers."""
    for shard, index in shard_indexes(manifest):
        first = int(manifest.ends[shard] - manifest.counts[shard])
        for sample, stored in enumerate(_stored(manifest, shard, index)):
            yield Located(first + sample, shard, index, stored)


def find_sample(manifest: Manifest, wanted: str, *, by_number: bool = False) -> Located:
    """Find a sample by its key or its number; by its number alone the index of one shard is read.

    Raises `SampleError` where there is no such sample, or several with the key.
    """
    found = [
        Located(number, shard, index, stored)
        for shard, index in (() if by_number else shard_indexes(manifest))
        for stored in with_key(index, wanted)
        for number in numbers_of(manifest, shard, stored)
    ]
    if len({(one.shard, one.stored) for one in found}) > 1:
        numbers = " or ".join(str(one.number) for one in found)
        raise SampleError(
            f"{len(found)} samples have the key {wanted!r}: name the one you mean by its number, {numbers}"
        )
    if found:
        return found[0]
    if by_number and not wanted.isdecimal():
        raise SampleError(f"{wanted!r} is no number of a sample: leave --number out to find it by its key")
    if not wanted.isdecimal():
        raise SampleError(f"no sample has the key {wanted!r}: `wdsdist ls --samples` lists all keys")
    number = int(wanted)
    if number >= manifest.num_samples:
        raise SampleError(
            f"no sample has the key {wanted!r}, nor is there a sample of that number: there are "
            f"{manifest.num_samples:,}, numbered from 0"
        )
    shard, place = shard_of(manifest, number)
    index = shard_index(manifest, shard)
    return Located(number, shard, index, _stored(manifest, shard, index)[place])


def member(manifest: Manifest, found: Located, field: str) -> memoryview:
    """Return the data of one member; of a remote shard only that is fetched, and verified by its checksum.

    Raises `SampleError` where the sample has none of that extension, `ShardDamagedError` where its bytes are wrong.
    """
    index, (part, place) = found.index, manifest.part(found.shard)
    fields = [extension.lower() for extension, _, _ in index.members(found.stored)]
    name = part.shown_name(place)
    if field.lower() not in fields:
        raise SampleError(
            f"sample {index.key(found.stored)!r} of {name} has no member {field!r}: it has {', '.join(fields)}"
        )
    if part.shard(place).is_compressed:  # decompressed once for all, in the cache
        return ShardReader(manifest).shard(found.shard).member(found.stored, fields.index(field.lower()))
    chosen = index.sample_starts[[found.stored]] + fields.index(field.lower())
    start = int(index.offsets[chosen[0]])
    with from_members.opened(part.location(place), index, part.client_options, name) as content:
        content.fill(*checksums.needed(index, chosen))
        content.check(index, chosen, name)
        return content[start : start + int(index.sizes[chosen[0]])]


def _stored(manifest: Manifest, shard: int, index: ShardIndex) -> list[int]:
    """Return where the samples of the data set lie in a shard, by their numbers there: in a view, the chosen ones."""
    part, place = manifest.part(shard)
    return list(range(index.num_samples)) if part.picks is None else part.picks.of_shard(place).tolist()
