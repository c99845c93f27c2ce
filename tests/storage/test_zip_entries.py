"""Entries of zip archives: what `zipfile` reads, or an error that takes no memory."""

from __future__ import annotations

import io
import random
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.trees import contents, zip_bytes, zip_that_claims
from wdsdist.diagnostics.view import describe
from wdsdist.errors import SampleError, SourceError
from wdsdist.packing import pack
from wdsdist.packing.sources import find
from wdsdist.samples.sample_spec import Decoder
from wdsdist.storage import zip_entries

METHODS = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
COMPRESSING = METHODS[1:]
LARGE = 24 << 20


def read(data: bytes) -> dict[str, bytes]:
    stream = io.BytesIO(data)
    with zipfile.ZipFile(stream) as archive:
        return {one.filename: zip_entries.content(stream, one) for one in archive.infolist()}


@pytest.mark.parametrize("method", METHODS)
def test_entries_are_what_zipfile_reads(method: int) -> None:
    rng = random.Random(method)
    files = {f"{size}.bin": rng.randbytes(size // 2) + bytes(size - size // 2) for size in (0, 1, 999, 3 << 20)}
    assert read(zip_bytes(files, method)) == files


@pytest.mark.parametrize("method", METHODS)
def test_an_entry_that_is_altered_or_cut_is_never_another_content(method: int) -> None:
    rng = random.Random(method)
    good = zip_bytes({"a.bin": bytes(range(256)) * 8}, method)
    for _ in range(300):
        data = bytearray(good)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        try:
            found = read(bytes(data))
        except (*zip_entries.DAMAGE, NotImplementedError):
            continue
        assert list(found.values()) in ([bytes(range(256)) * 8], [])


def grown_by(action: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("method", COMPRESSING)
def test_a_file_of_a_zip_that_holds_more_than_it_claims_takes_no_memory(tmp_path: Path, method: int) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(zip_that_claims(1000, "1.txt", bytes(LARGE), method))

    def refused() -> None:
        with pytest.raises(SourceError, match=r"1\.txt is damaged \(it has more than the 1,000 bytes in the directory"):
            pack(path, tmp_path / "out", workers=1)

    assert grown_by(refused) < LARGE // 2
    path.write_bytes(zip_bytes({"1.txt": b"as it is"}, method))
    assert contents(find(path)) == {"1.txt": b"as it is"}


@pytest.mark.parametrize("method", COMPRESSING)
def test_an_array_that_holds_more_than_it_claims_takes_no_memory(method: int) -> None:
    data = zip_that_claims(1000, "x.npy", bytes(LARGE), method)

    def refused() -> None:
        with pytest.raises(SampleError, match="more than the 1,000 bytes in the directory"):
            Decoder(True)("npz", data)

    assert grown_by(refused) < LARGE // 2


@pytest.mark.parametrize("method", COMPRESSING)
def test_an_array_that_holds_more_than_it_claims_is_shown_without_taking_memory(method: int) -> None:
    data = zip_that_claims(1000, "x.npy", bytes(LARGE), method)
    assert grown_by(lambda: shown(data)) < LARGE // 2


def shown(data: bytes) -> dict[str, Any]:
    return describe.member("npz", len(data), lambda start, stop: data[start:stop], describe.TILE, describe.Style())


def test_the_error_of_an_unknown_method_names_it() -> None:
    data = bytearray(zip_bytes({"x.npy": bytes(100)}))
    data[data.index(b"PK\1\2") + 10] = 93  # Zstandard
    stream = io.BytesIO(data)
    with zipfile.ZipFile(stream) as archive, pytest.raises(zipfile.BadZipFile, match="by method 93, which Python"):
        zip_entries.content(stream, archive.infolist()[0])


def test_a_dictionary_of_4_gib_is_claimed_but_not_taken() -> None:
    data = bytearray(zip_bytes({"a.txt": b"text " * 400}, zipfile.ZIP_LZMA))
    place = data.index(b"a.txt") + len("a.txt") + 5
    data[place : place + 4] = b"\xff" * 4
    stream = io.BytesIO(data)
    with zipfile.ZipFile(stream) as archive:
        (entry,) = archive.infolist()
    assert zip_entries.content(stream, entry) == b"text " * 400
