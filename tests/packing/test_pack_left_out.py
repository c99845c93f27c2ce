"""Samples that cannot be packed: an error, or left out wholly and reported."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.packing import files_in, packed_members
from wdsdist.diagnostics.verify import verify
from wdsdist.errors import SourceError
from wdsdist.packing import pack, writer
from wdsdist.packing.destination import Destination
from wdsdist.packing.members import FilePayload, Sample


def report(dest: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (dest / "pack-report.jsonl").read_text().splitlines()]


def content(source: Path, *, but: set[str]) -> dict[str, bytes]:
    return {name: data for name, data in files_in(source).items() if name.partition(".")[0] not in but}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("most", [50_000, writer.BUFFER + 50_000])  # bytes of a file: written with others, or alone
def test_samples_that_cannot_be_read_are_left_out_whole(
    source: Path, tmp_path: Path, before_writing: Callable[..., None], workers: int, most: int
) -> None:
    (source / "part2/xxxxx/0038.huge").write_bytes(bytes(most))
    vanished, longer, shorter = (source / f"part0/xxxxx/{name}" for name in ("0003.bin", "0006.meta.json", "0009.bin"))
    large = source / "part2/xxxxx/0038.huge"

    def change() -> None:
        vanished.unlink()
        longer.write_bytes(bytes(512))
        shorter.write_bytes(b"")
        large.write_bytes(bytes(most - 1))

    before_writing(change)
    manifest = pack(source, tmp_path / "dest", shard_samples=5, workers=workers, on_error="skip")
    lost = {"part0/xxxxx/0003", "part0/xxxxx/0006", "part0/xxxxx/0009", "part2/xxxxx/0038"}
    assert packed_members(tmp_path / "dest") == content(source, but=lost)
    reasons = {one["key"]: one["reason"] for one in report(tmp_path / "dest")}
    assert reasons.keys() == lost
    assert reasons["part0/xxxxx/0003"].startswith("part0/xxxxx/0003.bin has vanished since it was listed")
    assert reasons["part0/xxxxx/0006"].startswith("part0/xxxxx/0006.meta.json has 512 bytes, but had 13 when")
    assert reasons["part0/xxxxx/0009"].startswith("part0/xxxxx/0009.bin has 0 bytes, but had")
    assert manifest.extra["left_out"] == 4
    assert manifest.num_samples == 41 - 4
    assert verify(tmp_path / "dest") == []
    for one in report(tmp_path / "dest"):
        assert (tmp_path / "dest" / one["shard"]).exists()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("size", "message"),
    [(None, "vanished since it was"), (10, "10 bytes, but had 211"), (5000, "5,000 bytes, but had")],
)
def test_by_default_a_file_that_changes_is_an_error_and_nothing_half_stays(
    source: Path, tmp_path: Path, before_writing: Callable[..., None], workers: int, size: int | None, message: str
) -> None:
    file = source / "part0/xxxxx/0003.bin"
    before_writing(file.unlink if size is None else lambda: file.write_bytes(bytes(size)))
    with pytest.raises(SourceError, match=f"{file} has {message}"):
        pack(source, tmp_path / "dest", shard_samples=5, workers=workers)
    assert not [path for path in (tmp_path / "dest").iterdir() if path.name.startswith((".tmp-", "index"))]


def test_a_file_that_fails_in_the_middle_leaves_nothing_of_its_sample(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / "part0/xxxxx/0003.huge").write_bytes(os.urandom(3 * writer.BUFFER))
    real = os.preadv

    def fail(descriptor: int, buffers: Any, offset: int) -> int:
        if offset >= writer.BUFFER and Path(f"/proc/self/fd/{descriptor}").readlink().suffix == ".huge":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", fail)
    pack(source, tmp_path / "dest", workers=1, on_error="skip")
    assert packed_members(tmp_path / "dest") == content(source, but={"part0/xxxxx/0003"})
    assert verify(tmp_path / "dest") == []
    [one] = report(tmp_path / "dest")
    assert one["reason"] == "part0/xxxxx/0003.huge cannot be read: Input/output error"


def test_a_run_that_stopped_goes_on_with_leaving_out_and_keeps_its_shards(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dest = tmp_path / "dest"
    real = os.open

    def refuse(path: Any, *args: Any, **options: Any) -> int:
        if str(path).endswith("0003.bin"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real(path, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(SourceError, match=r"0003\.bin cannot be read: Permission denied"):
            pack(source, dest, shard_samples=5, workers=1)
        whole = {path.name: path.stat().st_ino for path in dest.glob("*.tar")}
        assert whole
        manifest = pack(source, dest, shard_samples=5, workers=1, on_error="skip")
        assert manifest.extra["left_out"] == 1
        inodes = {path.name: path.stat().st_ino for path in dest.glob("*.tar")}
        assert {name: inodes[name] for name in whole} == whole

        # Again: finished. Without its index.json: nothing is written but that.
        assert pack(source, dest, shard_samples=5, workers=1, on_error="skip").fingerprint == manifest.fingerprint
        (dest / "index.json").unlink()
        assert pack(source, dest, shard_samples=5, workers=1, on_error="skip").fingerprint == manifest.fingerprint
        assert {path.name: path.stat().st_ino for path in dest.glob("*.tar")} == inodes
        assert len(report(dest)) == 1

        # Who wants no sample left out is not given such a data set.
        with pytest.raises(SourceError, match=r"0003\.bin cannot be read"):
            pack(source, dest, shard_samples=5, workers=1)
    # Once the file can be read again, only its shard is written anew.
    manifest = pack(source, dest, shard_samples=5, workers=1)
    assert manifest.num_samples == 40
    assert "left_out" not in manifest.extra
    assert not (dest / "pack-report.jsonl").exists()
    after = {path.name: path.stat().st_ino for path in dest.glob("*.tar")}
    assert len([name for name in after if after[name] != inodes[name]]) == 1
    assert verify(dest) == []


def given(*samples: Sample | SourceError) -> Iterator[Sample]:
    """Samples as a source might give them, good and bad."""
    for sample in samples:
        if isinstance(sample, SourceError):
            raise sample
        yield sample


GOOD: list[Sample] = [("a/1", [("cls", b"1"), ("txt", b"one")]), ("b", [("txt", b"two")])]


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        (("b", [("txt", b"again")]), "sample 'b' is there twice"),
        (("c", []), "sample 'c' has no member"),
        (
            ("c", [("txt", b""), ("TXT", b"")]),
            "sample 'c' has a member 'TXT', which is there twice, in capitals or not",
        ),
        *(
            (("c", [(extension, b"")]), f"sample 'c' has a member {extension!r}, which is not an extension that")
            for extension in ("__key__", "a/b", "")
        ),
        *(
            ((key, [("txt", b"")]), "cannot be packed: a key is a string, a path of parts that are not empty")
            for key in (
                "c.d",
                "c/",
                "",
                "c\nd",
                "c\0",
                "__meta__/c",
                "\udce9",
                "/etc/passwd",
                "a//b",
                "../a",
                "a/../b",
                "a/./b",
            )
        ),
        (("c", [("txt", b""), ("json", SourceError("row 7 is not JSON"))]), "row 7 is not JSON"),
        (("c", [("txt", FilePayload("/", 0))]), "/ (cannot be read: Is a directory|has .* bytes)"),
    ],
)
def test_a_sample_that_cannot_be_stored_is_an_error_or_left_out(tmp_path: Path, sample: Sample, reason: str) -> None:
    target = Destination(str(tmp_path))
    with pytest.raises(SourceError, match=reason):
        writer.write_shard(target, "a.tar", given(GOOD[0], GOOD[1], sample))
    assert list(tmp_path.iterdir()) == []
    written = writer.write_shard(target, "a.tar", given(GOOD[0], GOOD[1], sample, ("z", [("txt", b"")])), "", "skip")
    assert list(packed_members(tmp_path)) == ["a/1.cls", "a/1.txt", "b.txt", "z.txt"]
    assert [one.key for one in written.left_out] == [sample[0].encode("utf-8", "backslashreplace").decode()]
    size = (tmp_path / "a.tar").stat().st_size
    index = writer.whole_index(target, "a.tar", size, "skip")
    assert index is not None
    assert writer.WrittenShard.of("a.tar", index) == written
    assert writer.whole_index(target, "a.tar", size, "raise") is None
    assert writer.whole_index(target, "a.tar", size + 1, "skip") is None


def test_while_shards_are_written_it_is_no_data_set_and_has_no_other_report(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / "part0/xxxxx/0003.bin").unlink()
    (source / "part0/xxxxx/0003.bin").symlink_to("nowhere")
    pack(source, tmp_path / "dest", on_error="skip", workers=1)
    assert len(report(tmp_path / "dest")) == 1

    class Failing(ThreadPoolExecutor):
        def submit(self, *_: Any, **__: Any) -> Future[Any]:
            names = {path.name for path in (tmp_path / "dest").iterdir()}
            raise SourceError(f"stop at {names & {'index.json', 'pack-report.jsonl'}}")

    for change, options in (
        ((tmp_path / "dest" / "shard-000000.tar").unlink, {"on_error": "skip"}),
        ((source / "part0/xxxxx/0003.bin").unlink, {"overwrite": True}),
    ):
        change()
        with Failing() as executor, pytest.raises(SourceError, match=r"^stop at set\(\)$"):
            pack(source, tmp_path / "dest", executor=executor, **options)
