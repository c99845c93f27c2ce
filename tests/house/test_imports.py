"""What comes along with an import, what is public, and how errors behave."""

from __future__ import annotations

import inspect
import io
import pickle
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import wdsdist
from wdsdist import errors

ERRORS = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, Exception) and value is not errors.WdsdistError
]
NAMES = sorted(set(wdsdist.__all__) - {"__version__", "batching", "errors", "transforms"})


def modules_after(code: str) -> set[str]:
    """Run code in a fresh Python and return the packages it has imported."""
    code += "\nimport sys\nprint()\nprint(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


UNUSED: list[tuple[str, set[str]]] = [
    ("import wdsdist", {"numpy"}),
    ("import wdsdist; assert set(wdsdist.__all__) <= set(dir(wdsdist))", {"torch", "numpy"}),
    (
        "from wdsdist import data_download, dataDownload, barrier, pack, index, open, verify, Manifest; barrier(1)",
        {"torch", "webdataset"},
    ),
    (
        "import wdsdist, wdsdist.integrations.engines; wdsdist.errors.BadSample; wdsdist.integrations.engines.connect\n"
        "assert 'RandomResizedCrop' in wdsdist.transforms.__all__",
        {"torch", "transformers", "ray", "distributed"},
    ),
    (
        "import wdsdist.cli, wdsdist.packing.sources, wdsdist.diagnostics.verify\n"
        "import wdsdist.cache, wdsdist.shards.open, wdsdist.sampling.mix_order, wdsdist.samples.images.transforms",
        {"torch", "webdataset"},
    ),
    ("import wdsdist.cli", {"numpy", "fsspec", "asyncio"}),
    ("import wdsdist.samples.images.decode, wdsdist.transforms", {"PIL", "torch", "simplejpeg", "cv2"}),
]
"""Code, and packages that it does not import."""


@pytest.mark.parametrize(("code", "unused"), UNUSED)
def test_what_needs_no_package_imports_none(code: str, unused: set[str]) -> None:
    assert not modules_after(code) & unused


@pytest.mark.parametrize(
    "code",
    [
        "from wdsdist.transforms import RandomResizedCrop",
        "import wdsdist.transforms; RandomResizedCrop = wdsdist.transforms.RandomResizedCrop",
        "import wdsdist; RandomResizedCrop = wdsdist.transforms.RandomResizedCrop",
        "from wdsdist import transforms; RandomResizedCrop = transforms.RandomResizedCrop",
        "from wdsdist.transforms import *",
    ],
)
def test_transforms_are_found_under_their_public_name(code: str) -> None:
    names: dict[str, object] = {}
    exec(code, names)
    from wdsdist.samples.images.transforms import RandomResizedCrop

    assert names["RandomResizedCrop"] is RandomResizedCrop


def test_torch_is_imported_where_it_is_asked_for() -> None:
    without = "import sys, wdsdist; sys.modules['torch'] = None; wdsdist.StreamingDataset"  # importing it takes seconds
    with pytest.raises(subprocess.CalledProcessError) as caught:
        modules_after(without)
    assert "'torch' is not a package" in caught.value.stderr


# Public names


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_says_what_it_does_and_is_found_where_it_says_it_lives(name: str) -> None:
    value = getattr(wdsdist, name)
    assert callable(value)
    assert inspect.getdoc(value)
    assert getattr(import_module(value.__module__), value.__name__) is value


def test_the_camel_case_spelling_is_the_same_function() -> None:
    assert wdsdist.dataDownload is wdsdist.data_download


def reference() -> dict[str, str]:
    """The names that the reference lists with where they are defined, but for those that have a page part of their own:
    modules, and what imports a framework."""
    page = (Path(__file__).parents[2] / "docs" / "reference.md").read_text()
    paths = [path for path in re.findall(r"^::: (\S+)$", page, re.MULTILINE) if path != "wdsdist.errors"]
    apart = (
        "wdsdist.batching.values.",
        "wdsdist.integrations.transformers.",
        "wdsdist.samples.images.",
        "wdsdist.samples.marks.",
        "wdsdist.media.clips.",
    )
    return {path.rpartition(".")[2]: path.rpartition(".")[0] for path in paths if not path.startswith(apart)}


def test_the_package_lists_what_the_reference_does() -> None:
    spelled_twice = {"dataDownload", "__version__"}
    assert set(dir(wdsdist)) - spelled_twice == {*reference(), "batching", "errors", "transforms"}


def test_a_name_of_the_reference_is_on_the_package() -> None:
    assert not [n for n, home in reference().items() if getattr(wdsdist, n) is not getattr(import_module(home), n)]


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'wdsdist' has no attribute 'nothing'"):
        wdsdist.nothing  # noqa: B018


# Errors


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_is_ours_refines_a_builtin_says_when_it_is_raised_and_holds_no_control_characters(
    error: type[Exception],
) -> None:
    assert error.__doc__
    assert issubclass(error, errors.WdsdistError)
    builtin = next(base for base in error.__mro__ if base.__module__ == "builtins")
    assert builtin not in {Exception, BaseException, object}
    raised = error("shard \x1b]0;owned\x07\x9b2J\u202egpj\u2028\x7f\x00\rnext.tar:\n\tgone")
    assert str(raised) == r"shard \x1b]0;owned\x07\x9b2J\u202egpj\u2028\x7f\x00\rnext.tar:" + "\n\tgone"
    assert raised.args == (str(raised),)


@pytest.mark.parametrize("reducer", ["python", "dask"])
@pytest.mark.parametrize("error", ERRORS)
def test_an_error_is_made_from_one_message_and_survives_the_way_to_another_process(
    error: type[Exception], reducer: str
) -> None:
    original = error("shard 00012.tar is gone: fetch it again")
    pickler = pickle.Pickler(pickled := io.BytesIO())
    pickler.dispatch_table = {}  # in place of pickle's own, where dask registers tblib's reducer once it is imported
    if reducer == "dask":
        pickler.dispatch_table[error] = pytest.importorskip("tblib.pickling_support").pickle_exception
    pickler.dump(original)
    copy = pickle.loads(pickled.getvalue())
    assert type(copy) is error
    assert str(copy) == str(original) == "shard 00012.tar is gone: fetch it again"
    assert copy.args == original.args
    assert type(error(str(original))) is error  # how torch rebuilds a worker's exception


def test_there_are_errors_to_test() -> None:
    assert len(ERRORS) >= 16
