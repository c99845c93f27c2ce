"""Tables packed into shards: by several processes, to the same bytes, and with what was chosen in the manifest."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import wdsdist
from tests.support.packing import packed_members
from tests.support.tables import WRITERS
from wdsdist.errors import SourceError
from wdsdist.packing import pack
from wdsdist.packing.sources import table as tables


def test_parquet_beyond_the_memory_is_shuffled_in_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"key": [f"{n:04}" for n in range(400)], "raw": [bytes([n % 256]) * 5000 for n in range(400)]})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=10)
    monkeypatch.setattr(tables, "_BLOCK_BYTES", 300_000)
    pack(tmp_path / "t.parquet", tmp_path / "out", shard_samples=20, workers=2)
    found = packed_members(tmp_path / "out")
    assert sorted(found) == [f"{number:04}.raw" for number in range(400)]
    groups = [int(name[:4]) // 10 for name in found]
    assert groups != sorted(groups)
    shards = [set(groups[start : start + 20]) for start in range(0, 400, 20)]
    assert max(map(len, shards)) <= 2 * 300_000 // 50_000


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("columns", [None, {"label": "cls"}])
def test_texts_of_classes_become_numbers_with_a_list_of_classes(
    columns: dict[str, str] | None, form: str, tmp_path: Path
) -> None:
    labels = ["dog", "cat", None, "söt dog", "cat"]
    table = WRITERS[form][1](
        tmp_path / WRITERS[form][0],
        [{"key": f"k{number}", "caption": "x", "label": label} for number, label in enumerate(labels)],
    )
    manifest = pack(table, tmp_path / "dest", columns=columns, workers=1)
    assert manifest.extra["classes"] == ["cat", "dog", "söt dog"]
    members = packed_members(tmp_path / "dest")
    assert {key: data for key, data in members.items() if key.endswith(".cls")} == {
        "k0.cls": b"1",
        "k1.cls": b"0",
        "k3.cls": b"2",
        "k4.cls": b"0",
    }
    assert members["k0.txt"] == b"x"


def test_too_many_texts_are_no_classes(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("caption,label\n" + "".join(f"x,name {number}\n" for number in range(65_537)))
    with pytest.raises(
        SourceError, match=r"'label' of .* more than 65,536 different strings.*columns={'label': 'txt'}"
    ):
        pack(tmp_path / "t.csv", tmp_path / "dest")


@pytest.mark.parametrize(
    ("labels", "refused"),
    [
        (("0", "1", "2"), False),
        (("2", "10", "1"), True),
        (("1", "2"), True),
        (("a", "2"), True),
        (("7", "NaN", "12"), True),
    ],
)
def test_integers_as_texts_that_would_become_other_classes_are_refused_unless_they_are_mapped(
    labels: tuple[str, ...], refused: bool, tmp_path: Path
) -> None:
    source = tmp_path / "t.jsonl"
    source.write_text("\n".join(json.dumps({"caption": "x", "label": label}) for label in labels))
    if refused:
        with pytest.raises(SourceError, match=r"columns={'label': 'index'}"):
            pack(source, tmp_path / "dest", workers=1)
    manifest = pack(source, tmp_path / "dest", columns={"label": "cls"} if refused else None, workers=1)
    assert manifest.extra["classes"] == sorted(labels)
    if not {"a", "NaN"} & set(labels):
        manifest = pack(source, tmp_path / "as-they-are", columns={"label": "index"}, workers=1)
        data = wdsdist.StreamingDataset(manifest, decode=True, shuffle=False)
        assert {data[number]["index"] for number in range(len(labels))} == set(map(int, labels))
