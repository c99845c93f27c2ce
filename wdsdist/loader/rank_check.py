"""Check before the first epoch that all ranks read the same samples."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from wdsdist import storage
from wdsdist.distributed import Identity
from wdsdist.distributed.agreement import check_same
from wdsdist.distributed.identity import process_group
from wdsdist.shards.manifest import Manifest


def check_ranks_agree(data_sets: Iterable[Manifest], here: Identity) -> None:
    """Raise `StateError` if this rank would read other samples than the ranks that began before it.

    Args:
        data_sets: data sets of which all ranks must have one version.
        here: this rank. A group of some of the ranks may have other samples than other groups.
    """
    group = process_group()
    if group is None:
        return  # nobody to ask
    for data in data_sets:
        for location, version in data.versions.items():
            check_same(f"index.json of {location}", version)
        if here.world_size == group.get_world_size():
            check_same(
                f"choice of samples of {storage.shown(data.base)}",
                data.fingerprint,
                about=json.dumps(_without_numbers(data.made_by)),
                why="give all ranks the same shards and views, which the data set divides among them; a loader that "
                "one rank alone iterates needs num_replicas=1 and rank=0",
            )


def _without_numbers(value: Any) -> Any:
    """Return the provenance of a view without numbers, by which ranks compare it apart from the job's other views."""
    if isinstance(value, Mapping):
        return {name: _without_numbers(item) for name, item in value.items() if not isinstance(item, (int, float))}
    return [_without_numbers(item) for item in value] if isinstance(value, (list, tuple)) else value
