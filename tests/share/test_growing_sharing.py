"""Versions of a growing dataset share what was read of episodes: each sees its own, whatever comes later."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds_cli
from rlds_cli.store.growing import logs


def episode(k: int) -> dict[str, Any]:
    """An episode of 3 to 7 steps, all of whose values are its number; every other one has a column ``k``."""
    n = 3 + k % 5
    e: dict[str, Any] = {
        "observation": np.full((n + 1, 2), k, np.float32),
        "action": np.full((n, 1), k, np.float32),
        "next": {"reward": np.full(n, 1.0), "terminated": True},
    }
    return e | ({"episode": {"k": k}} if k % 2 else {})


def check(ds: rlds_cli.Dataset, numbers: list[int]) -> None:
    """Compare a dataset with the episodes that it should have."""
    assert ds.episodes["length"].tolist() == [3 + k % 5 for k in numbers]
    assert ds.column("action", gaps=True)[ds.episodes["start"], 0].tolist() == numbers
    assert [int(ds.episode(i)["observation"][-1, 0]) for i in range(ds.num_episodes)] == numbers
    if any(k % 2 for k in numbers):
        assert [int(v) if v == v else None for v in ds.episodes["k"]] == [k if k % 2 else None for k in numbers]


@pytest.mark.thorough
@pytest.mark.parametrize("most", [None, 10])
def test_every_version_keeps_its_own_episodes(tmp_path: Path, most: int | None) -> None:
    keep = rlds_cli.Fifo(episodes=most) if most else None
    with rlds_cli.writer("local/run", keep=keep, home=tmp_path) as w:
        w.add_episodes([episode(0)])
        w.commit()
        seen = [w.dataset()]
        for k in range(1, 40):
            w.add_episodes([episode(k)])
            w.commit()
            seen.append(seen[-1].refresh())
    for last, ds in enumerate(seen):
        check(ds, list(range(0 if most is None else max(0, last - most + 1), last + 1)))
    assert [ds.version for ds in seen] == list(range(1, 41))
    check(seen[3].refresh(), list(range(0 if most is None else 30, 40)))  # an old one skips those between


@pytest.mark.thorough
def test_a_later_version_reads_new_records_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[int, int]] = []
    plain = logs.read_episodes

    def noted(dataset: Path, first: int, stop: int, frames: int) -> Any:
        read.append((first, stop))
        return plain(dataset, first, stop, frames)

    with rlds_cli.writer("local/run", home=tmp_path) as w:
        w.add_episodes(map(episode, range(20)))
        w.commit()
        ds = w.dataset()
        w.add_episodes(map(episode, range(20, 23)))
        w.commit()
    monkeypatch.setattr(logs, "read_episodes", noted)
    check(ds.refresh(), list(range(23)))
    assert read == [(20, 23)]


@pytest.mark.slow
def test_threads_refresh_one_dataset(tmp_path: Path) -> None:
    wrong: list[BaseException] = []
    with rlds_cli.writer("local/run", keep=rlds_cli.Fifo(episodes=6), home=tmp_path) as w:
        w.add_episodes([episode(0)])
        w.commit()
        first, going = w.dataset(), True

        def follow() -> None:
            ds = first
            try:
                while going:
                    ds = (ds if np.random.random() < 0.8 else first).refresh()
                    last = ds.version - 1
                    check(ds, list(range(max(0, last - 5), last + 1)))
            except BaseException as e:
                wrong.append(e)

        threads = [threading.Thread(target=follow) for _ in range(3)]
        for thread in threads:
            thread.start()
        for k in range(1, 60):
            w.add_episodes([episode(k)])
            w.commit()
        going = False
        for thread in threads:
            thread.join()
    assert not wrong


@pytest.mark.thorough
def test_splits_and_texts_come_with_their_version(tmp_path: Path) -> None:
    with rlds_cli.writer("local/run", home=tmp_path) as w:
        w.add_episodes([episode(0)])
        w.commit()
        before = w.dataset()
        w.add_episodes([episode(2) | {"episode": {"task": "press"}}, episode(4)])
        w.commit()
        after = before.refresh()
    assert list(before.store.own_columns) == [] and list(after.store.own_columns) == ["task"]
    assert after.episodes["task"].tolist() == [None, "press", None]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/maps")
def test_a_reader_that_goes_on_lets_go_of_segments_that_were_removed(tmp_path: Path) -> None:
    """A file that is mapped takes disk also when it was removed."""

    def long(k: int) -> dict[str, Any]:
        rewards = {"reward": np.zeros(1000, np.float32), "terminated": True}
        return {"observation": np.full((1001, 3), k, np.float32), "action": np.zeros((1000, 1)), "next": rewards}

    with rlds_cli.writer("local/f", keep=rlds_cli.Fifo(steps=5000), durable=False, home=tmp_path) as w:
        w.add_episodes([long(0)])
        w.commit()
        first = ds = rlds_cli.open_dataset("local/f", home=tmp_path)
        rows = first.column("observation", gaps=True)
        for k in range(1, 40):
            w.add_episodes([long(k)])
            w.commit()
            ds = ds.refresh()
            assert ds.column("observation", gaps=True)[ds.episodes["start"][-1]][0] == k
        assert (rows == 0).all()  # a version that is still used stays
        mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(tmp_path) in line]
        assert mapped and not [line for line in mapped if "(deleted)" in line]
