"""An ``index.json`` in a store: faults that pass are ridden out, and what stays wrong is refused soon."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import wdsdist
from tests.support import tars
from tests.support.policies import use_policy
from tests.support.web import Answer, Asked, answering
from wdsdist.errors import IndexFormatError, NotFoundError

SLACK = 60.0
"""Seconds, on a busy machine."""


def page() -> bytes:
    """A page that asks for a login, with a token of its own as such pages have."""
    return f"<html><form>{secrets.token_hex(8)}</form></html>".encode()


class Store:
    """HTTP server that gives its answers to GET in order, and repeats the last one."""

    def __init__(self, index: bytes) -> None:
        self.index = index
        self.url = ""
        self.asked: list[Asked] = []
        self.answers: list[Callable[[], Answer | None]] = [self.sound]

    def sound(self) -> Answer:
        return 200, {"ETag": f'"{hash(self.index)}"'}, self.index

    def give(self, *bodies: Any) -> None:
        """Give some answers: bodies, statuses, functions, or None for a connection that breaks."""
        self.answers = [body if callable(body) else lambda body=body: _answer(body) for body in bodies]
        self.asked.clear()

    def answer(self, asked: Asked) -> Answer | None:
        return (self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])()

    @property
    def gets(self) -> int:
        return sum(asked.method == "GET" for asked in self.asked)


def _answer(body: Any) -> Answer | None:
    if body is None:
        return None
    return (200, {}, body) if isinstance(body, bytes) else (body, {}, b"no")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    (tmp_path / "a.tar").write_bytes(tars.plain_tar([(f"{number}.txt", b"text") for number in range(4)]))
    wdsdist.index(tmp_path)
    store = Store((tmp_path / "index.json").read_bytes())
    soon = {"patience": 1.0, "first_pause": 0.02}
    with use_policy(**soon), answering(store.answer) as (store.url, store.asked):
        yield store


# Faults that pass


def test_a_login_page_and_a_cut_body_are_ridden_out(store: Store) -> None:
    store.give(page(), page(), store.index[:100], store.index[:-2], 503, b"", b"[]", b'{"error": "later"}', store.index)
    assert wdsdist.open(store.url, download_timeout=60).num_samples == 4
    assert store.gets == 9


def test_wrong_bytes_in_an_index_show_by_its_digest(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    wrong = store.index.replace(b'"nsamples": 4', b'"nsamples": 5').replace(b'"num_samples": 4', b'"num_samples": 5')
    store.give(wrong, store.index)
    assert wdsdist.open(store.url).num_samples == 4
    assert not caplog.records


# What stays wrong


def test_what_stays_wrong_is_refused_soon(store: Store) -> None:
    store.give(b"<html>login</html>")
    began = time.monotonic()
    with pytest.raises(IndexFormatError, match=r"not a wids v1 index \(no JSON: .*\(3 attempts in [\d.]+ s; training "):
        wdsdist.open(store.url, download_timeout=300)
    assert store.gets == 3
    assert time.monotonic() - began < SLACK


def test_pages_that_differ_each_time_are_refused_in_the_time_that_was_given(store: Store) -> None:
    store.give(lambda: _answer(page()))
    began = time.monotonic()
    with pytest.raises(
        IndexFormatError, match=r"wids v1 index .* \(\d+ attempts in \d.* s; download_timeout=3 is the limit"
    ):
        wdsdist.open(store.url, download_timeout=3)
    assert time.monotonic() - began < 3 + SLACK
    assert store.gets > 5


def test_an_index_that_was_edited_is_read_with_a_warning(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    store.give(store.index.replace(b'"name": "', b'"name": "my '))
    assert wdsdist.open(store.url).name.startswith("my ")
    assert store.gets == 3
    assert "does not have the digest that it states: was it edited?" in caplog.text


def test_an_edited_local_index_and_one_without_a_digest_are_read(store: Store, tmp_path: Path) -> None:
    data = json.loads(store.index)
    (tmp_path / "index.json").write_text(json.dumps({**data, "name": "edited"}))
    assert wdsdist.open(tmp_path).name == "edited"
    del data["wdsdist"]["index_sha256"]
    store.give(json.dumps(data).encode())
    assert wdsdist.open(store.url).num_samples == 4
    assert store.gets == 1


def test_a_signed_url_of_an_index_is_that_of_the_index_and_a_shard_has_a_signature_for_itself(tmp_path: Path) -> None:
    tar = tars.plain_tar([(f"k{n}.txt", b"text") for n in range(3)])
    content = json.dumps({"wids_version": 1, "shardlist": [{"url": "0.tar?s=y", "nsamples": 3}]}).encode()

    def answer(asked: Asked) -> Answer:
        found = {"/train/index.json?s=x": content, "/train/0.tar?s=y": tar}.get(asked.path)
        return (403, {}, b"") if found is None else (200, {}, found)

    with answering(answer) as (url, asked):
        with pytest.raises(NotFoundError, match=r"train is not a view: name an index\.json or a tar"):
            wdsdist.open(f"{url}/train?s=x")
        assert {request.path for request in asked} == {"/train?s=x"}
        found = wdsdist.open(f"{url}/train/index.json?s=x")
        assert (found.num_samples, found.location(0)) == (3, f"{url}/train/0.tar?s=y")
        assert wdsdist.StreamingDataset(found, decode=True, cache_dir=tmp_path)[2]["txt"] == "text"
        assert found.column("key").tolist() == ["k0", "k1", "k2"]
