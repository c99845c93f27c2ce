"""A data set of 30 shards: in a folder, on the web and in a bucket, both behind a proxy that can break them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wdsdist
from tests.support import faults, tars
from tests.support.stores import NAMES, SAMPLE_BYTES, SAMPLES, SHARDS, Store
from tests.support.web import served


@pytest.fixture(scope="session")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 30 shards of 40 samples and 226 KB."""
    folder = tmp_path_factory.mktemp("stored")
    contents = np.random.default_rng(0).integers(0, 256, (SHARDS * SAMPLES, SAMPLE_BYTES), np.uint8)
    for shard, name in enumerate(NAMES):
        numbers = range(shard * SAMPLES, (shard + 1) * SAMPLES)
        members = [(f"{number:05}.bin", contents[number].tobytes()) for number in numbers]
        (folder / name).write_bytes(tars.plain_tar(members))
    wdsdist.index(folder, workers=1)
    return folder


@pytest.fixture(scope="module")
def web_behind_proxy(stored: Path) -> Iterator[Store]:
    with served(stored) as server, faults.planted(server.url) as proxy:
        yield Store(proxy, proxy.url, "")


@pytest.fixture(scope="module")
def bucket_behind_proxy(s3_server: str, stored: Path) -> Iterator[Store]:
    import boto3

    account: dict[str, Any] = {"aws_access_key_id": "nobody", "aws_secret_access_key": "nothing"}
    bucket = f"bucket-{secrets.token_hex(4)}"
    with faults.planted(s3_server) as proxy:
        client = boto3.client("s3", endpoint_url=s3_server, region_name="us-east-1", **account)
        client.create_bucket(Bucket=bucket)
        for path in stored.iterdir():
            client.put_object(Bucket=bucket, Key=f"train/{path.name}", Body=path.read_bytes())
        region = {"region_name": "us-east-1"}
        options = {"key": "nobody", "secret": "nothing", "endpoint_url": proxy.url, "client_kwargs": region}
        yield Store(proxy, f"s3://{bucket}/train", f"/{bucket}/train", options)


def sound(store: Store) -> Store:
    store.proxy.rules()
    store.proxy.forget()
    return store


@pytest.fixture
def web(web_behind_proxy: Store) -> Store:
    """The data set on the web, sound, with nothing counted."""
    return sound(web_behind_proxy)


@pytest.fixture
def bucket(bucket_behind_proxy: Store) -> Store:
    """The same in a bucket."""
    return sound(bucket_behind_proxy)


@pytest.fixture(params=["web", pytest.param("bucket", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest) -> Store:
    """Each of the two; how a bucket fails, tests/storage says by default."""
    found: Store = request.getfixturevalue(request.param)
    return found
