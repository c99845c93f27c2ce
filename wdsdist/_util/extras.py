"""Import what an extra of wdsdist installs, on first use."""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Any

from wdsdist.errors import ExtraMissingError


@functools.cache
def extra(module: str, name: str, purpose: str) -> Any:
    """Import a module such as ``"pyarrow.dataset"``, which the extra ``name`` installs.

    ``purpose`` says what needs it, as the start of a sentence.

    Raises `ExtraMissingError`, which says what to install.

    >>> extra("nowhere", "tables", "reading a Parquet file")
    Traceback (most recent call last):
    wdsdist.errors.ExtraMissingError: reading a Parquet file needs nowhere: pip install "wdsdist[tables]"
    """
    try:
        return import_module(module)
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in (module.partition(".")[0], ""):
            raise  # it is there, and something that it needs is not
        raise ExtraMissingError(f'{purpose} needs {module.partition(".")[0]}: pip install "wdsdist[{name}]"') from error
