"""The house: its packages, the floor each stands on, and who may import whom.

A package imports from packages on lower floors only, never from a neighbour on its own floor. Modules of one package
may import each other, as long as no imports run in a circle when they are loaded. Imports for the type checker alone
(``if TYPE_CHECKING``) are free.
"""

from __future__ import annotations

import ast
import functools
import runpy
from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import wdsdist

FLOORS: list[dict[str, str]] = [
    {"errors": "what can go wrong, a public type for each"},
    {"_util": "what every package needs: checks of arguments, files, process pools, shared memory, this host"},
    {
        "distributed": "rank and world, what runs once per node, barriers",
        "storage": "bytes at a path or URL: clients, downloads, retries, compression",
    },
    {"shards": "the format on disk: tars, their indexes, the manifest of a data set"},
    {"sampling": "which sample comes at which step: pure arithmetic"},
    {"cache": "verified local copies of remote shards, bounded, and their prefetch"},
    {"samples": "bytes of members to values and back, values to the columns of a batch"},
    {"media": "clips of audio and video, their lengths and their check, on PyAV"},
    {
        "loader": "the data set, the loader, its workers, and how they resume",
        "packing": "what people download to shards: sources, plan, write",
    },
    {"curation": "columns, joins, queries and choices of samples, on pyarrow and DuckDB"},
    {
        "batching": "token budgets, groups, buckets, packed rows: plans and their columns",
    },
    {"transforms": "the public names of decode functions and transforms"},
    {
        "diagnostics": "answers about data, never on the training path: verify, repair, export, report, profile",
        "integrations": "helpers for frameworks and clusters",
    },
    {"cli": "the command line, a file for each command"},
    {"__main__": "its other name"},
    {"wdsdist": "the public names"},
]
"""From the ground up: the packages on each floor, and what each is for."""

AROUND_THE_CORE = {"batching", "curation", "media", "packing", "diagnostics", "integrations"}
"""Packages that those below import as well, but only inside a function."""

NOT_PYTHON = {"py.typed"}

READS_ENVIRONMENT = {"distributed", "storage.http", "storage.s3", "_util.host", "cli.output"}
IMPORTS_TORCH = {
    "batching.collation", "samples.collate", "samples.sample_spec",
    "loader.dataset", "loader.device_prefetch",
    "loader.ipc", "loader.loader", "loader.worker_iterator", "diagnostics.throughput",
    "integrations.transformers",
}  # fmt: skip
"""When they are imported; others import it inside a function, so that the command line starts without it."""
IMPORTS_WEBDATASET: set[str] = set()

MOST_LINES_OF_A_FILE = 500
MOST_LINES_OF_A_FUNCTION = 100
"""Its docstring not counted."""

ROOT = Path(wdsdist.__file__).parent
FLOOR_OF = {package: number for number, packages in enumerate(FLOORS) for package in packages}


def name_of(path: Path) -> str:
    """Return the dotted name of a source file below wdsdist; that of wdsdist itself is ``wdsdist``.

    >>> name_of(ROOT / "cache" / "locks.py"), name_of(ROOT / "cache" / "__init__.py")
    ('cache.locks', 'cache')
    """
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts) or "wdsdist"


@functools.cache
def trees() -> dict[Path, ast.Module]:
    """Return the syntax tree of every source file."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(ROOT.rglob("*.py"))}


def sources(*, but: set[str] | None = None) -> dict[Path, ast.Module]:
    """Return the syntax tree of every source file, but for those of some packages or modules."""

    def is_left_out(name: str) -> bool:
        return any(name == other or name.startswith(f"{other}.") for other in but or set())

    return {path: tree for path, tree in trees().items() if not is_left_out(name_of(path))}


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and getattr(node.test, "id", getattr(node.test, "attr", "")) == "TYPE_CHECKING"


def nodes(tree: ast.AST, *, enter: Callable[[ast.AST], bool] = lambda node: True) -> Iterator[ast.AST]:
    """Yield the nodes of a tree that run; what is under ``if TYPE_CHECKING`` does not."""
    waiting = [tree]
    while waiting:
        for child in ast.iter_child_nodes(waiting.pop()):
            if not is_type_checking(child):
                yield child
                if enter(child):
                    waiting.append(child)


@functools.cache
def running(tree: ast.AST) -> list[ast.AST]:
    """Return all nodes of a tree that run: several rules look at each."""
    return list(nodes(tree))


def imported(node: ast.AST) -> list[str]:
    """Return the dotted names that an import statement imports; none for any other node."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        origin = "." * node.level + (node.module or "")
        return [f"{origin}.{alias.name}" for alias in node.names]
    return []


def is_function(node: ast.AST) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))


def found(violations: Iterator[tuple[Path, ast.AST | int, str]]) -> list[str]:
    """Return violations as ``file:line: what``."""
    return [
        f"{path.relative_to(ROOT.parent)}:{node if isinstance(node, int) else node.lineno}: {what}"  # type: ignore[attr-defined]
        for path, node, what in violations
    ]


def floor_violations(path: Path, tree: ast.Module) -> Iterator[tuple[Path, ast.AST, str]]:
    own = name_of(path).partition(".")[0]
    at_the_top = set(nodes(tree, enter=lambda node: not is_function(node)))
    for node in running(tree):
        for name in imported(node):
            if name.startswith("."):
                yield path, node, "a relative import, which hides the package it reaches into"
            if not name.startswith("wdsdist"):
                continue
            target = [*name.split("."), ""][1]
            if target == own or (not target and own == "cli"):  # the version that the command line prints
                continue
            if target not in FLOOR_OF:
                yield path, node, f"imports {name}, which is in no package of the house"
            elif FLOOR_OF[target] >= FLOOR_OF[own] and not (target in AROUND_THE_CORE and node not in at_the_top):
                yield path, node, f"{own} (floor {FLOOR_OF[own]}) imports {target} (floor {FLOOR_OF[target]})"


def imports_of_modules(trees: dict[Path, ast.Module]) -> dict[str, set[str]]:
    """Return which modules each module imports when it is loaded, by dotted names below wdsdist."""
    names = {name_of(path) for path in trees}
    graph: dict[str, set[str]] = {name: set() for name in names}
    for path, tree in trees.items():
        loading = nodes(tree, enter=lambda node: not is_function(node))
        for name in (name.removeprefix("wdsdist.") for node in loading for name in imported(node)):
            target = name if name in names else name.rpartition(".")[0]
            if target in names - {name_of(path)}:
                graph[name_of(path)].add(target)
    return graph


def environment_reads(path: Path, tree: ast.Module) -> Iterator[tuple[Path, ast.AST, str]]:
    for node in running(tree):
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "environb", "getenv", "getenvb"}:
            yield path, node, ast.unparse(node)
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            yield path, node, ast.unparse(node)  # `from os import environ` would escape the line above


def imports_at_the_top(path: Path, tree: ast.Module, package: str) -> Iterator[tuple[Path, ast.AST, str]]:
    for node in nodes(tree, enter=lambda node: not is_function(node)):
        for name in imported(node):
            if name.split(".")[0] == package:
                yield path, node, f"imports {package}"


def long_functions(path: Path, tree: ast.Module) -> Iterator[tuple[Path, ast.AST, str]]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno:
            lines = node.end_lineno - node.lineno + 1
            if ast.get_docstring(node) is not None:
                docstring = node.body[0]
                lines -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
            if lines > MOST_LINES_OF_A_FUNCTION:
                yield path, node, f"{node.name} has {lines} lines, more than {MOST_LINES_OF_A_FUNCTION}"


# The rules


def test_the_top_holds_the_packages_of_the_house_and_nothing_else() -> None:
    present = {path.name.removesuffix(".py") for path in ROOT.iterdir() if path.name != "__pycache__"}
    assert present == set(FLOOR_OF) - {"wdsdist"} | {"__init__"} | NOT_PYTHON
    assert len(FLOOR_OF) == sum(len(packages) for packages in FLOORS)


def test_packages_import_from_lower_floors_only() -> None:
    assert not found(v for path, tree in sources(but={"wdsdist"}).items() for v in floor_violations(path, tree))


def test_no_imports_run_in_a_circle() -> None:
    list(TopologicalSorter(imports_of_modules(sources())).static_order())


def test_a_circle_is_found() -> None:
    here, there = ROOT / "cache" / "locks.py", ROOT / "cache" / "copies.py"
    circle = {
        here: ast.parse("from wdsdist.cache.copies import x"),
        there: ast.parse("from wdsdist.cache import locks"),
    }
    with pytest.raises(CycleError):
        list(TopologicalSorter(imports_of_modules(circle)).static_order())


def test_only_the_modules_made_for_it_read_the_environment() -> None:
    assert not found(v for path, tree in sources(but=READS_ENVIRONMENT).items() for v in environment_reads(path, tree))


@pytest.mark.parametrize(("package", "allowed"), [("torch", IMPORTS_TORCH), ("webdataset", IMPORTS_WEBDATASET)])
def test_only_the_modules_made_for_it_import_a_slow_package_with_themselves(package: str, allowed: set[str]) -> None:
    files = sources(but=allowed).items()
    assert not found(v for path, tree in files for v in imports_at_the_top(path, tree, package))


def test_no_file_is_long() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in ROOT.rglob("*.py")}
    assert not found(
        (path, lines, f"more than {MOST_LINES_OF_A_FILE} lines")
        for path, lines in lengths.items()
        if lines > MOST_LINES_OF_A_FILE
    )


def test_no_function_is_long() -> None:
    assert not found(v for path, tree in sources().items() for v in long_functions(path, tree))


def test_the_picture_of_the_documentation_shows_the_packages_as_they_are() -> None:
    tool = runpy.run_path(str(ROOT.parent / "tools" / "docs" / "house.py"))
    assert tool["drawing"](FLOORS) == (ROOT.parent / "docs" / "house.svg").read_text(encoding="utf-8"), "make house"


# The rules can be broken

BROKEN: list[tuple[Callable[..., Iterator[tuple[Path, ast.AST, str]]], str]] = [
    (floor_violations, "from wdsdist.loader.dataset import StreamingDataset"),
    (floor_violations, "import wdsdist"),
    (floor_violations, "from wdsdist.nowhere import x"),
    (floor_violations, "from . import errors"),
    (floor_violations, "def f():\n    from wdsdist import loader"),
    (floor_violations, "from wdsdist.cache import locks"),
    (floor_violations, "from wdsdist.distributed import identity"),  # a neighbour on the same floor
    (environment_reads, "import os\nos.environ['X']"),
    (environment_reads, "from os import environ"),
    (lambda path, tree: imports_at_the_top(path, tree, "torch"), "from torch.utils import data"),
    (lambda path, tree: imports_at_the_top(path, tree, "torch"), "try:\n    import torch\nexcept ImportError: ..."),
    (lambda path, tree: imports_at_the_top(path, tree, "torch"), "class A:\n    import torch.nn"),
    (long_functions, "def f():\n" + "    x = 1\n" * 100),
]

KEPT: list[tuple[Callable[..., Iterator[tuple[Path, ast.AST, str]]], str]] = [
    (floor_violations, "from wdsdist import errors"),
    (floor_violations, "if TYPE_CHECKING:\n    from wdsdist import loader"),
    (lambda path, tree: imports_at_the_top(path, tree, "torch"), "def f():\n    import torch"),
    (long_functions, "def f():\n    '''" + "\n" * 130 + "'''\n" + "    x = 1\n" * 99),
]


@pytest.mark.parametrize(("rule", "code"), BROKEN)
def test_a_broken_rule_is_found(rule: Callable[..., Iterator[tuple[Path, ast.AST, str]]], code: str) -> None:
    assert found(rule(ROOT / "storage" / "urls.py", ast.parse(code)))


@pytest.mark.parametrize(("rule", "code"), KEPT)
def test_a_kept_rule_is_not(rule: Callable[..., Iterator[tuple[Path, ast.AST, str]]], code: str) -> None:
    assert not found(rule(ROOT / "storage" / "urls.py", ast.parse(code)))
