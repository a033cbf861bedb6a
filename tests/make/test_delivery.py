"""``rlds_cli.download`` from registered ids to datasets, over loopback servers and from local copies."""

from __future__ import annotations

import io
import json
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from urllib.parse import urlsplit

import h5py
import numpy as np
import pytest
from conftest import write_d4rl
from server import Server

import rlds_cli
from rlds_cli import cli, registry
from rlds_cli.base.files import publishing
from rlds_cli.errors import (
    CorruptArchive,
    DatasetNotFound,
    DownloadFailed,
    InvalidId,
    NoPermission,
    Offline,
    UnknownDataset,
    WrongHash,
)
from rlds_cli.make.downloads import download
from rlds_cli.make.downloads.request import DownloadRequest
from rlds_cli.registry import lookup

LENGTHS = [30, 12, 400]
UNHASHED = next(e.id for e in lookup.entries("d4rl") if not e.sha256 and e.status == "open" and len(e.files) == 1)
PACKAGE = Path(rlds_cli.__file__).parent


@pytest.mark.thorough
def test_a_registered_id_from_a_mirror(tmp_path: Path) -> None:
    columns = write_d4rl(tmp_path / "a.hdf5", LENGTHS)
    name = registry.get(UNHASHED).files[0].path
    with Server() as server:
        page = server.add(f"/{name}", (tmp_path / "a.hdf5").read_bytes())
        ds = rlds_cli.download(UNHASHED, source=server.url)
        assert ds.id == UNHASHED
        assert ds.num_steps == sum(LENGTHS)
        steps = np.delete(np.arange(ds.num_rows), ds.episodes["start"] + ds.episodes["length"])
        np.testing.assert_array_equal(ds.column("observation")[steps], columns["observations"])
        requests = len(page.requests)
        assert rlds_cli.download(UNHASHED, source=server.url).fingerprint == ds.fingerprint
        assert len(page.requests) == requests  # it is here: nobody is asked
    assert rlds_cli.download(UNHASHED.upper().replace("D4RL", "d4rl")).fingerprint == ds.fingerprint


def test_a_registered_id_through_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_d4rl(tmp_path / "a.hdf5", LENGTHS)
    url = registry.get(UNHASHED).files[0].urls[0]
    assert url.startswith("http://")
    with Server() as server:
        server.add(urlsplit(url).path, (tmp_path / "a.hdf5").read_bytes())
        monkeypatch.setenv("http_proxy", server.url)
        monkeypatch.setenv("no_proxy", "")
        assert rlds_cli.download(UNHASHED).num_steps == sum(LENGTHS)


def test_a_promised_hash_is_kept(tmp_path: Path, home: Path) -> None:
    write_d4rl(tmp_path / "hopper_medium-v2.hdf5", LENGTHS)
    with pytest.raises(WrongHash, match="sha256"):
        rlds_cli.download("d4rl/hopper-medium-v2", source=str(tmp_path))
    assert not (home / "datasets").exists()
    assert (tmp_path / "hopper_medium-v2.hdf5").exists()


@pytest.mark.thorough
def test_hub_families(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minari = PACKAGE / "samples/cartpole-minari/data"
    files = {f"cartpole/expert-v9/data/{f.name}": f.read_bytes() for f in minari.iterdir()}
    trials = (PACKAGE / "samples/mountaincar-robohive.h5").read_bytes()
    robo = {f"DAPG(expert)/door_v2d-v1/seed{i}.h5": trials for i in (10, 2)}
    with Server() as server:
        server.add_repository("farama-minari/cartpole", {k.removeprefix("cartpole/"): v for k, v in files.items()})
        server.add_repository("jdvakil/RoboSet_Sim", robo | {"DAPG(expert)/pen_v2d-v1/seed1.h5": b"no"})
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        cartpole = rlds_cli.download("minari/cartpole/expert-v9")  # the hub has it, the registry does not
        door = rlds_cli.download("roboset/dapg-expert/door_v2d-v1")
    sample = rlds_cli.download("sample/cartpole-minari")
    assert cartpole.fingerprint == sample.fingerprint
    with h5py.File(PACKAGE / "samples/mountaincar-robohive.h5") as f:
        trials_in_file = len(f)
        first = f["Trial0/observations"][:]
    assert door.num_episodes == 2 * trials_in_file
    assert door.episodes["source"].tolist() == [0] * trials_in_file + [1] * trials_in_file
    start = door.episodes["start"][trials_in_file]
    np.testing.assert_array_equal(door.column("observation")[start : start + len(first)], first)
    assert [s["file"].rpartition("/")[2] for s in door.sources] == ["seed2.h5", "seed10.h5"]


def test_a_planned_download_asks_its_source_once(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trials = (PACKAGE / "samples/mountaincar-robohive.h5").read_bytes()
    id, root = "roboset/dapg-expert/door_v2d-v1", "/api/datasets/jdvakil/RoboSet_Sim"
    with Server() as server:
        server.add_repository("jdvakil/RoboSet_Sim", {"DAPG(expert)/door_v2d-v1/seed1.h5": trials})
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        calls = [page for path, page in server.pages.items() if path.startswith(root)]
        monkeypatch.setattr("sys.argv", ["rlds", "download", id, "--json"])
        cli.app(["download", id, "--json"], standalone_mode=False)
        asked = sum(len(page.requests) for page in calls)
        (made,) = json.loads(capsys.readouterr().out)
        assert made["id"] == id
        planned = download.plan_download([DownloadRequest(id, force=True)])
        assert sum(len(page.requests) for page in calls) == 2 * asked
        made_again = download.deliver(DownloadRequest(id, force=True), planned=planned.datasets[0])
        assert sum(len(page.requests) for page in calls) == 2 * asked
        assert made_again.fingerprint == made["fingerprint"]


@pytest.mark.thorough
def test_a_plan_is_made_again_if_a_file_of_it_is_gone(home: Path) -> None:
    first = rlds_cli.download("sample/pendulum-d4rl")
    (kept,) = (home / "archives/sample").rglob("*.hdf5")
    request = DownloadRequest("sample/pendulum-d4rl")
    publishing.remove(first.path)
    (planned,) = download.plan_download([request]).datasets
    assert planned.actions == {"reuse": 1}
    kept.unlink()
    assert download.deliver(request, planned=planned).fingerprint == first.fingerprint
    assert kept.exists()


KILLED = textwrap.dedent("""
    import sys
    import rlds_cli
    print(rlds_cli.download(sys.argv[1], source=sys.argv[2]).fingerprint)
""")


@pytest.mark.slow
def test_a_killed_download_goes_on(tmp_path: Path, home: Path) -> None:
    write_d4rl(tmp_path / "a.hdf5", [1000] * 100, observation=20)
    content = (tmp_path / "a.hdf5").read_bytes()
    name = registry.get(UNHASHED).files[0].path
    with Server() as server:
        page = server.add(f"/{name}", content, pace=0.02)
        command = [sys.executable, "-c", KILLED, UNHASHED, server.url]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            while page.sent < len(content) // 4:
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
        assert not (home / "datasets").exists()
        page.pace = 0.0
        before = page.sent
        subprocess.run(command, check=True, capture_output=True)
        assert page.sent - before < len(content)  # it went on, not from the start
        assert page.sent < len(content) * 1.2
    assert rlds_cli.open_dataset(UNHASHED).num_steps == 100_000


@pytest.mark.slow
def test_many_ranks_at_once(tmp_path: Path) -> None:
    write_d4rl(tmp_path / "a.hdf5", [1000] * 100)
    name = registry.get(UNHASHED).files[0].path
    with Server() as server:
        page = server.add(f"/{name}", (tmp_path / "a.hdf5").read_bytes(), pace=0.005)
        command = [sys.executable, "-c", KILLED, UNHASHED, server.url]
        ranks = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
        prints = {rank.communicate()[0].strip() for rank in ranks}
        assert all(rank.returncode == 0 for rank in ranks)
        assert len(prints) == 1
        assert sum(r.status == 200 for r in page.requests) == 1


@pytest.mark.thorough
def test_another_tools_copy_is_adopted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import hashlib
    from dataclasses import replace

    write_d4rl(tmp_path / "user/.d4rl/datasets/hopper_medium-v2.hdf5", LENGTHS)
    copy = tmp_path / "user/.d4rl/datasets/hopper_medium-v2.hdf5"
    entry = registry.get("d4rl/hopper-medium-v2")
    known = replace(entry.files[0], size=copy.stat().st_size, sha256=hashlib.sha256(copy.read_bytes()).hexdigest())
    monkeypatch.setattr(registry, "get", lambda ref: replace(entry, files=(known,)))
    ds = rlds_cli.download("d4rl/hopper-medium-v2", offline=True)
    assert ds.num_steps == sum(LENGTHS)
    assert copy.exists()


@pytest.mark.thorough
def test_a_published_dataset_is_copied(tmp_path: Path, home: Path) -> None:
    ds = rlds_cli.download("sample/pendulum-d4rl", home=tmp_path / "other")
    staged = rlds_cli.download("sample/pendulum-d4rl", source=str(tmp_path / "other"), offline=True)
    assert staged.fingerprint == ds.fingerprint
    assert staged.path.is_relative_to(home)
    assert not (home / "archives").exists()
    shutil.rmtree(home)
    again = rlds_cli.download("sample/pendulum-d4rl", source=str(ds.path), offline=True)
    assert again.fingerprint == ds.fingerprint


def test_offline_says_what_to_do(home: Path) -> None:
    with pytest.raises(Offline, match=r"(?s)hopper-medium-v2 is not in .*rlds download d4rl/hopper-medium-v2"):
        rlds_cli.download("d4rl/hopper-medium-v2", offline=True)


@pytest.mark.thorough
def test_what_cannot_be_downloaded(home: Path) -> None:
    with pytest.raises(UnknownDataset, match="hopper-medium-v2"):
        rlds_cli.download("d4rl/hoper-medium-v2")
    with pytest.raises(DatasetNotFound, match="rlds preprocess"):
        rlds_cli.download("d4rl/hopper-medium-v2@norm")
    for bad in ("../x", "/etc/passwd"):
        with pytest.raises(DatasetNotFound, match="no dataset was pushed there"):
            rlds_cli.download(bad)
    with pytest.raises((InvalidId, UnknownDataset)):
        rlds_cli.download("d4rl/../x")
    with Server() as server, pytest.raises(DownloadFailed, match="404"):
        rlds_cli.download(UNHASHED, source=server.url)


def test_the_archive_need_not_be_kept(home: Path) -> None:
    ds = rlds_cli.download("sample/pendulum-d4rl", keep_archive=False)
    assert not list((home / "archives").glob("**/*.hdf5"))
    assert (PACKAGE / "samples/pendulum-d4rl.hdf5").exists()
    assert ds.num_episodes > 0


@pytest.mark.thorough
def test_force_converts_again(home: Path) -> None:
    ds = rlds_cli.download("sample/pendulum-d4rl")
    file = next((ds.path / "action").rglob("c/*/*"))
    file.chmod(0o644)
    file.write_bytes(b"\0" * file.stat().st_size)
    assert rlds_cli.download("sample/pendulum-d4rl", force=True).column("action").any()


def test_shared_homes_are_only_read(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = rlds_cli.download("sample/pendulum-d4rl", home=tmp_path / "shared")
    before = sorted((tmp_path / "shared").rglob("*"))
    monkeypatch.setenv("RLDS_PATH", str(tmp_path / "shared"))
    assert rlds_cli.download("sample/pendulum-d4rl").path == ds.path
    assert sorted((tmp_path / "shared").rglob("*")) == before
    assert not home.exists()


def test_a_plan_says_what_is_to_be_done(home: Path) -> None:
    rlds_cli.download("sample/pendulum-d4rl")
    orders = [DownloadRequest(r) for r in download.expand_refs(["sample/*", "d4rl/hopper-medium-v2"])]
    planned = download.plan_download(orders)
    by_id = {d.id: d for d in planned.datasets}
    assert by_id["sample/pendulum-d4rl"].here is not None
    assert by_id["sample/cartpole-minari"].actions == {"link": 2}
    assert by_id["d4rl/hopper-medium-v2"].to_fetch == 152_756_557
    assert by_id["d4rl/hopper-medium-v2"].cache > 100_000_000


def test_no_permission(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NoPermission, match="--home"):
        rlds_cli.download("sample/pendulum-d4rl", home=tmp_path / "file")


PAIR = "ogbench/antmaze-giant-navigate-v0"  # two files: train and val


def episodes_of_ogbench(count: int) -> bytes:
    rng, steps = np.random.default_rng(count), 5
    ends = np.arange(count * (steps + 1)) % (steps + 1) == steps
    columns = {"observations": (4,), "actions": (2,)}
    arrays = {k: rng.normal(size=(len(ends), *shape)).astype(np.float32) for k, shape in columns.items()}
    file = io.BytesIO()
    np.savez(file, terminals=ends.astype(np.float32), **arrays)
    return file.getvalue()


def test_one_file_does_not_stand_for_two(tmp_path: Path, home: Path) -> None:
    train = tmp_path / "antmaze-giant-navigate-v0.npz"
    train.write_bytes(episodes_of_ogbench(3))
    with Server() as server:
        page = server.add(f"/{train.name}", train.read_bytes())
        for source in (str(train), server.url + f"/{train.name}"):
            with pytest.raises(DownloadFailed, match=r"has 2 files, and .* is one"):
                rlds_cli.download(PAIR, source=source)
        assert not page.requests
    ds = rlds_cli.download(PAIR, source=str(train), exclude="*-val.npz")
    assert ds.num_episodes == 3


def test_what_cannot_be_read_and_nobody_vouches_for_is_fetched_again(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = episodes_of_ogbench(3)
    with Server() as server:
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("RLDS_MIRROR", server.url)
        train, val = (f"/rail.eecs.berkeley.edu/datasets/ogbench/{f.path}" for f in registry.get(PAIR).files)
        server.add(train, content[:1000])
        other = server.add(val, content)
        with pytest.raises(CorruptArchive, match="truncated or damaged") as caught:
            rlds_cli.download(PAIR)
        assert caught.value.hint.startswith(f"rlds download {PAIR} downloads it again")
        server.add(train, content)
        ds = rlds_cli.download(PAIR)
        assert ds.num_episodes == 6
        assert len(other.requests) == 1
    said = [n["text"] for n in ds.manifest.notes if n["code"] == "counts-differ"]
    assert said == [  # each once
        "30 steps in the dataset; the registry says 1,100,000",
        "6 episodes in the dataset; the registry says 550",
    ]
