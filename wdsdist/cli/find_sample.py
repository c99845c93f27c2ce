"""Find one sample in a data set by its key or its number, and one of its members."""

from __future__ import annotations

from wdsdist.diagnostics.view.search import numbers_of, with_key
from wdsdist.errors import SampleError
from wdsdist.samples.member_reader import MemberReader, StoredMember, StoredSample, shard_name
from wdsdist.shards.shard_indexes import shard_indexes

_MOST_DIGITS = 640
"""Of the number of a sample: Python refuses to convert a longer text where it is set to refuse as much as it may."""


def find_sample(reader: MemberReader, wanted: str, *, by_number: bool = False) -> StoredSample:
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
        return reader.sample(numbers[0])
    if by_number and not wanted.isdecimal():
        raise SampleError(f"{wanted!r} is no number of a sample: leave --number out to find it by its key")
    if not wanted.isdecimal():
        raise SampleError(f"no sample has the key {wanted!r}: `wdsdist ls --samples` lists all keys")
    if len(wanted) > _MOST_DIGITS or int(wanted) >= manifest.num_samples:
        raise SampleError(
            f"no sample has the key {wanted!r}, nor is there a sample of that number: there are "
            f"{manifest.num_samples:,}, numbered from 0"
        )
    return reader.sample(int(wanted))


def find_member(reader: MemberReader, sample: StoredSample, field: str) -> StoredMember:
    """Return a member of a sample by its extension. Raises `SampleError` if the sample has none of that extension."""
    fields = [member.extension.lower() for member in sample.members]
    if field.lower() not in fields:
        name = shard_name(reader.manifest, sample.shard)
        raise SampleError(f"sample {sample.key!r} of {name} has no member {field!r}: it has {', '.join(fields)}")
    return sample.members[fields.index(field.lower())]
