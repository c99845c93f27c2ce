"""How members and values are described for people."""

from __future__ import annotations

import gzip
import io
import pickle
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


def test_a_text_is_cut_between_its_characters() -> None:
    found = described("txt", ("ä" * 1000).encode())
    assert found["text"] == "ä" * (TILE.text // 2)
    assert found["is_cut"]


def test_a_text_that_is_not_utf_8_is_shown_and_says_so() -> None:
    assert described("txt", b"caf\xe9") == {"kind": "text", "text": "caf\ufffd", "is_cut": False, "note": "not UTF-8"}


def test_large_integers_of_json_keep_their_digits() -> None:
    about = described("json", b'{"a": 12345678901234567890, "b": 1.25, "d": null}')
    assert about["tree"][1] == [
        ["a", ["plain", "12345678901234567890", 0]], ["b", ["plain", "1.25", 0]], ["d", ["plain", "null", 0]]
    ]  # fmt: skip


def test_a_large_tree_is_cut_and_says_how_much_there_is() -> None:
    kind, shown, total = described("json", str(list(map(str, range(10_000)))).replace("'", '"').encode())["tree"]
    assert (kind, total) == ("list", 10_000)
    assert len(shown) < TILE.nodes


def test_deep_json_is_an_error_or_cut_and_never_a_crash() -> None:
    assert described("json", b"[" * 100_000)["kind"] == "error"
    assert described("json", b"[" * 50 + b"]" * 50)["kind"] == "json"


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


@pytest.mark.parametrize(
    ("extension", "data"),
    [
        ("npy", b"\x93NUMPY garbage"),
        ("cls", b"<b>"),
        ("json", b"{"),
        ("npz", b"PK"),
        ("json.gz", b"\x1f\x8b"),
        ("mp", b"\xc1"),
    ],
)
def test_a_member_that_does_not_decode_says_why(extension: str, data: bytes) -> None:
    found = described(extension, data)
    assert found["kind"] == "error"
    assert extension in found["message"] or "pip install" in found["message"]


def test_what_unpacks_to_too_much_is_refused() -> None:
    assert "unpacks to over 67,108,864 bytes" in described("txt.gz", gzip.compress(bytes(65 << 20)))["message"]


def test_members_of_unknown_extensions_are_known_by_their_content() -> None:
    assert described("picture", encode(photo(8, 8)))["kind"] == "image"
    assert described("note", b"hello")["kind"] == "text"
    assert described("svg", b"<svg onload='x'/>") == {"kind": "text", "text": "<svg onload='x'/>", "is_cut": False}
    assert described("dat", bytes(range(256)))["kind"] == "bytes"
    assert described("anything", b"")["note"] == "empty"


def test_of_a_large_member_only_the_beginning_is_read() -> None:
    asked = []

    def read(start: int, stop: int) -> bytes:
        asked.append(stop)
        return b"x" * (stop - start)

    assert describe.member("log", 1 << 40, read, PAGE, Style())["kind"] == "text"
    assert describe.member("json", 1 << 40, read, PAGE, Style())["kind"] == "bytes"
    assert max(asked) <= PAGE.text


def test_decoded_values_are_described_with_their_pictures_in_them() -> None:
    import torch

    found = describe.value("jpg", torch.rand(3, 8, 8), TILE, Style())
    assert (found["shape"], found["url"][:22]) == ([3, 8, 8], "data:image/png;base64,")
    assert describe.value("cls", 1, TILE, Style(classes=("ant", "bee"))) == {
        "kind": "number",
        "text": "1",
        "label": "bee",
    }
    assert describe.value("jpg", encode(photo(8, 8)), TILE, Style())["url"].startswith("data:image/jpeg;base64,")
    assert describe.value("meta", {"a": np.zeros(3)}, TILE, Style())["tree"][1][0][1][1] == "float64 [3]"
    assert describe.value("x", object(), TILE, Style())["kind"] == "json"
