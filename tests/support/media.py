"""Videos whose frames all differ, and recordings, as FFmpeg's encoders write them."""

from __future__ import annotations

import functools
import io
import struct
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]

UNITY = struct.pack(">9i", 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
"""The matrix in the header of an MP4's track: shown as it is stored."""


@functools.cache
def video(
    frames: int,
    codec: str = "libx264",
    container: str = "mp4",
    *,
    size: tuple[int, int] = (64, 48),
    pixels: str = "yuv420p",
    options: tuple[tuple[str, str], ...] = (),
    times: Sequence[int] | None = None,
    rate: int = 30,
    seed: int | None = 0,
    seconds_of_sound: float = 0,
) -> bytes:
    """Return an encoded video.

    Args:
        size: width and height.
        pixels: format of its pixels.
        options: of the encoder, and of the container where it is an MP4.
        times: of the frames, in frames at ``rate``; by default one after the other.
        seed: of noise, in which all frames differ; ``None`` for frames that are all alike.
        seconds_of_sound: in a second track.
    """
    import av

    stream = io.BytesIO()
    layout = {name: value for name, value in options if name.startswith("mov") or name == "moov_size"}
    with av.open(stream, "w", format=container, options=layout) as file:
        track = file.add_stream(codec, rate=rate, options={n: v for n, v in options if n not in layout})
        track.width, track.height, track.pix_fmt = *size, pixels
        track.codec_context.thread_count = 1
        sound = file.add_stream("aac", rate=16_000, layout="mono") if seconds_of_sound else None
        for number in range(frames):
            frame = av.VideoFrame.from_ndarray(picture(number, size, seed), "rgb24").reformat(format=pixels)
            frame.pts = number if times is None else times[number]
            frame.time_base = Fraction(1, rate)
            file.mux(track.encode(frame))
        file.mux(track.encode())
        if sound is not None:
            samples = av.AudioFrame.from_ndarray(tone(seconds_of_sound, 16_000, 1), "fltp", "mono")
            samples.sample_rate = 16_000
            file.mux(sound.encode(samples))
            file.mux(sound.encode())
    return stream.getvalue()


def picture(number: int, size: tuple[int, int], seed: int | None) -> Pixels:
    """Return a frame [height, width, 3] of large squares of noise."""
    width, height = size
    noise = np.random.default_rng(0 if seed is None else [seed, number]).integers(0, 256, (6, 8, 3), np.uint8)
    rows, columns = np.arange(height) * 6 // height, np.arange(width) * 8 // width
    return noise[rows][:, columns]


def frames_of(data: bytes) -> list[Pixels]:
    """Return all frames of a video [height, width, 3], decoded from the beginning, as they are stored."""
    import av

    with av.open(io.BytesIO(data)) as container:
        return [frame.to_ndarray(format="rgb24").copy() for frame in container.decode(video=0)]


def tone(seconds: float, rate: int, channels: int) -> npt.NDArray[np.float32]:
    """Return sound [channels, samples] that is nowhere the same: tones that rise."""
    time = np.arange(round(seconds * rate)) / rate
    return np.stack([0.4 * np.sin(2 * np.pi * (200 + 300 * time + 50 * n) * time) for n in range(channels)]).astype(
        "f4"
    )


@functools.cache
def recording(
    codec: str = "flac", container: str = "flac", *, seconds: float = 5, rate: int = 48_000, channels: int = 2,
) -> bytes:  # fmt: skip
    """Return an encoded `tone`."""
    import av

    stream = io.BytesIO()
    layout = {1: "mono", 2: "stereo", 3: "2.1"}[channels]
    with av.open(stream, "w", format=container) as file:
        track = file.add_stream(codec, rate=rate, layout=layout)
        samples = av.AudioFrame.from_ndarray(tone(seconds, rate, channels), "fltp", layout)
        samples.sample_rate = rate
        resampler = av.AudioResampler(track.codec_context.format, layout, rate)
        for frame in resampler.resample(samples):
            file.mux(track.encode(frame))
        file.mux(track.encode())
    return stream.getvalue()


def samples_of(data: bytes, rate: int | None = None) -> npt.NDArray[np.float32]:
    """Return a whole recording [channels, samples] as FFmpeg converts it."""
    import av

    with av.open(io.BytesIO(data)) as container:
        resampler = av.AudioResampler("fltp", None, rate)
        frames: list[Any] = [*container.decode(audio=0), None]
        return np.concatenate([part.to_ndarray() for one in frames for part in resampler.resample(one)], axis=1)
