"""Layouts whose names hold dots, packed, indexed, and read by webdataset: no sample is lost, merged or torn."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

import pytest
import webdataset
from hypothesis import given
from hypothesis import strategies as st

import wdsdist
from tests.support.examples import fewer
from tests.support.tars import plain_tar
from tests.support.trees import unpack
from wdsdist.diagnostics.verify import verify
from wdsdist.errors import ArgumentError, SourceError

DOTTED = {f"v1.5_{number:04}.{extension}": b"%d" % number for number in range(20) for extension in ("jpg", "txt")}
TITLES = {"235342 Track 2.0 (Clean Version).mp3": b"1", "7 Seven.mp3": b"2", "8 100%2E.mp3": b"3"}
FIELDS = {"XX.mp4": b"1", "XX.info.json": b"{}", "XX.mp4.json": b"[]", "s0.input.jpg": b"2", "s0.target.jpg": b"3"}
IMAGES = {f"{key}.{name}": b"{}" for key in ("a", "b") for name in ("1.jpg", "2.jpg", "3.jpg", "4.jpg", "json")}


def as_webdataset_reads(dest: Path) -> dict[str, dict[str, bytes]]:
    """All samples: members by key, with the keys as they were before they were packed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # webdataset leaves the shards open
        urls = [str(path) for path in sorted(dest.glob("*.tar"))]
        found: dict[str, dict[str, bytes]] = {}
        for sample in webdataset.WebDataset(urls, shardshuffle=False, empty_check=False):
            assert sample["__key__"] not in found
            members = {name: data for name, data in sample.items() if not name.startswith("__")}
            found[sample["__key__"]] = members
    return found


def samples(files: Mapping[str, bytes], dots: int | None) -> dict[str, dict[str, bytes]]:
    """The samples that files were meant to be: keys end at the last of so many dots, or at the last one."""
    found: dict[str, dict[str, bytes]] = {}
    for name, data in files.items():
        key, extension = name.rsplit(".", 1) if dots is None else name.split(".", dots)
        found.setdefault(key, {})[extension] = data
    return found


@pytest.mark.parametrize("kind", ["folder", "tar", "shards"])
@pytest.mark.parametrize(
    ("files", "dots"),
    [(DOTTED, None), (TITLES, None), (FIELDS, 1), (IMAGES, 1)],
    ids=["keys with dots", "titles", "fields", "several images"],
)
def test_every_reader_finds_the_samples_that_were_meant(
    tmp_path: Path, files: dict[str, bytes], dots: int | None, kind: str
) -> None:
    source = unpack(tmp_path / "files", files)
    if kind != "folder":
        source = unpack(tmp_path / "tars", {"x.tar": plain_tar(files.items())})
    source, key = source / "x.tar" if kind == "tar" else source, "last-dot" if dots is None else "first-dot"
    if files is not FIELDS and kind != "shards":
        with pytest.raises(ArgumentError, match="say where keys end by key='last-dot'") as caught:
            wdsdist.pack(source, tmp_path / "dest")
        assert caught.value.argument == "key"
    packed = wdsdist.pack(source, tmp_path / "dest", key=key)
    found = as_webdataset_reads(tmp_path / "dest")
    assert {unquote(key) if dots is None else key: members for key, members in found.items()} == samples(files, dots)
    assert packed.num_samples == len(found)
    assert verify(tmp_path / "dest") == []
    assert wdsdist.index(tmp_path / "dest").counts.tolist() == packed.counts.tolist()
    assert packed.extra.get("source_key_rule") == ("last-dot" if dots is None else None)


def test_what_is_unclear_is_refused_until_a_rule_is_given(tmp_path: Path) -> None:
    files = {f"{name}.{number}.jpg": b"%d" % number for name in ("cat", "dog") for number in range(3)}
    source = unpack(tmp_path / "files", files)
    with pytest.raises(ArgumentError, match=r"cat\.1\.jpg and cat\.2\.jpg: say where keys end by key="):
        wdsdist.pack(source, tmp_path / "dest")
    assert not (tmp_path / "dest").exists()
    for key, count in (("first-dot", 2), ("last-dot", 6), (r"[a-z]+\.\d", 6)):
        assert wdsdist.pack(source, tmp_path / key[:5], key=key).num_samples == count


def test_another_rule_is_another_data_set(tmp_path: Path) -> None:
    source = unpack(tmp_path / "files", DOTTED)
    wdsdist.pack(source, tmp_path / "dest", key="last-dot")
    assert wdsdist.pack(source, tmp_path / "dest", key="last-dot").num_samples == 20
    with pytest.raises(wdsdist.errors.DestinationExistsError):
        wdsdist.pack(source, tmp_path / "dest", key="first-dot")


# No part is empty, `.` or `..`: files stay in their folder.
NAMES = st.text("a1._ -", min_size=1, max_size=9).map(lambda text: f"a{text}").filter(lambda text: ".." not in text)


@given(st.lists(st.lists(NAMES, min_size=1, max_size=2), min_size=1, max_size=6), st.sampled_from([None, "last-dot"]))
@fewer(3)
def test_no_file_is_lost_whatever_the_names(
    tmp_path_factory: pytest.TempPathFactory, stems: list[list[str]], key: str | None
) -> None:
    root = tmp_path_factory.mktemp("names")
    paths = ["/".join(stem) for stem in stems]
    files = {f"{path}.{extension}": path.encode() for path in paths for extension in ("txt", "7.json")}
    source = unpack(root / "files", files)
    try:
        manifest = wdsdist.pack(source, root / "dest", key=key)
    except (ArgumentError, SourceError):
        return
    found = as_webdataset_reads(root / "dest")
    is_escaped = "source_key_rule" in manifest.extra
    stored = {f"{unquote(one) if is_escaped else one}.{name}" for one, members in found.items() for name in members}
    assert stored <= files.keys()
    assert len(files) == len(stored) + sum(manifest.extra.get("skipped", {}).values())
