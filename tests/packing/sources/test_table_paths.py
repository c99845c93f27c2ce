"""Which files the rows of a table may name: those below its folder, or below the root that the user gives."""

from __future__ import annotations

import contextlib
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.packing import members
from tests.support.tables import WRITERS, Record, write_csv
from wdsdist.errors import SourceError
from wdsdist.packing import pack
from wdsdist.packing.destination import Destination
from wdsdist.packing.sources import find
from wdsdist.packing.sources.table import Finder
from wdsdist.packing.writer import write_shard


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for a table, with images in it, and a secret beside it."""
    (tmp_path / "data" / "images").mkdir(parents=True)
    for number in range(3):
        (tmp_path / "data" / "images" / f"{number}.bin").write_bytes(b"image %d" % number)
    (tmp_path / "secret.bin").write_bytes(b"secret")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "0.bin").write_bytes(b"elsewhere")
    return tmp_path / "data"


@pytest.fixture(params=WRITERS)
def table(request: pytest.FixtureRequest, folder: Path) -> Callable[[str], Path]:
    """Write a table whose last row names a file."""
    name, write = WRITERS[request.param]

    def make(path: str) -> Path:
        rows: list[Record] = [{"file": "images/0.bin", "label": 1}, {"file": path, "label": 2}]
        return write(folder / name, rows)

    return make


def outside(folder: Path) -> dict[str, str]:
    """Paths that lead out of a folder, made where they need be."""
    (folder / "link.bin").symlink_to(folder.parent / "secret.bin")
    (folder / "far").symlink_to(folder.parent / "elsewhere")
    (folder / "inner.bin").symlink_to("link.bin")
    return {
        "absolute": str(folder.parent / "secret.bin"),
        "up": "../secret.bin",
        "up again": "images/../../secret.bin",
        "link": "link.bin",
        "link to a link": "inner.bin",
        "linked folder": "far/0.bin",
        "up from a linked folder": "far/../secret.bin",
        "like the folder": f"../{folder.name}-too/0.bin",
    }


@pytest.mark.parametrize("way", ["absolute", "up", "up again", "link", "link to a link", "linked folder",
                                 "up from a linked folder", "like the folder"])  # fmt: skip
def test_a_file_outside_the_folder_of_the_table_is_refused(
    table: Callable[[str], Path], folder: Path, way: str
) -> None:
    (folder.parent / "data-too").mkdir()
    (folder.parent / "data-too" / "0.bin").write_bytes(b"too")
    path = outside(folder)[way]
    source = table(path)
    with pytest.raises(SourceError) as caught:
        find(source, columns={"file": "bin"})
    message = str(caught.value)
    assert message.startswith(str(source))
    assert any(target in message for target in ("row 3: ", "row 2: ", "row 1: "))
    assert f"column 'file' names {path!r}, which lies outside the folder that paths start from" in message
    assert "with root=" in message
    left = find(source, columns={"file": "bin"}, on_error="skip")
    assert [one["bin"] for one in members(left).values()] == [b"image 0"]
    assert len(left.contents.left_out) == 1


@pytest.mark.parametrize(
    "path", ["images/1.bin", "./images/1.bin", "images/../images/1.bin", "../data/images/1.bin", "near.bin", "ABSOLUTE"]
)
def test_a_file_below_the_folder_needs_no_option(table: Callable[[str], Path], folder: Path, path: str) -> None:
    (folder / "near.bin").symlink_to("images/1.bin")
    path = path.replace("ABSOLUTE", str(folder / "images" / "1.bin"))
    found = members(find(table(path), columns={"file": "bin"}))
    assert [one["bin"] for one in found.values()] == [b"image 0", b"image 1"]


def test_a_root_is_where_paths_start_and_end(table: Callable[[str], Path], folder: Path, tmp_path: Path) -> None:
    source = table("elsewhere/0.bin")
    (tmp_path / "images").symlink_to(folder / "images")
    found = members(find(source, columns={"file": "bin"}, root=tmp_path))
    assert [one["bin"] for one in found.values()] == [b"image 0", b"elsewhere"]
    (tmp_path / "elsewhere" / "images").mkdir()
    (tmp_path / "elsewhere" / "images" / "0.bin").write_bytes(b"")
    with pytest.raises(SourceError, match="lies outside the folder that paths start from"):
        find(table(str(folder / "images" / "1.bin")), columns={"file": "bin"}, root=tmp_path / "elsewhere")


def test_a_file_that_becomes_a_link_after_the_listing_is_refused(folder: Path, tmp_path: Path) -> None:
    source = find(write_csv(folder / "t.csv", [{"file": "images/0.bin"}]), columns={"file": "bin"})
    (folder / "images" / "0.bin").unlink()
    (folder / "images" / "0.bin").symlink_to(tmp_path / "secret.bin")
    with pytest.raises(SourceError, match="lies outside the folder that paths start from"):
        write_shard(Destination(str(tmp_path)), "x.tar", source.take(np.arange(1)))


def test_paths_of_structs_are_held_to_the_rule_too(folder: Path, tmp_path: Path) -> None:
    (folder / "0.flac").write_bytes(b"sound")
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])  # as `datasets` has files that it does not embed
    paths = [{"bytes": None, "path": path} for path in ("0.flac", "../secret.bin")]
    rows = pa.table({"audio": pa.array(paths, kind)})
    pq.write_table(rows, folder / "t.parquet")
    with pa.OSFile(str(folder / "t.arrow"), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows)
    for name in ("t.parquet", "t.arrow"):
        with pytest.raises(SourceError, match=r"column 'audio' names '\.\./secret\.bin', which lies"):
            pack(folder / name, tmp_path / name, workers=1)


def test_a_remote_table_packs_no_local_file(folder: Path, tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("memory://tables/t.csv", f"file\n{tmp_path}/secret.bin\n".encode())
    try:
        with pytest.raises(SourceError, match=r"^memory://tables/t\.csv.*row 2: column 'file' names .*lies outside"):
            pack("memory://tables/t.csv", tmp_path / "out", columns={"file": "bin"})
        memory.pipe("memory://tables/t.csv", b"file\nimages/1.bin\n")
        found = pack("memory://tables/t.csv", tmp_path / "out", columns={"file": "bin"}, root=folder)
        with tarfile.open(tmp_path / "out" / found.shards[0].name) as tar:
            assert tar.extractfile("000000000.bin").read() == b"image 1"  # type: ignore[union-attr]
    finally:
        memory.store.clear()


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9/1.bin", "file:///etc/hostname", "s3://bucket/1.bin", "memory://a/1.bin"]
)
def test_a_row_that_names_a_url_is_no_file_and_nothing_is_fetched(
    table: Callable[[str], Path], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("fetched")

    monkeypatch.setattr(fsspec, "filesystem", never)
    with pytest.raises(SourceError, match=r"and nothing is downloaded|does not exist: leave such samples out"):
        find(table(url), columns={"file": "bin"})


names = st.lists(st.sampled_from(["a", "b", "..", ".", "", "in", "out", "inner"]), min_size=1, max_size=6)


@given(names, st.booleans())
@example(["a", "a", "..", "out"], False)
def test_what_is_found_lies_below_the_root_whatever_the_path(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str], absolute: bool
) -> None:
    top = tmp_path_factory.getbasetemp() / "world"
    root = top / "root"
    if not top.exists():
        for target in (top / "a", root / "a" / "b", root / "b"):
            target.mkdir(parents=True)
        (root / "in").symlink_to("a")
        (root / "out").symlink_to("..")
        (root / "a" / "inner").symlink_to(root)
        (root / "a" / "out").symlink_to(top / "a")
        (root / "self").symlink_to("self")
    path = f"{root}/{'/'.join(parts)}" if absolute else "/".join(parts)
    real = Path(os.path.realpath(os.path.join(root, path)))  # noqa: PTH118 - the oracle
    is_below = root.resolve() in real.parents
    with contextlib.nullcontext() if is_below else pytest.raises(SourceError, match="outside the folder"):
        Finder(str(root)).path("image", path)
