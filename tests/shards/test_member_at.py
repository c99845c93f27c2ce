"""Whether a member lies where an index says: index, ``verify`` and reading agree about every tar, with ``tarfile``."""

from __future__ import annotations

import io
import random
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import wdsdist
from tests.shards.test_tar_corpus import CORPUS, altered
from tests.support.sources import Shards
from tests.support.tars import BLOCK, content_end, file_entry, plain_tar, scanned, tar_bytes, with_checksum
from wdsdist.errors import ShardDamagedError
from wdsdist.shards.tar.reader import is_member_at

END = bytes(2 * BLOCK)


def is_at(content: bytes, offset: int, name: str, size: int) -> bool:
    return is_member_at(lambda start, stop: content[start:stop], offset, name, size)


def split_at_the_last_slash(name: str, data: bytes) -> bytes:
    """Return a member as Perl's Archive::Tar writes it: the folder in the USTAR prefix, however short the name."""
    folder, _, base = name.rpartition("/")
    block = bytearray(plain_tar([(base, data)])[:BLOCK])
    block[345 : 345 + len(folder)] = folder.encode()
    return with_checksum(bytes(block)) + data + bytes(-len(data) % BLOCK)


def read_all(folder: Path) -> dict[str, bytes]:
    """Return every member of a data set by its name, as samples are read."""
    manifest = wdsdist.open(folder)
    reader = Shards(manifest)
    shards = [reader.shard(number) for number in range(len(manifest.counts))]
    return {
        f"{shard.key(sample)}.{extension}": bytes(shard.member(sample, number))
        for shard in shards
        for sample in range(shard.index.num_samples)
        for number, (extension, _, _) in enumerate(shard.index.members(sample))
    }


@pytest.mark.parametrize("path", ["b.txt", "short.txt", "n" * 200 + ".txt", "köln.txt"])
def test_a_name_in_an_extended_header_overrules_the_plain_one(path: str) -> None:
    content = tar_bytes([(file_entry("a.txt", 3, pax_headers={"path": path, "mtime": "1.5"}), b"abc")], format=2)
    ((_, offset, _),) = scanned(content)
    assert is_at(content, offset, path, 3)
    assert not is_at(content, offset, f"c{path}", 3)
    assert not is_at(content, offset, path, 4)


def test_another_name_size_or_kind_is_not_the_member() -> None:
    content = plain_tar([("a.txt", b"abc"), ("b.txt", b"abc")])
    assert is_at(content, BLOCK, "a.txt", 3)
    assert not is_at(content, BLOCK, "b.txt", 3)
    assert not is_at(content, BLOCK, "a.txt", 2)
    assert not is_at(content, 2 * BLOCK, "a.txt", 3)
    assert not is_at(content, 0, "a.txt", 3)
    assert not is_at(content, len(content) + BLOCK, "a.txt", 3)
    link = tar_bytes([(file_entry("a.txt", 0, type=tarfile.SYMTYPE, linkname="b"), b"")])
    assert not is_at(link, BLOCK, "a.txt", 0)


def test_a_long_name_in_a_tar_that_was_replaced_is_noticed(tmp_path: Path) -> None:
    def write(letter: str) -> None:
        names = (letter * 120 + f"{number}.txt" for number in range(4))
        (tmp_path / "x.tar").write_bytes(plain_tar(((name, b"1") for name in names), format=tarfile.GNU_FORMAT))

    write("a")
    wdsdist.index(tmp_path, workers=1)
    write("b")  # of the same size
    with pytest.raises(ShardDamagedError, match="does not hold what its index says"):
        read_all(tmp_path)


@given(st.sampled_from(sorted(CORPUS)), st.integers(0, 2**64))
def test_each_member_that_a_scan_finds_is_at_its_place(name: str, seed: int) -> None:
    content = altered(CORPUS[name], random.Random(seed))
    try:
        members = scanned(content)
    except ShardDamagedError:
        return
    for name, offset, size in members:
        assert is_at(content, offset, name, size)


folders = st.sampled_from(["", "a/", "./", "köln/", "v1.2/", "f" * 90 + "/", "g" * 160 + "/"])
bases = st.text("ab_é", min_size=1, max_size=3)
extensions = st.sampled_from(["jpg", "CLS", "seg.png", "x" * 60])
forms = st.sampled_from(["plain", "prefix", "gnu", "pax", "path"])
members = st.lists(st.tuples(folders, bases, extensions, forms, st.binary(max_size=20)), max_size=8)


def written(name: str, form: str, data: bytes) -> bytes:
    """Return a member as one of several writers stores it."""
    folder, slash, base = name.rpartition("/")
    if form == "prefix" and slash and name.isascii() and len(folder) <= 155 and len(base) < 100:
        return split_at_the_last_slash(name, data)
    more = {"path": {"path": name}, "pax": {"mtime": "1.5"}}.get(form, {})
    entry = file_entry("other" if form == "path" else name, len(data), pax_headers=more)
    content = tar_bytes([(entry, data)], format=tarfile.GNU_FORMAT if form == "gnu" else tarfile.PAX_FORMAT)
    return content[: content_end(content) - 2 * BLOCK]


@given(members)
def test_what_is_indexed_is_whole_and_reads_as_tarfile_reads_it(
    tmp_path_factory: pytest.TempPathFactory, given: list[tuple[str, str, str, str, bytes]]
) -> None:
    folder = tmp_path_factory.mktemp("x")
    content = b"".join(written(f"{at}{base}.{ext}", form, data) for at, base, ext, form, data in given) + END
    (folder / "x.tar").write_bytes(content)
    with tarfile.open(fileobj=io.BytesIO(content), encoding="utf-8") as tar:
        theirs = [(one.name, tar.extractfile(one).read()) for one in tar]  # type: ignore[union-attr]
    try:
        wdsdist.index(folder, workers=1)
    except ShardDamagedError as error:
        message = str(error)
    else:
        message = ""
    if message:
        assert "two members with extension" in message
        return
    assert wdsdist.verify(folder, workers=1) == []
    assert sorted(read_all(folder).items()) == sorted(theirs)
