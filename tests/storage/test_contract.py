"""The contract of `Store`: what holds of each implementation, in memory, of local files, of web servers, and of S3."""

from __future__ import annotations

import contextlib
import secrets
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.storage.conftest import bucket_of
from tests.support import faults
from tests.support.faults import Rule
from tests.support.memory_store import Fault, Kind, MemoryStore
from tests.support.policies import use_policy
from tests.support.web import served
from wdsdist import storage
from wdsdist.errors import NotFoundError, StorageError
from wdsdist.storage import Deadline, StorageOptions, engine
from wdsdist.storage.failures import Failure

TOKEN = secrets.token_hex(16)
PART = 1000
CONTENT = secrets.token_bytes(4 * PART + 7)
FILES = {"train/a.tar": CONTENT, "train/b.tar": b"b", "train/deep/c.txt": b"text"}
RULES: dict[Kind, Rule] = {
    "error": Rule("status", 503, method="*"),
    "cut": Rule("cut", 10),
    "wrong-bytes": Rule("wrong", 10),
    "wrong-length": Rule("short", 1),
    "stall": Rule("stall", 10, method="*"),
    "not-found": Rule("status", 404, method="*"),
}
"""How the proxy of web servers and S3 plants each fault of the store in memory."""


FOR_FSSPEC = {"s3, fsspec": {"config_kwargs": {}}}


@dataclass(frozen=True, slots=True)
class BackEnd:
    """One back end, which holds `FILES`."""

    url: str
    plant: Callable[[Kind, int | None], None] | None = None
    """Plants a fault that some requests hit, or all; none where it never fails."""
    options: StorageOptions | None = None
    is_writable: bool = True
    secret_url: str = ""
    """The same place with credentials in the URL, where a URL of it may have some."""

    @property
    def a_tar(self) -> str:
        return f"{self.url}/train/a.tar"

    def fetch(self, to: Path, *, size: int | None = len(CONTENT), seconds: float = 20) -> engine.Transfer:
        return engine.fetch(self.a_tar, to, self.options, size=size, deadline=Deadline(seconds))


def through(proxy: faults.Proxy) -> Callable[[Kind, int | None], None]:
    def plant(kind: Kind, times: int | None) -> None:
        rule = RULES[kind]
        proxy.rules(Rule(**{**{name: getattr(rule, name) for name in rule.__dataclass_fields__}, "times": times}))

    return plant


@contextlib.contextmanager
def in_memory() -> Iterator[BackEnd]:
    with MemoryStore(FILES, name="bucket") as store:
        yield BackEnd(
            store.url,
            lambda kind, times: store.plant(Fault("*", kind, times=times)),
            secret_url=f"faulty://me:{TOKEN}@bucket",
        )


@pytest.fixture
def local(tmp_path: Path) -> BackEnd:
    folder = tmp_path / "local"
    fill(folder)
    return BackEnd(str(folder))


def fill(folder: Path) -> None:
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


@pytest.fixture(scope="module")
def web_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[faults.Proxy]:
    folder = tmp_path_factory.mktemp("web")
    fill(folder)
    with served(folder) as server, faults.planted(server.url) as proxy:
        yield proxy


@pytest.fixture
def web(web_server: faults.Proxy, given: dict[str, Any]) -> BackEnd:
    web_server.rules()
    secret = web_server.url.replace("://", f"://me:{TOKEN}@")
    options = storage.named(given, [web_server.url])
    return BackEnd(web_server.url, through(web_server), options, is_writable=False, secret_url=secret)


@pytest.fixture
def given(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Storage options of the back end under test; some that only fsspec knows, where its client is to be used."""
    return FOR_FSSPEC.get(request.node.callspec.params["back_end"], {})


@pytest.fixture
def s3(s3_proxy: tuple[faults.Proxy, Any], given: dict[str, Any]) -> BackEnd:
    proxy, client = s3_proxy
    proxy.rules()
    bucket, options = bucket_of(proxy, client, FILES, secret=TOKEN)
    return BackEnd(f"s3://{bucket}", through(proxy), storage.named(given | options, [f"s3://{bucket}"]))


@pytest.fixture(params=["memory", "local", "web", "s3", *FOR_FSSPEC])
def back_end(request: pytest.FixtureRequest) -> Iterator[BackEnd]:
    if request.param == "memory":
        with in_memory() as made:
            yield made
    else:
        yield request.getfixturevalue(request.param.partition(",")[0])


@pytest.fixture(autouse=True)
def small_parts_and_short_pauses() -> Iterator[None]:
    with use_policy(part_bytes=PART, first_pause=0.02, patience=20.0):
        yield


def fault(back_end: BackEnd, kind: Kind, times: int | None = None) -> None:
    if back_end.plant is None:
        pytest.skip("local files have no faults to plant")
    back_end.plant(kind, times)


def writable(back_end: BackEnd) -> BackEnd:
    if not back_end.is_writable:
        pytest.skip("nothing can be written there")
    return back_end


def test_what_is_there_is_read(back_end: BackEnd) -> None:
    assert storage.read(back_end.a_tar, back_end.options) == CONTENT
    assert storage.read(back_end.a_tar, back_end.options, deadline=Deadline(20)) == CONTENT
    assert storage.read_until(back_end.a_tar, lambda content, is_final: content, back_end.options) == CONTENT


@pytest.mark.parametrize(
    ("start", "stop"), [(0, 1), (0, len(CONTENT)), (PART, 2 * PART), (len(CONTENT) - 1, len(CONTENT))]
)
def test_a_range_is_read(back_end: BackEnd, start: int, stop: int) -> None:
    assert storage.read(back_end.a_tar, back_end.options, start=start, stop=stop) == CONTENT[start:stop]


def test_a_range_beyond_the_end_is_an_error(back_end: BackEnd) -> None:
    with (
        use_policy(patience=0.2, first_pause=0.02),
        pytest.raises(StorageError, match=r"a\.tar cannot be read"),
    ):
        storage.read(back_end.a_tar, back_end.options, start=len(CONTENT) - 1, stop=len(CONTENT) + 1)


def test_what_is_not_accepted_is_read_again(back_end: BackEnd) -> None:
    if back_end.plant is None:
        pytest.skip("a local file is read once")
    answers = [Failure("length", "it is cut"), Failure("length", "it is cut")]

    def accept(content: bytes, is_final: bool) -> bytes:
        if answers:
            raise answers.pop()
        return content

    assert storage.read_until(back_end.a_tar, accept, back_end.options) == CONTENT


def test_what_is_known_of_a_file(back_end: BackEnd) -> None:
    entry = storage.stat(back_end.a_tar, back_end.options, deadline=Deadline(20))
    assert (entry.name, entry.size, entry.is_folder) == ("a.tar", len(CONTENT), False)


def test_what_a_folder_holds(back_end: BackEnd) -> None:
    folder = f"{back_end.url}/train"
    if not back_end.is_writable:
        for recursive in (False, True):
            with pytest.raises(StorageError, match="is on the web, which is read only and lists no folders"):
                storage.list(folder, back_end.options, recursive=recursive)
        return
    found = storage.list(folder, back_end.options)
    assert [entry.name for entry in found] == ["a.tar", "b.tar", "deep"]
    assert [entry.size for entry in found if not entry.is_folder] == [len(CONTENT), 1]
    below = storage.list(folder, back_end.options, recursive=True)
    assert [(entry.name, entry.size) for entry in below] == [("a.tar", len(CONTENT)), ("b.tar", 1), ("deep/c.txt", 4)]
    assert [entry for entry in below if not entry.stamp] == []


def test_a_folder_that_is_not_there_holds_nothing(back_end: BackEnd) -> None:
    for recursive in (False, True):
        assert storage.list(f"{writable(back_end).url}/none", back_end.options, recursive=recursive) == []


def test_what_is_written_is_read_and_replaced_and_deleted(back_end: BackEnd) -> None:
    new = f"{writable(back_end).url}/train/new"
    for content in (b"one", b"other", b""):
        storage.put(new, content, back_end.options)
        assert storage.read(new, back_end.options) == content
        assert "new" in names(back_end)
    storage.delete(new, back_end.options)
    assert "new" not in names(back_end)
    storage.delete(new, back_end.options)


def names(back_end: BackEnd) -> list[str]:
    return [entry.name for entry in storage.list(f"{back_end.url}/train", back_end.options)]


def test_an_upload_appears_when_it_is_whole_and_only_then(back_end: BackEnd) -> None:
    new = f"{writable(back_end).url}/train/new"
    with contextlib.suppress(InterruptedError), storage.upload(new, back_end.options) as stream:
        stream.write(b"half")
        raise InterruptedError
    assert "new" not in names(back_end)
    with storage.upload(new, back_end.options) as stream:
        stream.write(CONTENT)
        assert "new" not in names(back_end)
    assert storage.read(new, back_end.options) == CONTENT


@pytest.mark.parametrize("size", [len(CONTENT), None])
def test_a_file_is_fetched_whole(back_end: BackEnd, tmp_path: Path, size: int | None) -> None:
    done = back_end.fetch(tmp_path / "a.tar", size=size)
    assert (tmp_path / "a.tar").read_bytes() == CONTENT
    assert (done.bytes, done.retries) == (len(CONTENT), 0)


def test_what_is_not_there_is_said_at_once(back_end: BackEnd, tmp_path: Path) -> None:
    none = f"{back_end.url}/train/none.tar"
    for call in (
        lambda: storage.read(none, back_end.options),
        lambda: storage.read_until(none, lambda content, is_final: content, back_end.options),
        lambda: storage.read(none, back_end.options, stop=5),
        lambda: storage.stat(none, back_end.options),
    ):
        with pytest.raises(FileNotFoundError):
            call()
    for size in (5, 5 * PART, None):
        with pytest.raises(NotFoundError, match=r"none\.tar does not exist"):
            engine.fetch(none, tmp_path / "none", back_end.options, size=size)


@pytest.mark.parametrize("size", [len(CONTENT) + 1, 2 * len(CONTENT), 5])
def test_a_file_of_another_size_is_not_accepted(back_end: BackEnd, tmp_path: Path, size: int) -> None:
    with pytest.raises(StorageError, match=r"a\.tar cannot be read"):
        back_end.fetch(tmp_path / "a.tar", size=size)


@pytest.mark.parametrize("kind", ["error", "cut", "wrong-length", "stall"])
def test_faults_that_pass_are_retried_to_the_same_bytes(back_end: BackEnd, tmp_path: Path, kind: Kind) -> None:
    fault(back_end, kind, times=2)
    with use_policy(part_bytes=PART, first_pause=0.02, stall=0.3):
        done = back_end.fetch(tmp_path / "a.tar", seconds=60)
    assert (tmp_path / "a.tar").read_bytes() == CONTENT
    assert done.retries >= 1
    if kind not in ("wrong-length", "stall"):  # a read has no size to compare with, and no deadline
        fault(back_end, kind, times=2)
        assert storage.read(back_end.a_tar, back_end.options) == CONTENT


def test_what_stays_of_the_wrong_length_is_an_error_before_the_deadline(back_end: BackEnd, tmp_path: Path) -> None:
    fault(back_end, "wrong-length")
    with pytest.raises(StorageError, match=r"a\.tar cannot be read: .* bytes .*\(5 attempts in "):
        back_end.fetch(tmp_path / "a.tar", seconds=300)


def test_no_credentials_are_in_messages(back_end: BackEnd, tmp_path: Path) -> None:
    location = f"{back_end.secret_url or back_end.url}/train/a.tar" + (
        f"?signature={TOKEN}" if back_end.secret_url else ""
    )
    kinds: tuple[Kind, ...] = ("error", "cut", "not-found")
    for kind in kinds:
        fault(back_end, kind)
        for call in (
            lambda: engine.fetch(location, tmp_path / "a.tar", back_end.options, size=9, deadline=Deadline(0.2)),
            lambda: storage.read(location, back_end.options, deadline=Deadline(0.2)),
        ):
            with pytest.raises(OSError, match=r"a\.tar (cannot be read|does not exist)") as caught:
                call()
            assert TOKEN not in "".join(traceback.format_exception(caught.value))
