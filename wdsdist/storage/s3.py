"""Signed URLs of S3 objects, by obstore, so that S3 is read as web servers are, without s3fs and aiobotocore.

obstore signs without a request, in some 20 microseconds, also in a forked process. Its own requests are not used: in a
process forked after the first of them, the next never ends. Only a short list is read so: options for keys, token,
anonymous access, profile, endpoint and region, or the credentials that botocore finds. s3fs reads the rest.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from wdsdist.storage.failures import NO_CREDENTIALS, Failure
from wdsdist.storage.http import HttpStore
from wdsdist.storage.urls import StorageOptions, options_for, shown, store_of

_LIFE = timedelta(hours=1)
_KNOWN = {"key", "secret", "token", "anon", "endpoint_url", "profile", "client_kwargs"}
_KNOWN_CLIENT = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "aws_session_token": "token",
                 "endpoint_url": "endpoint_url", "region_name": "region"}  # fmt: skip
"""Names of ``client_kwargs``, and the options that they stand for."""
_FOR_BOTOCORE = ("AWS_USE_FIPS_ENDPOINT", "AWS_USE_DUALSTACK_ENDPOINT")
"""Variables that only botocore heeds."""
_OTHER_DOMAINS = ("cn-", "us-iso", "eu-iso", "eusc-")
"""Beginnings of regions that are not below amazonaws.com, which obstore takes for granted."""
_FOR_BOTOCORE_IN_CONFIG = ("endpoint_url", "s3", "use_fips", "use_dualstack", "ca_bundle", *_OTHER_DOMAINS)
"""Words in the configuration file of AWS that only botocore heeds."""
_ENVIRONMENT = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_DEFAULT_REGION",
                "AWS_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_CONFIG_FILE", *_FOR_BOTOCORE)  # fmt: skip


@dataclass(eq=False)
class S3Addresses:
    """URLs of the objects of one bucket, signed with the credentials of the moment."""

    bucket: str
    endpoint: str | None
    region: str
    credentials: Any = field(repr=False)
    """botocore's, which renew themselves, or a tuple of access key, secret key and token; ``None`` signs nothing."""

    def url(self, location: str) -> str:
        """Return the URL to read an object by."""
        import obstore

        credentials = self.credentials
        if hasattr(credentials, "get_frozen_credentials"):
            credentials = tuple(credentials.get_frozen_credentials()[:3])
        store = _signer(self.bucket, self.region, self.endpoint, *(credentials or ("nobody", "nothing", None)))
        signed = obstore.sign(store, "GET", location.partition("://")[2].partition("/")[2], _LIFE)
        return signed if credentials else signed.partition("?")[0]

    def moved(self, region: str) -> bool:
        """Take the region that the store names for the bucket; return whether it is another one."""
        if region == self.region or self.endpoint:
            return False
        self.region = region
        return True


@functools.lru_cache
def _signer(bucket: str, region: str, endpoint: str | None, key: str, secret: str, token: str | None) -> Any:
    """Return obstore's store for a bucket."""
    from obstore.store import S3Store

    more: dict[str, Any] = {name: value for name, value in (("token", token), ("endpoint", endpoint)) if value}
    return S3Store(
        bucket, region=region, access_key_id=key, secret_access_key=secret, client_options={"allow_http": True}, **more
    )


_addresses: dict[tuple[str | None, ...], S3Addresses | None] = {}
"""By store, options and environment; ``None`` for a bucket that s3fs has to read."""


def forget() -> None:
    """Drop all clients of S3: new ones read the credentials again."""
    _addresses.clear()
    if "s3fs" in sys.modules:
        sys.modules["s3fs"].S3FileSystem.clear_instance_cache()


def s3_store(location: str, options: StorageOptions | None) -> HttpStore | None:
    """Return the store that reads an S3 object by signed URLs; ``None`` if s3fs has to read it.

    Raises `Failure` if there are no credentials.
    """
    # obstore knows no empty names of folders, and none of dots.
    if {"", ".", ".."} & set(location.partition("://")[2].split("/")[1:]):
        return None
    given = options_for(location, options)
    key = (store_of(location), repr(sorted(given.items(), key=str)), *map(os.environ.get, _ENVIRONMENT))
    if key not in _addresses:
        _addresses[key] = _made(location, given)
    addresses = _addresses[key]
    return None if addresses is None else HttpStore(addresses)


def _made(location: str, given: Mapping[str, Any]) -> S3Addresses | None:
    client = given.get("client_kwargs", {})
    if find_spec("obstore") is None or set(given) - _KNOWN or set(client) - set(_KNOWN_CLIENT):
        return None
    known = {**given, **{_KNOWN_CLIENT[name]: value for name, value in client.items()}}
    env = os.environ.get
    endpoint = known.get("endpoint_url") or env("AWS_ENDPOINT_URL_S3") or env("AWS_ENDPOINT_URL")
    region = known.get("region") or env("AWS_DEFAULT_REGION") or "us-east-1"
    bucket = location.partition("://")[2].partition("/")[0]
    if (
        {":", "@"} & set(bucket)  # of an access point, whose name has slashes, or credentials
        or bucket.endswith("--x-s3")  # has endpoints and signatures of its own
        or (not endpoint and region.startswith(_OTHER_DOMAINS))
        or any(map(env, _FOR_BOTOCORE))
        or (not known.get("endpoint_url") and _is_configured())
    ):
        return None
    return S3Addresses(bucket, endpoint and endpoint.rstrip("/"), region, _credentials(location, known))


def _is_configured() -> bool:
    """Return whether the configuration file of AWS may say where S3 is, or how it is reached."""
    try:
        content = Path(os.environ.get("AWS_CONFIG_FILE", "~/.aws/config")).expanduser().read_text()
    except OSError:
        return False
    return any(word in content for word in _FOR_BOTOCORE_IN_CONFIG)


def _credentials(location: str, known: Mapping[str, Any]) -> Any:
    """Return the credentials that s3fs would have; ``None`` for anonymous access."""
    if known.get("anon"):
        return None
    key, secret, token = known.get("key"), known.get("secret"), known.get("token")
    if bool(key) != bool(secret):
        message = f"{shown(location)} cannot be read: storage_options has one of key and secret: pass both"
        raise Failure("denied", message)
    if not key and not known.get("profile"):
        names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
        key, secret, token = map(os.environ.get, names)
    if key and secret:
        return key, secret, token
    import botocore.session

    credentials = botocore.session.Session(profile=known.get("profile")).get_credentials()
    if credentials is None:
        raise Failure("denied", f"{shown(location)} cannot be read: {NO_CREDENTIALS}")
    return credentials
