"""data_download in one process: its signature, its options, and what makes two calls the same."""

from __future__ import annotations

import argparse
import enum
import inspect
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.programs import environment
from wdsdist.distributed import data_download
from wdsdist.distributed.call_key import _described
from wdsdist.errors import ArgumentError, DestinationError, DistributedError


class TestTheDecorator:
    def test_the_signature_survives(self) -> None:
        def prepare(name: str, *, size: int = 1) -> Path:
            """Fetch it."""
            return Path(name * size)

        decorated = data_download(prepare)
        assert inspect.signature(decorated) == inspect.signature(prepare)
        assert (decorated.__name__, decorated.__doc__) == ("prepare", "Fetch it.")
        assert decorated("a", size=2) == Path("aa")

    def test_options_may_be_left_out_or_given(self) -> None:
        @data_download(timeout=5, force=True)
        def prepare() -> int:
            return 1

        assert prepare() == 1

    def test_a_function_that_returns_before_its_work_is_done_is_refused(self) -> None:
        async def fetch() -> None: ...

        def generate() -> Iterator[int]:
            yield 1

        async def stream() -> AsyncIterator[int]:
            yield 1

        for function in (fetch, generate, stream):
            with pytest.raises(ArgumentError, match=f"{function.__name__}.* needs a plain function"):
                data_download(function)  # type: ignore[arg-type]

    @pytest.mark.parametrize("thing", [Path, partial(print), staticmethod(print), 3])
    def test_anything_but_a_function_is_refused(self, thing: Any) -> None:
        with pytest.raises(ArgumentError, match="is for plain functions, not for a"):
            data_download(thing)

    def test_cluster_scope_needs_a_directory(self) -> None:
        with pytest.raises(ArgumentError, match=r"needs directory=.*that all nodes share"):
            data_download(scope="cluster")

    @pytest.mark.parametrize(
        "options", [{"scope": "world"}, {"timeout": 0}, {"timeout": -1}, {"timeout": "5"}, {"timeout": float("nan")}]
    )
    def test_a_value_that_cannot_work_is_refused(self, options: dict[str, Any]) -> None:
        with pytest.raises(ArgumentError, match=next(iter(options))):
            data_download(**options)

    def test_arguments_that_do_not_fit_are_refused_as_python_does(self) -> None:
        @data_download
        def prepare(name: str) -> str:
            return name

        with pytest.raises(TypeError, match="missing a required argument: 'name'"):
            prepare()  # type: ignore[call-arg]

    def test_a_function_that_calls_itself_alike_is_told_so(self) -> None:
        @data_download
        def prepare(depth: int) -> int:
            return prepare(depth - 1) if depth > 5 else prepare(depth)

        with pytest.raises(DistributedError, match="calls itself with the same arguments"):
            prepare(7)

    def test_one_may_call_itself_with_other_arguments(self) -> None:
        @data_download
        def prepare(depth: int) -> int:
            return 1 + prepare(depth - 1) if depth else 0

        assert prepare(3) == 3


class TestTheDirectory:
    def test_records_are_kept_where_only_this_user_can_enter(self, tmp_path: Path) -> None:
        shared = tmp_path / "project"
        shared.mkdir()
        shared.chmod(0o2775)  # as group directories on clusters are

        @data_download(scope="cluster", directory=shared)
        def prepare() -> int:
            return 1

        assert prepare() == 1
        (private,) = shared.iterdir()
        assert private.stat().st_mode & 0o777 == 0o700

    def test_one_that_others_can_enter_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / f".wdsdist-{os.geteuid()}").mkdir(mode=0o700)
        (tmp_path / f".wdsdist-{os.geteuid()}").chmod(0o770)

        @data_download(scope="cluster", directory=tmp_path)
        def prepare() -> int:
            return 1

        with pytest.raises(DestinationError, match="open to others"):
            prepare()

    def test_a_record_that_others_can_write_is_not_read(self, temporary: Path) -> None:
        @data_download
        def prepare() -> int:
            return 1

        prepare()
        (record,) = temporary.glob("wdsdist-*/*.outcome")
        record.chmod(0o666)
        with pytest.raises(DestinationError, match="was not written by this user"):
            prepare()

    def test_a_record_is_closed_to_others_whatever_the_umask(self, temporary: Path) -> None:
        @data_download
        def prepare() -> int:
            return 1

        mask = os.umask(0)
        try:
            prepare()
        finally:
            os.umask(mask)
        (record,) = temporary.glob("wdsdist-*/*.outcome")
        assert record.stat().st_mode & 0o777 == 0o600

    def test_a_record_that_is_a_link_is_not_read(self, temporary: Path) -> None:
        @data_download
        def prepare() -> int:
            return 1

        prepare()
        (record,) = temporary.glob("wdsdist-*/*.outcome")
        record.rename(temporary / "elsewhere")
        record.symlink_to(temporary / "elsewhere")
        with pytest.raises(DestinationError, match="cannot read"):
            prepare()

    def test_a_file_in_its_place_is_an_error_that_names_it(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()

        @data_download(directory=tmp_path / "file" / "below")
        def prepare() -> int:
            return 1

        with pytest.raises(DestinationError, match="file/below"):
            prepare()

    def test_a_file_system_without_locks_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import fcntl
        from errno import ENOSYS

        def refuse(*_: object) -> None:
            raise OSError(ENOSYS, "Function not implemented")

        monkeypatch.setattr(fcntl, "flock", refuse)

        @data_download
        def prepare() -> int:
            return 1

        with pytest.raises(DestinationError, match=r"cannot lock .*choose another directory="):
            prepare()


@dataclass
class Config:
    name: str
    sizes: tuple[int, ...] = (1, 2)


class Split(enum.Enum):
    TRAIN = "train"
    TEST = "test"


def knot() -> list[Any]:
    """Return a list that contains itself."""
    knot: list[Any] = [1]
    knot.append(knot)
    return knot


class TestWhenTwoCallsAreTheSame:
    @pytest.fixture
    def calls(self) -> list[Any]:
        return []

    @pytest.fixture
    def prepare(self, calls: list[Any]) -> Callable[..., Any]:
        @data_download
        def prepare(what: Any, size: int = 1) -> Any:
            calls.append(what)
            return len(calls)

        return prepare

    def test_however_the_arguments_are_passed(self, prepare: Callable[..., Any]) -> None:
        assert prepare("a") == prepare(what="a") == prepare("a", 1) == prepare(size=1, what="a") == 1

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            (1, 2),
            (1, True),
            (1, 1.0),
            ("1", 1),
            (b"a", "a"),
            ([1, [2]], [[1], 2]),
            ({"a": 1}, {"a": 2}),
            ({1, 2}, {1, 3}),
            (Path("/a"), Path("/b")),
            (Config("a"), Config("b")),
            (Config("a"), Config("a", (1, 3))),
            (Split.TRAIN, Split.TEST),
            (argparse.Namespace(url="a"), argparse.Namespace(url="b")),
            (partial(int, base=2), partial(int, base=8)),
            (lambda x: x + 1, lambda x: x + 2),
            (Config, Split),
            (os, sys),
        ],
    )
    def test_different_arguments_are_different_calls(self, prepare: Callable[..., Any], one: Any, other: Any) -> None:
        assert [prepare(one), prepare(other), prepare(one)] == [1, 2, 1]

    def test_equal_objects_are_the_same_argument(self, prepare: Callable[..., Any]) -> None:
        assert prepare(Config("".join(["a", "b"]))) == prepare(Config("ab")) == 1

    def test_the_order_of_a_dict_does_not_matter(self, prepare: Callable[..., Any]) -> None:
        assert prepare({"a": 1, "b": 2}) == prepare({"b": 2, "a": 1}) == 1

    @pytest.mark.parametrize(
        "value", [threading.Lock(), np.zeros(5000), knot()], ids=["a lock", "an ndarray", "a list"]
    )
    def test_a_value_by_which_calls_cannot_be_told_apart_is_refused_by_name(
        self, prepare: Callable[..., Any], value: Any
    ) -> None:
        with pytest.raises(ArgumentError, match=r"argument 'what' of .*prepare\(\) is a .*pass plain values"):
            prepare(value)

    def test_functions_of_one_name_are_told_apart_by_their_code(self) -> None:
        def one() -> Callable[[], int]:
            @data_download
            def prepare() -> int:
                return 1

            return prepare

        def two() -> Callable[[], int]:
            @data_download
            def prepare() -> int:
                return 2

            prepare.__wrapped__.__qualname__ = one().__qualname__  # type: ignore[attr-defined]
            return prepare

        assert (one()(), two()()) == (1, 2)

    def test_code_without_source_is_told_apart_by_its_instructions(self) -> None:
        values = []
        for number in (1, 2):
            names: dict[str, Any] = {"__name__": "nowhere"}
            exec(f"def prepare():\n    return [x for x in range({number})]", names)
            values.append(data_download(names["prepare"])())
        assert values == [[0], [0, 1]]

    def test_every_process_describes_a_call_alike(self) -> None:
        program = (
            "from wdsdist.distributed.call_key import _described, _byte_code\n"
            "print(_described({'k': {'a', 'b', 'c'}, 'j': frozenset('xyz')}))\n"
            "print(_byte_code((lambda x: x in {'a', 'b', 'c'} and (lambda: {'d', 'e'})).__code__))\n"
        )
        said = {
            subprocess.run(
                [sys.executable, "-c", program],
                env=environment(PYTHONHASHSEED=str(seed)),
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for seed in range(3)
        }
        assert len(said) == 1

    plain = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
        lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    )

    @given(one=plain, other=plain)
    def test_descriptions_are_equal_exactly_if_values_are(self, one: Any, other: Any) -> None:
        # repr tells apart what == does not: True and 1, 0.0 and -0.0
        def ordered(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: ordered(value[key]) for key in sorted(value)}
            return type(value)(ordered(item) for item in value) if isinstance(value, (list, tuple)) else value

        assert (_described(one) == _described(other)) == (repr(ordered(one)) == repr(ordered(other)))
