"""Containers of audio and video: opened with PyAV without copying them, and checked against what their headers say."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from wdsdist._util.extras import extra
from wdsdist.errors import SampleError, WdsdistError
from wdsdist.samples.marks import WHOLE, Part, stretch

_FORMATS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpeg,mpegts,mpegvideo,flv,ogg,flac,mp3,aac,ac3,wav,w64,aiff,au,caf,amr,"
    "h264,hevc,gif"
)
"""Formats that PyAV may open. Playlists and the like are not among them, because they name other files and URLs."""

_MOST_PIXELS = 2**27
"""Pixels of a frame, for callers that decode none."""

_ATTACHED_PICTURE = 1 << 10  # of a stream's disposition
_LEAD = 10  # seconds
_TOLERATED = 1.0, 0.05
"""Seconds, and share of its length, that a file may lack at its end: audio and video often do not end together."""
_UNKNOWN_SIZE = 0x7FFF0000
"""From this size on, the size in a WAV file is a placeholder: the file was written as a stream."""


class _Reader:
    """Read-only, seekable file object over a buffer, such as a member of a mapped shard: it copies what is read."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self._position = 0

    def read(self, size: int) -> bytes:
        part = bytes(self._data[self._position : self._position + size])
        self._position += len(part)
        return part

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: len(self._data)}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def close(self) -> None:
        self._data = b""  # a view that an error's traceback keeps would keep its shard from being evicted


@contextmanager
def opened(data: Any, purpose: str, *, max_pixels: int = _MOST_PIXELS) -> Iterator[Any]:
    """Open an audio or video container with PyAV; its errors until the block ends become `SampleError`.

    Args:
        data: the bytes of the file, or anything that has a length and gives bytes for a slice.
        purpose: what needs PyAV, as the start of a sentence.
        max_pixels: the most of a frame; the size of a larger frame, which is not decoded, may be 0 x 0.

    Raises `ExtraMissingError` without PyAV.
    """
    av = extra("av", "media", purpose)
    reader = _Reader(data)
    # If headers lack something, FFmpeg decodes the first frames on opening: max_pixels must hold from there on.
    options = {"format_whitelist": _FORMATS, "protocol_whitelist": "none", "max_pixels": str(max_pixels)}
    try:
        with av.open(reader, options=options, metadata_errors="replace") as container:
            yield container
    except WdsdistError:
        raise
    except (av.FFmpegError, ValueError, OverflowError, AssertionError) as error:  # FFmpeg's are many
        raise SampleError(f"PyAV does not read it: {error}") from None
    finally:
        reader.close()


def first_stream(container: Any, kind: str) -> Any:
    """Return the first stream of a ``kind``, ``"audio"`` or ``"video"``, or ``None``; a cover picture is no video."""
    streams = (stream for stream in getattr(container.streams, kind) if not stream.disposition & _ATTACHED_PICTURE)
    return next(streams, None)


def seek(container: Any, stream: Any, time: int | None) -> None:
    """Seek to the last keyframe of a stream before a timestamp, if there is one; ``None`` seeks to the first.

    Raises `SampleError` if the format does not allow it.
    """
    import av

    early = (stream.start_time or 0) - int(_LEAD / stream.time_base)  # keyframes are found by when they are decoded
    for target in (*(() if time is None else (time,)), early, stream.start_time or 0):
        with suppress(av.FFmpegError):
            container.seek(target, stream=stream)
            return
    raise SampleError("it cannot be searched: put it into a container, as `ffmpeg -c copy x.mp4` does")


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a clip in a video or recording, or in its stretch that is one part of a record."""

    share: float = 0.0
    """From 0 at the beginning to 1 at the end."""
    part: Part = WHOLE

    def begin(self, length: int, reach: int) -> int:
        """Return the beginning of a clip in a video or recording; ``reach`` goes from its first frame to its last.

        It lies in the stretch of its part. A clip that is longer than that contains the stretch, as far as the end
        allows.

        >>> [Place(1.0, Part(number, 3)).begin(30, 7) for number in range(3)]
        [2, 12, 22]
        >>> [Place(0.5, Part(number, 3)).begin(30, 14) for number in range(3)]
        [0, 8, 15]
        """
        own = stretch(length, *self.part)
        room = own.stop - own.start - reach
        begin: int = own.start + min(int(self.share * room), max(0, room - 1))
        return max(0, min(begin, length - reach - 1))


def is_estimate(container: Any, stream: Any) -> bool:
    """Return whether the length in the headers is estimated by the rate of the first frames."""
    kind = container.format.name
    return kind == "aac" or (kind == "mp3" and not stream.start_time)


def check_riff(data: Any) -> None:
    """Raise `SampleError` for a truncated WAV file, with fewer bytes than its header says; FFmpeg raises nothing."""
    start = bytes(data[:8])
    size = 8 + int.from_bytes(start[4:], "little")
    if start[:4] == b"RIFF" and len(data) < size < _UNKNOWN_SIZE:
        raise SampleError(f"it is cut short: of {size:,} bytes there are {len(data):,}")


def check_index(stream: Any, size: int) -> None:
    """Raise `SampleError` if the last frame that the index of a container lists lies behind its end."""
    entries = stream.index_entries
    if len(entries) and entries[-1].pos + entries[-1].size > size:
        raise SampleError(f"it is cut short: of {entries[-1].pos + entries[-1].size:,} bytes there are {size:,}")


def check_length(length: Fraction | float, announced: Fraction | float) -> None:
    """Raise `SampleError` if there is much less audio or video than headers declare, both in seconds."""
    if length < announced - max(_TOLERATED[0], _TOLERATED[1] * announced):
        raise SampleError(f"it is cut short: {float(length):.3f} s of {float(announced):.3f} s are there")
