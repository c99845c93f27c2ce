"""What a loader and its workers tell each other through shared memory."""

from __future__ import annotations

import pytest

from wdsdist.errors import LoaderStateError
from wdsdist.loader.worker_state import SharedValue


def test_a_value_that_is_too_large_is_refused_and_the_one_before_stays() -> None:
    shared = SharedValue()
    shared.write({"epoch": 3})
    with pytest.raises(LoaderStateError, match=r"takes 9,\d{3} bytes, and at most 8,192 reach them"):
        shared.write({"epoch": "4" * 9000})
    assert shared.read() == {"epoch": 3}
