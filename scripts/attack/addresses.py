"""Addresses of strangers: an index that claims what it likes, over bytes whose hashes fit."""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import forged_address as forged
import google_crc32c
import numpy as np
from numcodecs import Zstd
from scene import Scene, attacks
from server import Server

from rlds_cli.remote.index import File, Piece

ATTACKS, attack = attacks()

SAMPLE = "sample/pendulum-d4rl"
LITTLE = 96 << 20  # bytes that a home may get of a few KiB that were sent
REWARDS = "next/reward/c/"


def pushed(scene: Scene, id: str = SAMPLE, name: str = "genuine") -> Path:
    """Push a dataset to a directory, as its owner does."""
    address = scene.root / name
    result = scene.run("push", id, address, "--no-pages")
    assert result.code == 0, result.err
    return address


def altered(genuine: Path, at: Path, more: Sequence[File]) -> Path:
    """Copy an address, and have its index name more files."""
    shutil.copytree(genuine, at)
    index = forged.index_of(at)
    forged.publish(at, replace(index, files=(*index.files, *more)).to_bytes(), claims=index)
    return at


def forged_rewards(genuine: Path, at: Path) -> Path:
    """Publish the genuine dataset with other rewards under the genuine fingerprint."""
    files, index = forged.read(genuine), forged.index_of(genuine)
    name = next(path for path in files if path.startswith(REWARDS))
    files[name] = np.full(len(files[name]) // 4, 999, "<f4").tobytes() + bytes(len(files[name]) % 4)
    forged.write(at, index, files)
    return at


def on_disk(home: Path) -> int:
    """Return the bytes that remote datasets take on the disk."""
    return sum(p.stat().st_blocks * 512 for p in (home / "remote").rglob("*") if p.is_file())


def every(scene: Scene, address: object) -> None:
    """Run the commands that read a dataset at an address."""
    for words in (("inspect", address), ("check", address), ("download", address, "--as", "local/stranger")):
        scene.run(*words)


@attack(quick=True)
def blocks_for_another_address(scene: Scene) -> None:
    """A forged address is read first, and the genuine one with its pin afterwards."""
    genuine = pushed(scene)
    other = forged_rewards(genuine, scene.root / "forged")
    scene.run("rm", SAMPLE, "--yes")
    scene.run("check", other)
    pinned = f"{genuine}#{forged.index_of(genuine).fingerprint}"
    for ref, wanted in ((other, "999.0"), (pinned, "genuine")):
        code = f"import rlds_cli; print(rlds_cli.open_dataset({str(ref)!r}).column('next/reward')[:].max())"
        found = scene.python(code).strip()
        if (found == "999.0") != (wanted == "999.0"):
            scene.fault(f"the largest reward at {ref} is {found}")


@attack()
def chunks_that_inflate(scene: Scene) -> None:
    """A Zstandard chunk of 200 KB that decodes to 2 GiB, alone and behind a sound one."""
    assert scene.run("convert", SAMPLE, "--to", "zarr").code == 0
    genuine = pushed(scene)
    files, index = forged.read(genuine), forged.index_of(genuine)
    name = next(path for path in files if path.startswith(REWARDS))
    bomb = bytes(Zstd(3).encode(bytes(2 << 30)))
    for before in (b"", files[name][:-20]):
        frames = before + bomb
        place = np.array([0, len(frames)], "<u8").tobytes()
        there = {**files, name: frames + place + google_crc32c.value(place).to_bytes(4, "little")}
        other = scene.root / f"forged{len(before)}"
        forged.write(other, index, there)
        scene.refused(scene.run("check", other))
        scene.refused(scene.run("download", other, "--as", "local/stranger"))


@attack(quick=True)
def files_without_an_end(scene: Scene) -> None:
    """Files with more bytes than were sent: the same ones a hundred thousand times, in paths of any depth."""
    genuine = pushed(scene)
    size = forged.index_of(genuine).objects[0].size
    pieces = tuple(Piece(k * size, 0, 0, size, "0" * 64) for k in range((256 << 20) // size))
    one = (Piece(0, 0, 0, 1, "0" * 64),)
    scene.run("rm", SAMPLE, "--yes")
    for number, more in enumerate(
        (
            [File(f"episodes/x{k}", size * len(pieces), pieces) for k in range(100)],
            [File(f"episodes/{k}/{'d/' * 500}x", 1, one) for k in range(2_000)],
            [File("episodes/x", 1 << 49, tuple(replace(p, at=k << 30) for k, p in enumerate(pieces[:100])))],
        )
    ):
        other = altered(genuine, scene.root / f"forged{number}", more)
        scene.refused(scene.run("check", other))
        if (found := on_disk(scene.home)) > LITTLE:
            scene.fault(f"{found >> 20} MiB were written")


@attack()
def holes_of_terabytes(scene: Scene) -> None:
    """Segments that no episode needs, which are holes; other datasets of the home stay readable beside them."""
    code = (
        "import numpy as np, rlds_cli\n"
        "with rlds_cli.writer('local/grows') as w:\n"
        "    w.add_episodes([{'observation': np.zeros((9, 3)), 'action': np.zeros(8), 'next/reward': np.ones(8)}])\n"
    )
    scene.python(code)
    genuine = pushed(scene, "local/grows")
    honest = pushed(scene, SAMPLE, "honest")
    holes = [File(f"{REWARDS}{9000 + k}", 1 << 49, ()) for k in range(50)]
    scene.run("rm", "local/grows", "--yes")
    scene.run("rm", SAMPLE, "--yes")
    scene.run("check", altered(genuine, scene.root / "forged", holes))
    largest = max((p.stat().st_size for p in (scene.home / "remote").rglob("*") if p.is_file()), default=0)
    if largest > 1 << 30:
        scene.fault(f"a file of {largest >> 30} GiB was made")
    for _ in range(2):
        if scene.run("check", honest).code:
            scene.fault("an honest address cannot be read")


@attack(quick=True)
def wrong_objects_beside(scene: Scene) -> None:
    """An object beside the address has the right name and size, and other bytes."""
    first = pushed(scene, name="store/a")
    for file in (first / "objects").iterdir():
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 255
        file.unlink()
        file.write_bytes(data)
    scene.run("preprocess", SAMPLE, "--fn", "scale_reward", "--arg", "scale=2", "--name", "made")
    second = pushed(scene, f"{SAMPLE}@made", "store/b")
    result = scene.run("download", second, "--as", "local/came")
    if result.code:
        scene.fault(f"what was pushed cannot be downloaded: {result.err[-200:]!r}")


@attack(quick=True)
def requests_into_the_network(scene: Scene) -> None:
    """A lock names a server of the user's network."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        asked: list[object] = []

        def accept() -> None:
            try:
                while True:
                    asked.append(listening.accept())
            except OSError:
                return

        threading.Thread(target=accept, daemon=True).start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/admin"
        entry = {
            "id": "local/x",
            "fingerprint": f"rlds1:{'0' * 64}",
            "fields": {},
            "files": [],
            "options": {},
            "made_by": [],
        }
        lock = scene.work / "rlds.lock"
        lock.write_text(json.dumps({"rlds_lock": 1, "datasets": [entry | {"address": f"{url}/"}]}))
        scene.refused(scene.run("sync", lock), "--allow-address")
        if asked:
            scene.fault("a request was sent")


@attack(quick=True)
def versions_that_lie(scene: Scene) -> None:
    """Versions with forged tags and texts, and the index of another dataset under the name of a genuine one."""
    genuine = pushed(scene)
    scene.run("rm", SAMPLE, "--yes")
    forged_one = forged_rewards(genuine, scene.root / "forged")
    index, other = forged.index_of(genuine), forged.index_of(forged_one)
    swapped = scene.root / "swapped"
    shutil.copytree(genuine, swapped)
    shutil.copytree(forged_one, swapped, dirs_exist_ok=True)
    (swapped / index.name).unlink(missing_ok=True)
    (swapped / index.name).write_bytes(other.to_bytes())  # the forged index under the name of the genuine one
    forged.publish_versions(swapped, index, tags={"icra": index.sha256})
    for ref in ("", "#v1", "#icra", f"#{index.fingerprint}"):
        every(scene, f"{swapped}{ref}")
    tagged = scene.root / "tagged"
    shutil.copytree(genuine, tagged)
    forged.publish_versions(tagged, index, change="\x1b[2J\x1b]0;owned\x07" * 20, tags={})
    result = scene.run("log", tagged)
    if "\x1b" in result.out + result.err:
        scene.fault("control characters of a stranger reach the terminal")


@attack(quick=True)
def objects_outside(scene: Scene) -> None:
    """An index whose objects are files outside the address, or links to the user's files."""
    genuine = scene.root / "genuine"
    shutil.copytree(scene.dataset, genuine)
    genuine.chmod(0o755)
    assert scene.run("index", genuine).code == 0
    scene.run("rm", SAMPLE, "--yes")
    index = forged.index_of(genuine)
    data = scene.key.read_bytes()
    outside = replace(index.objects[-1], sha256=hashlib.sha256(data).hexdigest(), size=len(data))
    for number, path in enumerate((str(scene.key), f"../{scene.victim.name}/key", "rlds.json/..", "key")):
        other = scene.root / f"forged{number}"
        shutil.copytree(genuine, other)
        (other / "key").symlink_to(scene.key)
        objects = (*index.objects[:-1], replace(outside, path=path))
        forged.publish(other, replace(index, objects=objects).to_bytes(), claims=index)
        scene.refused(scene.run("download", f"file://{other}", "--as", "local/stranger"))
        scene.refused(scene.run("check", f"file://{other}"))


@attack()
def damaged_in_every_way(scene: Scene) -> None:
    """Indexes and objects that are cut, empty, of other types, or of absurd sizes, at a directory and a web server."""
    genuine = pushed(scene)
    scene.run("rm", SAMPLE, "--yes")
    index = forged.index_of(genuine)
    changes: list[tuple[str, bytes]] = []
    for name in ("rlds.json", index.name):
        text = (genuine / name).read_bytes()
        changes += [(name, text[:k]) for k in (0, 1, len(text) // 2, len(text) - 3)]
    for o in index.objects:
        data = (genuine / o.name).read_bytes()
        changes += [(o.name, b""), (o.name, data[: len(data) // 2]), (o.name, data[:-1] + b"x")]
    for number, (name, data) in enumerate(changes):
        other = scene.root / f"damaged{number}"
        shutil.copytree(genuine, other)
        (other / name).unlink()
        (other / name).write_bytes(data)
        every(scene, other)
    for number, change in enumerate(_CHANGES):
        other = scene.root / f"changed{number}"
        shutil.copytree(genuine, other)
        forged.publish(other, change(index).to_bytes(), claims=index)
        every(scene, other)
    with Server() as server:
        for file in genuine.rglob("*"):
            if file.is_file():
                server.add(f"/{file.relative_to(genuine)}", file.read_bytes()[:-7])
        every(scene, f"{server.url}/")


_CHANGES = (
    lambda i: replace(i, files=i.files[:1]),
    lambda i: replace(i, files=tuple(f for f in i.files if "episodes/" not in f.path)),
    lambda i: replace(i, files=tuple(f for f in i.files if not f.path.startswith(REWARDS))),
    lambda i: replace(i, files=tuple(_short(f) for f in i.files)),
    lambda i: replace(i, version=3, fingerprint=i.fingerprint.replace("rlds1", "rlds2")),
    lambda i: replace(i, fingerprint=f"rlds1:{'0' * 64}"),
    lambda i: replace(i, objects=tuple(replace(o, size=o.size + (1 << 20)) for o in i.objects)),
)


def _short(f: File) -> File:
    """Return a file without its last byte."""
    if not f.size:
        return f
    *rest, last = f.pieces
    pieces = (*rest, replace(last, length=last.length - 1)) if last.length > 1 else tuple(rest)
    return File(f.path, f.size - 1, pieces)
