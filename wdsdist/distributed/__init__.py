"""Rank and world size of this process, functions that run once per node, and barriers."""
