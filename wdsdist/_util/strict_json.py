"""JSON as its standard has it: plain ASCII, and null for numbers that JSON does not have (NaN and infinities)."""

from __future__ import annotations

import json
import math
from typing import Any


def dumps(data: Any, *, indent: int | None = None) -> str:
    """Return data as JSON that every parser reads."""
    return json.dumps(_finite(data), allow_nan=False, indent=indent)


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {name: _finite(value) for name, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
