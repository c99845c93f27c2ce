"""Contact sheets and listings of samples."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

from wdsdist.diagnostics.view import contact_sheet
from wdsdist.diagnostics.view.describe import Style
from wdsdist.samples.member_reader import MemberReader
from wdsdist.shards.manifest import Manifest

OURS = {
    "html", "meta", "title", "style", "body", "header", "h1", "p", "main", "article", "div", "b", "span", "img", "small"
}  # fmt: skip


class Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}


def sheet(manifest: Manifest, path: Path) -> str:
    reader = MemberReader(manifest)
    contact_sheet.write(reader, range(manifest.num_samples), path, title="<b>", style=Style())
    return path.read_text()


def test_a_sheet_has_a_tile_for_each_sample_with_its_pictures(data: Manifest, tmp_path: Path) -> None:
    page = sheet(data, tmp_path / "sheet.html")
    tags = Tags(page).tags
    assert (tags.count("article"), tags.count("img")) == (12, 23)  # an image each, but for a damaged one, and an array
    assert "damaged or cut short" in page
    assert "caption 11" in page


def test_a_sheet_asks_nobody_for_anything(data: Manifest, tmp_path: Path) -> None:
    page = sheet(data, tmp_path / "sheet.html")
    assert all(url.startswith("data:image/") for url in re.findall(r'(?:src|href)="([^"]*)"', page))
    assert "default-src 'none'" in page


def test_markup_in_the_data_is_text_in_a_sheet(hostile: Manifest, tmp_path: Path) -> None:
    found = Tags(sheet(hostile, tmp_path / "sheet.html"))
    assert set(found.tags) <= OURS
    assert "script" not in found.tags
    assert not any(name.startswith("on") for name in found.attributes)
    assert "img" not in found.tags  # nothing in that data is an image


def test_lines_list_members_with_sizes_and_values(data: Manifest) -> None:
    found = list(contact_sheet.lines(MemberReader(data), [2, 3], Style()))
    assert found[0] == ("2", "0002", "shard-000000.tar")
    assert {line[1]: line[3] for line in found[1:8]} == {
        "cls": "2", "ids.npy": "52 tokens: " + " ".join(map(str, range(35))) + " 3...", "jpg": "90 x 60",
        "json": "{width: 102, big: 1180591620717411303424}", "npy": "float32 [4, 6], 2 to 2", "txt": "caption 2",
        "wav": "audio",
    }  # fmt: skip
