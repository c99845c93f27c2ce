"""Code, help and documentation use plain English: no turn of the list stands in them."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

import wdsdist

ROOT = Path(wdsdist.__file__).parent.parent

TURNS = (
    "those of",
    "that of",
    "is none",
    "are none",
    "becomes? of",
    "(?:is|are) told(?! apart)",
    "anew",
    "lest",
    "be had",
    "in vain",
    "mends?|mended",
    "for ever",
    "seldom",
    "of its own accord",
    "where (?:there|none|nothing) (?:is|are)",
    "by (?:another|other) tools?",
    "where (?:it|they) lies?(?!,)",
    "as by",
    "for live",
    "(?<!here )(?:is|are) no (?!longer|shorter|more|less|use)",
    r"Of(?! course)",
)
"""Patterns of what native readers stumble over; each has a plain form, in the order of subject, verb and object."""

NAMES = frozenset(["found", "here", "one", "told"])
"""Names that say nothing of what they hold."""

BANNED = re.compile("|".join(rf"(?<![\w-])(?:{turn})(?!\w)" for turn in TURNS), re.MULTILINE)

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE = [*sorted((ROOT / "wdsdist").rglob("*.py")), *sorted((ROOT / "examples").rglob("*.py"))]


def prose(source: str) -> str:
    """Return the comments and strings of a module, which are all its words but names."""
    kinds = (tokenize.COMMENT, tokenize.STRING)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return "\n".join(token.string.lstrip("#rbuf\"' ") for token in tokens if token.type in kinds)


def turns_of(text: str) -> list[str]:
    joined = re.sub(r"(?<=\w)\n\s*(?=\w)", " ", text)  # a turn may run over the end of a line
    return [joined[max(0, match.start() - 30) : match.end() + 30] for match in BANNED.finditer(joined)]


@pytest.mark.parametrize(
    ("text", "is_plain"),
    [
        ("The batches are\nthose of rank 0.", False),
        ("Of the ranks, one waits.", False),
        ("it is made anew", False),
        ("a folder where there is none", False),
        ("calls are told apart by name", True),
        ("renewed, recommended, at least, the offset of a shard", True),
    ],
)
def test_a_turn_is_found(text: str, is_plain: bool) -> None:
    assert (not turns_of(text)) is is_plain


def test_code_and_pages_are_plain() -> None:
    strings = {path: prose(path.read_text(encoding="utf-8")) for path in CODE}
    strings |= {path: path.read_text(encoding="utf-8") for path in PAGES}
    assert [(path, turns) for path, string in strings.items() if (turns := turns_of(string))] == []


def test_names_are_nouns() -> None:
    """The names of `NAMES` are in no module."""
    for path in CODE:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = getattr(node, "id", None) or getattr(node, "arg", None) or getattr(node, "name", None)
            assert name not in NAMES, f"{path}:{node.lineno} {name}"
