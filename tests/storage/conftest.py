"""What several tests of stores do."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support import faults
from wdsdist.storage import engine


@pytest.fixture(scope="module")
def s3_proxy(s3_server: str) -> Iterator[tuple[faults.Proxy, Any]]:
    """A proxy before the S3 server, and a client that goes past it."""
    import boto3

    account = {"aws_access_key_id": "nobody", "aws_secret_access_key": "nothing", "region_name": "us-east-1"}
    with faults.planted(s3_server) as proxy:
        yield proxy, boto3.client("s3", endpoint_url=s3_server, **account)


def bucket_of(
    proxy: faults.Proxy, client: Any, files: dict[str, bytes], *, secret: str = "nothing"
) -> tuple[str, dict[str, Any]]:
    """Put files into a new bucket; return its name, and the storage options that read it through the proxy."""
    bucket = f"bucket-{secrets.token_hex(4)}"
    client.create_bucket(Bucket=bucket)
    for name, content in files.items():
        client.put_object(Bucket=bucket, Key=name, Body=content)
    region = {"client_kwargs": {"region_name": "us-east-1"}}
    return bucket, {"key": "nobody", "secret": secret, "endpoint_url": proxy.url, **region}


def read_ranges(
    location: str, ranges: list[tuple[int, int | None]], sink: Callable[[int, memoryview], None], *options: Any,
    **more: Any,
) -> engine.Transfer:  # fmt: skip
    """Fetch ranges, and wait for them."""
    with engine.begin_ranges(location, ranges, sink, *options, **more) as download:
        return download.result()
