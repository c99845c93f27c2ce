"""The whole of packing: list the source, say what it is, plan, write what is missing, and finish with index.json."""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from wdsdist import storage
from wdsdist.distributed import run_once
from wdsdist.errors import ArgumentError, SourceError, given
from wdsdist.packing import destination, sources
from wdsdist.packing.destination import Destination, Job
from wdsdist.packing.members import LeftOut
from wdsdist.packing.options import Encode, Images, OnError, Options
from wdsdist.packing.parallel import write_in_order, write_planned
from wdsdist.packing.plan import make_plan
from wdsdist.packing.reencoding import planned_sizes
from wdsdist.packing.sources.files import SplitsError
from wdsdist.packing.sources.python import LOOKED_AT_BYTES, LOOKS
from wdsdist.packing.sources.source import Recognised, Source
from wdsdist.shards import manifest as manifests
from wdsdist.shards.manifest import Manifest
from wdsdist.shards.progress import Report

_log = logging.getLogger("wdsdist")


def pack(
    source: Any,
    dest: str | os.PathLike[str],
    *,
    shard_bytes: int | str = "64MiB",
    shard_samples: int | None = None,
    shuffle_seed: int | Literal["auto"] | None = "auto",
    workers: int | None = None,
    executor: Executor | None = None,
    kind: str | None = None,
    key: str | None = None,
    class_folders: bool | None = None,
    columns: Mapping[str, str] | None = None,
    root: str | os.PathLike[str] | None = None,
    encode: Encode | None = None,
    images: Images | None = None,
    check_decode: bool = False,
    compress: str | None = None,
    overwrite: bool = False,
    append: bool = False,
    on_error: OnError = "raise",
    storage_options: Mapping[str, Any] | None = None,
) -> Manifest:
    """Pack a downloaded data set into WebDataset shards, once.

    The same source and options give the same bytes, with any number of workers and in any place. If the data set is
    packed already, the call returns at once. After an interruption, the same call keeps every whole shard and writes
    the rest. A second call for the same folder at the same time waits for the first one and returns its result.

    `wdsdist.packing.recognise` reports what a source is, without packing it; this function logs the same report at
    level INFO before it writes.

    Args:
        source: a folder of files, in which files that share a path up to the first dot of the base name are one sample;
            a ``.zip`` or a ``.tar``, plain or compressed, of such files; WebDataset shards, by their folder, a pattern,
            a list or a `Manifest`; an IDX set, by a prefix such as ``mnist/train``; or
            a table whose rows are samples: a CSV, TSV or JSON Lines file, Parquet or Arrow files (one, a folder, or a
            pattern), or a folder by ``save_to_disk`` of ``datasets``; or a URL of any of these. Or a Python object: a
            data set with ``__len__`` and ``__getitem__``, such as torch's; a ``Dataset`` of ``datasets``, which is a
            table unless ``encode`` is given; or an iterable of samples.
        dest: the folder for the shards, which is made if it does not exist; or a URL that fsspec can write, without a
            lock against a second packer.
        shard_bytes: the most bytes of a shard, or a string such as ``"256MiB"``; a larger sample gets a shard of its
            own. For a Python data set, the mean size of some samples stands for all.
        shard_samples: the most samples of a shard; by default, only bytes count.
        shuffle_seed: seed of the order of the samples; ``None`` keeps the order of the source. ``"auto"`` is 0, or
            ``None`` for an iterable, which has only one order.
        workers: processes that write, and that list the files of a local folder; by default one per core, and two to
            write such files. The calling process writes an iterable. With an ``executor``, the number of shards that it
            writes at once, if it does not say.
        executor: any `concurrent.futures.Executor` that writes the shards instead, such as dask's
            ``client.get_executor()``; it stays open. Its workers must have wdsdist, and see ``source`` and ``dest``
            under the same names. A Python data set is pickled; an iterable is refused.
        kind: the kind of ``source``, such as ``"folder"`` or ``"csv"``; by default it is detected.
        key: for files and WebDataset shards, the rule that cuts names into keys and extensions: ``"first-dot"``, the
            default; ``"last-dot"``; or a regular expression of the key, up to a dot. Ambiguous names, such as
            ``v1.5_0001.jpg``, are an error by default. With another rule than the first dot, ``.`` and ``%`` in keys
            are written as ``%2E`` and ``%25``: ``urllib.parse.unquote`` restores them.
        class_folders: whether each sample gets a ``cls`` member, the number of its folder directly under ``source``,
            in which each image is a sample. ``False`` also says that folders such as ``train`` and ``val`` are one data
            set, which is an error by default (see `pack_splits`).
        columns: for a table, the member that each column becomes, such as ``{"image": "jpg"}``; other columns follow
            the rules of `wdsdist.packing.sources.columns`.
        root: for a table, the local folder of the paths in it; by default the folder of the table. A path that leads
            out of it is an error.
        encode: for a Python data set, a function from an item to a sample. A sample is a dict of members by extension,
            and perhaps ``"__key__"``, by default the item's number. By default the items are samples. Arrays and
            tensors in fields without a known extension, such as ``input_ids``, are stored as raw numbers;
            ``manifest.extra["arrays"]`` has their types, so that ``decode=True`` reads them.
        images: how to re-encode images, scaled down or as pixels: `wdsdist.packing.Images`. Off by default.
        check_decode: whether all members must decode, images to their last pixel.
        compress: ``"zst"`` compresses shards with zstd at level 3, ``"zst:19"`` at level 19 of 1 to 22. ``shard_bytes``
            counts uncompressed bytes. Each node decompresses each shard once.
        overwrite: whether to replace another data set that wdsdist packed into ``dest``; nothing else is removed. With
            ``append``, it replaces only what an unfinished append of another source has written.
        append: whether to add the samples to the data set in ``dest``, as further shards and a new generation of its
            ``index.json``; existing shards stay. A source that was added before adds nothing. If ``dest`` holds no data
            set yet, it is packed.
        on_error: ``"raise"`` stops at the first sample that cannot be packed, such as an unreadable file, or a web page
            under the name of an image. ``"skip"`` leaves out such samples and lists them with the reasons in
            ``pack-report.jsonl`` next to the shards; ``manifest.extra["left_out"]`` is their number.
        storage_options: passed to fsspec if ``dest`` or ``source`` is a URL. If they are in two stores and the options
            do not name stores, only ``dest`` gets them.

    Returns the manifest, as `wdsdist.open` would.

    Raises:
        NotFoundError: the source does not exist.
        SourceError: the source is empty, ambiguous or damaged, or changes while it is packed; or all samples were left
            out.
        DestinationExistsError: ``dest`` holds another data set, the same one with other options, or, with ``append``,
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
    >>> manifest = pack(root / "photos", root / "shards", shard_samples=3, class_folders=True)
    >>> [(shard.name, shard.num_samples) for shard in manifest.shards]
    [('shard-000000.tar', 3), ('shard-000001.tar', 1)]
    >>> manifest.extra["classes"], manifest.extra["fields"]
    (['class0', 'class1'], ['cls', 'jpg'])

    Samples from Python:

    >>> import torch
    >>> squares = pack(({"pixels": torch.full((2, 2), n), "cls": n**2} for n in range(5)), root / "squares")
    >>> squares.extra["fields"], squares.extra["arrays"]
    (['cls', 'pixels'], {'pixels': {'dtype': '<i8', 'shape': [None, 2]}})
    """
    options = {name: value for name, value in locals().items() if name not in ("source", "dest")}
    return run(source, dest, Options(**options))


def pack_splits(
    source: str | os.PathLike[str],
    dest: str | os.PathLike[str],
    *,
    progress: Report = None,
    **options: Any,
) -> dict[str, Manifest]:
    """Pack each folder such as ``train`` and ``val`` of a source into a data set of its own, such as ``dest/train``.

    With ``class_folders=True`` all splits share the numbers of their classes. ``options`` are the options of `pack`.
    Returns the manifests by the names of the splits.

    Raises `SourceError` if the source has no such folders, and what `pack` raises.
    """
    checked = Options(**options)
    splits = splits_of(source, _for_source(source, Destination.of(dest, checked.storage_options), checked))
    return {
        split: run(source, storage.join(os.fspath(dest), split), replace(checked, **own), progress)
        for split, own in splits.items()
    }


def splits_of(source: str | os.PathLike[str], options: Options) -> dict[str, dict[str, Any]]:
    """Return the further options that pack each split of a source. Raises `SourceError` if there is no split."""
    splits: tuple[str, ...] = ()
    try:  # a source that is unpacked first shows its folders when its contents are asked for
        len(sources.find(source, options, class_folders=None, classes=None, split=None))
    except SplitsError as error:
        splits = error.splits
    if not splits:
        raise SourceError(f"{source} holds no folders such as train and val: leave out {given('splits', True)}")
    shared: dict[str, Any] = {}
    if options.class_folders:
        notes = [sources.find(source, options, split=split).contents.notes for split in splits]
        shared["classes"] = tuple(sorted({name for note in notes for name in note.get("classes", ())}))
    return {split: {"split": split, **shared} for split in splits}


def recognise(source: Any, dest: str | os.PathLike[str] | None = None, **options: Any) -> Recognised:
    """Return what `pack` takes a source for, without packing it; ``options`` are the options of `pack`.

    An iterable cannot be packed afterwards: its first samples have been taken.

    Raises what `pack` raises for the source, and for a ``dest`` inside it.

    >>> import tempfile, pathlib
    >>> root = pathlib.Path(tempfile.mkdtemp())
    >>> for name in ("a/1.jpg", "a/1.txt", "a/2.jpg", ".hidden"):
    ...     (root / name).parent.mkdir(exist_ok=True)
    ...     _ = (root / name).write_bytes(bytes(10))
    >>> print(*recognise(root).lines[1:], sep=chr(10))
    members: jpg in 2, txt in 1
    keys: such as a/1, of a/1.jpg
    folders: 1, such as a, are part of the keys
    skipped: 1 x hidden file or folder
    """
    checked = Options(**options)
    listed = sources.find(source, checked)
    if dest is not None:
        _refuse(listed, Destination.of(dest, checked.storage_options), checked)
    return Recognised.of(listed)


def run(source: Any, dest: str | os.PathLike[str], options: Options, progress: Report = None) -> Manifest:
    """Pack a source, or one split of it, as `pack` does.

    ``progress`` is called before the first shard is written and after each.
    """
    target = Destination.of(dest, options.storage_options)
    about = _for_source(source, target, options)
    if options.append and options.class_folders and (known := target.data_set()) is not None:
        # Its classes keep their numbers, and new ones follow.
        about = replace(about, classes=tuple(known.extra.get("classes", ())) or None)
    listed = sources.find(source, about, scratch=target.folder)
    _refuse(listed, target, options)
    seed = options.shuffle_seed
    if seed == "auto":
        seed = None if listed.is_stream else 0
    decided = {**options.fingerprint(), "shuffle_seed": seed}
    job = Job(kind=listed.kind, location=listed.location, fingerprint=listed.digest, options=decided)
    # Looked for before the lock is taken: a finished data set may lie in a folder that is read-only by now.
    if (finished := destination.finished(target, job, options)) is not None:
        by = {"dataset": "its length and some of its samples", "iterable": "its first samples"}.get(listed.kind)
        if by and (finished.num_samples >= LOOKS or (listed.is_stream and finished.num_bytes > LOOKED_AT_BYTES)):
            _log.log(
                # A job that prepares its data by `data_download` comes here at each start on a new node.
                logging.INFO if run_once.is_running() else logging.WARNING,
                "%s is kept as it is, with %s samples: by %s, %s was packed into it before. If others have changed or "
                "more have come, pack with %s",
                target, f"{finished.num_samples:,}", by, listed.location, given("overwrite", True),
            )  # fmt: skip
        return finished
    with destination.locked(target):  # the process that held it before may have finished the same job
        if (finished := destination.finished(target, job, options)) is not None:
            return finished
        for line in Recognised.of(listed).lines:
            _log.info("%s", line)
        known = target.data_set() if options.append else None
        plan = None
        if not listed.is_stream:
            plan = make_plan(
                planned_sizes(listed, options.images),
                shuffle_seed=seed,
                shard_bytes=decided["shard_bytes"],
                shard_samples=options.shard_samples,
                blocks=listed.contents.blocks,
            )
        job, show = replace(job, shards=0 if plan is None else len(plan)), progress or (lambda _: None)
        job = destination.claim(target, job, known, listed.contents, overwrite=options.overwrite)
        if plan is None:
            shards = write_in_order(target, listed, options, show, job.first)
        else:
            shards = write_planned(listed, plan, target, job, options, show)
        contents = listed.contents
        left_out: list[tuple[str | None, LeftOut]] = [(None, sample) for sample in contents.left_out]
        left_out += [(shard.listed.name, sample) for shard in shards for sample in shard.left_out]
        destination.save_report(target, left_out, known)
        if left_out and not any(shard.listed.num_samples for shard in shards):
            raise SourceError(f"{listed.location} holds no sample that can be packed: {left_out[0][1].reason}")
        images = options.images.notes()
        notes = {
            "source": {"kind": listed.kind},
            "shuffle_seed": seed,
            # As readers match them: in lower case.
            "fields": sorted({extension.lower() for shard in shards for extension in shard.extensions}),
            "payload_bytes": sum(shard.payload_bytes for shard in shards),
            "with_checksums": len(shards),
            **({"left_out": len(left_out)} if left_out else {}),
            **contents.notes,
            **({"images": images} if images else {}),
        }
        destination.complete(target, job, [shard.listed for shard in shards], notes, known)
    return manifests.load(target.at(manifests.FILE_NAME), target.options)


def _for_source(source: object, target: Destination, options: Options) -> Options:
    """Return options with the storage options that the source may see.

    They are for ``dest`` too, so they must name their stores, or both must have one scheme, or only one be a URL.
    """
    first = source[0] if isinstance(source, (list, tuple)) and source else source
    if target.options.is_by_store or target.folder is not None or not isinstance(first, (str, os.PathLike)):
        return options
    is_same = storage.scheme(os.fspath(first)) in ("", storage.scheme(target.location))
    return options if is_same else replace(options, storage_options=None)


def _refuse(source: Source, target: Destination, options: Options) -> None:
    """Raise `ArgumentError` for a destination inside the source, and for a source that an option does not fit."""
    for name in ("executor", "shuffle_seed"):
        if source.is_stream and getattr(options, name) not in ("auto", None):
            problem = f"{name} is given, but {source.location} can be read in one order only, by one process"
            raise ArgumentError(f"{problem}: leave it out, or give a data set with __getitem__", argument=name)
    if options.executor is not None and source.kind == "dataset":
        try:
            pickle.dumps(source.take(np.empty(0, np.int64)))
        except Exception as error:  # each class has its own
            raise ArgumentError(
                f"executor is given, but {source.location} does not pickle, so that it cannot go to the workers "
                f"({type(error).__name__}: {error}): define it, and encode, in a module, and let it open files when it "
                f"is first asked for an item",
                argument="executor",
            ) from error
    if target.folder is None:
        return
    folder, root = target.folder.resolve(), Path(source.root or os.devnull).resolve()
    if root in (folder, *folder.parents) or folder in {Path(path).resolve() for path in source.folders}:
        raise ArgumentError(
            f"dest {target} lies inside the source {source.location}: choose a folder outside it", argument="dest"
        )
