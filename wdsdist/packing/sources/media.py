"""What a file is, by its first bytes: the extension for data that has no name."""

from __future__ import annotations

_STARTS = (
    (b"\xff\xd8\xff", "jpg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"II*\0", "tif"),
    (b"MM\0*", "tif"),
    (b"fLaC", "flac"),
    (b"OggS", "ogg"),
    (b"ID3", "mp3"),
    (b"\x1aE\xdf\xa3", "webm"),
    (b"\x93NUMPY", "npy"),
    (b"PK\x03\x04", "zip"),
    (b"%PDF-", "pdf"),
    (b"\xff\x0a", "jxl"),
    (b"\0\0\0\x0cJXL \r\n\x87\n", "jxl"),
)
_RIFF = {b"WEBP": "webp", b"WAVE": "wav", b"AVI ": "avi"}
_BRANDS = {b"avif": "avif", b"heic": "heic", b"mif1": "heif", b"M4A ": "m4a", b"qt  ": "mov"}
_MP3_FRAMES = (b"\xff\xfb", b"\xff\xf3", b"\xff\xf2")


def extension_of(start: bytes) -> str:
    """Return the extension of what starts with the given bytes, or ``""`` where they tell nothing.

    >>> extension_of(b"\\xff\\xd8\\xff\\xe0"), extension_of(b"RIFF\\0\\0\\0\\0WAVEfmt "), extension_of(b"hello")
    ('jpg', 'wav', '')
    """
    for magic, extension in _STARTS:
        if start.startswith(magic):
            return extension
    if start[:4] == b"RIFF":
        return _RIFF.get(start[8:12], "")
    if start[4:8] == b"ftyp":
        return _BRANDS.get(start[8:12], "mp4")
    return "mp3" if start[:2] in _MP3_FRAMES else ""
