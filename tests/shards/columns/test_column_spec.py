"""Values of small members."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wdsdist.shards.columns import column_spec as fields

VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text("ab", max_size=2)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text("ab", max_size=1), inner, max_size=3)),
    max_leaves=8,
)


def walked(value: Any, path: list[str]) -> Any:
    """Return what `value_at` should find where no name has a dot."""
    for part in path:
        if isinstance(value, list) and part.isdigit():
            value = value[int(part)] if int(part) < len(value) else None
        else:
            value = value.get(part) if isinstance(value, dict) else None
    return json.dumps(value) if isinstance(value, (list, dict)) else value


@given(VALUES, st.lists(st.sampled_from(["a", "b", "0", "1"]), max_size=3))
def test_a_path_leads_to_the_value_that_a_walk_finds(value: Any, path: list[str]) -> None:
    assert fields.value_at(value, tuple(path)) == walked(value, path)


def test_names_with_dots_are_found() -> None:
    assert fields.value_at({"a.b": {"c": 1}, "a": {"x": 2}}, ("a", "b", "c")) == 1


@pytest.mark.parametrize(
    ("extension", "data", "value"),
    [
        ("txt", "ä\n".encode(), "ä\n"),
        ("caption", b"any text", "any text"),
        ("cls", b" 12\n", 12),
        ("info.JSON", b'{"a": 1}', {"a": 1}),
        ("json.gz", gzip.compress(b"[1]", mtime=0), [1]),
        ("txt.gz.gz", gzip.compress(gzip.compress(b"x", mtime=0), mtime=0), "x"),
    ],
)
def test_members_are_decoded_by_their_extension(extension: str, data: bytes, value: Any) -> None:
    assert fields.decoded(extension, data) == value


@pytest.mark.parametrize(
    ("extension", "data", "message"),
    [
        ("txt", b"\xff", "no text in UTF-8"),
        ("cls", b"cat", "invalid literal"),
        ("json", b"{", "Expecting property name"),
        ("json", b"[" * 200_000, "nested too deeply"),
        ("json", b"9" * 10_000, "digits"),
        ("json.gz", b"no gzip", "incorrect header"),
        ("txt.gz", gzip.compress(bytes(fields.MOST_BYTES + 1), mtime=0), "unpacks to over 16,777,216 bytes"),
    ],
)
def test_what_is_not_of_its_kind_is_refused(extension: str, data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fields.decoded(extension, data)


def test_an_image_of_any_type_can_be_probed_under_one_name() -> None:
    (spec,) = fields.parsed([], ["image.width"])
    reading = spec.reading(["txt", "PNG", "webp", "jpg"])
    assert reading is not None
    assert reading.extensions == ("jpg", "png", "webp")
    assert spec.reading(["txt", "seg.png"]) is None
