"""Show the doctests of docstrings as code in the reference, where they would be taken for quotations."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_DOCTEST = re.compile(r"^(?P<indent> *)>>> .*(?:\n.*\S.*)*", re.MULTILINE)


class Doctests(Extension):
    """Puts each doctest between fences."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Change the docstring of an object, before it is parsed."""
        if obj.docstring is not None:
            obj.docstring.value = _DOCTEST.sub(r"\g<indent>```pycon\n\g<0>\n\g<indent>```", obj.docstring.value)
