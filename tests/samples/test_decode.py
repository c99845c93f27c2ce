"""Member bytes to values: the field's table, and nothing that runs code."""

from __future__ import annotations

import functools
import gzip
import io
import json
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import webdataset.autodecode

import wdsdist
from tests.support.tars import npy_bytes, plain_tar
from wdsdist import StreamingDataLoader, StreamingDataset
from wdsdist.errors import ArgumentError, SampleError
from wdsdist.samples.codecs import decode_npz
from wdsdist.samples.sample_spec import Decoder
from wdsdist.storage import compression

zipped = functools.partial(gzip.compress, mtime=0)


def npz(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


PLAIN = {
    "txt": b"gr\xc3\xbc\xc3\x9fe",
    "transcript": b"hello",
    "cls": b"12",
    "index": b" 3\n",
    "json": json.dumps({"a": [1, 2]}).encode(),
    "npy": npy_bytes(np.arange(6.0).reshape(2, 3)),
    "bin": b"\0\1",
    "jpg": b"not decoded without an image specification",
}


@pytest.mark.parametrize("extension", PLAIN)
def test_the_default_table_decodes_as_webdataset_does_and_no_table_leaves_bytes(extension: str) -> None:
    data = PLAIN[extension]
    expected = webdataset.autodecode.basichandlers(extension, data)
    np.testing.assert_equal(Decoder(True)(extension, data), data if expected is None else expected)
    assert Decoder(None)(extension, data) is Decoder(False)(extension, data) is data


def saved(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (pytest.fail, ("a pickle was executed",))


BOMB = pickle.dumps(Bomb())
MAPPING = {"TXT": len, "seg.txt": bytes.upper}


@pytest.mark.parametrize(
    ("decode", "extension", "data", "value"),
    [
        (True, "source.TXT", b"a", "a"),
        (True, "npz", npz(a=np.arange(3)), {"a": np.arange(3)}),
        (True, "pth", saved({"w": 1.5}), {"w": 1.5}),
        (True, "json.gz", zipped(b"[1]"), [1]),
        (True, "txt.gz", zipped(b"one ") + zipped(b"two") + bytes(10), "one two"),
        (True, "pkl", BOMB, BOMB),
        (True, "pickle", BOMB, BOMB),
        (True, "pyd", BOMB, BOMB),
        ("pil", "cls", b"3", 3),
        (MAPPING, "txt", b"four", 4),
        (MAPPING, "en.txt", b"four", 4),
        (MAPPING, "seg.txt", b"four", b"FOUR"),
        (MAPPING, "cls", b"3", b"3"),
    ],
)
def test_members_are_decoded_by_the_last_part_of_their_extension(
    decode: Any, extension: str, data: bytes, value: Any
) -> None:
    np.testing.assert_equal(Decoder(decode)(extension, data), value)


@pytest.mark.parametrize(
    ("extension", "data", "message"),
    [
        ("cls", b"cat", r"3 bytes do not decode as 'cls': ValueError: invalid literal"),
        ("txt.gz", zipped(b"hello")[:-3], "cut short"),
        ("txt.gz", b"not gzip", zlib.error.__name__),
        ("npy", npy_bytes(np.array([Bomb()], dtype=object)), "allow_pickle=False"),
        ("pth", saved(Bomb()), "do not decode as 'pth'"),
    ],
)
def test_bytes_that_are_not_what_their_extension_says_are_an_error_that_shows_the_cause(
    extension: str, data: bytes, message: str
) -> None:
    with pytest.raises(SampleError, match=message):
        Decoder(True)(extension, data)


def test_what_expands_without_end_is_refused() -> None:
    with pytest.raises(SampleError, match="unpacks to over 1,000 bytes"):
        compression.unzip(zipped(bytes(1001)), 1000)
    assert len(compression.unzip(zipped(b"x" * 1000), 1000)) == 1000
    buffer = io.BytesIO()
    np.savez_compressed(buffer, a=np.zeros(1000))
    with pytest.raises(SampleError, match="unpacks to over 1,000 bytes"):
        decode_npz(buffer.getvalue(), 1000)


@pytest.mark.parametrize("extension", ["txt.gz", "txt.gz.gz"])
def test_the_compressed_members_of_a_shard_are_counted_together(
    tmp_path: Path, limit_expansion: Callable[..., None], extension: str
) -> None:
    limit_expansion(1 << 20, 2)
    member = zipped(b"x" * 300_000)  # of 300 bytes: each is far below what one member may
    member = zipped(member) if extension.endswith(".gz.gz") else member
    (tmp_path / "x.tar").write_bytes(plain_tar((f"{number}.{extension}", member) for number in range(8)))
    wdsdist.index(tmp_path)
    data = StreamingDataset(tmp_path, decode=True, shuffle=False, num_replicas=1, rank=0)
    assert all(len(data[2][extension]) == 300_000 for _ in range(9))  # counts once
    assert len(next(iter(StreamingDataLoader(data, batch_size=3, num_workers=0)))[extension]) == 3
    together = r"x\.tar: member \d\.txt\.gz.*: the compressed members of its shard unpack to over 1,048,576 bytes"
    with pytest.raises(SampleError, match=together):
        list(StreamingDataLoader(data, batch_size=2, num_workers=0))
    with pytest.raises(SampleError, match=together):
        [data[number] for number in range(8)]
    damage = wdsdist.verify(tmp_path, deep=True, workers=1)
    assert len(damage) == 5
    assert all("its shard unpack to over 1,048,576 bytes together" in each.problem for each in damage)


@pytest.mark.parametrize(
    ("decode", "message"),
    [
        ("rgb9", r"decode is 'rgb9': as a string it must be one of rgb8, rgb, torchrgb8"),
        ("", "decode is ''"),
        (3, "decode is 3"),
        ({"txt": "rgb8"}, "it maps extensions to functions.*; decode='rgb8' makes this form of all images"),
        ({"bin": torch.bfloat16}, r"torch\.frombuffer\(bytearray\(data\), dtype=torch\.bfloat16\)"),
    ],
)
def test_what_decodes_nothing_is_refused_with_what_would(decode: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Decoder(decode)


def test_arrays_of_the_other_byte_order_form_a_batch(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    foreign = array.astype(array.dtype.newbyteorder("S"))
    wdsdist.pack(({"npy": foreign, "npz": {"a": foreign + number}} for number in range(4)), tmp_path)
    data = StreamingDataset(tmp_path, decode=True, shuffle=False, num_replicas=1, rank=0)
    batch = next(iter(StreamingDataLoader(data, batch_size=4, num_workers=0)))
    assert batch["npy"].tolist() == [array.tolist()] * 4
    assert batch["npz"]["a"][3].tolist() == (array + 3).tolist()
