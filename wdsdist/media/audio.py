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
from wdsdist.media.containers import BEGINNING, Place, Track, opened

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
    data: Any, seconds: float | None = None, rate: int | None = None, *, place: Place = BEGINNING, max_samples: int
) -> tuple[Samples, int]:
    """Return a recording or a part of it, and its samples a second.

    Args:
        data: the file.
        seconds: length of the part; the recording may be shorter. ``None`` for all of it.
        rate: samples a second to which it is resampled; ``None`` for those that it has.
        place: the place of the part.
        max_samples: values of all channels that may be decoded.

    Raises `SampleError` for a file that is damaged, cut short or longer.
    """
    with opened(data, "decoding audio") as container:
        import av

        track = Track(container, "audio", len(data), is_alone=True)
        frames = track.frames()
        first = next(frames, None)
        if first is None:
            raise SampleError("there is no audio in it")
        beginning: Iterator[Any] | None = chain([first], frames)  # after a seek to it, some codecs differ
        origin, own_rate = first.pts, first.sample_rate  # the header of AAC may give half of the rate
        rate = rate or own_rate

        def read(begin: int, stop: int | None) -> Samples:
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
                if num_values > max_samples:
                    raise SampleError(
                        f"a recording has more than {max_samples:,} samples in all channels: read a part, as "
                        f"AudioClip(10) does, or raise max_samples of AudioClip if the data can be trusted"
                    )
                if stop is not None and position >= stop:
                    break
            samples = np.concatenate(pieces, axis=1) if pieces else np.zeros((1, 0), np.float32)
            return np.ascontiguousarray(samples[:, : None if stop is None else stop - begin])

        if seconds is None:
            samples = read(0, None)
            track.check_length(Fraction(samples.shape[1], own_rate))
            return _resampled(samples, own_rate, rate), rate
        num_samples = round(seconds * rate)
        needed = -(-num_samples * own_rate // rate)
        step = own_rate // math.gcd(own_rate, rate)  # samples that become a whole number of samples
        context = 0 if rate == own_rate else -(-_CONTEXT // step) * step
        for announced in (track.span, None) if track.span else (None,):  # if headers are wrong, packets are counted
            first_time, end = announced or (origin, track.times()[1])
            start = place.begin(int((end - first_time) * track.tick * own_rate), needed - 1)
            before = min(start, context)
            samples = read(start - before, start + needed + context)
            if samples.shape[1] >= before + needed:
                break
        skipped = round(before * rate / own_rate)
        part = _resampled(samples, own_rate, rate)[:, skipped : skipped + num_samples]
        return np.ascontiguousarray(part), rate


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
