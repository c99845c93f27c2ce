"""Signed URLs of S3 objects, by obstore, so that S3 is read as web servers are, without s3fs and aiobotocore.

obstore signs without a request, in some 20 microseconds, also in a forked process. Its own requests are not used: in a
process forked after the first of them, the next never ends. What is read so is a short list: options for keys, token,
anonymous access, profile, endpoint and region, or the credentials that botocore finds. s3fs reads the rest.
"""

from __future__ import annotations

import os
import ssl
import sys
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from wdsdist.storage.failures import NO_CREDENTIALS, Failure
from wdsdist.storage.http import HttpStore, proxy_for
from wdsdist.storage.options import StorageOptions, given_for, store_of
from wdsdist.storage.urls import shown

_LIFE = timedelta(hours=1)
_DEFAULT_REGION = "us-east-1"
_KNOWN = {"key", "secret", "token", "anon", "endpoint_url", "profile", "client_kwargs"}
_KNOWN_CLIENT = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "aws_session_token": "token",
                 "endpoint_url": "endpoint_url", "region_name": "region"}  # fmt: skip
"""Names of ``client_kwargs``, and the options that they stand for."""
_FOR_BOTOCORE = ("AWS_USE_FIPS_ENDPOINT", "AWS_USE_DUALSTACK_ENDPOINT")
"""Variables that only botocore heeds."""
_CERTIFICATES = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE")
"""The same, for encrypted connections."""
_FOR_BOTOCORE_IN_CONFIG = ("endpoint_url", "s3", "use_fips", "use_dualstack", "ca_bundle")
"""Words in the configuration file of AWS that only botocore heeds."""
_OTHER_DOMAINS = ("cn-", "us-iso", "eu-iso", "eusc-")
"""Beginnings of regions that are not below amazonaws.com, which obstore takes for granted."""
_ENVIRONMENT = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_DEFAULT_REGION",
                "AWS_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_CONFIG_FILE", *_FOR_BOTOCORE,
                *_CERTIFICATES)  # fmt: skip


@dataclass(eq=False)
class S3Addresses:
    """URLs of the objects of one bucket, signed with the credentials of the moment."""

    bucket: str
    endpoint: str | None
    region: str
    credentials: Any = field(repr=False)
    """botocore's, which renew themselves, or a tuple of access key, secret key and token; ``None`` signs nothing."""
    _signer: tuple[Any, Any] = field(default=(None, None), repr=False)
    """obstore's store, and the credentials that it has."""

    def url(self, method: Literal["GET", "HEAD"], location: str) -> str:
        """Return the URL of a request for an object."""
        import obstore

        frozen = self.credentials
        if hasattr(frozen, "get_frozen_credentials"):
            frozen = tuple(frozen.get_frozen_credentials()[:3])
        signer = self._signer
        if signer[0] is None or signer[1] != frozen:
            signer = self._signer = (self._made(frozen), frozen)
        key = location.partition("://")[2].partition("/")[2]
        signed = obstore.sign(signer[0], method, key, _LIFE)
        return signed if frozen else signed.partition("?")[0]

    def moved(self, region: str) -> bool:
        """Take the region that the store names for the bucket; return whether it is another one."""
        if region == self.region or self.endpoint:
            return False
        self.region, self._signer = region, (None, None)
        return True

    def _made(self, credentials: Any) -> Any:
        from obstore.store import S3Store

        key, secret, token = credentials or ("nobody", "nothing", None)
        more = {"token": token} if token else {}
        if self.endpoint:
            more["endpoint"] = self.endpoint
        return S3Store(self.bucket, region=self.region, access_key_id=key, secret_access_key=secret,
                       client_options={"allow_http": True}, **more)  # fmt: skip


_addresses: dict[tuple[str | None, ...], S3Addresses | None] = {}
"""What signs requests, by store, options and environment; dropped when credentials have expired."""


def forget() -> None:
    """Drop all clients of S3: new ones read the credentials again."""
    _addresses.clear()
    if "s3fs" in sys.modules:
        sys.modules["s3fs"].S3FileSystem.clear_instance_cache()


def s3_store(location: str, options: StorageOptions | None) -> HttpStore | None:
    """Return the store that reads an object by signed URLs; ``None`` if s3fs has to read it."""
    # obstore knows no empty names of folders, and none of dots.
    if {"", ".", ".."} & set(location.partition("://")[2].split("/")[1:]):
        return None
    given = given_for(location, options)
    name = (store_of(location), repr(sorted(given.items(), key=str)), *map(os.environ.get, _ENVIRONMENT))
    if name not in _addresses:
        _addresses[name] = _made(location, given)
    found = _addresses[name]
    return None if found is None else HttpStore(found)


def _made(location: str, given: Mapping[str, Any]) -> S3Addresses | None:
    try:
        import obstore.store  # noqa: F401 - whether it is installed
    except ImportError:
        return None
    known = {name: value for name, value in given.items() if name != "client_kwargs"}
    if set(given) - _KNOWN or set(given.get("client_kwargs", {})) - set(_KNOWN_CLIENT):
        return None
    known |= {_KNOWN_CLIENT[name]: value for name, value in given.get("client_kwargs", {}).items()}
    env = os.environ.get
    endpoint = known.get("endpoint_url") or env("AWS_ENDPOINT_URL_S3") or env("AWS_ENDPOINT_URL")
    region = known.get("region") or env("AWS_DEFAULT_REGION") or _DEFAULT_REGION
    bucket = location.partition("://")[2].partition("/")[0]
    if (
        {":", "@"} & set(bucket)  # of an access point, whose name has slashes, or credentials
        or bucket.endswith("--x-s3")  # has endpoints and signatures of its own
        or (not endpoint and region.startswith(_OTHER_DOMAINS))
        or any(map(env, _FOR_BOTOCORE))
        or (not known.get("endpoint_url") and _is_configured())
        or not _is_reachable(endpoint or "https://s3.amazonaws.com")
    ):
        return None
    return S3Addresses(bucket, endpoint and endpoint.rstrip("/"), region, _credentials(location, known))


def _is_configured() -> bool:
    """Return whether the configuration file of AWS may say where S3 is, or how it is reached."""
    try:
        content = Path(os.environ.get("AWS_CONFIG_FILE", "~/.aws/config")).expanduser().read_text()
    except OSError:
        return False
    return any(word in content for word in (*_FOR_BOTOCORE_IN_CONFIG, *_OTHER_DOMAINS))


def _is_reachable(endpoint: str) -> bool:
    """Return whether urllib3 reaches an endpoint: through a proxy of HTTP, with the certificates of this Python."""
    paths = ssl.get_default_verify_paths()
    proxy = proxy_for(endpoint)
    has_certificates = bool(paths.cafile or paths.capath) and not any(map(os.environ.get, _CERTIFICATES))
    is_encrypted = urllib.parse.urlsplit(endpoint).scheme != "http"
    return (has_certificates or not is_encrypted) and (proxy is None or proxy.startswith(("http://", "https://")))


def _credentials(location: str, known: Mapping[str, Any]) -> Any:
    """Return the credentials that s3fs would have; ``None`` for anonymous access."""
    if known.get("anon"):
        return None
    if known.get("key") or known.get("secret"):
        if not (known.get("key") and known.get("secret")):
            message = f"{shown(location)} cannot be read: storage_options has one of key and secret: pass both"
            raise Failure("denied", message)
        return known["key"], known["secret"], known.get("token")
    env = os.environ
    if not known.get("profile") and env.get("AWS_ACCESS_KEY_ID") and env.get("AWS_SECRET_ACCESS_KEY"):
        return env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"], env.get("AWS_SESSION_TOKEN")
    import botocore.session

    found = botocore.session.Session(profile=known.get("profile")).get_credentials()
    if found is None:
        raise Failure("denied", f"{shown(location)} cannot be read: {NO_CREDENTIALS}")
    return found
