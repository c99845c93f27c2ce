"""The commands ``ls`` and ``cat``, which list samples and write members."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from wdsdist._util.validation import counted, human
from wdsdist.cli.options import access, opened
from wdsdist.cli.output import say, write_member

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest


@click.command()
@click.argument("shards", nargs=-1, required=True)
@click.option("--samples", is_flag=True, help="List samples instead: number, key, shard, fields with sizes.")
@click.option("--limit", type=click.IntRange(0, 2**53), help="Most lines to print.  [default: all]")
@access
def ls(shards: tuple[str, ...], samples: bool, limit: int | None) -> None:
    """List the shards, one on each line: name, samples, size. With --samples, list the samples.

    Columns are separated by tabs.
    """
    manifest = opened(*shards)
    lines = _sample_lines(manifest) if samples else _shard_lines(manifest)
    for line in itertools.islice(lines, limit):
        say(*line)


@click.command()
@click.argument("shards")
@click.argument("sample")
@click.argument("field", required=False)
@click.option("--number", "by_number", is_flag=True, help="SAMPLE is a number: keys are not looked at.")
@access
def cat(shards: str, sample: str, field: str | None, by_number: bool) -> None:
    """Write one member of a sample to standard output.

    Its bytes are written as they are stored. SAMPLE is a key, or the number of a sample as `ls --samples` shows it; a
    key goes first where it could be either, so that the indexes of all shards are read, unless --number is given.
    Without FIELD, list the members of the sample instead. A terminal gets text only, with control characters escaped.
    """
    from wdsdist.cli.find_sample import find_member, find_sample
    from wdsdist.samples.member_reader import MemberReader

    reader = MemberReader(opened(shards))
    found = find_sample(reader, sample, by_number=by_number)
    if field is None:
        say(found.key, _shard_name(reader.manifest, found.shard))
        for member in found.members:
            say(member.extension, human(member.size))
    else:
        data = reader.read(found, find_member(reader, found, field))
        write_member(memoryview(data), f"member {field!r} of sample {found.key!r}")


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
        data, place = manifest.part(shard)
        picked = range(index.num_samples) if data.picks is None else data.picks.of_shard(place).tolist()
        first = int(manifest.ends[shard] - manifest.counts[shard])
        for number, stored in enumerate(picked, first):
            part = " (part {} of {})".format(*(column[number] for column in parts)) if parts else ""
            fields = ", ".join(f"{extension} ({human(size)})" for extension, _, size in index.members(stored))
            yield str(number), f"{index.key(stored)}{part}", _shard_name(manifest, shard), fields


def _shard_name(manifest: Manifest, number: int) -> str:
    from wdsdist import storage

    return storage.shown(storage.split(manifest.location(number))[1])
