"""Batches from worker processes to the main process."""

from wdsdist.transport.channel import Channel
from wdsdist.transport.groups import group_size, grouped, opened

__all__ = ["Channel", "group_size", "grouped", "opened"]
