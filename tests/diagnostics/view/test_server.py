"""The application of `wdsdist view`: what it answers, about good, bad and hostile data."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from httpx2 import Client

import wdsdist
from tests.diagnostics.view.conftest import HOSTILE, client_of
from tests.support.tars import plain_tar
from tests.support.web import served
from wdsdist.diagnostics.view import server
from wdsdist.shards.manifest import Manifest


def about(client: Client, number: int) -> dict[str, dict]:
    found = client.get(f"/api/sample/{number}").json()
    return {member["extension"]: member["about"] for member in found["members"]}


def place(client: Client, number: int, extension: str) -> int:
    found = client.get(f"/api/sample/{number}").json()["members"]
    return next(place for place, member in enumerate(found) if member["extension"] == extension)


def test_a_page_of_samples_has_those_from_its_start_on(client: Client) -> None:
    found = client.get("/api/samples", params={"start": 9, "count": 5}).json()
    assert (found["total"], [one["key"] for one in found["samples"]]) == (12, ["0009", "0010", "0011"])


def test_a_sample_has_its_members_place_code_and_neighbours(client: Client, data: Manifest) -> None:
    found = client.get("/api/sample/5").json()
    assert (found["shard"], found["stored"], found["before"], found["after"]) == ("shard-000001.tar", 1, 4, 6)
    assert found["code"] == "wdsdist.StreamingDataset('shards', decode=True)[5]"
    assert found["columns"] == {"json.width": "105", "cls": "2"}
    content = Path(data.base, "shard-000001.tar").read_bytes()
    text = next(one for one in found["members"] if one["extension"] == "txt")
    assert content[text["offset"] : text["offset"] + text["size"]] == b"caption 5"
    assert client.get("/api/sample/0").json()["before"] is None
    assert client.get("/api/sample/11").json()["after"] is None


def test_an_epoch_has_by_default_the_ranks_that_the_data_set_can_fill(client: Client) -> None:
    found = client.get("/api/epoch").json()
    assert (found["choice"]["ranks"], found["choice"]["batch_size"], found["batches_per_rank"]) == (1, 12, 1)
    assert client.get("/api/epoch", params={"batch_size": 2}).json()["choice"]["ranks"] == 6
    assert client.get("/api/epoch", params={"ranks": 3, "batch_size": 64}).json()["cells"] == []


def test_where_chooses_samples_and_neighbours(client: Client) -> None:
    found = client.get("/api/samples", params={"where": '"json.width" >= 110'}).json()
    assert [one["number"] for one in found["samples"]] == [10, 11]
    among = client.get("/api/sample/4", params={"where": '"cls" = 1'}).json()
    assert (among["before"], among["after"]) == (1, 7)
    outside = client.get("/api/sample/5", params={"where": '"cls" = 1'}).json()
    assert (outside["before"], outside["after"]) == (4, 7)


def test_a_picture_fits_its_size_or_is_an_error_in_its_place(client: Client) -> None:
    found = client.get(f"/picture/0/{place(client, 0, 'jpg')}")
    assert (found.status_code, found.headers["content-type"]) == (200, "image/jpeg")
    array = client.get(f"/picture/0/{place(client, 0, 'npy')}")
    assert array.headers["content-type"] == "image/png"
    refused = client.get(f"/picture/3/{place(client, 3, 'jpg')}")
    assert refused.status_code == 422
    assert "damaged or cut short" in refused.json()["error"]


def test_a_member_is_sent_whole_or_in_ranges(client: Client) -> None:
    url = f"/member/0/{place(client, 0, 'wav')}"
    whole = client.get(url)
    assert whole.headers["content-type"] == "audio/wav"
    assert (whole.content[:4], int(whole.headers["content-length"])) == (b"RIFF", len(whole.content))
    part = client.get(url, headers={"range": "bytes=4-9"})
    assert (part.status_code, part.content) == (206, whole.content[4:10])
    assert part.headers["content-range"] == f"bytes 4-9/{len(whole.content)}"
    assert client.get(url, headers={"range": "bytes=99999999-"}).status_code == 416


def test_a_member_that_is_no_media_is_a_file_to_save(client: Client) -> None:
    found = client.get(f"/member/0/{place(client, 0, 'txt')}")
    assert found.headers["content-type"] == "application/octet-stream"
    assert found.headers["content-disposition"] == 'attachment; filename="0000.txt"'


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/api/sample/12", 404, "there is no sample 12: the data set has 12, numbered from 0"),
        *((path, 404, "there is no") for path in ("/no", "/api/no", "/api/sample/x", "/static/no.js", "/etc/passwd")),
        *((f"/static/{path}", 404, "there is no") for path in ("../server.py", "%2e%2e/server.py", "%2fetc%2fpasswd")),
        ("/static/server.py", 404, "there is no"),
        ("/api/samples?where=read_text('/etc/passwd') <> ''", 422, "where is"),
        ("/api/columns?where=nope > 1", 422, "where is"),
    ],
)
def test_what_there_is_not_or_may_not_be_asked_is_an_error(
    client: Client, path: str, status: int, message: str
) -> None:
    found = client.get(path)
    assert (found.status_code, message in found.json()["error"]) == (status, True)


def test_a_shard_that_was_cut_is_an_error_of_its_samples_alone(shards: Manifest) -> None:
    path = Path(shards.base, "shard-000000.tar")
    path.write_bytes(path.read_bytes()[:2048])
    client = client_of(shards)
    found = client.get("/api/samples").json()["samples"]
    assert ["short of its index" in one.get("error", "") for one in found] == [True] * 4 + [False] * 4
    problems = client.get("/api/problems").json()
    assert [(one["what"], one["shard"]) for one in problems["items"]] == [("damaged", "shard-000000.tar")]


def test_what_was_left_out_is_listed_with_its_reason_shard_by_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        (tmp_path / f"{number}.tar").write_bytes(plain_tar([("a.txt", b"1"), ("b.txt", b"2"), ("a.txt", b"3")]))
    client = client_of(wdsdist.index(tmp_path, on_error="skip"))
    monkeypatch.setattr(server, "_SECONDS", 0)
    for number, following in ((0, 1), (1, None)):
        found = client.get("/api/problems", params={"shard": number}).json()
        (problem,) = found["items"]
        assert (problem["what"], problem["key"], found["next_shard"]) == ("left out", "a", following)
        assert "two members with extension 'txt'" in problem["reason"]


def test_a_shard_that_was_replaced_by_one_of_its_size_is_an_error_in_its_members(shards: Manifest) -> None:
    path = Path(shards.base, "shard-000000.tar")
    path.write_bytes(bytes(path.stat().st_size))
    found = client_of(shards).get("/api/sample/0").json()["members"]
    assert all("does not hold what its index says" in member["about"].get("message", "") or member["about"]["kind"] in
               ("image", "audio") for member in found)  # fmt: skip
    picture = client_of(shards).get("/picture/0/2")
    assert "does not hold what its index says" in picture.json()["error"]


def test_requests_at_the_same_time_get_their_own_samples(client: Client) -> None:
    with ThreadPoolExecutor(8) as users:
        found = list(users.map(lambda number: about(client, number % 12)["txt"]["text"], range(48)))
    assert found == [f"caption {number % 12}" for number in range(48)]


def test_altered_bytes_are_an_error_of_their_member_alone(shards: Manifest) -> None:
    path = Path(shards.base, "shard-000000.tar")
    path.write_bytes(path.read_bytes().replace(b"caption 1", b"CAPTION 1"))
    found = about(client_of(shards), 1)
    assert "the data of member 'txt' of sample '0001'" in found["txt"]["message"]
    assert found["cls"]["kind"] == "number"


def test_a_view_shows_its_samples_only(data: Manifest) -> None:
    client = client_of(data.select('"cls" = 2'))
    assert [one["key"] for one in client.get("/api/samples").json()["samples"]] == ["0002", "0005", "0008", "0011"]
    assert client.get("/api/sample/1").json()["stored"] == 1  # of shard 1


def test_samples_of_an_exploded_view_say_which_part_of_their_record_they_are(data: Manifest) -> None:
    view = data.explode(3)
    client = client_of(view)
    assert client.get("/api/sample/4").json()["part"] == [1, 3]
    assert [one["part"] for one in client.get("/api/samples").json()["samples"]][:4] == [[0, 3], [1, 3], [2, 3], [0, 3]]
    assert client_of(data).get("/api/sample/4").json()["part"] is None


def test_of_a_remote_shard_only_what_is_looked_at_is_fetched(tmp_path: Path) -> None:
    blob = np.random.default_rng(0).bytes(300_000)
    wdsdist.pack(({"txt": f"text {n}", "bin": blob} for n in range(20)), tmp_path / "shards", shuffle_seed=None)
    with served(tmp_path) as web:
        client = client_of(wdsdist.open(f"{web.url}/shards"))
        assert about(client, 7)["txt"]["text"] == "text 7"
        assert web.bytes_of["shard-000000.tar"] < 20_000


def test_answers_about_hostile_data_are_data_and_never_markup(hostile: Manifest) -> None:
    client = client_of(hostile)
    found = client.get("/api/sample/0")
    assert found.headers["content-type"] == "application/json"
    for number, member in enumerate(found.json()["members"]):
        raw = client.get(f"/member/0/{number}")
        assert raw.headers["content-type"] in ("application/octet-stream", "video/mp4")
        assert raw.headers["x-content-type-options"] == "nosniff"
        assert "sandbox" in raw.headers["content-security-policy"]
        picture = client.get(f"/picture/0/{number}")
        assert picture.status_code == 422, member
        assert picture.headers["content-type"] == "application/json"
    assert HOSTILE in found.text.encode().decode("unicode_escape").replace("\\/", "/") or HOSTILE in json.dumps(
        found.json(), ensure_ascii=False
    ).replace('\\"', '"')


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        *(({"host": host}, 403) for host in ("evil.example:8000", "", "127.0.0.1.evil.example")),
        # Names of loopback are let in with any port, as through a tunnel.
        *(({"host": host}, 200) for host in ("localhost:9999", "127.0.0.1", "[::1]:8000", "LOCALHOST:1")),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://127.0.0.1:8000", "host": "127.0.0.1:8000"}, 200),
        ({"host": "[::1"}, 403),
    ],
)
def test_only_this_machine_and_this_page_are_answered(client: Client, headers: dict[str, str], status: int) -> None:
    assert client.get("/api/data", headers=headers).status_code == status


def test_with_a_token_no_path_is_answered_without_it(data: Manifest) -> None:
    client = client_of(data, token="s3cret")
    for path in ("/", "/api/data", "/S3cret/", "/s3cre/api/data", "/s3cret2/", "/static/s3cret/"):
        assert client.get(path).status_code == 403, path
    for path in ("/s3cret/", "/s3cret/api/data", "/s3cret/static/view.js"):
        assert client.get(path).status_code == 200, path


def test_every_answer_has_a_policy_that_runs_nothing(client: Client) -> None:
    page = client.get("/").headers
    assert "script-src 'self'" in page["content-security-policy"]
    assert "unsafe" not in page["content-security-policy"]
    for path in ("/api/data", "/api/samples", "/picture/0/2", "/member/0/0", "/nothing", "/api/sample/999"):
        found = client.get(path).headers
        assert found["content-security-policy"].startswith("default-src 'none'"), path
        assert (found["x-content-type-options"], found["cross-origin-resource-policy"]) == ("nosniff", "same-origin")


def test_the_page_asks_nobody_else_for_anything() -> None:
    for name in ("view.html", "view.css", "view.js", "epoch.js"):
        text = (Path(server.__file__).parent / "static" / name).read_text()
        assert "://" not in text.replace("http://www.w3.org/2000/svg", ""), name
        assert "innerHTML" not in text, name
        assert "eval(" not in text, name
