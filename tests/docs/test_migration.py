"""The lines of docs/coming-from.md that pack data of MosaicML Streaming and LitData run on data by their writers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import wdsdist
from tests.support.pages import blocks

ROOT = Path(__file__).parent.parent.parent
READERS = ROOT / ".venv-readers"

PATH = f"""
import sys, torch
sys.path.append({str(READERS)!r})
try:
    import torchvision
except (ImportError, RuntimeError):  # there is no build of torchvision for this torch on the CPU: its operators lack
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
import numpy as np
from PIL import Image
import wdsdist
"""

WRITERS = {
    "streaming": """
import streaming
with streaming.MDSWriter(out="mds/train", columns={"image": "png", "label": "int"}) as writer:
    for number in range(20):
        writer.write({"image": Image.fromarray(np.full((8, 8, 3), number, np.uint8)), "label": number})
""",
    "litdata": """
import litdata
def item(number):
    return {"image": np.full((4, 4), number, np.uint8), "label": number}
litdata.optimize(item, list(range(20)), output_dir="optimized/train", chunk_size=7, num_workers=1, start_method="fork")
""",
}


@pytest.mark.slow
@pytest.mark.skipif(not (READERS / ".installed").exists(), reason="`make slow` installs the readers of other formats")
@pytest.mark.parametrize(("module", "extension"), [("streaming", "png"), ("litdata", "npy")])
def test_the_lines_of_the_page_pack_data_of_other_formats(module: str, extension: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
    (lines,) = (block.text for block in blocks(page) if f"import {module}\n" in block.text)
    program = tmp_path / "program.py"
    program.write_text(PATH + WRITERS[module] + lines)
    done = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    samples = list(wdsdist.StreamingDataset(tmp_path / "shards", decode={"cls": int, extension: len}))
    assert sorted(sample["cls"] for sample in samples) == list(range(20))
    assert all(sample[extension] > 0 for sample in samples)
