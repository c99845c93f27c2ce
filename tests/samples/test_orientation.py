"""Orientations are read from EXIF data as Pillow reads them, and damaged data turns nothing."""

from __future__ import annotations

import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.support.photos import encode, exif, photo
from wdsdist.samples.images import header

PHOTO = photo(96, 160)


@given(st.binary(max_size=80))
def test_what_is_no_exif_data_turns_nothing(data: bytes) -> None:
    for start in (b"", b"II*\0", b"MM\0*\0\0\0\x08", b"Exif\0\0II*\0\x08\0\0\0\xff\xff"):
        assert 1 <= header.exif_orientation(start + data) <= 8
        assert 1 <= header.jpeg_orientation(b"\xff\xd8\xff\xe1" + struct.pack(">H", len(data) + 2) + start + data) <= 8


@pytest.mark.parametrize("turn", range(1, 9))
def test_orientations_are_read_as_pillow_reads_them(turn: int) -> None:
    for options in ({}, {"dpi": (72, 72)}, {"icc_profile": b"p" * 100_000}, {"comment": "c" * 300}):
        data = encode(PHOTO, exif=exif(turn), **options)
        assert header.jpeg_orientation(data) == header.jpeg_orientation(memoryview(data)) == turn
        assert header.image_orientation(Image.open(io.BytesIO(data))) == turn
