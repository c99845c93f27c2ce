"""Find one sample in a data set by its key or its number, and one of its members."""

from __future__ import annotations

import numpy as np

from wdsdist.curation import members
from wdsdist.diagnostics.view.member_reader import MemberReader, Place
from wdsdist.diagnostics.view.search import numbers_of, with_key
from wdsdist.errors import SampleError
from wdsdist.samples.open_source import open_source
from wdsdist.shards.index import checksums
from wdsdist.shards.manifest import Manifest
from wdsdist.shards.shard_indexes import shard_index, shard_indexes

_MOST_DIGITS = 640
"""Of the number of a sample: Python refuses to convert a longer text where it is set to refuse as much as it may."""


def find_sample(reader: MemberReader, wanted: str, *, by_number: bool = False) -> Place:
    """Find a sample by its key or its number; by its number alone the index of one shard is read.

    Raises `SampleError` where there is no such sample, or several with the key.
    """
    manifest = reader.manifest
    found = {
        (shard, stored): numbers
        for shard, index in (() if by_number else shard_indexes(manifest))
        for stored in with_key(index, wanted)
        if (numbers := numbers_of(manifest, shard, stored))
    }
    if len(found) > 1:
        every = [number for numbers in found.values() for number in numbers]
        raise SampleError(
            f"{len(every)} samples have the key {wanted!r}: name the one you mean by its number, "
            f"{' or '.join(map(str, every))}"
        )
    if found:
        [numbers] = found.values()
        return reader.place(numbers[0])
    if by_number and not wanted.isdecimal():
        raise SampleError(f"{wanted!r} is no number of a sample: leave --number out to find it by its key")
    if not wanted.isdecimal():
        raise SampleError(f"no sample has the key {wanted!r}: `wdsdist ls --samples` lists all keys")
    if len(wanted) > _MOST_DIGITS or int(wanted) >= manifest.num_samples:
        raise SampleError(
            f"no sample has the key {wanted!r}, nor is there a sample of that number: there are "
            f"{manifest.num_samples:,}, numbered from 0"
        )
    return reader.place(int(wanted))


def read_member(manifest: Manifest, place: Place, field: str) -> memoryview:
    """Return the data of one member; of a remote shard only that is fetched, into a file, and verified by its checksum.

    Raises `SampleError` where the sample has none of that extension, `ShardDamagedError` where its bytes are wrong.
    """
    part, number = manifest.part(place.shard)
    name, fields = part.shown_name(number), [member.extension.lower() for member in place.members]
    if field.lower() not in fields:
        raise SampleError(f"sample {place.key!r} of {name} has no member {field!r}: it has {', '.join(fields)}")
    chosen = fields.index(field.lower())
    if part.shard(number).is_compressed:  # decompressed once for all, in the cache
        source = open_source(manifest)
        return source.open({place.shard: None})[place.shard].member(place.stored, chosen)
    member, index = place.members[chosen], shard_index(manifest, place.shard)
    with members.opened(part, number, index) as content:
        content.fill(*checksums.needed(index, np.array([member.number])))
        content.check(index, np.array([member.number]), name)
        return content[member.offset : member.offset + member.size]
