"""The key of a ``data_download`` call: a digest of the function and its arguments, the same in every process."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import os
import re
import textwrap
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from wdsdist.errors import ArgumentError

_NOT_CONTENT = re.compile(r" at 0x[0-9a-f]+|\.\.\.")
"""Matches a ``repr`` that shows an address, or leaves something out, as numpy does for large arrays."""


def call_key(function: Callable[..., Any], arguments: inspect.BoundArguments) -> str:
    """Return a digest of a function and the arguments of a call.

    Included: the file that defines the function (its module, for code in no file), its qualified name, its source from
    ``def`` on (its byte code, without source), and all arguments by name with their defaults. Not included: decorators,
    global variables, variables of an enclosing function.

    Raises:
        ArgumentError: two values of an argument could not be told apart, such as locks or open files.

    Example:
        >>> def prepare(name, size=1): ...
        >>> bind = inspect.signature(prepare).bind
        >>> call_key(prepare, bind("a", 1)) == call_key(prepare, bind(size=1, name="a"))
        True
        >>> call_key(prepare, bind("a")) == call_key(prepare, bind("b"))
        False
    """
    arguments.apply_defaults()
    parts = [_file_or_module(function), function.__qualname__, _source(function)]
    for name, value in arguments.arguments.items():
        try:
            parts.append(f"{name}={_described(value)}")
        except (ValueError, RecursionError) as error:
            raise ArgumentError(
                f"argument {name!r} of {function.__qualname__}() is a {type(value).__qualname__}, by which two calls "
                f"cannot be told apart ({error}): pass plain values such as strings, numbers and paths",
                argument=name,
            ) from error
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _described(value: Any) -> str:
    """Return a string that depends on a value's type and content alone; raise ``ValueError`` if there is none.

    >>> _described({"b": {3, 1}, "a": None})
    "dict('a': None, 'b': set(1, 3))"
    """
    kind = type(value)
    name = "" if kind.__module__ == "builtins" else f"{_module(kind)}."
    name += kind.__qualname__
    if isinstance(value, os.PathLike):
        return f"path({os.fspath(Path(value).absolute())!r})"
    if isinstance(value, Mapping):
        return f"{name}({', '.join(sorted(f'{_described(key)}: {_described(item)}' for key, item in value.items()))})"
    if isinstance(value, (list, tuple)):
        return f"{name}({', '.join(map(_described, value))})"
    if isinstance(value, (set, frozenset)):
        return f"{name}({', '.join(sorted(map(_described, value)))})"
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)):
        code = _source(value) if isinstance(value, types.FunctionType) and "<" in value.__qualname__ else ""
        return f"{_module(value)}.{getattr(value, '__qualname__', value.__name__)}{code}"
    if dataclasses.is_dataclass(value):
        return f"{name}({_described({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})})"
    text = repr(value)
    if not isinstance(value, (str, bytes)) and _NOT_CONTENT.search(text):
        raise ValueError(f"its repr is {text:.80}")
    return text if kind in (str, bytes, int, float, complex, bool, type(None)) else f"{name}({text})"


def _file_or_module(function: Callable[..., Any]) -> str:
    """Return the file that defines a function: every script's module is ``__main__``."""
    path = Path(inspect.unwrap(function).__code__.co_filename)
    return str(path.resolve()) if path.is_file() else f"module {_module(function)}"


def _module(value: Any) -> str:
    # The main script of a job is __mp_main__ in the processes that multiprocessing spawns.
    return str(getattr(value, "__module__", None)).replace("__mp_main__", "__main__")


def _source(function: Callable[..., Any]) -> str:
    """Return the source from ``def`` on: a changed option of a decorator must not fetch everything again."""
    code = inspect.unwrap(function).__code__
    try:
        source = textwrap.dedent(inspect.getsource(code))
    except OSError:
        source = ""
    definition = re.search(r"^def .*", source, re.MULTILINE | re.DOTALL)
    return definition[0] if definition else _byte_code(code)  # all lambdas of a line share its source


def _byte_code(code: types.CodeType) -> str:
    constants = [
        _byte_code(value) if isinstance(value, types.CodeType) else _described(value) for value in code.co_consts
    ]
    return repr((code.co_code.hex(), code.co_names, code.co_varnames, constants))
