"""A list of what this process opens: files, folders, sockets and programs, by Python's audit events."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# The arguments of each event that are paths, and where it has one, that which says what a path is relative to.
_PATHS = {
    "open": (0,), "os.listdir": (0,), "os.scandir": (0,), "os.mkdir": (0,), "os.rmdir": (0,), "os.remove": (0,),
    "os.rename": (0, 1), "os.link": (0, 1), "os.symlink": (1,), "os.truncate": (0,), "os.chmod": (0,),
    "os.utime": (0,), "shutil.rmtree": (0,), "tempfile.mkstemp": (0,), "tempfile.mkdtemp": (0,), "glob.glob": (0,),
}  # fmt: skip
_FOLDERS = {"os.mkdir": (2,), "os.rmdir": (1,), "os.remove": (1,), "os.rename": (2, 3)}
_NETWORK = {"socket.connect", "socket.getaddrinfo", "socket.sendto"}
_PROGRAMS = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Seen:
    """What was opened while it was watched."""

    def __init__(self, *addresses: tuple[str, int]) -> None:
        self.addresses = addresses
        """Where connections may lead; any other is noted and refused, so that no test leaves this machine."""
        self.read: set[Path] = set()
        """Paths as they were given, made absolute; links are not followed."""
        self.written: set[Path] = set()
        """Where these lie, once the links to their folders are followed."""
        self.else_: set[str] = set()
        """Connections to other places, names that were looked up, and programs."""

    def note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _PROGRAMS:
            self.else_.add(f"{event} {arguments[0]!r}")
        elif event in _NETWORK:
            self._connection(event, arguments)
        elif event in _PATHS:
            is_read = event in ("os.listdir", "os.scandir", "glob.glob")
            if event == "open":
                is_read = not (arguments[2] or 0) & _WRITES
            folders = itertools.chain(_FOLDERS.get(event, ()), itertools.repeat(None))
            for place, folder in zip(_PATHS[event], folders):  # noqa: B905 - as many as there are paths
                if isinstance(arguments[place], (str, bytes, os.PathLike)):
                    path = os.fsdecode(arguments[place])
                    if folder is not None and arguments[folder] >= 0:
                        path = f"{os.readlink(f'/proc/self/fd/{arguments[folder]}')}/{path}"  # noqa: PTH115
                    elif event == "open" and not os.path.isabs(path) and not os.path.exists(path):  # noqa: PTH110, PTH117
                        continue  # relative to a folder that the event does not tell, when a tree is removed
                    self._path(path, is_read=is_read)

    def _path(self, path: str, *, is_read: bool) -> None:
        absolute = os.path.abspath(path)  # noqa: PTH100 - Path.resolve would follow links
        if is_read:
            self.read.add(Path(absolute))
        else:
            folder, name = os.path.split(absolute)
            self.written.add(Path(os.path.realpath(folder)) / name)

    def _connection(self, event: str, arguments: tuple[Any, ...]) -> None:
        address = arguments[1] if event != "socket.getaddrinfo" else arguments[:2]
        if not isinstance(address, tuple) or tuple(address[:2]) in self.addresses:
            return  # a socket of this machine's own, by path
        self.else_.add(f"{event} {address!r}")
        raise PermissionError(f"the test allows no connection to {address!r}")


_watching: Seen | None = None


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    # What a server of `web.served` does in this process is not the package's.
    if _watching is not None and "process_request_thread" not in threading.current_thread().name:
        _watching.note(event, arguments)


@contextlib.contextmanager
def watched(*addresses: tuple[str, int]) -> Iterator[Seen]:
    """Note all that this process opens until the block ends, in any thread; connections may lead to addresses only."""
    global _watching
    if not hasattr(sys, "_wdsdist_watch"):  # a hook stays for as long as the process lives
        sys.addaudithook(_hook)
        sys._wdsdist_watch = True  # type: ignore[attr-defined]
    _watching = Seen(*addresses)
    try:
        yield _watching
    finally:
        _watching = None
