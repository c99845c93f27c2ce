"""Fixtures for tests of all packages: limits that a test makes small, and steps that must not be taken again."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable

import pytest
from filelock import FileLock

from tests.support.programs import command
from wdsdist.storage import compression


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of an S3 server, one for the processes of a test run: to import what it serves with takes seconds.

    It ends with the process that started these. Each module needs a bucket of its own.
    """
    pytest.importorskip("s3fs")
    pytest.importorskip("flask_cors")
    folder, owner = tmp_path_factory.getbasetemp(), os.getpid()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder, owner = folder.parent, os.getppid()
    with FileLock(folder / "s3.lock"):
        if not (folder / "s3.txt").exists():
            # Left to itself by a shell: it goes on after the tests of this process.
            start = ["sh", "-c", '"$@" &', "sh", *command("s3_server", owner)]
            log = folder / "s3.log"
            with (
                log.open("w") as stderr,
                subprocess.Popen(start, stdout=subprocess.PIPE, stderr=stderr, text=True) as process,
            ):
                assert process.stdout is not None
                address = process.stdout.readline().strip()
            assert address, f"the S3 server did not start:\n{log.read_text()}"
            (folder / "s3.txt").write_text(address)
        return (folder / "s3.txt").read_text()


@pytest.fixture
def limit_expansion(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets how many bytes anything compressed may expand to, or to how many times its size where that is more."""

    def limit(always: int, times: int = 200) -> None:
        monkeypatch.setattr(compression, "_ALWAYS", always)
        monkeypatch.setattr(compression, "_EXPANSION", times)

    return limit


@pytest.fixture
def no_scan(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it, and from then on reading a whole tar for its index, whose digest is in it, is an error."""
    sha256 = hashlib.sha256

    def of_no_map(*data: object) -> object:
        assert not data or isinstance(data[0], bytes), "a mapped tar is hashed"
        return sha256(*data)

    return lambda: monkeypatch.setattr(hashlib, "sha256", of_no_map)
