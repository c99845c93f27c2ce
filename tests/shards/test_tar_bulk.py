"""Runs of ordinary entries are read at once: to the same result as one by one, and as ``tarfile`` gives."""

from __future__ import annotations

import random
import tarfile
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import fewer
from tests.support.tars import BLOCK, file_entry, listing, plain_tar, tar_bytes, with_checksum
from wdsdist.errors import ShardDamagedError
from wdsdist.shards import index as shardindex
from wdsdist.shards import tar as tarformat
from wdsdist.shards.index import STRICT, Tolerance
from wdsdist.shards.tar import END, header, padding
from wdsdist.shards.tar.bulk import Readable, read_run

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
ODDITIES = ["folder", "link", "long name", "old", "unknown", "time", "comment", "nul in name", "prefix", "seven"]


def many_members(seed: int, form: int, odd: float) -> bytes:
    """Some hundred members of few or many bytes, with something unusual among them now and then."""
    rng = random.Random(seed)
    entries = []
    large = rng.choice([600, 600, 9000])
    for number in range(rng.choice([3, 100, 500])):
        name, kind, fields = f"d.{number % 3}/{number:06}.bin", tarfile.REGTYPE, {}
        data = rng.randbytes(rng.choice([0, 1, 511, 512, 513, rng.randrange(large)]))
        match rng.choice(ODDITIES) if rng.random() < odd else "":
            case "folder" | "link" as what:
                kind, data = (tarfile.DIRTYPE if what == "folder" else tarfile.SYMTYPE), b""
            case "long name":
                name = f"{'n' * 60}/{'m' * 60}/{name}"
            case "old":
                kind = tarfile.AREGTYPE
            case "seven":
                kind = tarfile.CONTTYPE
            case "unknown":
                kind = b"V"
            case "time" if form == tarfile.PAX_FORMAT:
                fields["mtime"] = 1.7e9 + rng.random()
            case "comment" if form == tarfile.PAX_FORMAT:
                fields["pax_headers"] = {"comment": "c" * rng.choice([1, 490, 600])}
        entries.append((file_entry(name, len(data), type=kind, **fields), data))
    return tar_bytes(entries, format=form)


class Far:
    """A tar elsewhere, of which no runs are read: each costs what its entries do."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def __len__(self) -> int:
        return len(self._content)

    def __getitem__(self, place: slice) -> bytes:
        return self._content[place]


def outcome(content: Readable) -> object:
    """Return all that a scan gives, or the message of its error."""
    try:
        found = tarformat.scan(content, label="x.tar")
    except ShardDamagedError as error:
        return str(error)
    return found.names, found.offsets.tolist(), found.sizes.tolist(), found.skipped


def one_by_one(content: bytes) -> object:
    """Return the outcome of a scan that takes no runs."""
    return outcome(Far(content))


many = st.builds(many_members, st.integers(0, 2**32), st.sampled_from(FORMATS), st.sampled_from([0.0, 0.02, 0.7]))


@fewer()
@given(many)
def test_many_members_scan_to_what_tarfile_lists(content: bytes) -> None:
    members = tarformat.scan(content, label="x.tar")
    assert list(zip(members.names, members.offsets.tolist(), members.sizes.tolist(), strict=True)) == listing(content)


@given(many, st.integers(0, 2**32), st.booleans())
def test_a_change_anywhere_gives_the_outcome_of_a_walk_one_by_one(content: bytes, seed: int, mend: bool) -> None:
    rng = random.Random(seed)
    altered = bytearray(content)
    for _ in range(rng.randint(0, 3)):
        block = rng.randrange(len(altered) // BLOCK) * BLOCK
        place = rng.choice([rng.randrange(124, 136), 156, 345, rng.randrange(BLOCK)])
        altered[block + place] = rng.choice([*b"0127x5gLV+-_ /", 0, 0x80, 0xFF, rng.randrange(256)])
        if mend:
            altered[block : block + BLOCK] = with_checksum(bytes(altered[block : block + BLOCK]))
    cut = len(altered) if rng.random() < 0.7 else rng.randrange(len(altered))
    assert outcome(bytes(altered[:cut])) == one_by_one(bytes(altered[:cut]))


@fewer()
@given(many, st.integers(1, 300), st.integers(0, 3), st.booleans())
def test_a_tar_within_other_data_is_read_in_parts_to_the_same(
    content: bytes, most: int, before: int, cut: bool
) -> None:
    content = content[: len(content) * 2 // 3] if cut else content
    start = BLOCK * before
    around = b"7" * start + content + content  # a reader that goes too far finds more members
    parts: list[tarformat.Members] = []
    try:
        parts += tarformat.scan_parts(around, label="x.tar", start=start, stop=start + len(content), most=most)
    except ShardDamagedError as error:
        damage = str(error)
    else:
        damage = ""
    if damage:
        assert damage == outcome(content)
        return
    skipped: Counter[str] = Counter()
    for part in parts:
        skipped.update(part.skipped)
    arrays = [np.concatenate([getattr(part, name) for part in parts]) for name in ("offsets", "sizes")]
    assert outcome(content) == (
        [name for part in parts for name in part.names],
        (arrays[0] - start).tolist(),
        arrays[1].tolist(),
        skipped,
    )
    assert [len(part.names) >= most for part in parts[:-1]] == [True] * (len(parts) - 1)


@pytest.mark.parametrize("size", [0, 1000, 40_000])
def test_members_of_one_size_are_one_run(size: int) -> None:
    content = plain_tar((f"{number:04}.bin", bytes(size)) for number in range(300))
    run = read_run(content, 0, len(content), 4096)
    assert len(run.names) == 300
    assert content[run.next :].strip(b"\0") == b""


def test_data_that_look_like_headers_are_passed_over() -> None:
    inner = plain_tar([("inner.txt", b"x")])
    content = plain_tar((f"{number:04}.tar", inner) for number in range(200))
    assert tarformat.scan(content, label="x.tar").names == [f"{number:04}.tar" for number in range(200)]
    assert outcome(content) == one_by_one(content)


def test_what_webdataset_writes_is_taken_in_runs(tmp_path_factory: pytest.TempPathFactory) -> None:
    from webdataset import TarWriter

    path = tmp_path_factory.mktemp("webdataset") / "x.tar"
    with TarWriter(str(path), encoder=False) as sink:
        for number in range(500):
            sink.write({"__key__": f"{number:06}", "jpg": bytes(number), "cls": b"3"})
    content = path.read_bytes()
    run = read_run(content, 0, len(content), 10_000)
    assert len(run.names) >= 999
    assert outcome(content) == one_by_one(content)


def extended(kind: bytes, body: bytes) -> bytes:
    """Return an extended header with any content."""
    block = header("./PaxHeaders/a", len(body))
    return with_checksum(block[:156] + kind + block[157:]) + body + padding(len(body))


@pytest.mark.parametrize(
    "record",
    [
        b"13 mtime=1.5\n",
        b"14 mtime=1.5\n",  # a wrong length
        b"13 mtime=\n\n2\n",
        b"13 mtime=1.5x",
        b"9 mtime=\n",
        b"24 mtime=1\n13 path=a.txt\n",  # all of it the value of mtime
        b"11 mtime=1\n15 path=ab.txt\n",
        b"15 path=ab.txt\n",
        b"5 a=\n",
        b"10 path=a\n",
        b"9 path=a\n",
        b"8 path=\n",
        b"13 path=a/b/\n",
        b"14 path=a\nb.c\n",
        b"15 path=a\0b.cd\n",
        b"15 path=abcde\0\n",
        b"16 path=ab.txt\n",
        b"14 path=ab.txt\n",
        b"015 path=ab.tx\n",
        b"15 path=ab.txtx",
        b"16 path=\xc3\xa4\xff.txt\n",
        b"109 path=" + b"n" * 99 + b"\n",
        b"511 path=" + b"n" * 501 + b"\n",
        b"512 path=" + b"n" * 502 + b"\n",
        b"15 path=ab.txt\n11 mtime=1\n",
        b"15 size=000007\n",
    ],
)
def test_a_record_says_at_once_what_it_would_one_by_one(record: bytes) -> None:
    content = b"".join(extended(b"x", record) + header(f"{number}.txt", 0) for number in range(99)) + END
    assert outcome(content) == one_by_one(content)


@pytest.mark.parametrize("name", [b"ab.c\0", b"ab.c", b"a\n", b"a\0", b"a", b"\0", b"a/\0", b"a/", b"a\0b\0", b"a\0\0"])
def test_a_long_name_is_at_once_what_it_would_be_one_by_one(name: bytes) -> None:
    content = b"".join(extended(b"L", name) + header(f"{number}.txt", 0) for number in range(99)) + END
    assert outcome(content) == one_by_one(content)


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_are_taken_in_runs(form: int) -> None:
    names = [f"{'n' * (100 + 7 * number % 300)}/ä/{number}.bin" for number in range(500)]
    content = tar_bytes([(file_entry(name, 3), b"abc") for name in names], format=form)
    run = read_run(content, 0, len(content), 10_000)
    assert run.names == names
    assert outcome(content) == one_by_one(content)


def test_what_stands_behind_a_long_name_is_no_part_of_it() -> None:
    body = b"ab.c\0".ljust(BLOCK, b"x")
    content = b"".join(extended(b"L", b"ab.c\0")[:BLOCK] + body + header(f"{number}.txt", 0) for number in range(99))
    assert tarformat.scan(content + END, label="x.tar").names == 99 * ["ab.c"]


# Names to samples, all at once


names = st.lists(st.sampled_from(["a", "b", "a/b", "ä", ".h", "d.x/a", "__m__", "a\n"]), max_size=8)


@given(st.lists(st.tuples(names, st.sampled_from(["jpg", "JPG", "cls", "seg.png", "", "__key__", "a/b"])), max_size=4))
def test_samples_grouped_at_once_are_those_grouped_one_by_one(groups: list[tuple[list[str], str]]) -> None:
    listed = [f"{key}.{extension}" for keys, extension in groups for key in keys]
    content = plain_tar((name, b"1") for name in listed)

    def index(tolerance: Tolerance) -> object:
        try:
            members = tarformat.scan(content, label="x")
            found = shardindex.from_members(members, size=9, sha256="", label="x", tolerance=tolerance)
        except ShardDamagedError as error:
            return str(error)
        return shardindex.dumps(found)

    # Where samples are to be left out, each is looked at.
    assert index(STRICT) == index(Tolerance(excluded=("none of them",)))


@pytest.mark.parametrize(
    "name",
    [
        ".h.jpg",
        "a/.h.jpg",
        "b",
        "b.",
        "b/c",
        "d.x/b",
        "d.x/b.jpg",
        "b\n.jpg",
        "__m__/b.jpg",
        "b.__k__",
        "b.x\0c.jpg",
        "",
    ],
)
def test_a_name_that_is_not_so_plain_is_left_to_be_looked_at_by_itself(name: str) -> None:
    for beside in ([name], [name, "z.jpg"], ["a.jpg", name], ["a.jpg", name, "z.jpg"]):
        assert tarformat.group(beside) is None


def test_names_beyond_ascii_are_grouped_as_they_are_stored() -> None:
    samples = tarformat.group(["ä/1.jpg", "ä/1.ü", "\udce4.jpg"])
    assert samples is not None
    assert samples.keys == ["ä/1".encode(), b"\xe4"]
    assert samples.extensions == ("jpg", "ü")
