"""Which objects can be packed, and how their names are found."""

from __future__ import annotations

import functools
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from tests.support import made
from wdsdist.errors import ArgumentError, NotFoundError, SourceError
from wdsdist.packing.sources import find
from wdsdist.packing.sources.source import Source, Stream

SAMPLES = [{"txt": "a"}, {"txt": "b"}]


class Dataset(torch.utils.data.Dataset[dict[str, str]]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> dict[str, str]:
        return SAMPLES[index]


class Iterable(torch.utils.data.IterableDataset[dict[str, str]]):
    def __len__(self) -> int:  # as some have it, though they cannot be asked for an item
        return 2

    def __iter__(self) -> Iterator[dict[str, str]]:
        return iter(SAMPLES)


def contents(source: Any) -> list[bytes]:
    samples = source.samples if isinstance(source, Stream) else source.take(np.arange(len(source)))
    return [members[0][1] for _, members in samples]


@pytest.mark.parametrize("source", [SAMPLES, tuple(SAMPLES), Dataset(), Dataset, lambda: SAMPLES])
def test_what_can_be_asked_for_items_is_a_data_set(source: Any) -> None:
    found = find(source)
    assert isinstance(found, Source)
    assert contents(found) == [b"a", b"b"]


@pytest.mark.parametrize(
    "source",
    [iter(SAMPLES), (one for one in SAMPLES), Iterable(), lambda: iter(SAMPLES), functools.partial(iter, SAMPLES)],
)
def test_what_can_only_be_iterated_over_is_a_stream(source: Any) -> None:
    found = find(source)
    assert isinstance(found, Stream)
    assert contents(found) == [b"a", b"b"]


@pytest.mark.parametrize("source", [7, None, object(), torch.utils.data.Dataset()])
def test_other_objects_are_refused_with_what_is_missing(source: Any) -> None:
    with pytest.raises(ArgumentError, match=r"can be neither iterated over nor asked for items by number"):
        find(source)


@pytest.mark.parametrize("source", [b"photos", pa.table({"txt": ["a"]})])
def test_bytes_and_tables_in_memory_are_no_lists_of_samples(source: Any) -> None:
    with pytest.raises(ArgumentError, match=r"(bytes: a path is a str|is a table); .* Parquet file"):
        find(source)


def test_a_column_in_memory_may_hold_samples() -> None:
    series = type("Series", (list,), {"__arrow_c_stream__": None})
    assert contents(find(series(SAMPLES))) == [b"a", b"b"]


def test_a_dict_is_no_list_of_samples() -> None:
    with pytest.raises(ArgumentError, match=r"^dict is a mapping, not a list of samples: pass its values"):
        find({"a": {"txt": "a"}})


@pytest.mark.parametrize(
    ("source", "message"), [([], "list has no items"), (iter([]), "list_iterator gave no samples")]
)
def test_nothing_is_an_error(source: Any, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        find(source)


def test_a_data_set_that_is_another_each_time_is_refused() -> None:
    class Random(Dataset):
        def __getitem__(self, index: int) -> dict[str, str]:
            return {"txt": str(torch.rand(()))}

    with pytest.raises(SourceError, match=r"Random gives another item 0 each time.*: turn random transforms off"):
        find(Random())


def test_options_for_other_sources_are_refused(tmp_path: Path) -> None:
    photo = tmp_path / "1.jpg"
    photo.touch()
    with pytest.raises(ArgumentError, match=r"class_folders is True, but list is of the kind"):
        find(SAMPLES, class_folders=True)
    with pytest.raises(
        ArgumentError, match=r"encode is .*, but .* is of the kind .folder.: only sources of the kind python take it"
    ):
        find(photo.parent, encode=lambda item: item)


class TestSizes:
    @pytest.mark.parametrize("period", [2, 10, 64])
    def test_all_get_the_mean_of_a_few(self, period: int) -> None:
        samples = [{"bin": bytes(512 * (number % period == 0))} for number in range(6400)]
        sizes = find(samples).contents.sizes  # type: ignore[union-attr]
        assert len(sizes) == 6400
        assert sizes.tolist() == [sizes[0]] * 6400
        assert abs(sizes[0] - (512 + 512 / period)) < 60

    def test_few_items_are_looked_at(self, tmp_path: Path) -> None:
        class Counted(Dataset):
            def __len__(self) -> int:
                return 100_000

            def __getitem__(self, index: int) -> dict[str, str]:
                with (tmp_path / "asked").open("a") as file:  # by another process
                    file.write(f"{index}\n")
                return SAMPLES[0]

        assert find(Counted()).contents.sizes.tolist() == [1024] * 100_000  # type: ignore[union-attr]
        asked = (tmp_path / "asked").read_text().split()
        assert len(asked) <= 66
        assert {"0", "99999"} < set(asked)


class TestFingerprint:
    def of(self, source: Any) -> str:
        return find(source).digest

    @pytest.mark.parametrize("kind", [list, iter])
    def test_it_is_that_of_the_samples_not_of_the_object(self, kind: Any) -> None:
        given = self.of(kind(SAMPLES))
        assert given == self.of(kind([dict(one) for one in SAMPLES]))
        others = [SAMPLES[:1], [*SAMPLES, {"txt": "c"}], [{"txt": "a"}, {"txt": "c"}], [{"txt": "a"}, {"text": "b"}]]
        assert len({given, *(self.of(kind(other)) for other in others)}) == 5

    def test_lists_and_iterables_differ(self) -> None:
        assert self.of(SAMPLES) != self.of(iter(SAMPLES))

    def test_of_an_iterable_a_little_is_read(self) -> None:
        taken = []

        def samples(size: int) -> Iterator[dict[str, bytes]]:
            for number in range(1000):
                taken.append(number)
                yield {"bin": bytes(size)}

        find(samples(1))
        assert len(taken) == 64
        taken.clear()
        find(samples(8 << 20))
        assert len(taken) == 2


def test_samples_of_a_data_set_travel_to_any_process() -> None:
    samples = find(made.Squares(), encode=made.encode).take(np.array([3, 1]))  # type: ignore[union-attr]
    assert list(pickle.loads(pickle.dumps(samples))) == list(samples)


class TestNames:
    @pytest.mark.parametrize(
        "name", ["tests.support.made:Squares", "tests.support.made:samples", "tests.support.made:squares"]
    )
    def test_a_name_in_a_module_is_what_it_names(self, name: str) -> None:
        found = find(name, encode=made.encode if name == "tests.support.made:Squares" else None)
        assert found.location == name
        assert isinstance(found, Stream) == (name == "tests.support.made:samples")

    def test_a_function_may_be_named_too(self) -> None:
        assert (
            find("tests.support.made:Squares", encode="tests.support.made:encode").digest == find(made.squares).digest
        )
        with pytest.raises(ArgumentError, match=r"^encode is 'encode': it must be a function, or the name of one"):
            find("tests.support.made:Squares", encode="encode")

    def test_modules_in_the_current_folder_are_found(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "path", [*sys.path])
        monkeypatch.delitem(sys.modules, "only_here", raising=False)
        monkeypatch.chdir(tmp_path)
        (tmp_path / "only_here.py").write_text("class A:\n    class B:\n        data = [{'txt': 'x'}]\n")
        assert len(find("only_here:A.B.data")) == 1  # type: ignore[arg-type]

    def test_a_file_of_that_name_comes_first(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "tests.support.made:squares").mkdir()
        (tmp_path / "tests.support.made:squares" / "a.txt").write_text("")
        assert find("tests.support.made:squares").kind == "folder"

    @pytest.mark.parametrize(
        ("name", "error", "message"),
        [
            ("nowhere.at_all:x", NotFoundError, "there is no module nowhere in .*, nor is one installed"),
            (
                "tests.support.made:nothing",
                NotFoundError,
                r"module tests.support.made \(.*made\.py\) has no nothing",
            ),
            (
                "tests.support.made:encode",
                SourceError,
                r"calling tests.support.made:encode failed: TypeError: .*missing 2 required",
            ),
            (
                "tests.support.made:not_made",
                ArgumentError,
                "tests.support.made:not_made is 7, which can be neither",
            ),
            ("broken_made:x", SourceError, "importing broken_made failed: ZeroDivisionError"),
            ("needs_made:x", SourceError, "importing needs_made failed: ModuleNotFoundError: No module named 'nope'"),
        ],
    )
    def test_what_goes_wrong_names_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: type[Exception], message: str
    ) -> None:
        monkeypatch.setattr(sys, "path", [*sys.path])
        monkeypatch.chdir(tmp_path)
        (tmp_path / "broken_made.py").write_text("1 / 0")
        (tmp_path / "needs_made.py").write_text("import nope")
        with pytest.raises(error, match=message):
            find(name)
