"""Check samples before training: whether they have the fields that will be read, and whether their members decode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from wdsdist.errors import DecodeError, ExpansionError, SampleError
from wdsdist.samples.bad_samples import is_fault_of_sample
from wdsdist.samples.fields import ABSENT, Fields
from wdsdist.samples.media.check import MEDIA_TYPES, check_media


class Problem(NamedTuple):
    """What is wrong with one field of a sample."""

    field: str
    place: int
    """Of the member in the sample's layout, or `ABSENT`."""
    reason: str
    """As a phrase: ``"is empty"``."""


class SampleCheck:
    """Checker of samples: finds missing fields and members that do not decode, as reading the samples would.

    Args:
        fields: those that a sample must have, and not empty; as `wdsdist.StreamingDataset` takes them. By default, none
            must be there, and all are decoded.
        decode: whether members must decode, images to their last pixel and audio and video to their last frame; those
            that no codec knows always do.
        max_pixels: the most pixels that an image may have.

    >>> check = SampleCheck(("txt", "json"), decode=True)
    >>> members = [b"hello", b"{"]
    >>> [(problem.field, problem.place) for problem in check.problems(("txt", "json"), [5, 1], members.__getitem__)]
    [('json', 1)]
    >>> [problem.reason for problem in check.problems(("txt",), [5], members.__getitem__)]
    ["has no member 'json': it has txt"]
    """

    def __init__(self, fields: Sequence[str] | None, *, decode: bool, max_pixels: int | None = None) -> None:
        self._fields = Fields(fields)
        self._is_named = fields is not None
        self._decoder: Callable[..., Any] | None = None
        if decode:
            from wdsdist.samples.sample_spec import Decoder  # torch, which commands do without where they can

            self._decoder = Decoder("rgb8", max_pixels=max_pixels)

    def problems(
        self,
        layout: tuple[str, ...],
        sizes: Sequence[int],
        read: Callable[[int], bytes],
        unzip: Callable[[int], Any] = lambda place: None,
    ) -> Iterator[Problem]:
        """Yield what is wrong with a sample.

        Args:
            layout: the extensions of its members, in lower case.
            sizes: their bytes.
            read: returns the data of a member, by its place.
            unzip: returns the function that unpacks a compressed member and counts what the shard unpacks to.

        Raises `DecodeError` where a package that a codec needs is missing.
        """
        try:
            chosen = self._fields.choose(layout)
        except SampleError as error:
            yield Problem(error.field, ABSENT, error.reason)
            return
        for field, extension, place in chosen:
            if place == ABSENT or (self._is_named and not sizes[place]):
                if field not in self._fields.optional:
                    yield Problem(field, place, "is empty")
            elif self._decoder is not None:
                try:
                    if extension.rpartition(".")[2] in MEDIA_TYPES:
                        check_media(read(place))
                    else:
                        self._decoder(extension, read(place), unzip=unzip(place), field=field)
                except DecodeError as error:
                    if not (is_fault_of_sample(error) or isinstance(error, ExpansionError)):
                        raise
                    yield Problem(field, place, str(error))
