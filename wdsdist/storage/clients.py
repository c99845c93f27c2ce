"""The clients of fsspec, their errors as two of ours, and patience with passing faults."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from wdsdist.errors import StorageError
from wdsdist.storage.locations import shown

StorageOptions = Mapping[str, Any]
T = TypeVar("T")


class FinalError(StorageError):
    """What another attempt would not mend."""


_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure",
           "hf": "hf", "http": "http", "https": "http"}  # fmt: skip
_ATTEMPTS = 5
_FIRST_PAUSE = 0.2  # seconds; doubled after each attempt, with jitter


def persist(location: str, action: Callable[[], T], verb: str = "read") -> T:
    """Do something with a remote location, and again after a pause where it fails for another reason than absence."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with mapped(location, verb):
                return action()
        except StorageError as error:
            if attempt == _ATTEMPTS or isinstance(error, FinalError):
                raise StorageError(f"{error} (after {attempt} attempts)" if attempt > 1 else str(error)) from error
            time.sleep(_FIRST_PAUSE * 2 ** (attempt - 1) * random.uniform(0.5, 1.5))
    raise AssertionError("unreachable: the last attempt returns or raises")


def filesystem(location: str, options: StorageOptions | None) -> tuple[Any, str]:
    import fsspec

    try:
        client, path = fsspec.core.url_to_fs(location, **dict(options or {}))
    except ImportError as error:
        scheme = location.partition("://")[0]
        extra = _EXTRAS.get(scheme)
        advice = f'pip install "wdsdist[{extra}]"' if extra else f"install the fsspec back end for {scheme}://"
        raise FinalError(f"{shown(location)} needs a package that is not installed: {advice}") from error
    except ValueError as error:
        raise StorageError(f"{shown(location)} cannot be opened: {error}") from error
    return client, path


@contextlib.contextmanager
def mapped(location: str, verb: str = "read") -> Iterator[None]:
    """Turn whatever a back end raises into the two errors that this module promises."""
    try:
        yield
    except (FileNotFoundError, StorageError):
        raise
    except Exception as error:  # back ends share no base class: botocore, aiohttp, google and azure have their own
        raise StorageError(f"{shown(location)} cannot be {verb}: {type(error).__name__}: {error}") from error
