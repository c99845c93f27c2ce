"""Containers of audio and video, opened with PyAV without copying them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from wdsdist._util.extras import extra
from wdsdist.errors import SampleError, WdsdistError

_FORMATS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpeg,mpegts,mpegvideo,flv,ogg,flac,mp3,aac,ac3,wav,w64,aiff,au,caf,amr,"
    "h264,hevc,gif"
)
"""Formats that PyAV may open. Playlists and the like are not among them, because they name other files and URLs."""

_MOST_PIXELS = 2**27
"""Pixels of a frame, for callers that decode none."""

_ATTACHED_PICTURE = 1 << 10  # of a stream's disposition
_LEAD = 10  # seconds


class _Reader:
    """Read-only, seekable file object over a buffer, such as a member of a mapped shard: it copies what is read."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self._place = 0

    def read(self, size: int) -> bytes:
        part = bytes(self._data[self._place : self._place + size])
        self._place += len(part)
        return part

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: len(self._data)}[whence]
        self._place = max(0, base + offset)
        return self._place

    def tell(self) -> int:
        return self._place

    def close(self) -> None:
        self._data = b""  # a view that an error's traceback keeps would keep its shard from being evicted


@contextmanager
def opened(
    data: Any, purpose: str, options: Mapping[str, str] | None = None, *, max_pixels: int = _MOST_PIXELS
) -> Iterator[Any]:
    """Open an audio or video container with PyAV; its errors until the block ends become `SampleError`.

    Args:
        data: the bytes of the file, or anything that has a length and gives bytes for a slice.
        purpose: what needs PyAV, as the start of a sentence.
        options: of FFmpeg, beside those that keep it from opening other files.
        max_pixels: the most of a frame; the size of a larger frame, which is not decoded, may be 0 x 0.

    Raises `ExtraMissingError` without PyAV.
    """
    av = extra("av", "media", purpose)
    reader = _Reader(data)
    # If headers lack something, FFmpeg decodes the first frames on opening: max_pixels must hold from there on.
    allowed = {"format_whitelist": _FORMATS, "protocol_whitelist": "none", "max_pixels": str(max_pixels)}
    try:
        with av.open(reader, options={**(options or {}), **allowed}, metadata_errors="replace") as container:
            yield container
    except WdsdistError:
        raise
    except (av.FFmpegError, ValueError, OverflowError, AssertionError) as error:  # FFmpeg's are many
        raise SampleError(f"PyAV does not read it: {error}") from None
    finally:
        reader.close()


def first_stream(container: Any, kind: str) -> Any | None:
    """Return the first stream of a ``kind``, ``"audio"`` or ``"video"``, or ``None``; a cover picture is no video."""
    found = (one for one in getattr(container.streams, kind) if not one.disposition & _ATTACHED_PICTURE)
    return next(found, None)


def seek(container: Any, stream: Any, time: int | None) -> None:
    """Seek to the last keyframe of a stream before a timestamp, if there is one; ``None`` seeks to the first.

    Raises `SampleError` if the format does not allow it.
    """
    import av

    early = (stream.start_time or 0) - int(_LEAD / stream.time_base)  # keyframes are found by when they are decoded
    for one in (*(() if time is None else (time,)), early, stream.start_time or 0):
        with suppress(av.FFmpegError):
            container.seek(one, stream=stream)
            return
    raise SampleError("it cannot be searched: put it into a container, as `ffmpeg -c copy x.mp4` does")
