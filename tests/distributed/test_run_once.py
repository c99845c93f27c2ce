"""data_download in one process: its signature, options and keys, and what it keeps, and what `kept` does."""

from __future__ import annotations

import argparse
import enum
import errno
import fcntl
import inspect
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.distributed.test_identity import given_away
from tests.support.jobs import Stage
from tests.support.programs import environment
from wdsdist.distributed.run_once import call_key, data_download, kept
from wdsdist.errors import ArgumentError, DestinationError, DistributedError


async def fetch() -> None: ...


def generate() -> Iterator[int]:
    yield 1


async def stream() -> AsyncIterator[int]:
    yield 1


class TestTheDecorator:
    def test_the_signature_survives(self) -> None:
        def prepare(name: str, *, size: int = 1) -> Path:
            """Fetch it."""
            return Path(name * size)

        decorated = data_download(timeout=5, force=True)(prepare)
        assert inspect.signature(decorated) == inspect.signature(prepare)
        assert (decorated.__name__, decorated.__doc__) == ("prepare", "Fetch it.")
        assert decorated("a", size=2) == Path("aa")
        with pytest.raises(TypeError, match="missing a required argument: 'name'"):
            decorated()  # type: ignore[call-arg]

    @pytest.mark.parametrize("function", [fetch, generate, stream, Path, partial(print), staticmethod(print), 3])
    def test_anything_but_a_plain_function_is_refused(self, function: Any) -> None:
        with pytest.raises(ArgumentError, match=r"is for plain functions.*define a function that calls it"):
            data_download(function)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"scope": "cluster"}, r"needs directory=.*that all nodes share"),
            ({"scope": "world"}, "scope"),
            *(({"timeout": value}, "timeout") for value in (0, -1, "5", float("nan"))),
        ],
    )
    def test_a_value_that_cannot_work_is_refused(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ArgumentError, match=message):
            data_download(**options)

    def test_a_function_may_call_itself_with_other_arguments_only(self) -> None:
        @data_download
        def prepare(depth: int) -> int:
            return 1 + prepare(depth - 1) if depth else 0

        @data_download
        def endless(depth: int) -> int:
            return endless(depth)

        assert prepare(3) == 3
        with pytest.raises(DistributedError, match="calls itself with the same arguments"):
            endless(7)


@data_download
def one() -> int:
    return 1


class TestTheDirectory:
    def test_only_this_user_can_enter_it_whatever_the_umask(self, tmp_path: Path) -> None:
        shared = tmp_path / "project"
        shared.mkdir()
        shared.chmod(0o2775)  # as group directories on clusters are
        mask = os.umask(0)
        try:
            assert data_download(one.__wrapped__, scope="cluster", directory=shared)() == 1  # type: ignore[attr-defined]
        finally:
            os.umask(mask)
        (private,) = shared.iterdir()
        assert private.stat().st_mode & 0o777 == 0o700
        assert sorted(path.suffix for path in private.iterdir()) == [".lock", ".outcome"]

    @pytest.mark.timeout(30)
    @pytest.mark.parametrize(
        "act",
        [
            lambda path: path.chmod(0o660),
            lambda path: path.chmod(0o666),
            lambda path: path.symlink_to(path.rename(path.with_name("elsewhere"))),
            lambda path: (path.unlink(), os.mkfifo(path)),
            given_away,
        ],
        ids=["group", "others", "link", "pipe", "given away"],
    )
    def test_nothing_is_unpickled_that_others_could_have_planted(
        self, temporary: Path, tmp_path: Path, act: Callable[[Path], Any]
    ) -> None:
        class Planted:
            def __reduce__(self) -> tuple[Any, ...]:
                return os.mkdir, (str(tmp_path / "ran"),)

        one()
        (record,) = temporary.glob("wdsdist-*/*.outcome")
        record.write_bytes(pickle.dumps(Planted()))
        act(record)
        with pytest.raises(DestinationError):
            one()
        assert not (tmp_path / "ran").exists()

    def test_one_that_cannot_be_made_or_locked_is_an_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(DestinationError, match="file/below"):
            data_download(directory=tmp_path / "file" / "below")(lambda: 1)()

        def refuse(*_: object) -> None:
            raise OSError(errno.ENOSYS, "Function not implemented")

        monkeypatch.setattr(fcntl, "flock", refuse)
        with pytest.raises(DestinationError, match=r"cannot lock .*choose another directory="):
            one()


class TestWhatIsKept:
    @pytest.mark.parametrize(
        "returned",
        ["str(made)", "{'train': [[made], 1]}", "('x', Path('made'))", "wdsdist.Manifest.of(str(made), [])"],
    )
    def test_it_is_void_once_the_returned_path_is_gone(self, stage: Stage, returned: str) -> None:
        stage.job("returning", returned)

        def run() -> int:
            stage.start()[0].expect("done")
            return len(stage.log)

        assert [run(), run()] == [1, 1]
        (stage.directory / "made").unlink()
        assert [run(), run()] == [2, 2]

    @pytest.mark.parametrize("value", ["/no/such/path", Path("/no/such/path"), "/" + 5000 * "x", "/\0"])
    def test_a_path_that_never_was_does_not_void_it(self, value: Any) -> None:
        calls = []

        @data_download
        def prepare(value: Any) -> Any:
            calls.append(value)
            return value

        for _ in range(2):
            assert prepare(value) == value
        assert len(calls) == 1

    def test_a_changed_function_runs_again_but_a_changed_option_does_not(self, stage: Stage) -> None:
        def run(decorator: str, body: str) -> int:
            stage.write(f"{decorator}\ndef prepare():\n    log()\n    {body}\nprepare()\nsay('done')\n")
            stage.start()[0].expect("done")
            return len(stage.log)

        assert run("@data_download", "return 1") == 1
        assert run("@data_download(\n    timeout=60)", "return 1") == 1
        assert run("@data_download", "return 2") == 2

    @pytest.mark.parametrize("damage", [b"", b"{}", b"\xff\n\xff", pickle.dumps((1, {})), "cut"])
    def test_a_damaged_record_counts_for_nothing(self, temporary: Path, damage: bytes | str) -> None:
        one()
        (record,) = temporary.glob("wdsdist-*/*.outcome")
        record.write_bytes(record.read_bytes()[:-3] if isinstance(damage, str) else damage)
        assert one() == 1


@dataclass
class Config:
    name: str
    sizes: tuple[int, ...] = (1, 2)


class Split(enum.Enum):
    TRAIN = "train"
    TEST = "test"


def key(value: Any) -> str:
    def prepare(value: Any, size: int = 1) -> None: ...

    return call_key(prepare, inspect.signature(prepare).bind(value))


def knot() -> list[Any]:
    """Return a list that contains itself."""
    knot: list[Any] = [1]
    knot.append(knot)
    return knot


class TestWhenTwoCallsAreTheSame:
    def test_however_the_arguments_are_passed(self) -> None:
        calls: list[Any] = []

        @data_download
        def prepare(name: Any, size: int = 1) -> Any:
            calls.append(name)
            return len(calls)

        assert prepare("a") == prepare(name="a") == prepare("a", 1) == prepare(size=1, name="a") == 1
        assert prepare("b") == 2

    @pytest.mark.parametrize(
        ("value", "other", "are_same"),
        [
            (Config("".join("ab")), Config("ab"), True),
            ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
            (Path("a"), Path.cwd() / "a", True),
            ({1, 2}, {1, 3}, False),
            (Path("/a"), Path("/b"), False),
            (Config("a"), Config("b"), False),
            (Config("a"), Config("a", (1, 3)), False),
            (Split.TRAIN, Split.TEST, False),
            (argparse.Namespace(url="a"), argparse.Namespace(url="b"), False),
            (partial(int, base=2), partial(int, base=8), False),
            (Config, Split, False),
            (os, sys, False),
        ],
    )
    def test_calls_are_the_same_where_their_arguments_are_equal(self, value: Any, other: Any, are_same: bool) -> None:
        assert (key(value) == key(other)) == are_same

    @pytest.mark.parametrize("value", [threading.Lock(), np.zeros(5000), knot(), [lambda: 1]])
    def test_a_value_whose_repr_hides_its_content_is_refused_by_name(self, value: Any) -> None:
        with pytest.raises(ArgumentError, match=r"argument 'value' of .*prepare\(\) is a .*pass plain values"):
            key(value)

    def test_functions_of_one_name_differ_by_their_code_also_without_source(self) -> None:
        values = []
        for number in (1, 2):
            names: dict[str, Any] = {"__name__": "nowhere"}
            exec(f"def prepare():\n    return [x for x in range({number})]", names)
            values.append(data_download(names["prepare"])())
        assert values == [[0], [0, 1]]

    def test_every_process_has_the_same_key(self) -> None:
        program = (
            "import inspect; from wdsdist.distributed.run_once import call_key\n"
            "def prepare(x): return x in {'a', 'b', 'c'} and (lambda: {'d', 'e'})\n"
            "value = {'k': {'a', 'b', 'c'}, 'j': frozenset('xyz')}\n"
            "print(call_key(prepare, inspect.signature(prepare).bind(value)))\n"
        )
        keys = {
            subprocess.run(
                [sys.executable, "-c", program], env=environment(PYTHONHASHSEED=str(seed)), capture_output=True,
                text=True, check=True,
            ).stdout
            for seed in range(3)
        }  # fmt: skip
        assert len(keys) == 1

    plain = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text("ab'\n") | st.binary(),
        lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text("ab'\n"), inner),
        max_leaves=8,
    )

    @given(value=plain, other=plain)
    def test_keys_are_equal_exactly_if_values_are(self, value: Any, other: Any) -> None:
        # repr distinguishes what == does not: True and 1, 0.0 and -0.0
        def ordered(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: ordered(value[key]) for key in sorted(value)}
            return type(value)(ordered(item) for item in value) if isinstance(value, (list, tuple)) else value

        assert (key(value) == key(other)) == (repr(ordered(value)) == repr(ordered(other)))


def sizes(number: int, about: str = "batches") -> list[int]:
    return [*map(len, kept(about, lambda: (np.arange(number), np.zeros(number, np.bool_))))]


def records(temporary: Path) -> list[Path]:
    return list(temporary.glob("*/kept/*.outcome"))


def test_a_value_is_computed_once_while_others_wait_for_it() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def slowly() -> list[int]:
        begun.set()
        assert may_end.wait(60)
        return [3]

    with ThreadPoolExecutor() as pool:
        one = pool.submit(kept, "block 5", slowly)
        assert begun.wait(60)
        other = pool.submit(kept, "block 5", lambda: pytest.fail("it is computed already"))
        may_end.set()
        assert one.result(60) == other.result(60) == [3]


def test_a_damaged_value_is_computed_again_and_old_ones_are_removed(temporary: Path) -> None:
    sizes(1, "block 0")
    for damaged in (b"PK no archive", b""):
        records(temporary)[0].write_bytes(damaged)
        assert sizes(2, "block 0") == [2, 2]
    for number in range(80):
        assert sizes(2, f"block {number}") == [2, 2]
    assert len(records(temporary)) == 64


def test_an_error_is_raised_and_the_next_call_computes_again() -> None:
    with pytest.raises(ZeroDivisionError):
        kept("block 0", lambda: 1 // 0)
    assert sizes(3, "block 0") == [3, 3]


def test_each_process_computes_if_nothing_can_be_kept(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))  # as Lustre does that is mounted without them

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", no_locks)
        assert [sizes(number) for number in (3, 4)] == [[3, 3], [4, 4]]
    for folder in temporary.iterdir():
        folder.chmod(0o777)  # others could plant arrays there
    assert [sizes(number) for number in (3, 4)] == [[3, 3], [4, 4]]
