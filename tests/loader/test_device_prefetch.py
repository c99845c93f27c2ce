"""Batches on the device that trains: the right ones, in order, one ahead, and a state that does not count that one."""

from __future__ import annotations

import functools
import pickle
from collections import UserDict, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from tests.loader.conftest import TOTAL
from tests.support.loaders import batches as numbers
from tests.support.loaders import make_loader
from wdsdist import Ragged, to_device
from wdsdist.errors import SampleError, StateError
from wdsdist.loader import device_prefetch as devices

loader = functools.partial(make_loader, batch_size=4, drop_last=False, fields=("cls",))

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


class FakeAhead(devices.CopiedAhead):
    """Copies batches ahead on the CPU, and notes when."""

    def start(self, batch: Any) -> Any:
        log.append(("start", batch["cls"][0].item()))
        return batch

    def finish(self, batch: Any) -> Any:
        log.append(("finish", batch["cls"][0].item()))
        return batch


log: list[tuple[str, int]] = []


@pytest.fixture(autouse=True)
def without_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.cls is TestOneBatchAhead:
        monkeypatch.setattr(devices, "CopiedAhead", FakeAhead)


def ahead(loader: Any) -> Any:
    """Prefetch as for a GPU, without one."""
    log.clear()
    return devices.DeviceLoader(loader, torch.device("cuda"))


class Encoding(UserDict):  # type: ignore[type-arg]
    """A mapping that knows how to move, as tokenizers return it."""

    def to(self, device: torch.device) -> Encoding:
        return Encoding({name: value.to(device) for name, value in self.items()})


def test_tensors_move_wherever_they_are_and_bytes_and_text_stay() -> None:
    ragged = Ragged.of([b"a", b"bc"])
    batch = {
        "x": torch.zeros(2),
        "deep": [(torch.ones(1), "text")],
        "raw": ragged,
        "n": 3,
        "e": Encoding(t=torch.ones(1)),
    }
    (moved,) = to_device([batch], "meta")
    assert moved["x"].is_meta
    assert moved["deep"][0][0].is_meta
    assert moved["e"]["t"].is_meta
    assert moved["raw"] is ragged
    assert (moved["deep"][0][1], moved["n"]) == ("text", 3)
    assert not batch["x"].is_meta


class Pair(NamedTuple):
    image: torch.Tensor
    name: str


@pytest.mark.parametrize(
    ("batch", "image"),
    [
        (Pair(torch.ones(2), "a"), lambda moved: moved.image),
        (defaultdict(list, image=torch.ones(2)), lambda moved: moved["image"]),
        (deque([torch.ones(2)], maxlen=1), lambda moved: moved[0]),
        (torch.max(torch.ones(2, 2), 0), lambda moved: moved.indices),
        (pack_sequence([torch.ones(3), torch.ones(2)]), lambda moved: moved.data),
    ],
    ids=lambda value: type(value).__name__,
)
def test_containers_stay_what_they_are(batch: Any, image: Callable[[Any], torch.Tensor]) -> None:
    (moved,) = to_device([batch], "meta")
    assert type(moved) is type(batch)
    assert image(moved).is_meta
    assert not image(batch).is_meta
    assert getattr(moved, "default_factory", list) is list
    assert getattr(moved, "maxlen", 1) == 1


def test_on_the_cpu_batches_pass_as_they_come(shards: Path) -> None:
    plain, moving = loader(shards), to_device(loader(shards), "cpu")
    assert len(moving) == len(plain) == -(-TOTAL // 4)
    assert [numbers(moving), numbers(moving)] == [numbers(plain), numbers(plain)]
    next(iter(plain)), next(iter(moving))
    assert moving.state_dict() == plain.state_dict()
    moving.set_epoch(7)
    plain.sampler.set_epoch(7)
    assert numbers(moving) == numbers(plain)


class TestOneBatchAhead:
    def test_the_next_copy_begins_before_a_batch_is_handed_out_and_the_current_one_has_ended(
        self, shards: Path
    ) -> None:
        for batch in ahead(loader(shards)):
            log.append(("use", batch["cls"][0].item()))
        order = [batch[0] for batch in numbers(loader(shards))]
        expected = [("start", order[0])]
        for current, following in zip(order, [*order[1:], None], strict=True):
            expected += [("finish", current)] + ([("start", following)] if following is not None else [])
            expected += [("use", current)]
        assert log == expected

    def test_the_state_after_any_batch_resumes_to_exactly_the_rest(self, shards: Path) -> None:
        expected = [numbers(one) for one in [loader(shards)] for _ in range(2)]
        moving = ahead(loader(shards))
        states = [moving.state_dict()]
        states += [moving.state_dict() for _ in moving]
        assert [state["consumed"] for state in states] == [*range(0, TOTAL, 4), 0]
        for taken, state in enumerate(states):
            resumed = ahead(loader(shards))
            resumed.load_state_dict(pickle.loads(pickle.dumps(state)))
            assert resumed.state_dict() == state
            rest = expected[0][taken:] if taken < len(expected[0]) else expected[1]
            assert numbers(resumed) == rest

    def test_an_epoch_that_was_given_up_is_followed_by_the_next(self, shards: Path) -> None:
        expected = [numbers(one) for one in [loader(shards)] for _ in range(3)]
        moving = ahead(loader(shards))
        for _ in moving:
            break
        assert moving.state_dict()["consumed"] == 4
        assert numbers(moving) == expected[1]
        iterator = iter(moving)
        assert moving.state_dict()["epoch"] == 2
        moving.set_epoch(0)
        assert numbers(iterator) == expected[0]

    @pytest.mark.parametrize("device", ["cpu", "cuda"])
    def test_an_error_comes_in_the_place_of_its_batch_and_no_end_after_it(self, shards: Path, device: str) -> None:
        def decode(data: bytes) -> int:
            if data == b"30":
                raise ValueError("thirty")
            return int(data)

        inner = loader(shards, decode={"cls": decode}, shuffle=False)
        moving = ahead(inner) if device == "cuda" else to_device(inner, device)
        iterator = iter(moving)
        assert numbers(next(iterator) for _ in range(7))[-1] == [24, 25, 26, 27]
        assert moving.state_dict()["consumed"] == 28
        with pytest.raises(SampleError, match="thirty"):
            next(iterator)
        with pytest.raises(StateError, match="ended with an error"):
            next(iterator)


class FakeCuda:
    """Stands for torch.cuda's streams, and for what is done on them, in the order in which it is asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stream = "main"
        self.done: list[tuple[str, str]] = []
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: "side")
        monkeypatch.setattr(torch.cuda, "stream", self.on)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self)
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: self.note("record"))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)

    @contextmanager
    def on(self, stream: str) -> Iterator[None]:
        self.stream, before = stream, self.stream
        yield
        self.stream = before

    def wait_stream(self, stream: str) -> None:
        self.note(f"wait for {stream}")

    def note(self, what: str) -> None:
        self.done.append((self.stream, what))


def test_tensors_are_copied_aside_and_what_moves_itself_where_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch)

    class Tracked(torch.Tensor):
        def to(self, *args: Any, **options: Any) -> torch.Tensor:  # type: ignore[override]
            cuda.note(f"copy {options}")
            return torch.ones(1)

    class Opaque:
        def to(self, device: torch.device) -> str:
            cuda.note("move")
            return "moved"

    stream = devices.CopiedAhead(devices.DeviceLoader([], torch.device("cpu")), iter([]), torch.device("cpu"))
    coming = stream.start({"x": [torch.ones(1).as_subclass(Tracked)], "opaque": Opaque()})
    assert cuda.done == [("side", "copy {'non_blocking': True}")]
    assert stream.finish(coming)["opaque"] == "moved"
    # Memory that the side stream has allotted must be recorded, which the memory inside of an object cannot be.
    assert cuda.done[1:] == [("main", "wait for side"), ("main", "record"), ("main", "move")]


@needs_gpu
class TestOnAGpu:
    @pytest.mark.parametrize("kind", [dict, Encoding])
    def test_the_memory_of_a_batch_in_use_is_not_given_to_the_next(self, kind: type) -> None:
        big = [kind(x=torch.full((1 << 24,), number).pin_memory()) for number in range(8)]
        busy = torch.ones(8192, 8192, device="cuda")
        sums = []
        for batch in to_device(big, "cuda"):
            busy = busy @ busy / 8192  # the sum waits behind it, long after the batch is gone
            sums.append(batch["x"].sum())
            del batch
        assert [one.item() for one in sums] == [number << 24 for number in range(8)]
