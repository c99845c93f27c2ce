"""Appending to a data set: further shards and a new generation of index.json, and nothing that is there changes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wdsdist
from tests.support import forked, tars
from tests.support.memory_store import MemoryStore
from tests.support.packing import pack_shown
from tests.support.programs import command
from wdsdist.diagnostics.verify import verify
from wdsdist.errors import ArgumentError, DestinationError, DestinationExistsError, NotFoundError
from wdsdist.packing import pack
from wdsdist.shards import build_index as indexing


def files(folder: Path) -> dict[str, bytes]:
    """The shards and indexes in a folder, and index.json."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name[0] != "."}


def texts(folder: Path, first: int, count: int) -> Path:
    """Make a folder of small samples."""
    folder.mkdir()
    for number in range(first, first + count):
        (folder / f"{number:03}.txt").write_text(f"text {number}")
    return folder


def keys(shards: Any) -> list[str]:
    return sorted(wdsdist.open(shards).column("key").tolist())


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return texts(tmp_path / "old", 0, 12)


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return texts(tmp_path / "new", 100, 17)


@pytest.fixture
def dest(tmp_path: Path, old: Path) -> Path:
    """A data set of three shards."""
    pack(old, tmp_path / "dest", shard_samples=5)
    return tmp_path / "dest"


def test_appending_adds_shards_and_leaves_all_others_untouched(dest: Path, new: Path) -> None:
    before = files(dest)
    manifest = pack(new, dest, shard_samples=5, append=True)
    after = files(dest)
    assert manifest.generations == (3, 7)
    assert [shard.name for shard in manifest.shards] == [f"shard-{number:06}.tar" for number in range(7)]
    assert keys(dest) == [f"{n:03}" for n in [*range(12), *range(100, 117)]]
    assert {name: content for name, content in after.items() if name in before and name != "index.json"} == {
        name: content for name, content in before.items() if name != "index.json"
    }
    assert manifest.extra["payload_bytes"] == manifest.column("bytes").sum()
    assert verify(dest) == []


def test_the_same_append_twice_adds_nothing(dest: Path, old: Path, new: Path) -> None:
    pack(new, dest, append=True)
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in dest.iterdir()}
    told: list[Any] = []
    for source in (new, old):  # also with other options, and of what was packed first
        assert pack_shown(source, dest, append=True, shard_samples=3, progress=told.append).num_samples == 29
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in dest.iterdir()} == before
    assert told == []


def test_each_generation_can_be_opened(dest: Path, new: Path, tmp_path: Path) -> None:
    first = wdsdist.open(dest)
    pack(new, dest, append=True)
    pack(texts(tmp_path / "more", 200, 2), dest, append=True)
    assert wdsdist.open(dest, generation=1).fingerprint == first.fingerprint
    assert wdsdist.open(dest, generation=2).num_samples == 29
    assert wdsdist.open(dest, generation=2).generations == (3, 4)
    assert wdsdist.open(dest, generation=3).fingerprint == wdsdist.open(dest).fingerprint
    assert wdsdist.open(first, generation=1) is first
    for number in (0, 4):
        with pytest.raises(ArgumentError, match=f"generation is {number}"):
            wdsdist.open(dest, generation=number)


def test_an_iterable_and_compressed_shards_are_appended_too(dest: Path) -> None:
    pack(({"txt": f"more {number}"} for number in range(7)), dest, shard_samples=3, append=True)
    manifest = pack([{"txt": f"x {number}"} for number in range(4)], dest, compress="zst", append=True)
    assert manifest.generations == (3, 6, 7)
    assert manifest.shard(6).name == "shard-000006.tar.zst"
    assert manifest.num_samples == 23
    assert verify(dest) == []


def test_what_is_left_out_alike_of_several_sources_is_reported_of_each(tmp_path: Path) -> None:
    dest = tmp_path / "dest"
    for number in range(2):
        folder = texts(tmp_path / f"{number}", 10 * number, 3)
        (folder / "bad.bin").symlink_to("nowhere")
        manifest = pack(folder, dest, on_error="skip", append=True)
    report = dest / "pack-report.jsonl"
    lines = report.read_text().splitlines()
    assert len(lines) == manifest.extra["left_out"] == 2
    assert lines[0] == lines[1]
    report.write_text("\n".join([*lines, lines[0], ""]))  # of an append that was killed before it was whole
    folder = texts(tmp_path / "2", 20, 3)
    (folder / "bad.bin").symlink_to("nowhere")
    assert pack(folder, dest, on_error="skip", append=True).extra["left_out"] == 3
    assert report.read_text().splitlines() == 3 * lines[:1]


# What would do harm is refused


def test_a_source_that_was_added_before_and_has_grown_is_refused(dest: Path, old: Path, new: Path) -> None:
    pack(new, dest, append=True)
    before = files(dest)
    for source in (old, new):
        (source / "more.txt").write_text("more")
        with pytest.raises(ArgumentError, match=rf"{source} was packed into {dest} before, and has changed since"):
            pack(source, dest, append=True)
    assert files(dest) == before


def test_classes_keep_their_numbers_and_new_ones_follow(tmp_path: Path) -> None:
    def photos(name: str, *classes: str) -> Path:
        for number, one in enumerate(classes):
            (tmp_path / name / one).mkdir(parents=True)
            (tmp_path / name / one / f"{name}{number}.jpg").write_bytes(bytes(10))
        return tmp_path / name

    dest = tmp_path / "dest"
    pack(photos("first", "bird", "dog"), dest, class_folders=True)
    with pytest.raises(ArgumentError, match=r"second has no cls, but .* have classes: .* class_folders=True"):
        pack(photos("second", "ant", "dog"), dest, append=True)
    added = pack(tmp_path / "second", dest, append=True, class_folders=True)
    assert added.extra["classes"] == ["bird", "dog", "ant"]
    data = wdsdist.StreamingDataset(dest, decode={"cls": int})
    assert {data[n]["__key__"]: data[n]["cls"] for n in range(4)}["ant/second0"] == 2
    again = pack(tmp_path / "second", dest, append=True, class_folders=True)
    assert again.fingerprint == added.fingerprint


def test_arrays_of_another_type_are_refused(dest: Path) -> None:
    pack([{"ids": np.arange(3, dtype=np.int32)}], dest, append=True)
    with pytest.raises(ArgumentError, match=r"the type of arrays 'ids' is .*<i4.* and .*<i8.*: make them alike"):
        pack([{"ids": np.arange(3)}], dest, append=True)


def test_a_data_set_whose_keys_end_elsewhere_is_refused(new: Path, tmp_path: Path) -> None:
    (tmp_path / "tars").mkdir()
    members = [(f"v1.5_{number}.txt", b"text") for number in range(3)]
    (tmp_path / "tars" / "0.tar").write_bytes(tars.plain_tar(members))
    indexing.index(tmp_path / "tars", key="last-dot")
    with pytest.raises(DestinationError, match="has keys that end by the rule last-dot: pack into a folder of its own"):
        pack(new, tmp_path / "tars", append=True)


def test_packing_the_first_source_again_never_drops_what_was_appended(dest: Path, old: Path, new: Path) -> None:
    pack(new, dest, shard_samples=5, append=True)
    assert pack(old, dest, shard_samples=5).num_samples == 29
    (dest / "shard-000001.tar").unlink()
    for damage in (lambda: None, (dest / "index.json").unlink):
        damage()
        before = files(dest)
        with pytest.raises(
            DestinationExistsError, match=rf"holds another data set \(it was packed from {new}, not {old}\)"
        ):
            pack(old, dest, shard_samples=5)
        assert files(dest) == before
    assert pack(old, dest, shard_samples=5, overwrite=True).num_samples == 12
    assert len(list(dest.glob("*.tar"))) == 3


# Interrupted


@pytest.fixture
def killed(dest: Path, new: Path) -> Path:
    """The data set, to which an append was killed in the middle of its third shard."""
    stalling = command("stalling_pack", new, dest, 1, "", "append")[1:]
    forked.kill(*forked.start_until_a_byte(*stalling, pipe=dest.parent / "pipe"))
    assert list(dest.glob(".tmp-*-shard-000005.tar")), "it was killed in the middle of a shard"
    return dest


def test_a_killed_append_leaves_the_data_set_as_it_was_and_is_continued(
    killed: Path, old: Path, new: Path, tmp_path: Path
) -> None:
    pack(old, tmp_path / "undisturbed", shard_samples=5)
    assert wdsdist.open(killed).fingerprint == wdsdist.open(tmp_path / "undisturbed").fingerprint
    assert verify(killed) == []
    whole = (killed / "shard-000003.tar").stat()
    pack(new, tmp_path / "undisturbed", shard_samples=5, append=True)
    pack(new, killed, shard_samples=5, append=True)
    assert files(killed) == files(tmp_path / "undisturbed")
    assert not list(killed.glob(".tmp-*"))
    assert (killed / "shard-000003.tar").stat().st_mtime_ns == whole.st_mtime_ns


def test_another_append_waits_for_the_unfinished_one_or_drops_it(killed: Path, new: Path, tmp_path: Path) -> None:
    other = texts(tmp_path / "other", 300, 2)
    with pytest.raises(DestinationExistsError, match=rf"an append of {new} that was not finished .*overwrite=True"):
        pack(other, killed, append=True)
    with pytest.raises(DestinationExistsError, match=r"was not finished \(it has shard_samples=5, not 6\)"):
        pack(new, killed, shard_samples=6, append=True)
    manifest = pack(other, killed, append=True, overwrite=True)
    assert manifest.generations == (3, 4)
    assert sorted(path.name for path in killed.glob("*.tar")) == [shard.name for shard in manifest.shards]
    assert pack(new, killed, append=True).num_samples == 31


def test_indexing_does_not_take_the_shards_of_an_unfinished_append(killed: Path) -> None:
    before = files(killed)
    with pytest.raises(NotFoundError, match="has not been appended to to the end"):
        indexing.index(killed)
    assert files(killed) == before


# Two at once


def test_a_second_append_waits_for_the_first_and_both_are_there(dest: Path, new: Path, tmp_path: Path) -> None:
    other = texts(tmp_path / "other", 300, 2)
    started, gate = tmp_path / "started", tmp_path / "gate"
    os.mkfifo(gate)
    first = subprocess.Popen(command("held_pack", started, gate, "pack", new, dest, "--append", "-q"))
    with gate.open("wb"):  # opens once the first one holds the folder, and lets it go on when it closes
        second = subprocess.Popen(
            command("held_pack", started, os.devnull, "pack", other, dest, "--append", "-q"), stderr=subprocess.PIPE
        )
        assert second.stderr is not None
        assert b"another process is packing into" in second.stderr.readline()
    assert [first.wait(), second.wait()] == [0, 0]
    second.stderr.close()
    assert wdsdist.open(dest).generations == (3, 4, 5)
    assert len(keys(dest)) == 31
    assert verify(dest) == []


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    with MemoryStore() as store:
        yield store


def test_in_a_store_a_second_append_is_refused(
    store: MemoryStore, old: Path, new: Path, tmp_path: Path, before_writing: Callable[[Callable[[], object]], None]
) -> None:
    url, other, mine = f"{store.url}/dest", texts(tmp_path / "other", 300, 2), texts(tmp_path / "mine", 400, 2)
    pack(old, url, shard_samples=5, workers=1)
    pack(new, url, shard_samples=5, workers=1, append=True)
    assert wdsdist.open(url).generations == (3, 7)
    pack(other, url, workers=1, append=True)
    # As if a process were in the middle of that:
    theirs = store.files["dest/.wdsdist-pack.json"]
    store.files["dest/.wdsdist-pack.json"] = theirs.replace(b'"listed": 7', b'"listed": 8')
    with pytest.raises(DestinationExistsError, match="was not finished"):
        pack(mine, url, workers=1, append=True)
    assert wdsdist.open(url).generations == (3, 7, 8)
    # Or as if that process were done before this one, which began at the same time:
    store.files["dest/.wdsdist-pack.json"] = theirs
    theirs = store.files["dest/index.json"]
    pack(mine, url, workers=1, append=True)
    last = texts(tmp_path / "last", 500, 2)
    before_writing(lambda: store.files.update({"dest/index.json": theirs}))
    with pytest.raises(DestinationExistsError, match="was changed while"):
        pack(last, url, workers=1, append=True)


# Tars that others wrote


def test_indexing_again_adds_a_generation_for_tars_that_arrived(old: Path, new: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tars"
    folder.mkdir()
    for source, name in ((old, "a"), (new, "b")):
        pack(source, tmp_path / name)
        (tmp_path / name / "shard-000000.tar").rename(folder / f"{name}.tar")
        manifest = indexing.index(folder)
    assert manifest.generations == (1, 2)
    assert indexing.index(folder).generations == (1, 2)
    assert pack(texts(tmp_path / "more", 200, 2), folder, append=True).generations == (1, 2, 3)
    pack(texts(tmp_path / "first", 500, 2), tmp_path / "c")
    (tmp_path / "c" / "shard-000000.tar").rename(folder / "0.tar")
    assert indexing.index(folder).generations == (4,), "what was there is no prefix any more"
