"""Ranges of bytes as they arrive: what is written while the rest is on its way is in memory only once.

fsspec's own `cat_file` returns a range when all of it is there; through one event loop that reaches half of what the
same number of plain connections does. Web servers and S3 are therefore read piece by piece, through the session that
fsspec's client holds; other back ends with `cat_file`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any, TypeVar

from wdsdist.errors import StorageError
from wdsdist.storage.clients import speaks

T = TypeVar("T")
_PIECE = 1 << 20  # bytes at most; what has arrived is given at once
_STAMPS = ("ETag", "etag", "md5Hash", "content_md5", "sha256", "mtime", "LastModified", "last_modified", "updated",
           "modified", "created")  # fmt: skip


class NoRangesError(StorageError):
    """A web server gives whole files only."""


def pieces(client: Any, path: str, wanted: range | None) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of a range, or without one of the whole file, on the event loop.

    Raises what the back end raises, and `NoRangesError` where only the whole file can be had.
    """
    if speaks(client, "http"):
        return _of_http(client, path, wanted)
    if speaks(client, "s3"):
        return _of_s3(client, path, wanted)
    return _at_once(client, path, wanted)


def stamp_of(info: Mapping[str, Any]) -> str:
    """Return what a store says of a file that tells one content from another; empty where nothing does."""
    return str(next(filter(None, (info.get(key) for key in _STAMPS)), ""))


async def size_of(client: Any, path: str) -> int | None:
    """Return the size of a file in bytes; None where the store does not say."""
    info = await (client._info(path) if client.async_impl else _in_thread(client.info, path))
    return None if info.get("size") is None else int(info["size"])


async def whole(client: Any, path: str) -> tuple[bytes, str]:
    """Return a file, through an asynchronous client, and its stamp: what the store gives to tell contents apart.

    Both are of one answer where the client lets them be; else the stamp is the older of the two.
    """
    if speaks(client, "http"):
        async with _http_answer(client, path) as answer:
            return await answer.read(), answer.headers.get("ETag", "")
    if speaks(client, "s3"):
        answer = await _s3_answer(client, path)
        with contextlib.closing(answer["Body"]) as body:
            return await body.read(), answer.get("ETag", "")
    stamp = stamp_of(await client._info(path))
    return await client._cat_file(path), stamp


@contextlib.asynccontextmanager
async def _http_answer(client: Any, path: str, wanted: range | None = None) -> AsyncIterator[Any]:
    session = await client.set_session()
    options = dict(client.kwargs)
    # A body that the server compresses on its way has neither the length nor the ranges of the file.
    headers = {**options.pop("headers", {}), "Accept-Encoding": "identity"}
    if wanted:
        headers["Range"] = _header(wanted)
    async with session.get(client.encode_url(path), headers=headers, read_bufsize=_PIECE, **options) as answer:
        answer.raise_for_status()
        yield answer


async def _of_http(client: Any, path: str, wanted: range | None) -> AsyncGenerator[bytes, None]:
    async with _http_answer(client, path, wanted) as answer:
        if wanted and answer.status != 206:
            raise NoRangesError
        async for piece in answer.content.iter_any():
            yield piece


async def _s3_answer(client: Any, path: str, wanted: range | None = None) -> Any:
    bucket, key, version = client.split_path(path)
    more = {"VersionId": version} if version else {}
    if wanted:
        more["Range"] = _header(wanted)
    return await client._call_s3("get_object", Bucket=bucket, Key=key, **more)


async def _of_s3(client: Any, path: str, wanted: range | None) -> AsyncGenerator[bytes, None]:
    answer = await _s3_answer(client, path, wanted)
    with contextlib.closing(answer["Body"]) as body:
        while piece := await body.read(_PIECE):
            yield piece


def _header(wanted: range) -> str:
    return f"bytes={wanted.start}-{wanted.stop - 1}"


async def _at_once(client: Any, path: str, wanted: range | None) -> AsyncGenerator[bytes, None]:
    start, stop = (wanted.start, wanted.stop) if wanted else (None, None)
    if client.async_impl:
        yield await client._cat_file(path, start=start, end=stop)
    else:
        yield await _in_thread(client.cat_file, path, start, stop)


async def _in_thread(function: Callable[..., T], *arguments: Any) -> T:
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
