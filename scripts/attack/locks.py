"""Lock files of strangers: what ``rlds sync`` can be made to execute, read, fetch and replace."""

from __future__ import annotations

import copy
import hashlib
import json
import py_compile
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from scene import Scene, attacks

ATTACKS, attack = attacks()

PENDULUM = "sample/pendulum-d4rl"


def lock(scene: Scene, *datasets: str) -> dict[str, Any]:
    """A lock that was written here, before a stranger alters it."""
    content: dict[str, Any] = json.loads(scene.run("lock", *datasets).out)
    return content


def sync(scene: Scene, content: object, *options: str) -> int:
    """Write a lock, and have its datasets here; the exit code."""
    file = scene.work / "rlds.lock"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return scene.run("sync", file, *options).code


def derived(scene: Scene) -> dict[str, Any]:
    """A lock of a dataset that a built-in function made, which is not here any more."""
    made = scene.run("preprocess", PENDULUM, "--fn", "scale_reward", "--arg", "scale=2")
    assert made.code == 0, made.err
    content = lock(scene, f"{PENDULUM}@scale_reward")
    assert scene.run("rm", f"{PENDULUM}@scale_reward", "--yes").code == 0
    return content


def refused(scene: Scene, content: object, what: str) -> None:
    """Record a fault where a lock is followed, with any of the options that a user may give."""
    for options in ((), ("--force",), ("--allow-code",)):
        if sync(scene, content, *options) == 0:
            scene.fault(f"{what}: sync {' '.join(options)} did it")


@attack(quick=True)
def a_command(scene: Scene) -> None:
    """Functions of the standard library, with arguments of the stranger's."""
    content = derived(scene)
    touch = f"open({str(scene.executed)!r}, 'w').close()"
    for reference, args in (
        ("subprocess:run", {"args": ["touch", str(scene.executed)]}),
        ("subprocess:check_output", {"args": f"touch {scene.executed}", "shell": True}),
        ("os:system", {"command": f"touch {scene.executed}"}),
        ("builtins:exec", {"source": touch}),
        ("builtins:eval", {"source": f"__import__('os').system('touch {scene.executed}')"}),
        ("rlds_cli.base.settings:os.system", {"command": f"touch {scene.executed}"}),
        ("rlds_cli.preprocess.functions:subprocess.run", {"args": ["touch", str(scene.executed)]}),
        ("subprocess:run", {"executable": "/usr/bin/touch", "cwd": str(scene.victim)}),
        ("subprocess:Popen", {"executable": "/usr/bin/touch", "cwd": str(scene.victim)}),
        ("code:interact", {}),
    ):
        evil = copy.deepcopy(content)
        evil["datasets"][1]["made_by"][0].update(reference=reference, function=reference.split(":")[1], args=args)
        refused(scene, evil, reference)


@attack(quick=True)
def a_module_beside_the_lock(scene: Scene) -> None:
    """A file that came with the lock, which does harm as soon as it is imported; its hash is right."""
    code = f"open({str(scene.executed)!r}, 'w').close()\ndef f(e): return e\n"
    for name in ("evil.py", "scale_reward.py", "numpy.py", "random.py", "sitecustomize.py", "typer.py"):
        (scene.work / name).write_text(code)
    content = derived(scene)
    digest = hashlib.sha256(code.encode()).hexdigest()
    for reference in ("evil:f", "evil.py:f", "./evil.py:f", str(scene.work / "evil.py:f"), "random:f", "numpy:f"):
        evil = copy.deepcopy(content)
        files = [[Path(reference.split(":")[0]).stem + ".py", digest]]
        evil["datasets"][1]["made_by"][0].update(reference=reference, function="f", args={}, files=files)
        sync(scene, evil)
        sync(scene, evil, "--force")
        evil["datasets"][1]["made_by"][0].update(files=[["evil.py", "0" * 64]])
        refused(scene, evil, f"{reference} of another hash")


@attack()
def a_module_without_a_source(scene: Scene) -> None:
    """A function of the right hash, which imports a compiled file that no hash is known of."""
    (scene.work / "evil.py").write_text(f"open({str(scene.executed)!r}, 'w').close()\n")
    (scene.work / "prep.py").write_text("import helper\ndef f(e): return e\n")
    (scene.work / "helper").mkdir()
    content = derived(scene)
    files = [["prep.py", hashlib.sha256((scene.work / "prep.py").read_bytes()).hexdigest()]]
    content["datasets"][1]["made_by"][0].update(reference="prep.py:f", function="f", args={}, files=files)
    for name in ("helper.pyc", "helper/__init__.pyc"):
        compiled = Path(py_compile.compile(str(scene.work / "evil.py"), cfile=str(scene.work / name)) or "")
        if sync(scene, content, "--allow-code", "all") == 0:
            scene.fault(f"a function was run that imports {name}")
        compiled.unlink()


@attack(quick=True)
def a_file_of_the_users(scene: Scene) -> None:
    """Addresses of the user's files as the archive of a dataset."""
    content = lock(scene, PENDULUM)
    scene.run("rm", PENDULUM, "--yes")
    subprocess.run(["rm", "-rf", str(scene.home / "archives")], check=True)
    key = scene.key
    digest, size = hashlib.sha256(key.read_bytes()).hexdigest(), key.stat().st_size
    for url in (key.as_uri(), str(key), f"file://localhost{key}", f"FILE:{key}", f"package:../../..{key}", "~/key"):
        for file in ("pendulum-d4rl.hdf5", "../../../victim/notes.txt", "/etc/hostname", "a/../../b"):
            evil = copy.deepcopy(content)
            evil["datasets"][0]["files"] = [
                {"file": file, "size": size, "sha256": digest, "url": url, "revision": None}
            ]
            if sync(scene, evil) == 0:
                scene.fault(f"{url} as {file} was accepted")
        if scene.faults:
            return


@attack()
def other_data_under_a_registered_id(scene: Scene) -> None:
    """A lock that names other files, and their hashes, for a dataset whose hashes the registry knows."""
    from server import Server

    content = lock(scene, PENDULUM)
    other = (scene.home / "archives" / PENDULUM / "pendulum-d4rl.hdf5").read_bytes()
    with Server() as server:
        server.add("/gym_mujoco_v2/hopper_medium-v2.hdf5", other)
        evil = copy.deepcopy(content)
        evil["datasets"][0]["id"] = "d4rl/hopper-medium-v2"
        evil["datasets"][0]["files"] = [
            {
                "file": "hopper_medium-v2.hdf5",
                "size": len(other),
                "sha256": hashlib.sha256(other).hexdigest(),
                "url": f"{server.url}/gym_mujoco_v2/hopper_medium-v2.hdf5",
                "revision": None,
            }
        ]
        refused(scene, evil, "other data as d4rl/hopper-medium-v2")
    if (scene.home / "datasets" / "d4rl" / "hopper-medium-v2").exists():
        scene.fault("other data were published as d4rl/hopper-medium-v2")


@attack()
def another_id(scene: Scene) -> None:
    """Ids that lead elsewhere, or over a dataset of other content."""
    content = lock(scene, PENDULUM)
    for name in ("../../victim/precious", "/etc/x", "sample/../../x", "local/x\x00", "a" * 5000, "sample/x@../y", ""):
        evil = copy.deepcopy(content)
        evil["datasets"][0]["id"] = name
        refused(scene, evil, f"id {name[:40]!r}")
    evil = copy.deepcopy(content)
    evil["datasets"][0]["id"] = "sample/cartpole-minari"
    if sync(scene, evil) == 0:
        scene.fault("a lock replaced a dataset of other content")
    if scene.run("verify", "sample/cartpole-minari").code:
        scene.fault("a lock damaged another dataset")


@attack(quick=True)
def mutants(scene: Scene) -> None:
    """Locks with values of other types and sizes at random places."""
    rng = random.Random(2)
    content = lock(scene, PENDULUM)
    values = (None, -1, 2**63, 1e308, "", "../..", "\x1b[2J", [], {}, True, [[[]]], "a" * 10_000, {"a": 1}, 0.5)
    for _ in range(10):
        evil = copy.deepcopy(content)
        at: Any = evil
        while True:
            key = rng.choice(list(at) if isinstance(at, dict) else range(len(at)))
            if not (isinstance(at[key], dict | list) and at[key]) or rng.random() < 0.15:
                break
            at = at[key]
        at[key] = rng.choice(values)
        sync(scene, evil)
    for text in ("[" * 100_000, "null", "7", "", '{"rlds_lock": 1, "datasets": ' + "9" * 5000 + "}", "\x00"):
        if sync(scene, text) == 0:
            scene.fault(f"{text[:40]!r} was taken for a lock")


@attack()
def modules_of_the_current_directory(scene: Scene) -> None:
    """No command imports what lies in the current directory, unless it is asked to."""
    names = (
        "random numpy torch json typer rich zarr h5py requests tqdm platform statistics csv socket ssl sitecustomize"
    )
    for name in names.split():
        (scene.work / f"{name}.py").write_text(f"open({str(scene.executed)!r}, 'w').close()\n")
    script = Path(sys.executable).with_name("rlds")
    for words in (
        ("list",),
        ("verify", PENDULUM),
        ("inspect", PENDULUM, "-j", "2"),
        ("bench", PENDULUM, "--seconds", "1"),
    ):
        scene.run(*words)
        if script.exists():
            environment = {"RLDS_HOME": str(scene.home), "HOME": str(scene.root / "user"), "PATH": "/usr/bin:/bin"}
            subprocess.run(
                [script, *words], cwd=scene.work, env=environment, capture_output=True, timeout=120, check=False
            )


@attack()
def dtypes_that_are_none(scene: Scene) -> None:
    """Arguments of a built-in function that NumPy raises its own errors over."""
    content = derived(scene)
    for dtype in ("(100000,100000)f8", "S2000000000", "O", "f8," * 1000):
        evil = copy.deepcopy(content)
        step = evil["datasets"][1]["made_by"][0]
        step.update(reference="cast", function="cast", args={"fields": "observation", "dtype": dtype})
        refused(scene, evil, f"dtype {dtype[:20]}")
