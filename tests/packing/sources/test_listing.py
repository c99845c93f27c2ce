"""Compact listings against what sorting and grouping Python strings gives."""

from __future__ import annotations

from urllib.parse import unquote

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wdsdist.packing.options import Options
from wdsdist.packing.payloads import Samples
from wdsdist.packing.sources.files import Files
from wdsdist.packing.sources.listing import Folder, list_samples
from wdsdist.packing.sources.source import Source
from wdsdist.shards.tar.member_names import split_name
from wdsdist.shards.tar.writer import stored_size

names = st.text("ab.-/é", min_size=1, max_size=8)
paths = st.sets(st.lists(names, min_size=1, max_size=3).map("/".join), max_size=30)


def opened(files: dict[str, int]) -> dict[bytes, Folder]:
    """What lies in each folder of a tree."""
    tree: dict[bytes, Folder] = {b"": Folder()}
    for number, (path, size) in enumerate(files.items()):
        *above, name = path.encode().split(b"/")
        folder = b"".join(part + b"/" for part in above)
        tree.setdefault(folder, Folder()).add(name, size, mtime_ns=number, position=number)
    return tree


@given(paths, st.randoms())
def test_samples_are_those_of_sorted_folders(found: set[str], random: object) -> None:
    valid = [path for path in sorted(found) if split_name(path) and "//" not in path and path[0] != "/"]
    random.shuffle(valid)  # type: ignore[attr-defined]
    files = {path: 100 * number for number, path in enumerate(valid)}
    samples: dict[str, list[str]] = {}
    for path in sorted(files, key=lambda path: (path[: path.rfind("/") + 1].encode(), path.encode())):
        samples.setdefault(split_name(path)[0], []).append(path)  # type: ignore[index]
    result = list_samples(opened(files))
    assert [result.key(sample) for sample in range(result.num_samples)] == list(samples)
    in_order = [path for members in samples.values() for path in members]
    assert [result.path(file) for file in range(len(result.sizes))] == in_order
    assert np.diff(result.sample_files).tolist() == [len(members) for members in samples.values()]
    assert result.sizes.tolist() == [files[path] for path in in_order]
    assert result.numbers[:, 1].tolist() == [valid.index(path) for path in in_order]
    stored = [sum(stored_size(path, files[path]) for path in members) for members in samples.values()]
    assert result.stored_sizes().tolist() == stored


@pytest.mark.parametrize("length", [90, 99, 100, 101, 150, 255, 256, 300])
def test_stored_sizes_know_long_paths(length: int) -> None:
    for folder in ("f", "f" * 60, "é" * 30):
        name = "n" * (length - len(folder.encode()) - 5) + ".bin"
        result = list_samples(opened({f"{folder}/{name}": 8**11 if length == 90 else 5}))
        assert result.stored_sizes().tolist() == [stored_size(f"{folder}/{name}", int(result.sizes[0]))]


def test_a_listing_takes_few_bytes_beside_the_names() -> None:
    import tracemalloc

    def listed(count: int) -> Source:
        tree = Files("a.zip")
        for number in range(count):
            tree.add_name(f"{number % 20:03}/{number:08}.jpg", 70_000, number)
        return tree.source("zip", Options(), lambda listed: Samples(iter, (listed,)), state="")

    listed(100)  # numpy imports some of its modules when they are first needed
    tracemalloc.start()
    try:
        result = listed(10_000)
        size, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(result) == 10_000
    assert size / 10_000 < 12 + 50
    assert peak / 10_000 < 12 + 70


@given(st.sets(st.text("ab.", min_size=1, max_size=6).map(lambda name: f"k{name}.x"), min_size=1, max_size=12))
def test_another_rule_groups_files_by_the_keys_that_it_finds(names: set[str]) -> None:
    result = list_samples(opened(dict.fromkeys(names, 1)), rule="last-dot")
    keys = [result.key(sample) for sample in range(result.num_samples)]
    assert keys == sorted({name.rpartition(".")[0].replace(".", "%2E") for name in names}, key=lambda key: unquote(key))
    assert sorted(".".join(result.member_name(file)) for file in range(len(names))) == sorted(
        f"{name[:-2].replace('.', '%2E')}.x" for name in names
    )
