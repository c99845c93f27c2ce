"""Packing into an S3 bucket, over a socket, by real processes, one of which is killed."""

from __future__ import annotations

import importlib.util
import secrets
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support import forked
from tests.support.programs import command as program
from wdsdist.packing import pack

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(package) is None for package in ("s3fs", "moto", "flask_cors")),
    reason="s3fs or moto's server is not installed",
)

PROGRESS = """
import sys
from wdsdist.packing.options import Options
from wdsdist.packing.run import run
run(sys.argv[1], sys.argv[2], Options(shard_samples=5, workers=2), progress=lambda state: print(state.shards_done))
"""


class Bucket:
    """A bucket as another client sees it."""

    def __init__(self, name: str) -> None:
        import boto3

        self.name = name
        self.client = boto3.client("s3")
        self.client.create_bucket(Bucket=name)

    def contents(self, prefix: str) -> dict[str, bytes]:
        keys = [
            entry["Key"] for entry in self.client.list_objects_v2(Bucket=self.name, Prefix=prefix).get("Contents", ())
        ]
        names = (key.removeprefix(prefix) for key in keys)
        return {name: self.get(prefix + name) for name in names if not name.startswith(".wdsdist-pack")}

    def get(self, key: str) -> bytes:
        content: bytes = self.client.get_object(Bucket=self.name, Key=key)["Body"].read()
        return content

    def put(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.name, Key=key, Body=data)

    def remove(self, key: str) -> None:
        self.client.delete_object(Bucket=self.name, Key=key)


@pytest.fixture
def bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    return Bucket(f"bucket-{secrets.token_hex(4)}")


@pytest.fixture
def url(bucket: Bucket) -> str:
    return f"s3://{bucket.name}/deep/train"


@pytest.mark.slow
def test_a_killed_run_is_continued_to_the_same_bytes(
    source: Path, bucket: Bucket, url: str, alone: dict[str, bytes], short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(short_path))
    with subprocess.Popen(program("stalling_pack", source, url, 1), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"x"
        process.send_signal(signal.SIGKILL)
    assert not list(short_path.iterdir())
    whole = {"shard-000000.tar", "shard-000001.tar"}
    assert {name for name in bucket.contents("deep/train/") if name.endswith(".tar")} == whole
    assert "index.json" not in bucket.contents("deep/train/")

    bucket.remove("deep/train/shard-000001.tar.wdsindex")  # as if killed between the two
    bucket.put("deep/train/shard-000002.tar", b"half")  # as a store might show that has no whole uploads
    done = forked.run("-c", PROGRESS, source, url)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "1", "the first shard was kept, and no other"
    assert bucket.contents("deep/train/") == alone
    assert not list(short_path.iterdir())


@pytest.fixture
def private(bucket: Bucket, s3_server: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """The storage options without which the bucket is not found."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return {"key": "nobody", "secret": "nothing", "endpoint_url": s3_server}


@pytest.mark.parametrize(
    "what", ["folder", *(pytest.param(what, marks=pytest.mark.slow) for what in ("archive", "shards"))]
)
def test_a_private_store_is_read_and_written(
    source: Path, bucket: Bucket, alone: dict[str, bytes], tmp_path: Path, private: dict[str, object], what: str
) -> None:
    if what == "archive":
        shutil.make_archive(str(tmp_path / "source"), "zip", source)
        bucket.put("source.zip", (tmp_path / "source.zip").read_bytes())
    for path in source.rglob("*.*") if what == "folder" else ():
        bucket.put(f"source/{path.relative_to(source)}", path.read_bytes())
    for name in alone if what == "shards" else ():
        bucket.put(f"source/{name}", alone[name])
    url = f"s3://{bucket.name}/source" + (".zip" if what == "archive" else "")
    local = pack(url, tmp_path / "local", shard_samples=5, workers=2, storage_options=private)
    assert local.num_samples == 40
    there = pack(url, f"s3://{bucket.name}/there", shard_samples=5, workers=2, storage_options=private)
    assert there.fingerprint == local.fingerprint
