"""The bytes of a remote file or of a range of it: piece by piece as they arrive, or through fsspec all at once.

Through fsspec's one event loop comes half of what the same number of plain connections gives: web servers and S3 are
therefore read by `Direct` clients, wherever the options allow.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from wdsdist.errors import StorageError
from wdsdist.storage.clients import speaks
from wdsdist.storage.direct import Answer, Direct, check_range
from wdsdist.storage.link_speed import note_speed
from wdsdist.storage.retry import NoRangesError
from wdsdist.storage.urls import shown

T = TypeVar("T")


class ChangedError(StorageError):
    """An object was replaced while parts of it were downloaded."""


async def content(client: Any, path: str, wanted: range | None) -> bytes:
    """Return a range, or without one the whole file, by a client of fsspec.

    Raises what the back end raises, and `NoRangesError` where only the whole file can be had.
    """
    start, stop = (wanted.start, wanted.stop) if wanted else (None, None)
    if client.async_impl:
        found: bytes = await client._cat_file(path, start=start, end=stop, **in_one_request(client))
    else:
        found = await in_thread(client.cat_file, path, start, stop)
    if wanted and len(found) > len(wanted) and speaks(client, "http"):
        raise NoRangesError
    return found


def in_one_request(client: Any) -> dict[str, Any]:
    """Return how to ask a client of fsspec for a file: s3fs would ask for its size first, to take it in parts."""
    return {"max_concurrency": 1} if speaks(client, "s3") else {}


async def size_of(client: Any, path: str) -> int | None:
    """Return the size of a file in bytes; None where the store does not say."""
    info = await (client._info(path) if client.async_impl else in_thread(client.info, path))
    return None if info.get("size") is None else int(info["size"])


async def receive(
    client: Direct, path: str, wanted: range | None, tags: set[str], take: Callable[[memoryview], None],
    wait: Callable[[], None],
) -> None:  # fmt: skip
    """Give the bytes of a range, or of the whole file, to a function in a thread, which gets none once this has ended.

    One thread does it all: each turn of the event loop takes milliseconds while other programs keep the cores busy.
    ``wait`` is called after each piece. Raises what `content` raises, and `ChangedError` where the ETag of an object of
    S3 is not that in ``tags``, which gets the first one.
    """
    answers: list[Answer] = []
    is_over = threading.Event()

    def read() -> None:
        began = time.monotonic()
        with client.answer("GET", path, wanted) as answer:
            delay = time.monotonic() - began
            answers.append(answer)
            if is_over.is_set():  # nobody waits any more
                return
            if wanted and answer.status != 206:
                raise NoRangesError
            check_range(answer, wanted)
            if client.addresses and "ETag" in answer.headers:
                tags.add(answer.headers["ETag"])
                if len(tags) > 1:
                    raise ChangedError(f"{shown(path)} was replaced while it was downloaded: try again")
            seconds = answer.each(take, wait)
            if wanted:
                note_speed(path, delay=delay, size=len(wanted), seconds=seconds)

    try:
        await in_thread(read)
    finally:
        is_over.set()
        for answer in answers:
            answer.abandon()


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Call something that blocks, in a thread that may be left alone: neither this call nor the process waits for it.

    The threads of an executor would keep the process from ending as long as one of them hangs.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(settle: Callable[[Any], None], value: Any) -> None:
        if not future.done():  # nobody waits any more
            settle(value)

    def work() -> None:
        try:
            outcome: tuple[Callable[[Any], None], Any] = (future.set_result, function(*arguments))
        except BaseException as error:
            outcome = (future.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            loop.call_soon_threadsafe(deliver, *outcome)

    threading.Thread(target=work, name="wdsdist-storage", daemon=True).start()
    return await future
