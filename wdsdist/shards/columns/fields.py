"""Values of small members: texts, numbers, and what a JSON member holds at a path."""

from __future__ import annotations

import json
from typing import Any

from wdsdist.storage import compression

MOST_BYTES = 16 << 20
"""Bytes of a member that is read for a column, decompressed; larger ones are no small members."""

LENGTH = "length"
"""The part of a text that stands for its number of characters."""

JSON = frozenset(["json", "jsn"])
_INTEGERS = frozenset(["cls", "cls2", "index", "inx", "id"])


def kind_of(extension: str) -> str:
    """Return the last part of an extension in lower case, without ``.gz``, which decides how a member is decoded.

    >>> kind_of("meta.json.gz"), kind_of("TXT")
    ('json', 'txt')
    """
    return extension.lower().removesuffix(".gz").rpartition(".")[2]


def decoded(extension: str, data: bytes) -> Any:
    """Return what a member holds: a JSON value, an integer, or its text.

    Raises ``ValueError`` where it is not of its kind.
    """
    name = extension.lower()
    try:
        while name.endswith(".gz"):
            data, name = compression.unzip(data, MOST_BYTES), name[:-3]
        kind = kind_of(name)
        if kind in JSON:
            return json.loads(data)
        return int(data) if kind in _INTEGERS else data.decode()
    except UnicodeDecodeError:
        raise ValueError("it is no text in UTF-8") from None
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    except Exception as error:  # also those of zlib
        raise ValueError(str(error) or type(error).__name__) from None


def value_at(value: Any, path: tuple[str, ...]) -> Any:
    """Return the value at a path in a JSON value, such as a number or text; ``None`` where there is none.

    Objects and lists become their JSON text. A part of the path is the name in an object, which may have dots, or the
    number of an item in a list.

    >>> value_at({"a": {"b.c": [5, 6]}}, ("a", "b", "c", "1")), value_at({"a": [1, {}]}, ("a",)), value_at({}, ("a",))
    (6, '[1, {}]', None)
    """
    found = _found(value, path)
    return json.dumps(found, ensure_ascii=False) if isinstance(found, (dict, list)) else found


def _found(value: Any, path: tuple[str, ...]) -> Any:
    if not path:
        return value
    if isinstance(value, list) and path[0].isascii() and path[0].isdigit():
        return _found(value[int(path[0])], path[1:]) if int(path[0]) < len(value) else None
    if isinstance(value, dict):
        for count in range(1, len(path) + 1):
            name = ".".join(path[:count])
            if name in value:
                found = _found(value[name], path[count:])
                if found is not None:
                    return found
    return None
