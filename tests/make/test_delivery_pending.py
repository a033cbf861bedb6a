"""Downloads that were interrupted: what is on record of them, going on with all of them, and what Ctrl-C says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import write_d4rl
from filelock import FileLock
from server import Page, Server

import rlds_cli
from rlds_cli import registry
from rlds_cli.base import ids
from rlds_cli.base.subset import Subset
from rlds_cli.errors import ArchiveError, DownloadFailed
from rlds_cli.homes import Home
from rlds_cli.keep import gc
from rlds_cli.make.downloads import download, request
from rlds_cli.make.downloads.request import DownloadRequest
from rlds_cli.registry import lookup

UNHASHED = [e.id for e in lookup.entries("d4rl") if not e.sha256 and e.status == "open" and len(e.files) == 1][:2]


def serve(server: Server, tmp_path: Path, ref: str, **behaviour: object) -> Page:
    write_d4rl(tmp_path / "a.hdf5", [300, 200])
    return server.add(f"/{registry.get(ref).files[0].path}", (tmp_path / "a.hdf5").read_bytes(), **behaviour)


def rlds(*arguments: str, **more: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "rlds_cli", *arguments]
    environment = os.environ | {"NO_PROXY": "*"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, **more)


def part_of(home: Path, ref: str) -> Path:
    return Home(home).archive(ids.parse(ref)) / f"{registry.get(ref).files[0].path}.part"


def wait_for(path: Path, size: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (path.exists() and path.stat().st_size >= size):
        time.sleep(0.01)


@pytest.mark.thorough
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_and_gone_on_with(tmp_path: Path, home: Path, how: signal.Signals) -> None:
    ref = UNHASHED[0]
    with Server() as server:
        page = serve(server, tmp_path, ref, stall=20_000)
        with rlds("download", ref, "--from", server.url, "--storage", "zarr") as child:
            wait_for(part_of(home, ref), 20_000)
            child.send_signal(how)
            _, said = child.communicate(timeout=60)
        (order,) = DownloadRequest.unfinished()
        assert order == DownloadRequest(ref, source=server.url, storage="zarr")
        if how == signal.SIGINT:
            assert child.returncode == 130
            assert f"stopped. Kept: 19.5 KiB of {ref}." in said
            assert f" Continue with:  rlds download {ref} --from {server.url} --storage zarr" in said
        page.stall = None
        with rlds("download", "--resume-all", "--json") as child:
            printed, said = child.communicate(timeout=60)
        assert child.returncode == 0, said
        assert [made["id"] for made in json.loads(printed)] == [ref]
        assert page.requests[-1].start == 20_000
    assert rlds_cli.open_dataset(ref).manifest.encoding == "zarr"
    assert DownloadRequest.unfinished() == ()
    assert not list((home / "partial").iterdir())


def test_nothing_to_go_on_with(home: Path) -> None:
    with rlds("download", "--resume-all") as child:
        printed, said = child.communicate(timeout=60)
    assert (child.returncode, printed) == (0, "no interrupted downloads\n"), said
    with rlds("download", "--resume-all", "d4rl/x") as child:
        assert "give either IDs or --resume-all" in child.communicate(timeout=60)[1]
    assert child.returncode == 2


def test_failures_that_left_something_are_on_record(tmp_path: Path, home: Path) -> None:
    first, second = UNHASHED
    with Server() as server:
        page = serve(server, tmp_path, first, drops=[5000], statuses=[None, (404, {})])
        with pytest.raises(DownloadFailed, match="404"):
            rlds_cli.download(first, source=server.url)
        with pytest.raises(DownloadFailed, match="404"):
            rlds_cli.download(second, source=server.url)
        assert [o.ref for o in DownloadRequest.unfinished()] == [first]  # nothing came of the second
        assert request.bytes_left(ids.parse(first), Home(home)) == 5000
        with FileLock(Home(home).lock(ids.parse(first))):
            assert DownloadRequest.unfinished() == ()  # somebody is at it
        page.drops = []
        download.deliver(*DownloadRequest.unfinished())
    assert rlds_cli.open_dataset(first).num_episodes == 2
    assert DownloadRequest.unfinished() == ()


@pytest.mark.slow
def test_one_that_fails_does_not_keep_the_others(tmp_path: Path, home: Path) -> None:
    first, second = UNHASHED
    with Server() as server:
        pages = [serve(server, tmp_path, ref, drops=[5000], statuses=[None, (404, {})]) for ref in UNHASHED]
        for ref in UNHASHED:
            with pytest.raises(DownloadFailed, match="404"):
                rlds_cli.download(ref, source=server.url)
        pages[0].statuses = [(404, {})] * 9
        with rlds("download", "--resume-all", "--json") as child:
            printed, said = child.communicate(timeout=60)
        made, failed = json.loads(printed)
        assert child.returncode == 1 and said == "" and made["id"] == second
        assert failed["id"] == first and failed["kind"] == "DownloadFailed"
        assert failed["error"].startswith(registry.get(first).files[0].path)
        assert [o.ref for o in DownloadRequest.unfinished()] == [first]


def test_orders_keep_what_was_asked_for(home: Path) -> None:
    portion = Subset(include=("a*",), episodes=(0, 10))
    asked = DownloadRequest("d4rl/hopper-medium-v2", storage="zarr", keep_archive=False, portion=portion)
    id = ids.parse("d4rl/hopper-medium-v2").with_variant("episodes-0-10")
    with pytest.raises(KeyboardInterrupt), request.recorded(asked, id, Home(home)):
        raise KeyboardInterrupt
    assert DownloadRequest.unfinished(offline=True) == (replace(asked, offline=True),)
    planned = gc.find_garbage()
    assert [(g.kind, g.id) for g in planned.removed] == [("partial", str(id))]
    gc.collect(planned)
    assert DownloadRequest.unfinished() == ()


def test_a_part_that_was_interrupted_is_no_order_of_the_whole(home: Path) -> None:
    place, id = Home(home), ids.parse("openx/bridge")
    part = place.archive(id) / "bridge-train.tfrecord-00000-of-01024.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x")
    order = DownloadRequest("openx/bridge", portion=Subset.of(include="*-00000-of-*"))
    with pytest.raises(KeyboardInterrupt), request.recorded(order, id.with_variant(order.variant), place):
        raise KeyboardInterrupt
    assert DownloadRequest.unfinished() == (order,)


def test_what_cannot_be_read_is_not_tried_again_and_again(tmp_path: Path, home: Path) -> None:
    with pytest.raises(ArchiveError, match="has no episodes for") as caught:
        rlds_cli.download("sample/pendulum-d4rl", episodes="1000:")
    assert caught.value.hint == "rlds download sample/pendulum-d4rl takes all of it"
    assert DownloadRequest.unfinished() == ()
    assert not list((home / "partial").iterdir())
