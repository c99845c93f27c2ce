"""Checks of audio and video: every frame of a file is decoded, and none kept."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from wdsdist.errors import SampleError
from wdsdist.media.containers import check_index, check_length, check_riff, first_stream, is_estimate, opened


def check_media(data: bytes) -> None:
    """Decode the first video and the first audio of a file to their ends.

    Raises `SampleError` for what is damaged or cut short, as far as the decoders can tell, and for a file without
    either; `ExtraMissingError` without PyAV.
    """
    check_riff(data)
    ends: list[Fraction] = []
    announced: Fraction | None = None
    for kind in ("video", "audio"):
        with opened(data, "checking audio and video") as container:
            stream = first_stream(container, kind)
            if stream is None:
                continue
            check_index(stream, len(data))
            ends.append(_decoded(container, stream))
            if container.duration is not None and not is_estimate(container, stream):
                announced = Fraction(container.duration, 1_000_000)
    if not ends:
        raise SampleError("there is no audio or video in it")
    if announced is not None:
        check_length(max(ends), announced)


def _decoded(container: Any, stream: Any) -> Fraction:
    """Decode a stream to its end; return how long it is, in seconds."""
    stream.codec_context.thread_count = 1
    start = Fraction(container.start_time or 0, 1_000_000)
    end = decoded = Fraction(0)
    for frame in container.decode(stream):
        if frame.is_corrupt:
            raise SampleError(f"a frame of its {stream.type} is damaged")
        if frame.pts is not None:
            length = (frame.duration or 0) * frame.time_base
            end, decoded = max(end, frame.pts * frame.time_base - start + length), decoded + length
    if not end:
        raise SampleError(f"there is no frame in its {stream.type}")
    if container.format.name == "flac" and stream.duration and decoded < stream.duration * stream.time_base:
        raise SampleError("a frame of its audio is damaged")  # FFmpeg leaves out those whose checksum is wrong
    return end
