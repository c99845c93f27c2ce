"""Values become bytes that decode to the same values."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from wdsdist.errors import ArgumentError, SampleError
from wdsdist.samples.codecs import DECODERS
from wdsdist.samples.encoders import encode, encoder_of
from wdsdist.samples.sample_spec import Decoder

TEXTS = st.text(st.characters(codec="utf-8"))
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
ARRAYS = arrays.arrays(
    st.sampled_from([np.uint8, np.int64, np.float32, np.bool_, np.dtype(">i2")]),
    arrays.array_shapes(min_dims=0, max_side=4),
)
NAMES = st.text("abc", min_size=1, max_size=3)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("txt", "text", "transcript"), TEXTS),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), st.integers()),
    **dict.fromkeys(("json", "jsn", "mp", "msg"), PLAIN),
    "npy": ARRAYS,
    "npz": st.dictionaries(NAMES, ARRAYS, min_size=1, max_size=3),
}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        other = np.asarray(other, other.dtype.newbyteorder("="))  # in which batches can be formed
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def test_every_extension_that_decodes_can_be_encoded() -> None:
    assert set(VALUES) | {"pth"} == set(DECODERS)
    assert all(map(encoder_of, DECODERS))


@pytest.mark.parametrize("extension", sorted(VALUES))
@given(data=st.data())
def test_what_was_encoded_decodes_to_the_same(extension: str, data: st.DataObject) -> None:
    value = data.draw(VALUES[extension])
    for name in (extension, f"meta.{extension.upper()}", f"{extension}.gz"):
        assert same(Decoder(True)(name, encode(name, value)), value)


def test_tensors_come_back_as_tensors() -> None:
    found = Decoder(True)("pth", encode("pth", {"x": torch.arange(3)}))
    assert found["x"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("shape", [(5, 4), (5, 4, 1), (5, 4, 3), (5, 4, 4)])
def test_pixels_of_a_png_come_back(shape: tuple[int, ...]) -> None:
    pixels = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    for value in (pixels, Image.fromarray(pixels[..., 0] if shape[-1] == 1 else pixels)):
        found = np.asarray(Image.open(io.BytesIO(encode("seg.png", value))))
        assert found.tolist() == pixels.reshape(found.shape).tolist()


@pytest.mark.parametrize(("extension", "kind"), [("jpg", "JPEG"), ("jpeg", "JPEG"), ("webp", "WEBP")])
def test_pixels_of_lossy_formats_come_back_nearly(extension: str, kind: str) -> None:
    image = Image.open(io.BytesIO(encode(extension, np.full((8, 8, 3), 100, np.uint8))))
    assert image.format == kind
    assert abs(np.asarray(image).astype(int) - 100).max() < 5


@pytest.mark.parametrize(
    ("extension", "values", "data"),
    [
        ("cls", [b"\xff", bytearray(b"\xff"), memoryview(b"\xff")], b"\xff"),  # bytes are passed through
        ("anything", [b"\xff"], b"\xff"),
        ("cls", [4, "4", np.int64(4), np.array([4]), torch.tensor(4), torch.tensor([4])], b"4"),
        ("json", [{"a": np.float32(1.5), "b": np.array([1, 2])}, {"a": torch.tensor(1.5), "b": torch.tensor([1, 2])}],
         b'{"a": 1.5, "b": [1, 2]}'),
    ],
)  # fmt: skip
def test_values_of_numpy_and_torch_are_encoded_as_those_of_python(
    extension: str, values: list[Any], data: bytes
) -> None:
    assert {encode(extension, value) for value in values} == {data}


@pytest.mark.parametrize(
    ("extension", "value", "message"),
    [
        ("txt", 7, "a member of text holds a str"),
        ("txt", "\ud800", "cannot be encoded as 'txt': UnicodeEncodeError"),
        ("cls", "cat", "cannot be encoded as 'cls': ValueError"),
        ("cls", 1.5, r"a float value cannot .* is an integer"),
        ("cls", True, "is an integer"),
        ("cls", torch.tensor([1, 2]), "is an integer"),
        ("json", {1j}, "cannot be encoded as 'json': TypeError"),
        ("npy", np.array([None]), "only a pickle can hold"),
        ("npy", [[1], [2, 3]], "cannot be encoded as 'npy'"),
        ("npz", [1], "a list value cannot be encoded as 'npz'"),
        ("png", np.zeros((2, 2), np.float32), r"not float32 \[2, 2\]"),
        ("flac", [1, 2], "no encoder makes 'flac' from a list"),
        ("pkl", {}, "no encoder makes 'pkl' from a dict"),
        (3, 7, "extension is 3: it must be a string, such as 'cls'"),
    ],
)
def test_what_an_extension_cannot_hold_is_an_error(extension: Any, value: Any, message: str) -> None:
    with pytest.raises((ArgumentError, SampleError), match=message):
        encode(extension, value)
