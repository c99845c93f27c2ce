"""The whole of packing: list the source, plan, write what is missing, and finish with index.json."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from wdsdist import storage
from wdsdist._util.validation import check_bytes, check_flag, check_path
from wdsdist.distributed import run_once
from wdsdist.errors import ArgumentError, SourceError
from wdsdist.packing import append as appending
from wdsdist.packing import destination, sources
from wdsdist.packing.checking import Excluded, joined
from wdsdist.packing.destination import Place
from wdsdist.packing.job import Job, PackOptions, Record
from wdsdist.packing.parallel import PackProgress, Writing, refuse_to_travel, write_planned
from wdsdist.packing.plan import make_plan
from wdsdist.packing.reencoding import Store, check_options
from wdsdist.packing.sources.class_folders import known_classes
from wdsdist.packing.sources.python import LOOKED_AT_BYTES, LOOKS, Made
from wdsdist.packing.sources.source import Encode, LeftOut, OnError, Source, SourceOptions, Stream
from wdsdist.packing.streaming import write_in_order
from wdsdist.packing.writer import WrittenShard
from wdsdist.shards import manifest as manifests
from wdsdist.shards.index import tolerance_of
from wdsdist.shards.manifest import Manifest
from wdsdist.shards.tar import AUTO
from wdsdist.storage import compression

_log = logging.getLogger("wdsdist")


def pack(
    source: str | os.PathLike[str] | Made,
    dest: str | os.PathLike[str],
    *,
    shard_bytes: int | str = "64MiB",
    shard_samples: int | None = None,
    workers: int | None = None,
    executor: Executor | None = None,
    shuffle_seed: int | Literal["auto"] | None = "auto",
    kind: str | None = None,
    key: str = AUTO,
    class_folders: bool | None = None,
    classes_from: str | os.PathLike[str] | None = None,
    split: str | None = None,
    columns: Mapping[str, str] | None = None,
    root: str | os.PathLike[str] | None = None,
    allow_outside: bool = False,
    encode: Encode | str | None = None,
    max_side: int | None = None,
    max_pixels: int | None = None,
    quality: int | None = None,
    store: Store | None = None,
    fields: Sequence[str] | None = None,
    check_decode: bool = False,
    exclude: str | os.PathLike[str] | None = None,
    compress: str | None = None,
    overwrite: bool = False,
    append: bool = False,
    on_error: OnError = "raise",
    keep_first: bool = False,
    salvage: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    source_storage_options: Mapping[str, Any] | None = None,
    allow_elsewhere: bool = False,
    progress: Callable[[PackProgress], None] | None = None,
) -> Manifest:
    """Turn a downloaded data set into WebDataset shards, once.

    The same source and options give the same bytes, whatever the number of workers and wherever they lie. Called
    again, it returns at once. After an interruption, the same call keeps every whole shard and writes the rest. A
    second call for the same folder, at the same time, waits for the first and finds its result.

    Args:
        source: a folder of files, where those that agree up to the first dot of the base name are one sample; a
            ``.zip`` or a ``.tar``, plain or compressed, of such files; WebDataset shards, by their folder, a pattern or
            a list; an IDX set, by its images file, a prefix such as ``mnist/train``, or the folder that holds it
            alone; or a table whose rows are samples: a CSV, TSV or JSON Lines file, Parquet or Arrow files (one, a
            folder of them, or a pattern such as ``data/train-*.parquet``), or a folder that ``save_to_disk`` of
            ``datasets`` wrote; or a URL of any of these. Or what Python
            makes: a data set with ``__len__`` and ``__getitem__``, such as those of torch; a ``Dataset`` of
            ``datasets``, whose columns become members as those of a table do, unless ``encode`` is given; any other
            iterable of samples; a function that returns one of these; or the name of one of these, as
            ``my_module:name``.
        dest: the folder for the shards, which is made where it does not exist; or a URL that fsspec can write, where
            nothing keeps two packers apart.
        shard_bytes: the most bytes of a shard, or a text such as ``"256MiB"``; a sample that needs more gets a shard of
            its own. For a data set made in Python, the mean of some samples is taken for the size of all, so shards
            may come out larger.
        shard_samples: the most samples of a shard; by default, only bytes count.
        workers: processes that write; by default one for each core; an iterable is written by the calling process.
            With an ``executor``: how many shards it writes at once, for one that does not say.
        executor: writes the shards instead, perhaps on other machines: any `concurrent.futures.Executor`, which stays
            open. Its workers must have wdsdist, and must see ``source`` and ``dest`` under the same names. A data
            set that Python makes is pickled and goes with each shard, so what it is made of must be installed there;
            an iterable is refused.
        shuffle_seed: decides the order of the samples; ``None`` keeps that of the source. ``"auto"`` is 0, but ``None``
            for an iterable, which has one order only.
        kind: what ``source`` is taken for, such as ``"folder"`` or ``"csv"``; by default, what it looks like.
        class_folders: whether each sample gets a ``cls`` member, the number of its folder directly under ``source``;
            by default, when ``source`` looks like a folder of class folders with images.
        key: of files and of WebDataset shards, the key rule, where names are cut into keys and extensions:
            ``"first-dot"``, the convention; ``"last-dot"``; or a regular expression of the key, up to a dot. ``"auto"``
            takes the first dot unless the names show that it would put samples together, as of ``v1.5_0001.jpg``; in
            class folders of images, each image is a sample. Under another rule than the first dot, ``.`` and ``%`` in
            keys are written as ``%2E`` and ``%25``: ``urllib.parse.unquote`` gives them back.
        classes_from: a packed data set, or a folder of class folders, whose classes and their numbers these get too,
            such as the training set of a validation set that lacks some.
        split: the folder directly in ``source`` that is packed, such as ``"val"``, and nothing else of it.
        columns: of a table, the member that each column becomes, such as ``{"image": "jpg"}``; columns that are not
            named follow the rules of `wdsdist.packing.sources.columns`.
        root: of a table, the local folder that the paths in it start from; by default the folder of the table. A path
            that leads out of it, by ``..``, from the root of the file system or through a link, is an error.
        allow_outside: of a table, whether its paths may lead anywhere. Only for tables that you trust.
        encode: for what Python makes, a function from an item to a sample: a dict of members by extension, and perhaps
            ``"__key__"``, which is else the item's number. A second parameter without a default, or named ``index``,
            gets that number. It may be given by name, as ``my_module:encode``. By default the items are samples
            themselves.
        max_side: the most pixels that the longer side of an image may have; larger ones are scaled down and encoded
            again (JPEG, PNG, WebP, BMP, TIFF), all others stay byte for byte. Shards are planned with the sizes
            before, so they come out smaller than ``shard_bytes``. See `Reencoding.apply`. Off by default.
        max_pixels: the most pixels of an image that is to be scaled down, stored or checked; by default 89,478,485. A
            sample with a larger one cannot be packed.
        quality: of the images that are encoded again as JPEG or lossy WebP, 1 to 95; by default 90.
        store: ``"raw"`` decodes every image once, and stores its pixels as ``.npy``, uint8 [height, width, 3], which
            readers map and need not decode; ``"jpeg"`` makes a JPEG of every image. The member is then ``npy`` or
            ``jpg``. With ``max_side``, larger ones are scaled down first. See `Reencoding.apply`. Off by default.
        fields: what each sample must have, and not empty, as `wdsdist.StreamingDataset` names it; others can be packed
            too. One that lacks a field cannot be packed.
        check_decode: whether the members of ``fields``, or all, must decode, images to their last pixel; a sample with
            one that does not cannot be packed.
        exclude: a quarantine file, as `wdsdist.StreamingDataset` and `wdsdist.verify` write it; the samples that it
            lists are not packed, and ``manifest.extra["excluded"]`` is their number.
        compress: ``"zst"`` writes shards compressed by zstd, ``"zst:19"`` by its level 19, of 1 to 22; its default is
            3. ``shard_bytes`` are those of the tar before. Whoever reads them decompresses each once per node.
        overwrite: whether to replace another data set that wdsdist packed into ``dest``; nothing else is removed. With
            ``append``, only what an unfinished append of another source has written is replaced.
        append: whether to add the samples to the data set in ``dest``, as further shards and a new generation of its
            ``index.json``, which replaces the one before at the end; all that is there stays. A source that was added
            before adds nothing. Where ``dest`` holds no data set yet, it is packed.
        on_error: ``"raise"`` stops at the first sample that cannot be packed, such as one of a file that cannot be
            read; ``"skip"`` leaves such samples out, each wholly, and lists them with the reasons in
            ``pack-report.jsonl`` beside the shards; ``manifest.extra["left_out"]`` is their number.
        keep_first: of WebDataset shards with ``on_error="skip"``, of a member that one holds twice keep the first copy
            rather than leaving out its sample.
        salvage: of WebDataset shards with ``on_error="skip"``, pack the samples before the damage of tars that are cut
            short or damaged, rather than leaving them out.
        storage_options: passed to fsspec where ``dest`` or ``source`` is a URL; where both are, with different schemes,
            for ``dest`` alone, so that no store is shown another one's credentials.
        source_storage_options: passed to fsspec for ``source``, in place of ``storage_options``.
        allow_elsewhere: of WebDataset shards, as of `wdsdist.open`.
        progress: called with a `PackProgress` before the first shard is written, and after each.

    Returns the manifest, as `wdsdist.open` would.

    Raises:
        NotFoundError: there is no source.
        SourceError: the source is empty, ambiguous or damaged, or changes while it is packed; or all was left out.
        DestinationExistsError: ``dest`` holds another data set, or the same packed with other options; or, to append,
            an unfinished append of another source.
        DestinationError: ``dest`` cannot be written.
        StorageError: the store of a source cannot be read.
        ArgumentError: an option has a value that cannot work; or a source to append was added before and has changed
            since, or has other classes.

    >>> import tempfile, pathlib
    >>> root = pathlib.Path(tempfile.mkdtemp())
    >>> for number in range(4):
    ...     folder = root / "photos" / f"class{number % 2}"
    ...     folder.mkdir(parents=True, exist_ok=True)
    ...     _ = (folder / f"{number:04}.jpg").write_bytes(bytes(1000))
    >>> manifest = pack(root / "photos", root / "shards", shard_samples=3)
    >>> [(shard.name, shard.num_samples) for shard in manifest.shards]
    [('shard-000000.tar', 3), ('shard-000001.tar', 1)]
    >>> manifest.extra["classes"], manifest.extra["fields"]
    (['class0', 'class1'], ['cls', 'jpg'])

    A torch data set, and a generator:

    >>> import torch
    >>> class Squares(torch.utils.data.Dataset):
    ...     def __len__(self):
    ...         return 5
    ...     def __getitem__(self, index):
    ...         return torch.full((2, 2), index), index**2
    >>> pack(Squares(), root / "squares", encode=lambda item: {"npy": item[0], "cls": item[1]}).extra["fields"]
    ['cls', 'npy']
    >>> pack(({"txt": f"line {number}"} for number in range(3)), root / "lines").num_samples
    3
    """
    excluded = None if exclude is None else Excluded.of(check_path("exclude", exclude))
    options = PackOptions(
        shard_bytes=check_bytes("shard_bytes", shard_bytes),
        shard_samples=shard_samples,
        shuffle_seed=0 if shuffle_seed == "auto" else shuffle_seed,
        max_side=max_side,
        quality=check_options(max_side, quality, max_pixels, check_decode, store),
        store=store,
        compress=compression.checked(compress),
        max_pixels=max_pixels,
        fields=None if fields is None else joined(fields),
        check_decode=check_flag("check_decode", check_decode),
        exclude=excluded.digest if excluded else None,
    )
    place = Place.of(dest, storage_options)
    about: dict[str, Any] = {"kind": kind, "key": key, "class_folders": class_folders, "split": split}
    about |= {"columns": columns, "root": root, "allow_outside": allow_outside, "encode": encode}
    about |= {"on_error": on_error, "allow_elsewhere": allow_elsewhere, "classes": known_classes(classes_from)}
    about["tolerance"] = tolerance_of(on_error, keep_first, salvage) if keep_first or salvage else None
    how = Writing(workers, executor, on_error, progress, overwrite=overwrite, append=append)
    found = _find(source, SourceOptions(**about), place, excluded, storage_options, source_storage_options)
    return _run(found, place, _ordered(options, found, shuffle_seed), how)


def _run(found: Source | Stream, place: Place, options: PackOptions, how: Writing) -> Manifest:
    """Write the shards of a source and the index of all, or find that an earlier run did."""
    _refuse(found, place, how.executor)
    job = Job(kind=found.kind, location=found.location, fingerprint=found.digest, options=options)
    # Looked for before the lock is taken: a finished data set may lie where nothing can be written any more.
    if (done := _done(place, job, how)) is not None:
        _warn_if_kept(found, done, place)
        return done
    with destination.locked(place):  # the process that held it before us may have finished the very job
        if (done := _done(place, job, how)) is not None:
            return done
        known = destination.data_set(place) if how.append else None
        shards = _write(found, place, job, how, known)
        manifest = _manifest(found, job, shards, place, known)
        destination.finish(place, manifest if known is None else appending.merged(known, manifest, job, place))
    return manifests.load(place.at(manifests.FILE_NAME), place.options)


def _done(place: Place, job: Job, how: Writing) -> Manifest | None:
    """Return the data set that holds what is to be packed or appended, or ``None``."""
    if how.append and (known := destination.data_set(place)) is not None:
        return known if appending.holds(known, place, job) else None
    return destination.finished(place, job, how.on_error)


def _warn_if_kept(found: Source | Stream, done: Manifest, place: Place) -> None:
    """Warn where what Python makes passes for what was packed before, by some of its samples alone.

    A job that prepares its data by `data_download` comes here at each start on a new node, and only logs it.
    """
    known = {"dataset": "its length and some of its samples", "iterable": "its first samples"}.get(found.kind)
    was_cut = isinstance(found, Stream) and done.num_bytes > LOOKED_AT_BYTES
    if known is not None and (done.num_samples >= LOOKS or was_cut):
        _log.log(
            logging.INFO if run_once.is_running() else logging.WARNING,
            "%s is kept as it is, with %s samples: by %s, %s was packed into it before. If others have changed or more "
            "have come, pack with overwrite=True (--overwrite)",
            place, f"{done.num_samples:,}", known, found.location,
        )  # fmt: skip


def _find(
    source: str | os.PathLike[str] | Made,
    about: SourceOptions,
    place: Place,
    excluded: Excluded | None,
    for_all: Mapping[str, Any] | None,
    own: Mapping[str, Any] | None,
) -> Source | Stream:
    """List the samples of the source that are not excluded, by its own storage options, or else by those for all.

    The latter are also for ``dest``, so they must tell stores, or both must be of one scheme, or only one a URL.
    """
    storage.named(own, ())  # which refuses what is no mapping, also where the source is not remote
    one = source[0] if isinstance(source, (list, tuple)) and source else source
    if own is None and (
        place.options.is_by_store
        or place.folder is not None
        or not isinstance(one, (str, os.PathLike))
        or storage.scheme(os.fspath(one)) in ("", storage.scheme(place.location))
    ):
        own = for_all
    found = sources.find(source, about, scratch=place.folder, storage_options=own)
    return excluded.without(found) if excluded else found


def _ordered(options: PackOptions, source: Source | Stream, shuffle_seed: int | str | None) -> PackOptions:
    """Return the options with the order that a source can have."""
    if isinstance(source, Source):
        return options
    if shuffle_seed not in ("auto", None):
        raise ArgumentError(
            f"shuffle_seed is {shuffle_seed}, but {source.location} can be read in one order only: leave it out, or "
            f"give a data set with __len__ and __getitem__"
        )
    return replace(options, shuffle_seed=None)


def _write(found: Source | Stream, place: Place, job: Job, how: Writing, known: Manifest | None) -> list[WrittenShard]:
    """Write the shards of a source: all of a data set, or what is appended to a known one."""
    options = job.options
    if isinstance(found, Stream):
        first = _claim(found, place, job, how, known, 0)
        return write_in_order(place, found, options, how.on_error, how.progress, first)
    images = options.reencoding
    plan = make_plan(
        images.planned_sizes(found) if images else found.contents.sizes,
        shuffle_seed=options.shuffle_seed,
        shard_bytes=options.shard_bytes,
        shard_samples=options.shard_samples,
        blocks=found.contents.blocks,
        compressed=options.compress is not None,
    )
    first = _claim(found, place, job, how, known, len(plan))
    return write_planned(found, replace(plan, first=first), place, job, how)


def _claim(found: Source | Stream, place: Place, job: Job, how: Writing, known: Manifest | None, shards: int) -> int:
    """Claim the destination for the shards, 0 where their number is not known; return the number of the first."""
    if known is not None:
        return appending.claim(place, known, job, found.notes.get("classes"), overwrite=how.overwrite)
    destination.claim(place, Record(job, shards), overwrite=how.overwrite)
    return 0


def _manifest(
    source: Source | Stream, job: Job, shards: list[WrittenShard], place: Place, known: Manifest | None
) -> Manifest:
    """Report the samples that were left out, and return the manifest of the shards, apart from those ``known``."""
    left_out: list[tuple[str | None, LeftOut]] = [(None, one) for one in source.left_out]
    left_out += [(shard.listed.name, one) for shard in shards for one in shard.left_out]
    destination.save_report(place, left_out, known)
    if left_out and not any(shard.listed.num_samples for shard in shards):
        raise SourceError(f"{source.location} holds no sample that can be packed: {left_out[0][1].reason}")
    images = job.options.reencoding
    notes = images.notes() if images else {}
    if "store" in notes and isinstance(source, Source) and source.contents.has_exact_sizes:
        notes["source_bytes"] = int(source.contents.sizes.sum())
    return Manifest.of(
        place.location,
        [one.listed for one in shards],
        extra={
            "source": {"kind": source.kind},
            "shuffle_seed": job.options.shuffle_seed,
            # As readers match them: in lower case.
            "fields": sorted({extension.lower() for shard in shards for extension in shard.extensions}),
            "payload_bytes": sum(shard.payload_bytes for shard in shards),
            "with_checksums": sum(shard.has_checksums for shard in shards),
            **({"left_out": len(left_out)} if left_out else {}),
            **source.notes,
            **({"images": notes} if notes else {}),
        },
        origin=storage.join(place.location, manifests.FILE_NAME),
    )


def _refuse(source: Source | Stream, place: Place, executor: Executor | None) -> None:
    """Refuse what could not end well."""
    if executor is not None:
        refuse_to_travel(source)
    if place.folder is None:
        return
    folder, root = place.folder.resolve(), Path(source.location).resolve()
    if isinstance(source, Source) and folder in {Path(one).resolve() for one in source.folders}:
        raise ArgumentError(f"dest {place} holds the shards to pack: choose another folder")
    # The next run would find the shards among the files to pack, and take that for another source.
    if source.kind == "folder" and (folder == root or root in folder.parents):
        raise ArgumentError(f"dest {place} lies inside the source {source.location}: choose a folder outside it")
