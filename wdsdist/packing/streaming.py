"""Write the shards of a stream: cut as the samples come, one pass, no more than one sample ahead in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from wdsdist import storage
from wdsdist.errors import SourceError
from wdsdist.packing.destination import Place
from wdsdist.packing.job import PackOptions
from wdsdist.packing.parallel import PackProgress, ShowProgress, later
from wdsdist.packing.payloads import Sample, broken, sample_size
from wdsdist.packing.plan import shard_name, shard_number
from wdsdist.packing.sources.source import OnError, Stream
from wdsdist.packing.writer import WrittenShard, index_of, whole_index, write_shard
from wdsdist.shards import index as shardindex
from wdsdist.shards.index import ShardIndex
from wdsdist.shards.tar import END

_ADVICE = "an iterable must give the same samples each time; delete the folder, or choose another one"


def write_in_order(
    place: Place,
    stream: Stream,
    options: PackOptions,
    on_error: OnError = "raise",
    progress: ShowProgress | None = None,
    first: int = 0,
) -> list[WrittenShard]:
    """Write a stream's shards one after another, the first with the number ``first``, and return them.

    A shard that an earlier run left whole is not written again: its samples are made once more, and compared.

    Raises:
        SourceError: the stream fails, gives a key twice, or gives other samples than those that an earlier run wrote.
        DestinationError: the place cannot be written.
    """
    cut = _Cut(stream, options)
    present = place.sizes()
    shards: list[WrittenShard] = []
    done = PackProgress(samples_done=0, samples=None, shards_done=0, shards=None, bytes_done=0, bytes=None)
    if progress is not None:
        progress(done)
    while not cut.is_over:
        # How many there will be must not matter.
        name = shard_name(first + len(shards), 1, compressed=options.compress is not None)
        known = whole_index(place, name, present.get(name), on_error)
        if known is None:
            shards.append(write_shard(place, name, cut, on_error=on_error, compress=options.compress))
        else:
            shards.append(_compared(place.at(name), name, known, cut, on_error))
        if progress is not None:
            size = max(shards[-1].listed.size, shards[-1].listed.tar_size)
            done = later(done, shards[-1], size)
            progress(done)
    # Left over by an earlier run, they would lie in the folder without being a part of the data set.
    more = sorted(name for name in present if (shard_number(name) or 0) >= first + len(shards))
    if more:
        raise SourceError(f"{stream.location} ended before {place.at(more[0])}, which an earlier run wrote: {_ADVICE}")
    return shards


class _Cut:
    """Deals a stream into shards: each iteration over it yields the samples of the next one."""

    def __init__(self, stream: Stream, options: PackOptions) -> None:
        self._options = options
        self._samples = iter(options.prepared(stream.samples))
        self._next = next(self._samples, None)
        self._last_key: str | None = None

    @property
    def is_over(self) -> bool:
        """Whether all samples were taken."""
        return self._next is None

    def __iter__(self) -> Iterator[Sample]:
        most = self._options.shard_samples
        size, count = len(END), 0
        while self._next is not None:
            sample = self._next
            size += sample_size(sample)
            if count and (size > self._options.shard_bytes or count == most):
                return
            if not count and sample[0] == self._last_key:  # the writer of a shard sees only those in it
                error = SourceError(f"sample {sample[0]!r} is there twice: each needs a key of its own")
                sample = broken(sample[0], error)
            self._last_key, count = sample[0], count + 1
            yield sample
            self._next = next(self._samples, None)


def _compared(location: str, name: str, known: ShardIndex, cut: _Cut, on_error: OnError) -> WrittenShard:
    """Make the samples of a shard that is there already, and refuse another content."""
    found = replace(index_of(cut, "", on_error), stored=known.stored)
    if known.checksums is None:  # written before indexes had them
        found = replace(found, checksums=None)
    if shardindex.dumps(found) != shardindex.dumps(known):
        difference = _difference(known, found)
        raise SourceError(
            f"{storage.shown(location)} was written from other samples than come now ({difference}): {_ADVICE}"
        )
    return WrittenShard.of(name, known)


def _difference(known: ShardIndex, found: ShardIndex) -> str:
    for sample in range(min(known.num_samples, found.num_samples)):
        if known.key(sample) != found.key(sample):
            return f"its sample {sample:,} has key {known.key(sample)!r}, not {found.key(sample)!r}"
        if known.members(sample) != found.members(sample):
            return f"the members of sample {known.key(sample)!r} have other names or sizes"
    if known.num_samples != found.num_samples:
        return f"it has {known.num_samples:,} samples, not {found.num_samples:,}"
    return "all keys and sizes agree, but not the bytes"
