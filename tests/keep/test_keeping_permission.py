"""A lock is a stranger's: it runs no code and reads no file that the user has not allowed, nor publishes other data."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import py_compile
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest
from conftest import run_rlds
from server import Server

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.errors import DamagedDataset, PreprocessError, RldsError, TransferError, WrongFingerprint, WrongHash
from rlds_cli.keep import pinning
from rlds_cli.keep.repair import repair
from rlds_cli.keep.verification import verify

ID = "sample/pendulum-d4rl"
SOURCE = "def f(episode, **how):\n    episode['action'] += 1\n    return episode\n"
HIT = "open('hit', 'w').close()\n"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A home with a dataset that prep.py made, and the lock of it."""
    root = tmp_path_factory.mktemp("kept")
    before = Path.cwd()
    os.chdir(root)
    try:
        Path("prep.py").write_text(SOURCE)
        rlds_cli.download(ID, home=root / "home")
        preprocess.run(ID, "prep.py:f", home=root / "home")
        preprocess.run(ID, "scale_reward", args={"scale": 2.0}, home=root / "home")
        lock = json.loads(pinning.lock([f"{ID}@f", f"{ID}@scale_reward"], home=root / "home"))
    finally:
        os.chdir(before)
    return {"home": root / "home", "lock": lock}


@pytest.fixture
def alone(kept: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The JSON value of a lock; the working directory has prep.py, and the home nothing."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("prep.py").write_text(SOURCE)
    return copy.deepcopy(kept["lock"])  # type: ignore[no-any-return]


@pytest.fixture
def lock(alone: dict[str, Any], kept: dict[str, Any], home: Path) -> dict[str, Any]:
    """The same, where the home has the source of what is to be made."""
    shutil.copytree(kept["home"], home, symlinks=True, ignore=shutil.ignore_patterns("pendulum-d4rl@*"))
    return alone


def made(lock: dict[str, Any], variant: str) -> dict[str, Any]:
    step: dict[str, Any] = next(d for d in lock["datasets"] if d["id"] == f"{ID}@{variant}")["made_by"][0]
    return step


def write(lock: dict[str, Any]) -> Path:
    Path("rlds.lock").write_text(json.dumps(lock))
    return Path("rlds.lock")


def sha256(file: str) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def test_a_function_runs_only_where_it_is_allowed(lock: dict[str, Any], home: Path) -> None:
    file = write(lock)
    (wanted,) = pinning.functions(file)
    assert (wanted.reference, wanted.file, wanted.id) == ("prep.py:f", Path.cwd() / "prep.py", f"{ID}@f")
    for allowed in ((), ["prep.py:g"], False, "prep.py"):
        with pytest.raises(RldsError, match=r"would run your function prep\.py:f \(.*\), called with no arg") as e:
            pinning.sync(file, allow_code=allowed)
        assert e.value.hint and e.value.hint.startswith("--allow-code prep.py:f ")
    assert not (home / "datasets/sample/pendulum-d4rl@scale_reward").exists()  # nothing was begun
    assert [d.how for d in pinning.sync(file, allow_code=["prep.py:f"])] == ["here", "made", "made"]


def test_a_built_in_function_needs_no_permission(lock: dict[str, Any]) -> None:
    lock["datasets"] = [d for d in lock["datasets"] if d["id"] != f"{ID}@f"]
    assert pinning.functions(write(lock)) == ()
    assert [d.how for d in pinning.sync(write(lock))] == ["here", "made"]


def test_the_command_says_what_to_type(lock: dict[str, Any]) -> None:
    write(lock)
    refused = run_rlds("sync", "-q")
    assert refused.returncode == 1 and b"--allow-code prep.py:f" in refused.stderr
    assert run_rlds("sync", "-q", "--allow-code", "prep.py:f").returncode == 0


REFUSED: dict[str, str] = {
    "subprocess:run": "a module of Python itself",
    "os:system": "a module of Python itself",
    "builtins:exec": "a module of Python itself",
    "json.decoder:JSONDecoder": "a module of Python itself",
    "numpy:load": "belongs to a library",
    "rlds_cli.preprocess.builtin.rewards:scale_reward": "belongs to a library",
    "prep:os.system": "defines no function os.system",
    "prep:f.__globals__": "defines no function f.__globals__",
    "prep.py:f.__call__": "defines no function",
    "prep:system": "defines no function system",
    "prep:run": "defines no function run",
    "linked:f": "is a symbolic link",
    "linked.py:f": "is a symbolic link",
    "sub/prep.py:f": "is a symbolic link",
    "../prep.py:f": "must lie below the working directory",
    "./prep.py:f": "must lie below the working directory",
    "~/prep.py:f": "must lie below the working directory",
    "/etc/prep.py:f": "must lie below the working directory",
    "sub/prep.so:f": "is not a source file",
    "compiled:f": "has no source file",
    "compiled.pyc:f": "has no source file|there is no module",
    "space:f": "has no source file",
    "nothing:f": "there is no module nothing",
    "nothing.py:f": "there is no file",
    "scale_rewards": "there is no built-in function of this name",
    "__main__:f": "has no source file|belongs to a library|a module of Python",
    "a-b:f": "cannot be the name of a module",
    "venv/site-packages/x.py:f": "belongs to a library",
    "broken.py:f": "is not a Python source",
}


@pytest.mark.sampled(14)
@pytest.mark.parametrize("reference", REFUSED)
def test_what_is_never_run(alone: dict[str, Any], reference: str) -> None:
    source = HIT + "import os\nfrom os import system\nimport subprocess\nrun = subprocess.run\n" + SOURCE
    Path("prep.py").write_text(source)
    Path("outside").mkdir()
    Path("outside/prep.py").write_text(source)
    Path("linked.py").symlink_to("prep.py")
    Path("sub").symlink_to("outside")
    Path("space").mkdir()
    Path("venv/site-packages").mkdir(parents=True)
    Path("venv/site-packages/x.py").write_text(source)
    Path("broken.py").write_text("def f(:")
    Path("subprocess.py").write_text(source)
    py_compile.compile("prep.py", cfile="compiled.pyc")
    step = made(alone, "f")
    step["reference"] = reference
    step["files"] = [["prep.py", sha256("prep.py")]]
    with pytest.raises(PreprocessError, match=REFUSED[reference]):
        pinning.sync(write(alone), allow_code=True)
    assert not Path("hit").exists()


def test_another_source_is_not_imported(alone: dict[str, Any]) -> None:
    Path("prep.py").write_text(HIT + SOURCE)
    with pytest.raises(WrongFingerprint, match=f"prep.py has sha256 {sha256('prep.py')}, the lock says"):
        pinning.sync(write(alone), allow_code=True)
    made(alone, "f")["files"] = []
    with pytest.raises(WrongFingerprint, match="the lock lists no files of it"):
        pinning.sync(write(alone), allow_code=True)
    assert not Path("hit").exists()


def test_what_a_function_imports_is_of_its_source(alone: dict[str, Any]) -> None:
    Path("helper.py").write_text(HIT)
    Path("prep.py").write_text("import helper\n" + SOURCE)
    made(alone, "f")["files"] = [["helper.py", "0" * 64], ["prep.py", sha256("prep.py")]]
    with pytest.raises(WrongFingerprint, match=r"helper\.py has sha256"):
        pinning.sync(write(alone), allow_code=True)
    assert not Path("hit").exists()


@pytest.mark.parametrize("name", ["helper.pyc", "helper/__init__.pyc", f"helper{EXTENSION_SUFFIXES[0]}", "helper/x.so"])
def test_what_a_function_imports_has_a_source(alone: dict[str, Any], name: str) -> None:
    Path("prep.py").write_text(f"import helper{'.x' if '/x' in name else ''}\n{SOURCE}")
    Path("evil.py").write_text(HIT)
    py_compile.compile("evil.py", cfile=name)
    made(alone, "f")["files"] = [["prep.py", sha256("prep.py")]]
    with pytest.raises(PreprocessError, match=f"imports .*/{name}, which has no source"):
        pinning.sync(write(alone), allow_code=True)
    assert not Path("hit").exists()


@pytest.mark.thorough
def test_a_compiled_file_does_not_stand_for_its_source(lock: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Python takes a file of ``__pycache__`` that says not to be checked, whatever the source is."""
    Path("other.py").write_text(HIT + SOURCE)
    cached = f"__pycache__/prep.{sys.implementation.cache_tag}.pyc"
    py_compile.compile("other.py", cfile=cached, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    assert [d.how for d in pinning.sync(write(lock), allow_code=["prep.py:f"])] == ["here", "made", "made"]
    assert not Path("hit").exists() and sys.pycache_prefix is None and "PYTHONPYCACHEPREFIX" not in os.environ


@pytest.mark.parametrize("how", ["depends", "args", "nested", "linked"])
def test_no_file_is_read_that_is_not_allowed(lock: dict[str, Any], tmp_path: Path, how: str) -> None:
    secret = tmp_path / "key"
    secret.write_text("secret")
    secret.chmod(0)  # root reads it all the same: the message says which
    Path("inside").symlink_to(secret)
    step = made(lock, "f")
    if how == "depends":
        step["depends"] = {str(secret): "0" * 64}
    else:
        named: dict[str, Any] = {"args": str(secret), "nested": [{"x": str(secret)}], "linked": "inside"}
        step["args"] = {"path": named[how]}
    with pytest.raises(RldsError, match=r"outside the working directory\. Nothing was read") as caught:
        pinning.sync(write(lock), allow_code=True)
    assert hashlib.sha256(b"secret").hexdigest() not in str(caught.value)
    secret.chmod(0o600)
    if how != "depends":
        pinning.sync(write(lock), allow_code=True, depends_on=[secret])
        return
    with pytest.raises(WrongFingerprint, match=r"the lock says sha256 0{64}"):
        pinning.sync(write(lock), allow_code=True, depends_on=[secret])


@pytest.mark.thorough
def test_arguments_of_built_in_functions_are_checked(lock: dict[str, Any]) -> None:
    lock["datasets"] = [d for d in lock["datasets"] if d["id"] != f"{ID}@f"]
    for args in ({"scale": "x"}, {"scale": 1.0, "nothing": 1}, {"source": "x"}):
        made(lock, "scale_reward")["args"] = args
        with pytest.raises(RldsError, match=r"scale_reward"):
            pinning.sync(write(lock))


# -- locks and the registry


def contradict(lock: dict[str, Any], **facts: Any) -> Path:
    lock["datasets"] = lock["datasets"][:1]
    lock["datasets"][0]["files"][0].update(facts)
    return write(lock)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"sha256": "0" * 64}, rf"has sha256 {'0' * 64}; the registry has [0-9a-f]{{64}}"),
        ({"sha256": None}, r"has sha256 none; the registry has [0-9a-f]{64}"),
        ({"size": 5}, r"has size 5; the registry has \d+"),
        ({"file": "other.hdf5"}, r"other\.hdf5 is not a file of sample/pendulum-d4rl: the registry has pendulum"),
    ],
)
def test_a_lock_does_not_contradict_the_registry(alone: dict[str, Any], facts: dict[str, Any], words: str) -> None:
    with pytest.raises(WrongHash, match=words):
        pinning.sync(contradict(alone, **facts), home="other")
    assert not Path("other").exists()


def test_an_id_as_the_registry_writes_it(alone: dict[str, Any]) -> None:
    alone["datasets"] = alone["datasets"][:1]
    alone["datasets"][0]["id"] = "sample/Pendulum-D4RL"
    with pytest.raises(RldsError, match=r"sample/Pendulum-D4RL, which the registry calls sample/pendulum-d4rl"):
        pinning.sync(write(alone), home="other")


def test_a_variant_is_what_its_name_says(lock: dict[str, Any], home: Path) -> None:
    """Another name would have the dataset of the archive itself replaced."""
    before = (home / "datasets/sample/pendulum-d4rl/zarr.json").read_bytes()
    lock["datasets"] = lock["datasets"][:1]
    lock["datasets"][0] |= {"id": f"{ID}@mine", "fingerprint": "rlds1:" + "0" * 64}
    with pytest.raises(RldsError, match=rf"the options of {ID}, but the id {ID}@mine"):
        pinning.sync(write(lock), force=True)
    assert (home / "datasets/sample/pendulum-d4rl/zarr.json").read_bytes() == before


@pytest.fixture
def stranger() -> Iterator[Server]:
    with Server() as server:
        server.add("/x.hdf5", b"x" * 100)
        yield server


def test_files_come_from_the_places_of_the_registry(
    lock: dict[str, Any], stranger: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a repository without known hashes, another server is not taken for a place."""
    url = f"{stranger.url}/x.hdf5"
    monkeypatch.setenv("HF_ENDPOINT", f"{stranger.url}/hub")
    lock["datasets"] = [{**lock["datasets"][0], "id": "lerobot/alice/pick"}]
    lock["datasets"][0]["files"] = [{"file": "x.hdf5", "size": 100, "sha256": None, "url": url, "revision": None}]
    with pytest.raises(TransferError):
        pinning.sync(write(lock), home="other")
    assert not list(Path("other").rglob("x.hdf5*"))
    assert "/x.hdf5" not in stranger.asked


def test_verify_knows_what_the_registry_knows(home: Path, tmp_path: Path) -> None:
    change = _published_otherwise(home)
    found = verify(ID)
    assert not found.ok and found.hint is None
    (problem,) = (str(p) for p in found.problems if "registry" in str(p))
    assert problem.startswith(f"sources: pendulum-d4rl.hdf5 has sha256 {'0' * 64}; the registry has ")
    assert run_rlds("verify", ID, "-q").returncode == 1
    assert "not made of the files in the registry" in repair(ID).why
    with pytest.raises(DamagedDataset, match="the registry has"):
        rlds_cli.download(ID, source=str(home), home=tmp_path / "copy")
    change(None)
    assert "name no file" in " ".join(map(str, verify(ID).problems))


def _published_otherwise(home: Path) -> Callable[[None], None]:
    """Publish the sample under its id, saying that it was made of another file; later, of none."""
    from rlds_cli.base.files import arrays
    from rlds_cli.store import Manifest, layouts, sealing

    path = rlds_cli.download(ID).path
    sources = layouts.read_strings(path / "sources")

    def write_sources(lines: list[str]) -> None:
        for p in (path, path / "sources", *(path / "sources").rglob("*")):
            p.chmod(0o755 if p.is_dir() else 0o644)
        shutil.rmtree(path / "sources")
        if lines:
            arrays.write_strings(path / "sources", lines)
        for p in (path, *path.rglob("zarr.json")):
            p.chmod(0o755 if p.is_dir() else 0o644)
        sealing.seal(path, Manifest.read(path))  # as somebody does who means it

    write_sources([json.dumps({**json.loads(s), "sha256": "0" * 64}) for s in sources])
    return lambda _: write_sources([])
