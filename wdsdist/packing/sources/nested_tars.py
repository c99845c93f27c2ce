"""Tars and record files among the files of a source, which are no members of samples; and parts of tars.

``split`` names parts ``x.tar.aa``, ``x.tar.ab``, ...; others ``x.tar.part.aa``, ``x.tar.partaa``, ``x.tar.gz.001``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from wdsdist.errors import SourceError
from wdsdist.packing.sources.listing import Listing
from wdsdist.packing.sources.source import Candidate
from wdsdist.shards.tar import is_tar

_PART = re.compile(
    r"(?P<tar>.+\.(?:tar|tgz|tbz2?|txz|tzst|tar\.(?:gz|bz2|xz|zst)))"
    r"(?:[._-]?part[._-]?(?P<told>\d{1,4}|[a-z]{1,3})|[._-](?P<bare>\d{2,4}|(?!bz)[a-d][a-z]))",
    re.IGNORECASE,
)
_RECORDS = re.compile(
    r".+\.(?:tfrecords?|array_?records?|riegeli|beton|mdb|mds)(?:-.*|\.(?:\d.*|gz|bz2|zst))?", re.IGNORECASE | re.DOTALL
)
"""TensorFlow's, Grain's and FFCV's, and LMDB."""
_NOTES = re.compile(r".*\.(?:json|jsonl|ya?ml|md|txt|csv|parquet|sha256|md5|sum)|\..*|[^.]*", re.IGNORECASE)


def holds_tar(name: str) -> bool:
    """Return whether a file is a tar or a part of one, by its name.

    >>> holds_tar("a.tar"), holds_tar("a.tar.part.ab"), holds_tar("a.tar.001"), holds_tar("a.tar.json")
    (True, True, True, False)
    """
    return ".t" in name.lower() and (is_tar(name) or _PART.fullmatch(name) is not None)


def refuse_tars(root: str, tars: list[str], *, is_archive: bool = False) -> None:
    """Raise `SourceError` where a folder or an archive holds tars, however deep: their paths in it are given."""
    if not tars:
        return
    first = min(tars)
    folders = sorted({path.rpartition("/")[0] for path in tars})
    where = f"{root}/{folders[0]}".rstrip("/")
    more = f", and so in {len(folders) - 1:,} more folders" if len(folders) > 1 else ""
    if not is_tar(first):
        todo = f"they are parts of {_tar_of(first)}: name the first one of each tar to pack, or join them by `cat`"
    elif is_archive:
        todo = "unpack it, and pack the folders that hold them"
    else:
        todo = (
            f"if they are WebDataset shards, run `wdsdist pack {where} DEST` or `wdsdist index {where}`{more}; if not, "
            f"unpack them and pack the folder that results"
        )
    count = f"{len(tars):,} tar file{'s' * (len(tars) > 1)}"
    raise SourceError(f"{root} holds {count}, such as {first}: {todo}")


def is_record(name: str) -> bool:
    """Return whether a file holds many samples in a format of other tools, by its name.

    >>> is_record("mnist-train.tfrecord-00000-of-00001"), is_record("train.beton"), is_record("a.tfrecord.jpg")
    (True, True, False)
    """
    return _RECORDS.fullmatch(name) is not None


def refuse_records(root: str, listing: Listing) -> None:
    """Raise `SourceError` where a source holds such files."""
    for number, extension in enumerate(listing.extensions):
        if is_record(f"a.{extension}"):
            path = listing.path(int((listing.extension_ids == number).argmax()))
            if is_record(path.rpartition("/")[2]):
                refuse_record(root, path)


def refuse_record(root: str, path: str) -> None:
    """Raise `SourceError` for such a file of a source."""
    raise SourceError(
        f"{root}/{path} holds many samples, in a format that is not read here: read it by the library that wrote it, "
        f"and pack what a generator yields, as in wdsdist.pack(samples(), DEST), where samples() yields dicts such as "
        f'{{"jpg": ..., "cls": 3}}'
    )


def find_parts(candidate: Candidate) -> list[Path]:
    """Return the parts of a split tar in order, given by one of them or by a folder of nothing else; else nothing.

    Raises `SourceError` where a part is missing.
    """
    path, entries = candidate.path, candidate.entries
    if path is None:
        return []
    if entries is not None:
        names: list[str] = []
        for name in entries.texts():  # up to the first that is none, because there may be millions
            if not _NOTES.fullmatch(name):
                tar = _tar_of(name)
                if not tar or (names and tar != _tar_of(names[0])):
                    return []
                names.append(name)
        return _in_order(path, names) if names else []
    if is_tar(path.name) or not _tar_of(path.name) or not path.is_file():
        return []
    return _in_order(
        path.parent, [one.name for one in path.parent.iterdir() if _tar_of(one.name) == _tar_of(path.name)]
    )


def _tar_of(name: str) -> str:
    """Return the name of the tar that a file is a part of; an empty text where it is none."""
    found = _PART.fullmatch(name)
    return found["tar"] if found and not is_tar(name) else ""


def _in_order(folder: Path, names: Iterable[str]) -> list[Path]:
    order = sorted(names, key=_number)
    start = min(_number(order[0]), 1) if order[0][-1].isdigit() else 0
    for place, name in enumerate(order):
        number = _number(name) - start
        if number < place:
            raise SourceError(
                f"{folder} holds {order[place - 1]} and {name}, both of one number: remove one of the two"
            )
        if number > place:
            raise SourceError(
                f"{folder} holds {len(order):,} parts of {_tar_of(name)}, from {order[0]} to {order[-1]}, but not "
                f"number {place + 1} of them: fetch that one too"
            )
    return [folder / name for name in order]


def _number(name: str) -> int:
    """Return the number of a part, counted as its name does: from ``a``, ``aa``, 0 or 1."""
    found = _PART.fullmatch(name)
    suffix = (found["told"] or found["bare"]).lower() if found else "0"
    if suffix.isdigit():
        return int(suffix)
    number = 0
    for letter in suffix:
        number = 26 * number + ord(letter) - ord("a")
    return number
