"""Fetching through a proxy that plants faults, over HTTP and from S3: the bytes come, or an error that says why not."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import importlib.util
import math
import multiprocessing
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec.asyn
import pytest

from tests.support import faults
from tests.support.faults import Proxy, Rule
from tests.support.memory_store import Fault, MemoryStore
from tests.support.programs import command
from tests.support.web import Answer, Asked, answering, served
from wdsdist import storage
from wdsdist.errors import NotFoundError, StorageError
from wdsdist.storage import (
    Connections,
    Deadline,
    RequestPolicy,
    StorageOptions,
    Transfer,
    download,
    use_policy,
    waits,
)

PART = 1 << 16
CONTENT = secrets.token_bytes(20 * PART + 1000)
PARTS = 21
NO_S3 = any(importlib.util.find_spec(package) is None for package in ("s3fs", "moto", "flask_cors"))


@dataclass(frozen=True)
class Store:
    """A file behind a proxy."""

    proxy: Proxy
    location: str
    options: dict[str, Any]
    path: str
    """Of the file, as the proxy sees it."""

    def fetch(self, to: Path, *, seconds: float = 20, size: int | None = len(CONTENT), **more: Any) -> Transfer:
        return storage.fetch(self.location, to, self.bound, size=size, deadline=Deadline(seconds), **more)

    @property
    def bound(self) -> StorageOptions:
        """The options, for this store."""
        return storage.named(self.options, [self.location])


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    folder = tmp_path_factory.mktemp("web")
    (folder / "a.tar").write_bytes(CONTENT)
    (folder / "small.tar").write_bytes(CONTENT[:100])
    with served(folder) as server, faults.planted(server.url) as proxy:
        yield Store(proxy, f"{proxy.url}/a.tar", {}, "/a.tar")


@pytest.fixture(scope="module")
def s3(s3_server: str) -> Iterator[Store]:
    import boto3

    account: dict[str, Any] = {"aws_access_key_id": "nobody", "aws_secret_access_key": "nothing"}
    bucket = f"bucket-{secrets.token_hex(4)}"
    with faults.planted(s3_server) as proxy:
        client = boto3.client("s3", endpoint_url=s3_server, region_name="us-east-1", **account)
        client.create_bucket(Bucket=bucket)
        client.put_object(Bucket=bucket, Key="a.tar", Body=CONTENT)
        options = {
            "key": "nobody",
            "secret": "nothing",
            "endpoint_url": proxy.url,
            "client_kwargs": {"region_name": "us-east-1"},
        }
        yield Store(proxy, f"s3://{bucket}/a.tar", options, f"/{bucket}/a.tar")


@pytest.fixture(params=["web", "s3"])
def store(request: pytest.FixtureRequest) -> Store:
    found: Store = request.getfixturevalue(request.param)
    found.proxy.rules()
    found.proxy.forget()
    return found


@pytest.fixture(autouse=True)
def small_parts() -> Iterator[None]:
    with use_policy(RequestPolicy(part_bytes=PART, first_pause=0.05)):
        yield


def test_each_byte_is_asked_for_once_in_parts(store: Store, tmp_path: Path) -> None:
    assert store.fetch(tmp_path / "a.tar") == Transfer(len(CONTENT), PARTS, 0)
    assert (tmp_path / "a.tar").read_bytes() == CONTENT
    assert store.proxy.count(store.path) == faults.Count(requests=PARTS, bytes=len(CONTENT))


def test_what_is_read_at_once_takes_one_request(store: Store) -> None:
    assert storage.read(store.location, store.bound) == CONTENT
    assert store.proxy.count(store.path) == faults.Count(requests=1, bytes=len(CONTENT))


def test_a_size_that_is_not_known_is_asked_for(store: Store, tmp_path: Path) -> None:
    assert store.fetch(tmp_path / "a.tar", size=None) == Transfer(len(CONTENT), PARTS + 1, 0)
    assert (tmp_path / "a.tar").read_bytes() == CONTENT
    assert store.proxy.count(store.path).heads == 1


@pytest.mark.parametrize("size", [len(CONTENT), None])
@pytest.mark.parametrize("fault", [None, Rule("cut", 1000, share=0.2, seed=3), Rule("long", 7, share=0.2, seed=7)])
def test_the_digest_is_that_of_the_file_in_whatever_order_its_parts_come(
    store: Store, tmp_path: Path, size: int | None, fault: Rule | None
) -> None:
    store.proxy.rules(*filter(None, [fault]))
    path = tmp_path / "a.tar"
    with storage.begin_fetch(store.location, path, store.bound, size=size, digest=True) as fetching:
        assert fetching.result().sha256 == hashlib.sha256(CONTENT).hexdigest()


def test_the_digest_is_that_of_a_file_from_a_server_without_ranges_too(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(CONTENT)
    with (
        served(tmp_path, ranges=False) as server,
        storage.begin_fetch(f"{server.url}/a.tar", tmp_path / "copy", size=len(CONTENT), digest=True) as fetching,
    ):
        assert fetching.result().sha256 == hashlib.sha256(CONTENT).hexdigest()


def test_what_is_known_of_a_file_does_not_enter_its_digest_twice(tmp_path: Path) -> None:
    """As where a server of several gives whole files only, after another one gave ranges."""
    (tmp_path / "a.tar").write_bytes(CONTENT)
    copy, is_first_there = tmp_path / "copy", threading.Event()

    def known(wanted: range) -> list[range]:
        if wanted.start:
            assert is_first_there.wait(20)
            return [wanted]
        with copy.open("r+b") as file:
            file.write(CONTENT[: wanted.stop])
        is_first_there.set()
        return []

    with (
        storage.use_policy(storage.RequestPolicy(part_bytes=len(CONTENT) // 3)),
        served(tmp_path, ranges=False) as server,
        storage.begin_fetch(f"{server.url}/a.tar", copy, size=len(CONTENT), digest=True, known=known) as fetching,
    ):
        done = fetching.result()
    assert done.sha256 == hashlib.sha256(CONTENT).hexdigest()
    assert done.known == 0
    assert copy.read_bytes() == CONTENT


def test_a_range_that_has_come_is_not_asked_for_again_where_the_next_one_fails(tmp_path: Path) -> None:
    ranges = [range(1000), range(2000, len(CONTENT))]
    with MemoryStore({"a.tar": CONTENT}) as store, storage.use_policy(storage.RequestPolicy(first_pause=0.01)):
        store.plant(Fault("a.tar", "cut", times=1, after=1))
        fetching = storage.begin_fetch(f"{store.url}/a.tar", tmp_path / "a", size=len(CONTENT), known=lambda _: ranges)
        with fetching:
            done = fetching.result()
            assert fetching._copy.request.bytes == sum(map(len, ranges))
        assert [(one.start, one.stop) for one in store.requests] == [(0, 1000), *[(2000, len(CONTENT))] * 2]
    assert (done.known, done.retries) == (1000, 1)


@pytest.mark.skipif(NO_S3, reason="needs s3fs")
@pytest.mark.parametrize("changes", [1, 99])
def test_an_object_that_is_replaced_meanwhile_is_fetched_anew(tmp_path: Path, changes: int) -> None:
    """Otherwise the file would hold some bytes of each."""
    versions = [bytes([number]) * len(CONTENT) for number in range(100)]
    answered: list[int] = []

    def answer(asked: Asked) -> Answer:
        start, stop = map(int, asked.headers["range"].removeprefix("bytes=").split("-"))
        answered.append(start)
        version = min(len(answered) // 10, changes)
        return 206, {"ETag": f'"{version}"'}, versions[version][start : stop + 1]

    with answering(answer) as (url, _):
        options = storage.named({"key": "k", "secret": "s", "endpoint_url": url}, ["s3://bucket"])
        path = tmp_path / "a.tar"
        fetching = storage.begin_fetch("s3://bucket/a.tar", path, options, size=len(CONTENT), digest=True)
        if changes == 1:
            assert fetching.result().sha256 == hashlib.sha256(versions[1]).hexdigest()
            assert path.read_bytes() == versions[1]
        else:
            with pytest.raises(StorageError, match=r"a\.tar is replaced again and again: try again once it is at rest"):
                fetching.result()


@pytest.mark.parametrize("there", [b"", b"x" * 10, b"x" * len(CONTENT), b"x" * (len(CONTENT) + 10)])
def test_an_existing_file_is_written_in_place(web: Store, tmp_path: Path, there: bytes) -> None:
    web.proxy.rules()
    path = tmp_path / "a.tar"
    path.write_bytes(there)
    before = path.stat().st_ino
    web.fetch(path)
    assert (path.read_bytes(), path.stat().st_ino) == (CONTENT, before)


@pytest.mark.parametrize("given", [{}, {"client_kwargs": {"trust_env": False}}], ids=["direct", "fsspec"])
@pytest.mark.parametrize("known", [True, False])
def test_a_server_without_ranges_is_read_in_one_piece(tmp_path: Path, known: bool, given: dict[str, Any]) -> None:
    (tmp_path / "a.tar").write_bytes(CONTENT)
    with served(tmp_path, ranges=False) as server:
        size, bound = len(CONTENT) if known else None, storage.named(given, [server.url])
        storage.fetch(f"{server.url}/a.tar", tmp_path / "copy", bound, size=size, deadline=Deadline(20))
        with pytest.raises(StorageError, match="cannot be read in parts: the server has no ranges"):
            storage.read_range(f"{server.url}/a.tar", 10, 20, bound)
    assert (tmp_path / "copy").read_bytes() == CONTENT


RANGES = [range(10, 20), range(PART, 3 * PART + 1)]


def test_ranges_alone_are_fetched_each_to_its_place(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(bytes(len(CONTENT)))
    with storage.begin_fetch(store.location, path, store.bound, ranges=RANGES, deadline=Deadline(90)) as running:
        assert running.result() == Transfer(sum(map(len, RANGES)), 4, 0)
    expected = bytearray(len(CONTENT))
    for one in RANGES:
        expected[one.start : one.stop] = CONTENT[one.start : one.stop]
    assert path.read_bytes() == bytes(expected)
    assert store.proxy.count(store.path).bytes == sum(map(len, RANGES))


def test_a_server_without_ranges_gives_none(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(CONTENT)
    with served(tmp_path, ranges=False) as server:
        location = f"{server.url}/a.tar"
        fetching = storage.begin_fetch(location, tmp_path / "copy", ranges=RANGES, deadline=Deadline(20))
        with pytest.raises(storage.NoRangesError), fetching as running:
            running.result()


def test_a_fetch_leaves_the_line_to_others_as_long_as_it_is_told(store: Store, tmp_path: Path) -> None:
    asked, free = threading.Event(), threading.Event()

    class Taken:
        left = 0

        def must_pause(self, connection: object) -> bool:
            asked.set()
            return not free.is_set()

        def leave(self) -> None:
            self.left += 1

    path, line = tmp_path / "a.tar", Taken()
    with storage.begin_fetch(store.location, path, store.bound, deadline=Deadline(20), line=line) as running:
        assert asked.wait(10)
        assert store.proxy.count(store.path).requests == 0
        free.set()
        running.result()
    assert path.read_bytes() == CONTENT
    assert line.left == 1


def test_a_pause_is_no_stall_however_long_it_takes(tmp_path: Path) -> None:
    """Else a deadline of few seconds, whose quarter is the stall limit, would be used up by retries after pauses."""
    watch, seen, request = download._Watch(allowance=0.1), [], waits.Request("")

    class Taken:
        def must_pause(self, connection: object) -> bool:
            seen.append(watch.moved)
            return len(seen) < 4

        def leave(self) -> None: ...

    copy = download._Copy("", tmp_path, None, None, "", request, None, Connections(), line=Taken())
    asyncio.run(copy._let_pass(watch))
    assert seen[-2:] == [math.inf, math.inf]
    assert 0 < watch.moved < math.inf


def test_a_connection_that_stalls_after_a_pause_is_found(tmp_path: Path) -> None:
    """Else only the deadline of the whole fetch would end it, which is 300 seconds."""
    deadline = Deadline(5)
    copy = download._Copy("", tmp_path, None, None, "", waits.Request(""), deadline, Connections())

    async def paused_then_dead(watch: download._Watch) -> None:
        watch.moved = math.inf
        await asyncio.sleep(3 * watch.allowance)
        watch.moved = time.monotonic()
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError, match="no byte in"):
        asyncio.run(copy._watched(paused_then_dead, download._Watch(allowance=0.05)))
    assert deadline.left()


def test_a_small_range_takes_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first batch is made of dozens, and a busy machine takes milliseconds to start each thread."""
    (tmp_path / "a.tar").write_bytes(CONTENT)
    started: list[str] = []
    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda self: (started.append(self.name), start(self))[1])
    with (
        served(tmp_path) as server,
        storage.begin_fetch(f"{server.url}/a.tar", tmp_path / "copy", ranges=[range(10, 20)]) as running,
    ):
        running.result()
    assert (tmp_path / "copy").read_bytes()[10:] == CONTENT[10:20]
    assert started.count("wdsdist-storage") == 1


MIXED = [
    Rule("status", 500, share=0.05, seed=1),
    Rule("status", 503, share=0.03, seed=2, burst=3),
    Rule("cut", 1000, share=0.05, seed=3),
    Rule("refuse", share=0.05, seed=4),
    Rule("stall", 1000, share=0.05, seed=5),
    Rule("short", 7, share=0.05, seed=6),
    Rule("long", 7, share=0.05, seed=7),
]


def test_faults_that_pass_are_ridden_out_to_the_same_bytes(store: Store, tmp_path: Path) -> None:
    store.proxy.rules(*MIXED)
    with use_policy(RequestPolicy(part_bytes=PART, stall=0.5, first_pause=0.05)):
        done = store.fetch(tmp_path / "a.tar", seconds=60)
    assert (tmp_path / "a.tar").read_bytes() == CONTENT
    count = store.proxy.count(store.path)
    assert count.faults
    assert done.requests == done.retries + PARTS
    assert count.requests >= done.requests, "aiohttp asks again where a connection that it kept was closed meanwhile"


@pytest.mark.parametrize("rule", [Rule("short", 7, times=1), Rule("long", 7, times=1), Rule("cut", 10, times=1)])
def test_a_small_file_too_has_the_right_length(web: Store, tmp_path: Path, rule: Rule) -> None:
    web.proxy.rules(rule)
    done = storage.fetch(f"{web.proxy.url}/small.tar", tmp_path / "small.tar", size=100)
    assert (tmp_path / "small.tar").read_bytes() == CONTENT[:100]
    assert done == Transfer(100, 2, 1)


@pytest.mark.parametrize("rule", [Rule("stall", 100), Rule("refuse"), Rule("status", 500), Rule("cut", 100)])
def test_faults_that_stay_are_an_error_within_the_deadline(store: Store, tmp_path: Path, rule: Rule) -> None:
    store.proxy.rules(rule)
    began = time.monotonic()
    with pytest.raises(StorageError) as caught:
        store.fetch(tmp_path / "a.tar", seconds=1.5)
    assert time.monotonic() - began < 60  # on a busy machine too
    assert str(caught.value).startswith(f"{store.location} cannot be read: ")
    assert re.search(r"attempts? in 1\.5 s\)", str(caught.value))


@pytest.mark.parametrize(
    ("rule", "error", "message"),
    [
        (Rule("status", 404, method="*"), NotFoundError, "does not exist"),
        (Rule("status", 403, method="*"), StorageError, "access is refused: check the credentials"),
        (Rule("short", 7), StorageError, r"[\d,]+ bytes where there should be [\d,]+ \(after 5 attempts"),
    ],
)
def test_what_trying_again_does_not_mend_is_an_error_at_once(
    store: Store, tmp_path: Path, rule: Rule, error: type[Exception], message: str
) -> None:
    store.proxy.rules(rule)
    for size in (len(CONTENT), None):
        began = time.monotonic()
        with pytest.raises(error, match=message):
            store.fetch(tmp_path / "a.tar", seconds=300, size=size)
        assert time.monotonic() - began < 60


def test_a_server_that_is_gone_is_an_error_within_the_deadline(web: Store, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"http://127\.0\.0\.1:1/a\.tar cannot be read: .* attempts in 1 s\)"):
        storage.fetch("http://127.0.0.1:1/a.tar", tmp_path / "a.tar", deadline=Deadline(1))


def test_a_store_that_asks_to_wait_is_heeded(store: Store, tmp_path: Path) -> None:
    store.proxy.rules(Rule("status", 503, times=1, retry_after=1))
    began = time.monotonic()
    store.fetch(tmp_path / "a.tar")
    assert time.monotonic() - began >= 1
    store.proxy.rules(Rule("status", 503, retry_after=1000))
    with pytest.raises(StorageError, match=r"503|SlowDown|on purpose"):
        store.fetch(tmp_path / "a.tar", seconds=300)
    assert time.monotonic() - began < 60, "an error now is better than one later"


def test_an_answer_that_stalls_leaves_time_to_ask_again(store: Store) -> None:
    store.proxy.rules(Rule("stall", 10, times=1))
    assert storage.read(store.location, store.bound, deadline=Deadline(4)) == CONTENT


def test_no_more_requests_than_connections_run_at_once(web: Store, tmp_path: Path) -> None:
    web.proxy.rules(Rule("latency", 0.05))
    connections = Connections(3)
    threads = [
        threading.Thread(target=web.fetch, args=(tmp_path / name,), kwargs={"connections": connections})
        for name in ("b", "c")
    ]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - began >= 2 * PARTS / 3 * 0.05


def test_no_token_of_a_signed_url_is_in_a_traceback(web: Store, tmp_path: Path) -> None:
    token = secrets.token_hex(16)
    signed = web.location.replace("http://", f"http://user:{token}@") + f"?X-Signature={token}&x=%2B{token}"
    for rule in (Rule("status", 403), Rule("status", 404), Rule("status", 500), Rule("cut", 1), Rule("refuse")):
        web.proxy.rules(rule)
        for call in (
            lambda: storage.fetch(signed, tmp_path / "a.tar", size=len(CONTENT), deadline=Deadline(0.3)),
            lambda: storage.fetch(signed, tmp_path / "a.tar", deadline=Deadline(0.3)),
            lambda: storage.read(signed, deadline=Deadline(0.3)),
        ):
            with pytest.raises(OSError) as caught:
                call()
            assert web.location.partition("?")[0].removeprefix("http://") in str(caught.value)
            assert token not in "".join(traceback.format_exception(caught.value))


def exit_status(action: Callable[[Store, Path], None], *arguments: Any) -> int | None:
    """Do something in a forked child, and return how that ended."""
    child = multiprocessing.get_context("fork").Process(target=action, args=arguments)
    child.start()
    child.join(20)
    return child.exitcode


def _fetch_in_child(store: Store, path: Path) -> None:
    store.fetch(path)
    gc.collect()  # what fsspec has dropped of its parent's
    os._exit(17 if path.read_bytes() == CONTENT else 1)


def test_a_forked_child_fetches_after_its_parent_did_and_takes_nothing_from_it(store: Store, tmp_path: Path) -> None:
    store.fetch(tmp_path / "a.tar")
    assert exit_status(_fetch_in_child, store, tmp_path / "b") == 17
    assert store.fetch(tmp_path / "a.tar").retries == 0


def test_a_forked_child_fetches_though_a_thread_of_its_parent_was_making_the_event_loop(
    web: Store, tmp_path: Path
) -> None:
    with fsspec.asyn.get_lock():
        assert exit_status(_fetch_in_child, web, tmp_path / "b") == 17


def test_no_child_is_forked_while_a_thread_makes_a_client(web: Store, tmp_path: Path) -> None:
    held, may_go = threading.Event(), threading.Event()

    def make() -> None:
        with download._beginning:
            held.set()
            may_go.wait(20)

    maker = threading.Thread(target=make)
    maker.start()
    held.wait(20)
    threading.Timer(0.2, may_go.set).start()
    assert exit_status(_fetch_in_child, web, tmp_path / "b") == 17
    assert may_go.is_set()
    maker.join()


@pytest.mark.skipif(NO_S3, reason="needs s3fs")
def test_a_profile_that_does_not_exist_is_an_error_at_once() -> None:
    began = time.monotonic()
    with pytest.raises(StorageError, match=r"s3://bucket/a\.tar cannot be read: ProfileNotFound: .*\(nope\)"):
        storage.read("s3://bucket/a.tar", storage.named({"profile": "nope"}, ["s3://bucket"]))
    assert time.monotonic() - began < 60, "trying again would not mend it"


def test_s3_is_read_without_the_clients_that_take_long_to_import(s3: Store, tmp_path: Path) -> None:
    """Of workers and new processes, these would delay every first batch."""
    code = (
        "import sys; from pathlib import Path; from wdsdist import storage\n"
        f"options = storage.named({s3.options!r}, [{s3.location!r}])\n"
        f"storage.read({s3.location!r}, options)\n"
        f"storage.fetch({s3.location!r}, Path({str(tmp_path / 'a.tar')!r}), options)\n"
        "print({'aiohttp', 's3fs', 'botocore', 'fsspec'} & set(sys.modules))\n"
    )
    s3.proxy.rules()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=110)
    assert (done.stdout.strip(), done.stderr) == ("set()", "")
    assert (tmp_path / "a.tar").read_bytes() == CONTENT


@pytest.mark.parametrize("way", ["interrupted", "left"])
def test_a_stalled_fetch_keeps_no_process_from_ending(web: Store, tmp_path: Path, way: str) -> None:
    web.proxy.rules(Rule("stall", 100))
    web.proxy.forget()
    call = command("stalled_fetch", web.location, tmp_path / "a.tar", way)
    with subprocess.Popen(call, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not web.proxy.count(web.path).requests:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT) if way == "interrupted" else None
        _, printed = process.communicate("x", timeout=110)
    assert ("KeyboardInterrupt" in printed) == (way == "interrupted")
