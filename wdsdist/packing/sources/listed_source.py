"""A source of listed files: which samples can be packed, their sizes and classes, and the part that a shard needs.

The files may lie in a folder, an archive or a store: the source differs only in how it gives them their data.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist.errors import SourceError
from wdsdist.packing.payloads import Payload, Sample
from wdsdist.packing.sources import class_folders
from wdsdist.packing.sources.listing import Folder, Listing, cut, shown
from wdsdist.packing.sources.source import Contents, LeftOut, OnError, Source, SourceOptions
from wdsdist.shards.tar.member_names import check_extensions, escaped, is_cut_alike, is_text
from wdsdist.shards.tar.naming import FIRST_DOT
from wdsdist.shards.tar.writer import stored_size

_CONTAINER = re.compile(
    r"(?:.*\.)?(?:tar|tgz|tbz2?|txz|tzst|tar\.\w+|(?:tfrecords?|array_?records?|riegeli|beton|mdb|mds)(?:[-.].*)?)",
    re.IGNORECASE | re.DOTALL,
)
"""The extensions of files that hold many samples each."""
_TABLES = frozenset(("parquet", "pq", "arrow", "feather", "ipc"))
_NOTES = frozenset(("md", "txt", "json", "yaml", "yml", "crc"))


@dataclass(frozen=True, slots=True)
class Taken:
    """Some samples of a listing: small, for it travels to the process that writes them."""

    folders: list[str]
    """Paths under the root, with a slash at their end."""
    in_folders: list[int]
    """For each sample, the place of its folder in ``folders``."""
    counts: list[int]
    """Files of each sample."""
    names: str
    """The names of all files in their folders, a line for each."""
    sizes: list[int]
    """Bytes of each file."""
    places: list[int]
    """Where an archive holds each file."""
    labels: list[int] | None
    """What each sample's ``cls`` is to hold."""
    dots: list[int] | None = None
    """The place of the dot in each name that ends its key; by default the first."""

    @classmethod
    def of(cls, listing: Listing, samples: Int64s, classes: tuple[str, ...] | None) -> Taken:
        """Return some samples of a listing, by their numbers; the outermost folder of each is one of the classes."""
        starts, stops = listing.sample_files[samples], listing.sample_files[samples + 1]
        counts = stops - starts
        before = np.cumsum(counts) - counts
        files = np.repeat(starts - before, counts) + np.arange(int(counts.sum()))
        runs, in_folders = np.unique(listing.runs(starts), return_inverse=True)
        bounds = zip(listing.name_ends[files].tolist(), listing.name_ends[files + 1].tolist(), strict=True)
        names = b"\n".join([listing.name_bytes[start:stop] for start, stop in bounds])
        in_folders = in_folders.reshape(-1)  # some versions of numpy give it another shape
        folders = [listing.folder(run) for run in runs.tolist()]
        labels = None
        if classes is not None:
            numbers = {name: number for number, name in enumerate(classes)}
            of_folders = [numbers[folder.partition("/")[0]] for folder in folders]
            labels = [of_folders[place] for place in in_folders.tolist()]
        return cls(
            folders,
            in_folders.tolist(),
            counts.tolist(),
            names.decode(),
            listing.sizes[files].tolist(),
            listing.places[files].tolist(),
            labels,
            None if listing.dots is None else listing.dots[files].tolist(),
        )

    def samples(self, payload: Callable[[str, int, int], Payload]) -> Iterator[Sample]:
        """Yield the samples; ``payload`` gives a file's data for its path, its size and its place (0 in a folder)."""
        sizes = self.sizes
        names = self.names.split("\n")
        dots = self.dots or [name.find(".") for name in names]
        files = zip(names, sizes, self.places, dots, strict=True)
        for number, (place, count) in enumerate(zip(self.in_folders, self.counts, strict=True)):
            folder = self.folders[place]
            members: list[tuple[str, Payload]] = []
            for _ in range(count):
                name, size, where, dot = next(files)
                members.append((name[dot + 1 :], payload(folder + name, size, where)))
            key = folder + name[:dot]
            if self.labels is not None:
                members.append(("cls", b"%d" % self.labels[number]))
                members.sort(key=lambda member: member[0])
            yield key if self.dots is None else escaped(key), members


class FileWalk:
    """Listing of all files of a folder, an archive or a store: skipped entries, and samples left out.

    Args:
        label: names what is listed in messages.
        on_error: how to handle a sample that cannot be packed.
    """

    of_files = False
    """Whether samples are local files, which any thread can read at any time."""

    def __init__(self, label: str, on_error: OnError) -> None:
        self.label = label
        self.on_error = on_error
        self.skipped: Counter[str] = Counter()
        """Number of skipped entries, which belong to no sample, by reason."""
        self.left_out: list[LeftOut] = []
        """What is left out before samples are looked at."""

    def add_file(
        self, folder: Folder, path: bytes, name: bytes, size: int, problem: str, *, mtime_ns: int = 0, place: int = 0
    ) -> None:
        """Add a file to a folder, given by its path; ``problem`` is why its sample cannot be packed, if it cannot.

        Raises `SourceError` for a file that cannot be packed, or notes it, as ``on_error`` asks.
        """
        full = path + name
        if not full.isascii() and not is_text(os.fsdecode(full)):
            problem = "has a name that is not UTF-8, which a tar asks for: rename it"
        if problem:
            problem = f"{shown(full)} {problem}"
            if self.on_error == "raise":
                raise SourceError(f"{shown(self.label)}/{problem}; or leave it out with on_error='skip'")
            folder.problems[name] = problem
        folder.add(name, size, mtime_ns=mtime_ns, place=place)

    def source_of(
        self,
        kind: str,
        listing: Listing,
        folders: list[str],
        options: SourceOptions,
        samples: Callable[[Taken], Iterable[Sample]],
        *,
        state: str,
    ) -> Source:
        """Return the source of a listing, whose root holds the ``folders``.

        ``state`` identifies the listed files, beside the listing; ``samples`` gives them their data.

        Raises `SourceError` if there is no sample, for the first that cannot be packed unless such are left out, and
        for folders that cannot be the classes that they are to be; `ArgumentError` for names that need a key rule.
        """
        label, skipped = self.label, self.skipped
        if not listing.num_samples:
            counts = ", ".join(f"{count:,} {what}" for what, count in skipped.items())
            raise SourceError(
                f"{label} holds no file that can be a sample{f' (skipped: {counts})' if counts else ''}: is it the "
                f"right one?"
            )
        if options.kind is None:
            _refuse_containers(label, listing)
        if options.class_folders is None and options.split is None:
            class_folders.refuse_splits(label, folders)
        rule = class_folders.rule_of_classes(listing, options)
        if rule is None:
            extensions, files = np.unique(listing.extension_ids, return_index=True)
            pairs = zip(extensions.tolist(), files.tolist(), strict=True)
            names = {listing.extensions[number]: shown(listing.path(file)) for number, file in pairs}
            check_extensions(label, names, strict=True)
        elif rule != FIRST_DOT and not (options.key is None and all(map(is_cut_alike, listing.extensions))):
            listing = cut(listing, rule)
        wrong = _unpackable(listing)
        if wrong and options.on_error == "raise":
            raise SourceError(f"{label}/{wrong[min(wrong)]}; or leave such samples out with on_error='skip'")
        classes, stray = class_folders.find_classes(label, listing, folders, options)
        numbers = None
        if wrong or len(stray):
            numbers = np.setdiff1d(np.arange(listing.num_samples), np.append(stray, sorted(wrong)).astype(np.int64))
            if not len(numbers):
                raise SourceError(f"{label} holds no sample that can be packed, for instance: {wrong[min(wrong)]}")
        if len(stray):
            files = listing.sample_files[stray]
            first = shown(listing.path(int(files[0])))
            count = int((listing.sample_files[stray + 1] - files).sum())
            skipped = skipped + Counter({f"file beside the class folders, such as {first}": count})
        every = (*self.left_out, *(LeftOut(shown(listing.key(sample)), wrong[sample]) for sample in sorted(wrong)))
        parts = (f"{state}\0{classes}\0{listing.digest}\n", *(f"{one.key}\0{one.reason}\n" for one in every))
        digest = hashlib.sha256("".join(parts).encode()).hexdigest()
        notes: dict[str, Any] = {} if classes is None else {"classes": list(classes)}
        notes |= {"skipped": dict(sorted(skipped.items()))} if skipped else {}
        notes |= {} if listing.key_rule == FIRST_DOT else {"source_key_rule": listing.key_rule}
        facts = {"keys": f"such as {shown(listing.key(0))}, of {shown(listing.path(0))}"}
        tops = sorted(class_folders.top_folders(listing))
        if tops and classes is None:
            facts["folders"] = f"{len(tops):,}, such as {shown(tops[0])}, are part of the keys"
            if options.class_folders is None and len(tops) > 1:
                facts["folders"] += "; class_folders=True makes them classes"

        def load(_: Source) -> Contents:
            contents = Contents(
                sizes=_stored_sizes(listing, numbers, has_classes=classes is not None),
                take=lambda indices: samples(Taken.of(listing, indices, classes)),
                notes=notes,
                left_out=every,
                layouts=functools.partial(listing.layouts, numbers, label=classes is not None),
                facts=facts,
                of_files=self.of_files,
            )
            return contents if numbers is None else contents.only(numbers)

        return Source(kind, label, digest, load)


def _refuse_containers(label: str, listing: Listing) -> None:
    """Raise `SourceError` for files that hold many samples each, such as tars: each would be one member.

    Parquet and Arrow files are refused if there is nothing but notes beside them.
    """
    lower = [extension.lower() for extension in listing.extensions]
    wrong = [_CONTAINER.fullmatch(one) is not None for one in lower]
    last = {one.rpartition(".")[2] for one in lower}
    if last <= _TABLES | _NOTES and last & _TABLES:
        wrong = [one.rpartition(".")[2] in _TABLES for one in lower]
    if any(wrong):
        files = np.flatnonzero(np.array(wrong)[listing.extension_ids])
        path = shown(listing.path(int(files[0])))
        raise SourceError(
            f"{label} holds {len(files):,} files of many samples each, such as {path}: pack or index the folder or "
            f"pattern that names those, such as '{label}/{path.rpartition('/')[0] or '*'}'; read formats of other "
            f"libraries with these, and pack what a generator yields; if each file is a sample, pass kind='folder'"
        )


def _stored_sizes(listing: Listing, numbers: Int64s | None, *, has_classes: bool) -> Int64s:
    """int64: bytes that each sample of the listing takes in a tar; exact for those with the given numbers, or all."""
    stored = listing.stored_sizes()
    if has_classes:
        plain = 2 * 512  # of a header and a number of a few digits
        stored += plain
        odd = np.unique(listing.samples_of(listing.odd))
        if numbers is not None:
            odd = np.intersect1d(odd, numbers)  # the names of others may be no text
        for sample in odd.tolist():
            stored[sample] += stored_size(f"{listing.key(sample)}.cls", 1) - plain
    return stored


def _unpackable(listing: Listing) -> dict[int, str]:
    """Return the samples that cannot be packed, by number, and why; the reasons start with a path in the source."""
    found: dict[int, str] = {}
    for file, what in sorted(listing.problems.items()):
        found.setdefault(int(listing.samples_of(np.array(file))), what)
    reserved = np.array([one.startswith("__") and one.endswith("__") for one in listing.extensions], np.bool_)
    for file in np.flatnonzero(reserved[listing.extension_ids]).tolist() if reserved.any() else ():
        why = f"{listing.path(file)} has the name of an entry that readers add to samples: rename it"
        found.setdefault(int(listing.samples_of(np.array(file))), why)
    lower: dict[str, int] = {}
    kinds = [lower.setdefault(extension.lower(), len(lower)) for extension in listing.extensions]
    for first, second in listing.repeats(kinds) if len(lower) < len(kinds) else ():
        why = (
            f"{listing.path(first)} and {listing.path(second)} differ in case only: readers take both for the same "
            f"member, so rename one"
        )
        found.setdefault(int(listing.samples_of(np.array(first))), why)
    return found
