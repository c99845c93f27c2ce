"""What cannot be packed, and the words that say why: one row for each message of a source."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.packing.sources.test_idx import IMAGES, LABELS, idx_bytes
from tests.support.tars import plain_tar
from tests.support.trees import unpack
from wdsdist.errors import ArgumentError, NotFoundError, SourceError, WdsdistError
from wdsdist.packing import pack

SAMPLES = [{"txt": "a"}, {"txt": "b"}]
WHOLE, ZIPPED = idx_bytes(IMAGES), gzip.compress(idx_bytes(np.repeat(IMAGES, 200, 0)), mtime=0)


class Random(torch.utils.data.Dataset[dict[str, str]]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> dict[str, str]:
        return {"txt": str(torch.rand(()))}


def images(content: bytes, suffix: str = "") -> dict[str, bytes]:
    return {f"x-images-idx3-ubyte{suffix}": content}


def labelled(labels: Any) -> dict[str, bytes]:
    return {**images(WHOLE), "x-labels-idx1-ubyte": idx_bytes(labels)}


Case = tuple[Mapping[str, str | bytes], str, str, dict[str, Any]]


def case(files: Mapping[str, str | bytes], message: str, at: str = "", **options: Any) -> Case:
    """Return files, the message that packing the one ``at`` a path gives, or all of them, and options of packing."""
    return files, message, at, options


def table(text: str, message: str, **options: Any) -> Case:
    return case({"t.csv": text, "1.jpg": "x"}, message, "t.csv", **options)


FILES: list[Case] = [
    # Folders
    case({"a/1.jpg": "", "a/1.JPG": ""}, r"sample 'a/1' has a member 'jpg', which is there twice, in capitals or not"),
    case({"1.txt": "", "caf\udce9.txt": ""}, r"caf\\xe9\.txt has a name that is not UTF-8"),
    case({"1.txt": "", "1.__key__": ""}, r"sample '1' has a member '__key__', which is not an extension"),
    case({".hidden": "", "README": ""}, r"holds no file that can be a sample \(skipped: 1 hidden file or folder, "),
    case({"v1.5_1.jpg": "", "v1.5_2.jpg": ""}, r"key is 'w\\\\\.', which finds no key in v1\.5_1\.jpg", key=r"w\."),
    case({"data/0.parquet": "", "README.md": ""}, r"holds 1 files of many .* as data/0\.parquet: .* kind='folder'"),
    case({"1.jpg": ""}, "root='.' is for these kinds alone: parquet, arrow, csv", kind="folder", root="."),
    case({"1.jpg": ""}, "kind 'folder', and encode=.* is for these kinds alone: python", encode=len),
    case({"list.json": "[]"}, r"list\.json is of no kind that .* becomes JSON Lines by `jq", "list.json"),
    # Class folders
    case({"train/1.jpg": "", "val/1.jpg": ""}, "holds the splits train, val: pack each into a", class_folders=True),
    case({"1.jpg": "", "2.jpg": ""}, "holds no sample .*, because no file lies in a class folder", class_folders=True),
    case({"a/1.jpg": "", "a/1.cls": ""}, "holds cls files, which give classes already", class_folders=True),
    case({"a/1.jpg": "", "a/1.png": ""}, r"a/1\.jpg and another image differ in their ext", class_folders=True),
    case({"a/1.jpg": "", "b/.1.jpg": ""}, r"class folder .*/b holds no sample", class_folders=True),
    # WebDataset shards
    case({"0.tar": plain_tar([("1.txt", b"")]), "photo.jpg": ""}, r"holds 1 files of many .*, such as 0\.tar: pack"),
    case({"0.tar": plain_tar([("a/../../x.txt", b"")])}, "a key is a string, a path of parts that are not empty"),
    # IDX sets
    case(images(WHOLE[:-7]), r"x-images-idx3-ubyte is not .* reshape array of size 53 into shape \(5,4,3\)\): f", "x"),
    case(images(WHOLE + b"??"), "reshape array of size 62", "x"),
    case(images(b"\0\0\x0e\x03" + b"\xff" * 12), "reshape array of size 0", "x"),
    case(images(b"\0\0\x08\3" + b"\xff" * 4 + bytes(4) + b"\0\0\0\x1c"), r"has the shape \(4294967295, 0, 28\)", "x"),
    case(images(b"\0\0\x08\3\0\0\0\1"), "or not a whole one", "x"),
    case(images(ZIPPED[: len(ZIPPED) // 2], ".gz"), r"\.gz cannot be read \(", "x"),
    case(images(WHOLE, ".gz"), r"\.gz cannot be read \(", "x"),
    *(case(images(magic), "is not an IDX file", "x")
      for magic in (b"", b"\0\0", b"\1\0\x08\3", b"\0\0\7\3", b"\0\0\x08\0", b"\0\0\x08F")),
    *(case(labelled(labels), "does not hold one whole number for each of the 5 images", "x")
      for labels in (LABELS[:4], np.zeros(5, np.float32), np.zeros((5, 1), np.uint8))),
    case(labelled(LABELS), r"holds the IDX sets x: name one, for instance .*/source/x"),
    # Tables
    table("a,b\n", "holds no row that could be a sample: is it"),
    case({"t.jsonl": ""}, "holds no row that could be a sample: is it", "t.jsonl"),
    table("a;b\n1;2\n", r"t\.csv has a single column, 'a;b', whose fields seem to be separated by ';'"),
    case({"t.tsv": "a,b\n1,2\n"}, r"t\.tsv has a single column, .* fields seem to be separated by ','", "t.tsv"),
    table("t.csv,1\nt.csv,2\n", r"t\.csv: the first row holds 't\.csv', a file like the rows below"),
    table("key,n\na,1\nb,2\n\na,3\n", r"t\.csv, row 4: the key 'a' stands in .*t\.csv, row 2 already"),
    table("label,text\n1,a\n,\n", r"t\.csv, row 3: all values that could be a member are missing"),
    table("x,label\n" + "".join(f"x,name {n}\n" for n in range(65_537)),
          r"'label' of .* more than 65,536 different strings.*columns={'label': 'txt'}"),
    *(table("image\n1.jpg\n", "which is not a local folder: name the folder that paths in the table", root=root)
      for root in ("/none", __file__, "s3://bucket/images")),
    *(table("image,label,caption,width,source\n1.jpg,1,a,0.5,web\n", message, columns=columns)
      for columns, message in (
        ({"picture": "jpg"}, "columns names 'picture', but .* has the columns image, label"),
        ({"image": "a/b"}, "it maps names of columns to extensions"),
        ({"image": "__url__"}, "it maps names of columns to extensions"),
        ({"image": "jpg", "label": "jpg"}, "two columns to 'jpg'"),
        ({"image": "__key__", "label": "__key__"}, "two columns to '__key__'"),
        ({"caption": "json"}, "width of .* would become the member json"),
        (["image"], "it maps names of columns"),
        ({"source": "index"}, "column 'source': a str value cannot be encoded as 'index'"),
        (dict.fromkeys(("image", "label", "caption", "width", "source"), ""), "no column that can become a member"),
    )),
    # What `save_to_disk` of datasets writes
    *(case({"state.json": state}, "names no data files")
      for state in ("{", "[]", "{}", '{"_data_files": [{"name": 3}]}')),
    *(case({"s/state.json": f'{{"_data_files": [{{"filename": "{name}"}}]}}', "x.arrow": ""},
           "names no data files that can be read .the folder does not", "s") for name in ("none.arrow", "../x.arrow")),
]  # fmt: skip


@pytest.mark.parametrize(("files", "message", "at", "options"), FILES)
def test_files_that_cannot_be_packed(
    tmp_path: Path, files: Mapping[str, str | bytes], message: str, at: str, options: dict[str, Any]
) -> None:
    data = {path: content.encode() if isinstance(content, str) else content for path, content in files.items()}
    with pytest.raises((SourceError, ArgumentError), match=message):
        pack(unpack(tmp_path / "source", data) / at, tmp_path / "dest", workers=1, **options)
    assert not (tmp_path / "dest" / "index.json").exists()


OBJECTS: list[tuple[Any, dict[str, Any], str]] = [
    *((source, {}, "neither iterated over nor asked for items")
      for source in (7, None, object(), torch.utils.data.Dataset(), Random, lambda: SAMPLES)),
    ([], {}, "list has no items"),
    (iter([]), {}, "list_iterator gave no samples"),
    ({"a": {"txt": "a"}}, {}, "item 0 of dict cannot be read: KeyError"),
    (b"photos", {}, "item 0 of bytes is a int, not a sample"),
    (Random(), {}, "Random gives another item 0 each time.*: turn random transforms off"),
    (SAMPLES, {"class_folders": True}, "list is of the kind .dataset., and class_folders=True is for"),
    ([{"x": torch.ones(2, dtype=torch.bfloat16)}], {}, r"field 'x': numpy has no bfloat16: give value\.float\(\)"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "options", "message"), OBJECTS)
def test_what_python_makes_and_cannot_be_packed(
    tmp_path: Path, source: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(WdsdistError, match=message) as raised:
        pack(source, tmp_path / "dest", workers=1, **options)
    assert isinstance(raised.value, (NotFoundError, SourceError, ArgumentError))
