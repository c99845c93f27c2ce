"""Tars and record files among the files of a source, which are no members of samples; and parts of tars.

``split`` names parts ``x.tar.aa``, ``x.tar.ab``, ...; others ``x.tar.part.aa``, ``x.tar.partaa``, ``x.tar.gz.001``.
"""

from __future__ import annotations

import re

from wdsdist.errors import SourceError
from wdsdist.packing.sources.listing import Listing
from wdsdist.shards.tar import is_tar

_PART = re.compile(
    r"(?P<tar>.+\.(?:tar|tgz|tbz2?|txz|tzst|tar\.(?:gz|bz2|xz|zst)))"
    r"(?:[._-]?part[._-]?(?:\d{1,4}|[a-z]{1,3})|[._-](?:\d{2,4}|(?!bz)[a-d][a-z]))",
    re.IGNORECASE,
)
_RECORDS = re.compile(
    r".+\.(?:tfrecords?|array_?records?|riegeli|beton|mdb)(?:-.*|\.(?:\d.*|gz|bz2|zst))?", re.IGNORECASE | re.DOTALL
)
"""TensorFlow's, Grain's and FFCV's, and LMDB."""
_CHUNKS = re.compile(r".+\.mds(?:\.\w+)?|chunk-\d+-\d+(?:\.\w+)*\.bin", re.DOTALL)
"""MosaicML Streaming's and LitData's."""


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
        whole = _tar_of(first)
        todo = f"they are parts of {whole}: join those of each tar, in their order, as by `cat {whole}?* > {whole}`"
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
    return _RECORDS.fullmatch(name) is not None or _CHUNKS.fullmatch(name) is not None


def refuse_records(root: str, listing: Listing) -> None:
    """Raise `SourceError` where a source holds such files."""
    for number, extension in enumerate(listing.extensions):
        if extension == "bin" or is_record(f"a.{extension}"):
            path = listing.path(int((listing.extension_ids == number).argmax()))
            if is_record(path.rpartition("/")[2]):
                refuse_record(root, path)


def refuse_record(root: str, path: str) -> None:
    """Raise `SourceError` for such a file of a source."""
    if _CHUNKS.fullmatch(path.rpartition("/")[2]):
        raise SourceError(
            f"{root}/{path} is one of the files of MosaicML Streaming or LitData: pack the folder that has their "
            f"index.json, once all of them are there, on this machine"
        )
    raise SourceError(
        f"{root}/{path} holds many samples, in a format that is not read here: read it by the library that wrote it, "
        f"and pack what a generator yields, as in wdsdist.pack(samples(), DEST), where samples() yields dicts such as "
        f'{{"jpg": ..., "cls": 3}}'
    )


def _tar_of(name: str) -> str:
    """Return the name of the tar that a file is a part of; an empty text where it is none."""
    found = _PART.fullmatch(name)
    return found["tar"] if found and not is_tar(name) else ""
