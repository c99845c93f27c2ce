"""Copy remote files to local ones."""

from __future__ import annotations

import asyncio
import concurrent.futures
from pathlib import Path

from wdsdist.errors import ShardNotFoundError, StorageError
from wdsdist.storage.clients import filesystem
from wdsdist.storage.copying import GRACE, Connections, Copy, Transfer
from wdsdist.storage.deadline import Deadline
from wdsdist.storage.options import StorageOptions
from wdsdist.storage.urls import shown

_SHARED = Connections()


def fetch(
    location: str,
    path: Path,
    options: StorageOptions | None = None,
    *,
    size: int | None = None,
    deadline: Deadline | None = None,
    connections: Connections | None = None,
) -> Transfer:
    """Copy a remote file to a local path, in parallel parts, trying again after passing faults.

    An existing file keeps its inode and its room: it is written in place. Where the file cannot be had, what is at the
    path is of no use.

    Args:
        location: a URL.
        path: of the local file.
        options: for the client of the back end.
        size: of the file in bytes, which saves asking; what has another size is not accepted.
        deadline: until when. Without one it goes on as long as bytes come, and a part that fails is tried again for
            5 minutes.
        connections: shared with other fetches; by default with all of this process, 16 at once.

    Raises `ShardNotFoundError` where there is no such file, at once; `StorageError` with the number of attempts and
    the cause where it cannot be had before the deadline, or at once where another attempt would not help.
    """
    with begin_fetch(location, path, options, size=size, deadline=deadline, connections=connections) as running:
        return running.result()


def begin_fetch(
    location: str,
    path: Path,
    options: StorageOptions | None = None,
    *,
    size: int | None = None,
    deadline: Deadline | None = None,
    connections: Connections | None = None,
) -> Fetching:
    """Begin what `fetch` does, and return at once. So a thread has several fetched at the same time:

        with begin_fetch(shard, path) as one, begin_fetch(index, other_path) as other:
            one.result()
            other.result()

    Takes what `fetch` takes. Raises `StorageError` where there is no client for the location.
    """
    import fsspec.asyn

    client, remote = filesystem(location, options, retries=False)
    copy = Copy(location, path, client, remote, deadline, connections or _SHARED)
    return Fetching(copy, asyncio.run_coroutine_threadsafe(copy.run(size), fsspec.asyn.get_loop()))


class Fetching:
    """A fetch that runs; at the end of a ``with`` block it is given up unless it is done."""

    def __init__(self, copy: Copy, future: concurrent.futures.Future[Transfer]) -> None:
        self._copy = copy
        self._future = future

    def __enter__(self) -> Fetching:
        return self

    def __exit__(self, *_: object) -> None:
        self.give_up()

    def result(self) -> Transfer:
        """Wait until the file is there. Raises what `fetch` raises."""
        copy, deadline = self._copy, self._copy.deadline
        try:
            return self._future.result(timeout=deadline.left() + GRACE if deadline else None)
        except FileNotFoundError:
            raise ShardNotFoundError(f"{shown(copy.location)} does not exist") from None
        except concurrent.futures.TimeoutError:  # also while it waited for a connection
            cause = f", last: {copy.fault}" if copy.fault else ""
            raise StorageError(
                f"{shown(copy.location)} cannot be read in time ({copy.retries} retries{cause})"
            ) from None
        except StorageError as error:  # without the traceback of the event loop
            raise type(error)(str(error)) from None

    def give_up(self) -> None:
        """Stop, and wait until nothing is written to the file any more."""
        self._future.cancel()
        self._copy.ended.wait(GRACE)
