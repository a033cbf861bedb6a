"""Mirrors of RLDS_MIRROR, and web servers that show their directories."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from server import Page, Server

from rlds_cli.base.http.client import RetryPolicy
from rlds_cli.base.settings import Settings
from rlds_cli.errors import DownloadFailed, Offline, UnsafeArchive
from rlds_cli.make.downloads import listing
from rlds_cli.make.downloads.fetch import fetching, planning
from rlds_cli.places import RemoteFile

HASTY = RetryPolicy(attempts=2, first=0.001, longest=0.01, asked=1.0, connect=60.0, read=60.0)
DOOR = {"door/human-v2/data/main_data.hdf5": b"\x89HDF", "door/human-v2/data/metadata.json": b'{"a": 1}'}
REPO = "farama-minari/D4RL"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "*")
    with Server() as running:
        yield running


@pytest.fixture
def mirror() -> Iterator[Server]:
    with Server() as running:
        yield running


def listed(where: Settings, *urls: str, **more: Any) -> tuple[RemoteFile, ...]:
    return listing.list_files(urls, where, policy=HASTY, **more)


def brought(files: tuple[RemoteFile, ...], where: Settings, directory: Path) -> dict[str, bytes]:
    came = fetching.fetch(planning.plan(files, directory, where), where, policy=HASTY)
    return {c.file.path: c.path.read_bytes() for c in came}


def show(server: Server, directory: str, names: list[str], *, style: str = "nginx") -> Page:
    """A page of links to ``names``, as a kind of server writes it."""
    links = [(f"<a href='{n}'>{n}</a>" if style == "apache" else f'<a href="{n}">{n}</a>') for n in names]
    if style == "apache":
        links = [
            '<a href="?C=N;O=D">Name</a>',
            '<a href="?C=S;O=A">Size</a>',
            '<A HREF="/">Parent Directory</A>',
            *links,
        ]
    if style == "nginx":
        links = ['<a href="../">../</a>', *links]
    if style == "absolute":
        links = [f'<a href="{directory}{n}">{n}</a>' for n in names]
    body = "<html><head><title>Index of /</title></head><body><pre>" + "\n".join(links) + "</pre></body></html>"
    return server.add(directory, body, content_type="text/html")


@pytest.mark.thorough
def test_a_mirror_is_asked_first(server: Server, mirror: Server, tmp_path: Path) -> None:
    where = server.settings(tmp_path, RLDS_MIRROR=mirror.url)
    own = server.add("/gym/hopper.hdf5", b"hop")
    page = mirror.add(f"/{server.host}/gym/hopper.hdf5", b"hop")
    assert brought(listed(where, f"{server.url}/gym/hopper.hdf5"), where, tmp_path / "d") == {"hopper.hdf5": b"hop"}
    assert (len(page.requests), len(own.requests)) == (1, 0)
    short = mirror.add("/gym/walker.hdf5", b"walk")  # without the host
    assert brought(listed(where, f"{server.url}/gym/walker.hdf5"), where, tmp_path / "d") == {"walker.hdf5": b"walk"}
    assert len(short.requests) == 1


def test_what_no_mirror_has_comes_from_its_source(server: Server, mirror: Server, tmp_path: Path) -> None:
    where = server.settings(tmp_path, RLDS_MIRROR=f"{tmp_path}/nothing, {mirror.url}/m http://127.0.0.1:9/gone")
    assert len(where.mirrors) == 3
    server.add("/gym/hopper.hdf5", b"hop")
    assert brought(listed(where, f"{server.url}/gym/hopper.hdf5"), where, tmp_path / "d") == {"hopper.hdf5": b"hop"}
    assert [unquote(p) for p in mirror.asked] == [f"/m/{server.host}/gym/hopper.hdf5", "/m/gym/hopper.hdf5"]


def test_a_mirror_with_other_bytes_is_left(server: Server, mirror: Server, tmp_path: Path) -> None:
    where = server.settings(tmp_path, RLDS_MIRROR=mirror.url)
    server.add("/gym/hopper.hdf5", b"hop")
    mirror.add("/gym/hopper.hdf5", b"hip")
    sha256 = hashlib.sha256(b"hop").hexdigest()
    files = listed(where, f"{server.url}/gym/hopper.hdf5", sha256=sha256)
    assert brought(files, where, tmp_path / "d") == {"hopper.hdf5": b"hop"}


def test_many_files_do_not_wait_for_a_mirror_that_is_gone(server: Server, mirror: Server, tmp_path: Path) -> None:
    server.add_repository("o/r", {f"{k}.h5": b"x" for k in range(20)})
    with Server() as gone:
        where = server.settings(tmp_path, RLDS_MIRROR=f"{gone.url}/m {mirror.url}/m")
    files = listed(where, "hf://datasets/o/r")
    assert {urlsplit(u).netloc for f in files for u in f.urls} == {mirror.host, server.host}
    assert mirror.asked == ["/m"]
    few = listed(where, "hf://datasets/o/r/1.h5")
    assert len(few[0].urls) > len(files[0].urls)


@pytest.mark.thorough
def test_the_source_says_which_files_there_are(server: Server, mirror: Server, tmp_path: Path) -> None:
    where = server.settings(tmp_path, RLDS_MIRROR=mirror.url)
    pages = server.add_repository(REPO, DOOR)
    mirror.add(f"/{REPO}/door/human-v2/data/main_data.hdf5", b"\x89HDF")
    files = listed(where, f"hf://datasets/{REPO}/door/human-v2/data")
    assert set(brought(files, where, tmp_path / "d")) == {"main_data.hdf5", "metadata.json"}
    asked = {name.rpartition("/")[2]: len(page.requests) for name, page in pages.items()}
    assert asked == {"main_data.hdf5": 0, "metadata.json": 1}


@pytest.mark.thorough
@pytest.mark.parametrize("offline", ["0", "1"])
def test_where_no_source_answers_a_local_mirror_says_it(server: Server, tmp_path: Path, offline: str) -> None:
    root = tmp_path / "mirror"
    for name, content in DOOR.items():
        (root / REPO / name).parent.mkdir(parents=True, exist_ok=True)
        (root / REPO / name).write_bytes(content)
    where = server.settings(tmp_path, RLDS_MIRROR=str(root), RLDS_OFFLINE=offline)
    files = listed(where, f"hf://datasets/{REPO}/door/human-v2/data")
    assert set(brought(files, where, tmp_path / "d")) == {"main_data.hdf5", "metadata.json"}


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", ["hf://datasets/", "gs://"])
def test_where_no_source_answers_a_mirror_that_shows_its_files_says_it(
    server: Server, mirror: Server, tmp_path: Path, scheme: str
) -> None:
    where = server.settings(tmp_path, RLDS_MIRROR=f"{mirror.url}/m/")
    show(mirror, f"/m/{REPO.lower()}/door/human-v2/data/", ["main_data.hdf5", "metadata.json"])
    for name, content in DOOR.items():
        mirror.add(f"/m/{REPO.lower()}/{name}", content)
    files = listed(where, f"{scheme}{REPO.lower()}/door/human-v2/data")
    assert brought(files, where, tmp_path / "d") == {"main_data.hdf5": b"\x89HDF", "metadata.json": b'{"a": 1}'}


def test_a_bucket_as_a_mirror(server: Server, tmp_path: Path) -> None:
    where = server.settings(tmp_path, RLDS_MIRROR="gs://copies/rlds")
    own = server.add("/gym/hopper.hdf5", b"hop")
    server.add_bucket("copies", {f"rlds/{server.host}/gym/hopper.hdf5": b"hop"})
    assert brought(listed(where, f"{server.url}/gym/hopper.hdf5"), where, tmp_path / "d") == {"hopper.hdf5": b"hop"}
    assert not own.requests


@pytest.mark.thorough
def test_from_a_mirror_of_a_bucket(server: Server, mirror: Server, tmp_path: Path) -> None:
    where = server.settings(tmp_path)
    server.add_bucket("gresearch", {"robotics/toy/0.1.0/features.json": b"{}"})
    mirror.add("/robotics/toy/0.1.0/features.json", b"{}")
    files = listed(where, "gs://gresearch/robotics/toy/0.1.0", source=mirror.url)
    assert brought(files, where, tmp_path / "d") == {"features.json": b"{}"}
    assert not server.pages["/gresearch/robotics/toy/0.1.0/features.json"].requests


# Directories that a web server shows


@pytest.mark.thorough
@pytest.mark.parametrize("style", ["nginx", "apache", "absolute"])
def test_a_directory_of_a_web_server(server: Server, tmp_path: Path, style: str) -> None:
    where = server.settings(tmp_path)
    show(server, "/data/toy/", ["part-2.h5", "part-10.h5", "sub/", "a%20b.h5", ".hidden"], style=style)
    show(server, "/data/toy/sub/", ["x.h5", "empty/"], style=style)
    server.add("/data/toy/sub/empty/", "<html><title>nothing</title></html>", content_type="text/html")
    for name in ("part-2.h5", "part-10.h5", "sub/x.h5", "a b.h5"):
        server.add(f"/data/toy/{name}", name.encode())
    files = listed(where, f"{server.url}/data/toy/")
    assert [f.path for f in files] == ["a b.h5", "part-2.h5", "part-10.h5", "sub/x.h5"]
    assert files[0].key == f"{server.host}/data/toy/a b.h5"
    assert brought(files, where, tmp_path / "d") == {f.path: f.path.encode() for f in files}
    assert [f.path for f in listed(where, f"{server.url}/data/toy/part-*.h5")] == ["part-2.h5", "part-10.h5"]


def test_links_that_leave_the_directory_are_not_followed(server: Server, tmp_path: Path) -> None:
    where = server.settings(tmp_path)
    links = [
        "x.h5",
        "/other/y.h5",
        "http://elsewhere.invalid/data/z.h5",
        "../up.h5",
        "%2e%2e/%2e%2e/w.h5",
        "./",
        "#top",
    ]
    show(server, "/data/", [*links, "mailto:a@b.c", "sub/deeper/v.h5"])
    assert [f.path for f in listed(where, f"{server.url}/data/")] == ["x.h5"]
    show(server, "/bad/", ["a%5Cb.h5"])
    with pytest.raises(UnsafeArchive):
        listed(where, f"{server.url}/bad/")


def test_a_directory_that_links_to_itself_ends(server: Server, tmp_path: Path) -> None:
    where = server.settings(tmp_path)
    path = "/data/"
    for _ in range(40):
        show(server, path, ["x.h5", "again/"])
        path += "again/"
    assert 10 < len(listed(where, f"{server.url}/data/")) < 20


def test_what_shows_no_files(server: Server, tmp_path: Path) -> None:
    where = server.settings(tmp_path)
    server.add("/data/", "<html>forbidden</html>")
    with pytest.raises(DownloadFailed, match="does not list its files: the answer is not a page of links"):
        listed(where, f"{server.url}/data/")
    with pytest.raises(DownloadFailed, match="HTTP 404"):
        listed(where, f"{server.url}/nothing/")
    show(server, "/empty/", [])
    with pytest.raises(DownloadFailed, match="has no files"):
        listed(where, f"{server.url}/empty/")
    with pytest.raises(Offline):
        listed(server.settings(tmp_path, RLDS_OFFLINE="1"), f"{server.url}/data/")
