"""The key rule: where names are cut; the first dot, unless the user states another."""

from __future__ import annotations

import tarfile
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from webdataset.tariterators import base_plus_ext

import wdsdist
from tests.support.sources import Shards
from tests.support.tars import plain_tar
from wdsdist.diagnostics.exports import export
from wdsdist.diagnostics.verify import verify
from wdsdist.errors import ArgumentError, ShardDamagedError
from wdsdist.shards.tar.member_names import escaped


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
    return [key for key, _ in Shards(manifest).samples()]


def test_one_rule_holds_for_all_tars_and_every_reader(tmp_path: Path) -> None:
    root = shards(tmp_path / "a", "v1.5_1.jpg v1.5_1.txt v1.5_2.jpg", "w1.2.jpg w1.3.jpg", "plain.jpg")
    manifest = wdsdist.index(root, key="last-dot")
    assert keys(manifest) == ["v1.5_1", "v1.5_2", "w1.2", "w1.3", "plain"]
    assert wdsdist.open(root).key_rule == "last-dot"
    assert verify(root) == []
    for path in root.glob("*.wdsindex"):
        path.unlink()  # readers make them again
    assert keys(wdsdist.open(root)) == keys(manifest)
    assert verify(root) == []
    assert keys(wdsdist.index(root)) == ["v1", "w1", "plain"]


def test_more_extensions_than_fields_can_be_are_an_error_that_shows_two_names_and_the_option(tmp_path: Path) -> None:
    root = shards(tmp_path / "a", *(" ".join(f"v1.5_{n}.jpg" for n in range(tar, 120, 12)) for tar in range(12)))
    for act in (wdsdist.index, lambda path: wdsdist.open(sorted(path.glob("*.tar")))):
        with pytest.raises(
            ArgumentError, match=r"have 120 extensions, such as in v1\.5_\d+\.jpg and .* key='last-dot'"
        ) as caught:
            act(root)
        assert caught.value.argument == "key"
    assert not (root / "index.json").exists()
    wdsdist.index(root, key="last-dot")
    assert len(set(keys(wdsdist.open(root)))) == 120


def test_tars_without_an_index_are_opened_by_one_rule(tmp_path: Path) -> None:
    root = shards(tmp_path / "a", "v1.5_1.jpg v1.5_2.jpg", "cat.0.jpg cat.1.jpg")
    both = [root / "0.tar", root / "1.tar"]
    opened = (wdsdist.open(both, key="last-dot") for _ in range(2))  # scanned, and from the indexes that this kept
    assert [keys(one) for one in opened] == [["v1.5_1", "v1.5_2", "cat.0", "cat.1"]] * 2
    (root / "1.tar.wdsindex").unlink()
    with pytest.raises(ArgumentError, match=r"by one key rule \('first-dot' and 'last-dot'\)"):
        wdsdist.open(both)


def test_nothing_is_written_of_the_first_dot(tmp_path: Path) -> None:
    root = shards(tmp_path / "a", "a.seg.png a.json", "b.json")
    wdsdist.index(root)
    assert b"key_rule" not in (root / "index.json").read_bytes() + (root / "0.tar.wdsindex").read_bytes()


def test_a_regular_expression_is_that_of_the_key(tmp_path: Path) -> None:
    root = shards(tmp_path / "a", "v1.5_1.seg.png v1.5_1.jpg v1.5_2.jpg")
    assert keys(wdsdist.index(root, key=r"v\d+\.\d+_\d+")) == ["v1.5_1", "v1.5_2"]
    assert verify(root) == []
    with pytest.raises(ShardDamagedError, match=r"the key rule 'w\.' finds no key in 'v1\.5_1\.seg\.png'"):
        wdsdist.index(root, key="w.")


def test_tools_that_cut_at_the_first_dot_get_no_index_of_other_keys(tmp_path: Path) -> None:
    root = shards(tmp_path / "a", "v1.5_1.jpg v1.5_2.jpg")
    wdsdist.index(root, key="last-dot")
    for name in ("wids", "timm", "energon"):
        with pytest.raises(ArgumentError, match=rf"{name} cuts names at the first dot"):
            export(root, name)
    assert export(root, "dali")[0].read_text().count("v1.5_") == 2


def test_packing_such_tars_makes_keys_that_all_readers_cut_alike(tmp_path: Path) -> None:
    root = shards(tmp_path / "a", "v.1/v1.5_1.jpg v.1/v1.5_1.txt v.1/v1.5_2.jpg", "v.1/v1.5_1.jpg 100%.jpg")
    packed = wdsdist.pack(root, tmp_path / "b", shuffle_seed=None, key="last-dot")
    assert keys(packed) == ["v.1/v1%2E5_1", "v.1/v1%2E5_2", "v.1/v1%2E5_1~2", "100%25"]
    assert packed.key_rule == "first-dot"
    assert packed.extra["source_key_rule"] == "last-dot"
    assert verify(tmp_path / "b") == []
    with tarfile.open(tmp_path / "b" / "shard-000000.tar") as tar:
        names = [base_plus_ext(name) for name in tar.getnames()]  # by webdataset's own rule
    assert [(unquote(key), extension) for key, extension in names] == [
        ("v.1/v1.5_1", "jpg"), ("v.1/v1.5_1", "txt"), ("v.1/v1.5_2", "jpg"), ("v.1/v1.5_1~2", "jpg"), ("100%", "jpg"),
    ]  # fmt: skip
    wdsdist.index(tmp_path / "b")
    assert wdsdist.open(tmp_path / "b").key_rule == "first-dot"
