"""A private repository from end to end: pinned to its commit, every file checked, and no trace of the token."""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from server import COMMIT, Server

import rlds_cli
from rlds_cli.errors import DownloadFailed, WrongHash
from rlds_cli.make.downloads import download
from rlds_cli.make.downloads.request import DownloadRequest

TOKEN = "hf_VeryPrivateTokenOfMine"
DATA = Path(rlds_cli.__file__).parent / "samples/cartpole-minari/data"
FILES = {f"expert-v9/data/{f.name}": f.read_bytes() for f in DATA.iterdir()}
ID = "minari/cartpole/expert-v9"


def test_a_private_repository_leaves_no_trace_of_its_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with Server() as server, Server() as far:
        data = FILES["expert-v9/data/main_data.hdf5"]
        far.add("/cdn/main_data.hdf5", data)
        pages = server.add_repository(
            "farama-minari/cartpole", FILES, lfs=["expert-v9/data/main_data.hdf5"], token=TOKEN
        )
        pages["expert-v9/data/main_data.hdf5"].redirect = f"{far.url}/cdn/main_data.hdf5"
        for name, value in (server.environment(tmp_path) | {"HF_TOKEN": TOKEN}).items():
            monkeypatch.setenv(name, value)
        told: list[str] = []
        ds = rlds_cli.download(ID, progress=lambda event: told.append(str(event)))
        assert all(
            not {"Authorization", "authorization"} & set(r.headers) for r in far.pages["/cdn/main_data.hdf5"].requests
        )
    assert {s["revision"] for s in ds.sources} == {COMMIT}
    assert {s["sha256"] for s in ds.sources} == {hashlib.sha256(content).hexdigest() for content in FILES.values()}
    written = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert len(written) > 10
    assert not [p for p in written if TOKEN.encode() in p.read_bytes()]
    for text in (caplog.text, "".join(told), repr(DownloadRequest(ID).where), str(ds.manifest)):
        assert TOKEN not in text


@pytest.mark.slow
def test_the_token_is_in_no_list_of_processes(tmp_path: Path) -> None:
    with Server() as server:
        pages = server.add_repository("farama-minari/cartpole", FILES, token=TOKEN, pace=0.02)
        environment = os.environ | server.environment(tmp_path) | {"HF_TOKEN": TOKEN}
        command = [str(Path(sys.executable).with_name("rlds")), "download", ID, "-v", "-j", "2"]
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as run:
            seen = b""
            while run.poll() is None:
                for process in Path("/proc").glob("[0-9]*/cmdline"):
                    try:
                        seen += process.read_bytes()
                    except OSError:
                        continue
                try:
                    run.wait(0.05)
                except subprocess.TimeoutExpired:
                    continue
            assert run.stdout
            said = run.stdout.read()
        assert run.returncode == 0, said
        assert all(page.sent for page in pages.values())
    assert b"download" in seen
    assert TOKEN.encode() not in seen
    assert TOKEN not in said


@pytest.mark.parametrize("token", [None, "hf_WrongToken"])
def test_who_may_not_see_it_is_told_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str | None
) -> None:
    with Server() as server:
        server.add_repository("farama-minari/cartpole", FILES, token=TOKEN)
        for name, value in (server.environment(tmp_path) | ({"HF_TOKEN": token} if token else {})).items():
            monkeypatch.setenv(name, value)
        said = "token was not accepted, or may not read" if token else "need a token: HF_TOKEN"
        with pytest.raises(DownloadFailed, match=said) as caught:
            download.plan_download([DownloadRequest(ID)])
    assert "hf_Wrong" not in str(caught.value)
    assert caught.value.hint.startswith(f"{server.url}/datasets/farama-minari/cartpole says who may read it")


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["main_data.hdf5", "metadata.json"])
def test_large_files_and_small_ones_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with Server() as server:
        pages = server.add_repository("farama-minari/cartpole", FILES, lfs=["expert-v9/data/main_data.hdf5"])
        page = pages[f"expert-v9/data/{name}"]
        page.content = page.content[:-1] + b"!"
        for variable, value in server.environment(tmp_path).items():
            monkeypatch.setenv(variable, value)
        with pytest.raises(WrongHash, match="sha256 is" if name == "main_data.hdf5" else "git sha1 is"):
            rlds_cli.download(ID)
    assert not (tmp_path / "home" / "datasets").exists()
