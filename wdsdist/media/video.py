"""Frames of a video: which ones a clip shows, and decoding them from the keyframe before it.

Frames are told by their presentation times, which packets have too: so a clip is planned from the packets between the
keyframe and its end, and frames that neither the clip nor another frame needs are not decoded. Nothing before the
keyframe is read, and nothing behind the clip.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from wdsdist.errors import SampleError
from wdsdist.media.containers import first_stream, seek
from wdsdist.media.place import Place

_BACK = (0, 10, None)
"""Seconds before a clip from which to look for a keyframe, one after the other; ``None`` is the beginning. The first
will do, but for containers whose index is coarse, and frames that need more than what follows their keyframe."""

_UNIT = 1_000_000  # of FFmpeg's times of whole containers, to a second
_TOLERATED = 1.0, 0.05
"""Seconds, and share of its length, that a file may lack at its end: audio and video seldom end together."""


@dataclass(frozen=True, slots=True)
class FrameRule:
    """Which frames of a video make a clip: every ``stride``-th, or those that are shown at ``fps`` a second.

    Times are in ticks of the stream.
    """

    frames: int
    stride: int
    ticks: Fraction
    """From one frame of the video to the next, or with ``is_timed`` of the clip."""
    is_timed: bool

    @property
    def reach(self) -> int:
        """From the first frame of a clip to its last."""
        return int((self.frames - 1) * self.ticks * (1 if self.is_timed else self.stride))

    def start(self, first: int, end: int, place: Place) -> int:
        """Return the time of the clip that lies at a place of a video of the given times."""
        return first + place.begin(end - first, self.reach)

    def start_among(self, shown: Sequence[int], end: int, place: Place) -> int:
        """Return the same by the times of all frames; only short videos have too few from there on."""
        if self.is_timed:
            return self.start(shown[0], end, place)
        return shown[place.begin(len(shown), (self.frames - 1) * self.stride)]

    def chosen(self, shown: Sequence[int], start: int) -> list[int]:
        """Return the times of a clip's frames; where the frames shown end before, the last one is repeated.

        >>> FrameRule(3, 2, Fraction(10), is_timed=False).chosen([0, 10, 20, 30, 40], 15)
        [10, 30, 40]
        >>> FrameRule(3, 1, Fraction(7), is_timed=True).chosen([0, 10, 20, 30, 40], 15)
        [10, 20, 20]
        """
        if self.is_timed:
            return [_shown_at(shown, start + int(number * self.ticks)) for number in range(self.frames)]
        first = max(0, bisect_right(shown, start) - 1)
        return [shown[min(first + number * self.stride, len(shown) - 1)] for number in range(self.frames)]

    def last(self, shown: Sequence[int], start: int, end: int | None) -> int | None:
        """Return the time of a clip's last frame, or ``None`` where it lies behind the frames known so far.

        ``end`` is when the last frame of the video ends, once that one is known.
        """
        if not shown:
            return None
        if self.is_timed:
            time = start + self.reach  # which frame is shown at a time, the next one tells
            return _shown_at(shown, time) if time < (shown[-1] if end is None else end) else None
        place = max(0, bisect_right(shown, start) - 1) + (self.frames - 1) * self.stride
        return shown[place] if place < len(shown) else None


def _shown_at(shown: Sequence[int], time: int) -> int:
    return shown[max(0, bisect_right(shown, time) - 1)]


@dataclass(frozen=True, slots=True)
class ClipReader:
    """Decodes the frames of clips."""

    container: Any
    """That PyAV opened."""
    stream: Any
    rule: FrameRule
    take: Callable[[Any, list[int]], None]
    """Is called with each frame and its places in the clip; once more from the first on where an attempt failed."""

    @classmethod
    def of(
        cls,
        container: Any,
        take: Callable[[Any, list[int]], None],
        *,
        frames: int,
        stride: int,
        fps: Fraction | None,
    ) -> ClipReader:
        """Select the video stream of a container. ``fps`` is frames a second, ``None`` for every ``stride``-th frame.

        Raises `SampleError` where there is none.
        """
        stream = first_stream(container, "video")
        if stream is None:
            raise SampleError("there is no video in it")
        rate = fps or stream.average_rate or stream.guessed_rate or Fraction(25)
        return cls(container, stream, FrameRule(frames, stride, 1 / (rate * stream.time_base), fps is not None), take)

    def read(self, place: Place, *, may_repeat: bool) -> None:
        """Decode the clip that lies at a place of the video.

        Where the headers do not say how long that is, or are wrong, all packets are read before.

        Raises `SampleError` for what is damaged or cut short, and for a video that is too short for a clip unless
        ``may_repeat`` its last frame.
        """
        span = _span(self.container, self.stream)
        if span is not None and self._decode(self.rule.start(*span, place), is_end=False):
            return
        shown, end = self._times()
        start = self.rule.start_among(shown, end, place)
        if self.rule.last(shown, start, end) is None and not may_repeat:
            seconds = float((end - shown[0]) * self.stream.time_base)
            raise SampleError(f"a video of {len(shown):,} frames, {seconds:.3f} s, is too short for the clip")
        if not self._decode(start, is_end=True):
            raise SampleError("frames of it are missing")

    def _decode(self, start: int, *, is_end: bool) -> bool:
        """Seek to a clip and decode its frames; return whether all of them were there.

        With ``is_end``, the frames from there on are known to be all there are.
        """
        for back in _BACK:
            packets, shown, end = self._packets(start, back)
            if back is not None and (not packets or packets[0].pts > start):
                continue
            if not shown or (not is_end and self.rule.last(shown, start, end) is None):
                return False
            try:
                if self._take(packets, self.rule.chosen(shown, start)):
                    return True
            except SampleError:  # a frame may need more than what follows the keyframe
                if back is None:
                    raise
        # Some packets hold no frame that is shown: which they are, only decoding them tells.
        seek(self.container, self.stream, None)
        emitted = [frame.pts for frame in self._frames(packets)]
        seek(self.container, self.stream, None)
        return bool(emitted) and self._take(packets, self.rule.chosen(emitted, start))

    def _packets(self, start: int, back: int | None) -> tuple[list[Any], list[int], int | None]:
        """Return the packets of a clip from a keyframe on, the times of their frames, and the end where it came.

        Pictures that precede the keyframe are not among the frames: they need what lies before it.
        """
        seek(self.container, self.stream, None if back is None else start - int(back / self.stream.time_base))
        packets: list[Any] = []
        shown: list[int] = []
        end = 0
        for packet in self.container.demux(self.stream):
            if not packet.size:  # the end
                break
            if packet.pts is None:
                raise SampleError("its frames have no times: put it into a container, as `ffmpeg -c copy x.mp4` does")
            if not packets and not packet.is_keyframe:
                continue
            packets.append(packet)
            if not packet.is_discard and packet.pts >= packets[0].pts:
                insort(shown, packet.pts)
                end = max(end, packet.pts + (packet.duration or 1))
            last = self.rule.last(shown, start, None)
            if last is not None and packet.dts is not None and packet.dts > last:
                return packets, shown, None
        return packets, shown, end

    def _take(self, packets: list[Any], wanted: list[int]) -> bool:
        """Decode the frames at given timestamps; return whether all of them were there."""
        places: dict[int, list[int]] = {}
        for place, time in enumerate(wanted):
            places.setdefault(time, []).append(place)
        for frame in self._frames(packets, frozenset(places)):
            if frame.pts in places:
                self.take(frame, places.pop(frame.pts))
                if not places:
                    return True
        return False

    def _frames(self, packets: list[Any], wanted: Collection[int] | None = None) -> Iterator[Any]:
        """Yield frames, leaving out some that are not wanted and that no other frame needs."""
        import av

        context = self.stream.codec_context
        first = packets[0].pts
        for packet in [*packets, None]:
            # Some decoders look at this once, at the keyframe, and for all frames.
            is_needed = wanted is None or packet is None or packet.pts in wanted or packet is packets[0]
            context.skip_frame = "DEFAULT" if is_needed else "NONREF"
            try:
                frames = context.decode(packet)
            except av.InvalidDataError:
                if packet is not None and packet.pts < first:
                    continue
                raise SampleError("a frame of it is damaged") from None
            for frame in frames:
                if frame.pts is not None and frame.pts >= first:
                    if frame.is_corrupt:
                        raise SampleError("a frame of it is damaged")
                    yield frame

    def _times(self) -> tuple[list[int], int]:
        """Return the times of all frames in order, and that of the end, by reading all packets but decoding none."""
        shown: list[int] = []
        end = 0
        last = Fraction(0)
        seek(self.container, self.stream, None)
        for packet in self.container.demux():
            if packet.pts is None or packet.is_discard:
                continue
            until = packet.pts + (packet.duration or 1)
            last = max(last, until * packet.time_base)
            if packet.stream_index == self.stream.index:
                shown.append(packet.pts)
                end = max(end, until)
        if not shown:
            raise SampleError("there is no frame in it")
        span = _span(self.container, self.stream)
        if span is not None:
            tick = self.stream.time_base
            reached = end * tick if self.stream.duration else last
            check_length(reached - span[0] * tick, (span[1] - span[0]) * tick)
        return sorted(shown), end


def check_index(stream: Any, size: int) -> None:
    """Raise `SampleError` where the last frame that the index of a container lists lies behind its end."""
    entries = stream.index_entries
    if len(entries) and entries[-1].pos + entries[-1].size > size:
        raise SampleError(f"it is cut short: of {entries[-1].pos + entries[-1].size:,} bytes there are {size:,}")


def _span(container: Any, stream: Any) -> tuple[int, int] | None:
    """Return the times of the beginning and the end that the headers give, or ``None``."""
    first = stream.start_time or 0
    if stream.duration:
        return first, first + stream.duration
    if container.duration is None:
        return None
    end = Fraction((container.start_time or 0) + container.duration, _UNIT) / stream.time_base
    return (first, int(end)) if end > first else None


def check_length(found: Fraction | float, announced: Fraction | float) -> None:
    """Raise `SampleError` where much less audio or video is there than headers announce, both in seconds."""
    if found < announced - max(_TOLERATED[0], _TOLERATED[1] * announced):
        raise SampleError(f"it is cut short: {float(found):.3f} s of {float(announced):.3f} s are there")
