"""The commands ``view`` and ``show``: samples on a page in a browser, and as lines."""

from __future__ import annotations

import contextlib
import secrets

import click

from wdsdist._util.validation import check_integer
from wdsdist.cli.options import command, number_option, of_shards, opened
from wdsdist.cli.output import contents, say


@command(
    "wdsdist view shards",
    "ssh -L 8000:127.0.0.1:8000 HOST wdsdist view SHARDS --port 8000",
    server="port with_token",
)
@of_shards
@number_option("--port", default=0, show_default=False, help="Port of the page.  [default: a free one]")
@click.option("--token", "with_token", is_flag=True, help="Put a token into the URL, if others use this machine.")
def view(shards: tuple[str, ...], port: int, with_token: bool) -> None:
    """Look at the samples of SHARDS in a browser.

    Open the URL that the command prints. The page shows images, audio, video, text, JSON, token ids and arrays, finds
    samples by key and by expressions over columns, and shows what each rank reads in an epoch. The page fetches only
    what it shows. The second example is for shards on another machine.
    """
    from wdsdist import storage
    from wdsdist.diagnostics.view import server

    manifest = opened(*shards)
    shown = server.View(manifest, [*map(storage.shown, shards)])
    token = secrets.token_urlsafe(18) if with_token else ""
    with server.Server(shown, port=port, token=token) as serving, contextlib.suppress(KeyboardInterrupt):
        say(f"{serving.url} shows {contents(manifest)}")
        say("ends with Ctrl-C", err=True)
        serving.serve_forever()


@command("wdsdist show shards -n 3", "wdsdist show shards --random 1")
@of_shards
@number_option("-n", "count", default=16, help="Samples to show.")
@click.option("--where", metavar="SQL", help="Only samples for which an expression is true.")
@number_option("--random", "seed", metavar="SEED", help="Random choice with this seed.  [default: the first samples]")
def show(shards: tuple[str, ...], count: int, where: str | None, seed: int | None) -> None:
    """List samples of SHARDS with their members, sizes and values.

    Columns are separated by tabs. `wdsdist view` shows pictures too.
    """
    import numpy as np

    from wdsdist.curation.query import is_true
    from wdsdist.diagnostics.view import sample_lines
    from wdsdist.diagnostics.view.describe import Style
    from wdsdist.samples.member_reader import MemberReader
    from wdsdist.sampling.permutation import permute

    manifest = opened(*shards)
    style, reader = Style.of(manifest), MemberReader(manifest)
    chosen = None if where is None else np.flatnonzero(is_true(manifest, where))
    total = manifest.num_samples if chosen is None else len(chosen)
    positions = np.arange(min(check_integer("count", count, 1, 10_000), total))
    if seed is not None:
        positions = np.sort(permute(positions, total, np.uint64(check_integer("seed", seed, 0, 2**64 - 1))))
    numbers: list[int] = (positions if chosen is None else chosen[positions]).tolist()
    for line in sample_lines.lines(reader, numbers, style):
        say(*line)
