"""Every store that is neither local, nor the web, nor plain S3: read and written by the clients of fsspec."""

from __future__ import annotations

import concurrent.futures
import os
import re
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any

from wdsdist.storage.failures import Failure
from wdsdist.storage.store import Entry, Sink
from wdsdist.storage.urls import StorageOptions, options_for, scheme, shown, split
from wdsdist.storage.waiting import policy

_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure",
           "hf": "hf"}  # fmt: skip
_LOGIN = re.compile(r"[^/]*@|(?!arn:)[^/]*:")
"""Credentials before a bucket; a secret may hold a slash."""
_POOL = 128
"""Connections that a client may hold; more than there are threads, or requests would wait unseen."""
_STAMPS = ("ETag", "etag", "md5Hash", "content_md5", "sha256", "mtime", "LastModified", "Last-Modified",
           "last_modified", "updated", "modified", "created")  # fmt: skip

_used: dict[int, Any] = {}
"""All clients that were ever used, by identity, so that none is destroyed. A forked child drops the clients of its
parent, and a client that ends closes its connections: the parent would then wait on them."""


@dataclass(frozen=True, slots=True)
class FsspecStore:
    """A store that a client of fsspec speaks to."""

    client: Any
    reading: Mapping[str, Any]
    """Arguments of ``cat_file``."""

    def read(self, path: str, start: int, stop: int | None, sink: Sink, *, size: int | None, timeout: float) -> None:
        """Give the bytes of a range to ``sink`` at once, as `Store.read` says."""
        arguments = dict(self.reading)
        if start or stop not in (None, size):
            # One byte more shows that an object is longer than it should be.
            arguments |= {"start": start, "end": stop + 1 if stop is not None and stop == size else stop}
        content = self._call("cat_file", path, timeout, **arguments)
        if stop is not None and len(content) != stop - start:
            message = f"{shown(path)} cannot be read: {len(content):,} bytes where there should be {stop - start:,}"
            raise Failure("length", message)
        sink(start, memoryview(content))

    def stat(self, path: str, *, timeout: float) -> Entry:
        """Return what the store says of an object."""
        return _entry(split(path)[1], self._call("info", path, timeout))

    def list(self, path: str, *, recursive: bool, timeout: float) -> list[Entry]:
        """Return what a folder holds, or all files below it."""
        self.client.invalidate_cache()  # what other processes have written since must be in the list
        root = path.rstrip("/") + "/"
        try:
            infos = self._call("find" if recursive else "ls", path, timeout, detail=True)
        except FileNotFoundError:
            return []
        named = [(info["name"].rstrip("/"), info) for info in (infos.values() if recursive else infos)]
        return [_entry(name[len(root) :], info) for name, info in named if name.startswith(root)]

    def put(self, path: str, content: IO[bytes], *, timeout: float) -> None:
        """Write an object, whole or not at all."""
        # Back ends that want a path get the system's name of the open file.
        self.client.put_file(f"/proc/self/fd/{content.fileno()}", path)

    def delete(self, path: str, *, timeout: float) -> None:
        """Delete an object."""
        self.client.rm_file(path)

    def _call(self, verb: str, path: str, timeout: float, **arguments: Any) -> Any:
        """Call a method of the client in a thread, which is abandoned if it takes longer than so many seconds."""
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def work() -> None:
            try:
                future.set_result(getattr(self.client, verb)(path, **arguments))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=work, name="wdsdist-storage", daemon=True).start()
        try:
            return future.result(timeout)
        except TimeoutError:
            if future.done():
                raise
            raise TimeoutError(f"no answer in {timeout:.1f} s") from None


def _entry(name: str, info: Mapping[str, Any]) -> Entry:
    size = -1 if info.get("size") is None else int(info["size"])
    stamp = str(next(filter(None, (info.get(key) for key in _STAMPS)), ""))
    return Entry(name, size, stamp, info.get("type") == "directory")


def fsspec_store(location: str, options: StorageOptions | None) -> tuple[FsspecStore, str]:
    """Return the store of a location, and the path of the location there.

    Clients are shared by all threads, and made again in a forked process; fsspec sees to both.
    """
    import fsspec

    kind, _, rest = location.partition("://")
    if kind in ("s3", "s3a", "gs", "gcs") and _LOGIN.match(rest):
        raise Failure(
            "invalid",
            f"credentials in an {kind}:// URL are not read: name the bucket alone, and pass them as storage_options, "
            f"or keep them in a profile or the environment, where the store's own tools look",
        )
    given, reading = options_for(location, options), {}
    if kind in ("s3", "s3a"):
        ours = {"max_pool_connections": _POOL, "read_timeout": policy.stall, "retries": {"total_max_attempts": 1}}
        given["config_kwargs"] = {**ours, **given.get("config_kwargs", {})}
        reading = {"max_concurrency": 1}  # else s3fs asks for the size first, to take the file in parts
    try:
        client, path = fsspec.core.url_to_fs(location, **given)
    except ImportError:
        extra = _EXTRAS.get(scheme(location))
        advice = f'pip install "wdsdist[{extra}]"' if extra else f"install the fsspec back end for {scheme(location)}"
        raise Failure("invalid", f"{shown(location)} needs a package that is not installed: {advice}") from None
    if hasattr(client, "retries"):  # s3fs and gcsfs: the engine retries, with regard to the deadline
        client.retries = 1
    _used[id(client)] = client
    return FsspecStore(client, reading), path


def _reset_lock() -> None:
    if module := sys.modules.get("fsspec.asyn"):
        module.reset_lock()  # a thread of the parent may have held it; fsspec itself resets only its loop


os.register_at_fork(after_in_child=_reset_lock)
