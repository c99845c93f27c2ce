"""Check samples before training: whether they have the fields that will be read, and whether their members decode.

Of audio and video every frame is decoded, and none kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from wdsdist._util.containers import first_stream, opened
from wdsdist._util.file_types import MEDIA_TYPES
from wdsdist.errors import SampleError
from wdsdist.samples.bad_samples import is_fault_of_sample
from wdsdist.samples.fields import ABSENT, Fields
from wdsdist.samples.media.audio import check_riff
from wdsdist.samples.media.video import check_index, check_length


class Problem(NamedTuple):
    """A problem with one field of a sample."""

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
        """Yield the problems of a sample.

        Args:
            layout: the extensions of its members, in lower case.
            sizes: their bytes.
            read: returns the data of a member, by its place.
            unzip: returns the function that unpacks a compressed member and counts what the shard unpacks to.

        Raises `SampleError` where a package that a codec needs is missing.
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
                except SampleError as error:
                    if not (is_fault_of_sample(error) or isinstance(error, SampleError)):
                        raise
                    yield Problem(field, place, str(error))


def check_media(data: bytes) -> None:
    """Decode the first video and the first audio of a file to their ends.

    Raises `SampleError` for what is damaged or cut short, as far as the decoders can tell, and for a file without
    either; `ExtraMissingError` without PyAV.
    """
    check_riff(data)
    ends: list[Fraction] = []
    announced: Fraction | None = None
    for kind in ("video", "audio"):
        with opened(data, "checking audio and video") as container:
            stream = first_stream(container, kind)
            if stream is None:
                continue
            check_index(stream, len(data))
            ends.append(_decoded(container, stream))
            # Of these, the length is guessed by the rate of the first frames.
            is_guess = container.format.name == "aac" or (container.format.name == "mp3" and not stream.start_time)
            if container.duration is not None and not is_guess:
                announced = Fraction(container.duration, 1_000_000)
    if not ends:
        raise SampleError("there is no audio or video in it")
    if announced is not None:
        check_length(max(ends), announced)


def _decoded(container: Any, stream: Any) -> Fraction:
    """Decode a stream to its end; return how long it is, in seconds."""
    stream.codec_context.thread_count = 1
    start = Fraction(container.start_time or 0, 1_000_000)
    end = decoded = Fraction(0)
    for frame in container.decode(stream):
        if frame.is_corrupt:
            raise SampleError(f"a frame of its {stream.type} is damaged")
        if frame.pts is not None:
            length = (frame.duration or 0) * frame.time_base
            end, decoded = max(end, frame.pts * frame.time_base - start + length), decoded + length
    if not end:
        raise SampleError(f"there is no frame in its {stream.type}")
    if container.format.name == "flac" and stream.duration and decoded < stream.duration * stream.time_base:
        raise SampleError("a frame of its audio is damaged")  # FFmpeg leaves out those whose checksum is wrong
    return end
