"""Views against brute force: which samples `select`, `split` and `repeat` choose."""

from __future__ import annotations

import gzip
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import wdsdist
from tests.support import tars
from tests.support.examples import fewer
from tests.support.web import Answer, Asked, answering, served
from wdsdist.curation import choose
from wdsdist.errors import ArgumentError, IndexFormatError, NotFoundError, SourceError, StorageError
from wdsdist.shards.manifest import Manifest
from wdsdist.shards.quarantine import BadEntry, Quarantine

SIZES = [[3, 41, 7], [], [0, 12, 41, 41], [99]]
"""Bytes of the ``txt`` of each sample, in each shard."""
KEYS = [f"s{shard}/k{sample}" for shard, sizes in enumerate(SIZES) for sample in range(len(sizes))]
TEXTS = [size for sizes in SIZES for size in sizes]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    folder = tmp_path_factory.mktemp("data")
    for shard, sizes in enumerate(SIZES):
        members = [(f"s{shard}/k{sample}.txt", b"x" * size) for sample, size in enumerate(sizes)]
        (folder / f"{shard}.tar").write_bytes(tars.plain_tar(members))
    return wdsdist.index(folder)


def keys(view: Manifest) -> list[str]:
    return list(view.column("key"))


# select


@fewer(5)
@given(st.integers(0, 100), st.sets(st.sampled_from(KEYS)), st.sets(st.sampled_from(KEYS)))
def test_a_view_has_the_samples_that_brute_force_finds(
    data: Manifest, least: int, wanted: set[str], unwanted: set[str]
) -> None:
    view = data.select(f'"txt.bytes" >= {least}', keys=wanted or None, exclude=unwanted or None, allow_empty=True)
    expected = [
        key
        for key, size in zip(KEYS, TEXTS, strict=True)
        if size >= least and (not wanted or key in wanted) and key not in unwanted
    ]
    assert keys(view) == expected
    assert view.num_samples == len(expected) == view.counts.sum()
    assert view.column("txt.bytes").tolist() == [TEXTS[KEYS.index(key)] for key in expected]


@fewer(10)
@given(st.integers(0, 60), st.integers(0, 60))
def test_a_view_of_a_view_has_the_samples_that_both_choose(data: Manifest, least: int, most: int) -> None:
    both = data.select(f'"bytes" >= {least}', allow_empty=True).select(f'"bytes" <= {most}', allow_empty=True)
    assert keys(both) == keys(data.select(f'"bytes" BETWEEN {least} AND {most}', allow_empty=True))
    assert both.whole.fingerprint == data.fingerprint
    assert [step["samples_after"] for step in both.made_by] == [int((np.array(TEXTS) >= least).sum()), both.num_samples]


def test_an_expression_over_texts_and_no_column_at_all(data: Manifest) -> None:
    assert keys(data.select("\"key\" LIKE 's2/%' AND \"shard\" = '2.tar'")) == [key for key in KEYS if key[:2] == "s2"]
    assert keys(data.select("1 = 1")) == KEYS
    assert keys(data.select("NULL", allow_empty=True)) == []


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ('"txt.byte" > 3', "did you mean 'txt.bytes'"),
        ('"nothing.alike" > 3', "it has key, shard, bytes"),
        ("txt.bytes > 3", 'double quotes: "txt.bytes"'),
        ("", "must be an SQL expression"),
        ('"bytes" >', "syntax error"),
        ('"bytes" > and 3', 'syntax error at or near "and"'),
        ('"key" = "s0"', "put strings in single quotes"),
        ("1); DROP TABLE samples; (", "syntax error"),
        ("(SELECT count(*) FROM read_csv('/etc/passwd')) > 0", "disabled"),
        ('(SELECT max("bytes") FROM samples) > 3', "samples does not exist"),
        ("read_text('/etc/passwd') IS NULL", '"read_text" is a table function'),
        ("len(glob('/*')) > 0", '"glob" is a table function'),
        ('sum("bytes") > 3', "cannot contain aggregates"),
        ("row_number() OVER () > 3", "cannot contain window functions"),
        ("getenv('HOME') = ''", "getenv does not exist"),
        ("true), false) OR 1=1 --", "syntax error"),
        ("1=1) /*", "unterminated /* comment"),
        ('"key" > 3', "annot compare values"),
    ],
)
def test_anything_but_an_expression_over_columns_is_refused_in_one_line(
    data: Manifest, where: str, reason: str
) -> None:
    with pytest.raises(ArgumentError) as refused:
        data.select(where)
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


LISTED = ["s0/k1", "s3/k0", "nobody"]
CONTENTS: dict[str, Any] = {
    "a.txt": "s0/k1\n\ns3/k0\nnobody\n", "a.list": "\n".join(LISTED), "a.json": json.dumps(LISTED),
    "a.jsonl": "".join(f"{json.dumps({'key': key, 'reason': 'it does not decode'})}\n" for key in LISTED),
    "a.csv": "score,key\n" + "".join(f"1,{key}\n" for key in LISTED),
    "a.txt.gz": gzip.compress("\n".join(LISTED).encode()),
    "a.parquet": lambda path: pq.write_table(pa.table({"key": [*LISTED, None]}), path),
    "a.npy": lambda path: np.save(path, np.array(LISTED)),
}  # fmt: skip


def put(path: Path, content: Any) -> Path:
    if callable(content):
        content(path)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("name", CONTENTS)
def test_lists_of_keys_come_from_the_files_that_people_have(data: Manifest, tmp_path: Path, name: str) -> None:
    path = put(tmp_path / name, CONTENTS[name])
    assert keys(data.select(keys=path)) == ["s0/k1", "s3/k0"]
    assert keys(data.select(exclude=str(path))) == [key for key in KEYS if key not in ("s0/k1", "s3/k0")]


def test_the_pairs_of_numbers_of_datacomp_are_texts_of_32_digits(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    uids = ["00000000000000010000000000000002", "ffffffffffffffff0123456789abcdef", "0" * 32]
    members = [(f"{uid}.txt", b"x") for uid in uids]
    (folder / "0.tar").write_bytes(tars.plain_tar(members))
    chosen = np.array([(1, 2), (2**64 - 1, 0x0123456789ABCDEF)], np.dtype("u8,u8"))
    np.save(tmp_path / "subset.npy", chosen)
    assert keys(wdsdist.index(folder).select(keys=tmp_path / "subset.npy")) == uids[:2]


@pytest.mark.parametrize(
    ("name", "content", "kind", "message"),
    [
        ("gone.txt", None, NotFoundError, "gone.txt does not exist"),
        ("folder", Path.mkdir, StorageError, "folder cannot be read: Is a directory"),
        ("a.tar", tars.plain_tar([("a.txt", b"x")]), SourceError, "not a list of values: it holds bytes that no text"),
        ("a.parquet", b"PAR1 not", SourceError, "is not a table that can be read"),
        ("a.csv", b"id\n3\n", ArgumentError, "has no column 'key' to match samples by: (it has|did you mean)"),
        ("a.txt.gz", b"not", SourceError, "is not a list of values"),
        (
            "a.npy",
            lambda path: np.save(path, np.array([{}], object)),
            SourceError,
            "not a list of values: Object",
        ),
        ("a.npy", lambda path: np.save(path, np.zeros((2, 2))), SourceError, "it must be a list of strings or numbers"),
        ("a.json", b'{"key": 1}\n{"key": 2}', SourceError, r"a\.json is not a list.*JSON Lines end in \.jsonl"),
        ("a.json", b'[["a"]]', SourceError, "it must be a list of strings"),
        ("a.jsonl", b'{"key": "s0/k1"}\n{"key": "s3', SourceError, "a.jsonl, row 2: it is not a JSON object"),
    ],
)
def test_a_list_that_cannot_be_read_is_refused(
    data: Manifest, tmp_path: Path, name: str, content: Any, kind: type[Exception], message: str
) -> None:
    path = tmp_path / name if content is None else put(tmp_path / name, content)
    with pytest.raises(kind, match=message):
        data.select(exclude=path)


def test_an_entry_of_a_quarantine_file_that_a_killed_process_cut_off_is_left_out(
    data: Manifest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "bad.jsonl"
    Quarantine(str(path)).add([BadEntry("s0/k1", "0.tar", reason="it is empty"), BadEntry("s3/k0", "3.tar")])
    path.write_bytes(path.read_bytes()[:-9])
    assert keys(data.select(keys=path)) == ["s0/k1"]
    assert f"{path}: 1 entry cut off, such as row 2" in caplog.text
    Quarantine(str(path)).add([BadEntry("s2/k1", "2.tar")])
    assert keys(data.select(exclude=path)) == [key for key in KEYS if key not in ("s0/k1", "s2/k1")]


def test_a_list_that_no_sample_is_in_is_refused_with_values_of_each_column(tmp_path: Path) -> None:
    samples = ({"json": {"url": f"http://h/{n}.jpg", "id": n}, "txt": "x" * n} for n in range(6))
    data = wdsdist.pack(samples, tmp_path / "shards", shuffle_seed=None)
    (tmp_path / "urls.txt").write_text("http://h/3.jpg")
    for listed in (["http://h/3.jpg"], ["http://elsewhere/9.jpg"], tmp_path / "urls.txt"):
        with pytest.raises(
            ArgumentError,
            match=r"^no sample's key is in .*; samples have key '0{9}', json\.url 'http://h/0.*: pass on='json\.url'$",
        ):
            data.select(exclude=listed)
    assert not (tmp_path / "shards" / "columns").exists(), "nothing was written"
    with pytest.raises(
        ArgumentError, match=r"^no sample's json\.id is in .*; samples have json\.id '0', json\.url 'h.* on="
    ):
        data.select(exclude=["http://h/3.jpg"], on="json.id")
    assert not list((tmp_path / "shards" / "columns").glob("*.parquet")), "also not the column that was compared"
    assert keys(data.select(exclude=["http://h/3.jpg"], on="json.url")) == [f"{n:09}" for n in (0, 1, 2, 4, 5)]
    with pytest.raises(ArgumentError, match=r"no column 'json\.ulr': did you mean 'json\.url'\?"):
        data.select(exclude=["http://h/3.jpg"], on="json.ulr")
    with pytest.raises(ArgumentError, match=r"which has '-1'; samples have bytes '34', key"):
        data.select(exclude=[-1], on="bytes")
    assert keys(data.select(keys=[], exclude=["000000001"], allow_empty=True)) == []
    plain = wdsdist.pack([{"json": b'"a"'}, {"json": b"3"}], tmp_path / "plain")
    with pytest.raises(ArgumentError, match="no sample's key is in"):
        plain.select(keys=["a"])


def test_a_view_without_samples_is_refused(data: Manifest) -> None:
    for made in (
        lambda **more: data.select('"bytes" < 0', **more), lambda **more: data.repeat(0, **more),
        lambda **more: data.explode(0, **more), lambda **more: data.split(a=1e-9, b=0.5, **more),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=r"would have no sample of 8: .*allow_empty=True") as refused:
            made()
        assert refused.value.argument == "allow_empty"
        made(allow_empty=True)


# refresh


def grown(folder: Path, numbers: range) -> Manifest:
    samples = ({"__key__": f"{n:03}", "json": {"n": n}, "txt": "x" * n} for n in numbers)
    append = (folder / "index.json").exists()
    return wdsdist.pack(samples, folder, shuffle_seed=None, shard_samples=10, append=append)


def test_a_view_is_made_again_by_its_recorded_way_with_the_views_that_it_was_made_of(tmp_path: Path) -> None:
    data = grown(tmp_path / "data", range(40)).add_columns(fields=["json.n"], workers=1)
    (tmp_path / "optout.txt").write_text("007\n011\n")
    even = data.select('"json.n" % 2 = 1', exclude=tmp_path / "optout.txt").save(tmp_path / "odd")
    half = wdsdist.open(even).split(a=0.5, b=0.5)[1].save(tmp_path / "half")
    [left_out, *_] = keys(wdsdist.open(half))
    last = wdsdist.open(half).select(exclude=[left_out]).repeat("json.n").explode(2).save(tmp_path / "last")
    grown(tmp_path / "data", range(40, 60))
    (tmp_path / "optout.txt").write_text("007\n011\n041\n")
    with pytest.raises(ArgumentError, match="run `wdsdist columns` on it"):
        choose.refresh(last)
    today = wdsdist.open(tmp_path / "data").add_columns(workers=1)
    made = choose.refresh(last)
    assert [path for path, _ in made] == [even, half, last]
    expected = today.select('"json.n" % 2 = 1', exclude=tmp_path / "optout.txt")
    assert keys(wdsdist.open(even)) == keys(expected)
    expected = expected.split(a=0.5, b=0.5)[1]
    assert keys(wdsdist.open(half)) == keys(expected)
    assert keys(wdsdist.open(last)) == keys(expected.select(exclude=[left_out]).repeat("json.n").explode(2))


def test_a_view_that_holds_no_way_to_make_it_again_is_refused(tmp_path: Path) -> None:
    data = grown(tmp_path / "data", range(20))
    with pytest.raises(ArgumentError, match="no column '20 numbers, one a sample'"):
        choose.refresh(data.repeat([2] * 20).save(tmp_path / "view"))
    many = [*data.column("key")[:5], *(f"no{n}" for n in range(1000))]
    with pytest.raises(NotFoundError, match="1,005 values does not exist"):
        choose.refresh(data.select(keys=many).save(tmp_path / "view"))


def test_a_view_is_made_again_by_a_list_in_a_store_only_if_the_user_allows_it(tmp_path: Path) -> None:
    data = grown(tmp_path / "data", range(20))
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "optout.txt").write_text("007\n")
    with served(tmp_path / "lists") as web:
        path = data.select(exclude=f"{web.url}/optout.txt").save(tmp_path / "view")
        web.asked.clear()
        with pytest.raises(IndexFormatError, match=r"made with the list http://.*optout\.txt: .*allow_elsewhere=True"):
            choose.refresh(path)
        assert not web.asked
        assert [view.num_samples for _, view in choose.refresh(path, allow_elsewhere=True)] == [19]


def test_only_views_are_written_over(tmp_path: Path) -> None:
    data = grown(tmp_path / "data", range(20))
    path = wdsdist.open(data.select('"bytes" > 1').save(tmp_path / "first")).select(sample=3).save(tmp_path / "second")
    (tmp_path / "first").write_text("notes")
    assert [place for place, _ in choose.refresh(path)] == [path]
    assert (tmp_path / "first").read_text() == "notes"


def test_a_random_choice_depends_on_the_seed_and_the_keys_alone(data: Manifest) -> None:
    five = data.select(sample=5, seed=3)
    assert five.num_samples == 5
    assert keys(five) == keys(data.select(sample=5, seed=3)) == keys(data.select("1 = 1").select(sample=5, seed=3))
    assert len({tuple(keys(data.select(sample=5, seed=seed))) for seed in range(20)}) > 1
    # A share keeps what it had when others leave.
    half = set(keys(data.select(sample=0.5)))
    left = data.select(exclude=KEYS[:3])
    assert set(keys(left.select(sample=0.5))) == half - set(KEYS[:3])


# split


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 2**64 - 1))
def test_parts_are_disjoint_and_shares_of_one_cover_all(data: Manifest, weights: list[int], seed: int) -> None:
    shares = {f"part{number}": weight / sum(weights) for number, weight in enumerate(weights)}
    parts = data.split(seed=seed, allow_empty=True, **shares)
    assert len(parts) == len(weights)
    assert sorted(key for part in parts for key in keys(part)) == sorted(KEYS)


def test_a_sample_keeps_its_side_as_data_grows_and_groups_stay_together(data: Manifest) -> None:
    some = data.select(exclude=KEYS[:4])
    for part, of_some in zip(
        data.split(a=0.5, b=0.5, allow_empty=True), some.split(a=0.5, b=0.5, allow_empty=True), strict=True
    ):
        assert keys(of_some) == [key for key in keys(part) if key not in KEYS[:4]]
    for seed in range(10):
        sides = [
            set(part.column("shard")) for part in data.split(a=0.5, b=0.5, by="shard", seed=seed, allow_empty=True)
        ]
        assert not sides[0] & sides[1]


def test_a_share_of_a_share_is_chosen_anew(tmp_path: Path) -> None:
    data = wdsdist.pack(({"txt": "x"} for _ in range(1000)), tmp_path / "shards")
    train, rest = data.split(train=0.5, rest=0.5)
    assert abs(train.num_samples - 500) < 80  # five standard deviations
    val, test = wdsdist.open(rest.save(tmp_path / "rest")).split(val=0.5, test=0.5)
    assert abs(val.num_samples - test.num_samples) < 112  # five standard deviations
    assert abs(data.select(sample=0.5).select(sample=0.5).num_samples - 250) < 69
    assert abs(data.repeat(1.5).repeat(1.5).num_samples - 2250) < 174
    assert keys(val) == keys(rest.split(val=0.5, test=0.5)[0])


# repeat


def test_samples_are_repeated_as_a_number_or_a_column_says(data: Manifest) -> None:
    assert Counter(keys(data.repeat(3))) == dict.fromkeys(KEYS, 3)
    expected = Counter({key: size for key, size in zip(KEYS, TEXTS, strict=True) if size})
    assert Counter(keys(data.repeat("txt.bytes"))) == expected
    assert data.repeat(0, allow_empty=True).num_samples == 0
    counts = Counter(keys(data.repeat(1.5)))
    assert set(counts) == set(KEYS)
    assert set(counts.values()) == {1, 2}
    assert Counter(keys(data.repeat(2).repeat(2))) == dict.fromkeys(KEYS, 4)


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_samples_are_repeated_as_an_array_says(data: Manifest, kind: Any, tmp_path: Path) -> None:
    numbers = [number % 3 for number in range(len(KEYS))]
    view = data.repeat(kind(numbers))
    assert keys(view) == [key for key, times in zip(KEYS, numbers, strict=True) for _ in range(times)]
    assert view.made_by[-1]["repeat"] == "8 numbers, one a sample"
    assert wdsdist.open(view.save(tmp_path / "view")).num_samples == sum(numbers)
    assert data.repeat(np.int64(2)).made_by == data.repeat(2).made_by


# explode


@fewer(5)
@given(st.floats(0.1, 50))
def test_each_part_of_each_record_is_a_sample(data: Manifest, per: float) -> None:
    view = data.explode("txt.bytes", per=per)
    totals = [math.ceil(size / per) for size in TEXTS]
    expected = [(key, part, total) for key, total in zip(KEYS, totals, strict=True) for part in range(total)]
    columns = (view.column(name).tolist() for name in ("key", "__part__", "__parts__"))
    assert list(zip(*columns, strict=True)) == expected
    assert view.num_samples == len(expected) == view.counts.sum()
    assert view.columns == (*data.columns, "__part__", "__parts__")


def test_parts_are_chosen_split_and_repeated_as_samples_are(data: Manifest) -> None:
    view = data.select('"txt.bytes" < 50').repeat(2).explode(3)
    assert view.column("__part__").tolist() == [0, 1, 2] * 14
    some = view.select('"__part__" >= 1 AND "__parts__" = 3', keys=KEYS[:2])
    assert list(zip(keys(some), some.column("__part__").tolist(), strict=True)) == [
        (key, part) for key in KEYS[:2] for part in (1, 2, 1, 2)
    ]
    assert some.repeat(2).column("__part__").tolist() == [1, 1, 2, 2] * 4
    for parts in view.split(a=0.5, b=0.5, allow_empty=True):
        assert set(Counter(keys(parts)).values()) <= {6}, "parts of a record are on one side"
    assert view.made_by[-1] == {"explode": 3, "samples_before": 14, "samples_after": 42}
    assert view.prefix(2).column("__part__").tolist() == [0, 1, 2] * 6
    assert "__part__" not in view.whole.columns


IMPOSSIBLE = "counts must be 0 or more, and sum to less than 4,294,967,296"


@pytest.mark.parametrize(
    ("method", "arguments", "reason"),
    [
        ("select", {"sample": 9}, "only 8 samples"),
        ("select", {"sample": -1}, "sample is -1"),
        ("select", {"sample": 0.0}, "above 0"),
        ("select", {"sample": 1.5}, "up to 1.0"),
        ("select", {"sample": True}, "must be"),
        ("select", {"sample": "3"}, "must be"),
        ("split", {}, "needs the share"),
        ("split", {"a": 0}, "above 0"),
        ("split", {"a": 0.6, "b": 0.6}, "sum to 1.2"),
        ("split", {"a": "x"}, "'x'"),
        ("repeat", {"times": "key"}, "holds strings"),
        ("repeat", {"times": "none"}, "no column"),
        ("repeat", {"times": -1}, IMPOSSIBLE),
        ("repeat", {"times": None}, "a number"),
        ("repeat", {"times": [1, 2]}, "an array with a number for each of the 8 samples"),
        ("repeat", {"times": [[1], [1, 2]]}, "an array with a number for each"),
        ("repeat", {"times": [float("nan")] * 8}, IMPOSSIBLE),
        ("repeat", {"times": ["x"] * 8}, "an array with a number for each"),
        ("explode", {"by": "key"}, "holds strings: to explode records"),
        ("explode", {"by": "none"}, "no column 'none'"),
        ("explode", {"by": -1}, IMPOSSIBLE),
        ("explode", {"by": float("nan")}, IMPOSSIBLE),
        ("explode", {"by": 2**40}, IMPOSSIBLE),
        ("explode", {"by": 2**31}, IMPOSSIBLE),
        ("explode", {"by": None}, "an array with a number for each of the 8 samples"),
        ("explode", {"by": 2, "per": 0}, "it must be a number above 0"),
        ("explode", {"by": 2, "per": "x"}, "per is 'x': it must be a number above 0"),
    ],
)
def test_impossible_choices_are_refused(data: Manifest, method: str, arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ArgumentError, match=reason):
        getattr(data, method)(**arguments)


def test_parts_and_records_without_a_value_are_not_exploded(data: Manifest, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="parts of records already"):
        data.explode(2).select('"__part__" = 0').explode(2)
    members = [("a.txt", b"xx"), ("a.cls", b"3"), ("b.txt", b"x")]
    (tmp_path / "0.tar").write_bytes(tars.plain_tar(members))
    some = wdsdist.index(tmp_path)
    with pytest.raises(ArgumentError, match=r"'cls.bytes' has no value for 1 sample:.*IS NOT NULL"):
        some.explode("cls.bytes")
    assert some.select('"cls.bytes" IS NOT NULL').explode("cls.bytes").num_samples == 1


def test_a_list_in_the_store_of_the_data_is_read_with_its_options(data: Manifest, tmp_path: Path) -> None:
    files = {f"/{path.name}": path.read_bytes() for path in Path(data.base).iterdir() if path.is_file()}

    def answer(asked: Asked) -> Answer:
        if asked.headers.get("x-token") != "mine":
            return 403, {}, b""
        content = {**files, "/keys.txt": "\n".join(KEYS[:2]).encode()}.get(asked.path)
        return (404, {}, b"") if content is None else (200, {}, content)

    with answering(answer) as (url, _):
        far = wdsdist.open(url, storage_options={"headers": {"X-Token": "mine"}})
        assert keys(far.select(keys=f"{url}/keys.txt")) == KEYS[:2]
