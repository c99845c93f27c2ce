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
    """All shards of a data set, in order. Make one with `wdsdist.open`, `wdsdist.index` or `wdsdist.pack`.

    A *view* is a manifest too, made by `select`, `split` or `repeat`: of the same shards, with other sample counts.
    The methods below import `wdsdist.curation` when they are called.
    """

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns: the free ones, then those that were added."""
        from wdsdist.curation import columns

        return tuple(columns.names(self))

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return one value for each sample, in the order of the samples.

        Args:
            name: ``"key"``, ``"shard"``, ``"bytes"``, ``"<ext>.bytes"``, or a column that was added.

        Returns:
            [samples]: numbers as int64 or float64, truth values as bool, strings as objects. A missing value is NaN,
            or ``None`` among strings; integers and truth values are then float64.

        Raises:
            ArgumentError: there is no such column; the message names the nearest.
            IndexFormatError: its file is damaged, or belongs to other samples.
        """
        from wdsdist.curation import arrays, columns

        return arrays.to_numpy(columns.column(self, name))

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
        """Add columns: values for each sample, kept in files beside ``index.json``; the shards stay as they are.

        A call without columns refreshes those that were added, after the data set has grown.

        Args:
            fields: values of small members: ``"cls"``, ``"txt"``, ``"txt.length"`` in characters, ``"json.size.width"``
                at a path in a JSON member.
            probe: what headers say: ``"jpg.width"``, ``"npy.shape"``, ``"npy.tokens"``, ``"mp4.seconds"``, ...
            join: tables (Parquet, Arrow, CSV, TSV, JSON Lines), a pattern, or a list of them, here or at a URL. They
                fill the values that a column lacks.
            on: the column by which rows are matched with samples; ``{"json.uid": "uid"}`` if it has another name in
                the table.
            only: the columns of the tables that are wanted.
            replace: take the values of the tables for samples that have other values; without it that is an error.
            output: a local folder for the columns, if the folder of the data cannot be written.
            workers: processes that read shards; by default one for each core, or 16 threads for a remote store.
            storage_options: for the stores of ``join``, as `wdsdist.open` takes them.
            progress: called with a ``ShardsProgress`` before the first shard and after each.

        Returns:
            This manifest, which has the columns now.

        Raises `ArgumentError` for an unknown form of name, or a table whose rows match no sample.

        >>> import tempfile, wdsdist
        >>> samples = ({"json": {"words": n}, "txt": "word " * n} for n in range(4))
        >>> data = wdsdist.pack(samples, Path(tempfile.mkdtemp()) / "shards", shuffle_seed=None)
        >>> data.add_columns(fields=["json.words", "txt.length"]).column("txt.length").tolist()
        [0, 5, 10, 15]
        """
        from wdsdist.curation import add

        added = add.add_columns(
            self, fields=fields, probe=probe, join=join, on=on, only=only, replace=replace, output=output,
            workers=workers, storage_options=storage_options, progress=progress,
        )  # fmt: skip
        add.warn(added)
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
        """Choose samples; the shards stay as they are, and the view is used wherever a data set is.

        Args:
            where: an SQL expression over columns, in double quotes, such as ``'"json.width" >= 256'``. A sample is
                chosen where it is true; a missing value makes it neither true nor false.
            keys: only samples whose value in the column ``on`` is among these: an iterable, or a file (a text file of
                lines, JSON, JSON Lines, CSV, Parquet, ``.npy``, or a quarantine file).
            exclude: no samples whose value is among these. A list of which no sample is found is an error.
            on: the column that ``keys`` and ``exclude`` are compared with.
            sample: of these, a random choice: a share below 1.0, or a number. It depends on the seed and the samples'
                keys alone, so that a share of a data set that grows keeps what it had.
            seed: of that choice.
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
        """Split the samples into views, by a hash of each sample's key, so that a sample keeps its side as data grows.

        Args:
            by: another column keeps samples with the same value together, such as all of a speaker or a document.
            seed: of the hash.
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
        """Repeat samples: each as often as a column or an array says, or all alike; 0 leaves a sample out.

        Args:
            times: the name of a column of counts, an array with one for each sample, in their order, or a number. A
                fraction is the share of samples that come once more: with 2.5, half of them come twice and half three
                times.
            seed: of the hash of keys that chooses these.
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
        """Make the parts of each record samples of their own: the clips of a video, the chunks of a document.

        A sample of the view has the record's members, the number of its part (``"__part__"``, from 0 on) and the
        number of parts of its record (``"__parts__"``). `wdsdist.transforms.parted` passes them to a transform.

        Args:
            by: a column of counts, or of lengths that ``per`` divides; or a number, for all records alike. A record
                of 0 is left out.
            per: how much of the column a part has at most: by ``"mp4.seconds"`` and ``per=5``, a video of 120
                seconds has 24 parts, and one of 121 has 25.
            allow_empty: return a view without samples rather than raise an error.

        Raises:
            ArgumentError: an unknown column, one without a value for each record, or samples that are parts already.

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
            ArgumentError: the data set has no ``index.json`` that the file could name, or is not a view.
        """
        from wdsdist.curation import view_file

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
