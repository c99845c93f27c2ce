"""Tars of many writers, whole and altered: read as ``tarfile`` reads them, or an error with file and offset."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tars import listing, scanned
from wdsdist.errors import ShardDamagedError

CORPUS = {path.stem: path.read_bytes() for path in sorted((Path(__file__).parent / "corpus").glob("*.tar"))}
REFUSED = {"bsd-cpio-not-a-tar": "wrong checksum", "gnu-sparse": "sparse", "gnu-posix-sparse": "sparse"}
GNU_TIMES = "gnu-incremental"  # tarfile takes its times for a prefix of the name
BLOCK = 512


def test_the_corpus_is_there() -> None:
    assert len(CORPUS) == 19
    assert REFUSED.keys() < CORPUS.keys()


@pytest.mark.parametrize("name", sorted(CORPUS.keys() - REFUSED.keys() - {GNU_TIMES}))
def test_a_tar_of_the_corpus_is_read_as_tarfile_reads_it(name: str) -> None:
    assert scanned(CORPUS[name]) == listing(CORPUS[name])


def test_times_in_the_place_of_a_prefix_are_no_part_of_a_name() -> None:
    theirs = listing(CORPUS[GNU_TIMES])
    assert scanned(CORPUS[GNU_TIMES]) == [(name.partition("/")[2], *place) for name, *place in theirs]
    assert all(name.startswith("plain/") for name, _, _ in scanned(CORPUS[GNU_TIMES]))


@pytest.mark.parametrize(("name", "reason"), REFUSED.items())
def test_what_no_shard_can_hold_is_refused(name: str, reason: str) -> None:
    with pytest.raises(ShardDamagedError, match=rf"^x\.tar: .*{reason}.* at byte [\d,]+ of [\d,]+"):
        scanned(CORPUS[name])


def altered(content: bytes, rng: random.Random) -> bytes:
    """Overwrite, insert, remove or copy some bytes or whole blocks."""
    result = bytearray(content)
    for _ in range(rng.randint(1, 3)):
        start = rng.randrange(len(result) + 1)
        length = rng.choice([1, 1, 8, 12, 100])
        if rng.random() < 0.6:
            start, length = start - start % BLOCK, rng.choice([BLOCK, 2 * BLOCK, 5 * BLOCK])
        source = rng.randrange(len(content)) // BLOCK * BLOCK
        new = rng.choice([rng.randbytes(length), bytes(length), content[source : source + length], b""])
        result[start : start + rng.choice([0, length])] = new
    return bytes(result)


@given(st.sampled_from(sorted(CORPUS.keys() - {GNU_TIMES})), st.integers(0, 2**64))
def test_a_tar_of_the_corpus_that_was_altered_reads_as_tarfile_reads_it_or_is_damage(name: str, seed: int) -> None:
    content = altered(CORPUS[name], random.Random(seed))
    try:
        found = scanned(content)
    except ShardDamagedError as error:
        found, message = None, str(error)
    if found is None:
        assert re.match(r"x\.tar: .* at byte [\d,]+ of [\d,]+$", message, re.DOTALL)
    else:
        assert found == listing(content)
