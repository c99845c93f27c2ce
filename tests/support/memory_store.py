"""A storage back end in memory with planted faults, for tests of code that reads and writes remote data.

>>> from wdsdist import storage
>>> store = MemoryStore({"train/00.tar": b"content"})
>>> store.plant(Fault("train/*.tar", "error", times=2))
>>> storage.read(f"{store.url}/train/00.tar")  # two attempts fail, the third succeeds
b'content'
>>> len(store.requests)
3
>>> store.close()
"""

from __future__ import annotations

import fnmatch
import hashlib
import itertools
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import fsspec
from fsspec.spec import AbstractFileSystem

SCHEME = "faulty"
"""Of the URLs: ``faulty://<name of the store>/<path>``."""

Kind = Literal["error", "cut", "wrong-bytes", "wrong-length", "not-found", "stall"]
Verb = Literal["read", "info", "list", "write", "remove"]

_VERB_OF: dict[str, Verb] = {"cut": "read", "wrong-bytes": "read", "wrong-length": "read"}
"""The only requests that some faults can hit."""
_numbers = itertools.count()
_stores: dict[str, MemoryStore] = {}


@dataclass(frozen=True, slots=True)
class Request:
    """One request, as a `MemoryStore` received it."""

    verb: Verb
    path: str
    start: int | None = None
    """First byte of a range; none where the whole object was read."""
    stop: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Fault:
    """A planted fault: some requests to a `MemoryStore` fail in one way.

    The kinds: ``"error"`` raises `error`; ``"cut"`` breaks the connection in the middle of the body; ``"wrong-bytes"``
    changes the middle byte of the body; ``"wrong-length"`` leaves out its last byte; ``"not-found"`` says that there
    is no such object; ``"stall"`` gives no answer until `release`.
    """

    path: str
    """Pattern of the paths, as in `fnmatch`, below the store's URL."""
    kind: Kind
    times: int | None = None
    """Number of requests that are hit; none for all of them."""
    after: int = 0
    """Number of matching requests that pass before the first is hit."""
    verb: Verb | None = None
    """The only kind of request that is hit; by default any that has what the fault spoils, such as a body."""
    error: Exception = field(default_factory=lambda: ConnectionResetError("the connection was reset on purpose"))
    """What ``"error"`` raises."""
    reached: threading.Event = field(default_factory=threading.Event, init=False, repr=False)
    """Set when the fault has hit a request."""
    _released: threading.Event = field(default_factory=threading.Event, init=False, repr=False)

    def release(self) -> None:
        """End a ``"stall"``: requests that it holds are answered, and it holds no others."""
        self._released.set()

    def is_for(self, request: Request) -> bool:
        """Tell whether the fault may hit a request, however often it has done so."""
        if self.verb not in (None, request.verb) or _VERB_OF.get(self.kind, request.verb) != request.verb:
            return False
        return not self._released.is_set() and fnmatch.fnmatchcase(request.path, self.path)


class MemoryStore:
    """Objects in this process's memory, at `url`, with a log of requests and with faults on demand.

    What is tested reads and writes it by URL, through the same clients, retries, deadlines and parallel downloads as
    any other back end. Processes that are forked while it is open see it, each with a log of its own from then on.

    >>> with MemoryStore({"a.txt": b"text"}, name="mine") as store:
    ...     store.url, sorted(store.files)
    ('faulty://mine', ['a.txt'])
    """

    def __init__(self, files: Mapping[str, bytes] | None = None, *, name: str | None = None) -> None:
        """Open a store under its URL.

        Args:
            files: the contents by path.
            name: of the store, in its URL; by default one of its own.
        """
        self.name = name or f"store{next(_numbers)}"
        if self.name in _stores:
            raise ValueError(f"there is a store {self.name!r} already: close it, or choose another name")
        self.files: dict[str, bytes] = dict(files or {})
        """The contents by path; changes take effect at once."""
        self.requests: list[Request] = []
        """Every request so far, retries included, in the order in which they came."""
        self._faults: list[tuple[Fault, list[int]]] = []
        self._lock = threading.Lock()
        _stores[self.name] = self

    @property
    def url(self) -> str:
        """Where the objects are, without a trailing slash."""
        return f"{SCHEME}://{self.name}"

    def plant(self, *faults: Fault) -> None:
        """Add faults; of those that match a request, the first one planted hits it."""
        with self._lock:
            self._faults += [(fault, [0]) for fault in faults]

    def heal(self) -> None:
        """Remove all faults, and answer the requests that stall."""
        with self._lock:
            faults, self._faults = self._faults, []
        for fault, _ in faults:
            fault.release()

    def paths(self, verb: Verb | None = None) -> list[str]:
        """Return the path of each request, or of those with one verb, in the order in which they came."""
        return [request.path for request in self.requests.copy() if verb in (None, request.verb)]

    def close(self) -> None:
        """Close the store: its URL leads nowhere afterwards."""
        self.heal()
        _stores.pop(self.name, None)
        _Client.clear_instance_cache()  # or the next store of this name would get this one's client

    def __enter__(self) -> MemoryStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _received(self, request: Request) -> Fault | None:
        """Log a request, and return the fault that hits it."""
        with self._lock:
            self.requests.append(request)
            for fault, count in self._faults:
                if fault.is_for(request):
                    count[0] += 1
                    if fault.after < count[0] <= fault.after + (count[0] if fault.times is None else fault.times):
                        fault.reached.set()
                        return fault
        return None

    def _pass(self, request: Request) -> Fault | None:
        """Log a request, let the fault that hits it do what it does before an answer, and return it."""
        fault = self._received(request)
        if fault is None:
            return None
        if fault.kind == "error":
            raise fault.error
        if fault.kind == "not-found":
            raise FileNotFoundError(request.path)
        if fault.kind == "stall":
            fault._released.wait()
        return fault

    def _body(self, request: Request) -> bytes:
        """Answer a read."""
        fault = self._pass(request)
        if request.path not in self.files:
            raise FileNotFoundError(request.path)
        content = self.files[request.path][request.start : request.stop]
        middle = len(content) // 2
        if fault is None:
            return content
        if fault.kind == "cut":
            raise ConnectionResetError(f"the connection was cut on purpose after {middle:,} bytes")
        if fault.kind == "wrong-length":
            return content[:-1]
        if fault.kind == "wrong-bytes" and content:
            return content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :]
        return content

    def _below(self, folder: str) -> Iterator[dict[str, Any]]:
        """Yield the entry of each object and folder directly in a folder."""
        prefix = f"{folder}/" if folder else ""
        folders = set()
        for path in sorted(self.files.copy()):
            if path.startswith(prefix):
                name, is_deeper, _ = path[len(prefix) :].partition("/")
                if not is_deeper:
                    yield self._info_of(path)
                elif name not in folders:
                    folders.add(name)
                    yield {"name": prefix + name, "size": 0, "type": "directory"}

    def _info_of(self, path: str) -> dict[str, Any]:
        content = self.files[path]
        return {"name": path, "size": len(content), "type": "file", "ETag": hashlib.sha256(content).hexdigest()[:32]}


class _Client(AbstractFileSystem):  # type: ignore[misc]
    """fsspec's view of one store."""

    protocol = SCHEME

    def __init__(self, name: str = "", **options: Any) -> None:
        super().__init__(**options)
        self._name = name

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return (path.partition("://")[2].partition("/")[2] if "://" in path else path).strip("/")

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, str]:
        return {"name": path.partition("://")[2].partition("/")[0].rpartition("@")[2]}  # a URL may hold credentials

    @property
    def _store(self) -> MemoryStore:
        if self._name not in _stores:
            raise FileNotFoundError(f"there is no store {self._name!r}")
        return _stores[self._name]

    def _pass(self, verb: Verb, path: str) -> MemoryStore:
        """Return the store, once it has let a request pass."""
        self._store._pass(Request(verb, path))
        return self._store

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        return self._store._body(Request("read", path, start, end))

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        store = self._pass("info", path)
        if path in store.files:
            return store._info_of(path)
        if next(store._below(path), None) is None:
            raise FileNotFoundError(path)
        return {"name": path, "size": 0, "type": "directory"}

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        store = self._pass("list", path)
        infos = [store._info_of(path)] if path in store.files else list(store._below(path))
        if not infos:
            raise FileNotFoundError(path)
        return infos

    def find(self, path: str, **_: Any) -> Any:
        """Return all objects below a folder, in one request as of an object store; fsspec would walk its folders."""
        store = self._pass("list", path)
        return {name: store._info_of(name) for name in sorted(store.files.copy()) if _lies_below(name, path)}

    def put_file(self, lpath: str, rpath: str, **_: Any) -> None:
        self._pass("write", rpath).files[rpath] = Path(lpath).read_bytes()

    def rm_file(self, path: str, **_: Any) -> None:
        if self._pass("remove", path).files.pop(path, None) is None:
            raise FileNotFoundError(path)


def _lies_below(path: str, folder: str) -> bool:
    return path == folder or not folder or path.startswith(f"{folder}/")


fsspec.register_implementation(SCHEME, _Client, clobber=True)
