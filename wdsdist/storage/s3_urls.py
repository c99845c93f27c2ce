"""Signed URLs of S3 objects, by obstore, so that S3 is read as web servers are, without s3fs and aiobotocore.

obstore signs without a request, in some 20 microseconds, also in a forked process. Its own requests are not used: in a
process forked after the first of them, the next never ends, and its errors hide ``Retry-After``. What is not known here
(other options, proxies that are spoken to by TLS, endpoints from configuration files) is left to s3fs.
"""

from __future__ import annotations

import logging
import os
import ssl
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from wdsdist.storage.clients import signers, store
from wdsdist.storage.proxies import proxy_for
from wdsdist.storage.urls import shown

_log = logging.getLogger("wdsdist")

_LIFE = timedelta(hours=1)
_DEFAULT_REGION = "us-east-1"
_KNOWN = {"key", "secret", "token", "anon", "endpoint_url", "profile", "client_kwargs"}
_KNOWN_CLIENT = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "aws_session_token": "token",
                 "endpoint_url": "endpoint_url", "region_name": "region"}  # fmt: skip
"""Names of ``client_kwargs``, and what stands for them here."""
_ELSEWHERE = ("AWS_USE_FIPS_ENDPOINT", "AWS_USE_DUALSTACK_ENDPOINT")
_OTHER_DOMAINS = ("cn-", "us-iso", "eu-iso", "eusc-")
"""Beginnings of regions that are not below amazonaws.com, which obstore takes for granted."""
_CERTIFICATES = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE")
"""Variables that only botocore heeds."""


@dataclass(eq=False)
class S3Addresses:
    """URLs of the objects of one bucket, signed with the credentials of the moment."""

    bucket: str
    endpoint: str | None
    region: str
    credentials: Any = field(repr=False)
    """botocore's, which renew themselves, or a tuple of access key, secret key and token; none to sign nothing."""
    _signer: tuple[Any, Any] = field(default=(None, None), repr=False)
    """What obstore signs with, and the credentials that it has."""

    def url(self, method: Literal["GET", "HEAD"], location: str) -> str:
        """Return the URL of a request for an object."""
        import obstore

        frozen = self.credentials
        if hasattr(frozen, "get_frozen_credentials"):
            frozen = tuple(frozen.get_frozen_credentials()[:3])
        if self._signer[0] is None or self._signer[1] != frozen:
            self._signer = (self._made(frozen), frozen)
        key = location.partition("://")[2].partition("/")[2]
        signed = obstore.sign(self._signer[0], method, key, _LIFE)
        return signed if frozen else signed.partition("?")[0]

    def moved(self, region: str) -> bool:
        """Take note of the bucket's region; return whether that was another one."""
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


def s3_addresses(location: str, given: Mapping[str, Any]) -> S3Addresses | None:
    """Return the URLs of the objects of a location's bucket; None where s3fs has to read them."""
    name = (store(location), repr(sorted(given.items(), key=str)), *map(os.environ.get, _ENVIRONMENT))
    if name not in signers:
        why, found = "", None
        try:
            found = _addresses(location, given)
        except Exception as error:  # s3fs says better what is wrong with the options
            why = f": {type(error).__name__}"
        if found is None:
            _log.debug("%s is read through s3fs%s", shown(store(location)), why)
        signers[name] = found
    return signers[name] if _is_plain(location) else None


_ENVIRONMENT = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_DEFAULT_REGION",
                "AWS_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_CONFIG_FILE", *_ELSEWHERE,
                *_CERTIFICATES)  # fmt: skip


def _is_plain(location: str) -> bool:
    """Say whether obstore takes a key as it is: it knows no empty names of folders, and none of dots."""
    return not {"", ".", ".."} & set(location.partition("://")[2].split("/")[1:])


def _addresses(location: str, given: Mapping[str, Any]) -> S3Addresses | None:
    import obstore.store  # noqa: F401 - whether it is installed

    known = {name: value for name, value in given.items() if name != "client_kwargs"}
    for name, value in given.get("client_kwargs", {}).items():
        if name not in _KNOWN_CLIENT:
            return None
        known[_KNOWN_CLIENT[name]] = value
    env = os.environ.get
    endpoint = known.get("endpoint_url") or env("AWS_ENDPOINT_URL_S3") or env("AWS_ENDPOINT_URL")
    region = known.get("region") or env("AWS_DEFAULT_REGION") or _DEFAULT_REGION
    bucket = location.partition("://")[2].partition("/")[0]
    if (
        set(given) - _KNOWN
        or {":", "@"} & set(bucket)  # of an access point, whose name has slashes, or credentials
        or bucket.endswith("--x-s3")  # has endpoints and signatures of its own
        or (not endpoint and region.startswith(_OTHER_DOMAINS))
        or any(map(env, _ELSEWHERE))
        or not (_has_our_certificates() or (endpoint or "").startswith("http://"))
        or _has_proxy_of_s3fs(endpoint or "https://s3.amazonaws.com")
        or (not known.get("endpoint_url") and _is_configured())
    ):
        return None
    return S3Addresses(bucket, endpoint and endpoint.rstrip("/"), region, _credentials(known))


def _has_our_certificates() -> bool:
    """Say whether this Python has certificates of its own, and botocore was not given others."""
    paths = ssl.get_default_verify_paths()
    return bool(paths.cafile or paths.capath) and not any(map(os.environ.get, _CERTIFICATES))


def _has_proxy_of_s3fs(endpoint: str) -> bool:
    """Say whether requests go through a proxy that is not spoken to by plain HTTP, which s3fs may know how to."""
    place = urllib.parse.urlsplit(endpoint)
    proxy = proxy_for(place.scheme, place.hostname or "", place.port or {"http": 80}.get(place.scheme, 443))
    return proxy is not None and "://" in proxy and not proxy.startswith("http://")


def _is_configured() -> bool:
    """Say whether the configuration file of AWS may say where S3 is, or how it is reached."""
    try:
        text = Path(os.environ.get("AWS_CONFIG_FILE", "~/.aws/config")).expanduser().read_text()
    except OSError:
        return False
    return any(
        word in text for word in ("endpoint_url", "s3", "use_fips", "use_dualstack", "ca_bundle", *_OTHER_DOMAINS)
    )


def _credentials(known: Mapping[str, Any]) -> Any:
    """Return the credentials that s3fs would have. Raises ``LookupError`` where there are none."""
    if known.get("anon"):
        return None
    if known.get("key") or known.get("secret"):
        if not (known.get("key") and known.get("secret")):
            raise LookupError("half of the credentials")
        return known["key"], known["secret"], known.get("token")
    env = os.environ
    if not known.get("profile") and env.get("AWS_ACCESS_KEY_ID") and env.get("AWS_SECRET_ACCESS_KEY"):
        return env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"], env.get("AWS_SESSION_TOKEN")
    import botocore.session

    found = botocore.session.Session(profile=known.get("profile")).get_credentials()
    if found is None:
        raise LookupError("no credentials of AWS")
    return found
