"""`StreamingDataset`: the samples of WebDataset shards, dealt to ranks and workers in an exact, seeded order."""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import IterableDataset, Sampler, get_worker_info

from wdsdist._util.validation import check_bytes, check_flag, check_integer, check_path, counted
from wdsdist.cache import TIMEOUT, ShardCache
from wdsdist.distributed import Identity
from wdsdist.distributed.identity import Replica
from wdsdist.errors import ArgumentError
from wdsdist.loader import growth
from wdsdist.loader.bad_sample_log import BadSampleLog
from wdsdist.loader.checkpoint import Position, State, check_state
from wdsdist.loader.framework_guards import is_counted_by_fabric, refuse_random_split, refuse_wrappers
from wdsdist.loader.ipc.workers import preloading
from wdsdist.loader.order_config import OrderConfig
from wdsdist.loader.plain_dataloader import PlainProgress, SampleStream
from wdsdist.loader.worker_iterator import WorkerIterator
from wdsdist.loader.worker_state import ChosenEpoch, EpochStart
from wdsdist.samples.bad_samples import BadSamplePolicy, OnError, check_budget
from wdsdist.samples.collate import Sample
from wdsdist.samples.fields import Fields, with_raw_images
from wdsdist.samples.sample_reader import SampleReader
from wdsdist.samples.sample_spec import Decode, Decoder, SampleSpec
from wdsdist.samples.shard_reader import ShardReader
from wdsdist.sampling.epoch_plan import EpochPlan
from wdsdist.sampling.order import OrderName, OrderSettings, check_records, default_window, split_line, version_for
from wdsdist.shards.manifest import Manifest
from wdsdist.shards.manifest.choices import Explode
from wdsdist.shards.spellings import Shards
from wdsdist.storage import is_remote

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class StreamingDataset(IterableDataset[Any]):
    """Samples of WebDataset shards for distributed training; hand it to a `StreamingDataLoader`.

    Every rank sees different samples, all ranks the same number, in an order that depends on the seed and the epoch
    and on nothing else. A sample is a dict: ``"__key__"``, ``"__shard__"``, and one entry for each member by its
    extension in lower case.

    Args:
        shards: what `wdsdist.open` takes: a folder or URL with an ``index.json``, a brace pattern, a list of tars,
            or a `Manifest`.
        explode: make the parts of each record samples of their own, as `Manifest.explode` does: a column of counts, a
            number, or its arguments, as in ``{"by": "mp4.seconds", "per": 5, "near": True}``. Such a data set does not
            follow what is appended.
        fields: extensions to read, such as ``("jpg;png", "cls")``: of ``"jpg;png"`` whichever a sample has, under the
            name ``"jpg"``. ``"image"`` is an image of any type. ``"txt?"`` may be missing or empty: its column is a
            list, with ``None`` in such places. By default all members.
        decode: ``None`` gives bytes; ``True`` decodes by the safe default table (txt, cls, json, npy, ...); an image
            specification such as ``"rgb8"``, ``"torchrgb"`` or ``"pil"`` decodes images as well, ``"audio"`` audio
            as (samples, rate), where samples are float32 [channels, samples] (extra ``media``); a mapping from
            extensions to functions of bytes decodes just those, by the extension of a member or else by the name of
            its field; ``"image"`` in it means every type of image, and a final ``?``, as in ``"json?"``, lets all
            samples lack it.
        transform: function from sample to sample, called in the workers after decoding. It may raise
            `wdsdist.BadSample` where a sample is not to be used.
        on_error: what becomes of a bad sample: one that lacks a field, or has an empty one, that does not decode, or
            whose transform raises. ``"raise"`` raises an error that names it. ``"replace"`` puts another sample of its
            shard in its place, chosen by a hash of seed, epoch and sample: batches stay full, and all ranks and reruns
            get the same ones. Errors of storage, of the machine, and damaged shards are raised in any case, and so is
            a bad sample by ``dataset[i]``.
        error_budget: the share of bad samples, such as 0.01, above which an epoch ends on a rank with an error, or in
            a process that iterates by itself; the share of at least 1,000 samples, or of all where there are fewer.
        quarantine: path of a file that lists each bad sample once, with its reason, as lines of JSON. All ranks and
            later runs may share it; ``wdsdist pack --exclude`` takes it.
        num_replicas, rank, shuffle, seed, drop_last: as in ``torch.utils.data.DistributedSampler``. World size and
            rank are looked up when they are first needed: from torch.distributed, then from the launcher's
            environment variables. With ``drop_last=False`` the first samples of the epoch are repeated until ranks
            are even; with ``True`` samples are dropped instead.
        mark_padding: tell the samples that are repeated so that ranks are even by ``"__padding__"``, a bool in each
            sample and a bool column of batches: what is not padding is each sample once, over all ranks. A transform
            finds it in the sample; where it returns another dict, that is marked as well. Padding ends the last batch
            of the last ranks, so that frameworks which cut it off what they gather cut off just that.
        mesh: the data-parallel part of a ``DeviceMesh``, such as ``mesh["dp"]``, in place of ``num_replicas`` and
            ``rank``: ranks that differ in other dimensions, as those of a tensor-parallel group, see the same samples.
        samples_per_epoch: length of an epoch, over all ranks, where that is not all samples once. Such virtual epochs
            follow one another through the data set: each sample comes once before any comes again.
        order: ``"shard"`` shuffles shards, then samples within windows, so that each rank reads shards of its own
            almost in sequence; ``"sampler"`` is the sequence of ``DistributedSampler``, bit for bit.
        shuffle_window: samples that are shuffled together when ``order="shard"``; by default 16 shards' worth, at
            least 4,096, but no more than fit ``cache_limit`` with all ranks of a node. Kept in a loader's state.
        num_canonical_replicas: lanes that the order is made of when ``order="shard"``; by default the world size of
            the first run. Runs with the same number see the same global batches, whatever their world size.
        batch_size: give it only where a foreign ``DataLoader`` makes batches of this size, so that workers are dealt
            whole batches. A `StreamingDataLoader` brings its own, and warns of another one here.
        cache_dir: where the ranks and jobs of a node keep remote shards, and compressed ones once they are
            decompressed; by default in the user's cache folder.
        cache_limit: bytes that this folder may take at any time, as a number or a text such as ``"200GB"``: shards
            whose next use is furthest make room for others. By default nothing is ever removed.
        download_timeout: seconds in which a remote shard has to be had, all attempts and waiting included; by default
            300. The ``index.json`` too, for which the default is 30 from the first failure on.
        storage_options: passed to fsspec for the stores that ``shards`` names, as `wdsdist.open` takes them.
        allow_elsewhere: as of `wdsdist.open`, let the ``index.json`` name shards outside its own folder.
        follow: whether epochs see what was appended to the data set since: an epoch that has begun keeps the samples
            that it began with, the next one has all. By default where ``shards`` is a folder or URL, and the ranks can
            agree on it: one rank does, and so do those of a process group of torch. ``True`` follows without one too:
            then nothing may be appended while some ranks have begun an epoch and others have not. A `Manifest` never
            grows.
        stage: copy local shards too into ``cache_dir``, and read them there, as remote ones: for a slow mount, such as
            NFS, Lustre or FUSE. ``wdsdist bench`` says when that pays.

    Raises:
        NotFoundError: ``shards`` is a folder without ``index.json``.
        ArgumentError: an argument has a value that cannot work, such as ``rank >= num_replicas``.

    >>> import tempfile, wdsdist
    >>> from pathlib import Path
    >>> root = Path(tempfile.mkdtemp())
    >>> (root / "files").mkdir()
    >>> for i in range(6):
    ...     _ = (root / "files" / f"{i}.txt").write_text(f"text {i}")
    >>> manifest = wdsdist.pack(root / "files", root / "shards")
    >>> dataset = wdsdist.StreamingDataset(manifest, decode=True, num_replicas=2, rank=0)
    >>> len(list(dataset)), dataset.num_samples
    (3, 6)
    """

    _resumed: int | None = None
    """The epoch of a state that was loaded, which keeps the samples that it had."""

    def __init__(
        self,
        shards: Shards,
        *,
        explode: Explode = None,
        fields: Sequence[str] | None = None,
        decode: Decode = None,
        transform: Callable[[Sample], Any] | None = None,
        on_error: OnError = "raise",
        error_budget: float | None = None,
        quarantine: str | os.PathLike[str] | None = None,
        num_replicas: int | None = None,
        rank: int | None = None,
        mesh: DeviceMesh | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        mark_padding: bool = False,
        samples_per_epoch: int | None = None,
        order: OrderName = "shard",
        shuffle_window: int | None = None,
        num_canonical_replicas: int | None = None,
        batch_size: int | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_limit: int | str | None = None,
        download_timeout: float | None = None,
        storage_options: Mapping[str, Any] | None = None,
        allow_elsewhere: bool = False,
        follow: bool | None = None,
        stage: bool = False,
    ) -> None:
        super().__init__()
        with preloading(wanted=isinstance(shards, str) and is_remote(shards)):
            self.manifest, self._growth = growth.opened(
                shards, follow, is_virtual=samples_per_epoch is not None, explode=explode, stage=stage,
                storage_options=storage_options, download_timeout=download_timeout, allow_elsewhere=allow_elsewhere,
            )  # fmt: skip
        self.drop_last, self.mark_padding = _padding(drop_last, mark_padding)
        self.batch_size = None if batch_size is None else check_integer("batch_size", batch_size, 1, 2**53)
        limit = None if cache_limit is None else check_bytes("cache_limit", cache_limit)
        self.order_config = OrderConfig(
            manifest=self.manifest,
            given=_given(order, shuffle, seed, shuffle_window, num_canonical_replicas, self.manifest),
            lanes=num_canonical_replicas,
            window=shuffle_window,
            cache_limit=limit,
            samples_per_epoch=_length(samples_per_epoch, self.manifest),
            fields=None if fields is None else tuple(fields),
        )
        folder = None if cache_dir is None else check_path("cache_dir", cache_dir)
        self.cache = ShardCache(folder, limit=limit, timeout=download_timeout or TIMEOUT)
        decoder = Decoder(decode)
        spec = _spec(self.manifest, fields, decoder, transform, BadSamplePolicy.of(on_error, quarantine))
        self.sample_reader = SampleReader(ShardReader(self.manifest, self.cache), {0: spec}, seed)
        self.error_budget = check_budget(error_budget, on_error)
        self.bad_samples = BadSampleLog(self.error_budget)
        self.chosen_epoch = ChosenEpoch()
        self._replica = Replica.of(rank, num_replicas, mesh)
        self._progress = PlainProgress(self.chosen_epoch)

    @property
    def num_samples(self) -> int:
        """Samples in an epoch, over all ranks."""
        return self.order_config.num_samples

    @property
    def fingerprint(self) -> str:
        """A digest of the data set's shards, wherever they lie: a state must come from the same one."""
        return self.order_config.fingerprint

    def __len__(self) -> int:
        """Return the samples that this rank gets in an epoch, which frameworks ask a data set for."""
        count = self._plan(self.identity()).samples_per_rank
        if count != self.manifest.num_samples:
            refuse_random_split(count, self.manifest.num_samples)
        return count

    def __repr__(self) -> str:
        order, replica = self.order_config.given, self._replica
        of = "" if replica.rank is None else f", rank={replica.rank}, num_replicas={replica.num_replicas}"
        return (
            f"{type(self).__name__}({self.manifest!r}, order={order.name!r}, shuffle={order.shuffle}, "
            f"seed={order.seed}{of}, epoch={self.chosen_epoch.epoch}, samples_per_epoch={self.num_samples:,})"
        )

    def __bool__(self) -> bool:
        return True  # a data set without samples is no missing one, and a test for that needs no rank

    def identity(self) -> Identity:
        """Return the rank and world size that this data set is split for, as they are known now."""
        return self._replica.identity()

    def _num_replicas(self) -> int:
        return self.identity().world_size

    @property
    def follows(self) -> bool:
        """Whether epochs see what was appended to the data set since."""
        return self._growth is not None

    def at_epoch(self, epoch: int) -> OrderConfig:
        """Return the order of an epoch that is about to start; the data set has the samples of that epoch from now on.

        Raises `StateError` where this rank cannot find the shards that another one has for that epoch.
        """
        if self._resumed != epoch:
            self._resumed = None
        in_worker = get_worker_info() is not None  # all workers of a pass must have the same samples
        if self._resumed is None and not in_worker:
            manifest = self.manifest
            if self._growth is not None:
                manifest = self._growth.at_epoch(epoch, is_alone=self.identity().world_size == 1)
            if manifest is not self.order_config.manifest:
                self.manifest = manifest
                self.order_config = dataclasses.replace(self.order_config, manifest=manifest)
                self.sample_reader = self.sample_reader.with_manifest(manifest)
        return self.order_config

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration plays, also in workers that live on.

        Without it, a `StreamingDataLoader` goes on to the next epoch with each iteration, and begins with its first
        batch. A foreign loader plays the same epoch again, as with ``DistributedSampler``; call this before ``iter()``,
        which starts its workers.

        Raises ``ArgumentError`` for a negative epoch, and ``StateError`` under a framework that would split
        the samples among the ranks a second time.
        """
        refuse_wrappers(self._num_replicas, nearest=2)
        self.chosen_epoch.choose(epoch)
        self.at_epoch(epoch)

    def __getitem__(self, index: int) -> Any:
        """Return sample ``index`` of the data set, in the order of its shards, decoded and transformed.

        Seeded transforms do as in the epoch that was last asked for with `set_epoch`. A bad sample is an error.

        Raises `IndexError`, an ``IndexError``, outside the data set.
        """
        if not isinstance(index, (int, np.integer)):
            raise ArgumentError(f"a data set is indexed by sample numbers, not by {index!r}")
        total = self.manifest.num_samples
        number = int(index) + (total if index < 0 else 0)
        if not 0 <= number < total:
            raise IndexError(f"sample {index:,} is outside the data set, which has {counted(total, 'sample')}")
        shards, samples = split_line(self.manifest.ends, np.array([number]))
        mark = False if self.mark_padding else None
        place = int(shards[0]), int(samples[0]), self.chosen_epoch.epoch, mark
        return self.sample_reader.sample(*place, strict=True)

    def __iter__(self) -> SampleStream:
        """Return the samples of this rank, one by one; in a worker of a foreign loader, those of this worker."""
        refuse_wrappers(self._num_replicas)
        here = self.identity()
        settings = self.order_config.settings(here)
        self.order_config.check_room(settings, here)
        return self._progress.start(
            functools.partial(self._part, here, settings),
            num_replicas=self._num_replicas,
            is_dealt=self.batch_size is not None,
            is_shuffled=settings.shuffle,
        )

    def _part(
        self, here: Identity, settings: OrderSettings, epoch: int, worker: int, num_workers: int
    ) -> WorkerIterator:
        """Return the iterator of one worker over its samples of an epoch."""
        start = EpochStart(epoch=epoch, rank=here.rank, settings=settings, plan=self._plan(here), node=here.node_ranks)
        return WorkerIterator(
            self.order_config, self.sample_reader, start, worker=worker, num_workers=num_workers,
            bad_samples=self.bad_samples,
        )  # fmt: skip

    def _plan(self, here: Identity) -> EpochPlan:
        """Return the plan of an epoch that no `StreamingDataLoader` makes batches of."""
        return EpochPlan(
            num_samples=self.num_samples,
            num_replicas=here.world_size,
            batch_size=self.batch_size or 1,
            drop_last=self.drop_last,
            drop_last_batch=False,
            mark_padding=self.mark_padding,
        )

    def state_dict(self) -> State:
        """Return how much this process has taken of its part of an epoch, for a foreign loader that asks its workers.

        ``torchdata.stateful_dataloader.StatefulDataLoader`` does, and keeps one such state for each worker. It is the
        same on every rank. A `StreamingDataLoader` has a state of its own.
        """
        return self._progress.state(self._about(self.order_config))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration of this process go on where a state was taken; at the end, there is nothing left.

        Raises `StateError` for the state of another data set, order, world size, batch size or number of
        workers, and lists the differences. A `StreamingDataLoader` goes on with other numbers.
        """
        check_state(state, "taken")
        config = self.order_config.as_in(state)
        self._progress.load(state, self._about(config) | config.expected(state, config.settings(self.identity())))
        self.order_config = config
        self._resumed = state["epoch"] if state["taken"] else None

    def _about(self, config: OrderConfig) -> State:
        """Return the fields that identify the data set and order of a state."""
        here = self.identity()
        return {
            **config.state(Position(0, 0), config.settings(here)),
            "num_replicas": here.world_size,
            "drop_last": self.drop_last,
            "batch_size": self.batch_size or 1,
        }

    def raw(self) -> StreamingDataset:
        """Return a data set of the same members, neither decoded nor transformed."""
        other, specs = copy.copy(self), self.sample_reader.specs
        other.sample_reader = self.sample_reader.with_specs(
            {first: SampleSpec(spec.fields, Decoder(None), policy=spec.policy) for first, spec in specs.items()}
        )
        return other

    def __getstate__(self) -> dict[str, Any]:
        refuse_wrappers(self._num_replicas)  # a spawned worker does not see who made it start
        return self.__dict__


class EpochSampler(Sampler[None]):
    """Stands where frameworks look for a ``DistributedSampler``: its ``set_epoch`` is the data set's."""

    def __init__(self, dataset: StreamingDataset) -> None:
        self._dataset = dataset

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration plays, unless Lightning Fabric asks: the loader counts better."""
        if not is_counted_by_fabric():
            self._dataset.chosen_epoch.choose(epoch)

    def __iter__(self) -> Iterator[None]:
        # torch asks for one index a batch; the data set needs none.
        return itertools.repeat(None)


def _padding(drop_last: bool, mark_padding: bool) -> tuple[bool, bool]:
    """Return both options, checked."""
    drops, marks = check_flag("drop_last", drop_last), check_flag("mark_padding", mark_padding)
    if marks and drops:
        raise ArgumentError(
            "mark_padding is True and drop_last too: samples that are dropped cannot be counted, and nothing is "
            "repeated; pass drop_last=False"
        )
    return drops, marks


def _spec(manifest: Manifest, fields: Sequence[str] | None, decoder: Decoder, *of: Any) -> SampleSpec:
    """Return the sample specification; raise `ArgumentError` for ``decode=`` of what no ``index.json`` lists."""
    chosen = Fields(with_raw_images(fields) if fields and manifest.has_raw_images else fields)
    noted = [one.extra.get("fields") for one in manifest.data_sets]
    if all(noted):
        decoder.check_extensions({str(name).lower() for one in noted for name in one or ()}, chosen.names)
    return SampleSpec(chosen, decoder, *of)


def _length(samples_per_epoch: int | None, manifest: Manifest) -> int | None:
    """Return the length of virtual epochs, checked."""
    if samples_per_epoch is None:
        return None
    if not manifest.num_samples:
        raise ArgumentError(f"samples_per_epoch is {samples_per_epoch!r}, but {manifest!r} has no samples to fill it")
    return check_integer("samples_per_epoch", samples_per_epoch, 1, 2**53)


def _given(
    order: OrderName, shuffle: object, seed: int, window: int | None, lanes: int | None, manifest: Manifest
) -> OrderSettings:
    """Return the settings of the order as they were given, and what stands in for those that were not."""
    settings = OrderSettings(
        name=order,
        shuffle=check_flag("shuffle", shuffle),
        seed=seed,
        window=default_window(manifest.counts) if window is None else window,
        num_canonical_replicas=1 if lanes is None else lanes,
        version=version_for(has_ranges=manifest.has_ranges),
    )
    check_records(settings, manifest.records)
    return settings
