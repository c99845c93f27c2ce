"""Rank, world size and node of this process, the replica whose samples it reads, and the run."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import reprlib
import socket
import sys
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from wdsdist._util.validation import MOST_PROCESSES, check_integer
from wdsdist.errors import ArgumentError

Source = Literal["arguments", "torch.distributed", "torchrun", "slurm", "openmpi", "single process"]


@dataclass(frozen=True, slots=True)
class Identity:
    """Rank, world size and node of one process of a distributed job."""

    rank: int
    """Number of this process among all, from 0."""
    world_size: int
    """Number of processes."""
    local_world_size: int
    """Number of processes on this node; under Slurm, the mean of all nodes, rounded up."""
    node_rank: int
    """Number of this node, from 0."""
    source: Source
    """The source of ``rank`` and ``world_size``; ``"arguments"`` if either was passed."""

    @property
    def ranks_per_node(self) -> int:
        """Ranks that share a node, as all ranks see it; 1 if they are unknown or differ between nodes."""
        is_known = self.source != "arguments" and self.world_size % self.local_world_size == 0
        return self.local_world_size if is_known else 1


_ALONE = Identity(0, 1, 1, 0, "single process")


def identity(*, rank: int | None = None, num_replicas: int | None = None) -> Identity:
    """Return the rank, world size and node of this process.

    Arguments come first, then an initialised ``torch.distributed``, then the launcher's environment variables
    (torchrun, Slurm's ``srun``, Open MPI); without any of them there is a single process. As with
    ``DistributedSampler``, one argument without the other is completed from the rest.

    ``local_world_size`` and ``node_rank`` describe the process itself, whatever ``rank`` and ``num_replicas`` are, and
    come from the launcher; without a launcher, all processes count as on this node.

    Args:
        rank: number of this process, ``0 <= rank < num_replicas``.
        num_replicas: number of processes that share the samples, at least 1.

    Raises:
        ArgumentError: an argument is not an int or out of range, or the environment contradicts itself.

    Example:
        >>> identity(rank=1, num_replicas=4).world_size
        4
    """
    rank = None if rank is None else check_integer("rank", rank, 0)
    num_replicas = None if num_replicas is None else check_integer("num_replicas", num_replicas, 1, MOST_PROCESSES)
    try:
        detected = _detect()
    except ArgumentError:
        if rank is None or num_replicas is None:
            raise
        # Both arguments are the remedy for a broken environment, so they must work in one.
        detected = _ALONE
    if rank is None and num_replicas is None:
        return detected
    source = "" if rank is not None and num_replicas is not None else f" (from {detected.source})"
    own = detected.rank if rank is None else rank
    world = detected.world_size if num_replicas is None else num_replicas
    if own >= world:
        problem = f"rank is {own} but num_replicas is {world}{source}: ranks run from 0 to {world - 1}"
        raise ArgumentError(problem, argument="rank")
    if detected.source == "torch.distributed" and detected.world_size % world:
        # Model parallelism divides the processes into replicas of one size.
        warnings.warn(
            f"num_replicas is {world}, which does not divide torch.distributed's world size {detected.world_size}: "
            "some ranks share or miss samples",
            stacklevel=2,
        )
    return replace(detected, rank=own, world_size=world, source="arguments")


def process_group() -> Any | None:
    """Return the module ``torch.distributed`` if its default process group exists, without importing it."""
    dist = sys.modules.get("torch.distributed")
    # A torch built without distributed, or one that is being imported just now, lacks some of these names.
    available = getattr(dist, "is_available", None)
    if dist is None or available is None or not available() or not dist.is_initialized():
        return None
    return dist


def _detect() -> Identity:
    """Return the identity from torch.distributed, or else from the launcher."""
    dist = process_group()
    if dist is None:
        return _launched()
    rank, world = dist.get_rank(), dist.get_world_size()
    # Rank and world size come from the process group, so a broken variable is not an error.
    with contextlib.suppress(ArgumentError):
        launched = _launched()
        # Processes spawned inside one launched task all inherit its variables, which say nothing about them.
        if (launched.rank, launched.world_size) == (rank, world):
            return replace(launched, source="torch.distributed")
    return Identity(rank, world, world, 0, "torch.distributed")


_LAUNCHERS: tuple[tuple[Source, str, str, str, str, str], ...] = (
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "", "GROUP_RANK"),
    # A batch script without srun has SLURM_PROCID=0 and SLURM_NTASKS=8 for one lone process. Only srun sets
    # SLURM_STEP_NUM_TASKS, so nothing else is believed.
    ("slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "", "SLURM_STEP_NUM_NODES", "SLURM_NODEID"),
    # OMPI_COMM_WORLD_NODE_RANK is not the number of the node but one more rank on it: the node is worked out.
    ("openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "", ""),
)
"""The environment variables of each launcher: rank, world size, local world size or number of nodes, and node rank."""


def _launched() -> Identity:
    """Return the identity from the first launcher that has set rank and world size, checked and completed."""
    for source, of_rank, of_world, of_size, of_nodes, of_node in _LAUNCHERS:
        rank, world = _variable(of_rank), _variable(of_world)
        if rank is None or world is None:
            continue
        if rank >= world:
            raise ArgumentError(f"{of_rank} is {rank} but {of_world} is {world}: ranks begin at 0")
        node, size = _variable(of_node), _variable(of_size) or -(-world // (_variable(of_nodes) or 1))
        return Identity(rank, world, size, rank // size if node is None else node, source)
    rank, world = _variable("RANK"), _variable("WORLD_SIZE")
    # One variable without the other would quietly make every process rank 0 of 1: each would read everything.
    lone = f"RANK is {rank} but WORLD_SIZE" if rank else f"WORLD_SIZE is {world} but RANK" if (world or 0) > 1 else ""
    if lone:
        raise ArgumentError(
            f"{lone} is not set: call torch.distributed.init_process_group first, or set both, as torchrun does"
        )
    return _ALONE


def _variable(name: str) -> int | None:
    """Read a whole number. An empty variable is an error: a script had no number to set."""
    string = os.environ.get(name)
    if string is None:
        return None
    if not re.fullmatch(r"\s*[0-9]{1,7}\s*", string, re.ASCII) or int(string) > MOST_PROCESSES:
        raise ArgumentError(
            f"{name} is {reprlib.repr(string)}: it must be a whole number from 0 to {MOST_PROCESSES:,}, as the "
            f"launcher sets it, or unset"
        )
    return int(string)


def share_of_cores(cores: int, ranks: int) -> int:
    """Return how many of the CPU cores that this process may use are its own, next to the other ``ranks`` of its node.

    If srun binds each task to cores of its own, a task has all the cores that it may use.
    """
    on_node = os.environ.get("SLURM_CPUS_ON_NODE", "")
    is_bound = on_node.isdecimal() and cores * ranks <= int(on_node)
    return cores if is_bound else cores // ranks


@dataclass(frozen=True, slots=True)
class Replica:
    """The rank and number of replicas as given by the user; `identity` detects the rest when it is called."""

    rank: int | None = None
    num_replicas: int | None = None

    def __post_init__(self) -> None:
        if self.rank is not None and self.num_replicas is not None:
            self.identity()  # raises here, not in the training loop

    def identity(self) -> Identity:
        """Return the rank and world size among which samples are split, as known now."""
        return identity(rank=self.rank, num_replicas=self.num_replicas)

    def __reduce__(self) -> tuple[Any, ...]:
        if process_group() is None:
            return Replica, (self.rank, self.num_replicas)
        # A spawned worker has no process group to detect them from.
        this = self.identity()
        return Replica, (this.rank, this.world_size)


# The launcher's variables tell jobs apart that run at the same time, but not a job from its repetition: static torchrun
# has the same run id, address and port every time, and a shell starts every run of a script. So times count too: an
# event before this process began was not in its run.

_LAUNCHER_VARIABLES = (
    "TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT",
    "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid",
)  # fmt: skip

_COUNTED_BY_NODE = "TORCHELASTIC_RESTART_COUNT"
"""Counts only the restarts that this node caused, so that the nodes of a run may disagree on it."""

_LOADED = time.time()


def run_id(*, across_nodes: bool) -> str:
    """Return a digest of the launcher's variables; without a launcher, of the parent process.

    With ``across_nodes`` it is the same on all nodes; else it changes when torchrun restarts the processes of a node.
    """
    names = _LAUNCHER_VARIABLES if across_nodes else (*_LAUNCHER_VARIABLES, _COUNTED_BY_NODE)
    parts = [f"{name}={os.environ[name]}" for name in names if os.environ.get(name)]
    # Wrapper scripts give each rank a parent of its own, so the parent counts only without a launcher.
    parts = parts or [f"parent={os.getppid()} host={socket.gethostname()}"]
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def process_start() -> float:
    """Return when this process began, in seconds since 1970; without ``/proc``, when it imported this module."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        # Field 22 of proc(5)'s stat, counted from behind field 2, a name that may hold spaces and brackets.
        ticks = int(Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()[19])
        # The end of its tick: a process started right after a failure must not seem to be older than it.
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + (ticks + 1) / os.sysconf("SC_CLK_TCK")
    return _LOADED
