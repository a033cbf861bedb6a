"""Whatever reads a dataset gives the same wherever its rows are stored: only start and length of the table count."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import frames_data
import h5py
import numpy as np
import pytest
import scattered

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.archives import FORMATS
from rlds_cli.dataset import Dataset
from rlds_cli.interop import d4rl, minari
from rlds_cli.keep.verification import verify
from rlds_cli.loader import Goals, Loader, ReturnToGo, Slice, Transition
from rlds_cli.look.checks.run import check
from rlds_cli.look.report import compare, describe_episode, summarise
from rlds_cli.look.report.html import read_content, render
from rlds_cli.preprocess import unit
from rlds_cli.ted import Chunk, Part

Pair = tuple[Dataset, Dataset]


@pytest.fixture
def both(tmp_path: Path) -> Pair:
    return scattered.pair(scattered.dataset, tmp_path)


@pytest.fixture
def numbers(tmp_path: Path) -> Pair:
    return scattered.pair(lambda: scattered.dataset("local/numbers", plain=True), tmp_path)


def assert_same(a: Any, b: Any, where: str = "") -> None:
    """Compare nested values, dtypes included; NaN equals itself."""
    if hasattr(a, "items"):
        assert set(a) == set(b), where
        for key in a:
            assert_same(a[key], b[key], f"{where}/{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), where
        for k, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same(x, y, f"{where}[{k}]")
    else:
        x, y = np.asarray(a), np.asarray(b)
        assert x.dtype == y.dtype and x.shape == y.shape, where
        assert x.tolist() == y.tolist() if x.dtype == object else np.array_equal(x, y, equal_nan=x.dtype.kind == "f"), (
            where
        )


def selections(pair: Pair) -> list[Pair]:
    return [pair, (pair[0].select(episodes=[6, 2, 7]), pair[1].select(episodes=[6, 2, 7]))]


def test_episodes_and_transitions(both: Pair) -> None:
    for one, other in selections(both):
        for k in range(one.num_episodes):
            assert_same(dict(one.episode(k).leaves()), dict(other.episode(k).leaves()), str(k))
        assert_same(dict(one[:].leaves()), dict(other[:].leaves()))
        for layout in ("ted", "d4rl", "ogbench"):
            assert_same(one.to_numpy(layout), other.to_numpy(layout), layout)
        assert_same({k: asdict(v) for k, v in one.stats.items()}, {k: asdict(v) for k, v in other.stats.items()})


def test_checks(tmp_path: Path) -> None:
    def broken() -> Dataset:
        made = scattered.episodes()
        made[4], made[7]["action"][3, 1] = {**made[4], "episode": made[2]["episode"]}, np.nan
        made[3]["observation"]["state"][20] += 100
        made[8]["observation"]["t"][2:] -= 2
        made += [scattered.episodes()[5]]
        return rlds_cli.create("local/broken", made, force=True)

    one, other = map(check, scattered.pair(broken, tmp_path))
    assert {"not-finite", "duplicate", "step-restarts"} <= {f.code for f in one.findings}
    assert replace(one, path=other.path) == other


def test_reports(both: Pair) -> None:
    one, other = both
    expected, found = summarise(one, elements=True), summarise(other, elements=True)
    fields = tuple(replace(f, bytes=g.bytes) for f, g in zip(expected.fields, found.fields, strict=True))
    assert replace(expected, path=found.path, bytes=found.bytes, fields=fields) == found
    for k in range(one.num_episodes):
        assert replace(describe_episode(one, k), start=0) == replace(describe_episode(other, k), start=0)
    pages = [read_content(ds) for ds in both]
    pages = [replace(p, summary=expected, check=replace(p.check, path=one.path)) for p in pages]
    assert render(pages[0]) == render(pages[1])
    difference = compare(one, other)
    assert difference.same and all(c.a == c.b for c in difference.counts)


def test_pictures(both: Pair) -> None:
    from rlds_cli.look.report import plots

    for options in ({}, {"episode": 7}):
        sheets = [np.asarray(plots.contact_sheet(ds, "observation/camera", **options)) for ds in both]
        assert np.array_equal(*sheets)


def content(file: Path) -> Any:
    """The bytes of a file, or what an HDF5 file holds: it has times, too."""
    if file.suffix not in (".hdf5", ".h5"):
        return file.read_bytes()
    found: dict[str, Any] = {}
    with h5py.File(file) as f:
        names: list[str] = []
        f.visit(names.append)
        for name in names:
            values = f[name][()] if isinstance(f[name], h5py.Dataset) else None
            raw = values.tobytes() if isinstance(values, np.ndarray) and values.dtype != object else repr(values)
            found[name] = raw, repr(dict(f[name].attrs))
    return found


@pytest.mark.sampled(1)
@pytest.mark.parametrize("to", sorted(to for to in FORMATS if to != "rerun" or find_spec("rerun")))
def test_exports(both: Pair, numbers: Pair, tmp_path: Path, to: str) -> None:
    for pair in (both, numbers):
        made = []
        for k, ds in enumerate(pair):
            target = tmp_path / f"{k}" / "exported"
            target.parent.mkdir(exist_ok=True)
            done = rlds_cli.export(ds, to, target, lossy=True, force=True, jobs=1)
            files = sorted(p.relative_to(target) for p in target.rglob("*") if p.is_file())
            made.append((done.fingerprint, {str(p): content(target / p) for p in files}))
        assert made[0][0] == made[1][0] and made[0][1].keys() == made[1][1].keys()
        assert [
            n for n, content in made[0][1].items() if content != made[1][1][n] and not n.endswith("rlds.json")
        ] == []


def scaled(episode: Any) -> Any:
    episode["action"] = episode["action"] * 2
    return episode


def flipped(episode: Any) -> Any:
    return {**episode, "flipped": episode["observation"]["camera"][:, ::-1], "said": list(episode["instruction"])}


@unit("batch")
def noisy(batch: Any) -> Any:
    batch["action"] = batch["action"] + np.random.normal(size=batch["action"].shape).astype("float32")
    return batch


@unit("window", history=2, future=1)
def smooth(window: Any) -> Any:
    return {"smooth": window["action"].mean(1), "turn": window["observation"]["state"].max(1)}


def long(episode: Any) -> Any:
    return episode if len(episode["action"]) > 2 else None


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("fn", [scaled, flipped, noisy, smooth, long])
def test_preprocessing(both: Pair, tmp_path: Path, fn: Any) -> None:
    for one, other in selections(both):
        homes = tmp_path / "one", tmp_path / "other"
        made = [preprocess.run(d, fn, jobs=0, force=True, home=h) for d, h in zip((one, other), homes, strict=True)]
        assert made[0].fingerprint == made[1].fingerprint
        assert_same(dict(made[0][:].leaves()), dict(made[1][:].leaves()))
        assert not verify(made[1].path).problems


def rated(episode: Any) -> Any:
    return {**episode, "episode": {"steps": len(episode["action"])}}


def negated(episode: Any) -> Any:
    return {**episode, "action": -episode["action"]}


def moved(episode: Any) -> Any:
    return {**episode, "observation": {**episode["observation"], "t": -episode["observation"]["t"]}}


@pytest.mark.thorough
@pytest.mark.parametrize("fn", [rated, negated, moved])
def test_a_result_of_a_view_has_the_rows_of_its_source(fn: Any) -> None:
    """The ranges adjoin, and episodes are in another order than their rows: only a `both` field needs a copy."""
    whole = scattered.dataset()
    ranges = whole.trim({3: [(0, 7), (7, 30), (30, 40)], 7: [(5, 64)], 1: []}, "ranges")
    view = ranges.select(episodes=[8, 3, 2, 9, 4, 0]).save("turned")
    made = preprocess.run(view, fn, "made", jobs=0)
    changes = {rated: (), negated: ("action",), moved: ("observation/t", "next/observation/t")}[fn]
    assert not verify(made.path).problems
    assert made.episodes["num_observed"].tolist() == view.episodes["num_observed"].tolist()
    for k in range(view.num_episodes):
        before, after = dict(view.episode(k).leaves()), dict(made.episode(k).leaves())
        for name in changes:
            before[name] = -before[name]
        assert_same(before, after, str(k))

    own = {p.stat().st_ino for p in view.path.rglob("*")}
    tables = ("episodes", "digests", "text", "metadata", "sources", "versions")
    new = {
        p.relative_to(made.path).as_posix().partition("/c/")[0]
        for p in made.path.rglob("c/**/*")
        if p.is_file() and p.stat().st_ino not in own and p.relative_to(made.path).parts[0] not in tables
    }
    small = {"observation/camera/offsets", "info/wrist/offsets", "instruction"}  # 20 bytes a row
    assert new == small | {"action"} if fn is negated else new == small if fn is rated else new > small


WINDOWS: list[dict[str, Any]] = [
    {},
    {"window": Slice(4, after=2)},
    {"window": Slice(4, before=3, after=2)},
    {"fields": [..., ReturnToGo(0.9), Goals("goal", random=0.5, future=0.5, of="observation")]},
    {"fields": [..., ReturnToGo(through_terminals=True), "episode", "step"]},
    {"window": Transition(n_step=3, gamma=0.9)},
]


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("options", WINDOWS)
def test_batches(tmp_path: Path, options: dict[str, Any]) -> None:
    """The loader reads the row after the last step for its next observation, also where it is not recorded."""
    both = scattered.pair(scattered.dataset, tmp_path, repeats=True)
    numbers = scattered.pair(lambda: scattered.dataset("local/numbers", plain=True), tmp_path, repeats=True)
    for one, other in (*selections(both), numbers):
        expected, found = (list(islice(Loader(ds, 16, seed=1, **options), 20)) for ds in (one, other))
        assert len(expected) == len(found)
        for a, b in zip(expected, found, strict=True):
            assert_same(dict(a.leaves()), dict(b.leaves()))


def test_drop_ins(both: Pair, numbers: Pair) -> None:
    for one, other in selections(both):
        ours, theirs = minari.MinariDataset(one), minari.MinariDataset(other)
        for a, b in zip(ours, theirs, strict=True):
            for name in ("observations", "actions", "rewards", "terminations", "truncations", "infos"):
                assert_same(getattr(a, name), getattr(b, name), name)
    for one, other in selections(numbers):
        assert_same(d4rl.qlearning_dataset(one, fixed=True), d4rl.qlearning_dataset(other, fixed=True))
        assert_same([*d4rl.sequence_dataset(one, fixed=True)], [*d4rl.sequence_dataset(other, fixed=True)])


def test_sums_of_episodes_leave_out_last_rows() -> None:
    class Filled(frames_data.Film):
        def read(self, part: Part) -> Iterator[Chunk]:
            for chunk in super().read(part):
                for name in ("next/reward", "next/terminated", "next/truncated"):
                    values = np.array(chunk.columns[name])
                    values[chunk.last] = 1
                    chunk.columns[name] = values
                yield chunk

    ds = frames_data.write(Filled([3, 1, 5], None))
    assert ds.episodes["total_reward"].tolist() == [3, 0, 10]
    assert ds.episodes["num_done"].tolist() == ds.episodes["num_terminated"].tolist() == [1, 1, 1]


@pytest.mark.thorough
def test_merged_and_created_again(both: Pair, tmp_path: Path) -> None:
    for one, other in selections(both):
        made = [
            (
                rlds_cli.merge([ds], "local/merged", home=tmp_path / f"merged{k}", force=True),
                rlds_cli.create(
                    "local/again", map(ds.episode, range(ds.num_episodes)), home=tmp_path / f"again{k}", force=True
                ),
            )
            for k, ds in enumerate((one, other))
        ]
        assert [ds.fingerprint for ds in made[0]] == [ds.fingerprint for ds in made[1]]
