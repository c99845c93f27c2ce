"""Which process this is: its rank, its world, its place on the node."""

from __future__ import annotations

import os
import re
import warnings
from dataclasses import dataclass, replace
from typing import Literal

from wdsdist._util.validation import check_integer
from wdsdist.distributed.failures import process_group
from wdsdist.errors import ArgumentError

Source = Literal["arguments", "torch.distributed", "torchrun", "slurm", "openmpi", "single process"]


@dataclass(frozen=True, slots=True)
class Identity:
    """One process among those that train together."""

    rank: int
    """Number of this process among all, from 0."""
    world_size: int
    """How many processes there are."""
    local_rank: int
    """Number of this process among those on its node, from 0."""
    local_world_size: int
    """How many of the processes are on this node."""
    node_rank: int
    """Number of this node, from 0."""
    source: Source
    """Where ``rank`` and ``world_size`` came from; ``"arguments"`` as soon as one of them was given."""


_ALONE = Identity(0, 1, 0, 1, 0, "single process")


def identity(*, rank: int | None = None, num_replicas: int | None = None, model_parallel: bool = False) -> Identity:
    """Find out which process this is.

    Arguments come first, then an initialised ``torch.distributed``, then the launcher's environment variables
    (torchrun, Slurm's ``srun``, Open MPI); without any of them there is a single process. As with
    ``DistributedSampler``, one argument without the other is completed from the rest.

    ``local_rank``, ``local_world_size`` and ``node_rank`` describe the process itself, whatever ``rank`` and
    ``num_replicas`` say, and come from the launcher; where it does not tell them, all processes are taken to be
    on this node.

    Args:
        rank: number of this process, ``0 <= rank < num_replicas``.
        num_replicas: number of processes that share the samples, at least 1.
        model_parallel: whether several processes are known to make one replica; otherwise a ``num_replicas`` that is
            not torch.distributed's world size warns.

    Raises:
        ArgumentTypeError: an argument is not an int.
        ArgumentError: an argument is out of range, or the environment contradicts itself.

    Example:
        >>> identity(rank=1, num_replicas=4).world_size
        4
    """
    rank = None if rank is None else check_integer("rank", rank, 0)
    num_replicas = None if num_replicas is None else check_integer("num_replicas", num_replicas, 1)
    try:
        found = _detect()
    except ArgumentError:
        if rank is None or num_replicas is None:
            raise
        # Both arguments are the way out of a broken environment, so they must not need a sound one.
        found = _ALONE
    if rank is None and num_replicas is None:
        return found
    whence = "" if rank is not None and num_replicas is not None else f" (from {found.source})"
    this = found.rank if rank is None else rank
    world = found.world_size if num_replicas is None else num_replicas
    if this >= world:
        raise ArgumentError(f"rank is {this} but num_replicas is {world}{whence}: ranks run from 0 to {world - 1}")
    if found.source == "torch.distributed" and world != found.world_size and not model_parallel:
        # Only a warning: the ranks of one model-parallel group rightly share a rank among fewer replicas.
        warnings.warn(
            f"num_replicas is {world} but torch.distributed's world size is {found.world_size}: right for the "
            "data-parallel groups of a model-parallel job (mesh= says so); otherwise ranks share or miss samples",
            stacklevel=2,
        )
    return replace(found, rank=this, world_size=world, source="arguments")


def _detect() -> Identity:
    """Ask torch.distributed, then the launcher."""
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


def _launched() -> Identity | None:
    return _torchrun() or _slurm() or _openmpi()


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


def _torchrun() -> Identity | None:
    rank, world = _variable("RANK"), _variable("WORLD_SIZE")
    if rank is None or world is None:
        return None
    local, mates, node = _variable("LOCAL_RANK"), _variable("LOCAL_WORLD_SIZE"), _variable("GROUP_RANK")
    return _placed("torchrun", "RANK", rank, "WORLD_SIZE", world, local, mates, node)


def _slurm() -> Identity | None:
    # A batch script without srun has SLURM_PROCID=0 and SLURM_NTASKS=8 for one lone process. Only srun sets
    # SLURM_STEP_NUM_TASKS, so nothing else is believed.
    rank, world = _variable("SLURM_PROCID"), _variable("SLURM_STEP_NUM_TASKS")
    if rank is None or world is None:
        return None
    local, node = _variable("SLURM_LOCALID"), _variable("SLURM_NODEID")
    mates = _slurm_tasks_here(node or 0)
    return _placed("slurm", "SLURM_PROCID", rank, "SLURM_STEP_NUM_TASKS", world, local, mates, node)


def _slurm_tasks_here(node: int) -> int | None:
    """Read this node's entry of ``SLURM_STEP_TASKS_PER_NODE``, such as ``4(x2),3`` for 4, 4 and 3 tasks."""
    name = "SLURM_STEP_TASKS_PER_NODE"
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    nodes = 0
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]+)(?:\(x([0-9]+)\))?", part.strip())
        if match is None:
            raise ArgumentError(f'{name} is {text!r}: it must read as "4(x2),3" does')
        nodes += int(match[2] or 1)
        if node < nodes:
            return int(match[1])
    raise ArgumentError(f"SLURM_NODEID is {node} but {name} is {text!r}: it names {nodes} nodes, from 0")


def _openmpi() -> Identity | None:
    rank, world = _variable("OMPI_COMM_WORLD_RANK"), _variable("OMPI_COMM_WORLD_SIZE")
    if rank is None or world is None:
        return None
    local, mates = _variable("OMPI_COMM_WORLD_LOCAL_RANK"), _variable("OMPI_COMM_WORLD_LOCAL_SIZE")
    # OMPI_COMM_WORLD_NODE_RANK is not the number of the node but one more rank on it, so the node is worked out.
    return _placed("openmpi", "OMPI_COMM_WORLD_RANK", rank, "OMPI_COMM_WORLD_SIZE", world, local, mates, None)


def _placed(
    source: Source,
    rank_name: str,
    rank: int,
    world_name: str,
    world: int,
    local: int | None,
    mates: int | None,
    node: int | None,
) -> Identity:
    """Check what a launcher said and fill in what it left out."""
    if world < 1:
        raise ArgumentError(f"{world_name} is {world}: there must be at least 1 process")
    if rank >= world:
        raise ArgumentError(f"{rank_name} is {rank} but {world_name} is {world}: ranks run from 0 to {world - 1}")
    mates = world if mates is None else mates
    if mates < 1:
        raise ArgumentError(f"{source} says that there are {mates} processes on this node: there must be at least 1")
    local = rank % mates if local is None else local
    if local >= mates:
        raise ArgumentError(
            f"{source} gives this process local rank {local} among {mates} on its node: "
            f"local ranks run from 0 to {mates - 1}"
        )
    return Identity(rank, world, local, mates, rank // mates if node is None else node, source)


def _variable(name: str) -> int | None:
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        raise ArgumentError(f"{name} is {text!r}: it must be a whole number from 0, as the launcher sets it, or unset")
    return int(text)
