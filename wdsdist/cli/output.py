"""What the command line prints: every line goes through here, so that names and messages cannot steer a terminal."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from wdsdist.errors import SampleError, printable


def say(*columns: object, err: bool = False) -> None:
    """Print a line of columns, separated by tabs, with the control characters in each escaped."""
    click.echo("\t".join(printable(str(column)) for column in columns), err=err)


def say_json(data: Any) -> None:
    """Print data as JSON, which escapes whatever is not plain ASCII."""
    click.echo(json.dumps(data, indent=1))


def write_member(data: memoryview, name: str) -> None:
    """Write the data of a member: byte by byte to a file or pipe; to a terminal, text with escapes as in `say`.

    Raises `SampleError` for what is no text, which a terminal cannot show.
    """
    if not sys.stdout.isatty():
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
