"""The look-up of column values that plans batches, against the columns themselves."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wdsdist
from tests.support.examples import fewer
from wdsdist.batching.batcher import ColumnLookup
from wdsdist.errors import ArgumentError
from wdsdist.shards.manifest import Manifest


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    samples = (
        {"json": {"n": n, "x": n / 2, "ok": n % 2 == 0, "s": f"s{n}", "gap": n if n % 5 else None}, "cls": n % 3,
         "ids": bytes(4 * n), "txt": "x" * n}
        for n in range(40)
    )  # fmt: skip
    data = wdsdist.pack(samples, tmp_path_factory.mktemp("data") / "shards", shuffle_seed=None, shard_samples=9)
    return data.add_columns(fields=["json.n", "json.x", "json.ok", "json.s", "json.gap"], workers=1)


@pytest.mark.parametrize("name", ["json.n", "json.x", "json.ok", "txt.bytes", "bytes", "cls"])
@fewer(4)
@given(st.lists(st.integers(0, 39), max_size=50), st.booleans())
def test_a_lookup_gives_the_values_of_any_samples(data: Manifest, name: str, numbers: list[int], is_view: bool) -> None:
    view = data.repeat("json.n").select('"json.n" % 3 > 0') if is_view else data
    lookup = pickle.loads(pickle.dumps(ColumnLookup(view, name)))
    wanted = np.array(numbers, np.int64) % view.num_samples
    shards = np.searchsorted(view.ends, wanted, side="right")
    found = lookup(shards, wanted - (view.ends - view.counts)[shards])
    expected = view.column(name)[wanted]
    assert found.tolist() == expected.tolist()
    assert not len(found) or found.dtype == expected.dtype


def test_a_lookup_tells_strings_apart_and_refuses_missing_values(data: Manifest) -> None:
    shards, samples = np.repeat(np.arange(4), 9), np.tile(np.arange(9), 4)
    assert len(set(ColumnLookup(data, "json.s")(shards, samples).tolist())) == 36
    assert len(set(ColumnLookup(data, "cls")(shards, samples).tolist())) == 3
    with pytest.raises(ArgumentError, match=r"'json\.gap' has no value for some samples of shard-000000\.tar"):
        ColumnLookup(data, "json.gap")(shards, samples)
    with pytest.raises(ArgumentError, match=r"no column 'json\.ga': did you mean 'json\.gap'"):
        ColumnLookup(data, "json.ga")


def test_tokens_of_raw_arrays_need_no_column(data: Manifest) -> None:
    lookup = ColumnLookup(data, "ids.tokens", {"ids": 4})
    assert lookup(np.array([0, 1]), np.array([3, 2])).tolist() == [3, 11]
    with pytest.raises(ArgumentError, match=r"no column 'ids\.tokens'.*decode=\{\"ids\": np\.int32\}"):
        ColumnLookup(data, "ids.tokens")
    with pytest.raises(ArgumentError, match=r"no column 'json\.tokens': `wdsdist columns .* --probe json\.tokens`"):
        ColumnLookup(data, "json.tokens")
    with pytest.raises(ArgumentError, match=r"no column 'npy\.tokens': it has key, shard, bytes"):
        ColumnLookup(data, "npy.tokens")
    noted = data.with_source(extra={**data.extra, "arrays": {"ids": {"dtype": "<i2", "shape": [None, 2]}}})
    assert noted.column("ids.tokens").tolist() == list(range(40))
    assert "ids.tokens" in noted.columns


def test_the_digest_of_a_lookup_changes_with_its_values_alone(tmp_path: Path) -> None:
    def digest(folder: str, change: int) -> str:
        samples = ({"json": {"n": n + change * (n == 7)}} for n in range(9))
        data = wdsdist.pack(samples, tmp_path / folder, shuffle_seed=None, shard_samples=4)
        return ColumnLookup(data.add_columns(fields=["json.n"], workers=1), "json.n").digest

    assert digest("a", 0) == digest("b", 0) != digest("c", 1)


def test_lengths_and_views_load_neither_pyarrow_nor_duckdb(data: Manifest, tmp_path: Path) -> None:
    view = data.select(sample=7).save(tmp_path / "view")
    code = f"""
import sys, numpy as np, wdsdist
from wdsdist.batching.batcher import ColumnLookup
view = wdsdist.open({str(view)!r})
dataset = wdsdist.StreamingDataset(view, num_replicas=1, rank=0)
assert len(list(wdsdist.StreamingDataLoader(dataset, batch_size=2, num_workers=0))) == 3
assert ColumnLookup(view, "txt.bytes")(view.counts.argmax(keepdims=True), np.array([0])).dtype == np.int64
assert not {{"pyarrow", "duckdb", "pandas"}} & set(sys.modules), "a view is read by numpy alone"
"""
    subprocess.run([sys.executable, "-c", code], check=True)
