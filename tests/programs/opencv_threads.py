"""A program: fails unless opencv has one thread in this process and in one forked from it."""

from __future__ import annotations

import os


def main() -> None:
    import cv2

    from wdsdist.samples.images.decode import opencv

    cv2.setNumThreads(3)
    assert opencv() is cv2
    assert cv2.getNumThreads() == 1
    cv2.setNumThreads(3)  # as a training script might, after it has made a loader
    assert opencv() is cv2
    assert cv2.getNumThreads() == 3, "ours to set once only"
    child = os.fork()
    if not child:
        opencv()
        os._exit(cv2.getNumThreads())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


if __name__ == "__main__":
    main()
