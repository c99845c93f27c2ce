"""Lengths of recordings: seconds and frames of audio and video, by their headers."""

from __future__ import annotations

from typing import NamedTuple

from wdsdist.media.containers import first_stream, opened
from wdsdist.samples.images.header import Head

_UNIT = 1_000_000  # FFmpeg's times of whole containers, to a second
_OPUS_RATE = 48_000


class Recording(NamedTuple):
    """The length of audio or video."""

    seconds: float
    frames: int
    """Frames of the first video stream; without video, samples of one channel."""


def recording(head: Head) -> Recording:
    """Return the length of audio or video, whose bytes are all read.

    Raises ``ValueError`` for anything else, and `ExtraMissingError` without PyAV.
    """
    with opened(head.data, "the length of audio and video") as container:
        video = first_stream(container, "video")
        stream = video or first_stream(container, "audio")
        if stream is None:
            raise ValueError("there is neither audio nor video in it")
        seconds = container.duration / _UNIT if container.duration is not None else None
        if stream.duration is not None and (video is None or seconds is None):
            seconds = float(stream.duration * stream.time_base)
        header = stream.codec_context.extradata or b""
        if seconds is not None and container.format.name == "ogg" and header[:8] == b"OpusHead":
            # FFmpeg counts the samples that decoders skip. Source: RFC 7845, 4.2.
            seconds = max(0.0, seconds - int.from_bytes(header[10:12], "little") / _OPUS_RATE)
        # A part that an edit list leaves out is counted in the header, but not shown.
        left_out = sum(entry.is_discard for entry in stream.index_entries) if video and stream.frames else 0
        frames = stream.frames - left_out if video else round((seconds or 0) * stream.rate)
        if seconds is None or not frames:  # its header does not say: the packets do, without being decoded
            packets = (packet for packet in container.demux(stream) if packet.pts is not None)
            ends = [packet.pts + (packet.duration or 0) for packet in packets]
            if seconds is None:
                seconds = float(max(ends, default=0) * stream.time_base)
            frames = len(ends) if video else round(seconds * stream.rate)
        return Recording(seconds, frames)
