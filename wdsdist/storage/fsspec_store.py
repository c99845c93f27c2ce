"""Every store that is neither local, nor the web, nor plain S3: read and written by the clients of fsspec."""

from __future__ import annotations

import concurrent.futures
import functools
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping
from typing import IO, Any

from wdsdist.storage.failures import Failure
from wdsdist.storage.options import StorageOptions, given_for
from wdsdist.storage.store import Entry, Opened, Sink
from wdsdist.storage.urls import scheme, scrubbed, shown, split

_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure",
           "hf": "hf"}  # fmt: skip
_LOGIN = re.compile(r"[^/]*@|(?!arn:)[^/]*:")
"""Credentials before a bucket; a secret may hold a slash."""
_STALL = 20.0  # seconds
_POOL = 128
"""Connections that a client may hold; more than there are threads, or requests would wait unseen."""
_STAMPS = ("ETag", "etag", "md5Hash", "content_md5", "sha256", "mtime", "LastModified", "Last-Modified",
           "last_modified", "updated", "modified", "created")  # fmt: skip

_used: dict[int, Any] = {}
"""All clients that were ever used, by identity, so that they are never destroyed. A forked child drops what fsspec
inherited, and a client that ends closes its connections: the parent, whose they are, would then wait on them."""


class FsspecStore:
    """A store that a client of fsspec speaks to."""

    has_versions = False

    def __init__(self, client: Any) -> None:
        self._client = client

    def read(
        self, path: str, start: int, stop: int | None, sink: Sink, *, size: int | None, timeout: float, opened: Opened
    ) -> Entry:
        """Give the bytes of a range to ``sink`` at once, as `Store.read` says."""
        # One byte more shows that an object is longer than it should be.
        end = stop + 1 if stop is not None and stop == size else stop
        is_whole = start == 0 and stop in (None, size)
        wanted = {} if is_whole else {"start": start, "end": end}
        # s3fs would ask for the size first, to take the file in parts.
        in_one = {"max_concurrency": 1} if _speaks(self._client, "s3") else {}
        content = self._ask("cat_file", path, timeout, **wanted, **in_one)
        if stop is not None and len(content) != stop - start:
            raise Failure(
                "length",
                f"{shown(path)} cannot be read: {len(content):,} bytes where there should be {stop - start:,}",
            )
        sink(start, memoryview(content))
        return Entry(split(path)[1], -1 if stop is not None else len(content), "")

    def stat(self, path: str, *, timeout: float) -> Entry:
        """Return what the store says of an object."""
        return _entry(split(path)[1], self._ask("info", path, timeout))

    def list(self, path: str, *, recursive: bool, timeout: float) -> list[Entry]:
        """Return what a folder holds, or all files below it."""
        self._client.invalidate_cache()  # what other processes have written since must be in the list
        root = path.rstrip("/") + "/"
        try:
            if recursive:
                found = list(self._ask("find", path, timeout, detail=True).values())
            else:
                found = self._ask("ls", path, timeout, detail=True)
        except FileNotFoundError:
            return []
        names = [info["name"].rstrip("/") for info in found]
        return [
            _entry(name[len(root) :], info)
            for name, info in zip(names, found, strict=True)
            if name.startswith(root) and name != root.rstrip("/")
        ]

    def put(self, path: str, content: IO[bytes], *, timeout: float) -> None:
        """Write an object, whole or not at all."""
        # Back ends that want a path get the system's name of the open file.
        self._client.put_file(f"/proc/self/fd/{content.fileno()}", path)

    def delete(self, path: str, *, timeout: float) -> None:
        """Delete an object."""
        self._client.rm_file(path)

    def _ask(self, verb: str, path: str, timeout: float, **how: Any) -> Any:
        """Call a method of the client, which answers within so many seconds."""
        if not self._client.async_impl:
            return _within(timeout, functools.partial(getattr(self._client, verb), path, **how))
        import fsspec.asyn
        import fsspec.exceptions

        try:
            action = getattr(self._client, f"_{verb}")
            return fsspec.asyn.sync(self._client.loop, action, path, timeout=timeout, **how)
        except fsspec.exceptions.FSTimeoutError:
            raise TimeoutError(f"no answer in {timeout:.1f} s") from None


def _within(seconds: float, action: Callable[[], Any]) -> Any:
    """Call a function that may block, in a thread that is abandoned if it takes longer."""
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def work() -> None:
        try:
            future.set_result(action())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name="wdsdist-storage", daemon=True).start()
    try:
        return future.result(seconds)
    except TimeoutError:
        if future.done():
            raise
        raise TimeoutError(f"no answer in {seconds:.1f} s") from None


def _entry(name: str, info: Mapping[str, Any]) -> Entry:
    size = -1 if info.get("size") is None else int(info["size"])
    stamp = str(next(filter(None, (info.get(key) for key in _STAMPS)), ""))
    return Entry(name, size, stamp, info.get("type") == "directory")


def _speaks(client: Any, protocol: str) -> bool:
    """Return whether a client speaks a protocol, by the name that fsspec gives it; some have several."""
    names = client.protocol
    return protocol in (names if isinstance(names, (tuple, list)) else (names,))


def fsspec_store(location: str, options: StorageOptions | None) -> tuple[FsspecStore, str]:
    """Return the store of a location, and the path of the location there.

    Clients are shared by all threads, and made again in a forked process; fsspec sees to both.
    """
    kind, _, rest = location.partition("://")
    if kind in ("s3", "s3a", "gs", "gcs") and _LOGIN.match(rest):
        raise Failure(
            "invalid",
            f"credentials in an {kind}:// URL are not read: name the bucket alone, and pass them as storage_options, "
            f"or keep them in a profile or the environment, where the store's own tools look",
        )
    given = given_for(location, options)
    if kind in ("s3", "s3a"):
        ours = {"max_pool_connections": _POOL, "read_timeout": _STALL, "retries": {"total_max_attempts": 1}}
        given = {**given, "config_kwargs": {**ours, **given.get("config_kwargs", {})}}
    client, path = _made(location, given)
    if hasattr(client, "retries"):  # s3fs and gcsfs: the engine retries, with regard to the deadline
        client.retries = 1
    _used[id(client)] = client
    return FsspecStore(client), path


def _made(location: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    import fsspec

    try:
        client, path = fsspec.core.url_to_fs(location, **options)
    except ImportError:
        extra = _EXTRAS.get(scheme(location))
        advice = f'pip install "wdsdist[{extra}]"' if extra else f"install the fsspec back end for {scheme(location)}"
        raise Failure("invalid", f"{shown(location)} needs a package that is not installed: {advice}") from None
    except ValueError as error:
        message = f"{shown(location)} cannot be opened: {scrubbed(str(error), location)}"
        raise Failure("invalid", message) from None
    return client, path


def _reset_lock() -> None:
    if module := sys.modules.get("fsspec.asyn"):
        module.reset_lock()  # a thread of the parent may have held it; fsspec itself resets only its loop


os.register_at_fork(after_in_child=_reset_lock)
