"""Addresses of strangers: an index that claims what it likes, over bytes whose hashes fit."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import struct
import threading
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import forged_address as forged
import google_crc32c
import numpy as np
from numcodecs import Zstd
from scene import SECRET, Scene, attacks
from server import Server

from rlds_cli.places import Hasher
from rlds_cli.places.remote.index import IndexedFile, Object, Piece

ATTACKS, attack = attacks()

SAMPLE = "sample/pendulum-d4rl"
LITTLE = 96 << 20  # bytes that a home may get of a few KiB that were sent
REWARDS = "next/reward/c/"
OUTSIDE = ("../../victim/key", "/etc/passwd", "zarr.json/../../../victim/key")


def pushed(scene: Scene, id: str = SAMPLE, name: str = "genuine") -> Path:
    """Push a dataset to a directory, as its owner does."""
    address = scene.root / name
    result = scene.run("push", id, address, "--no-pages")
    assert result.code == 0, result.err
    return address


def altered(genuine: Path, at: Path, more: Sequence[IndexedFile]) -> Path:
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
    for words in (("inspect", address), ("check", address), ("download", address, "--name", "local/stranger")):
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
        scene.refused(scene.run("download", other, "--name", "local/stranger"))


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
            [IndexedFile(f"episodes/x{k}", size * len(pieces), pieces) for k in range(100)],
            [IndexedFile(f"episodes/{k}/{'d/' * 500}x", 1, one) for k in range(2_000)],
            [IndexedFile("episodes/x", 1 << 49, tuple(replace(p, at=k << 30) for k, p in enumerate(pieces[:100])))],
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
    holes = [IndexedFile(f"{REWARDS}{9000 + k}", 1 << 49, ()) for k in range(50)]
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
    result = scene.run("download", second, "--name", "local/came")
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
        scene.refused(scene.run("download", f"file://{other}", "--name", "local/stranger"))
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


@attack()
def lists_of_hashes(scene: Scene) -> None:
    """Lists of blocks and groups that are cut, of other objects, of zeros, endless, or that prove other bytes."""
    genuine = pushed(scene)
    scene.run("rm", SAMPLE, "--yes")
    index = forged.index_of(genuine)
    rows = max(index.objects, key=lambda o: o.size)
    other = bytes(255 - byte for byte in (genuine / rows.name).read_bytes())
    hasher = Hasher()
    hasher.update(other)
    proves_other = hasher.result().blocks
    lists = {
        rows.list[0]: (genuine / rows.list[0]).read_bytes(),
        index.groups_name: (genuine / index.groups_name).read_bytes(),
    }
    for number, (name, right) in enumerate(lists.items()):
        for k, wrong in enumerate(
            (b"", right[:-1], right[:-32], bytes(len(right)), right * 2, bytes(256 << 20), proves_other)
        ):
            at = copied(genuine, scene.root / f"lists{number}-{k}")
            laid(at / name, wrong)
            laid(at / rows.name, other)
            refused_everywhere(scene, at)
    for size in (0, 31, len(lists[index.groups_name]) * 2, 1 << 40):
        at = copied(genuine, scene.root / f"groups{size}")
        content = json.loads(index.to_bytes()) | {"groups": [index.groups.sha256, size]}
        forged.forge(at, content)
        refused_everywhere(scene, at)


@attack()
def lists_of_versions(scene: Scene) -> None:
    """Versions and tags of other types and sizes, that lead outside, that are missing, or that are a million."""
    genuine = pushed(scene)
    scene.run("rm", SAMPLE, "--yes")
    good = json.loads((genuine / "rlds.json").read_bytes())
    one, sha256 = good["versions"][0], good["versions"][0][1]
    outside = f"../../{scene.victim.name}/key"
    wrong = [
        {"versions": [[*one[:1], name, *one[2:]]]} for name in (outside, "/etc/passwd", "0" * 64, sha256.upper(), None)
    ]
    wrong += [{"versions": [[number, *one[1:]]]} for number in (-1, 1 << 70, 1.5, True, None, "1")]
    wrong += [{"versions": [[*one[:2], size, *one[3:]]]} for size in (-1, True, "1", 1 << 50)]
    wrong += [{"versions": found} for found in ([], None, [one, one], [one[:-1]], [[]], [None] * 1_000_000)]
    wrong += [{"tags": tags} for tags in ({"icra": "0" * 64}, {"icra": outside}, {"../x": sha256}, {"v7": sha256}, [1])]
    wrong += [{"tags": {"\x1b[2Jowned": sha256}}, {"tags": {f"t{k}": sha256 for k in range(200_000)}}]
    wrong += [{"id": id} for id in ("../../x", "local/\x1b[2J", "a" * 100_000, None)]
    for number, change in enumerate(wrong):
        at = copied(genuine, scene.root / f"versions{number}")
        laid(at / "rlds.json", forged.signed({**good, **change}))
        scene.run("log", at)
        scene.refused(scene.run("download", at, "--name", "local/stranger"))
    if (found := on_disk(scene.home)) > LITTLE:
        scene.fault(f"{found >> 20} MiB were written")
    laid(scene.root / "deep/rlds.json", b"[" * (8 << 20))
    refused_everywhere(scene, scene.root / "deep")
    if scene.run("log", genuine).code:
        scene.fault("the genuine address has no versions any more")


@attack()
def a_stranger_beside(scene: Scene) -> None:
    """A stranger's address beside the genuine one claims to have its objects, and one that is endless."""
    genuine = pushed(scene, name="store/genuine")
    index = forged.index_of(genuine)
    liar = copied(genuine, scene.root / "store/a-liar")
    for o in index.objects:  # other bytes, under the names and with the hashes of the genuine ones
        laid(liar / o.name, bytes(o.size))
    endless = replace(index, objects=tuple(replace(o, size=1 << 45) for o in index.objects))
    shutil.copytree(genuine, scene.root / "store/b-endless")
    forged.publish(scene.root / "store/b-endless", endless.to_bytes(), claims=index)
    laid(scene.root / "store/c-deep/rlds.json", b"[" * (8 << 20))
    (scene.root / "store/d-link").symlink_to(scene.victim)
    scene.run("preprocess", SAMPLE, "--fn", "scale_reward", "--arg", "scale=2", "--name", "made")
    second = pushed(scene, f"{SAMPLE}@made", "store/second")
    for number, (ref, wanted) in enumerate(((genuine, SAMPLE), (second, f"{SAMPLE}@made"))):
        as_ = f"local/came{number}"
        if scene.run("download", ref, "--name", as_).code or scene.run("diff", wanted, as_).code:
            scene.fault(f"{ref} does not have what was pushed there")
    scene.run("list", scene.root / "store")


@attack()
def mending_by_forged_lists(scene: Scene) -> None:
    """An index asks the next push for objects of other files, of terabytes, and of a million pieces."""
    key = scene.key.read_bytes()
    for number, wrong in enumerate(("outside", "endless", "shattered", "beyond")):
        address = pushed(scene, name=f"mended{number}/address")
        index = forged.index_of(address)
        first = index.files[0]
        lost = Object(hashlib.sha256(key).hexdigest(), len(key))
        o = len(index.objects)
        files = {
            "outside": [IndexedFile(path, len(key), (Piece(0, o, 0, len(key), lost.sha256),)) for path in OUTSIDE],
            "endless": [IndexedFile("zarr.json.old", 1 << 45, (Piece(0, o, 0, 1 << 45, lost.sha256),))],
            "shattered": [replace(first, pieces=tuple(Piece(k, o, k, 1, lost.sha256) for k in range(100_000)))],
            "beyond": [replace(first, size=1 << 40, pieces=(Piece(1 << 39, o, 0, len(key), lost.sha256),))],
        }[wrong]
        lost = replace(lost, size=max(p.offset + p.length for f in files for p in f.pieces))
        others = [f for f in index.files if f.path not in {x.path for x in files}]
        claimed = replace(index, objects=(*index.objects, lost), files=tuple(sorted((*others, *files), key=_path)))
        forged.publish(address, claimed.to_bytes(), claims=index)
        (address / index.objects[0].name).unlink()
        scene.run("push", SAMPLE, address, "--verify", "--force", "--no-pages")
        if any(SECRET.encode() in p.read_bytes() for p in address.rglob("*") if p.is_file()):
            scene.fault(f"{wrong}: a file of the user's was sent")
        if (sent := sum(p.stat().st_size for p in address.rglob("*") if p.is_file())) > LITTLE:
            scene.fault(f"{wrong}: {sent >> 20} MiB were sent")


@attack()
def holes_in_rows(scene: Scene) -> None:
    """Rows of episodes are missing in the index: they are never read as zeros under a genuine fingerprint."""
    genuine = pushed(scene)
    scene.run("rm", SAMPLE, "--yes")
    index = forged.index_of(genuine)
    for number, holes in enumerate(
        (lambda p: (), lambda p: p[1:], lambda p: (replace(p[0], length=p[0].length // 2),))
    ):
        files = tuple(replace(f, pieces=holes(f.pieces)) if f.path.startswith(REWARDS) else f for f in index.files)
        at = copied(genuine, scene.root / f"holes{number}")
        forged.publish(at, replace(index, files=files).to_bytes(), claims=index)
        scene.refused(scene.run("download", at, "--name", "local/stranger"))
        scene.refused(scene.run("check", f"{at}#{index.fingerprint}"))


@attack()
def bombs(scene: Scene) -> None:
    """Documents that nest, arrays of claimed sizes, columns of a billion texts, and images of a gigapixel."""
    id = images(scene)
    genuine = pushed(scene, id)
    scene.run("rm", id, "--yes")
    files, index = forged.read(genuine), forged.index_of(genuine)
    cam = next(path for path in files if path.startswith("observation/bytes/c/"))
    bomb = png_of_a_gigapixel()
    offsets = next(path for path in files if path.startswith("observation/offsets/c/"))
    count = len(files[offsets]) // 8
    deep, manifest = b"[" * 100_000 + b"]" * 100_000, files["zarr.json"]
    wrong = {
        "nested": {"zarr.json": b"[" * (4 << 20)},
        "attributes": {"zarr.json": manifest.replace(b"{", b'{"a": ' + deep + b",", 1)},
        "rows": {"action/zarr.json": enlarged(files["action/zarr.json"], 1 << 60)},
        "image": {cam: bomb, offsets: np.array([0, len(bomb)] * (count // 2), "<i8").tobytes()},
        "offsets": {offsets: np.linspace(0, 1 << 60, count).astype("<i8").tobytes()},
        "claimed": {
            "observation/bytes/zarr.json": enlarged(files["observation/bytes/zarr.json"], 1 << 55),
            offsets: np.linspace(0, 1 << 55, count).astype("<i8").tobytes(),
        },
        "lengths": {
            path: np.full(len(data) // 8, 1 << 55, "<i8").tobytes()
            for path, data in files.items()
            if path.startswith("episodes/length/c/")
        },
    }
    for name, change in wrong.items():
        at = scene.root / name
        forged.write(at, index, {**files, **change})
        scene.run("check", at)  # which does not need all of it
        scene.refused(scene.run("download", at, "--name", "local/stranger"))
        if (found := on_disk(scene.home)) > LITTLE:
            scene.fault(f"{name}: {found >> 20} MiB were written")


def enlarged(document: bytes, rows: int) -> bytes:
    """Return the document of an array that claims another number of rows."""
    return re.sub(rb'"shape": *\[\s*\d+', b'"shape": [%d' % rows, document, count=1)


def images(scene: Scene) -> str:
    """Record a dataset of images that are kept as PNG, and return its id."""
    scene.python(
        "import io, numpy as np, rlds_cli\n"
        "from PIL import Image\n"
        "out = io.BytesIO()\n"
        "Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(out, 'png')\n"
        "e = {'observation': [out.getvalue()] * 5, 'action': np.zeros(4), 'next/reward': np.ones(4)}\n"
        "rlds_cli.create('local/images', [e, e])\n"
    )
    return "local/images"


def png_of_a_gigapixel() -> bytes:
    """Return a PNG of 32,768 by 32,768 pixels, which are all black: 3 GiB when decoded, 3 MiB here."""
    head = struct.pack(">IIBBBBB", 1 << 15, 1 << 15, 8, 2, 0, 0, 0)
    packer = zlib.compressobj(9)
    row = bytes(1 + (3 << 15))
    data = b"".join([*(packer.compress(row) for _ in range(1 << 15)), packer.flush()])

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@attack(quick=True)
def a_cache_of_another_user(scene: Scene) -> None:
    """Another user of the home has laid wrong blocks in it, as if they had come from the genuine address."""
    genuine = pushed(scene)
    scene.run("rm", SAMPLE, "--yes")
    pinned = f"{genuine}#{forged.index_of(genuine).fingerprint}"
    largest = "print(rlds_cli.open_dataset({!r}).column('next/reward')[:].max())"
    wanted = scene.python(f"import rlds_cli; {largest.format(pinned)}")
    for own in (False, True):
        shared = scene.root / f"shared{own}"
        scene.environment["RLDS_HOME"] = str(shared)
        scene.python(f"import rlds_cli; {largest.format(str(genuine))}")
        shared.chmod(0o1777)
        for path in shared.rglob("*"):
            if path.is_file() and "rows" in path.parts and not path.is_symlink():
                path.chmod(0o644)
                path.write_bytes(b"\x7f" * path.stat().st_size)
            if os.geteuid() == 0 and not own:
                os.chown(path, 65534, -1, follow_symlinks=False)
        for ref in (pinned, str(genuine)) if not own else (pinned,):
            found = scene.python(
                f"import rlds_cli\ntry: {largest.format(ref)}\nexcept rlds_cli.errors.RldsError: print('refused')"
            )
            if found not in (wanted, "refused\n"):
                scene.fault(f"the largest reward at {ref} is {found.strip()}, and was {wanted.strip()}")
    scene.environment.pop("RLDS_HOME")


@attack()
def pins_that_were_forged(scene: Scene) -> None:
    """An index of a stranger under the name, tag, fingerprint and lock of the genuine one."""
    id = images(scene)
    genuine = pushed(scene, id)
    index = forged.index_of(genuine)
    locked = scene.run("lock", id).out
    lock = scene.work / "rlds.lock"
    scene.run("rm", id, "--yes")
    other = forged.index_of(forged_rewards(genuine, scene.root / "forged"))
    for number, text in enumerate((other.to_bytes(), index.to_bytes().replace(b'"groups"', b'"Groups"', 1), b"{}")):
        at = copied(genuine, scene.root / f"pins{number}")
        shutil.copytree(scene.root / "forged", at, dirs_exist_ok=True)
        laid(at / index.name, text)  # under the sha256 of the genuine one
        forged.publish_versions(at, index, tags={"icra": index.sha256})
        rewritten = json.loads(locked)
        for dataset in rewritten["datasets"]:
            dataset |= {"address": f"file://{at}"}
            if dataset.get("index") != index.sha256:
                scene.fault(f"the lock does not have the sha256 of the index: {dataset.get('index')}")
        lock.write_text(json.dumps(rewritten))
        scene.refused(scene.run("sync", lock, "--allow-address", at))
        for pin in ("#icra", f"#{index.fingerprint}", f"#{index.fingerprint[:18]}"):
            scene.refused(scene.run("check", f"{at}{pin}"))
            scene.refused(scene.run("download", f"{at}{pin}", "--name", "local/stranger"))
    if any((scene.home / "datasets/local").glob("*")):
        scene.fault("a dataset of a stranger has come")


def copied(genuine: Path, at: Path) -> Path:
    """Copy an address."""
    shutil.copytree(genuine, at)
    return at


def laid(file: Path, content: bytes) -> None:
    """Put a file at an address, also in the place of one that may only be read."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    file.write_bytes(content)


def refused_everywhere(scene: Scene, address: Path) -> None:
    """No command takes a dataset from an address, and none writes much."""
    for words in (("check", address), ("download", address, "--name", "local/stranger")):
        scene.refused(scene.run(*words))
    if (found := on_disk(scene.home)) > LITTLE:
        scene.fault(f"{address}: {found >> 20} MiB were written")


_CHANGES = (
    lambda i: replace(i, files=i.files[:1]),
    lambda i: replace(i, files=tuple(f for f in i.files if "episodes/" not in f.path)),
    lambda i: replace(i, files=tuple(f for f in i.files if not f.path.startswith(REWARDS))),
    lambda i: replace(i, files=tuple(_short(f) for f in i.files)),
    lambda i: replace(i, version=3, fingerprint=i.fingerprint.replace("rlds1", "rlds2")),
    lambda i: replace(i, fingerprint=f"rlds1:{'0' * 64}"),
    lambda i: replace(i, objects=tuple(replace(o, size=o.size + (1 << 20)) for o in i.objects)),
)


def _short(f: IndexedFile) -> IndexedFile:
    """Return a file without its last byte."""
    if not f.size:
        return f
    *rest, last = f.pieces
    pieces = (*rest, replace(last, length=last.length - 1)) if last.length > 1 else tuple(rest)
    return IndexedFile(f.path, f.size - 1, pieces)


def _path(f: IndexedFile) -> str:
    """Return the path of a file, by which an index is sorted."""
    return f.path
