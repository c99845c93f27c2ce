"""Columns of a batch: raw bytes of any lengths, values of one shape, and how samples become columns.

Columns are gathered late: until their memory is asked for they are lists of views, so that members go from a mapped
shard to the memory of the batch in one copy, or in none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils._pytree import register_pytree_node
from torch.utils.data._utils.collate import collate as torch_collate
from torch.utils.data._utils.collate import default_collate_fn_map
from typing_extensions import TypeVar

from wdsdist._util.array_types import Int64s
from wdsdist.errors import ArgumentError, SampleError

Sample = dict[str, Any]
Batch = dict[str, Any]
BatchT = TypeVar("BatchT", default=Batch)
"""What a ``collate_fn`` returns; without one, a dict of columns."""

PADDING = "__padding__"
"""The field of samples and the column of batches that mark padding, the samples that are repeated to even out ranks."""

Buffer = bytes | memoryview
_BYTES = (bytes, bytearray, memoryview)


def gather(parts: Sequence[Buffer], target: memoryview) -> None:
    """Copy buffers of bytes one after another into ``target``, which has exactly the room for them."""
    start = 0
    for part in parts:
        stop = start + len(part)
        target[start:stop] = part
        start = stop


class Ragged:
    """A column of byte strings of different lengths.

    It has a length, and can be indexed and iterated like a list of memoryviews. It is not a ``Sequence``, because tools
    that rebuild sequences element by element, such as pinning and device transfer, would take it apart.

    If this process makes the batches (``num_workers=0``), the strings are read-only views of the mapped shard, which
    ``data`` copies on first use. With a ``cache_limit`` they are copies.

    >>> column = Ragged.of([b"one", b"", b"three"])
    >>> len(column), bytes(column[2]), column.offsets.tolist()
    (3, b'three', [0, 3, 3, 8])
    """

    __slots__ = ("_bytes", "_offsets", "_parts")

    def __init__(self, data: torch.Tensor | npt.NDArray[np.uint8], offsets: torch.Tensor | Int64s) -> None:
        self._parts: Sequence[Buffer] | None = None
        self._bytes: npt.NDArray[np.uint8] | None = np.asarray(data)
        self._offsets: Int64s | None = np.asarray(offsets)

    @classmethod
    def of(cls, parts: Sequence[Buffer]) -> Ragged:
        """Make a column of byte strings without copying them."""
        column = cls.__new__(cls)
        column._parts, column._bytes, column._offsets = parts, None, None
        return column

    @property
    def data(self) -> torch.Tensor:
        """uint8 [bytes]: all strings, one after another."""
        if self._bytes is None:
            self._bytes = np.frombuffer(bytearray().join(self.parts), np.uint8)
        return torch.from_numpy(self._bytes)

    @property
    def offsets(self) -> torch.Tensor:
        """int64 [n + 1]: string ``i`` is ``data[offsets[i]:offsets[i + 1]]``."""
        if self._offsets is None:
            self._offsets = np.fromiter(accumulate(map(len, self.parts), initial=0), np.int64, len(self.parts) + 1)
        return torch.from_numpy(self._offsets)

    @property
    def parts(self) -> Sequence[Buffer]:
        """The strings, as views."""
        if self._parts is None:
            assert self._bytes is not None
            assert self._offsets is not None
            view = self._bytes.data
            self._parts = [view[start:stop] for start, stop in pairwise(self._offsets.tolist())]
        return self._parts

    def __len__(self) -> int:
        return len(self._parts) if self._parts is not None else len(self.offsets) - 1

    def __getitem__(self, index: Any) -> Any:
        """Return string ``index`` as a view, or the strings of a slice as a list of views."""
        if isinstance(index, slice):
            return [memoryview(part) for part in self.parts[index]]
        return memoryview(self.parts[range(len(self))[index]])

    def __iter__(self) -> Iterator[memoryview]:
        return map(memoryview, self.parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return Ragged, (self.data, self.offsets)

    def pin_memory(self) -> Ragged:
        """Return the column in page-locked memory; torch's pinning thread calls this."""
        return Ragged(self.data.pin_memory(), self.offsets.pin_memory())

    def __repr__(self) -> str:
        return f"Ragged({len(self):,} strings, {sum(map(len, self.parts)):,} bytes)"


@dataclass(frozen=True, slots=True)
class Stacked:
    """A tensor that is still in pieces of equal size, one for each sample."""

    parts: Sequence[Buffer]
    dtype: torch.dtype
    shape: tuple[int, ...]
    """With the number of pieces first."""
    stride: tuple[int, ...] | None = None
    """In elements; ``None`` if the tensor is contiguous."""

    @classmethod
    def of(cls, values: Sequence[torch.Tensor]) -> Stacked | None:
        """Return tensors as pieces, or ``None`` if they differ, or are not plain memory."""
        first = values[0]
        shape, stride, dtype = first.shape, first.stride(), first.dtype
        are_alike = all(
            type(value) is torch.Tensor
            and value.shape == shape
            and value.dtype == dtype
            and value.stride() == stride
            and is_plain(value)
            for value in values
        )
        if not are_alike or not is_dense(first):
            return None
        strides = None if first.is_contiguous() else (first.numel(), *stride)
        return cls([memory_of(value) for value in values], dtype, (len(values), *shape), strides)

    def tensor(self) -> torch.Tensor:
        """Put the pieces together in memory of this process."""
        memory = torch.empty(sum(map(len, self.parts)), dtype=torch.uint8)
        gather(self.parts, memory.numpy().data)
        return shaped(memory.view(self.dtype), self.shape, self.stride)


class PerSample(list[Any]):
    """A column of an optional field: a list with the value of each sample, unlike a list of columns."""


register_pytree_node(PerSample, lambda values: ([*values], None), lambda values, _: PerSample(values))


def shaped(flat: torch.Tensor, shape: tuple[int, ...], stride: tuple[int, ...] | None) -> torch.Tensor:
    """Return flat memory as a tensor of the given shape."""
    if stride is not None:
        return flat.as_strided(shape, stride)
    return flat if len(shape) == 1 else flat.view(shape)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is no more than numbers in this machine's memory."""
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg())
    )


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor fills its memory without holes or overlaps, in whatever order of dimensions."""
    return bool(torch.ops.aten.is_non_overlapping_and_dense(tensor))


def memory_of(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a plain, dense tensor."""
    flat = tensor.detach().as_strided((tensor.numel(),), (1,))
    array: npt.NDArray[np.uint8] = flat.view(torch.uint8).numpy()
    return array.data


def collate(
    samples: Sequence[Any], *, deferred: bool = False, lists: Collection[str] = (), keys: Sequence[str] = ()
) -> Any:
    """Turn samples into columns: bytes into `Ragged`, strings into lists, all else as torch's ``default_collate``.

    Samples that a transform made into something other than dicts, such as tuples, are collated as torch does.

    Args:
        samples: the samples of a batch.
        deferred: let tensors come as `Stacked` pieces.
        lists: fields that become lists of what the samples hold.
        keys: the keys of the samples, for errors; by default those in the samples.

    Raises `SampleError` when the samples have different fields, or values that do not stack.

    >>> batch = collate([{"__key__": "a", "txt": b"x", "cls": 1}, {"__key__": "b", "txt": b"yz", "cls": 2}])
    >>> batch["__key__"], batch["txt"], batch["cls"]
    (['a', 'b'], Ragged(2 strings, 3 bytes), tensor([1, 2]))
    """
    kinds = {isinstance(sample, Mapping): type(sample).__name__ for sample in samples}
    if len(kinds) > 1:
        raise SampleError(
            f"transform= returned a {kinds[True]} for some samples of a batch and a {kinds[False]} for others: let it "
            f"return the same for all, or pass collate_fn="
        )
    if kinds.get(False) == "NoneType":
        raise SampleError("transform= returned None: let it return the sample, or raise wdsdist.BadSample")
    if False in kinds:
        return make_column("", list(samples), keys or list(map(str, range(len(samples)))), deferred=deferred)
    check_alike(samples)
    columns = {field: [sample[field] for sample in samples] for field in samples[0]}
    keys = keys or columns.get("__key__") or list(map(str, range(len(samples))))
    return {
        field: PerSample(values) if field in lists else make_column(field, values, keys, deferred=deferred)
        for field, values in columns.items()
    }


def check_alike(samples: Sequence[Sample]) -> None:
    """Raise `SampleError` when the samples of a batch have different fields."""
    first = samples[0]
    other = next((sample for sample in samples if sample.keys() != first.keys()), None)
    if other is None:
        return
    names = [
        f"{sample.get('__key__', '?')!r}" + (f" of {sample['__dataset__']!r}" if sample.get("__dataset__") else "")
        for sample in (first, other)
    ]
    raise SampleError(
        f"samples {names[0]} and {names[1]} do not have the same fields "
        f"({', '.join(sorted(other.keys() ^ first.keys()))} in one only): name the fields that all samples have, as in "
        f"fields=('image', 'jpg;png', 'txt?'), make them alike with transform=, or pass collate_fn="
    )


def make_column(field: str, values: list[Any], keys: Sequence[str], *, deferred: bool = False) -> Any:
    """Turn the values of one field, or of samples for an empty one, into a column; ``keys`` name them in errors."""
    if field and all(value is None or isinstance(value, str) for value in values):
        return values
    try:
        are_bytes = {isinstance(value, _BYTES) for value in values} if field else {False}
        if are_bytes == {True, False}:
            raise TypeError("some are bytes")  # torch would make a list of them
        if True in are_bytes:
            return Ragged.of([value if type(value) is bytes else memoryview(value).cast("B") for value in values])
        return torch_collate(values, collate_fn_map=_DEFERRED if deferred else _AT_ONCE)
    except (RuntimeError, TypeError, KeyError, ValueError, AttributeError) as error:
        raise SampleError(_mismatch(field, values, keys, error)) from error


def _mismatch(field: str, values: list[Any], keys: Sequence[str], error: Exception) -> str:
    """Return why values do not form a batch: two samples that differ, and what makes them alike."""
    forms = [_form(value) for value in values]
    other = next((number for number, form in enumerate(forms) if form != forms[0]), 0)
    name = f"field {field!r}" if field else "what transform= returned"
    name += f" does not stack: it is {forms[0]} in sample {keys[0]!r}"
    if not other:
        return f"{name} and {len(values) - 1:,} others ({error}); make it a number or an array with transform="
    two = values[0], values[other]
    shapes = [tuple(getattr(value, "shape", ())) for value in two]
    if any(isinstance(value, _BYTES) for value in two):
        remedy = f"decode it in all, as with decode={{{field!r}: function}}, or name each extension that it has"
    elif all(hasattr(value, "getbands") for value in two) or all(len(shape) == 3 and 3 in shape for shape in shapes):
        remedy = (
            f"images of one batch must have one shape: pass decode={{{field or 'image'!r}: "
            f"wdsdist.transforms.ResizeCenterCrop(224)}} or RandomResizedCrop(224), or resize them with transform="
        )
    elif all(shapes) and shapes[0][1:] == shapes[1][1:]:
        remedy = "to pad arrays, pass batches=batching.TokenBudget(...) or batching.LengthGroups(...) to the loader"
    elif all(isinstance(value, list) for value in two):
        remedy = f"decode lists to arrays, as with decode={{{field!r}: lambda data: np.array(json.loads(data))}}"
    else:
        remedy = "make them alike with transform="
    return f"{name} and {forms[other]} in {keys[other]!r}; {remedy}, or pass collate_fn="


def _form(value: Any) -> str:
    """Return the type and the shape of a value; values of one form stack."""
    kind = type(value).__name__
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if hasattr(value, "getbands"):  # an image of Pillow
        return f"{value.mode} image of {value.width} x {value.height} pixels"
    if isinstance(value, Mapping):
        return f"{kind} of {', '.join(f'{name}: {_form(inner)}' for name, inner in value.items())}"
    if isinstance(value, (list, tuple)):
        return f"{kind} of {', '.join(map(_form, value)) if len(value) <= 3 else f'{len(value):,} values'}"
    return kind


def _stack(values: list[torch.Tensor], *, collate_fn_map: Any = None, deferred: bool = False) -> torch.Tensor | Stacked:
    pieces = Stacked.of(values)
    if pieces is None:
        return torch.stack(values)
    return pieces if deferred else pieces.tensor()


# torch's own function for tensors takes memory in /dev/shm for each of them when it runs in a worker.
_Map = dict[Any, Callable[..., Any]]
_AT_ONCE: _Map = {**default_collate_fn_map, torch.Tensor: _stack}
_DEFERRED: _Map = {**default_collate_fn_map, torch.Tensor: partial(_stack, deferred=True)}


def unpadded(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch without its padding and without the column of marks, so that each sample counts once.

    A batch that has only padding becomes a batch without samples. Columns may be tensors, arrays, lists and `Ragged`
    columns on any device, and dicts of these. A tuple or list of columns keeps its form. Packed rows keep their shape,
    and the ``labels`` of padding become -100.

    Args:
        batch: a batch of a data set with ``mark_padding=True``.

    Raises:
        ArgumentError: the batch has no column ``"__padding__"``, or has packed rows without ``labels``.

    >>> batch = {"__key__": ["a", "b", "a"], "cls": torch.tensor([1, 2, 1])}
    >>> unpadded({**batch, "__padding__": torch.tensor([False, False, True])})
    {'__key__': ['a', 'b'], 'cls': tensor([1, 2])}
    """
    if not isinstance(batch, Mapping) or PADDING not in batch:
        kind = ", ".join(map(repr, batch)) if isinstance(batch, Mapping) else f"a {type(batch).__name__}"
        raise ArgumentError(
            f"the batch has no column {PADDING!r} but {kind}: pass mark_padding=True to StreamingDataset, and let "
            f"collate_fn keep that field of the samples",
            argument="batch",
        )
    keep = ~torch.as_tensor(batch[PADDING], dtype=torch.bool, device="cpu")
    rest = {name: column for name, column in batch.items() if name != PADDING}
    if keep.dim() == 2:
        if "labels" not in batch:
            raise ArgumentError(
                "rows keep their shape without padding: ask PackedRows for labels, which makes the labels of padding "
                '-100, or leave out the tokens that batch["__padding__"] marks',
                argument="batch",
            )
        return rest
    return rest if bool(keep.all()) else {name: _kept(column, keep) for name, column in rest.items()}


def _kept(column: Any, keep: torch.Tensor) -> Any:
    """Return the rows of a column to keep; a value whose length is not the batch size is returned unchanged."""
    if isinstance(column, (torch.Tensor, np.ndarray)):
        rows = keep.to(column.device) if isinstance(column, torch.Tensor) else keep.numpy()
        return column[rows] if column.shape[:1] == keep.shape else column
    if isinstance(column, Ragged):
        return Ragged.of([column.parts[row] for row in torch.nonzero(keep).flatten().tolist()])
    if isinstance(column, Mapping):
        return {name: _kept(inner, keep) for name, inner in column.items()}
    if not isinstance(column, (list, tuple)):
        return column
    if hasattr(column, "_fields"):
        return type(column)(*(_kept(inner, keep) for inner in column))
    # A list as long as the batch has a value for each sample, unless it is made of columns itself.
    has_columns = len(column) != len(keep) or all(_has_rows(inner, len(keep)) for inner in column)
    if isinstance(column, PerSample) or not has_columns:
        return type(column)(value for value, is_kept in zip(column, keep.tolist(), strict=True) if is_kept)
    return type(column)(_kept(inner, keep) for inner in column)


def _has_rows(value: Any, rows: int) -> bool:
    """Return whether a value is a collated column, with a row for each sample; as ``default_collate`` makes."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return tuple(value.shape[:1]) == (rows,)
    if isinstance(value, Mapping):
        return bool(value) and all(_has_rows(inner, rows) for inner in value.values())
    if isinstance(value, (list, tuple)):
        is_strings = len(value) == rows and all(isinstance(inner, str) for inner in value)
        return is_strings or (bool(value) and all(_has_rows(inner, rows) for inner in value))
    return isinstance(value, Ragged) and len(value) == rows
