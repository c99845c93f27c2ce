"""The commands ``ls`` and ``cat``, which list samples and write members."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from wdsdist._util.validation import counted, human
from wdsdist.cli.options import access, command, of_shards, opened
from wdsdist.cli.output import say, written
from wdsdist.errors import SampleError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wdsdist.shards.manifest import Manifest


@command("wdsdist ls shards", "wdsdist ls shards --samples | head")
@of_shards
@click.option("--samples", is_flag=True, help="List samples: number, key, shard, fields with sizes.")
def ls(shards: tuple[str, ...], samples: bool) -> None:
    """List the shards, one per line: name, samples, size.

    With --samples, list the samples. Columns are separated by tabs.
    """
    manifest = opened(*shards)
    if samples:
        for line in _sample_lines(manifest):
            say(*line)
        return
    for number in range(len(manifest.counts)):
        shard = manifest.shard(number)
        size = human(shard.size) if shard.size >= 0 else "size unknown"
        say(manifest.shown_name(number), counted(shard.num_samples, "sample"), size)


def _sample_lines(manifest: Manifest) -> Iterator[tuple[str, ...]]:
    from wdsdist.shards.manifest.listing import PARTS
    from wdsdist.shards.shard_indexes import shard_indexes
    from wdsdist.shards.source import picks_of

    parts = [manifest.column(name) for name in PARTS] if manifest.has_parts else ()
    for shard, index in shard_indexes(manifest):
        picks, name = picks_of(manifest, shard), manifest.shown_name(shard)
        stored_samples = range(index.num_samples) if picks is None else picks.tolist()
        for number, stored in enumerate(stored_samples, int(manifest.ends[shard] - manifest.counts[shard])):
            part = " (part {} of {})".format(*(column[number] for column in parts)) if parts else ""
            fields = ", ".join(f"{extension} ({human(size)})" for extension, _, size in index.members(stored))
            yield str(number), f"{index.key(stored)}{part}", name, fields


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
    shard = reader.manifest.shown_name(stored.shard)
    if field is None:
        say(stored.key, shard)
        for member in stored.members:
            say(member.extension, human(member.size))
        return
    fields = {member.extension.lower(): member for member in stored.members}
    if field.lower() not in fields:
        raise SampleError(f"sample {stored.key!r} of {shard} has no member {field!r}: it has {', '.join(fields)}")
    data = reader.read(stored, fields[field.lower()])
    if not sys.stdout.isatty():
        with written():
            sys.stdout.buffer.write(data)
        return
    string = data.decode(errors="replace")
    if "\0" in string or string.encode() != data:
        what = f"member {field!r} of sample {stored.key!r}"
        raise SampleError(f"{what} is not text, but {len(data):,} bytes: send them to a file with >")
    for line in string.removesuffix("\n").split("\n") if string else ():
        say(*line.removesuffix("\r").split("\t"))


def _number_of(manifest: Manifest, sample: str, *, by_number: bool) -> int:
    """Return the number of a sample from its key, or else its number as a string.

    Raises `SampleError` if there is no such sample, or if several have the key.
    """
    import numpy as np

    from wdsdist.shards.shard_indexes import shard_indexes
    from wdsdist.shards.source import picks_of

    numbers: list[int] = []
    for shard, index in () if by_number else shard_indexes(manifest):
        if sample.encode("utf-8", "surrogateescape") in index.key_bytes.tobytes():
            stored = [number for number in range(index.num_samples) if index.key(number) == sample]
            picks = picks_of(manifest, shard)
            own = stored if picks is None else np.flatnonzero(np.isin(picks, stored)).tolist()
            numbers += [int(manifest.ends[shard] - manifest.counts[shard]) + number for number in own[:1]]
    if len(numbers) > 1:
        listed = " or ".join(map(str, numbers))
        raise SampleError(f"{len(numbers)} samples have the key {sample!r}: give the number of one, {listed}")
    if numbers:
        return numbers[0]
    if not sample.isdecimal():
        hint = "leave out --number to find it by its key" if by_number else "`wdsdist ls --samples` lists all keys"
        raise SampleError(f"no sample has the {'number' if by_number else 'key'} {sample!r}: {hint}")
    if len(sample) > 18 or int(sample) >= manifest.num_samples:
        raise SampleError(
            f"no sample has the key or number {sample!r}: there are {manifest.num_samples:,}, numbered from 0"
        )
    return int(sample)
