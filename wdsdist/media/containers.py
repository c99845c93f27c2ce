"""Containers of audio and video: opened with PyAV without copying them, measured, and checked against their headers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from itertools import chain
from typing import Any, NamedTuple

from wdsdist._util.extras import extra
from wdsdist.errors import SampleError, WdsdistError

_FORMATS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpeg,mpegts,mpegvideo,flv,ogg,flac,mp3,aac,ac3,wav,w64,aiff,au,caf,amr,"
    "h264,hevc,gif"
)
"""Formats that PyAV may open. Playlists and the like are not among them, because they name other files and URLs."""

_REMEDY = "put it into a container, as `ffmpeg -c copy x.mp4` does"
_UNIT = 1_000_000
"""FFmpeg's times of whole containers, to a second."""
_ATTACHED_PICTURE = 1 << 10  # of a stream's disposition
_LEAD = 10  # seconds
_TOLERATED = 1.0, 0.05
"""Seconds, and share of its length, that a file may lack at its end: audio and video often do not end together."""
_UNKNOWN_SIZE = 0x7FFF0000
"""From this size on, the size in a WAV file is a placeholder: the file was written as a stream."""


class _Reader:
    """Read-only, seekable file object over a buffer, such as a member of a mapped shard: it copies what is read."""

    def __init__(self, data: Any) -> None:
        self.data = data
        self._position = 0

    def read(self, size: int) -> bytes:
        part = bytes(self.data[self._position : self._position + size])
        self._position += len(part)
        return part

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: len(self.data)}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        return self._position


@contextmanager
def opened(data: Any, purpose: str, *, max_pixels: int = 2**27) -> Iterator[Any]:
    """Open an audio or video container with PyAV; its errors until the block ends become `SampleError`.

    Args:
        data: the bytes of the file, or anything that has a length and gives bytes for a slice.
        purpose: what needs PyAV, as the start of a sentence.
        max_pixels: the most of a frame, for callers that decode it; a larger frame, which they do not, may be 0 x 0.

    Raises `ExtraMissingError` without PyAV.
    """
    av = extra("av", "media", purpose)
    start = bytes(data[:8])
    size = 8 + int.from_bytes(start[4:], "little")
    if start[:4] == b"RIFF" and len(data) < size < _UNKNOWN_SIZE:  # for which FFmpeg raises nothing
        raise SampleError(f"it is cut short: of {size:,} bytes there are {len(data):,}")
    reader = _Reader(data)  # if headers lack something, FFmpeg decodes the first frames on opening, within max_pixels
    options = {"format_whitelist": _FORMATS, "protocol_whitelist": "none", "max_pixels": str(max_pixels)}
    try:
        with av.open(reader, options=options, metadata_errors="replace") as container:
            yield container
    except WdsdistError:
        raise
    except (av.FFmpegError, ValueError, OverflowError, AssertionError) as error:  # FFmpeg's are many
        raise SampleError(f"PyAV does not read it: {error}") from None
    finally:
        reader.data = b""  # a view that an error's traceback keeps would keep its shard from being evicted


def first_stream(container: Any, kind: str) -> Any:
    """Return the first stream of a ``kind``, ``"audio"`` or ``"video"``, or ``None``; no cover picture."""
    streams = (stream for stream in getattr(container.streams, kind) if not stream.disposition & _ATTACHED_PICTURE)
    return next(streams, None)


class Track:
    """The first video or audio stream of a container. Times are in ticks of the stream.

    Args:
        container: a container that PyAV opened.
        kind: ``"audio"`` or ``"video"``.
        size: bytes of the file.
        is_alone: read nothing of the other streams.

    Raises `SampleError` for a container without such a stream, and if the last frame that its index lists lies behind
    the end of the file.
    """

    def __init__(self, container: Any, kind: str, size: int, *, is_alone: bool = False) -> None:
        stream = first_stream(container, kind)
        if stream is None:
            raise SampleError(f"there is no {kind} in it")
        self.container, self.stream, self.tick = container, stream, stream.time_base
        entries = stream.index_entries
        end = entries[-1].pos + entries[-1].size if len(entries) else 0
        if end > size:
            raise SampleError(f"it is cut short: of {end:,} bytes there are {size:,}")
        self._is_alone = is_alone
        if is_alone:
            from av.stream import Discard

            for other in container.streams:
                if other is not stream:
                    other.discard = Discard.all
        stream.codec_context.thread_count = 1  # the workers run at once

    @property
    def span(self) -> tuple[int, int] | None:
        """The times of the beginning and the end, if the headers give them."""
        first = self.stream.start_time or 0
        if self.stream.duration:
            return first, first + self.stream.duration
        if self.container.duration is None:
            return None
        end = Fraction((self.container.start_time or 0) + self.container.duration, _UNIT) / self.tick
        return (first, int(end)) if end > first else None

    def frames_from(self, time: int, *, preroll: int = 0, needed: int | None = None) -> Iterator[Any]:
        """Yield frames from the last keyframe before a time on; from the first one if the container finds no such.

        Args:
            time: the first of the frames is shown at it, or before it.
            preroll: how long before it to begin.
            needed: as `frames` takes it.
        """
        for start in (time - preroll, time - int(_LEAD / self.tick), None):  # the index of a container may be coarse
            self.seek(start)
            frames = self.frames(needed)
            first = next(frames, None)
            if first is not None and first.pts <= time:
                break
        return frames if first is None else chain([first], frames)

    def seek(self, time: int | None) -> None:
        """Seek to the last keyframe before a time, if there is one; ``None`` seeks to the first.

        Raises `SampleError` if the format does not allow it.
        """
        import av

        start = self.stream.start_time or 0
        early = start - int(_LEAD / self.tick)  # keyframes are found by when they are decoded
        for target in (early, start) if time is None else (time, early, start):
            with suppress(av.FFmpegError):
                self.container.seek(target, stream=self.stream)
                return
        raise SampleError(f"it cannot be searched: {_REMEDY}")

    def frames(self, needed: int | None = None) -> Iterator[Any]:
        """Yield frames from the next keyframe on.

        Args:
            needed: packets before this time need not decode; by default those before the keyframe, in the order of
                times, which need what lies before it.

        Raises `SampleError` for a damaged frame, and for frames without times.
        """
        import av

        first = None
        for packet in self.container.demux(self.stream):
            if first is None:
                if not packet.is_keyframe:
                    continue
                if packet.pts is None:
                    raise SampleError(f"its frames have no times: {_REMEDY}")
                first = packet.pts
            try:
                frames = packet.decode()
            except av.InvalidDataError:
                if packet.pts is not None and packet.pts < (first if needed is None else needed):
                    continue
                raise SampleError(f"a frame of its {self.stream.type} is damaged") from None
            for frame in frames:
                if frame.pts is not None and frame.pts >= first:
                    if frame.is_corrupt:
                        raise SampleError(f"a frame of its {self.stream.type} is damaged")
                    yield frame

    def times(self) -> tuple[list[int], int]:
        """Return the times of all frames in order, and the time of the end; read all packets, but decode none.

        Raises `SampleError` if there is much less than the headers declare, or no frame.
        """
        times: list[int] = []
        end, last = 0, Fraction(0)
        self.seek(None)
        for packet in self.container.demux():
            if packet.pts is None or packet.is_discard:
                continue
            until = packet.pts + (packet.duration or 1)
            last = max(last, until * packet.time_base)
            if packet.stream_index == self.stream.index:
                times.append(packet.pts)
                end = max(end, until)
        if not times:
            raise SampleError(f"there is no frame in its {self.stream.type}")
        start = (self.span or (0, 0))[0] * self.tick
        self.check_length((end * self.tick if self.stream.duration else last) - start)
        return sorted(times), end

    def check_length(self, seconds: Fraction | float) -> None:
        """Raise `SampleError` if the track is much shorter than the headers declare, and FLAC if it is shorter at all.

        Where a header gives the length of all streams only, or estimates it, the length is not checked.
        """
        kind = self.container.format.name
        is_estimate = kind == "aac" or (kind == "mp3" and not self.stream.start_time)
        of_others = not self.stream.duration and self._is_alone and len(self.container.streams) > 1
        if self.span is None or is_estimate or of_others:
            return
        announced = (self.span[1] - self.span[0]) * self.tick
        least = announced if kind == "flac" else announced - max(_TOLERATED[0], _TOLERATED[1] * announced)
        if seconds < least:
            raise SampleError(
                f"it is cut short or damaged: {float(seconds):.3f} s of {float(announced):.3f} s are there"
            )


class Recording(NamedTuple):
    """The length of audio or video."""

    seconds: float
    frames: int
    """Frames of the first video stream; without video, samples of one channel."""


def recording(data: memoryview, *_: object) -> Recording:
    """Return the length of audio or video, whose bytes are all read.

    Raises ``ValueError`` for anything else, and `ExtraMissingError` without PyAV.
    """
    with opened(data, "the length of audio and video") as container:
        kind = "audio" if first_stream(container, "video") is None else "video"
        track = Track(container, kind, len(data))
        stream, seconds = track.stream, container.duration and container.duration / _UNIT
        if stream.duration is not None and (kind == "audio" or seconds is None):
            seconds = float(stream.duration * track.tick)
        header = stream.codec_context.extradata or b""
        if seconds is not None and container.format.name == "ogg" and header[:8] == b"OpusHead":
            # FFmpeg counts the samples that decoders skip, at 48 kHz. Source: RFC 7845, 4.2.
            seconds = max(0.0, seconds - int.from_bytes(header[10:12], "little") / 48_000)
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
        start = Fraction(container.start_time or 0, _UNIT)
        for track in tracks:
            end = ends[track.stream.index]
            if not end:
                raise SampleError(f"there is no frame in its {track.stream.type}")
            length = (end if track.stream.duration else max(ends.values())) - start
            is_flac = container.format.name == "flac"  # FFmpeg leaves out frames whose checksum is wrong
            track.check_length(decoded[track.stream.index] if is_flac else length)
