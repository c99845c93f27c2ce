"""Ranks of a mesh: how many of them a node has, against meshes laid out over nodes one by one."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from wdsdist.distributed.identity import Replica


def identities(monkeypatch: pytest.MonkeyPatch, grid: np.ndarray, axes: tuple[int, ...], local: int) -> dict[int, int]:
    """Return the ranks of a node as each process of a job sees them, which has ``local`` processes on each node."""
    found = {}
    for coordinate in np.ndindex(grid.shape):
        process = int(grid[coordinate])
        numbers = {"RANK": process, "WORLD_SIZE": grid.size, "LOCAL_RANK": process % local, "LOCAL_WORLD_SIZE": local}
        for name, number in numbers.items():
            monkeypatch.setenv(name, str(number))
        ranks = grid[tuple(slice(None) if axis in axes else place for axis, place in enumerate(coordinate))]
        mesh = SimpleNamespace(
            shape=ranks.shape,
            mesh=ranks,
            mesh_dim_names=None,
            get_coordinate=lambda coordinate=coordinate: [coordinate[axis] for axis in axes],
        )
        found[process] = Replica.of(None, None, mesh).identity().ranks_per_node
    return found


@pytest.mark.parametrize("local", [1, 2, 4, 8])
@pytest.mark.parametrize("shape", [(2, 2, 2), (1, 4, 2), (2, 4, 1), (4, 2, 2), (2, 3, 4), (1, 16, 1), (2, 8, 1)])
def test_the_ranks_of_a_mesh_that_share_a_node_are_those_of_brute_force(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int, int], local: int
) -> None:
    """A job of pipeline, data and tensor parallel processes: numbers of the data-parallel ones by all other places."""
    grid = np.arange(np.prod(shape)).reshape(shape)
    if grid.size % local:
        return
    found = identities(monkeypatch, grid, (1,), local)
    assert len(set(found.values())) == 1, "all processes see the same"
    per_node = found[0]
    pipelines, ranks, tensor = shape
    if local % tensor:
        assert per_node == 1
        return
    for pipeline, part in itertools.product(range(pipelines), range(tensor)):
        nodes = grid[pipeline, :, part] // local
        if ranks % (local // tensor) == 0 or (local // tensor) % ranks == 0:  # nodes begin where groups do
            assert [len(set(nodes[first : first + per_node])) for first in range(0, ranks, per_node)] == [1] * (
                ranks // per_node
            )
            assert len(set(nodes)) * per_node == ranks


def test_ranks_that_are_not_evenly_apart_are_taken_to_be_on_nodes_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = np.arange(16).reshape(2, 4, 2)
    assert set(identities(monkeypatch, grid, (0, 2), 8).values()) == {1}
    assert set(identities(monkeypatch, grid, (0, 1), 8).values()) == {4}
