"""Which objects can be packed, and what their items may be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wdsdist.errors import ArgumentError, SourceError
from wdsdist.packing.sources import find
from wdsdist.packing.sources.python import ItemEncoder
from wdsdist.shards.tar.member_names import split_name
from wdsdist.shards.tar.writer import header

SAMPLES = [{"txt": "a"}, {"txt": "b"}]
STRINGS = st.text(st.sampled_from("aé.-_/\\\n\0 \ud800Z0"), max_size=8) | st.text(max_size=8)


class Dataset(torch.utils.data.Dataset[dict[str, str]]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> dict[str, str]:
        return SAMPLES[index]


class Iterable(torch.utils.data.IterableDataset[dict[str, str]]):
    def __len__(self) -> int:  # as some have it, though they cannot be asked for an item
        return 2

    def __iter__(self) -> Iterator[dict[str, str]]:
        return iter(SAMPLES)


@pytest.mark.parametrize("source", [SAMPLES, tuple(SAMPLES), Dataset()])
def test_what_can_be_asked_for_items_is_a_data_set(source: Any) -> None:
    source = find(source)
    assert (source.kind, source.is_stream) == ("dataset", False)
    assert [members[0][1] for _, members in source.take(np.arange(len(source)))] == [b"a", b"b"]


@pytest.mark.parametrize("source", [iter(SAMPLES), (one for one in SAMPLES), Iterable()])
def test_what_can_only_be_iterated_over_is_a_stream(source: Any) -> None:
    source = find(source)
    assert source.is_stream
    assert [members[0][1] for _, members in source.contents.stream] == [b"a", b"b"]


@pytest.mark.parametrize("period", [2, 10, 64])
def test_all_samples_get_the_mean_size_of_a_few(period: int) -> None:
    sizes = find([{"bin": bytes(512 * (number % period == 0))} for number in range(6400)]).contents.sizes
    assert sizes.tolist() == [sizes[0]] * 6400
    assert abs(sizes[0] - (512 + 512 / period)) < 60


@pytest.mark.parametrize("kind", [list, iter])
def test_the_fingerprint_follows_the_samples_not_the_object(kind: Any) -> None:
    digest = find(kind(SAMPLES)).digest
    assert digest == find(kind([dict(sample) for sample in SAMPLES])).digest
    others = [SAMPLES[:1], [*SAMPLES, {"txt": "c"}], [{"txt": "a"}, {"txt": "c"}], [{"txt": "a"}, {"text": "b"}]]
    assert len({digest, *(find(kind(other)).digest for other in others)}) == 5
    assert find(SAMPLES).digest != find(iter(SAMPLES)).digest


# Items


def sample_of(item: Any, number: int = 7) -> Any:
    return ItemEncoder("photos")(item, number)


def test_members_are_ordered_by_extension_however_the_dict_is() -> None:
    members = [("cls", b"3"), ("jpg", b"x"), ("seg.png", b"y")]
    assert sample_of({"jpg": b"x", "seg.png": b"y", "cls": 3}) == ("000000007", members)
    assert sample_of({"seg.png": memoryview(b"y"), "cls": 3, "jpg": bytearray(b"x")}, 10**9) == ("1000000000", members)
    read = {"__key__": "./a", "__url__": "x.tar", "__local_path__": "x", "__shard__": "x.tar", "txt": "x"}
    assert sample_of(read) == ("a", [("txt", b"x")])


@given(key=STRINGS, field=STRINGS)
def test_what_is_packed_is_read_as_it_was_given(key: str, field: str) -> None:
    try:
        packed, members = sample_of({"__key__": key, field: b""})
    except SourceError:
        return
    assert header(f"{packed}.{field}", 0)
    assert split_name(f"{packed}.{field}") == (key.removeprefix("./"), members[0][0])
    assert not {"", ".", ".."} & set(packed.split("/"))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "sample 'a' has no member"),
        ({"__url__": "x"}, "sample 'a' has no member"),
        *(({name: b""}, "is not an extension that readers would find") for name in ("", "a\nb", "a\ud800", ".jpg", 3)),
        ({"bin": object()}, "object"),
        ({"cls": None}, "field 'cls' is None: leave the field out if there is no value"),
        ({"label": 3}, "or an extension such as txt, cls, json, npy or png"),
        ({"npy": torch.zeros(2, dtype=torch.bfloat16)}, "numpy has no bfloat16: give value.float()"),
        ({"json": {"a": object()}}, "json"),
    ],
)
def test_fields_that_can_be_no_members_are_refused(fields: dict[Any, Any], reason: str) -> None:
    with pytest.raises(SourceError, match=r"^item 7 of photos cannot be packed: ") as error:
        sample_of({"__key__": "a", **fields})
    assert reason in str(error.value)


def test_items_that_are_no_samples_ask_for_a_function() -> None:
    for item in ((1, 2), "text", None):
        with pytest.raises(SourceError, match=rf"item 7 of photos is a {type(item).__name__}, not a sample .* encode="):
            sample_of(item)
    with pytest.raises(SourceError, match=r"^encode failed on item 7 of photos: ZeroDivisionError") as error:
        ItemEncoder("photos", lambda item: 1 / 0)("item", 7)  # type: ignore[arg-type,return-value]
    assert isinstance(error.value.__cause__, ZeroDivisionError)
    with pytest.raises(SourceError, match=r"encode returned for item 7 of photos a tuple"):
        ItemEncoder("photos", lambda item: (item, 3))("item", 7)  # type: ignore[arg-type,return-value]
    with pytest.raises(ArgumentError, match=r"^encode is 7: it must be"):
        find([1, 2], encode=7)
