"""The server of ``wdsdist view``: a page, the samples as JSON and pictures, and members as inert bytes."""

from __future__ import annotations

import bisect
import contextlib
import functools
import logging
import os
import re
import shlex
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wdsdist import storage
from wdsdist._util import strict_json
from wdsdist._util.extras import extra
from wdsdist._util.file_types import last_part
from wdsdist._util.host import cpu_count
from wdsdist._util.validation import check_integer
from wdsdist.curation.column_file import is_free
from wdsdist.curation.columns import CLASS_NAME, ColumnReader
from wdsdist.diagnostics.view import describe, epoch, figures, pictures
from wdsdist.diagnostics.view.epoch import Choice
from wdsdist.errors import ArgumentError, WdsdistError
from wdsdist.samples.member_reader import MemberReader, StoredMember, StoredSample, shard_name, shard_of
from wdsdist.shards.manifest import Manifest
from wdsdist.shards.shard_indexes import extensions_in, shard_index

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

_STATIC = Path(__file__).parent / "static"
"""The files of the page; no other file is served."""

_PIECE = 4 << 20
"""Bytes of a member that are sent at once."""
_MOST_SAMPLES = 100
_MOST_PROBLEMS, _SECONDS = 200, 0.4
"""Problems, and seconds, after which shards are looked at by another request."""
_CHOICES = 8
"""Expressions whose samples are kept in memory."""
_DRAWN_AT_ONCE = max(2, min(8, cpu_count()))
"""Pictures that are made at once, which bounds memory."""

_log = logging.getLogger("wdsdist")


class View:
    """A data set that is shown: the answers to requests. Each runs in a thread of its own.

    Args:
        manifest: the data set.
        shards: the names by which the user opened it, without credentials.
        decode: how the samples of batches are decoded, as `StreamingDataset` takes it.
        transform: of the samples of batches, likewise.
    """

    def __init__(
        self, manifest: Manifest, shards: Sequence[str], *, decode: Any = True,
        transform: Callable[[Any], Any] | None = None,
    ) -> None:  # fmt: skip
        self.manifest = manifest
        self.shards = list(shards)
        self.style = describe.Style.of(manifest)
        self.decode, self.transform = decode, transform
        self.reader = MemberReader(manifest)
        self._chosen_by = functools.lru_cache(_CHOICES)(functools.partial(figures.chosen_by, manifest))
        self._drawing = threading.Semaphore(_DRAWN_AT_ONCE)
        self._readers = ThreadPoolExecutor(8, thread_name_prefix="view")

    def page(self, request: Request) -> Response:
        """Answer with the page itself."""
        from starlette.responses import FileResponse

        from wdsdist.diagnostics.view.guard import PAGE

        return FileResponse(_STATIC / "view.html", headers={"content-security-policy": PAGE})

    def data(self, request: Request) -> Any:
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

    def samples(self, request: Request) -> Any:
        """Return some samples of the data set, or of those for which ``where`` is true, from ``start`` on."""
        start, count = _integer(request, "start", 0), min(_integer(request, "count", 24), _MOST_SAMPLES)
        chosen = self._chosen(request)
        numbers = map(int, chosen[start : start + count])
        return {"total": len(chosen), "start": start, "samples": list(self._readers.map(self._described, numbers))}

    def sample(self, request: Request) -> Any:
        """Return all of one sample; with ``where``, its neighbours among those for which it is true."""
        number, chosen = request.path_params["number"], self._chosen(request)
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

    def member(self, request: Request) -> Response:
        """Answer with the bytes of a member, or a range of them, as media that is played or as a file to save."""
        from starlette.responses import Response, StreamingResponse

        sample, member = self._member(request)
        kind = describe.MEDIA.get(last_part(member.extension), "application/octet-stream")
        headers = {"accept-ranges": "bytes"}
        if kind == "application/octet-stream":
            name = re.sub(r"[^A-Za-z0-9._-]", "_", f"{sample.key}.{member.extension}".rpartition("/")[2])[-150:]
            headers["content-disposition"] = f'attachment; filename="{name}"'
        span = _range(request.headers.get("range"), member.size)
        if span is None:
            starts = range(0, member.size, _PIECE)
            pieces = (self.reader.read(sample, member, start, start + _PIECE) for start in starts)
            headers["content-length"] = str(member.size)
            return StreamingResponse(pieces, media_type=kind, headers=headers)
        start, stop = span
        if start >= stop:
            return Response(status_code=416, headers={"content-range": f"bytes */{member.size}"})
        headers["content-range"] = f"bytes {start}-{stop - 1}/{member.size}"
        return Response(self.reader.read(sample, member, start, stop), 206, headers, kind)

    def picture(self, request: Request) -> Response:
        """Answer with the picture of a member, as large as a tile or a page needs."""
        from starlette.responses import Response

        sample, member = self._member(request)
        side = pictures.PAGE if request.query_params.get("size") == "page" else pictures.TILE
        with self._drawing:
            content, kind = describe.picture(self.reader, sample, member, side, self.style)
        return Response(content, media_type=kind)

    def problems(self, request: Request) -> Any:
        """Return damaged shards and left-out samples, starting at one shard, from indexes and sizes alone.

        A problem is a shard that is missing, or is not what its index says (``damaged``); or a sample that was ``left
        out`` when the shard was packed or indexed. The answer comes after a limited time, with the shard at which the
        next request continues.
        """
        items: list[dict[str, str]] = []
        end, total = time.monotonic() + _SECONDS, len(self.manifest.counts)
        number = _integer(request, "shard", 0)
        while number < total:
            name = shard_name(self.manifest, number)
            try:
                for key, reason in shard_index(self.manifest, number).left_out:
                    items.append({"what": "left out", "shard": name, "key": key, "reason": reason})
            except WdsdistError as error:
                items.append({"what": "damaged", "shard": name, "key": "", "reason": str(error)})
            number += 1
            if len(items) >= _MOST_PROBLEMS or time.monotonic() >= end:
                break
        return {"items": items, "next_shard": number if number < total else None, "num_shards": total}

    def columns(self, request: Request) -> Any:
        """Return the names of the columns that can be counted, and examples of filters by columns."""
        self._chosen(request)  # an expression that is wrong fails once, not in each column
        names = [name for name in self.manifest.columns if name not in ("key", "shard")]
        columns = [{"name": name, "is_free": is_free(name)} for name in names]
        return {"columns": columns, "examples": figures.examples(self.manifest)}

    def column(self, request: Request) -> Any:
        """Return the counts of one column, over all samples or those for which ``where`` is true."""
        chosen = self._chosen(request) if request.query_params.get("where") else None
        name = request.query_params.get("name", "")
        return figures.of_column(self.manifest, name, chosen, self.style.classes)

    def epoch(self, request: Request) -> Any:
        """Return which shards each rank reads for each batch of an epoch."""
        return epoch.picture(self.manifest, self._choice(request))

    def batch(self, request: Request) -> Any:
        """Return one batch as training gets it."""
        rank, number = _integer(request, "rank", 0), _integer(request, "batch", 0)
        return epoch.batch(
            self.manifest, self._choice(request), rank=rank, number=number, style=self.style, decode=self.decode,
            transform=self.transform,
        )  # fmt: skip

    def _chosen(self, request: Request) -> Any:
        """Return the numbers of the samples for which ``where`` is true, in order; of all without that."""
        where = request.query_params.get("where")
        return self._chosen_by(where) if where else range(self.manifest.num_samples)

    def _choice(self, request: Request) -> Choice:
        """Return the epoch that a request is about, by default with no more ranks than the data set can fill."""
        samples = self.manifest.num_samples
        batch_size = _integer(request, "batch_size", max(1, min(64, samples)))
        return {
            "ranks": _integer(request, "ranks", max(1, min(8, samples // max(1, batch_size)))),
            "batch_size": batch_size,
            "epoch": _integer(request, "epoch", 0),
            "seed": _integer(request, "seed", 0),
        }

    def _described(self, number: int, limits: describe.Limits = describe.TILE) -> dict[str, Any]:
        """Return a sample as JSON has it; if its shard cannot be read, its error."""
        try:
            sample = self.reader.sample(number)
        except WdsdistError as error:
            shard = shard_name(self.manifest, shard_of(self.manifest, number)[0])
            return {"number": number, "key": "", "shard": shard, "error": str(error), "members": []}
        members = [
            {"extension": member.extension, "offset": member.offset, "size": member.size, "about": about}
            for member, about in describe.members(self.reader, sample, limits, self.style)
        ]
        return {
            "number": number,
            "key": sample.key,
            "shard": shard_name(self.manifest, sample.shard),
            "stored": sample.stored,
            "part": sample.part,
            "members": members,
        }

    def _member(self, request: Request) -> tuple[StoredSample, StoredMember]:
        sample, number = self.reader.sample(request.path_params["number"]), request.path_params["member"]
        if number >= len(sample.members):
            raise IndexError(f"sample {sample.number:,} has {len(sample.members)} members, and no number {number}")
        return sample, sample.members[number]


def app(view: View, *, hosts: Sequence[str] | None = None, token: str = "") -> ASGIApp:
    """Return the application, which refuses requests that are not for one of the ``hosts`` or lack the token.

    Raises `ExtraMissingError` without the extra ``view``.
    """
    extra("starlette", "view", "`wdsdist view`")
    from starlette.applications import Starlette
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles

    from wdsdist.diagnostics.view.guard import LOOPBACK, Guard

    sample = "{number:int}"
    pages = {
        "/": view.page, f"/api/sample/{sample}": view.sample, f"/member/{sample}/{{member:int}}": view.member,
        f"/picture/{sample}/{{member:int}}": view.picture,
    }  # fmt: skip
    for name in ("data", "samples", "problems", "columns", "column", "epoch", "batch"):
        pages[f"/api/{name}"] = getattr(view, name)
    files = Mount("/static", StaticFiles(directory=_STATIC))
    routes = [files, *(Route(path, _answering(page)) for path, page in pages.items())]
    pages_and_errors = Starlette(routes=routes, exception_handlers={404: _answering(_unknown)})
    return Guard(pages_and_errors, hosts=LOOPBACK if hosts is None else hosts, token=token)


def _unknown(request: Request) -> Any:
    raise IndexError(f"there is no address {request.url.path}: open the URL that `wdsdist view` printed")


def serve(view: View, *, host: str, port: int, token: str, ready: Callable[[str], None]) -> None:
    """Serve a data set until the process is interrupted.

    Args:
        view: the data set.
        host: address to listen on.
        port: of the host; 0 takes a free one.
        token: what each path must begin with; empty if no token is needed.
        ready: called with the URL once requests are answered.

    Raises `ArgumentError` if the address cannot be used, and `ExtraMissingError` without the extra ``view``.
    """
    uvicorn = extra("uvicorn", "view", "`wdsdist view`")
    listener = listening(host, port)
    address, number = listener.getsockname()[:2]
    # Behind a wildcard any name may lead here; there is a token then, which no other site knows.
    hosts = [] if address in ("0.0.0.0", "::") else [host, address, "localhost", "127.0.0.1", "::1"]
    config = uvicorn.Config(
        app(view, hosts=hosts, token=token), log_level="warning", ws="none", lifespan="off", server_header=False,
        proxy_headers=False, timeout_graceful_shutdown=1,
    )  # fmt: skip
    name = socket.gethostname() if not hosts else host
    ready(f"http://{f'[{name}]' if ':' in name else name}:{number}/{f'{token}/' if token else ''}")
    with contextlib.suppress(KeyboardInterrupt):  # the usual end, which uvicorn raises once it has closed
        uvicorn.Server(config).run(sockets=[listener])


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address; port 0 takes a free one. Raises `ArgumentError` if it cannot."""
    check_integer("port", port, 0, 65535)
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        remedy = "port 0 takes a free one" if port else "the host must be an address of this machine"
        raise ArgumentError(f"cannot listen on {host}, port {port}: {reason}; {remedy}") from error


def _answering(make: Callable[[Request], Any]) -> Callable[..., Response]:
    """Return an endpoint of a function that returns a response, or data for JSON; errors are sent as strings."""
    from starlette.responses import Response

    def endpoint(request: Request, _: Exception | None = None) -> Response:
        status = 200
        try:
            answer = make(request)
        except IndexError as error:
            status, answer = 404, {"error": str(error)}
        except (WdsdistError, ValueError) as error:
            status, answer = 422, {"error": str(error)}
        except Exception as error:
            _log.exception("a request for the page failed")
            status, answer = 500, {"error": f"{type(error).__name__}: {error}"}
        if isinstance(answer, Response):
            return answer
        # Plain ASCII: half a surrogate pair in a key would be no UTF-8.
        return Response(strict_json.dumps(answer), status, media_type="application/json")

    return endpoint


def _integer(request: Request, name: str, default: int) -> int:
    string = request.query_params.get(name) or str(default)
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
