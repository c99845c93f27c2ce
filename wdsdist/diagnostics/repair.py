"""Repair damaged shards: rebuild an index, or replace a damaged tar by a verified copy."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wdsdist import storage
from wdsdist._util.files import lies_in
from wdsdist.diagnostics.verify import Damage, Task, check, find_tasks, index_path, skips
from wdsdist.errors import ShardDamagedError, WdsdistError
from wdsdist.shards import index as shard_index
from wdsdist.shards import scan_local
from wdsdist.shards.manifest import Manifest
from wdsdist.shards.open import open as open_shards
from wdsdist.shards.spellings import Location, Shards


@dataclass(frozen=True, slots=True)
class Repair:
    """The result of the repair of one shard."""

    shard: str
    """Its name in the manifest."""
    done: bool
    """Whether all damage of the shard is repaired."""
    what: str
    """What was done, or why the shard could not be repaired."""


def repair(
    shards: Shards,
    damage: Iterable[Damage],
    *,
    source: Location | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[Repair]:
    """Repair the damage that `wdsdist.verify` found, as far as possible, and return the result for each shard.

    An index that is missing or wrong is rebuilt from a whole tar. A damaged tar is replaced by a copy from ``source``,
    but only if the copy agrees with ``index.json``. Nothing else changes a tar. A member that does not decode is the
    same in every copy, so it cannot be repaired.

    Args:
        shards: as passed to `wdsdist.verify`.
        damage: its result.
        source: a folder or URL with whole shards of the same names.
        storage_options: as passed to `wdsdist.verify`. A ``source`` in another store gets them only if they name that
            store; if ``shards`` is local, ``source`` gets them.

    >>> import tempfile, pathlib
    >>> from wdsdist.packing import pack
    >>> from wdsdist.diagnostics.verify import verify
    >>> root = pathlib.Path(tempfile.mkdtemp())
    >>> (root / "files").mkdir()
    >>> _ = (root / "files" / "0001.txt").write_text("hello")
    >>> manifest = pack(root / "files", root / "shards")
    >>> (root / "shards" / "shard-000000.tar.wdsindex").unlink()
    >>> repair(manifest, verify(manifest))
    [Repair(shard='shard-000000.tar', done=True, what='indexed again')]
    """
    manifest = open_shards(shards, storage_options=storage_options)
    if source is not None and not manifest.client_options.stores:
        given = storage_options or manifest.client_options.given
        manifest = manifest.with_source(storage_options=dict(given), stores=(os.fspath(source),))
    by_shard: dict[int, set[str]] = {}
    for found in damage:
        by_shard.setdefault(found.number, set()).add(found.part)
    tasks = find_tasks(manifest)
    repairs = []
    for number, parts in by_shard.items():
        name, task = manifest.shown_name(number), tasks[number]
        try:
            done = _repaired(manifest, number, task, parts, source)
            if left := check(task, number):
                raise WdsdistError(f"{done}, but it {left[0].problem}")
            if "member" in parts:
                raise WdsdistError("some members do not decode, and were packed so: correct the files, and pack again")
            repairs.append(Repair(name, True, done))
        except (WdsdistError, OSError) as error:
            repairs.append(Repair(name, False, str(error)))
    return repairs


def _repaired(manifest: Manifest, number: int, task: Task, parts: set[str], source: Location | None) -> str:
    """Repair one shard as far as possible; return what was done."""
    if storage.is_remote(task.location):
        raise WdsdistError("it lies in a store: upload a whole copy of it there")
    path, data = storage.local_path(task.location), manifest.part(number)[0]
    # A shard that the user did not name is repaired only if it lies in the folder of the data set.
    if not data.is_named and (storage.is_remote(data.base) or not lies_in(path, storage.local_path(data.base))):
        raise WdsdistError(
            f"it lies outside {storage.shown(data.base)}, the folder of the data set, or behind a link out of it: "
            f"repair it there"
        )
    sidecar = index_path(path, task)
    skip, done = skips(sidecar), "indexed again"
    if "tar" in parts:
        if source is None:
            raise WdsdistError(
                "there is nothing to fetch it from: name a place of whole copies by `--source`, or pack again"
            )
        whole = storage.join(storage.normalise(source), path.name)
        with tempfile.TemporaryDirectory(prefix=".tmp-", dir=path.parent) as folder:
            copy = Path(folder) / path.name
            storage.fetch(whole, copy, task.options)
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(sidecar, shard_index.beside(copy))
            wrong = [found.problem for found in check(replace(task, location=str(copy))) if found.part == "tar"]
            if wrong:
                raise ShardDamagedError(f"{storage.shown(whole)} is not the shard that was packed: it {wrong[0]}")
            with copy.open("rb") as stream:
                os.fsync(stream.fileno())
            # The old index goes first, so that no process can pair it with the new tar.
            shard_index.beside(path).unlink(missing_ok=True)
            copy.replace(path)
        sidecar.unlink(missing_ok=True)
        done = f"replaced by {storage.shown(whole)}"
    elif "index" not in parts:
        return "nothing done"
    scan_local.write_index(path, sidecar, skip=skip, key_rule=task.key_rule)
    return done
