"""Live loaders: every step carries the numbers of its episode and step, so that a sample says where it is from."""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rlds_cli
from rlds_cli import Dataset, Fifo, Reservoir, Top, Writer, open_dataset
from rlds_cli.dataset.batch import Batch
from rlds_cli.errors import DatasetNotFound, EmptyWindow, InvalidArgument, RldsError, WrongState
from rlds_cli.loader import (
    Episode,
    Goals,
    Live,
    Loader,
    Member,
    Mixture,
    Normalize,
    Offsets,
    Prioritized,
    ReturnToGo,
    Shuffled,
    Slice,
    Transition,
    Uniform,
    Weighted,
)
from rlds_cli.loader.live import VersionLog

REF = "local/grows"


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader looks for new data before every batch."""
    for name in ("LOOK", "REST", "FRESH"):
        monkeypatch.setattr(f"rlds_cli.loader.live.{name}", 0.0)


@pytest.fixture
def w() -> Iterator[Writer]:
    with rlds_cli.writer(REF) as writer:
        yield writer


def write(w: Writer, *numbers: int, steps: int = 10, protected: bool = False) -> int:
    """Commit episodes; the observation is (number of the episode, step), the reward 100 times the number + step."""
    episodes = []
    for k in numbers:
        observation = np.stack([np.full(steps + 1, k), np.arange(steps + 1)], 1).astype(np.float32)
        ends = np.arange(steps) == steps - 1
        after = {"reward": 100.0 * k + np.arange(steps), "terminated": ends, "truncated": np.zeros(steps, bool)}
        episodes.append({"observation": observation, "action": observation[:-1, 1:], "next": after})
    w.add_episodes(episodes, protected=protected)
    return w.commit()


def check(batch: Batch) -> None:
    """Compare the values of transitions with what was written."""
    k, t = batch["observation"][:, 0], batch["observation"][:, 1]
    assert (batch["step"] == t).all() and (batch["action"][:, 0] == t).all()
    assert (batch["next/observation"][:, 0] == k).all() and (batch["next/observation"][:, 1] == t + 1).all()
    assert (batch["next/reward"][:, 0] == 100 * k + t).all()
    assert (batch["next/terminated"][:, 0] == (t == 9)).all() and batch["next/observed"].all()


def loader(ref: Any = REF, size: int = 16, **options: Any) -> Loader:
    given: dict[str, Any] = {"live": True, "backend": "numpy", "fields": [..., "step", "episode"], "seed": 3}
    return Loader(ref, size, **given | options)


def episodes(batch: Batch) -> set[int]:
    return set(np.unique(batch["observation"].reshape(-1, 2)[:, 0]).astype(int).tolist())


def same(a: Batch, b: Batch) -> bool:
    return a.names() == b.names() and all(np.array_equal(x, b[name]) for name, x in a.leaves())


def grow(w: Writer, batches: Iterator[Batch], count: int, first: int, every: int = 3) -> tuple[list[Batch], list[Any]]:
    """Take batches while episodes are written, and hold every version."""
    taken, held = [], []
    for n in range(count):
        if n % every == every - 1:
            write(w, first)
            first += 1
            held.append(w.dataset())
        taken.append(next(batches))
    return taken, held


# -- taking up


@pytest.mark.thorough
@pytest.mark.usefixtures("eager")
def test_a_commit_is_in_the_next_batch(w: Writer) -> None:
    write(w, 0)
    live = loader(size=200)
    batches = iter(live)
    for k in range(1, 8):
        check(batch := next(batches))
        assert episodes(batch) == set(range(k))  # 200 draws of at most 80: each episode is missed once in 10**10
        assert live.version == k
        assert write(w, k) == k + 1
    assert [list(row) for row in live.state_dict()["versions"]] == [[200 * k, k + 1] for k in range(7)]


@pytest.mark.slow  # how soon depends on the machine
def test_a_commit_is_used_within_100_ms(w: Writer) -> None:
    write(w, 0)
    live = loader()
    batches = iter(live)
    for _ in range(200):
        next(batches)
    version = write(w, 1)
    start = time.monotonic()
    while live.version != version:
        next(batches)
        time.sleep(0.001)
    assert time.monotonic() - start < 0.5  # 0.1 on a machine that does nothing else


@pytest.mark.thorough
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("by", ["window", "episode"])
def test_draws_are_even_over_the_new_version(w: Writer, by: Any) -> None:
    from scipy.stats import chisquare  # takes seconds of each process that collects the tests

    write(w, 0, 1)
    live = loader(size=5000, sampler=Uniform(by))
    batches = iter(live)
    next(batches)
    write(w, 2, 3, steps=30)
    batch = next(batches)
    counts = np.zeros((4, 30))
    np.add.at(counts, tuple(batch["observation"].astype(int).T), 1)
    windows = np.zeros((4, 30))
    windows[:2, :10], windows[2:, :30] = (1 / 80, 1 / 80) if by == "window" else (1 / 40, 1 / 120)
    assert (counts[windows == 0] == 0).all()
    assert chisquare(counts[windows > 0], 5000 * windows[windows > 0]).pvalue > 1e-3


@pytest.mark.thorough
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    "options",
    [
        {"window": Transition(3, 0.5)},
        {"window": Slice(4, after=3)},
        {"window": Slice(4, before=3, fill="zero")},
        {"window": Offsets({"observation": (-1, 0)}, before=1)},
        {"window": Episode()},
        {"window": Episode(bucket=4)},
        {"sampler": Uniform("episode")},
        {"sampler": Weighted("total_reward")},
        {"sampler": Prioritized(priority="total_reward")},
        {"sampler": Prioritized(), "window": Slice(4)},
        {"window": Transition(anchors="steps"), "fields": ("observation", "action")},
        {"fields": [..., ReturnToGo(0.9), Goals("goal", current=0.2, future=0.3, random=0.5)]},
        {"transform": lambda batch: None, "dtype": None},
        {"prefetch": 2},
    ],
    ids=lambda options: "-".join(f"{name} {type(value).__name__}" for name, value in options.items()),
)
def test_batches_are_those_of_a_loader_that_was_opened_at_the_version(w: Writer, options: Any) -> None:
    """The live one went through all versions, the other one sees the last as data that do not change."""
    write(w, 1, 2)
    live = loader(**options)
    _, held = grow(w, iter(live), 9, 3)
    sample = live.state_dict()["samples"]
    batch = next(iter(live))
    log = live.state_dict()["versions"]
    frozen = Loader(held[-1], 16, backend="numpy", seed=3, **{"fields": [..., "step", "episode"]} | options)
    assert log[-1, 1] == held[-1].version and log[-1, 0] <= sample
    frozen.seek(sample // 16)
    expected = next(iter(frozen))
    if isinstance(options.get("sampler"), Prioritized):  # masses lie in another order, and names are other ones
        assert batch["probability"].sum() == pytest.approx(expected["probability"].sum(), rel=0.5)
        return
    for name, values in expected.leaves():
        assert np.array_equal(values, batch[name]), name


@pytest.mark.thorough
@pytest.mark.usefixtures("eager")
def test_returns_to_go_and_goals_of_new_episodes(w: Writer) -> None:
    write(w, 0)
    live = loader(size=200, fields=[..., ReturnToGo(), Goals("goal", horizon="final")])
    batches = iter(live)
    for k in range(1, 6):
        batch = next(batches)
        n, t = batch["observation"].T
        left = [sum(100 * a + s for s in range(int(b), 10)) for a, b in zip(n, t, strict=True)]
        assert batch["return_to_go"][:, 0].tolist() == left
        assert (batch["goal"][:, 0] == n).all() and (batch["goal"][:, 1] == 10).all()
        assert (batch["goal_distance"][:, 0] == 10 - t).all()
        write(w, k)


# -- the log: resuming and replaying


@pytest.mark.thorough
@pytest.mark.sampled(3)
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sampler": Uniform("episode"), "window": Slice(4, after=3)},
        {"sampler": Weighted("total_reward"), "prefetch": 2},
        {"window": Transition(3), "fields": [..., "step", ReturnToGo(), Goals("goal", random=0.5, future=0.5)]},
        {"sampler": Prioritized()},
        {"sampler": Prioritized(lag=2)},
        {"sampler": Prioritized(lag=2), "prefetch": 2},
        {"sampler": Prioritized(lag=1, priority="total_reward"), "window": Slice(4)},
    ],
    ids=str,
)
def test_state_and_versions_give_the_same_batches_bit_for_bit(w: Writer, options: Any) -> None:
    write(w, 1, 2)
    held = [w.dataset()]
    first, states, taken = 3, [], []

    def trained(live: Loader, batches: Iterator[Batch]) -> Batch:
        batch = next(batches)
        if isinstance(live.sampler, Prioritized):
            live.update_priorities(batch, batch["observation"].reshape(len(batch["window"]), -1).sum(1))
        return batch

    live = loader(held[0], **options)
    batches = iter(live)
    for n in range(20):
        if n % 3 == 2:
            write(w, first)
            first += 1
            held.append(w.dataset())
        taken.append(trained(live, batches))
        saved = io.BytesIO()
        torch.save(live.state_dict(), saved)
        states.append(torch.load(io.BytesIO(saved.getvalue()), weights_only=True))
    log = states[-1]["versions"]
    assert len(log) >= 5
    for resumed, live in ((0, log), (0, states[-1]), (1, states[-1]), (7, states[-1]), (8, log), (13, log)):
        again = loader(held[0] if resumed % 2 else REF, live=live, **options)
        if resumed:
            again.load_state_dict(states[resumed - 1])
        batches = iter(again)
        for n in range(resumed, 20):
            assert same(trained(again, batches), taken[n]), (resumed, n)
        assert np.array_equal(again.state_dict()["versions"], log)


@pytest.mark.thorough
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("keep", [Fifo(episodes=5), Top(episodes=5)], ids=str)
def test_chances_are_those_of_the_run_where_episodes_left_before_its_first_batch(keep: Any, mixed: bool) -> None:
    """Chances are float64 here: sums in another order differ in the last bit."""

    def made(live: Any) -> Loader:
        source = {"a": held[0], "b": "local/like"}
        of = Mixture(source, {"a": 3, "b": 1}) if mixed else held[0]
        return loader(of, 64, live=live, sampler=Prioritized(), dtype=None, fields=None)

    def trained(live: Loader, batches: Iterator[Batch]) -> Batch:
        batch = next(batches)
        live.update_priorities(batch, np.abs(np.sin(batch["observation"].sum(1) * 7.3)))
        return batch

    with rlds_cli.writer("local/like") as like:
        write(like, 50)
    with rlds_cli.writer(REF, keep=keep) as w:
        write(w, 0, 1, 2, steps=53)
        held = [w.dataset()]
        live = made(True)
        write(w, 3, 4, 5, 6, steps=61)
        held.append(w.dataset())
        batches, taken = iter(live), []
        for k in range(7, 20):
            write(w, k, steps=50 + k)
            held.append(w.dataset())
            taken.append(trained(live, batches))
        again = made(live.state_dict())
        batches = iter(again)
        for n, batch in enumerate(taken):
            assert same(trained(again, batches), batch), n


@pytest.mark.usefixtures("eager")
def test_runs_stop_where_the_log_says(w: Writer) -> None:
    """A replay reads many batches at once, but never across an entry of the log."""
    for k in range(4):
        write(w, k)
    held = [open_dataset(f"{REF}#v{g}") for g in range(1, 5)]
    log = [(0, 1), (48, 2), (64, 4)]
    batches = iter(loader(live=log))
    for n in range(8):
        frozen = Loader(
            held[0 if n < 3 else 1 if n == 3 else 3], 16, backend="numpy", seed=3, fields=[..., "step", "episode"]
        )
        frozen.seek(n)
        expected, batch = next(iter(frozen)), next(batches)
        assert all(np.array_equal(values, batch[name]) for name, values in expected.leaves())
    with pytest.raises(WrongState, match="within a batch of 20"):
        list(zip(range(9), loader(size=20, live=log), strict=False))


@pytest.mark.usefixtures("eager")
def test_a_loader_that_is_moved_goes_on_with_the_newest_version(w: Writer) -> None:
    write(w, 0)
    live = loader(size=200)
    next(batches := iter(live))
    write(w, 1)
    next(batches)
    live.seek(1)
    write(w, 2)
    assert episodes(next(iter(live))) == {0, 1, 2}
    assert [list(row) for row in live.state_dict()["versions"]] == [[0, 1], [200, 3]]
    live.set_epoch(4)
    next(iter(live))
    state = live.state_dict()
    assert (state["epoch"], [list(row) for row in state["versions"]]) == (4, [[0, 3]])


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("sampler", [Uniform(), Prioritized(), Prioritized(lag=1)], ids=str)
def test_a_state_goes_on_where_its_version_was_freed(sampler: Any) -> None:
    with rlds_cli.writer(REF, keep=Fifo(episodes=3)) as w:
        write(w, 0, 1, 2)
        live = loader(sampler=sampler)
        next(iter(live))
        state = live.state_dict()
        del live
        write(w, 3, 4, 5)  # nobody holds the version of the state
        with pytest.raises(DatasetNotFound, match="was freed"):
            open_dataset(f"{REF}#v1")
        again = loader(sampler=sampler)
        if sampler == Prioritized(lag=1):
            with pytest.raises(WrongState, match=r"were drawn ahead.*was freed"):
                again.load_state_dict(state)
            return
        again.load_state_dict(state)
        batch = next(iter(again))
        check(batch)
        assert again.step == 2 and episodes(batch) <= {3, 4, 5}
        assert [list(row) for row in again.state_dict()["versions"]] == [[0, 1], [16, 2]]
        with pytest.raises(DatasetNotFound, match="was freed"):
            loader(sampler=sampler, live=state)


# -- retention


@pytest.mark.thorough
@pytest.mark.sampled(2)
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("keep", [Fifo(episodes=4), Fifo(steps=35), Reservoir(episodes=4), Top(episodes=4)], ids=str)
@pytest.mark.parametrize("sampler", [Uniform(), Weighted("length"), Prioritized(), Prioritized(lag=2)], ids=str)
def test_what_left_is_never_drawn_again(keep: Any, sampler: Any) -> None:
    with rlds_cli.writer(REF, keep=keep) as w:
        write(w, 0, 1)
        live = loader(size=64, sampler=sampler)
        batches, lag = iter(live), getattr(sampler, "lag", 0)
        kept: list[set[int]] = []
        for k in range(2, 40):
            batch = next(batches)
            check(batch)
            now = w.dataset()
            kept.append({int(now.episode(n)["observation"][0, 0]) for n in range(now.num_episodes)})
            assert episodes(batch) <= kept[-1 - min(lag, len(kept) - 1)]
            if isinstance(sampler, Prioritized):
                live.update_priorities(batch, batch["observation"][:, 0])
            write(w, k)
        assert len(kept[-1]) == (3 if keep == Fifo(steps=35) else 4)


@pytest.mark.thorough
@pytest.mark.usefixtures("eager")
def test_batches_drawn_before_a_take_up_stay_right() -> None:
    """Threads read ahead what was drawn from versions that are gone by then."""
    with rlds_cli.writer(REF, keep=Fifo(episodes=2)) as w:
        write(w, 0, 1)
        batches = iter(loader(size=256, prefetch=3))
        for k in range(2, 60):
            check(next(batches))
            write(w, k)


@pytest.mark.thorough
@pytest.mark.usefixtures("eager")
def test_a_loader_stays_where_it_is_while_nothing_can_be_drawn() -> None:
    with rlds_cli.writer(REF, keep=Fifo(episodes=1)) as w:
        write(w, 0)
        live = loader(window=Slice(6), fields=None)
        batches = iter(live)
        next(batches)
        write(w, 1, steps=3)  # too short
        assert episodes(next(batches)) == {0}
        write(w, 2)
        assert episodes(next(batches)) == {2} and live.version == 3
    with rlds_cli.writer("local/empty", like=open_dataset(REF)), pytest.raises(EmptyWindow):
        loader("local/empty")


# -- priorities


@pytest.mark.thorough
@pytest.mark.usefixtures("eager")
def test_new_windows_have_the_highest_priority_so_far_and_updates_find_theirs() -> None:
    with rlds_cli.writer(REF, keep=Fifo(episodes=3)) as w:
        write(w, 0, 1)
        live = loader(size=400, sampler=Prioritized(alpha=0.7, eps=0.01), fields=[..., "step"])
        batches, priority, highest = iter(live), {}, 1.0
        for k in range(2, 12):
            here = range(max(0, k - 3), k)
            batch = next(batches)
            for episode in here:
                for t in range(10):
                    priority.setdefault((episode, t), highest)
            mass = {at: (p + 0.01) ** 0.7 for at, p in priority.items() if at[0] in here}
            total, least = sum(mass.values()), min(mass.values())
            drawn = list(map(tuple, batch["observation"].astype(int).tolist()))
            assert batch["probability"] == pytest.approx([mass[at] / total for at in drawn], rel=1e-5)
            assert batch["weight"][:, 0] == pytest.approx([(least / mass[at]) ** 0.4 for at in drawn], rel=1e-5)
            assert batch["window"].tolist() == [(episode + 1) * 2**32 + t for episode, t in drawn]
            write(w, k)  # before the update, which comes as late as training takes
            new = {at: float(at[0] % 3 + 0.1 * at[1]) for at in drawn}
            live.update_priorities(batch, np.array([new[at] for at in drawn]))
            priority |= new
            highest = max(highest, *new.values())


@pytest.mark.usefixtures("eager")
def test_updates_of_windows_that_left_do_nothing_and_others_are_refused() -> None:
    with rlds_cli.writer(REF, keep=Fifo(episodes=1)) as w:
        write(w, 0)
        live = loader(sampler=Prioritized())
        batches = iter(live)
        old = next(batches)
        write(w, 1)
        new = next(batches)
        live.update_priorities(old, np.full(16, 50.0))
        assert next(batches)["probability"] == pytest.approx(0.1)
        assert (new["probability"] == np.float32(0.1)).all()
        for wrong in (3 << 32, (2 << 32) + 10, 0, 1, -1):
            strange = Batch(dict(new.items()) | {"window": np.full(16, wrong)})
            with pytest.raises(InvalidArgument, match="is none of this dataset"):
                live.update_priorities(strange, np.ones(16))


def test_priorities_do_not_go_back(w: Writer) -> None:
    write(w, 0)
    write(w, 1)
    replay = loader(sampler=Prioritized(), live=[(0, 1), (16, 2)])
    batches = iter(replay)
    next(batches)
    next(batches)
    replay.seek(0)
    with pytest.raises(WrongState, match="Priorities of version 2 of local/grows do not go back to version 1"):
        next(iter(replay))


# -- several processes

WRITER = """
import sys, time
import numpy as np, rlds_cli
with rlds_cli.writer("local/grows", keep=rlds_cli.Fifo(episodes=20)) as w:
    for k in range(int(sys.argv[1])):
        for t in range(10):
            o = np.array([k, t], np.float32)
            after = np.array([k, t + 1], np.float32)
            w.add(o, o[1:], reward=100.0 * k + t, terminated=t == 9, next_observation=after)
        time.sleep(0.005)
"""


def test_another_process_writes(tmp_path: Path) -> None:
    source = str(Path(rlds_cli.__file__).parents[1])
    process = subprocess.Popen([sys.executable, "-c", WRITER, "150"], env=os.environ | {"PYTHONPATH": source})
    try:
        end = time.monotonic() + 60
        while not (tmp_path / "home/datasets/local").exists() or not _has_episodes():
            assert time.monotonic() < end
            time.sleep(0.01)
        live, seen = loader(sampler=Prioritized()), set[int]()
        for batch in live:
            check(batch)
            seen |= episodes(batch)
            live.update_priorities(batch, batch["step"] * 0.5)
            if 149 in seen:
                break
            assert time.monotonic() < end
        assert live.version > 5
    finally:
        process.kill()
        process.wait()


def _has_episodes() -> bool:
    try:
        return open_dataset(REF).num_episodes > 0
    except RldsError:
        return False


RANK = """
import json, sys, time
import torch.distributed as dist
import rlds_cli
from rlds_cli.loader import Loader
rank, meeting = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
live = Loader("local/grows", 8, live=True, seed=3, fields=[..., "step"], steps=600)
drawn, versions = [], []
for batch in live:
    drawn.append(batch["observation"].int().tolist())
    versions.append(live.version)
    time.sleep(0.002)
dist.barrier()
print(json.dumps([drawn, versions]), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_ranks_draw_from_the_same_versions(w: Writer, tmp_path: Path) -> None:
    write(w, 0, 1)
    held = [w.dataset()]
    environment = os.environ | {"PYTHONPATH": str(Path(rlds_cli.__file__).parents[1])}
    arguments = [sys.executable, "-c", RANK]
    ranks = [
        subprocess.Popen(
            [*arguments, str(k), f"file://{tmp_path}/meeting"], env=environment, stdout=subprocess.PIPE, text=True
        )
        for k in range(2)
    ]
    k = 2
    while any(r.poll() is None for r in ranks) and k < 5000:
        write(w, k)
        k += 1
        held.append(w.dataset())
        time.sleep(0.02)
    told = [json.loads(r.communicate(timeout=60)[0].splitlines()[-1]) for r in ranks]
    assert told[0][1] == told[1][1] and len(set(told[0][1])) > 3
    by_version = {ds.version: ds for ds in held}
    for n, version in enumerate(told[0][1]):
        if n % 20:
            continue
        frozen = Loader(by_version[version], 8, seed=3, backend="numpy")
        frozen.seek(n)
        expected = next(iter(frozen))["observation"].astype(int).tolist()
        assert [told[0][0][n], told[1][0][n]] == [expected[0::2], expected[1::2]]


def test_ranks_that_cannot_agree_are_refused(w: Writer) -> None:
    write(w, 0)
    with pytest.raises(InvalidArgument, match="ranks must draw from the same versions"):
        loader(rank=0, world_size=2)
    parts = [next(iter(loader(rank=rank, world_size=2, live=[(0, 1)])))["observation"] for rank in range(2)]
    whole = next(iter(loader()))["observation"]
    assert np.array_equal(parts[0], whole[0::2]) and np.array_equal(parts[1], whole[1::2])


# -- the rest


def _frozen() -> Dataset:
    return rlds_cli.create("local/frozen", [{"observation": np.zeros((3, 1)), "action": np.zeros((2, 1))}])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sampler": Shuffled()}, "live=True with Shuffled: its epochs have a fixed number of samples"),
        ({"memory": "device", "backend": "torch", "device": "cpu"}, 'live=True with memory="device"'),
        ({"sampler": Weighted(np.ones(1))}, "live=True with an array in Weighted"),
        ({"sampler": Prioritized(priority=np.ones(1))}, "live=True with an array in Prioritized"),
        ({"live": [(1, 2, 3)]}, "This is not a log of versions"),
        ({"live": [(0, 1), (0, 2)]}, "This is not a log of versions"),
        ({"live": "yes"}, "This is not a log of versions"),
        ({"live": {"samples": 0}}, "This is not a log of versions"),
    ],
)
def test_what_cannot_be_live_is_refused(w: Writer, change: Any, message: str) -> None:
    write(w, 0)
    with pytest.raises(InvalidArgument, match=message):
        loader(**change)


def test_what_does_not_grow_is_refused(w: Writer) -> None:
    write(w, 0)
    for data, message in (
        (_frozen(), "live=True on local/frozen: it does not grow"),
        (w.dataset().select(episodes=[0]), "live=True on a selection of local/grows"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            loader(data)


@pytest.mark.usefixtures("eager")
def test_what_a_live_loader_says_of_itself(w: Writer) -> None:
    write(w, 0)
    live = loader()
    assert "live at version 1" in repr(live) and "live at version 1" in live.describe()
    write(w, 1)
    next(iter(live))
    assert "live at version 2" in repr(live) and "2 episodes" in live.describe()
    with pytest.raises(TypeError, match="endless"):
        len(live)
    assert len(loader(steps=7)) == 7 and len(list(loader(steps=7))) == 7
    assert live.consumed() == {REF: 16} and live.step == 1
    with pytest.raises(InvalidArgument, match="live loader in a DataLoader worker"):
        live.share(live._start(), 0, 2)
    assert next(iter(loader(backend="torch", live=True).as_torch()))["observation"].shape == (16, 2)


@pytest.mark.thorough
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("sampler", [Uniform(), Prioritized(), Prioritized(lag=2)], ids=str)
def test_a_live_loader_is_pickled(w: Writer, sampler: Any) -> None:
    write(w, 0)
    live = loader(sampler=sampler)
    batches = iter(live)
    next(batches)
    write(w, 1)
    next(batches)
    again = pickle.loads(pickle.dumps(live))
    assert again.step == 2 and np.array_equal(again.state_dict()["versions"], live.state_dict()["versions"])
    assert same(next(batches), next(iter(again)))


@pytest.mark.usefixtures("eager")
def test_states_of_other_loaders_are_refused(w: Writer) -> None:
    write(w, 0)
    live = loader()
    next(iter(live))
    state = live.state_dict()
    for wrong, message in (
        (Loader(REF, 16, seed=3).state_dict(), "not of a live loader"),
        (state | {"versions": [[0, 99]]}, "another dataset"),
        (state | {"versions": [[5, 1], [5, 2]]}, "not a log of versions"),
        (state | {"fingerprint": "0" * 64}, "They differ in fingerprint"),
        (state | {"seed": 4}, "They differ in seed"),
    ):
        with pytest.raises(WrongState, match=message):
            live.load_state_dict(wrong)
    frozen = Loader(REF, 16, seed=3, backend="numpy")
    frozen.load_state_dict(state)  # the version is the same, and so is the order
    assert frozen.step == 1


@pytest.mark.thorough
@pytest.mark.usefixtures("eager")
def test_normalised_batches(w: Writer) -> None:
    write(w, 0, 1)
    ds = w.dataset()
    live = loader(transform=Normalize(ds, eps=0.5))
    batches = iter(live)
    mean, std = np.array([0.5, 4.5]), np.array([0.5, np.sqrt(8.25)])
    for _ in range(3):
        batch = next(batches)
        back = batch["observation"] * (std + 0.5) + mean
        assert np.allclose(back[:, 1], batch["step"], atol=1e-4)
        write(w, 7)


def test_a_log_by_hand() -> None:
    log = VersionLog(2)
    assert log.at(0) is None and len(log) == 0
    for sample, numbers in ((0, (3, 1)), (10, (3, 1)), (20, (3, 2)), (30, (4, 2))):
        log.note(sample, numbers)
    assert log.upto(100).tolist() == [[0, 3, 1], [20, 3, 2], [30, 4, 2]]
    assert [log.at(s) for s in (0, 19, 20, 29, 30, 99)] == [(3, 1), (3, 1), (3, 2), (3, 2), (4, 2), (4, 2)]
    assert [log.end(s) for s in (0, 19, 20, 30)] == [20, 20, 30, None]
    assert list(log.between(25, 31)) == [(20, (3, 2)), (30, (4, 2))] and list(log.between(25, 25)) == []
    log.cut(20)
    assert log.upto(100).tolist() == [[0, 3, 1]] and log.last() == (3, 1)


# -- waiting for the first data


@contextmanager
def later(*writes: Any) -> Iterator[None]:
    """Write one after the other in another thread, which begins now."""
    thread = threading.Thread(target=lambda: [(time.sleep(0.05), one()) for one in writes])
    thread.start()
    try:
        yield
    finally:
        thread.join()


@pytest.fixture
def empty() -> Iterator[Writer]:
    with rlds_cli.writer("local/like") as like:
        write(like, 0)
    with rlds_cli.writer(REF, like=like.dataset()) as writer:
        yield writer


def test_a_loader_waits_for_its_first_episode(empty: Writer) -> None:
    with pytest.raises(EmptyWindow, match="0 episodes"):
        loader()
    with later(lambda: write(empty, 4)):
        live = loader(live=Live(wait=60))
    check(batch := next(iter(live)))
    assert (episodes(batch), live.version) == ({4}, 1)
    check(next(iter(pickle.loads(pickle.dumps(live)))))


@pytest.mark.thorough
def test_a_loader_waits_for_so_many_steps(empty: Writer) -> None:
    with later(*(partial(write, empty, k) for k in range(4))):
        live = loader(live=Live(wait=60, min_steps=40))
    assert live.version == 4 and live.dataset.num_steps == 40
    assert loader(live=Live(min_steps=40)).version == 4  # they are there
    with pytest.raises(EmptyWindow, match=r"50 steps were asked for.*after 0.05 s local/grows has 40 steps"):
        loader(live=Live(wait=0.05, min_steps=50))
    with pytest.raises(EmptyWindow, match="Now local/grows has 40 steps"):
        loader(live=Live(min_steps=41))


@pytest.mark.thorough
def test_a_loader_waits_for_an_episode_that_has_a_window(empty: Writer) -> None:
    write(empty, 0)
    with pytest.raises(EmptyWindow, match="local/grows has 10 steps"):
        loader(window=Slice(12), live=Live(wait=0.01))
    with later(partial(write, empty, 1, steps=20)):
        assert episodes(next(iter(loader(window=Slice(12), live=Live(wait=60))))) == {1}


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("mixed", [False, True])
def test_a_loader_waits_for_an_episode_that_weighs_something(empty: Writer, mixed: bool) -> None:
    """The return of an episode that is all zeros is its weight; the other member of the mixture is drawn meanwhile."""

    def add(value: float) -> None:
        observation = np.full((3, 2), value, np.float32)
        after = {"reward": np.full(2, value), "terminated": [False, True], "truncated": [False] * 2}
        empty.add_episodes([{"observation": observation, "action": observation[:-1, 1:], "next": after}])
        empty.commit()

    add(0.0)
    sampler = Weighted("total_reward")
    if mixed:
        source = Mixture({"a": "local/like", "b": Member(REF, sampler=sampler)}, {"a": 1, "b": 1})
        live = loader(source, fields=None)
        batches = iter(live)
        assert np.unique(next(batches)["source"]).tolist() == [0]
    else:
        with pytest.raises(EmptyWindow, match="weights are zero"):
            loader(sampler=sampler)
        with later(partial(add, 5.0)):
            batches = iter(loader(sampler=sampler, live=Live(wait=60)))
        assert episodes(next(batches)) == {5}
    add(7.0)
    seen = [episodes(next(batches)) for _ in range(20)]
    assert 7 in set.union(*seen)


def test_a_loader_goes_on_while_all_that_is_kept_weighs_nothing() -> None:
    with rlds_cli.writer(REF, keep=Fifo(episodes=1)) as w:
        write(w, 1)
        batches = iter(loader(sampler=Weighted("total_reward")))
        assert episodes(next(batches)) == {1}
        w.add_episodes([{**dict_of(2), "next": {**dict_of(2)["next"], "reward": np.zeros(10)}}])
        w.commit()
        time.sleep(0.05)
        assert episodes(next(batches)) == {1}


def dict_of(k: int) -> dict[str, Any]:
    observation = np.full((11, 2), k, np.float32)
    ends = np.arange(10) == 9
    after = {"reward": np.ones(10), "terminated": ends, "truncated": np.zeros(10, bool)}
    return {"observation": observation, "action": observation[:-1, 1:], "next": after}


def test_the_members_of_a_mixture_that_grow_are_waited_for(empty: Writer) -> None:
    mixture = Mixture({"still": "local/like", "online": REF}, {"still": 1, "online": 1})
    assert np.unique(next(iter(loader(mixture, fields=None)))["source"]).tolist() == [0]
    with pytest.raises(EmptyWindow, match="local/grows has 0 steps"):
        loader(mixture, fields=None, live=Live(wait=0.01, min_steps=5))
    with later(partial(write, empty, 3), partial(write, empty, 4)):
        live = loader(mixture, fields=None, live=Live(wait=60, min_steps=10))
    assert np.bincount(next(iter(live))["source"]).tolist() == [8, 8]
    alone = Mixture({"one": REF, "two": "local/two"}, {"one": 1, "two": 1})
    with rlds_cli.writer("local/two", like=empty.dataset()) as other, later(partial(write, other, 5)):
        live = loader(alone, fields=None, live=Live(wait=60, min_steps=10))
        assert live.version == {"one": 2, "two": 1}


@pytest.mark.parametrize("value", [{"wait": -1}, {"wait": "1"}, {"wait": float("nan")}, {"min_steps": -1}])
def test_waits_that_are_refused(value: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(value))):
        Live(**value)


FIRST = """
import sys
import torch.distributed as dist
from rlds_cli.errors import EmptyWindow
from rlds_cli.loader import Live, Loader
rank, meeting = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
try:
    Loader("local/grows", 8, live=Live(wait=0.1, min_steps=1000))
except EmptyWindow as e:
    print("too few", "10 steps" in str(e), flush=True)
live = Loader("local/grows", 8, live=Live(wait=60, min_steps=20))
print(live.version, flush=True)
next(iter(live))
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_ranks_wait_together(w: Writer, tmp_path: Path) -> None:
    write(w, 0)
    environment = os.environ | {"PYTHONPATH": str(Path(rlds_cli.__file__).parents[1])}
    command = [sys.executable, "-c", FIRST]
    where = f"file://{tmp_path}/meeting"
    ranks = [
        subprocess.Popen([*command, str(k), where], env=environment, stdout=subprocess.PIPE, text=True)
        for k in range(2)
    ]
    assert ranks[0].stdout is not None and ranks[0].stdout.readline() == "too few True\n"
    write(w, 1)
    told = [r.communicate(timeout=120)[0].splitlines() for r in ranks]
    assert told[0] == ["2"] and told[1] == ["too few False", "2"]
