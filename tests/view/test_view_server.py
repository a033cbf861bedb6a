"""The server of the viewer: who may ask, what every answer says, and ranges of bytes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import h5py
import numbered_films as films
import numpy as np
import pytest
from conftest import run_rlds
from PIL import Image
from viewer import Viewer, viewing

import rlds_cli
from rlds_cli.view.app import PAGES
from rlds_cli.view.subjects import Subjects

BASE = (PAGES / "base.js").read_bytes()


@pytest.fixture(scope="module")
def viewer() -> Iterator[Viewer]:
    with viewing() as found:
        yield found


# -- who may ask


def test_the_address_has_a_token_that_cannot_be_guessed(viewer: Viewer) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32,}/", viewer.address)
    with viewing() as other:
        assert other.token != viewer.token


@pytest.mark.parametrize("path", ["/", "/api/about", "/x/api/about", "/pages/base.js", "//", "/%00/", "/../api/about"])
def test_without_the_token_nothing_is_there(viewer: Viewer, path: str) -> None:
    found = viewer.ask_whole(path)
    assert found.status == 404 and b"rlds_version" not in found.body


def test_a_token_that_is_a_part_is_wrong(viewer: Viewer) -> None:
    assert viewer.ask_whole(viewer.token[:-2] + "/").status == 404
    assert viewer.ask_whole(viewer.token[:-1] + "x/").status == 404


@pytest.mark.parametrize("host", ["127.0.0.1:9", "localhost", "localhost:8000", "[::1]:1234"])
def test_names_of_this_machine_are_answered_at_any_port(viewer: Viewer, host: str) -> None:
    assert viewer.ask("api/about", headers={"Host": host}).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "127.0.0.1.evil.example",
        "0.0.0.0",
        "127.0.0.2",
        "localhost:x",
        "localhost:123456",
        "a@localhost",
    ],
)
def test_other_hosts_are_misdirected(viewer: Viewer, host: str) -> None:
    assert viewer.ask("api/about", headers={"Host": host}).status == 421


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:1", "https://127.0.0.1"])
def test_pages_of_other_origins_are_refused(viewer: Viewer, origin: str) -> None:
    assert viewer.ask("api/about", headers={"Origin": origin}).status == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_other_sites_may_link_to_the_page_and_ask_for_nothing_else(viewer: Viewer, site: str) -> None:
    assert viewer.ask("", headers={"Sec-Fetch-Site": site}).status == 200
    assert viewer.ask("api/about", headers={"Sec-Fetch-Site": site}).status == 403
    assert viewer.ask("pages/base.js", headers={"Sec-Fetch-Site": site}).status == 403


def test_the_page_itself_is_answered(viewer: Viewer) -> None:
    headers = {"Origin": f"http://127.0.0.1:{viewer.port}", "Sec-Fetch-Site": "same-origin"}
    assert viewer.ask("api/about", headers=headers).record["rlds_version"] == rlds_cli.__version__


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE"])
def test_nothing_is_changed_by_a_request(viewer: Viewer, method: str) -> None:
    assert viewer.ask("api/about", method=method).status == 405


@pytest.mark.parametrize("path", ["", "api/about", "pages/base.js", "api/none", "api/dataset"])
def test_every_answer_has_the_policy(viewer: Viewer, path: str) -> None:
    headers = viewer.ask(path).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'") and "frame-ancestors 'none'" in policy and "unsafe" not in policy
    assert headers["referrer-policy"] == "no-referrer" and headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store" and "set-cookie" not in headers


def test_a_notebook_of_this_machine_may_show_it_in_a_frame() -> None:
    with viewing(in_frames=True) as viewer:
        ancestors = viewer.ask("").headers["content-security-policy"].partition("frame-ancestors ")[2]
    assert "http://localhost:*" in ancestors and "*" not in ancestors.replace(":*", "")


# -- what may be asked for


@pytest.mark.parametrize(
    "name", ["/etc", "../x", "s3://bucket/x", "http://127.0.0.1/x", "~1", "~x", "~-1", "local/none", "", "a" * 999]
)
def test_a_page_names_no_path_and_no_address(name: str) -> None:
    with pytest.raises(rlds_cli.errors.DatasetNotFound):
        Subjects().dataset(name)


@pytest.mark.parametrize(
    "path", ["pages/../app.py", "pages/%2e%2e/app.py", "pages/..%2fapp.py", "pages/none.js", "pages/", "api/"]
)
def test_only_files_of_the_pages_are_served(viewer: Viewer, path: str) -> None:
    assert viewer.ask(path).status == 404


# -- ranges of bytes, RFC 9110


@pytest.mark.parametrize(
    ("asked", "first", "stop"),
    [
        ("bytes=0-9", 0, 10),
        ("bytes=10-", 10, len(BASE)),
        ("bytes=-7", len(BASE) - 7, len(BASE)),
        ("bytes=5-999999999", 5, len(BASE)),
        ("bytes=-999999999", 0, len(BASE)),
        ("Bytes = 3-3", 3, 4),
    ],
)
def test_a_range_is_a_part(viewer: Viewer, asked: str, first: int, stop: int) -> None:
    found = viewer.ask("pages/base.js", headers={"Range": asked})
    assert found.status == 206 and found.body == BASE[first:stop]
    assert found.headers["content-range"] == f"bytes {first}-{stop - 1}/{len(BASE)}"


def test_several_ranges_come_as_parts(viewer: Viewer) -> None:
    found = viewer.ask("pages/base.js", headers={"Range": "bytes=0-4, 10-19,-3"})
    boundary = re.fullmatch(r"multipart/byteranges; boundary=(\w+)", found.headers["content-type"])
    assert found.status == 206 and boundary and int(found.headers["content-length"]) == len(found.body)
    parts = [p.partition(b"\r\n\r\n") for p in found.body.split(f"--{boundary[1]}".encode())[1:-1]]
    assert [body.removesuffix(b"\r\n") for _, _, body in parts] == [BASE[:5], BASE[10:20], BASE[-3:]]
    assert f"Content-Range: bytes 10-19/{len(BASE)}".encode() in parts[1][0]


def test_a_range_of_a_video_without_an_end_comes_in_parts(tmp_path: Path) -> None:
    """Else players that read slowly keep all connections of a browser; so does its cache, which locks a file."""
    noise = np.random.default_rng(0).integers(0, 255, (12, 240, 320, 3), np.uint8)
    path = films.write(tmp_path / "noise.mp4", [Image.fromarray(x) for x in noise], options={"crf": "1", "g": "1"})
    size, whole = path.stat().st_size, path.read_bytes()
    assert size > 1 << 19
    one = {"observation": {"camera": rlds_cli.Video(path)}, "action": np.zeros((11, 1))}
    with viewing(rlds_cli.create("local/noise", [one], progress=False)) as viewer:
        asked = {"d": "~0", "field": "observation/camera", "video": 0}
        first = viewer.ask("media/video", headers={"Range": "bytes=0-"}, **asked)
        assert first.status == 206 and first.headers["content-range"] == f"bytes 0-524287/{size}"
        assert first.body == whole[: 1 << 19]
        last = viewer.ask("media/video", headers={"Range": f"bytes={size - 9}-"}, **asked)
        assert last.body == whole[-9:]
        given = viewer.ask("media/video", headers={"Range": f"bytes=7-{size - 1}"}, **asked)
        assert given.body == whole[7:]
        assert first.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("asked", [f"bytes={len(BASE)}-", "bytes=-0"])
def test_a_range_behind_the_end_cannot_be_had(viewer: Viewer, asked: str) -> None:
    found = viewer.ask("pages/base.js", headers={"Range": asked})
    assert found.status == 416 and found.headers["content-range"] == f"bytes */{len(BASE)}"


@pytest.mark.parametrize(
    "asked", ["lines=1-2", "bytes=9-3", "bytes=-", "bytes=a-b", "bytes=", "bytes=" + "0-0," * 40 + "1-1"]
)
def test_what_is_not_a_range_is_passed_over(viewer: Viewer, asked: str) -> None:
    found = viewer.ask("pages/base.js", headers={"Range": asked})
    assert found.status == 200 and found.body == BASE


def test_an_etag_saves_the_bytes(viewer: Viewer) -> None:
    etag = viewer.ask("pages/base.js").headers["etag"]
    for known in (etag, f'"x", {etag}', f"W/{etag}", "*"):
        found = viewer.ask("pages/base.js", headers={"If-None-Match": known})
        assert found.status == 304 and not found.body
    assert viewer.ask("pages/base.js", headers={"If-None-Match": '"other"'}).status == 200
    other = viewer.ask("pages/base.js", headers={"Range": "bytes=0-1", "If-Range": '"other"'})
    assert other.status == 200 and other.body == BASE


def test_head_has_no_bytes(viewer: Viewer) -> None:
    found = viewer.ask("pages/base.js", method="HEAD")
    assert found.status == 200 and not found.body and int(found.headers["content-length"]) == len(BASE)


# -- the command


def test_a_port_that_is_taken_is_named(viewer: Viewer) -> None:
    with pytest.raises(rlds_cli.errors.RldsError, match=str(viewer.port)):
        viewing(port=viewer.port).__enter__()


@contextmanager
def command(*words: str, home: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `rlds view`, and give the process and the address that it printed."""
    with subprocess.Popen(
        [sys.executable, "-m", "rlds_cli", "view", "--no-open", "--home", str(home), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def ended(process: subprocess.Popen[str]) -> str:
    """Press Ctrl-C; what the command then has said on stderr."""
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0 and process.stderr is not None
    said = process.stderr.read()
    assert "Traceback" not in said
    return said


@pytest.mark.slow
def test_the_command_prints_the_address_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    with command(home=tmp_path) as (process, address):
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]+/", address)
        ended(process)


def test_the_browser_is_not_given_the_address(tmp_path: Path) -> None:
    """All users see its command line: it is given a file that leads there."""
    seen = tmp_path / "seen"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {seen}.new && mv {seen}.new {seen}\n')
    browser.chmod(0o700)
    unset = {name: value for name, value in os.environ.items() if name != "SSH_CONNECTION"}
    given = unset | {"BROWSER": f"{browser} %s", "TMPDIR": str(tmp_path)}
    words = [sys.executable, "-m", "rlds_cli", "view", "--home", str(tmp_path / "home")]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, env=given, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            while not seen.exists():
                assert process.poll() is None
                time.sleep(0.02)
            page = Path(urllib.request.url2pathname(urlsplit(seen.read_text()).path))
            assert f'content="0; url={address}"' in page.read_text()
            assert [path.stat().st_mode & 0o777 for path in (page, page.parent)] == [0o600, 0o700]
            ended(process)
        finally:
            process.kill()
    assert not page.parent.exists()


def test_a_folder_of_datasets_names_them(tmp_path: Path) -> None:
    for name in ("one", "nested/two"):
        (tmp_path / "rec" / name).mkdir(parents=True)
        with h5py.File(tmp_path / "rec" / name / "data.h5", "w") as f:
            f["observation"], f["action"] = np.zeros((9, len(name)), np.float32), np.ones((9, 2), np.float32)
            f["done"] = np.arange(9) == 8
    (tmp_path / "rec" / "nested" / "empty").mkdir()
    done = run_rlds("view", "--no-open", tmp_path / "rec", "--home", tmp_path / "home")
    named = f"{tmp_path}/rec/nested {tmp_path}/rec/one"  # one dataset each, in whichever folder
    assert done.returncode == 1 and f"hint: rlds view {named}\n" in done.stderr.decode()
    done = run_rlds("import", tmp_path / "rec", "--name", "local/rec", "--home", tmp_path / "home")
    assert f"hint: rlds import {tmp_path}/rec/nested --name local/NAME" in done.stderr.decode()


def test_a_path_that_does_not_exist_is_said(tmp_path: Path) -> None:
    done = run_rlds("view", "--no-open", tmp_path / "gone.h5", "--home", tmp_path / "home")
    assert done.returncode == 1 and f"{tmp_path}/gone.h5 does not exist" in done.stderr.decode()


def test_several_are_listed_on_the_first_page_by_names_of_their_own(tmp_path: Path) -> None:
    rlds_cli.create("local/mine", [{"observation": np.zeros((3, 1)), "action": np.zeros((2, 1))}], home=tmp_path)
    files = []
    for day in ("monday", "tuesday"):
        (tmp_path / day).mkdir()
        files.append(tmp_path / day / "run.h5")
        with h5py.File(files[-1], "w") as f:
            f["observation"], f["action"] = np.zeros((9, 3), np.float32), np.ones((9, 2), np.float32)
            f["done"] = np.arange(9) == 8
    with command("local/mine", *map(str, files), home=tmp_path) as (process, address):
        assert address.endswith("/")
        with urllib.request.urlopen(f"{address}api/about") as answer:
            named = [(n["key"], n["id"]) for n in json.load(answer)["named"]]
        assert named == [("local/mine", "local/mine"), ("~0", "local/run"), ("~1", "local/tuesday-run")]
        ended(process)


def test_files_are_shown_and_leave_nothing(tmp_path: Path) -> None:
    file = tmp_path / "Press run 4.h5"
    with h5py.File(file, "w") as f:
        f["observation"], f["action"] = np.zeros((9, 3), np.float32), np.ones((9, 2), np.float32)
        f["done"] = np.arange(9) == 8
    home = tmp_path / "home"
    with command(str(file), home=home) as (process, address):
        assert address.endswith("/#/d/~0")
        token = address.removesuffix("#/d/~0")
        with urllib.request.urlopen(f"{token}api/about") as answer:
            (named,) = json.load(answer)["named"]
        assert (named["id"], named["episodes"], named["steps"]) == ("local/press-run-4", 1, 9)
        assert rlds_cli.open_dataset(named["ref"]).num_steps == 9
        assert len(list((home / "partial").iterdir())) == 1
        assert "removed at the end" in ended(process)
    assert not list((home / "partial").iterdir()) and file.exists()
    assert not (home / "datasets").exists() or not list((home / "datasets").rglob("zarr.json"))


def test_files_that_are_not_recognised_lead_to_an_import(tmp_path: Path) -> None:
    file = tmp_path / "odd.h5"
    with h5py.File(file, "w") as f:
        f["quux"] = np.zeros((9, 3))
    done = run_rlds("view", "--no-open", file, "--home", tmp_path / "home")
    assert done.returncode == 1 and f"rlds import {file} --name local/odd" in done.stderr.decode()
