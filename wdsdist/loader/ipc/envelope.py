"""Batches taken apart: the bulk of what they hold as pieces of memory, the rest as a small pickle.

Whatever a batch is made of, down to any depth, its tensors, arrays and raw columns are found while it is pickled, as
protocol 5 allows (PEP 574), and copied once, straight to where they are needed.
"""

from __future__ import annotations

import functools
import io
import pickle
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from wdsdist.samples.collate import Buffer, Ragged, Stacked, is_dense, is_plain, memory_of, shaped

Piece = Sequence[Buffer]
"""Memory that is one buffer on arrival, and any number of them before."""


def seal(batch: Any) -> tuple[bytes, list[Piece]]:
    """Take a batch apart: return its pickle without the bulk, and the bulk.

    >>> rest, pieces = seal({"x": torch.arange(3), "y": "text"})
    >>> unseal(rest, [bytearray().join(piece) for piece in pieces])
    {'x': tensor([0, 1, 2]), 'y': 'text'}
    """
    stream = io.BytesIO()
    pickler = _Pickler(stream)
    pickler.dump(batch)
    return stream.getvalue(), pickler.pieces


def unseal(rest: bytes | memoryview, buffers: Iterable[Any]) -> Any:
    """Put a batch together; its tensors and arrays are views of ``buffers``."""
    return pickle.loads(rest, buffers=buffers)


class _Pickler(pickle.Pickler):
    def __init__(self, stream: io.BytesIO) -> None:
        self.pieces: list[Piece] = []
        self._scattered: dict[int, tuple[pickle.PickleBuffer, Piece]] = {}
        super().__init__(stream, protocol=5, buffer_callback=functools.partial(_take, self.pieces, self._scattered))

    def _bulk(self, piece: Piece) -> pickle.PickleBuffer:
        """Return the placeholder of an out-of-band buffer in the pickle."""
        mark = pickle.PickleBuffer(bytearray())  # writable, as the buffer on arrival will be
        self._scattered[id(mark)] = mark, piece
        return mark

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if kind is torch.Tensor:
            return self._tensor(value)
        if kind is Stacked:
            return _tensor, (self._bulk(value.parts), value.dtype, value.shape, value.stride)
        if kind is Ragged:
            return _ragged, (self._bulk(value.parts), self._bulk([value.offsets.numpy().view(np.uint8).data]))
        if kind is memoryview:
            content = value.cast("B") if value.c_contiguous else value.tobytes()
            return _view, (self._bulk([content]), value.format, value.shape)
        if kind is torch.storage.TypedStorage:
            return _typed_storage, (value._untyped_storage, value.dtype)
        if kind is torch.UntypedStorage and value.device.type == "cpu":
            # Inside of parameters, sparse tensors and subclasses, which know how to rebuild themselves.
            return _storage, (self._bulk([memory_of(torch.empty(0, dtype=torch.uint8).set_(value))]),)
        return NotImplemented

    def _tensor(self, tensor: torch.Tensor) -> Any:
        if not is_plain(tensor):
            return NotImplemented
        stride = None
        if not tensor.is_contiguous():
            if is_dense(tensor):
                stride = tensor.stride()
            else:
                tensor = tensor.contiguous()
        return _tensor, (self._bulk([memory_of(tensor)]), tensor.dtype, tuple(tensor.shape), stride)


def _take(
    pieces: list[Piece], scattered: dict[int, tuple[pickle.PickleBuffer, Piece]], buffer: pickle.PickleBuffer
) -> None:
    # No method of the pickler: that would be a cycle, and what was pickled would stay until the collector finds it.
    _, piece = scattered.pop(id(buffer), (buffer, None))
    pieces.append([buffer.raw()] if piece is None else piece)


def _tensor(buffer: Any, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...] | None) -> torch.Tensor:
    if not len(buffer):
        return torch.empty(shape, dtype=dtype)
    return shaped(torch.frombuffer(buffer, dtype=dtype), shape, stride)


def _view(buffer: Any, form: str, shape: tuple[int, ...]) -> Any:
    content: Any = memoryview(buffer).cast("B")
    return content.cast(form, shape) if len(shape) > 1 else content.cast(form)


def _ragged(content: Any, bounds: Any) -> Ragged:
    return Ragged(np.frombuffer(content, np.uint8), np.frombuffer(bounds, np.int64))


def _storage(buffer: Any) -> torch.UntypedStorage:
    return _tensor(buffer, torch.uint8, (len(buffer),), None).untyped_storage()


def _typed_storage(storage: torch.UntypedStorage, dtype: torch.dtype) -> torch.TypedStorage:
    return torch.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)  # type: ignore[no-untyped-call]
