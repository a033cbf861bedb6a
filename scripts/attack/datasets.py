"""Dataset directories of strangers: what their documents, names and arrays can make rlds do."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scene import Scene, attacks, rewrite

ATTACKS, attack = attacks()

COMMANDS = (
    ("inspect",),
    ("verify",),
    ("check",),
    ("info",),
    ("preprocess", "--fn", "scale_reward", "--arg", "scale=2", "--force"),
    ("du",),
    ("list", "--local"),
    ("gc", "--yes"),
)


def everything(scene: Scene, dataset: object) -> list[int]:
    """Run every command that opens a dataset on this one; their exit codes."""
    codes = []
    for name, *options in COMMANDS:
        named = () if name in ("du", "list", "gc") else (dataset,)
        codes.append(scene.run(name, *named, *options).code)
    return codes


def manifest(dataset: Path, change: Callable[[Any], object]) -> None:
    """Change what ``zarr.json`` says of a dataset."""
    rewrite(dataset / "zarr.json", lambda d: change(d["attributes"]["rlds"]))


def field(path: str, **other: object) -> dict[str, object]:
    """A field of no values, which lies at ``path``."""
    common = {"name": "info/zzz", "dtype": "float32", "shape": [0], "placement": "root", "kind": "array"}
    return {**common, "path": path, "codec": None, "digest": "0" * 64, **other}


@attack(quick=True)
def a_path_outside(scene: Scene) -> None:
    """A field that lies in a directory of the user's."""
    manifest(scene.dataset, lambda m: m["fields"].append(field(str(scene.victim / "precious"))))
    scene.refused(scene.run("preprocess", scene.dataset, "--fn", "scale_reward", "--arg", "scale=2"))
    everything(scene, scene.dataset)


@attack()
def a_path_above(scene: Scene) -> None:
    """The same by ``..``, in other words and places."""
    above = "../" * len(scene.dataset.parts)
    for path in (
        f"{above}{scene.victim}/precious",
        f"observation/../../../../../{above}{scene.victim}/precious",
        "",
        ".",
        "..",
        "observation/",
        "./observation",
        "episodes",
        "OBSERVATION",
        "zarr.json",
        "c",
    ):
        original = (scene.dataset / "zarr.json").read_text()
        manifest(scene.dataset, lambda m, p=path: m["fields"].append(field(p)))  # type: ignore[misc]
        scene.refused(scene.run("preprocess", "sample/pendulum-d4rl", "--fn", "scale_reward", "--arg", "scale=2"))
        (scene.dataset / "zarr.json").write_text(original)


@attack(quick=True)
def a_directory_that_is_a_link(scene: Scene) -> None:
    """The directory of a field is a link to one of the user's."""
    shutil.rmtree(scene.dataset / "observation")
    (scene.dataset / "observation").symlink_to(scene.victim / "precious")
    assert set(everything(scene, scene.dataset)[:3]) <= {1}
    everything(scene, "sample/pendulum-d4rl")
    scene.run("rm", "sample/pendulum-d4rl", "--yes")


@attack()
def a_file_that_is_a_link(scene: Scene) -> None:
    """The values of fields are links to a file of the user's, as long as they should be."""
    values = scene.dataset / "action" / "c" / "0" / "0"
    secret = scene.victim / "secret.bin"
    secret.write_bytes(scene.key.read_bytes().ljust(values.stat().st_size, b"x")[: values.stat().st_size])
    secret.chmod(0o600)
    scene.remember()
    values.unlink()
    values.symlink_to(secret)
    codes = everything(scene, scene.dataset)
    if codes[4] == 0:
        scene.fault("preprocess read a file of the user's through a link")


@attack()
def sizes_that_nothing_has(scene: Scene) -> None:
    """Rows, steps, shapes and chunks of absurd sizes."""
    original = (scene.dataset / "zarr.json").read_text()
    for change in (
        lambda m: m["counts"].update(rows=2**60),
        lambda m: m["counts"].update(rows=-1),
        lambda m: m["counts"].update(episodes=2**62),
        lambda m: m["counts"].update(steps=10**400),
        lambda m: m["fields"][0].update(shape=[2**40, 2**40]),
        lambda m: m["fields"][0].update(shape=[0] * 200_000),
        lambda m: m["fields"][0].update(dtype="V2147483647"),
        lambda m: m["fields"][0].update(dtype="O"),
        lambda m: [m["counts"].update(rows=2**50), [f.update(shape=[0]) for f in m["fields"]]],
    ):
        manifest(scene.dataset, change)
        for name, *options in COMMANDS[:3]:
            scene.refused(scene.run(name, scene.dataset, *options))
        (scene.dataset / "zarr.json").write_text(original)
    for change in (
        lambda a: a.update(shape=[2**50, 1]),
        lambda a: a["chunk_grid"]["configuration"].update(chunk_shape=[0, 0]),
        lambda a: a.update(codecs=[{"name": "gzip", "configuration": {"level": 5}}]),
        lambda a: a.update(data_type="float64"),
    ):
        rewrite(scene.dataset / "action" / "zarr.json", change)
        scene.refused(scene.run("verify", scene.dataset))
        scene.run("inspect", scene.dataset)


@attack()
def documents_that_are_no_manifest(scene: Scene) -> None:
    """Deep, long, empty, and of other types."""
    for text in (
        "[" * 100_000,
        '{"a":' * 100_000,
        "",
        "null",
        '{"zarr_format": 3, "node_type": "group", "attributes": {"rlds": 7}}',
        '{"zarr_format": 3, "node_type": "group", "attributes": {"rlds": {"format": ' + "9" * 5000 + "}}}",
        '{"zarr_format": 3, "node_type": "group", "attributes": {"rlds": ' + '"a' * 1 + "x" * (20 << 20) + '"}}',
        "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
        "NaN",
    ):
        (scene.dataset / "zarr.json").write_text(text)
        for words in (("inspect", scene.dataset), ("verify", "sample/pendulum-d4rl"), ("list", "--local"), ("du",)):
            scene.run(*words)


@attack(quick=True)
def words_of_a_terminal(scene: Scene) -> None:
    """Escape sequences, markup and names in everything that is shown."""
    evil = "\x1b]0;owned\x07\x1b[2J[bold red]x[/bold red]\u202e\r\x9b31m"

    def change(m: dict[str, Any]) -> None:
        m["facts"] = {"author": evil, evil: evil}
        m["notes"] = [{"code": evil, "text": evil}]
        m["env"] = {"id": evil}
        m["reader"], m["episodes_by"], m["rlds_version"], m["created"] = evil, evil, evil, evil

    manifest(scene.dataset, change)
    everything(scene, scene.dataset)
    original = json.loads((scene.dataset / "zarr.json").read_text())
    original["attributes"]["rlds"]["id"] = f"sample/{evil}"
    (scene.dataset / "zarr.json").write_text(json.dumps(original))
    everything(scene, scene.dataset)


@attack(quick=True)
def a_reader_that_is_a_module(scene: Scene) -> None:
    """Names of modules and functions where a dataset says how it was made."""
    code = f"open({str(scene.executed)!r}, 'w').close()\ndef f(e): return e\n"
    (scene.work / "evil.py").write_text(code)
    step = {
        "id": "sample/pendulum-d4rl",
        "from": "sample/cartpole-minari",
        "reference": "evil:f",
        "function": "f",
        "files": [["evil.py", "0" * 64]],
        "args": {},
    }
    for change in (
        lambda m: m.update(reader="evil"),
        lambda m: m.update(reader="../../work/evil"),
        lambda m: m.update(provenance=[{**step}]),
        lambda m: m.update(provenance=[{**step, "reference": "subprocess:run", "args": {"args": ["touch", "x"]}}]),
    ):
        original = (scene.dataset / "zarr.json").read_text()
        manifest(scene.dataset, change)
        everything(scene, "sample/pendulum-d4rl")
        for words in (("verify", "--fix"), ("verify", "--trace", "5")):
            scene.run(words[0], "sample/pendulum-d4rl", *words[1:])
        (scene.dataset / "zarr.json").write_text(original)


@attack()
def files_that_shrank(scene: Scene) -> None:
    """Arrays that are shorter than their documents say."""
    for name in ("observation", "next/reward", "episodes/start", "episodes/length"):
        at = next(p for p in (scene.dataset / name).rglob("c/*") if p.is_file() or p.is_dir())
        at = at if at.is_file() else next(p for p in at.rglob("*") if p.is_file())
        content = at.read_bytes()
        at.chmod(0o644)
        at.write_bytes(content[: len(content) // 2])
        scene.refused(scene.run("verify", scene.dataset))
        everything(scene, scene.dataset)
        at.write_bytes(content)


@attack()
def one_byte_of_any_file(scene: Scene) -> None:
    """``verify`` sees every byte that was changed."""
    rng = random.Random(0)
    for file in sorted(p for p in scene.dataset.rglob("*") if p.is_file()):
        content = file.read_bytes()
        if not content:
            continue
        at = rng.randrange(len(content))
        mode = file.stat().st_mode
        file.chmod(0o644)
        file.write_bytes(content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :])
        result = scene.run("verify", scene.dataset)
        if result.code == 0:
            scene.fault(f"verify does not see a bit of {file.relative_to(scene.dataset)} at byte {at}")
        file.write_bytes(content)
        file.chmod(mode)


@attack(quick=True)
def mutants(scene: Scene) -> None:
    """Manifests with values of other types and sizes at random places."""
    rng = random.Random(1)
    original = (scene.dataset / "zarr.json").read_text()
    values = (None, -1, 2**63, 1e308, "", "../..", "\x00", [], {}, True, [[[]]], "a" * 10_000, {"a": 1})
    for _ in range(8):
        document = json.loads(original)
        for _ in range(rng.choice((1, 1, 2, 5))):
            at: Any = document["attributes"]["rlds"]
            while True:
                key = rng.choice(list(at) if isinstance(at, dict) else range(len(at)))
                if not (isinstance(at[key], dict | list) and at[key]) or rng.random() < 0.15:
                    break
                at = at[key]
            at[key] = rng.choice(values)
        (scene.dataset / "zarr.json").write_text(json.dumps(document))
        for words in (("inspect", scene.dataset), ("verify", scene.dataset)):
            scene.run(*words)


@attack()
def directories_in_directories(scene: Scene) -> None:
    """A tree that is deeper than Python can call itself."""
    descriptor = os.open(scene.dataset, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=descriptor)
        below = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    for words in (("inspect", scene.dataset), ("verify", scene.dataset), ("list", "--local"), ("du",)):
        scene.run(*words)
    subprocess.run(["rm", "-rf", scene.dataset], check=True)


@attack()
def more_fields_than_any(scene: Scene) -> None:
    """20,000 fields of no values."""
    manifest(scene.dataset, lambda m: m["fields"].extend(field(f"info/f{k}", name=f"info/f{k}") for k in range(20_000)))
    for words in (("inspect", scene.dataset), ("verify", scene.dataset)):
        scene.refused(scene.run(*words))


@attack()
def damage_made_right(scene: Scene) -> None:
    """A dataset whose list of digests was damaged is encoded anew; nothing would be compared afterwards."""
    listing = scene.dataset / "digests" / "zarr.json"
    listing.chmod(0o644)
    listing.write_text(listing.read_text() + " ")
    scene.refused(scene.run("convert", scene.dataset, "--to", "zarr"))
