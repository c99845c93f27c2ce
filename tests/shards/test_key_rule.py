"""The key rule: where names are cut, as the names of a whole data set show."""

from __future__ import annotations

import itertools
import tarfile
from collections import defaultdict
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

import wdsdist
from tests.support.sources import Shards
from tests.support.tars import plain_tar
from wdsdist.diagnostics.exports import export
from wdsdist.diagnostics.verify import verify
from wdsdist.errors import ArgumentError, IndexFormatError, ShardDamagedError
from wdsdist.shards import index as shard_index
from wdsdist.shards import tar as tarformat
from wdsdist.shards.tar import FIRST_DOT, LAST_DOT, decide, escaped, merge, observe

MEANT_BY_THE_LAST_DOT = {
    "versions": "v1.5_0001.jpg, v1.5_0001.txt, v1.5_0002.jpg, v1.5_0002.txt",
    "dates": "IMG.2021.01.jpg, IMG.2021.02.jpg",
    "titles": "x.mp3 | 235342 Track 2.0 (Clean Version).mp3",
    "titles with names in them": "Mr.Jones.mp3 | Track 2.0 x.mp3",
    "pairs of versions": "v1.5.jpg, v1.5.txt, v1.6.jpg, v1.6.txt",
    "a version each": "v1.5.jpg, v1.5.txt | v2.6.jpg, v2.6.txt",
    "compressed": "v1.5_1.json.gz, v1.5_1.jpg, v1.5_2.json.gz, v1.5_2.jpg",
}
MEANT_BY_THE_FIRST_DOT = {
    "fields": "XX.mp4, XX.info.json, XX.mp4.json",
    "several inputs": "sample0.input.jpg, sample0.target.jpg",
    "several images": "1.json, 1.1.jpg, 1.2.jpg | 2.1.jpg, 2.2.jpg, 2.3.jpg",
    "one image of several": "000.0.jpg | 001.0.jpg",
    "resolutions": "k.512x512.jpg, k.256x256.jpg, k.json",
    "compressed": "a.json.gz | b.info.json.gz, b.jpg",
    "a dot at the end": "a.b. | c.jpg",
    "one dot each": "a.jpg, a.txt | b.jpg",
}
UNCLEAR = {
    "numbers alone": "cat.0.jpg, cat.1.jpg",
    "copies": "IMG.jpg, IMG.1.jpg, IMG.2.jpg",
    "fields of versions": "v1.5_1.jpg, v1.5_1.seg.png, v1.5_2.jpg",
    "dots at the end": "IMG.5_0.jpg, IMG.5_1.jpg, IMG.a.",
    "notes on all": "v1.json, v1.5_0001.jpg, v1.5_0002.jpg",
    "names of persons": " | ".join(f"p{number}.a{number}.txt, p{number}.b{number}.txt" for number in range(20)),
}


def rule_of(names: str) -> str:
    """The rule for names, one after another; ``|`` separates those that differ up to the first dot."""
    return decide(merge(observe([group.split(", ")]) for group in names.split(" | ")), "this")


@pytest.mark.parametrize("names", MEANT_BY_THE_LAST_DOT.values(), ids=MEANT_BY_THE_LAST_DOT)
def test_names_that_the_first_dot_would_put_together_are_cut_at_the_last(names: str) -> None:
    assert rule_of(names) == LAST_DOT


@pytest.mark.parametrize("names", MEANT_BY_THE_FIRST_DOT.values(), ids=MEANT_BY_THE_FIRST_DOT)
def test_names_with_fields_or_numbered_members_are_cut_at_the_first_dot(names: str) -> None:
    assert rule_of(names) == FIRST_DOT


@pytest.mark.parametrize("names", UNCLEAR.values(), ids=UNCLEAR)
def test_what_stays_unclear_is_refused_with_two_different_names(names: str) -> None:
    with pytest.raises(ArgumentError, match=r"this holds (\S+) and (\S+): whether .* --key") as raised:
        rule_of(names)
    one, other = str(raised.value).split(": ")[0].removeprefix("this holds ").split(" and ")
    assert one != other
    assert {one, other} <= set(names.replace(" | ", ", ").split(", "))


# The planted truth


WORDS = st.text("abcdefghij", min_size=1, max_size=6)
DOTTED = st.one_of(
    st.builds("{}.{}_{:04}".format, WORDS, st.integers(0, 9), st.integers(0, 9999)),
    st.builds("{}.{}.{:02}".format, WORDS, st.integers(2000, 2030), st.integers(1, 12)),
    st.builds("{}.{}".format, WORDS, st.integers(0, 30)),
    st.builds("{} {}.{} (x)".format, WORDS, st.integers(0, 9), st.integers(0, 9)),
)
PLAIN = st.sampled_from(["jpg", "txt", "json", "mp3", "cls", "json.gz"])
FIELDS = st.sampled_from(["jpg", "seg.png", "info.json", "input.jpg", "target.jpg", "json.gz", "json"])


@st.composite
def planted(draw: st.DrawFn) -> list[tuple[str, list[str]]]:
    """Samples: keys with dots and plain extensions, or keys without and the extensions of fields."""
    if draw(st.booleans()):
        extensions = draw(st.lists(PLAIN, unique=True, min_size=1, max_size=3))
        keys = draw(st.lists(st.one_of(DOTTED, WORDS), unique=True, min_size=1, max_size=8))
        return [(f"d.x/{key}", extensions) for key in keys]
    keys = draw(st.lists(WORDS, unique=True, min_size=1, max_size=8))
    return [(f"d.x/{key}", draw(st.lists(FIELDS, unique=True, min_size=1))) for key in keys]


@given(planted(), st.integers(1, 3))
def test_samples_are_found_as_they_were_meant_or_refused_never_merged_or_torn(
    samples: list[tuple[str, list[str]]], shards: int
) -> None:
    tars = []
    for number in range(shards):
        part = samples[number::shards]
        tars.append(plain_tar((f"{key}.{extension}", b"") for key, extensions in part for extension in extensions))
    indexes = [indexed(content, "auto") for content in tars]
    try:
        rule = decide(merge(one.evidence for one in indexes), "this")
    except ArgumentError:
        return
    found = [indexed(content, rule) for content in tars]
    assert sorted(map(sorted, itertools.chain(*map(members, found)))) == sorted(
        sorted(f"{key}.{extension}" for extension in extensions) for key, extensions in samples
    )
    for guessed, settled in zip(indexes, found, strict=True):
        assert guessed.evidence or members(guessed) == members(settled)


def indexed(content: bytes, rule: str) -> shard_index.ShardIndex:
    found = tarformat.scan(content, label="x.tar")
    return shard_index.from_members(found, size=len(content), sha256="", label="x.tar", key_rule=rule)


def members(index: shard_index.ShardIndex) -> list[list[str]]:
    """The names of the members of each sample."""
    return [
        [f"{index.key(sample)}.{extension}" for extension, _, _ in index.members(sample)]
        for sample in range(index.num_samples)
    ]


@given(st.text("a.%2E5/"))
def test_escaped_keys_have_no_dot_and_can_be_had_back(key: str) -> None:
    assert unquote(escaped(key)) == key
    assert "." not in escaped(key).rpartition("/")[2]


# On files


def shards(root: Path, *tars: str) -> Path:
    """Tars of small members, by their names in one text each."""
    root.mkdir(exist_ok=True)
    for number, names in enumerate(tars):
        (root / f"{number}.tar").write_bytes(plain_tar((name, name.encode()) for name in names.split()))
    return root


def keys(manifest: wdsdist.Manifest) -> list[str]:
    reader = Shards(manifest)
    opened = [reader.shard(number) for number in range(len(manifest.counts))]
    return [one.key(sample) for one in opened for sample in range(one.index.num_samples)]


def test_one_rule_holds_for_all_tars_and_every_reader(tmp_path: Path) -> None:
    root = shards(tmp_path / "a", "v1.5_1.jpg v1.5_1.txt v1.5_2.jpg", "w1.2.jpg w1.3.jpg", "plain.jpg")
    manifest = wdsdist.index(root)
    assert keys(manifest) == ["v1.5_1", "v1.5_2", "w1.2", "w1.3", "plain"]
    assert wdsdist.open(root).key_rule == "last-dot"
    assert verify(root) == []
    for path in root.glob("*.wdsindex"):
        path.unlink()  # readers make them anew
    assert keys(wdsdist.open(root)) == keys(manifest)
    assert verify(root) == []


def test_a_rule_on_record_is_kept_when_tars_are_indexed_again(tmp_path: Path) -> None:
    root = shards(tmp_path / "a", "cat.0.jpg cat.1.jpg")
    with pytest.raises(ArgumentError, match=r"holds cat\.0\.jpg and cat\.1\.jpg"):
        wdsdist.index(root)
    assert sorted(path.name for path in root.iterdir()) == ["0.tar"]
    wdsdist.index(root, key="last-dot")
    assert keys(wdsdist.index(root)) == ["cat.0", "cat.1"]
    assert keys(wdsdist.index(root, key="first-dot")) == ["cat"]


def test_nothing_is_written_of_the_first_dot(tmp_path: Path) -> None:
    root = shards(tmp_path / "a", "a.seg.png a.json", "b.json")
    wdsdist.index(root)
    assert b"key_rule" not in (root / "index.json").read_bytes() + (root / "0.tar.wdsindex").read_bytes()


def test_tars_without_an_index_are_opened_by_one_rule(tmp_path: Path) -> None:
    root = shards(tmp_path / "a", "v1.5_1.jpg v1.5_2.jpg", "cat.0.jpg cat.1.jpg")
    both = [root / "0.tar", root / "1.tar"]
    assert keys(wdsdist.open(both)) == keys(wdsdist.open(both)) == ["v1.5_1", "v1.5_2", "cat.0", "cat.1"]
    with pytest.raises(ArgumentError, match=r"was indexed by the key rule 'last-dot', not by 'first-dot'"):
        wdsdist.open(both, key="first-dot")


def test_an_unclear_tar_is_opened_once_the_rule_is_given(tmp_path: Path) -> None:
    tar = shards(tmp_path / "a", "cat.0.jpg cat.1.jpg") / "0.tar"
    with pytest.raises(ArgumentError, match="whether they are one sample"):
        wdsdist.open(tar)
    assert keys(wdsdist.open(tar, key="last-dot")) == ["cat.0", "cat.1"]


def test_a_regular_expression_is_that_of_the_key(tmp_path: Path) -> None:
    root = shards(tmp_path / "a", "v1.5_1.seg.png v1.5_1.jpg v1.5_2.jpg")
    assert keys(wdsdist.index(root, key=r"v\d+\.\d+_\d+")) == ["v1.5_1", "v1.5_2"]
    assert verify(root) == []
    with pytest.raises(ShardDamagedError, match=r"the key rule 'w\.' finds no key in 'v1\.5_1\.seg\.png'"):
        wdsdist.index(root, key="w.")


@pytest.mark.parametrize(("rule", "error"), [("(", ArgumentError), (3, ArgumentError)])
def test_what_is_no_rule_is_refused(tmp_path: Path, rule: str, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"key is .*'last-dot', or a regular expression"):
        wdsdist.index(tmp_path, key=rule)


def test_a_rule_of_another_type_in_index_json_is_refused(tmp_path: Path) -> None:
    root = shards(tmp_path / "a", "v1.5_1.jpg v1.5_2.jpg")
    wdsdist.index(root)
    path = root / "index.json"
    path.write_text(path.read_text().replace('"last-dot"', "3"))
    with pytest.raises(IndexFormatError, match=r"its note 'key_rule' is 3|digest"):
        wdsdist.open(root)


def test_tools_that_cut_at_the_first_dot_get_no_index_of_other_keys(tmp_path: Path) -> None:
    root = shards(tmp_path / "a", "v1.5_1.jpg v1.5_2.jpg")
    wdsdist.index(root)
    for name in ("wids", "timm", "energon"):
        with pytest.raises(ArgumentError, match=rf"{name} cuts names at the first dot"):
            export(root, name)
    assert export(root, "dali")[0].read_text().count("v1.5_") == 2


def test_packing_such_tars_makes_keys_that_all_readers_cut_alike(tmp_path: Path) -> None:
    root = shards(tmp_path / "a", "v.1/v1.5_1.jpg v.1/v1.5_1.txt v.1/v1.5_2.jpg", "v.1/v1.5_1.jpg 100%.jpg")
    packed = wdsdist.pack(root, tmp_path / "b", shuffle_seed=None)
    assert keys(packed) == ["v.1/v1%2E5_1", "v.1/v1%2E5_2", "v.1/v1%2E5_1~2", "100%25"]
    assert packed.key_rule == "first-dot"
    assert packed.extra["source_key_rule"] == "last-dot"
    assert verify(tmp_path / "b") == []
    names = by_the_convention(tmp_path / "b" / "shard-000000.tar")
    assert {unquote(key): found for key, found in names.items()} == {
        "v.1/v1.5_1": ["jpg", "txt"],
        "v.1/v1.5_2": ["jpg"],
        "v.1/v1.5_1~2": ["jpg"],
        "100%": ["jpg"],
    }
    wdsdist.index(tmp_path / "b")
    assert wdsdist.open(tmp_path / "b").key_rule == "first-dot"


def by_the_convention(tar: Path) -> dict[str, list[str]]:
    """Extensions of each key, by webdataset's own rule over the names that `tarfile` lists."""
    from webdataset.tariterators import base_plus_ext

    found = defaultdict(list)
    with tarfile.open(tar) as opened:
        for name in opened.getnames():
            key, extension = base_plus_ext(name)
            found[key].append(extension)
    return dict(found)


def test_files_of_file_managers_in_tars_are_passed_over_and_counted(tmp_path: Path) -> None:
    root = shards(tmp_path / "a", "cat/1.jpg cat/Thumbs.db cat/._1.jpg desktop.ini")
    manifest = wdsdist.index(root)
    assert keys(manifest) == ["cat/1"]
    assert sum(manifest.extra["skipped"].values()) == 3
