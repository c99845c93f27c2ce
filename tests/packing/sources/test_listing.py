"""Compact listings against what sorting and grouping Python strings gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wdsdist.packing.payloads import FilePayload
from wdsdist.packing.sources import listing
from wdsdist.packing.sources.archive import Tree
from wdsdist.packing.sources.listing import Folder, list_samples
from wdsdist.packing.sources.source import Source, SourceOptions
from wdsdist.shards.tar.member_names import split_name
from wdsdist.shards.tar.writer import stored_size

names = st.text("ab.-/é", min_size=1, max_size=8)
paths = st.sets(st.lists(names, min_size=1, max_size=3).map("/".join), max_size=30)


def opened(files: dict[str, int]) -> dict[bytes, Folder]:
    """What lies in each folder of a tree."""
    tree: dict[bytes, Folder] = {b"": Folder()}
    for number, (path, size) in enumerate(files.items()):
        *above, name = path.encode().split(b"/")
        folder = b""
        for one in above:
            if folder + one + b"/" not in tree:
                tree[folder].folders.append(one)
                tree[folder + one + b"/"] = Folder()
            folder += one + b"/"
        tree[folder].add(name, size, mtime_ns=number, place=number)
    return tree


@pytest.mark.parametrize("chunk", [1, 2, 3, 1 << 16])
@given(paths, st.randoms())
def test_samples_are_those_of_sorted_paths(chunk: int, found: set[str], random: object) -> None:
    valid = [path for path in sorted(found) if split_name(path) and "//" not in path and path[0] != "/"]
    random.shuffle(valid)  # type: ignore[attr-defined]
    files = {path: 100 * number for number, path in enumerate(valid)}
    samples: dict[str, list[str]] = {}
    for path in sorted(files, key=str.encode):
        samples.setdefault(split_name(path)[0], []).append(path)  # type: ignore[index]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "_CHUNK", chunk)
        tree = opened(files)
        result = list_samples(tree.__getitem__)
        assert [result.key(sample) for sample in range(result.num_samples)] == list(samples)
        in_order = [path for members in samples.values() for path in members]
        assert [result.path(file) for file in range(len(result.sizes))] == in_order
        assert np.diff(result.sample_files).tolist() == [len(members) for members in samples.values()]
        assert result.sizes.tolist() == [files[path] for path in in_order]
        if in_order:
            assert result.places.tolist() == [valid.index(path) for path in in_order]
        stored = [sum(stored_size(path, files[path]) for path in members) for members in samples.values()]
        assert result.stored_sizes().tolist() == stored


@pytest.mark.parametrize("length", [90, 99, 100, 101, 150, 255, 256, 300])
def test_stored_sizes_know_long_paths(length: int) -> None:
    for folder in ("f", "f" * 60, "é" * 30):
        name = "n" * (length - len(folder.encode()) - 5) + ".bin"
        result = list_samples(opened({f"{folder}/{name}": 8**11 if length == 90 else 5}).__getitem__)
        assert result.stored_sizes().tolist() == [stored_size(f"{folder}/{name}", int(result.sizes[0]))]


def test_any_change_gives_another_digest() -> None:
    def digest(files: dict[str, int]) -> str:
        return list_samples(opened(files).__getitem__).digest

    variants: list[dict[str, int]] = [
        {"a.x": 1, "b.x": 2},
        {"a.x": 2, "b.x": 1},
        {"a.x": 1, "b.y": 2},
        {"a.x": 1, "c/b.x": 2},
        {"a.x": 1},
        {"a/a.x": 1, "a/b.x": 2},
    ]
    assert len({digest(files) for files in variants}) == len(variants)


def test_a_listing_takes_few_bytes_beside_the_names() -> None:
    import tracemalloc

    def open_folder(path: bytes) -> Folder:
        folder = Folder(folders=[] if path else [b"%04d" % number for number in range(40)])
        for number in range(1000 if path else 0):
            folder.add(b"%08d.jpg" % number, 70_000, mtime_ns=number)
        return folder

    tracemalloc.start()
    try:
        result = list_samples(open_folder)
        size, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert result.num_samples == 40_000
    assert size / 40_000 < 12 + 40
    assert peak / 40_000 < 12 + 60


def test_an_archive_takes_few_bytes_beside_the_names_too() -> None:
    import tracemalloc

    def listed(count: int) -> Source:
        tree = Tree("a.zip", "raise")
        for number in range(count):
            tree.add(f"{number % 20:03}/{number:08}.jpg", 70_000, number)
        return tree.source("zip", SourceOptions(), lambda taken: taken.samples(FilePayload), state="")

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


def test_a_folder_between_the_files_of_a_sample_comes_after_it() -> None:
    result = list_samples(opened({"a.jpg": 1, "a.m/b.txt": 2, "a.txt": 3, "a.m/c.txt": 4}).__getitem__)
    assert [result.key(sample) for sample in range(result.num_samples)] == ["a", "a.m/b", "a.m/c"]
    assert [result.path(file) for file in range(4)] == ["a.jpg", "a.txt", "a.m/b.txt", "a.m/c.txt"]
