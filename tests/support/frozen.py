"""Leaves what a process has imported out of garbage collections, which would look through it again and again."""

import gc

gc.freeze()
