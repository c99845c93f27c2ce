"""The manifests that `wdsdist index --output` wrote for this user, whose shards lie where he said.

Each is recorded by the digest of its bytes, in a folder of the user's own: were it recorded in the ``index.json``, one
that comes from elsewhere could claim the same for itself.
"""

from __future__ import annotations

import hashlib

from wdsdist._util.host import private_under, user_config_dir
from wdsdist.errors import ArgumentError, DestinationError


def record(content: bytes) -> None:
    """Remember the bytes of an ``index.json`` as made from locations that this user named.

    Raises `DestinationError` or ``OSError`` where the user's folder cannot be written, or others can write there too.
    """
    folder = user_config_dir()
    folder.parent.mkdir(parents=True, exist_ok=True)
    private_under(private_under(folder.parent, folder.name), "named").joinpath(_digest(content)).touch()


def is_recorded(content: bytes) -> bool:
    """Say whether the bytes of an ``index.json`` are recorded for this user; what others could have put counts not."""
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
