"""How samples are made of members: which of them, decoded how, transformed by what."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from wdsdist.errors import ArgumentError, ArgumentTypeError, SampleError
from wdsdist.samples.collate import Sample
from wdsdist.samples.decode import Decoder
from wdsdist.samples.images.transforms import is_seeded

Chosen = tuple[tuple[str, str, int], ...]
"""Of each field: its entry in the sample, its extension, and the member's place in the layout."""


class Fields:
    """Chooses members by the extensions that ``fields=`` names.

    >>> Fields(("jpg;png", "cls")).choose(("cls", "png", "txt"))
    (('jpg', 'png', 1), ('cls', 'cls', 0))
    """

    def __init__(self, fields: Sequence[str] | None) -> None:
        if isinstance(fields, str) or not all(isinstance(field, str) and field for field in fields or ()):
            raise ArgumentTypeError(f"fields is {fields!r}: it must be a list of extensions such as ('jpg;png', 'cls')")
        self._alternatives = [tuple(field.lower().split(";")) for field in fields] if fields is not None else None
        names = [alternatives[0] for alternatives in self._alternatives or ()]
        if len(names) > len(set(names)):
            raise ArgumentError(f"fields is {fields!r}: two of them have the same name, that before the first ';'")
        self._known: dict[tuple[str, ...], Chosen] = {}

    def choose(self, layout: tuple[str, ...]) -> Chosen:
        """Return (entry name, extension, place) for each field; the entry has the name of the first alternative.

        Raises `SampleError` where the layout has none of a field's alternatives.
        """
        chosen = self._known.get(layout)
        if chosen is None:
            # Samples have few layouts; where each has another, none is worth keeping.
            if len(self._known) > 1000:
                self._known.clear()
            chosen = self._known[layout] = tuple(self._chosen(layout))
        return chosen

    def _chosen(self, layout: tuple[str, ...]) -> Iterator[tuple[str, str, int]]:
        if self._alternatives is None:
            yield from ((extension, extension, place) for place, extension in enumerate(layout))
            return
        for names in self._alternatives:
            extension = next((name for name in names if name in layout), None)
            if extension is None:
                raise SampleError(
                    f"has no member {' or '.join(map(repr, names))}: it has {', '.join(sorted(layout)) or 'none'}"
                )
            yield names[0], extension, layout.index(extension)


@dataclass(frozen=True, eq=False)
class Recipe:
    """How the samples of one data set are made.

    Raises `ArgumentTypeError` for a transform that cannot be called.
    """

    fields: Fields
    decoder: Decoder
    transform: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        if self.transform is not None and not callable(self.transform):
            raise ArgumentTypeError(f"transform is {self.transform!r}: it must be a function of a sample")

    @property
    def is_raw(self) -> bool:
        """Whether members are left as they are."""
        return self.transform is None and self.decoder.is_raw

    def raw(self) -> Recipe:
        """Return a recipe of the same members that leaves them as they are."""
        return Recipe(self.fields, Decoder(None))

    @property
    def is_light(self) -> bool:
        """Whether making a batch is little work and gives about as many bytes as it reads."""
        return self.transform is None and self.decoder.is_light

    @property
    def needs_seeds(self) -> bool:
        """Whether what it makes of a sample depends on a seed."""
        return self._transform_is_seeded or self.decoder.is_seeded

    def transformed(self, sample: Sample, seed: int) -> Any:
        """Return what the transform makes of a sample."""
        if self.transform is None:
            return sample
        return self.transform(sample, seed) if self._transform_is_seeded else self.transform(sample)

    @functools.cached_property
    def _transform_is_seeded(self) -> bool:
        return is_seeded(self.transform)
