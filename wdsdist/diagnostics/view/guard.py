"""`Guard`: the checks of a request before it is answered, and the headers by which a browser runs nothing in an answer.

Three things could turn against the user of a page on loopback: a site in the same browser that has its own name
resolved to 127.0.0.1 (DNS rebinding), one that embeds or posts to the page, and the data itself.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
"""Names under which this machine is its own; an ssh tunnel keeps them, with another port."""

PAGE = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src 'self'; connect-src "
    "'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
"""Policy of the page: its own script and style, no inline ones, and no way from a string to markup."""
INERT = "default-src 'none'; media-src 'self'; sandbox; frame-ancestors 'none'"
"""Policy of all other answers."""

_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """Middleware that refuses requests by other sites, and adds the headers that keep answers inert.

    Args:
        app: answers what is let through.
        hosts: names that a request may be for; empty if any may, because a token identifies the client.
        token: what each path must begin with; empty if no token is needed.
    """

    def __init__(self, app: ASGIApp, *, hosts: Collection[str] = LOOPBACK, token: str = "") -> None:
        self._app = app
        self._hosts = frozenset(hosts)
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in {**_HEADERS, "content-security-policy": INERT}.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(scope)
        if refusal:
            await PlainTextResponse(refusal, 403)(scope, receive, guarded)
            return
        if self._token:
            scope = {**scope, "path": scope["path"][len(self._token) + 1 :] or "/"}
        await self._app(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> str:
        """Return why a request is refused, or an empty string."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self._hosts and _name_of(host) not in self._hosts:
            return f"{host!r} is not a name of this server: open the URL that `wdsdist view` printed"
        if self._token:
            first = scope["path"].split("/")[1]
            if not hmac.compare_digest(first.encode(), self._token.encode()):
                return "the URL lacks the token: open the one that `wdsdist view` printed"
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return "another site asks for this"
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            return "another site asks for this"
        return ""


def _name_of(host: str) -> str:
    """Return a ``Host`` header without its port.

    >>> _name_of("localhost:8000"), _name_of("[::1]:8000"), _name_of("127.0.0.1")
    ('localhost', '::1', '127.0.0.1')
    """
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()
