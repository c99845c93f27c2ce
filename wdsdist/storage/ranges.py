"""Byte ranges of remote objects: fetched in parallel by the threads of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType

from wdsdist.errors import StorageError
from wdsdist.storage.clients import StorageOptions
from wdsdist.storage.download import Connections, Transfer, begin_fetch
from wdsdist.storage.retry import Deadline, NoRangesError, WrongLengthError

Into = int | Callable[[int, memoryview], None]
"""A file descriptor, or a function that takes an offset in the object and the bytes there."""
_ahead = Connections()


class Failure(StorageError):  # noqa: N818 - the engine's own word
    """A request failed; ``kind`` decides whether another attempt may help."""

    kind = "broken"


class Download:
    """Handle of running requests; the end of its ``with`` block cancels what still runs."""

    def __init__(self, fetching: object, ranges: list[tuple[int, int]], done: Callable[[int, int], None] | None,
                 location: str) -> None:  # fmt: skip
        self._fetching, self._ranges, self._done, self._location = fetching, ranges, done, location

    def __enter__(self) -> Download:
        self._fetching.__enter__()  # type: ignore[attr-defined]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._fetching.__exit__(kind, error, at)  # type: ignore[attr-defined]
        import os

        if self.memory is not None:
            os.close(self.memory)

    def result(self) -> Transfer:
        """Wait until all ranges are there."""
        try:
            transfer: Transfer = self._fetching.result()  # type: ignore[attr-defined]
        except (NoRangesError, WrongLengthError) as error:
            failure = Failure(str(error))
            failure.kind = "ranges" if isinstance(error, NoRangesError) else "length"
            raise failure from None
        for start, stop in self._ranges if self._done is not None else ():
            assert self._done is not None
            self._done(start, stop)
        return transfer


def begin_ranges(
    location: str, ranges: Iterable[tuple[int, int]], into: Into, options: StorageOptions | None = None, *,
    size: int | None = None, deadline: Deadline | None = None, done: Callable[[int, int], None] | None = None,
    is_ahead: bool = False,
) -> Download:  # fmt: skip
    """Start to fetch ranges of an object and return at once."""
    wanted = list(ranges)
    whole = size is not None and wanted == [(0, size)]
    if not isinstance(into, int):
        import os

        write, memory = into, os.memfd_create("shim")
        given = done

        def done(start: int, stop: int) -> None:
            data = os.pread(memory, stop - start, start)
            write(start, memoryview(data))
            if given is not None:
                given(start, stop)

        into = memory
    fetching = begin_fetch(
        location, Path(f"/proc/self/fd/{into}"), options, deadline=deadline,
        connections=_ahead if is_ahead else None, ranges=None if whole else [range(*one) for one in wanted],
    )  # fmt: skip
    d = Download(fetching, wanted, done, location)
    d.memory = locals().get("memory")
    return d


def read_ranges(
    location: str, ranges: Iterable[tuple[int, int]], into: Into, options: StorageOptions | None = None, *,
    size: int | None = None, deadline: Deadline | None = None, done: Callable[[int, int], None] | None = None,
    is_ahead: bool = False,
) -> Transfer:  # fmt: skip
    """Fetch ranges of an object and wait for them."""
    running = begin_ranges(location, ranges, into, options, size=size, deadline=deadline, done=done, is_ahead=is_ahead)
    with running as download:
        return download.result()
