"""Samples as lines."""

from __future__ import annotations

from wdsdist.diagnostics.view import sample_lines
from wdsdist.diagnostics.view.describe import Style
from wdsdist.samples.member_reader import MemberReader
from wdsdist.shards.manifest import Manifest


def test_lines_list_members_with_sizes_and_values(data: Manifest) -> None:
    found = list(sample_lines.lines(MemberReader(data), [2, 3], Style()))
    assert found[0] == ("2", "0002", "shard-000000.tar")
    assert {line[1]: line[3] for line in found[1:8]} == {
        "cls": "2", "ids.npy": "52 tokens: " + " ".join(map(str, range(35))) + " 3...", "jpg": "90 x 60",
        "json": "{width: 102, big: 1180591620717411303424}", "npy": "float32 [4, 6], 2 to 2", "txt": "caption 2",
        "wav": "audio",
    }  # fmt: skip
