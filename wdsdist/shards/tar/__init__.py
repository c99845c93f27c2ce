"""Parse and write tar headers: pure functions on buffers, no I/O.

Reads what GNU tar, bsdtar, Python and webdataset write (USTAR, PAX, GNU long names, base-256 sizes); writes
deterministic USTAR with a PAX header only where a name or size needs one.
"""

from wdsdist.shards.tar.bulk import BLOCK
from wdsdist.shards.tar.key_rule import (
    AUTO,
    FIRST_DOT,
    LAST_DOT,
    Evidence,
    check_rule,
    cutter,
    decide,
    escaped,
    is_cut_alike,
    merge,
    observe,
)
from wdsdist.shards.tar.naming import (
    CLUTTER,
    CLUTTER_NAMES,
    evidence,
    glance,
    group,
    is_compressed,
    is_tar,
    is_text,
    split_name,
    split_stored_name,
    why_skipped,
)
from wdsdist.shards.tar.reader import LONGEST_HEADERS, Members, is_member_at, scan, scan_parts
from wdsdist.shards.tar.writer import END, PLAIN_NAME, SIZE_LIMIT, header, padding, plain_headers, stored_size

__all__ = [
    "AUTO",
    "BLOCK",
    "CLUTTER",
    "CLUTTER_NAMES",
    "END",
    "Evidence",
    "FIRST_DOT",
    "LAST_DOT",
    "LONGEST_HEADERS",
    "Members",
    "PLAIN_NAME",
    "SIZE_LIMIT",
    "check_rule",
    "cutter",
    "decide",
    "escaped",
    "evidence",
    "glance",
    "group",
    "header",
    "is_compressed",
    "is_cut_alike",
    "is_member_at",
    "is_tar",
    "is_text",
    "merge",
    "observe",
    "padding",
    "plain_headers",
    "scan",
    "scan_parts",
    "split_name",
    "split_stored_name",
    "stored_size",
    "why_skipped",
]
