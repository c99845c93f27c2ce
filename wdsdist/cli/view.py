"""The commands ``view`` and ``show``: a page in a browser, and a contact sheet or a listing, of samples."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wdsdist._util.validation import counted
from wdsdist.cli.options import access, command, opened
from wdsdist.cli.output import say

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@command(
    "wdsdist view shards",
    "ssh -L 8000:127.0.0.1:8000 HOST wdsdist view SHARDS --port 8000",
    batches="decode transform",
    server="port host with_token",
)
@click.argument("shards", nargs=-1, required=True)
@click.option("--port", type=int, metavar="N", default=0, help="Port of the page.  [default: a free one]")
@click.option(
    "--host", metavar="NAME", default="127.0.0.1", show_default=True, help="Address to serve on, if not this machine's."
)
@click.option("--token", "with_token", is_flag=True, help="Put a token into the URL, if others use this machine.")
@click.option(
    "--save-to", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder in which the page may save views.",
)  # fmt: skip
@click.option("--quarantine", metavar="FILE", multiple=True, help="List of bad samples to show.  [repeatable]")
@click.option("--transform", metavar="MODULE:NAME", help="Transform of the samples in batches.")
@click.option(
    "--decode",
    metavar="HOW",
    help="How batches are decoded: true, audio, an image form such as rgb8, or MODULE:NAME.  [default: true]",
)
@access
def view(
    shards: tuple[str, ...],
    port: int,
    host: str,
    with_token: bool,
    save_to: Path | None,
    quarantine: tuple[str, ...],
    transform: str | None,
    decode: str | None,
) -> None:
    """Look at the samples of SHARDS in a browser.

    Open the URL that the command prints. The page shows images, audio, video, text, JSON, token ids and arrays, finds
    samples by key and by expressions over columns, and shows what each rank reads in an epoch. The page fetches only
    what it shows. The second example is for shards on another machine.
    """
    from wdsdist.diagnostics.view import server
    from wdsdist.diagnostics.view.describe import Style
    from wdsdist.shards import quarantine as quarantine_files

    manifest = _opened(shards)
    shown = server.View(
        manifest=manifest,
        name=_name(shards),
        given=_code(shards, manifest),
        style=Style.of(manifest),
        quarantined=[entry for path in quarantine for entry in quarantine_files.read(path)],
        save_to=save_to,
        decode=_decoding(decode),
        transform=None if transform is None else _named(transform),
    )
    token = server.new_token() if with_token or host not in _LOOPBACK else ""

    def ready(url: str) -> None:
        say(f"{url} shows {counted(manifest.num_samples, 'sample')} in {counted(len(manifest.counts), 'shard')}")
        say("ends with Ctrl-C", err=True)

    server.serve(shown, host=host, port=port, token=token, ready=ready)


def _opened(shards: tuple[str, ...]) -> Manifest:
    """Open a data set, or several as one: of tars and patterns one is made, of folders and views each is one."""
    from wdsdist import storage
    from wdsdist.shards.manifest import join
    from wdsdist.shards.spellings import is_pattern
    from wdsdist.shards.tar.naming import is_tar

    if len(shards) == 1 or any(is_pattern(one) or is_tar(storage.split(one)[1]) for one in shards):
        return opened(*shards)
    labels = [storage.shown(one) for one in shards]
    return join([opened(one) for one in shards], labels)


def _decoding(how: str | None) -> Any:
    """Parse the option --decode into ``decode=`` of a data set. Raises `ArgumentError` for an unknown image form."""
    from wdsdist.samples.sample_spec import Decoder

    if how is None or how == "true":
        return True
    if ":" in how:
        return _named(how)
    Decoder(how)
    return how


def _named(text: str) -> Any:
    from wdsdist.packing.sources.python import named_object

    module, _, name = text.partition(":")
    if not module or not name:
        raise click.UsageError(f"{text!r} is not a name in Python, such as my_module:transform")
    return named_object(module, name)


def _name(shards: tuple[str, ...]) -> str:
    from wdsdist import storage

    shown = [storage.shown(one).rstrip("/") for one in shards[:3]]
    return " + ".join([*(storage.split(one)[1] or one for one in shown), *(["..."] if len(shards) > 3 else [])])


def _code(shards: tuple[str, ...], manifest: Manifest) -> str:
    """Return Python that opens the data set; URLs without credentials."""
    from wdsdist import storage

    named = [storage.shown(one) for one in shards]
    if manifest.label(0):
        return f"wdsdist.concat({named!r}, decode=True)"
    return f"wdsdist.StreamingDataset({named[0] if len(named) == 1 else named!r}, decode=True)"


@command("wdsdist show shards -n 3", "wdsdist show shards --random 1 --html sheet.html")
@click.argument("shards", nargs=-1, required=True)
@click.option("-n", "count", type=int, metavar="N", default=16, show_default=True, help="Samples to show.")
@click.option(
    "--html", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="Write one HTML file with pictures."
)
@click.option("--where", metavar="SQL", help="Only samples for which an expression is true.")
@click.option(
    "--random",
    "seed",
    type=int,
    metavar="SEED",
    help="Choose samples at random with this seed.  [default: the first samples]",
)
@access
def show(
    shards: tuple[str, ...],
    count: int,
    html: Path | None,
    where: str | None,
    seed: int | None,
) -> None:
    """Show samples of SHARDS, as lines or as one HTML file.

    Columns of lines are separated by tabs. The HTML file holds the pictures and has no script, so it can be opened and
    sent anywhere.
    """
    from wdsdist.diagnostics.view import contact_sheet
    from wdsdist.diagnostics.view.describe import Style
    from wdsdist.diagnostics.view.figures import chosen_by
    from wdsdist.samples.member_reader import MemberReader

    manifest = _opened(shards)
    style = Style.of(manifest)
    chosen = None if where is None else chosen_by(manifest, where)
    total = manifest.num_samples if chosen is None else len(chosen)
    numbers = contact_sheet.chosen(total, count, seed)
    numbers = numbers if chosen is None else chosen[numbers].tolist()
    reader = MemberReader(manifest)
    if html is None:
        for line in contact_sheet.lines(reader, numbers, style):
            say(*line)
        return
    title = f"{_name(shards)}: {len(numbers):,} of {counted(total, 'sample')}"
    contact_sheet.write(reader, numbers, html, title=title, style=style)
    say(f"{html}: {counted(len(numbers), 'sample')}")
