"""Delay and rate of the connections to each store, as the downloads of this process have found them."""

from __future__ import annotations

from wdsdist.storage.clients import store

_NEWEST = 0.2
"""Weight of the latest request in the running means."""
_LEAST_BYTES = 256 << 10
"""Of an answer that tells a rate: less is there with the header, or waits in buffers."""


_speeds: dict[str, tuple[float, float]] = {}
"""Of each store the means of seconds from a request to the header of its answer, and of bytes per second of one
connection, beside those that run with it."""


def bytes_in_delay(location: str) -> int:
    """Return the bytes that come from a store while another request would wait for its answer; 0 where it is unknown.

    >>> note_speed("https://host/a.tar", delay=0.02, size=10**6, seconds=0.1)
    >>> bytes_in_delay("https://host/b.tar"), bytes_in_delay("https://another/b.tar")
    (200000, 0)
    """
    delay, rate = _speeds.get(store(location), (0.0, 0.0))
    return int(delay * rate)


def note_speed(location: str, *, delay: float, size: int, seconds: float) -> None:
    """Note one answer: its delay, its bytes, and the seconds that they took."""
    known_delay, known_rate = _speeds.get(store(location), (0.0, 0.0))
    rate = size / seconds if size >= _LEAST_BYTES and seconds else known_rate
    _speeds[store(location)] = _mean(known_delay, delay), _mean(known_rate, rate)


def _mean(known: float, new: float) -> float:
    return known + _NEWEST * (new - known) if known else new
