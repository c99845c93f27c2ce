"""One tree of files, as a folder and as every archive of it."""

from __future__ import annotations

import io
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

PHOTOS = {
    f"{name}/{number:03}{extension}": f"{name} {number} {extension} ".encode() * (1 + 97 * number)
    for name in ("cat", "dog", "Zebra")
    for number in range(12)
    for extension in (".jpg", ".json")
}


def unpack(root: Path, files: Mapping[str, bytes]) -> Path:
    """Write files into a folder."""
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def fill(root: Path, *names: str) -> Path:
    """Write files whose content is their own name into a folder."""
    return unpack(root, {name: name.encode() for name in names})


def zip_bytes(files: Mapping[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return the archive that `zipfile` makes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def tool(*command: str) -> Callable[[Path, Path], None]:
    """Return what makes an archive of a folder by a command, run in that folder."""

    def make(root: Path, target: Path) -> None:
        subprocess.run([*command, str(target), "."], cwd=root, check=True, capture_output=True)

    return make


def _by_tarfile(mode: str, format: int) -> Callable[[Path, Path], None]:  # noqa: A002 - tarfile's own name
    def make(root: Path, target: Path) -> None:
        with tarfile.open(target, mode, format=format) as archive:
            archive.add(root, "photos")  # in a folder of its own, as most people do

    return make


def _by_zipfile(compression: int) -> Callable[[Path, Path], None]:
    def make(root: Path, target: Path) -> None:
        with zipfile.ZipFile(target, "w", compression) as archive:
            for path in sorted(root.rglob("*")):
                archive.write(path, f"photos/{path.relative_to(root)}")

    return make


MAKERS: dict[str, Callable[[Path, Path], None]] = {
    "stored.zip": _by_zipfile(zipfile.ZIP_STORED),
    "deflated.zip": _by_zipfile(zipfile.ZIP_DEFLATED),
    "ustar.tar": _by_tarfile("w:", tarfile.USTAR_FORMAT),
    "pax.tar": _by_tarfile("w:", tarfile.PAX_FORMAT),
    "gnu.tar": _by_tarfile("w:", tarfile.GNU_FORMAT),
    "gz.tar.gz": _by_tarfile("w:gz", tarfile.PAX_FORMAT),
    "gnu-tar.tgz": tool("tar", "-czf"),
    "gnu-tar.tar": tool("tar", "-cf"),
    "gnu-tar.tar.zst": tool("tar", "--zstd", "-cf"),
    "bsdtar.tar": tool("bsdtar", "-cf"),
    "bsdtar.zip": tool("bsdtar", "--format=zip", "-cf"),
}
"""By the file's name: what makes an archive of a folder."""
