"""``rlds mirror``: archives copied to a store of one's own, and used from there when their source is gone."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import run_rlds, write_d4rl
from hub_server import Hub
from object_store import Fault, ObjectStore
from server import Server
from server_pages import Page

import rlds_cli
from rlds_cli.base.files import trees
from rlds_cli.cli import main
from rlds_cli.errors import DownloadFailed, RldsError, UnknownDataset, WrongHash
from rlds_cli.registry import package

LENGTHS = [30, 12, 40]
CACHED = ("facts_of_families", "family", "reserved", "entries", "by_name", "by_id", "by_name_alone")


def entries(folder: Path, family: str, licence: str | None, *lines: dict[str, Any]) -> None:
    """Write a registry of one family of D4RL's layout."""
    folder.mkdir()
    facts = {"title": "a lab", "format": "d4rl", "expansion": 1.0} | ({"licence": licence} if licence else {})
    (folder / "families.json").write_text(json.dumps({family: facts}))
    (folder / f"{family}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """Three archives at a server: two files, of which one has a published hash, and a repository of the hub."""
    monkeypatch.setenv("NO_PROXY", "*")
    with Server() as server:
        contents = {}
        for k, name in enumerate(("one", "two", "three", "four")):
            write_d4rl(tmp_path / f"{name}.hdf5", LENGTHS[: k + 1])
            contents[name] = (tmp_path / f"{name}.hdf5").read_bytes()
        pages = {name: server.add(f"/data/{name}.hdf5", contents[name]) for name in ("one", "two")}
        server.add_repository("lab/sim", {f"run/{n}.hdf5": contents[n] for n in ("three", "four")})
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        sum = hashlib.sha256(contents["one"]).hexdigest()
        url, size = f"{server.url}/data", len(contents["one"])
        folder = tmp_path / "registry"
        entries(
            folder, "lab", "MIT",
            {"id": "lab/one", "urls": [f"{url}/one.hdf5"], "size": size, "sha256": sum},
            {"id": "lab/two", "urls": [f"{url}/two.hdf5"], "licence": "not stated"},
            {"id": "lab/sim", "tree": ["hf://datasets/lab/sim/run"]},
        )  # fmt: skip
        monkeypatch.setattr(package, "registry_directory", lambda: folder)
        forget()
        yield Lab(server, contents, pages)
    forget()


def forget() -> None:
    for name in CACHED:
        getattr(package, name).cache_clear()


class Lab:
    def __init__(self, server: Server, contents: dict[str, bytes], pages: dict[str, Page]) -> None:
        self.server, self.contents, self.pages = server, contents, pages
        host = server.host
        self.places = {
            f"{host}/data/one.hdf5": contents["one"],
            f"{host}/data/two.hdf5": contents["two"],
            "lab/sim/run/three.hdf5": contents["three"],
            "lab/sim/run/four.hdf5": contents["four"],
        }

    @property
    def sums(self) -> str:
        """SHA256SUMS as sha256sum writes them, sorted by name."""
        lines = (f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in sorted(self.places.items()))
        return "".join(lines)


def content(root: Path) -> dict[str, bytes]:
    return {f.relative_to(root).as_posix(): f.read_bytes() for f in trees.files(root) if f.name[0] != "."}


def test_a_mirror_serves_when_the_source_is_gone(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    to = tmp_path / "mirror"
    found = rlds_cli.mirror("lab/*", to)
    assert content(to) == {**lab.places, "SHA256SUMS": lab.sums.encode()}
    assert {a.id: a.to_fetch for a in found.archives} == {
        "lab/one": len(lab.contents["one"]),
        "lab/two": 0,  # of unknown size before
        "lab/sim": len(lab.contents["three"]) + len(lab.contents["four"]),
    }
    assert not list((home / "partial").iterdir()) and not (home / "archives").exists()
    subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=to, check=True)
    lab.server.pages.clear()
    with pytest.raises(DownloadFailed):
        rlds_cli.download("lab/one")
    monkeypatch.setenv("RLDS_MIRROR", str(to))
    assert rlds_cli.download("lab/one").num_steps == LENGTHS[0]
    assert rlds_cli.download("lab/two").num_steps == sum(LENGTHS[:2])
    assert rlds_cli.download("lab/sim").num_steps == 2 * sum(LENGTHS)


@pytest.mark.thorough
def test_a_mirror_behind_a_web_server(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rlds_cli.mirror(["lab/one", "lab/two"], tmp_path / "mirror")
    with Server() as other:
        for name, data in content(tmp_path / "mirror").items():
            other.add(f"/copies/{name}", data)
        lab.server.pages.clear()
        monkeypatch.setenv("RLDS_MIRROR", f"{other.url}/copies")
        assert rlds_cli.download("lab/one").num_steps == LENGTHS[0]
        assert rlds_cli.download("lab/two").num_steps == sum(LENGTHS[:2])


@pytest.mark.thorough
def test_what_is_there_is_neither_fetched_nor_sent(lab: Lab, tmp_path: Path) -> None:
    to = tmp_path / "mirror"
    rlds_cli.mirror("lab/*", to)
    before = {f: f.stat().st_mtime_ns for f in trees.files(to)}
    asked = [len(page.requests) for page in lab.pages.values()]
    found = rlds_cli.mirror("lab/*", to)
    assert all(f.there for a in found.archives for f in a.files)
    assert {f: f.stat().st_mtime_ns for f in trees.files(to)} == before
    assert [len(page.requests) for page in lab.pages.values()] == asked


@pytest.mark.thorough
def test_a_damaged_copy_is_sent_again(lab: Lab, tmp_path: Path) -> None:
    to = tmp_path / "mirror"
    rlds_cli.mirror("lab/*", to)
    for name, data in lab.places.items():
        (to / name).chmod(0o644)
        (to / name).write_bytes(bytes([data[0] ^ 1]) + data[1:])
    rlds_cli.mirror("lab/*", to)
    assert content(to) == {**lab.places, "SHA256SUMS": lab.sums.encode()}


@pytest.mark.thorough
def test_archives_of_the_home_are_not_fetched_again(lab: Lab, tmp_path: Path, home: Path) -> None:
    for id in ("lab/one", "lab/two", "lab/sim"):
        rlds_cli.download(id)
    before = content(home / "archives")
    lab.server.pages.clear()
    found = rlds_cli.mirror(["lab/one", "lab/two", "lab/sim"], tmp_path / "mirror")
    assert content(tmp_path / "mirror") == {**lab.places, "SHA256SUMS": lab.sums.encode()}
    assert all(f.here for a in found.archives for f in a.files)
    assert content(home / "archives") == before


@pytest.mark.thorough
def test_a_damaged_file_of_the_home_is_not_sent(lab: Lab, tmp_path: Path, home: Path) -> None:
    rlds_cli.download("lab/one")
    (kept,) = (home / "archives").rglob("one.hdf5")
    status = kept.stat()
    data = lab.contents["one"]
    kept.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    os.utime(kept, ns=(status.st_atime_ns, status.st_mtime_ns))  # as a bad disk does it
    rlds_cli.mirror("lab/one", tmp_path / "mirror")
    assert content(tmp_path / "mirror")[f"{lab.server.host}/data/one.hdf5"] == data


def test_wrong_bytes_of_a_source_do_not_reach_the_mirror(lab: Lab, tmp_path: Path) -> None:
    lab.server.add("/data/one.hdf5", b"x" * len(lab.contents["one"]))
    with pytest.raises(WrongHash):
        rlds_cli.mirror("lab/*", tmp_path / "mirror")
    assert f"{lab.server.host}/data/one.hdf5" not in content(tmp_path / "mirror")


def test_one_archive_that_fails_stops_no_other(lab: Lab, tmp_path: Path) -> None:
    lab.server.pages["/data/one.hdf5"].statuses = [(404, {})] * 100
    to = tmp_path / "mirror"
    with pytest.raises(DownloadFailed, match=r"1 of 3 archives could not be copied .* lab/one: .*404"):
        rlds_cli.mirror("lab/*", to)
    failed = f"{lab.server.host}/data/one.hdf5"
    assert content(to).keys() == {*lab.places, "SHA256SUMS"} - {failed}
    lab.server.pages["/data/one.hdf5"].statuses = []
    rlds_cli.mirror("lab/*", to)
    assert content(to) == {**lab.places, "SHA256SUMS": lab.sums.encode()}


def test_a_plan_says_which_source_lists_nothing(lab: Lab, tmp_path: Path) -> None:
    for path in [p for p in lab.server.pages if p.startswith("/api")]:
        del lab.server.pages[path]
    plan = rlds_cli.mirror("lab/*", tmp_path / "mirror", dry_run=True)
    assert [a.problem is None for a in plan.archives] == [True, True, False]
    assert "lab/sim" in (plan.archives[2].problem or "")


def test_a_plan_writes_nothing(
    lab: Lab, tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    to = str(tmp_path / "mirror")
    monkeypatch.setattr(sys, "argv", ["rlds", "mirror", "lab/*", to, "--dry-run", "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert not Path(to).exists() and not home.exists()
    plan = json.loads(capsys.readouterr().out)
    assert plan["done"] is False
    one, two, sim = plan["archives"]
    size = len(lab.contents["one"])
    assert one["files"] == [
        {
            "name": f"{lab.server.host}/data/one.hdf5",
            "size": size,
            "sha256": hashlib.sha256(lab.contents["one"]).hexdigest(),
            "published": True,
            "there": False,
            "here": False,
        }
    ]
    assert (one["warnings"], len(two["warnings"]), sim["warnings"]) == ([], 2, [])
    assert "licence of lab/two (not stated)" in two["warnings"][0]
    assert "1 file of lab/two" in two["warnings"][1] and "no published hash" in two["warnings"][1]
    assert [f["size"] for f in sim["files"]] == [len(lab.contents[n]) for n in ("four", "three")]


@pytest.mark.thorough
def test_a_bucket_is_a_mirror(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    with ObjectStore() as store:
        store.buckets["lab"] = {}
        for name, value in store.environ(tmp_path).items():
            if name.startswith("AWS"):
                monkeypatch.setenv(name, value)
        store.faults = [Fault("503", "PUT", times=2), Fault("reset", "PUT", times=1, skip=2)]
        rlds_cli.mirror("lab/*", "s3://lab/copies")
        assert store.buckets["lab"] == {
            **{f"copies/{name}": data for name, data in lab.places.items()},
            "copies/SHA256SUMS": lab.sums.encode(),
        }
        with store.counting() as requests:
            found = rlds_cli.mirror("lab/*", "s3://lab/copies")
        assert all(f.there for a in found.archives for f in a.files)
        assert not [r for r in requests if r.method == "PUT"]
        lab.server.pages.clear()
        monkeypatch.setenv("RLDS_MIRROR", "s3://lab/copies")
        assert rlds_cli.download("lab/one").num_steps == LENGTHS[0]


def test_a_repository_of_the_hub_is_a_mirror(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Hub() as hub:
        for name in ("HF_ENDPOINT", "HF_TOKEN"):
            monkeypatch.setenv(name, hub.environ(tmp_path)[name])
        place = "hf://datasets/lab/copies/archives"
        rlds_cli.mirror(["lab/one", "lab/two"], place)
        content = hub.content("lab/copies")
        names = [name for name in lab.places if name.startswith(lab.server.host)]
        assert {name: content[f"archives/{name}"] for name in names} == {name: lab.places[name] for name in names}
        assert "archives/SHA256SUMS" in content
        commits = len(hub.repositories["lab/copies"].commits)
        found = rlds_cli.mirror(["lab/one", "lab/two"], place)
        assert all(f.there for a in found.archives for f in a.files)
        assert len(hub.repositories["lab/copies"].commits) == commits
        lab.server.pages.clear()
        monkeypatch.setenv("RLDS_MIRROR", place)
        assert rlds_cli.download("lab/one").num_steps == LENGTHS[0]


def test_two_mirrors_at_a_time_list_both(lab: Lab, tmp_path: Path) -> None:
    from rlds_cli.base.settings import read
    from rlds_cli.make.downloads.mirroring import _Target
    from rlds_cli.places import Address
    from rlds_cli.places.sources import opening

    objects = opening.open_objects(Address.parse(tmp_path / "mirror"), read())
    first, second = _Target(objects), _Target(objects)
    first.read(), second.read()
    first.add({"a": "0" * 64})
    second.add({"b": "1" * 64})
    first.add({"c": "2" * 64})
    assert (tmp_path / "mirror/SHA256SUMS").read_text() == f"{'0' * 64}  a\n{'1' * 64}  b\n{'2' * 64}  c\n"


def test_archives_that_come_with_rlds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RldsError, match="cannot be mirrored"):
        rlds_cli.mirror("sample/pendulum-d4rl", tmp_path / "mirror")


def test_what_an_interrupted_mirror_leaves_can_be_freed(lab: Lab, tmp_path: Path, home: Path) -> None:
    page = lab.server.pages["/data/one.hdf5"]
    page.drops, page.then = [2000], {"statuses": [(404, {})] * 9}
    with pytest.raises(DownloadFailed):
        rlds_cli.mirror("lab/one", tmp_path / "mirror")
    left = home / "partial/lab+one.mirror"
    assert (left / "one.hdf5.part").stat().st_size > 0
    assert run_rlds("gc", "--yes").returncode == 0
    assert not left.exists()


def test_unknown_ids_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UnknownDataset):
        rlds_cli.mirror("d4rl/nothing", tmp_path / "mirror")
    assert not (tmp_path / "mirror").exists()


SCRIPT = """
import sys
sys.path[:0] = [sys.argv[1]]
from pathlib import Path
from rlds_cli.registry import package
package.registry_directory = lambda: Path(sys.argv[2])
import rlds_cli
rlds_cli.mirror("lab/*", sys.argv[3])
"""


@pytest.mark.slow
def test_a_killed_mirror_goes_on(lab: Lab, tmp_path: Path, home: Path) -> None:
    big = np.random.default_rng(0).bytes(24 << 20)
    sum = hashlib.sha256(big).hexdigest()
    page = lab.server.add("/data/big.bin", big, pace=0.001)
    listed = (tmp_path / "registry/lab.jsonl").read_text()
    line = {"id": "lab/big", "urls": [f"{lab.server.url}/data/big.bin"], "size": len(big), "sha256": sum}
    (tmp_path / "registry/lab.jsonl").write_text(listed + json.dumps(line) + "\n")
    to, root = tmp_path / "mirror", Path(__file__).parents[2]
    command = [sys.executable, "-c", SCRIPT, str(root), str(tmp_path / "registry"), str(to)]
    for k in range(3):
        process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(root)})
        while not list(home.glob("partial/*.mirror/*")):  # it has begun
            time.sleep(0.01)
        time.sleep(0.4 * k)
        process.send_signal(signal.SIGKILL)
        process.wait()
        for name, data in content(to).items() if to.exists() else ():  # nothing is there by halves
            assert name == "SHA256SUMS" or data == {**lab.places, f"{lab.server.host}/data/big.bin": big}[name]
    subprocess.run(command, env=os.environ | {"PYTHONPATH": str(root)}, check=True)
    assert page.sent < 1.3 * len(big)  # what had come was not fetched again
    lab.places[f"{lab.server.host}/data/big.bin"] = big
    assert content(to) == {**lab.places, "SHA256SUMS": lab.sums.encode()}
