"""A contact sheet: some samples of a data set as one HTML file, or as lines for a terminal.

It shows what the page shows, by the same descriptions. The file holds its pictures and style, no script, and a policy
by which a browser asks nobody for anything.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path
from typing import Any

from wdsdist._util.files import atomic_write, writing
from wdsdist._util.validation import human
from wdsdist.curation.fields import image_size
from wdsdist.diagnostics.view import describe
from wdsdist.errors import WdsdistError
from wdsdist.samples.member_reader import MemberReader

_STYLE = Path(__file__).parent / "static" / "view.css"
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'"
_LINE = 110
"""Characters of a value on a line."""


def write(reader: MemberReader, numbers: Iterable[int], path: Path, *, title: str, style: describe.Style) -> None:
    """Write a contact sheet of samples as an HTML file, atomically.

    Raises `DestinationError` if it cannot be written; a sample that cannot be read shows its error.
    """
    tiles = "\n".join(_tile(reader, number, style) for number in numbers)
    page = (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" '
        f'content="{_POLICY}">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_STYLE.read_text()}</style>\n<body>\n<header><h1>{escape(title)}</h1>"
        f'</header>\n<p id="status"></p>\n<main class="grid">\n{tiles}\n</main>\n</body>\n</html>\n'
    )
    with writing(path), atomic_write(path) as stream:
        stream.write(page.encode("utf-8", "replace"))


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


def _tile(reader: MemberReader, number: int, style: describe.Style) -> str:
    """Return a sample as HTML: its pictures, and below them a row for each other member."""
    try:
        sample = reader.sample(number)
    except WdsdistError as error:
        return f'<article class="tile"><div class="error">{number:,}: {escape(str(error))}</div></article>'
    stages, rows = [], []
    for member, about in describe.members(reader, sample, describe.TILE, style):
        name, kind = escape(member.extension), about["kind"]
        words = escape(about["message"] if kind == "error" else _words(about))
        if kind == "image" or about.get("has_picture"):
            try:
                content, media = describe.picture(reader, sample, member, describe.TILE, style)
            except (WdsdistError, ValueError) as error:
                kind, words = "error", escape(str(error))
            else:
                fine, caption = ("", name) if kind == "image" else (" class=fine", f"{name} {words}")
                url = f"data:{media};base64,{base64.b64encode(content).decode()}"
                stages.append(
                    f'<span class="stage"><img src="{url}" alt="{name}"{fine}><small>{caption}</small></span>'
                )
                continue
        value = f'<div class="{"error" if kind == "error" else "text"}" dir="auto">{words}</div>'
        rows.append(f'<div class="field"><span title="{name}">{name}</span>{value}</div>')
    shard = escape(reader.manifest.shown_name(sample.shard))
    head = f'<b class="mono">{escape(sample.name)}</b><span title="{shard}">{number:,}</span>'
    return f'<article class="tile"><div class="head">{head}</div>{"".join(stages)}{"".join(rows)}</article>'
