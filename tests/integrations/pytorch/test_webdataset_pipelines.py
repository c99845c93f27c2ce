"""A data set of ours as the source of webdataset's pipelines: the stages stay, nothing is lost, nothing comes twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import webdataset

from tests.support.gloo_ranks import Ranks
from wdsdist import StreamingDataset
from wdsdist.errors import StateError

TOTAL = 37


def number_and_length(pair: tuple[int, str]) -> tuple[int, int]:
    return pair[0], len(pair[1])


def pipeline(shards: Path, *stages: Any, **options: Any) -> webdataset.DataPipeline:
    return webdataset.DataPipeline(
        StreamingDataset(shards, **options),
        webdataset.decode(),
        webdataset.to_tuple("cls", "txt"),
        webdataset.map(number_and_length),
        *stages,
    )


def three_epochs(source: StreamingDataset, loader: Any) -> list[list[Any]]:
    found = []
    for epoch in range(3):
        source.set_epoch(epoch)
        found.append([(numbers.tolist(), lengths.tolist()) for numbers, lengths in loader])
    return found


def epochs_of_batches(shards: Path, workers: int, persistent: bool = False) -> list[list[Any]]:
    """Return three epochs of a pipeline that makes batches in the workers."""
    batched = pipeline(shards, webdataset.batched(4), batch_size=4)
    loader = webdataset.WebLoader(batched, batch_size=None, num_workers=workers, persistent_workers=persistent)
    return three_epochs(batched.pipeline[0], loader)


def epochs_of_samples(shards: Path, workers: int) -> list[list[Any]]:
    """Return three epochs of a loader that unbatches, shuffles and batches anew, as webdataset recommends."""
    batched = pipeline(shards, webdataset.batched(4), batch_size=4)
    loader = webdataset.WebLoader(batched, batch_size=None, num_workers=workers)
    loader = loader.unbatched().shuffle(16).batched(5)
    return three_epochs(batched.pipeline[0], loader)


def check(found: list[list[Any]]) -> None:
    assert not [one for one in found if isinstance(one, str)], found
    for epoch in range(3):
        first, second = (rank[epoch] for rank in found)
        assert [len(numbers) for numbers, _ in first] == [len(numbers) for numbers, _ in second]
        pairs = [pair for batch in (*first, *second) for pair in zip(*batch, strict=True)]
        assert all(number == length for number, length in pairs)
        counts = Counter(number for number, _ in pairs)
        assert counts.keys() == set(range(TOTAL))
        assert counts.total() == TOTAL + 1  # one sample makes the ranks even
    assert len({str(epoch) for epoch in found[0]}) == 3


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True), (3, False)])
def test_pipelines_keep_their_stages_and_see_each_sample_once_an_epoch(
    ranks: Ranks, shards: Path, workers: int, persistent: bool
) -> None:
    found = ranks.all(epochs_of_batches, shards, workers, persistent)
    check(found)
    assert found == ranks.all(epochs_of_batches, shards, 0)


def test_a_web_loader_with_stages_of_its_own_does_so_too(ranks: Ranks, shards: Path) -> None:
    check(ranks.all(epochs_of_samples, shards, 2))


def repeated(shards: Path) -> list[int]:
    """Return what two workers give that never end, far beyond one epoch."""
    endless = pipeline(shards, batch_size=1).repeat()
    loader = iter(webdataset.WebLoader(endless, batch_size=None, num_workers=2))
    return [int(next(loader)[0]) for _ in range(19 * 5)]


def test_a_pipeline_that_repeats_in_its_workers_plays_the_chosen_epoch_again(ranks: Ranks, shards: Path) -> None:
    first, second = ranks.all(repeated, shards)
    assert Counter(first + second).keys() == set(range(TOTAL))
    # 19 samples of a rank are 10 and 9 of its workers: the streams drift apart by a sample each epoch.
    assert set(Counter(first + second).values()) <= {4, 5, 6, 9, 10}
    assert first[:20:2] == first[20:40:2]


def test_the_fluid_interface_is_there_for_who_asks_for_it(shards: Path) -> None:
    class Pipeline(webdataset.DataPipeline, webdataset.FluidInterface):
        pass

    data = Pipeline(StreamingDataset(shards)).decode().to_tuple("cls", "txt").map(number_and_length).batched(5)
    assert sorted(number for numbers, _ in data for number in numbers.tolist()) == list(range(TOTAL))


@pytest.mark.parametrize("stage", ["decode", "rename", "select", "shuffle", "to_dict"])
def test_samples_are_what_stages_expect(shards: Path, stage: str) -> None:
    stages = {
        "decode": webdataset.decode("torchrgb"),
        "rename": webdataset.rename(label="cls", text="txt"),
        "select": webdataset.select(lambda sample: int(sample["cls"]) % 2),
        "shuffle": webdataset.shuffle(10),
        "to_dict": webdataset.map_dict(cls=int),
    }
    samples = list(webdataset.DataPipeline(StreamingDataset(shards), stages[stage]))
    assert len(samples) == (TOTAL // 2 if stage == "select" else TOTAL)
    assert all(isinstance(sample["__key__"], str) for sample in samples)


@pytest.mark.parametrize("splitter", [webdataset.split_by_node, webdataset.split_by_worker])
@pytest.mark.parametrize("before", [[], [webdataset.decode(), iter, webdataset.shuffle(10)]])
@pytest.mark.parametrize("after", [[], [webdataset.to_tuple("cls"), webdataset.batched(4)]])
def test_a_splitter_that_would_lose_samples_is_refused_wherever_it_stands(
    shards: Path, splitter: Any, before: list[Any], after: list[Any]
) -> None:
    with pytest.raises(StateError, match=f"{splitter.__name__} would split the samples of this worker once more"):
        list(webdataset.DataPipeline(StreamingDataset(shards), *before, splitter, *after))


def test_a_splitter_of_shards_that_open_data_sets_of_their_own_is_not_refused(shards: Path) -> None:
    def opened(urls: Any) -> Any:
        for url in urls:
            yield from StreamingDataset(url["url"], num_replicas=1, rank=0)

    urls = webdataset.SimpleShardList([str(shard) for shard in sorted(shards.glob("*.tar"))])
    assert len(list(webdataset.DataPipeline(urls, webdataset.split_by_node, opened))) == TOTAL


def test_a_stage_of_a_users_own_is_not_refused_for_its_name(shards: Path) -> None:
    def split_by_node(samples: Any) -> Any:
        yield from samples

    assert len(list(webdataset.DataPipeline(StreamingDataset(shards), split_by_node))) == TOTAL
