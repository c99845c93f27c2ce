"""`Manifest`: a data set, its shards, and what can be asked of its samples without reading them."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from wdsdist._util.validation import check_path
from wdsdist.errors import ArgumentError
from wdsdist.shards.manifest.listing import ARRAYS, Listing

if TYPE_CHECKING:
    from wdsdist.shards.progress import ShardsProgress

Values = Iterable[Any] | str | os.PathLike[str]
"""A list of values of a column, or the path of a file that holds one."""


@dataclass(frozen=True, eq=False, repr=False)
class Manifest(Listing):
    """All shards of a data set, in order. Create a manifest with `wdsdist.open`, `wdsdist.index` or `wdsdist.pack`.

    A *view* is a manifest too, made by `select`, `split` or `repeat`: it has the same shards with other sample counts.
    The methods below import `wdsdist.curation` when they are called.
    """

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns: first the built-in columns, then the added ones."""
        from wdsdist.curation import columns

        return tuple(columns.names(self))

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return one value for each sample, in the order of the samples.

        Args:
            name: ``"key"``, ``"shard"``, ``"bytes"``, ``"<ext>.bytes"``, or a column that was added.

        Returns:
            [samples]: numbers as int64 or float64, booleans as bool, strings as objects. A missing value is NaN, or
            ``None`` for strings; integers and booleans are then float64.

        Raises:
            ArgumentError: there is no such column; the message names the most similar one.
            IndexFormatError: its file is damaged, or belongs to other samples.
        """
        from wdsdist._util.arrow import to_numpy
        from wdsdist.curation import columns

        return to_numpy(columns.column(self, name))

    def add_columns(
        self,
        *,
        fields: Sequence[str] = (),
        probe: Sequence[str] = (),
        join: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        on: str | Mapping[str, str] = "key",
        only: Collection[str] | None = None,
        replace: bool = False,
        output: str | os.PathLike[str] | None = None,
        workers: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        progress: Callable[[ShardsProgress], None] | None = None,
    ) -> Manifest:
        """Add columns, one value per sample, in files next to ``index.json``; the shards stay unchanged.

        After the data set has grown, a call without arguments reads the members of new shards; join tables again.

        Args:
            fields: values of small members: ``"cls"``, ``"txt"``, ``"txt.length"`` in characters, ``"json.size.width"``
                at a path in a JSON member.
            probe: values from headers: ``"jpg.width"``, ``"npy.shape"``, ``"npy.tokens"``, ``"mp4.seconds"``, ...
            join: tables (Parquet, Arrow, CSV, TSV, JSON Lines), a pattern, or a list of them, as paths or URLs. They
                fill in missing values of a column.
            on: the column that matches rows with samples; ``{"json.uid": "uid"}`` if its name in the table differs.
            only: the columns of the tables to add.
            replace: let the values of the tables take the place of others; by default, other values are an error.
            output: a local folder for the columns, if the folder of the data is read-only.
            workers: processes that read shards; by default one per core, or 16 threads for a remote store.
            storage_options: for the stores of ``join``, as `wdsdist.open` takes them.
            progress: called with a ``ShardsProgress`` before the first shard and after each.

        Returns:
            This manifest, with the new columns.

        Raises `ArgumentError` for an unknown form of name, or a table whose rows match no sample.

        >>> import tempfile, wdsdist
        >>> samples = ({"json": {"words": n}, "txt": "word " * n} for n in range(4))
        >>> data = wdsdist.pack(samples, Path(tempfile.mkdtemp()) / "shards", shuffle_seed=None)
        >>> data.add_columns(fields=["json.words", "txt.length"]).column("txt.length").tolist()
        [0, 5, 10, 15]
        """
        from wdsdist.curation import add

        add.add_columns(
            self, fields=fields, probe=probe, join=join, on=on, only=only, replace=replace, output=output,
            workers=workers, storage_options=storage_options, progress=progress,
        )  # fmt: skip
        return self

    def select(
        self,
        where: str | None = None,
        *,
        keys: Values | None = None,
        exclude: Values | None = None,
        on: str = "key",
        sample: int | float | None = None,
        seed: int = 0,
        allow_empty: bool = False,
    ) -> Manifest:
        """Choose samples, and return a view, which works wherever a data set does; the shards stay unchanged.

        Args:
            where: an SQL expression over columns, in double quotes, such as ``'"json.width" >= 256'``. A sample is
                chosen if it is true; a missing value makes it neither true nor false.
            keys: only samples whose value in the column ``on`` is in this list: an iterable, or a file (lines of text,
                JSON, JSON Lines, CSV, Parquet, ``.npy``, or a quarantine file).
            exclude: no samples whose value is in this list. If no sample matches a list, that is an error.
            on: the column to compare with ``keys`` and ``exclude``.
            sample: a random choice of these samples: a share below 1.0, or a number. It depends only on the seed and
                the keys, so a share of a data set that grows keeps its samples.
            seed: the seed of ``sample``.
            allow_empty: return a view without samples rather than raise an error.

        Raises:
            ArgumentError: an unknown column, an invalid expression, or no sample is chosen.

        >>> import tempfile, wdsdist
        >>> data = wdsdist.pack(({"txt": "word " * n} for n in range(1, 7)), Path(tempfile.mkdtemp()) / "shards")
        >>> long = data.select('"txt.bytes" > 15')
        >>> long.num_samples, long.column("txt.bytes").tolist()
        (3, [20, 25, 30])
        """
        from wdsdist.curation import choose

        return choose.select(
            self, where, keys=keys, exclude=exclude, on=on, sample=sample, seed=seed, allow_empty=allow_empty
        )

    def split(
        self, *, by: str = "key", seed: int = 0, allow_empty: bool = False, **shares: float
    ) -> tuple[Manifest, ...]:
        """Split the samples into views by a hash of their keys, so that a sample stays on its side as data grows.

        Args:
            by: a column whose equal values stay together, such as the samples of one speaker or document.
            seed: the seed of the hash.
            allow_empty: return parts without samples rather than raise an error.
            shares: the share of each view by its name, as in ``train=0.98, val=0.02``; together at most 1.

        Returns:
            The views, in the order given.

        Raises:
            ArgumentError: impossible shares, or an unknown column.

        >>> import tempfile, wdsdist
        >>> data = wdsdist.pack(({"cls": n % 2} for n in range(50)), Path(tempfile.mkdtemp()) / "shards")
        >>> train, val = data.split(train=0.8, val=0.2)
        >>> train.num_samples + val.num_samples
        50
        """
        from wdsdist.curation import choose

        return choose.split(self, shares, by=by, seed=seed, allow_empty=allow_empty)

    def repeat(self, times: npt.ArrayLike, *, seed: int = 0, allow_empty: bool = False) -> Manifest:
        """Repeat each sample as often as a column, an array or a number says; 0 leaves it out.

        Args:
            times: the name of a column of counts, an array with one count per sample, or a number for all. A fraction
                is the share of samples that come once more: with 2.5, half of them come twice and half three times.
            seed: the seed of the hash that chooses these samples.
            allow_empty: return a view without samples rather than raise an error.

        Raises:
            ArgumentError: an unknown column, an array of another length, or counts that are negative or missing.

        >>> import tempfile, wdsdist
        >>> data = wdsdist.pack(({"cls": number} for number in range(3)), Path(tempfile.mkdtemp()) / "shards")
        >>> data.repeat([0, 1, 2]).column("key").tolist()
        ['000000001', '000000002', '000000002']
        """
        from wdsdist.curation import choose

        return choose.repeat(self, times, seed=seed, allow_empty=allow_empty)

    def explode(self, by: str | float, *, per: float = 1, allow_empty: bool = False) -> Manifest:
        """Make each part of a record a sample, such as the clips of a video or the chunks of a document.

        A sample of the view has the record's members, the number of its part (``"__part__"``, from 0) and the number of
        parts of its record (``"__parts__"``). `wdsdist.transforms.parted` passes them to a transform.

        Args:
            by: a column of counts, a column of lengths that ``per`` divides, or one number for all records. A record
                with 0 parts is left out.
            per: the most that a part has of the column: with ``"mp4.seconds"`` and ``per=5``, a video of 120 seconds
                has 24 parts, and a video of 121 seconds has 25.
            allow_empty: return a view without samples rather than raise an error.

        Raises:
            ArgumentError: an unknown column, a record without a value, or samples that are already parts.

        >>> import tempfile, wdsdist
        >>> samples = ({"txt": "word " * n} for n in (1, 5, 2))
        >>> data = wdsdist.pack(samples, Path(tempfile.mkdtemp()) / "shards", shuffle_seed=None)
        >>> chunks = data.explode("txt.bytes", per=10)
        >>> chunks.num_samples, chunks.column("__part__").tolist(), chunks.column("__parts__").tolist()
        (5, [0, 0, 1, 2, 0], [1, 3, 3, 3, 1])
        """
        from wdsdist.curation import choose

        return choose.explode(self, by, per=per, allow_empty=allow_empty)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Save a view as a file, which `wdsdist.open` takes; the shards stay where they are.

        Raises:
            ArgumentError: the data set has no ``index.json``, or is not a view.
        """
        from wdsdist.shards import view_file

        return view_file.save(self, check_path("path", path))


def join(parts: Sequence[Manifest], labels: Sequence[str]) -> Manifest:
    """Concatenate manifests into one, whose shards have the labels of their data sets.

    Raises `ArgumentError` if there are no manifests, or if two have the same label.

    >>> from wdsdist.shards.manifest import Shard
    >>> first, second = (Manifest.of(f"/data/{name}", [Shard("0.tar", 3, -1, "")]) for name in ("a", "b"))
    >>> joined = join([first, second], ["a", "b"])
    >>> joined.num_samples, joined.location(1), joined.label(1)
    (6, '/data/b/0.tar', 'b')
    """
    if not parts:
        raise ArgumentError("there are no data sets to join: name at least one")
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise ArgumentError(
            f"two data sets have the name {twice[0]!r}: give each one of its own, as in {{'a': {twice[0]!r}, 'b': ...}}"
        )
    sources = [
        replace(source, label=label) for part, label in zip(parts, labels, strict=True) for source in part.sources
    ]
    firsts = np.cumsum([0, *(len(part.sources) for part in parts)])
    arrays: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in ARRAYS}
    numbers = [part.source + np.int32(first) for part, first in zip(parts, firsts, strict=False)]
    return Manifest(**arrays, sources=tuple(sources), source=np.concatenate(numbers))
