"""The exceptions of wdsdist.

Each refines the builtin that a caller would expect, so ``except FileNotFoundError`` works, and each is made
from one message, so it crosses process borders unharmed: a worker's exception is rebuilt from its text.
A message says what, which value, the limit, and what to do next.

Names in messages come from data sets, which others may have made: control characters are escaped here, once for all.
"""

from __future__ import annotations

import re

# C0, DEL and C1; marks, embeddings, overrides and isolates of text direction; line and paragraph separators; and lone
# surrogates, but for those that stand for bytes above C1 in a name that is not UTF-8.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udc9f\udd00-\udfff]")


def printable(text: str, *, keep: str = "") -> str:
    """Escape the control characters of a text, so that a terminal or log shows them instead of obeying them.

    Args:
        text: such as a name, a key or a message that may hold one.
        keep: control characters that stay as they are.

    >>> print(printable("cat\\x1b[2J\\n.jpg"))
    cat\\x1b[2J\\n.jpg
    """
    return _CONTROL.sub(lambda found: found[0] if found[0] in keep else ascii(found[0])[1:-1], text)


class WdsdistError(Exception):
    """Base of every error that wdsdist raises on purpose."""

    def __init__(self, *args: object) -> None:
        # Line breaks stay: the traceback of a worker or of another rank travels in a message.
        super().__init__(*(printable(one, keep="\n\t") if isinstance(one, str) else one for one in args))


class ArgumentError(WdsdistError, ValueError):
    """An argument has a value that cannot work, such as ``batch_size=0`` or ``rank >= num_replicas``."""


class ArgumentTypeError(WdsdistError, TypeError):
    """An argument has a type that cannot work."""


class ExtraMissingError(WdsdistError, ImportError):
    """A package is needed that an extra of wdsdist installs."""


class SourceNotFoundError(WdsdistError, FileNotFoundError):
    """The source of a packing does not exist."""


class SourceError(WdsdistError, ValueError):
    """The source of a packing is empty, ambiguous or damaged."""


class DestinationExistsError(WdsdistError, FileExistsError):
    """The destination of a packing holds files that it would overwrite."""


class DestinationError(WdsdistError, OSError):
    """The destination cannot be written."""


class EngineError(WdsdistError, ConnectionError):
    """A dask or ray cluster cannot be reached, or has lost too many workers."""


class IndexNotFoundError(WdsdistError, FileNotFoundError):
    """There is no ``index.json`` where a data set was expected."""


class IndexFormatError(WdsdistError, ValueError):
    """An index is damaged, of an unknown version, or not an index at all."""


class ManifestError(IndexFormatError):
    """An ``index.json`` lists a shard that cannot be right, or that lies outside its own folder."""


class ShardNotFoundError(WdsdistError, FileNotFoundError):
    """A shard that the index lists does not exist."""


class ShardDamagedError(WdsdistError, ValueError):
    """A shard is cut short, altered, or is not a tar file that can be read without losing samples."""


class StorageError(WdsdistError, OSError):
    """A file or object could not be read from its storage."""


class CacheError(WdsdistError, OSError):
    """The shard cache has too little space, cannot free it in time, or cannot be written."""


class SampleError(WdsdistError, ValueError):
    """A sample lacks a member that was asked for, or its members do not form a batch."""

    field = reason = ""  # what is bad of one sample, and why, as far as known in the process where it was found


class BadSample(WdsdistError, ValueError):  # noqa: N818 - raised by users to say so, not by wdsdist to complain
    """A sample that is not to be trained on: raise it in a transform or decoder, with the reason.

    Under ``on_error="replace"`` another sample takes its place, which makes it a filter at reading time.
    """


class ErrorBudgetError(WdsdistError, RuntimeError):
    """More samples were bad than ``error_budget`` allows."""


class SampleIndexError(WdsdistError, IndexError):
    """A sample number lies outside the data set."""


class DecodeError(WdsdistError, ValueError):
    """The bytes of a member could not be decoded into a value."""

    field = reason = ""  # as of `SampleError`


class ExpansionError(DecodeError):
    """The compressed members of a shard unpack to more bytes together than they may: which one is too many, depends on
    which were unpacked before."""


class EncodeError(WdsdistError, ValueError):
    """A value could not be encoded as the bytes of a member."""


class SharedMemoryError(WdsdistError, MemoryError):
    """There is too little shared memory for the batches that workers prefetch."""

    # Of the bases, only MemoryError has a `__new__` of its own, which refuses this class: dask and tblib call it.
    __new__ = Exception.__new__  # type: ignore[assignment]


class DatasetTooSmallError(WdsdistError, ValueError):
    """The data set is smaller than one batch per rank, under ``drop_last=True``."""


class StateMismatchError(WdsdistError, ValueError):
    """A checkpoint of a loader belongs to another data set, seed or order."""


class DataMismatchError(WdsdistError, RuntimeError):
    """Ranks of one job read different versions of a data set."""


class LoaderStateError(WdsdistError, RuntimeError):
    """A loader or one of its iterators was used in a way that would lose or repeat samples."""


class DataDownloadError(WdsdistError, RuntimeError):
    """A function under ``@data_download`` failed in the process that ran it."""


class DataDownloadTimeoutError(WdsdistError, TimeoutError):
    """The process that runs a ``@data_download`` function did not finish in time."""


class BarrierError(WdsdistError, RuntimeError):
    """A barrier cannot complete: another rank has failed, or there is no process group."""


class BarrierTimeoutError(WdsdistError, TimeoutError):
    """Some ranks did not reach a barrier in time."""
