"""`to_device`: batches on the device that trains, the next one on its way while the current one is used."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any, Generic

import torch
from torch.utils._pytree import tree_map

from wdsdist.errors import ArgumentError
from wdsdist.loader.checkpoint import State
from wdsdist.samples.collate import BatchT


def to_device(loader: Iterable[BatchT], device: torch.device | str | int) -> DeviceLoader[BatchT]:
    """Return a loader of the same batches, with their tensors on ``device``.

    To a CUDA device, the next batch is copied on its own stream while the current one is used. That needs page-locked
    batches (``pin_memory=True``, the default if there is a GPU). To other devices batches are moved as they come.

    ``len``, ``set_epoch``, ``state_dict``, ``load_state_dict`` and all else are the loader's. The state counts the
    batches that were handed out, not the one on its way. Raw bytes (`Ragged` columns) and strings stay on the CPU.

    Args:
        loader: a `StreamingDataLoader`, or any iterable of batches: tensors in mappings, lists, tuples, named tuples
            and dataclasses, nested at will, or objects with a method ``to(device)``, which are moved when their turn
            comes, not ahead.
        device: as in ``torch.Tensor.to``.

    Raises:
        ArgumentError: there is no such device.

    >>> batches = to_device([{"image": torch.zeros(2, 3)}, {"image": torch.ones(2, 3)}], "meta")
    >>> len(batches), [batch["image"].device.type for batch in batches]
    (2, ['meta', 'meta'])
    """
    if not hasattr(loader, "__iter__"):
        raise ArgumentError(
            f"loader is {loader!r}: it must be a StreamingDataLoader, or an iterable of batches", argument="loader"
        )
    try:
        target = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ArgumentError(f"device is {device!r}: {str(error).splitlines()[0]}", argument="device") from error
    if target.type == "cuda" and (target.index or 0) >= torch.cuda.device_count():
        raise ArgumentError(
            f"device is {device!r}: torch sees {torch.cuda.device_count()} CUDA devices", argument="device"
        )
    return DeviceLoader(loader, target)


class DeviceLoader(Generic[BatchT]):
    """The batches of a loader, on a device. Made by `to_device`."""

    def __init__(
        self, loader: Iterable[BatchT], device: torch.device, copier: Callable[[torch.device], SideStream] | None = None
    ) -> None:
        self._loader = loader
        self._device = device
        self._copier = copier or SideStream
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
        return _Ahead(self, batches, self._copier(self._device))

    def state_dict(self) -> State:
        """Return the loader's state as of the batches that were handed out."""
        now: State = self._loader.state_dict()  # type: ignore[attr-defined]
        if self._states is not None and now == self._states[1]:
            return self._states[0]
        return now  # no batch is on its way, or another position was chosen since

    def load_state_dict(self, state: State) -> None:
        """Let the loader continue where a state was taken."""
        self._states = None  # the position may be that of the batch on its way
        self._loader.load_state_dict(state)  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # while it is being unpickled
            raise AttributeError(name)
        return getattr(self._loader, name)


class SideStream:
    """Copies batches to a CUDA device on its own stream, one at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._copies: list[torch.Tensor] = []

    def start(self, batch: Any) -> Any:
        """Begin to copy a batch."""
        with torch.cuda.stream(self._stream):
            return rebuilt(batch, self._copy)

    def _copy(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        self._copies.append(leaf.to(self._device, non_blocking=True))
        return self._copies[-1]

    def finish(self, batch: Any) -> Any:
        """Return a batch whose copy has begun; kernels on the current stream find it complete from now on."""
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(self._stream)
        copies, self._copies = self._copies, []
        for copy_ in copies:
            # Its memory belongs to the side stream, which would otherwise write the next batch into it as soon as
            # the last reference is gone, though kernels that read it may still wait for their turn.
            copy_.record_stream(current)
        # `record_stream` does not reach tensors inside of other objects: they are moved on the current stream.
        return moved(batch, self._device)


@dataclass(frozen=True, slots=True)
class _Coming:
    """A batch whose copy to the device is under way, or the error raised in its place."""

    batch: Any
    state: State
    """The loader's, once it had given the batch."""
    failure: Exception | None = None


class _Ahead(Iterator[Any]):
    """One iteration; the copy of each batch begins before the batch before it is handed out."""

    def __init__(self, owner: DeviceLoader[Any], batches: Iterator[Any], copier: SideStream) -> None:
        self._owner = owner
        self._batches = batches
        self._copier = copier
        self._coming: _Coming | None = None

    def __next__(self) -> Any:
        coming, self._coming = self._coming or self._pull(), None
        if coming.failure is not None:
            raise coming.failure
        batch = self._copier.finish(coming.batch)
        self._coming = self._pull()
        self._owner._states = coming.state, self._coming.state
        return batch

    def _pull(self) -> _Coming:
        batch, failure = None, None
        try:
            batch = self._copier.start(next(self._batches))
        except Exception as error:  # also the end, which is raised in its turn
            failure = error
        state: State = getattr(self._owner._loader, "state_dict", dict)()
        return _Coming(batch, state, failure)


def moved(batch: Any, device: torch.device) -> Any:
    """Return a batch with all of its tensors on a device."""
    return rebuilt(batch, lambda leaf: leaf.to(device) if _can_move(leaf) else leaf)


def _can_move(value: Any) -> bool:
    return callable(getattr(value, "to", None))


def rebuilt(value: Any, function: Callable[[Any], Any]) -> Any:
    """Return a copy of nested containers, with ``function`` applied to all that is no container.

    An object with a method ``to`` counts as no container: it knows best what of it moves.

    >>> rebuilt({"a": [1, (2, 3)]}, lambda number: -number)
    {'a': [-1, (-2, -3)]}
    """
    return tree_map(functools.partial(_rebuilt_leaf, function), value, is_leaf=_can_move)


def _rebuilt_leaf(function: Callable[[Any], Any], leaf: Any) -> Any:
    """Return a leaf of torch's trees, which know neither subclasses of containers nor dataclasses, with its parts."""
    is_record = dataclasses.is_dataclass(leaf) and not isinstance(leaf, type)
    if _can_move(leaf) or not (is_record or isinstance(leaf, (MutableMapping, list, tuple))):
        return function(leaf)
    if isinstance(leaf, tuple):
        return type(leaf)(rebuilt(part, function) for part in leaf)
    clone = copy.copy(leaf)  # with what a subclass knows besides, such as a default
    if isinstance(leaf, MutableMapping):
        clone.update({name: rebuilt(part, function) for name, part in leaf.items()})
    elif is_record:
        for field in dataclasses.fields(leaf):
            object.__setattr__(clone, field.name, rebuilt(getattr(leaf, field.name), function))  # it may be frozen
    else:
        clone[:] = [rebuilt(part, function) for part in leaf]
    return clone
