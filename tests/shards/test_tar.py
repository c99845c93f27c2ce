"""What `wdsdist.shards.tar` writes and reads, held to Python's ``tarfile``, GNU tar, bsdtar and webdataset."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.tars import file_entry, listing, scanned, skipped, tar_bytes, with_checksum
from wdsdist.errors import ShardDamagedError
from wdsdist.shards.tar.member_names import split_name
from wdsdist.shards.tar.reader import BLOCK, END
from wdsdist.shards.tar.writer import header, padding, plain_headers, stored_size

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
SIZE_LIMIT = 8**11  # what eleven octal digits cannot say

characters = st.characters(exclude_categories=["Cs"], exclude_characters="\0/")
parts = st.text(characters, min_size=1, max_size=20) | st.text("ab.-_", min_size=1, max_size=160)
names = st.lists(parts, min_size=1, max_size=6).map("/".join)
ascii_names = st.lists(st.text("ab.-_ ", min_size=1, max_size=160), min_size=1, max_size=6).map("/".join)
sizes = st.integers(0, 1300)


def written(members: list[tuple[str, bytes]]) -> bytes:
    return b"".join(header(name, len(data)) + data + padding(len(data)) for name, data in members) + END


# Writing


@given(st.lists(st.tuples(names, st.binary(max_size=1300)), max_size=5))
@example([("/" + "n" * 100, b"1")])  # an empty prefix would lose the slash
def test_what_is_written_reads_back_with_the_same_names_and_bytes(members: list[tuple[str, bytes]]) -> None:
    with tarfile.open(fileobj=io.BytesIO(written(members)), encoding="utf-8") as tar:
        found = [(entry.name, tar.extractfile(entry).read()) for entry in tar.getmembers()]
    assert found == members
    assert scanned(written(members)) == listing(written(members))


@given(names.filter(lambda name: len(name.encode()) <= 100 or not name.isascii()), sizes | st.just(SIZE_LIMIT))
@example("a.txt", SIZE_LIMIT - 1)
@example("ä" * 60 + ".txt", SIZE_LIMIT * 5)
def test_a_header_has_the_bytes_that_tarfile_writes(name: str, size: int) -> None:
    ours, theirs = header(name, size), file_entry(name, size).tobuf(tarfile.PAX_FORMAT)
    # tarfile gives the block before PAX records no mode; the records and the member's own header are the same.
    start = BLOCK if len(theirs) > BLOCK else 0
    assert len(ours) == len(theirs)
    assert ours[start:] == theirs[start:]


@given(ascii_names, sizes)
@example("a" * 100, 1)
@example("a" * 101, 1)
@example("p" * 155 + "/" + "n" * 100, 1)
@example("p" * 156 + "/" + "n" * 99, 1)
@example("p" * 154 + "/" + "n" * 101, 1)
@example("p/" * 60 + "n", 1)
@example("p/" + "n" * 100, 1)
def test_an_ascii_name_gets_a_pax_header_only_where_ustar_cannot_hold_it(name: str, size: int) -> None:
    try:
        file_entry(name, size).tobuf(tarfile.USTAR_FORMAT)
        fits = True
    except ValueError:
        fits = False
    assert (len(header(name, size)) == BLOCK) == fits
    assert len(header(name, size)) % BLOCK == 0


@given(names, sizes)
def test_the_stored_size_is_the_bytes_that_a_member_takes(name: str, size: int) -> None:
    assert stored_size(name, size) == len(header(name, size) + bytes(size) + padding(size))
    assert stored_size(name, size) % BLOCK == 0


@pytest.mark.parametrize("name", ["", "a\0b.txt", "lone\udc80surrogate.txt", "folder/"])
def test_a_name_that_no_file_in_a_tar_can_have_is_refused(name: str) -> None:
    with pytest.raises(ValueError):
        header(name, 1)


SEVERAL_NAMES = [
    "a.txt",
    "folder/with space.seg.png",
    "köln/日本.jpg",
    "d" * 120 + "/" + "n" * 90 + ".txt",
    "x" * 99 + "/" + "y" * 160 + ".txt",  # cut to 100 bytes, the name in the second header ends in a slash
    ".hidden",
    "empty.bin",
]
SEVERAL = [(name, b"" if name == "empty.bin" else name.encode() * 9) for name in SEVERAL_NAMES]


@pytest.mark.parametrize("program", ["tar", "bsdtar"])
def test_what_is_written_extracts_with_the_systems_tar(program: str, tmp_path: Path) -> None:
    if not shutil.which(program):
        pytest.skip(f"{program} is not installed")
    (tmp_path / "x.tar").write_bytes(written(SEVERAL))
    command = [program, "-xf", tmp_path / "x.tar", "-C", tmp_path]
    done = subprocess.run(command, capture_output=True, env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"}, check=True)
    assert done.stderr == b""
    assert {name: (tmp_path / name).read_bytes() for name in SEVERAL_NAMES} == dict(SEVERAL)


def test_what_is_written_reads_with_webdataset() -> None:
    from webdataset.tariterators import tar_file_iterator

    found = [(item["fname"], item["data"]) for item in tar_file_iterator(io.BytesIO(written(SEVERAL)))]
    assert found == SEVERAL


# Reading


class Archive(bytes):
    """A tar whose repr stays short in Hypothesis's reports."""

    def __repr__(self) -> str:
        return f"<a tar of {listing(self)}>"


@st.composite
def archives(draw: st.DrawFn) -> Archive:
    """Tars as tarfile writes them, with what a shard may meet: folders, links, devices, PAX notes."""
    chosen = draw(st.sampled_from(sorted(FORMATS)))
    short = st.text("abcäß日.", min_size=1, max_size=12)
    simple = st.lists(short, min_size=1, max_size=3).map("/".join)
    kinds = [tarfile.REGTYPE, tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE,
             tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]  # fmt: skip
    entries = []
    for _ in range(draw(st.integers(0, 6))):
        name = draw(simple if chosen == "ustar" else names | simple)
        kind = draw(st.sampled_from(kinds))
        if kind == tarfile.AREGTYPE and len(name.encode()) > 100:
            kind = tarfile.REGTYPE  # tarfile takes the other for a directory where the name is cut at a slash
        data = b"" if kind in (b"1", b"2", b"3", b"5", b"6") else draw(st.binary(max_size=1100))
        entry = file_entry(name, len(data), type=kind, mtime=draw(st.sampled_from([0, 1.5, 1e9])))
        if kind in (tarfile.LNKTYPE, tarfile.SYMTYPE):
            entry.linkname = draw(simple if chosen == "ustar" else names)
        if chosen == "pax" and draw(st.booleans()):
            entry.pax_headers = {"comment": draw(names), "size": str(len(data))}
        entries.append((entry, data))
    notes = {"comment": draw(names)} if chosen == "pax" and entries and draw(st.booleans()) else None
    return Archive(tar_bytes(entries, format=FORMATS[chosen], pax_headers=notes))


@given(archives())
def test_a_tar_scans_to_what_tarfile_lists(content: Archive) -> None:
    assert scanned(content) == listing(content)
    with tarfile.open(fileobj=io.BytesIO(content), encoding="utf-8") as tar:
        assert len(scanned(content)) + skipped(content).total() == len(tar.getmembers())


def with_size_field(name: str, field: bytes, data: bytes) -> bytes:
    block = header(name, 0)
    return with_checksum(block[:124] + field + block[136:]) + data + padding(len(data))


def pax(records: bytes, kind: bytes = b"x") -> bytes:
    """A header that describes the entry after it."""
    block = header("./PaxHeaders/a", len(records))
    return with_checksum(block[:156] + kind + block[157:]) + records + padding(len(records))


def odd_name() -> bytes:
    return header("aXb.txt", 0).replace(b"X", b"\xff", 1)


def sum_as_signed(block: bytes) -> bytes:
    signed = sum(byte - 256 * (byte > 127) for byte in block[:148] + b" " * 8 + block[156:])
    return block[:148] + b"%06o\0 " % signed + block[156:]


MEMBER = header("a.bin", 1) + b"1" + padding(1)
KINDS = [tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.BLKTYPE]
SIZES = [b"\x80" + (700).to_bytes(11, "big"), b"00000001274\0", b"0000001274 \0", b"       1274\0",
         b"1274 \0\0\0\0\0\0\0", b"000000001274"]  # fmt: skip
READ: list[tuple[bytes, dict[str, int]]] = [
    *((with_size_field("a.bin", field, bytes(700)) + MEMBER + END, {}) for field in SIZES),
    (pax(b"12 size=700\n") + header("a.bin", 0) + bytes(700) + padding(700) + END, {}),
    (with_checksum(odd_name()) + END, {}),
    (sum_as_signed(odd_name()) + END, {}),
    (pax(b"15 comment=abc\n", b"g") + MEMBER + END, {}),
    (tar_bytes([(file_entry("a/", 0, type=tarfile.AREGTYPE), b""), (file_entry("b", 1), b"1")]), {"directory": 1}),
    (
        tar_bytes((file_entry(f"e{n}", 0, type=kind), b"") for n, kind in enumerate(KINDS)),
        {"directory": 1, "symbolic link": 1, "hard link": 1, "device": 2},
    ),
    (
        tar_bytes([(file_entry("label", 700, type=b"V"), bytes(700)), (file_entry("a.txt", 1), b"1")]),
        {"entry of unknown type 'V'": 1},
    ),
]


@pytest.mark.parametrize(("content", "others"), READ, ids=range(len(READ)))
def test_every_spelling_is_read_as_tarfile_reads_it(content: bytes, others: dict[str, int]) -> None:
    assert scanned(content) == listing(content)
    assert skipped(content) == others


def with_kind(block: bytes, kind: bytes) -> bytes:
    return with_checksum(block[:156] + kind + block[157:])


LONG = with_kind(header("././@LongLink", 4), b"L") + b"abc\0" + padding(4)
IMPOSSIBLE = [b"\xff" * 12, b"-0000000001\0", b"0000000zz00\0", b"\x80" + b"\xff" * 11, b"+" * 12]
UNREADABLE = [b"12 size=7x0\n", b"8 size=\n", b"13 size=-700\n", b"5012 size=" + b"9" * 5001 + b"\n", b"12 path=a\0b\n",
              b"12 size=700", b"0 size=1\n", b"99 size=700\n", b"3 \n\n", b"\n", b"nonsense"]  # fmt: skip
DAMAGED: list[tuple[bytes, str]] = [
    *((with_size_field("a.bin", field, b""), "size|member 'a.bin' has .* bytes") for field in IMPOSSIBLE),
    *((pax(records) + MEMBER, "a PAX header (cannot be read|has the impossible) ") for records in UNREADABLE),
    (LONG + pax(b"12 path=abd\n") + MEMBER, "disagree"),
    (pax(b"12 size=700\n") + pax(b"12 size=701\n") + MEMBER, "disagree"),
    (pax(b"12 path=abc\n", b"g") + MEMBER, "global PAX header"),
    (pax(b"12 path=abc\n"), "followed by no entry"),
    (LONG, "followed by no entry"),
    (with_kind(header("a.bin", 0), b"S"), "sparse"),
    (pax(b"22 GNU.sparse.major=1\n") + MEMBER, "sparse"),
]


@pytest.mark.parametrize(("content", "message"), DAMAGED, ids=range(len(DAMAGED)))
def test_a_header_that_readers_could_read_otherwise_is_damage(content: bytes, message: str) -> None:
    with pytest.raises(ShardDamagedError, match=rf"^x\.tar: .*({message})"):
        scanned(content + END)


def test_two_extended_headers_may_agree() -> None:
    assert scanned(LONG + pax(b"12 path=abc\n") + MEMBER + END) == [("abc", 2560, 1)]
    assert scanned(MEMBER + pax(b"15 comment=abc\n", b"g") + END) == [("a.bin", 512, 1)]  # a global one may come last


@pytest.mark.parametrize("program", ["tar", "bsdtar"])
@pytest.mark.parametrize("form", ["ustar", "gnu", "pax"])
def test_what_the_systems_tar_writes_is_read(program: str, form: str, tmp_path: Path) -> None:
    if not shutil.which(program):
        pytest.skip(f"{program} is not installed")
    folder = tmp_path / "in" / ("f" * 80) / ("g" * 60)
    folder.mkdir(parents=True)
    long_names = form != "ustar"  # old formats cannot hold them
    for name in ["a.txt", "empty.bin", "n" * 90 + ".txt", *(["köln.txt", "m" * 200 + ".txt"] if long_names else [])]:
        (folder / name).write_bytes(b"" if name == "empty.bin" else name.encode() * 20)
    (folder / "link.txt").symlink_to("a.txt")
    (tmp_path / "in" / "once.txt").write_bytes(b"once")
    (tmp_path / "in" / "again.txt").hardlink_to(tmp_path / "in" / "once.txt")
    form = "gnutar" if (program, form) == ("bsdtar", "gnu") else form
    command = [program, f"--format={form}", "-cf", tmp_path / "x.tar", "-C", tmp_path, "in"]
    subprocess.run(command, env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"}, check=True)
    content = (tmp_path / "x.tar").read_bytes()
    assert scanned(content) == listing(content)
    assert skipped(content) == {"directory": 3, "symbolic link": 1, "hard link": 1}


# Names

PATTERN = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")  # the WebDataset format's own


def split_by_the_book(name: str, *, line_breaks: bool = False) -> tuple[str, str] | None:
    base = name.rpartition("/")[2]
    match = PATTERN.match(name)
    notes = any(len(part) >= 4 and part.startswith("__") and part.endswith("__") for part in name.split("/"))
    if ("\n" in name and not line_breaks) or base.startswith(".") or notes or match is None or not match[2]:
        return None
    return match[1], match[2]


@given(st.text("ab._/\n", max_size=12) | st.text(max_size=12) | names)
@example("__meta__/info.json")
@example("a/__meta__/info.json")
@example("a/.hidden.txt")
@example("./a.jpg")
@example("v1.2/0001.seg.png")
@example("v1.2/0001")
@example("a.")
@example("a.txt\n")
@example("a\n/1.jpg")
@example("a.b\n/1.jpg")
@example("____/a.txt")
@example("_____.txt")
def test_names_split_as_the_format_says(name: str) -> None:
    assert split_name(name) == split_by_the_book(name)
    assert split_name(name, is_stored=True) == split_by_the_book(name, line_breaks=True)


@given(
    st.lists(
        st.tuples(
            st.text(st.characters(min_codepoint=1, max_codepoint=127), min_size=1, max_size=99).map(lambda s: s + "x"),
            st.integers(0, 8**11 - 1),
        ),
        max_size=20,
    )
)
def test_plain_headers_are_the_headers_of_each(members: list[tuple[str, int]]) -> None:
    blocks = plain_headers([name for name, _ in members], np.array([size for _, size in members], np.int64))
    assert [block.tobytes() for block in blocks] == [header(name, size) for name, size in members]
