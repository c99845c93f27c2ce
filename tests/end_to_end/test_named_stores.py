"""Options of the store, such as credentials, are sent to the stores that the user named and to nobody else.

Two real servers on loopback are two stores: they differ by their port.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import wdsdist
from tests.support import tars
from tests.support.web import Answer, Asked, answering
from wdsdist import StreamingDataset, storage
from wdsdist.diagnostics.verify import Damage, repair, verify
from wdsdist.errors import ArgumentError
from wdsdist.storage.urls import options_for

SECRET = "hush-4711"
ENCODED = base64.b64encode(f"me:{SECRET}".encode()).decode()
TAR = tars.plain_tar([(f"{number}.txt", b"text") for number in range(4)])


class Stores:
    """Two stores: ``one``, which users name, and ``other``, which they do not; both have the same shards."""

    def __init__(self, stack: ExitStack) -> None:
        self.files: dict[str, Callable[[], Answer]] = {}
        self.one, self.asked_one = stack.enter_context(answering(self.answer))
        self.other, self.asked_other = stack.enter_context(answering(self.answer))
        self.put("/a.tar", TAR)

    def put(self, path: str, content: bytes) -> None:
        self.files[path] = lambda: (200, {}, content)

    def list_shards(self, *urls: str, **more: Any) -> None:
        listed = [{"url": url, "nsamples": 4} for url in urls]
        self.put("/index.json", json.dumps({"wids_version": 1, "shardlist": listed, **more}).encode())

    def answer(self, asked: Asked) -> Answer | None:
        return self.files.get(asked.path.partition("?")[0], lambda: (404, {}, b""))()

    def redirect(self, path: str, to: str) -> None:
        self.files[path] = lambda: (302, {"Location": to}, b"")

    def check(self) -> None:
        """The one has seen the secret each time, the other was asked and never has."""
        assert self.asked_one
        assert self.asked_other
        assert all(map(has_secret, self.asked_one))
        assert not list(filter(has_secret, self.asked_other))


def has_secret(asked: Asked) -> bool:
    return any(secret in str(asked.headers) for secret in (SECRET, ENCODED))


@pytest.fixture
def stores() -> Iterator[Stores]:
    with ExitStack() as stack:
        yield Stores(stack)


OPTIONS = [
    {"headers": {"X-Api-Key": SECRET}},
    {"headers": {"Authorization": f"Bearer {SECRET}"}},
    {"headers": {"Cookie": f"session={SECRET}"}},
    {"client_kwargs": {"headers": {"X-Api-Key": SECRET}}},
    {"client_kwargs": {"headers": {"Authorization": SECRET}}},
    {"headers": {"User-Agent": SECRET}},
]
KEY = OPTIONS[0]


def read(what: Any, folder: Path, **options: Any) -> list[str]:
    """Return the keys of all samples."""
    return [sample["__key__"] for sample in StreamingDataset(what, cache_dir=folder, shuffle=False, **options)]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("way", ["shard", "base", "/a.tar", "/index.json"])
def test_a_store_that_only_the_index_or_a_redirect_names_gets_no_options(
    stores: Stores, tmp_path: Path, options: dict[str, Any], way: str
) -> None:
    is_redirect = way.startswith("/")
    if way == "shard":
        stores.list_shards(f"{stores.other}/a.tar")
    else:
        stores.list_shards("a.tar", **({"base": stores.other} if way == "base" else {}))
    if is_redirect:
        stores.files["/there"] = stores.files[way]
        stores.redirect(way, f"{stores.other}/there")
    manifest = wdsdist.open(stores.one, storage_options=options, allow_elsewhere=not is_redirect)
    assert read(manifest, tmp_path) == ["0", "1", "2", "3"]
    stores.check()


def test_a_redirect_from_https_to_http_of_the_same_host_is_to_another_store() -> None:
    named = storage.named(KEY, ["https://host/train"])
    assert options_for("https://host:443/a.tar", named) == KEY
    for elsewhere in ("http://host/a.tar", "https://host:8443/a.tar", "https://host.evil/a.tar",
                      "https://host@evil/a.tar", "https://evil/host/a.tar", "s3://host/a.tar"):  # fmt: skip
        assert options_for(elsewhere, named) == {}, elsewhere


def test_each_location_of_a_list_is_named(stores: Stores, tmp_path: Path) -> None:
    stores.list_shards("a.tar", f"{stores.other}/a.tar")
    dataset = [f"{stores.one}/a.tar", f"{stores.other}/a.tar"]
    assert len(read(wdsdist.open(dataset, storage_options=KEY, allow_elsewhere=True), tmp_path)) == 8
    assert all(map(has_secret, stores.asked_one + stores.asked_other))


def test_options_may_say_which_store_they_are_for(stores: Stores, tmp_path: Path) -> None:
    stores.list_shards("a.tar", f"{stores.other}/a.tar")
    mine = {"headers": {"X-Api-Key": "mine"}}
    manifest = wdsdist.open(
        stores.one, storage_options={stores.one: KEY, f"{stores.other}/x": mine}, allow_elsewhere=True
    )
    assert len(read(manifest, tmp_path)) == 8
    stores.check()
    assert {asked.headers["x-api-key"] for asked in stores.asked_other} == {"mine"}
    with pytest.raises(ArgumentError, match="some keys that are URLs and some that are not"):
        wdsdist.open(stores.one, storage_options={stores.one: KEY, "anon": True})


def test_the_parts_of_a_mix_get_options_for_their_own_stores(stores: Stores, tmp_path: Path) -> None:
    stores.list_shards("a.tar")
    one = wdsdist.open(stores.one, storage_options=KEY)
    joined = wdsdist.concat([one, wdsdist.open(stores.other)], cache_dir=tmp_path, shuffle=False)
    assert len(list(joined)) == 8
    assert {damage.part for damage in verify(joined.manifest)} == {"index"}  # there is none beside these tars
    stores.check()


def test_a_damaged_shard_is_mended_from_another_store_without_options_of_the_first(
    stores: Stores, tmp_path: Path
) -> None:
    (tmp_path / "a.tar").write_bytes(TAR)
    wdsdist.index(tmp_path)
    manifest = wdsdist.open(tmp_path)
    damage = [Damage("a.tar", "was spoilt", "tar", 0)]
    # Options of a local data set can be for the source only.
    assert repair(tmp_path, damage, source=stores.one, storage_options=KEY)[0].done
    assert all(map(has_secret, stores.asked_one))
    named = manifest.with_source(client_options=storage.named(KEY, [stores.one]))
    assert repair(named, damage, source=stores.other)[0].done
    stores.check()


def test_packing_of_shards_elsewhere_takes_no_options_there(stores: Stores, tmp_path: Path) -> None:
    stores.list_shards(f"{stores.other}/a.tar")
    manifest = wdsdist.open(stores.one, storage_options=KEY, allow_elsewhere=True)
    assert wdsdist.pack(manifest, tmp_path / "packed", workers=1, storage_options=KEY).num_samples == 4
    stores.check()


def test_an_index_that_the_user_wrote_names_the_stores_of_its_shards_and_a_copy_of_another_hand_does_not(
    stores: Stores, tmp_path: Path
) -> None:
    wdsdist.index([f"{stores.one}/a.tar"], output=tmp_path, storage_options=KEY)
    assert all(map(has_secret, stores.asked_one))
    index = (tmp_path / "index.json").read_text()
    (tmp_path / "index.json").write_text(index.replace(stores.one, stores.other))
    manifest = wdsdist.open(tmp_path, storage_options=KEY, allow_elsewhere=True)
    assert len(read(manifest, tmp_path / "cache")) == 4
    stores.check()


def test_a_store_that_is_read_without_the_options_is_logged_once(
    stores: Stores, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stores.list_shards(f"{stores.other}/a.tar")
    with caplog.at_level(logging.WARNING, "wdsdist"):
        read(wdsdist.open(stores.one, storage_options=KEY, allow_elsewhere=True), tmp_path)
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith(f"{stores.other} is read without storage_options: they are for {stores.one}")
    assert SECRET not in told
