"""Connections through the proxy that the environment names, as ``HTTPS_PROXY``, ``HTTP_PROXY`` and ``NO_PROXY``."""

from __future__ import annotations

import base64
import http.client
import ssl
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any


def basic_login(login: str) -> str:
    """Return the value of a header that gives the user and password of a URL.

    >>> basic_login("me:p%40ss")
    'Basic bWU6cEBzcw=='
    """
    return f"Basic {base64.b64encode(urllib.parse.unquote(login).encode()).decode()}"


def proxy_for(scheme: str, host: str, port: int) -> str | None:
    """Return the proxy that requests to a server go through; ``None`` where they need none."""
    # With the port, which NO_PROXY may name too.
    return None if urllib.request.proxy_bypass(f"{host}:{port}") else urllib.request.getproxies().get(scheme)


def through(
    proxy: str, host: str, port: int, *, timeout: float, tls: ssl.SSLContext | None
) -> http.client.HTTPConnection:
    """Return a connection to a server through a proxy, which connects when it is used.

    With ``tls`` the proxy passes an encrypted connection on, and sees neither headers nor data.

    Raises ``ValueError`` for a proxy that is not spoken to by plain HTTP.
    """
    place = urllib.parse.urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    name = "HTTPS_PROXY" if tls else "HTTP_PROXY"
    if place.scheme != "http" or not place.hostname:
        raise ValueError(
            f"{name} names a proxy of the scheme {place.scheme}, and only http is known: set {name}=http://HOST:PORT, "
            f"or NO_PROXY={host}"
        )
    try:
        at = place.hostname, place.port or 80
    except ValueError:  # which may hold a password
        raise ValueError(f"{name} names a proxy without a valid port: set {name}=http://HOST:PORT") from None
    login = place.netloc.rpartition("@")[0]
    headers = {"Proxy-Authorization": basic_login(login)} if login else {}
    if tls is None:
        server = f"[{host}]" if ":" in host else host
        return _Forwarded(at, timeout, server if port == 80 else f"{server}:{port}", headers)
    connection = http.client.HTTPSConnection(*at, timeout=timeout, context=tls)
    connection.set_tunnel(host, port, headers=headers)
    return connection


class _Forwarded(http.client.HTTPConnection):
    """A connection to a proxy, which is told the whole URL of what is asked of the server."""

    def __init__(self, proxy: tuple[str, int], timeout: float, server: str, login: Mapping[str, str]) -> None:
        super().__init__(*proxy, timeout=timeout)
        self._server, self._login = server, login

    def request(self, method: str, url: str, body: Any = None, headers: Any = (), **how: Any) -> None:
        super().request(method, f"http://{self._server}{url}", body, {**dict(headers), **self._login}, **how)
