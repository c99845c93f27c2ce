"""The data-parallel replica of this process, given by rank and number of replicas, or by a ``DeviceMesh``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

from wdsdist.distributed import Identity, identity
from wdsdist.distributed.identity import process_group
from wdsdist.errors import ArgumentError, ArgumentTypeError

_MODEL_PARALLEL = {"tp", "pp", "cp", "sp", "ep", "etp", "mp"}
_MODEL_PARALLEL |= {"tensor", "pipeline", "context", "sequence", "expert", "model"}
"""Words in the names of dimensions whose ranks share their samples, as in ``tp``, ``dp_cp`` and ``tensor_parallel``."""


class Mesh(Protocol):
    """The parts of torch's ``DeviceMesh`` that are used."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def mesh_dim_names(self) -> tuple[str, ...] | None: ...
    @property
    def mesh(self) -> Any: ...
    def get_coordinate(self) -> Sequence[int] | None: ...


@dataclass(frozen=True, slots=True)
class Replica:
    """The rank and number of replicas that the user gave; the rest is detected when `identity` is called."""

    rank: int | None = None
    num_replicas: int | None = None
    is_of_mesh: bool = False
    stride: int = 0
    """Processes from one rank to the next in a mesh; 0 where they are not evenly apart."""

    @classmethod
    def of(cls, rank: int | None, num_replicas: int | None, mesh: Mesh | None) -> Replica:
        """Return the replica of a rank among ``num_replicas``, or of this process in a mesh.

        Raises `ArgumentError` for arguments that contradict each other, and for a mesh without this process or with
        model-parallel dimensions.
        """
        if mesh is None:
            made = cls(rank, num_replicas)
            if rank is not None and num_replicas is not None:
                made.identity()  # raises here, not in the training loop
            return made
        if rank is not None or num_replicas is not None:
            raise ArgumentError("mesh= decides rank and num_replicas: pass it, or them")
        return cls(*_place(mesh), is_of_mesh=True, stride=_stride(mesh))

    def identity(self) -> Identity:
        """Return the rank and world size among which samples are split, as known now."""
        here = identity(rank=self.rank, num_replicas=self.num_replicas, model_parallel=self.is_of_mesh)
        return replace(here, stride=self.stride)

    def __reduce__(self) -> tuple[Any, ...]:
        if process_group() is None:
            return Replica, (self.rank, self.num_replicas, self.is_of_mesh, self.stride)
        # A spawned worker has no process group to detect them from.
        here = self.identity()
        return Replica, (here.rank, here.world_size, self.is_of_mesh, self.stride)


def _place(mesh: Mesh) -> tuple[int, int]:
    """Return this process's rank within a mesh, and the size of the mesh, over all dimensions."""
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


def _stride(mesh: Mesh) -> int:
    """Return how many processes each rank of a mesh is after the one before; 0 where they are not evenly apart."""
    processes = mesh.mesh.flatten().tolist()
    apart = {other - one for one, other in pairwise(processes)}
    return max(0, apart.pop()) if len(apart) == 1 else 0
