"""The datasets of `remote.py`: made once, pushed to the directory that the object server serves."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from results import DATA

import rlds_cli
from rlds_cli.base.refs import Ref
from rlds_cli.errors import DatasetNotFound
from rlds_cli.share import packing, snapshot
from rlds_cli.store import Built, Description, finish, rows
from rlds_cli.store.paths import assign_paths
from rlds_cli.store.rows import RowPosition
from rlds_cli.ted import FLAGS, REWARD, TRUNCATED, EpisodeTable, Field

ROOT = (DATA / "remote").resolve()
SERVED = ROOT / "served"  # what the server gives
BUCKET = os.environ.get("BENCH_BUCKET", "b")  # another one for an earlier checkout, whose format may be another
HOME = ROOT / ("home" if BUCKET == "b" else f"home-{BUCKET}")  # of those who push
LENGTH, WIDTH, WINDOW = 240, 384, 16  # windows of 16 rows of 1.5 KiB
EPISODES = int(os.environ.get("BENCH_EPISODES", "300"))
WINDOWS = EPISODES * LENGTH // WINDOW
KIB, MIB = 1 << 10, 1 << 20
BILLION = 10**9
FIELDS = (
    Field("observation", "float32", (8,), "both"),
    Field("action", "float32", (2,)),
    Field(REWARD, "float32", (), "next"),
    *(Field(name, "bool", (), "next") for name in FLAGS),
)


def windows() -> Path:
    """15 windows of 24 KiB in each of `EPISODES`: pushed, and the directory of the original."""
    return pushed("windows", lambda k, rng: rng.standard_normal((LENGTH + 1, WIDTH), np.float32), EPISODES)


def images() -> Path:
    """Images of 64 x 64, 12 KiB each, 300 MiB."""
    return pushed("images", lambda k, rng: rng.integers(0, 256, (LENGTH + 1, 64, 64, 3), np.uint8), 100)


def to_jpeg(episode: dict[str, Any]) -> dict[str, Any]:
    """Encode the images of an episode, blurred so that they are as large as those of cameras."""
    x = episode["observation"].astype(np.float32)
    for axis in (1, 2):
        x = (x + np.roll(x, 1, axis) + np.roll(x, 2, axis) + np.roll(x, 3, axis)) / 4
    return {"observation": rlds_cli.preprocess.encode_frames(x.astype(np.uint8), "jpeg")}


def frames() -> Path:
    """The same images as JPEG."""
    images()
    found = rlds_cli.preprocess.run("local/images", to_jpeg, "jpeg", home=HOME)
    _push(found.id, "frames")
    return found.path


def small() -> Path:
    """Eight million steps of 100 bytes, 800 MiB."""
    return pushed("small", lambda k, rng: rng.standard_normal((4 * LENGTH + 1, 17), np.float32), 8000, 4 * LENGTH)


def gigabyte() -> Path:
    """Windows of 24 KiB, 1 GB of them; not pushed."""
    count = 10**9 // (LENGTH * WIDTH * 4)
    return created("gigabyte", lambda k, rng: rng.standard_normal((LENGTH + 1, WIDTH), np.float32), count, LENGTH).path


def pushed(name: str, observations: Callable[[int, Any], Any], episodes: int, length: int = LENGTH) -> Path:
    """Make a dataset and push it, where it is not there; return its directory in the home."""
    found = created(name, observations, episodes, length)
    _push(found.id, name)
    return found.path


def created(name: str, observations: Callable[[int, Any], Any], episodes: int, length: int) -> rlds_cli.Dataset:
    """Open a dataset of the home, which is made where it is not there."""
    try:
        return rlds_cli.open_dataset(f"local/{name}", home=HOME)
    except DatasetNotFound:
        rng = np.random.default_rng(0)
        return rlds_cli.create(
            f"local/{name}",
            (
                {
                    "observation": observations(k, rng),
                    "action": rng.standard_normal((length, 6), np.float32),
                    "next": {"reward": rng.standard_normal(length, np.float32), "truncated": True},
                }
                for k in range(episodes)
            ),
            home=HOME,
        )


def _push(id: str, name: str) -> None:
    to = SERVED / BUCKET / name
    if not _is_whole(to):
        rlds_cli.push(id, to, home=HOME)
        shutil.rmtree(HOME / "origins", ignore_errors=True)  # the address shall not lead back to this home


def _is_whole(to: Path) -> bool:
    """Return whether a dataset was pushed to a directory: what names its index is written last."""
    return any(to.glob("*.json"))


def billion() -> None:
    """A million episodes of 1e9 steps together, 43 GiB: holes but for the flags, and some numbers in every 64 MiB.

    Written past the library's readers and stores, which would fill the holes; `finish` and the plan of the push are
    the library's, so that every hash is true. Takes minutes, and 2 GiB of the disk.
    """
    from rlds_cli.places import Versions  # not in older checkouts

    to, work = SERVED / BUCKET / "billion", ROOT / f"billion-{BUCKET}"
    if _is_whole(to):
        return
    shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(to, ignore_errors=True)
    table = _episodes(BILLION // 1000)
    paths, total = assign_paths(f.name for f in FIELDS), int((table.length + 1).sum())
    for f in FIELDS:
        file = rows.files(work, f, paths[f.name])["rows"]
        file.parent.mkdir(parents=True)
        _sparse_rows(f, total, table, file)
    finish(Built(work, FIELDS, paths, RowPosition(total), table, ()), Description("local/billion"))
    taken = snapshot.take(Ref(work))
    plan = packing.plan(taken, ())
    for name in ("objects", "blocks", "groups", "indexes"):
        (to / name).mkdir(parents=True)
    for made in plan.new:
        with made.body(lambda done: None).open() as content, (to / made.object.name).open("wb") as out:
            out.truncate(made.object.size)
            while data := content.read(MIB):
                if data.count(0) < len(data):
                    out.seek(content.tell() - len(data))
                    out.write(data)
        (to / made.object.list[0]).write_bytes(made.hashed.blocks)
    (to / plan.index.groups_name).write_bytes(plan.hashes)
    (to / plan.index.name).write_bytes(plan.index.to_bytes())
    about = {"created": taken.created, "change": taken.change, "episodes": taken.episodes, "steps": taken.steps}
    there = Versions(plan.index.id).added(plan.index, **about, newest=True, tags={})
    (to / Versions.NAME).write_bytes(there.to_bytes())
    shutil.rmtree(work)


def _episodes(count: int) -> EpisodeTable:
    """Return a table of episodes of 500 to 1,500 steps, 1,000 on average."""
    half = np.random.default_rng(0).integers(-500, 501, count // 2)
    length = 1000 + np.concatenate([half, -half])
    return EpisodeTable(
        length=length,
        end=np.full(count, TRUNCATED, np.uint8),
        observed=np.ones(count, bool),
        source=np.zeros(count, np.int32),
        row=np.arange(count),
    )


def _sparse_rows(f: Field, total: int, table: EpisodeTable, file: Path) -> None:
    """Write the rows of a field: flags where episodes end, of other fields one row in every 64 MiB."""
    width = np.dtype(f.dtype).itemsize * int(np.prod(f.shape))
    with file.open("wb") as out:
        if f.name == FLAGS[1]:
            flags = np.zeros(total, bool)
            flags[table.start + table.length - 1] = True
            out.write(flags.tobytes())
        elif f.dtype == "float32":
            every, rng = 64 * MIB // width, np.random.default_rng(width)
            for k in range(0, total, every):
                out.seek(k * width)
                out.write(rng.standard_normal(f.shape, np.float32).tobytes())
        out.truncate(total * width)
