"""Files and objects behind one interface: local paths directly, everything else through fsspec.

A *location* is a local path or a URL (``s3://``, ``gs://``, ``az://``, ``hf://``, ``http://``, ``memory://``). Clients
are made on first use in each process. Errors of the many back ends leave here as
`StorageError` or ``FileNotFoundError`` with the location in the message, without its credentials.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar

from wdsdist.errors import ShardNotFoundError, StorageError

StorageOptions = Mapping[str, Any]
T = TypeVar("T")

_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure",
           "hf": "hf", "http": "http", "https": "http"}  # fmt: skip
_ATTEMPTS = 5
_FIRST_PAUSE = 0.2  # seconds; doubled after each attempt, with jitter
_CHUNK = 8 << 20


class _FinalError(StorageError):
    """What another attempt would not mend."""


def is_remote(location: str) -> bool:
    """Say whether a location is a URL rather than a local path.

    >>> is_remote("s3://bucket/train"), is_remote("/data/train"), is_remote("file:///data/train")
    (True, False, False)
    """
    return bool(_SCHEME.match(location)) and not location.startswith("file://")


def normalise(location: str | os.PathLike[str]) -> str:
    """Return a location as a string: absolute where it is local, without a trailing slash.

    >>> normalise("file:///data/train/")
    '/data/train'
    """
    text = os.fspath(location)
    if is_remote(text):
        return text.rstrip("/")
    return os.path.abspath(text.removeprefix("file://"))  # noqa: PTH100 - Path.resolve would follow links


def join(base: str, name: str) -> str:
    """Put a name under a folder or URL; a name that is a location of its own stays one.

    >>> join("s3://bucket/train", "00.tar"), join("/data", "s3://bucket/00.tar")
    ('s3://bucket/train/00.tar', 's3://bucket/00.tar')
    """
    if _SCHEME.match(name) or name.startswith("/"):
        return name.removeprefix("file://")
    return f"{base.rstrip('/')}/{name}"


def split(location: str) -> tuple[str, str]:
    """Split a location into its folder and its name; a URL's query, which may be a signature, is in neither.

    >>> split("https://host/train/00.tar?signature=x")
    ('https://host/train', '00.tar')
    """
    folder, _, name = (location.partition("?")[0] if is_remote(location) else location).rpartition("/")
    return folder or "/", name


def beside(location: str, suffix: str) -> str:
    """Return the location of a file that stands beside another, under its name with a suffix.

    >>> beside("https://host/00.tar?signature=x", ".index")
    'https://host/00.tar.index?signature=x'
    """
    path, mark, query = location.partition("?") if is_remote(location) else (location, "", "")
    return f"{path}{suffix}{mark}{query}"


def local_path(location: str) -> Path:
    """Return the path of a location that is not remote."""
    return Path(location.removeprefix("file://"))


def sha256(path: Path) -> str:
    """Return the digest of a local file, hexadecimal."""
    state = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            state.update(chunk)
    return state.hexdigest()


def shown(location: str) -> str:
    """Return a location fit for a message: without credentials and query.

    >>> shown("https://user:secret@host/a.tar?signature=x")
    'https://host/a.tar'
    """
    if not is_remote(location):
        return location
    return re.sub(r"(?<=://)[^/@]*@", "", location.partition("?")[0])


def read(location: str, options: StorageOptions | None = None) -> bytes:
    """Return everything that a location holds.

    Raises ``FileNotFoundError`` where there is nothing, `StorageError` where it cannot be read.
    """
    if not is_remote(location):
        try:
            return Path(location).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError as error:
            raise StorageError(f"{location} cannot be read: {error.strerror}") from error

    def cat() -> bytes:
        filesystem, path = _filesystem(location, options)
        content: bytes = filesystem.cat_file(path)
        return content

    return _persist(location, cat)


def read_range(location: str, start: int, stop: int, options: StorageOptions | None = None) -> bytes:
    """Return the bytes from ``start`` up to ``stop``, trying again after passing faults.

    Raises ``FileNotFoundError`` where there is nothing, `StorageError` where it cannot be read or has fewer bytes.
    """

    def cat() -> bytes:
        filesystem, path = _filesystem(location, options)
        if location.startswith("http"):  # `cat_file` would take all of a file from a server without ranges
            with filesystem.open(path, block_size=stop - start, cache_type="none", size=stop) as stream:
                stream.seek(start)
                try:
                    content: bytes = stream.read(stop - start)
                except ValueError as error:
                    raise _FinalError(f"{shown(location)} cannot be read in parts: {error}") from error
        else:
            content = filesystem.cat_file(path, start=start, end=stop)
        if len(content) != stop - start:
            raise StorageError(
                f"{shown(location)} gave {len(content):,} of {stop - start:,} bytes from {start:,} on: was it replaced?"
            )
        return content

    return _persist(location, cat)


def size(location: str, options: StorageOptions | None = None) -> int | None:
    """Return the bytes that a location holds, or ``None`` where its store does not say.

    Raises ``FileNotFoundError`` where there is nothing, `StorageError` where it cannot be asked.
    """

    def ask() -> int | None:
        filesystem, path = _filesystem(location, options)
        found = filesystem.info(path).get("size")
        return None if found is None else int(found)

    return _persist(location, ask)


def is_read_only(location: str) -> bool:
    """Say whether nothing can be written near a location, because it is on the web."""
    return location.startswith(("http://", "https://"))


def write(location: str, content: bytes, options: StorageOptions | None = None) -> None:
    """Put an object at a remote location, whole or not at all. Raises `StorageError` where it cannot be written."""

    def put() -> None:
        filesystem, path = _filesystem(location, options)
        filesystem.pipe_file(path, content)

    _persist(location, put, "written")


def exists(location: str, options: StorageOptions | None = None) -> bool:
    """Say whether there is a file or object at a location."""
    if not is_remote(location):
        return Path(location).exists()
    with _mapped(location):
        filesystem, path = _filesystem(location, options)
        return bool(filesystem.exists(path))


def names(location: str, suffix: str, options: StorageOptions | None = None) -> list[str]:
    """Return the sorted names in a folder that end with ``suffix``; empty where there is no such folder."""
    if not is_remote(location):
        folder = Path(location)
        found = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    else:
        with _mapped(location):
            filesystem, path = _filesystem(location, options)
            try:
                found = [entry.rstrip("/").rpartition("/")[2] for entry in filesystem.ls(path, detail=False)]
            except FileNotFoundError:
                found = []
    return sorted(name for name in found if name.endswith(suffix))


def fetch(location: str, path: Path, options: StorageOptions | None = None) -> None:
    """Copy a remote object to a local path, trying again after passing faults.

    Raises `ShardNotFoundError` where there is no such object, `StorageError` with the number of attempts and the
    cause where it cannot be had.
    """

    def copy() -> None:
        filesystem, remote = _filesystem(location, options)
        # Block size 0 streams: a web server that gives no ranges could not be read otherwise.
        more = {"block_size": 0} if location.startswith("http") else {}
        with filesystem.open(remote, "rb", **more) as source, path.open("wb") as target:
            while chunk := source.read(_CHUNK):
                target.write(chunk)

    try:
        _persist(location, copy)
    except FileNotFoundError as error:
        raise ShardNotFoundError(f"{shown(location)} does not exist") from error


def _persist(location: str, action: Callable[[], T], done: str = "read") -> T:
    """Do something with a remote location, and again after a pause where it fails for another reason than absence."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with _mapped(location, done):
                return action()
        except StorageError as error:
            if attempt == _ATTEMPTS or isinstance(error, _FinalError):
                raise StorageError(f"{error} (after {attempt} attempts)" if attempt > 1 else str(error)) from error
            time.sleep(_FIRST_PAUSE * 2 ** (attempt - 1) * random.uniform(0.5, 1.5))
    raise AssertionError("unreachable: the last attempt returns or raises")


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that appears under its name only when it is whole and on disk.

    On an error nothing is left behind.
    """
    handle, name = tempfile.mkstemp(prefix=".tmp-", suffix=f"-{path.name}", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _filesystem(location: str, options: StorageOptions | None) -> tuple[Any, str]:
    import fsspec

    try:
        filesystem, path = fsspec.core.url_to_fs(location, **dict(options or {}))
    except ImportError as error:
        scheme = location.partition("://")[0]
        extra = _EXTRAS.get(scheme)
        advice = f'pip install "wdsdist[{extra}]"' if extra else f"install the fsspec back end for {scheme}://"
        raise _FinalError(f"{shown(location)} needs a package that is not installed: {advice}") from error
    except ValueError as error:
        raise StorageError(f"{shown(location)} cannot be opened: {error}") from error
    return filesystem, path


@contextlib.contextmanager
def _mapped(location: str, done: str = "read") -> Iterator[None]:
    """Turn whatever a back end raises into the two errors that this module promises."""
    try:
        yield
    except (FileNotFoundError, StorageError):
        raise
    except Exception as error:  # back ends share no base class: botocore, aiohttp, google and azure have their own
        raise StorageError(f"{shown(location)} cannot be {done}: {type(error).__name__}: {error}") from error
