"""The key of a ``data_download`` call: a digest of function and arguments, the same in every process."""

from __future__ import annotations

import ast
import hashlib
import inspect
import os
import sys
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from wdsdist.errors import ArgumentError


def fingerprint(function: Callable[..., Any], arguments: inspect.BoundArguments) -> str:
    """Return the digest of a function and the arguments of a call.

    Included: the file the function is defined in (for code that is in no file, the name of its module), its
    qualified name, its source from ``def`` on (its byte code where there is no source), and all arguments by
    name with their defaults. Not included: decorators, global variables, variables of an enclosing function.

    Equal arguments digest equally in every process, which neither ``hash`` nor ``pickle`` promises: sets and
    dicts are sorted, and it makes no difference whether two equal strings are one object.

    Raises:
        ArgumentError: an argument has no content to digest, such as a lock or an open file.

    Example:
        >>> def prepare(name, size=1): ...
        >>> bind = inspect.signature(prepare).bind
        >>> fingerprint(prepare, bind("a", 1)) == fingerprint(prepare, bind(size=1, name="a"))
        True
        >>> fingerprint(prepare, bind("a")) == fingerprint(prepare, bind("b"))
        False
    """
    arguments.apply_defaults()
    given = []
    for name, value in arguments.arguments.items():
        try:
            given.append(f"{name}={describe(value)}")
        except Exception as error:
            raise ArgumentError(
                f"argument {name!r} of {function.__qualname__}() is a {type(value).__qualname__}, by which two calls "
                f"cannot be told apart ({error}): pass plain values such as strings, numbers and paths"
            ) from error
    parts = (_place(function), function.__qualname__, _source(inspect.unwrap(function)), *given)
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def describe(value: Any, inside: tuple[int, ...] = ()) -> str:
    """Return a value as text that depends on its type and content only.

    Raises:
        Exception: whatever its ``__reduce_ex__`` raises where it cannot be pickled.

    Example:
        >>> describe({"b": {3, 1}, "a": None})
        "dict{str:'a'->NoneType:None, str:'b'->set{int:1, int:3}}"
    """
    kind = type(value)
    if value is None or kind in (bool, int, float, complex, str, bytes):
        return f"{kind.__name__}:{value!r}"
    if id(value) in inside:
        return f"cycle:{len(inside) - inside.index(id(value))}"
    inside = (*inside, id(value))
    if isinstance(value, os.PathLike):
        return f"path:{os.fspath(Path(value).absolute())!r}"
    if kind in (list, tuple):
        return f"{kind.__name__}[{_join(value, inside)}]"
    if kind in (set, frozenset):
        return f"{kind.__name__}{{{', '.join(sorted(describe(item, inside) for item in value))}}}"
    if kind is dict:
        pairs = sorted(f"{describe(key, inside)}->{describe(item, inside)}" for key, item in value.items())
        return f"dict{{{', '.join(pairs)}}}"
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)):
        return _describe_named(value)
    reduced = value.__reduce_ex__(4)  # the content as pickle would take it, in objects rather than in bytes
    if isinstance(reduced, str):
        return f"{_module(kind)}.{kind.__qualname__}:{reduced}"
    parts = [list(part) if isinstance(part, Iterator) else part for part in reduced]
    return f"{_module(kind)}.{kind.__qualname__}({_join(parts, inside)})"


def _join(values: Iterable[Any], inside: tuple[int, ...]) -> str:
    return ", ".join(describe(value, inside) for value in values)


def _describe_named(value: Any) -> str:
    name = f"{_module(value)}.{getattr(value, '__qualname__', value.__name__)}"
    # Two lambdas of one function share a name; only their code tells them apart.
    code = _source(value) if isinstance(value, types.FunctionType) and "<" in name else ""
    return f"{type(value).__name__}:{name}{code}"


def _place(function: Callable[..., Any]) -> str:
    """Return the file that defines a function, which is more precise than its module: every script is ``__main__``."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    path = Path(code.co_filename) if code is not None else None
    if path is None or not path.is_file():  # a notebook's cell, or python -c
        return f"module {_module(function)}"
    return str(path.resolve())


def _module(value: Any) -> str:
    # The main script of a job is __mp_main__ in the processes that multiprocessing spawns.
    return str(getattr(value, "__module__", None)).replace("__mp_main__", "__main__")


@lru_cache(maxsize=256)
def _source(function: Any) -> str:
    """Return the source from ``def`` on: a changed option of a decorator must not fetch everything again."""
    try:
        if function.__name__ == "<lambda>":  # all lambdas of a line have that line as their source
            raise OSError
        source = textwrap.dedent(inspect.getsource(function))
        statement = ast.parse(source).body[0]
    except (OSError, SyntaxError):
        return f"{_code(function.__code__)} on Python {sys.version_info[:2]}"
    return "\n".join(source.splitlines()[statement.lineno - 1 :])


def _code(code: types.CodeType) -> str:
    """Digest byte code by content; ``repr`` of a nested code object and of a frozenset differ between processes."""
    constants = [_code(value) if isinstance(value, types.CodeType) else describe(value) for value in code.co_consts]
    return repr((code.co_code.hex(), code.co_names, code.co_varnames, constants))
