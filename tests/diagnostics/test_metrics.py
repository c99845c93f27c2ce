"""Metrics are the figures of `loader.stats`, summed over epochs, in any registry of prometheus_client or by HTTP."""

from __future__ import annotations

import gc
import os
import shutil
import socket
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

import wdsdist
from tests.support.tars import write_shard
from wdsdist import StreamingDataLoader, StreamingDataset, metrics
from wdsdist._util.extras import extra
from wdsdist.errors import ArgumentError, ExtraMissingError


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A folder with 20 samples, of a name of its own: the totals are those of the process."""
    wdsdist.index(write_shard(tmp_path / "x.tar", 20))
    return tmp_path


@pytest.fixture
def registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    metrics.register(registry)
    return registry


def loader(shards: Path, *, rank: int = 0, **options: int) -> StreamingDataLoader:
    return StreamingDataLoader(StreamingDataset(shards, num_replicas=2, rank=rank), 2, num_workers=0, **options)


def value(registry: CollectorRegistry, name: str, shards: Path, rank: int = 0) -> float | None:
    return registry.get_sample_value(name, {"rank": str(rank), "data": str(shards)})


def test_counters_grow_over_epochs_and_loaders_whatever_is_gone(shards: Path, registry: CollectorRegistry) -> None:
    first = loader(shards)
    batches = iter(first)
    assert value(registry, "wdsdist_samples_total", shards) is None
    for number in (1, 2):
        next(batches)
        assert value(registry, "wdsdist_samples_total", shards) == 2 * number
    assert value(registry, "wdsdist_epoch_progress_ratio", shards) == pytest.approx(8 / 20)
    del batches, first
    gc.collect()
    assert value(registry, "wdsdist_samples_total", shards) == 4
    again = loader(shards)
    for epoch in range(2):
        again.set_epoch(epoch)
        list(again)
    assert value(registry, "wdsdist_samples_total", shards) == 4 + 10 + 10
    assert value(registry, "wdsdist_batches_total", shards) == 2 + 5 + 5
    assert value(registry, "wdsdist_epoch", shards) == 1
    assert value(registry, "wdsdist_epoch_progress_ratio", shards) == 1
    assert value(registry, "wdsdist_wait_seconds_total", shards) > 0  # type: ignore[operator]


def test_figures_are_those_of_the_rank(shards: Path, registry: CollectorRegistry) -> None:
    list(loader(shards, rank=1))
    assert value(registry, "wdsdist_samples_total", shards, 1) == 10
    assert value(registry, "wdsdist_samples_total", shards, 0) is None


def test_a_wait_counts_while_it_lasts(shards: Path, registry: CollectorRegistry) -> None:
    waited: list[float | None] = []

    def look(sample: dict[str, object]) -> dict[str, object]:
        waited.append(value(registry, "wdsdist_wait_seconds_total", shards))
        return sample

    dataset = StreamingDataset(shards, num_replicas=2, rank=0, transform=look)
    next(iter(StreamingDataLoader(dataset, 4, num_workers=0)))
    assert len(waited) == 4
    assert waited == sorted(set(waited))  # type: ignore[type-var]


def test_planned_batches_tell_how_full_they_are(shards: Path, registry: CollectorRegistry) -> None:
    dataset = StreamingDataset(shards, num_replicas=1, rank=0)
    planned = StreamingDataLoader(dataset, num_workers=0, max_tokens=100, length="bytes", oversize="alone")
    tokens = 20 * len("sample0000.txt")
    assert value(registry, "wdsdist_batch_fill_ratio", shards) is None
    assert planned.stats().fill is None
    steps = len(list(planned))
    assert planned.stats().fill == pytest.approx(tokens / (steps * 100))
    assert value(registry, "wdsdist_batch_fill_ratio", shards) == planned.stats().fill
    assert planned.stats().epoch_share == 1


def test_a_registry_that_is_given_the_metrics_twice_has_them_once(shards: Path, registry: CollectorRegistry) -> None:
    list(loader(shards))
    metrics.register(registry)
    names = [family.name for family in registry.collect()]
    assert "wdsdist_samples" in names
    assert len(names) == len(set(names))


def test_what_is_no_registry_is_refused() -> None:
    with pytest.raises(ArgumentError, match="registry is 3: it must be a CollectorRegistry"):
        metrics.register(3)


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_metrics_are_served_on_this_machine(shards: Path, taken: int) -> None:
    list(loader(shards))
    port = metrics.serve(0)
    page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    assert f'wdsdist_samples_total{{data="{shards}",rank="0"}} 10.0' in page
    with pytest.raises(ArgumentError, match=f"port {taken} of 127.0.0.1 cannot be served on .*choose another"):
        metrics.serve(taken)


def test_a_folder_whose_name_is_no_utf_8_is_served_too(shards: Path, tmp_path: Path) -> None:
    odd = shutil.copytree(shards, os.fsdecode(os.fsencode(tmp_path) + b"/d\xe9j\xe0"))
    list(loader(Path(odd)))
    page = urllib.request.urlopen(f"http://127.0.0.1:{metrics.serve(0)}/metrics").read().decode()
    assert "/d\\\\udce9j" in page


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    extra.cache_clear()
    for name in [name for name in sys.modules if name.startswith("prometheus_client")]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        ExtraMissingError, match=r'wdsdist.metrics needs prometheus_client: pip install "wdsdist\[metrics'
    ):
        metrics.serve(0)
