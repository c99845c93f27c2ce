"""Output of the command line: every line goes through here, so that names and messages cannot steer a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from wdsdist._util import strict_json
from wdsdist._util.validation import counted, human
from wdsdist.errors import SampleError, printable

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest


OUTPUT = "standard output"


@contextlib.contextmanager
def written() -> Iterator[None]:
    """Name standard output in its errors, as on a full disk."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or OUTPUT
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


def write_member(data: memoryview, name: str) -> None:
    """Write the data of a member: byte by byte to a file or pipe; to a terminal, text with escapes as in `say`.

    Raises `SampleError` for what is no text, which a terminal cannot show.
    """
    if not sys.stdout.isatty():
        with written():
            sys.stdout.buffer.write(data)
        return
    try:
        text = bytes(data).decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise SampleError(f"{name} is no text, but {len(data):,} bytes: send them to a file with >")
    for line in text.removesuffix("\n").split("\n") if text else ():
        say(*line.removesuffix("\r").split("\t"))


def spread(values: Sequence[int], show: Callable[[int], str] = "{:,}".format) -> str:
    """Return the least and the most of some numbers.

    >>> spread([3000, 20]), spread([7, 7])
    ('20 to 3,000', '7')
    """
    low, high = show(min(values)), show(max(values))
    return low if low == high else f"{low} to {high}"


def described(step: Mapping[str, Any]) -> str:
    """Return one step by which a view was made, as text.

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
    """Return the samples, shards and bytes of a data set, as text."""
    samples, shards = counted(manifest.num_samples, "sample"), counted(len(manifest.counts), "shard")
    return f"{samples} in {shards}, {human(manifest.num_bytes)}"
