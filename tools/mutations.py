"""How many faults the tests find: break the code in places drawn by a seed, one at a time, and run the room's tests.

A mutation changes a comparison (``<`` becomes ``<=``, ``==`` becomes ``!=``), adds one to an integer, negates a truth
value, or drops a statement (a call, an assignment to an attribute or item, or a ``raise``). The tests find it if they
fail or do not end in time. The checkout stays as it is: mutations are made in a copy.

    python tools/mutations.py [--count 25] [--seed 0] [--rooms sampling cache shards loader] [--json FILE]
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent

SWAPPED = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}


@dataclass(frozen=True)
class Mutation:
    """A replacement for a node of a syntax tree: the text between two places (line from 1, column in bytes)."""

    path: str
    start: tuple[int, int]
    stop: tuple[int, int]
    text: str

    def apply(self, source: bytes) -> bytes:
        lines = source.splitlines(keepends=True)
        ends = [0]
        for line in lines:
            ends.append(ends[-1] + len(line))
        start, stop = (ends[line - 1] + column for line, column in (self.start, self.stop))
        return source[:start] + self.text.encode() + source[stop:]


def is_dropped(node: ast.AST) -> bool:
    """Return whether a node is a statement that a mutation drops."""
    if isinstance(node, ast.Assign):
        return isinstance(node.targets[0], (ast.Attribute, ast.Subscript))
    return isinstance(node, ast.Raise) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))


def mutations(path: Path, root: Path) -> Iterator[Mutation]:
    """Yield each mutation of a module."""
    tree = ast.parse(path.read_bytes())

    def of(node: ast.expr | ast.stmt, text: str) -> Mutation:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start, stop = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
        return Mutation(str(path.relative_to(root)), start, stop, text)

    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        strings = {
            id(part) for text in ast.walk(function) if isinstance(text, ast.JoinedStr) for part in ast.walk(text)
        }
        for node in (node for statement in function.body for node in ast.walk(statement)):
            if id(node) in strings:
                continue
            if isinstance(node, ast.Compare) and len(node.ops) == 1:
                right = node.comparators[0]
                yield of(node, f"({ast.unparse(node.left)} {SWAPPED[type(node.ops[0])]} {ast.unparse(right)})")
            elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
                yield of(node, str(not node.value))
            elif isinstance(node, ast.Constant) and isinstance(node.value, int):
                yield of(node, str(node.value + 1))
            elif is_dropped(node) and isinstance(node, ast.stmt):
                yield of(node, "pass")


def run(copy: Path, room: str, seconds: float) -> bool:
    """Return whether the tests of a room pass in time."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-n", "0", f"tests/{room}"]
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    tests = subprocess.Popen(
        command, cwd=copy, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        return tests.wait(seconds) == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        if tests.poll() is None:
            os.killpg(tests.pid, 9)
            tests.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=25, help="mutations of each room")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rooms", nargs="+", default=["sampling", "cache", "shards", "loader"])
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout whose code is broken")
    parser.add_argument("--json", type=Path, help="write all mutations, with what the tests made of them")
    given = parser.parse_args()
    root = given.root.resolve()
    results = []
    for room in given.rooms:
        drawn = random.Random(f"{given.seed} {room}")
        files = sorted((root / "wdsdist" / room).rglob("*.py"))
        every = [mutation for path in files for mutation in mutations(path, root)]
        chosen = drawn.sample(every, given.count)
        with tempfile.TemporaryDirectory() as temporary:
            copy = Path(temporary) / "checkout"
            shutil.copytree(root, copy, ignore=shutil.ignore_patterns(".*", "__pycache__", "site", "demo-data"))
            start = time.monotonic()
            if not run(copy, room, 3600):
                sys.exit(f"the tests of {room} fail before anything is broken")
            limit = 60 + 4 * (time.monotonic() - start)
            for mutation in chosen:
                path = copy / mutation.path
                source = path.read_bytes()
                path.write_bytes(mutation.apply(source))
                is_found = not run(copy, room, limit)
                path.write_bytes(source)
                results.append(asdict(mutation) | {"room": room, "is_found": is_found})
                line = source.splitlines()[mutation.start[0] - 1].decode().strip()
                outcome = "found" if is_found else "MISSED"
                print(f"{outcome} {mutation.path}:{mutation.start[0]} {line} -> {mutation.text}", flush=True)
        found = sum(result["is_found"] for result in results if result["room"] == room)
        print(f"{room}: {found} of {given.count} found, of {len(every):,} possible mutations", flush=True)
    if given.json:
        given.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
