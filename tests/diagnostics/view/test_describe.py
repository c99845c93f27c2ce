"""How members are described for people."""

from __future__ import annotations

import gzip
import io
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wdsdist
from tests.support.photos import encode, photo
from tests.support.tars import npy_bytes
from wdsdist.diagnostics.view import describe
from wdsdist.diagnostics.view.describe import PAGE, TILE, Style


class Bomb:
    def __reduce__(self) -> Any:
        return pytest.fail, ("a pickle was loaded",)


def described(extension: str, data: bytes, **style: Any) -> describe.Description:
    return describe.member(extension, len(data), lambda start, stop: data[start:stop], TILE, Style(**style))


DESCRIBED: list[tuple[str, bytes, dict[str, Any]]] = [
    ("txt", ("ä" * 1000).encode(), {"text": "ä" * (TILE.text // 2), "is_cut": True}),
    ("txt", b"caf\xe9", {"kind": "text", "text": "caf\ufffd", "is_cut": False, "note": "not UTF-8"}),
    ("svg", b"<svg onload='x'/>", {"kind": "text", "text": "<svg onload='x'/>", "is_cut": False}),
    ("json", b"[" * 50 + b"]" * 50, {"kind": "json"}),
    # Members of unknown extensions are known by their content.
    ("picture", encode(photo(8, 8)), {"kind": "image"}),
    ("note", b"hello", {"kind": "text"}),
    ("dat", bytes(range(256)), {"kind": "bytes"}),
    ("anything", b"", {"note": "empty"}),
    # What does not decode says why.
    ("npy", b"\x93NUMPY garbage", {"kind": "error"}),
    ("cls", b"<b>", {"kind": "error"}),
    ("json", b"{", {"kind": "error"}),
    ("json", b"[" * 100_000, {"kind": "error"}),
    ("npz", b"PK", {"kind": "error"}),
    ("json.gz", b"\x1f\x8b", {"kind": "error"}),
    ("mp", b"\xc1", {"kind": "error"}),
    ("txt.gz", gzip.compress(bytes(65 << 20)), {"kind": "error"}),
]


@pytest.mark.parametrize(("extension", "data", "expected"), DESCRIBED)
def test_a_member_is_described_by_its_extension_and_content(
    extension: str, data: bytes, expected: dict[str, Any]
) -> None:
    found = described(extension, data)
    assert found | expected == found
    if found["kind"] == "error":
        assert re.search(rf"{extension}|pip install|unpacks to over 67,108,864 bytes", found["message"])


def test_large_integers_of_json_keep_their_digits() -> None:
    about = described("json", b'{"a": 12345678901234567890, "b": 1.25, "d": null}')
    assert about["tree"][1] == [
        ["a", ["plain", "12345678901234567890", 0]], ["b", ["plain", "1.25", 0]], ["d", ["plain", "null", 0]]
    ]  # fmt: skip


def test_a_large_tree_is_cut_and_says_how_much_there_is() -> None:
    kind, shown, total = described("json", str(list(map(str, range(10_000)))).replace("'", '"').encode())["tree"]
    assert (kind, total) == ("list", 10_000)
    assert len(shown) < TILE.nodes


@pytest.mark.parametrize(
    ("extension", "data"),
    [
        ("input_ids.npy", npy_bytes(np.arange(300, dtype=np.int32))),
        ("json", b"[" + b",".join(str(one).encode() for one in range(300)) + b"]"),
        ("json.gz", gzip.compress(b"[" + b",".join(str(one).encode() for one in range(300)) + b"]")),
        ("ids", np.arange(300, dtype=np.uint16).tobytes()),
    ],
)
def test_token_ids_are_counted(extension: str, data: bytes) -> None:
    found = described(extension, data, dtypes={"ids": np.dtype(np.uint16)})
    assert (found["kind"], found["count"], found["ids"][:3]) == ("tokens", 300, ["0", "1", "2"])
    assert len(found["ids"]) == TILE.tokens


def test_arrays_have_the_types_that_packing_noted(tmp_path: Path) -> None:
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    data = wdsdist.pack([{"ids": np.arange(300, dtype=np.uint16), "boxes": rows}], tmp_path / "shards")
    style = Style.of(data)
    tokens = describe.member("ids", 600, lambda start, stop: bytes(600)[start:stop], TILE, style)
    boxes = describe.member("boxes", 48, lambda start, stop: rows.tobytes()[start:stop], TILE, style)
    assert (tokens["kind"], tokens["count"], boxes["shape"]) == ("tokens", 300, [4, 3])


def test_arrays_have_shape_dtype_range_and_a_picture_where_they_are_one() -> None:
    found = described("npy", npy_bytes(np.array([[0, 0.5], [2, np.nan]], np.float32)))
    assert (found["dtype"], found["shape"], found["has_picture"]) == ("float32", [2, 2], True)
    assert not described("npy", npy_bytes(np.zeros((2, 3, 4, 5))))["has_picture"]
    stream = io.BytesIO()
    np.savez(stream, a=np.zeros((2, 3)), b=np.arange(4))
    shapes = [node[1] for _, node in described("npz", stream.getvalue())["tree"][1]]
    assert shapes == ["float64 [2, 3]", "int64 [4]"]
    altered = bytearray(stream.getvalue())
    altered[altered.index(b"PK\1\2") + 10] = 99  # the first is compressed by a method that Python does not know
    assert "neither stored nor deflated" in described("npz", bytes(altered))["message"]


def test_no_pickle_is_loaded() -> None:
    data = pickle.dumps(Bomb())
    for extension in ("pkl", "pickle", "pyd", "pth", "pt", "x"):
        assert described(extension, data)["kind"] == "bytes"
    objects = np.array([Bomb()], object)
    stream = io.BytesIO()
    np.save(stream, objects, allow_pickle=True)
    assert described("npy", stream.getvalue())["kind"] == "error"
    stream = io.BytesIO()
    np.savez(stream, a=objects)
    assert described("npz", stream.getvalue())["kind"] == "error"


def test_of_a_large_member_only_the_beginning_is_read() -> None:
    asked = []

    def read(start: int, stop: int) -> bytes:
        asked.append(stop)
        return b"x" * (stop - start)

    assert describe.member("log", 1 << 40, read, PAGE, Style())["kind"] == "text"
    assert describe.member("json", 1 << 40, read, PAGE, Style())["kind"] == "bytes"
    assert max(asked) <= PAGE.text
