"""The commands ``info``, ``ls`` and ``cat``, which inspect data sets."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from wdsdist._util.validation import human
from wdsdist.cli.options import allow_elsewhere, opened, storage_option
from wdsdist.cli.output import counted, described, say, say_json, write_member

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

_NAMED = 10  # classes that `info` names before it only counts


@click.command()
@click.argument("shards", nargs=-1, required=True)
@allow_elsewhere
@storage_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info(shards: tuple[str, ...], allow_elsewhere: bool, as_json: bool) -> None:
    """Show the contents of SHARDS: samples, shards, bytes, fields and classes."""
    manifest = opened(shards, allow_elsewhere=allow_elsewhere)
    facts = _facts(manifest)
    if as_json:
        say_json(facts)
        return
    classes = facts["classes"]
    lines = {
        "location": facts["location"],
        "samples": f"{facts['samples']:,}",
        "shards": f"{facts['shards']:,}",
        "bytes": f"{human(facts['bytes'])} ({facts['bytes']:,})",
        **({"tars": f"{human(facts['tar_bytes'])}, decompressed"} if facts["tar_bytes"] != facts["bytes"] else {}),
        "mean sample": human(facts["mean_sample_bytes"]),
        "fields": ", ".join(facts["fields"]) or "none",
        **({"keys": facts["keys"]} if "keys" in facts else {}),
        "checksums": _checksums(facts["with_checksums"], facts["shards"]),
        "classes": f"{len(classes):,}: {', '.join(classes[:_NAMED])}{', ...' if len(classes) > _NAMED else ''}"
        if classes
        else "not recorded",
        **({"generations": ", ".join(map(_generation, facts["generations"]))} if len(facts["generations"]) > 1 else {}),
        **({"columns": ", ".join(facts["columns"])} if facts["columns"] else {}),
    }
    for name, value in lines.items():
        say(f"{name + ':':<13}{value}")
    for number, step in enumerate(facts["view"]):
        say(f"{'' if number else 'view:':<13}{described(step)}")


@click.command()
@click.argument("shards", nargs=-1, required=True)
@click.option("--samples", is_flag=True, help="List samples instead: number, key, shard, fields with sizes.")
@click.option("--limit", type=click.IntRange(min=0), help="Most lines to print.  [default: all]")
@allow_elsewhere
@storage_option
def ls(shards: tuple[str, ...], samples: bool, limit: int | None, allow_elsewhere: bool) -> None:
    """List the shards, one on each line: name, samples, size. With --samples, list the samples.

    Columns are separated by tabs.
    """
    manifest = opened(shards, allow_elsewhere=allow_elsewhere)
    lines = _sample_lines(manifest) if samples else _shard_lines(manifest)
    for line in itertools.islice(lines, limit):
        say(*line)


@click.command()
@click.argument("shards")
@click.argument("sample")
@click.argument("field", required=False)
@click.option("--number", "by_number", is_flag=True, help="SAMPLE is a number: keys are not looked at.")
@allow_elsewhere
@storage_option
def cat(shards: str, sample: str, field: str | None, by_number: bool, allow_elsewhere: bool) -> None:
    """Write the data of one member, as it is stored, to standard output.

    SAMPLE is a key, or the number of a sample as `ls --samples` shows it; a key goes first where it could be either, so
    that the indexes of all shards are read, unless --number is given.
    Without FIELD, list the members of the sample instead. A terminal gets text only, with control characters escaped.
    """
    from wdsdist.cli.find_sample import find_sample, member

    manifest = opened((shards,), allow_elsewhere=allow_elsewhere)
    found = find_sample(manifest, sample, by_number=by_number)
    key = found.index.key(found.stored)
    if field is None:
        say(key, _shard_name(manifest, found.shard))
        for extension, _, size in found.index.members(found.stored):
            say(extension, human(size))
    else:
        write_member(member(manifest, found, field), f"member {field!r} of sample {key!r}")


def _facts(manifest: Manifest) -> dict[str, Any]:
    from wdsdist import storage
    from wdsdist.shards.columns import from_index

    extra = manifest.extra
    if "fields" not in extra or "payload_bytes" not in extra:
        extensions = {
            extension.lower() for _, one in from_index.shard_indexes(manifest) for extension in one.extensions
        }
        payload = int(manifest.column("bytes").sum())
        extra = {"fields": sorted(extensions), **extra, "payload_bytes": payload}
    return {
        "location": storage.shown(manifest.base),
        "samples": manifest.num_samples,
        "shards": len(manifest.counts),
        "bytes": manifest.num_bytes,
        "tar_bytes": manifest.num_tar_bytes,
        "payload_bytes": extra["payload_bytes"],
        "mean_sample_bytes": round(extra["payload_bytes"] / max(manifest.num_samples, 1), 1),
        "fields": extra["fields"],
        "with_checksums": extra.get("with_checksums", 0),
        "classes": extra.get("classes"),
        **({"keys": keys} if (keys := _keys(manifest)) else {}),
        "source": extra.get("source"),
        "shuffle_seed": extra.get("shuffle_seed"),
        "generations": [
            {"generation": number, "shards": shards, "samples": int(manifest.counts[:shards].sum())}
            for number, shards in enumerate(manifest.generations, 1)
        ],
        "columns": [name for name in manifest.columns if not from_index.is_free(name)],
        "view": list(manifest.made_by),
    }


def _checksums(known: int, shards: int) -> str:
    """Return how parts of shards are verified.

    >>> _checksums(640, 640), _checksums(600, 640)[:23]
    ('of each member', 'of 600 of 640 shards: p')
    """
    if known == shards:
        return "of each member"
    return f"of {known:,} of {shards:,} shards: parts of the others are checked by tar headers alone"


def _generation(one: dict[str, int]) -> str:
    return f"{one['generation']:,}: {counted(one['samples'], 'sample')} in {counted(one['shards'], 'shard')}"


def _keys(manifest: Manifest) -> str | None:
    """Return where keys end in names, unless that is the first dot."""
    if manifest.key_rule != "first-dot":
        return f"by {manifest.key_rule}"
    rule = manifest.extra.get("source_key_rule")
    return f"by {rule} in the source, with dots as %2E" if rule else None


def _shard_lines(manifest: Manifest) -> Iterator[tuple[str, ...]]:

    for number in range(len(manifest.counts)):
        shard = manifest.shard(number)
        size = human(shard.size) if shard.size >= 0 else "size unknown"
        yield manifest.shown_name(number), counted(shard.num_samples, "sample"), size


def _sample_lines(manifest: Manifest) -> Iterator[tuple[str, ...]]:
    from wdsdist.cli.find_sample import samples

    for one in samples(manifest):
        fields = ", ".join(f"{extension} ({human(size)})" for extension, _, size in one.index.members(one.stored))
        yield str(one.number), one.index.key(one.stored), _shard_name(manifest, one.shard), fields


def _shard_name(manifest: Manifest, number: int) -> str:
    from wdsdist import storage

    return storage.shown(storage.split(manifest.location(number))[1])
