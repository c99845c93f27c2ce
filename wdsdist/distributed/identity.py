"""Rank, world size, local rank and node rank of this process, and the replica whose samples it reads."""

from __future__ import annotations

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
    """The source of ``rank`` and ``world_size``; ``"arguments"`` where either was passed."""

    @property
    def ranks_per_node(self) -> int:
        """Ranks that share a node, as all ranks see it; 1 if the ranks are arguments, which name no nodes."""
        if self.source == "arguments" or self.world_size % self.local_world_size:
            return 1
        return self.local_world_size

    @property
    def node_ranks(self) -> range:
        """The ranks that may be on this node: all ranks, unless every node has the same number."""
        per_node = self.ranks_per_node
        if self.source == "arguments" or self.world_size % self.local_world_size:
            per_node = self.world_size
        first = self.rank // per_node * per_node
        return range(first, first + per_node)


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
        found = _detect()
    except ArgumentError:
        if rank is None or num_replicas is None:
            raise
        # Both arguments are the remedy for a broken environment, so they must work in one.
        found = _ALONE
    if rank is None and num_replicas is None:
        return found
    whence = "" if rank is not None and num_replicas is not None else f" (from {found.source})"
    this = found.rank if rank is None else rank
    world = found.world_size if num_replicas is None else num_replicas
    if this >= world:
        raise ArgumentError(f"rank is {this} but num_replicas is {world}{whence}: ranks run from 0 to {world - 1}")
    if found.source == "torch.distributed" and found.world_size % world:
        # Model parallelism divides the processes into replicas of one size.
        warnings.warn(
            f"num_replicas is {world}, which does not divide torch.distributed's world size {found.world_size}: some "
            "ranks share or miss samples",
            stacklevel=2,
        )
    return replace(found, rank=this, world_size=world, source="arguments")


def process_group() -> Any | None:
    """Return the module ``torch.distributed`` where its default process group exists, without importing it.

    Example:
        >>> from unittest import mock
        >>> with mock.patch.dict("sys.modules", {"torch.distributed": None}):  # as where nobody has imported it
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
    try:
        placed = _launched()
    except ArgumentError:  # the process group answers for rank and world; a broken variable must not undo that
        placed = None
    if placed is None or (placed.rank, placed.world_size) != (rank, world):
        # Processes spawned inside one launched task all inherit its LOCAL_RANK; it says nothing about them.
        return Identity(rank, world, rank, world, 0, "torch.distributed")
    return replace(placed, source="torch.distributed")


class _Variables(NamedTuple):
    """The names of a launcher's environment variables."""

    source: Source
    rank: str
    world: str
    local: str
    mates: str
    node: str | None


_LAUNCHERS = (
    _Variables("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
    # A batch script without srun has SLURM_PROCID=0 and SLURM_NTASKS=8 for one lone process. Only srun sets
    # SLURM_STEP_NUM_TASKS, so nothing else is believed.
    _Variables(
        "slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID"
    ),
    # OMPI_COMM_WORLD_NODE_RANK is not the number of the node but one more rank on it, so the node is worked out.
    _Variables(
        "openmpi",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        None,
    ),
)


def _launched() -> Identity | None:
    return next(filter(None, map(_placed, _LAUNCHERS)), None)


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


def _slurm_tasks_here(node: int) -> int | None:
    """Return this node's entry of ``SLURM_STEP_TASKS_PER_NODE``, such as ``4(x2),3`` for 4, 4 and 3 tasks."""
    name = "SLURM_STEP_TASKS_PER_NODE"
    text = os.environ.get(name)
    if text is None:
        return None
    nodes = 0
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,7})(?:\(x([0-9]{1,7})\))?", part.strip())
        if match is None:
            raise ArgumentError(f'{name} is {reprlib.repr(text)}: it must read as "4(x2),3" does')
        nodes += int(match[2] or 1)
        if node < nodes:
            return int(match[1])
    raise ArgumentError(f"SLURM_NODEID is {node} but {name} is {reprlib.repr(text)}: it names {nodes} nodes, from 0")


def _placed(names: _Variables) -> Identity | None:
    """Return the identity from one launcher's variables, checked and completed; `None` where they are not set."""
    rank, world = _variable(names.rank), _variable(names.world)
    if rank is None or world is None:
        return None
    if world < 1:
        raise ArgumentError(f"{names.world} is {world}: there must be at least 1 process")
    if rank >= world:
        raise ArgumentError(f"{names.rank} is {rank} but {names.world} is {world}: ranks run from 0 to {world - 1}")
    node = None if names.node is None else _variable(names.node)
    told = _slurm_tasks_here(node or 0) if names.source == "slurm" else _variable(names.mates)
    whence, mates = (names.world, world) if told is None else (names.mates, told)
    if mates < 1:
        raise ArgumentError(f"{whence} is {mates}: there must be at least 1 process on this node")
    local = _variable(names.local)
    if local is None:
        local = rank % mates
    if local >= mates:
        raise ArgumentError(
            f"{names.local} is {local} but {whence} says that there are {mates} processes on this node: local ranks "
            f"run from 0 to {mates - 1}"
        )
    return Identity(rank, world, local, mates, rank // mates if node is None else node, names.source)


def _variable(name: str) -> int | None:
    """Read a whole number. An empty variable is an error: a script had no number to set."""
    text = os.environ.get(name)
    if text is None:
        return None
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit()):
        raise ArgumentError(
            f"{name} is {reprlib.repr(text)}: it must be a whole number from 0, as the launcher sets it, or unset"
        )
    digits = digits.lstrip("0") or "0"
    if len(digits) > len(str(MOST_PROCESSES)) or int(digits) > MOST_PROCESSES:
        raise ArgumentError(f"{name} is {reprlib.repr(text)}: it must be at most {MOST_PROCESSES:,}")
    return int(digits)


def share_of_cores(cores: int, ranks: int) -> int:
    """Return how many of the CPU cores that this process may use are its own, beside the other ``ranks`` of its node.

    Where srun binds a task to cores of its own, so many that all tasks of the node find room, all of them are its.
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
