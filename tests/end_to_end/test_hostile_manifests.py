"""Whatever an ``index.json`` says, and whatever is done with it: nothing is opened outside its own folder or store.

Manifests are made of hostile parts; what the process then opens is noted: files, folders, connections, programs, and
the paths that its own server is asked for.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import posixpath
import shutil
import site
import sys
import sysconfig
import tempfile
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import wdsdist
from tests.support.tars import write_shard
from tests.support.watched import Seen, watched
from tests.support.web import Web, served
from wdsdist.errors import WdsdistError

ROOT = Path(wdsdist.__file__).parent.parent
PYTHON = {
    *map(Path, (sys.prefix, sys.base_prefix, *site.getsitepackages(), *sys.path, *sysconfig.get_paths().values())),
    Path(sys.pycache_prefix or sys.prefix),
    *(Path(module.__file__).parent for module in (pytest, wdsdist) if module.__file__),
    Path("/dev"), Path("/proc"), Path("/usr/share/zoneinfo"),
}  # fmt: skip
"""Where the interpreter and its packages look for themselves."""


class World:
    """A data set in a folder that is served too, beside what must stay untouched, on disk and on the web."""

    def __init__(self, root: Path, web: Web, other: Web) -> None:
        self.root = root
        self.web = web
        self.other = other
        self.template = root / "template"
        self.data = web.folder / "data"
        self.results = root / "results"
        home = web.folder / "private"
        home.mkdir()
        write_shard(home / "secret.tar", 3)
        write_shard(other.folder / "x.tar", 3)
        self.template.mkdir()
        (self.template / "sub").mkdir()
        (root / "cwd").mkdir()
        for name in ("a.tar", "b.tar", "sub/c.tar", "../cwd/a.tar"):
            write_shard(self.template / name, 3)
        (self.template / "out").symlink_to(home)
        (self.template / "link.tar").symlink_to(home / "secret.tar")
        shutil.copytree(self.template, root / "whole", symlinks=False, ignore=shutil.ignore_patterns("out"))

    def reset(self, entries: list[dict[str, Any]], base: str | None) -> None:
        for folder in (self.data, self.results):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.template, self.data, symlinks=True)
        (self.results / "tmp").mkdir(parents=True, exist_ok=True)  # by a request that ends late
        content = {"wids_version": 1, "shardlist": entries, **({"base": base} if base else {})}
        (self.data / "index.json").write_text(json.dumps(content))
        self.web.asked.clear()
        self.other.asked.clear()

    def outside(self, seen: Seen, *, remote: bool) -> list[str]:
        """Return what was opened that should not have been."""
        own = {self.results} if remote else {self.results, self.data, self.root / "whole"}
        wrong = [f"read {path}" for path in seen.read if not _below(path, own | PYTHON)]
        wrong += [f"wrote {path}" for path in seen.written if not _below(path, own | {Path("/dev"), Path("/proc")})]
        wrong += seen.else_
        wrong += [f"asked {path}" for path in self.web.asked if not remote or not _meant(path).startswith("/data/")]
        return wrong + [f"asked the other host for {path}" for path in self.other.asked]


def _below(path: Path, folders: set[Path]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


def _meant(path: str) -> str:
    """Return the path that the most obliging of servers would take a request for."""
    path = path.partition("?")[0].partition("#")[0]
    while path != (path := urllib.parse.unquote(path)):
        pass
    parts = [part.partition(";")[0] for part in path.replace("\\", "/").split("/")]
    return posixpath.normpath("/".join(parts)).replace("//", "/")


@pytest.fixture
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root = tmp_path_factory.mktemp("world")  # for each test: the last request of an earlier data set may end late
    (root / "web").mkdir()
    (root / "other").mkdir()
    with served(root / "web") as web, served(root / "other") as other:
        yield World(root, web, other)


@pytest.fixture(autouse=True)
def one_process(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do all work in this process, which is watched, with its caches and temporary files where the results are."""
    gc.collect()  # what earlier tests left is cleaned up now: their readers of a cache delete files when they end
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    monkeypatch.chdir(world.root / "cwd")
    monkeypatch.setattr(tempfile, "tempdir", str(world.results / "tmp"))
    monkeypatch.setenv("WDSDIST_CACHE_DIR", str(world.results / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(world.results / "config"))


# Manifests

HOSTS = [
    "SAME", "OTHER", "SAME@OTHER", "me:secret@SAME", "169.254.169.254", "[::1]:9", "localhost:9", "evil.example", "",
]  # fmt: skip
SCHEMES = [
    "", "http://", "HTTP://", "https://", "file://", "file://ROOT", "FILE://ROOT", "local://ROOT", "memory://", "s3://",
    "reference://", "zip://", "simplecache::http://", "filecache::file://ROOT", "data:", "pipe:", "//", "/", "\\\\",
    "ROOT", "ROOT/data/", "http://SAME/data/", "http://SAME/", "ftp://", "github://",
]  # fmt: skip
PARTS = [
    "a.tar", "b.tar", "secret.tar", "link.tar", "data", "private", "out", "sub", "c.tar", "x.tar", "..", ".", "", "...",
    "%2e%2e", "%252e%252e", ".%2e", "..;", "%c0%ae%c0%ae", "\0", "\n", "\x1b[2J", "é", "\uff0e\uff0e", "~", "$HOME",
    "*", "etc", "passwd", "a.tar?x=/../..", "a.tar#/../..", "a b.tar", "x" * 300,
]  # fmt: skip
TAILS = [
    "", "", "", "::http://OTHER/spec.json", "::memory://x", "::file://ROOT/private/secret.tar", "?signature=x", "#x",
]  # fmt: skip
BETWEEN = ["/", "/", "/", "/", "\\", "%2f", "%5c", "//"]

urls = st.builds(
    lambda scheme, host, parts, between, tail: (
        scheme + (f"{host}/" if scheme.endswith("//") else "") + between.join(parts) + tail
    ),
    st.sampled_from(SCHEMES) | st.just(""),
    st.sampled_from(HOSTS),
    st.lists(st.sampled_from(PARTS), min_size=1, max_size=4),
    st.sampled_from(BETWEEN),
    st.sampled_from(TAILS),
)
odd = st.sampled_from([-1, 1.5, float("nan"), 2**70, "3", None, True, []])
entries = st.fixed_dictionaries(
    {"url": urls | urls | urls | odd, "nsamples": st.just(3) | st.just(3) | odd},
    optional={"filesize": st.just(10_240) | odd, "sha256": st.just("ab" * 32) | odd, "tarsize": odd},
)
good = st.sampled_from(["a.tar", "b.tar", "sub/c.tar", "./a.tar", "link.tar", "out/secret.tar"]).map(
    lambda url: {"url": url, "nsamples": 3}
)


def filled(value: Any, world: World) -> Any:
    """Put the names of this world into a part of a manifest."""
    if not isinstance(value, str):
        return value
    for name, what in (
        ("SAME", world.web.url.removeprefix("http://")),
        ("OTHER", world.other.url.removeprefix("http://")),
        ("ROOT", str(world.web.folder)),
    ):
        value = value.replace(name, what)
    return value


# What is done with them


def stream(place: str, world: World, **more: Any) -> None:
    options = {"num_replicas": 1, "rank": 0, "cache_dir": world.results / "shards", "download_timeout": 2, **more}
    for dataset in (wdsdist.StreamingDataset(place, **options), wdsdist.mix({place: 1.0}, **options)):
        list(itertools.islice(dataset, 8))


def repair(place: str, world: World, **more: Any) -> None:
    found = wdsdist.verify(place, workers=1, **more)
    wdsdist.repair(place, found, source=world.root / "whole")


def export(place: str, world: World) -> None:
    for number, name in enumerate(("dali", "energon", "wids", "timm")):
        output = None if name == "energon" else world.results / f"{number}"
        try:
            wdsdist.export(place, name, output=output, workers=1)
        except WdsdistError:
            continue


def index(place: str, world: World) -> None:
    wdsdist.index(place, output=world.results / "indexes", workers=1)
    if not place.startswith("http"):
        wdsdist.index(place, workers=1)


def pack(place: str, world: World) -> None:
    wdsdist.pack(place, world.results / "packed", kind="webdataset", workers=1)


OPERATIONS: list[Callable[[str, World], None]] = [stream, repair, export, index, pack]


def opened(world: World, operation: Callable[[str, World], None], *, remote: bool) -> tuple[list[str], bool]:
    """Do something with the data set; return what was opened outside, and whether it was done."""
    host, port = world.web.url.removeprefix("http://").split(":")
    place = f"{world.web.url}/data" if remote else str(world.data)
    allowed = [(host, int(port))] if remote else []
    done = True
    with watched(*allowed) as seen:
        try:
            operation(place, world)
        except WdsdistError:
            done = False
    return world.outside(seen, remote=remote), done


@pytest.mark.parametrize("remote", [False, True])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    listed=st.lists(entries | good, min_size=1, max_size=2),
    base=st.none() | st.none() | st.none() | urls,
    operation=st.sampled_from(OPERATIONS),
)
def test_nothing_is_opened_outside_whatever_a_manifest_says(
    world: World,
    listed: list[dict[str, Any]],
    base: str | None,
    operation: Callable[[str, World], None],
    remote: bool,
) -> None:
    world.reset([{key: filled(value, world) for key, value in entry.items()} for entry in listed], filled(base, world))
    wrong, _ = opened(world, operation, remote=remote)
    assert wrong == []


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("remote", [False, True])
def test_what_lies_inside_is_opened_and_nothing_else(
    world: World, operation: Callable[[str, World], None], remote: bool
) -> None:
    world.reset([{"url": "a.tar", "nsamples": 3}, {"url": "./sub/c.tar", "nsamples": 3}], None)
    wrong, done = opened(world, operation, remote=remote)
    assert wrong == []
    assert done or operation is index


@pytest.mark.parametrize(
    ("url", "remote"),
    list(itertools.product(["../private/secret.tar", "ROOT/private/secret.tar", "http://OTHER/x.tar"], [False, True])),
)
def test_the_watch_sees_what_is_opened_outside(world: World, url: str, remote: bool) -> None:
    world.reset([{"url": filled(url, world), "nsamples": 3}], None)

    def allowed(place: str, world: World) -> None:
        stream(place, world, allow_elsewhere=True)

    wrong, _ = opened(world, allowed, remote=remote)
    assert wrong
    assert os.sep in wrong[0] or "socket" in wrong[0]
