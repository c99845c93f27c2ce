"""A program: decodes images that claim too many pixels in all ways, and prints what that took.

Printed are how many more or fewer were refused than there are, and by how many MiB the memory has grown.
"""

from __future__ import annotations

import warnings
from pathlib import Path

from tests.samples.test_image_limits import bombs, ways
from wdsdist.errors import SampleError


def peak() -> int:
    """Return the most memory that this process has had, in MiB."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) >> 10


def main() -> None:
    warnings.simplefilter("ignore")
    made, every, failed = bombs(), ways(), 0
    for way in every.values():
        way(made["ppm"][:3] + b"2 2 255 " + bytes(12))  # what is loaded once
    before = peak()
    for data in made.values():
        for way in every.values():
            try:
                way(data)
            except SampleError:
                failed += 1
    print(failed - len(made) * len(every), peak() - before)


if __name__ == "__main__":
    main()
