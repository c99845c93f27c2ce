"""A disk that fills while ranks fetch into it: a real small one, mounted where nobody else sees it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.mounts import with_mounts
from tests.support.programs import command
from tests.support.stores import WINDOW, Store, expected


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_full_disk_is_an_error_and_the_next_run_goes_on(
    web: Store, stored: Path, tmp_path: Path, workers: int
) -> None:
    program = command("reading_on_a_small_disk", web.url, stored, tmp_path, workers, WINDOW)
    (batches, error, message), strange, limited, roomy = json.loads(with_mounts(program, tmp_path))
    whole = expected(stored, 0, 1)
    assert (batches, error) == (whole[: len(batches)], "CacheError")
    assert len(batches) < len(whole)
    for part in (f"cache has no room for {web.url}/", "No space left on device", "are free on its disk"):
        assert part in message
    assert strange == []
    assert limited == roomy == [whole, "", ""]
