"""Registries of a user's own: a lab's datasets behind a web server, listed and used like those of the package."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import run_rlds, write_d4rl
from server import Server

import rlds_cli
from rlds_cli import registry
from rlds_cli.errors import RldsError, UnknownDataset, WrongHash
from rlds_cli.keep import pinning
from rlds_cli.registry import OwnRegistries

TABLE = "q,a,r,trial\n" + "".join(f"{t * 0.5},{t % 3},{t},{t // 4}\n" for t in range(12))
PRESS, TWO, TABLE_ID = "lab/press-v1", "lab/two-arms", "lab/table"


class Lab:
    """Three datasets at a web server: a D4RL file with a hash, an archive of two files, and a table with a mapping."""

    def __init__(self, server: Server, tmp_path: Path) -> None:
        self.server = server
        for k, name in enumerate(("press", "left", "right")):
            write_d4rl(tmp_path / f"{name}.hdf5", [5, 7, 9][: k + 1], seed=k)
            server.add(f"/data/{name}.hdf5", (tmp_path / f"{name}.hdf5").read_bytes())
        server.add("/data/table.csv", TABLE)
        self.write(self.lines())

    @property
    def url(self) -> str:
        return f"{self.server.url}/lab.jsonl"

    @property
    def host(self) -> str:
        return self.server.url.removeprefix("http://")

    def write(self, lines: list[Any]) -> None:
        self.server.add("/lab.jsonl", text_of(lines))

    def lines(self) -> list[dict[str, Any]]:
        data = f"{self.server.url}/data"
        sha256 = hashlib.sha256(self.server.pages["/data/press.hdf5"].content).hexdigest()
        press = {"id": PRESS, "aliases": ["press"], "urls": [f"{data}/press.hdf5"], "sha256": sha256}
        press |= {"env_id": "Press-v1", "ref_min_score": 1.0, "ref_max_score": 5.0, "licence": "CC-BY-4.0"}
        files = [{"path": f"{n}.hdf5", "urls": [f"{data}/{n}.hdf5"]} for n in ("left", "right")]
        fields = {"observation": "q", "action": "a", "reward": "r"}
        table = {"id": TABLE_ID, "urls": [f"{data}/table.csv"], "fields": fields, "episodes_by": "field:trial"}
        return [press, {"id": TWO, "files": files, "format": "d4rl"}, table]


def text_of(lines: list[Any]) -> str:
    return "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    with Server() as server:
        for name, value in server.environment(tmp_path).items():
            monkeypatch.setenv(name, value)
        yield Lab(server, tmp_path)


def ids_of(query: str = "", **how: Any) -> list[str]:
    return [e.id for e in rlds_cli.find(query, **how)]


@pytest.mark.slow
def test_three_datasets_of_a_lab_go_all_the_way(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_rlds("registry", "add", lab.url).returncode == 0
    listed = run_rlds("list", "--family", "lab").stdout.decode()
    assert [line.split()[0] for line in listed.splitlines()[1:]] == [PRESS, TWO, TABLE_ID]
    assert ids_of("press-v1 lab")[0] == PRESS
    card = run_rlds("info", "press").stdout.decode()
    assert PRESS in card
    assert "CC-BY-4.0" in card
    assert run_rlds("download", "lab/*").returncode == 0
    made = {id: rlds_cli.open_dataset(id) for id in (PRESS, TWO, TABLE_ID)}
    assert {id: ds.num_episodes for id, ds in made.items()} == {PRESS: 1, TWO: 5, TABLE_ID: 3}
    assert made[PRESS].manifest.env["id"] == "Press-v1"
    verified = run_rlds("verify", "lab/*")
    assert verified.returncode == 0
    assert "archive sha256 known to the registry" in verified.stdout.decode()
    lock = tmp_path / "rlds.lock"
    lock.write_bytes(run_rlds("lock", "lab/*").stdout)
    fingerprints = {id: ds.fingerprint for id, ds in made.items()}
    assert run_rlds("mirror", "lab/*", tmp_path / "mirror").returncode == 0
    sums = (tmp_path / "mirror" / "SHA256SUMS").read_text()
    assert sorted(line.rpartition("/")[2] for line in sums.splitlines()) == [
        "left.hdf5", "press.hdf5", "right.hdf5", "table.csv"
    ]  # fmt: skip

    # Another machine: it has the lock, and not the registry.
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "elsewhere"))
    with pytest.raises(UnknownDataset):
        rlds_cli.download(PRESS)
    with pytest.raises(RldsError, match=f"would send requests to {lab.host}") as e:
        pinning.sync(lock)
    assert e.value.hint is not None and f"--allow-address {lab.host}" in e.value.hint
    assert {d.id: d.fingerprint for d in pinning.sync(lock, allow_address=[lab.host])} == fingerprints
    again = rlds_cli.open_dataset(PRESS)
    assert (again.manifest.env, again.manifest.facts) == (made[PRESS].manifest.env, made[PRESS].manifest.facts)
    assert not (tmp_path / "elsewhere" / "registries").exists()

    # A third one: the lab's server is gone, the mirror is there.
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "third"))
    monkeypatch.setenv("RLDS_MIRROR", str(tmp_path / "mirror"))
    for name in ("press", "left", "right"):
        del lab.server.pages[f"/data/{name}.hdf5"]
    assert {d.id: d.fingerprint for d in pinning.sync(lock, allow_address=[lab.host])} == fingerprints


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["file", "directory", "url", "several"])
def test_registries_that_a_variable_names(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    file, folder = tmp_path / "my lab.jsonl", tmp_path / "labs"
    folder.mkdir()
    first, *others = lab.lines()
    file.write_text(text_of(lab.lines() if kind == "file" else [first]))
    for k, line in enumerate(lab.lines() if kind == "directory" else others):
        (folder / f"{k}.jsonl").write_text(text_of([line]))
    (folder / "README.md").write_text("not a registry")
    named = {"file": str(file), "directory": str(folder), "url": lab.url, "several": f"{file}, {folder}"}
    monkeypatch.setenv("RLDS_REGISTRY", named[kind])
    assert [e.id for e in registry.match("lab/*")] == [PRESS, TWO, TABLE_ID]
    assert registry.get("PRESS").id == PRESS
    assert registry.get("table@norm").id == TABLE_ID
    assert rlds_cli.download(TABLE_ID).num_episodes == 3
    monkeypatch.delenv("RLDS_REGISTRY")
    assert registry.known(PRESS) is None
    assert rlds_cli.open_dataset(TABLE_ID).num_episodes == 3


WRONG: dict[str, tuple[Any, str]] = {
    "json": ("{'id': 'lab/x'}", "JSON"),
    "object": (["lab/x"], "one object"),
    "no id": ({"urls": ["https://h/x.h5"]}, "id is missing"),
    "id": ({"id": "x", "urls": ["https://h/x.h5"]}, "not a dataset id"),
    "variant": ({"id": "lab/x@y", "urls": ["https://h/x.h5"]}, "variant"),
    "family": ({"id": "d4rl/hopper-medium-v2", "urls": ["https://h/x.h5"]}, "d4rl is a family of the package"),
    "open family": ({"id": "lerobot/me/x", "urls": ["https://h/x.h5"]}, "lerobot is a family of the package"),
    "local": ({"id": "local/x", "urls": ["https://h/x.h5"]}, "family local"),
    "alias": ({"id": "lab/x", "aliases": ["hopper-medium-v2"], "urls": ["https://h/x.h5"]}, "d4rl/hopper-medium-v2"),
    "alias of a family": ({"id": "lab/x", "aliases": ["minari/x/y"], "urls": ["https://h/x.h5"]}, "family minari"),
    "key": ({"id": "lab/x", "url": "https://h/x.h5"}, "'url' is not a key"),
    "type": ({"id": "lab/x", "urls": "https://h/x.h5"}, "urls is"),
    "place": ({"id": "lab/x"}, "exactly one of urls, tree and files"),
    "scheme": ({"id": "lab/x", "urls": ["ftp://h/x.h5"]}, "not a well-formed URL"),
    "package": ({"id": "lab/x", "urls": ["package:samples/pendulum-d4rl.hdf5"]}, "file of rlds itself"),
    "user": ({"id": "lab/x", "tree": ["hf://datasets/o/n"], "homepage": 3}, "homepage is 3"),
    "directory": ({"id": "lab/x", "urls": ["https://h/x/"]}, "names a directory"),
    "path": ({"id": "lab/x", "files": [{"path": "../x", "urls": ["https://h/x.h5"]}]}, "'../x'"),
    "sha256": ({"id": "lab/x", "urls": ["https://h/x.h5"], "sha256": "abc"}, "64 lower-case hex digits"),
    "size": ({"id": "lab/x", "urls": ["https://h/x.h5"], "size": "3"}, "size is"),
    "format": ({"id": "lab/x", "urls": ["https://h/x.h5"], "format": "zip"}, "format 'zip' is not a reader of rlds"),
    "fields": ({"id": "lab/x", "urls": ["https://h/x.h5"], "fields": ["a"]}, "fields is"),
    "rule": ({"id": "lab/x", "urls": ["https://h/x.h5"], "episodes_by": "ends"}, "is not a rule"),
    "replaced": ({"id": "lab/x", "urls": ["https://h/x.h5"], "replaced_by": "lab/y"}, "is not an entry"),
    "twice": ({"id": "lab/good", "urls": ["https://h/x.h5"]}, "already a name of lab/good"),
}


@pytest.mark.sampled(15)
@pytest.mark.parametrize("case", WRONG)
def test_a_line_that_is_not_valid(tmp_path: Path, case: str) -> None:
    """`check` and `add` name file and line; the other lines of a registry that is named all the same are used."""
    line, message = WRONG[case]
    good = {"id": "lab/good", "urls": ["https://host/good.hdf5"]}
    file = tmp_path / "lab.jsonl"
    file.write_text(text_of([good, "", line]))
    checked = run_rlds("registry", "check", file)
    assert checked.returncode == 1
    assert checked.stdout.decode().startswith(f"{file}:3: ")
    assert message in checked.stdout.decode()
    if case == "format":  # of a package that is installed later
        return
    with pytest.raises(RldsError, match=r"lab\.jsonl:3: "):
        OwnRegistries().add(str(file))
    assert OwnRegistries().sources() == ()


def test_other_lines_of_a_registry_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "lab.jsonl"
    file.write_text(text_of([line for case, (line, _) in WRONG.items() if case != "format"]))
    monkeypatch.setenv("RLDS_REGISTRY", str(file))
    assert ids_of(family="lab") == ["lab/good"]
    assert registry.get("d4rl/hopper-medium-v2").files[0].urls[0].startswith("http://rail")
    assert registry.get("hopper-medium-v2").id == "d4rl/hopper-medium-v2"
    assert registry.get("lerobot/me/x").tree[0].startswith("hf://")
    with pytest.raises(UnknownDataset, match=r"lab\.jsonl:\d+: lab/x: "):
        registry.get("lab/x@y")
    listed = run_rlds("list", "good")
    assert listed.stdout.decode().splitlines()[1].startswith("lab/good")
    assert "left out:" in listed.stderr.decode()


def test_a_registry_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLDS_REGISTRY", str(tmp_path / "none.jsonl"))
    with pytest.raises(UnknownDataset, match=r"none\.jsonl: it cannot be read"):
        registry.get("lab/press")
    assert registry.get("hopper-medium-v2").id == "d4rl/hopper-medium-v2"
    assert len(rlds_cli.download("sample/pendulum-d4rl")) > 0
    assert run_rlds("registry", "add", tmp_path / "none.jsonl").returncode == 1


def test_a_prefix(tmp_path: Path) -> None:
    file = tmp_path / "shared.jsonl"
    lines = [{"id": id, "urls": [f"https://host/{k}.hdf5"]} for k, id in enumerate(("press", "lab/slide", "other/x"))]
    file.write_text(text_of(lines))
    assert run_rlds("registry", "check", file).returncode == 1
    assert run_rlds("registry", "add", file, "--prefix", "lab").returncode == 0
    assert ids_of(family="lab") == ["lab/press", "lab/slide", "lab/other/x"]
    for wrong in ("d4rl", "local"):
        assert run_rlds("registry", "add", file, "--prefix", wrong).returncode == 1
    assert run_rlds("registry", "add", file, "--prefix", "A B").returncode == 1
    assert ids_of(family="lab") == ["lab/press", "lab/slide", "lab/other/x"]


def test_an_id_in_two_registries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(text_of([{"id": "lab/x", "urls": [f"https://{name}/x.hdf5"]}]))
    OwnRegistries().add(str(tmp_path / "a.jsonl"))
    with pytest.raises(RldsError, match="lab/x is also in"):
        OwnRegistries().add(str(tmp_path / "b.jsonl"))
    monkeypatch.setenv("RLDS_REGISTRY", str(tmp_path / "b.jsonl"))  # goes first
    assert registry.get("lab/x").files[0].urls == ("https://b/x.hdf5",)
    assert any("b.jsonl" in p for r in registry.own_registries() for p in r.problems)


def test_add_list_and_remove(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    (tmp_path / "here.jsonl").write_text(text_of([{"id": "mine/x", "tree": ["file:///data/x"]}]))
    monkeypatch.chdir(tmp_path)
    assert run_rlds("registry", "add", "here.jsonl").returncode == 0
    assert run_rlds("registry", "add", lab.url).returncode == 0
    monkeypatch.chdir("/")
    listed = json.loads(run_rlds("registry", "list", "--json").stdout)
    assert [(r["place"], len(r["ids"])) for r in listed] == [(str(tmp_path / "here.jsonl"), 1), (lab.url, 3)]
    assert listed[1]["sha256"] == hashlib.sha256(lab.server.pages["/lab.jsonl"].content).hexdigest()
    monkeypatch.chdir(tmp_path)
    for place in ("here.jsonl", lab.url):
        assert run_rlds("registry", "remove", place).returncode == 0
    assert run_rlds("registry", "remove", lab.url).returncode == 1
    assert registry.own_registries() == ()
    assert [f.name for f in (home / "registries").iterdir()] == ["list.json"]


def test_an_address_is_asked_once_a_day(lab: Lab, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    OwnRegistries().add(lab.url)
    page = lab.server.pages["/lab.jsonl"]
    asked = len(page.requests)
    assert registry.get(PRESS).id == PRESS
    assert len(page.requests) == asked
    lab.write([*lab.lines(), {"id": "lab/new", "tree": [f"{lab.server.url}/new/"]}])
    assert registry.known("lab/new") is None
    (description,) = [f for f in (home / "registries").glob("*.json") if f.name != "list.json"]
    about = json.loads(description.read_text())
    description.write_text(json.dumps(about | {"fetched": about["fetched"] - 90_000}))  # 25 hours
    assert registry.get("lab/new").id == "lab/new"
    lab.write(lab.lines())
    assert run_rlds("registry", "refresh").returncode == 0
    assert registry.known("lab/new") is None


def test_without_a_network_the_copy_is_used(lab: Lab, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    OwnRegistries().add(lab.url)
    (description,) = [f for f in (home / "registries").glob("*.json") if f.name != "list.json"]
    about = json.loads(description.read_text())
    description.write_text(json.dumps(about | {"fetched": about["fetched"] - 90_000}))
    page = lab.server.pages["/lab.jsonl"]
    asked = len(page.requests)
    monkeypatch.setenv("RLDS_OFFLINE", "1")
    assert registry.get(PRESS).id == PRESS
    assert len(page.requests) == asked
    monkeypatch.delenv("RLDS_OFFLINE")
    lab.server.add("/lab.jsonl", "<html><title>Log in</title>")  # instead of the registry
    assert registry.get(PRESS).id == PRESS
    assert run_rlds("registry", "refresh").returncode == 1
    assert registry.get(PRESS).id == PRESS
    assert "the copy of" in run_rlds("registry", "list").stderr.decode()


def test_an_address_with_a_secret_is_not_kept(lab: Lab, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    secret = f"{lab.url}?token=secret"
    done = run_rlds("registry", "add", secret)
    assert done.returncode == 1
    assert "secret" not in done.stderr.decode()
    monkeypatch.setenv("RLDS_REGISTRY", secret)
    assert registry.get(PRESS).id == PRESS
    shown = run_rlds("registry", "list")
    assert "secret" not in (shown.stdout + shown.stderr).decode()
    assert b"secret" not in b"".join(f.read_bytes() for f in home.rglob("*") if f.is_file())


def test_a_registry_at_an_address_names_no_files_of_this_machine(lab: Lab, tmp_path: Path) -> None:
    line = {"id": "lab/passwd", "urls": ["file:///etc/passwd"]}
    lab.write([line])
    with pytest.raises(RldsError, match="file of one machine"):
        OwnRegistries().add(lab.url)
    (tmp_path / "lab.jsonl").write_text(text_of([{"id": "lab/run", "urls": [(tmp_path / "press.hdf5").as_uri()]}]))
    OwnRegistries().add(str(tmp_path / "lab.jsonl"))
    ds = rlds_cli.download("lab/run")
    assert ds.num_episodes == 1
    assert str(tmp_path) not in pinning.lock(["lab/run"])


def test_a_registry_that_names_another_hash(lab: Lab, tmp_path: Path) -> None:
    OwnRegistries().add(lab.url)
    rlds_cli.download(PRESS)
    lock = tmp_path / "rlds.lock"
    lock.write_text(pinning.lock([PRESS]))
    press, *others = lab.lines()
    lab.write([press | {"sha256": "0" * 64}, *others])
    OwnRegistries().refresh()
    with pytest.raises(WrongHash, match="0" * 64):
        pinning.sync(lock, home=tmp_path / "elsewhere")
    assert run_rlds("verify", PRESS).returncode == 1


def test_a_broken_list_is_none(home: Path) -> None:
    (home / "registries").mkdir(parents=True)
    for text in ("[]", "{}", '{"registries": [3, {"place": 4}, {"place": "/none", "prefix": 3}]}', "\x00"):
        (home / "registries" / "list.json").write_text(text)
        os.chmod(home / "registries" / "list.json", 0o600)  # noqa: PTH101
        assert OwnRegistries().sources() == ()
    assert registry.get("hopper-medium-v2").id == "d4rl/hopper-medium-v2"


@pytest.mark.docs
def test_the_example_of_the_documentation(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/reference/own-registry.md, with the server of this test instead of the lab's."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "own-registry.md").read_text()
    sha256 = lab.lines()[0]["sha256"]

    def served(text: str) -> str:
        return text.replace("https://lab.example.org/data", f"{lab.server.url}/data").replace("1f0c…", sha256)

    (example,) = re.findall(r"```json\n(.*?)```", page, re.S)
    lab.server.add("/data/lab.jsonl", served(example))
    monkeypatch.chdir(tmp_path)
    Path("lab.jsonl").write_text(served(example))
    commands = [c for block in re.findall(r"```sh\n(.*?)```", page, re.S) for c in block.splitlines()]
    assert len(commands) == 9
    for command in commands:
        program, *arguments = shlex.split(served(command).partition(" > ")[0].replace("/shared/archives", "mirror"))
        if program == "rlds":
            done = run_rlds(*arguments)
            assert done.returncode == 0, f"{command}: {done.stderr.decode()}"
            if arguments[0] == "lock":
                Path("rlds.lock").write_bytes(done.stdout)
    assert [d.id for d in pinning.sync("rlds.lock", home="elsewhere")] == [PRESS, TABLE_ID, TWO]
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "without"))
    (other,) = re.findall(r"`rlds (sync rlds.lock --allow-address \S+)`", page)
    done = run_rlds(*other.replace("lab.example.org", lab.host).split())
    assert done.returncode == 0, done.stderr


def test_a_registry_of_very_many_lines_is_refused_before_they_are_read(tmp_path: Path, monkeypatch: Any) -> None:
    """Each command reads a registry: 99,000 lines took 6.4 s in each."""
    line = '{"id": "lab/a-%d", "urls": ["https://h.org/a.hdf5"]}\n'
    (tmp_path / "lab.jsonl").write_text("".join(line % k for k in range(10_001)))
    with pytest.raises(RldsError, match=r"10,001 lines are too many; at most 10,000"):
        OwnRegistries().add(str(tmp_path / "lab.jsonl"))
    monkeypatch.setenv("RLDS_REGISTRY", str(tmp_path / "lab.jsonl"))
    (found,) = registry.own_registries()
    assert not found.entries and "10,001 lines are too many" in found.problems[0]
