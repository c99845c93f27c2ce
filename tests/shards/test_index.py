"""The index of one shard: what goes in comes out, and a damaged index is an error, never a wrong offset."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wdsdist.errors import IndexFormatError
from wdsdist.shards import index as shardindex
from wdsdist.shards.index import ShardIndex

Sample = tuple[str, list[tuple[str, int, int]]]


def fields_of(index: ShardIndex) -> dict[str, Any]:
    return {field.name: getattr(index, field.name) for field in dataclasses.fields(index)}


def contents(index: ShardIndex) -> dict[str, Any]:
    """Return an index as plain values, which compare."""
    return {
        name: (str(value.dtype), value.tolist()) if isinstance(value, np.ndarray) else value
        for name, value in fields_of(index).items()
    }


def samples_of(index: ShardIndex) -> list[Sample]:
    return [(index.key(number), index.members(number)) for number in range(index.num_samples)]


def built(samples: list[Sample], **more: Any) -> ShardIndex:
    every = [member for _, members in samples for member in members]
    extensions = list(dict.fromkeys(extension for extension, _, _ in every))
    keys = [key.encode("utf-8", "surrogateescape") for key, _ in samples]
    return ShardIndex(
        size=2**62,
        sha256="ab" * 32,
        extensions=tuple(extensions),
        sample_starts=np.cumsum([0, *(len(members) for _, members in samples)]),
        offsets=np.array([offset for _, offset, _ in every], np.int64),
        sizes=np.array([size for _, _, size in every], np.int64),
        extension_ids=np.array([extensions.index(extension) for extension, _, _ in every], np.uint32),
        key_starts=np.cumsum([0, *map(len, keys)]),
        key_bytes=np.frombuffer(b"".join(keys), np.uint8),
        **more,
    )


keys = st.text(st.characters(exclude_categories=[]), min_size=1, max_size=8).filter(
    # Lone surrogates stand for bytes that are not UTF-8, as in the names that a tar gives.
    lambda key: key == key.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")
)
extensions = st.sampled_from(["jpg", "cls", "seg.png", "JSON", "ä"])
numbers = st.integers(0, 2**61)
members = st.lists(st.tuples(extensions, numbers, numbers), min_size=1, max_size=4, unique_by=lambda item: item[0])
many_samples = st.lists(st.tuples(keys, members), max_size=6, unique_by=lambda item: item[0])

SAMPLES: list[Sample] = [
    ("köln/日本", [("jpg", 512, 70_000), ("cls", 71_680, 1)]),
    ("b", [("seg.png", 73_216, 0), ("jpg", 73_728, 5)]),
    ("not-\udcff-utf8", [("JPG", 75_000, 2**40)]),
]


def round_trip(index: ShardIndex, path: Path) -> ShardIndex:
    path.write_bytes(shardindex.dumps(index))
    return shardindex.load(path)


@given(many_samples, st.dictionaries(st.text(max_size=5), st.integers(0, 9), max_size=2))
def test_an_index_loads_as_it_was_saved(
    tmp_path_factory: pytest.TempPathFactory, samples: list[Sample], skipped: dict[str, int]
) -> None:
    index = built(samples, skipped=skipped)
    loaded = round_trip(index, tmp_path_factory.getbasetemp() / "x.wdsindex")
    assert contents(loaded) == contents(index)
    assert samples_of(loaded) == samples
    assert shardindex.dumps(loaded) == shardindex.dumps(index)


def test_loaded_arrays_are_views_of_the_file_not_copies(tmp_path: Path) -> None:
    loaded = round_trip(built(SAMPLES), tmp_path / "x.wdsindex")
    arrays = [value for value in fields_of(loaded).values() if isinstance(value, np.ndarray)]
    assert len(arrays) == 6
    for array in arrays:
        assert not array.flags.owndata
        assert not array.flags.writeable
        assert array.ctypes.data % 64 == 0  # as the format promises; a map starts on a page


def test_a_change_of_any_byte_of_an_index_is_found_or_harmless(tmp_path: Path) -> None:
    index = built(SAMPLES)
    content = shardindex.dumps(index)
    path = tmp_path / "x.wdsindex"
    harmless = []
    for offset in range(len(content)):
        altered = bytearray(content)
        altered[offset] ^= 1 << offset % 8
        path.write_bytes(altered)
        try:
            loaded = shardindex.load(path)
        except IndexFormatError:
            continue
        assert contents(loaded) == contents(index)
        harmless.append(offset)
    assert not any(content[offset] for offset in harmless)  # the spare word of the preamble, and what aligns arrays


def test_an_index_cut_anywhere_is_an_error_that_names_it(tmp_path: Path) -> None:
    content = shardindex.dumps(built(SAMPLES))
    path = tmp_path / "x.wdsindex"
    for cut in range(len(content)):
        path.write_bytes(content[:cut])
        with pytest.raises(IndexFormatError, match=r"x\.wdsindex is not a shard index.*wdsdist index"):
            shardindex.load(path)


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("lengths", lambda index: {"sizes": index.sizes[1:]}),
        ("lengths", lambda index: {"extension_ids": index.extension_ids[1:]}),
        ("lengths", lambda index: {"key_starts": np.delete(index.key_starts, 1)}),
        ("checksums", lambda index: {"checksums": index.checksums[1:]}),
        ("samples", lambda index: {"sample_starts": np.insert(index.sample_starts, 1, 0), "key_starts": np.zeros(5)}),
        ("samples", lambda index: {"sample_starts": index.sample_starts + 1}),
        ("samples", lambda index: {"sample_starts": index.sample_starts[[0, 2, 1, 3]]}),
        ("samples", lambda index: {"sample_starts": np.array([0, 2**63 - 1, 5 - 2**63, 5])}),  # differences wrap
        ("keys", lambda index: {"key_bytes": index.key_bytes[1:]}),
        ("keys", lambda index: {"key_starts": index.key_starts[[0, 2, 1, 3]]}),
        ("extensions", lambda index: {"extension_ids": index.extension_ids + 1}),
        ("members", lambda index: {"offsets": index.offsets - 513}),
        ("members", lambda index: {"sizes": index.sizes - 1}),
        ("ends", lambda index: {"size": int((index.offsets + index.sizes).max()) - 1}),
    ],
)
def test_an_index_whose_parts_disagree_is_refused(what: str, change: Callable[[ShardIndex], dict[str, Any]]) -> None:
    index = dataclasses.replace(built(SAMPLES), checksums=np.arange(5, dtype=np.uint32))
    assert shardindex.load(shardindex.dumps(index), "x").num_samples == 3
    with pytest.raises(IndexFormatError, match=f"its {what} do not fit together"):
        shardindex.load(shardindex.dumps(dataclasses.replace(index, **change(index))), "x")
