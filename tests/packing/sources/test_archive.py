"""Archives hold what the tools that made them put in, and pack to the same bytes as the folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.packing import contents
from tests.support.trees import MAKERS, PHOTOS, unpack
from wdsdist.packing import pack
from wdsdist.packing.sources import find


def make(name: str, root: Path, target: Path) -> Path:
    program = name.partition(".")[0] if name.startswith("bsdtar") else "zstd" if name.endswith(".zst") else "tar"
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    MAKERS[name](root, target / name)
    return target / name


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder that each tool makes an archive of, and the fingerprint of the shards that it packs to."""
    root = unpack(tmp_path_factory.mktemp("archived") / "photos", {**PHOTOS, "cat/.DS_Store": b"", "cat/README": b""})
    return root, pack(
        root, tmp_path_factory.mktemp("from-folder") / "dest", shard_samples=5, workers=1, class_folders=True
    ).fingerprint


@pytest.mark.parametrize("name", MAKERS)
def test_an_archive_packs_to_the_same_shards_as_its_folder(tmp_path: Path, name: str, photos: tuple[Path, str]) -> None:
    root, fingerprint = photos
    archive = make(name, root, tmp_path)
    source = find(archive, scratch=tmp_path / "scratch", class_folders=True)
    labels = {f"{key.rpartition('.')[0]}.cls": str(["Zebra", "cat", "dog"].index(key.partition("/")[0])).encode()
              for key in PHOTOS}  # fmt: skip
    assert contents(source) == {**PHOTOS, **labels}
    assert source.contents.notes["classes"] == ["Zebra", "cat", "dog"]

    for workers in (1, 2, 3) if name in ("deflated.zip", "gz.tar.gz") else (2,):
        dest = tmp_path / f"by-{workers}"
        found = pack(archive, dest, shard_samples=5, workers=workers, class_folders=True)
        assert found.fingerprint == fingerprint
        assert not [path for path in dest.iterdir() if path.name.startswith(".tmp-")]
