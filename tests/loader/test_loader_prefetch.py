"""Reading ahead changes nothing but the time: order, state, errors and ends are those of reading in turn."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frames_data import decoded, film
from loader_data import create, episode

import rlds_cli
from rlds_cli.errors import FrameError, InvalidArgument
from rlds_cli.loader import Loader, Offsets, Prioritized, Sequential, Shuffled, Slice, Transition, Uniform
from rlds_cli.loader.storage import page_cache as ahead_module
from rlds_cli.loader.storage.page_cache import prefetch_depth, prefetched

DEPTHS = (0, 1, 3)


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rlds_cli.Dataset]:
    with pytest.MonkeyPatch.context() as env:
        env.setenv("RLDS_HOME", str(tmp_path_factory.mktemp("home")))
        yield create([episode(k, 30 + k, observed=k % 2 == 0, inner=(4,)) for k in range(8)])


def load(ds: rlds_cli.Dataset, size: int = 4, **options: Any) -> Loader:
    return Loader(ds, size, **{"backend": "numpy", "fields": [..., "episode", "step"], **options})


def ids(batch: Any) -> list[tuple[int, int]]:
    return list(zip(batch["episode"].ravel().tolist(), batch["step"].ravel().tolist(), strict=True))


def first(loader: Loader, n: int) -> list[list[tuple[int, int]]]:
    return [ids(b) for b in itertools.islice(loader, n)]


def our_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("rlds-loader")]


# -- the same batches


@pytest.mark.thorough
@pytest.mark.parametrize("window", [Transition(), Transition(3), Slice(5, after=4), Offsets({"observation": (-1, 0)})])
@pytest.mark.parametrize("sampler", [Uniform(), Shuffled(), Sequential()])
@pytest.mark.parametrize("prefetch", DEPTHS[1:])
def test_the_same_batches(ds: rlds_cli.Dataset, window: Any, sampler: Any, prefetch: int) -> None:
    options = {"window": window, "sampler": sampler, "steps": 150}
    for a, b in zip(load(ds, **options), load(ds, prefetch=prefetch, **options), strict=True):
        assert a.names() == b.names()
        for (name, x), (_, y) in zip(a.leaves(), b.leaves(), strict=True):
            assert np.array_equal(x, y, equal_nan=x.dtype.kind == "f"), name


@pytest.mark.thorough
@pytest.mark.parametrize("prefetch", DEPTHS)
def test_batches_in_flight_are_not_consumed(ds: rlds_cli.Dataset, prefetch: int) -> None:
    whole = first(load(ds, sampler=Shuffled(), steps=200), 200)
    loader = load(ds, sampler=Shuffled(), prefetch=prefetch, steps=200)
    batches = iter(loader)
    for n in range(1, 140):
        assert ids(next(batches)) == whole[n - 1]
        assert loader.step == n
        if n % 23 == 0:
            other = load(ds, sampler=Shuffled(), prefetch=DEPTHS[n % 3], steps=200)
            other.load_state_dict(loader.state_dict())
            assert first(other, 5) == whole[n : n + 5]


@pytest.mark.thorough
@pytest.mark.parametrize("prefetch", DEPTHS)
def test_breaking_off_and_going_on(ds: rlds_cli.Dataset, prefetch: int) -> None:
    whole = first(load(ds, seed=5), 100)
    loader = load(ds, seed=5, prefetch=prefetch)
    assert first(loader, 7) + first(loader, 30) == whole[:37]
    loader.seek(90)
    assert first(loader, 10) == whole[90:]
    epochs = load(ds, sampler=Shuffled(), prefetch=prefetch)
    reference = load(ds, sampler=Shuffled())
    passes = [list(map(ids, reference)) for _ in range(2)]
    assert first(epochs, 3) == passes[0][:3]
    assert list(map(ids, epochs)) == passes[1]


def test_ranks_read_ahead_by_themselves(ds: rlds_cli.Dataset) -> None:
    whole = first(load(ds, 6), 60)
    parts = [first(load(ds, 6, rank=r, world_size=2, prefetch=r + 1), 60) for r in range(2)]
    assert [[*a, *b] for a, b in zip(*parts, strict=True)] == [[*w[::2], *w[1::2]] for w in whole]


# -- prioritised draws


def test_prefetch_up_to_the_lag(ds: rlds_cli.Dataset) -> None:
    assert load(ds, sampler=Prioritized()).prefetch == 0
    assert load(ds, sampler=Prioritized(lag=2), prefetch=2).prefetch == 2
    with pytest.raises(InvalidArgument, match=r"prefetch=3 .*drawn before updates that count") as e:
        load(ds, sampler=Prioritized(lag=2), prefetch=3)
    assert "Prioritized(lag=3)" in str(e.value)


@pytest.mark.thorough
@pytest.mark.parametrize("prefetch", [1, 3])
def test_what_the_lag_says_does_not_depend_on_prefetch(ds: rlds_cli.Dataset, prefetch: int) -> None:
    def run(prefetch: int) -> list[Any]:
        loader = load(ds, 8, sampler=Prioritized(lag=3), prefetch=prefetch)
        seen = []
        for n, batch in enumerate(itertools.islice(loader, 40)):
            seen.append(ids(batch))
            loader.update_priorities(batch, np.full(8, 1.0 + n % 5) * (batch["step"] + 1))
        return seen

    assert run(0) == run(prefetch)


# -- errors and ends


def worker(failing: int) -> Any:
    def work(n: int) -> int:
        if n == failing:
            raise ValueError(f"work {n}")
        return n * n

    return work


@pytest.mark.parametrize("prefetch", DEPTHS)
def test_what_fails_is_raised_in_its_turn(prefetch: int) -> None:
    done = prefetched(worker(5), range(10), prefetch)
    assert [next(done) for _ in range(5)] == [(n, n * n) for n in range(5)]
    with pytest.raises(ValueError, match="work 5"):
        next(done)
    assert not our_threads() and list(done) == []

    def items() -> Iterator[int]:
        yield from range(3)
        raise KeyError("item 3")

    done = prefetched(worker(9), items(), prefetch)
    assert [next(done) for _ in range(3)] == [(n, n * n) for n in range(3)]
    with pytest.raises(KeyError, match="item 3"):
        next(done)
    assert not our_threads()


@pytest.mark.thorough
@pytest.mark.parametrize("prefetch", DEPTHS)
def test_a_broken_frame_is_raised_at_its_batch(prefetch: int) -> None:
    broken = film([40, 40], broken=(1, 10))
    loader = Loader(broken, 1, sampler=Sequential(), prefetch=prefetch, backend="numpy")
    batches, seen = iter(loader), 0
    with pytest.raises(FrameError, match="observation, row 51"):
        for seen, batch in enumerate(batches, 1):
            k, t = divmod(seen - 1, 40)
            assert np.array_equal(batch["observation"][0], decoded(k, t))
    # a gather that holds the broken frame fails as a whole
    assert 20 < seen <= 49 and loader.step == seen and not our_threads()
    loader.seek(51)
    assert len(list(loader)) == 80 - 51


@pytest.mark.thorough
@pytest.mark.parametrize("prefetch", DEPTHS)
def test_an_error_of_a_function_comes_at_its_batch(ds: rlds_cli.Dataset, prefetch: int) -> None:
    numbers = itertools.count(1)

    def seventh(batch: Any) -> None:
        if next(numbers) == 7:
            raise RuntimeError("the seventh")

    loader = load(ds, transform=seventh, prefetch=prefetch)
    with pytest.raises(RuntimeError, match="the seventh"):
        for _ in loader:
            pass
    assert loader.step == 6 and not our_threads()


@pytest.mark.thorough
def test_threads_end_with_the_iterator(ds: rlds_cli.Dataset) -> None:
    loader = load(ds, prefetch=3)
    batches: Any = iter(loader)
    assert not our_threads()
    next(batches)
    assert our_threads()
    batches.close()
    assert not our_threads()
    for _ in loader:
        break
    assert not our_threads()
    batches = iter(loader)
    next(batches)
    circle = [batches]
    circle.append(circle)
    del batches, circle
    gc.collect()
    assert not our_threads()
    assert len(list(load(ds, prefetch=2, steps=10))) == 10
    assert not our_threads()


@pytest.mark.thorough
def test_an_iterator_collected_in_one_of_its_threads() -> None:
    forgotten, collected = threading.Event(), threading.Event()

    def work(n: int) -> int:
        if n == 1:
            forgotten.wait(60)
            gc.collect()
            collected.set()
        return n

    done: Any = prefetched(work, range(9), 1)
    next(done)
    circle = [done]
    circle.append(circle)
    gc.disable()
    try:
        del done, circle
        forgotten.set()
        assert collected.wait(60)
    finally:
        gc.enable()
    for thread in our_threads():
        thread.join(60)
    assert not our_threads()


def test_nothing_is_begun_after_the_end() -> None:
    begun: list[int] = []
    released = threading.Event()

    def work(n: int) -> int:
        begun.append(n)
        if n:
            released.wait(60)
        return n

    done: Any = prefetched(work, range(100), 2)
    next(done)
    threading.Timer(0.1, released.set).start()
    done.close()
    assert len(begun) <= 3 and not our_threads()


def run_script(home: Path, body: str) -> subprocess.Popen[str]:
    code = f"""
import itertools, sys
import numpy as np, rlds_cli
from rlds_cli.loader import Loader
made = [{{"observation": np.zeros((1001, 2)), "action": np.zeros((1000, 1))}}]
batches = iter(Loader(rlds_cli.create("local/a", made), 8, prefetch=3, backend="numpy"))
next(batches)
print("ready", flush=True)
{body}
"""
    environment = os.environ | {"RLDS_HOME": str(home)}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stderr=pipe, text=True, env=environment)


def test_an_interrupt_does_not_hang(home: Path) -> None:
    script = run_script(home, "for _ in batches: pass")
    assert script.stdout is not None and script.stdout.readline() == "ready\n"
    time.sleep(0.2)
    try:
        script.send_signal(signal.SIGINT)
        _, errors = script.communicate(timeout=60)
    finally:
        script.kill()
    assert script.returncode != 0 and errors.rstrip().endswith("KeyboardInterrupt")


def test_a_script_ends_with_a_loader_under_way(home: Path) -> None:
    script = run_script(home, "print(len(next(batches)['action']))")
    output, errors = script.communicate(timeout=60)
    assert (script.returncode, output, errors) == (0, "ready\n8\n", "")


# -- how far


def test_so_many_work_at_once() -> None:
    together = threading.Barrier(3, timeout=60)
    done = prefetched(lambda n: together.wait() * 0 + n, range(9), 3)
    assert [n for n, _ in done] == list(range(9))


def test_the_rule_for_how_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead_module, "cores", lambda: 4)
    kib, mib = 1 << 10, 1 << 20

    def rule(sample: int, gather: int = mib, *, decodes: bool = False, ships: bool = False) -> int:
        return prefetch_depth(sample_bytes=sample, gather_bytes=gather, decodes=decodes, ships=ships)

    assert rule(200) == rule(4 * kib) == 0
    assert rule(24 * kib) == rule(200, ships=True) == 2
    assert rule(24 * kib, decodes=True) == 4
    assert rule(24 * kib, 100 * mib, decodes=True) == 2 and rule(mib, 1000 * mib) == 1
    monkeypatch.setattr(ahead_module, "cores", lambda: 1)
    assert rule(24 * kib, decodes=True) == 2


def test_what_is_chosen(ds: rlds_cli.Dataset) -> None:
    assert "drawn together, 5 runs read ahead\n" in load(ds, prefetch=5).describe()
    assert "read ahead" not in load(ds).describe()
    assert load(ds).prefetch == 0 and load(ds, prefetch=5).prefetch == 5
    assert load(film([5, 5])).prefetch >= 2 and load(film([5, 5]), fields=("action",)).prefetch == 0
    assert load(film([5, 5]), prefetch=0).prefetch == 0
    made = [{"observation": np.zeros((9, 3000), np.float32), "action": np.zeros((8, 1))}]
    assert load(rlds_cli.create("local/wide", made)).prefetch == 2
    for wrong in (-1, 1.5, "two"):
        with pytest.raises(InvalidArgument, match="prefetch"):
            load(ds, prefetch=wrong)


# -- frames of several columns


@pytest.mark.thorough
@pytest.mark.parametrize("prefetch", DEPTHS)
def test_frames_that_columns_share(prefetch: int) -> None:
    shots = film([9, 4, 12])
    options = {"sampler": Shuffled(), "prefetch": prefetch, "backend": "numpy", "fields": [..., "episode", "step"]}
    for b in Loader(shots, 5, window=Slice(6, after=5), **options):
        for i, j in zip(*np.nonzero(b["mask"]), strict=True):
            k, t = int(b["episode"][i, j]), int(b["step"][i, j])
            assert np.array_equal(b["observation"][i, j], decoded(k, t))
            assert np.array_equal(b["next", "observation"][i, j], decoded(k, t + 1))
        b["observation"][...] = 0
        assert b["next", "observation"][b["mask"]].any((1, 2, 3)).all()
    stacked = Offsets({"observation": (-3, -1, 0)})
    for b in Loader(shots, 5, window=stacked, **options):
        for i, (k, t) in enumerate(ids(b)):
            for j, offset in enumerate((-3, -1, 0)):
                assert np.array_equal(b["observation"][i, j], decoded(k, max(0, t + offset)))
                assert np.array_equal(b["next", "observation"][i, j], decoded(k, max(0, t + offset + 1)))
