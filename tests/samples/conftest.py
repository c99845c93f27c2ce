"""Each test of images twice: with all packages that decode, and with those that torch users have anyway."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from wdsdist.samples.images import decode


@pytest.fixture(params=["fast packages", "Pillow and torch alone"])
def packages(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Each test twice: with simplejpeg and OpenCV, and as if they were not installed."""
    if request.param != "fast packages":
        for package in ("simplejpeg", "cv2"):
            monkeypatch.setitem(sys.modules, package, None)
    decode._optional.cache_clear()
    decode.opencv.cache_clear()
    yield request.param
    decode._optional.cache_clear()
    decode.opencv.cache_clear()
