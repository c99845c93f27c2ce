"""The options of packing: each is defined once, with its help, for `wdsdist.pack` and for the command line.

The command line's options come from the fields, and what decides the bytes of shards is their fingerprint.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from wdsdist._util.validation import check_bytes, check_callable, check_flag, check_integer
from wdsdist.errors import ArgumentError

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from wdsdist.packing.sources.source import Encode, OnError, SourceOptions

Store = Literal["raw", "jpeg"]
"""What every image becomes: its pixels as ``.npy``, or a JPEG."""

DEFAULT_QUALITY = 90
MOST_PIXELS = 2**28 // 3
"""Pixels of an image that is decoded: Pillow's own limit."""


def about(text: str, **more: Any) -> dict[str, Any]:
    """Return the metadata of an option with its help.

    ``more`` is for the command line: ``flag`` and ``negation`` (its names), ``metavar``, ``choices``, or
    ``hidden=True`` for an option of Python alone; and ``decides=True`` for an option that decides what shards hold.
    """
    return {"help": text, **more}


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """How `wdsdist.pack` encodes images again, so that they are cheaper to decode.

    >>> Images(max_side=512).quality, Images(store="raw").notes()
    (90, {'store': 'raw'})
    """

    max_side: int | None = field(
        default=None, metadata=about("Scale larger images down to N pixels on the longer side.", metavar="N")
    )
    quality: int | None = field(
        default=None, metadata=about("Quality of images that are encoded again, 1 to 95.  [default: 90]", metavar="N")
    )
    store: Store | None = field(
        default=None,
        metadata=about(
            "Store every image as pixels (npy), which need no decoding, or as JPEG.  [default: as it is]",
            choices=("raw", "jpeg"),
        ),
    )
    max_pixels: int = field(default=MOST_PIXELS, metadata=about("Refuse images with more pixels than N.", metavar="N"))

    def __post_init__(self) -> None:
        for name, most in (("max_side", None), ("quality", 95), ("max_pixels", None)):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, check_integer(name, value, 1, most))
        if self.store not in (None, "raw", "jpeg"):
            raise ArgumentError(f"store is {self.store!r}: it must be 'raw' or 'jpeg'", argument="store")
        if self.quality is not None and self.store == "raw":
            raise ArgumentError(
                f"quality is {self.quality}, but raw images have none: leave it out, or give store='jpeg'",
                argument="quality",
            )
        if self.quality is not None and not self.changes:
            raise ArgumentError(
                f"quality is {self.quality}, but no image is encoded again: give max_side or store='jpeg' too",
                argument="quality",
            )
        if self.changes and self.store != "raw" and self.quality is None:
            object.__setattr__(self, "quality", DEFAULT_QUALITY)

    @property
    def changes(self) -> bool:
        """Whether images are encoded again."""
        return self.max_side is not None or self.store is not None

    def notes(self) -> dict[str, Any]:
        """Return what ``index.json`` says of it."""
        given = {"max_side": self.max_side, "quality": self.quality, "store": self.store}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of `wdsdist.pack`, checked."""

    shard_bytes: int | str = field(
        default="64MiB", metadata=about("Maximum size of a shard.", metavar="SIZE", decides=True)
    )
    shard_samples: int | None = field(
        default=None,
        metadata=about("Maximum number of samples in a shard.  [default: no maximum]", metavar="N", decides=True),
    )
    shuffle_seed: int | Literal["auto"] | None = field(
        default="auto",
        metadata=about("Seed of the order of the samples.  [default: 0]", flag="--seed", metavar="N", decides=True),
    )
    workers: int | None = field(
        default=None, metadata=about("Processes that write.  [default: one for each core]", metavar="N")
    )
    executor: Executor | None = field(
        default=None, metadata=about("Writes the shards in place of processes here.", hidden=True)
    )
    kind: str | None = field(
        default=None,
        metadata=about("Kind of SOURCE, such as folder or csv.  [default: recognised]", flag="--from", metavar="KIND"),
    )
    key: str | None = field(
        default=None,
        metadata=about(
            "Where keys end in file names: first-dot, last-dot, or a regular expression of the key."
            "  [default: first-dot]",
            metavar="RULE",
        ),
    )
    class_folders: bool | None = field(
        default=None,
        metadata=about(
            "Make classes of the folders in SOURCE: each sample gets the number of its folder as cls.",
            negation="--no-class-folders",
        ),
    )
    columns: Mapping[str, str] | None = field(
        default=None,
        metadata=about(
            "Member of a column of a table: image=jpg, id=__key__ for the key, x= to leave it out.  [repeatable]",
            flag="--column",
            metavar="NAME=EXTENSION",
        ),
    )
    root: str | os.PathLike[str] | None = field(
        default=None,
        metadata=about("Folder for the paths in a table.  [default: the folder of the table]", metavar="DIR"),
    )
    encode: Encode | str | None = field(
        default=None,
        metadata=about(
            "Function from an item of a Python data set to a sample, such as my_module:encode.", metavar="NAME"
        ),
    )
    images: Images | None = field(
        default=None, metadata=about("How images are encoded again.", hidden=True, decides=True)
    )
    check_decode: bool = field(default=False, metadata=about("Decode all members, to find damaged ones.", decides=True))
    compress: str | None = field(
        default=None,
        metadata=about(
            "Compress the shards, with a level from 1 to 22.  [default level: 3]", metavar="zst[:LEVEL]", decides=True
        ),
    )
    overwrite: bool = field(default=False, metadata=about("Replace a data set that wdsdist packed into DEST."))
    append: bool = field(default=False, metadata=about("Add shards to the data set in DEST."))
    on_error: OnError = field(
        default="raise",
        metadata=about(
            "How to handle a damaged sample: stop, or leave it out and list it in a report.",
            choices=("raise", "skip"),
        ),
    )
    storage_options: Mapping[str, Any] | None = field(
        default=None, repr=False, metadata=about("Options of the clients of stores.", hidden=True)
    )

    def __post_init__(self) -> None:
        from wdsdist.storage import compression  # late: the command line starts without numpy

        checked: dict[str, Any] = {"shard_bytes": check_bytes("shard_bytes", self.shard_bytes)}
        if self.shuffle_seed not in ("auto", None):
            checked["shuffle_seed"] = check_integer("shuffle_seed", self.shuffle_seed, 0, 2**64 - 1)
        for name in ("shard_samples", "workers"):
            if (value := getattr(self, name)) is not None:  # kept as Python's number, for numpy's are no JSON
                checked[name] = check_integer(name, value, 1)
        for name in ("check_decode", "overwrite", "append"):
            checked[name] = check_flag(name, getattr(self, name))
        checked["compress"] = compression.checked(self.compress)
        if self.executor is not None and not callable(getattr(self.executor, "submit", None)):
            raise ArgumentError(
                f"executor is {self.executor!r}: it must be a concurrent.futures.Executor", argument="executor"
            )
        if not isinstance(self.encode, str):
            check_callable("encode", self.encode)
        if self.images is not None and not isinstance(self.images, Images):
            raise ArgumentError(f"images is {self.images!r}: it must be wdsdist.packing.Images(...)", argument="images")
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        _check_pillow(self)

    @property
    def reencoding(self) -> Images | None:
        """How images are encoded again, if they are."""
        return self.images if self.images is not None and self.images.changes else None

    @property
    def max_pixels(self) -> int:
        """The most pixels of an image that is decoded."""
        return MOST_PIXELS if self.images is None else self.images.max_pixels

    def source(self, **more: Any) -> SourceOptions:
        """Return what the options say about the source."""
        from wdsdist.packing.sources.source import SourceOptions

        names = ("kind", "key", "class_folders", "columns", "root", "encode", "on_error")
        return SourceOptions(**{name: getattr(self, name) for name in names}, **more)

    def fingerprint(self) -> dict[str, Any]:
        """Return the options that decide what the shards hold, as JSON has them."""
        found = {one.name: getattr(self, one.name) for one in fields(self) if one.metadata.get("decides")}
        images = found.pop("images")
        given = {} if images is None else {one.name: (getattr(images, one.name), one.default) for one in fields(images)}
        return found | {name: value for name, (value, default) in given.items() if value != default}


def _check_pillow(options: Options) -> None:
    what = "images" if options.reencoding else "check_decode" if options.check_decode else ""
    if what:
        try:
            import PIL.Image  # noqa: F401
        except ImportError as error:
            raise ArgumentError(
                f'{what} needs a package that is not installed: pip install "wdsdist[images]"', argument=what
            ) from error
