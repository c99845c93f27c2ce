"""Files and objects behind one interface: local paths directly, everything else through fsspec.

A *location* is a local path or a URL (``s3://``, ``gs://``, ``az://``, ``hf://``, ``http://``, ``memory://``). Clients
are made on first use in each process. Errors of the many back ends leave here as
`StorageError` or ``FileNotFoundError`` with the location in the message, without its credentials.
"""

from wdsdist._util.files import atomic_write, lies_in, sha256
from wdsdist.storage.copying import Connections, Transfer
from wdsdist.storage.deadline import Deadline
from wdsdist.storage.entries import Entry, entry, listing
from wdsdist.storage.failures import AwayError, UnfitError, WrongLengthError, raise_alone
from wdsdist.storage.objects import exists, names, read, read_range, read_until, remove, sizes, upload, write
from wdsdist.storage.options import StorageOptions, named, options_for, store
from wdsdist.storage.transfer import Fetching, begin_fetch, fetch
from wdsdist.storage.urls import beside, is_read_only, is_remote, join, local_path, normalise, scheme, shown, split

__all__ = [
    "AwayError",
    "Connections",
    "Deadline",
    "Entry",
    "Fetching",
    "StorageOptions",
    "Transfer",
    "UnfitError",
    "WrongLengthError",
    "atomic_write",
    "begin_fetch",
    "beside",
    "entry",
    "exists",
    "fetch",
    "is_read_only",
    "is_remote",
    "join",
    "lies_in",
    "listing",
    "local_path",
    "named",
    "names",
    "normalise",
    "options_for",
    "raise_alone",
    "read",
    "read_range",
    "read_until",
    "remove",
    "scheme",
    "sha256",
    "shown",
    "sizes",
    "split",
    "store",
    "upload",
    "write",
]
