"""Member bytes to values: the field's table, and nothing that runs code."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path

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
def test_the_default_table_decodes_as_webdataset_does(extension: str) -> None:
    expected = webdataset.autodecode.basichandlers(extension, PLAIN[extension])
    np.testing.assert_equal(
        Decoder(True)(extension, PLAIN[extension]), PLAIN[extension] if expected is None else expected
    )


@pytest.mark.parametrize("extension", PLAIN)
def test_without_decode_every_member_stays_bytes(extension: str) -> None:
    assert Decoder(None)(extension, PLAIN[extension]) is PLAIN[extension]
    assert Decoder(False)(extension, PLAIN[extension]) is PLAIN[extension]


def test_the_last_part_of_the_extension_decides_in_any_case() -> None:
    assert Decoder(True)("source.TXT", b"a") == "a"


def test_archives_of_arrays_and_tensors_are_decoded() -> None:
    assert Decoder(True)("npz", npz(a=np.arange(3)))["a"].tolist() == [0, 1, 2]
    buffer = io.BytesIO()
    torch.save({"w": torch.ones(2)}, buffer)
    assert torch.equal(Decoder(True)("pth", buffer.getvalue())["w"], torch.ones(2))


def test_compressed_members_are_unpacked_and_then_decoded() -> None:
    assert Decoder(True)("json.gz", gzip.compress(b"[1]")) == [1]


def test_a_compressed_member_that_expands_without_end_is_refused() -> None:
    with pytest.raises(SampleError, match="unpacks to over 1,000 bytes"):
        compression.unzip(gzip.compress(bytes(1001)), 1000)
    assert len(compression.unzip(gzip.compress(b"x" * 1000), 1000)) == 1000


@pytest.mark.parametrize("extension", ["txt.gz", "txt.gz.gz"])
def test_the_compressed_members_of_a_shard_are_counted_together(
    tmp_path: Path, limit_expansion: Callable[..., None], extension: str
) -> None:
    limit_expansion(1 << 20, 2)
    member = gzip.compress(b"x" * 300_000)  # of 300 bytes: each is far below what one member may
    member = gzip.compress(member) if extension.endswith(".gz.gz") else member
    (tmp_path / "x.tar").write_bytes(plain_tar((f"{number}.{extension}", member) for number in range(8)))
    wdsdist.index(tmp_path)
    data = StreamingDataset(tmp_path, decode=True, shuffle=False, num_replicas=1, rank=0)
    assert all(len(data[2][extension]) == 300_000 for _ in range(9))  # counts once
    assert len(next(iter(StreamingDataLoader(data, batch_size=3, num_workers=0)))[extension]) == 3
    together = r"x\.tar: member \d\.txt\.gz.*: the compressed members of its shard unpack to over 1,048,576 bytes"
    with pytest.raises(SampleError, match=together):
        list(StreamingDataLoader(data, batch_size=2, num_workers=0))
    with pytest.raises(SampleError, match=together):
        data[7]
    damage = wdsdist.verify(tmp_path, deep=True, workers=1)
    assert len(damage) == 5
    assert all("its shard unpack to over 1,048,576 bytes together" in each.problem for each in damage)


def test_all_streams_of_a_compressed_member_are_unpacked() -> None:
    assert Decoder(True)("txt.gz", gzip.compress(b"one ") + gzip.compress(b"two") + bytes(10)) == "one two"


def test_an_archive_of_arrays_that_expands_without_end_is_refused() -> None:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, a=np.zeros(1000))
    with pytest.raises(SampleError, match="unpacks to over 1,000 bytes"):
        decode_npz(buffer.getvalue(), 1000)


def test_a_compressed_member_that_is_cut_short_is_refused() -> None:
    with pytest.raises(SampleError, match="cut short"):
        Decoder(True)("txt.gz", gzip.compress(b"hello")[:-3])
    with pytest.raises(SampleError, match=zlib.error.__name__):
        Decoder(True)("txt.gz", b"not gzip")


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (pytest.fail, ("a pickle was executed",))


@pytest.mark.parametrize("extension", ["pkl", "pickle", "pyd"])
def test_pickles_stay_bytes(extension: str) -> None:
    data = pickle.dumps(Bomb())
    assert Decoder(True)(extension, data) == data


def test_pickles_inside_arrays_and_tensors_are_refused() -> None:
    with pytest.raises(SampleError):
        Decoder(True)("npy", npy_bytes(np.array([Bomb()], dtype=object)))
    buffer = io.BytesIO()
    torch.save(Bomb(), buffer)
    with pytest.raises(SampleError):
        Decoder(True)("pth", buffer.getvalue())


def test_an_image_specification_decodes_other_members_by_the_table() -> None:
    assert Decoder("pil")("cls", b"3") == 3


def test_a_mapping_decides_by_extension_and_leaves_the_rest() -> None:
    decoder = Decoder({"TXT": len, "seg.txt": bytes.upper})
    assert decoder("txt", b"four") == 4
    assert decoder("en.txt", b"four") == 4
    assert decoder("seg.txt", b"four") == b"FOUR"
    assert decoder("cls", b"3") == b"3"


def test_bytes_that_are_not_what_their_extension_says_are_an_error_that_shows_the_cause() -> None:
    with pytest.raises(SampleError, match=r"3 bytes do not decode as 'cls': ValueError: invalid literal"):
        Decoder(True)("cls", b"cat")


def test_unknown_specifications_are_refused_with_those_that_exist() -> None:
    with pytest.raises(ArgumentError, match=r"decode is 'rgb9': as a string it must be one of rgb8, rgb, torchrgb8"):
        Decoder("rgb9")
    with pytest.raises(ArgumentError, match="it maps extensions to functions"):
        Decoder({"txt": "rgb8"})  # type: ignore[dict-item]
    with pytest.raises(ArgumentError, match="decode is 3"):
        Decoder(3)  # type: ignore[arg-type]


def test_a_type_that_numpy_does_not_have_is_told_how_to_be_decoded() -> None:
    with pytest.raises(ArgumentError, match=r"torch\.frombuffer\(bytearray\(data\), dtype=torch\.bfloat16\)"):
        Decoder({"bin": torch.bfloat16})


def test_arrays_of_the_other_byte_order_form_a_batch(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    foreign = array.astype(array.dtype.newbyteorder("S"))
    wdsdist.pack(({"npy": foreign, "npz": {"a": foreign + number}} for number in range(4)), tmp_path)
    data = StreamingDataset(tmp_path, decode=True, shuffle=False, num_replicas=1, rank=0)
    batch = next(iter(StreamingDataLoader(data, batch_size=4, num_workers=0)))
    assert batch["npy"].tolist() == [array.tolist()] * 4
    assert batch["npz"]["a"][3].tolist() == (array + 3).tolist()
