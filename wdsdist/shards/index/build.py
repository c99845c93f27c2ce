"""Build the index of a shard from the members of its tar, whose samples may be scattered over it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

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
    samples: dict[str, dict[int, int]] = {}  # the number of each member by key, and by number of its extension
    extensions: dict[str, int] = {}  # as stored; equal but for case, they have the same number
    numbers: dict[str, int] = {}
    members: list[tuple[str, int, int]] = []  # extension as stored, offset and size
    skipped, left_out = Counter[str](), dict[str, str]()
    last, own = "", dict[int, int]()
    for kind, name, offset, length in entries:
        try:
            parts = None if kind else split_stored_name(name, key_rule)
        except ValueError as error:
            raise ShardDamagedError(f"{label}: {error}") from None
        if parts is None:
            skipped[kind or why_skipped(name)] += 1
            continue
        key, extension = parts
        number = extensions.get(extension)
        if number is None:
            number = extensions[extension] = numbers.setdefault(extension.lower(), len(numbers))
        if key != last:
            last, own = key, samples.setdefault(key, {})
        if number in own:
            problem = f"sample {key!r} has two members with extension {extension.lower()!r}"
            advice = f", or if dots are part of the keys give key={LAST_DOT}"
        elif extension[:2] == "__" == extension[-2:]:
            problem = f"member {key}.{extension} has the name of an entry that readers add"
            advice = ", or rename it"
        else:
            own[number], problem = len(members), ""
        if problem and not skip:
            raise ShardDamagedError(f'{label}: {problem}: leave its sample out with on_error="skip"{advice}')
        if problem:
            left_out.setdefault(key, problem)
        members.append((extension, offset, length))
    for key in left_out:
        del samples[key]
    chosen = [members[member] for own in samples.values() for member in own.values()]
    stored, offsets, sizes = zip(*chosen, strict=True) if chosen else ((), (), ())
    places = {extension: place for place, extension in enumerate(dict.fromkeys(stored))}
    keys = [key.encode("utf-8", "surrogateescape") for key in samples]
    index = ShardIndex(
        size=size,
        sha256=sha256,
        extensions=tuple(places),
        sample_starts=np.cumsum([0, *map(len, samples.values())], dtype=np.int64),
        offsets=np.array(offsets, np.int64),
        sizes=np.array(sizes, np.int64),
        extension_ids=np.fromiter(map(places.__getitem__, stored), np.uint32, len(stored)),
        key_starts=np.cumsum([0, *map(len, keys)], dtype=np.int64),
        key_bytes=np.frombuffer(b"".join(keys), np.uint8),
        skipped=dict(skipped),
        left_out=tuple((key.encode("utf-8", "backslashreplace").decode(), why) for key, why in left_out.items()),
        key_rule=key_rule,
    )
    check_fields(label, [index])
    return index


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
