"""The commands on compressed shards, as people run them."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.cli.conftest import Run
from tests.support.tars import compressed, plain_tar


def test_compressed_shards_are_packed_and_looked_into(
    wdsdist: Run, process: Run, photos: Path, tmp_path: Path, user_cache: Path
) -> None:
    dest = tmp_path / "dest"
    run = wdsdist("pack", photos, dest, "--shard-samples", 2, "--no-shuffle", "--class-folders", "--compress", "zst:7")
    assert run.returncode == 0, run.stderr
    said = run.stdout.splitlines()
    assert said[1] == "overhead: 15.1 KiB over 5.9 KiB of payload, 2,578 B a sample, for tar's headers and padding"
    assert re.fullmatch(r"compressed: 21\.0 KiB of tars to \d\.\d%", said[2])
    facts = json.loads(wdsdist("info", dest, "--json").stdout)
    assert facts["bytes"] == sum(path.stat().st_size for path in dest.glob("*.zst"))
    assert facts["tar_bytes"] == 21_504
    assert "tars:        21.0 KiB, decompressed" in wdsdist("info", dest).stdout.splitlines()
    run = process("cat", dest, "cat/000", "txt")
    assert run.stdout == "note 0"
    assert run.stderr.splitlines() == [
        f"some shards are compressed: each is decompressed once on this node, into {user_cache}/shards"
    ]
    run = wdsdist("ls", dest, "--samples")
    assert run.stdout.split("\t")[:3] == ["0", "cat/000", "shard-000000.tar.zst"]
    assert not run.stderr
    assert wdsdist("verify", dest).returncode == 0
    assert json.loads(wdsdist("plan", dest, "--batch-size", 1, "--json").stdout)["bytes"] == 21_504


def test_compressed_shards_of_others_are_indexed(wdsdist: Run, tmp_path: Path) -> None:
    path = tmp_path / "x.tgz"
    path.write_bytes(compressed(plain_tar([("a.txt", b"1")]), "tgz"))
    assert wdsdist("index", path, "--export", "timm").stdout.startswith("indexed: 1 sample in 1 shard")
    assert wdsdist("cat", tmp_path, "a", "txt").stdout == "1"
