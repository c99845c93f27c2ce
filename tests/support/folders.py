"""Looks at a cache folder from outside."""

from __future__ import annotations

import fcntl
import os
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

SHARDS = 30
"""In the data set of these tests."""


def use(folder: Path) -> int:
    """Return the bytes of all that is in the folders of stores, as it is at some moment; of sparse files the blocks."""
    total = 0
    for path in folder.glob("?" * 24 + "/*"):
        try:
            found = path.stat()
            total += found.st_blocks * 512 if path.suffix == ".wdssparse" else found.st_size
        except FileNotFoundError:
            continue
    return total


def copies(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*.tar"))


def leftovers(folder: Path) -> list[Path]:
    """Return what processes that died have left: files without a copy, and the notes of readers."""
    return lonely(folder) + [path for path in (folder / "readers").glob("*") if not path.suffix and is_free(path)]


def lonely(folder: Path) -> list[Path]:
    """Return files that belong to no copy, such as parts."""
    files = [path for path in folder.glob("?" * 24 + "/*") if path.suffix != ".tar"]
    return [path for path in files if path.suffix == ".wdspart" or not path.with_suffix("").exists()]


def reboot(folder: Path) -> None:
    """Make a cache look as after a reboot: replace the boot id wherever it is noted."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    for path in filter(Path.is_file, folder.rglob("*")):
        if boot in (content := path.read_bytes()):
            path.write_bytes(content.replace(boot, boot[::-1]))


def is_free(path: Path) -> bool:
    """Whether nobody holds a lock on a file."""
    with path.open("rb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def forked(action: Callable[[], object]) -> int:
    """Do something in a forked process, which exits with 0 once it is done; return the number of that process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks where there are threads; none of them matters
        process = os.fork()
    if process == 0:
        try:
            action()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return process


def status(process: int) -> int:
    """Wait for a forked process, and return how it ended."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
