"""Samples of audio: whole recordings, and parts of them at another rate."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from wdsdist.errors import SampleError
from wdsdist.media.containers import Place, Track, opened

if TYPE_CHECKING:
    import torch

MAX_SAMPLES = 2**26
"""Values of all channels that a recording may have by default: a quarter of a gibibyte as float32."""

_PREROLL = 1
"""Seconds before a part from which it is decoded: codecs need some frames until they are right."""
_WORTH_A_SEEK = 2.0
"""Seconds that are rather decoded than skipped."""
_CONTEXT = 64
"""Samples on both sides of a part that its resampling looks at."""

Samples = npt.NDArray[np.float32]
"""float32 [channels, samples], in -1 to 1."""


def decode_audio(data: Any) -> tuple[torch.Tensor, int]:
    """Return a recording, float32 [channels, samples] in -1 to 1, and its samples a second.

    Raises `SampleError` for a file that is damaged, cut short, or has more than `MAX_SAMPLES` values.
    """
    import torch

    samples, rate = read_audio(data, max_samples=MAX_SAMPLES)
    return torch.from_numpy(samples), rate


decode_audio.reads_views = True  # type: ignore[attr-defined]


def read_audio(
    data: Any, seconds: float | None = None, rate: int | None = None, *, place: Place | None = None, max_samples: int
) -> tuple[Samples, int]:
    """Return a recording or a part of it, and its samples a second.

    Args:
        data: the file.
        seconds: length of the part; the recording may be shorter. ``None`` for all of it.
        rate: samples a second to which it is resampled; ``None`` for those that it has.
        place: the place of the part; by default the beginning.
        max_samples: values of all channels that may be decoded.

    Raises `SampleError` for a file that is damaged, cut short or longer.
    """
    with opened(data, "decoding audio") as container:
        reader = _AudioReader(Track(container, "audio", len(data), is_alone=True), max_samples)
        rate = rate or reader.rate
        if seconds is None:
            return _resampled(reader.whole(), reader.rate, rate), rate
        return reader.part(round(seconds * rate), rate, place or Place()), rate


class _AudioReader:
    """Reads ranges of a recording, in samples from its beginning. Raises `SampleError` for a file without audio."""

    def __init__(self, track: Track, max_samples: int) -> None:
        self._track, self._max_samples = track, max_samples
        frames = track.frames()
        first = next(frames, None)
        if first is None:
            raise SampleError("there is no audio in it")
        self._beginning: Iterator[Any] | None = chain([first], frames)
        self._origin: int = first.pts
        self._is_flac = track.container.format.name == "flac"
        self.rate: int = first.sample_rate  # the header of AAC may give half of it

    def whole(self) -> Samples:
        """Return all samples."""
        samples = self._read(0, None)
        self._track.check_length(Fraction(samples.shape[1], self.rate))
        return samples

    def part(self, num_samples: int, rate: int, place: Place) -> Samples:
        """Return so many samples at a rate, from a place of the recording; fewer if it is shorter."""
        needed = -(-num_samples * self.rate // rate)
        step = self.rate // math.gcd(self.rate, rate)  # samples that become a whole number of samples
        context = 0 if rate == self.rate else -(-_CONTEXT // step) * step
        span = self._track.span
        for is_announced in (True, False) if span else (False,):  # if headers are wrong, packets are counted
            first, end = span if span and is_announced else (self._origin, self._track.times()[1])
            total = int((end - first) * self._track.tick * self.rate)
            start = place.begin(total, needed - 1)
            before = min(start, context)
            samples = self._read(start - before, start + needed + context)
            if samples.shape[1] >= before + needed:
                break
        skipped = round(before * rate / self.rate)
        return np.ascontiguousarray(_resampled(samples, self.rate, rate)[:, skipped : skipped + num_samples])

    def _read(self, begin: int, stop: int | None) -> Samples:
        """Return the samples from ``begin`` to ``stop``, or to the end for ``None``."""
        import av

        frames, self._beginning = self._beginning, None
        if frames is None or begin > _WORTH_A_SEEK * self.rate:
            frames = self._frames_from(begin)
        floats = av.AudioResampler("fltp")  # refuses frames that change their rate or channels
        pieces: list[Samples] = []
        position: int | None = None
        num_values = 0
        for frame in frames:
            start = self._position(frame)
            position = start if position is None else position
            if self._is_flac and position != start:  # frames with a wrong checksum are left out
                raise SampleError("a frame of it is damaged")
            piece = np.concatenate([part.to_ndarray() for part in floats.resample(frame)], axis=1)
            piece = piece[:, max(0, begin - position) :]
            position += frame.samples
            num_values += piece.size
            if num_values > self._max_samples:
                raise SampleError(
                    f"a recording has more than {self._max_samples:,} samples in all channels: read a part, as "
                    f"AudioClip(10) does, or raise max_samples of AudioClip if the data can be trusted"
                )
            pieces.append(piece)
            if stop is not None and position >= stop:
                break
        samples = np.concatenate(pieces, axis=1) if pieces else np.zeros((1, 0), np.float32)
        return np.ascontiguousarray(samples[:, : None if stop is None else stop - begin])

    def _frames_from(self, begin: int) -> Iterator[Any]:
        """Return frames from ``begin`` or before it on, if the container can be searched."""
        needed = self._origin + int(Fraction(begin, self.rate) / self._track.tick)
        for start in (needed - int(_PREROLL / self._track.tick), None):
            self._track.seek(start if start is None or start > self._origin else None)
            frames = self._track.frames(needed)  # those before may lack what they need of the ones before them
            first = next(frames, None)
            if first is not None and self._position(first) <= begin:
                break
        return frames if first is None else chain([first], frames)

    def _position(self, frame: Any) -> int:
        """Return the first sample of a frame."""
        position: int = round((frame.pts - self._origin) * self._track.tick * self.rate)
        return position


def _resampled(samples: Samples, rate: int, to: int) -> Samples:
    """Return samples at another rate, each channel by itself."""
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


def mixed(samples: Samples, channels: int | None) -> Any:
    """Return samples with so many channels: one is the mean of all, two of one are alike.

    Raises `SampleError` for two of more than two channels.

    >>> mixed(np.array([[1, 3], [3, 5]], np.float32), 1).tolist()
    [[2.0, 4.0]]
    """
    if channels is None or channels == len(samples):
        return samples
    if channels == 1:
        return np.mean(samples, axis=0, keepdims=True, dtype=np.float32)
    if len(samples) > 1:
        raise SampleError(f"it has {len(samples)} channels: only one or two become two; take channels=1")
    return np.repeat(samples, channels, axis=0)
