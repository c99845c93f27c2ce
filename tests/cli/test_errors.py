"""What goes wrong is one line and a status; no traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tests.cli.conftest import Run
from tests.support import forked
from tests.support.programs import command
from tests.support.tars import plain_tar
from wdsdist.cli import _one_line_errors, _with_option
from wdsdist.errors import ArgumentError


def only_error(run: subprocess.CompletedProcess[str]) -> str:
    """The message of a command that failed as it should."""
    assert run.returncode == 2, (run.returncode, run.stderr)
    assert run.stdout == ""
    [line] = run.stderr.splitlines()
    prefix = "wdsdist: error: "
    assert line.startswith(prefix)
    return line.removeprefix(prefix)


def test_a_source_that_does_not_exist(wdsdist: Run, tmp_path: Path) -> None:
    message = only_error(wdsdist("pack", tmp_path / "nowhere", tmp_path / "dest"))
    assert message.startswith(f"{tmp_path / 'nowhere'} does not exist: what can be packed is")
    assert not (tmp_path / "dest").exists()


def test_a_source_without_samples(wdsdist: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    message = only_error(wdsdist("pack", tmp_path / "empty", tmp_path / "dest"))
    assert message == f"{tmp_path / 'empty'} holds no file that can be a sample: is it the right one?"


def test_a_destination_with_another_data_set(wdsdist: Run, photos: Path, shards: Path) -> None:
    options = ["--quiet", "--class-folders", "--no-shuffle"]
    message = only_error(wdsdist("pack", photos, shards, "--shard-samples", 3, *options))
    assert "holds another data set (it has shard_samples=2, not 3): choose another folder, or replace" in message


def test_a_destination_that_cannot_be_written(wdsdist: Run, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    message = only_error(wdsdist("pack", photos, tmp_path / "file" / "dest"))
    assert f"cannot be written: {tmp_path / 'file'} is a file, not a folder" in message


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["pack", "photos", "dest", "--max-side", 0], "--max-side is 0: it must be at least 1"),
        (
            ["pack", "photos", "dest", "--quality", 50],
            "--quality is 50, but no image is encoded as JPEG or WebP: leave it out, or give ",
        ),
        (["pack", "photos", "dest", "--workers", 0], "--workers is 0: it must be at least 1"),
        (["pack", "photos", "dest", "--shard-samples", -1], "--shard-samples is -1: it must be at least 1"),
        (["plan", "--shards", 2, "--samples", 9, "--ranks", 0], "--ranks is 0: it must be"),
        (["plan", "--shards", 2, "--samples", 9, "--num-canonical-replicas", 0], "--num-canonical-replicas is 0"),
        (["pack", "photos", "dest", "--column", "a=b"], "--column is {'a': 'b'}, but"),
    ],
)
def test_options_are_named_as_they_are_typed(wdsdist: Run, photos: Path, given: list[object], told: str) -> None:
    message = only_error(wdsdist(*[photos if part == "photos" else part for part in given]))
    assert message.startswith(told)


@pytest.mark.parametrize(
    ("command", "argument", "shown"),
    [
        ("pack", "shard_samples", "--shard-samples: it is 0"),
        ("cache", "cache_limit", "--cache-limit: it is 0"),  # an option of a command of the group
        ("pack", "elsewhere", "it is 0"),
        ("pack", "", "it is 0"),
    ],
)
def test_an_argument_at_fault_is_shown_as_its_option(command: str, argument: str, shown: str) -> None:
    context = click.Context(click.Group())
    context.invoked_subcommand = command
    assert _with_option(context, ArgumentError("it is 0", argument=argument)) == shown


@pytest.mark.parametrize("command", ["info", "ls", "verify", "index"])
def test_shards_whose_packing_was_cut_off(wdsdist: Run, shards: Path, command: str) -> None:
    (shards / "index.json").unlink()
    message = only_error(wdsdist(command, shards))
    assert message.startswith(f"{shards} has not been packed to the end: run the same `wdsdist pack` again")


@pytest.mark.parametrize("command", ["info", "ls", "verify"])
def test_shards_without_an_index(wdsdist: Run, shards: Path, command: str) -> None:
    (shards / "index.json").unlink()
    (shards / ".wdsdist-pack.json").unlink()
    message = only_error(wdsdist(command, shards))
    assert message.startswith(f"{shards} holds 3 tar files but no index.json: run `wdsdist index {shards}`")


@pytest.mark.parametrize("command", [["index"], ["info"], ["ls"], ["cat", "0"], ["verify"]])
def test_shards_that_do_not_exist(wdsdist: Run, tmp_path: Path, command: list[str]) -> None:
    name, *rest = command
    assert "nowhere" in only_error(wdsdist(name, tmp_path / "nowhere", *rest))


def test_a_note_of_another_type_than_packers_write(wdsdist: Run, shards: Path) -> None:
    index = json.loads((shards / "index.json").read_text())
    index["wdsdist"]["classes"] = 7
    (shards / "index.json").write_text(json.dumps(index))
    assert "(its note 'classes' is 7, not a list of names): make it again" in only_error(wdsdist("info", shards))


def test_a_world_that_its_launcher_got_wrong(shards: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "RANK": "0", "WORLD_SIZE": str(10**12)}
    run = forked.run("-m", "wdsdist", "pack", shards, tmp_path / "dest", env=environment)
    assert only_error(run) == "WORLD_SIZE is '1000000000000': it must be at most 1,048,576"


def test_a_plan_for_more_ranks_than_there_can_be(wdsdist: Run, shards: Path) -> None:
    message = only_error(wdsdist("plan", shards, "--ranks", 10**12))
    assert message == "--ranks is 1,000,000,000,000: it must be between 1 and 1,048,576"


def test_a_tar_that_cannot_be_indexed(wdsdist: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"?" * 5000)
    assert str(tmp_path / "a.tar") in only_error(wdsdist("index", tmp_path / "a.tar"))


def test_a_damaged_shard_under_a_listing(wdsdist: Run, shards: Path) -> None:
    (shards / "shard-000000.tar").write_bytes(b"")
    assert "shard-000000.tar" in only_error(wdsdist("ls", "--samples", shards))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dog/0"], "no sample has the key 'dog/0': `wdsdist ls --samples` lists all keys"),
        (["6"], "no sample has the key '6', nor is there a sample of that number: there are 6, numbered from 0"),
        (["6" * 5000], f"no sample has the key '{'6' * 5000}', nor is there a sample of that number: there are 6, "
         "numbered from 0"),
        (["0", "png"], "sample 'cat/000' of shard-000000.tar has no member 'png': it has cls, jpg, txt"),
    ],
)  # fmt: skip
def test_samples_and_members_that_are_not_there(wdsdist: Run, shards: Path, arguments: list[str], message: str) -> None:
    assert only_error(wdsdist("cat", shards, *arguments)) == message


def test_a_line_break_in_a_name_stays_within_the_line(wdsdist: Run, tmp_path: Path) -> None:
    assert "two lines does not exist" in only_error(wdsdist("pack", tmp_path / "two\nlines", tmp_path / "dest"))


def test_a_bad_option_is_a_usage_error(wdsdist: Run, photos: Path, tmp_path: Path) -> None:
    run = wdsdist("pack", photos, tmp_path / "dest", "--shard-bytes", "64MB!")
    assert run.returncode == 2
    assert "'64MB!' is not a size: write it as 64MiB, 1GB or a number of bytes" in run.stderr
    assert "Traceback" not in run.stderr


def test_an_option_that_the_library_refuses(wdsdist: Run, photos: Path, tmp_path: Path) -> None:
    assert only_error(wdsdist("pack", photos, tmp_path / "dest", "--workers", 0)) == (
        "--workers is 0: it must be at least 1"
    )


def test_a_reader_that_goes_away_is_no_error(shards: Path) -> None:
    process = subprocess.Popen(command("endless_ls", shards), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == b"0\n"
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 128 + signal.SIGPIPE


# The last bytes leave at the end, as they do unless the user's environment says otherwise.
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def test_a_reader_that_was_never_there_is_no_error(shards: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    run = subprocess.run(
        [sys.executable, "-m", "wdsdist", "cat", str(shards), "0", "jpg"],
        stdout=writer,
        stderr=subprocess.PIPE,
        env=BUFFERED,
        check=False,
    )
    os.close(writer)
    assert (run.returncode, run.stderr) == (128 + signal.SIGPIPE, b"")


@pytest.mark.parametrize("command", ["ls SHARDS", "cat SHARDS 0 jpg", "--help"])
def test_a_full_disk_under_the_output_is_one_line(shards: Path, command: str) -> None:
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        run = subprocess.run(
            [sys.executable, "-m", "wdsdist", *command.replace("SHARDS", str(shards)).split()],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert run.returncode == 2
    assert run.stderr == b"wdsdist: error: standard output: No space left on device\n"


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("ls nowhere 2>/dev/full", 2),
        ("--no-such 2>/dev/full", 2),
        ("ls SHARDS >&-", 0),
    ],
)
def test_the_status_is_the_same_where_nobody_can_read_what_is_said(shards: Path, command: str, status: int) -> None:
    words = f"{sys.executable} -m wdsdist {command.replace('SHARDS', str(shards))}"
    run = subprocess.run(["sh", "-c", words], capture_output=True, check=False)
    assert (run.returncode, run.stderr) == (status, b"")


def test_too_little_memory_is_said_where_python_says_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(click.exceptions.Exit), _one_line_errors():
        raise MemoryError
    assert capsys.readouterr().err == "wdsdist: error: there is too little memory\n"


def test_a_current_folder_that_was_removed_is_named(tmp_path: Path) -> None:
    words = f"mkdir gone; cd gone; rmdir ../gone; {sys.executable} -m wdsdist ls data"
    run = subprocess.run(["sh", "-c", words], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert only_error(run).startswith("the current folder does not exist any more")


def test_letters_that_the_output_cannot_encode_are_escaped(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(plain_tar([("\u6f22.txt", b""), ("\u00e9.txt", b""), ("\udcff.txt", b"")]))
    run = subprocess.run(
        [sys.executable, "-m", "wdsdist", "ls", "--samples", str(tmp_path / "a.tar")],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert [line.split(b"\t")[1] for line in run.stdout.splitlines()] == [rb"\u6f22", b"\xe9", b"\xff"]


INTERRUPTED = b"wdsdist: interrupted: the same command goes on where it stopped\n"


def after_recognition(stderr: bytes) -> bytes:
    """Return what a command has said after the summary of what it recognised."""
    assert stderr.startswith(b"recognised: folder, ")
    return stderr.partition(b"are part of the keys; --class-folders makes them classes\n")[2]


@pytest.mark.parametrize(("number", "workers"), [(signal.SIGINT, 1), (signal.SIGINT, 2), (signal.SIGTERM, 2)])
def test_an_interrupt_is_one_line_and_can_be_continued(
    wdsdist: Run, photos: Path, tmp_path: Path, number: signal.Signals, workers: int
) -> None:
    options = [str(photos), str(tmp_path / "dest"), "--shard-samples", "1", "--workers", str(workers)]
    process = subprocess.Popen(
        command("interruptible_pack", *options),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        assert process.stdout.read(workers) == b"x" * workers  # every worker is at work
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # as Ctrl-C does: to all of the group
        else:
            process.terminate()
        process.stdin.close()
        assert after_recognition(process.stderr.read()) == INTERRUPTED
    assert process.returncode == 128 + number
    assert not (tmp_path / "dest" / "index.json").exists()
    assert not list((tmp_path / "dest").glob(".tmp-*"))
    whole = sorted((tmp_path / "dest").glob("*.tar"))
    # What was under way is finished; of the rest, the pool had handed out a few at most.
    assert [path.name for path in whole[:workers]] == [f"shard-{number:06}.tar" for number in range(workers)]
    assert len(whole) < 6
    inodes = {path.name: path.stat().st_ino for path in whole}
    assert wdsdist("pack", *options).returncode == 0
    assert {path.name: path.stat().st_ino for path in whole} == inodes
    assert wdsdist("verify", tmp_path / "dest").returncode == 0


def test_what_tells_all_processes_to_end_leaves_no_temporary_file(photos: Path, tmp_path: Path) -> None:
    """As ``timeout`` and batch systems do."""
    options = [str(photos), str(tmp_path / "dest"), "--shard-samples", "1", "--workers", "2"]
    process = subprocess.Popen(
        command("interruptible_pack", *options),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        assert process.stdout.read(2) == b"xx"  # every worker is at work
        assert list((tmp_path / "dest").glob(".tmp-*"))
        os.killpg(process.pid, signal.SIGTERM)
        assert after_recognition(process.stderr.read()) == INTERRUPTED
    assert process.returncode == 128 + signal.SIGTERM
    assert not list((tmp_path / "dest").glob(".tmp-*"))
