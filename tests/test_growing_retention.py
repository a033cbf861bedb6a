"""What is kept, and that the disk of the rest is given back."""

from __future__ import annotations

import gc
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds_cli
from rlds_cli import Fifo, Reservoir, Top
from rlds_cli.convert.writer import Writer
from rlds_cli.dataset import Dataset
from rlds_cli.errors import DatasetNotFound, InvalidArgument
from rlds_cli.growing import segments
from rlds_cli.growing.retention import Keep

WIDTH = 40  # float32 values of an observation
ROW = 4 * WIDTH + 8 + 8 + 1 + 1  # bytes


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "rows_of_segment", lambda width, most=None: 4096)


def episode(number: int, steps: int, reward: float = 0.0) -> dict[str, Any]:
    return {
        "observation": np.full((steps + 1, WIDTH), number, np.float32),
        "action": np.full(steps, number),
        "next": {"reward": np.full(steps, reward), "terminated": True},
    }


def numbers(ds: Dataset) -> list[int]:
    starts = ds.episodes["start"]
    return [int(n) for n in ds.column("observation")[starts, 0]] if len(starts) else []


def blocks(path: Path) -> int:
    """Bytes of the rows on the disk."""
    found = 0
    for directory, _, files in os.walk(path):  # passes over directories that a writer removes meanwhile
        for name in files if "/c/" in f"{directory}/" else ():
            with suppress(FileNotFoundError):
                found += 512 * (Path(directory) / name).stat().st_blocks
    return found


@pytest.mark.parametrize(
    "keep", [Fifo(steps=3000), Fifo(episodes=15), Reservoir(episodes=15, seed=3), Top(episodes=15)], ids=str
)
def test_the_disk_stays_within_what_is_kept_and_one_segment(keep: Keep) -> None:
    """Written is fifty times of what is kept. Each episode that is kept may leave a page at both of its ends."""
    rng = np.random.default_rng(0)
    with rlds_cli.writer("local/run", keep=keep, durable=False) as w:
        most = 0
        for k in range(750):
            w.add_episodes([episode(k, 200, float(rng.random()))])
            if k % 10 == 0:
                w.commit()
            if k % 50 == 49:
                most = max(most, blocks(w.dataset().path))
    ds = w.dataset()
    pages = 2 * 4096 * 5 * ds.num_episodes
    assert ds.num_episodes == 15
    assert most <= (ds.num_steps + ds.num_episodes) * ROW + 4096 * ROW + pages
    assert len(list((ds.path / "observation" / "c").iterdir())) <= 16


def test_small_fields_give_whole_pages_back_although_no_episode_fills_one() -> None:
    """Flags of one byte: twenty episodes share a page."""
    with rlds_cli.writer("local/run", keep=Top(episodes=2), durable=False) as w:
        w.add_episodes([episode(0, 200, 9.0), episode(1, 200, 8.0)])
        for k in range(2, 62):
            w.add_episodes([episode(k, 200)])
            w.commit()
    ds = w.dataset()
    assert numbers(ds) == [0, 1]
    flags = ds.path / "next" / "terminated"
    assert blocks(flags) <= 3 * 4096 + 4096  # of the first episodes, and of the segment that is written to


def test_a_generation_that_is_held_keeps_its_rows_and_its_arrays_do() -> None:
    w = rlds_cli.writer("local/run", keep=Fifo(episodes=2), durable=False)
    w.add_episodes([episode(0, 3000), episode(1, 3000)])
    w.commit()
    gc.disable()  # a hold ends with its last reference, not when garbage is collected
    held = w.dataset()
    held.stats["action"]
    rows = held.column("observation")
    path = held.path
    for k in range(2, 12):
        w.add_episodes([episode(k, 3000)])
        w.commit()
    assert numbers(w.dataset()) == [10, 11] and numbers(held) == [0, 1]
    assert rlds_cli.open_dataset(path, generation=1).generation == 1
    before = blocks(path)
    del held
    w.add_episodes([episode(12, 3000)])
    w.commit()
    assert (rows[:3001] == 0).all() and (rows[3001:6002] == 1).all(), "an array holds its generation"
    del rows
    w.add_episodes([episode(13, 3000)])
    w.commit()
    assert blocks(path) < before / 3
    gc.enable()
    with pytest.raises(DatasetNotFound, match=r"Generation 1 of .* was freed"):
        rlds_cli.open_dataset(path, generation=1)
    w.close()


def test_several_writers_free_what_the_others_left() -> None:
    """Each frees some episodes of each segment; a segment goes when all are gone, whoever frees the last."""
    a, b = (rlds_cli.writer("local/run", keep=Fifo(episodes=3), durable=False, shared=True) for _ in range(2))
    for k in range(60):
        w = (a, b)[k % 2]
        w.add_episodes([episode(k, 700)])
        w.commit()
    path = a.dataset().path
    assert numbers(a.dataset()) == [57, 58, 59]
    assert len(list((path / "observation" / "c").iterdir())) <= 2
    a.close()
    b.close()


def test_policies_of_several_writers_agree_also_when_open_episodes_are_replaced() -> None:
    a, b = (rlds_cli.writer("local/run", keep=Fifo(episodes=3), durable=False, shared=True) for _ in range(2))

    def step(w: Writer, number: int, **flags: Any) -> None:
        w.add(np.full(WIDTH, number, np.float32), number, reward=0.0, **flags)

    for k in range(30):
        w, other = ((a, b), (b, a))[k % 2]
        step(w, 100 + k)
        w.commit()
        other.add_episodes([episode(k, 2)])
        other.commit()
        step(w, 100 + k, truncated=True)
        w.commit()
        assert len(numbers(w.dataset())) <= 3
    assert numbers(a.dataset()) == [128, 29, 129]
    a.close()
    b.close()


def test_a_killed_writer_leaves_no_segments_behind() -> None:
    """Rows of a commit without a record, and segments of departed episodes that were not removed yet."""
    with rlds_cli.writer("local/run", durable=False) as w:
        w.add_episodes([episode(0, 100)])
    path = w.dataset().path
    for number in (3, 7):
        stray = path / "observation" / "c" / str(number) / "0"
        stray.parent.mkdir(parents=True)
        stray.write_bytes(bytes(1000))
    (path / "freed").write_bytes(bytes(16))
    with rlds_cli.writer("local/run", durable=False) as w:
        w.add_episodes([episode(1, 100)])
    assert [p.name for p in (path / "observation" / "c").iterdir()] == ["0"]
    assert numbers(w.dataset()) == [0, 1]


def test_a_reservoir_is_a_uniform_sample() -> None:
    """Of 40 episodes 10 are kept, 60 times: each is kept 15 times on average, with a deviation of 3.4."""
    counts = np.zeros(40)
    for seed in range(60):
        with rlds_cli.writer(f"local/run{seed}", keep=Reservoir(episodes=10, seed=seed), durable=False) as w:
            w.add_episodes(episode(k, 1) for k in range(40))
        found = numbers(w.dataset())
        assert len(found) == 10
        counts[found] += 1
    assert counts.min() >= 3 and counts.max() <= 30
    assert abs(counts[:20].sum() - 300) < 60  # the first half and the second alike: deviation 17


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Fifo(),
        lambda: Fifo(steps=3, episodes=2),
        lambda: Fifo(steps=0),
        lambda: Reservoir(episodes=True),
        lambda: Reservoir(episodes=2, seed=-1),
        lambda: Top(episodes=3, by=""),
        lambda: rlds_cli.writer("local/x", fields=[], keep="fifo"),  # type: ignore[arg-type]
    ],
)
def test_policies_that_are_none(wrong: Any) -> None:
    with pytest.raises(InvalidArgument):
        made = wrong()
        made.add_episodes([episode(0, 1)])
        made.commit()
