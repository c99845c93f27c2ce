"""Names with dots, tars below folders, splits and classes, as people meet them on the command line."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Run
from tests.support.tars import plain_tar
from tests.support.trees import fill

DOTTED = [f"v1.5_{number}.{extension}" for number in range(3) for extension in ("jpg", "txt")]


def test_the_rule_is_told_and_shown(wdsdist: Run, tmp_path: Path) -> None:
    fill(tmp_path / "files", *DOTTED)
    for word in ("packed", "packed already"):
        run = wdsdist("pack", tmp_path / "files", tmp_path / "dest", "--key", "last-dot")
        assert run.stdout.startswith(f"{word}: 3 samples in 1 shard")
        assert ("keys: by last-dot, with dots written as %2E" in run.stderr) == (word == "packed")
    assert "keys:        by last-dot in the source" in wdsdist("info", tmp_path / "dest").stdout
    (tmp_path / "tars").mkdir()
    (tmp_path / "tars" / "0.tar").write_bytes(plain_tar((name, b"") for name in DOTTED))
    assert "keys: by last-dot, unlike other readers" in wdsdist("index", tmp_path / "tars", "--key", "last-dot").stdout
    assert "keys:        by last-dot\n" in wdsdist("info", tmp_path / "tars").stdout
    assert wdsdist("index", tmp_path / "tars").stdout.startswith("indexed: 1 sample in 1 shard")
    assert "keys" not in wdsdist("info", tmp_path / "tars").stdout
