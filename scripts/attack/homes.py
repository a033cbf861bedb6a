"""Homes that several people share, one of whom puts links where rlds will write."""

from __future__ import annotations

import os
from pathlib import Path

from scene import SECRET, Scene, attacks
from server import Server

ATTACKS, attack = attacks()

ANTMAZE = "d4rl/antmaze-medium-play-v2"
ANTMAZE_FILE = "Ant_maze_big-maze_noisy_multistart_True_multigoal_False_sparse_fixed.hdf5"


def content(scene: Scene) -> bytes:
    """An archive that the reader of D4RL accepts."""
    return (scene.home / "archives" / "sample" / "pendulum-d4rl" / "pendulum-d4rl.hdf5").read_bytes()


def targets(scene: Scene) -> list[Path]:
    """Names that rlds uses in a home, of files and directories."""
    archive = scene.home / "archives" / ANTMAZE
    files = [archive / f"{ANTMAZE_FILE}{end}" for end in ("", ".part", ".part.json", ".json", ".part.spans", ".lock")]
    locks = [scene.home / "locks" / f"{ANTMAZE.replace('/', '+')}{end}" for end in (".lock", "")]
    orders = [scene.home / "partial" / f"{ANTMAZE.replace('/', '+')}{end}" for end in ("", ".order", ".json")]
    datasets = [scene.home / "datasets" / ANTMAZE, scene.home / "partial" / ANTMAZE]
    return [*files, archive / ".listing.json", *locks, *orders, *datasets]


@attack(quick=True)
def links_where_files_will_be(scene: Scene) -> None:
    """Each name that a download writes is a link to a file of the user's."""
    with Server() as server:
        server.add(f"/{ANTMAZE_FILE}", content(scene))
        for target in targets(scene):
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.exists() or target.is_symlink():
                continue
            target.symlink_to(scene.victim / "notes.txt")
            scene.run("download", ANTMAZE, "--from", server.url)
            if target.is_symlink():
                target.unlink()
            scene.run("rm", ANTMAZE, "--yes")


@attack()
def hard_links_where_files_will_be(scene: Scene) -> None:
    """The same with hard links, which no flag of open() refuses."""
    with Server() as server:
        server.add(f"/{ANTMAZE_FILE}", content(scene))
        for target in targets(scene):
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                os.link(scene.victim / "notes.txt", target)
                scene.remember()
            scene.run("download", ANTMAZE, "--from", server.url)
            scene.run("verify", "--all")
            if target.exists() and target.is_file():
                target.unlink()
            # The link of the attacker itself is no damage: content and mode are what counts.
            text = (scene.victim / "notes.txt").read_text()
            if text != "notes\n":
                scene.fault(f"{target.name}: notes.txt is {text[:40]!r}")
                return
            scene.run("rm", ANTMAZE, "--yes")
    scene.remember()


@attack()
def directories_that_are_links(scene: Scene) -> None:
    """Directories of the home lead to one of the user's."""
    with Server() as server:
        server.add(f"/{ANTMAZE_FILE}", content(scene))
        for target in (f"archives/{ANTMAZE}", "archives/d4rl", f"datasets/{ANTMAZE}", "datasets/d4rl", "partial/d4rl"):
            link = scene.home / target
            link.parent.mkdir(parents=True, exist_ok=True)
            if link.exists():
                continue
            link.symlink_to(scene.victim / "precious")
            scene.run("download", ANTMAZE, "--from", server.url)
            scene.run("gc", "--archives", "--yes")
            scene.run("rm", ANTMAZE, "--yes")
            if link.is_symlink():
                link.unlink()


@attack(quick=True)
def what_gc_does_not_know(scene: Scene) -> None:
    """Links, files and directories in a home that rlds has not made."""
    for directory in ("", "datasets", "archives", "partial", "locks", "datasets/sample", "archives/sample", "packed"):
        at = scene.home / directory
        at.mkdir(parents=True, exist_ok=True)
        (at / "link").symlink_to(scene.victim / "precious")
        (at / ".hidden-link").symlink_to(scene.victim)
        (at / "x.part").symlink_to(scene.victim / "notes.txt")
    mine = scene.home / "datasets" / "my-thesis"
    mine.mkdir()
    (mine / "chapter.txt").write_text("years of work\n")
    other = scene.home / "archives" / "my-files"
    other.mkdir()
    (other / "data.bin").write_bytes(b"mine")
    for words in (("gc", "--yes"), ("gc", "--archives", "--yes"), ("du",), ("list", "--local"), ("verify", "--all")):
        scene.run(*words)
    scene.run("rm", "sample/*", "--yes")
    scene.run("gc", "--archives", "--yes")
    for path in (mine / "chapter.txt", other / "data.bin"):
        if not path.exists():
            scene.fault(f"gc removed {path.relative_to(scene.home)}, which rlds has not made")


@attack()
def secrets_of_addresses(scene: Scene) -> None:
    """What stands in an address is in no file and no message."""
    with Server() as server:
        host = server.host
        server.add(f"/{ANTMAZE_FILE}", content(scene), drops=[1000] * 50)
        server.add(f"/d/{ANTMAZE_FILE}", b"no archive")
        for address in (
            f"http://user:{SECRET}@{host}",
            f"http://{SECRET}@{host}",
            f"http://{host}/d?token={SECRET}",
            f"http://{host}/d?pwd={SECRET}",
            f"http://{host}/d?jwt={SECRET}#x",
            f"http://{host}/d?x={SECRET}",
            f"ftp://user:{SECRET}@{host}/d",
            f"http://user:{SECRET}@nowhere.invalid/d",
        ):
            for extra in ((), ("--verbose",), ("--dry-run", "--json")):
                said = scene.run("download", ANTMAZE, "--from", address, *extra).said
                if SECRET in said:
                    scene.fault(f"{address.replace(SECRET, 'SECRET')} is shown: {said[-200:]!r}")
        for path in scene.home.rglob("*"):
            if path.is_file() and SECRET.encode() in path.read_bytes():
                scene.fault(f"the secret is in {path.relative_to(scene.home)}")
