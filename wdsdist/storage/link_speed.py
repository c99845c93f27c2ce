"""Delay and rate of the connections to each store, as the downloads of this process have found them."""

from __future__ import annotations

from dataclasses import dataclass

from wdsdist.storage.clients import store

_NEWEST = 0.2
"""Weight of the latest request in the running means."""
_LEAST_BYTES = 256 << 10
"""Of an answer that tells a rate: less is there with the header, or waits in buffers."""


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """The means of what was measured."""

    delay: float
    """Seconds from a request to the header of its answer."""
    rate: float
    """Bytes per second of one connection, beside those that run with it; 0 where it is unknown."""

    @property
    def bytes_in_delay(self) -> int:
        """Bytes that come while another request would wait for its answer; 0 where they are unknown."""
        return int(self.delay * self.rate)


_speeds: dict[str, LinkSpeed] = {}


def link_speed(location: str) -> LinkSpeed:
    """Return what was measured of the store of a location; zeros where nothing was.

    >>> note_speed("https://host/a.tar", delay=0.02, size=10**6, seconds=0.1)
    >>> link_speed("https://host/b.tar").bytes_in_delay
    200000
    """
    return _speeds.get(store(location), LinkSpeed(0.0, 0.0))


def note_speed(location: str, *, delay: float, size: int, seconds: float) -> None:
    """Note one answer: its delay, its bytes, and the seconds that they took."""
    known = link_speed(location)
    rate = size / seconds if size >= _LEAST_BYTES and seconds else known.rate
    _speeds[store(location)] = LinkSpeed(_mean(known.delay, delay), _mean(known.rate, rate))


def _mean(known: float, new: float) -> float:
    return known + _NEWEST * (new - known) if known else new
