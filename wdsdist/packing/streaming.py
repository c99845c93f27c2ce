"""Write the shards of a stream: cut as the samples come, one pass, no more than one sample ahead in memory."""

from __future__ import annotations

from collections.abc import Iterator

from wdsdist._util.validation import check_bytes
from wdsdist.errors import SourceError
from wdsdist.packing.destination import Place, file_number
from wdsdist.packing.job import prepared
from wdsdist.packing.options import Options
from wdsdist.packing.parallel import PackProgress, ShowProgress, later
from wdsdist.packing.payloads import Sample, broken, sample_size
from wdsdist.packing.plan import shard_name
from wdsdist.packing.sources.source import Stream
from wdsdist.packing.writer import WrittenShard, write_shard
from wdsdist.shards.tar.fields import END


def write_in_order(
    place: Place,
    stream: Stream,
    options: Options,
    progress: ShowProgress | None = None,
    first: int = 0,
) -> list[WrittenShard]:
    """Write a stream's shards one after another, the first with the number ``first``, and return them.

    Those that an interrupted run wrote are written again: all samples have to be made once more in either case.

    Raises:
        SourceError: the stream fails, or gives a key twice.
        DestinationError: the place cannot be written.
    """
    cut = _Cut(stream, options)
    shards: list[WrittenShard] = []
    done = PackProgress(samples_done=0, samples=None, shards_done=0, shards=None, bytes_done=0, bytes=None)
    if progress is not None:
        progress(done)
    while not cut.is_over:
        # How many there will be must not matter.
        name = shard_name(first + len(shards), 1, compressed=options.compress is not None)
        shards.append(write_shard(place, name, cut, on_error=options.on_error, compress=options.compress))
        if progress is not None:
            size = max(shards[-1].listed.size, shards[-1].listed.tar_size)
            done = later(done, shards[-1], size)
            progress(done)
    # Left over by an interrupted run, they would lie in the folder without being a part of the data set.
    for name in place.sizes():
        if file_number(name) >= first + len(shards):
            place.remove(name)
    return shards


class _Cut:
    """Deals a stream into shards: each iteration over it yields the samples of the next one."""

    def __init__(self, stream: Stream, options: Options) -> None:
        self._options = options
        self._samples = iter(prepared(stream.samples, options))
        self._next = next(self._samples, None)
        self._last_key: str | None = None

    @property
    def is_over(self) -> bool:
        """Whether all samples were taken."""
        return self._next is None

    def __iter__(self) -> Iterator[Sample]:
        most, limit = self._options.shard_samples, check_bytes("shard_bytes", self._options.shard_bytes)
        size, count = len(END), 0
        while self._next is not None:
            sample = self._next
            size += sample_size(sample)
            if count and (size > limit or count == most):
                return
            if not count and sample[0] == self._last_key:  # the writer of a shard sees only those in it
                error = SourceError(f"sample {sample[0]!r} is there twice: each needs a key of its own")
                sample = broken(sample[0], error)
            self._last_key, count = sample[0], count + 1
            yield sample
            self._next = next(self._samples, None)
