"""placeholder until merge"""

from __future__ import annotations

from typing import Any


def seeded(function: Any) -> Any:
    function.is_seeded = True
    return function


def is_seeded(function: Any) -> bool:
    return bool(getattr(function, "is_seeded", False))
