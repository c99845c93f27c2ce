"""Parse and write tar headers: pure functions on buffers, no I/O.

Reads what GNU tar, bsdtar, Python and webdataset write (USTAR, PAX, GNU long names, base-256 sizes); writes
deterministic USTAR with a PAX header only where a name or size needs one.
"""

from wdsdist.shards.tar.bulk import BLOCK as BLOCK
from wdsdist.shards.tar.key_rule import AUTO as AUTO
from wdsdist.shards.tar.key_rule import FIRST_DOT as FIRST_DOT
from wdsdist.shards.tar.key_rule import LAST_DOT as LAST_DOT
from wdsdist.shards.tar.key_rule import Evidence as Evidence
from wdsdist.shards.tar.key_rule import check_rule as check_rule
from wdsdist.shards.tar.key_rule import cutter as cutter
from wdsdist.shards.tar.key_rule import decide as decide
from wdsdist.shards.tar.key_rule import escaped as escaped
from wdsdist.shards.tar.key_rule import is_cut_alike as is_cut_alike
from wdsdist.shards.tar.key_rule import merge as merge
from wdsdist.shards.tar.key_rule import observe as observe
from wdsdist.shards.tar.naming import CLUTTER as CLUTTER
from wdsdist.shards.tar.naming import CLUTTER_NAMES as CLUTTER_NAMES
from wdsdist.shards.tar.naming import evidence as evidence
from wdsdist.shards.tar.naming import glance as glance
from wdsdist.shards.tar.naming import group as group
from wdsdist.shards.tar.naming import is_compressed as is_compressed
from wdsdist.shards.tar.naming import is_tar as is_tar
from wdsdist.shards.tar.naming import is_text as is_text
from wdsdist.shards.tar.naming import split_name as split_name
from wdsdist.shards.tar.naming import split_stored_name as split_stored_name
from wdsdist.shards.tar.naming import why_skipped as why_skipped
from wdsdist.shards.tar.reader import LONGEST_HEADERS as LONGEST_HEADERS
from wdsdist.shards.tar.reader import Members as Members
from wdsdist.shards.tar.reader import is_member_at as is_member_at
from wdsdist.shards.tar.reader import scan as scan
from wdsdist.shards.tar.reader import scan_parts as scan_parts
from wdsdist.shards.tar.writer import END as END
from wdsdist.shards.tar.writer import PLAIN_NAME as PLAIN_NAME
from wdsdist.shards.tar.writer import SIZE_LIMIT as SIZE_LIMIT
from wdsdist.shards.tar.writer import header as header
from wdsdist.shards.tar.writer import padding as padding
from wdsdist.shards.tar.writer import plain_headers as plain_headers
from wdsdist.shards.tar.writer import stored_size as stored_size
