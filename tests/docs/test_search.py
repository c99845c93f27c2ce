"""The search of the documentation: what people ask stands in a heading or an opening paragraph of the page for it."""

from __future__ import annotations

import re

import pytest

from tests.support.pages import ROOT

QUESTIONS = {
    "filter": "choosing-samples",
    "subset": "choosing-samples",
    "train/val": "choosing-samples",
    "weight imbalanced classes": "recipes/scraped",
    "skip broken images": "samples",
    "corrupt jpeg": "samples",
    "augmentation": "recipes/photos",
    "exact evaluation": "recipes/photos",
    "ImageFolder": "recipes/photos",
    "clip captions": "recipes/clip",
    "tokenize": "recipes/language-model",
    "sequence packing": "variable-lengths",
    "bucketing": "variable-lengths",
    "slurm nodes": "recipes/slurm",
    "preemption checkpoint": "recipes/slurm",
    "resume": "training",
    "batch_size multiple gpus": "training",
    "workers": "tuning",
    "images per second": "tuning",
    "shuffle window": "tuning",
    "s3 credentials": "remote",
    "cache": "remote",
    "slow mounts": "remote",
    "parquet csv": "packing",
    "mix weights": "several",
    "migrate from webdataset": "coming-from",
    "width": "choosing-samples",
    "browser": "view",
    "hang": "troubleshooting",
    "stats": "tuning",
    "slowest rank": "tuning",
    "progress": "tuning",
    "lightning": "frameworks",
    "open_clip": "projects",
}
ASKED = [
    "unequal batches DDP hang",
    "resume mid-epoch",
    "steps LR schedule",
    "how many workers",
    "shard size",
    "shuffle quality",
    "FSDP",
    "memory leak",
    "disk full",
    "too many open files",
    "class names",
    "multi-label",
    "oversample rare classes",
    "DataLoader killed",
    "stack expects each tensor",
    "S3 credentials",
    "convert from MDS",
    "convert from LitData",
    "skip corrupt images",
]


def prominent(page: str) -> set[str]:
    """Return the words of a page's headings and of the paragraph below each, in lower case."""
    page = re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)
    parts = re.findall(r"^#+ .*\n\n?(?:.+\n)*(?:\n(?:[^#\n].*\n)+)?", page, re.MULTILINE)
    return set(re.findall(r"\w+", "\n".join(parts).lower()))


@pytest.mark.parametrize(("question", "name"), QUESTIONS.items())
def test_the_words_of_a_question_are_prominent_on_the_page_for_it(question: str, name: str) -> None:
    words = re.findall(r"\w+", question.lower())
    assert set(words) <= prominent((ROOT / "docs" / f"{name}.md").read_text())


@pytest.mark.parametrize("question", ASKED)
def test_the_faq_has_an_answer_with_a_link(question: str) -> None:
    page = (ROOT / "docs" / "faq.md").read_text()
    entries = re.findall(r"^### (.+)\n\n((?:.+\n)+)", page, re.MULTILINE)
    words = set(re.findall(r"\w+", question.lower()))
    answers = [answer for asked, answer in entries if words <= set(re.findall(r"\w+", f"{asked} {answer}".lower()))]
    assert answers
    assert all("](" in answer for answer in answers)
