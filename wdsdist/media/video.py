"""Frames of a video: seek to the keyframe before a clip, decode from there, and take the frames that the clip shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from typing import Any

from wdsdist.errors import SampleError
from wdsdist.media.containers import Place, Track

_BACK = (0, 10, None)
"""Seconds before a clip from which to look for a keyframe, in this order; ``None`` is the beginning. The first does,
except for containers with a coarse index, and for frames that need more than what follows their keyframe."""


@dataclass(frozen=True, slots=True)
class ClipReader:
    """Decodes the frames of a clip: every ``stride``-th frame, or the frames that are shown at a rate.

    Times are in ticks of the stream.
    """

    track: Track
    frames: int
    stride: int
    ticks: Fraction
    """Ticks from one frame of the video to the next; with ``is_timed``, of the clip."""
    is_timed: bool
    take: Callable[[Any, list[int]], None]
    """Called with each frame and its numbers in the clip; again from the first on after an attempt that failed."""

    @classmethod
    def of(
        cls, track: Track, take: Callable[[Any, list[int]], None], *, frames: int, stride: int, fps: Fraction | None
    ) -> ClipReader:
        """Make the clip reader of a video track. ``fps``: frames per second; ``None``: every ``stride``-th frame."""
        rate = fps or track.stream.average_rate or track.stream.guessed_rate or Fraction(25)
        return cls(track, frames, stride, 1 / (rate * track.tick), fps is not None, take)

    def read(self, place: Place, *, may_repeat: bool) -> None:
        """Decode the clip that lies at a place of the video.

        If the headers do not give the length of the video, or a wrong one, all packets are read first.

        Raises `SampleError` for a video that is damaged or cut short, and for one that is too short for a clip unless
        ``may_repeat`` its last frame.
        """
        reach = int((self.frames - 1) * self.ticks * (1 if self.is_timed else self.stride))
        span = self.track.span
        if span is not None and self._decode(span[0] + place.begin(span[1] - span[0], reach), is_last=False):
            return
        times, end = self.track.times()
        if self.is_timed:
            start = times[0] + place.begin(end - times[0], reach)
            is_short = start + reach >= end
        else:
            first = place.begin(len(times), (self.frames - 1) * self.stride)
            start, is_short = times[first], first + (self.frames - 1) * self.stride >= len(times)
        if is_short and not may_repeat:
            seconds = float((end - times[0]) * self.track.tick)
            raise SampleError(f"a video of {len(times):,} frames, {seconds:.3f} s, is too short for the clip")
        if not self._decode(start, is_last=True):
            raise SampleError("frames of it are missing")

    def _decode(self, start: int, *, is_last: bool) -> bool:
        """Seek to a clip and take its frames; return whether the video has all of them, or its last one stands in."""
        for back in _BACK:
            try:
                is_whole = self._taken(start, back, is_last=is_last)
            except SampleError:  # a frame may need more than what follows the keyframe
                if back is None:
                    raise
            else:
                if is_whole is not None:
                    return is_whole
        return False

    def _taken(self, start: int, back: int | None, *, is_last: bool) -> bool | None:
        """Take the frames of a clip after a seek; return ``None`` when the seek ended behind its start."""
        self.track.seek(None if back is None else start - int(back / self.track.tick))
        number, passed = 0, 0  # the next frame of the clip, and frames of the video since the first one
        shown = None
        for frame in chain(self.track.frames(), [None]):
            if shown is None:
                if frame is None or (back is not None and frame.pts > start):
                    return None if back is not None else False
                shown = frame
                continue
            until = shown.pts + (shown.duration or 1) if frame is None else frame.pts  # when `shown` ends
            numbers: list[int] = []
            if self.is_timed:
                while number < self.frames and start + int(number * self.ticks) < until:
                    numbers.append(number)
                    number += 1
            elif until > start:
                if passed == number * self.stride:
                    numbers, number = [number], number + 1
                passed += 1
            if frame is None and is_last:
                numbers, number = [*numbers, *range(number, self.frames)], self.frames
            if numbers:
                self.take(shown, numbers)
            if number == self.frames:
                return True
            shown = frame
        return False
