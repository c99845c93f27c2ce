"""Digests of trusted manifests: those that `wdsdist index --output` wrote for shards that this user named.

Each is recorded in the user's config folder, by the digest of its bytes. A mark in the ``index.json`` itself could be
forged by a downloaded one.
"""

from __future__ import annotations

import hashlib

from wdsdist._util.host import private_under, user_config_dir
from wdsdist.errors import ArgumentError, DestinationError


def record(content: bytes) -> None:
    """Record the digest of an ``index.json`` as made from locations that this user named.

    Raises `DestinationError` or ``OSError`` where the user's folder cannot be written, or others can write there too.
    """
    folder = user_config_dir()
    folder.parent.mkdir(parents=True, exist_ok=True)
    private_under(private_under(folder.parent, folder.name), "named").joinpath(_digest(content)).touch()


def is_recorded(content: bytes) -> bool:
    """Return whether the digest of an ``index.json`` is recorded, in a folder that this user alone can write."""
    try:
        folder = user_config_dir()
        if not (folder / "named" / _digest(content)).exists():
            return False
        private_under(private_under(folder.parent, folder.name), "named")
    except (ArgumentError, DestinationError, OSError):
        return False
    return True


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
