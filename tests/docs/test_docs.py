"""What the pages in docs/ show is run, each page in one process; what cannot run is listed with its reason."""

from __future__ import annotations

import ast
import inspect
import json
import re
import runpy
from pathlib import Path

import click
import pytest

import wdsdist
from tests.support.pages import ROOT, Block, blocks, commands, program, run
from wdsdist.cli import _wdsdist

DOCS = ROOT / "docs"
MADE = {"command-line.md"}  # by `make docs`
PAGES = {
    name: path.read_text() for path in sorted(DOCS.rglob("*.md")) if (name := str(path.relative_to(DOCS))) not in MADE
}
BLOCKS = {name: blocks(page) for name, page in PAGES.items()}
RUN_ELSEWHERE = {"frameworks.md"}  # framework by framework
SLOW = {  # for they import, train or pack for seconds: other tests have each step of theirs
    *("choosing-samples.md", "coming-from.md", "index.md", "media.md", "packing.md", "projects.md", "remote.md"),
    *("samples.md", "several.md", "tuning.md", "variable-lengths.md", "view.md"),
    *(name for name in PAGES if name.startswith("recipes/")),
}
NOT_RUN = [(name, block) for name, found in BLOCKS.items() for block in found if block.reason]


def runs(block: Block) -> bool:
    return block.reason is None and (block.language == "python" or any(commands(block)))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])
        for name, found in BLOCKS.items()
        if any(map(runs, found)) and name not in RUN_ELSEWHERE
    ],
)
def test_what_a_page_shows_runs_from_top_to_bottom(name: str, checkout: Path) -> None:
    printed = run(program(PAGES[name]), checkout)
    for block in BLOCKS[name]:
        for line in block.text.splitlines() if block.language == "text" and block.reason is None else ():
            assert re.search(f"^{'.*'.join(map(re.escape, line.split('...')))}$", printed, re.MULTILINE), line


@pytest.mark.parametrize("block", [pytest.param(block, id=f"{name}:{block.line}") for name, block in NOT_RUN])
def test_what_is_not_run_is_python_or_names_commands_and_options_that_exist(block: Block) -> None:
    if block.language == "python":
        ast.parse(block.text)
    for _, (command, *arguments) in commands(block):
        found = _wdsdist.commands[command]
        found = found.commands[arguments[0]] if isinstance(found, click.Group) else found
        known = {option for parameter in found.params for option in parameter.opts}
        assert {one.partition("=")[0] for one in arguments if one.startswith("-")} <= known
    pytest.skip(f"not run: {block.reason}")


def test_every_fenced_block_says_what_it_is() -> None:
    languages = {block.language for found in BLOCKS.values() for block in found}
    assert languages <= {"python", "shell", "text", "json"}


def test_commands_of_other_programs_are_marked_as_not_run() -> None:
    shells = [block for found in BLOCKS.values() for block in found if block.language == "shell" and not block.reason]
    assert all(line.startswith("wdsdist ") for block in shells for line in block.text.splitlines())


def test_the_index_that_is_shown_has_the_names_of_a_real_one(tmp_path: Path) -> None:
    (shown,) = (json.loads(block.text) for block in BLOCKS["format.md"] if block.language == "json")
    wdsdist.pack(ROOT / "examples" / "data" / "t10k", tmp_path / "shards")
    written = json.loads((tmp_path / "shards" / "index.json").read_text())
    assert shown.keys() <= written.keys()
    assert shown["wdsdist"].keys() <= written["wdsdist"].keys()
    assert shown["shardlist"][0].keys() == written["shardlist"][0].keys()


def test_the_arguments_that_old_ones_become_exist() -> None:
    rows = re.findall(r"^\| `.* \| (.*) \|$", PAGES["coming-from.md"], re.MULTILINE)
    shown = {name for row in rows for code in re.findall(r"`[^`]+`", row) for name in re.findall(r"(\w+)=", code)}
    takers = (wdsdist.pack, wdsdist.mix, wdsdist.StreamingDataset, wdsdist.StreamingDataLoader)
    assert len(shown) > 20
    takers += (wdsdist.open, wdsdist.Manifest.select)
    assert shown <= {name for taker in takers for name in inspect.signature(taker).parameters}


def test_every_extra_that_is_named_exists() -> None:
    extras = set(re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE))
    texts = [*PAGES.values(), *(path.read_text() for path in [ROOT / "README.md", *(ROOT / "wdsdist").rglob("*.py")])]
    named = {
        one
        for text in texts
        for some in re.findall(r'"(?:wdsdist|\.)\[([a-z0-9,]+)\]"', text)
        for one in some.split(",")
    }
    assert named
    assert named <= extras


def texts_of_the_program() -> list[str]:
    """Return all texts in the package but docstrings, with a blank for each value filled in."""
    nodes = [node for path in (ROOT / "wdsdist").rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    docstrings = {node.value for node in nodes if isinstance(node, ast.Expr)}
    found = [node for node in nodes if isinstance(node, (ast.JoinedStr, ast.Constant)) and node not in docstrings]
    parts = [getattr(node, "values", [node]) for node in found]
    return ["".join(str(one.value) if isinstance(one, ast.Constant) else " " for one in some) for some in parts]


def test_the_messages_of_troubleshooting_are_those_of_the_program() -> None:
    lines = [line for line in PAGES["troubleshooting.md"].splitlines() if line.startswith("`")]
    shown = [message for line in lines if "` (of " not in line for message in re.findall(r"`([^`]+)`", line)]
    assert len(shown) > 30
    texts = texts_of_the_program()
    for message in shown:
        first, *parts = (part.strip(" .") for part in message.split("..."))
        rest = re.compile(".*".join(map(re.escape, ["", *parts])), re.DOTALL)
        assert any(rest.search(text, text.index(first) + len(first)) for text in texts if first in text), message


def test_every_promise_names_a_file_of_tests() -> None:
    rows = re.findall(r"^\| (?!promise|---)(.*) \|$", PAGES["promises.md"], re.MULTILINE)
    assert len(rows) > 30
    assert not [row for row in rows if not re.search(r"`tests/[\w/]+\.py`", row)]


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, as the site makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    plain = [re.sub(r"[^\w\s-]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)) for heading in headings]
    return {re.sub(r"[\s-]+", "-", heading.strip().lower()) for heading in plain}


@pytest.mark.parametrize("name", [*PAGES, "../README.md"])
def test_every_link_leads_to_a_page_and_an_anchor_that_exist(name: str) -> None:
    path = (DOCS / name).resolve()
    page = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    for link in re.findall(r"\]\(((?!https?:)[^)\s]+)\)", page):
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.exists() or target.name in MADE, link
        assert not anchor or anchor in anchors(target.read_text()), link


def test_docs_and_readme_are_short() -> None:
    readme = (ROOT / "README.md").read_text()
    assert readme.count("\n") <= 170
    assert sum(len(text.split()) for text in [*PAGES.values(), readme]) <= 40_000


def test_every_file_that_is_named_exists() -> None:
    for page in [*PAGES.values(), (ROOT / "README.md").read_text()]:
        for name in re.findall(r"`((?:tests|tools|docs|examples)/[\w./-]*)`", page):
            assert (ROOT / name).exists(), name


def test_the_page_of_the_command_line_has_every_command_and_option() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "docs" / "command_line.py"))
    page = tool["page"](_wdsdist)
    names = dict(tool["commands"](_wdsdist, "wdsdist"))
    assert all(f"## {name}\n" in page for name in names)
    options = [one for command in names.values() for one in command.params if isinstance(one, click.Option)]
    assert all(option.opts[-1] in page for option in options if not option.hidden)
