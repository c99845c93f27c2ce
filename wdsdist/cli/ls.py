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
@click.option("--limit", type=click.IntRange(min=0), help="Most lines to print.  [default: all]")
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
    from wdsdist.cli.find_sample import find_sample, member

    manifest = opened(shards)
    found = find_sample(manifest, sample, by_number=by_number)
    key = found.index.key(found.stored)
    if field is None:
        say(key, _shard_name(manifest, found.shard))
        for extension, _, size in found.index.members(found.stored):
            say(extension, human(size))
    else:
        write_member(member(manifest, found, field), f"member {field!r} of sample {key!r}")


def _shard_lines(manifest: Manifest) -> Iterator[tuple[str, ...]]:
    for number in range(len(manifest.counts)):
        shard = manifest.shard(number)
        size = human(shard.size) if shard.size >= 0 else "size unknown"
        yield manifest.shown_name(number), counted(shard.num_samples, "sample"), size


def _sample_lines(manifest: Manifest) -> Iterator[tuple[str, ...]]:
    from wdsdist.cli.find_sample import samples
    from wdsdist.shards.columns.read import PARTS

    parts = [manifest.column(name) for name in PARTS] if manifest.has_parts else ()
    for one in samples(manifest):
        part = " (part {} of {})".format(*(column[one.number] for column in parts)) if parts else ""
        fields = ", ".join(f"{extension} ({human(size)})" for extension, _, size in one.index.members(one.stored))
        yield str(one.number), f"{one.index.key(one.stored)}{part}", _shard_name(manifest, one.shard), fields


def _shard_name(manifest: Manifest, number: int) -> str:
    from wdsdist import storage

    return storage.shown(storage.split(manifest.location(number))[1])
