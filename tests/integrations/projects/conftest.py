"""The adapters that docs/projects.md shows, as they stand there, and ranks for them to run on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.support.pages import ROOT, blocks, section

Adapter = Callable[..., dict[str, Any]]


@pytest.fixture
def adapter() -> Adapter:
    """Run a block of a project's section, with strings in it replaced, and return the names that it defines."""

    def run(project: str, replaced: Mapping[str, str] | None = None, *, block: int = 0, **names: Any) -> dict[str, Any]:
        text = blocks(section((ROOT / "docs" / "projects.md").read_text(), project))[block].text
        for old, new in (replaced or {}).items():
            assert old in text
            text = text.replace(old, new)
        exec(compile(text, f"projects.md, {project}", "exec"), names := names | {"__name__": project})
        return names

    return run


@pytest.fixture
def on_rank(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Set the environment of one rank of a world, as torchrun does."""

    def be(rank: int, world: int) -> None:
        for name, value in (("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", world), ("LOCAL_WORLD_SIZE", world)):
            monkeypatch.setenv(name, str(value))

    return be
