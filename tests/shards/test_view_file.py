"""Saved views: they open as they were made, name their data safely, and are refused where they are damaged."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wdsdist
from tests.support import tars
from tests.support.memory_store import Fault, MemoryStore
from tests.support.web import served
from wdsdist.errors import ArgumentError, DestinationError, IndexFormatError, StorageError
from wdsdist.shards.view_file import FORMAT, Picks


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data set of three shards in the folder ``data``."""
    folder = tmp_path / "data"
    folder.mkdir()
    for shard in range(3):
        members = [(f"{shard}-{sample}.txt", b"x" * sample) for sample in range(10)]
        (folder / f"{shard}.tar").write_bytes(tars.plain_tar(members))
    wdsdist.index(folder)
    return folder


@given(st.lists(st.integers(0, 29), max_size=60))
def test_picks_are_the_positions_that_they_were_made_of(positions: list[int]) -> None:
    counts = np.array([10, 0, 15, 5])
    picks = Picks.of_positions(counts, np.array(sorted(positions), np.int64))
    assert picks.positions().tolist() == sorted(positions)
    assert picks.counts.sum() == len(positions)
    assert np.concatenate([picks.of_shard(shard) for shard in range(4)]).tolist() == picks.numbers.tolist()


def test_a_saved_view_opens_as_it_was_made_and_leaves_the_shards_alone(folder: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    view = wdsdist.open(folder).select('"bytes" >= 7').repeat(2)
    path = view.save(tmp_path / "views" / "long")
    found = wdsdist.open(path)
    assert found.column("key").tolist() == view.column("key").tolist()
    assert (found.fingerprint, found.made_by) == (view.fingerprint, view.made_by)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    again = pickle.loads(pickle.dumps(found))
    assert again.column("key").tolist() == view.column("key").tolist()
    assert again.picks.path == str(path)  # mapped, not copied


def test_a_view_below_its_data_moves_with_it(folder: Path, tmp_path: Path) -> None:
    wdsdist.open(folder).select(sample=4).save(folder / "views" / "four")
    shutil.move(folder, tmp_path / "moved")
    assert wdsdist.open(tmp_path / "moved" / "views" / "four").num_samples == 4


def test_a_view_of_remote_data_is_opened_by_who_allows_it(folder: Path, tmp_path: Path) -> None:
    with served(folder) as web:
        path = wdsdist.open(web.url).select(sample=4).save(tmp_path / "views" / "four")
        web.asked.clear()
        with pytest.raises(IndexFormatError, match="allow_elsewhere=True"):
            wdsdist.open(path)
        assert not web.asked
        assert wdsdist.open(path, allow_elsewhere=True).num_samples == 4


@pytest.mark.parametrize("data", ["simplecache::s3://bucket/index.json", "reference://x", "a\nb", "http://h/x::y"])
def test_a_view_that_names_no_plain_location_is_refused_even_so(tmp_path: Path, data: str) -> None:
    picks = Picks.of_positions(np.array([2]), np.array([0]))
    header = {"data": data, "fingerprint": "", "made_by": []}
    (tmp_path / "view").write_bytes(FORMAT.dumps(header, picks))
    with pytest.raises(IndexFormatError):
        wdsdist.open(tmp_path / "view", allow_elsewhere=True)


def test_a_view_of_data_that_changed_is_refused(folder: Path, tmp_path: Path) -> None:
    path = wdsdist.open(folder).select(sample=4).save(tmp_path / "four")
    (folder / "1.tar").write_bytes(tars.plain_tar([("new.txt", b"x")]))
    (folder / "1.tar.wdsindex").unlink()
    wdsdist.index(folder)
    with pytest.raises(IndexFormatError, match="make it again"):
        wdsdist.open(path)


@pytest.mark.parametrize("parts", [1, 3])
@given(st.data())
def test_a_view_with_any_byte_changed_opens_alike_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, parts: int, data: st.DataObject
) -> None:
    root = tmp_path_factory.getbasetemp() / f"altered{parts}"
    if not root.exists():
        root.mkdir()
        (root / "0.tar").write_bytes(tars.plain_tar([(f"{n}.txt", b"x") for n in range(9)]))
        view = wdsdist.index(root).select(sample=5)
        (view if parts == 1 else view.explode(parts)).save(root / "view")
    whole = wdsdist.open(root / "view")
    content = bytearray((root / "view").read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    (root / "other").write_bytes(content)
    try:
        found = wdsdist.open(root / "other", allow_elsewhere=True)
    except (IndexFormatError, wdsdist.errors.NotFoundError):
        return
    assert found.fingerprint == whole.fingerprint
    assert all(found.column(name).tolist() == whole.column(name).tolist() for name in whole.columns)


MOST = 2**63 - 1


@pytest.mark.parametrize(
    "changed",
    [
        {"parts": np.array([0, 2, 2, 2, 0, 1], np.uint32)},  # the third part of two
        {"parts": np.zeros(2, np.uint32)},
        {"numbers": np.array([0, 10, 2], np.uint32)},  # the eleventh sample of ten
        {"starts": np.array([0, MOST, -MOST - 1, -1, 3])},  # each is one more than that before, in 64 bits
        {"starts": np.array([0, 1, 3])},
        {"stored_counts": np.array([10, 10, 10, -10])},
    ],
)
def test_a_view_whose_arrays_do_not_fit_together_is_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    arrays = {
        "stored_counts": np.full(4, 10), "starts": np.array([0, 1, 3, 3, 3]), "numbers": np.arange(3, dtype=np.uint32),
        "parts": np.array([0, 1, 0, 2, 1, 2], np.uint32),
    }  # fmt: skip
    header = {"data": "index.json", "fingerprint": "", "made_by": []}
    (tmp_path / "view").write_bytes(FORMAT.dumps(header, Picks(**arrays)))
    assert Picks.load(tmp_path / "view")[0].positions().tolist() == [0, 11, 12]
    (tmp_path / "view").write_bytes(FORMAT.dumps(header, Picks(**arrays | changed)))
    with pytest.raises(IndexFormatError, match="is a damaged view: its arrays do not fit together"):
        Picks.load(tmp_path / "view")


def test_what_cannot_be_saved_says_why(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="is not a view"):
        wdsdist.open(folder).save(tmp_path / "all")
    (folder / "index.json").unlink()
    unlisted = wdsdist.open([folder / "0.tar"]).select(sample=2)
    with pytest.raises(ArgumentError, match="run `wdsdist index`"):
        unlisted.save(tmp_path / "two")
    with pytest.raises(DestinationError, match="is a folder"):
        wdsdist.index(folder).select(sample=2).save(tmp_path)


def test_a_view_in_a_bucket_that_refuses_what_does_not_exist_is_opened(tmp_path: Path) -> None:
    wdsdist.pack(({"cls": n} for n in range(6)), tmp_path / "x")
    wdsdist.open(tmp_path / "x").select(sample=2).save(tmp_path / "x" / "two")
    with MemoryStore({path.name: path.read_bytes() for path in (tmp_path / "x").iterdir()}) as store:
        store.plant(Fault("two/*", "error", error=PermissionError("refused on purpose")))
        assert wdsdist.open(f"{store.url}/two").num_samples == 2
        store.plant(Fault("none*", "error", error=PermissionError("refused on purpose")))
        with pytest.raises(StorageError, match=r"none/index\.json cannot be read: .*access is refused"):
            wdsdist.open(f"{store.url}/none")
