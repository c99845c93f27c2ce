"""`pack` for tests whose subject is not the number of processes: two processes cost more than what tests write."""

from __future__ import annotations

import functools

from wdsdist import packing

pack = functools.partial(packing.pack, workers=1)
