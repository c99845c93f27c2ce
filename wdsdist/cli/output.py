"""Output of the command line: every line goes through here, so that names and messages cannot steer a terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from wdsdist._util import strict_json
from wdsdist._util.validation import counted, human
from wdsdist.errors import printable

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest


@contextlib.contextmanager
def written() -> Iterator[None]:
    """Name standard output in its errors, as on a full disk."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or "standard output"
        raise


def say(*columns: object, err: bool = False) -> None:
    """Print a line of columns, separated by tabs, with the control characters in each escaped.

    No work ends because a message on standard error cannot be written, such as to a log on a full disk.
    """
    with contextlib.suppress(OSError) if err else written():
        click.echo("\t".join(printable(str(column)) for column in columns), err=err)


def say_json(data: Any) -> None:
    """Print data as JSON, which escapes whatever is not plain ASCII."""
    with written():
        click.echo(strict_json.dumps(data, indent=1))


def described(step: Mapping[str, Any]) -> str:
    """Return one step by which a view was made, as a string.

    >>> described({"where": '"jpg.width" >= 256', "samples_before": 10_000, "samples_after": 7_500})
    'where "jpg.width" >= 256: 7,500 of 10,000 samples'
    """
    shown = []
    for name, value in step.items():
        if name in ("keys", "exclude") and isinstance(value, dict):
            shown.append(f"{name} {value.get('from')} ({counted(value.get('samples', 0), 'sample')})")
        elif name not in ("samples_before", "samples_after", "split"):
            shown.append(f"{name} {value}")
    before, after = step.get("samples_before", 0), step.get("samples_after", 0)
    return f"{', '.join(shown)}: {after:,} {'of' if after <= before else 'from'} {counted(before, 'sample')}"


def contents(manifest: Manifest) -> str:
    """Return the samples, shards and bytes of a data set, as a string."""
    samples, shards = counted(manifest.num_samples, "sample"), counted(len(manifest.counts), "shard")
    return f"{samples} in {shards}, {human(manifest.num_bytes)}"
