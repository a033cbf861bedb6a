"""Public buckets: listings of GCS and S3, their hashes, and what they refuse."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st
from server import Page, Server

from rlds_cli.base import settings
from rlds_cli.base.http.client import RetryPolicy
from rlds_cli.base.settings import Settings
from rlds_cli.errors import DownloadFailed, Offline, UnsafeArchive, WrongHash
from rlds_cli.make.downloads import listing
from rlds_cli.make.downloads.fetch import fetching, planning
from rlds_cli.places import RemoteFile, as_url
from rlds_cli.places.sources import bucket_listing

HASTY = RetryPolicy(attempts=3, first=0.001, longest=0.01, asked=1.0, connect=60.0, read=60.0)
ATARI = {
    "atari/Alien/run_1-00000-of-00002": b"first of run 1",
    "atari/Alien/run_1-00001-of-00002": b"second of run 1",
    "atari/Alien/run_10-00000-of-00001": b"run 10",
    "dqn/Pong/1/replay_logs/": b"",
    "dqn/Pong/1/replay_logs/$store$_action_ckpt.0.gz": b"\x1f\x8b zero",
    "dqn/Pong/1/replay_logs/$store$_action_ckpt.2.gz": b"\x1f\x8b two",
    "dqn/Pong/1/replay_logs/$store$_action_ckpt.10.gz": b"\x1f\x8b ten",
    "dqn/Pong/1/replay_logs_old/add_count_ckpt.0.gz": b"\x1f\x8b old",
    "dqn/Pong/10/replay_logs/add_count_ckpt.0.gz": b"\x1f\x8b other",
    "kuka/0.1.0/a b&c.tfrecord": b"spaces",
    "kuka/0.1.0/features.json": b"{}",
    "kuka_more/0.1.0/features.json": b"[]",
}
SCHEMES = ["gs", "s3"]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "*")
    with Server() as running:
        yield running


@pytest.fixture
def where(server: Server, tmp_path: Path) -> Settings:
    return server.settings(tmp_path)


@pytest.fixture(scope="module")
def hostile() -> Iterator[Server]:
    with Server() as running:
        yield running


def listed(where: Settings, *urls: str, **more: Any) -> tuple[RemoteFile, ...]:
    return listing.list_files(urls, where, policy=HASTY, **more)


def brought(files: tuple[RemoteFile, ...], where: Settings, directory: Path) -> dict[str, bytes]:
    came = fetching.fetch(planning.plan(files, directory, where), where, policy=HASTY)
    return {c.file.path: c.path.read_bytes() for c in came}


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("page_size", [1, 2, 1000])
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("dqn/Pong/1/replay_logs", [f"$store$_action_ckpt.{k}.gz" for k in (0, 2, 10)]),
        ("dqn/Pong/1/replay_logs/", [f"$store$_action_ckpt.{k}.gz" for k in (0, 2, 10)]),
        ("kuka/0.1.0", ["a b&c.tfrecord", "features.json"]),
        ("kuka", ["0.1.0/a b&c.tfrecord", "0.1.0/features.json"]),
        ("kuka/0.1.0/features.json", ["features.json"]),
        ("atari/Alien/run_1", ["run_1-00000-of-00002", "run_1-00001-of-00002"]),
        ("atari/*/run_1-*", ["Alien/run_1-00000-of-00002", "Alien/run_1-00001-of-00002"]),
    ],
)
def test_files_directories_prefixes_and_patterns(
    server: Server, where: Settings, tmp_path: Path, scheme: str, page_size: int, path: str, expected: list[str]
) -> None:
    server.add_bucket("data", ATARI, page_size=page_size)
    files = listed(where, f"{scheme}://data/{path}")
    assert [f.path for f in files] == expected
    names = {f.path: f.key.removeprefix("data/") for f in files}
    assert brought(files, where, tmp_path / "d") == {p: ATARI[n] for p, n in names.items()}


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_a_bucket_says_of_a_file_is_recorded(server: Server, where: Settings, tmp_path: Path, scheme: str) -> None:
    server.add_bucket("data", ATARI)
    (file, _) = listed(where, f"{scheme}://data/atari/Alien/run_1")
    md5 = hashlib.md5(b"first of run 1").hexdigest()
    assert (file.size, file.md5, file.sha256) == (14, md5, None)
    assert file.urls == (f"{server.url}/data/atari/Alien/run_1-00000-of-00002",)
    brought((file,), where, tmp_path / "d")
    record = json.loads((tmp_path / "d" / "run_1-00000-of-00002.json").read_text())
    assert (record["md5"], record["etag"]) == (md5, f'"{md5}"')
    assert record["sha256"] == hashlib.sha256(b"first of run 1").hexdigest()
    assert record["revision"] == ("1700000000000001" if scheme == "gs" else None)
    (again,) = planning.plan((file,), tmp_path / "d", where).steps
    assert again.action == "reuse"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_other_bytes_than_those_of_the_md5_are_refused(
    server: Server, where: Settings, tmp_path: Path, scheme: str
) -> None:
    pages = server.add_bucket("data", ATARI)
    files = listed(where, f"{scheme}://data/kuka/0.1.0/features.json")
    pages["kuka/0.1.0/features.json"].content = b"[]"
    with pytest.raises(WrongHash, match=f"expected {hashlib.md5(b'{}').hexdigest()}"):
        brought(files, where, tmp_path / "d")
    assert not (tmp_path / "d" / "features.json").exists()


def test_a_file_of_several_pieces_has_a_crc32c(server: Server, where: Settings, tmp_path: Path) -> None:
    name = "kuka/0.1.0/features.json"
    pages = server.add_bucket("data", ATARI | {name: b"123456789"}, composite=[name])
    files = listed(where, f"gs://data/{name}")
    assert (files[0].md5, files[0].crc32c) == (None, "e3069283")  # the check value of CRC-32C
    assert brought(files, where, tmp_path / "d") == {"features.json": b"123456789"}
    pages[name].content = b"123456780"
    with pytest.raises(WrongHash, match="expected e3069283"):
        brought(files, where, tmp_path / "e")


def test_an_etag_of_several_pieces_is_no_hash(server: Server, where: Settings, tmp_path: Path) -> None:
    name = "kuka/0.1.0/features.json"
    server.add_bucket("data", ATARI, composite=[name])
    files = listed(where, f"s3://data/{name}")
    assert not files[0].hashed
    assert brought(files, where, tmp_path / "d") == {"features.json": b"{}"}


def test_a_file_that_gcs_unpacks_on_its_way_has_another_size_and_hash(
    server: Server, where: Settings, tmp_path: Path
) -> None:
    name = "kuka/0.1.0/features.json"
    pages = server.add_bucket("data", ATARI, packed=[name])
    files = listed(where, f"gs://data/{name}")
    pages[name].content = b'{"unpacked": true}'
    assert brought(files, where, tmp_path / "d") == {"features.json": b'{"unpacked": true}'}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_file_whose_hash_is_known_is_not_listed(server: Server, where: Settings, tmp_path: Path, scheme: str) -> None:
    server.add_bucket("data", ATARI)
    sha256 = hashlib.sha256(b"spaces").hexdigest()
    files = listed(where, f"{scheme}://data/kuka/0.1.0/a b&c.tfrecord", sha256=sha256)
    assert server.asked == []
    assert brought(files, where, tmp_path / "d") == {"a b&c.tfrecord": b"spaces"}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_closed_bucket(server: Server, where: Settings, scheme: str) -> None:
    server.add_bucket("data", ATARI, closed=True)
    with pytest.raises(DownloadFailed, match=f"{scheme}://data is closed.*HTTP 403") as caught:
        listed(where, f"{scheme}://data/kuka")
    assert "--from" in (caught.value.hint or "")


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_is_not_there(server: Server, where: Settings, scheme: str) -> None:
    server.add_bucket("data", ATARI)
    with pytest.raises(DownloadFailed, match='has nothing called "kuka/9"'):
        listed(where, f"{scheme}://data/kuka/9")
    with pytest.raises(DownloadFailed, match=f"There is no bucket {scheme}://dada"):
        listed(where, f"{scheme}://dada/kuka")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("body", ["[]", "null", '{"items": [1]}', "<html>", "<a/>", '{"items": [{"name": 3}]}'])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_listing_that_is_none(server: Server, where: Settings, scheme: str, body: str) -> None:
    server.add("/storage/v1/b/data/o", body)
    server.add("/data/", body)
    with pytest.raises(DownloadFailed, match="not a list of files"):
        listed(where, f"{scheme}://data/kuka")


ITEM = {"name": "kuka/x", "size": "4", "md5Hash": "AAAAAAAAAAAAAAAAAAAAAA==", "crc32c": "AAAAAA==", "generation": "1"}
VALUES = st.none() | st.integers() | st.text(max_size=8) | st.lists(st.integers(), max_size=2) | st.just("9" * 5000)
CONTENTS = "<ListBucketResult><Contents><Key>kuka/x</Key><Size>4</Size><ETag>a</ETag></Contents></ListBucketResult>"


@pytest.mark.thorough
@given(
    changed=st.dictionaries(st.sampled_from([*ITEM, "contentEncoding"]), VALUES, max_size=3),
    page=VALUES,
    cut=st.integers(0, 200),
    noise=st.binary(max_size=6),
)
@example(changed={}, page=None, cut=0, noise=b"[" * 100_000)
@settings_of_hypothesis(max_examples=20)
def test_whatever_a_listing_says_is_a_list_or_an_error(
    hostile: Server, changed: dict[str, Any], page: Any, cut: int, noise: bytes
) -> None:
    where = hostile.settings(Path("/nonexistent"))
    json_page = json.dumps({"items": [ITEM | changed], "nextPageToken": page}).encode()
    for scheme, path, body in (("gs", "/storage/v1/b/data/o", json_page), ("s3", "/data/", CONTENTS.encode())):
        for content in (body, body[:cut] + noise + body[cut:], noise):
            hostile.pages[path] = Page(content)
            try:
                files = listed(where, f"{scheme}://data/kuka")
            except (DownloadFailed, UnsafeArchive):
                continue
            assert all(isinstance(f.size, int | None) and isinstance(f.path, str) for f in files)


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ["kuka/../../x", "kuka//x", "kuka/a\\b"])
def test_a_listed_name_that_leaves_its_directory(server: Server, where: Settings, scheme: str, name: str) -> None:
    server.add_bucket("data", {name: b"x"})
    with pytest.raises(UnsafeArchive):
        listed(where, f"{scheme}://data/kuka")


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_listing_that_goes_in_circles(server: Server, where: Settings, scheme: str) -> None:
    server.add("/storage/v1/b/data/o", '{"items": [{"name": "kuka/x", "size": "1"}], "nextPageToken": "a"}')
    contents = "<Contents><Key>kuka/x</Key></Contents><NextContinuationToken>a</NextContinuationToken>"
    server.add("/data/", f"<ListBucketResult>{contents}</ListBucketResult>")
    assert [f.path for f in listed(where, f"{scheme}://data/kuka")] == ["x"]
    assert len(server.asked) == 2


@pytest.mark.thorough
@pytest.mark.parametrize("url", ["gs://", "s3:///x", "gs://Data/x", "gs://a/../b", "s3://a:b@c/x"])
def test_what_names_no_bucket(where: Settings, url: str) -> None:
    with pytest.raises((DownloadFailed, UnsafeArchive)):
        listed(where, url)


def test_offline_no_bucket_is_asked(server: Server, tmp_path: Path) -> None:
    with pytest.raises(Offline):
        listed(server.settings(tmp_path, RLDS_OFFLINE="1"), "gs://data/kuka")
    assert server.asked == []


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", SCHEMES)
def test_from_a_local_copy_and_from_another_bucket(
    server: Server, where: Settings, tmp_path: Path, scheme: str
) -> None:
    copy = tmp_path / "copy" / "data" / "kuka" / "0.1.0"
    copy.mkdir(parents=True)
    (copy / "features.json").write_bytes(b"{}")
    for root in (tmp_path / "copy", copy.parent, copy):
        files = listed(where, f"{scheme}://data/kuka/0.1.0", source=str(root))
        assert [f.path for f in files] == ["features.json"]
    server.add_bucket("mirror", {"all/kuka/0.1.0/features.json": b"{}"})
    (file,) = listed(where, f"{scheme}://data/kuka/0.1.0", source=f"{scheme}://mirror/all")
    assert file.key == "mirror/all/kuka/0.1.0/features.json"
    (same,) = listed(where, f"{scheme}://data/kuka/0.1.0", source=f"{scheme}://mirror/all/kuka/0.1.0/")
    assert same == file


@pytest.mark.parametrize("scheme", SCHEMES)
def test_from_a_bucket_with_a_copy_of_a_whole_repository(server: Server, where: Settings, scheme: str) -> None:
    server.add_bucket("mine", {"robots/pusht-copy/meta/info.json": b"{}"})
    (file,) = listed(where, "hf://datasets/lerobot/pusht", source=f"{scheme}://mine/robots/pusht-copy")
    assert file.path == "meta/info.json"


def test_hosts(tmp_path: Path) -> None:
    plain = settings.read(tmp_path, {})
    assert as_url("gs://b/x/$store$_a b.gz").request(plain) == "https://storage.googleapis.com/b/x/%24store%24_a%20b.gz"
    assert as_url("s3://b/x.gz").request(plain) == "https://b.s3.amazonaws.com/x.gz"
    assert as_url("s3://b.c/x.gz").request(plain) == "https://s3.amazonaws.com/b.c/x.gz"
    assert as_url("https://h/x.gz").request(plain) == "https://h/x.gz"
    emulated = settings.read(tmp_path, {"STORAGE_EMULATOR_HOST": "localhost:9023/", "AWS_ENDPOINT_URL": "http://m:9/"})
    assert as_url("gs://b/x.gz").request(emulated) == "http://localhost:9023/b/x.gz"
    assert as_url("s3://b/x.gz").request(emulated) == "http://m:9/b/x.gz"
    assert bucket_listing.http_root("s3", "b", "eu-west-1", plain) == "https://b.s3.eu-west-1.amazonaws.com"
