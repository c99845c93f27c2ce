"""A disk that fills while ranks fetch into it: a real small one, mounted where nobody else sees it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.stores import WINDOW, Store, expected
from wdsdist import StreamingDataLoader, StreamingDataset
from wdsdist.errors import CacheError

ON_A_SMALL_DISK = """
import json, subprocess, sys
from pathlib import Path
sys.path[:0] = sys.argv[1].split(":")
import wdsdist
from tests.support.stores import BATCH, COPY, digest, strange_copies

url, stored, disk, workers, window = sys.argv[2:]

def read(**options):
    dataset = wdsdist.StreamingDataset(url, cache_dir=Path(disk, "cache"), shuffle_window=int(window), **options)
    batches = []
    try:
        for batch in wdsdist.StreamingDataLoader(dataset, BATCH, num_workers=int(workers)):
            batches.append(digest(batch))
    except Exception as error:
        return batches, type(error).__name__, str(error)
    return batches, "", ""

subprocess.run(["mount", "-t", "tmpfs", "-o", f"mode=0700,size={8 * COPY}", "tmpfs", disk], check=True)
full = read(download_timeout=20)
strange = strange_copies(Path(disk), Path(stored))
limited = read(cache_limit=6 * COPY)
subprocess.run(["mount", "-o", "remount,size=100m", disk], check=True)
print(json.dumps([full, strange, limited, read()]))
"""
IN_ITS_OWN_NAMESPACE = ["unshare", "--map-root-user", "--mount"]
"""There, anyone may mount, and what is mounted goes with the last process."""


@pytest.mark.parametrize("workers", [0, 2])
def test_a_full_disk_is_an_error_and_the_next_run_goes_on(
    web: Store, stored: Path, tmp_path: Path, workers: int
) -> None:
    mount = [*IN_ITS_OWN_NAMESPACE, "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)]
    if not shutil.which("unshare") or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this system lets nobody mount a file system in a namespace of their own")
    folders = str(Path(__file__).parents[2])
    arguments = [folders, web.url, stored, tmp_path, workers, WINDOW]
    run = subprocess.run(
        [*IN_ITS_OWN_NAMESPACE, sys.executable, "-c", ON_A_SMALL_DISK, *map(str, arguments)],
        capture_output=True, text=True, check=True, timeout=100,
    )  # fmt: skip
    (batches, error, message), strange, limited, roomy = json.loads(run.stdout)
    whole = expected(stored, 0, 1)
    assert (batches, error) == (whole[: len(batches)], "CacheError")
    assert len(batches) < len(whole)
    for part in (f"cache has no room for {web.url}/", "No space left on device", "are free on its disk"):
        assert part in message
    assert strange == []
    assert limited == roomy == [whole, "", ""]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_folder_that_cannot_be_one_is_an_error_in_the_training_loop(web: Store, tmp_path: Path, workers: int) -> None:
    (tmp_path / "file").touch()
    dataset = StreamingDataset(web.url, cache_dir=tmp_path / "file" / "cache")
    with pytest.raises(CacheError, match=r"file/cache cannot be used as a cache \(.*\): choose another cache_dir"):
        next(iter(StreamingDataLoader(dataset, num_workers=workers)))
