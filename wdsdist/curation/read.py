"""The values of a column over all samples, as an Arrow or a numpy array."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from wdsdist.curation import add, arrays
from wdsdist.curation.columns import CLASS, CLASS_NAME, ColumnReader, names, unknown
from wdsdist.curation.tables import pyarrow
from wdsdist.errors import ArgumentError, DestinationError

if TYPE_CHECKING:
    from collections.abc import Collection

    from wdsdist.shards.manifest import Manifest

_log = logging.getLogger("wdsdist")


def column(manifest: Manifest, name: str) -> Any:
    """Return a column over the samples of a data set or view, as a chunked array.

    Raises `ArgumentError` if there is no such column, `IndexFormatError` if its file cannot be used.
    """
    pyarrow("columns")
    make_classes(manifest, [name])
    parts = [ColumnReader(part, name).read(np.flatnonzero(part.counts).tolist()) for part in manifest.data_sets]
    values = arrays.concatenated(parts)
    if name.endswith(".bytes") and values.null_count == len(values) and name not in names(manifest):
        raise unknown(manifest, name)
    return values


def values(manifest: Manifest, name: str) -> npt.NDArray[Any]:
    """Return a column as `Manifest.column` does."""
    return arrays.to_numpy(column(manifest, name))


def make_classes(manifest: Manifest, wanted: Collection[str]) -> None:
    """Keep the column ``cls`` in a file, if it is wanted for a data set that has classes, and can be written."""
    for part in manifest.data_sets if {CLASS, CLASS_NAME}.intersection(wanted) else ():
        try:
            if ColumnReader(part, CLASS).stored is None:
                add.add_columns(part, fields=[CLASS])
        except DestinationError as error:
            _log.info("the column cls is read from the shards each time: %s", error)
        except ArgumentError:
            pass  # it has no such column, which is said when it is read, or it lacks the newest shards
