"""Check samples without training: whether they have the fields that are read, and whether their members decode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from wdsdist._util.file_types import MEDIA_TYPES
from wdsdist.errors import SampleError
from wdsdist.samples.codecs import DECODERS
from wdsdist.samples.fields import ABSENT, ANY_IMAGE, Fields


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
