"""Bytes of members to values, and values to the columns of a batch."""
