"""Programs that mount small file systems, in a namespace where nobody else sees them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.programs import environment

IN_ITS_OWN_NAMESPACE = ["unshare", "--map-root-user", "--mount"]
"""There, anyone may mount, and what is mounted goes with the last process."""


def with_mounts(command: list[str], folder: Path) -> str:
    """Run a program that mounts over a folder, and return what it prints; skip the test where nobody may mount."""
    mount = [*IN_ITS_OWN_NAMESPACE, "mount", "-t", "tmpfs", "tmpfs", str(folder)]
    if not shutil.which("unshare") or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this system lets nobody mount a file system in a namespace of their own")
    run = subprocess.run(
        [*IN_ITS_OWN_NAMESPACE, *command], env=environment(), stdout=subprocess.PIPE, text=True, check=True, timeout=580
    )
    return run.stdout
