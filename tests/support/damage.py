"""What may befall a file between two runs, or a process in one."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator, Sequence
from pathlib import Path

from hypothesis import strategies as st


def flip(path: Path, offset: int | None = None) -> None:
    """Change one byte in place, by default the middle one."""
    with path.open("r+b") as stream:
        place = os.fstat(stream.fileno()).st_size // 2 if offset is None else offset
        byte = os.pread(stream.fileno(), 1, place)
        os.pwrite(stream.fileno(), bytes([byte[0] ^ 1]), place)


def flip_keeping_its_time(path: Path) -> None:
    before = path.stat()
    flip(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def altered(data: bytes, pieces: Sequence[bytes] = ()) -> st.SearchStrategy[bytes]:
    """The data with a few bytes changed or pieces put in, a part cut out or doubled, or its end cut off."""
    places = st.integers(0, len(data) - 1)
    piece = st.binary(min_size=1, max_size=1) | (st.sampled_from(pieces) if pieces else st.nothing())
    edits = st.lists(st.tuples(places, st.integers(0 if pieces else 1, 1), piece), min_size=1, max_size=4)

    def edit(edits: list[tuple[int, int, bytes]]) -> bytes:
        copy = bytearray(data)
        for place, replaced, put in edits:
            copy[place : place + replaced] = put
        return bytes(copy)

    parts = st.tuples(places, places).map(sorted)
    return st.one_of(
        edits.map(edit),
        places.map(lambda end: data[:end]),
        parts.map(lambda part: data[: part[0]] + data[part[1] :]),
        parts.map(lambda part: data[: part[1]] + data[part[0] :]),
    )


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size * 9 // 10)


@contextlib.contextmanager
def open_files_limited(more: int) -> Iterator[None]:
    """Let this process open so many files more than it has open now, and no others."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Path(os.devnull).open() as following:
        number = following.fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (number + more, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
