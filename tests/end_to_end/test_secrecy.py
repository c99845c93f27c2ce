"""No exception that leaves storage holds a signed URL or a password: neither itself nor anything that it refers to."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import pickle
import secrets
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import fsspec
import pytest

import wdsdist
from tests.support import tars
from tests.support.memory_store import Fault, MemoryStore
from tests.support.policies import use_policy
from tests.support.sources import Shards
from tests.support.web import Answer, Asked, answering
from wdsdist import storage
from wdsdist.diagnostics.verify import verify
from wdsdist.errors import WdsdistError
from wdsdist.packing import sources
from wdsdist.shards import scan
from wdsdist.shards.manifest import Manifest, Shard
from wdsdist.storage import Deadline, engine

TOKEN = secrets.token_hex(16)
LOUD = logging.getLogger("test.secrecy")


def all_of(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and all that it refers to, hidden from tracebacks or not."""
    left, seen = [error], set()
    while left:
        one = left.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            left += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]
            yield one


def told(error: BaseException) -> str:
    """Return all that can be read of an exception and of what it refers to."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    LOUD.addHandler(handler)
    LOUD.error("failed", exc_info=error)
    LOUD.removeHandler(handler)
    parts = [stream.getvalue(), "".join(traceback.format_exception(error))]
    for one in all_of(error):
        parts += [str(one), repr(one), repr(one.args), repr(vars(one)), repr(pickle.dumps(one))]
    return "\n".join(parts)


def check(call: Callable[[], object], *kinds: type[Exception]) -> None:
    with pytest.raises(kinds or (WdsdistError, FileNotFoundError)) as caught:
        call()
    assert TOKEN not in told(caught.value)
    foreign = [one for one in all_of(caught.value) if not type(one).__module__.startswith(("wdsdist", "builtins"))]
    assert not foreign, "exceptions of back ends are left behind"


@pytest.fixture(autouse=True)
def little_patience() -> Iterator[None]:
    with use_policy(patience=0.2, download_patience=0.2, first_pause=0.02):
        yield


def signed(url: str) -> str:
    return url.replace("http://", f"http://user:{TOKEN}@") + f"?X-Signature={TOKEN}&x=%2B{TOKEN}"


def calls(url: str, folder: Path) -> dict[str, Callable[[], object]]:
    """Everything that asks a store for something."""
    location, soon = signed(f"{url}/a.tar"), Deadline(0.3)
    manifest = Manifest.of(url, [Shard(location, 1, -1, "")])
    return {
        "read": lambda: storage.read(location, deadline=soon),
        "read of a range": lambda: storage.read(location, stop=9),
        "fetch": lambda: engine.fetch(location, folder / "a.tar", deadline=soon),
        "fetch of a size": lambda: engine.fetch(location, folder / "a.tar", size=20 << 20, deadline=soon),
        "stat": lambda: storage.stat(location),
        "index_remote": lambda: scan.scan_remote(location, 10 << 20),
        "pin": lambda: Shards(manifest, folder / "cache", timeout=0.3).shard(0),
        "open": lambda: wdsdist.open(signed(f"{url}/index.json"), download_timeout=0.3),
        "open of a tar": lambda: wdsdist.open(location, download_timeout=0.3),
        "index": lambda: wdsdist.index(location, output=folder / "indexes"),
        "source": lambda: sources.find(signed(f"{url}/a.csv"), scratch=folder),
        "upload": lambda: storage.put(location, b"content"),
        "list": lambda: storage.list(location),
    }


ANSWERS: dict[str, Callable[[Asked], Answer | None]] = {
    "403": lambda asked: (403, {}, b"no"),
    "404": lambda asked: (404, {}, b"no"),
    "500": lambda asked: (500, {}, asked.path.encode()),
    "cut": lambda asked: (200, {"Content-Length": "1000", "Connection": "close"}, b"x"),
    "refused": lambda asked: None,
    "redirected for ever": lambda asked: (302, {"Location": asked.path}, b""),
    "redirected to nowhere": lambda asked: (302, {"Location": f"ftp://user:{TOKEN}@host/?{TOKEN}"}, b""),
}


@pytest.mark.parametrize("how", ANSWERS)
def test_whatever_a_web_server_does(tmp_path: Path, how: str) -> None:
    with answering(ANSWERS[how]) as (url, _):
        for name, call in calls(url, tmp_path).items():
            if (how, name) not in {("cut", "stat"), ("cut", "source")}:  # for which the header is enough
                check(call)


class BackEndError(Exception):
    """Holds what it was asked for, in attributes as aiohttp's and botocore's do."""

    def __init__(self, url: str) -> None:
        super().__init__("it failed")
        self.request_info = {"url": url}
        self.response = {"ResponseMetadata": {"HTTPStatusCode": 500}, "url": url}


def test_what_a_back_end_raises_is_left_behind_with_all_that_it_holds(tmp_path: Path) -> None:
    error = BackEndError(f"a.tar?{TOKEN}")
    error.__cause__ = OSError(TOKEN)
    with MemoryStore(name="bucket") as bucket:
        bucket.plant(Fault("*", "error", error=error))
        location = f"{bucket.url}/a.tar?{TOKEN}"
        for call in (
            lambda: storage.read(location),
            lambda: storage.read(location, stop=1),
            lambda: storage.read_until(location, lambda content, is_final: content),
            lambda: storage.stat(location),
            lambda: storage.list(location),
            lambda: storage.list(location, recursive=True),
            lambda: storage.put(location, b""),
            lambda: storage.delete(location),
            lambda: upload(location),
            lambda: engine.fetch(location, tmp_path / "a", size=1, deadline=Deadline(0.1)),
            lambda: engine.fetch(location, tmp_path / "a", deadline=Deadline(0.1)),
        ):
            check(call)


def upload(location: str) -> None:
    with storage.upload(location) as stream:
        stream.write(b"x")


def test_what_cannot_be_opened_keeps_neither_location_nor_options(tmp_path: Path) -> None:
    options = {"client_kwargs": 4711, "secret": TOKEN}
    for location in (
        f"gs://bucket/a.tar?{TOKEN}",
        f"nowhere://user:{TOKEN}@bucket/a.tar?{TOKEN}",
        f"s3://bucket/a.tar?{TOKEN}",
    ):
        bound = storage.named(options, [location])
        check(partial(engine.fetch, location, tmp_path / "a", bound, deadline=Deadline(0.1)))
        check(partial(storage.read, location, bound, deadline=Deadline(0.1)))


def test_errors_stay_alone_in_handlers_threads_and_coroutines() -> None:
    def fail() -> None:
        storage.read(f"{store.url}/a.tar", deadline=Deadline(0.1))

    def handle() -> None:
        try:
            raise ConnectionError(TOKEN)
        except ConnectionError:
            fail()

    async def wait() -> None:
        fail()

    with MemoryStore({"a.tar": b""}) as store, ThreadPoolExecutor(1) as pool:
        store.plant(Fault("*", "error", error=ConnectionError(f"https://host/a.tar?signature={TOKEN}")))
        for call in (fail, handle, lambda: asyncio.run(wait()), lambda: pool.submit(fail).result()):
            check(call, WdsdistError)


def test_what_verify_finds_names_no_signed_url(tmp_path: Path) -> None:
    with answering(lambda asked: (403, {}, b"no")) as (url, _):
        found = verify(Manifest.of(url, [Shard(signed(f"{url}/a.tar"), 1, -1, ""), Shard(f"b.tar?{TOKEN}", 1, 9, "")]))
    assert [damage.shard for damage in found] == [f"{url}/a.tar", "b.tar"]
    assert TOKEN not in repr(found)


def test_an_index_that_is_refused_does_not_stay_in_the_error() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/train/index.json", f'{{"wids_version": 1, "shardlist": [{{"url": "{TOKEN}'.encode())
    check(lambda: wdsdist.open("memory://train", download_timeout=5))


@pytest.fixture
def signed_shards(tmp_path: Path) -> Iterator[Path]:
    """A folder whose index.json names a shard by a signed URL."""
    (tmp_path / "a.tar").write_bytes(tars.plain_tar([("0.txt", b"text")]))
    content = (tmp_path / "a.tar").read_bytes()
    with answering(lambda asked: (200, {}, content) if "wdsindex" not in asked.path else (404, {}, b"")) as (url, _):
        listed = [{"url": signed(f"{url}/a.tar"), "nsamples": 1}]
        (tmp_path / "index.json").write_text(json.dumps({"wids_version": 1, "shardlist": listed}))
        yield tmp_path


@pytest.mark.parametrize("more", [[], ["--samples"]])
def test_ls_shows_no_query(signed_shards: Path, capsys: pytest.CaptureFixture[str], more: list[str]) -> None:
    from click.testing import CliRunner

    from wdsdist.cli import _wdsdist

    result = CliRunner().invoke(_wdsdist, ["ls", str(signed_shards), *more, "--allow-elsewhere"])
    assert result.exit_code == 0, result.output
    assert "/a.tar\t" in result.output or "\ta.tar\t" in result.output
    assert TOKEN not in result.output
