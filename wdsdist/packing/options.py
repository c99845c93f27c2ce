"""The options of packing: each is defined once, with its help, for `wdsdist.pack` and for the command line.

The command line's options come from the fields, and what decides the bytes of shards is their fingerprint.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from wdsdist._util.extras import extra
from wdsdist._util.validation import check_bytes, check_flag, check_integer, check_path
from wdsdist.errors import ArgumentError, given

if TYPE_CHECKING:
    from concurrent.futures import Executor

_ZST_LEVEL, _HIGHEST_ZST_LEVEL = 3, 22  # zstd's own

OnError = Literal["raise", "skip"]
"""How to handle a sample that cannot be packed: raise an error, or leave it out and report it."""
Encode = Callable[[Any], Mapping[str, Any]]
"""From an item to a sample dict."""

DEFAULT_QUALITY = 90
MOST_PIXELS = 2**28 // 3
"""Pixels of an image that is decoded: Pillow's own limit."""


def option(default: Any, text: str, *, secret: bool = False, **more: Any) -> Any:
    """Return the field of an option with its help.

    ``more`` is for the command line: ``flag`` and ``negation`` (its names), ``metavar``, ``choices``, or
    ``hidden=True`` for an option of Python alone; and ``decides=True`` for an option that decides what shards hold.
    """
    return field(default=default, repr=not secret, metadata={"help": text, **more})


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """How `wdsdist.pack` re-encodes images, so that they are cheaper to decode.

    >>> Images(max_side=512).quality, Images(store="raw").notes()
    (90, {'store': 'raw'})
    """

    max_side: int | None = option(None, "Scale down larger images to N pixels on the longer side.", metavar="N")
    quality: int | None = option(None, "Quality of re-encoded images, 1 to 95.  [default: 90]", metavar="N")
    store: Literal["raw", "jpeg"] | None = option(
        None,
        "Store every image as pixels (npy), which need no decoding, or as JPEG.  [default: as it is]",
        choices=("raw", "jpeg"),
    )
    max_pixels: int = option(MOST_PIXELS, "Refuse images with more pixels than N.", metavar="N")

    def __post_init__(self) -> None:
        for name, most in (("max_side", None), ("quality", 95), ("max_pixels", None)):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, check_integer(name, value, 1, most))
        if self.store not in (None, "raw", "jpeg"):
            raise ArgumentError(f"store is {self.store!r}: it must be 'raw' or 'jpeg'", argument="store")
        if self.quality is not None and (self.store == "raw" or not self.changes):
            problem = f"quality is {self.quality}, but no image is encoded as JPEG or WebP"
            raise ArgumentError(f"{problem}: leave it out, or give {given('store', 'jpeg')}", argument="quality")
        if self.changes and self.store != "raw" and self.quality is None:
            object.__setattr__(self, "quality", DEFAULT_QUALITY)

    @property
    def changes(self) -> bool:
        """Whether images are encoded again."""
        return self.max_side is not None or self.store is not None

    def notes(self) -> dict[str, Any]:
        """Return what ``index.json`` says of it."""
        return {name: value for name, value in asdict(self).items() if value is not None and name != "max_pixels"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of `wdsdist.pack`, checked."""

    shard_bytes: int | str = option("64MiB", "Maximum size of a shard.", metavar="SIZE", decides=True)
    shard_samples: int | None = option(
        None, "Maximum number of samples in a shard.  [default: no maximum]", metavar="N", decides=True
    )
    shuffle_seed: int | Literal["auto"] | None = option(
        "auto", "Seed of the order of the samples.  [default: 0]", flag="--seed", metavar="N", decides=True
    )
    workers: int | None = option(
        None, "Processes that write.  [default: one per core, two for a local folder]", metavar="N"
    )
    executor: Executor | None = option(None, "Writes the shards in place of processes here.", hidden=True)
    kind: str | None = option(
        None, "Kind of SOURCE, such as folder or csv.  [default: detected]", flag="--from", metavar="KIND"
    )
    key: str | None = option(
        None,
        "Where keys end in file names: first-dot, last-dot, or a regular expression of the key.  [default: first-dot]",
        metavar="RULE",
    )
    class_folders: bool | None = option(
        None,
        "Make classes from the folders in SOURCE: each sample gets the number of its folder as cls.",
        negation="--no-class-folders",
    )
    columns: Mapping[str, str] | None = option(
        None,
        "Member for a column of a table: image=jpg, id=__key__ for the key, x= to leave it out.  [repeatable]",
        flag="--column",
        metavar="NAME=EXTENSION",
    )
    root: str | os.PathLike[str] | None = option(
        None, "Folder for the paths in a table.  [default: the folder of the table]", metavar="DIR"
    )
    encode: Encode | None = option(None, "Function from an item of a Python data set to a sample.", hidden=True)
    images: Images = option(None, "How images are encoded again.", hidden=True, decides=True)
    check_decode: bool = option(False, "Decode all members, to find damaged ones.", decides=True)
    compress: str | None = option(
        None, "Compress the shards, with a level from 1 to 22.  [default level: 3]", metavar="zst[:LEVEL]", decides=True
    )
    overwrite: bool = option(False, "Replace a data set that wdsdist packed into DEST.")
    append: bool = option(False, "Add shards to the data set in DEST.")
    on_error: OnError = option(
        "raise",
        "How to handle a damaged sample: stop, or leave it out and list it in a report.",
        choices=("raise", "skip"),
    )
    storage_options: Mapping[str, Any] | None = option(
        None, "Options of the clients of stores.", hidden=True, secret=True
    )
    classes: tuple[str, ...] | None = option(
        None, "The first classes, in the order of their numbers; other folders of the source follow them.", hidden=True
    )
    split: str | None = option(None, "The folder directly in the source that is packed.", hidden=True)
    scratch: Path | None = option(
        None, "Where a source may keep a large temporary file; by default the system's folder.", hidden=True
    )

    def __post_init__(self) -> None:
        from wdsdist.shards.tar.member_names import check_rule  # late: the command line starts without numpy

        checked: dict[str, Any] = {"shard_bytes": check_bytes("shard_bytes", self.shard_bytes)}
        if self.shuffle_seed not in ("auto", None):
            checked["shuffle_seed"] = check_integer("shuffle_seed", self.shuffle_seed, 0, 2**64 - 1)
        for name in ("shard_samples", "workers"):
            if (value := getattr(self, name)) is not None:  # kept as Python's number, for numpy's are not JSON
                checked[name] = check_integer(name, value, 1)
        for name in ("check_decode", "overwrite", "append", "class_folders"):
            if (value := getattr(self, name)) is not None:
                checked[name] = check_flag(name, value)
        if self.compress is not None:
            match = re.fullmatch(r"zst(?::([0-9]{1,2}))?", str(self.compress))
            level = int(match[1] or _ZST_LEVEL) if match else 0
            if not 1 <= level <= _HIGHEST_ZST_LEVEL:
                rule = f'it must be "zst", or "zst:LEVEL" with a level from 1 to {_HIGHEST_ZST_LEVEL}'
                raise ArgumentError(f"compress is {self.compress!r}: {rule}", argument="compress")
            extra("zstandard", "zst", given("compress", self.compress))
            checked["compress"] = f"zst:{level}"
        checked["images"] = Images() if self.images is None else self.images
        for name, is_right, what in (
            ("executor", self.executor is None or hasattr(self.executor, "submit"), "a concurrent.futures.Executor"),
            ("images", isinstance(checked["images"], Images), "wdsdist.packing.Images(...)"),
            ("on_error", self.on_error in ("raise", "skip"), '"raise" or "skip"'),
        ):
            if not is_right:
                raise ArgumentError(f"{name} is {getattr(self, name)!r}: it must be {what}", argument=name)
        if self.key is not None:
            check_rule(self.key)
        if self.root is not None:
            check_path("root", self.root)
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if self.images.changes or self.check_decode:
            extra("PIL.Image", "images", "packing with images= or check_decode=")

    def state(self) -> str:
        """Return what the options that group files into samples say, for fingerprints."""
        return repr((self.key, self.class_folders, self.classes, self.split))

    def fingerprint(self) -> dict[str, Any]:
        """Return the options that decide what the shards hold, as JSON has them."""
        values = {item.name: getattr(self, item.name) for item in fields(self) if item.metadata.get("decides")}
        images = asdict(values.pop("images"))
        return values | {item.name: images[item.name] for item in fields(Images) if images[item.name] != item.default}
