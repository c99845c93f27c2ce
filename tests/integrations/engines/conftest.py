"""A source to pack, small enough that a cluster spends its time on nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 40 samples with two members each."""
    root = tmp_path_factory.mktemp("source")
    for number in range(40):
        (root / f"{number:04}.bin").write_bytes(bytes(number % 7 for _ in range(100 + 37 * number)))
        (root / f"{number:04}.cls").write_text(str(number % 10))
    return root


@pytest.fixture(scope="session")
def alone(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The bytes that packing gives on one machine."""
    from wdsdist.packing import pack

    dest = tmp_path_factory.mktemp("alone")
    pack(source, dest, shard_samples=5, workers=1)
    return contents(dest)


def contents(folder: Path) -> dict[str, bytes]:
    """Read what a data set consists of: all files but the packer's own notes."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".wdsdist-pack")}
