"""Batches from worker processes to the main process."""

from wdsdist.loader.ipc.channel import Channel
from wdsdist.loader.ipc.groups import group_size, grouped, opened

__all__ = ["Channel", "group_size", "grouped", "opened"]
