"""Model-parallel jobs: the ranks of one data-parallel place see the same samples, the places together all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.pytorch.conftest import TOTAL
from tests.support.gloo_ranks import Ranks, fork_workers
from wdsdist import StreamingDataLoader, StreamingDataset


@pytest.fixture(scope="module")
def four_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    group = Ranks(4, tmp_path_factory.mktemp("ranks"))
    group.all(fork_workers)
    yield group
    group.end()


def place(mesh: Any) -> dict[str, int]:
    """Return the arguments of a data set for a rank of the data-parallel part of a mesh."""
    mesh = mesh if mesh.ndim == 1 else mesh._flatten()
    return {"num_replicas": mesh.size(), "rank": mesh.get_local_rank()}


def read(shards: Path, shape: tuple[int, ...], names: tuple[str, ...], part: Any, **options: Any) -> tuple[Any, ...]:
    """Return a rank's epoch, its state in the middle, its fingerprint and its length."""
    import warnings

    from torch.distributed.device_mesh import init_device_mesh

    warnings.simplefilter("error", UserWarning)  # about the world size
    mesh: Any = init_device_mesh("cpu", shape, mesh_dim_names=names)
    data = StreamingDataset(shards, decode=True, fields=("cls",), **place(mesh[part] if part else mesh), **options)
    loader = StreamingDataLoader(data, 4, num_workers=0, drop_last=False)
    numbers, state = [], None
    for batch in loader:
        numbers += batch["cls"].tolist()
        state = state or loader.state_dict()
    return numbers, state, data.order_config.fingerprint, len(loader)


@pytest.mark.parametrize(
    ("shape", "names", "part", "places"),
    [
        ((2, 2), ("dp", "tp"), "dp", [0, 0, 1, 1]),
        ((2, 2), ("pp", "dp"), "dp", [0, 1, 0, 1]),
        ((2, 2), ("dp_replicate", "dp_shard"), None, [0, 1, 2, 3]),
        ((2, 1, 2), ("dp_replicate", "dp_shard", "tp"), ("dp_replicate", "dp_shard"), [0, 0, 1, 1]),
    ],
)
def test_ranks_see_the_samples_of_their_data_parallel_place(
    four_ranks: Ranks, shards: Path, shape: tuple[int, ...], names: tuple[str, ...], part: Any, places: list[int]
) -> None:
    found = four_ranks.all(read, shards, shape, names, part)
    assert not [one for one in found if isinstance(one, str)], found
    by_place = {place: found[rank][0] for rank, place in enumerate(places)}
    assert [found[rank][0] for rank in range(4)] == [by_place[place] for place in places]
    together = [number for numbers in by_place.values() for number in numbers]
    assert set(together) == set(range(TOTAL))
    assert len(together) == -(-TOTAL // len(by_place)) * len(by_place)
    assert all(one[1:] == found[0][1:] for one in found), "states, fingerprints and lengths are those of every rank"
