"""Parse and write tar headers: pure functions on buffers, no I/O.

Reads what GNU tar, bsdtar, Python and webdataset write (USTAR, PAX, GNU long names, base-256 sizes); writes
deterministic USTAR with a PAX header only if a name or size needs one. Names are imported on first use: a training loop
reads no tar headers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wdsdist.shards.tar.entries import BLOCK as BLOCK
    from wdsdist.shards.tar.entries import END as END
    from wdsdist.shards.tar.entries import LONGEST_HEADERS as LONGEST_HEADERS
    from wdsdist.shards.tar.entries import is_member_at as is_member_at
    from wdsdist.shards.tar.naming import CLUTTER as CLUTTER
    from wdsdist.shards.tar.naming import CLUTTER_NAMES as CLUTTER_NAMES
    from wdsdist.shards.tar.naming import FIRST_DOT as FIRST_DOT
    from wdsdist.shards.tar.naming import LAST_DOT as LAST_DOT
    from wdsdist.shards.tar.naming import check_extensions as check_extensions
    from wdsdist.shards.tar.naming import check_rule as check_rule
    from wdsdist.shards.tar.naming import cutter as cutter
    from wdsdist.shards.tar.naming import escaped as escaped
    from wdsdist.shards.tar.naming import is_compressed as is_compressed
    from wdsdist.shards.tar.naming import is_cut_alike as is_cut_alike
    from wdsdist.shards.tar.naming import is_tar as is_tar
    from wdsdist.shards.tar.naming import is_text as is_text
    from wdsdist.shards.tar.naming import split_name as split_name
    from wdsdist.shards.tar.naming import split_stored_name as split_stored_name
    from wdsdist.shards.tar.naming import why_skipped as why_skipped
    from wdsdist.shards.tar.reader import Members as Members
    from wdsdist.shards.tar.reader import scan as scan
    from wdsdist.shards.tar.reader import scan_parts as scan_parts
    from wdsdist.shards.tar.writer import PLAIN_NAME as PLAIN_NAME
    from wdsdist.shards.tar.writer import SIZE_LIMIT as SIZE_LIMIT
    from wdsdist.shards.tar.writer import header as header
    from wdsdist.shards.tar.writer import padding as padding
    from wdsdist.shards.tar.writer import plain_headers as plain_headers
    from wdsdist.shards.tar.writer import stored_size as stored_size


def __getattr__(name: str) -> Any:
    for module in ("naming", "entries", "writer", "reader"):
        found = import_module(f"{__name__}.{module}")
        if name in vars(found) and not name.startswith("__"):
            return vars(found)[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
