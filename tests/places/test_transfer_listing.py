"""Servers that list files and lie: without end, without sense, with names as long as a book."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path

import hostile_listings
import pytest
from hostile_listings import HASTY, LISTINGS, listed
from server import Server
from server_pages import Listing as Page
from test_fuzz import fuzz

from rlds_cli.base.http.connections import Permanent
from rlds_cli.base.settings import Settings
from rlds_cli.errors import DownloadFailed, RldsError, UnsafeArchive
from rlds_cli.make.downloads import listing
from rlds_cli.places.sources import limits, web
from rlds_cli.places.sources.bucket_listing import objects
from rlds_cli.places.sources.limits import ListingLimits


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "*")
    with Server() as running:
        yield running


@pytest.fixture
def where(server: Server, tmp_path: Path) -> Settings:
    return server.settings(tmp_path)


@pytest.mark.parametrize(
    "kind, expected",
    [
        ("tree", {"a.h5": 5, "b.json": 7}),
        ("revision", {"a.h5": 5, "b.json": 7}),
        ("gs", {"a.h5": 5}),
        ("s3", {"a.h5": 5}),
        ("index", {"a.h5": None}),
    ],
)
def test_the_listings_themselves_are_fine(
    server: Server, where: Settings, kind: str, expected: dict[str, int | None]
) -> None:
    assert {f.path: f.size for f in listed(server, where, kind, LISTINGS[kind].page)} == expected


@pytest.mark.parametrize("kind", ["tree", "revision", "gs"])
def test_any_value_may_be_anything(server: Server, where: Settings, kind: str) -> None:
    """One of eight variants; the number of odd values is no multiple of that."""
    variants = hostile_listings.altered(json.loads(LISTINGS[kind].page))
    outcomes = []
    for variant in itertools.islice(variants, 0, None, 8):
        try:
            outcomes.append(bool(listed(server, where, kind, json.dumps(variant).encode())))
        except RldsError as exc:
            outcomes.append(False)
            assert "\x1b" not in exc.message
    assert True in outcomes and False in outcomes


@pytest.mark.thorough
@pytest.mark.parametrize("kind", LISTINGS)
def test_any_byte_may_be_another(server: Server, where: Settings, kind: str) -> None:
    rng = random.Random(kind)
    for _ in range(40):
        try:
            listed(server, where, kind, fuzz.mutated((LISTINGS[kind].page,), rng))
        except RldsError:
            continue


@pytest.mark.parametrize(
    "kind, answer",
    [
        ("tree", b'[{"path": "d/a.h5", "lfs": "abc"}]'),
        ("tree", b'[{"path": "d/a.h5", "size": "5", "lfs": {"oid": 5, "size": -1}}]'),
        ("tree", b'[{"path": "d/a.h5", "size": 1e999, "oid": ["x"]}]'),
        ("tree", b'[{"path": "d/a.h5", "size": 1180591620717411303424}]'),
        ("gs", b'{"items": [{"name": "d/a.h5", "size": {}, "md5Hash": 5, "crc32c": [], "generation": null}]}'),
        ("s3", b"<ListBucketResult><Contents><Key>d/a.h5</Key><Size>-5</Size></Contents></ListBucketResult>"),
        ("index", b"<a href='a.h5'>a</a><![foo[<a href='http://[::1'>"),
    ],
)
def test_what_cannot_be_true_is_not_known(server: Server, where: Settings, kind: str, answer: bytes) -> None:
    (file,) = listed(server, where, kind, answer)
    assert file.path == "a.h5" and file.size is None and file.promise is None


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "kind, answer",
    [
        ("tree", b"\xff\xfe[1]"),
        ("tree", b'[{"path": 5}, null, "x"]'),
        ("gs", b'{"items": {"name": "d/a.h5"}}'),
        ("gs", b'{"items": [{"size": 5}]}'),
        ("s3", b'<?xml version="1.0" encoding="foo"?><ListBucketResult/>'),
        ("s3", b"<ListBucketResult><Contents>"),
        (
            "s3",
            b'<!DOCTYPE x [<!ENTITY e "ha">]><ListBucketResult><Contents><Key>d/&e;</Key></Contents>'
            b"</ListBucketResult>",
        ),
        ("s3", b"<ListBucketResult>" + b"<a>" * 100_000),
        (
            "s3",
            b"<ListBucketResult><NextContinuationToken>" + b"x" * 9000 + b"</NextContinuationToken></ListBucketResult>",
        ),
        ("index", b"<![foo["),
    ],
)
def test_what_is_no_listing_is_an_error_of_that_source(
    server: Server, where: Settings, kind: str, answer: bytes
) -> None:
    with pytest.raises(DownloadFailed):
        listed(server, where, kind, answer)
    server.add_repository("o/sound", {"a.h5": b"bytes"})
    asked = hostile_listings.serve(server, LISTINGS[kind], answer)
    (file,) = listing.list_files([asked, "hf://datasets/o/sound/a.h5"], where, policy=HASTY)
    assert file.path == "a.h5" and file.key == "o/sound/a.h5"


def test_names_that_are_unsafe_are_those_of_one_source(server: Server, where: Settings) -> None:
    server.add("/api/datasets/o/r/tree/main", json.dumps([{"path": "d/../../x.h5"}]))
    server.add_repository("o/sound", {"a.h5": b"bytes"})
    urls = ["hf://datasets/o/r/d", "hf://datasets/o/sound"]
    assert [f.path for f in listing.list_files(urls, where, policy=HASTY)] == ["a.h5"]
    with pytest.raises(UnsafeArchive):
        listing.list_files(urls[:1], where, policy=HASTY)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["tree", "gs", "s3", "index"])
@pytest.mark.parametrize("name", ["/" * 200_000, "d/" * 200 + "a.h5", "d/" + "a" * 2000])
def test_names_are_measured_before_they_are_taken_apart(server: Server, where: Settings, kind: str, name: str) -> None:
    answers = {
        "tree": json.dumps([{"path": name}]),
        "gs": json.dumps({"items": [{"name": name}]}),
        "s3": f"<ListBucketResult><Contents><Key>{name}</Key></Contents></ListBucketResult>",
        "index": f'<a href="{"a" * 2000}">',
    }
    with pytest.raises(DownloadFailed, match=r"lists a name that|a value of more than"):
        listed(server, where, kind, answers[kind].encode())


def _pages(server: Server, kind: str, fresh: bool) -> str:
    """A server whose listing has always one more page, with a new name on each or with none."""
    count = itertools.count()

    class Endless(Page):
        def answer(self, below: str, query: Mapping[str, list[str]]) -> tuple[bytes, dict[str, str]]:
            k = next(count)
            name = f"d/{k if fresh else 0}.h5"
            if kind == "tree":
                link = f'<{server.url}/api/datasets/o/r/tree/main?cursor={k}>; rel="next"'
                return json.dumps([{"path": name}]).encode(), {"Link": link}
            if kind == "gs":
                return json.dumps({"items": [{"name": name}], "nextPageToken": f"t{k}"}).encode(), {}
            if kind == "s3":
                key = f"<Contents><Key>{name}</Key></Contents>"
                token = f"<NextContinuationToken>t{k}</NextContinuationToken>"
                return f"<ListBucketResult>{key}{token}</ListBucketResult>".encode(), {}
            return f'<a href="{k}/">more</a>'.encode(), {}

    server.pages[LISTINGS[kind].path] = Endless(b"")
    return LISTINGS[kind].url.format(server=server.url)


@pytest.mark.parametrize("kind", ["tree", "gs", "s3"])
def test_pages_without_end(server: Server, where: Settings, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(limits, "BARREN", 4)
    with pytest.raises(DownloadFailed, match="4 consecutive pages list nothing new"):
        listing.list_files([_pages(server, kind, fresh=False)], where, policy=HASTY)
    monkeypatch.setattr(limits, "PAGES", 6)
    with pytest.raises(DownloadFailed, match="more than 6 pages"):
        listing.list_files([_pages(server, kind, fresh=True)], where, policy=HASTY)
    monkeypatch.setattr(limits, "NAMES", 3)
    with pytest.raises(DownloadFailed, match="more than 3 names"):
        listing.list_files([_pages(server, kind, fresh=True)], where, policy=HASTY)


def test_directories_without_end(server: Server, where: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PAGES", 5)
    url = _pages(server, "index", fresh=True)
    server.pages["/d"] = server.pages["/d/"]  # whatever is asked for below it
    with pytest.raises(DownloadFailed, match="more than 5 pages"):
        listing.list_files([url], where, policy=HASTY)


def test_a_page_of_many_bytes(server: Server, where: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PAGE", 100)
    for kind in ("gs", "s3", "index"):
        with pytest.raises(DownloadFailed, match="at most 100 are read"):
            listed(server, where, kind, LISTINGS[kind].page + b" " * 100)


def test_what_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BYTES", 10)
    counted = ListingLimits()
    assert counted.ask("1") and counted.ask("2") and not counted.ask("1")
    assert [counted.take(n) for n in ("12345", "12345", "67890")] == ["12345", "12345", "67890"]
    with pytest.raises(Permanent, match="more than 10 characters"):
        counted.take("x")
    with pytest.raises(Permanent, match="has 9,000 characters"):
        counted.ask("t" * 9000)


def test_a_listing_that_crawls(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0, 50).__next__
    monkeypatch.setattr(limits.time, "monotonic", clock)
    counted = ListingLimits()
    assert counted.ask("1")
    with pytest.raises(Permanent, match="listed only 0 names"):
        counted.ask("2")


def test_the_next_page_on_another_host_does_not_get_the_token(server: Server, tmp_path: Path) -> None:
    with Server("127.0.0.2") as other:
        where = server.settings(tmp_path, HF_TOKEN="hf_secret")
        page = server.add("/api/datasets/o/r/tree/main", b'[{"path": "d/a.h5"}]')
        page.headers["Link"] = f'<{other.url}/more>; rel="next"'
        further = other.add("/more", b'[{"path": "d/b.h5"}]')
        found = listing.list_files(["hf://datasets/o/r/d"], where, policy=HASTY)
        assert [f.path for f in found] == ["a.h5", "b.h5"]
        assert [r.headers.get("Authorization") for r in further.requests] == [None]


@pytest.mark.thorough
@pytest.mark.parametrize("commit", ["../../../etc", "x" * 200, "a b", "\x1b[2J", 5, {}])
def test_a_commit_that_is_none(server: Server, where: Settings, commit: object) -> None:
    server.add("/api/datasets/o/r/revision/main", json.dumps({"sha": commit}))
    server.add("/api/datasets/o/r/tree/main", json.dumps([{"path": "d/a.h5"}]))
    found = listing.list_files(["hf://datasets/o/r/d"], where, policy=HASTY)
    assert [f.revision for f in found] == ["main"]


def test_links_of_a_page() -> None:
    assert web.links(hostile_listings.INDEX.encode()) == ["?C=N", "/d/", "a.h5"]
    assert web.links(b"<script>'<a href=no>'</SCRIPT><A\nHREF = yes.h5>") == ["yes.h5"]
    assert web.links(b'<a href="a&amp;b.h5">') == ["a&b.h5"]
    for odd in (b"<a ", b"<!--", b"<a href=", b"<script", b"<a href='", b"<![foo[", b"&#x110000;"):
        assert web.links(odd * 20_000) == []


def test_objects_of_a_page() -> None:
    assert objects(hostile_listings.S3.encode()) == (
        [{"Key": "d/a.h5", "Size": "5", "ETag": '"098f6bcd4621d373cade4e832627b4f6"'}],
        None,
    )


# The address of --from


@pytest.mark.thorough
@pytest.mark.parametrize("place", ["/copy/", "/copy", "/copy/gym/hopper.hdf5"])
def test_a_query_stays_behind_the_path(server: Server, where: Settings, place: str) -> None:
    (file,) = listing.list_files(
        ["https://host/gym/hopper.hdf5"], where, source=f"{server.url}{place}?token=hunter2", policy=HASTY
    )
    assert f"{server.url}/copy/gym/hopper.hdf5?token=hunter2" in file.urls or place.endswith("5")
    assert all(u.count("?") == 1 and u.endswith("?token=hunter2") for u in file.urls)


def test_a_query_goes_to_every_page_and_file(server: Server, where: Settings) -> None:
    server.add("/copy/d/", b'<a href="a.h5">a.h5</a><a href="e/">e</a>')
    server.add("/copy/d/e/", b'<a href="b.h5">b.h5</a>')
    source = f"{server.url}/copy?token=hunter2"
    files = listing.list_files(["https://host/d/"], where, source=source, policy=HASTY)
    assert [f.path for f in files] == ["a.h5", "e/b.h5"]
    assert files[1].urls == (f"{server.url}/copy/d/e/b.h5?token=hunter2",)
    assert all(path.endswith("/?token=hunter2") for path in server.asked)


@pytest.mark.parametrize("url", ["http://[::1", "https://u:hunter2@[/x.h5", "http://[::1/d/", "hf://[x"])
def test_an_address_that_is_none(where: Settings, url: str) -> None:
    for urls, source in (([url], None), (["https://host/x.h5"], url), (["https://host/d/"], url)):
        with pytest.raises(DownloadFailed) as caught:
            listing.list_files(urls, where, source=source, policy=HASTY)
        assert "hunter2" not in str(caught.value)
