"""All that a dataset can do, however it is kept and whatever it holds; the table of docs/guides/remote.md is this one.

A dataset is fixed, grows, or grows while episodes leave. It is on this disk or at an address, and holds numbers, texts,
images, videos or compressed rows. Each cell reads what was put in, or is refused by the message that stands in `TABLE`.
"""

from __future__ import annotations

import pickle
import re
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lerobot_archives import Content, H, W, write_v3
from test_remote_store import flat, same

import rlds_cli
from rlds_cli import Dataset, Fifo, Loader
from rlds_cli.errors import InvalidArgument, RldsError
from rlds_cli.keep.reencoding import reencode
from rlds_cli.make.importing import import_files
from rlds_cli.store import encode_frames
from rlds_cli.store.growing import segments

KEPT = 4  # episodes that stay where others leave
FIELD = {"texts": "task", "images": "observation/image", "videos": "observation/images/top"}
WAYS = ("fixed, here", "growing, here", "fixed, at an address", "growing, at an address")
FIXED, UNCHANGED = "it does not grow", "is at an address, where it is not changed"
ADDRESS = "is an address, not the id of a dataset"
TABLE = {
    "read, select, load, pickle; pin by `#rlds1:...`": ("yes", "yes", "yes", "yes"),
    "`label`, `drop`, `trim`, `tag`, `push`": ("yes", "yes", UNCHANGED, UNCHANGED),
    "`merge`": ("yes", "yes", "yes", "yes"),
    "`rlds convert --to zarr`": ("yes", "its rows are memory-mapped", ADDRESS, ADDRESS),
    "`Loader(..., live=True)`": (FIXED, "yes", FIXED, "yes"),
    "`open_dataset(..., cache=0)`": ("-", "-", "yes", "yes"),
}


class Noise(Content):
    """Videos that are larger than a segment."""

    def frames(self, camera: str) -> np.ndarray:
        return np.random.default_rng(3).integers(0, 255, (self.rows, H, W, 3), np.uint8)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of which many leave with few episodes; and looks at an address every now and then."""
    monkeypatch.setattr(segments, "rows_of_segment", lambda width, most=None: 4096)
    monkeypatch.setattr(segments, "bytes_of_segment", lambda width, most=None: 1 << 16)
    monkeypatch.setattr("rlds_cli.places.remote.store.EVERY", 0.05)


def numbers(k: int) -> dict[str, Any]:
    """Episode ``k``: every value tells its episode and its step."""
    n = 4 + k % 3
    step = np.arange(n + 1)
    return {
        "observation": {"state": 100.0 * k + step[:, None] + np.zeros(3)},
        "action": (100 * k + step[:-1, None] + np.zeros(2)).astype(np.float32),
        "next": {"reward": np.full(n, float(k)), "terminated": step[1:] == n},
    }


@cache
def image(k: int, step: int) -> np.ndarray:
    return np.random.default_rng([k, step]).integers(0, 255, (16, 16, 3), np.uint8)


@cache
def frames_of(k: int) -> Any:
    return encode_frames(np.stack([image(k, t) for t in range(4 + k % 3 + 1)]), "png")


def episode(kind: str, k: int) -> dict[str, Any]:
    made = numbers(k)
    if kind == "texts":
        made["task"] = [f"do {k} {t}" for t in range(len(made["action"]))]
    if kind == "images":
        made["observation"]["image"] = frames_of(k)
    return made


class Films:
    """Imported videos: eight episodes, and two of another archive, which are numbers 100 and 101."""

    def __init__(self, tmp_path: Path) -> None:
        self.whole = self._imported(tmp_path, "film", (6, 5, 9, 2, 7, 4, 3, 8))
        self.others = self._imported(tmp_path, "others", (4, 3))
        self.schema = self.whole.schema

    def _imported(self, tmp_path: Path, name: str, lengths: tuple[int, ...]) -> Dataset:
        content = Noise(lengths=lengths, video=("top",), per_file=3, per_video=3, options={"g": "4", "bf": "0"})
        return import_files(write_v3(tmp_path / name, content), f"local/{name}")

    def episode(self, k: int) -> Any:
        return self.others.episode(k - 100) if k >= 100 else self.whole.episode(k)


def check(ds: Dataset, kind: str, which: Sequence[int], film: Films | None) -> None:
    """Compare all episodes with what was put in: those of these numbers, in this order."""
    assert ds.num_episodes == len(which)
    for i, k in enumerate(which):
        found = ds.episode(i)
        if film is not None:
            there = film.episode(k)
            assert all(np.array_equal(np.asarray(found[name]), np.asarray(there[name])) for name in film.schema)
            continue
        wanted = episode(kind, k)
        states = wanted["observation"]["state"]
        assert np.array_equal(found["observation/state"], states[:-1])
        assert np.array_equal(found["next"]["observation"]["state"], states[1:])
        assert np.array_equal(found["action"], wanted["action"])
        assert np.array_equal(np.ravel(found["next"]["reward"]), wanted["next"]["reward"])
        if kind == "texts":
            assert list(found["task"]) == wanted["task"]
        if kind == "images":
            frames = [image(k, t) for t in range(len(wanted["action"]) + 1)]
            assert np.array_equal(np.asarray(found["observation/image"]), np.stack(frames[:-1]))
            assert np.array_equal(np.asarray(found["next"]["observation"]["image"])[-1], frames[-1])


def batch(ds: Dataset, kind: str, **how: Any) -> dict[str, Any]:
    fields = ["action", FIELD.get(kind, "observation/state")]
    return flat(next(iter(Loader(ds, 16, fields=fields, backend="numpy", dtype=None, seed=3, **how))))


def equal(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)


def opened(address: str, home: Path, **how: Any) -> Dataset:
    """Open a dataset as somebody does who has no other one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLDS_HOME", str(home))
        ds = rlds_cli.open_dataset(address, home=home, **how)
    assert ds.store.address
    return ds


def refused(what: Callable[[], Any], row: str, way: str) -> None:
    message = TABLE[row][WAYS.index(way)]
    with pytest.raises(RldsError, match=re.escape(message)):
        what()


SLOW = pytest.mark.slow
CELLS = [
    pytest.param("fixed", "numbers", marks=SLOW),
    pytest.param("fixed", "texts", marks=SLOW),
    pytest.param("fixed", "images", marks=SLOW),
    pytest.param("fixed", "videos", marks=SLOW),
    pytest.param("fixed", "compressed"),
    pytest.param("growing", "numbers", marks=SLOW),
    pytest.param("growing", "texts", marks=SLOW),
    pytest.param("growing", "images"),
    pytest.param("growing", "videos", marks=SLOW),
    pytest.param("growing", "compressed"),
    pytest.param("leaving", "numbers", marks=SLOW),
    pytest.param("leaving", "texts"),
    pytest.param("leaving", "images", marks=SLOW),
    pytest.param("leaving", "videos"),
]


@pytest.mark.parametrize(("how", "kind"), CELLS)
def test_each_cell_of_the_table(how: str, kind: str, tmp_path: Path) -> None:
    film, count = None, 40 if how == "leaving" else 8
    if kind == "videos":
        film, count = Films(tmp_path), 8
    given = [film.episode(k) if film is not None else episode(kind, k) for k in range(count)]
    if how == "fixed":
        ds = film.whole if film is not None else rlds_cli.create("local/x", given)
        if kind == "compressed":
            reencode(ds.id, to="zarr")
            ds = rlds_cli.open_dataset(ds.id)
            assert ds.encoding == "zarr"
    else:
        keep = Fifo(episodes=KEPT) if how == "leaving" else None
        with rlds_cli.writer(
            "local/x", keep=keep, durable=False, **({} if film is None else {"like": film.whole})
        ) as w:
            w.add_episodes(given)
        ds = rlds_cli.open_dataset("local/x")
    grows, which = how != "fixed", list(range(count))[-KEPT:] if how == "leaving" else list(range(count))
    here, there = ("growing, here", "growing, at an address") if grows else ("fixed, here", "fixed, at an address")

    if kind == "compressed" and grows:
        refused(lambda: reencode(ds.id, to="zarr"), "`rlds convert --to zarr`", here)
        return
    read(ds, kind, which, film)
    check(rlds_cli.open_dataset(f"{ds.id}#{ds.fingerprint}"), kind, which, film)
    wanted = batch(ds, kind)
    if grows:
        assert batch(ds, kind, live=True).keys() == wanted.keys()
    else:
        refused(lambda: batch(ds, kind, live=True), "`Loader(..., live=True)`", here)

    address, home = str(tmp_path / "pushed"), tmp_path / "other"
    rlds_cli.push(ds.id, address, pages=False)
    far = opened(address, home)
    read(far, kind, which, film)
    assert equal(batch(opened(address, home), kind), wanted)
    for k, pinned in enumerate((address, f"{address}#{ds.fingerprint}")):
        check(opened(pinned, tmp_path / f"memory{k}", cache=0), kind, which, film)
    assert equal(batch(opened(address, tmp_path / "none", cache=0), kind), wanted)
    check(opened(f"{address}#{ds.fingerprint}", tmp_path / "proved"), kind, which, film)
    for change in (
        lambda: far.label(good=True),
        lambda: far.select(episodes=[0]).drop(),
        lambda: far.trim({0: (0, 1)}, "y"),
        lambda: far.tag("y"),
    ):
        refused(change, "`label`, `drop`, `trim`, `tag`, `push`", there)
    refused(lambda: rlds_cli.push(far, address), "`label`, `drop`, `trim`, `tag`, `push`", there)
    refused(lambda: reencode(f"file://{address}", to="zarr"), "`rlds convert --to zarr`", there)
    if not grows:
        refused(lambda: batch(far, kind, live=True), "`Loader(..., live=True)`", there)

    others = (
        film.others if film is not None else rlds_cli.create("local/others", [episode(kind, k) for k in (100, 101)])
    )
    check(rlds_cli.merge([far, others], "local/fetched"), kind, [*which, 100, 101], film)
    made(ds, others, kind, which, film, tmp_path)
    if grows:
        follow(address, home, kind, film)


def read(ds: Dataset, kind: str, which: Sequence[int], film: Films | None) -> None:
    """Read all of a dataset, a selection of it, and both in another process's words."""
    check(ds, kind, which, film)
    check(pickle.loads(pickle.dumps(ds)), kind, which, film)
    some = ds.select(episodes=[2, 0])
    check(some, kind, [which[2], which[0]], film)
    assert pickle.loads(pickle.dumps(some)).fingerprint == some.fingerprint


def made(ds: Dataset, others: Dataset, kind: str, which: Sequence[int], film: Films | None, tmp_path: Path) -> None:
    """Label, drop, trim and merge; each result is read here, and at the address to which it is pushed."""
    labelled = ds.label(good=np.arange(len(which)) % 2 == 0)
    dropped = labelled.select(episodes=[1]).drop()
    left = [k for i, k in enumerate(which) if i != 1]
    trimmed = dropped.trim({0: (1, 3)}, "short")
    merged = rlds_cli.merge([others, dropped], "local/both")
    for k, (new, wanted) in enumerate(((dropped, left), (trimmed, None), (merged, [100, 101, *left]))):
        rlds_cli.push(new, str(tmp_path / f"made{k}"), pages=False)
        for one in (new, opened(str(tmp_path / f"made{k}"), tmp_path / f"home{k}")):
            if wanted is not None:
                check(one, kind, wanted, film)
                good = [None if w >= 100 else which.index(w) % 2 == 0 for w in wanted]
                assert one.store.own_column("good").scalars() == good
            else:
                short, whole = one.episode(0), dropped.episode(0)
                assert one.num_episodes == len(left) and len(short["action"]) == 2
                assert np.array_equal(short["action"], whole["action"][1:3])
                if film is not None or kind == "images":
                    frames = (np.asarray(x[FIELD[kind]]) for x in (short, whole))
                    assert np.array_equal(next(frames), next(frames)[1:3])


def follow(address: str, home: Path, kind: str, film: Films | None) -> None:
    """A live loader at an address takes up what is recorded and pushed."""
    far = opened(address, home)
    loader = Loader(far, 4, fields=[FIELD.get(kind, "action")], backend="numpy", dtype=None, live=True)
    batches = iter(loader)
    next(batches)
    with rlds_cli.writer("local/x", durable=False) as w:
        w.add_episodes([film.episode(k) if film is not None else episode(kind, 50 + k) for k in range(2)])
    newest = rlds_cli.push("local/x", address, pages=False).version
    until = time.monotonic() + 60
    while loader.version != newest:
        assert time.monotonic() < until, f"still at version {loader.version}"
        next(batches)
    there, here = opened(address, home), rlds_cli.open_dataset("local/x")
    assert there.version == newest and there.fingerprint == here.fingerprint
    check(there.select(episodes=slice(-2, None)), kind, [0, 1] if film is not None else [50, 51], film)


def test_the_docs_print_this_table() -> None:
    lines = [f"| | {' | '.join(WAYS)} |", "| --- |" + " --- |" * len(WAYS)]
    for what, cells in TABLE.items():
        shown = [c if c in ("yes", "-") else f"no: *{c}*" for c in cells]
        lines.append(f"| {what} | {' | '.join(shown)} |")
    page = (Path(__file__).parents[2] / "docs/guides/remote.md").read_text()
    assert "\n".join(lines) in page


def test_what_is_pinned_by_its_content_is_not_followed(tmp_path: Path) -> None:
    with rlds_cli.writer("local/x", durable=False) as w:
        w.add_episodes(episode("numbers", k) for k in range(3))
    rlds_cli.push("local/x", str(tmp_path / "pushed"), pages=False)
    pinned = opened(f"{tmp_path / 'pushed'}#{rlds_cli.open_dataset('local/x').fingerprint}", tmp_path / "other")
    with pytest.raises(InvalidArgument, match="its address pins a fingerprint"):
        batch(pinned, "numbers", live=True)


def test_versions_at_an_address_have_the_names_of_the_one_that_is_open(tmp_path: Path) -> None:
    """Also as a member of a mixture, which renames fields and is not live."""
    address = str(tmp_path / "pushed")
    with rlds_cli.writer("local/x", durable=False) as w:
        w.add_episodes(episode("images", k) for k in range(3))
        w.commit()
        rlds_cli.push("local/x", address, pages=False)
        far = opened(address, tmp_path / "other")
        names = {name: name.replace("image", "camera") for name in far.schema}
        store = far.store.renamed(names)
        w.add_episodes(episode("images", k) for k in range(3, 5))
        w.commit()
        rlds_cli.push("local/x", address, pages=False)
    newest = store.newest()
    assert newest.version > store.version
    assert list(newest.fields) == list(store.fields) == list(names.values())
    assert newest.at(store.version).version == store.version
    assert pickle.loads(pickle.dumps(newest)).fingerprint() == newest.fingerprint()
    row = np.array([int(newest.episodes["start"][4])])
    assert np.array_equal(newest.gather("observation/camera", row)[0], image(4, 0))
