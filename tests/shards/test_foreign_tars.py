"""What a reader of other people's shards must handle, case by case, from the tar to the samples."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

import wdsdist
from tests.support.sources import Shards
from tests.support.tars import plain_tar
from wdsdist.diagnostics.exports import export
from wdsdist.errors import ArgumentError, ShardDamagedError

Samples = list[tuple[str, dict[str, bytes]]]


def index(folder: Path, **tars: bytes) -> wdsdist.Manifest:
    """Write some tars and index them."""
    for name, content in tars.items():
        (folder / f"{name}.tar").write_bytes(content)
    return wdsdist.index(folder, workers=1)


def samples(manifest: wdsdist.Manifest) -> Samples:
    """Read every sample."""
    return list(Shards(wdsdist.open(manifest.base)).samples())


def test_extensions_are_matched_in_lower_case_and_stored_as_they_are(tmp_path: Path) -> None:
    made = index(tmp_path, x=plain_tar([("a.JPG", b"1"), ("a.Cls", b"2")]))
    assert samples(made) == [("a", {"jpg": b"1", "cls": b"2"})]
    assert Shards(made).shard(0).index.extensions == ("JPG", "Cls")


def test_what_belongs_to_no_sample_is_counted_in_the_report(tmp_path: Path) -> None:
    names = ["a.jpg", ".hidden", "none", "__meta__/info.json", "folder/.b.jpg"]
    made = index(tmp_path, x=plain_tar((name, b"1") for name in names))
    assert samples(made) == [("a", {"jpg": b"1"})]
    assert made.extra["skipped"] == {"name without a key and an extension": 4}


def test_extended_headers_that_a_tool_left_as_files_are_no_samples(tmp_path: Path) -> None:
    names = [
        "a/PaxHeaders.17/1.jpg",
        "a/1.jpg",
        "./PaxHeaders/2.jpg",
        "PaxHeader/3.jpg",
        "a/2.jpg",
        "NoPaxHeaders/3.jpg",
    ]
    (tmp_path / "tars").mkdir()
    made = index(tmp_path / "tars", x=plain_tar((name, b"1") for name in names))
    assert [key for key, _ in samples(made)] == ["a/1", "a/2", "NoPaxHeaders/3"]
    assert made.extra["skipped"] == {"PAX header that was extracted to a file": 3}
    assert wdsdist.verify(made) == []


def test_samples_that_are_scattered_over_a_tar_are_read_where_they_lie_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = [f"{number}.{extension}" for extension in ("wav", "txt") for number in range(5)]
    (tmp_path / "tars").mkdir()
    made = index(tmp_path / "tars", x=plain_tar([*((name, name.encode()) for name in names), ("z.wav", b"z.wav")]))
    expected = [(f"{n}", {"wav": b"%d.wav" % n, "txt": b"%d.txt" % n}) for n in range(5)] + [("z", {"wav": b"z.wav"})]
    assert samples(made) == expected
    assert made.extra["scattered"] == 5
    assert "the members of 5 samples do not follow one another" in caplog.text
    assert wdsdist.verify(made) == []
    assert samples(wdsdist.pack(tmp_path / "tars", tmp_path / "packed", shuffle_seed=None, workers=1)) == [
        (key, dict(sorted(members.items()))) for key, members in expected
    ]
    with pytest.raises(ArgumentError, match=r"wids reads whole tars from start to end.*`wdsdist pack`"):
        export(made, "wids")
    assert export(made, "dali")


def test_empty_members_empty_tars_and_tars_without_samples_are_fine(tmp_path: Path) -> None:
    made = index(tmp_path, a=plain_tar([]), b=plain_tar([("none", b"1")]), c=plain_tar([("a.jpg", b"")]))
    assert [shard.num_samples for shard in made.shards] == [0, 0, 1]
    assert samples(made) == [("a", {"jpg": b""})]
    assert wdsdist.verify(tmp_path) == []


@pytest.mark.parametrize("name", ["x.tar.gz", "x.tzst", "x.tbz", "x.tar.Z"])
def test_what_only_bears_the_name_of_a_compressed_shard_is_damage_and_never_passed_over(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "a.tar").write_bytes(plain_tar([("a.jpg", b"1")]))
    (tmp_path / name).write_bytes(b"compressed")
    what = rf"{name} is not compressed by gzip or zstd: fetch it again, or unpack it to a plain \.tar"
    with pytest.raises(ShardDamagedError, match=what):
        wdsdist.index(tmp_path)


def test_a_compressed_tar_under_a_plain_name_is_not_called_damaged(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(gzip.compress(plain_tar([("a.txt", b"1")])))
    what = r"x\.tar is compressed by gzip, but its name does not say so: rename it, .*, or decompress it"
    with pytest.raises(ShardDamagedError, match=f"{what}$"):
        wdsdist.index(tmp_path)
