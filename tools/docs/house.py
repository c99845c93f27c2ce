"""Draw docs/house.svg: the packages of wdsdist on their floors, made from the code.

The floors and purposes come from tests/house/test_floors.py, which holds the code to them; the modules are those that
each package has. ``make house`` runs it; a test fails while the picture is out of date.
"""

from __future__ import annotations

import html
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "house.svg"

WIDTH, MARGIN, GAP = 1080, 24, 14
TRAINING = {"storage", "cache", "samples", "loader"}
"""The packages that a sample passes on its way to training."""
PACKING = {"packing"}
NOT_SHOWN = {"__main__", "wdsdist"}
LEGEND = "A package imports from lower floors only. Green: a sample's way to training. Amber: a file's way into shards."
STYLE = (
    "rect{stroke:#8a94a6;fill:#f4f6f9}.training{fill:#ddf1e2;stroke:#4f9b63}.packing{fill:#fcefd3;stroke:#c28f2c}"
    "text{font-family:system-ui,'DejaVu Sans',sans-serif;fill:#1c2430}.name{font-size:16px;font-weight:600}"
    ".purpose{font-size:13px}.modules{font-size:11.5px;fill:#5b6675}"
)


def modules_of(package: str) -> list[str]:
    """Name the modules of a package; a package inside it ends in a slash."""
    folder = ROOT / "wdsdist" / package
    packages = [f"{path.parent.name}/" for path in folder.glob("*/__init__.py")]
    return sorted([*packages, *(path.stem for path in folder.glob("[!_]*.py"))])


def text_of(package: str, purpose: str, width: float) -> list[tuple[str, str]]:
    """Return the lines of text in a package's box, each with its class."""
    modules = textwrap.wrap(" · ".join(modules_of(package)).replace(" ·", "\xa0·"), int((width - 24) / 6.1))
    lines = [("purpose", line) for line in textwrap.wrap(purpose, int((width - 24) / 6.8))]
    return [("name", package), *lines, *(("modules", line) for line in modules)]


def box(x: float, y: float, width: float, height: float, package: str, text: list[tuple[str, str]]) -> list[str]:
    """Return the drawing of one package."""
    kind = "training" if package in TRAINING else "packing" if package in PACKING else "other"
    return [
        f'<rect class="{kind}" x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{height:.0f}" rx="6"/>',
        *(
            f'<text class="{style}" x="{x + 12:.0f}" y="{y + 24 + 18 * number:.0f}">{html.escape(line)}</text>'
            for number, (style, line) in enumerate(text)
        ),
    ]


def drawing(floors: list[dict[str, str]]) -> str:
    """Return the picture of the floors, the ground at the bottom, as SVG."""
    parts: list[str] = []
    y = float(MARGIN)
    for floor in reversed(floors):
        shown = {package: purpose for package, purpose in floor.items() if package not in NOT_SHOWN}
        if not shown:
            continue
        width = (WIDTH - 2 * MARGIN - GAP * (len(shown) - 1)) / len(shown)
        texts = {package: text_of(package, purpose, width) for package, purpose in shown.items()}
        height = 18 + 18 * max(map(len, texts.values()))
        for number, (package, text) in enumerate(texts.items()):
            parts += box(MARGIN + number * (width + GAP), y, width, height, package, text)
        y += height + GAP
    parts.append(f'<text class="purpose" x="{MARGIN}" y="{y + 12:.0f}">{LEGEND}</text>')
    size = f"{WIDTH} {y + 28:.0f}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" role="img">',
            f"<title>The packages of wdsdist on their floors</title>\n<style>{STYLE}</style>",
            f'<rect width="{WIDTH}" height="{y + 28:.0f}" style="fill:#fff;stroke:none"/>',
            *parts,
            "</svg>\n",
        ]
    )


def main() -> None:
    """Write the picture."""
    sys.path.insert(0, str(ROOT))
    from tests.house.test_floors import FLOORS

    PICTURE.write_text(drawing(FLOORS), encoding="utf-8")


if __name__ == "__main__":
    main()
