"""Samples of a data set as lines for a terminal, with the descriptions of the page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from wdsdist._util.validation import human
from wdsdist.curation.fields import image_size
from wdsdist.diagnostics.view import describe
from wdsdist.errors import WdsdistError
from wdsdist.samples.member_reader import MemberReader

_LINE = 110
"""Characters of a value on a line."""


def lines(reader: MemberReader, numbers: Iterable[int], style: describe.Style) -> Iterator[tuple[str, ...]]:
    """Yield the columns of lines that list samples and their members; control characters are the caller's to escape."""
    for number in numbers:
        try:
            sample = reader.sample(number)
        except WdsdistError as error:
            yield f"{number:,}", "error", str(error)
            continue
        yield f"{number:,}", sample.name, reader.manifest.shown_name(sample.shard)
        for member, about in describe.members(reader, sample, describe.TILE, style):
            if about["kind"] == "image":
                try:
                    data = reader.read(sample, member)
                    words = "{} x {}".format(*image_size(memoryview(data)))
                except WdsdistError as error:
                    words = f"error: {error}"
            else:
                words = " ".join(_words(about).split())
                words = words if len(words) <= _LINE else f"{words[: _LINE - 3]}..."
            yield "", member.extension, human(member.size), words


def _words(about: describe.Description) -> str:
    kind = about["kind"]
    if kind == "tokens":
        return f"{about['count']:,} tokens: {' '.join(about['ids'])}"
    if kind == "array":
        ends = f", {about['least']} to {about['most']}" if "least" in about else ""
        return f"{about['dtype']} {about['shape']}{ends}"
    if kind == "json":
        return _tree(about["tree"])
    if kind == "error":
        return f"error: {about['message']}"
    if kind == "bytes":
        return " ".join(filter(None, (about.get("note"), about["hex"])))
    return " ".join(filter(None, (about.get("text", kind), about.get("label"))))


def _tree(node: list[Any]) -> str:
    kind, content, total = node
    if kind not in ("object", "list"):
        return f'"{content}"' if kind == "text" else str(content)
    more = f", ... {total - len(content):,} more" if len(content) < total else ""
    if kind == "list":
        return f"[{', '.join(map(_tree, content))}{more}]"
    return f"{{{', '.join(f'{key}: {_tree(value)}' for key, value in content)}{more}}}"
