"""Choose samples of a scraped data set without packing it again: filter, exclude, split, repeat, and train.

Run it in a checkout with the extras ``tables`` and ``images``; it takes a few seconds and downloads nothing:

    python examples/choose_samples.py

It makes a data set in the layout of img2dataset: tars of ``jpg``, ``txt`` and ``json``, and next to each tar a Parquet
file with a row for every URL, also for failed ones, and the counts of the scrape as JSON.
"""

from __future__ import annotations

import argparse
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

import wdsdist

SHARDS, URLS = 4, 150
"""Number of tars, and of URLs per tar."""
LANGUAGES, SHARES = ("en", "de", "sw"), (0.75, 0.2, 0.05)


def scrape(folder: Path) -> None:
    """Write files as img2dataset does: about 10 % of the URLs of each shard fail, and have a row but no sample."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for shard in range(SHARDS):
        rows = []
        with tarfile.open(folder / f"{shard:05}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for number in range(URLS):
                row = make_row(f"{shard:05}{number:04}", rng)
                rows.append(row)
                if row["status"] == "success":
                    image = rng.integers(0, 256, (row["height"], row["width"], 3), dtype=np.uint8)
                    encoded = io.BytesIO()
                    Image.fromarray(image).save(encoded, "jpeg")
                    add(tar, f"{row['key']}.jpg", encoded.getvalue())
                    add(tar, f"{row['key']}.txt", row["caption"].encode())
                    add(tar, f"{row['key']}.json", json.dumps(row).encode())
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{shard:05}.parquet")
        successes = sum(row["status"] == "success" for row in rows)
        stats = {"count": URLS, "successes": successes, "failed_to_download": URLS - successes, "failed_to_resize": 0}
        (folder / f"{shard:05}_stats.json").write_text(json.dumps(stats))


def make_row(key: str, rng: np.random.Generator) -> dict[str, Any]:
    language = str(rng.choice(LANGUAGES, p=SHARES))
    failed = bool(rng.random() < 0.1)
    return {
        "key": key,
        "url": f"https://{rng.integers(40)}.example/{key}.jpg",
        "caption": f"{language}: " + "word " * int(rng.integers(1, 12)),
        "status": "failed_to_download" if failed else "success",
        "error_message": "HTTP Error 404: Not Found" if failed else None,
        "width": None if failed else int(rng.integers(40, 120)),
        "height": None if failed else int(rng.integers(40, 120)),
        "language": language,
        "similarity": None if failed else round(float(rng.uniform(0.1, 0.5)), 3),
    }


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def report(step: str, data: wdsdist.Manifest) -> None:
    print(f"{step}: {data.num_samples:,} samples", flush=True)


def choose(folder: Path, views: Path) -> tuple[Path, Path]:
    """Index the tars, add columns, and save the views for training and validation."""
    data = wdsdist.index(folder)
    report("indexed", data)
    # A field of the small members, values of the image headers, and the table with the rows of the scrape.
    data.add_columns(fields=["txt.length"], probe=["jpg.width", "jpg.height"])
    data.add_columns(join=str(folder / "*.parquet"), only=["url", "similarity", "language"])
    print("columns:", ", ".join(data.columns))

    good = data.select('"similarity" >= 0.2 AND least("jpg.width", "jpg.height") >= 48 AND "txt.length" >= 10')
    report("similar, large enough, and with a caption", good)

    opted_out = [url for url in data.column("url").tolist() if url.startswith(("https://3.", "https://7."))]
    (views.parent / "optout.txt").write_text("\n".join(opted_out))
    good = good.select(exclude=views.parent / "optout.txt", on="url")
    report(f"without the {len(opted_out)} URLs whose owners opted out", good)

    train, val = good.split(train=0.9, val=0.1)
    report("to train on", train)
    report("to validate on", val)

    counts = dict(zip(*np.unique(train.column("language").tolist(), return_counts=True), strict=True))
    print("languages:", ", ".join(f"{name} {count}" for name, count in counts.items()))
    train.select("\"language\" = 'sw'").repeat(8).save(views / "rare")
    train.select("\"language\" <> 'sw'").save(views / "common")
    val.save(views / "val")
    report("rare ones, eight times each", wdsdist.open(views / "rare"))
    return views / "common", views / "rare"


def as_inputs(sample: dict[str, Any]) -> dict[str, Any]:
    """Return an image and the language of its caption, which the model predicts; the images are noise here."""
    image = torch.from_numpy(np.ascontiguousarray(sample["jpg"][:40, :40])).permute(2, 0, 1)
    return {"__key__": sample["__key__"], "image": image, "label": LANGUAGES.index(sample["json"]["language"])}


def train(parts: tuple[Path, Path]) -> None:
    """Train for an epoch on the common samples and the repeated rare samples."""
    dataset = wdsdist.concat(list(map(str, parts)), fields=("jpg", "json"), decode="rgb8", transform=as_inputs, seed=0)
    loader = wdsdist.StreamingDataLoader(dataset, batch_size=16, num_workers=1)
    model = torch.nn.Linear(3 * 40 * 40, len(LANGUAGES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen = torch.zeros(len(LANGUAGES), dtype=torch.int64)
    for batch in loader:
        seen += torch.bincount(batch["label"], minlength=len(LANGUAGES))
        loss = torch.nn.functional.cross_entropy(model(batch["image"].flatten(1) / 255), batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    shown = ", ".join(f"{name} {count}" for name, count in zip(LANGUAGES, seen.tolist(), strict=True))
    print(f"trained {len(loader)} steps on {int(seen.sum())} of {dataset.num_samples} samples: {shown}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("scraped"), help="where the data set and its views go")
    work = parser.parse_args().work
    scrape(work / "data")
    print(f"tried: {SHARDS * URLS} URLs")
    train(choose(work / "data", work / "views"))


if __name__ == "__main__":
    main()
