"""What a sample that Python makes may be, and what is said of the rest."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wdsdist.errors import ArgumentError, SourceError
from wdsdist.packing.sources.python import ItemEncoder
from wdsdist.shards.tar.member_names import split_name
from wdsdist.shards.tar.writer import header

TEXTS = st.text(st.sampled_from("aé.-_/\\\n\0 \ud800Z0"), max_size=8) | st.text(max_size=8)


def sample_of(item: Any, number: int = 7) -> Any:
    return ItemEncoder.of("photos", None)(item, number)


def test_members_are_ordered_by_extension_however_the_dict_is() -> None:
    wanted = ("000000007", [("cls", b"3"), ("jpg", b"x"), ("seg.png", b"y")])
    assert sample_of({"jpg": b"x", "seg.png": b"y", "cls": 3}) == wanted
    assert sample_of({"seg.png": memoryview(b"y"), "cls": 3, "jpg": bytearray(b"x")}) == wanted


@pytest.mark.parametrize("key", ["a", "train.v2/cat/0001", "köln/1", "a b", "-", "./a/1"])
def test_keys_may_hold_folders_and_any_letter(key: str) -> None:
    assert sample_of({"__key__": key, "txt": "x"})[0] == key.removeprefix("./")


def test_numbers_of_any_length_are_keys() -> None:
    assert sample_of({"txt": "x"}, 10**9)[0] == "1000000000"


def test_what_readers_have_added_to_a_sample_is_left_out() -> None:
    read = {"__key__": "a", "__url__": "x.tar", "__local_path__": "x", "__shard__": "x.tar", "txt": "x"}
    assert sample_of(read) == ("a", [("txt", b"x")])


@given(key=TEXTS, field=TEXTS)
def test_what_is_packed_is_read_as_it_was_given(key: str, field: str) -> None:
    try:
        packed, members = sample_of({"__key__": key, field: b""})
    except SourceError:
        return
    assert header(f"{packed}.{field}", 0)
    assert split_name(f"{packed}.{field}") == (key.removeprefix("./"), members[0][0])
    assert not {"", ".", ".."} & set(packed.split("/"))


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("", "a key must not be empty"),
        ("./", "a key must not be empty"),
        ("/etc/passwd", "start or end with a slash"),
        ("a/", "start or end with a slash"),
        ("a//b", "two in a row"),
        ("../a", "must not lead out of its folder"),
        ("a/../b", "must not lead out of its folder"),
        ("a/./b", "must not lead out of its folder"),
        ("a/0001.v2", "must not have a dot in its last part: readers would cut it there"),
        (".hidden", "must not have a dot in its last part"),
        ("a\nb", "must not hold a line break or a NUL"),
        ("a\0b", "must not hold a line break or a NUL"),
        ("a\ud800", "must be valid Unicode"),
        ("__meta__/a", "must not be named like __this__"),
        (5, "a key is a str, not a int"),
    ],
)
def test_keys_that_readers_would_not_find_again_are_refused(key: Any, reason: str) -> None:
    with pytest.raises(SourceError, match=re.escape(f"sample 7 of photos (key {key!r}) cannot be packed: ")) as error:
        sample_of({"__key__": key, "txt": "x"})
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "it has no members"),
        ({"__url__": "x"}, "it has no members"),
        ({"": b""}, "field '' cannot be an extension: it must not be empty or hold a slash"),
        ({"a/b": b""}, "field 'a/b' cannot be an extension"),
        ({"a\nb": b""}, "field 'a\\nb' cannot be an extension"),
        ({"a\0b": b""}, "field 'a\\x00b' cannot be an extension"),
        ({"a\ud800": b""}, "cannot be an extension"),
        ({".jpg": b""}, "field '.jpg' starts with a dot: give the extension alone"),
        ({"__class__": b""}, "field '__class__' has the name of an entry that readers add"),
        ({3: b""}, "field 3 is no str"),
        ({"jpg": b"", "JPG": b""}, "fields 'jpg' and 'JPG' differ in case only"),
        ({"bin": object()}, "object"),
        ({"cls": None}, "NoneType None: leave the field out if there is no value"),
        ({"label": 3}, "or an extension such as txt, cls, json, npy or png; or give encode=, a function"),
        ({"npy": torch.zeros(2, dtype=torch.bfloat16)}, "numpy has no bfloat16: give value.float()"),
        ({"json": {"a": object()}}, "json"),
    ],
)
def test_fields_that_can_be_no_members_are_refused(fields: dict[Any, Any], reason: str) -> None:
    with pytest.raises(SourceError, match=r"^sample 7 of photos \(key 'a'\) cannot be packed: ") as error:
        sample_of({"__key__": "a", **fields})
    assert reason in str(error.value)


@pytest.mark.parametrize("item", [(1, 2), "text", b"bytes", None, 3])
def test_items_that_are_no_samples_ask_for_a_function(item: Any) -> None:
    with pytest.raises(
        SourceError, match=rf"item 7 of photos is a {type(item).__name__}, not a sample .* give encode="
    ):
        sample_of(item)


class TestEncode:
    def number_for(self, function: Any) -> Any:
        return ItemEncoder.of("photos", function)("item", 7)[1][0][1]

    def test_it_gets_the_number_where_it_asks_for_it(self) -> None:
        assert self.number_for(lambda item, number: {"txt": f"{item}{number}"}) == b"item7"
        assert self.number_for(lambda item, index=None: {"txt": f"{item}{index}"}) == b"item7"
        assert self.number_for(lambda item, quality=90: {"txt": f"{item}{quality}"}) == b"item90"
        assert self.number_for(lambda item, *, index=0: {"txt": f"{item}{index}"}) == b"item0"
        assert self.number_for(lambda *items: {"txt": f"{items}"}) == b"('item',)"

    def test_what_it_raises_is_the_cause(self) -> None:
        with pytest.raises(SourceError, match=r"^encode failed on item 7 of photos: ZeroDivisionError") as error:
            self.number_for(lambda item: 1 / 0)
        assert isinstance(error.value.__cause__, ZeroDivisionError)

    def test_it_must_return_a_dict(self) -> None:
        with pytest.raises(SourceError, match=r"encode returned a tuple for item 7 of photos"):
            self.number_for(lambda item: (item, 3))

    def test_it_must_be_a_function(self) -> None:
        with pytest.raises(ArgumentError, match=r"encode is 'jpg': it must be a function"):
            ItemEncoder.of("photos", "jpg")  # type: ignore[arg-type]
