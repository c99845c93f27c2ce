"""Whether a worker's memory stays flat: wdsdist on a million tiny samples, epoch after epoch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from peers.kinds import KINDS, PAGE, Tally
from peers.runs import Cell, Data, TrialError, run_trial

_SHARD = 1000


def make(folder: Path, samples: int) -> Data:
    """Write tars of 1,000 samples of a few bytes, without a file for each, and index them."""
    import wdsdist
    from wdsdist.shards.tar.writer import header, padding

    root = folder / f"flat-{samples}" / "wdsdist"
    size = checksum = 0
    if not (root / "index.json").exists():
        root.mkdir(parents=True, exist_ok=True)
        for first in range(0, samples, _SHARD):
            with (root / f"{first // _SHARD:06d}.tar").open("wb") as tar:
                for number in range(first, min(first + _SHARD, samples)):
                    content = _content(number)
                    tar.write(header(f"{number:09d}.png", len(content)) + content + padding(len(content)))
                tar.write(bytes(1024))
        wdsdist.index(root)
    for number in range(samples):
        content = _content(number)
        size, checksum = size + len(content), checksum + sum(content[::PAGE])
    return Data(KINDS["png2k"], root.parent / "files", Tally(samples, size, checksum))


def _content(number: int) -> bytes:
    return f"{number:032x}".encode()


def run(python: str, folder: Path, samples: int, epochs: int, workers: int, say: Callable[[str], None]) -> Cell:
    """Return a worker's peak private memory in every epoch, beyond an idle one."""
    say(f"data: flat, {samples:,} samples")
    made = make(folder, samples)
    cell = Cell("flat", "png2k", workers)
    try:
        figures = run_trial(python, made.order("memory", "wdsdist", workers, 0, epochs), 3600)
        say(f"flat: {figures}")
        cell.rounds = [{"wdsdist": {"value": figures[f"epoch {epoch}"]}} for epoch in range(epochs)]
    except TrialError as error:
        cell.errors["wdsdist"] = str(error)
    return cell
