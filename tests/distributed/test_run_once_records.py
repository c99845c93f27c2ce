"""What a data_download function leaves for later runs, and when that counts for nothing."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from wdsdist.distributed import data_download
from wdsdist.distributed.results import Outcome, Records
from wdsdist.errors import DestinationError

if TYPE_CHECKING:
    from tests.support.jobs import Process, Stage


def killed(*_: object, **__: object) -> None:
    """End a function as a signal would, with nothing cleared away."""
    raise KeyboardInterrupt


class Planted:
    """Runs code when it is unpickled."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.made),)


def open_to_others(directory: Path) -> None:
    directory.chmod(0o777)


def replaced_by_link(directory: Path) -> None:
    directory.rename(directory.with_name("elsewhere"))
    directory.symlink_to(directory.with_name("elsewhere"))


def given_away(directory: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    os.chown(directory, 12345, -1)


class TestAPlantedRecord:
    @pytest.mark.parametrize("way", [open_to_others, replaced_by_link, given_away])
    def test_runs_no_code_where_its_directory_was_swapped_since(
        self, way: Callable[[Path], None], tmp_path: Path
    ) -> None:
        directory = tmp_path / "records"
        directory.mkdir(mode=0o700)
        records = Records(directory, "key")
        records.write(Outcome("prepare", "run", pickle.dumps(Planted(tmp_path / "ran"))))
        way(directory)

        def read() -> None:
            if outcome := records.read():
                outcome.value()

        with pytest.raises(DestinationError, match=r"(cannot read|not this user's alone any more)"):
            read()
        assert not (tmp_path / "ran").exists()

    @pytest.mark.timeout(30)
    def test_that_is_a_named_pipe_keeps_nobody_waiting(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o700)
        os.mkfifo(tmp_path / "key.outcome")
        with pytest.raises(DestinationError, match="was not written by this user"):
            Records(tmp_path, "key").read()


class TestWhatIsKept:
    @pytest.mark.parametrize(
        "returned",
        [
            "str(made)", "{'train': [[made], 1]}", "wdsdist.Manifest.of(str(made), [])",
            *(pytest.param(one, marks=pytest.mark.slow) for one in (
                "made", "[made, 1]", "{'train': str(made)}", "('x', made)", "Path('made')",
            )),
        ],
    )  # fmt: skip
    def test_it_is_void_once_the_returned_path_is_gone(self, stage: Stage, returned: str) -> None:
        stage.job("returning", returned)

        def run() -> int:
            stage.start()[0].expect("done")
            return len(stage.log)

        assert [run(), run()] == [1, 1]
        (stage.directory / "made").unlink()
        assert [run(), run()] == [2, 2]

    @pytest.mark.parametrize("returned", ["'/no/such/path'", "Path('/no/such/path')", "'/' + 5000 * 'x'", "'/\\0'"])
    def test_a_path_that_never_was_does_not_void_it(self, stage: Stage, returned: str) -> None:
        stage.job("returning", returned)
        for _ in range(2):
            stage.start()[0].expect("done")
        assert len(stage.log) == 1

    def test_a_run_that_was_killed_leaves_no_claim_of_an_earlier_one(self, stage: Stage) -> None:
        stage.job("forced_where_told")

        def run(how: str) -> Process:
            (process,) = stage.start()
            process.expect("ready")
            process.tell(how)
            return process

        run("plain").expect("returned")
        run("forced")
        os.kill(stage.runner(), signal.SIGKILL)
        later = run("plain")
        assert later.expect("returned") == later.pid

    def test_a_changed_function_runs_again_but_a_changed_option_does_not(self, stage: Stage) -> None:
        def run(decorator: str, body: str) -> int:
            stage.write(f"{decorator}\ndef prepare():\n    log()\n    {body}\nprepare()\nsay('done')\n")
            stage.start()[0].expect("done")
            return len(stage.log)

        assert run("@data_download", "return 1") == 1
        assert run("@data_download(\n    timeout=60)", "return 1") == 1
        assert run("@data_download", "return 2") == 2

    def test_a_damaged_record_counts_for_nothing(self, stage: Stage) -> None:
        stage.write("@data_download\ndef prepare():\n    log()\n    return 5\nreport(prepare)\n")
        for damage in (b"", b"{}", b'{"format": 1}\n', b"\xff\n\xff", b"[]\n"):
            stage.start()[0].expect("returned")
            (record,) = stage.directory.glob("tmp/wdsdist-*/*.outcome")
            header, _, payload = record.read_bytes().partition(b"\n")
            record.write_bytes(damage)
        record.write_bytes(header + b"\n" + payload[:-3])
        assert stage.start()[0].expect("returned") == 5
        assert len(stage.log) == 6

    def test_nothing_but_lock_and_record_is_left_behind(self, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        @data_download
        def prepare() -> int:
            return 1

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", killed)
            patch.setattr(Path, "unlink", killed)
            with pytest.raises(KeyboardInterrupt):
                prepare()
        assert [path for path in temporary.glob("wdsdist-*/*") if ".tmp-" in path.name]
        prepare()
        assert sorted(path.suffix for path in temporary.glob("wdsdist-*/*")) == [".lock", ".outcome"]
