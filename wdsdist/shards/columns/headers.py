"""Headers of members: the size of an image, the layout of an array, the length of a recording, without their data.

The content tells the format, whatever the extension says. Each function reads a `Head`, of which as little as the
format allows: of remote shards only that is fetched.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

from wdsdist._util.npy_header import NPY_PREFIX, NpyLayout, npy_header_length, npy_layout
from wdsdist._util.orientation import EXIF_PREFIX, is_turned, read_exif

_NO_SIZE = {0xC4, 0xC8, 0xCC}  # markers of JPEG among those from 0xC0 to 0xCF that begin no frame
_ALONE = {0x01, *range(0xD0, 0xD9)}  # markers without a length
_PLAIN_CODINGS = {1, 3, 6, 7, 0xFFFE}  # of WAV: each sample frame takes the same number of bytes
_UNIT = 1_000_000  # of FFmpeg's times of whole containers, to a second
_OPUS_RATE = 48_000


class ShortError(Exception):
    """A header is longer than the bytes read so far; ``needed`` is how many have to be read."""

    def __init__(self, needed: int) -> None:
        super().__init__(needed)
        self.needed = needed


@dataclass(frozen=True, slots=True)
class Head:
    """The first bytes of a member."""

    data: memoryview
    size: int
    """Bytes of the whole member."""
    extension: str = ""
    """That of the member, as stored."""

    def __call__(self, start: int, stop: int) -> bytes:
        """Return some of the bytes.

        Raises `ShortError` where they are not there yet, ``ValueError`` where the member ends before.
        """
        if stop > self.size:
            raise ValueError("it is cut short")
        if stop > len(self.data):
            raise ShortError(stop)
        return bytes(self.data[start:stop])


class Recording(NamedTuple):
    """The length of audio or video."""

    seconds: float
    frames: int
    """Of the first video stream; of audio without video the samples of one channel."""


def image_size(head: Head) -> tuple[int, int]:
    """Return (width, height) of a JPEG, PNG or WebP as it is shown: turned as its EXIF orientation says.

    Raises ``ValueError`` for anything else.
    """
    start = head(0, min(16, head.size))
    if start.startswith(b"\xff\xd8"):
        width, height, orientation = _jpeg(head)
    elif start.startswith(b"\x89PNG\r\n\x1a\n"):
        width, height, orientation = _png(head)
    elif start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        width, height, orientation = _webp(head)
    else:
        raise ValueError("it is no JPEG, PNG or WebP")
    if not (0 < width < 2**31 and 0 < height < 2**31):
        raise ValueError(f"its header says {width} x {height} pixels")
    return (height, width) if is_turned(orientation) else (width, height)


def _jpeg(head: Head) -> tuple[int, int, int]:
    place, orientation = 2, 1
    while True:
        mark, kind = head(place, place + 2)
        if mark != 0xFF:
            raise ValueError(f"it is a damaged JPEG: there is no marker at byte {place:,}")
        if kind == 0xFF or kind in _ALONE:  # a byte of padding
            place += 1 if kind == 0xFF else 2
            continue
        if kind in (0xD9, 0xDA):
            raise ValueError("it is a JPEG without the size of its image")
        length = int.from_bytes(head(place + 2, place + 4), "big")
        if 0xC0 <= kind <= 0xCF and kind not in _NO_SIZE:
            height, width = struct.unpack(">HH", head(place + 5, place + 9))
            return width, height, orientation
        if kind == 0xE1 and length > 8 and head(place + 4, place + 10) == EXIF_PREFIX:
            orientation = read_exif(head, place + 10, place + 2 + length)
        place += 2 + max(length, 2)


def _png(head: Head) -> tuple[int, int, int]:
    if head(12, 16) != b"IHDR":
        raise ValueError("it is a damaged PNG: it does not begin with its header")
    width, height = struct.unpack(">II", head(16, 24))
    place, orientation = 33, 1
    while place + 8 <= head.size:
        length, kind = struct.unpack(">I4s", head(place, place + 8))
        if kind == b"eXIf":
            orientation = read_exif(head, place + 8, place + 8 + length)
        if kind in (b"IDAT", b"IEND", b"eXIf"):
            break
        place += 12 + length
    return width, height, orientation


def _webp(head: Head) -> tuple[int, int, int]:
    kind = head(12, 16)
    if kind == b"VP8 ":
        if head(23, 26) != b"\x9d\x01\x2a":
            raise ValueError("it is a damaged WebP: its first frame has no start code")
        width, height = struct.unpack("<HH", head(26, 30))
        return width & 0x3FFF, height & 0x3FFF, 1
    if kind == b"VP8L":
        if head(20, 21) != b"\x2f":
            raise ValueError("it is a damaged WebP: its image has no signature")
        sizes = int.from_bytes(head(21, 25), "little")
        return (sizes & 0x3FFF) + 1, (sizes >> 14 & 0x3FFF) + 1, 1
    if kind != b"VP8X":
        raise ValueError("it is a damaged WebP: it begins with no image")
    flags = head(20, 21)[0]
    width, height = (int.from_bytes(head(at, at + 3), "little") + 1 for at in (24, 27))
    place, orientation = 30, 1
    while flags & 0x08 and place + 8 <= head.size:  # EXIF data stands behind the image
        kind, length = struct.unpack("<4sI", head(place, place + 8))
        if kind == b"EXIF":
            orientation = read_exif(head, place + 8, place + 8 + length)
            break
        place += 8 + length + length % 2
    return width, height, orientation


def array_layout(head: Head) -> NpyLayout:
    """Return the dtype and shape of a ``.npy`` file. Raises ``ValueError`` for anything else."""
    length = npy_header_length(head(0, min(NPY_PREFIX, head.size)))
    layout = npy_layout(head(0, length)) if length <= head.size else None
    if layout is None or not layout.is_possible:
        raise ValueError("it has no header of a .npy file")
    if length + layout.num_bytes > head.size:
        raise ValueError(f"it is cut short: its header announces {layout.num_bytes:,} bytes")
    return layout


def recording(head: Head) -> Recording:
    """Return the length of a WAV file; by PyAV of any other audio and video.

    Raises ``ValueError`` for anything else, and `ExtraMissingError` without PyAV where it is no plain WAV.
    """
    start = head(0, min(12, head.size))
    if start[:4] in (b"RIFF", b"RF64") and start[8:12] == b"WAVE":
        found = _wav(head)
        if found is not None:
            return found
    if head.size > len(head.data):
        raise ShortError(head.size)
    from wdsdist.media.containers import opened

    with opened(head.data, "the length of audio and video") as container:
        return _measured(container)


def _wav(head: Head) -> Recording | None:
    """Return the length of a WAV file, or ``None`` for a coding whose length its header does not tell."""
    place, form = 12, None
    while True:
        kind, length = struct.unpack("<4sI", head(place, place + 8))
        if kind == b"fmt ":
            form = struct.unpack("<HHIIHH", head(place + 8, place + 24))
        if kind == b"data":
            break
        place += 8 + length + length % 2
    if form is None or form[0] not in _PLAIN_CODINGS or not form[2] or not form[4]:
        return None
    # What is written as a stream announces more than there is.
    frames = min(length, head.size - place - 8) // form[4]
    return Recording(frames / form[2], frames)


def _measured(container: Any) -> Recording:
    from wdsdist.media.containers import first_stream

    video = first_stream(container, "video")
    stream = video or first_stream(container, "audio")
    if stream is None:
        raise ValueError("there is neither audio nor video in it")
    seconds = container.duration / _UNIT if container.duration is not None else None
    if stream.duration is not None and (video is None or seconds is None):
        seconds = float(stream.duration * stream.time_base)
    head = stream.codec_context.extradata or b""
    if seconds is not None and container.format.name == "ogg" and head[:8] == b"OpusHead":
        # FFmpeg counts the samples that decoders skip. Source: RFC 7845, 4.2.
        seconds = max(0.0, seconds - int.from_bytes(head[10:12], "little") / _OPUS_RATE)
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
