"""Check audio and video before training: decode every frame of a file, and keep none."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from wdsdist._util.containers import first_stream, opened
from wdsdist.errors import DecodeError
from wdsdist.samples.media.audio import AUDIO_TYPES, check_riff
from wdsdist.samples.media.video import check_index, check_length

MEDIA_TYPES = frozenset({*AUDIO_TYPES, "mp4", "m4v", "mov", "webm", "mkv", "avi", "mpg", "mpeg", "ts", "flv", "3gp"})
"""Extensions of what is checked."""


def check_media(data: bytes) -> None:
    """Decode the first video and the first audio of a file to their ends.

    Raises `DecodeError` for what is damaged or cut short, as far as the decoders can tell, and for a file without
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
            # Of these, the length is guessed by the rate of the first frames.
            is_guess = container.format.name == "aac" or (container.format.name == "mp3" and not stream.start_time)
            if container.duration is not None and not is_guess:
                announced = Fraction(container.duration, 1_000_000)
    if not ends:
        raise DecodeError("there is no audio or video in it")
    if announced is not None:
        check_length(max(ends), announced)


def _decoded(container: Any, stream: Any) -> Fraction:
    """Decode a stream to its end; return how long it is, in seconds."""
    stream.codec_context.thread_count = 1
    start = Fraction(container.start_time or 0, 1_000_000)
    end = decoded = Fraction(0)
    for frame in container.decode(stream):
        if frame.is_corrupt:
            raise DecodeError(f"a frame of its {stream.type} is damaged")
        if frame.pts is not None:
            length = (frame.duration or 0) * frame.time_base
            end, decoded = max(end, frame.pts * frame.time_base - start + length), decoded + length
    if not end:
        raise DecodeError(f"there is no frame in its {stream.type}")
    if container.format.name == "flac" and stream.duration and decoded < stream.duration * stream.time_base:
        raise DecodeError("a frame of its audio is damaged")  # FFmpeg leaves out those whose checksum is wrong
    return end
