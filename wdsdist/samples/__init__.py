"""Bytes of members to values and back, and values to the columns of a batch."""
