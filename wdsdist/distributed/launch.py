"""The run of a job that this process belongs to: its id, and when it began."""

from __future__ import annotations

import hashlib
import os
import socket
import time
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Run:
    """One launch of a job, as one of its processes sees it.

    The launcher's variables tell jobs apart that run at the same time, but not a job from its repetition: static
    torchrun has the same run id, address and port every time, and a shell starts every run of a script. So times count
    too: an event before this process began was not in its run.
    """

    id: str
    """Digest of the launcher's variables; of the parent process, where there is no launcher."""
    began: float
    """When this process began, in seconds since 1970."""
    launched: float
    """When its launcher began, where that is known to serve this run only, else ``began``."""


def this_run(*, across_nodes: bool = False) -> Run:
    """Return the run of this process.

    Args:
        across_nodes: whether ``id`` must be the same on all nodes; otherwise it changes when torchrun restarts the
            processes of this node.

    Example:
        >>> this_run().began <= time.time()
        True
    """
    names = _LAUNCHER_VARIABLES if across_nodes else (*_LAUNCHER_VARIABLES, _COUNTED_BY_NODE)
    said = [f"{name}={os.environ[name]}" for name in names if os.environ.get(name)]
    parent = os.getppid()
    if not said:
        # Wrapper scripts give each rank a parent of its own, so the parent counts only where nothing else does.
        said = [f"parent={parent} started={_start_ticks(parent)} host={socket.gethostname()}"]
    began = _began(os.getpid()) or _LOADED
    # The parent of a torchrun worker is torchrun's agent, which lives for this run. Any other may be a shell.
    agent = _began(parent) if os.environ.get("TORCHELASTIC_RUN_ID") else None
    digest = hashlib.sha256("\n".join(said).encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return Run(digest, began, agent or began)


def _began(pid: int) -> float | None:
    """Return when a process began, in seconds since 1970; ``None`` where ``/proc`` does not say."""
    ticks = _start_ticks(pid)
    if ticks is None:
        return None
    # The end of its tick: a process started right after a failure must not seem to be older than it.
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + (ticks + 1) / os.sysconf("SC_CLK_TCK")


def _start_ticks(pid: int) -> int | None:
    """Return when a process began, in clock ticks since the machine started: field 22 of proc(5)'s stat."""
    try:
        # Counted from behind the name, field 2, which may itself hold spaces and brackets.
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None
