"""Archives hold what the tools that made them put in, and pack to the same bytes as the folder."""

from __future__ import annotations

import gzip
import io
import re
import shutil
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.damage import altered
from tests.support.packing import contents
from tests.support.tars import plain_tar
from tests.support.trees import MAKERS, PHOTOS, unpack, zip_bytes
from wdsdist.errors import SourceError, WdsdistError
from wdsdist.packing import pack
from wdsdist.packing.options import OnError
from wdsdist.packing.sources import find
from wdsdist.shards.tar.member_names import split_name


def make(name: str, root: Path, target: Path) -> Path:
    program = name.partition(".")[0] if name.startswith("bsdtar") else "zstd" if name.endswith(".zst") else "tar"
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    MAKERS[name](root, target / name)
    return target / name


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder that each tool makes an archive of, and the fingerprint of the shards that it packs to."""
    root = unpack(tmp_path_factory.mktemp("archived") / "photos", {**PHOTOS, "cat/.DS_Store": b"", "cat/README": b""})
    return root, pack(
        root, tmp_path_factory.mktemp("from-folder") / "dest", shard_samples=5, workers=1, class_folders=True
    ).fingerprint


@pytest.mark.parametrize("name", MAKERS)
def test_an_archive_packs_to_the_same_shards_as_its_folder(tmp_path: Path, name: str, photos: tuple[Path, str]) -> None:
    root, fingerprint = photos
    archive = make(name, root, tmp_path)
    source = find(archive, scratch=tmp_path / "scratch", class_folders=True)
    labels = {f"{key.rpartition('.')[0]}.cls": str(["Zebra", "cat", "dog"].index(key.partition("/")[0])).encode()
              for key in PHOTOS}  # fmt: skip
    assert contents(source) == {**PHOTOS, **labels}
    assert source.contents.notes["classes"] == ["Zebra", "cat", "dog"]

    for workers in (1, 2, 3) if name in ("deflated.zip", "gz.tar.gz") else (2,):
        dest = tmp_path / f"by-{workers}"
        found = pack(archive, dest, shard_samples=5, workers=workers, class_folders=True)
        assert found.fingerprint == fingerprint
        assert not [path for path in dest.iterdir() if path.name.startswith(".tmp-")]


# Odd and damaged archives: what Python's own readers see, or an error that names the archive


FILES = {"a/1.txt": b"first" * 40, "a/1.bin": bytes(range(256)) * 3, "b/2.txt": b"", "b/3.txt": b"x" * 700}


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def archive_of(folder: Path, kind: str, files: Iterable[tuple[str, bytes]]) -> Path:
    """Write a zip or a tar of files, whose names may be there twice."""
    if kind == "tar":
        return write(folder / "a.tar", plain_tar(files))
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        for name, data in files:
            archive.writestr(name, data)
    return folder / "a.zip"


# What stands in an archive


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_what_belongs_to_no_sample_is_counted(tmp_path: Path, kind: str) -> None:
    files = {"1.txt": b"1", "__MACOSX/._1.txt": b"", ".git/a.txt": b"", ".DS_Store": b"", "README": b"", "d/x": b""}
    source = find(archive_of(tmp_path, kind, files.items()))
    assert contents(source) == {"1.txt": b"1"}
    assert source.contents.notes == {
        "skipped": {"file in __MACOSX": 1, "hidden file or folder": 2, "name without a key and an extension": 2}
    }


@pytest.mark.parametrize("kind", ["zip", "tar"])
@pytest.mark.parametrize("name", ["../x.txt", "a/../../x.txt", "..\\x.txt"])
def test_a_name_that_leads_out_is_refused_or_left_out(tmp_path: Path, kind: str, name: str) -> None:
    path = archive_of(tmp_path, kind, [("1.txt", b"1"), (name, b"evil")])
    with pytest.raises(SourceError, match=rf"a\.{kind}/{re.escape(name)} leads out of the archive"):
        find(path)
    source = find(path, on_error="skip")
    assert contents(source) == {"1.txt": b"1"}
    assert [one.key for one in source.contents.left_out] == [name]


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_leading_slashes_and_dots_are_left_out_of_names(tmp_path: Path, kind: str) -> None:
    path = archive_of(tmp_path, kind, [("/a/1.txt", b"1"), ("./b/2.txt", b"2"), ("c//./3.txt", b"3")])
    assert contents(find(path)) == {"a/1.txt": b"1", "b/2.txt": b"2", "c/3.txt": b"3"}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_a_file_that_is_there_twice_is_refused_or_left_out(tmp_path: Path, kind: str) -> None:
    entries = [("1.txt", b"1"), ("2.txt", b"2"), ("./1.txt" if kind == "tar" else "1.txt", b"3")]
    path = archive_of(tmp_path, kind, entries)
    with pytest.raises(SourceError, match=rf"a\.{kind}/1\.txt is there twice"):
        find(path)
    assert contents(find(path, on_error="skip")) == {"2.txt": b"2"}


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (8, b"\1", r"1\.txt is encrypted: decrypt"),
        (10, b"\x09", r"1\.txt is compressed by method 9"),  # Deflate64, as Windows uses for large files
        (24, b"\xf0\xff\xff\xff", r"a\.zip expands to 4,294,967,280 bytes, more than the 268,435,456"),
        (24, b"\xff\xff\xff\x00", r"1\.txt is damaged \(it has 100 bytes, but 16,777,215 in the directory"),
        (20, struct.pack("<LL", 110, 110), r"1\.txt is damaged \("),  # it reaches into the directory
    ],
)
def test_a_zip_entry_that_cannot_be_read_is_refused(tmp_path: Path, offset: int, value: bytes, message: str) -> None:
    data = bytearray(zip_bytes({"1.txt": b"1" * 100}, zipfile.ZIP_STORED if offset == 20 else zipfile.ZIP_DEFLATED))
    place = data.index(b"PK\1\2") + offset
    data[place : place + len(value)] = value
    with pytest.raises(SourceError, match=message):
        pack(write(tmp_path / "a.zip", bytes(data)), tmp_path / "out", workers=1)


def test_zip64_and_data_descriptors_are_read(tmp_path: Path) -> None:
    class Pipe(io.RawIOBase):  # what cannot be sought gets its sizes behind the data
        def __init__(self) -> None:
            self.data = bytearray()

        def writable(self) -> bool:
            return True

        def write(self, piece: bytes) -> int:  # type: ignore[override]
            self.data += piece
            return len(piece)

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as archive:  # type: ignore[arg-type]
        for name, data in FILES.items():
            with archive.open(name, "w", force_zip64=True) as file:
                file.write(data)
    assert contents(find(write(tmp_path / "a.zip", b"#!/bin/sh\n" + bytes(pipe.data)))) == FILES


def test_links_in_a_zip_are_counted_and_not_followed(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("1.txt", b"1")
        link = zipfile.ZipInfo("passwd.txt")
        link.external_attr, link.create_system = 0o120777 << 16, 3
        archive.writestr(link, "/etc/passwd")
    source = find(write(tmp_path / "a.zip", buffer.getvalue()))
    assert contents(source) == {"1.txt": b"1"}
    assert source.contents.notes == {"skipped": {"symbolic link": 1}}


# Classes


def test_tars_of_classes_in_a_tar_are_class_folders(tmp_path: Path) -> None:
    inner = {name: plain_tar((f"{name}_{n}.JPEG", f"{name} {n}".encode() * 300) for n in range(5)) for name in "zab"}
    path = write(tmp_path / "train.tar", plain_tar((f"{name}.tar", data) for name, data in inner.items()))
    source = find(path, class_folders=True)
    assert source.contents.notes["classes"] == ["a", "b", "z"]
    found = contents(source)
    assert found["z/z_4.JPEG"] == b"z 4" * 300
    assert found["z/z_4.cls"] == b"2"
    assert len(found) == 30


@pytest.mark.parametrize("around", ["", "photos/", "data/train/"])
def test_a_folder_around_everything_is_no_class(tmp_path: Path, around: str) -> None:
    files = {f"{around}{name}": data for name, data in PHOTOS.items()}
    source = find(write(tmp_path / "a.zip", zip_bytes(files)), class_folders=True)
    assert source.contents.notes["classes"] == ["Zebra", "cat", "dog"]
    assert {name for name in contents(source) if not name.endswith(".cls")} == set(PHOTOS)


# Damage


def overlapping(files: int) -> bytes:
    """A zip whose entries are all one run of compressed bytes."""
    data = zip_bytes({"0000.bin": bytes(200_000)}, zipfile.ZIP_DEFLATED)
    start, end = data.index(b"PK\1\2"), data.index(b"PK\5\6")
    entries = b"".join(data[start:end].replace(b"0000.bin", b"%04d.bin" % number) for number in range(files))
    counts = struct.pack("<HHLL", files, files, len(entries), start)
    return data[:start] + entries + data[end : end + 8] + counts + data[end + 20 :]


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_zip_whose_entries_overlap_is_refused(tmp_path: Path, on_error: OnError) -> None:
    path = write(tmp_path / "a.zip", overlapping(3000))  # 170 KB for 600 MB
    with pytest.raises(SourceError, match=r"a\.zip expands to 6\d\d,\d{3},\d{3} bytes, more than the 268,435,456 that"):
        find(path, on_error=on_error)


def test_a_zip_that_expands_without_end_is_refused(tmp_path: Path, limit_expansion: Callable[..., None]) -> None:
    limit_expansion(1 << 20)
    path = write(tmp_path / "a.zip", zip_bytes({f"{n}.bin": bytes(1 << 20) for n in range(4)}, zipfile.ZIP_DEFLATED))
    with pytest.raises(SourceError, match=r"a\.zip expands to 4,194,304 bytes, more than the 1,048,576 that"):
        find(path)
    limit_expansion(4 << 20)
    assert len(find(path)) == 4


def test_a_wrong_checksum_is_an_error_or_left_out(tmp_path: Path) -> None:
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        noise = bytes((n * n * 7919 >> 5) % 256 for n in range(400))
        data = bytearray(zip_bytes({"1.txt": b"1", "2.txt": noise}, method))
        data[data.index(b"2.txt") + 5 + 200] ^= 0x55
        path = write(tmp_path / f"{method}.zip", bytes(data))
        with pytest.raises(SourceError, match=rf"{method}\.zip/2\.txt is damaged \(.*\): leave such samples out"):
            pack(path, tmp_path / f"out-{method}", workers=1)
        manifest = pack(path, tmp_path / f"skip-{method}", workers=1, on_error="skip")
        assert (manifest.num_samples, manifest.extra["left_out"]) == (1, 1)


@pytest.mark.parametrize("suffix", ["gz", "zst"])
@pytest.mark.parametrize("left", [0.2, 0.7, 0.99])
def test_a_compressed_tar_that_is_cut_is_an_error_and_leaves_nothing(tmp_path: Path, suffix: str, left: float) -> None:
    tar = plain_tar((f"{n:04}.bin", bytes((n * m * 7919 >> 7) % 256 for m in range(1000))) for n in range(40))
    if suffix == "zst":
        import zstandard

        data = zstandard.compress(tar)
    else:
        data = gzip.compress(tar)
    path = write(tmp_path / f"a.tar.{suffix}", data[: int(len(data) * left)])
    with pytest.raises(SourceError, match=rf"a\.tar\.{suffix}.*fetch it again"):
        pack(path, tmp_path / "out", workers=1)
    assert not [one for one in (tmp_path / "out").iterdir() if one.name.startswith(".tmp-")]


def test_what_a_killed_run_unpacked_is_removed_by_the_next(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar.gz", gzip.compress(plain_tar(FILES.items())))
    left = tmp_path / "out" / ".tmp-0123456789abcdef-source"
    left.mkdir(parents=True)
    write(left / "unpacked.tar", b"half of it")
    assert pack(path, tmp_path / "out", workers=1).num_samples == 3
    assert not left.exists()


# Anything at all


def usable(files: Iterable[tuple[str, bytes]]) -> dict[str, bytes]:
    """Of the files that an oracle reads, those that are members of samples, by the names that they get."""
    found = {}
    for name, data in files:
        path = "/".join(part for part in name.split("/") if part not in ("", "."))
        hidden = any(part.startswith(".") for part in path.split("/")) or path.startswith("__MACOSX/")
        if split_name(path) is not None and not hidden:
            found[path] = data
    return found


def same_but_for_a_folder_around(ours: dict[str, bytes], theirs: dict[str, bytes]) -> bool:
    return any(ours == {name[cut:]: data for name, data in theirs.items()}
               for cut in range(1 + min(map(len, theirs), default=0))
               if len({name[:cut] for name in theirs}) == 1)  # fmt: skip


ZIPS = [zip_bytes(FILES), zip_bytes(FILES, zipfile.ZIP_STORED)]
TARS = [plain_tar(FILES.items()), plain_tar(FILES.items(), format=tarfile.PAX_FORMAT)]


def read_by_zipfile(path: Path) -> dict[str, bytes] | None:
    """Read a zip with ``zipfile``, the oracle; ``None`` if it refuses the archive, also for harmless differences."""
    try:
        with zipfile.ZipFile(path) as archive:
            return usable(
                (info.filename, archive.read(info)) for info in archive.infolist() if not info.filename.endswith("/")
            )
    except (zipfile.BadZipFile, struct.error, NotImplementedError, EOFError, ValueError, zlib.error):
        return None


def read_by_tarfile(path: Path) -> dict[str, bytes] | None:
    with tarfile.open(path, encoding="utf-8") as archive:
        return usable((one.name, archive.extractfile(one).read()) for one in archive if one.isfile())  # type: ignore[union-attr]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "whole", "oracle"),
    [
        ("mutated.zip", ZIPS, read_by_zipfile),
        ("mutated.tar", TARS, read_by_tarfile),
        ("mutated.tar.gz", [gzip.compress(TARS[0], mtime=0)], lambda _: FILES),
    ],
    ids=["zip", "tar", "tar.gz"],
)
@given(data=st.data())
def test_a_mutated_archive_is_what_the_standard_library_reads_or_an_error(
    name: str, whole: list[bytes], oracle: Callable[[Path], dict[str, bytes] | None], data: st.DataObject
) -> None:
    folder = Path(tempfile.mkdtemp())
    source = None
    try:
        path = write(folder / name, data.draw(st.sampled_from(whole).flatmap(altered)))
        try:
            source = find(path, class_folders=False, scratch=folder)
            ours = contents(source)
        except (WdsdistError, AssertionError) as error:
            assert name in str(error)  # noqa: PT017
            return
        theirs = oracle(path)
        assert theirs is None or same_but_for_a_folder_around(ours, theirs)
    finally:
        del source
        shutil.rmtree(folder)
