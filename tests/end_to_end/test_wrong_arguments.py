"""Arguments of other types or values are one error of wdsdist that names them, for every public name alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import wdsdist
from wdsdist import Manifest
from wdsdist.errors import WdsdistError


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return wdsdist.pack([{"cls": 1}, {"cls": 2}], tmp_path_factory.mktemp("data") / "shards")


def pack(**options: Any) -> Callable[[Manifest], Any]:
    return lambda data: wdsdist.pack([{"cls": 1}], Path(data.base).parent / "more", **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda _: wdsdist.open("a\0b"), r"'a\\x00b' is not a path or URL: it holds a null character"),
        (lambda _: wdsdist.open("s3://x", storage_options={1: 2}), "storage_options is a dict: it must map names"),
        (lambda data: wdsdist.StreamingDataset(data, cache_limit="x"), "cache_limit is 'x': it must be a number of b"),
        (lambda data: wdsdist.StreamingDataset(data, batch_size=10**30), "batch_size is .*: it must be between 1 and"),
        (lambda data: wdsdist.index(data.base, output=3), "3 is not a path or URL: it must be a string or a Path"),
        (lambda data: wdsdist.index(data.base, name=3), "name is 3: it must be 1 to 64 letters"),
        (lambda data: wdsdist.index(data.base, progress=3), "progress is 3: it must be a function"),
        (lambda data: data.add_columns(fields=3), "fields is 3: it must be a list of names"),
        (lambda data: data.add_columns(join=3), "join is 3: it must be the path of a table"),
        (lambda data: data.add_columns(fields=["cls"], progress=3), "progress is 3: it must be a function"),
        (lambda data: data.select(exclude=3), "exclude is 3: it must be a list of keys, or the path of a file"),
        (lambda data: wdsdist.pack(None, Path(data.base).parent / "more"), "source is None, which can be neither"),
    ],
)
def test_a_wrong_argument_is_one_error_that_names_it(data: Manifest, call: Any, message: str) -> None:
    with pytest.raises(WdsdistError, match=message):
        call(data)
    assert not (Path(data.base).parent / "more").exists()
