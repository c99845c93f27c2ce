"""The commands ``select`` and ``split``, which make views."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wdsdist._util.validation import counted
from wdsdist.cli.options import access, command, how_to_open, opened
from wdsdist.cli.output import described, say
from wdsdist.errors import DestinationExistsError

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest


@command(
    "wdsdist select shards views/large --where '\"jpg.width\" >= 256'",
    "wdsdist select shards views/some --exclude bad.jsonl --sample 0.1",
    which_samples="where keys exclude on sample",
    advanced="repeat seed refresh allow_empty",
)
@click.argument("shards", required=False)
@click.argument("destination", type=click.Path(path_type=Path), required=False)
@click.option("--where", metavar="SQL", help="Samples for which an expression over columns is true.")
@click.option("--keys", metavar="FILE", help="Samples in this list: lines, JSON, JSON Lines, CSV, Parquet or .npy.")
@click.option("--exclude", metavar="FILE", help="Samples that are not in this list, such as a quarantine file.")
@click.option("--on", default="key", metavar="COLUMN", help="Column that the lists hold.")
@click.option("--sample", metavar="N", help="Random choice of these samples: a number, or a share such as 0.1.")
@click.option("--repeat", metavar="N", help="Take each sample N times, or as often as a column says.")
@click.option("--seed", type=int, metavar="N", default=0, help="Seed of --sample and --repeat.")
@click.option(
    "--refresh", metavar="VIEW", type=click.Path(dir_okay=False), help="Make a view and its source views again."
)
@click.option("--allow-empty", is_flag=True, help="Save a view even if it has no samples.")
@click.option("--overwrite", is_flag=True, help="Replace an existing view.")
@access
def select(
    shards: str | None, destination: Path | None, sample: str | None, repeat: str | None, refresh: str | None,
    allow_empty: bool, overwrite: bool, **chosen_by: Any,
) -> None:  # fmt: skip
    """Choose samples of SHARDS, and save them as a view.

    The shards stay unchanged. The view is the file DESTINATION; every command and StreamingDataset takes a view instead
    of shards. `wdsdist info SHARDS` names the columns that --where can use, and `wdsdist columns` adds more.
    """
    if refresh is not None:
        from wdsdist.curation.choose import refresh as make_again

        for path, view in make_again(refresh, allow_empty=allow_empty, **how_to_open()):
            say(f"{path}: {counted(view.num_samples, 'sample')}")
        return
    if shards is None or destination is None:
        raise click.UsageError("name SHARDS and the DESTINATION, or a view with --refresh")
    _check_free(destination, overwrite)
    manifest = opened(shards)
    seed = chosen_by["seed"]
    if chosen_by["where"] is not None or chosen_by["keys"] or chosen_by["exclude"] or sample:
        amount = None if sample is None else _number(sample)
        manifest = manifest.select(sample=amount, allow_empty=allow_empty, **chosen_by)  # type: ignore[arg-type]
    elif not repeat:
        raise click.UsageError("say which samples: --where, --keys, --exclude, --sample or --repeat")
    if repeat:
        manifest = manifest.repeat(_number(repeat), seed=seed, allow_empty=allow_empty)
    _save(manifest, destination)


@command(
    "wdsdist split shards views train=0.98 val=0.02",
    "wdsdist split shards views train=0.9 test=0.1 --by json.patient",
    advanced="seed allow_empty",
)
@click.argument("shards")
@click.argument("destination", type=click.Path(path_type=Path))
@click.argument("parts", nargs=-1, required=True, metavar="NAME=SHARE...")
@click.option("--by", default="key", metavar="COLUMN", help="Keep samples with the same value together.")
@click.option("--seed", type=int, metavar="N", default=0, help="Seed of the choice.")
@click.option("--allow-empty", is_flag=True, help="Save parts even if they have no samples.")
@click.option("--overwrite", is_flag=True, help="Replace existing views.")
@access
def split(
    shards: str, destination: Path, parts: tuple[str, ...], by: str, seed: int, allow_empty: bool, overwrite: bool
) -> None:
    """Split the samples of SHARDS into views, such as train and val.

    Each part becomes a view in the folder DESTINATION. The part of a sample depends only on its key (or the column
    --by) and the seed, so it stays the same as data grows.
    """
    from wdsdist.curation import choose

    shares: dict[str, Any] = {}
    for part in parts:
        name, _, share = part.partition("=")
        if not name or not share or name in shares or Path(name).name != name:
            raise click.UsageError(f"{part!r} must be a name of its own and a share, such as train=0.98")
        shares[name] = _number(share)
        _check_free(destination / name, overwrite)
    views = choose.split(opened(shards), shares, by=by, seed=seed, allow_empty=allow_empty)
    for name, view in zip(shares, views, strict=True):
        _save(view, destination / name)


def _save(view: Manifest, path: Path) -> None:
    view.save(path)
    say(f"{path}: {described(view.made_by[-1])}")


def _check_free(path: Path, overwrite: bool) -> None:
    if path.exists() and not overwrite:
        raise DestinationExistsError(f"{path} exists: name another file, or give --overwrite to replace it")


def _number(string: str) -> int | float | str:
    """Parse a number; return any other string as it is, such as a column for --repeat."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(string)
    return string
