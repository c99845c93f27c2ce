"""Keys and problems, found shard by shard."""

from __future__ import annotations

from pathlib import Path

import wdsdist
from tests.support.tars import plain_tar
from wdsdist.diagnostics.view import search
from wdsdist.shards.manifest import Manifest


def test_a_string_is_found_in_keys_and_not_across_two_of_them(data: Manifest) -> None:
    assert search.keys(data, "001", shard=0)["items"] == [1, 10, 11]
    assert search.keys(data, "10002", shard=0)["items"] == []  # the end of one key and the beginning of the next
    assert search.keys(data, "", shard=0)["items"] == []
    assert search.keys(data.repeat(2), "0001", shard=0)["items"] == [2, 3]


def test_a_search_goes_on_where_it_stopped(data: Manifest) -> None:
    numbers, shard, calls = [], 0, 0
    while shard is not None:
        part = search.keys(data, "00", shard=shard, seconds=0)
        numbers, shard, calls = numbers + part["items"], part["next_shard"], calls + 1
    assert (numbers, calls) == (list(range(12)), 3)


def test_what_was_left_out_is_listed_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "0.tar").write_bytes(plain_tar([("a.txt", b"1"), ("b.txt", b"2"), ("a.txt", b"3")]))
    (problem,) = search.problems(wdsdist.index(tmp_path, on_error="skip"), shard=0)["items"]
    assert (problem["what"], problem["key"]) == ("left out", "a")
    assert "two members with extension 'txt'" in problem["reason"]
