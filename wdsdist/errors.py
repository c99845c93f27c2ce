"""The exceptions of wdsdist.

Each refines the builtin that a caller would expect, so ``except FileNotFoundError`` works, and each is made
from one message, so it crosses process borders unharmed: a worker's exception is rebuilt from its text.
A message says what, which value, the limit, and what to do next.
"""

from __future__ import annotations


class WdsdistError(Exception):
    """Base of every error that wdsdist raises on purpose."""


class ArgumentError(WdsdistError, ValueError):
    """An argument has a value that cannot work, such as ``batch_size=0`` or ``rank >= num_replicas``."""


class ArgumentTypeError(WdsdistError, TypeError):
    """An argument has a type that cannot work."""


class SourceNotFoundError(WdsdistError, FileNotFoundError):
    """What was to be packed does not exist."""


class SourceError(WdsdistError, ValueError):
    """What was to be packed is empty, ambiguous or damaged."""


class DestinationExistsError(WdsdistError, FileExistsError):
    """The destination already holds something that packing would overwrite."""


class DestinationError(WdsdistError, OSError):
    """The destination cannot be written."""


class EngineError(WdsdistError, ConnectionError):
    """A cluster that was to do the work cannot be reached, or has lost too many workers."""


class IndexNotFoundError(WdsdistError, FileNotFoundError):
    """There is no index where a data set was expected."""


class IndexFormatError(WdsdistError, ValueError):
    """An index is damaged, of an unknown version, or not an index at all."""


class ShardNotFoundError(WdsdistError, FileNotFoundError):
    """A shard that the index names is not there."""


class ShardDamagedError(WdsdistError, ValueError):
    """A shard is cut short, altered, or is not a tar file that can be read without losing samples."""


class StorageError(WdsdistError, OSError):
    """A file or object could not be read from its storage."""


class CacheError(WdsdistError, OSError):
    """The cache of remote shards has no room, is not given room in time, or cannot be written."""


class SampleError(WdsdistError, ValueError):
    """A sample lacks a member that was asked for, or its members do not form a batch."""


class SampleIndexError(WdsdistError, IndexError):
    """A sample number lies outside the data set."""


class DecodeError(WdsdistError, ValueError):
    """The bytes of a member could not be turned into a value."""


class EncodeError(WdsdistError, ValueError):
    """A value could not be turned into the bytes of a member."""


class SharedMemoryError(WdsdistError, MemoryError):
    """There is too little shared memory for the batches that workers make ahead."""


class DatasetTooSmallError(WdsdistError, ValueError):
    """The data set gives not one batch per rank under ``drop_last=True``."""


class StateMismatchError(WdsdistError, ValueError):
    """A loader's state belongs to another data set, seed or order."""


class LoaderStateError(WdsdistError, RuntimeError):
    """A loader or one of its iterators was used in a way that would lose or repeat samples."""


class DataDownloadError(WdsdistError, RuntimeError):
    """A function under ``@data_download`` failed in the process that ran it."""


class DataDownloadTimeoutError(WdsdistError, TimeoutError):
    """The process that runs a ``@data_download`` function did not finish in time."""


class BarrierError(WdsdistError, RuntimeError):
    """A barrier cannot be kept: another rank has failed, or there is no process group."""


class BarrierTimeoutError(WdsdistError, TimeoutError):
    """Some ranks did not reach a barrier in time."""
