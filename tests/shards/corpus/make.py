"""Makes the tars of this folder that Python and webdataset write: ``python tests/shards/corpus/make.py``."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from webdataset import TarWriter

HERE = Path(__file__).parent
NAMES = ["0001.jpg", "0001.cls", "folder/0002.seg.png", ".hidden", "none", "__meta__/info.json", "v1.2/a.b.c"]
LONG = ["n" * 120 + ".txt", "f" * 150 + "/" + "g" * 90 + ".txt", "köln/日本.txt"]
KINDS = [tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.CONTTYPE]


def entry(name: str, size: int, **fields: object) -> tarfile.TarInfo:
    """Describe a file."""
    found = tarfile.TarInfo(name)
    found.size = size
    for field, value in fields.items():
        setattr(found, field, value)
    return found


def main() -> None:
    """Write them beside this file."""
    for label, form in (("ustar", tarfile.USTAR_FORMAT), ("gnu", tarfile.GNU_FORMAT), ("pax", tarfile.PAX_FORMAT)):
        with tarfile.open(HERE / f"python-{label}.tar", "w", format=form, encoding="utf-8") as tar:
            for number, name in enumerate(NAMES + (LONG if label != "ustar" else LONG[2:])):
                data = bytes([number]) * (200 * number)
                tar.addfile(entry(name, len(data), mtime=number + (0.5 if label == "pax" else 0)), io.BytesIO(data))
            for kind in KINDS:
                tar.addfile(entry(f"kind-{kind.decode()}.txt", 0, type=kind, linkname="0001.jpg"))
            if label != "ustar":
                tar.addfile(entry("owner.txt", 0, uid=2**40, gid=2**40), io.BytesIO())

    with TarWriter(str(HERE / "webdataset.tar"), encoder=False) as sink:
        for number in range(4):
            sink.write({"__key__": f"köln/{number:04d}", "jpg": b"\xff" * number * 300, "seg.png": b"", "cls": b"3"})
    with TarWriter(str(HERE / "webdataset-plain.tar"), encoder=False, mtime=0) as sink:
        for number in range(4):
            sink.write({"__key__": f"{number:04d}", "jpg": b"\xff" * number * 300, "cls": b"3"})


if __name__ == "__main__":
    main()
