"""What is kept, and that the disk of the rest is given back."""

from __future__ import annotations

import gc
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import run_rlds

import rlds_cli
from rlds_cli import Fifo, Reservoir, Top
from rlds_cli.dataset import Dataset
from rlds_cli.errors import DatasetNotFound, InvalidArgument
from rlds_cli.loader import Loader
from rlds_cli.make.convert.writer import Writer
from rlds_cli.store import Keep
from rlds_cli.store.growing import segments
from rlds_cli.store.growing.verification import verify_directory

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
    return [int(n) for n in ds.column("observation", gaps=True)[starts, 0]] if len(starts) else []


def blocks(path: Path) -> int:
    """Bytes of the rows on the disk."""
    found = 0
    for directory, _, files in os.walk(path):  # passes over directories that a writer removes meanwhile
        for name in files if "/c/" in f"{directory}/" else ():
            with suppress(FileNotFoundError):
                found += 512 * (Path(directory) / name).stat().st_blocks
    return found


@pytest.mark.thorough
@pytest.mark.sampled(2)
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


@pytest.mark.thorough
def test_a_version_that_is_held_keeps_its_rows_and_its_arrays_do() -> None:
    w = rlds_cli.writer("local/run", keep=Fifo(episodes=2), durable=False)
    w.add_episodes([episode(0, 3000), episode(1, 3000)])
    w.commit()
    gc.disable()  # a hold ends with its last reference, not when garbage is collected
    held = w.dataset()
    held.stats["action"]
    rows = held.column("observation", gaps=True)
    path = held.path
    for k in range(2, 12):
        w.add_episodes([episode(k, 3000)])
        w.commit()
    assert numbers(w.dataset()) == [10, 11] and numbers(held) == [0, 1]
    assert rlds_cli.open_dataset(f"{path}#v1").version == 1
    before = blocks(path)
    del held
    w.add_episodes([episode(12, 3000)])
    w.commit()
    assert (rows[:3001] == 0).all() and (rows[3001:6002] == 1).all(), "an array holds its version"
    del rows
    w.add_episodes([episode(13, 3000)])
    w.commit()
    assert blocks(path) < before / 3
    gc.enable()
    with pytest.raises(DatasetNotFound, match=r"Version 1 of .* was freed"):
        rlds_cli.open_dataset(f"{path}#v1")
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


@pytest.mark.thorough
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


@pytest.mark.thorough
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


def test_a_cleared_dataset_begins_anew_under_its_id() -> None:
    with rlds_cli.writer("local/run", keep=Fifo(episodes=3), durable=False) as w:
        w.add_episodes([episode(0, 5)], protected=True)
        w.add_episodes(episode(k, 5) for k in range(1, 5))
        w.commit()
        before = w.dataset()
        w.add_episodes([episode(5, 5)])  # is dropped, or leaves
        number = w.clear()
        after = w.dataset()
        assert (after.version, numbers(after), numbers(before)) == (number, [0], [0, 2, 3, 4])
        assert before.fingerprint != after.fingerprint
        w.add_episodes(episode(k, 5) for k in range(6, 10))
        w.commit()
        assert numbers(w.dataset()) == [0, 7, 8, 9]  # the policy goes on with what is there
        w.clear(protected=True)
    assert w.dataset().num_episodes == 0 and numbers(before) == [0, 2, 3, 4]
    assert w.dataset().schema == before.schema
    assert verify_directory(w.dataset().path).ok


def test_an_open_episode_is_the_first_one_after_clearing() -> None:
    def add(value: int, **end: bool) -> None:
        w.add(np.full(2, value, np.float32), value, reward=1.0, **end)

    with rlds_cli.writer("local/run", durable=False) as w:
        add(0, terminated=True)
        add(1)
        w.commit()
        assert w.dataset().num_steps == 2
        w.clear()
        assert w.dataset().num_episodes == 0
        add(2, terminated=True)
        w.commit()
        assert w.dataset().column("action")[:2].tolist() == [1, 2] and w.dataset().num_episodes == 1


@pytest.mark.thorough
def test_clearing_frees_the_disk_and_lets_the_episodes_of_other_writers_leave() -> None:
    with (
        rlds_cli.writer("local/run", shared=True, durable=False) as one,
        rlds_cli.writer("local/run", shared=True, durable=False) as other,
    ):
        for w in (one, other):
            w.add_episodes(episode(k, 200) for k in range(30))
            w.commit()
        full = blocks(one.dataset().path)
        gc.collect()
        one.clear()
        assert one.dataset().num_episodes == 0 and blocks(one.dataset().path) < full / 2
        other.add_episodes([episode(7, 3)])
        other.commit()
        assert numbers(one.dataset()) == [7]


def test_there_is_nothing_to_clear() -> None:
    with rlds_cli.writer("local/none") as w:
        assert w.clear() == 0
    with rlds_cli.writer("local/run", like=w_of("local/other")) as w:
        w.clear()
        assert w.dataset().num_episodes == 0


def w_of(ref: str) -> Dataset:
    with rlds_cli.writer(ref, durable=False) as w:
        w.add_episodes([episode(0, 5), episode(1, 5)])
        w.add_episodes([episode(2, 5)], protected=True)
    return w.dataset()


def test_the_command_clears() -> None:
    ds = w_of("local/run")
    assert run_rlds("clear", ds.id).returncode == 1  # asks, and nobody answers
    planned = json.loads(run_rlds("clear", ds.id, "--dry-run", "--json").stdout)
    assert (planned["left"], planned["kept"], ds.refresh().num_episodes) == (2, 1, 3)
    done = run_rlds("clear", ds.id, "--yes", "--json")
    assert (json.loads(done.stdout)["left"], numbers(ds.refresh())) == (2, [2])
    assert b"1 episode" in run_rlds("clear", ds.id, "--yes", "--protected").stdout
    assert ds.refresh().num_episodes == 0 and ds.num_episodes == 3
    rlds_cli.create("local/fixed", [episode(0, 5)])
    assert b"does not grow" in run_rlds("clear", "local/fixed", "--yes").stderr


@pytest.mark.thorough
def test_a_live_loader_goes_on_while_a_dataset_is_cleared_and_filled_again() -> None:
    ds = w_of("local/run")
    batches = iter(Loader(ds, 16, live=True, backend="numpy", seed=0, prefetch=0))
    with rlds_cli.writer("local/run", durable=False) as w:
        next(batches)
        w.clear(protected=True)
        time.sleep(0.02)
        assert set(next(batches)["action"].tolist()) <= {0, 1, 2}  # what it holds
        w.add_episodes([episode(9, 5)])
        w.commit()
        until = time.monotonic() + 60
        while (seen := set(next(batches)["action"].tolist())) != {9}:
            assert seen <= {0, 1, 2} and time.monotonic() < until
