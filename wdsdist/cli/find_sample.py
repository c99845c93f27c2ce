"""Find one sample in a data set, by its key or its number."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from wdsdist.errors import SampleError
from wdsdist.samples.shard_reader import MappedShard, ShardReader
from wdsdist.sampling.order import split_line
from wdsdist.shards.index import ShardIndex
from wdsdist.shards.manifest import Manifest


def mapped(manifest: Manifest) -> Iterator[tuple[int, MappedShard]]:
    """Yield each shard that has samples, with the number of its first one."""
    reader = ShardReader(manifest)
    first = 0
    for number, count in enumerate(manifest.counts.tolist()):
        if count:
            yield first, reader.shard(number)
        first += count


def find_sample(manifest: Manifest, wanted: str) -> tuple[MappedShard, int]:
    """Find a sample by its key or its number; return its shard, and its place there.

    Raises `SampleError` where there is no such sample, or several with the key.
    """
    found = [
        (first + sample, shard, stored)
        for first, shard in mapped(manifest)
        for stored in _with_key(shard.index, wanted)
        for sample in shard.numbers_of(stored)
    ]
    if len({(shard.name, stored) for _, shard, stored in found}) > 1:
        numbers = " or ".join(str(number) for number, _, _ in found)
        raise SampleError(
            f"{len(found)} samples have the key {wanted!r}: name the one you mean by its number, {numbers}"
        )
    if found:
        return found[0][1:]
    if not wanted.isdecimal():
        raise SampleError(f"no sample has the key {wanted!r}: `wdsdist ls --samples` lists all keys")
    number = int(wanted)
    if number >= manifest.num_samples:
        raise SampleError(
            f"no sample has the key {wanted!r}, nor is there a sample of that number: there are "
            f"{manifest.num_samples:,}, numbered from 0"
        )
    shards, samples = split_line(np.cumsum(manifest.counts), np.array([number]))
    shard = ShardReader(manifest).shard(int(shards[0]))
    return shard, shard.stored(int(samples[0]))


def member(shard: MappedShard, sample: int, field: str) -> memoryview:
    """Return the data of one member. Raises `SampleError` where the sample has none of that extension."""
    held = dict(shard.members(sample))
    if field.lower() not in held:
        raise SampleError(
            f"sample {shard.index.key(sample)!r} of {shard.name} has no member {field!r}: it has {', '.join(held)}"
        )
    return held[field.lower()]


def _with_key(index: ShardIndex, key: str) -> list[int]:
    """Return the samples of a shard with a key; an index has at most one."""
    text, wanted = index.key_bytes.tobytes(), key.encode("utf-8", "surrogateescape")
    found = []
    place = text.find(wanted)
    while place >= 0:
        # The keys are concatenated: a match counts only where it spans exactly one key.
        sample = int(np.searchsorted(index.key_starts, place, side="right")) - 1
        if index.key_starts[sample] == place and index.key_starts[sample + 1] == place + len(wanted):
            found.append(sample)
        place = text.find(wanted, place + 1)
    return found
