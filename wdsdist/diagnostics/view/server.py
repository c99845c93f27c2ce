"""The server of ``wdsdist view``: a page, the samples as JSON and pictures, and members as inert bytes.

Three things could turn against the user of a page on loopback: a site in the same browser that has its own name
resolved to 127.0.0.1 (DNS rebinding), one that embeds or posts to the page, and the data itself. So requests are
checked before they are answered, and a browser runs nothing in an answer.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import hmac
import logging
import os
import re
import shlex
import socketserver
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from email.message import Message
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import numpy as np

from wdsdist import storage
from wdsdist._util import strict_json
from wdsdist._util.file_types import last_part
from wdsdist._util.host import cpu_count
from wdsdist._util.validation import check_integer
from wdsdist.curation.column_file import is_free
from wdsdist.curation.columns import CLASS_NAME, ColumnReader
from wdsdist.curation.query import is_true
from wdsdist.diagnostics.epoch_report import epoch_of, evenly
from wdsdist.diagnostics.view import describe, figures
from wdsdist.errors import ArgumentError, WdsdistError
from wdsdist.samples.member_reader import MemberReader, StoredMember, StoredSample, shard_of
from wdsdist.sampling.epoch_plan import EpochPlan
from wdsdist.shards.manifest import Manifest
from wdsdist.shards.shard_indexes import extensions_in, shard_index

_STATIC = {path.name: path.read_bytes() for path in (Path(__file__).parent / "static").iterdir()}
"""The files of the page; no other file is served."""
_TYPES = {"html": "text/html; charset=utf-8", "css": "text/css", "js": "text/javascript"}
_JSON, _TEXT, _FILE = "application/json", "text/plain", "application/octet-stream"

_PIECE = 4 << 20
"""Bytes of a member that are sent at once."""
_MOST_SAMPLES = 100
_MOST_PROBLEMS, _SECONDS = 200, 0.4
"""Problems, and seconds, after which shards are looked at by another request."""
_CHOICES = 8
"""Expressions whose samples are kept in memory."""
_ROWS, _STEPS, _SHARDS = 24, 160, 6
"""The most ranks, batches of each, and shards of a batch in the picture of an epoch."""
_DRAWN_AT_ONCE = max(2, min(8, cpu_count()))
"""Pictures that are made at once, which bounds memory."""

_HOST = "127.0.0.1"
"""Names under which this machine is its own; an ssh tunnel keeps them, with another port."""
_OF_PAGE = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src 'self'; connect-src "
    "'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
"""Policy of the page: its own script and style, no inline ones, and no way from a string to markup."""
_HEADERS = {
    "content-security-policy": "default-src 'none'; media-src 'self'; sandbox; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
"""Headers of all answers but the page, which has a policy of its own."""

_log = logging.getLogger("wdsdist")

Query = Mapping[str, str]


class Answer(NamedTuple):
    """An answer to a request."""

    content: Iterable[bytes]
    kind: str
    """Its media type."""
    status: int = 200
    headers: Mapping[str, str] = {}
    """Its own headers; with ``content-length``, if the content is not a list."""


class View:
    """A data set that is shown: the answers to requests. Each runs in a thread of its own.

    Args:
        manifest: the data set.
        shards: the names by which the user opened it, without credentials.
    """

    def __init__(self, manifest: Manifest, shards: Sequence[str]) -> None:
        self.manifest = manifest
        self.shards = list(shards)
        self.style = describe.Style.of(manifest)
        self.reader = MemberReader(manifest)
        self._chosen_by = functools.lru_cache(_CHOICES)(lambda where: np.flatnonzero(is_true(manifest, where)))
        self._drawing = threading.Semaphore(_DRAWN_AT_ONCE)
        self._readers = ThreadPoolExecutor(8, thread_name_prefix="view")

    def answer(self, path: str, query: Query, span: str | None) -> Answer:
        """Answer a request for a path, for part of a member if it has the header ``Range``; errors are strings."""
        data: Any = None
        status = 200
        try:
            match path.split("/"):
                case [""]:
                    return Answer([_STATIC["view.html"]], _TYPES["html"], headers={"content-security-policy": _OF_PAGE})
                case ["static", name] if name in _STATIC:
                    return Answer([_STATIC[name]], _TYPES[last_part(name)])
                case ["member", number, member] if f"{number}{member}".isdecimal():
                    return self.member(*self._member(int(number), int(member)), span)
                case ["picture", number, member] if f"{number}{member}".isdecimal():
                    limits = describe.PAGE if query.get("size") == "page" else describe.TILE
                    shown = self._member(int(number), int(member))
                    with self._drawing:
                        content, kind = describe.picture(self.reader, *shown, limits, self.style)
                    return Answer([content], kind)
                case ["api", "data" | "samples" | "problems" | "columns" | "column" | "epoch" as name]:
                    data = getattr(self, name)(query)
                case ["api", "sample", number] if number.isdecimal():
                    data = self.sample(int(number), query)
                case _:
                    raise IndexError(f"there is no address /{path}: open the URL that `wdsdist view` printed")
        except IndexError as error:
            data, status = {"error": str(error)}, 404
        except (WdsdistError, ValueError) as error:
            data, status = {"error": str(error)}, 422
        except Exception as error:
            _log.exception("a request for the page failed")
            data, status = {"error": f"{type(error).__name__}: {error}"}, 500
        # Plain ASCII: half a surrogate pair in a key would be no UTF-8.
        return Answer([strict_json.dumps(data).encode()], _JSON, status)

    def data(self, query: Query) -> Any:
        """Return facts about the data set."""
        manifest, first = self.manifest, self.shards[0].rstrip("/")
        more = f" and {len(self.shards) - 1:,} more" if len(self.shards) > 1 else ""
        return {
            "name": f"{storage.split(first)[1] or first}{more}",
            "shards": shlex.join(self.shards),
            "samples": manifest.num_samples,
            "num_shards": len(manifest.counts),
            "bytes": manifest.num_bytes,
            "fields": extensions_in(manifest),
        }

    def samples(self, query: Query) -> Any:
        """Return some samples of the data set, or of those for which ``where`` is true, from ``start`` on."""
        start, count = _integer(query, "start", 0), min(_integer(query, "count", 24), _MOST_SAMPLES)
        chosen = self._chosen(query)
        numbers = map(int, chosen[start : start + count])
        return {"total": len(chosen), "start": start, "samples": list(self._readers.map(self._described, numbers))}

    def sample(self, number: int, query: Query) -> Any:
        """Return all of one sample; with ``where``, its neighbours among those for which it is true."""
        chosen = self._chosen(query)
        about = self._described(number, describe.PAGE)
        smaller, larger = bisect.bisect_left(chosen, number), bisect.bisect_right(chosen, number)
        before = int(chosen[smaller - 1]) if smaller else None
        after = int(chosen[larger]) if larger < len(chosen) else None
        columns, (shard, sample) = {}, shard_of(self.manifest, number)
        part, own = self.manifest.part(shard)
        for name in () if "error" in about else self.manifest.columns:
            if is_free(name) or name == CLASS_NAME:
                continue
            try:
                if (reader := ColumnReader(part, name)).stored is not None:
                    value = reader.read([own])[sample].as_py()
                    columns[name] = "missing" if value is None else str(value)[: describe.PAGE.bytes]
            except WdsdistError as error:
                columns[name] = str(error)
        shards = self.shards[0] if len(self.shards) == 1 else self.shards
        code = f"wdsdist.StreamingDataset({shards!r}, decode=True)[{number}]"
        return {**about, "columns": columns, "code": code, "before": before, "after": after}

    def member(self, sample: StoredSample, member: StoredMember, span: str | None) -> Answer:
        """Answer with the bytes of a member, or a range of them, as media that is played or as a file to save."""
        kind = describe.MEDIA.get(last_part(member.extension), _FILE)
        headers = {"accept-ranges": "bytes"}
        if kind == _FILE:
            name = re.sub(r"[^A-Za-z0-9._-]", "_", f"{sample.key}.{member.extension}".rpartition("/")[2])[-150:]
            headers["content-disposition"] = f'attachment; filename="{name}"'
        part = _range(span, member.size)
        if part is None:
            starts = range(0, member.size, _PIECE)
            pieces = (self.reader.read(sample, member, start, start + _PIECE) for start in starts)
            return Answer(pieces, kind, headers=headers | {"content-length": str(member.size)})
        start, stop = part
        if start >= stop:
            return Answer([], kind, 416, {"content-range": f"bytes */{member.size}"})
        headers["content-range"] = f"bytes {start}-{stop - 1}/{member.size}"
        return Answer([self.reader.read(sample, member, start, stop)], kind, 206, headers)

    def problems(self, query: Query) -> Any:
        """Return damaged shards and left-out samples, starting at one shard, from indexes and sizes alone.

        A problem is a shard that is missing, or is not what its index says (``damaged``); or a sample that was ``left
        out`` when the shard was packed or indexed. The answer comes after a limited time, with the shard at which the
        next request continues.
        """
        items: list[dict[str, str]] = []
        end, total = time.monotonic() + _SECONDS, len(self.manifest.counts)
        number = _integer(query, "shard", 0)
        while number < total:
            name = self.manifest.shown_name(number)
            try:
                for key, reason in shard_index(self.manifest, number).left_out:
                    items.append({"what": "left out", "shard": name, "key": key, "reason": reason})
            except WdsdistError as error:
                items.append({"what": "damaged", "shard": name, "key": "", "reason": str(error)})
            number += 1
            if len(items) >= _MOST_PROBLEMS or time.monotonic() >= end:
                break
        return {"items": items, "next_shard": number if number < total else None, "num_shards": total}

    def columns(self, query: Query) -> Any:
        """Return the names of the columns that can be counted."""
        self._chosen(query)  # an expression that is wrong fails once, not in each column
        names = [name for name in self.manifest.columns if name not in ("key", "shard")]
        return {"columns": [{"name": name, "is_free": is_free(name)} for name in names]}

    def column(self, query: Query) -> Any:
        """Return the counts of one column, over all samples or those for which ``where`` is true."""
        chosen = self._chosen(query) if query.get("where") else None
        name = query.get("name", "")
        return figures.of_column(self.manifest, name, chosen, self.style.classes)

    def epoch(self, query: Query) -> Any:
        """Return which shards each rank reads for each batch of an epoch; of many ranks and batches, for some.

        By default there are no more ranks than the data set can fill.
        """
        samples = self.manifest.num_samples
        batch_size = _integer(query, "batch_size", max(1, min(64, samples)))
        choice: dict[str, Any] = {
            "ranks": _integer(query, "ranks", max(1, min(8, samples // max(1, batch_size)))),
            "batch_size": batch_size,
            "epoch": _integer(query, "epoch", 0),
            "seed": _integer(query, "seed", 0),
        }
        plan = epoch_of(self.manifest, **choice).plan
        assert isinstance(plan, EpochPlan)
        assert plan.order is not None
        ranks, batches = evenly(choice["ranks"], _ROWS).tolist(), evenly(plan.batches_per_rank, _STEPS).tolist()
        positions = [plan.positions(rank=rank, batch=batch) for rank in ranks for batch in batches]
        shards = plan.order.make().locate(np.concatenate([np.zeros(0, np.int64), *positions]))[0]
        cells: list[list[tuple[int, int]]] = []
        for part in np.split(shards, np.cumsum([len(part) for part in positions]))[:-1]:
            cells.append(Counter(part.tolist()).most_common(_SHARDS))
        named = sorted({shard for cell in cells for shard, _ in cell})
        return {
            "choice": choice,
            "ranks": ranks,
            "batches": batches,
            "cells": cells,
            "shards": {str(number): self.manifest.shown_name(number) for number in named},
            "num_shards": len(self.manifest.counts),
            "batches_per_rank": plan.batches_per_rank,
            "samples": plan.batches_per_rank * plan.batch_size * plan.num_replicas,
        }

    def _chosen(self, query: Query) -> Any:
        """Return the numbers of the samples for which ``where`` is true, in order; of all without that."""
        where = query.get("where")
        return self._chosen_by(where) if where else range(self.manifest.num_samples)

    def _described(self, number: int, limits: describe.Limits = describe.TILE) -> dict[str, Any]:
        """Return a sample as JSON has it; if its shard cannot be read, its error."""
        try:
            sample = self.reader.sample(number)
        except WdsdistError as error:
            shard = self.manifest.shown_name(shard_of(self.manifest, number)[0])
            return {"number": number, "key": "", "shard": shard, "error": str(error), "members": []}
        members = [
            {"extension": member.extension, "offset": member.offset, "size": member.size, "about": about}
            for member, about in describe.members(self.reader, sample, limits, self.style)
        ]
        return {
            "number": number,
            "key": sample.key,
            "shard": self.manifest.shown_name(sample.shard),
            "stored": sample.stored,
            "part": sample.part,
            "members": members,
        }

    def _member(self, number: int, member: int) -> tuple[StoredSample, StoredMember]:
        sample = self.reader.sample(number)
        if member >= len(sample.members):
            raise IndexError(f"sample {number:,} has {len(sample.members)} members, and no number {member}")
        return sample, sample.members[member]


class Server(socketserver.ThreadingTCPServer):
    """The server of a page, which a thread answers for each connection.

    Args:
        view: the data set.
        port: on loopback; 0 takes a free one.
        token: what each path must begin with; empty if no token is needed.

    Raises `ArgumentError` if the port cannot be used.
    """

    allow_reuse_address = daemon_threads = True
    request_queue_size = 128

    def __init__(self, view: View, *, port: int = 0, token: str = "") -> None:
        self.view, self.root = view, f"/{token}/" if token else "/"
        check_integer("port", port, 0, 65535)
        try:
            super().__init__((_HOST, port), _Handler)
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise ArgumentError(f"cannot listen on {_HOST}, port {port}: {reason}; port 0 takes a free one") from error
        self.url = f"http://{_HOST}:{self.server_address[1]}{self.root}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error while an answer is sent, unless its reader has gone away."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            _log.exception("an answer of the page broke off")

    def refusal(self, path: str, headers: Message) -> str:
        """Return why a request is refused, or an empty string."""
        host, origin, name = headers.get("host", ""), headers.get("origin"), None
        with contextlib.suppress(ValueError):
            name = urlsplit(f"//{host}").hostname
        if name not in (_HOST, "localhost", "::1"):
            return f"{host!r} is not a name of this server: open the URL that `wdsdist view` printed"
        if not hmac.compare_digest(path[: len(self.root)].encode(), self.root.encode()):
            return "the URL lacks the token: open the one that `wdsdist view` printed"
        is_ours = headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")
        if not is_ours or (origin is not None and origin.partition("://")[2] != host):
            return "another site asks for this"
        return ""


class _Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    server: Server
    protocol_version = "HTTP/1.1"
    timeout = 60
    disable_nagle_algorithm = True
    error_message_format, error_content_type = "%(code)d", _TEXT
    server_version, sys_version = "wdsdist", ""

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if refusal := self.server.refusal(path, self.headers):
            answer = Answer([refusal.encode("utf-8", "replace")], _TEXT, 403)
        else:
            own = path.removeprefix(self.server.root)
            answer = self.server.view.answer(own, dict(parse_qsl(query)), self.headers.get("range"))
        length = {"content-length": str(sum(map(len, answer.content)))} if isinstance(answer.content, list) else {}
        self.send_response_only(answer.status)
        for name, value in {**_HEADERS, "content-type": answer.kind, **length, **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        for piece in answer.content if self.command == "GET" else ():
            self.wfile.write(piece)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *args: Any) -> None:
        """Log nothing: the terminal belongs to the user."""


def _integer(query: Query, name: str, default: int) -> int:
    string = query.get(name) or str(default)
    if not string.isdecimal() or len(string) > 18:
        raise ArgumentError(f"{name} is {string!r}: it must be a number from 0")
    return int(string)


def _range(header: str | None, size: int) -> tuple[int, int] | None:
    """Return the first bytes that a ``Range`` header asks for, at most a piece; ``None`` if it asks for all.

    A server may send less than was asked for: players ask for the rest when they come to it.

    >>> _range("bytes=2-", 10), _range("bytes=-3", 10), _range("bytes=0-4", 10), _range("bytes=12-", 10)
    ((2, 10), (7, 10), (0, 5), (12, 10))
    >>> _range("lines=0-1", 10) is None is _range(None, 10)
    True
    """
    span = re.fullmatch(r"bytes=(\d{0,18})-(\d{0,18})", header or "")
    if span is None or span[1] == span[2] == "":
        return None
    start = int(span[1]) if span[1] else max(0, size - int(span[2]))
    stop = min(int(span[2]) + 1, size) if span[1] and span[2] else size
    return start, min(stop, start + _PIECE)
