"""The columns of a data set's samples, and the views that are chosen by them: methods of `Manifest`."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy.typing as npt

if TYPE_CHECKING:
    from wdsdist.shards.columns.column import Column
    from wdsdist.shards.manifest.manifest import Manifest
    from wdsdist.shards.progress import ShardsProgress


class Choices:
    """What can be asked of the samples of a data set without reading them, and which of them are taken."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns that there are: the free ones, then those that were added."""
        from wdsdist.shards.columns import read

        return tuple(read.names(cast("Manifest", self)))

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return one value for each sample, in the order of the samples.

        Args:
            name: ``"key"``, ``"shard"``, ``"bytes"``, ``"<ext>.bytes"``, or a column that was added.

        Returns:
            [samples]: numbers as int64 or float64, truth values as bool, texts as objects. Where samples have no value,
            numbers and truth values are float64 with NaN there, and texts have ``None``.

        Raises:
            ArgumentError: there is no such column; the message names the nearest.
            IndexFormatError: its file is damaged, or belongs to other samples.
        """
        return self._column(name).array()

    def _column(self, name: str) -> Column:
        from wdsdist.shards.columns import read

        return read.column(cast("Manifest", self), name)

    def select(
        self,
        where: str | None = None,
        *,
        keys: Iterable[Any] | str | os.PathLike[str] | None = None,
        exclude: Iterable[Any] | str | os.PathLike[str] | None = None,
        on: str = "key",
        sample: int | float | None = None,
        seed: int = 0,
    ) -> Manifest:
        """Choose samples; the shards stay as they are, and the view is used wherever a data set is.

        Args:
            where: an SQL expression over columns, in double quotes, such as ``'"json.width" >= 256'``. A sample is
                chosen where it is true; a missing value makes it neither true nor false. It needs the extra
                ``columns``.
            keys: only samples whose value in the column ``on`` is among these: an iterable, or a file. A file is a
                text (one a line), a quarantine file or other JSON Lines, a CSV or Parquet file with that column, or a
                ``.npy`` of texts, numbers, or pairs of uint64 that stand for 32 hexadecimal digits.
            exclude: no samples whose value is among these.
            on: the column that ``keys`` and ``exclude`` are compared with.
            sample: of those, a random choice: a share below 1.0, or a number. It depends on the seed and the samples'
                keys alone, so that a share of a data set that grows keeps what it had.
            seed: of that choice.

        Raises:
            ArgumentError: an unknown column, an expression that is none, or a file of an unknown kind.

        >>> import tempfile, wdsdist
        >>> from pathlib import Path
        >>> data = wdsdist.pack(({"txt": "word " * n} for n in range(1, 7)), Path(tempfile.mkdtemp()) / "shards")
        >>> long = data.select('"txt.bytes" > 15')
        >>> long.num_samples, long.column("txt.bytes").tolist()
        (3, [20, 25, 30])
        """
        from wdsdist.shards.views import choose

        return choose.select(cast("Manifest", self), where, keys, exclude, on, sample, seed)

    def split(self, *, by: str = "key", seed: int = 0, **shares: float) -> tuple[Manifest, ...]:
        """Split the samples into views, by a hash of each sample's key, so that a sample keeps its side as data grows.

        Args:
            by: another column keeps samples with the same value together, such as those of a speaker or a document.
            seed: of the hash.
            shares: the share of each view by its name, as in ``train=0.98, val=0.02``; together at most 1.

        Returns:
            The views, in the order given.

        Raises:
            ArgumentError: shares that are none, or an unknown column.

        >>> import tempfile, wdsdist
        >>> from pathlib import Path
        >>> data = wdsdist.pack(({"cls": n % 2} for n in range(50)), Path(tempfile.mkdtemp()) / "shards")
        >>> train, val = data.split(train=0.8, val=0.2)
        >>> train.num_samples + val.num_samples
        50
        """
        from wdsdist.shards.views import choose

        return choose.split(cast("Manifest", self), shares, by, seed)

    def repeat(self, times: str | int | float, *, seed: int = 0) -> Manifest:
        """Repeat samples: each as often as a column says, or all alike; 0 leaves a sample out.

        Args:
            times: the name of a column of counts, or a number. A fraction is the share of samples that come once more:
                with 2.5, half of them come twice and half three times.
            seed: of the hash of keys that chooses these.

        Raises:
            ArgumentError: an unknown column, or counts that are negative or missing.
        """
        from wdsdist.shards.views import choose

        return choose.repeat(cast("Manifest", self), times, seed)

    def explode(self, by: str | float, *, per: float = 1, near: bool = False) -> Manifest:
        """Make the parts of each record samples of their own: the clips of a video, the chunks of a document.

        A sample of the view has the record's members, and beside ``"__key__"`` the number of its part,
        ``"__part__"``, from 0 on, and how many parts the record has, ``"__parts__"``. A transform takes its part out:
        by these, or as `wdsdist.transforms.parted` passes them. All promises hold for parts as for samples.

        Args:
            by: a column of counts, or of lengths that ``per`` divides; or a number, for all records alike. A record
                of 0 is left out.
            per: how much of the column a part has at most: by ``"mp4.seconds"`` and ``per=5``, a video of 120
                seconds has 24 parts, and one of 121 has 25.
            near: keep the parts of a record together in the order, so that it is read and decoded once for those of
                a batch. By default they are shuffled as any samples, so that a batch has parts of many records.

        Raises:
            ArgumentError: an unknown column, one without a value for each record, or samples that are parts already.

        >>> import tempfile, wdsdist
        >>> from pathlib import Path
        >>> samples = ({"txt": "word " * n} for n in (1, 5, 2))
        >>> data = wdsdist.pack(samples, Path(tempfile.mkdtemp()) / "shards", shuffle_seed=None)
        >>> chunks = data.explode("txt.bytes", per=10)
        >>> chunks.num_samples, chunks.column("__part__").tolist(), chunks.column("__parts__").tolist()
        (5, [0, 0, 1, 2, 0], [1, 3, 3, 3, 1])
        """
        from wdsdist.shards.views import choose

        return choose.explode(cast("Manifest", self), by, per, near=near)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Save a view as a file, which `wdsdist.open` takes; the shards stay where they are.

        Raises:
            ArgumentError: the data set has no ``index.json`` that the file could name, or is no view.
        """
        from wdsdist.shards.views import view_file

        return view_file.save(cast("Manifest", self), Path(path))

    def add_columns(
        self,
        *,
        fields: Sequence[str] = (),
        probe: Sequence[str] = (),
        join: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        on: str | Mapping[str, str] = "key",
        only: Collection[str] | None = None,
        output: str | os.PathLike[str] | None = None,
        workers: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        progress: Callable[[ShardsProgress], None] | None = None,
    ) -> Manifest:
        """Add columns: values for each sample, kept in files beside ``index.json``; the shards stay as they are.

        Columns that are there are kept: only shards that they do not cover are read, also after a call that was killed.
        Of remote shards only ranges are fetched where that is less than half of the shard. What cannot be read or has
        no match is missing, counted, and logged.

        Args:
            fields: values of small members: ``"cls"``, ``"txt"``, ``"txt.length"`` in characters, ``"json.size.width"``
                at a path in a JSON member, of which objects and lists become JSON text.
            probe: what headers say: ``"jpg.width"`` and ``"jpg.height"`` of JPEG, PNG and WebP as they are shown,
                ``"npy.shape"``, ``"npy.dtype"``, ``"npy.tokens"``, the number of elements, and of a raw array
                ``"input_ids.tokens:uint16"``; ``"mp4.seconds"`` and ``"mp4.frames"`` of audio and video (extra
                ``media``; WAV without). ``"jpg;png.width"`` takes the first of these members that a sample has.
            join: a Parquet, CSV, TSV, JSON Lines or structured ``.npy`` file, a pattern such as ``meta/*.parquet``, or
                a list of them, here or at a URL. All its columns are added, under their names (extra ``columns``).
            on: the column by which rows are matched with samples, in any order; values are compared as texts.
                ``{"json.uid": "uid"}`` where it has another name in the table. It is added where it is no column yet.
            only: the columns of the tables that are wanted.
            output: a local folder for the columns, where that of the data cannot be written. This user's later calls
                find them there.
            workers: processes that read shards; by default one for each core, or 16 threads for a remote store.
            storage_options: for the stores of ``join``, as `wdsdist.open` takes them.
            progress: called with a ``ShardsProgress`` before the first shard and after each.

        Returns:
            This manifest, which has the columns now.

        Raises:
            ArgumentError: a name that is none, a table without the column ``on``, or none of whose rows matches.
            DestinationError: the columns cannot be written, or another process is adding some.
            ExtraMissingError: a package is needed that an extra installs.
            SourceNotFoundError: a table does not exist.
            SourceError: a table is not of the form that its name says.
            ShardNotFoundError: a shard does not exist.
            ShardDamagedError: a shard is not what its index says.
            StorageError: a store cannot be read.

        >>> import tempfile, wdsdist
        >>> from pathlib import Path
        >>> samples = ({"json": {"words": n}, "txt": "word " * n} for n in range(4))
        >>> data = wdsdist.pack(samples, Path(tempfile.mkdtemp()) / "shards", shuffle_seed=None)
        >>> data.add_columns(fields=["json.words", "txt.length"]).column("txt.length").tolist()
        [0, 5, 10, 15]
        """
        from wdsdist.shards.columns import add

        added = add.add_columns(
            cast("Manifest", self), fields=fields, probe=probe, join_with=join, on=on, only=only, output=output,
            workers=workers, storage_options=storage_options, progress=progress,
        )  # fmt: skip
        add.warn(added)
        return cast("Manifest", self)
