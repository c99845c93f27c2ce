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
from wdsdist.cli import _one_line_errors


def only_error(run: subprocess.CompletedProcess[str]) -> str:
    """The message of a command that failed as it should."""
    assert run.returncode == 2, (run.returncode, run.stderr)
    assert run.stdout == ""
    [line] = run.stderr.splitlines()
    prefix = "wdsdist: error: "
    assert line.startswith(prefix)
    return line.removeprefix(prefix)


MESSAGES = [
    # What the library refuses names the option.
    ("pack PHOTOS DEST --max-side 0", "--max-side is 0: it must be at least 1"),
    ("pack PHOTOS DEST --quality 50", "--quality is 50, but no image is encoded as JPEG or WebP: leave it out"),
    ("pack PHOTOS DEST --workers 0", "--workers is 0: it must be at least 1"),
    ("pack PHOTOS DEST --shard-samples -1", "--shard-samples is -1: it must be at least 1"),
    ("pack PHOTOS DEST --column a=b", "PHOTOS is of the kind 'folder', and --column a=b is for these kinds alone"),
    ("pack PHOTOS DEST --compress gz", "--compress is 'gz': it must be \"zst\", or \"zst:LEVEL\""),
    ("show SHARDS -n 0", "-n is 0: it must be between 1 and 10,000"),
    ("show SHARDS --random 100000000000000000000", "--random is 100,000,000,000,000,000,000: it must be between 0 and"),
    ("view SHARDS --port 65536", "--port is 65,536: it must be between 0 and 65,535"),
    # What the command line refuses names it too, or the help.
    ("pack PHOTOS DEST --shard-bytes 64MB!", "--shard-bytes: SIZE is '64MB!': it must be a number of bytes, or a"),
    ("pack PHOTOS DEST --column image", "--column: 'image' is not a column and its extension: write it as image=jpg"),
    ("pack PHOTOS DEST --column =jpg", "--column: '=jpg' is not a column and its extension: write it as image=jpg"),
    ("pack PHOTOS DEST --address x", "--address goes with --engine dask or ray: see `wdsdist pack --help`"),
    ("pack PHOTOS", ": see `wdsdist pack --help`"),
    ("pack PHOTOS DEST --shards 3", "no such option '--shards'"),
    ("pack PHOTOS DEST --shard-byte 1", "did you mean '--shard-bytes', '--shard-samples'? See `wdsdist pack --help`"),
    ("pack PHOTOS DEST --splits", "PHOTOS holds no folders such as train and val: leave out --splits"),
    ("show SHARDS --where", "requires an argument: see `wdsdist show --help`"),
    ("cache warm SHARDS --node two", "--node: 'two' is not a valid integer"),
    ("cache info --cache-dir ''", "--cache-dir: the folder is '': it must be a path"),
    ("verify SHARDS --source PHOTOS", "--source goes with --repair: give both: see `wdsdist verify --help`"),
    ("columns SHARDS", "the data set has no columns to refresh: say which to add, by fields, probe or join"),
    ("columns SHARDS --probe jpg.widht", "did you mean 'width'?"),
    ("select SHARDS DEST --where \"jpg.byte\">1", "did you mean 'jpg.bytes'?"),
    ("select SHARDS DEST", "say which samples: --where"),
    ("select", ", or a view with --refresh"),
    ("select SHARDS DEST --keys SHARDS/index.json --on txt.byte", "did you mean 'txt.bytes'"),
    ("select SHARDS DEST --sample many", "--sample is 'many': it must be a share above 0"),
    ("select SHARDS SHARDS/index.json --sample 1", "exists: name another file"),
    ("split SHARDS DEST train", "must be a name of its own and a share"),
    ("split SHARDS DEST a=many", "the share of 'a' is 'many': it must be above 0"),
    ("nonsense", "no such command 'nonsense': see `wdsdist --help`"),
    ("plan SHARDS --ranks 0", "--ranks is 0: it must be between 1 and 1,048,576"),
    ("plan SHARDS --epoch -1", "--epoch is -1: it must be between 0 and"),
    ("plan SHARDS --seed -1", "--seed is -1: it must be between 0 and"),
    ("plan SHARDS --shard-bytes 9999PB", "--shard-bytes is 9,999,"),
    ("plan", "missing argument '"),
    ("plan SHARDS --batches TokenBudget(512)", "missing 1 required keyword-only argument: 'length'"),
    ("plan SHARDS --batches TokenBudget(20,length='jpg.bytes')", "longer than tokens=20"),
    ("plan SHARDS --batches Budget(20)", "'Budget' is not one of Buckets, LengthGroups, PackedRows, TokenBudg"),
    ("plan SHARDS --batches Buckets(8,by=open('/etc/passwd'))", "malformed node"),
    ("plan SHARDS --batches Buckets(", "write it as in Python"),
    ("plan SHARDS --batches Buckets(8,by='nowhere')", "nowhere"),
    # Sources, destinations and shards.
    ("pack NOWHERE DEST", "NOWHERE does not exist"),
    ("pack EMPTY DEST", "EMPTY holds no file that can be a sample: is it the right one?"),
    ("pack PHOTOS FILE/dest", "FILE/dest cannot be written: Not a directory"),
    ("pack PHOTOS SHARDS --shard-samples 3 --quiet --class-folders --no-shuffle", "holds another data set (it has "
     "shard_samples=2, not 3): choose another folder, or replace"),
    ("index FILE.tar", "FILE.tar"),
    *((f"{name} NOWHERE", "NOWHERE") for name in ("index", "info", "ls", "verify", "plan", "bench")),
    *((f"{name} BARE", "BARE holds 3 tar files but no index.json: run `wdsdist index BARE`")
      for name in ("info", "ls", "verify")),
    *((f"{name} CUT", "CUT has not been packed to the end: run the same `wdsdist pack` again")
      for name in ("info", "ls", "verify", "index")),
    ("cat SHARDS dog/0", "no sample has the key 'dog/0': `wdsdist ls --samples` lists all keys"),
    ("cat SHARDS 6", "no sample has the key or number '6': there are 6, numbered from 0"),
    (f"cat SHARDS {'6' * 5000}", "there are 6, numbered from 0"),
    ("cat SHARDS 0 png", "sample 'cat/000' of shard-000000.tar has no member 'png': it has cls, jpg, txt"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "message"), MESSAGES, ids=[words[:50] for words, _ in MESSAGES])
def test_what_is_wrong_is_one_line(wdsdist: Run, tmp_path: Path, words: str, message: str, photos: Path) -> None:
    if any(name in words for name in ("SHARDS", "BARE", "CUT")):
        from wdsdist.packing import pack

        pack(photos, tmp_path / "SHARDS", shard_samples=2, shuffle_seed=None, class_folders=True)
    for name, lost in (("BARE", ("index.json", ".wdsdist-pack.json")), ("CUT", ("index.json",))):
        if name in words:
            (tmp_path / "SHARDS").rename(tmp_path / name)
            for file in lost:
                (tmp_path / name / file).unlink()
    (tmp_path / "EMPTY").mkdir()
    (tmp_path / "FILE").touch()
    (tmp_path / "FILE.tar").write_bytes(b"?" * 5000)
    before = sorted(tmp_path.iterdir())

    def filled(string: str) -> str:
        for name in ("NOWHERE", "EMPTY", "FILE", "SHARDS", "BARE", "CUT", "DEST"):
            string = string.replace(name, str(tmp_path / name))
        return string.replace("PHOTOS", str(photos))

    assert filled(message) in only_error(wdsdist(*(filled(word.replace("''", "")) for word in words.split())))
    assert sorted(tmp_path.iterdir()) == before


def test_a_note_of_another_type_than_packers_write(wdsdist: Run, shards: Path) -> None:
    index = json.loads((shards / "index.json").read_text())
    index["wdsdist"]["classes"] = 7
    (shards / "index.json").write_text(json.dumps(index))
    assert "(its note 'classes' is 7, of another type): make it again" in only_error(wdsdist("info", shards))


def test_a_world_that_its_launcher_got_wrong(shards: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "RANK": "0", "WORLD_SIZE": str(10**12)}
    run = forked.run("-m", "wdsdist", "pack", shards, tmp_path / "dest", env=environment)
    assert only_error(run).startswith("WORLD_SIZE is '1000000000000': it must be")


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


FULL = b"wdsdist: error: standard output: No space left on device\n"


@pytest.mark.parametrize(
    ("command", "status", "said"),
    [
        ("ls SHARDS >/dev/full", 2, FULL),
        ("cat SHARDS 0 jpg >/dev/full", 2, FULL),
        ("ls nowhere 2>/dev/full", 2, b""),
        ("--no-such 2>/dev/full", 2, b""),
        ("ls SHARDS >&-", 0, b""),
    ],
)
def test_where_nobody_can_read_what_is_said_the_status_is_the_same(
    shards: Path, command: str, status: int, said: bytes
) -> None:
    words = f"{sys.executable} -m wdsdist {command.replace('SHARDS', str(shards))}"
    run = subprocess.run(["sh", "-c", words], capture_output=True, check=False)
    assert (run.returncode, run.stderr) == (status, said)


def test_too_little_memory_is_said_where_python_says_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(click.exceptions.Exit), _one_line_errors():
        raise MemoryError
    assert capsys.readouterr().err == "wdsdist: error: there is too little memory\n"


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


@pytest.mark.parametrize(
    ("number", "workers", "to_all"),
    [
        (signal.SIGINT, 2, True),
        (signal.SIGTERM, 2, True),
        pytest.param(signal.SIGINT, 1, True, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 2, False, marks=pytest.mark.slow),
    ],
)
def test_an_interrupt_is_one_line_and_can_be_continued(
    wdsdist: Run, photos: Path, tmp_path: Path, number: signal.Signals, workers: int, to_all: bool
) -> None:
    """Ctrl-C goes to all processes of the group, as do the signals of ``timeout`` and batch systems."""
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
        assert list((tmp_path / "dest").glob(".tmp-*"))
        (os.killpg if to_all else os.kill)(process.pid, number)
        if not (to_all and number == signal.SIGTERM):  # which ends workers that wait, too
            process.stdin.close()
        said = process.stderr.read()
        assert said.startswith(b"wdsdist: recognised: folder, ")
        assert said.endswith(b"\nwdsdist: interrupted: run the same command again to continue\n")
        assert b"Traceback" not in said
    assert process.returncode == 128 + number
    assert not (tmp_path / "dest" / "index.json").exists()
    assert not list((tmp_path / "dest").glob(".tmp-*"))
    whole = sorted((tmp_path / "dest").glob("*.tar"))
    if not (to_all and number == signal.SIGTERM):
        # What was under way is finished; the pool had handed out a few of the others at most.
        assert [path.name for path in whole[:workers]] == [f"shard-{number:06}.tar" for number in range(workers)]
    assert len(whole) < 6
    inodes = {path.name: path.stat().st_ino for path in whole}
    assert wdsdist("pack", *options).returncode == 0
    assert {path.name: path.stat().st_ino for path in whole} == inodes
    assert wdsdist("verify", tmp_path / "dest").returncode == 0
