"""Stamps of verified copies."""

from __future__ import annotations

import os
from pathlib import Path

from wdsdist.cache.copies import Stamp, stamp


def test_a_stamped_copy_has_a_time_that_no_later_write_gives_it_within_a_tick_of_the_clock(tmp_path: Path) -> None:
    with (tmp_path / "0.tar").open("x+b", buffering=0) as copy:
        copy.write(b"right")
        written = os.fstat(copy.fileno()).st_mtime_ns
        stamp(copy.fileno(), tmp_path / "stamp", "its digest", "")
        known = Stamp.read(tmp_path / "stamp")
        assert known == Stamp.of(os.fstat(copy.fileno()), "its digest", "")
        assert known.mtime_ns < written - 1_000_000_000
        copy.write(b"more")
        assert not known.agrees(os.fstat(copy.fileno()))
