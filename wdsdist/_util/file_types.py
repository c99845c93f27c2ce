"""Types of files: the extensions of images, audio and video, and the extension that a file's first bytes tell."""

from __future__ import annotations

import re

IMAGE_TYPES = ("jpg", "jpeg", "png", "webp", "ppm", "pgm", "pbm", "pnm", "gif", "bmp", "tif", "tiff", "jpe", "jfif")
"""Extensions of images that every supported Pillow reads; ``image`` in ``fields=`` and ``decode=`` means any."""
RARE_IMAGE_TYPES = ("avif", "heic", "heif", "jp2", "jxl")
"""Extensions of images that some Pillow reads, by itself or with a plugin."""
AUDIO_TYPES = ("wav", "flac", "mp3", "ogg", "oga", "opus", "m4a", "aac", "aif", "aiff", "au", "caf", "amr")
"""Extensions that ``decode="audio"`` decodes."""
VIDEO_TYPES = ("mp4", "m4v", "mov", "webm", "mkv", "avi", "mpg", "mpeg", "ts", "flv", "3gp", "ogv")
MEDIA_TYPES = frozenset({*AUDIO_TYPES, *VIDEO_TYPES})

_STARTS = tuple(
    (re.compile(start, re.DOTALL), extension)
    for start, extension in (
        (rb"\xff\xd8\xff", "jpg"), (rb"\x89PNG\r\n\x1a\n", "png"), (rb"GIF8[79]a", "gif"), (rb"II\*\0|MM\0\*", "tif"),
        (rb"RIFF.{4}WEBP", "webp"), (rb"\xff\n|\0\0\0\x0cJXL \r\n\x87\n", "jxl"), (rb".{4}ftypavif", "avif"),
        (rb".{4}ftypheic", "heic"), (rb".{4}ftypmif1", "heif"), (rb"RIFF.{4}WAVE", "wav"), (rb"fLaC", "flac"),
        (rb"OggS", "ogg"), (rb"ID3|\xff[\xfb\xf3\xf2]", "mp3"), (rb".{4}ftypM4A ", "m4a"), (rb"RIFF.{4}AVI ", "avi"),
        (rb".{4}ftypqt  ", "mov"), (rb".{4}ftyp", "mp4"), (rb"\x1aE\xdf\xa3", "webm"), (rb"\x93NUMPY", "npy"),
        (rb"PK\x03\x04", "zip"), (rb"%PDF-", "pdf"),
    )
)  # fmt: skip


def last_part(extension: str) -> str:
    """Return the last part of an extension in lower case, which tells the type of a member.

    >>> last_part("seg.PNG")
    'png'
    """
    return extension.lower().rpartition(".")[2]


def extension_of(start: bytes) -> str:
    """Return the extension of a file by its first bytes; an empty string for a type that they do not tell.

    >>> extension_of(b"\\x89PNG\\r\\n\\x1a\\n"), extension_of(b"hello")
    ('png', '')
    """
    return next((extension for pattern, extension in _STARTS if pattern.match(start)), "")
