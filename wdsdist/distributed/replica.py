"""Which part of the samples this process is given: that of one data-parallel replica."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from wdsdist.distributed import Identity, identity
from wdsdist.distributed.failures import process_group
from wdsdist.errors import ArgumentError, ArgumentTypeError

_MODEL_PARALLEL = {"tp", "pp", "cp", "sp", "ep", "etp", "mp"}
_MODEL_PARALLEL |= {"tensor", "pipeline", "context", "sequence", "expert", "model"}
"""Words in the names of dimensions whose ranks share their samples, as in ``tp``, ``dp_cp`` and ``tensor_parallel``."""


class Mesh(Protocol):
    """What is used of torch's ``DeviceMesh``."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def mesh_dim_names(self) -> tuple[str, ...] | None: ...
    def get_coordinate(self) -> Sequence[int] | None: ...


@dataclass(frozen=True, slots=True)
class Replica:
    """What was said of the replica that this process is; the rest is looked up when it is asked for."""

    rank: int | None = None
    num_replicas: int | None = None
    is_of_mesh: bool = False

    @classmethod
    def of(cls, rank: int | None, num_replicas: int | None, mesh: Mesh | None) -> Replica:
        """Return the replica of a rank among ``num_replicas``, or of this process in a mesh.

        Raises `ArgumentError` for what contradicts itself, and for a mesh that this process is not in, or that has
        dimensions of a model-parallel kind.
        """
        if mesh is None:
            made = cls(rank, num_replicas)
            if rank is not None and num_replicas is not None:
                made.identity()  # what is wrong with them is said here, not in the training loop
            return made
        if rank is not None or num_replicas is not None:
            raise ArgumentError("mesh= decides rank and num_replicas: pass it, or them")
        return cls(*_place(mesh), is_of_mesh=True)

    def identity(self) -> Identity:
        """Return the rank and world size that samples are split for, as they are known now."""
        return identity(rank=self.rank, num_replicas=self.num_replicas, model_parallel=self.is_of_mesh)

    def __reduce__(self) -> tuple[Any, ...]:
        if process_group() is None:
            return Replica, (self.rank, self.num_replicas, self.is_of_mesh)
        # A worker that is not forked has no process group to ask.
        here = self.identity()
        return Replica, (here.rank, here.world_size, self.is_of_mesh)


def _place(mesh: Mesh) -> tuple[int, int]:
    """Return this process's number within a mesh, and how many there are; every dimension counts."""
    if not hasattr(mesh, "get_coordinate"):
        raise ArgumentTypeError(f"mesh is {mesh!r}: it must be a DeviceMesh, such as mesh['dp']")
    names = mesh.mesh_dim_names or ()
    shared = [name for name in names if not _MODEL_PARALLEL.isdisjoint(name.lower().split("_"))]
    if shared:
        raise ArgumentError(
            f"mesh has the dimension {shared[0]!r}, whose ranks are to see the same samples: pass the data-parallel "
            f"part alone, as in mesh=mesh['dp'] or mesh=mesh['dp_replicate', 'dp_shard'], or where there is none, "
            f"num_replicas=1 and rank=0"
        )
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise ArgumentError(f"mesh is {mesh!r}, which this process is not in: make the data set on its ranks only")
    rank, size = 0, 1
    for place, length in zip(coordinate, mesh.shape, strict=True):
        rank, size = rank * length + place, size * length
    return rank, size
