"""The engine through a proxy that plants faults, over HTTP and S3: the bytes come, or an error that says why not."""

from __future__ import annotations

import gc
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.storage.conftest import bucket_of, read_ranges
from tests.support import faults
from tests.support.faults import Proxy, Rule
from tests.support.folders import forked, status
from tests.support.memory_store import Fault, MemoryStore
from tests.support.policies import use_policy
from tests.support.programs import command
from tests.support.web import Answer, Asked, answering, served
from wdsdist import storage
from wdsdist.errors import DestinationError, StorageError
from wdsdist.storage import Deadline, StorageOptions, engine
from wdsdist.storage.engine import Transfer
from wdsdist.storage.store import connecting

PART = 1 << 16
CONTENT = secrets.token_bytes(20 * PART + 1000)
PARTS = 21


@dataclass(frozen=True)
class Remote:
    """A file behind a proxy."""

    proxy: Proxy
    location: str
    options: dict[str, Any]
    path: str
    """Of the file, as the proxy sees it."""

    def fetch(self, to: Path, *, seconds: float = 20, size: int | None = len(CONTENT)) -> Transfer:
        return engine.fetch(self.location, to, self.bound, size=size, deadline=Deadline(seconds))

    @property
    def bound(self) -> StorageOptions:
        """The options, for this store."""
        return storage.named(self.options, [self.location])


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    folder = tmp_path_factory.mktemp("web")
    (folder / "a.tar").write_bytes(CONTENT)
    with served(folder) as server, faults.planted(server.url) as proxy:
        yield Remote(proxy, f"{proxy.url}/a.tar", {}, "/a.tar")


@pytest.fixture(scope="module")
def s3(s3_proxy: tuple[Proxy, Any]) -> Remote:
    bucket, options = bucket_of(*s3_proxy, {"a.tar": CONTENT})
    return Remote(s3_proxy[0], f"s3://{bucket}/a.tar", options, f"/{bucket}/a.tar")


@pytest.fixture(params=["web", "s3"])
def remote(request: pytest.FixtureRequest) -> Remote:
    found: Remote = request.getfixturevalue(request.param)
    found.proxy.rules()
    found.proxy.forget()
    return found


@pytest.fixture(autouse=True)
def small_parts() -> Iterator[None]:
    with use_policy(part_bytes=PART, first_pause=0.05):
        yield


def test_each_byte_is_asked_for_once_in_parts(remote: Remote, tmp_path: Path) -> None:
    assert remote.fetch(tmp_path / "a.tar") == Transfer(len(CONTENT), 0)
    assert (tmp_path / "a.tar").read_bytes() == CONTENT
    assert remote.proxy.count(remote.path) == faults.Count(requests=PARTS, bytes=len(CONTENT))


RANGES = [(10, 20), (PART, 3 * PART + 1)]


def test_ranges_alone_are_fetched_each_to_its_place_by_one_request(remote: Remote) -> None:
    content, expected = bytearray(len(CONTENT)), bytearray(len(CONTENT))

    def take(offset: int, piece: memoryview) -> None:
        content[offset : offset + len(piece)] = piece

    found = read_ranges(remote.location, RANGES, take, remote.bound, size=len(CONTENT))
    for start, stop in RANGES:
        expected[start:stop] = CONTENT[start:stop]
    assert content == expected
    assert found == Transfer(sum(stop - start for start, stop in RANGES), 0)
    assert remote.proxy.count(remote.path).bytes == found.bytes


@pytest.mark.parametrize("there", [b"", b"x" * 10, b"x" * (len(CONTENT) + 10)])
def test_an_existing_file_is_written_in_place(web: Remote, tmp_path: Path, there: bytes) -> None:
    web.proxy.rules()
    path = tmp_path / "a.tar"
    path.write_bytes(there)
    before = path.stat().st_ino
    web.fetch(path)
    assert (path.read_bytes(), path.stat().st_ino) == (CONTENT, before)


def test_what_the_consumer_raises_ends_the_download_and_comes_out_unchanged(web: Remote, tmp_path: Path) -> None:
    web.proxy.rules()

    def refuse(*_: object) -> None:
        raise ZeroDivisionError("on purpose")

    with pytest.raises(ZeroDivisionError, match="on purpose"):
        read_ranges(web.location, [(0, 10), (20, 30)], refuse)
    with pytest.raises(
        DestinationError, match=r"/dev/full, a copy of http://.*, cannot be written: No space left on device"
    ):
        web.fetch(Path("/dev/full"))


def test_a_range_that_breaks_goes_on_where_it_ended(tmp_path: Path) -> None:
    """The server cuts each body after 3 kB: without the offset, no range of 10 kB would ever be whole."""
    asked: list[str] = []

    def answer(request: Asked) -> Answer:
        asked.append(request.headers["range"])
        start, stop = map(int, asked[-1].removeprefix("bytes=").split("-"))
        length, body = stop + 1 - start, CONTENT[start : stop + 1][:3000]
        place = {"Content-Range": f"bytes {start}-{stop}/{len(CONTENT)}", "Content-Length": str(length)}
        return 206, {**place, "Connection": "close"}, body

    pieces = bytearray()
    with use_policy(first_pause=0.01), answering(answer) as (url, _):
        done = read_ranges(f"{url}/a.tar", [(5, 10_005)], lambda _, piece: pieces.extend(piece), size=len(CONTENT))
    assert (bytes(pieces), done) == (CONTENT[5:10_005], Transfer(10_000, 3))
    assert asked == ["bytes=5-10004", "bytes=3005-10004", "bytes=6005-10004", "bytes=9005-10004"]


def test_a_file_that_breaks_begins_again_if_the_server_has_no_ranges(tmp_path: Path) -> None:
    length, cuts = {"Content-Length": str(len(CONTENT)), "Connection": "close"}, [True, True, False, False]
    with (
        use_policy(first_pause=0.01, part_bytes=2 * len(CONTENT)),
        answering(lambda _: (200, length, CONTENT[:9000] if cuts.pop(0) else CONTENT)) as (url, asked),
    ):
        done = engine.fetch(f"{url}/a.tar", tmp_path / "a.tar", size=len(CONTENT))
    assert (tmp_path / "a.tar").read_bytes() == CONTENT
    assert ("range" in asked[0].headers, "range" in asked[1].headers, "range" in asked[2].headers) == (0, 1, 0)
    assert done == Transfer(len(CONTENT), 2)


@pytest.mark.parametrize("rule", [Rule("stall", 100), Rule("refuse"), Rule("status", 500), Rule("cut", 100)])
def test_faults_that_stay_are_an_error_within_the_deadline_that_says_what_to_do(
    remote: Remote, tmp_path: Path, rule: Rule
) -> None:
    remote.proxy.rules(rule)
    began = time.monotonic()
    deadline = Deadline(1.5, "download_timeout")
    with pytest.raises(StorageError) as caught:
        engine.fetch(remote.location, tmp_path / "a.tar", remote.bound, size=len(CONTENT), deadline=deadline)
    assert time.monotonic() - began < 60  # on a busy machine too
    assert re.fullmatch(
        rf"{remote.location} cannot be read: .* \(\d+ attempts? in \d+(\.\d)? s; download_timeout=1\.5 is the limit; "
        r"training can resume from the last checkpoint\)",
        str(caught.value),
    )


def test_a_port_where_nothing_answers_is_given_up_within_seconds() -> None:
    began = time.monotonic()
    with pytest.raises(StorageError, match=r"nothing answers at this address: check the URL\) \(\d+ attempts in") as it:
        storage.read("http://127.0.0.1:1/a.tar", deadline=Deadline(300, "download_timeout"))
    assert time.monotonic() - began < 30
    assert str(it.value).endswith("; training can resume from the last checkpoint)")
    assert it.value.kind == "unreachable"


def test_a_store_that_asks_to_wait_is_heeded(remote: Remote, tmp_path: Path) -> None:
    remote.proxy.rules(Rule("status", 503, times=1, retry_after=1))
    began = time.monotonic()
    remote.fetch(tmp_path / "a.tar")
    assert time.monotonic() - began >= 1
    remote.proxy.rules(Rule("status", 503, retry_after=1000))
    with pytest.raises(StorageError, match=r"503|SlowDown|on purpose"):
        remote.fetch(tmp_path / "a.tar", seconds=300)
    assert time.monotonic() - began < 60, "an error now is better than one later"


def test_late_bytes_of_a_blocked_back_end_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    late, got, before = Fault("a.tar", "stall"), list[bytes](), set(threading.enumerate())
    monkeypatch.setattr(engine, "_IDLE", 0.01)
    monkeypatch.setitem(engine._pools, False, engine._Pool())
    with MemoryStore({"a.tar": b"content"}) as store:
        store.plant(late)
        with engine.begin_ranges(f"{store.url}/a.tar", [(0, 7)], lambda _, piece: got.append(bytes(piece))):
            assert late.reached.wait(10)
        threads = [thread for thread in {*threading.enumerate()} - before if thread.name == "wdsdist-storage"]
        assert threads
        late.release()
        for thread in threads:
            thread.join(10)
    assert got == []


def test_what_is_fetched_ahead_takes_no_place_of_what_is_needed() -> None:
    with MemoryStore({"a.tar": CONTENT, "b.tar": b"b"}) as store:
        stall = Fault("a.tar", "stall")
        store.plant(stall)
        ranges = [(number, number + 1) for number in range(40)]
        with engine.begin_ranges(f"{store.url}/a.tar", ranges, lambda *_: None, is_ahead=True):
            assert stall.reached.wait(10)
            assert storage.read(f"{store.url}/b.tar", deadline=Deadline(20)) == b"b"
            store.heal()


def test_what_is_fetched_ahead_frees_its_thread_soon_if_the_store_fails(web: Remote) -> None:
    web.proxy.rules(Rule("status", 500))
    with (
        use_policy(first_pause=0.01),
        engine.begin_ranges(
            web.location, [(0, PART)], lambda *_: None, deadline=Deadline(300), is_ahead=True
        ) as download,
        pytest.raises(StorageError, match=r"\(4 attempts in"),
    ):
        download.result()


def fetched_by_a_child(remote: Remote, path: Path) -> bool:
    def fetch() -> None:
        remote.fetch(path)
        gc.collect()  # what fsspec has dropped of its parent's

    return status(forked(fetch)) == 0 and path.read_bytes() == CONTENT


def test_a_forked_child_fetches_after_its_parent_did_and_takes_nothing_from_it(remote: Remote, tmp_path: Path) -> None:
    remote.fetch(tmp_path / "a.tar")
    assert fetched_by_a_child(remote, tmp_path / "b")
    assert remote.fetch(tmp_path / "a.tar").retries == 0


def test_no_child_is_forked_while_a_thread_makes_a_client(web: Remote, tmp_path: Path) -> None:
    web.proxy.rules()
    held, may_go = threading.Event(), threading.Event()

    def make() -> None:
        with connecting:
            held.set()
            may_go.wait(20)

    maker = threading.Thread(target=make)
    maker.start()
    held.wait(20)
    threading.Timer(0.2, may_go.set).start()
    assert fetched_by_a_child(web, tmp_path / "b")
    assert may_go.is_set()
    maker.join()


@pytest.mark.parametrize("url", ["/data/a.tar", "web", "s3"])
def test_nothing_is_imported_that_a_location_does_not_need(
    url: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Workers and new processes would pay for it with each first batch."""
    if url.startswith("/"):
        (tmp_path / "a.tar").write_bytes(b"content")
        location, options, expected = str(tmp_path / "a.tar"), {}, "set()"
    else:
        remote: Remote = request.getfixturevalue(url)
        remote.proxy.rules()
        location, options, expected = remote.location, remote.options, "{'urllib3'}"
    code = (
        "import sys; from wdsdist import storage\n"
        f"storage.read({location!r}, storage.named({options!r}, [{location!r}]))\n"
        "print({'aiohttp', 's3fs', 'botocore', 'fsspec', 'urllib3', 'asyncio'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=110)
    assert (done.stdout.strip(), done.stderr) == (expected, "")


@pytest.mark.parametrize("way", ["interrupted", "left"])
def test_a_stalled_fetch_keeps_no_process_from_ending(web: Remote, tmp_path: Path, way: str) -> None:
    web.proxy.rules(Rule("stall", 100))
    web.proxy.forget()
    call = command("stalled_fetch", web.location, tmp_path / "a.tar", way)
    with subprocess.Popen(call, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not web.proxy.count(web.path).requests:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT) if way == "interrupted" else None
        _, printed = process.communicate("x", timeout=110)
    assert ("KeyboardInterrupt" in printed) == (way == "interrupted")


def test_a_blocked_back_end_keeps_no_process_from_ending() -> None:
    subprocess.run(command("blocked_back_end"), check=True, timeout=100)
