"""The search of the documentation: what people ask stands in a heading or an opening paragraph of the page for it."""

from __future__ import annotations

import re

from tests.support.pages import ROOT

QUESTIONS = {
    "choosing-samples": ["filter", "subset", "train/val", "width"],
    "recipes/scraped": ["weight imbalanced classes"],
    "samples": ["skip broken images", "corrupt jpeg"],
    "recipes/photos": ["augmentation", "exact evaluation", "ImageFolder"],
    "recipes/clip": ["clip captions"],
    "recipes/language-model": ["tokenize"],
    "variable-lengths": ["sequence packing", "bucketing"],
    "recipes/slurm": ["slurm nodes", "preemption checkpoint"],
    "training": ["resume", "batch_size multiple gpus"],
    "tuning": ["workers", "images per second", "shuffle window", "stats", "slowest rank", "progress"],
    "remote": ["s3 credentials", "cache", "slow mounts"],
    "packing": ["parquet csv"],
    "several": ["mix weights"],
    "coming-from": ["migrate from webdataset"],
    "view": ["browser"],
    "troubleshooting": ["hang"],
    "frameworks": ["lightning"],
    "projects": ["open_clip"],
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
    "oversampling rare classes",
    "drop_last",
    "out of memory OOM",
    "slow training",
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
    return words_of("\n".join(parts))


def words_of(string: str) -> set[str]:
    return set(re.findall(r"\w+", string.lower()))


def test_the_words_of_a_question_are_prominent_on_the_page_for_it() -> None:
    for name, questions in QUESTIONS.items():
        missing = words_of(" ".join(questions)) - prominent((ROOT / "docs" / f"{name}.md").read_text())
        assert not missing, name


def test_the_faq_has_an_answer_with_a_link() -> None:
    page = (ROOT / "docs" / "faq.md").read_text()
    entries = re.findall(r"^### (.+)\n\n((?:.+\n)+)", page, re.MULTILINE)
    for question in ASKED:
        answers = [answer for asked, answer in entries if words_of(question) <= words_of(f"{asked} {answer}")]
        assert answers, question
        assert all("](" in answer for answer in answers), question
