"""Buckets that are not public: credentials list them, signed URLs fetch them, and nothing of these is written down."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from server import Server

from rlds_cli.base import settings, visible
from rlds_cli.base.http.client import RetryPolicy
from rlds_cli.base.settings import Settings
from rlds_cli.errors import DownloadFailed, MissingPackage
from rlds_cli.make.downloads import listing
from rlds_cli.make.downloads.fetch import fetching, planning
from rlds_cli.places import as_url

pytest.importorskip("obstore")

HASTY = RetryPolicy(attempts=2, first=0.001, longest=0.01, asked=1.0, connect=60.0, read=60.0)
FILES = {"logs/run_1-0.h5": b"one", "logs/run_1-1.h5": b"two", "logs/run_10-0.h5": b"ten", "more/a b.h5": b"more"}
SECRET = "wJalrXUtnFEMI-K7MDENG"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "*")
    with Server() as running:
        running.add_bucket("data", FILES, key="AKIDMINE")
        yield running


@pytest.fixture
def where(server: Server, tmp_path: Path) -> Settings:
    return server.settings(tmp_path, AWS_ACCESS_KEY_ID="AKIDMINE", AWS_SECRET_ACCESS_KEY=SECRET)


def brought(url: str, where: Settings, directory: Path) -> dict[str, bytes]:
    files = listing.list_files([url], where, policy=HASTY)
    came = fetching.fetch(planning.plan(files, directory, where), where, policy=HASTY)
    return {c.file.path: c.path.read_bytes() for c in came}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("logs", {"run_1-0.h5": b"one", "run_1-1.h5": b"two", "run_10-0.h5": b"ten"}),
        ("logs/run_1", {"run_1-0.h5": b"one", "run_1-1.h5": b"two"}),
        ("logs/*_10*", {"run_10-0.h5": b"ten"}),
        ("more/a b.h5", {"a b.h5": b"more"}),
        ("", FILES),
    ],
)
def test_what_credentials_open(where: Settings, tmp_path: Path, path: str, expected: dict[str, bytes]) -> None:
    assert brought(f"s3://data/{path}", where, tmp_path / "d") == expected


def test_no_credential_is_shown_or_written(
    server: Server, where: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    brought("s3://data/logs", where, tmp_path / "d")
    fetches = [a for a in server.asked if "X-Amz-Signature" in a]
    assert len(fetches) == 3
    signatures = [parse_qs(urlsplit(a).query)["X-Amz-Signature"][0] for a in fetches]
    written = b"".join(p.read_bytes() for p in (tmp_path / "d").rglob("*") if p.is_file())
    assert f"{server.url}/data/logs/run_1-0.h5".encode() in written
    for secret in ("AKIDMINE", SECRET, *signatures):
        assert secret.encode() not in written
        assert secret not in repr(where)
    assert SECRET not in caplog.text


@pytest.mark.thorough
def test_a_file_goes_on_with_another_signature(server: Server, where: Settings, tmp_path: Path) -> None:
    content = bytes(range(256)) * 1000
    (page,) = server.add_bucket("big", {"x.h5": content}, key="AKIDMINE", drops=[100_000] * 2).values()
    files = listing.list_files(["s3://big/x.h5"], where, policy=HASTY)
    once = RetryPolicy(attempts=1, first=0.001, longest=0.01, asked=1.0, connect=60.0, read=60.0)
    page.drops = [100_000]
    page.statuses = [None, (403, {})]
    with pytest.raises(DownloadFailed, match="403") as caught:
        fetching.fetch(planning.plan(files, tmp_path / "d", where), where, policy=once)
    assert "X-Amz" not in str(caught.value)
    assert brought("s3://big/x.h5", where, tmp_path / "d") == {"x.h5": content}
    assert page.sent < 1.2 * len(content)


def test_credentials_of_a_profile(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "user" / ".aws" / "credentials"
    file.parent.mkdir(parents=True)
    text = f"[default]\naws_access_key_id = OTHER\n[mine]\naws_access_key_id=AKIDMINE\naws_secret_access_key={SECRET}\n"
    file.write_text(text)
    environment = {"AWS_SHARED_CREDENTIALS_FILE": str(file), "AWS_PROFILE": "mine"}
    assert brought("s3://data/more", server.settings(tmp_path, **environment), tmp_path / "d") == {"a b.h5": b"more"}
    assert settings.read(tmp_path, environment | {"AWS_PROFILE": "no such"}).aws == {}
    file.write_text("nonsense")
    assert settings.read(tmp_path, environment).aws == {}


def test_credentials_that_do_not_open_it(server: Server, tmp_path: Path) -> None:
    where = server.settings(tmp_path, AWS_ACCESS_KEY_ID="STRANGER", AWS_SECRET_ACCESS_KEY=SECRET)
    with pytest.raises(DownloadFailed, match="s3://data with your credentials: access is denied") as caught:
        listing.list_files(["s3://data/logs"], where, policy=HASTY)
    assert SECRET not in str(caught.value)
    assert "STRANGER" not in str(caught.value)


def test_without_credentials_it_is_closed(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DownloadFailed, match="s3://data is closed") as caught:
        listing.list_files(["s3://data/logs"], server.settings(tmp_path), policy=HASTY)
    assert "AWS_PROFILE" in (caught.value.hint or "")


def test_what_is_not_there(where: Settings) -> None:
    with pytest.raises(DownloadFailed, match='nothing called "logs/run_2"'):
        listing.list_files(["s3://data/logs/run_2"], where, policy=HASTY)


def test_without_the_package(where: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingPackage, match="obstore") as caught:
        listing.list_files(["s3://data/logs"], where, policy=HASTY)
    assert "rlds-cli[buckets]" in (caught.value.hint or "")


def test_a_key_file_of_google_that_is_none(server: Server, tmp_path: Path) -> None:
    where = server.settings(tmp_path, GOOGLE_APPLICATION_CREDENTIALS=str(tmp_path / "key.json"))
    with pytest.raises(DownloadFailed, match="gs://data with your credentials") as caught:
        listing.list_files(["gs://data/logs"], where, policy=HASTY)
    assert "service account" in (caught.value.hint or "")


def test_places_are_those_of_the_region(tmp_path: Path) -> None:
    where = settings.read(tmp_path, {"AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "B", "AWS_SESSION_TOKEN": "C"})
    url = as_url("signed-s3://eu-west-1@data/x y.h5").request(where)
    assert url.startswith("https://data.s3.eu-west-1.amazonaws.com/x%20y.h5?X-Amz-")
    assert visible.shown(url) == "https://data.s3.eu-west-1.amazonaws.com/x%20y.h5"
    dotted = as_url("signed-s3://my.data/x.h5").request(where)
    assert dotted.startswith("https://s3.us-east-1.amazonaws.com/my.data/x.h5?X-Amz-")
