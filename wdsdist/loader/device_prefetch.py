"""`to_device`: batches on the device that trains, the next one on its way while the current one is used."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic

import torch
from torch.utils._pytree import tree_map, tree_map_only

from wdsdist.errors import ArgumentError
from wdsdist.samples.collate import BatchT

if TYPE_CHECKING:
    from wdsdist.loader.epoch_planner import State


def to_device(loader: Iterable[BatchT], device: torch.device | str | int) -> DeviceLoader[BatchT]:
    """Return a loader of the same batches, with their tensors on ``device``.

    For a CUDA device, the next batch is copied on its own stream while you use the current one. This needs page-locked
    batches (``pin_memory=True``, the default if there is a GPU). Other devices get each batch in its turn.

    ``len``, ``set_epoch``, ``state_dict`` and all other names work as on the loader. The state counts the batches that
    you received, not the one that is copied ahead. Raw bytes (`Ragged` columns) and strings stay on the CPU.

    Args:
        loader: a `StreamingDataLoader`, or any iterable of batches: tensors in nested dicts, lists, tuples and named
            tuples, or objects with a method ``to(device)``, which are not copied ahead.
        device: as in ``torch.Tensor.to``.

    Raises:
        ArgumentError: there is no such device.

    >>> batches = to_device([{"image": torch.zeros(2, 3)}, {"image": torch.ones(2, 3)}], "meta")
    >>> len(batches), [batch["image"].device.type for batch in batches]
    (2, ['meta', 'meta'])
    """
    target = torch.device(device)
    if target.type == "cuda" and (target.index or 0) >= torch.cuda.device_count():
        raise ArgumentError(
            f"device is {device!r}: torch sees {torch.cuda.device_count()} CUDA devices", argument="device"
        )
    return DeviceLoader(loader, target)


class DeviceLoader(Generic[BatchT]):
    """The batches of a loader, on a device. Made by `to_device`."""

    def __init__(self, loader: Iterable[BatchT], device: torch.device) -> None:
        self._loader = loader
        self._device = device
        # The loader's state after the batch that was handed out last, and after the one on its way.
        self._states: tuple[State, State] | None = None

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[BatchT]:
        self._states = None
        batches = iter(self._loader)
        if self._device.type != "cuda":
            # Not a generator: it would end at an error, and the next call would look like the end of the epoch.
            return map(functools.partial(moved, device=self._device), batches)
        return CopiedAhead(self, batches, self._device)

    def state_dict(self) -> State:
        """Return the loader's state as of the batches that were handed out."""
        now: State = self._loader.state_dict()  # type: ignore[attr-defined]
        if self._states is not None and now == self._states[1]:
            return self._states[0]
        return now  # no batch is on its way, or another position was chosen since

    def load_state_dict(self, state: State) -> None:
        """Let the loader continue where a state was taken."""
        self._states = None  # the position may be ahead by the batch on its way
        self._loader.load_state_dict(state)  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # while it is being unpickled
            raise AttributeError(name)
        return getattr(self._loader, name)


class CopiedAhead(Iterator[Any]):
    """One iteration on a CUDA device; the copy of each batch begins before the batch before it is handed out."""

    def __init__(self, owner: DeviceLoader[Any], batches: Iterator[Any], device: torch.device) -> None:
        self._owner, self._batches, self._device = owner, batches, device
        self._coming: tuple[Any, State, Exception | None] | None = None
        """The batch that is copied, or the error raised in its place, and the state of the loader after it."""

    @functools.cached_property
    def _stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def __next__(self) -> Any:
        (batch, state, failure), self._coming = self._coming or self._pull(), None
        if failure is not None:
            raise failure
        batch = self.finish(batch)
        self._coming = self._pull()
        self._owner._states = state, self._coming[1]
        return batch

    def _pull(self) -> tuple[Any, State, Exception | None]:
        batch, failure = None, None
        try:
            batch = self.start(next(self._batches))
        except Exception as error:  # also the end, which is raised in its turn
            failure = error
        return batch, getattr(self._owner._loader, "state_dict", dict)(), failure

    def start(self, batch: Any) -> Any:
        """Begin to copy a batch on the side stream."""
        with torch.cuda.stream(self._stream):
            return tree_map_only(
                torch.Tensor, lambda tensor: tensor.to(self._device, non_blocking=True), batch, is_leaf=_can_move
            )

    def finish(self, batch: Any) -> Any:
        """Return a batch whose copy has begun; kernels on the current stream find it complete from now on."""
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(self._stream)
        # The memory of a copy belongs to the side stream, which would otherwise write the next batch into it as soon as
        # the last reference is gone, though kernels that read it may still wait for their turn.
        tree_map_only(torch.Tensor, lambda copied: copied.record_stream(current), batch, is_leaf=_can_move)
        # `record_stream` does not reach tensors inside of other objects: they are moved on the current stream.
        return moved(batch, self._device)


def moved(batch: Any, device: torch.device) -> Any:
    """Return a batch with its tensors, and objects that have a method ``to``, on a device."""
    return tree_map(lambda leaf: leaf.to(device) if _can_move(leaf) else leaf, batch, is_leaf=_can_move)


def _can_move(value: Any) -> bool:
    return callable(getattr(value, "to", None))
