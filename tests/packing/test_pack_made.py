"""Packing what Python makes: what comes out, for any number of processes."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wdsdist
from tests.support import made
from tests.support.packing import DataBytes
from tests.support.programs import command
from wdsdist.errors import ArgumentError, DestinationExistsError, SourceError
from wdsdist.packing import pack

SOURCES: dict[str, Callable[[], dict[str, Any]]] = {
    "data set": lambda: {"source": made.Squares(), "encode": made.encode},
    "iterable": lambda: {"source": made.samples()},
}


def test_one_process_asks_a_data_set_from_one_thread_only(tmp_path: Path) -> None:
    threads = set()

    def encode(item: Any) -> dict[str, Any]:
        threads.add(threading.get_ident())
        return made.encode(item)

    pack(made.Squares(), tmp_path / "dest", encode=encode, shard_samples=7, workers=1)
    assert len(threads - {threading.get_ident()}) == 1


@pytest.mark.parametrize(("count", "is_told"), [(63, False), (70, True)])
def test_what_is_kept_because_its_first_samples_are_the_same_is_told(
    count: int, is_told: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    samples = [{"cls": number} for number in range(200)]
    pack(iter(samples[:count]), tmp_path / "dest")
    assert not caplog.records
    again = pack(iter(samples[: 200 if is_told else count]), tmp_path / "dest")
    assert (again.num_samples, f"is kept as it is, with {count} samples" in caplog.text) == (count, is_told)
    assert pack(samples, tmp_path / "all", workers=1).num_samples == 200
    caplog.clear()
    pack([*samples[:3], {"cls": 7}, *samples[4:]], tmp_path / "all", workers=1)
    assert "by its length and some of its samples" in caplog.text


def test_a_job_that_prepares_its_data_is_not_warned_at_each_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    samples = [{"cls": number} for number in range(70)]
    pack(samples, tmp_path / "dest", workers=1)

    @wdsdist.data_download(directory=tmp_path / "records")
    def prepare() -> None:
        pack(samples, tmp_path / "dest", workers=1)

    with caplog.at_level("INFO", "wdsdist"):
        prepare()
    assert [record.levelname for record in caplog.records if "is kept as it is" in record.message] == ["INFO"]


@pytest.mark.parametrize("name", SOURCES)
def test_another_source_is_refused_and_may_be_replaced(name: str, tmp_path: Path, data_bytes: DataBytes) -> None:
    pack(**SOURCES[name](), dest=tmp_path / "dest", shard_samples=6)
    for lost in ("index.json", "shard-000003.tar"):  # the index of that shard is packing's own all the same
        (tmp_path / "dest" / lost).unlink()
    message = r"another data set \(it was packed from (tests\.support\.made\.Squares|generator samples), not list"
    with pytest.raises(DestinationExistsError, match=message):
        pack([{"txt": "other"}], tmp_path / "dest", shard_samples=6)
    pack([{"txt": "other"}], tmp_path / "dest", shard_samples=6, overwrite=True)
    pack([{"txt": "other"}], tmp_path / "fresh", shard_samples=6)
    assert data_bytes(tmp_path / "dest") == data_bytes(tmp_path / "fresh")


class TestADataSet:
    def test_files_that_it_opens_late_are_not_shared_by_workers(self, tmp_path: Path) -> None:
        (tmp_path / "numbers").write_bytes(np.arange(100_000, dtype="<u4").tobytes())

        class Numbers(made.Squares):
            stream: Any = None

            def __getitem__(self, index: int) -> Any:
                if self.stream is None:
                    self.stream = (tmp_path / "numbers").open("rb", buffering=0)
                self.stream.seek(4000 * index)
                return np.frombuffer(b"".join(self.stream.read(4) for _ in range(1000)), "<u4")

        pack(Numbers(100), tmp_path / "dest", encode=lambda item: {"npy": item}, shard_samples=5, workers=3)
        dataset = wdsdist.StreamingDataset(tmp_path / "dest", decode=True)
        for sample in map(dataset.__getitem__, range(100)):
            start = 1000 * int(sample["__key__"])
            assert sample["npy"].tolist() == list(range(start, start + 1000))

    def test_beside_a_thread_what_cannot_travel_is_packed_by_one_process(
        self, tmp_path: Path, data_bytes: DataBytes, thread: None, caplog: pytest.LogCaptureFixture
    ) -> None:
        pack(made.Squares(), tmp_path / "named", shard_samples=6, workers=2, encode=made.encode)
        pack(made.Squares(), tmp_path / "not", shard_samples=6, workers=2, encode=lambda item: made.encode(item))
        assert data_bytes(tmp_path / "named") == data_bytes(tmp_path / "not")
        [message] = caplog.messages
        assert message.startswith("working in one process: this one has threads, so that it must not fork, and what is")
        assert "does not pickle" in message

    @pytest.mark.parametrize("workers", [1, 2])
    def test_an_item_that_cannot_be_had_is_named(self, tmp_path: Path, workers: int) -> None:
        class Broken(made.Squares):
            def __getitem__(self, index: int) -> Any:
                if index == 130:
                    raise RuntimeError("no such photo")
                return super().__getitem__(0)

        with pytest.raises(SourceError, match=r"^item 130 of .*Broken cannot be read: RuntimeError: no such photo$"):
            pack(
                Broken(500), tmp_path / "dest", encode=lambda item: {"npy": item[0]}, shard_samples=50, workers=workers
            )
        assert not (tmp_path / "dest" / "index.json").exists()
        assert not list((tmp_path / "dest").glob(".tmp-*"))


class TestAnIterable:
    @given(
        sizes=st.lists(st.integers(0, 4000), min_size=1, max_size=60),
        room=st.integers(1, 20_000) | st.integers(1, 40).map(lambda blocks: 512 * blocks),
        limit=st.none() | st.integers(1, 12),
    )
    def test_shards_are_cut_as_those_of_a_list_in_its_order(
        self, tmp_path_factory: pytest.TempPathFactory, sizes: list[int], room: int, limit: int | None
    ) -> None:
        root = tmp_path_factory.mktemp("cut")
        for number, size in enumerate(sizes):
            (root / "files").mkdir(exist_ok=True)
            (root / "files" / f"{number:09}.bin").write_bytes(bytes(size))
        options: dict[str, Any] = {"shard_bytes": room, "shard_samples": limit, "shuffle_seed": None}
        planned = pack(root / "files", root / "planned", workers=1, **options)
        streamed = pack(({"bin": bytes(size)} for size in sizes), root / "streamed", **options)
        assert list(streamed.shards) == list(planned.shards)

    def test_an_explicit_seed_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(
            ArgumentError,
            match=r"^shuffle_seed is given, but generator samples can be read in one order only",
        ):
            pack(made.samples(), tmp_path / "dest", shuffle_seed=0)
        assert pack(made.samples(), tmp_path / "dest").extra["shuffle_seed"] is None

    @pytest.mark.parametrize("keys", ["aab", "aba"])
    def test_keys_that_would_merge_samples_are_refused(self, tmp_path: Path, keys: str) -> None:
        samples = [{"__key__": key, "txt": "x"} for key in keys]
        for source in (iter(samples), samples):
            with pytest.raises(SourceError, match=r"^sample 'a' is there twice: each needs a key of its own"):
                pack(source, tmp_path / "dest", shuffle_seed=None)


class TestAnIterableThatFails:
    def samples(self, length: int, *, stop: int | None = None, other: int | None = None) -> Iterator[dict[str, Any]]:
        for number in range(length):
            if number == stop:
                raise ConnectionError("gone away")
            yield {"txt": f"{number:04}" if number != other else "5555"}

    def test_its_exception_is_the_cause_and_the_same_again_goes_on(self, tmp_path: Path, data_bytes: DataBytes) -> None:
        dest = tmp_path / "dest"
        with pytest.raises(SourceError, match=r"failed at sample 87: ConnectionError: gone away$") as error:
            pack(self.samples(200, stop=87), dest, shard_samples=20)
        assert isinstance(error.value.__cause__, ConnectionError)
        tars = sorted(dest.glob("*.tar"))
        assert len(tars) == 4
        assert not list(dest.glob(".tmp-*"))
        assert not (dest / "index.json").exists()

        pack(self.samples(200), dest, shard_samples=20)
        pack(self.samples(200), tmp_path / "undisturbed", shard_samples=20)
        assert data_bytes(dest) == data_bytes(tmp_path / "undisturbed")

    @pytest.mark.parametrize("again", [{"length": 200, "other": 70}, {"length": 75}])
    def test_other_samples_than_those_of_an_interrupted_run_replace_its_shards(
        self, tmp_path: Path, data_bytes: DataBytes, again: dict[str, int]
    ) -> None:
        dest = tmp_path / "dest"
        with pytest.raises(SourceError):
            pack(self.samples(200, stop=87), dest, shard_samples=10)
        pack(self.samples(**again), dest, shard_samples=10)
        pack(self.samples(**again), tmp_path / "undisturbed", shard_samples=10)
        assert data_bytes(dest) == data_bytes(tmp_path / "undisturbed")
        assert wdsdist.verify(dest, workers=1) == []


@pytest.mark.parametrize("count", [50_000, pytest.param(300_000, marks=pytest.mark.slow)])
def test_memory_does_not_grow_with_the_samples_of_an_iterable(tmp_path: Path, count: int) -> None:
    program = command("packing_memory", count, tmp_path / "dest")
    early, late = map(int, subprocess.run(program, capture_output=True, text=True, check=True).stdout.split())
    assert late - early < 4 << 20, f"{early:,} bytes after 20,000 samples, {late:,} after {count:,}"
