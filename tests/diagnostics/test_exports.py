"""The indexes of other tools say where ``tarfile`` finds the members; wids reads its own."""

from __future__ import annotations

import json
import struct
import tarfile
from pathlib import Path

import pytest

import wdsdist
from tests.support.tars import file_entry, plain_tar, tar_bytes
from wdsdist.errors import ArgumentError, DestinationError, SampleError, ShardDamagedError

LONG = "folder/" + "n" * 120


def shard(prefix: str, form: int) -> bytes:
    """A tar with what moves offsets: long names, folders between samples, files that are not samples."""
    members: list[tuple[str, bytes]] = []
    for number in range(5):
        key = f"{LONG}{number}" if number == 3 and form != tarfile.USTAR_FORMAT else f"{prefix}/{number}"
        members += [(f"{key}.jpg", bytes([number]) * 700 * number), (f"{key}.seg.png", b"png"), (f"{key}.cls", b"3")]
    entries = [(file_entry(name, len(data)), data) for name, data in members]
    entries.insert(0, (file_entry(prefix, 0, type=tarfile.DIRTYPE), b""))
    entries.insert(4, (file_entry("README", 6), b"readme"))
    entries.append((file_entry("last", 0, type=tarfile.DIRTYPE), b""))
    return tar_bytes(entries, format=form)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    folder = tmp_path / "shards"
    folder.mkdir()
    for number, form in enumerate((tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)):
        (folder / f"s-{number}.tar").write_bytes(shard(f"s{number}", form))
    (folder / "s-3.tar").write_bytes(plain_tar([]))
    wdsdist.index(folder, workers=1)
    return folder


def samples_of(path: Path) -> list[list[tarfile.TarInfo]]:
    """The members of each sample, as tarfile reads them."""
    samples: dict[str, list[tarfile.TarInfo]] = {}
    with tarfile.open(path) as tar:
        for entry in tar:
            if entry.isreg() and "." in entry.name:
                samples.setdefault(entry.name[: entry.name.index(".")], []).append(entry)
    return list(samples.values())


def tars(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.tar"))


def test_dali_finds_each_member_where_tarfile_does(shards: Path) -> None:
    made = wdsdist.export(shards, "dali")
    assert made == [path.with_suffix(".idx") for path in tars(shards)]
    for path in tars(shards):
        # The grammar of DALI's reader: a version and a count, then words in fours, one line a sample.
        first, *lines = path.with_suffix(".idx").read_text().splitlines()
        found = [list(zip(*[iter(line.split(" "))] * 4, strict=True)) for line in lines]
        assert first == f"v1.2 {len(lines)}"
        assert found == [
            [(entry.name.partition(".")[2], str(entry.offset_data), str(entry.size), entry.name) for entry in sample]
            for sample in samples_of(path)
        ]
        assert all(int(offset) % 512 == 0 for line in found for _, offset, _, _ in line)


def test_energon_finds_each_sample_where_tarfile_does(shards: Path) -> None:
    made = wdsdist.export(shards, "energon", workers=2)
    assert {path.relative_to(shards).as_posix() for path in made} == {
        "s-0.tar.idx", "s-1.tar.idx", "s-2.tar.idx", "s-3.tar.idx", ".nv-meta/.info.json", ".nv-meta/split.yaml",
    }  # fmt: skip
    for path in tars(shards):
        content = path.with_suffix(".tar.idx").read_bytes()
        with tarfile.open(path) as tar:
            tar.getmembers()
            end = tar.offset
        assert list(struct.unpack(f"={len(content) // 8}Q", content)) == [
            *(sample[0].offset for sample in samples_of(path)),
            end,
        ]
    info = json.loads((shards / ".nv-meta" / ".info.json").read_text())
    splits = json.loads((shards / ".nv-meta" / "split.yaml").read_text())
    assert info["shard_counts"] == {"s-0.tar": 5, "s-1.tar": 5, "s-2.tar": 5, "s-3.tar": 0}
    assert splits["split_parts"] == {"train": list(info["shard_counts"]), "val": [], "test": []}


def test_a_tar_that_is_not_what_its_index_says_gets_no_index_of_energon(shards: Path) -> None:
    path = shards / "s-1.tar"
    content, start = bytearray(path.read_bytes()), samples_of(path)[2][0].offset
    content[start : start + 4] = b"else"
    path.write_bytes(content)
    with pytest.raises(ShardDamagedError, match=r"s-1\.tar does not hold what its index says"):
        wdsdist.export(shards, "energon", workers=1)
    assert not list(shards.glob("*.idx"))


def test_wids_reads_its_index(shards: Path) -> None:
    import wids

    (made,) = wdsdist.export(shards, "wids")
    found = wids.ShardListDataset(str(made), base=str(shards), cache_dir=str(shards), keep=True, transformations=[])
    assert len(found) == 15
    first = sorted(entry.name for entry in samples_of(shards / "s-1.tar")[0])
    assert sorted(f"{found[5]['__key__']}{name}" for name in found[5] if name.startswith(".")) == first
    assert wdsdist.open(made).num_samples == 15


def test_timm_names_shards_with_their_samples(shards: Path) -> None:
    (made,) = wdsdist.export(shards, "timm", split="validation")
    assert made == shards / "_info.json"
    split = json.loads(made.read_text())["splits"]["validation"]
    # What timm.data.readers.reader_wds asks of a split.
    assert split["num_samples"] == sum(split["shard_lengths"]) == 15
    assert dict(zip(split["filenames"], split["shard_lengths"], strict=True)) == {
        "s-0.tar": 5, "s-1.tar": 5, "s-2.tar": 5, "s-3.tar": 0,
    }  # fmt: skip
    assert split["name"] == "validation"


@pytest.mark.parametrize("form", ["dali", "wids", "timm"])
def test_an_index_elsewhere_names_the_shards_in_full(shards: Path, tmp_path: Path, form: str) -> None:
    made = wdsdist.export(shards, form, output=tmp_path / "own" / "place")
    assert {path.parent for path in made} == {tmp_path / "own" / "place"}
    if form != "dali":
        assert str(shards / "s-0.tar") in made[0].read_text()


def test_what_a_format_cannot_hold_is_refused(shards: Path, tmp_path: Path) -> None:
    (tmp_path / "blank").mkdir()
    (tmp_path / "blank" / "x.tar").write_bytes(plain_tar([("a b.jpg", b"1")]))
    (tmp_path / "file").touch()
    for arguments, error, message in [
        ({"shards": tmp_path / "blank" / "x.tar", "format": "dali"}, SampleError, r"'a b\.jpg': .*blank"),
        ({"shards": shards, "format": "energon", "output": tmp_path}, ArgumentError, "beside the shards"),
        ({"shards": shards, "format": "energon", "split": "validation"}, ArgumentError, "Energon knows 'train', 'val'"),
        ({"shards": shards, "format": "mosaic"}, ArgumentError, "it can be 'dali', 'energon', 'wids', 'timm'"),
        ({"shards": shards, "format": "timm", "output": "memory://x"}, ArgumentError, "is remote"),
        (
            {"shards": shards, "format": "timm", "output": tmp_path / "file" / "x"},
            DestinationError,
            "cannot be written",
        ),
    ]:
        with pytest.raises(error, match=message):
            wdsdist.export(**arguments)
