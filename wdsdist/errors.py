"""The exceptions of wdsdist.

Each refines the builtin that a caller expects, so ``except FileNotFoundError`` works. Each is made from one message, so
it crosses process borders unharmed. A message says what, which value, the limit, and what to do next.

Messages quote names from data sets that others made: control characters are escaped here, for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

# C0, DEL and C1; marks, embeddings, overrides and isolates of text direction; line and paragraph separators; and lone
# surrogates, but for those that stand for bytes above C1 in a name that is not UTF-8.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udc9f\udd00-\udfff]")


def printable(text: str, *, keep: str = "") -> str:
    """Escape the control characters of a string, so that a terminal or log shows them and does not obey them.

    Args:
        text: a name, a key or a message.
        keep: control characters to leave unescaped.

    >>> print(printable("cat\\x1b[2J\\n.jpg"))
    cat\\x1b[2J\\n.jpg
    """
    return _CONTROL.sub(lambda match: match[0] if match[0] in keep else ascii(match[0])[1:-1], text)


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, its cause, the cause's cause and so on, each once: ``raise error from error`` is a cycle."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and not any(cause is other for other in seen):
        yield cause
        seen.append(cause)
        cause = cause.__cause__


def in_python(argument: str, *value: object) -> str:
    """Return an argument as a call in Python gives it.

    >>> in_python("on_error", "skip"), in_python("root")
    ("on_error='skip'", 'root=')
    """
    return f"{argument}={''.join(map(repr, value))}"


spelling: Callable[..., str] = in_python
"""How messages spell arguments: a command of the command line replaces it while it runs."""


def given(argument: str, *value: object) -> str:
    """Return an argument as whoever reads the message gives it: ``on_error='skip'``, or ``--on-error skip``."""
    return spelling(argument, *value)


class WdsdistError(Exception):
    """Base of every error that wdsdist raises on purpose."""

    def __init__(self, *args: object) -> None:
        # Line breaks stay: a message may hold the traceback of a worker or of another rank.
        super().__init__(*(printable(arg, keep="\n\t") if isinstance(arg, str) else arg for arg in args))


class ArgumentError(WdsdistError, ValueError, TypeError):
    """An argument has a value or a type that cannot work, such as ``batch_size=0`` or ``rank >= num_replicas``."""

    argument = ""
    """The argument's name in Python, when one argument is at fault; the command line shows it as its option."""

    def __init__(self, message: str, *, argument: str = "") -> None:
        super().__init__(message)
        self.argument = argument


class ExtraMissingError(WdsdistError, ImportError):
    """A package is missing that an extra of wdsdist installs."""


class NotFoundError(WdsdistError, FileNotFoundError):
    """A data set, its ``index.json``, a shard, or the source of a packing does not exist."""


class SourceError(WdsdistError, ValueError):
    """The source of a packing is empty, ambiguous or damaged."""


class DestinationError(WdsdistError, OSError):
    """The destination of a packing cannot be written."""


class DestinationExistsError(WdsdistError, FileExistsError):
    """The destination of a packing holds files that would be overwritten."""


class IndexFormatError(WdsdistError, ValueError):
    """An index is damaged, has another format version, or lists shards outside its own folder."""


class ShardDamagedError(WdsdistError, ValueError):
    """A shard is truncated, altered, or not a tar file that can be read without losing samples."""


class StorageError(WdsdistError, OSError):
    """A file or object could not be read from its storage."""

    kind = ""
    """Why, in a word such as ``"denied"`` or ``"unreachable"``, if a request to a store failed."""

    def __init__(self, message: str = "", *, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


class CacheError(WdsdistError, OSError):
    """The shard cache cannot be written, or has too little space."""


class SampleError(WdsdistError, ValueError):
    """A sample lacks a field, does not decode or encode, or does not fit its batch, or too many samples are bad."""

    field = reason = ""  # the bad member and why it is bad, as far as the process that found it knows


class BadSample(WdsdistError, ValueError):  # noqa: N818 - users raise it to filter; wdsdist raises SampleError
    """A sample to leave out: raise it in a transform or decoder, with the reason.

    With ``on_error="replace"`` another sample replaces it, which makes it a filter at reading time.
    """


class SharedMemoryError(WdsdistError, MemoryError):
    """There is too little shared memory for the batches that workers prefetch."""

    # MemoryError is the only base with its own `__new__`. It refuses this class, and dask and tblib call it.
    __new__ = Exception.__new__  # type: ignore[assignment]


class StateError(WdsdistError, ValueError, RuntimeError):
    """A checkpoint belongs to other data or another order, ranks disagree on the data, or a loader is misused."""


class DistributedError(WdsdistError, RuntimeError):
    """A ``@data_download`` function failed in the process that ran it, or a barrier cannot complete."""


class DistributedTimeoutError(WdsdistError, TimeoutError):
    """A ``@data_download`` function or a barrier did not complete in time."""
