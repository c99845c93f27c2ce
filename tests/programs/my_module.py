"""A module of a user, whose objects the command line packs: ``wdsdist pack my_module:Squares DEST``."""

from __future__ import annotations

from collections.abc import Iterator


class Squares:
    """A map-style data set of tuples."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, index**2


def encode(item: tuple[int, int]) -> dict[str, object]:
    return {"cls": item[0], "txt": str(item[1])}


def lines(*, broken: bool = False) -> Iterator[dict[str, str]]:
    for number in range(30):
        if number == 20 and broken:
            raise OSError("no more")
        yield {"txt": f"line {number}"}


class Broken:
    """An iterable that fails on the way."""

    def __iter__(self) -> Iterator[dict[str, str]]:
        return lines(broken=True)
