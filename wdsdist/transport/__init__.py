"""Batches from worker processes to the main process."""

from wdsdist.transport.channel import Channel
from wdsdist.transport.groups import grouped, opened

__all__ = ["Channel", "grouped", "opened"]
