"""Columns that are added, against `tarfile`, `json` and Pillow: made, resumed, extended, kept elsewhere, and remote."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import shutil
import signal
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import wdsdist
from tests.support.examples import fewer
from tests.support.folders import forked, status
from tests.support.memory_store import MemoryStore
from tests.support.tars import npy_bytes, plain_tar, write_samples
from wdsdist.curation import add, column_file, columns
from wdsdist.errors import ArgumentError, DestinationError, ExtraMissingError, IndexFormatError, ShardDamagedError
from wdsdist.shards.manifest import Manifest
from wdsdist.shards.progress import ShardsProgress

FIELDS = ["json.width", "json.tags", "json.deep.x", "txt", "txt.length", "cls"]
PROBES = ["jpg;png.width", "jpg;png.height", "npy.shape", "npy.dtype", "npy.tokens"]
NAMES = [*FIELDS, *PROBES]


def picture(width: int, height: int, form: str = "JPEG", noise: int = 0) -> bytes:
    stream = io.BytesIO()
    pixels = np.random.default_rng(noise).integers(0, 256, (height, width, 3), np.uint8)
    Image.fromarray(pixels if noise else np.zeros_like(pixels)).save(stream, form)
    return stream.getvalue()


def members_of(shard: int, sample: int) -> dict[str, bytes]:
    """Return the members of one sample, of which some lack one or have a broken one."""
    random = np.random.default_rng([shard, sample])
    width, height = (int(one) for one in random.integers(1, 60, 2))
    described = {"width": width, "tags": ["a", sample], "deep": {"x": sample / 2 if sample % 3 else None}}
    text = json.dumps(described).encode()
    members = {
        "JPG" if sample % 4 else "png": picture(width, height, "JPEG" if sample % 2 else "WEBP"),
        **({"json": text} if sample % 2 else {"json.gz": gzip.compress(text)}),
        "txt": "ä".encode() * sample,
        "cls": b"%d\n" % shard,
        "npy": npy_bytes(np.zeros((2, sample), np.float32)),
    }
    if sample % 5 == 4:
        members |= {"cls": b"no number", "npy": b"no array"}
        del members["txt"]
    return members


def write(folder: Path, shards: range, samples: int = 7) -> Path:
    folder.mkdir(exist_ok=True)
    content = ([members_of(shard, sample) for sample in range(samples)] for shard in shards)
    write_samples(folder, content, first=shards.start)
    return folder


def samples_in(folder: Path) -> list[dict[str, bytes]]:
    """Return the members of all samples, as `tarfile` finds them."""
    found: dict[str, dict[str, bytes]] = {}
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar.getmembers():
                key, _, extension = member.name.partition(".")
                content = tar.extractfile(member)
                assert content is not None
                found.setdefault(key, {})[extension.lower()] = content.read()
    return list(found.values())


def _value(sample: dict[str, bytes], name: str) -> Any:
    if name.startswith("json"):
        text = json.loads(sample["json"] if "json" in sample else gzip.decompress(sample["json.gz"]))
        return {"width": text["width"], "tags": json.dumps(text["tags"]), "deep.x": text["deep"]["x"]}[name[5:]]
    is_broken = sample["npy"] == b"no array"
    if name in ("txt", "txt.length"):
        text = sample["txt"].decode() if "txt" in sample else None
        return text if name == "txt" or text is None else len(text)
    if name == "cls":
        return None if is_broken else int(sample["cls"])
    if name.startswith("npy"):
        array = None if is_broken else np.load(io.BytesIO(sample["npy"]))
        return array if array is None else {
            "shape": json.dumps(list(array.shape)), "dtype": str(array.dtype), "tokens": array.size,
        }[name[4:]]  # fmt: skip
    image = Image.open(io.BytesIO(sample.get("jpg", sample.get("png", b""))))
    return image.width if name.endswith("width") else image.height


def values(data: Manifest, name: str) -> list[Any]:
    found: list[Any] = columns.column(data, name).to_pylist()
    return found


def check(data: Manifest, folder: Path, names: list[str] = NAMES) -> None:
    samples = samples_in(folder)
    for name in names:
        assert values(data, name) == [_value(sample, name) for sample in samples], name


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.parquet")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    wdsdist.index(write(tmp_path / "data", range(3)), workers=1)
    return tmp_path / "data"


def test_columns_are_what_the_members_hold_and_unreadable_members_are_counted(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = wdsdist.open(folder)
    before = {path.name: path.read_bytes() for path in folder.glob("*.tar*")}
    assert data.add_columns(fields=FIELDS, probe=[*PROBES, "image.width"], workers=2) is data
    check(wdsdist.open(folder), folder, [*NAMES, "image.width"])
    assert set(NAMES) <= set(wdsdist.open(folder).columns)
    assert {path.name: path.read_bytes() for path in folder.glob("*.tar*")} == before
    assert {path.name for path in (folder / "columns").iterdir() if path.suffix != ".parquet"} == {column_file.LOCK}
    for name in ("cls", "npy.shape", "npy.dtype", "npy.tokens"):
        assert f"{name}: the members of 3 samples cannot be read, and have no value, such as 000.tar:" in caplog.text
    assert "0/k4: it does not have the header of a .npy file" in caplog.text
    assert "txt" not in {record.message.partition(":")[0] for record in caplog.records}


def test_compressed_shards_and_views_have_the_columns(tmp_path: Path) -> None:
    folder, plain = write(tmp_path / "data", range(2)), write(tmp_path / "plain", range(2))
    for path in list(folder.glob("*.tar")):
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    view = wdsdist.index(folder, workers=1).select(sample=5)
    view.add_columns(fields=["json.width"], probe=["jpg;png.width"], workers=1)
    check(whole := wdsdist.open(folder), plain, ["json.width", "jpg;png.width"])
    by_key = dict(zip(whole.column("key"), whole.column("json.width"), strict=True))
    assert view.column("json.width").tolist() == [by_key[key] for key in view.column("key")]


# What is there is kept


@contextlib.contextmanager
def taken_away(folder: Path, numbers: Iterable[int]) -> Iterator[None]:
    """Take shards away for a while: whoever reads one of them fails."""
    paths = [folder / f"{number:03}.tar" for number in numbers]
    for path in paths:
        path.rename(path.with_suffix(".away"))
    yield
    for path in paths:
        path.with_suffix(".away").rename(path)


def test_data_that_has_grown_reads_only_its_new_shards_and_old_views_keep_their_values(
    folder: Path, tmp_path: Path
) -> None:
    old = wdsdist.open(folder)
    old.add_columns(fields=FIELDS, probe=PROBES, workers=1)
    before = files(folder / "columns")
    with taken_away(folder, range(3)):
        old.add_columns(fields=FIELDS, probe=PROBES, workers=1)
    assert files(folder / "columns") == before
    view = wdsdist.open(old.select('"json.width" > 20').save(tmp_path / "view"))
    kept = values(view, "txt")
    wdsdist.index(write(folder, range(3, 5)), workers=1)
    grown = wdsdist.open(folder)
    with pytest.raises(ArgumentError, match="values for 3 of the 5 shards that the data set has now"):
        grown.column("txt")
    with taken_away(folder, range(3)):
        assert sorted(add.add_columns(grown, workers=1)) == sorted(NAMES)
    check(grown, folder)
    fresh = tmp_path / "fresh"
    shutil.copytree(folder, fresh, ignore=lambda *_: ["columns"])
    wdsdist.open(fresh).add_columns(fields=FIELDS, probe=PROBES, workers=1)
    assert files(fresh / "columns") == files(folder / "columns")
    assert values(wdsdist.open(tmp_path / "view"), "txt") == kept  # of the older generation
    assert values(old, "cls") == values(grown, "cls")[: old.num_samples]


def test_a_part_of_a_data_set_reads_its_columns_and_adds_none(folder: Path) -> None:
    texts = values(wdsdist.open(folder).add_columns(fields=["txt"], workers=1), "txt")
    part = wdsdist.open([folder / "002.tar", folder / "000.tar"])
    assert values(part, "txt") == texts[14:] + texts[:7]
    with pytest.raises(ArgumentError, match=r"these are 2 of the 3 shards of .*index.json: open that"):
        part.add_columns(fields=["cls"], workers=1)


def test_columns_of_other_samples_are_not_used_and_are_made_again(folder: Path) -> None:
    wdsdist.open(folder).add_columns(fields=["cls"], workers=1)
    for path in [*folder.glob("*.tar*"), folder / "index.json"]:
        path.unlink()
    data = wdsdist.index(write(folder, range(5, 7)), workers=1)
    with pytest.raises(IndexFormatError, match="of other samples than the data set has now"):
        data.column("cls")
    check(data.add_columns(fields=["cls"], workers=1), folder, ["cls"])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("version", 1), ("tables", 3), ("shards", 3), ("shards", []),
        ("shards", [["!", 0]] * 3),
        ("shards", [[1, 2**62]] * 3), ("shards", [[1, -7]] * 3), ("shards", [[1, 7, 0]] * 3),
    ],
)  # fmt: skip
def test_a_damaged_column_is_an_error_and_is_made_again(folder: Path, key: str, value: Any) -> None:
    data = wdsdist.open(folder).add_columns(fields=["txt"], workers=1)
    path = folder / "columns" / "txt.parquet"
    file = pq.ParquetFile(io.BytesIO(path.read_bytes()))
    notes = json.loads(file.metadata.metadata[column_file._NOTES]) | {key: value}
    with pq.ParquetWriter(path, file.schema_arrow.remove_metadata()) as writer:
        for group in range(file.num_row_groups):
            writer.write_table(file.read_row_group(group).replace_schema_metadata(None))
        writer.add_key_value_metadata({column_file._NOTES: json.dumps(notes).encode()})
    with pytest.raises(IndexFormatError, match=r"txt\.parquet is (damaged|not a column file)"):
        data.column("txt")
    check(data.add_columns(fields=["txt"], workers=1), folder, ["txt"])


@fewer(4)
@given(st.data())
def test_a_column_with_any_bytes_changed_is_an_error_or_has_its_values(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    root = tmp_path_factory.getbasetemp() / "altered"
    if not root.exists():
        wdsdist.index(write(root, range(2)), workers=1).add_columns(fields=["txt", "cls"], workers=1)
    name = data.draw(st.sampled_from(["txt", "cls"]))
    path = root / "columns" / f"{name}.parquet"
    content = path.read_bytes()
    other = bytearray(content)
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=3)):
        other[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(data.draw(st.sampled_from([bytes(other), content[: len(content) // 2], b""])))
    try:
        assert len(wdsdist.open(root).column(name)) == 14
    except (IndexFormatError, wdsdist.errors.StorageError, ArgumentError):
        pass
    finally:
        path.write_bytes(content)


# Interrupted


def test_a_call_that_is_killed_or_fails_adds_no_column_and_the_next_one_adds_all(folder: Path) -> None:
    data = wdsdist.open(folder)

    def killed(state: ShardsProgress) -> None:
        if state.shards_done == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    assert status(forked(lambda: data.add_columns(fields=FIELDS, workers=1, progress=killed))) == -signal.SIGKILL
    assert (folder / "columns" / column_file._WORK).exists()
    (folder / "001.tar").write_bytes((content := (folder / "001.tar").read_bytes())[:-512])
    with pytest.raises(ShardDamagedError, match=r"001.tar"):
        wdsdist.open(folder).add_columns(fields=["cls"], workers=1)
    assert not files(folder / "columns")
    (folder / "001.tar").write_bytes(content)
    shown: list[ShardsProgress] = []
    data.add_columns(fields=FIELDS, probe=PROBES, workers=1, progress=shown.append)
    assert (shown[0].shards_done, shown[-1].shards_done, shown[-1].samples_done) == (0, 3, data.num_samples)
    assert shown[-1].bytes_done == shown[-1].bytes == data.num_bytes
    assert not (folder / "columns" / column_file._WORK).exists()
    check(data, folder)


def test_two_calls_at_once_are_refused(folder: Path) -> None:
    (folder / "columns").mkdir()
    with (
        FileLock(folder / "columns" / column_file.LOCK),
        pytest.raises(DestinationError, match="another process is adding columns"),
    ):
        wdsdist.open(folder).add_columns(fields=["cls"], workers=1)


# The folder of columns


def test_columns_are_kept_elsewhere_and_found_again(folder: Path, tmp_path: Path) -> None:
    (folder / "columns").write_text("as if nothing could be made here")
    data = wdsdist.open(folder)
    with pytest.raises(DestinationError, match=r"columns cannot be written to .*columns .*output="):
        data.add_columns(fields=["cls"], workers=1)
    data.add_columns(fields=["cls"], output=tmp_path / "mine", workers=1)
    again = wdsdist.open(folder)
    check(again, folder, ["cls"])
    again.add_columns(fields=["txt"], workers=1)  # goes where the user has put the others
    assert set(files(tmp_path / "mine")) == {"cls.parquet", "txt.parquet"}


@pytest.mark.parametrize("name", ["columns", f"columns/{column_file._WORK}"])
def test_nothing_is_written_through_a_link_in_the_data_set(folder: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "outside").mkdir()
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).symlink_to(tmp_path / "outside")
    with pytest.raises(DestinationError, match=r"is a link|File exists"):
        wdsdist.open(folder).add_columns(fields=["cls"], workers=1)
    assert not list((tmp_path / "outside").iterdir())


def test_names_become_file_names_that_lead_nowhere_and_hide_no_column_of_the_shards(folder: Path) -> None:
    data = wdsdist.open(folder)
    data.add_columns(fields=["json./a/%2F*b"], workers=1)
    [path] = (folder / "columns").glob("*.parquet")
    assert path.name == "json.%2Fa%2F%252F%2Ab.parquet"
    assert "json./a/%2F*b" in data.columns
    keys = data.column("key").tolist()
    path.rename(path.with_name("key.parquet"))
    assert wdsdist.open(folder).column("key").tolist() == keys


def test_remote_shards_have_the_same_columns_of_which_little_is_fetched(folder: Path, tmp_path: Path) -> None:
    pictures = [picture(500 + number, 490, noise=number + 1) for number in range(8)]  # some 150 KB each
    stream = io.BytesIO()
    Image.new("RGB", (30, 20)).save(stream, "JPEG", icc_profile=bytes(300_000))
    large = [(f"{number}.jpg", one) for number, one in enumerate([*pictures, stream.getvalue()])]
    (folder / "large.tar").write_bytes(plain_tar([*large, ("x.bin", bytes(3_000_000))]))
    wdsdist.index(folder, workers=1)
    with MemoryStore({path.name: path.read_bytes() for path in folder.iterdir()}) as store:
        data = wdsdist.open(store.url)
        with pytest.raises(DestinationError, match=r"columns cannot be written to .*output="):
            data.add_columns(fields=["txt"], workers=1)
        data.add_columns(fields=FIELDS, probe=PROBES, output=tmp_path / "far")
        assert values(data, "jpg;png.width")[21:] == [*(500 + number for number in range(8)), 30, None]
        reads = [one for one in store.requests if one.verb == "read" and one.path == "large.tar"]
        assert (
            sum((one.stop or 1 << 30) - (one.start or 0) for one in reads)
            < 0.25 * (folder / "large.tar").stat().st_size
        )
        before = len(store.requests)
        data.add_columns(fields=FIELDS, workers=1)
        assert not [one for one in store.requests[before:] if one.path.endswith(".tar")]
    wdsdist.open(folder).add_columns(fields=FIELDS, probe=PROBES, workers=1)
    assert files(tmp_path / "far") == files(folder / "columns")


# Refused


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"fields": "cls"}, "fields is 'cls': it must be a list"),
        ({"fields": ["jsn.width"]}, r"of a member that no sample has: did you mean 'json'\?"),
        ({"fields": ["json..width"]}, "must be a list of names such as"),
        ({"fields": ["json." + "x" * 300]}, "choose a shorter name"),
        ({"fields": ["cls", "cls"]}, "asked for twice"),
        ({"fields": ["key"]}, "need not be added"),
        ({"fields": ["json.bytes"]}, "need not be added"),
        ({"fields": ["cls"], "on": "json.uid"}, r"on and only are for tables: name one by join="),
        ({"join": 3}, "join is 3: it must be the path of a table"),
        ({"join": []}, "must be the path of a table"),
        ({"join": [3]}, "must be the path of a table"),
        ({"join": "t.parquet", "on": ["key"]}, "must be the name of a column, or a mapping"),
        ({"probe": ["width"]}, "must be a name such as jpg.width"),
        ({"fields": ["cls"], "workers": 0}, "workers is 0"),
    ],
)
def test_wrong_arguments_are_refused(folder: Path, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        wdsdist.open(folder).add_columns(**asked)
    assert not (folder / "columns").exists()


def test_recordings_without_pyav_are_refused_before_anything_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    with pytest.raises(ExtraMissingError, match=r"mp4.seconds needs av: pip install \"wdsdist\[media\]\""):
        wdsdist.open(folder).add_columns(probe=["mp4.seconds"])
