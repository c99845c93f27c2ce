"""Tables of the same samples in every format."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Record = dict[str, Any]


def write_csv(path: Path, records: list[Record], *, delimiter: str = ",") -> Path:
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(records[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(records)
    return path


def write_tsv(path: Path, records: list[Record]) -> Path:
    return write_csv(path, records, delimiter="\t")


def write_jsonl(path: Path, records: list[Record]) -> Path:
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")
    return path


def write_parquet(path: Path, records: list[Record]) -> Path:
    pq.write_table(pa.Table.from_pylist(records), path, row_group_size=3)
    return path


def write_arrow(path: Path, records: list[Record]) -> Path:
    table = pa.Table.from_pylist(records)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    return path


def write_arrow_stream(path: Path, records: list[Record]) -> Path:
    table = pa.Table.from_pylist(records)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    return path


WRITERS: dict[str, tuple[str, Callable[[Path, list[Record]], Path]]] = {
    "csv": ("table.csv", write_csv),
    "tsv": ("table.tsv", write_tsv),
    "jsonl": ("table.jsonl", write_jsonl),
    "parquet": ("table.parquet", write_parquet),
    "arrow": ("table.arrow", write_arrow),
    "arrow stream": ("stream.arrow", write_arrow_stream),
}
