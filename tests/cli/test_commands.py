"""What each command prints."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import wdsdist as library
from tests.cli.conftest import Run
from tests.support.programs import command
from wdsdist.diagnostics.summary import summary


def lines(run: subprocess.CompletedProcess[str]) -> list[str]:
    """The output of a command that went well."""
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


class TestPack:
    def test_it_says_what_was_packed_and_where(self, wdsdist: Run, photos: Path, tmp_path: Path) -> None:
        (photos / ".DS_Store").write_text("")
        run = wdsdist("pack", photos, tmp_path / "dest", "--shard-samples", 2, "--class-folders")
        assert lines(run) == [
            f"packed: 6 samples in 3 shards, 21.0 KiB, in {tmp_path / 'dest'}",
            "overhead: 15.1 KiB over 5.9 KiB of payload, 2,578 B a sample, for tar's headers and padding",
        ]
        assert run.stderr.splitlines()[:-1] == [
            f"wdsdist: recognised: folder, {photos}, 6 samples",
            "wdsdist: members: cls in 6, jpg in 6, txt in 3",
            "wdsdist: keys: such as cat/000, of cat/000.jpg",
            "wdsdist: classes: 2, from cat to dog, as cls members",
            "wdsdist: skipped: 1 x hidden file or folder",
        ]

    def test_folders_are_part_of_the_keys_unless_they_are_said_to_be_classes(
        self, wdsdist: Run, photos: Path, tmp_path: Path
    ) -> None:
        run = wdsdist("pack", photos, tmp_path / "dest", "--dry-run")
        assert "folders: 2, such as cat, are part of the keys; --class-folders makes them classes" in lines(run)
        assert not (tmp_path / "dest").exists()

    def test_what_is_left_out_is_counted_and_listed(self, wdsdist: Run, photos: Path, tmp_path: Path) -> None:
        (photos / "cat" / "000.json").symlink_to("nowhere")
        refused = wdsdist("pack", photos, tmp_path / "dest")
        assert refused.returncode == 2
        assert refused.stderr.endswith(
            "cat/000.json is a link to nothing: repair it or remove it; or leave it out with --on-error skip\n"
        )
        run = wdsdist("pack", photos, tmp_path / "dest", "--on-error", "skip")
        assert lines(run)[-1] == f"left out: 1 sample, listed in {tmp_path / 'dest'}/pack-report.jsonl"
        assert "5 of 5 samples, 1 of 1 shard, 1 left out" in run.stderr
        assert lines(wdsdist("pack", photos, tmp_path / "dest", "--on-error", "skip"))[-1] == lines(run)[-1]

    def test_columns_of_a_table_can_be_mapped(self, wdsdist: Run, tmp_path: Path) -> None:
        (tmp_path / "a.jpg").write_bytes(b"x")
        (tmp_path / "list.txt").write_text("image,n,w,name\na.jpg,7,1,k\n")
        options = ["--from", "csv", "--column", "name=__key__", "--column", "n=n.cls", "--column", "w="]
        run = wdsdist("pack", tmp_path / "list.txt", tmp_path / "dest", *options)
        lines(run)
        assert (
            "wdsdist: columns: image as its files are, n as n.cls, w left out, name gives the key"
            in run.stderr.splitlines()
        )
        assert lines(wdsdist("cat", tmp_path / "dest", "k", "n.cls")) == ["7"]

    def test_it_returns_at_once_when_all_is_there(self, wdsdist: Run, shards: Path, photos: Path) -> None:
        run = wdsdist("pack", photos, shards, "--shard-samples", 2, "--no-shuffle", "--class-folders")
        assert lines(run)[0] == f"packed already: 6 samples in 3 shards, 21.0 KiB, in {shards}"
        assert run.stderr == ""

    def test_every_option_reaches_the_library(self, wdsdist: Run, photos: Path, tmp_path: Path) -> None:
        quiet = wdsdist("pack", photos, tmp_path / "dest", "-q")
        assert (lines(quiet), quiet.stderr) == ([], "")
        options = ["--overwrite", "--seed", 5, "--class-folders", "--shard-bytes", "8KiB", "--shard-samples", 4]
        lines(wdsdist("pack", photos, tmp_path / "dest", "-q", "--workers", 1, *options))
        wanted = tmp_path / "wanted"
        library.pack(photos, wanted, shuffle_seed=5, class_folders=True, shard_bytes=8192, shard_samples=4)
        names = {path.name for path in wanted.glob("[!.]*")}
        assert {path.name for path in (tmp_path / "dest").glob("[!.]*")} == names
        assert all((tmp_path / "dest" / name).read_bytes() == (wanted / name).read_bytes() for name in names)
        assert len(list(wanted.glob("*.tar"))) == 3


class TestIndex:
    def test_it_indexes_a_folder_or_some_tars(self, wdsdist: Run, shards: Path) -> None:
        wanted = library.open(shards)
        for path in shards.iterdir():
            if path.suffix != ".tar":
                path.unlink()
        for arguments in ([shards], sorted(shards.glob("*.tar"))):
            run = wdsdist("index", *arguments)
            assert lines(run) == [f"indexed: 6 samples in 3 shards, 21.0 KiB, in {shards}"]
            assert run.stderr.splitlines()[-1].startswith("indexing: 100%, 6 samples, 3 of 3 shards")
            assert library.open(shards).fingerprint == wanted.fingerprint


PRINTED = [
    ("info SHARDS", """\
location:    SHARDS
samples:     6
shards:      3
bytes:       21.0 KiB (21,504)
mean sample: 1006 B
fields:      cls 6, jpg 6, txt 3
missing:     txt in 3 samples
sizes:       sample 1004 B to 1009 B, median 1006 B
             cls 1 B
             jpg 1000 B to 1005 B, median 1002 B
             txt 6 B
checksums:   of each member
classes:     2: cat (3), dog (3)
"""),
    ("ls SHARDS", """\
shard-000000.tar\t2 samples\t8.0 KiB
shard-000001.tar\t2 samples\t7.0 KiB
shard-000002.tar\t2 samples\t6.0 KiB
"""),
    ("ls SHARDS/shard-000002.tar SHARDS/shard-000000.tar", """\
shard-000002.tar\t2 samples\t6.0 KiB
shard-000000.tar\t2 samples\t8.0 KiB
"""),
    ("ls SHARDS --samples", """\
0\tcat/000\tshard-000000.tar\tcls (1 B), jpg (1000 B), txt (6 B)
1\tcat/002\tshard-000000.tar\tcls (1 B), jpg (1002 B), txt (6 B)
2\tcat/004\tshard-000001.tar\tcls (1 B), jpg (1004 B)
3\tdog/001\tshard-000001.tar\tcls (1 B), jpg (1001 B), txt (6 B)
4\tdog/003\tshard-000002.tar\tcls (1 B), jpg (1003 B)
5\tdog/005\tshard-000002.tar\tcls (1 B), jpg (1005 B)
"""),
    ("cat SHARDS cat/002 JPG", "\x02" * 1002),
    ("cat SHARDS 1 txt", "note 2"),
    ("cat SHARDS dog/003", "dog/003\tshard-000002.tar\ncls\t1 B\njpg\t1003 B\n"),
    ("show SHARDS -n 1 --where \"txt.bytes\"=6", "0\tcat/000\tshard-000000.tar\n\tcls\t1 B\t0 cat\n"),
    ("verify SHARDS", "verified: 6 samples in 3 shards, 21.0 KiB, no damage\n"),
    ("--version", f"wdsdist, version {library.__version__}\n"),
]  # fmt: skip


def test_what_commands_print(wdsdist: Run, shards: Path) -> None:
    for words, printed in PRINTED:
        run = wdsdist(*words.replace("SHARDS", str(shards)).split())
        assert run.returncode == 0, run.stderr
        assert run.stdout.startswith(printed.replace("SHARDS", str(shards))), words
        if not words.startswith("show"):
            assert len(run.stdout) == len(printed.replace("SHARDS", str(shards))), words


class TestInfo:
    def test_it_shows_columns_views_and_generations(self, wdsdist: Run, shards: Path, photos: Path) -> None:
        data = library.open(shards).add_columns(fields=["txt.length"])
        data.select('"txt.length" > 0').save(shards.parent / "noted")
        (photos.parent / "new" / "cat").mkdir(parents=True)
        (photos.parent / "new" / "cat" / "new.jpg").write_bytes(b"new")
        library.pack(photos.parent / "new", shards, append=True, class_folders=True)
        found = lines(wdsdist("info", shards))
        assert "generations: 1: 6 samples in 3 shards, 2: 7 samples in 4 shards" in found
        shown = "problems:    the column 'txt.length' has values for 3 of the 4 shards that the data set has now: run"
        assert any(line.startswith(shown) for line in found)
        lines(wdsdist("columns", shards, "--field", "txt.length"))
        found = lines(wdsdist("info", shards / ".." / "noted"))
        assert "columns:     txt.length: int, 6" in found
        assert "fields:      cls 3, jpg 3, txt 3" in found

    def test_json_is_for_programs(self, wdsdist: Run, shards: Path) -> None:
        facts = json.loads("\n".join(lines(wdsdist("info", shards, "--json"))))
        assert facts == json.loads(json.dumps(summary(library.open(shards))))
        assert (facts["samples"], facts["payload_bytes"]) == (6, 6 * 1000 + 15 + 6 + 3 * 6)
        assert facts["sizes"]["fields"]["jpg"] == {"min": 1000, "median": 1002.5, "max": 1005}
        assert facts["generations"] == [{"generation": 1, "shards": 3, "samples": 6}]

    def test_fields_of_foreign_tars_come_from_their_indexes(self, wdsdist: Run, shards: Path) -> None:
        for name in ("index.json", ".wdsdist-pack.json"):
            (shards / name).unlink()
        library.index(shards)
        found = lines(wdsdist("info", shards))
        assert "fields:      cls 6, jpg 6, txt 3" in found
        assert "mean sample: 1006 B" in found
        assert "classes:     2: 0 (3), 1 (3)" in found

    def test_indexing_a_packed_data_set_anew_keeps_the_names_of_its_classes(self, wdsdist: Run, shards: Path) -> None:
        library.index(shards)
        assert "classes:     2: cat (3), dog (3)" in lines(wdsdist("info", shards))


class TestLs:
    def test_keys_that_are_not_utf8_are_printed_as_stored(self, process: Run, tmp_path: Path) -> None:
        import tarfile

        with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.GNU_FORMAT, encoding="latin-1") as tar:
            tar.addfile(tarfile.TarInfo("caf\xe9.txt"))
        listed = lines(process("ls", "--samples", tmp_path / "a.tar"))
        assert listed == [f"0\tcaf\udce9\t{tmp_path / 'a.tar'}\ttxt (0 B)"]


class TestCat:
    def test_a_key_goes_before_a_number(self, wdsdist: Run, tmp_path: Path) -> None:
        (tmp_path / "source").mkdir()
        for name in ("0", "1", "5", "aa", "aaa", "ba"):
            (tmp_path / "source" / f"{name}.txt").write_text(f"key {name}")
        library.pack(tmp_path / "source", tmp_path / "dest", shuffle_seed=None)
        for name, key in (("5", "5"), ("2", "5"), ("aa", "aa"), ("aaa", "aaa")):
            assert wdsdist("cat", tmp_path / "dest", name, "txt").stdout == f"key {key}"

    def test_a_key_of_several_samples_asks_for_a_number(self, wdsdist: Run, shards: Path, tmp_path: Path) -> None:
        copy = tmp_path / "copy.tar"
        os.link(shards / "shard-000001.tar", copy)
        run = wdsdist("cat", "{" + f"{shards}/shard-000001.tar,{copy}" + "}", "cat/004")
        assert run.returncode == 2
        assert "2 samples have the key 'cat/004': give the number of one, 0 or 2" in run.stderr


class TestVerify:
    def test_damage_is_one_line_each_and_a_status_of_its_own(self, wdsdist: Run, shards: Path) -> None:
        (shards / "shard-000000.tar").unlink()
        (shards / "shard-000002.tar.wdsindex").unlink()
        run = wdsdist("verify", "--quiet", shards)
        assert run.returncode == 1
        assert run.stdout.splitlines() == [
            "shard-000000.tar: is not there: fetch it, or pack again, which writes what is missing",
            "shard-000002.tar: has no index shard-000002.tar.wdsindex beside it: run `wdsdist index`, or pack again",
        ]
        assert run.stderr == ""


def test_no_command_imports_torch_or_webdataset(photos: Path, tmp_path: Path) -> None:
    dest = str(tmp_path / "dest")
    commands = [
        ["pack", str(photos), dest],
        ["index", dest],
        ["info", dest],
        ["ls", dest],
        ["ls", "--samples", dest],
        ["cat", dest, "0", "jpg"],
        ["verify", dest],
        ["--help"],
    ]
    program = [sys.executable, "-X", "importtime", *command("several_commands", json.dumps(commands))[1:]]
    run = subprocess.run(program, capture_output=True, text=True, check=True)
    assert re.findall(r"<(\d+)>$", run.stdout, re.MULTILINE) == ["0"] * len(commands)
    imported = set(re.findall(r"^import time:.*\| +(\S+)$", run.stderr, re.MULTILINE))
    assert "wdsdist.packing" in imported
    assert not imported & {"torch", "webdataset"}
