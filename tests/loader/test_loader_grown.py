"""Packed rows of growing datasets: whatever was written, departed or was freed, batches hold what was added."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_loader_packed import files

import rlds_cli
from rlds_cli import Fifo, Reservoir
from rlds_cli.dataset import Dataset
from rlds_cli.keep.compacting import compact
from rlds_cli.keep.removing import remove
from rlds_cli.loader import Loader, Sequential, Transition
from rlds_cli.loader.storage import blocks, packed
from rlds_cli.make.convert.writer import Writer
from rlds_cli.store.growing import segments

SEGMENT = 4096  # rows; of packed files as well
LENGTH = 99


@pytest.fixture(autouse=True)
def small(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short segments, and small datasets are packed, too."""
    monkeypatch.setattr(segments, "rows_of_segment", lambda width, most=None: SEGMENT)
    monkeypatch.setattr(blocks, "LEAST_BYTES", 0)


def add(writer: Writer, numbers: range) -> None:
    """Add episodes in which everything follows from the number of the episode and of the step."""
    writer.add_episodes(map(episode, numbers))
    writer.commit()


def episode(number: int) -> dict[str, Any]:
    values = np.stack([np.full(LENGTH + 1, number), np.arange(LENGTH + 1)], 1).astype(np.float64)
    flags = {"reward": values[:-1].sum(1), "terminated": number % 2 == 0}
    return {"observation": values, "action": values[:-1].astype(np.float32) / 2, "next": flags}


def check(ds: Dataset, numbers: range | list[int], **options: object) -> str:
    """Check all transitions of a version, which has the episodes ``numbers``; return how they are read."""
    loader = Loader(ds, 64, sampler=Sequential(), backend="numpy", **options)  # type: ignore[arg-type]
    batches = [dict(batch.leaves()) for batch in loader]
    whole = {name: np.concatenate([b[name] for b in batches]) for name in batches[0]}
    e, t = np.repeat(list(numbers), LENGTH), np.tile(np.arange(LENGTH), len(numbers))
    np.testing.assert_array_equal(whole["observation"], np.stack([e, t], 1))
    np.testing.assert_array_equal(whole["action"], np.stack([e, t], 1) / 2)
    if "window" not in options:
        np.testing.assert_array_equal(whole["next/observation"], np.stack([e, t + 1], 1))
        np.testing.assert_array_equal(whole["next/reward"][:, 0], e + t)
    return next((line for line in loader.describe().splitlines() if "packed rows" in line), "")


def opened(version: int | None = None) -> Dataset:
    return rlds_cli.open_dataset("local/run" if version is None else f"local/run#v{version}")


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{}, {"dtype": None}, {"window": Transition(3, 0.9)}])
def test_all_rows_are_packed(home: Path, options: dict[str, object]) -> None:
    with rlds_cli.writer("local/run") as w:
        add(w, range(100))
    reading = check(opened(), range(100), **options)
    assert "2 files in" in reading and "private memory" in reading
    assert len(files(home)) == 2


@pytest.mark.thorough
def test_versions_share_their_rows(home: Path) -> None:
    """Older versions that are open read what they did, while later ones add rows."""
    held = []
    with rlds_cli.writer("local/run") as w:
        for k in range(0, 120, 15):
            add(w, range(k, k + 15))
            ds = opened()
            loader = Loader(ds, 64, sampler=Sequential(), backend="numpy")
            held.append((ds, loader, [b["observation"].copy() for b in loader], k + 15))
            for old, again, values, count in held:
                again.set_epoch(0)
                for batch, before in zip(again, values, strict=True):
                    np.testing.assert_array_equal(batch["observation"], before)
                check(old, range(count))
    assert len(files(home)) == 120 * (LENGTH + 1) // SEGMENT


@pytest.mark.thorough
def test_a_live_loader(home: Path) -> None:
    with rlds_cli.writer("local/run") as w:
        add(w, range(10))
        loader = Loader(opened(), 32, backend="numpy", live=True, seed=0, fields=[..., "episode", "step"])
        batches, seen = iter(loader), 0
        for k in range(10, 130, 10):
            add(w, range(k, k + 10))
            while seen < k:
                batch = next(batches)
                e, t = batch["episode"].astype(float), batch["step"]
                np.testing.assert_array_equal(batch["observation"], np.stack([e, t], 1))
                np.testing.assert_array_equal(batch["next/observation"], np.stack([e, t + 1], 1))
                seen = max(seen, int(e.max()))
    assert len(files(home)) >= 2


@pytest.mark.slow
def test_processes_share_files(home: Path) -> None:
    with rlds_cli.writer("local/run") as w:
        add(w, range(100))
    code = (
        "import rlds_cli\nfrom rlds_cli.loader import Loader\nfrom rlds_cli.loader.storage import blocks\n"
        "blocks.LEAST_BYTES = 0\nprint(Loader('local/run', 8).describe())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "2 files in" in run.stdout
    before = {file: file.stat().st_ino for file in files(home)}
    check(opened(), range(100))
    assert {file: file.stat().st_ino for file in files(home)} == before


def test_departed_rows(home: Path) -> None:
    """Files of rows that are not kept are removed; versions that are held read theirs."""
    with rlds_cli.writer("local/run", keep=Fifo(episodes=60)) as w:
        add(w, range(60))
        check(first := opened(), range(60))
        before = files(home)
        for k in range(60, 300, 60):
            add(w, range(k, k + 60))
            check(opened(), range(k, k + 60))
            check(first, range(60))
        del first
        add(w, range(300, 420))
        check(opened(), range(360, 420))
    assert not set(before) & set(files(home)) and len(files(home)) <= 3


def test_a_version_that_is_held_is_packed_after_later_ones(home: Path) -> None:
    """Whoever packs first packs rows that only other versions need."""
    with rlds_cli.writer("local/run", keep=Fifo(episodes=30)) as w:
        add(w, range(50))
        first = opened()
        add(w, range(50, 75))
        check(opened(), range(45, 75))
        check(first, range(20, 50))


@pytest.mark.thorough
def test_a_sample_of_episodes(home: Path) -> None:
    with rlds_cli.writer("local/run", keep=Reservoir(20)) as w:
        for k in range(0, 150, 50):
            add(w, range(k, k + 50))
            ds = opened()
            kept = [int(ds.episode(i)["observation"][0, 0]) for i in range(ds.num_episodes)]
            check(ds, kept)
    compact("local/run")
    check(opened(), kept)
    check(opened().select(episodes=[3, 1]), [kept[3], kept[1]])


@pytest.fixture
def no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "MOST_BYTES", 100)


def test_where_no_file_can_be_written(home: Path, no_files: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with rlds_cli.writer("local/run") as w:
        add(w, range(30))
        check(first := opened(), range(30))
        add(w, range(30, 100))
        reading = check(opened(), range(100))
        check(first, range(30))
        assert "of private memory: " in reading and "too large to be packed" in reading
        assert "no packed rows" in check(opened(), range(100), memory=SEGMENT * 32 * 3 - 1)
        monkeypatch.setattr(packed, "MOST_BYTES", 1 << 30)
        add(w, range(100, 130))
        assert "3 files in" in check(opened(), range(130))  # rows in memory become files
        check(first, range(30))


@pytest.mark.thorough
def test_another_dataset_of_the_same_name(home: Path) -> None:
    for first in (0, 1000):
        with rlds_cli.writer("local/run") as w:
            add(w, range(first, first + 50))
        check(opened(), range(first, first + 50))
        remove(["local/run"])
