"""A program: packs into a file system of 100 KB until that is full, and again once it is larger; prints JSON.

Arguments: source, the folder to mount on, workers, and where to copy the packed data set to. Printed are the status
and the errors of the first run, the files that it left, the status of the second, and which files that kept. It
mounts, so run it in a mount namespace of its own.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path


def main(source: str, disk: str, workers: str, result: str) -> None:
    dest = Path(disk, "dest")

    def pack() -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "wdsdist", "pack", source, str(dest), "--shard-samples", "5", "-q"]
        return subprocess.run([*command, "--workers", workers], capture_output=True, check=False)

    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", disk], check=True)
    full = pack()
    left = {path.name: path.stat().st_ino for path in dest.iterdir()}
    subprocess.run(["mount", "-o", "remount,size=10m", disk], check=True)
    again = pack()
    kept = [name for name, inode in left.items() if (dest / name).exists() and (dest / name).stat().st_ino == inode]
    shutil.copytree(dest, result)
    print(json.dumps([full.returncode, full.stderr.decode(), list(left), again.returncode, kept]))


if __name__ == "__main__":
    main(*sys.argv[1:])
