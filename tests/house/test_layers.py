"""The house: which modules there are, and who may import whom.

Each module stands in one row of `HOUSE` and imports from the rows above it only. A package counts as one module; what
is inside it may import each other. Imports for the type checker alone (``if TYPE_CHECKING``) are free.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import wdsdist

HOUSE = [
    ("errors",),  # what can go wrong, one name for each
    # of arguments; values to bytes; what an epoch came to; names for types; what was had from the cache
    ("checks", "encode", "stats", "array_types", "counters"),
    ("tarformat", "permutation", "sizes"),  # pure: bytes, numbers and texts in, values out
    # the outside: files and objects; who this process is; what processes share; compressed tars as streams
    ("storage", "node", "memory", "compression"),
    # pools of workers; clusters of the user's; where members lie; which sample stands where
    ("processes", "engines", "shardindex", "order"),
    ("replica",),  # which part of the samples this process is given
    ("plan", "shares"),  # who takes which positions; which of several data sets stands where
    ("mixture",),  # the order of several data sets in one stream
    ("mixing", "lookahead"),  # how well an order mixes; which shards a rank needs next
    ("footprint",),  # how many bytes of shards ranks need at once
    ("forecast",),  # what an epoch will be like
    ("manifest",),  # the shards of a data set
    ("tarindex", "joined"),  # the index of one tar, read or made; several data sets as one
    ("remotetar",),  # the index of one tar in a store
    ("catalog", "cache"),  # find data sets and index tars; keep one copy of each remote shard
    ("indexing", "exports"),  # make data sets of tars that others wrote; the indexes of other tools
    ("shards", "sources", "prefetch"),  # read shards; read what people download; fetch what will be read
    ("packing",),  # write shards
    ("images",),  # encoded images to pixels
    ("resizing",),  # pixels of another size
    ("frameworks",),  # what training frameworks do to loaders
    ("columns", "transforms", "progress"),  # what batches are made of; augmentation; which epoch comes next
    ("numeric", "transport"),  # arrays without decoding; batches between processes
    ("decode",),  # bytes to values
    ("decodable", "recipe"),  # which members do not decode; how samples are made of members
    ("verification",),  # check shards
    ("repairing",),  # mend what can be mended
    # samples into batches; word to the workers; their end; what a checkpoint holds
    ("samples", "handover", "workers", "state"),
    ("ordering",),  # what decides the order of epochs
    ("share",),  # what one worker makes of an epoch
    ("passes",),  # which epoch a foreign loader's workers play
    ("stream",),  # single samples, for a foreign loader
    ("devices",),  # batches where training wants them
    ("dataset", "epoch"),  # the samples of this rank, as torch iterates them; the batches of an epoch, as they come
    ("together",),  # several data sets in one stream
    ("loader",),  # the batches of this rank, as torch loads them
    ("integrations",),  # helpers for frameworks that need one
    ("profiling",),  # what loading costs on this machine
    ("cli",),  # the command line
    ("__main__",),  # its other name
]

READS_ENVIRONMENT = {"node"}
TOUCHES_FILES = {
    "storage", "node", "shardindex", "manifest", "tarindex", "catalog", "cache", "shards", "sources", "packing",
    "verification", "memory", "remotetar", "indexing", "exports", "decodable", "repairing", "compression",
}  # fmt: skip
IMPORTS_TORCH = {
    "columns", "numeric", "transport", "decode", "handover", "workers", "passes", "stream", "devices", "dataset",
    "loader", "profiling",
}  # fmt: skip
"""With the module itself; others do inside a function, so that the command line starts without it."""
IMPORTS_WEBDATASET: set[str] = set()

MOST_LINES_OF_A_FILE = 300
MOST_LINES_OF_A_FUNCTION = 60
"""Its docstring not counted."""

ROOT = Path(wdsdist.__file__).parent
ROWS = {name: number for number, row in enumerate(HOUSE) for name in row}

# Calls that reach the file system, by the last part of their name.
FILE_CALLS = {
    "open", "fdopen", "mmap", "memmap", "read_bytes", "read_text", "write_bytes", "write_text", "unlink", "remove",
    "mkdir", "makedirs", "rmdir", "rmtree", "touch", "iterdir", "scandir", "glob", "rglob", "walk", "rename",
    "symlink_to", "hardlink_to", "mkstemp", "mkdtemp", "TemporaryFile", "NamedTemporaryFile", "TemporaryDirectory",
}  # fmt: skip
NOT_A_FILE = {"catalog", "wdsdist", "Image", "ast"}  # `catalog.open` is a data set's, `Image.open` reads from memory


def module_of(path: Path) -> str:
    """Return the module or package that a source file belongs to; the package wdsdist itself is ``wdsdist``."""
    first = path.relative_to(ROOT).parts[0]
    return "wdsdist" if first == "__init__.py" else first.removesuffix(".py")


def sources(*, but: set[str] | None = None) -> dict[Path, ast.Module]:
    """Return the syntax tree of every source file, but for those of some modules."""
    return {
        path: ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(ROOT.rglob("*.py"))
        if module_of(path) not in (but or set())
    }


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def nodes(tree: ast.AST, *, enter: Callable[[ast.AST], bool] = lambda node: True) -> Iterator[ast.AST]:
    """Yield the nodes of a tree that run; what is under ``if TYPE_CHECKING`` does not."""
    for child in ast.iter_child_nodes(tree):
        if is_type_checking(child):
            continue
        yield child
        if enter(child):
            yield from nodes(child, enter=enter)


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


def layer_violations(path: Path, tree: ast.Module) -> Iterator[tuple[Path, ast.AST, str]]:
    own = module_of(path)
    for node in nodes(tree):
        for name in imported(node):
            if name.startswith("."):
                yield path, node, "a relative import, which hides the row it reaches into"
            if not name.startswith("wdsdist"):
                continue
            target = [*name.split("."), ""][1]
            if target == own or (not target and own == "cli"):  # the version that the command line prints
                continue
            if target not in ROWS:
                yield path, node, f"imports {name}, which is no module of the house"
            elif ROWS[target] >= ROWS[own]:
                yield path, node, f"{own} (row {ROWS[own]}) imports {target} (row {ROWS[target]})"


def environment_reads(path: Path, tree: ast.Module) -> Iterator[tuple[Path, ast.AST, str]]:
    for node in nodes(tree):
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "environb", "getenv", "getenvb"}:
            yield path, node, ast.unparse(node)
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            yield path, node, ast.unparse(node)  # `from os import environ` would escape the line above


def file_calls(path: Path, tree: ast.Module) -> Iterator[tuple[Path, ast.AST, str]]:
    for node in nodes(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        owner, _, name = called.rpartition(".")
        to_nowhere = bool(node.args) and ast.unparse(node.args[0]) == "os.devnull"
        if name in FILE_CALLS and owner not in NOT_A_FILE and not to_nowhere:
            yield path, node, called


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


def test_every_module_stands_in_one_row_and_every_row_holds_modules() -> None:
    present = {module_of(path) for path in ROOT.rglob("*.py")} - {"wdsdist"}
    assert present == set(ROWS)
    assert len(ROWS) == sum(len(row) for row in HOUSE)


def test_modules_import_from_the_rows_above_only() -> None:
    assert not found(v for path, tree in sources(but={"wdsdist"}).items() for v in layer_violations(path, tree))


def test_only_node_reads_the_environment() -> None:
    assert not found(v for path, tree in sources(but=READS_ENVIRONMENT).items() for v in environment_reads(path, tree))


def test_only_the_modules_made_for_it_touch_files() -> None:
    assert not found(v for path, tree in sources(but=TOUCHES_FILES).items() for v in file_calls(path, tree))


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


# The rules can be broken

BROKEN: list[tuple[Callable[..., Iterator[tuple[Path, ast.AST, str]]], str]] = [
    (layer_violations, "from wdsdist import dataset"),
    (layer_violations, "from wdsdist.dataset import StreamingDataset"),
    (layer_violations, "import wdsdist.loader"),
    (layer_violations, "import wdsdist"),
    (layer_violations, "from wdsdist import pack"),
    (layer_violations, "from wdsdist.nowhere import x"),
    (layer_violations, "from . import errors"),
    (layer_violations, "def f():\n    from wdsdist import loader"),
    (layer_violations, "from wdsdist.shardindex import load"),  # a neighbour of its row
    (environment_reads, "import os\nos.environ['X']"),
    (environment_reads, "import os\nos.getenv('X')"),
    (environment_reads, "from os import environ"),
    (file_calls, "open('x')"),
    (file_calls, "path.open('rb')"),
    (file_calls, "mmap.mmap(1, 0)"),
    (file_calls, "folder.mkdir()"),
    (lambda path, tree: imports_at_the_top(path, tree, "torch"), "import torch"),
    (lambda path, tree: imports_at_the_top(path, tree, "torch"), "from torch.utils import data"),
    (lambda path, tree: imports_at_the_top(path, tree, "torch"), "try:\n    import torch\nexcept ImportError: ..."),
    (lambda path, tree: imports_at_the_top(path, tree, "torch"), "class A:\n    import torch.nn"),
    (long_functions, "def f():\n" + "    x = 1\n" * 60),
]

KEPT: list[tuple[Callable[..., Iterator[tuple[Path, ast.AST, str]]], str]] = [
    (layer_violations, "from wdsdist.errors import ArgumentError\nfrom wdsdist import permutation"),
    (layer_violations, "if TYPE_CHECKING:\n    from wdsdist import loader"),
    (file_calls, "catalog.open(shards)"),
    (file_calls, "os.open(os.devnull, os.O_WRONLY)"),
    (lambda path, tree: imports_at_the_top(path, tree, "torch"), "def f():\n    import torch"),
    (long_functions, "def f():\n    '''" + "\n" * 80 + "'''\n" + "    x = 1\n" * 59),
]


@pytest.mark.parametrize(("rule", "code"), BROKEN)
def test_a_broken_rule_is_found(rule: Callable[..., Iterator[tuple[Path, ast.AST, str]]], code: str) -> None:
    assert found(rule(ROOT / "order.py", ast.parse(code)))


@pytest.mark.parametrize(("rule", "code"), KEPT)
def test_a_kept_rule_is_not(rule: Callable[..., Iterator[tuple[Path, ast.AST, str]]], code: str) -> None:
    assert not found(rule(ROOT / "order.py", ast.parse(code)))
