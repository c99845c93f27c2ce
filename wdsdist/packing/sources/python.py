"""What Python makes, recognised: an object, or its name in a module, such as ``my_module:make_dataset``."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from wdsdist.errors import ArgumentError, ArgumentTypeError, SourceError, SourceNotFoundError
from wdsdist.packing.sources.dataset import DatasetSource
from wdsdist.packing.sources.items import Encode
from wdsdist.packing.sources.iterable import IterableSource
from wdsdist.packing.sources.kinds import SourceOptions

_PATH = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_NAMED = re.compile(rf"(?P<module>{_PATH}):(?P<attribute>{_PATH})")


class Items(Protocol):
    """Items that can be asked for by number, as ``torch.utils.data.Dataset`` has them."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


Made = Items | Iterable[Any] | Callable[[], Items | Iterable[Any]]
"""What `find` takes for a source, but for its name in a module."""


def find(source: object, options: SourceOptions) -> DatasetSource | IterableSource | None:
    """Return what an object gives, or ``None`` for a string or path that names no object.

    Args:
        source: a data set with ``__len__`` and ``__getitem__``; any other iterable; a function without parameters
            that returns one of them; or the name of one of these, ``module:attribute``. A file of that name is
            preferred.
        options: among them ``encode``, a function from an item, or an item and its number, to a sample dict, or its
            name, ``module:function``; by default the items are such.

    >>> find([{"txt": "hello"}], SourceOptions()), find("photos/train", SourceOptions())
    (DatasetSource(list: 1 items), None)
    """
    location: str | None = None
    made: Any = source
    if isinstance(source, (str, os.PathLike)):
        match = _NAMED.fullmatch(source) if isinstance(source, str) and not Path(source).exists() else None
        if match is None:
            return None
        location, made = match[0], _named(match["module"], match["attribute"])
    function = _function(options.encode)
    location = location or _name(made)
    if inspect.isroutine(made) or inspect.isclass(made) or isinstance(made, functools.partial):
        try:
            made = made()
        except Exception as error:
            raise SourceError(f"calling {location} failed: {type(error).__name__}: {error}") from error
    if isinstance(made, Mapping):
        raise ArgumentTypeError(f"{location} is a mapping, not a list of samples: pass its values()")
    if hasattr(made, "__len__") and hasattr(made, "__getitem__") and not _is_torch_iterable(made):
        return DatasetSource.of(made, location, function, options.on_error)
    if isinstance(made, Iterable):
        return IterableSource(made, location, function, options.on_error)
    raise ArgumentTypeError(
        f"{location} is a {type(made).__name__}, which can be neither iterated over nor asked for items by number: "
        f"a data set has __len__ and __getitem__, an iterable has __iter__"
    )


def _function(encode: Encode | str | None) -> Encode | None:
    if not isinstance(encode, str):
        return encode
    match = _NAMED.fullmatch(encode)
    if match is None:
        raise ArgumentError(f"encode is {encode!r}: it must be a function, or the name of one, module:function")
    function: Encode = _named(match["module"], match["attribute"])
    return function


def _named(module: str, attribute: str) -> Any:
    """Import an object. As with ``python -m``, modules in the current folder come first."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)  # and stays: the module may import its neighbours later
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
            raise SourceNotFoundError(f"there is no module {error.name} in {here}, nor is one installed") from error
        raise SourceError(f"importing {module} failed: {type(error).__name__}: {error}") from error
    try:
        return functools.reduce(getattr, attribute.split("."), found)
    except AttributeError as error:
        raise SourceNotFoundError(f"module {module} ({found.__file__}) has no {attribute}") from error


def _name(source: object) -> str:
    """Name an object as its author would: by its function, or by its class."""
    if inspect.isgenerator(source):
        return f"generator {source.__qualname__}"
    named = source if hasattr(source, "__qualname__") else type(source)
    module = getattr(named, "__module__", None)
    name = str(getattr(named, "__qualname__", type(source).__qualname__))
    return name if module in (None, "builtins", "__main__") else f"{module}.{name}"


def _is_torch_iterable(source: object) -> bool:
    """Say whether an object can only be iterated over, though torch gives it a ``__getitem__`` that raises."""
    torch_data = sys.modules.get("torch.utils.data")
    return torch_data is not None and isinstance(source, torch_data.IterableDataset)
