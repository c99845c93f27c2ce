"""Column files (``.wdscolumn``), in a folder ``columns`` beside ``index.json`` or in another that the user named."""

from __future__ import annotations

import hashlib
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from wdsdist import storage
from wdsdist._util.files import atomic_write
from wdsdist._util.host import private_under, user_config_dir
from wdsdist.errors import ArgumentError, DestinationError, IndexFormatError
from wdsdist.shards import array_file
from wdsdist.shards.columns.column import Column

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

SUFFIX = ".wdscolumn"
FOLDER = "columns"

_MAGIC, _VERSION = b"wds-colu", 1
_ARRAYS = {
    "int": {"values": "<i8", "is_missing": "|u1"},
    "float": {"values": "<f8", "is_missing": "|u1"},
    "bool": {"values": "|u1", "is_missing": "|u1"},
    "text": {"values": "|u1", "starts": "<i8", "is_missing": "|u1"},
}


class StoredColumn(NamedTuple):
    """A column as it was read from its file."""

    column: Column
    num_shards: int
    """The first shards of the data set, whose samples it has values for."""
    made_by: dict[str, Any]
    """What it was made by, such as ``{"field": "json.width"}``."""


def save(folder: Path, name: str, column: Column, manifest: Manifest, made_by: Mapping[str, Any]) -> None:
    """Write the column of all samples of a data set into a folder, atomically."""
    arrays = {"values": column.values}
    if column.starts is not None:
        arrays["starts"] = column.starts
    arrays["is_missing"] = column.missing if column.is_missing is not None else column.missing[:0]
    header = {
        "name": name,
        "kind": column.kind,
        "num_shards": len(manifest.counts),
        "data": manifest.fingerprint,
        "made_by": dict(made_by),
    }
    array_file.save(folder / file_name(name), _MAGIC, _VERSION, header, arrays)


def load(manifest: Manifest, name: str) -> StoredColumn | None:
    """Load a column of a data set; ``None`` where it has none of that name.

    Raises `IndexFormatError` where its file is damaged, or made for other samples.
    """
    for folder in folders(manifest):
        place = storage.join(folder, file_name(name))
        try:
            if storage.is_remote(folder):
                return _parsed(storage.read(place, manifest.client_options), place, name, manifest)
            return _parsed(Path(place), place, name, manifest)
        except (FileNotFoundError, NotADirectoryError):
            continue
    return None


def names(manifest: Manifest) -> list[str]:
    """Return the names of the columns that a data set has files of."""
    found: set[str] = set()
    for folder in folders(manifest):
        try:
            files = storage.names(folder, "", manifest.client_options if storage.is_remote(folder) else None)
        except (FileNotFoundError, NotADirectoryError):
            continue
        found.update(urllib.parse.unquote(file.removesuffix(SUFFIX)) for file in files if file.endswith(SUFFIX))
    return sorted(found)


def file_name(name: str) -> str:
    """Return the file name of a column.

    >>> file_name("json.a/b")
    'json.a%2Fb.wdscolumn'
    """
    quoted = urllib.parse.quote(name, safe=" ()[]{}+,=@")
    if len(quoted) + len(SUFFIX) > 255 or quoted.startswith("."):
        raise ArgumentError(f"the column name {name!r} cannot be that of a file: choose a shorter one")
    return quoted + SUFFIX


def folders(manifest: Manifest) -> list[str]:
    """Return where columns of a data set may lie: where this user put them, then beside its ``index.json``."""
    own = storage.join(_home(manifest), FOLDER)
    try:
        recorded = _record(manifest).read_text(encoding="utf-8")
    except (OSError, ArgumentError, DestinationError, UnicodeDecodeError):
        return [own]
    return [recorded, own]


def prepare(manifest: Manifest, output: Path | None) -> Path:
    """Return the folder that columns are written to, made if need be, and remember one that the user chose.

    Raises `DestinationError` where it cannot be written.
    """
    if output is None and storage.is_remote(_home(manifest)):
        raise DestinationError(
            f"columns of {storage.shown(_home(manifest))} cannot be written there: say where they shall lie, with "
            f"output= (--output FOLDER)"
        )
    folder = Path(storage.join(_home(manifest), FOLDER)) if output is None else output.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(folder / ".writable"):
            pass
        (folder / ".writable").unlink()
    except OSError as error:
        raise DestinationError(
            f"columns cannot be written to {folder} ({error.strerror}): name another folder with output= "
            f"(--output FOLDER)"
        ) from error
    if output is not None:
        with atomic_write(_record(manifest, make=True)) as stream:
            stream.write(str(folder).encode())
    return folder


def _home(manifest: Manifest) -> str:
    """Return the folder of a data set's ``index.json``, or of its shards where it has none."""
    return storage.split(manifest.origin)[0] if manifest.origin else manifest.base


def _record(manifest: Manifest, *, make: bool = False) -> Path:
    """Return the file that says where this user put the columns of a data set."""
    folder = user_config_dir()
    if make:
        folder.parent.mkdir(parents=True, exist_ok=True)
    if not (folder / FOLDER).is_dir() and not make:
        raise FileNotFoundError(folder)
    own = private_under(private_under(folder.parent, folder.name), FOLDER)
    return own / hashlib.sha256(_home(manifest).encode()).hexdigest()


def _parsed(content: bytes | Path, label: str, name: str, manifest: Manifest) -> StoredColumn:
    label = storage.shown(label)
    header = _header(content, label)
    kind = header.get("kind")
    if kind not in _ARRAYS:
        raise IndexFormatError(f"{label} is a column of the unknown kind {kind!r}: make it anew with `wdsdist columns`")
    if isinstance(content, Path):
        found = array_file.load(content, _MAGIC, _VERSION, _ARRAYS[kind], what="column")
    else:
        found = array_file.parse(content, _MAGIC, _VERSION, _ARRAYS[kind], what="column", label=label)
    missing = found.arrays["is_missing"]
    column = Column(kind, found.arrays["values"], found.arrays.get("starts"), missing if len(missing) else None)
    return StoredColumn(column, _checked_shards(header, column, label, name, manifest), header.get("made_by", {}))


def _header(content: bytes | Path, label: str) -> dict[str, Any]:
    if isinstance(content, Path):
        return array_file.load(content, _MAGIC, _VERSION, {}, what="column").header
    return array_file.parse(content, _MAGIC, _VERSION, {}, what="column", label=label).header


def _checked_shards(header: dict[str, Any], column: Column, label: str, name: str, manifest: Manifest) -> int:
    """Return the number of shards that a column covers. Raises `IndexFormatError` where it is of other samples."""
    covered = header.get("num_shards")
    if not isinstance(covered, int) or not 0 <= covered <= len(manifest.counts):
        raise IndexFormatError(_of_other_data(label, name))
    whole = manifest.whole
    samples = int(whole.counts[:covered].sum())
    starts = column.starts
    if len(column) != samples or len(column.missing) != samples:
        raise IndexFormatError(_of_other_data(label, name))
    if starts is not None and (starts[0] != 0 or starts[-1] != len(column.values) or (starts[1:] < starts[:-1]).any()):
        raise IndexFormatError(f"{label} is damaged: its texts do not fit together; make it anew")
    if header.get("data") != whole.prefix(covered).fingerprint:
        raise IndexFormatError(_of_other_data(label, name))
    return covered


def _of_other_data(label: str, name: str) -> str:
    return (
        f"{label} holds the column {name!r} of other samples than the data set has now: make it anew with "
        f"`wdsdist columns`"
    )
