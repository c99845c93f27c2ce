"""The run of a job that this process belongs to.

The launcher's variables tell jobs apart that run at the same time, but not a job from its repetition: static torchrun
has the same run id, address and port every time, and a shell starts every run of a script. So times count too: an event
before this process began was not in its run.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import time
from pathlib import Path

_LAUNCHER_VARIABLES = (
    "TORCHELASTIC_RUN_ID",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_RESTART_COUNT",
    "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid",
)

_COUNTED_BY_NODE = "TORCHELASTIC_RESTART_COUNT"
"""Counts only the restarts that this node caused, so that the nodes of a run may disagree on it."""

_LOADED = time.time()


def run_id(*, across_nodes: bool) -> str:
    """Return a digest of the launcher's variables; without a launcher, of the parent process.

    Args:
        across_nodes: whether it must be the same on all nodes; otherwise it changes when torchrun restarts the
            processes of this node.
    """
    names = _LAUNCHER_VARIABLES if across_nodes else (*_LAUNCHER_VARIABLES, _COUNTED_BY_NODE)
    parts = [f"{name}={os.environ[name]}" for name in names if os.environ.get(name)]
    # Wrapper scripts give each rank a parent of its own, so the parent counts only without a launcher.
    parts = parts or [f"parent={os.getppid()} host={socket.gethostname()}"]
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def process_start() -> float:
    """Return when this process began, in seconds since 1970; without ``/proc``, when it imported this module.

    >>> process_start() <= time.time()
    True
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        # Field 22 of proc(5)'s stat, counted from behind field 2, a name that may hold spaces and brackets.
        ticks = int(Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()[19])
        # The end of its tick: a process started right after a failure must not seem to be older than it.
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + (ticks + 1) / os.sysconf("SC_CLK_TCK")
    return _LOADED
