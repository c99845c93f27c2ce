"""The fields of a sample: which of its members are read, under which names, and whether they are there and decode."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s, distinct, runs
from wdsdist._util.file_types import IMAGE_TYPES, MEDIA_TYPES, RARE_IMAGE_TYPES
from wdsdist.errors import ArgumentError, SampleError
from wdsdist.samples.codecs import DECODERS
from wdsdist.shards.index import ShardIndex

if TYPE_CHECKING:
    from wdsdist.shards.source import Members

ANY_IMAGE = "image"
ABSENT = -1
"""Stands for the index of an optional member that a sample does not have."""

Chosen = tuple[tuple[str, str, int], ...]
"""For each field: its name in the sample, its extension, and the member's index in the layout, or `ABSENT`."""


class Fields:
    """Chooses members by the extensions that ``fields=`` names.

    Args:
        fields: the names; ``None`` for all members.
        raw_images: whether an image may be a ``.npy`` file, as ``pack(store="raw")`` writes it.

    >>> Fields(("jpg;png", "cls")).choose(("cls", "png", "txt"))
    (('jpg', 'png', 1), ('cls', 'cls', 0))
    >>> Fields(("image", "txt?")).choose(("cls", "webp"))
    (('image', 'webp', 1), ('txt', 'txt', -1))
    """

    def __init__(self, fields: Sequence[str] | None, *, raw_images: bool = False) -> None:
        is_list = fields is None or (isinstance(fields, Collection) and not isinstance(fields, str))
        if not is_list or not all(isinstance(field, str) and field.strip() for field in fields or ()):
            raise ArgumentError(
                f"fields is {fields!r}: it must be a list of extensions such as ('jpg;png', 'cls')", argument="fields"
            )
        self.are_all = fields is None
        """Whether samples have all fields, one for each extension, because ``fields`` is ``None``."""
        self._alternatives = [tuple(_alternatives(field, raw_images)) for field in fields or ()]
        names = [alternatives[0] for alternatives in self._alternatives]
        if len(names) > len(set(names)):
            raise ArgumentError(
                f"fields is {fields!r}: two fields have the same name before the first ';'", argument="fields"
            )
        self.names = frozenset(names)
        """The names of the fields; empty if all members are read, under their extensions."""
        self.optional = frozenset(name for name, field in zip(names, fields or (), strict=True) if field.endswith("?"))
        """Names of the fields that a sample may lack, such as ``"txt?"``."""
        self._known: dict[tuple[str, ...], Chosen] = {}

    def choose(self, layout: tuple[str, ...]) -> Chosen:
        """Return (entry name, extension, index) for each field; the entry has the name of the first alternative.

        Raises `SampleError` if the layout has no alternative of a field, and the field is not optional.
        """
        chosen = self._known.get(layout)
        if chosen is None:
            # Samples have few layouts; if each has another, keeping them is no use.
            if len(self._known) > 1000:
                self._known.clear()
            chosen = self._known[layout] = tuple(self._chosen(layout))
        return chosen

    def check_extensions(self, known: Collection[str]) -> None:
        """Raise `ArgumentError` for a field that no sample has; ``known`` are the extensions of all samples."""
        try:
            self.choose(tuple(sorted(known)))
        except SampleError as error:
            raise ArgumentError(f"fields names {error.field!r}, but the data set {error}", argument="fields") from None

    def members(self, index: ShardIndex, samples: Int64s | None = None) -> Int64s:
        """Return the members of a shard, by their numbers, that the fields of some samples or all are made of."""
        samples = np.arange(index.num_samples) if samples is None else samples
        if self.are_all:
            return runs(index.sample_starts, samples)[0]
        names = tuple(extension.lower() for extension in index.extensions)
        starts = index.sample_starts
        if index.is_uniform and len(samples):
            indexes = self._indexes(tuple(names[kind] for kind in index.extension_ids[: starts[1]]))
            return (starts[samples][:, None] + indexes).ravel()
        members = [np.zeros(0, np.int64)]
        for start, stop in zip(starts[samples].tolist(), starts[samples + 1].tolist(), strict=True):
            members.append(start + self._indexes(tuple([names[kind] for kind in index.extension_ids[start:stop]])))
        return np.concatenate(members)

    def of_epoch(self, picks: npt.NDArray[np.uint32] | None) -> Members | None:
        """Return which members of a shard an epoch reads, of all samples or those that a view picked; ``None`` for all.

        Args:
            picks: uint32 [samples]: as `wdsdist.shards.source.picks_of` returns them.
        """
        if picks is None and self.are_all:
            return None
        return partial(self.members, samples=None if picks is None else distinct(picks.astype(np.int64)))

    def _indexes(self, layout: tuple[str, ...]) -> Int64s:
        """Return the indexes of chosen members in a layout; none if it lacks a field, which is an error later."""
        try:
            return np.array([index for *_, index in self.choose(layout) if index != ABSENT], np.int64)
        except SampleError:
            return np.zeros(0, np.int64)

    def _chosen(self, layout: tuple[str, ...]) -> Iterator[tuple[str, str, int]]:
        if self.are_all:
            yield from ((extension, extension, index) for index, extension in enumerate(layout))
        for names in self._alternatives:
            extension = next((name for name in names if name in layout), None)
            if extension is not None:
                yield names[0], extension, layout.index(extension)
            elif names[0] in self.optional:
                yield names[0], names[0], ABSENT
            else:
                shown = "any image" if names[0] == ANY_IMAGE else " or ".join(map(repr, names))
                images = [name for name in layout if name in IMAGE_TYPES and names[0] in IMAGE_TYPES]
                rare = [name for name in layout if name in RARE_IMAGE_TYPES and names[0] == ANY_IMAGE]
                either = f"; ask for either as '{';'.join([*names, *images])}', any image as 'image'" if images else ""
                either += f"; if your Pillow reads it, ask for it as '{';'.join([ANY_IMAGE, *rare])}'" if rare else ""
                error = SampleError(f"has no member {shown}: it has {', '.join(sorted(layout)) or 'none'}{either}")
                error.field, error.reason = names[0], str(error)
                raise error


def _alternatives(field: str, raw_images: bool) -> Iterator[str]:
    """Yield the extensions that a field may have, first the one that names it."""
    for name in field.lower().removesuffix("?").split(";"):
        if "?" in name:
            raise ArgumentError(
                f"fields has {field!r}: the '?' of an optional field is its end, as in 'jpg;png?'", argument="fields"
            )
        yield name
        if name == ANY_IMAGE:
            yield from IMAGE_TYPES
            yield from ("npy",) if raw_images else ()


class Problem(NamedTuple):
    """A problem with one field of a sample."""

    field: str
    member: int
    """Index of the member in the sample's layout, or `ABSENT`."""
    reason: str
    """A phrase such as ``"is empty"``."""


class SampleCheck:
    """Checker of samples: finds missing fields and members that do not decode, as reading the samples would.

    Args:
        fields: the fields that a sample must have, and not empty. By default no field is required, and all are decoded.
        decode: whether members must decode: images to their last pixel, audio and video to their last frame. Members
            that no decoder knows always do.
        max_pixels: the most pixels of an image.

    >>> check = SampleCheck(Fields(("txt", "json")), decode=True)
    >>> members = [b"hello", b"{"]
    >>> [(problem.field, problem.member) for problem in check.problems(("txt", "json"), [5, 1], members.__getitem__)]
    [('json', 1)]
    """

    def __init__(self, fields: Fields | None, *, decode: bool, max_pixels: int | None = None) -> None:
        self._fields = fields or Fields(None)
        self._decode: Callable[..., Any] = lambda *_, **__: None
        if decode:
            from wdsdist.media.containers import check_media
            from wdsdist.samples.images.decode import DecodeImage
            from wdsdist.samples.sample_spec import Decoder  # imports torch, which most commands do without

            images = {ANY_IMAGE: DecodeImage("rgb8", max_pixels=max_pixels)}
            self._decode = Decoder({**DECODERS, **images, **dict.fromkeys(MEDIA_TYPES, check_media)})

    def problems(
        self,
        layout: tuple[str, ...],
        sizes: Sequence[int],
        read: Callable[[int], bytes],
        unzip: Callable[[int], Any] = lambda index: None,
    ) -> Iterator[Problem]:
        """Yield the problems of a sample.

        Args:
            layout: the extensions of its members, in lower case.
            sizes: their bytes.
            read: returns the data of a member, by its index in the layout.
            unzip: returns the function that unpacks a compressed member and counts what the shard unpacks to.

        Raises `SampleError` when a package that a decoder needs is missing.
        """
        try:
            chosen = self._fields.choose(layout)
        except SampleError as error:
            yield Problem(error.field, ABSENT, error.reason)
            return
        for field, extension, index in chosen:
            is_empty = index == ABSENT or (not self._fields.are_all and not sizes[index])
            if is_empty and field not in self._fields.optional:
                yield Problem(field, index, "is empty")
            elif not is_empty:
                try:
                    self._decode(extension, read(index), unzip=unzip(index), field=field)
                except SampleError as error:
                    if isinstance(error.__cause__, ImportError):  # a decoder lacks its package
                        raise
                    yield Problem(field, index, str(error))
