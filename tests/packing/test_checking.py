"""Samples that lack a field, do not decode, or are listed in a quarantine file are found before training."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import wdsdist
from tests.support import forked
from tests.support.photos import encode, photo
from wdsdist.errors import ArgumentError, SourceError
from wdsdist.packing import pack
from wdsdist.shards import quarantine
from wdsdist.shards.quarantine import BadEntry, Quarantine

IMAGE = encode(photo(60, 90))
ZERO, CUT, PAGE, BARE, NO_TEXT, NOT_JSON = 3, 4, 5, 6, 7, 8
COUNT = 20


def members_of(number: int) -> dict[str, bytes]:
    found = {"jpg": IMAGE, "txt": b"text %d" % number, "json": b'{"a": 1}'}
    found |= {ZERO: {"jpg": b""}, CUT: {"jpg": IMAGE[: len(IMAGE) // 2]}, PAGE: {"jpg": b"<html>not found</html>"},
              BARE: {"txt": b""}, NOT_JSON: {"json": b"{"}}.get(number, {})  # fmt: skip
    return {name: data for name, data in found.items() if (number, name) != (NO_TEXT, "txt")}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    for number in range(COUNT):
        for extension, data in members_of(number).items():
            (folder / f"{number:04}.{extension}").write_bytes(data)
    return folder


@pytest.fixture
def shards(files: Path, tmp_path: Path) -> Path:
    pack(files, tmp_path / "shards", shard_samples=6)
    return tmp_path / "shards"


def keys(folder: Path) -> set[int]:
    found = set()
    for path in folder.glob("*.tar"):
        with tarfile.open(path) as tar:
            found |= {int(name.partition(".")[0]) for name in tar.getnames()}
    return found


def without(*numbers: int) -> set[int]:
    return set(range(COUNT)) - set(numbers)


def reasons(folder: Path) -> dict[int, str]:
    lines = map(json.loads, (folder / "pack-report.jsonl").read_text().splitlines())
    return {int(one["key"]): one["reason"] for one in lines}


class TestChecks:
    @pytest.mark.parametrize("source", ["files", "shards"])
    @pytest.mark.parametrize(
        ("options", "left_out"),
        [
            ({"check_decode": True}, {ZERO, CUT, PAGE, NOT_JSON}),
            ({"fields": ("jpg", "txt")}, {ZERO, BARE, NO_TEXT}),
            ({"fields": ("image", "txt?"), "check_decode": True}, {ZERO, CUT, PAGE}),
            ({"fields": ("jpg;png", "txt"), "check_decode": True}, {ZERO, CUT, PAGE, BARE, NO_TEXT}),
        ],
    )
    def test_what_fails_is_left_out_whole_and_listed(
        self, options: dict[str, Any], left_out: set[int], source: str, tmp_path: Path, request: pytest.FixtureRequest
    ) -> None:
        given, dest = request.getfixturevalue(source), tmp_path / "dest"
        manifest = pack(given, dest, on_error="skip", workers=1, **options)
        assert keys(dest) == without(*left_out)
        assert set(reasons(dest)) == left_out
        assert pack(given, dest, on_error="skip", workers=1, **options).fingerprint == manifest.fingerprint
        with pytest.raises(SourceError, match=r"leave such samples out with --on-error skip"):
            pack(given, tmp_path / "raising", workers=1, **options)

    def test_each_reason_names_the_member(self, files: Path, tmp_path: Path) -> None:
        pack(files, tmp_path / "dest", on_error="skip", fields=("jpg", "txt"), check_decode=True, workers=1)
        found = reasons(tmp_path / "dest")
        assert found[ZERO].startswith("0003.jpg: is empty")
        assert found[CUT].startswith("0004.jpg: a JPEG of ")
        assert found[PAGE].startswith("0005.jpg: 22 bytes are no image")
        assert found[NO_TEXT].startswith("sample '0007': has no member 'txt'")

    def test_other_options_are_another_job(self, files: Path, tmp_path: Path) -> None:
        pack(files, tmp_path / "dest", on_error="skip", fields=("jpg",), workers=1)
        with pytest.raises(wdsdist.errors.DestinationExistsError, match="fields=jpg, not None"):
            pack(files, tmp_path / "dest", workers=1)

    def test_a_stream_is_checked_as_it_comes(self, tmp_path: Path) -> None:
        def samples() -> Iterator[dict[str, Any]]:
            for number in range(COUNT):
                yield {"__key__": f"{number:04}", **members_of(number)}

        pack(samples, tmp_path / "dest", on_error="skip", check_decode=True)
        assert keys(tmp_path / "dest") == without(ZERO, CUT, PAGE, NOT_JSON)

    @pytest.mark.parametrize("side", [10, 60, 90, 5000])
    def test_scaling_down_finds_the_same_images_whatever_the_limit(
        self, side: int, files: Path, tmp_path: Path
    ) -> None:
        pack(files, tmp_path / "dest", on_error="skip", max_side=side, workers=1)
        assert keys(tmp_path / "dest") == without(ZERO, CUT, PAGE)

    def test_options_that_cannot_work_are_refused(self, files: Path, tmp_path: Path) -> None:
        with pytest.raises(ArgumentError, match="no image is decoded: give max_side, store or check_decode too"):
            pack(files, tmp_path / "dest", max_pixels=10)
        with pytest.raises(SourceError, match="more than max_pixels, 10"):
            pack(files, tmp_path / "dest", max_pixels=10, check_decode=True, workers=1)


class TestVerify:
    @pytest.mark.parametrize("workers", [1, 2])
    def test_deep_verification_of_fields_lists_what_training_would_find(
        self, workers: int, shards: Path, tmp_path: Path
    ) -> None:
        for _ in range(2):
            found = wdsdist.verify(
                shards, deep=True, fields=("jpg", "txt"), quarantine=tmp_path / "bad.jsonl", workers=workers
            )
        assert len(found) == 5
        assert {damage.part for damage in found} == {"member"}
        dataset = wdsdist.StreamingDataset(
            shards, fields=("jpg", "txt"), decode="rgb8", on_error="replace", quarantine=tmp_path / "trained.jsonl"
        )
        assert len(list(dataset)) == COUNT
        listed, trained = (
            {(one.identity, one.field): one.reason for one in quarantine.read(tmp_path / name)}
            for name in ("bad.jsonl", "trained.jsonl")
        )
        assert listed == trained
        assert len(quarantine.read(tmp_path / "bad.jsonl")) == 5

    def test_fields_alone_are_looked_up_without_decoding(self, shards: Path) -> None:
        problems = [damage.problem for damage in wdsdist.verify(shards, fields=("jpg", "txt"), workers=1)]
        assert len(problems) == 3
        assert "holds sample '0007', which has no member 'txt': it has jpg, json" in problems

    def test_a_quarantine_file_needs_something_to_find(self, shards: Path) -> None:
        with pytest.raises(ArgumentError, match="samples are not looked at: pass deep= or fields= too"):
            wdsdist.verify(shards, quarantine="bad.jsonl")

    def test_on_the_command_line(self, shards: Path, tmp_path: Path) -> None:
        path = tmp_path / "bad.jsonl"
        options = ("--deep", "--fields", "jpg, txt?", "--quarantine", path)
        assert forked.run("-m", "wdsdist", "verify", shards, *options).returncode == 1
        assert {int(one.key) for one in quarantine.read(path)} == {ZERO, CUT, PAGE}
        dest = tmp_path / "dest"
        result = forked.run("-m", "wdsdist", "pack", shards, dest, "--exclude", path)
        assert "excluded: 3 samples, by the file of --exclude" in result.stdout
        assert keys(dest) == without(ZERO, CUT, PAGE)


class TestExclude:
    @pytest.fixture
    def listed(self, shards: Path, tmp_path: Path) -> Path:
        wdsdist.verify(shards, deep=True, quarantine=tmp_path / "bad.jsonl", workers=1)
        return tmp_path / "bad.jsonl"

    @pytest.mark.parametrize("source", ["files", "shards"])
    def test_what_is_listed_is_not_packed(
        self, source: str, listed: Path, tmp_path: Path, request: pytest.FixtureRequest
    ) -> None:
        given, dest = request.getfixturevalue(source), tmp_path / "dest"
        manifest = pack(given, dest, exclude=listed, shard_samples=5)
        assert keys(dest) == without(ZERO, CUT, PAGE, NOT_JSON)
        assert manifest.extra["excluded"] == 4
        assert manifest.counts.tolist() == [5, 5, 5, 1]
        assert not (dest / "pack-report.jsonl").exists()
        assert wdsdist.verify(dest, deep=True, workers=1) == []
        (dest / "shard-000002.tar").unlink()
        assert pack(given, dest, exclude=listed, shard_samples=5).fingerprint == manifest.fingerprint

    def test_of_shards_a_key_is_that_of_its_own_shard(self, tmp_path: Path) -> None:
        for name in ("a", "b"):
            pack([{"__key__": "k", "txt": name}, {"__key__": f"other{name}", "txt": "x"}], tmp_path / name)
            (tmp_path / name / "shard-000000.tar").rename(tmp_path / f"{name}.tar")
        manifest = wdsdist.index([tmp_path / "a.tar", tmp_path / "b.tar"])
        path = tmp_path / "bad.jsonl"
        Quarantine(str(path)).add([BadEntry("k", "b.tar", fingerprint=manifest.fingerprint)])
        pack([tmp_path / "a.tar", tmp_path / "b.tar"], tmp_path / "dest", exclude=path)
        found = [sample["txt"] for sample in wdsdist.StreamingDataset(tmp_path / "dest", decode=True)]
        assert sorted(found) == ["a", "x", "x"]

    def test_a_report_of_packing_is_taken_too(self, files: Path, tmp_path: Path) -> None:
        pack(files, tmp_path / "first", on_error="skip", check_decode=True, workers=1)
        pack(files, tmp_path / "dest", exclude=tmp_path / "first" / "pack-report.jsonl", workers=1)
        assert keys(tmp_path / "dest") == without(ZERO, CUT, PAGE, NOT_JSON)

    def test_of_a_stream(self, listed: Path, tmp_path: Path) -> None:
        given = ({"__key__": f"{number:04}", "txt": "x"} for number in range(COUNT))
        manifest = pack(given, tmp_path / "dest", exclude=listed)
        assert keys(tmp_path / "dest") == without(ZERO, CUT, PAGE, NOT_JSON)
        assert manifest.extra["excluded"] == 4

    def test_of_a_table(self, listed: Path, tmp_path: Path) -> None:
        rows = [f"{number:04},text {number}" for number in range(COUNT)]
        (tmp_path / "t.csv").write_text("\n".join(["id,text", *rows]) + "\n")
        pack(tmp_path / "t.csv", tmp_path / "dest", exclude=listed)
        assert keys(tmp_path / "dest") == without(ZERO, CUT, PAGE, NOT_JSON)

    def test_of_class_folders_with_notes_beside_them(self, tmp_path: Path) -> None:
        for name in ("a/1.jpg", "a/2.jpg", "b/3.jpg", "README.txt"):
            (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "photos" / name).write_bytes(IMAGE)
        Quarantine(str(tmp_path / "bad.jsonl")).add([BadEntry("a/2")])
        manifest = pack(tmp_path / "photos", tmp_path / "dest", exclude=tmp_path / "bad.jsonl", shuffle_seed=None)
        assert manifest.extra["excluded"] == 1
        assert manifest.column("key").tolist() == ["a/1", "b/3"]

    def test_of_a_table_whose_keys_are_numbers(self, tmp_path: Path) -> None:
        Quarantine(str(tmp_path / "bad.jsonl")).add([BadEntry("000000003")])
        (tmp_path / "t.csv").write_text("text\n" + "\n".join(map(str, range(COUNT))) + "\nx\n")
        pack(tmp_path / "t.csv", tmp_path / "dest", exclude=tmp_path / "bad.jsonl")
        assert keys(tmp_path / "dest") == set(range(COUNT + 1)) - {3}

    def test_a_data_set_is_asked_for_its_keys_in_a_process_of_its_own(self, listed: Path, tmp_path: Path) -> None:
        class Texts:
            process = os.getpid()

            def __len__(self) -> int:
                return COUNT

            def __getitem__(self, index: int) -> dict[str, str]:
                assert os.getpid() != self.process, "workers would inherit what it opens"
                return {"__key__": f"{index:04}", "txt": "x"}

        manifest = pack(Texts(), tmp_path / "dest", exclude=listed, shard_samples=5, workers=2)
        assert keys(tmp_path / "dest") == without(ZERO, CUT, PAGE, NOT_JSON)
        assert manifest.extra["excluded"] == 4

    def test_another_list_is_another_job(self, listed: Path, files: Path, tmp_path: Path) -> None:
        pack(files, tmp_path / "dest", exclude=listed)
        with pytest.raises(wdsdist.errors.DestinationExistsError, match=r"exclude=4 samples, [0-9a-f]+, not None"):
            pack(files, tmp_path / "dest")

    def test_a_list_of_others_is_told(self, files: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        Quarantine(str(tmp_path / "bad.jsonl")).add([BadEntry("nobody")])
        pack(files, tmp_path / "dest", exclude=tmp_path / "bad.jsonl")
        assert "bad.jsonl lists 1 samples, none of which is in" in caplog.text

    def test_where_all_are_listed_nothing_is_left(self, files: Path, tmp_path: Path) -> None:
        Quarantine(str(tmp_path / "bad.jsonl")).add(BadEntry(f"{number:04}") for number in range(COUNT))
        with pytest.raises(SourceError, match=r"lists all 20 samples of .*: nothing is left"):
            pack(files, tmp_path / "dest", exclude=tmp_path / "bad.jsonl")
