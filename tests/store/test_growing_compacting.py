"""`rlds compact` and `rlds gc` of growing datasets: what is read stays, space comes back."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

import rlds_cli
from rlds_cli.errors import DatasetNotFound, NameTaken
from rlds_cli.keep import compacting, gc
from rlds_cli.store import History, commits
from rlds_cli.store.growing.verification import verify_directory

STEPS, WIDTH = 40, 16


def episode(k: int) -> dict:
    """Return episode ``k``, in which every number says from where it is."""
    rows = np.arange(STEPS + 1, dtype=np.float64)[:, None] + 1000 * k
    return {
        "observation": np.repeat(rows, WIDTH, 1) + np.arange(WIDTH) / 100,
        "action": np.full((STEPS, 1), k, np.float32),
        "next": {"reward": np.full(STEPS, float(k)), "terminated": k % 2 == 0},
        "episode": {"number": k},
    }


def recorded(home, keep, count: int, batch: int = 10):
    with rlds_cli.writer("local/run", keep=keep, home=home) as w:
        for k in range(0, count, batch):
            w.add_episodes(episode(i) for i in range(k, min(k + batch, count)))
            w.commit()
    return rlds_cli.open_dataset("local/run", home=home)


def contents(ds) -> list:
    return [(ds.episodes["number"][k], ds.episode(k)["observation"][:, 0].tolist()) for k in range(ds.num_episodes)]


def expected(numbers) -> list:
    return [(n, (1000.0 * n + np.arange(STEPS)).tolist()) for n in numbers]


def test_kept_episodes_lie_end_to_end_afterwards_in_their_order_with_the_fingerprint_that_they_had(tmp_path):
    keep = rlds_cli.Reservoir(episodes=20, seed=3)
    before = recorded(tmp_path, keep, 200)
    numbers, fingerprint = before.episodes["number"].tolist(), before.fingerprint
    assert numbers == sorted(numbers)
    assert np.diff(before.episodes["start"]).max() > STEPS + 1  # gaps
    held = before.version

    done = compacting.compact("local/run", home=tmp_path)

    assert done.changed and done.fingerprint == fingerprint and done.version == held + 1
    after = rlds_cli.open_dataset("local/run", home=tmp_path)
    assert after.fingerprint == fingerprint
    assert after.episodes["start"].tolist() == [(STEPS + 1) * k for k in range(20)]
    assert after.num_rows == (STEPS + 1) * 20
    assert contents(after) == expected(numbers)
    assert commits.last(after.path).moved == 1
    assert contents(before) == expected(numbers)  # the reader of the old version goes on
    assert contents(before.refresh()) == expected(numbers) and before.refresh().version == done.version
    again = compacting.compact("local/run", home=tmp_path)
    assert not again.changed and again.version == done.version


@pytest.mark.thorough
def test_a_version_is_held_through_several_compactions(tmp_path):
    """Then records of episodes that were moved lie beside those that were not, in the log and in memory."""
    held = []
    for _ in range(3):
        held.append(recorded(tmp_path, None, 20))
        with rlds_cli.writer("local/run", home=tmp_path) as w:
            w.add(
                np.zeros(WIDTH), np.zeros(1, np.float32), 0.0, next_observation=np.zeros(WIDTH), episode={"number": 0}
            )
            w.commit()  # the episode goes on, and its first version leaves
            w.add(np.zeros(WIDTH), np.zeros(1, np.float32), 0.0, True, next_observation=np.zeros(WIDTH))
        held.append(rlds_cli.open_dataset("local/run", home=tmp_path))
        assert compacting.compact("local/run", home=tmp_path).changed
    numbers = [*range(20), 0] * 3
    for turn in range(3):
        assert held[2 * turn].episodes["number"].tolist() == numbers[: 21 * turn + 20]
        assert held[2 * turn + 1].episodes["number"].tolist() == numbers[: 21 * turn + 21]
    assert verify_directory(held[0].path).ok


def test_a_tag_keeps_its_version(tmp_path):
    """Commits, compacting and `rlds gc` free nothing of it, nor of later ones, until the tag is deleted."""
    recorded(tmp_path, rlds_cli.Fifo(episodes=4), 4)
    ds = rlds_cli.open_dataset("local/run", home=tmp_path)
    path, version = ds.path, ds.version
    wanted = contents(ds)
    ds.tag("icra")
    del ds
    assert verify_directory(recorded(tmp_path, rlds_cli.Fifo(episodes=4), 12).path).ok
    for _ in range(2):
        compacting.compact("local/run", home=tmp_path)
        gc.collect(gc.find_garbage(home=tmp_path))
        tagged = rlds_cli.open_dataset("local/run#icra", home=tmp_path)
        assert tagged.version == version and contents(tagged) == wanted
        del tagged
    History(path).untag("icra")
    gc.collect(gc.find_garbage(home=tmp_path))
    with pytest.raises(DatasetNotFound, match="was freed"):
        rlds_cli.open_dataset(f"local/run#v{version}", home=tmp_path)


@pytest.mark.thorough
def test_compacting_does_not_change_what_a_reservoir_draws(tmp_path):
    recorded(tmp_path, rlds_cli.Reservoir(episodes=15, seed=5), 150)
    compacting.compact("local/run", home=tmp_path)
    with rlds_cli.writer("local/run", home=tmp_path) as w:
        for k in range(150, 300, 10):
            w.add_episodes(map(episode, range(k, k + 10)))
            w.commit()
    # Every episode keeps the number that it was drawn by; those that were written again took numbers 150 to 164.
    drawn = {k: np.random.Generator(np.random.Philox(key=(5, k + 15 * (k >= 150)))).random() for k in range(300)}
    best = sorted(drawn, key=drawn.__getitem__)[-15:]
    ds = rlds_cli.open_dataset("local/run", home=tmp_path)
    assert ds.episodes["number"].tolist() == sorted(best)
    assert contents(ds) == expected(sorted(best))


@pytest.mark.thorough
@pytest.mark.parametrize("keep", [rlds_cli.Fifo(episodes=5), rlds_cli.Top(episodes=5)], ids=["fifo", "top"])
def test_the_policy_goes_on_after_compacting(tmp_path, keep):
    recorded(tmp_path, keep, 30)
    compacting.compact("local/run", home=tmp_path)
    with rlds_cli.writer("local/run", home=tmp_path) as w:
        w.add_episodes(map(episode, (30, 31)))
    ds = rlds_cli.open_dataset("local/run", home=tmp_path)
    assert ds.episodes["number"].tolist() == [27, 28, 29, 30, 31]  # the newest are the best as well
    assert contents(ds) == expected([27, 28, 29, 30, 31])


@pytest.mark.thorough
def test_a_writer_at_work_is_an_error(tmp_path):
    recorded(tmp_path, rlds_cli.Top(episodes=3), 9)
    with (
        rlds_cli.writer("local/run", shared=True, home=tmp_path),
        pytest.raises(NameTaken, match="being written"),
    ):
        compacting.compact("local/run", home=tmp_path)


def used(path) -> int:
    return sum(f.stat().st_blocks * 512 for f in path.rglob("*") if f.is_file())


READER = """
import sys, rlds_cli
ds = rlds_cli.open_dataset("local/run", home=sys.argv[1])
print("open", flush=True)
sys.stdin.readline()
print([ds.episode(k)["observation"][0, 0].item() for k in range(ds.num_episodes)], flush=True)
"""


def reader(home) -> subprocess.Popen:
    process = subprocess.Popen(
        [sys.executable, "-c", READER, str(home)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert process.stdout.readline() == "open\n"
    return process


def test_gc_frees_rows_when_the_last_reader_of_them_is_gone(tmp_path):
    recorded(tmp_path, rlds_cli.Reservoir(episodes=10, seed=1), 60)
    other = reader(tmp_path)
    done = compacting.compact("local/run", home=tmp_path)
    assert done.waiting == 10
    planned = gc.find_garbage(home=tmp_path)
    assert [(g.kind, g.why) for g in planned.kept] == [
        ("versions", "a process reads an older version, or a tag names it")
    ]
    assert not planned.removed
    other.communicate("\n", timeout=60)
    planned = gc.find_garbage(home=tmp_path)
    # 10 episodes of 41 rows: 16 float64, float32, float64, two flags
    assert [(g.kind, g.id, g.bytes) for g in planned.removed] == [
        ("versions", "local/run", 10 * 41 * (16 * 8 + 4 + 8 + 2))
    ]
    path = rlds_cli.open_dataset("local/run", home=tmp_path).path
    before = used(path)
    collected = gc.collect(planned)
    assert [g.kind for g in collected.removed] == ["versions"] and path.is_dir()
    assert used(path) < before
    assert not gc.find_garbage(home=tmp_path).removed
    assert rlds_cli.open_dataset("local/run", home=tmp_path).num_episodes == 10


def test_a_reader_of_another_process_goes_on_through_compacting(tmp_path):
    before = recorded(tmp_path, rlds_cli.Reservoir(episodes=10, seed=1), 60)
    numbers = before.episodes["number"].tolist()
    other = reader(tmp_path)
    compacting.compact("local/run", home=tmp_path)
    gc.collect(gc.find_garbage(home=tmp_path))
    said, _ = other.communicate("\n", timeout=60)
    assert json.loads(said) == [1000.0 * n for n in numbers]


COMPACTOR = """
import os, signal, sys
from pathlib import Path
from rlds_cli.store import Appender

opened, left = Appender(Path(sys.argv[1])), [int(sys.argv[2])]

def counted(call):
    def one(*given):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*given)
    return one

os.pwrite, os.fdatasync = counted(os.pwrite), counted(os.fdatasync)
opened.compact()
print("done", flush=True)
"""


@pytest.mark.slow
def test_a_kill_at_any_write_leaves_the_dataset_as_it_was_or_compacted(tmp_path):
    before = recorded(tmp_path, rlds_cli.Reservoir(episodes=30, seed=2), 100)
    want, fingerprint, path = contents(before), before.fingerprint, before.path
    del before
    moved, killed = [], 0
    for calls in range(0, 200, 3):
        copy = tmp_path / f"copy-{calls}"
        shutil.copytree(path, copy)
        said = subprocess.run(
            [sys.executable, "-c", COMPACTOR, str(copy), str(calls)], capture_output=True, text=True, timeout=60,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        ds = rlds_cli.open_dataset(copy)
        assert contents(ds) == want and ds.fingerprint == fingerprint
        moved.append(commits.last(copy).moved)
        if said.returncode == 0:
            break
        assert said.returncode == -signal.SIGKILL, said.stderr
        killed += 1
        assert compacting.compact(copy).fingerprint == fingerprint  # the next one is not hindered
        assert contents(rlds_cli.open_dataset(copy)) == want
    assert killed > 5 and moved[0] == 0 and moved[-1] == 1


def test_it_is_compacted_twice_while_a_reader_holds_an_older_version(tmp_path):
    def one(k):
        rewards = {"reward": np.full(3, float(k)), "terminated": True}
        return {"observation": np.zeros((4, 1)), "action": np.zeros((3, 1)), "next": rewards, "episode": {"k": k}}

    held = []
    for k in (9, 1, 3, 4):
        with rlds_cli.writer("local/run", keep=rlds_cli.Top(episodes=2), home=tmp_path) as w:
            w.add_episodes([one(k)])
            w.commit()
            held.append(w.dataset())
        compacting.compact("local/run", home=tmp_path)
    assert [ds.episodes["k"].tolist() for ds in held] == [[9], [9, 1], [9, 3], [9, 4]]
    assert w.dataset().episodes["k"].tolist() == [9, 4]
