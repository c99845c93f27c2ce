"""Listed files as a source: which samples can be packed, their sizes and classes, and the part that a shard needs.

The files may lie in a folder, an archive or a store: the source differs only in how it gives them their data.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist._util.file_types import last_part
from wdsdist.errors import SourceError
from wdsdist.packing.options import OnError, Options
from wdsdist.packing.payloads import Payload, Sample
from wdsdist.packing.sources import class_folders
from wdsdist.packing.sources.listing import Folder, Listing, first_of_layouts, list_samples, shown
from wdsdist.packing.sources.source import Contents, LeftOut, Source
from wdsdist.shards.tar.member_names import check_extensions, cutter, escaped, is_text
from wdsdist.shards.tar.naming import FIRST_DOT

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
    """For each sample, the index of its folder in ``folders``."""
    counts: list[int]
    """Files of each sample."""
    names: str
    """The names of all files in their folders, a line for each."""
    sizes: list[int]
    """Bytes of each file."""
    positions: list[int]
    """Where an archive holds each file."""
    labels: list[int] | None
    """What each sample's ``cls`` is to hold."""
    key_rule: str
    """Where keys end in the names."""

    @classmethod
    def of(cls, listing: Listing, samples: Int64s, classes: tuple[str, ...] | None) -> Taken:
        """Return some samples of a listing, by their numbers; the outermost folder of each is one of the classes."""
        starts, stops = listing.sample_files[samples], listing.sample_files[samples + 1]
        counts = stops - starts
        before = np.cumsum(counts) - counts
        files = np.repeat(starts - before, counts) + np.arange(int(counts.sum()))
        numbers, in_folders = np.unique(listing.folders_of(starts), return_inverse=True)
        bounds = zip(listing.name_ends[files].tolist(), listing.name_ends[files + 1].tolist(), strict=True)
        names = b"\n".join([listing.name_bytes[start:stop] for start, stop in bounds])
        in_folders = in_folders.reshape(-1)  # some versions of numpy give it another shape
        folders = [listing.folder(number) for number in numbers.tolist()]
        labels = None
        if classes is not None:
            of_classes = {name: number for number, name in enumerate(classes)}
            of_folders = [of_classes[folder.partition("/")[0]] for folder in folders]
            labels = [of_folders[folder] for folder in in_folders.tolist()]
        sizes, positions = listing.sizes[files].tolist(), listing.positions[files].tolist()
        return cls(
            folders, in_folders.tolist(), counts.tolist(), names.decode(), sizes, positions, labels, listing.key_rule
        )

    def samples(self, payload: Callable[[str, int, int], Payload]) -> Iterator[Sample]:
        """Yield the samples; ``payload`` gives a file's data for its path, size and position (0 in a folder)."""
        names, is_first_dot, find_dot = (
            self.names.split("\n"),
            self.key_rule == FIRST_DOT,
            cutter(self.key_rule),
        )
        files = zip(names, self.sizes, self.positions, strict=True)
        for number, (index, count) in enumerate(zip(self.in_folders, self.counts, strict=True)):
            folder = self.folders[index]
            members: list[tuple[str, Payload]] = []
            for _ in range(count):
                name, size, offset = next(files)
                dot = find_dot(name)
                members.append((name[dot + 1 :], payload(folder + name, size, offset)))
            key = folder + name[:dot]
            if self.labels is not None:
                members.append(("cls", b"%d" % self.labels[number]))
                members.sort(key=lambda member: member[0])
            yield key if is_first_dot else escaped(key), members


class Files:
    """The files of a folder, an archive or a store, by folder; what is skipped, and what is left out.

    Args:
        label: names what is listed in messages.
        on_error: how to handle a sample that cannot be packed.
    """

    def __init__(self, label: str, on_error: OnError) -> None:
        self.label = label
        self.on_error = on_error
        self.skipped: Counter[str] = Counter()
        """Number of skipped entries, which belong to no sample, by reason."""
        self.left_out: list[LeftOut] = []
        """What is left out before samples are formed."""
        self.folders: dict[bytes, Folder] = {b"": Folder()}
        """By path, with a slash at its end."""

    def leave_out(self, path: str | bytes, problem: str) -> None:
        """Note something that cannot be read, or raise `SourceError` if errors are not skipped."""
        problem = f"{shown(path).rstrip('/')} {problem}"
        if self.on_error == "raise":
            raise SourceError(f"{shown(self.label)}/{problem}; or leave it out with on_error='skip'")
        self.left_out.append(LeftOut(shown(path), problem))

    def add(
        self, path: bytes, name: bytes, size: int, problem: str = "", *, mtime_ns: int = 0, position: int = 0
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
            self.folders[path].problems[name] = problem
        self.folders[path].add(name, size, mtime_ns=mtime_ns, position=position)

    def source(
        self,
        kind: str,
        options: Options,
        samples: Callable[[Taken], Iterable[Sample]],
        *,
        state: str,
        root: bytes = b"",
        of_files: bool = False,
    ) -> Source:
        """Return the source of all files below a ``root``.

        ``state`` identifies the files, beside their paths, sizes and times; ``samples`` gives them their data;
        ``of_files`` says that they are local files, which any thread can read at any time.

        Raises `SourceError` if there is no sample, for the first that cannot be packed unless such are left out, and
        for folders that cannot be the classes that they are to be; `ArgumentError` for names that need a key rule.
        """
        label, skipped = self.label, self.skipped
        below = (path[len(root) :] for path in self.folders if path.startswith(root))
        tops = sorted({os.fsdecode(path.partition(b"/")[0]) for path in below} - {""})
        if options.class_folders is None and options.split is None:
            class_folders.refuse_splits(label, tops)
        rule = class_folders.key_rule(self.folders, root, options)
        listing = list_samples(self.folders, root, rule or FIRST_DOT)
        if not listing.num_samples:
            counts = ", ".join(f"{count:,} {what}" for what, count in skipped.items())
            raise SourceError(
                f"{label} holds no file that can be a sample{f' (skipped: {counts})' if counts else ''}: is it the "
                f"right one?"
            )
        if options.kind is None:
            _refuse_containers(label, listing)
        if rule is None:
            extensions, files = np.unique(listing.extension_ids, return_index=True)
            pairs = zip(extensions.tolist(), files.tolist(), strict=True)
            names = {listing.extensions[number]: shown(listing.path(file)) for number, file in pairs}
            check_extensions(label, names, strict=True)
        wrong = _unpackable(listing)
        if wrong and self.on_error == "raise":
            raise SourceError(f"{label}/{wrong[min(wrong)]}; or leave such samples out with on_error='skip'")
        classes, stray = class_folders.find_classes(label, listing, tops, options)
        numbers = np.arange(listing.num_samples)
        if wrong or len(stray):
            numbers = np.setdiff1d(numbers, np.append(stray, sorted(wrong)).astype(np.int64))
            if not len(numbers):
                why = f"for instance: {wrong[min(wrong)]}" if wrong else "for no file lies in a class folder"
                raise SourceError(f"{label} holds no sample that can be packed, {why}")
        if len(stray):
            files = listing.sample_files[stray]
            count = int((listing.sample_files[stray + 1] - files).sum())
            skipped = skipped + Counter(
                {f"file beside the class folders, such as {shown(listing.path(int(files[0])))}": count}
            )
        left_out = sorted(self.left_out, key=lambda one: one.key)
        left_out += [LeftOut(shown(listing.key(sample)), wrong[sample]) for sample in sorted(wrong)]
        parts = (f"{state}\0{classes}\0{listing.digest}\n", *(f"{one.key}\0{one.reason}\n" for one in left_out))
        notes: dict[str, Any] = {} if classes is None else {"classes": list(classes)}
        notes |= {"skipped": dict(sorted(skipped.items()))} if skipped else {}
        notes |= {} if listing.key_rule == FIRST_DOT else {"source_key_rule": listing.key_rule}
        facts = {"keys": f"such as {shown(listing.key(0))}, of {shown(listing.path(0))}"}
        if tops and classes is None:
            facts["folders"] = f"{len(tops):,}, such as {shown(tops[0])}, are part of the keys"
            if options.class_folders is None and len(tops) > 1:
                facts["folders"] += "; class_folders=True makes them classes"

        def layouts() -> dict[tuple[str, ...], int]:
            starts, label = listing.sample_files, () if classes is None else ("cls",)
            ids = listing.extension_ids
            if len(numbers) < listing.num_samples:
                kept = np.zeros(listing.num_samples, np.bool_)
                kept[numbers] = True
                counts = np.diff(starts)
                ids, starts = ids[np.repeat(kept, counts)], np.append(0, np.cumsum(counts[kept]))
            firsts = zip(*(part.tolist() for part in first_of_layouts(ids, starts)), strict=True)
            return {
                tuple(sorted((*listing.extensions_of(int(numbers[first])), *label))): count for first, count in firsts
            }

        def load(_: Source) -> Contents:
            contents = Contents(
                sizes=listing.stored_sizes(has_label=classes is not None),
                take=lambda indices: samples(Taken.of(listing, indices, classes)),
                notes=notes,
                left_out=tuple(left_out),
                layouts=layouts,
                facts=facts,
                of_files=of_files,
            )
            return contents if len(numbers) == listing.num_samples else contents.only(numbers)

        return Source(kind, label, hashlib.sha256("".join(parts).encode()).hexdigest(), load)


def _refuse_containers(label: str, listing: Listing) -> None:
    """Raise `SourceError` for files that hold many samples each, such as tars: each would be one member.

    Parquet and Arrow files are refused if there is nothing but notes beside them.
    """
    last = {last_part(extension) for extension in listing.extensions}
    only_tables = last <= _TABLES | _NOTES and last & _TABLES
    wrong = [
        _CONTAINER.fullmatch(extension) is not None or (only_tables and last_part(extension) in _TABLES)
        for extension in listing.extensions
    ]
    if any(wrong):
        files = np.flatnonzero(np.array(wrong)[listing.extension_ids])
        path = shown(listing.path(int(files[0])))
        raise SourceError(
            f"{label} holds {len(files):,} files of many samples each, such as {path}: pack or index the folder or "
            f"pattern that names those, such as '{label}/{path.rpartition('/')[0] or '*'}'; read formats of other "
            f"libraries with these, and pack what a generator yields; if each file is a sample, pass kind='folder'"
        )


def _unpackable(listing: Listing) -> dict[int, str]:
    """Return the samples that cannot be packed, by number, and why; the reasons start with a path in the source."""
    wrong: dict[int, str] = {}
    for file, problem in sorted(listing.problems.items()):
        wrong.setdefault(int(listing.samples_of(np.array(file))), problem)
    lower: dict[str, int] = {}
    kinds = np.array([lower.setdefault(extension.lower(), len(lower)) for extension in listing.extensions])
    reserved = [extension.startswith("__") and extension.endswith("__") for extension in listing.extensions]
    for file in np.flatnonzero(np.array(reserved)[listing.extension_ids]).tolist() if any(reserved) else ():
        why = f"{listing.path(file)} has the name of an entry that readers add to samples: rename it"
        wrong.setdefault(int(listing.samples_of(np.array(file))), why)
    if len(lower) < len(kinds):
        of_files = listing.samples_of(np.arange(len(listing.sizes))) * len(kinds) + kinds[listing.extension_ids]
        order = np.argsort(of_files, kind="stable")
        for position in np.flatnonzero(of_files[order[1:]] == of_files[order[:-1]]).tolist():
            first, second = order[position : position + 2].tolist()
            why = (
                f"{listing.path(first)} and {listing.path(second)} differ in case only: readers take both for the same "
                f"member, so rename one"
            )
            wrong.setdefault(int(listing.samples_of(np.array(first))), why)
    return wrong
