"""The wheel and the source distribution: what they hold, and that a training loop runs from an installed wheel."""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import wdsdist

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "wdsdist"
WITHOUT_TORCH = ("numpy", "fsspec", "filelock", "braceexpand", "pyyaml", "click", "urllib3", "xxhash")
"""What the command line needs: all requirements but torch and webdataset."""


LOOP = """
import sys, wdsdist
dataset = wdsdist.StreamingDataset(wdsdist.pack(sys.argv[1], "shards"), decode=True)
loader = wdsdist.StreamingDataLoader(dataset, batch_size=100, num_workers=2)
print(wdsdist.__file__, sum(len(batch["cls"]) for batch in loader))
"""


def build(source: Path, output: Path, *targets: str) -> None:
    """Build distributions of a source tree with the back end that pyproject.toml names."""
    chosen = [word for target in targets for word in ("--target", target)]
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", output, *chosen], cwd=source, check=True)


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("distributions")
    build(ROOT, folder, "sdist", "wheel")
    return folder


@pytest.fixture(scope="module")
def wheel(distributions: Path) -> Path:
    return distributions / f"wdsdist-{wdsdist.__version__}-py3-none-any.whl"


@pytest.fixture(scope="module")
def sdist(distributions: Path) -> Path:
    return distributions / f"wdsdist-{wdsdist.__version__}.tar.gz"


def test_a_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    files = {path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert held == {path.relative_to(ROOT).as_posix() for path in files}


def test_a_wheel_requires_what_runs_it_and_leaves_the_rest_to_extras(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        stated = email.message_from_bytes(archive.read(f"wdsdist-{wdsdist.__version__}.dist-info/METADATA"))
    required = [Requirement(line) for line in stated.get_all("Requires-Dist", [])]
    always = {each.name for each in required if each.marker is None}
    assert always >= {"torch", "webdataset", "fsspec", "filelock", "numpy"}
    assert not always & {"pytest", "ruff", "mypy", "pyarrow", "pillow", "ray", "s3fs"}
    assert stated["Requires-Python"] == ">=3.11"


def test_a_source_distribution_has_what_the_commands_of_its_readme_need(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert held >= {"Makefile", "constraints.txt", "conftest.py", "pyproject.toml", "mkdocs.yml", "CITATION.cff"}
    assert held >= {"examples/train_fashion_mnist.py", "tests/house/test_distribution.py", "tools/docs/house.py"}
    assert not {name for name in held if re.search(r"(^|/)(\.venv|demo-data|site|__pycache__)/", name)}


def test_the_citation_and_the_changelog_name_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert citation["version"] == newest[1] == wdsdist.__version__


def newest_other_python() -> Path:
    """Return the newest of the other Pythons of this machine, on the path or as pyenv keeps them."""
    for version in ("3.14", "3.13", "3.12"):
        kept = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
        found = shutil.which(f"python{version}")
        for path in [*kept, *([Path(found)] if found else [])]:
            if not subprocess.run([path, "-V"], capture_output=True).returncode:
                return path
    pytest.skip("there is no other Python here")


@pytest.fixture(scope="module")
def package_index(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip the tests that install packages where pip can get none."""
    folder = tmp_path_factory.mktemp("index")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--retries", "1"]
    done = subprocess.run([*pip, "download", "--no-deps", "--dest", folder, "filelock"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"pip reaches no package index: {done.stderr.strip().rpartition(chr(10))[2]}")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("package_index")
def test_the_command_line_works_on_the_newest_python(wheel: Path, tmp_path: Path) -> None:
    subprocess.run([newest_other_python(), "-m", "venv", tmp_path / "env"], check=True)
    python = tmp_path / "env" / "bin" / "python"
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile"]
    subprocess.run([*pip, "--constraint", ROOT / "constraints.txt", *WITHOUT_TORCH], check=True)
    subprocess.run([*pip, "--no-deps", wheel], check=True)
    program = (python, "-W", "error::DeprecationWarning", "-m", "wdsdist")
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(20):
        (photos / f"{number:02}.txt").write_text(f"text {number}")
    for command in (
        ("pack", photos, "shards"), ("index", "shards"), ("info", "shards"), ("ls", "--samples", "shards"),
        ("cat", "shards", "0", "txt"), ("verify", "shards"), ("plan", "shards", "--ranks", "2"), ("cache", "info"),
    ):  # fmt: skip
        run = subprocess.run([*program, *command], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert run.returncode == 0, f"{command}: {run.stdout}{run.stderr}"


@pytest.mark.slow
@pytest.mark.timeout(1200)  # most of it is pip, which a busy machine slows down
@pytest.mark.usefixtures("package_index")
def test_a_loop_runs_from_a_wheel_made_of_the_source_distribution(sdist: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    source = tmp_path / sdist.name.removesuffix(".tar.gz")
    build(source, tmp_path, "wheel")
    venv.create(tmp_path / "env", with_pip=True)
    programs = tmp_path / "env" / "bin"
    alone = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}

    def run(*words: str | Path) -> str:
        result = subprocess.run(words, cwd=tmp_path, env=alone, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    pip = (programs / "python", "-m", "pip", "--disable-pip-version-check")
    run(*pip, "install", "--quiet", "--no-compile", "--constraint", ROOT / "constraints.txt", *tmp_path.glob("*.whl"))
    run(*pip, "check")
    installed = run(*pip, "list")
    assert not re.search(r"(?m)^(pytest|pyarrow|pillow|ray|s3fs|hatchling) ", installed)

    where, samples = run(programs / "python", "-c", LOOP, source / "examples" / "data" / "t10k").split()
    assert Path(where).is_relative_to(tmp_path / "env")
    assert samples == "10000"
