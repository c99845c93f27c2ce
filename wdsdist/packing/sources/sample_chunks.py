"""Folders of MosaicML Streaming (MDS) and LitData as tables: one row a sample, its bytes as they are stored.

Both write files of samples, with a table of offsets at the start: uint32 ``n``, uint32 [n + 1], all from the start of
the file. A sample is the sizes of its fields, uint32, then the fields; MDS leaves out sizes that are the same for all.
Where samples are dicts without files or tensors, LitData writes their rows as an Arrow file behind that table instead.
Sources: ``streaming/base/format/mds`` of mosaicml-streaming 0.13, ``litdata/streaming`` of litdata 0.2.76.
"""

from __future__ import annotations

import functools
import json
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from wdsdist._util.files import read_file
from wdsdist.errors import SourceError
from wdsdist.packing.sources.arrow_files import LITDATA_ARROW
from wdsdist.packing.sources.columns import Column, Content, extension_of
from wdsdist.packing.sources.source import Blocks, FileStamp
from wdsdist.packing.sources.table_rows import FileTable, Length, Row, named_in
from wdsdist.storage import compression

Kind = Literal["mds", "litdata"]

_INDEX = "index.json"
_KEPT_BYTES = 256 << 20
"""Of decompressed files that are read in turn, in each process."""
_START = 16
"""Bytes that tell what a field is."""
_FILES = ("bytes", "image", "jpeg", "png", "video", "audio", "file", "pdf")
"""Encodings of fields that hold a file; LitData writes its extension behind a colon."""
_TEXTS = ("str", "text", "str_decimal")
_NUMBERS = {"int": "int64", "float": "float64", **{name: name for name in ("float16", "float32", "float64")}}
_NUMBERS |= {f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_ARRAY_TYPES = dict(
    zip(
        (8, 9, 16, 17, 18, 32, 33, 34, 64, 65, 66),
        ["uint8", "int8", "uint16", "int16", "float16", "uint32", "int32", "float32", "uint64", "int64", "float64"],
        strict=True,
    )
)
_BY_LIBRARY = {
    "mds": "wdsdist.pack(streaming.StreamingDataset(local=FOLDER, shuffle=False), DEST, encode=f)",
    "litdata": "wdsdist.pack(litdata.StreamingDataset(FOLDER), DEST, encode=f)",
}


@dataclass(frozen=True, slots=True)
class _Field:
    """One field of each sample."""

    name: str
    encoding: str
    size: int | None = None
    """Bytes, where samples do not say."""


@dataclass(frozen=True, slots=True)
class _File:
    """One file of samples."""

    stamp: FileStamp
    samples: int
    size: int
    """Bytes, decompressed."""
    fields: tuple[_Field, ...]
    is_compressed: bool = False

    def row(self, group: int, number: int, used: tuple[int, ...]) -> Row:
        parts = _parts(self, number)
        row: Row = [None] * len(self.fields)
        for place in used:
            row[place] = _decoded(self, number, self.fields[place], parts[place])
        return row

    def place(self, group: int, number: int) -> str:
        return f"{self.stamp.path}, sample {number:,}"


def kind_of(folder: Path) -> Kind | None:
    """Say whose samples a folder holds by its ``index.json``; ``None`` where it is of neither."""
    try:
        index = json.loads(read_file(folder / _INDEX))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(index, dict):
        return None
    shards = index.get("shards")
    if isinstance(shards, list) and shards and isinstance(shards[0], dict) and "raw_data" in shards[0]:
        return "mds"
    return "litdata" if isinstance(index.get("chunks"), list) and isinstance(index.get("config"), dict) else None


def arrow_chunks(folder: Path) -> list[Path]:
    """Return the files of a LitData folder where they hold rows as Arrow files do, as of texts and numbers; else none.

    Raises `SourceError` where only some do, or are of the size that the index says.
    """
    try:
        chunks = json.loads(read_file(folder / _INDEX))["chunks"]
        files = [(_stamp(folder, chunk["filename"]), int(chunk["chunk_bytes"])) for chunk in chunks]
    except (KeyError, TypeError, ValueError, OSError):
        return []  # which `ChunkTable` says
    whole = [stamp.size == size and _end(stamp) == LITDATA_ARROW for stamp, size in files]
    if any(whole) and not all(whole):
        stamp, size = files[whole.index(False)]
        raise SourceError(
            f"{stamp.path} does not end as other files of {folder} do, or has not the {size:,} bytes that the index "
            f"says, but {stamp.size:,}: fetch it again, or let the library read it, as in {_BY_LIBRARY['litdata']}"
        )
    return [Path(stamp.path) for stamp, _ in files] if any(whole) else []


def _end(stamp: FileStamp) -> bytes:
    with Path(stamp.path).open("rb") as stream:
        stream.seek(max(0, stamp.size - len(LITDATA_ARROW)))
        return stream.read()


class ChunkTable(FileTable):
    """The samples of a folder as a table: its rows in order, and any of its rows.

    Raises `SourceError` for files that are missing or damaged, and for what cannot be read without the library, unless
    ``wanted``, of ``columns=``, leaves it out.
    """

    def __init__(self, folder: Path, kind: str, wanted: Mapping[str, str]) -> None:
        try:
            index = json.loads(read_file(folder / _INDEX))
            self._fields, self._chunks = (_mds if kind == "mds" else _litdata)(folder, index)
        except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
            raise SourceError(
                f"{folder / _INDEX} cannot be read as that of {kind} ({type(error).__name__}: {error}): fetch it again"
            ) from error
        super().__init__(str(folder), self._chunks, [[file.samples] for file in self._chunks])
        for field in self._fields:
            if _codec(field.encoding)[1] is None and wanted.get(field.name) != "":
                raise SourceError(
                    f"{folder} stores {field.name!r} as {field.encoding!r}, which is not read here: leave it out with "
                    f"columns={{{field.name!r}: ''}} (--column {field.name}=), or let the library read it, as in "
                    f"{_BY_LIBRARY[kind]}"
                )

    def columns(self, root: str) -> list[Column]:
        """Say what each field holds, by its encoding, and files by their first bytes; texts are never paths."""
        first = next((_parts(file, 0) for file in self._chunks if file.samples), None)
        found = []
        for place, field in enumerate(self._fields):
            content, _ = _codec(field.encoding)
            extension = ""
            if content == "bytes" and first is not None:
                extension = {"jpeg": "jpg"}.get(field.encoding, field.encoding.partition(":")[2])
                extension = extension or extension_of(bytes(first[place][:_START]))
            found.append(Column(field.name, content, extension))
        return found

    def rows(self, used: Sequence[int], columns: Sequence[Column]) -> Iterator[Row]:
        """Yield all rows with the lengths of bytes in place of the bytes; fields that are not used stay empty."""
        for file in self._chunks:
            for number in range(file.samples):
                parts = _parts(file, number)
                yield [
                    None if place not in used
                    else Length(len(part)) if columns[place].content == "bytes"
                    else _decoded(file, number, self._fields[place], part)
                    for place, part in enumerate(parts)
                ]  # fmt: skip

    def has_exact_sizes(self, used: Sequence[int], columns: Sequence[Column]) -> bool:
        """Whether `rows` gives the length of each of the bytes."""
        return True

    def blocks(self) -> Blocks | None:
        """Return the files where they are decompressed as a whole."""
        if not any(file.is_compressed for file in self._chunks):
            return None
        return Blocks(self.starts, np.array([file.size for file in self._chunks], np.int64), _KEPT_BYTES)


def _mds(folder: Path, index: dict[str, Any]) -> tuple[tuple[_Field, ...], list[_File]]:
    """Return the fields and files that an ``index.json`` of MosaicML Streaming lists."""
    files = []
    for shard in index["shards"]:
        if (shard["format"], shard["version"]) != ("mds", 2):
            raise ValueError(f"shards of the format {shard['format']!r}, version {shard['version']}, are not read here")
        codec = shard["compression"]
        if codec is not None and codec.partition(":")[0] not in ("zstd", "gz", "bz2"):
            raise ValueError(f"compression {codec!r} is not read here: write the data set without it")
        names = (shard["column_names"], shard["column_encodings"], shard["column_sizes"])
        fields = tuple(_Field(*one) for one in zip(*names, strict=True))
        stamp = _stamp(folder, shard["zip_data" if codec else "raw_data"]["basename"])
        files.append(_File(stamp, int(shard["samples"]), int(shard["raw_data"]["bytes"]), fields, codec is not None))
    if len({file.fields for file in files}) != 1:
        raise ValueError("its shards have different columns")
    return files[0].fields, files


def _litdata(folder: Path, index: dict[str, Any]) -> tuple[tuple[_Field, ...], list[_File]]:
    """Return the fields and files that an ``index.json`` of LitData lists."""
    config = index["config"]
    for name, usual in (("compression", None), ("encryption", None), ("item_loader", "PyTreeLoader")):
        if config.get(name) not in (None, usual):
            raise ValueError(f"{name} is {config[name]!r}, which is not read here; as in {_BY_LIBRARY['litdata']}")
    names = _leaves(json.loads(config["data_spec"])[1], "")
    fields = tuple(_Field(*one) for one in zip(names, config["data_format"], strict=True))
    return fields, [
        _File(_stamp(folder, one["filename"]), int(one["chunk_size"]), int(one["chunk_bytes"]), fields)
        for one in index["chunks"]
    ]


def _leaves(spec: dict[str, Any], name: str) -> list[str]:
    """Return the names of what a sample is made of: keys and numbers, joined by dots, of torch's ``treespec_dumps``."""
    if spec["type"] is None:
        return [name or "value"]
    children = spec["children_spec"]
    keys = json.loads(spec["context"]) if spec["type"].endswith("dict") else [str(n) for n in range(len(children))]
    pairs = zip(keys, children, strict=True)
    return [leaf for key, child in pairs for leaf in _leaves(child, f"{name}.{key}" if name else str(key))]


def _stamp(folder: Path, name: str) -> FileStamp:
    path = named_in(folder, _INDEX, name)
    try:
        return FileStamp.of(path)
    except FileNotFoundError as error:
        raise SourceError(f"{path} does not exist, but {folder / _INDEX} names it: fetch it again") from error


def _load(file: _File) -> tuple[memoryview, npt.NDArray[np.uint32]]:
    """Return a file's bytes and the offsets of its samples, checked."""
    path = file.stamp.path
    with tempfile.TemporaryFile() if file.is_compressed else Path(path).open("rb") as stream:
        if file.is_compressed:
            compression.unpack(Path(path), Path(f"/dev/fd/{stream.fileno()}"), size=file.size, label=path)
        size = os.fstat(stream.fileno()).st_size
        if size != file.size or size < 4:
            raise SourceError(f"{path} has {size:,} bytes, but its index says {file.size:,}: fetch it again")
        view = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
    count = int.from_bytes(view[:4], "little")
    first = 4 * (count + 2)
    offsets = np.frombuffer(view[4:first], np.dtype("<u4")) if first <= size else np.zeros(0, "<u4")
    rises = len(offsets) == count + 1 and bool((np.diff(offsets.astype(np.int64)) >= 0).all())
    if count != file.samples or not rises or offsets[0] < first or offsets[-1] != size:
        raise SourceError(
            f"{path} is damaged: its head tells of {count:,} samples, its index of {file.samples:,}, or their offsets "
            f"do not fit its {size:,} bytes; fetch it again"
        )
    return view, offsets


_opened = functools.lru_cache(maxsize=256)(_load)
_unpacked = functools.lru_cache(maxsize=4)(_load)  # each is a temporary file


def _parts(file: _File, number: int) -> list[memoryview]:
    """Return the fields of one sample as they are stored."""
    view, offsets = (_unpacked if file.is_compressed else _opened)(file)
    sample = view[offsets[number] : offsets[number + 1]]
    fields = file.fields
    head = 4 * sum(field.size is None for field in fields)
    told = iter(np.frombuffer(sample[:head], np.dtype("<u4")).tolist()) if len(sample) >= head else iter(())
    sizes = [next(told, 0) if field.size is None else field.size for field in fields]
    if head + sum(sizes) != len(sample):
        raise SourceError(
            f"{file.stamp.path}, sample {number:,}: has {len(sample):,} bytes, and its fields take "
            f"{head + sum(sizes):,}: fetch the file again"
        )
    ends = (head + np.cumsum(sizes)).tolist()
    return [sample[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def _decoded(file: _File, number: int, field: _Field, part: memoryview) -> Any:
    _, decoder = _codec(field.encoding)
    assert decoder is not None  # checked when the table was made
    try:
        return decoder(bytes(part))
    except (ValueError, IndexError, KeyError, TypeError, RecursionError) as error:
        raise SourceError(
            f"{file.stamp.path}, sample {number:,}: {field.name!r} does not decode as {field.encoding!r}: {error}"
        ) from error


def _codec(encoding: str) -> tuple[Content, Callable[[bytes], Any] | None]:
    """Return what a field holds, and what decodes it; ``None`` for encodings not read here, such as pickles."""
    kind, _, rest = encoding.partition(":")
    if kind in _FILES:
        return "bytes", bytes
    if kind in _TEXTS:
        return "text", bytes.decode
    if kind in _NUMBERS:
        dtype = np.dtype(_NUMBERS[kind]).newbyteorder("<")
        return "number" if "float" in kind else "integer", lambda data: np.frombuffer(data, dtype).item()
    if kind == "ndarray":
        return "list", lambda data: _array(data, *rest.split(":") if rest else ())
    others: dict[str, tuple[Content, Callable[[bytes], Any]]] = {
        "str_int": ("integer", int),
        "str_float": ("number", float),
        "json": ("other", json.loads),
        "bool": ("other", lambda data: data != b"\0"),
    }
    return others.get(kind, ("other", None))


def _array(data: bytes, dtype: str = "", shape: str = "") -> npt.NDArray[Any]:
    """Return an array of MDS: its type and shape come first, as far as the encoding does not tell them.

    >>> _array(bytes([16, 1 << 2, 2, 7, 0, 9, 0])).tolist()
    [7, 9]
    """
    at = 0
    if not dtype:
        dtype, at = _ARRAY_TYPES[data[0]], 1
    if shape:
        dimensions = [int(part) for part in shape.split(",")]
    else:
        ndim, width = data[at] >> 2, 1 << data[at] % 4
        dimensions = np.frombuffer(data[at + 1 : at + 1 + ndim * width], np.dtype(f"<u{width}")).tolist()
        at += 1 + ndim * width
    return np.frombuffer(data[at:], np.dtype(dtype).newbyteorder("<")).reshape(dimensions)
