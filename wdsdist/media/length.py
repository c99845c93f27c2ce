"""Lengths of audio and video by their headers, and checks that a file is as long, and whole."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from wdsdist.errors import SampleError
from wdsdist.media.containers import UNIT, Track, first_stream, opened
from wdsdist.samples.images.header import Head

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
        kind = "audio" if first_stream(container, "video") is None else "video"
        track = Track(container, kind, len(head.data))
        stream, seconds = track.stream, None
        if container.duration is not None:
            seconds = container.duration / UNIT
        if stream.duration is not None and (kind == "audio" or seconds is None):
            seconds = float(stream.duration * track.tick)
        header = stream.codec_context.extradata or b""
        if seconds is not None and container.format.name == "ogg" and header[:8] == b"OpusHead":
            # FFmpeg counts the samples that decoders skip. Source: RFC 7845, 4.2.
            seconds = max(0.0, seconds - int.from_bytes(header[10:12], "little") / _OPUS_RATE)
        # A part that an edit list leaves out is counted in the header, but not shown.
        frames = stream.frames and stream.frames - sum(entry.is_discard for entry in stream.index_entries)
        if seconds is None or (kind == "video" and not frames):  # its header does not say: the packets do
            times, end = track.times()
            seconds, frames = float(end * track.tick) if seconds is None else seconds, len(times)
        return Recording(seconds, frames if kind == "video" else round(seconds * stream.rate))


def check_media(data: bytes) -> None:
    """Decode the first video and the first audio of a file to their ends.

    Raises `SampleError` for what is damaged or cut short, as far as the decoders can tell, and for a file without
    either; `ExtraMissingError` without PyAV.
    """
    with opened(data, "checking audio and video") as container:
        tracks = [Track(container, kind, len(data)) for kind in ("video", "audio") if first_stream(container, kind)]
        if not tracks:
            raise SampleError("there is no audio or video in it")
        ends = {track.stream.index: Fraction(0) for track in tracks}
        decoded = dict(ends)
        for packet in container.demux([track.stream for track in tracks]):
            for frame in packet.decode():
                if frame.is_corrupt:
                    raise SampleError(f"a frame of its {packet.stream.type} is damaged")
                if frame.pts is not None:
                    length = (frame.duration or 0) * frame.time_base
                    ends[packet.stream.index] = max(ends[packet.stream.index], frame.pts * frame.time_base + length)
                    decoded[packet.stream.index] += length
        start = Fraction(container.start_time or 0, UNIT)
        for track in tracks:
            end = ends[track.stream.index]
            if not end:
                raise SampleError(f"there is no frame in its {track.stream.type}")
            if container.format.name == "flac":  # FFmpeg leaves out frames whose checksum is wrong
                track.check_length(decoded[track.stream.index])
            else:
                track.check_length((end if track.stream.duration else max(ends.values())) - start)
