"""Archives hold what the tools that made them put in, and pack to the same bytes as the folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from trees import MAKERS, PHOTOS, contents, unpack

from wdsdist.packing import pack
from wdsdist.sources import find


def make(name: str, root: Path, target: Path) -> Path:
    program = name.partition(".")[0] if name.startswith("bsdtar") else "zstd" if name.endswith(".zst") else "tar"
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    MAKERS[name](root, target / name)
    return target / name


@pytest.mark.parametrize("name", MAKERS)
def test_an_archive_packs_to_the_same_shards_as_its_folder(tmp_path: Path, name: str) -> None:
    root = unpack(tmp_path / "photos", {**PHOTOS, "cat/.DS_Store": b"", "cat/README": b""})
    archive = make(name, root, tmp_path)
    source = find(archive, scratch=tmp_path / "scratch")
    labels = {f"{key.rpartition('.')[0]}.cls": str(["Zebra", "cat", "dog"].index(key.partition("/")[0])).encode()
              for key in PHOTOS}  # fmt: skip
    assert contents(source) == {**PHOTOS, **labels}
    assert source.extra()["classes"] == ["Zebra", "cat", "dog"]

    expected = pack(root, tmp_path / "from-folder", shard_samples=5, workers=1)
    for workers in (1, 2, 3):
        dest = tmp_path / f"by-{workers}"
        found = pack(archive, dest, shard_samples=5, workers=workers)
        assert found.fingerprint == expected.fingerprint
        assert not [path for path in dest.iterdir() if path.name.startswith(".tmp-")]
