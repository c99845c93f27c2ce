"""Build the index of a shard from the members of its tar, whose samples may be scattered over it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist.errors import ShardDamagedError
from wdsdist.shards.index.values import ShardIndex
from wdsdist.shards.tar.member_names import check_extensions, split_stored_name, why_skipped
from wdsdist.shards.tar.naming import FIRST_DOT, LAST_DOT
from wdsdist.shards.tar.reader import Entry


def from_entries(
    entries: Iterable[Entry], *, size: int, sha256: str, label: str, skip: bool = False, key_rule: str = FIRST_DOT
) -> ShardIndex:
    """Build the index of a tar from its entries.

    Args:
        entries: all of the tar.
        size, sha256: of the tar.
        label: its name in errors.
        skip: leave out a sample that readers would lose or mix, rather than raising: one with the same extension twice,
            or with a member named like an entry that readers add.
        key_rule: the rule by which names are cut.

    Raises `ShardDamagedError` for such a sample, and `ArgumentError` if there are more extensions than fields can be.
    """
    samples: dict[str, int] = {}  # the number of each by its key
    extensions: dict[str, int] = {}  # as stored
    owners, ids, offsets, sizes = list[int](), list[int](), list[int](), list[int]()  # of each member
    skipped = Counter[str]()
    for kind, name, offset, length in entries:
        try:
            parts = None if kind else split_stored_name(name, key_rule)
        except ValueError as error:
            raise ShardDamagedError(f"{label}: {error}") from None
        if parts is None:
            skipped[kind or why_skipped(name)] += 1
            continue
        key, extension = parts
        owners.append(samples.setdefault(key, len(samples)))
        ids.append(extensions.setdefault(extension, len(extensions)))
        offsets.append(offset)
        sizes.append(length)
    order = np.argsort(np.array(owners, np.int64), kind="stable")
    owner, kind_of, starts, lengths = np.array((owners, ids, offsets, sizes), np.int64)[:, order]
    keys, stored = list(samples), list(extensions)
    left_out: dict[str, str] = {}
    for member in _ambiguous(owner, kind_of, stored):
        key, extension = keys[owner[member]], stored[kind_of[member]]
        if _is_reserved(extension):
            problem, advice = f"member {key}.{extension} has the name of an entry that readers add", ", or rename it"
        else:
            problem = f"sample {key!r} has two members with extension {extension.lower()!r}"
            advice = f", or if dots are part of the keys give key={LAST_DOT}"
        if not skip:
            raise ShardDamagedError(f'{label}: {problem}: leave its sample out with on_error="skip"{advice}')
        left_out.setdefault(key, problem)
    if left_out:
        is_kept = ~np.isin(owner, [samples[key] for key in left_out])
        owner, kind_of, starts, lengths = (each[is_kept] for each in (owner, kind_of, starts, lengths))
    counts = np.bincount(owner, minlength=1)
    encoded = [key.encode("utf-8", "surrogateescape") for key in keys if key not in left_out]
    used, firsts = np.unique(kind_of, return_index=True)
    used = used[np.argsort(firsts)]
    places = np.zeros(len(stored), np.uint32)
    places[used] = np.arange(len(used))
    index = ShardIndex(
        size=size,
        sha256=sha256,
        extensions=tuple(stored[number] for number in used.tolist()),
        sample_starts=np.append(0, np.cumsum(counts[counts > 0])),
        offsets=starts,
        sizes=lengths,
        extension_ids=places[kind_of],
        key_starts=np.cumsum([0, *map(len, encoded)], dtype=np.int64),
        key_bytes=np.frombuffer(b"".join(encoded), np.uint8),
        skipped=dict(skipped),
        left_out=tuple((key.encode("utf-8", "backslashreplace").decode(), why) for key, why in left_out.items()),
        key_rule=key_rule,
    )
    check_fields(label, [index])
    return index


def _ambiguous(owner: Int64s, kinds: Int64s, extensions: list[str]) -> list[int]:
    """Return the members that readers would lose or mix.

    Args:
        owner: int64 [members]: the number of the sample of each.
        kinds: int64 [members]: the number of its extension.
        extensions: as stored; readers know them in lower case.
    """
    numbers: dict[str, int] = {}
    lower = np.array([numbers.setdefault(name.lower(), len(numbers)) for name in extensions], np.int64)
    is_reserved = np.array([*map(_is_reserved, extensions)], np.bool_)
    fields = owner * len(numbers) + lower[kinds]
    order = np.argsort(fields, kind="stable")
    twice = order[1:][np.diff(fields[order]) == 0]
    return sorted({*twice.tolist(), *np.flatnonzero(is_reserved[kinds]).tolist()})


def _is_reserved(extension: str) -> bool:
    return extension[:2] == "__" == extension[-2:]


def check_fields(label: str, indexes: Iterable[ShardIndex]) -> None:
    """Raise `ArgumentError` if the extensions of a data set show that its names are cut at the wrong dot."""
    names: dict[str, str] = {}
    rule = FIRST_DOT
    for index in indexes:
        rule = index.key_rule
        ids, members = np.unique(index.extension_ids, return_index=True)
        samples = np.searchsorted(index.sample_starts, members, side="right") - 1
        for number, sample in zip(ids.tolist(), samples.tolist(), strict=True):
            extension = index.extensions[number]
            if extension not in names:
                names[extension] = f"{index.key(sample)}.{extension}"
    check_extensions(label, names, rule)
