"""The two transforms of audio and video training: a clip of frames, and a clip of sound.

They read the bytes of a member in the mapped shard, seek to the clip, and decode no more than it needs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Generator, Iterator
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from functools import partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from wdsdist._util.validation import check_integer, check_number
from wdsdist.errors import ArgumentError, SampleError
from wdsdist.media.containers import Track, opened
from wdsdist.samples.images.decode import MAX_PIXELS, UPRIGHT, check_size, is_turned, upright
from wdsdist.samples.images.transforms import check_image_size
from wdsdist.samples.marks import WHOLE, Part, is_seeded, parted, seeded, stretch

if TYPE_CHECKING:
    import torch

Samples = npt.NDArray[np.float32]
"""float32 [channels, samples], in -1 to 1."""
MAX_SAMPLES = 2**26
"""Values of all channels that a recording may have by default: a quarter of a gibibyte as float32."""

_PREROLL = 1
"""Seconds before a part from which it is decoded: codecs need some frames until they are right."""
_WORTH_A_SEEK = 2.0
"""Seconds that are rather decoded than skipped."""
_CONTEXT = 64
"""Samples on both sides of a part that its resampling looks at."""

_MIRRORED = {(False, False): 0, (True, False): 1, (True, True): 2, (False, True): 3}
"""What mirrored columns and rows add to an orientation of EXIF."""


class Location(NamedTuple):
    """The location of a clip in a video or recording, or in its stretch that is one part of a record."""

    share: float
    """From 0 at the beginning to 1 at the end."""
    part: Part

    def begin(self, length: int, reach: int) -> int:
        """Return the beginning of a clip in a video or recording; ``reach`` goes from its first frame to its last.

        It lies in the stretch of its part. A clip that is longer than that contains the stretch, as far as the end
        allows.

        >>> [Location(1.0, Part(number, 3)).begin(30, 7) for number in range(3)]
        [2, 12, 22]
        >>> [Location(0.5, Part(number, 3)).begin(30, 14) for number in range(3)]
        [0, 8, 15]
        """
        own = stretch(length, *self.part)
        room = own.stop - own.start - reach
        begin: int = own.start + min(int(self.share * room), max(0, room - 1))
        return max(0, min(begin, length - reach - 1))


@parted
@seeded
@dataclass(frozen=True)
class Clip:
    """Extract a clip of frames from a video.

    Called with (data, seed), where data is an encoded video, it returns a uint8 tensor [frames, 3, height, width] with
    channels last in memory. The seed chooses the start of the clip, uniformly over all times at which it fits: the same
    data and seed give the same clip anywhere. Nothing before its keyframe or after its end is decoded. Frames are
    upright, edit lists apply, and pixels stay as they are, square or not. If the data set is exploded, clip ``part`` of
    ``parts`` lies in that stretch of the video, or contains it if the stretch is shorter. A video that is too short
    ends with its last frame, repeated.

    Args:
        frames: number of frames of the clip.
        stride: distance between frames of the clip, in frames of the video; 1 by default.
        fps: frames per second, instead of ``stride``: the clip has the frames that are shown at these times.
        size: side or (height, width) of the frames in pixels: each frame is scaled to cover it and cropped to the
            centre. Or an image transform such as `RandomResizedCrop`, which gets the same seed for all frames, so it
            crops the same part. ``None`` keeps the size of the video.
        at: where the clip lies, from 0 at the beginning to 1 at the end: 0.5 for evaluation. Random by default.
        max_pixels: the most pixels of a frame, or without ``size`` of all frames of a clip together; more are an error,
            raised before decoding.

    Raises `ArgumentError` for arguments that cannot work; when called, `SampleError` for data that
    is not a video, or is damaged or cut short as far as its decoder can tell, and `ExtraMissingError` without PyAV
    (extra ``media``).

    >>> Clip(16, stride=4, size=224).stride
    4
    >>> Clip(16, stride=4, fps=8)
    Traceback (most recent call last):
    wdsdist.errors.ArgumentError: stride is 4 and fps is 8: give one of them
    """

    frames: int
    _: KW_ONLY
    stride: int | None = None
    fps: float | None = None
    size: int | tuple[int, int] | Callable[..., Any] | None = None
    at: float | None = None
    max_pixels: int = MAX_PIXELS

    reads_views: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("frames", "max_pixels", *(["stride"] if self.stride is not None else [])):
            check_integer(name, getattr(self, name), 1)
        if self.fps is not None:
            check_number("fps", self.fps, 0.001, 10_000)
            if self.stride is not None:
                raise ArgumentError(f"stride is {self.stride!r} and fps is {self.fps!r}: give one of them")
        if self.size is not None and not callable(self.size):
            check_image_size(self.size)
        if self.at is not None:
            check_number("at", self.at, 0, 1)

    def __call__(self, data: Any, seed: int | None = None, *, part: int = 0, parts: int = 1) -> torch.Tensor:
        import torch

        location, seed = _drawn(self.at, seed, Part(part, parts))
        clip = np.zeros(0, np.uint8)
        with opened(data, "decoding video", max_pixels=self.max_pixels) as container:
            from av.video.reformatter import VideoReformatter

            reformatter = VideoReformatter()  # one for all frames: to set it up takes longer than a small frame
            track = Track(container, "video", len(data))
            context = track.stream.codec_context
            width, height = context.width, context.height
            check_size(width, height, self.max_pixels)
            if self.size is None and self.frames * width * height > self.max_pixels:
                raise SampleError(
                    f"{self.frames:,} frames of {width:,} x {height:,} pixels are more than max_pixels, "
                    f"{self.max_pixels:,}: give size=, or raise max_pixels if the data can be trusted"
                )
            context.options = {"max_pixels": str(self.max_pixels)}  # of frames that are larger than the header says
            for frame, numbers in self._read(track, location):
                pixels = self._resized(frame, partial(reformatter.reformat, frame, format="rgb24", threads=1), seed)
                if not clip.size:
                    clip = np.empty((self.frames, *pixels.shape), pixels.dtype)
                if clip.shape[1:] != pixels.shape:
                    raise SampleError("its frames change their size: give size=")
                clip[numbers] = pixels
        return torch.from_numpy(clip).permute(0, 3, 1, 2)

    def _read(self, track: Track, location: Location) -> Iterator[tuple[Any, list[int]]]:
        """Decode the clip at a location in a video, and yield its frames with their numbers in the clip.

        If the headers do not give the length of the video, or a wrong one, all packets are read first, and the frames
        come again from the first on. Times are in ticks of the stream.
        """
        fps = None if self.fps is None else Fraction(float(self.fps)).limit_denominator(1001)
        rate = fps or track.stream.average_rate or track.stream.guessed_rate or Fraction(25)
        stride = self.stride or 1
        step = stride / (rate * track.tick)
        reach = int((self.frames - 1) * step)

        def decode(start: int, *, is_last: bool) -> Generator[tuple[Any, list[int]], None, bool]:
            """Decode the frames of a clip from a timestamp on; return whether the clip is complete."""
            number = passed = 0  # the next frame of the clip, and frames of the video since the first one
            shown = None
            for shown, following in pairwise(chain(track.frames_from(start), [None])):
                until = shown.pts + (shown.duration or 1) if following is None else following.pts
                numbers: list[int] = []
                if fps is not None:
                    while number < self.frames and start + int(number * step) < until:
                        numbers.append(number)
                        number += 1
                elif until > start:
                    if passed == number * stride:
                        numbers, number = [number], number + 1
                    passed += 1
                if numbers:
                    yield shown, numbers
                if number == self.frames:
                    return True
            if shown is not None and is_last:
                yield shown, [*range(number, self.frames)]
            return shown is not None and is_last

        span = track.span
        if span is not None and (yield from decode(span[0] + location.begin(span[1] - span[0], reach), is_last=False)):
            return
        times, end = track.times()
        if fps is not None:
            start = times[0] + location.begin(end - times[0], reach)
        else:
            start = times[location.begin(len(times), (self.frames - 1) * stride)]
        if not (yield from decode(start, is_last=True)):
            raise SampleError("frames of it are missing")

    def _resized(self, frame: Any, to_rgb: Callable[..., Any], seed: int) -> npt.NDArray[Any]:
        """Return the pixels of a frame [height, width, 3] as they are asked for."""
        turn, matrix = UPRIGHT, frame.side_data.get("DISPLAYMATRIX")
        if matrix is not None:  # numbered as EXIF does
            (a, b, _), (c, d, _), _ = np.frombuffer(bytes(matrix), np.int32).reshape(3, 3).tolist()
            turn += 4 + _MIRRORED[c < 0, b < 0] if abs(b) > abs(a) else _MIRRORED[a < 0, d < 0]
        if self.size is None or callable(self.size):
            pixels = upright(to_rgb().to_ndarray(), turn)
            if self.size is None:
                return pixels
            try:
                made = self.size(pixels, seed) if is_seeded(self.size) else self.size(pixels)
            except (ValueError, AssertionError) as error:  # which is taken for PyAV's otherwise
                raise SampleError(f"{self.size!r} failed: {type(error).__name__}: {error}") from error
            return made.permute(1, 2, 0).numpy()  # type: ignore[no-any-return]
        height, width = check_image_size(self.size)
        sizes = (frame.width, frame.height) if is_turned(turn) else (frame.height, frame.width)
        scale = max(height / sizes[0], width / sizes[1])
        high, wide = max(height, round(sizes[0] * scale)), max(width, round(sizes[1] * scale))
        size = (high, wide) if is_turned(turn) else (wide, high)
        pixels = upright(to_rgb(width=size[0], height=size[1]).to_ndarray(), turn)
        top, left = (high - height) // 2, (wide - width) // 2
        return pixels[top : top + height, left : left + width]


@parted
@seeded
@dataclass(frozen=True)
class AudioClip:
    """Extract a clip of a recording, or all of it, at a fixed rate and with a fixed number of channels.

    Called with (data, seed), where data is encoded audio, or a video with sound, it returns a float32 tensor [channels,
    samples] in -1 to 1. The seed or the part chooses the start of the clip, as in `Clip`. Silence follows a recording
    that is too short.

    Args:
        seconds: length of the clip, which has ``round(seconds * rate)`` samples. ``None`` takes the whole recording,
            also if the data set is exploded.
        rate: samples per second after resampling. ``None`` keeps the rate of the recording.
        channels: 1 takes the mean of all channels, 2 doubles a single channel; ``None`` keeps the channels of the
            recording.
        at: where the clip lies, from 0 at the beginning to 1 at the end: 0.5 for evaluation. Random by default.
        max_samples: the most samples of a recording, over all channels.

    Raises `ArgumentError` for arguments that cannot work; when called, `SampleError` for data that
    is not audio or is damaged or cut short as far as its decoder can tell, and `ExtraMissingError` without PyAV (extra
    ``media``).

    >>> AudioClip(2.5, 16_000).channels
    1
    """

    seconds: float | None = None
    rate: int | None = None
    _: KW_ONLY
    channels: Literal[1, 2] | None = 1
    at: float | None = None
    max_samples: int = MAX_SAMPLES

    reads_views: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.seconds is not None:
            check_number("seconds", self.seconds, 0.001, 1e6)
        if self.rate is not None:
            check_integer("rate", self.rate, 1000, 1_000_000)
        if self.channels not in (1, 2, None):
            raise ArgumentError(f"channels is {self.channels!r}: it must be 1, 2 or None")
        check_integer("max_samples", self.max_samples, 1)
        if self.at is not None:
            check_number("at", self.at, 0, 1)

    def __call__(self, data: Any, seed: int | None = None, *, part: int = 0, parts: int = 1) -> torch.Tensor:
        import torch

        location, _ = _drawn(0.0 if self.seconds is None else self.at, seed, Part(part, parts))
        samples, rate = self.read(data, location)
        if self.channels == 1:
            samples = np.mean(samples, axis=0, keepdims=True, dtype=np.float32)
        elif self.channels == 2 and len(samples) > 2:
            raise SampleError(f"it has {len(samples)} channels: only one or two become two; take channels=1")
        elif self.channels == 2:
            samples = np.repeat(samples, 2 // len(samples), axis=0)
        missing = 0 if self.seconds is None else round(self.seconds * rate) - samples.shape[1]
        return torch.from_numpy(np.pad(samples, ((0, 0), (0, missing))) if missing > 0 else samples)

    def read(self, data: Any, location: Location) -> tuple[Samples, int]:
        """Return the clip at a location with the channels of the recording, which may be shorter, and its rate."""
        with opened(data, "decoding audio") as container:
            import av

            track = Track(container, "audio", len(data), is_alone=True)
            frames = track.frames()
            first = next(frames, None)
            if first is None:
                raise SampleError("there is no audio in it")
            beginning: Iterator[Any] | None = chain([first], frames)  # after a seek to it, some codecs differ
            origin, own_rate = first.pts, first.sample_rate  # the header of AAC may give half of the rate
            rate = self.rate or own_rate

            def decode(begin: int, stop: int | None) -> Samples:
                """Return the samples from ``begin`` to ``stop``, or to the end for ``None``."""
                nonlocal beginning
                frames, beginning = beginning, None
                if frames is None or begin > _WORTH_A_SEEK * own_rate:
                    time = origin + int(Fraction(begin, own_rate) / track.tick)
                    frames = track.frames_from(time, preroll=int(_PREROLL / track.tick), needed=time)
                is_flac, floats = container.format.name == "flac", av.AudioResampler("fltp")
                pieces, num_values, position = list[Samples](), 0, None
                for frame in frames:
                    start = round((frame.pts - origin) * track.tick * own_rate)
                    position = start if position is None else position
                    if is_flac and position != start:  # FFmpeg leaves out frames with a wrong checksum
                        raise SampleError("a frame of it is damaged")
                    # Refuses frames that change their rate or channels.
                    piece = np.concatenate([part.to_ndarray() for part in floats.resample(frame)], axis=1)
                    pieces.append(piece[:, max(0, begin - position) :])
                    position += frame.samples
                    num_values += pieces[-1].size
                    if num_values > self.max_samples:
                        raise SampleError(
                            f"a recording has more than {self.max_samples:,} samples in all channels: read a part, as "
                            f"AudioClip(10) does, or raise max_samples of AudioClip if the data can be trusted"
                        )
                    if stop is not None and position >= stop:
                        break
                samples = np.concatenate(pieces, axis=1) if pieces else np.zeros((1, 0), np.float32)
                return np.ascontiguousarray(samples[:, : None if stop is None else stop - begin])

            if self.seconds is None:
                samples = decode(0, None)
                track.check_length(Fraction(samples.shape[1], own_rate))
                return _resampled(samples, own_rate, rate), rate
            num_samples = round(self.seconds * rate)
            needed = -(-num_samples * own_rate // rate)
            step = own_rate // math.gcd(own_rate, rate)  # samples that become a whole number of samples
            context = 0 if rate == own_rate else -(-_CONTEXT // step) * step
            for announced in (track.span, None) if track.span else (None,):  # if headers are wrong, packets are counted
                first_time, end = announced or (origin, track.times()[1])
                start = location.begin(int((end - first_time) * track.tick * own_rate), needed - 1)
                before = min(start, context)
                samples = decode(start - before, start + needed + context)
                if samples.shape[1] >= before + needed:
                    break
            skipped = round(before * rate / own_rate)
            part = _resampled(samples, own_rate, rate)[:, skipped : skipped + num_samples]
            return np.ascontiguousarray(part), rate


def decode_audio(data: Any) -> tuple[torch.Tensor, int]:
    """Return a recording, float32 [channels, samples] in -1 to 1, and its samples a second.

    Raises `SampleError` for a file that is damaged, cut short, or has more than `MAX_SAMPLES` values.
    """
    import torch

    samples, rate = AudioClip(channels=None).read(data, Location(0.0, WHOLE))
    return torch.from_numpy(samples), rate


decode_audio.reads_views = True  # type: ignore[attr-defined]


def _resampled(samples: Samples, rate: int, to: int) -> Samples:
    """Resample audio to another sample rate, channel by channel."""
    if rate == to or not samples.size:
        return samples
    import av

    channels: list[Samples] = []
    for channel in samples:
        resampler = av.AudioResampler("fltp", "mono", to)
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(channel[None]), "fltp", "mono")
        frame.sample_rate = rate
        channels.append(
            np.concatenate([part.to_ndarray() for piece in (frame, None) for part in resampler.resample(piece)], 1)
        )
    return np.concatenate(channels)


def _drawn(at: float | None, seed: int | None, part: Part) -> tuple[Location, int]:
    """Draw the location of a clip; return it with a seed for random transforms of its frames."""
    if at is not None and seed is None:
        seed = 0
    draw = random.Random(check_integer("seed", seed, 0, 2**63 - 1))  # None would be another clip each time
    share = draw.random()
    return Location(share if at is None else at, part), draw.getrandbits(63)
