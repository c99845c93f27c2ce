"""Damaged tars: an error that names the shard, never a shorter list, another exception or an endless loop."""

from __future__ import annotations

import mmap
import random
import tarfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.tars import BLOCK, content_end, file_entry, listing, plain_tar, scanned, tar_bytes, with_checksum
from wdsdist.errors import ShardDamagedError

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
END = bytes(2 * BLOCK)


def assert_damaged(content: bytes) -> None:
    with pytest.raises(ShardDamagedError, match=r"^x\.tar: "):
        scanned(content)


def sample_tar(form: int) -> bytes:
    """A tar with a member of each awkward size, long names where the format has them, a folder and a link."""
    long = "" if form == tarfile.USTAR_FORMAT else "ö" * 120
    rng = random.Random(form)
    entries = [(file_entry(f"{long}s{size}.bin", size), rng.randbytes(size)) for size in (0, 1, 511, 512, 513, 1024)]
    entries.insert(2, (file_entry("folder", 0, type=tarfile.DIRTYPE), b""))
    entries.insert(4, (file_entry("link", 0, type=tarfile.SYMTYPE, linkname="s1.bin"), b""))
    return tar_bytes(entries, format=form)


def header_blocks(content: bytes) -> list[int]:
    """Return the offset of every header block, those of extended headers too."""
    blocks = []
    offset = 0
    while content[offset : offset + BLOCK].strip(b"\0"):
        blocks.append(offset)
        size = int(content[offset + 124 : offset + 135], 8)
        offset += BLOCK + size + -size % BLOCK
    return blocks


TARS = {form: sample_tar(form) for form in FORMATS}
HEADERS = {form: header_blocks(TARS[form]) for form in FORMATS}
forms = st.sampled_from(FORMATS)


# Cut short, or longer than it should be


@given(forms, st.data())
def test_a_tar_cut_at_any_byte_is_damage(form: int, data: st.DataObject) -> None:
    assert_damaged(TARS[form][: data.draw(st.integers(0, content_end(TARS[form]) - 1))])


def test_a_cut_member_is_named_with_what_is_there_of_it() -> None:
    content = plain_tar([("a.bin", bytes(2000)), ("b.bin", bytes(2000))])
    cut = 3 * BLOCK + 2048 + 900
    message = r"member 'b\.bin' has 2,000 bytes but the file holds 1,412 of them, at byte 2,560 of 4,484$"
    with pytest.raises(ShardDamagedError, match=message):
        scanned(content[:cut])


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_an_extended_header_of_gigabytes_takes_no_memory(tmp_path: Path, kind: bytes) -> None:
    path = tmp_path / "x.tar"
    with path.open("wb") as stream:  # sparse: nothing but the header is on disk
        stream.write(file_entry("x", 4 << 30, type=kind).tobuf(tarfile.GNU_FORMAT))
        stream.truncate((4 << 30) + 10 * BLOCK)
    with (
        path.open("rb") as stream,
        mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content,
        pytest.raises(ShardDamagedError, match=r"an extended header of 4,294,967,296 bytes, .* starts at byte 0"),
    ):
        scanned(content)


@pytest.mark.parametrize("form", FORMATS)
def test_data_after_the_end_are_damage(form: int) -> None:
    content = TARS[form]
    assert_damaged(content + content)  # two tars joined by `cat`: tarfile would see the first only
    assert_damaged(content + b"x")
    assert_damaged(content + bytes(5000) + b"\1")
    assert scanned(content + bytes(5000)) == listing(content)


# Altered


@pytest.mark.parametrize("form", FORMATS)
def test_a_change_of_any_header_byte_is_damage(form: int) -> None:
    content = TARS[form]
    rng = random.Random(0)
    for offset in [*range(148), *range(156, BLOCK)]:
        altered = bytearray(content)
        altered[rng.choice(HEADERS[form]) + offset] ^= rng.randrange(1, 256)
        assert_damaged(bytes(altered))


@pytest.mark.parametrize(("number", "form"), list(enumerate(FORMATS)))
def test_a_change_of_the_checksum_is_damage_unless_it_spells_the_same_number(form: int, number: int) -> None:
    content = TARS[form]
    for offset in range(148, 156):
        for value in (*b"\0 01234567", 8, ord("/"), *range(128, 256, 31)):
            altered = bytearray(content)
            altered[HEADERS[form][number] + offset] = value
            try:
                found = scanned(bytes(altered))
            except ShardDamagedError:
                continue
            assert found == listing(bytes(altered)) == listing(content)


def test_the_altered_header_is_named_not_the_place_where_it_leads() -> None:
    content = bytearray(plain_tar([("a.bin", b"1"), ("b.bin", bytes(5000)), ("c.bin", b"1")]))
    content[2 * BLOCK + 130] = ord("7")  # the size of b.bin, now far beyond the end
    with pytest.raises(ShardDamagedError, match=r"wrong checksum.* byte 1,024 of 10,240"):
        scanned(bytes(content))


def test_a_map_of_a_damaged_tar_can_be_closed_while_its_error_is_handled(tmp_path: Path) -> None:
    content = bytearray(TARS[tarfile.USTAR_FORMAT])
    content[3] ^= 1
    (tmp_path / "x.tar").write_bytes(content)
    with (tmp_path / "x.tar").open("rb") as stream:
        mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    # A view of the map in the traceback would make this a BufferError.
    with pytest.raises(ShardDamagedError, match="wrong checksum"), mapped:
        scanned(mapped)


FIELDS = {"name": (0, 100), "size": (124, 136), "type": (156, 157), "prefix": (345, 500)}


@given(forms, st.integers(0, 2**64))
def test_a_strange_header_with_a_right_checksum_reads_as_tarfile_reads_it_or_is_damage(form: int, seed: int) -> None:
    rng = random.Random(seed)
    altered = bytearray(TARS[form])
    block = rng.choice(HEADERS[form])
    # In a GNU header the prefix is none, but tarfile takes it for one.
    start, stop = FIELDS[rng.choice(["name", "size", "type"] + ["prefix"] * (form != tarfile.GNU_FORMAT))]
    place = rng.randrange(start, stop)
    altered[place + block] = rng.choice([*b"0123456789xgLKS \0\x80\xff/_-", rng.randrange(256)])
    altered[block : block + BLOCK] = with_checksum(bytes(altered[block : block + BLOCK]))
    try:
        found = scanned(bytes(altered))
    except ShardDamagedError:
        return
    assert found == listing(bytes(altered))


@given(st.binary(max_size=3000))
@example(b"")
@example(bytes(1023))
@example(b"not a tar\n" * 200)
def test_random_bytes_are_damage(content: bytes) -> None:
    if content.strip(b"\0") or len(content) < 2 * BLOCK:
        assert_damaged(content)
    else:
        assert scanned(content) == []
