"""Rank, world size, local rank and node rank of this process, and the replica whose samples it reads."""

from __future__ import annotations

import contextlib
import os
import re
import reprlib
import sys
import warnings
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

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
    local_rank: int
    """Number of this process among those on its node, from 0."""
    local_world_size: int
    """Number of processes on this node."""
    node_rank: int
    """Number of this node, from 0."""
    source: Source
    """The source of ``rank`` and ``world_size``; ``"arguments"`` if either was passed."""

    @property
    def ranks_per_node(self) -> int:
        """Ranks that share a node, as all ranks see it; 1 if they are unknown or differ between nodes."""
        is_known = self.source != "arguments" and self.world_size % self.local_world_size == 0
        return self.local_world_size if is_known else 1


_ALONE = Identity(0, 1, 0, 1, 0, "single process")


def identity(*, rank: int | None = None, num_replicas: int | None = None) -> Identity:
    """Return the rank, world size and node of this process.

    Arguments come first, then an initialised ``torch.distributed``, then the launcher's environment variables
    (torchrun, Slurm's ``srun``, Open MPI); without any of them there is a single process. As with
    ``DistributedSampler``, one argument without the other is completed from the rest.

    ``local_rank``, ``local_world_size`` and ``node_rank`` describe the process itself, whatever ``rank`` and
    ``num_replicas`` are, and come from the launcher; without a launcher, all processes count as on this node.

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
        raise ArgumentError(f"rank is {own} but num_replicas is {world}{source}: ranks run from 0 to {world - 1}")
    if detected.source == "torch.distributed" and detected.world_size % world:
        # Model parallelism divides the processes into replicas of one size.
        warnings.warn(
            f"num_replicas is {world}, which does not divide torch.distributed's world size {detected.world_size}: "
            "some ranks share or miss samples",
            stacklevel=2,
        )
    return replace(detected, rank=own, world_size=world, source="arguments")


def process_group() -> Any | None:
    """Return the module ``torch.distributed`` if its default process group exists, without importing it.

    Example:
        >>> from unittest import mock
        >>> with mock.patch.dict("sys.modules", {"torch.distributed": None}):  # as if nobody has imported it
        ...     process_group() is None
        True
    """
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
        return _launched() or _unlaunched()
    rank, world = dist.get_rank(), dist.get_world_size()
    # Rank and world size come from the process group, so a broken variable is no error.
    with contextlib.suppress(ArgumentError):
        launched = _launched()
        # Processes spawned inside one launched task all inherit its LOCAL_RANK, which says nothing about them.
        if launched is not None and (launched.rank, launched.world_size) == (rank, world):
            return replace(launched, source="torch.distributed")
    return Identity(rank, world, rank, world, 0, "torch.distributed")


class _Launcher(NamedTuple):
    """The names of a launcher's environment variables."""

    source: Source
    rank: str
    world_size: str
    local_rank: str
    local_world_size: str
    node_rank: str = ""
    """Without one, the node is worked out."""


_SLURM_TASKS = "SLURM_STEP_TASKS_PER_NODE"
_LAUNCHERS = (
    _Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
    # A batch script without srun has SLURM_PROCID=0 and SLURM_NTASKS=8 for one lone process. Only srun sets
    # SLURM_STEP_NUM_TASKS, so nothing else is believed.
    _Launcher("slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", _SLURM_TASKS, "SLURM_NODEID"),
    # OMPI_COMM_WORLD_NODE_RANK is not the number of the node but one more rank on it.
    _Launcher(
        "openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
)  # fmt: skip


def _launched() -> Identity | None:
    """Return the identity from the first launcher that has set rank and world size, checked and completed."""
    for names in _LAUNCHERS:
        rank, world = _variable(names.rank), _variable(names.world_size)
        if rank is None or world is None:
            continue
        if rank >= world:
            raise ArgumentError(f"{names.rank} is {rank} but {names.world_size} is {world}: ranks begin at 0")
        node = _variable(names.node_rank)
        size = _slurm_tasks(node or 0) if names.source == "slurm" else _variable(names.local_world_size)
        name, size = (names.world_size, world) if size is None else (names.local_world_size, size)
        local = _variable(names.local_rank)
        if (local or 0) >= size:
            raise ArgumentError(
                f"{names.local_rank} is {local} but {name} says that there are {size} processes on this node: local "
                f"ranks begin at 0"
            )
        local = rank % size if local is None else local
        return Identity(rank, world, local, size, rank // size if node is None else node, names.source)
    return None


def _unlaunched() -> Identity:
    rank, world = _variable("RANK"), _variable("WORLD_SIZE")
    # One variable without the other would quietly make every process rank 0 of 1: each would read everything.
    if rank:
        raise ArgumentError(f"RANK is {rank} but WORLD_SIZE is not set: set both, as torchrun does, or neither")
    if world is not None and world > 1:
        raise ArgumentError(
            f"WORLD_SIZE is {world} but RANK is not set: call torch.distributed.init_process_group first, "
            "or set both, as torchrun does"
        )
    return _ALONE


def _slurm_tasks(node: int) -> int | None:
    """Return a node's entry of ``SLURM_STEP_TASKS_PER_NODE``, such as ``4(x2),3`` for 4, 4 and 3 tasks."""
    string = os.environ.get(_SLURM_TASKS)
    if string is None:
        return None
    nodes = 0
    for part in string.split(","):
        match = re.fullmatch(r"([0-9]{1,7})(?:\(x([0-9]{1,7})\))?", part.strip())
        if match is None:
            raise ArgumentError(f'{_SLURM_TASKS} is {reprlib.repr(string)}: it must read as "4(x2),3" does')
        nodes += int(match[2] or 1)
        if node < nodes:
            return int(match[1])
    raise ArgumentError(f"SLURM_NODEID is {node} but {_SLURM_TASKS} is {reprlib.repr(string)}: it names {nodes} nodes")


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
    """Return how many of the CPU cores that this process may use are its own, beside the other ``ranks`` of its node.

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
