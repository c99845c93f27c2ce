"""The commands ``ls`` and ``cat``, which list samples and write members."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from wdsdist._util.validation import counted, human
from wdsdist.cli.options import access, command, opened
from wdsdist.cli.output import say, write_member
from wdsdist.errors import SampleError

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

_MOST_DIGITS = 18
"""Digits of the number of a sample."""


@command("wdsdist ls shards", "wdsdist ls shards --samples | head")
@click.argument("shards", nargs=-1, required=True)
@click.option("--samples", is_flag=True, help="List samples: number, key, shard, fields with sizes.")
@access
def ls(shards: tuple[str, ...], samples: bool) -> None:
    """List the shards, one per line: name, samples, size.

    With --samples, list the samples. Columns are separated by tabs.
    """
    manifest = opened(*shards)
    for line in _sample_lines(manifest) if samples else _shard_lines(manifest):
        say(*line)


@command("wdsdist cat shards cat/0001 txt", "wdsdist cat shards 17 jpg > photo.jpg")
@click.argument("shards")
@click.argument("sample")
@click.argument("field", required=False)
@click.option("--number", "by_number", is_flag=True, help="SAMPLE is a number, not a key, so that one index is read.")
@access
def cat(shards: str, sample: str, field: str | None, by_number: bool) -> None:
    """Write one member of a sample to standard output.

    The command writes the stored bytes. SAMPLE is a key, or the number of a sample as `ls --samples` shows it. Keys are
    tried first, so the indexes of all shards are read unless you pass --number. Without FIELD, the command lists the
    members of the sample. To a terminal it writes only text, with control characters escaped.
    """
    from wdsdist.samples.member_reader import MemberReader

    reader = MemberReader(opened(shards))
    stored = reader.sample(_number_of(reader.manifest, sample, by_number=by_number))
    name = _shard_name(reader.manifest, stored.shard)
    if field is None:
        say(stored.key, name)
        for member in stored.members:
            say(member.extension, human(member.size))
        return
    fields = {member.extension.lower(): member for member in stored.members}
    if field.lower() not in fields:
        raise SampleError(f"sample {stored.key!r} of {name} has no member {field!r}: it has {', '.join(fields)}")
    data = reader.read(stored, fields[field.lower()])
    write_member(memoryview(data), f"member {field!r} of sample {stored.key!r}")


def _number_of(manifest: Manifest, sample: str, *, by_number: bool) -> int:
    """Return the number of a sample from its key, or else its number as a string.

    Raises `SampleError` if there is no such sample, or if several have the key.
    """
    from wdsdist.diagnostics.view.search import numbers_of, with_key
    from wdsdist.shards.shard_indexes import shard_indexes

    named = [
        numbers
        for shard, index in (() if by_number else shard_indexes(manifest))
        for stored in with_key(index, sample)
        if (numbers := numbers_of(manifest, shard, stored))
    ]
    if len(named) > 1:
        listed = " or ".join(str(number) for numbers in named for number in numbers)
        raise SampleError(f"{len(named)} samples have the key {sample!r}: give the number of one, {listed}")
    if named:
        return named[0][0]
    if not sample.isdecimal():
        hint = "leave out --number to find it by its key" if by_number else "`wdsdist ls --samples` lists all keys"
        raise SampleError(f"no sample has the {'number' if by_number else 'key'} {sample!r}: {hint}")
    if len(sample) > _MOST_DIGITS or int(sample) >= manifest.num_samples:
        raise SampleError(
            f"no sample has the key or number {sample!r}: there are {manifest.num_samples:,}, numbered from 0"
        )
    return int(sample)


def _shard_lines(manifest: Manifest) -> Iterator[tuple[str, ...]]:
    for number in range(len(manifest.counts)):
        shard = manifest.shard(number)
        size = human(shard.size) if shard.size >= 0 else "size unknown"
        yield manifest.shown_name(number), counted(shard.num_samples, "sample"), size


def _sample_lines(manifest: Manifest) -> Iterator[tuple[str, ...]]:
    from wdsdist.shards.manifest.listing import PARTS
    from wdsdist.shards.shard_indexes import shard_indexes

    parts = [manifest.column(name) for name in PARTS] if manifest.has_parts else ()
    for shard, index in shard_indexes(manifest):
        data, own = manifest.part(shard)
        picked = range(index.num_samples) if data.picks is None else data.picks.of_shard(own).tolist()
        first = int(manifest.ends[shard] - manifest.counts[shard])
        for number, stored in enumerate(picked, first):
            part = " (part {} of {})".format(*(column[number] for column in parts)) if parts else ""
            fields = ", ".join(f"{extension} ({human(size)})" for extension, _, size in index.members(stored))
            yield str(number), f"{index.key(stored)}{part}", _shard_name(manifest, shard), fields


def _shard_name(manifest: Manifest, number: int) -> str:
    from wdsdist import storage

    return storage.shown(storage.split(manifest.location(number))[1])
