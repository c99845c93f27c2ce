"""Find one sample in a data set by its key or its number, and one of its members."""

from __future__ import annotations

from wdsdist.diagnostics.view.member_reader import Member, MemberReader, Place, shard_name
from wdsdist.diagnostics.view.search import numbers_of, with_key
from wdsdist.errors import SampleError
from wdsdist.shards.columns.from_index import shard_indexes


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
    if int(wanted) >= manifest.num_samples:
        raise SampleError(
            f"no sample has the key {wanted!r}, nor is there a sample of that number: there are "
            f"{manifest.num_samples:,}, numbered from 0"
        )
    return reader.place(int(wanted))


def find_member(reader: MemberReader, place: Place, field: str) -> Member:
    """Return the member of a sample with an extension, in any case. Raises `SampleError` where there is none."""
    for member in place.members:
        if member.extension.lower() == field.lower():
            return member
    name = shard_name(reader.manifest, place.shard)
    has = ", ".join(member.extension.lower() for member in place.members)
    raise SampleError(f"sample {place.key!r} of {name} has no member {field!r}: it has {has}")
