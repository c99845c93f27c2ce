"""Headers against Pillow, numpy, the standard library's `wave` and PyAV."""

from __future__ import annotations

import contextlib
import io
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from tests.support import media, photos
from tests.support.tars import npy_bytes
from wdsdist.curation.fields import array_layout, image_size
from wdsdist.media.containers import recording

av = pytest.importorskip("av")


def read(parse: Callable[[memoryview, int, str], Any], data: bytes, first: int = 1 << 30) -> Any:
    """Parse a member of which more and more is there, until its header is."""
    for length in (*range(min(first, len(data)), len(data), max(1, len(data) // 4)), len(data)):
        try:
            return parse(memoryview(data)[:length], len(data), "")
        except ValueError:
            if length == len(data):
                raise
    raise AssertionError("unreachable")


def image(form: str, width: int, height: int, orientation: int | None, **options: Any) -> bytes:
    if orientation is not None:
        options["exif"] = photos.exif(orientation)
    return photos.encode(np.zeros((height, width, 3), np.uint8), format=form, **options)


@given(
    st.sampled_from([("JPEG", {}), ("PNG", {}), ("WEBP", {}), ("JPEG", {"comment": b"\xff\xc0 no frame"}),
                     ("JPEG", {"icc_profile": b"x" * 200_000}), ("WEBP", {"icc_profile": b"x" * 100})]),
    st.integers(1, 700),
    st.integers(1, 700),
    st.sampled_from([None, *range(10)]),
    st.integers(1, 200),
)  # fmt: skip
def test_sizes_are_those_of_the_image_that_pillow_shows(
    form: tuple[str, dict[str, Any]], width: int, height: int, orientation: int | None, first: int
) -> None:
    data = image(form[0], width, height, orientation, **form[1])
    shown = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    assert read(image_size, data, first) == shown.size


SEEDS = [
    image("JPEG", 40, 30, 6),
    image("PNG", 40, 30, 6),
    image("WEBP", 40, 30, 6),
    npy_bytes(np.zeros((3, 4), np.float32)),
]


@given(st.sampled_from(SEEDS), st.lists(st.tuples(st.integers(0, 199), st.integers(0, 255)), max_size=6), st.data())
@example(b"\xff\xd8" + b"\xff" * 100_000, [], None)
@example(b"\xff\xd8" + b"\xff\xe1\0\0" * 10_000, [], None)
def test_damage_gives_an_answer_or_a_value_error_and_always_ends(
    data: bytes, changes: list[tuple[int, int]], draw: st.DataObject | None
) -> None:
    changed = bytearray(data)
    for place, value in changes:
        changed[place % len(changed)] = value
    cut = draw.draw(st.integers(0, len(changed))) if draw else len(changed)
    for parse in (image_size, array_layout):
        with contextlib.suppress(ValueError):
            read(parse, bytes(changed[:cut]), 7)


@given(
    st.sampled_from(["u1", "<f4", ">i2", "?", "U3"]),
    st.lists(st.integers(0, 4), max_size=4).map(tuple),
    st.integers(1, 200),
)
def test_layouts_are_those_that_numpy_wrote(dtype: str, shape: tuple[int, ...], first: int) -> None:
    array = np.zeros(shape, dtype)
    layout = read(array_layout, npy_bytes(array), first)
    assert (layout.dtype, layout.shape, layout.num_elements) == (array.dtype, array.shape, array.size)


def test_arrays_that_announce_more_than_there_is_are_refused() -> None:
    data = npy_bytes(np.zeros(1000)).replace(b"(1000,)", b"(9000,)")
    with pytest.raises(ValueError, match="announces 72,000 bytes"):
        read(array_layout, data)
    with pytest.raises(ValueError, match="cut short"):
        read(array_layout, npy_bytes(np.zeros(1000))[:-1])
    with pytest.raises(ValueError, match="not have the header"):
        read(array_layout, b"0123456789" * 10)


@given(st.integers(1, 3000), st.sampled_from([8000, 16_000, 44_100]), st.integers(1, 3), st.integers(1, 4))
def test_wav_files_have_the_length_that_the_standard_library_writes(
    frames: int, rate: int, channels: int, width: int
) -> None:
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setparams((channels, width, rate, 0, "NONE", ""))
        file.writeframes(bytes(frames * channels * width))
    assert read(recording, stream.getvalue()) == (pytest.approx(frames / rate, abs=1e-6), frames)


@pytest.mark.parametrize("container", ["mp4", "matroska", "avi"])
def test_videos_and_audio_have_their_seconds_and_frames(container: str) -> None:
    video = media.video(25, "mpeg4", container, rate=10)
    assert read(recording, video) == (pytest.approx(2.5, abs=0.11), 25)
    assert read(recording, media.recording(seconds=3, rate=16_000)) == (3.0, 48_000)


def test_what_decoders_of_opus_skip_is_not_counted() -> None:
    data = media.recording("libopus", "ogg", seconds=2)
    with av.open(io.BytesIO(data)) as file:
        end = max(packet.pts + packet.duration for packet in file.demux(audio=0) if packet.pts is not None)
    assert read(recording, data) == (end / 48_000, end)


@pytest.mark.parametrize(
    "text", ["#EXTM3U\n#EXTINF:1,\nother.ts\n#EXT-X-ENDLIST\n", "ffconcat version 1.0\nfile other.ts\n", "junk"]
)
def test_playlists_that_name_other_files_are_not_followed(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other.ts").write_bytes(media.video(5, "mpeg2video", "mpegts"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="PyAV does not read it"):
        read(recording, text.encode())


def test_an_orientation_of_another_type_turns_neither_the_column_nor_the_decoded_image() -> None:
    data = image("JPEG", 40, 30, 6)
    odd = data.replace(b"\x01\x12\0\x03\0\0\0\1\0\x06", b"\x01\x12\0\x04\0\0\0\1\0\x06")
    assert odd != data
    assert read(image_size, odd) == photos.image_size(odd) == (40, 30)
    assert read(image_size, data) == photos.image_size(data) == (30, 40)
