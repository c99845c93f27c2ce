"""The public values for ``StreamingDataLoader(dataset, batches=...)``: token budgets, groups, buckets, packed rows."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args, get_type_hints

from wdsdist._util.validation import as_number, check_column, check_integer
from wdsdist.errors import ArgumentError

if TYPE_CHECKING:
    from wdsdist.batching.batcher import PlannedBatcher
    from wdsdist.shards.manifest import Manifest

Cost = Literal["linear", "quadratic"]
Oversize = Literal["error", "drop", "alone"]
Long = Literal["split", "truncate", "error"]
Labels = Literal[None, False, True, "next"]

_MOST = 1 << 40
"""Most tokens or samples of a batch or a row: the sums over a block are 64-bit integers."""


class Batches:
    """Base of the values, each a data class. A loader asks one for the batcher of its data set."""

    __slots__ = ()

    takes_collate_fn: ClassVar[bool] = True
    """Whether a ``collate_fn`` may make the batches."""

    def __post_init__(self) -> None:
        """Check each argument by its type. Raises `ArgumentError`."""
        kinds = get_type_hints(type(self))
        for name, value in ((field.name, getattr(self, field.name)) for field in fields(self)):  # type: ignore[arg-type]
            kind, choices = kinds[name], get_args(kinds[name])
            if kind is str:
                check_column(name, value)
            elif kind is float:
                if as_number(value) is None:
                    raise ArgumentError(f"{name} is {value!r}: it must be a number", argument=name)
            elif kind is int or int in choices:
                if value is not None or kind is int:
                    check_integer(name, value, 1, _MOST)
            elif value not in choices:
                raise ArgumentError(f"{name} is {value!r}: it can be {', '.join(map(repr, choices))}", argument=name)

    def batcher(
        self,
        manifest: Manifest,
        *,
        itemsizes: Mapping[str, int] | None = None,
        drop_last: bool = True,
        mark_padding: bool = False,
    ) -> PlannedBatcher:
        """Return what makes the plans of a data set's epochs.

        Args:
            manifest: the data set.
            itemsizes: bytes of an item of the raw arrays that ``decode`` names, by extension.
            drop_last: whether samples that cannot be dealt evenly are dropped at the end of an epoch, or some repeated.
            mark_padding: whether repeated samples are marked.

        Raises `ArgumentError` for an unknown column.
        """
        from wdsdist.batching.batcher import PlannedBatcher
        from wdsdist.batching.block_plan import Rule

        rule = Rule(**self._terms(), drops=drop_last, mark_padding=mark_padding)
        try:
            return PlannedBatcher(manifest, rule, itemsizes or {})
        except ArgumentError as error:
            argument = "by" if hasattr(self, "by") else "length"
            message = f"{argument} is {getattr(self, argument)!r}: {error}"
            raise ArgumentError(message, argument=argument) from error

    def _terms(self) -> dict[str, Any]:
        """Return the arguments of the `Rule` that these values stand for."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class TokenBudget(Batches):
    """Batches of as many samples as fit into ``tokens`` tokens.

    Every rank gets the same number of batches, and the batches of one step have about the same cost on all ranks.
    Without a ``collate_fn``, arrays of a field are padded with ``pad`` to the longest of the batch, and
    ``"<field>.length"``, int64 [batch], holds the original lengths.

    Args:
        tokens: the most tokens of a batch, before padding.
        length: the column with the number of tokens of each sample, such as ``"input_ids.tokens"`` or ``"txt.bytes"``:
            see `Manifest.columns`. ``<ext>.tokens`` of a raw array whose dtype ``decode`` names needs no
            ``add_columns``.
        max_samples: the most samples of a batch; by default there is no limit.
        cost: the cost of a step on a rank: ``"linear"``, its tokens; ``"quadratic"``, the sum of the squared lengths,
            as for attention.
        oversize: how to handle a sample of more than ``tokens``: raise an ``"error"``, ``"drop"`` it, or make it a
            batch ``"alone"``.
        pad: the value that fills arrays up.

    Raises:
        ArgumentError: a value cannot work. Iteration raises it for an unknown column, and for a sample that is too long
            under ``oversize="error"``.

    >>> TokenBudget(65_536, length="input_ids.tokens").oversize
    'error'
    """

    tokens: int
    _: KW_ONLY
    length: str
    max_samples: int | None = None
    cost: Cost = "linear"
    oversize: Oversize = "error"
    pad: float = 0

    def _terms(self) -> dict[str, Any]:
        from wdsdist.batching.collation import padded

        return {
            "budget": self.tokens,
            "most": self.max_samples or 0,
            "label": f"tokens by {self.length}",
            "length": self.length,
            "cost": self.cost,
            "long": self.oversize,
            "collate": functools.partial(padded, pad=self.pad),
        }


@dataclass(frozen=True, slots=True)
class LengthGroups(Batches):
    """Batches of ``size`` samples of similar lengths, with little padding.

    Every rank gets the same number of batches, and the batches of one step have similar lengths on all ranks. Without a
    ``collate_fn``, arrays are padded as in `TokenBudget`.

    Args:
        size: samples of a batch.
        by: the column of lengths, in any unit, such as ``"txt.bytes"`` or ``"mp3.seconds"``.
        pad: the value that fills arrays up.

    Raises:
        ArgumentError: a value cannot work. Iteration raises it for an unknown column.

    >>> LengthGroups(64, by="txt.bytes")
    LengthGroups(size=64, by='txt.bytes', pad=0)
    """

    size: int
    _: KW_ONLY
    by: str
    pad: float = 0

    def _terms(self) -> dict[str, Any]:
        from wdsdist.batching.collation import padded

        return {
            "most": self.size,
            "label": f"groups by {self.by}",
            "length": self.by,
            "collate": functools.partial(padded, pad=self.pad),
        }


@dataclass(frozen=True, slots=True)
class Buckets(Batches):
    """Batches of ``size`` samples of one category, such as one image size.

    Every rank gets the same number of batches. The last batches of a category may have fewer samples.

    Args:
        size: the most samples of a batch.
        by: the column of categories: numbers or strings.

    Raises:
        ArgumentError: a value cannot work. Iteration raises it for an unknown column.

    >>> Buckets(64, by="json.bucket")
    Buckets(size=64, by='json.bucket')
    """

    size: int
    _: KW_ONLY
    by: str

    def _terms(self) -> dict[str, Any]:
        return {"most": self.size, "label": f"buckets by {self.by}", "buckets": self.by}


@dataclass(frozen=True, slots=True)
class PackedRows(Batches):
    """Batches of ``rows`` rows of ``tokens`` tokens each, into which whole documents are packed.

    A batch has the field of tokens, and every array of the same length, as [rows, tokens]; ``position_ids`` and
    ``document_ids``, int64 [rows, tokens], the latter -1 for padding; ``cu_seqlens``, int32 [sequences + 1], and
    ``max_seqlen`` over the flattened rows; and every other field as one list per row. It takes no ``collate_fn``.

    Args:
        rows: rows of a batch.
        tokens: tokens of a row.
        length: the column of lengths; the part before its last dot is the field of tokens.
        long: how to handle a document of more than ``tokens``: ``"split"`` it over several rows, ``"truncate"`` it, or
            raise an ``"error"``.
        labels: add ``"labels"``: with ``True`` the tokens, with -100 for the first token of each document and for
            padding; with ``"next"`` the next token of each token, for a model that does not shift labels itself.

    Raises:
        ArgumentError: a value cannot work. Iteration raises it for an unknown column, and for a document that is too
            long under ``long="error"``.

    >>> PackedRows(4, tokens=8192, length="input_ids.tokens", labels="next").long
    'split'
    """

    takes_collate_fn: ClassVar[bool] = False

    rows: int
    _: KW_ONLY
    tokens: int
    length: str
    long: Long = "split"
    labels: Labels = None

    def _terms(self) -> dict[str, Any]:
        from wdsdist.batching.collation import pack_rows

        field = self.length.rpartition(".")[0]
        return {
            "has_rows": True,
            "budget": self.tokens,
            "most": self.rows,
            "label": f"rows of {self.tokens} by {self.length}, long={self.long}",
            "length": self.length,
            "long": self.long,
            "collate": functools.partial(
                pack_rows, num_rows=self.rows, length=self.tokens, field=field, labels=self.labels or False
            ),
        }
