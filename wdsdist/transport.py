"""Batches: columns of raw bytes and of collated values, in the form that crosses from a worker to the main process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import default_collate

from wdsdist.errors import SampleError

Sample = dict[str, Any]
Batch = dict[str, Any]
Buffer = bytes | memoryview


class Ragged:
    """A column of byte strings of different lengths: one tensor of bytes and where each string starts.

    It has a length and is indexed and iterated like a list of memoryviews. It is no ``Sequence``: tools that rebuild
    sequences element by element, as pinning and device transfer do, would take it apart.

    >>> column = Ragged.pack([b"one", b"", b"three"])
    >>> len(column), bytes(column[2]), column.offsets.tolist()
    (3, b'three', [0, 3, 3, 8])
    """

    __slots__ = ("data", "offsets")

    def __init__(self, data: torch.Tensor, offsets: torch.Tensor) -> None:
        self.data = data
        """uint8 [bytes]: all strings, one after another."""
        self.offsets = offsets
        """int64 [n + 1]: string ``i`` is ``data[offsets[i]:offsets[i + 1]]``."""

    @classmethod
    def pack(cls, buffers: Sequence[Buffer]) -> Ragged:
        """Copy byte strings into one column."""
        parts = [np.frombuffer(buffer, np.uint8) for buffer in buffers]
        offsets = np.cumsum([0, *map(len, parts)], dtype=np.int64)
        data = np.concatenate(parts) if parts else np.empty(0, np.uint8)
        return cls(torch.from_numpy(data), torch.from_numpy(offsets))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: Any) -> Any:
        """Return string ``index`` as a view, or the strings of a slice as a list of views."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        position = range(len(self))[index]
        start, stop = self.offsets[position : position + 2].tolist()
        return self._view()[start:stop]

    def __iter__(self) -> Iterator[memoryview]:
        view = self._view()
        bounds = self.offsets.tolist()
        return (view[start:stop] for start, stop in pairwise(bounds))

    def _view(self) -> memoryview:
        array: npt.NDArray[np.uint8] = self.data.numpy()
        return array.data

    def pin_memory(self) -> Ragged:
        """Return the column in page-locked memory; torch's pinning thread calls this."""
        return Ragged(self.data.pin_memory(), self.offsets.pin_memory())

    def __repr__(self) -> str:
        return f"Ragged({len(self):,} strings, {self.data.numel():,} bytes)"


def collate(samples: Sequence[Any]) -> Any:
    """Turn samples into columns: bytes into `Ragged`, text into lists, all else as torch's ``default_collate`` does.

    Samples that a transform made into something other than dicts, such as tuples, are collated as torch does.

    Raises `SampleError` where the samples have different fields, or values that do not stack.

    >>> batch = collate([{"__key__": "a", "txt": b"x", "cls": 1}, {"__key__": "b", "txt": b"yz", "cls": 2}])
    >>> batch["__key__"], batch["txt"], batch["cls"]
    (['a', 'b'], Ragged(2 strings, 3 bytes), tensor([1, 2]))
    """
    if not isinstance(samples[0], Mapping):
        return _stacked("the samples", list(samples), "transform= returned")
    fields = samples[0].keys()
    for sample in samples:
        if sample.keys() != fields:
            odd = sorted(sample.keys() ^ fields)
            raise SampleError(
                f"samples {_name(samples[0])} and {_name(sample)} do not have the same fields ({', '.join(odd)} in one "
                f"only): name the fields that all samples have, as in fields=('jpg;png', 'cls')"
            )
    return {field: _column(field, [sample[field] for sample in samples], samples) for field in fields}


def _column(field: str, values: list[Any], samples: Sequence[Mapping[str, Any]]) -> Any:
    first = values[0]
    if isinstance(first, (bytes, memoryview)):
        return Ragged.pack(values)
    if isinstance(first, str):
        return values
    return _stacked(f"the {len(values)} values of field {field!r}", values, f"from sample {_name(samples[0])} on")


def _stacked(what: str, values: list[Any], where: str) -> Any:
    try:
        return default_collate(values)
    except (RuntimeError, TypeError, KeyError, ValueError, AttributeError) as error:
        raise SampleError(
            f"{what} {where} do not form a batch: {error}. Make them alike with transform=, or pass collate_fn="
        ) from error


def _name(sample: Mapping[str, Any]) -> str:
    return repr(sample.get("__key__", "?"))
