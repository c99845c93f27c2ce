"""`KeptIndexes`: the indexes of remote shards that an open data set keeps in memory."""

from __future__ import annotations

from wdsdist.shards.index import ShardIndex

_MOST = 4_000_000
"""Members of the indexes that are kept, each of which takes some 40 bytes."""


class KeptIndexes:
    """The indexes of remote shards that an open data set has read: each column, choice and sample needs them again."""

    def __init__(self) -> None:
        self._of_location: dict[str, ShardIndex] = {}
        self._members = 0
        self.lacking: set[str] = set()
        """Locations of shards that were found to have no index."""

    def get(self, location: str) -> ShardIndex | None:
        """Return the index of a shard, if it is kept."""
        return self._of_location.get(location)

    def add(self, location: str, index: ShardIndex) -> None:
        """Keep the index of a shard, as long as all have no more members than memory shall hold."""
        if self._members + len(index.offsets) <= _MOST:
            self._of_location[location] = index
            self._members += len(index.offsets)

    def __reduce__(self) -> tuple[type[KeptIndexes], tuple[()]]:
        return KeptIndexes, ()  # another process reads what it needs
