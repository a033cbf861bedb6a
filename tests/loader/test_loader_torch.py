"""Batches through torch's DataLoader: those of the plain iterator, each once, in order, with any number of workers."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loader_data import create, episode
from reference import ranks
from torch.utils.data import DataLoader

import rlds_cli
from rlds_cli.dataset.batch import Batch
from rlds_cli.errors import InvalidArgument
from rlds_cli.loader import (
    Episode,
    Loader,
    Mixture,
    Offsets,
    Prioritized,
    Sequential,
    Shuffled,
    Slice,
    Transition,
    Uniform,
)
from rlds_cli.loader.arrays import torch_loader
from rlds_cli.loader.arrays.torch_loader import PackedBatch

pytestmark = [
    # Python 3.12 and later warn of any fork of a process with threads; torch has some.
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]

WORKERS = (0, 1, 2, 3)


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rlds_cli.Dataset]:
    with pytest.MonkeyPatch.context() as env:
        env.setenv("RLDS_HOME", str(tmp_path_factory.mktemp("home")))
        yield create([episode(k, 5 + k, observed=k % 2 == 0, inner=(2,)) for k in range(6)])


def load(ds: Any, size: int = 4, **options: Any) -> Loader:
    return Loader(ds, size, **{"fields": [..., "episode", "step"], **options})


def feed(loader: Loader, workers: int, **options: Any) -> DataLoader[Batch]:
    return DataLoader(loader.as_torch(), batch_size=None, num_workers=workers, **options)


def ids(batch: Any) -> tuple[tuple[int, int], ...]:
    return tuple(zip(batch["episode"].ravel().tolist(), batch["step"].ravel().tolist(), strict=True))


def check_equal(got: Any, expected: Any) -> None:
    assert type(got) is type(expected) is Batch or isinstance(got, PackedBatch)
    assert got.names() == expected.names()
    for (name, x), (_, y) in zip(got.leaves(), expected.leaves(), strict=True):
        if isinstance(y, np.ndarray):
            assert x.dtype == y.dtype and x.tolist() == y.tolist(), name
        else:
            assert x.dtype == y.dtype and torch.equal(x, y) and x.is_contiguous(), name


# -- the same batches


@pytest.mark.sampled(6)
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize(
    ("sampler", "window"),
    [
        (Uniform(), Transition()),
        (Uniform(by="episode"), Slice(3, after=2)),
        (Shuffled(), Transition(3)),
        (Shuffled(drop_last=True), Offsets({"observation": (-1, 0)})),
        (Sequential(), Slice(4, before=2, after=3, stride=2)),
        (Shuffled(), Episode(bucket=2)),
    ],
)
def test_the_batches_of_the_plain_iterator(ds: rlds_cli.Dataset, sampler: Any, window: Any, workers: int) -> None:
    options = {"sampler": sampler, "window": window, "fields": [..., "episode", "step", "text", "info"], "seed": 3}
    options |= {"steps": 40} if sampler.endless else {}
    expected = list(load(ds, **options))
    got = list(feed(load(ds, **options), workers))
    for a, b in zip(got, expected, strict=True):
        check_equal(a, b)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("options", [{"dtype": "bfloat16"}, {"dtype": None}, {"dtype": "float16"}])
def test_any_dtype(ds: rlds_cli.Dataset, options: Any, workers: int) -> None:
    expected = load(ds, sampler=Shuffled(), **options)
    for a, b in zip(feed(load(ds, sampler=Shuffled(), **options), workers), expected, strict=True):
        check_equal(a, b.map(lambda x: x.contiguous()))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("persistent", [False, True])
def test_epochs_follow_each_other(ds: rlds_cli.Dataset, workers: int, persistent: bool) -> None:
    plain = load(ds, 16, sampler=Shuffled())
    expected = [[ids(b) for b in plain] for _ in range(4)]
    batches = feed(load(ds, 16, sampler=Shuffled()), workers, persistent_workers=persistent and workers > 0)
    assert len(batches) == len(expected[0]) == 3
    assert [[ids(b) for b in batches] for _ in range(4)] == expected


@pytest.mark.slow
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("steps", [1, 5, 30])
def test_passes_of_so_many_steps(ds: rlds_cli.Dataset, workers: int, steps: int) -> None:
    """Also where some workers have nothing to do, and passes that run over the ends of epochs."""
    for sampler in (Uniform(), Shuffled()):
        plain = load(ds, sampler=sampler, steps=steps)
        batches = feed(load(ds, sampler=sampler, steps=steps), workers)
        for _ in range(3):
            assert [ids(b) for b in batches] == [ids(b) for b in plain]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("workers", WORKERS)
def test_ranks_share_each_batch_and_workers_take_turns(ds: rlds_cli.Dataset, workers: int) -> None:
    whole = [ids(b) for b in load(ds, sampler=Shuffled())]
    parts = [feed(load(ds, sampler=Shuffled(), rank=r, world_size=2), workers) for r in range(2)]
    for n, pair in enumerate(zip(*parts, strict=True)):
        assert [list(ids(b)) for b in pair] == [ranks.part(whole[n], r, 2) for r in range(2)]
    assert n == len(whole) - 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("weights", ["size", {"a": 0.7, "b": 0.3}, lambda step: {"a": 1 + step, "b": 20}])
def test_mixtures(ds: rlds_cli.Dataset, workers: int, weights: Any, exact: bool) -> None:
    mixed = Mixture({"a": ds.select(episodes=[0, 1, 2]), "b": ds.select(episodes=[3, 4])}, weights, exact=exact)
    options = {"sampler": Shuffled(), "steps": 25}
    expected = [ids(b) for b in load(mixed, 8, **options)]
    assert [ids(b) for b in feed(load(mixed, 8, **options), workers)] == expected


# -- going on


@pytest.mark.sampled(1)
@pytest.mark.parametrize("workers", WORKERS)
def test_resuming_as_the_docstring_says(ds: rlds_cli.Dataset, workers: int) -> None:
    whole = [ids(b) for b in load(ds, sampler=Shuffled(), steps=40)]
    step, seen = 0, []
    for batch in feed(load(ds, sampler=Shuffled(), steps=40), workers):
        step += 1
        seen.append(ids(batch))
        if step == 17:
            break
    loader = load(ds, sampler=Shuffled(), steps=40)
    loader.seek(step)
    batches = feed(loader, workers)
    seen += [ids(b) for b in batches]
    assert seen == whole
    after = load(ds, sampler=Shuffled(), steps=40)
    after.seek(40)
    assert [ids(b) for b in batches] == [ids(b) for b in after]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("persistent", [True, False])
def test_a_loader_that_moves_takes_its_workers_along(ds: rlds_cli.Dataset, persistent: bool) -> None:
    whole = [ids(b) for b in load(ds, sampler=Shuffled(), steps=60)]
    loader = load(ds, sampler=Shuffled(), steps=20)
    batches = feed(loader, 2, persistent_workers=persistent)
    assert [ids(b) for b in batches] == whole[:20]
    loader.seek(45)
    assert [ids(b) for b in batches] == whole[45:60]
    loader.seek(3)
    assert [ids(b) for b in batches] == whole[3:20]
    assert [ids(b) for b in batches] == whole[20:40]
    state = load(ds, sampler=Shuffled(), steps=20)
    state.seek(50)
    loader.load_state_dict(state.state_dict())
    assert [ids(b) for b in batches] == whole[50:60]


@pytest.mark.parametrize("batch_size", [{}, {"batch_size": 2}, {"batch_size": None}])
def test_batches_of_batches_are_warned_of_once(ds: rlds_cli.Dataset, batch_size: dict[str, Any]) -> None:
    batches = DataLoader(load(ds, steps=4).as_torch(), **batch_size)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        shapes = [[len(b["action"].shape) for b in batches] for _ in range(2)]
    texts = [str(w.message) for w in caught if "rlds" in w.filename or "batches" in str(w.message)]
    if batch_size == {"batch_size": None}:
        assert not texts and shapes == [[2] * 4] * 2
    else:
        assert [text.count("DataLoader(loader.as_torch(), batch_size=None)") for text in texts] == [1]


def test_workers_warn_of_batches_of_batches(ds: rlds_cli.Dataset, capfd: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_, **__: os.write(2, f"{message}\n".encode())
        for _ in range(2):
            list(DataLoader(load(ds, steps=4).as_torch(), batch_size=2, num_workers=2))
    assert capfd.readouterr().err.count("batch_size=None") == 2  # of two loaders, by one of the workers of each


TRAINING = """
import sys, time
import rlds_cli
from rlds_cli.loader import Loader
from torch.utils.data import DataLoader

if __name__ == "__main__":
    loader = Loader(rlds_cli.load(sys.argv[1]), 4_000)  # the pipe holds less than a batch
    feed = DataLoader(loader.as_torch(), batch_size=None, num_workers=2, multiprocessing_context=sys.argv[2])
    batches = iter(feed)
    next(batches)
    print(*(worker.pid for worker in batches._workers), flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_end_with_a_training_that_is_killed(ds: rlds_cli.Dataset, tmp_path: Path, start: str) -> None:
    script = tmp_path / "training.py"
    script.write_text(TRAINING)
    training = subprocess.Popen([sys.executable, str(script), str(ds.path), start], stdout=subprocess.PIPE, text=True)
    assert training.stdout is not None
    workers = [int(pid) for pid in training.stdout.readline().split()]
    assert len(workers) == 2
    training.kill()
    try:
        training.communicate(timeout=60)  # until nobody has the other end of its output any more
    except subprocess.TimeoutExpired:
        for worker in workers:
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
        raise


@pytest.mark.sampled(1)
@pytest.mark.parametrize("workers", [2, 1])
@pytest.mark.parametrize("persistent", [True, False])
def test_a_loop_that_was_broken_off_is_not_gone_on_with(ds: rlds_cli.Dataset, workers: int, persistent: bool) -> None:
    plain = load(ds, sampler=Shuffled())
    passes = [[ids(b) for b in plain] for _ in range(3)]
    batches = feed(load(ds, sampler=Shuffled()), workers, persistent_workers=persistent)
    assert [ids(b) for b in itertools.islice(batches, 2)] == passes[0][:2]
    assert [ids(b) for b in batches] == passes[1]
    assert [ids(b) for b in batches] == passes[2]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("workers", [2, 1])
def test_loops_without_an_end_are_epochs(ds: rlds_cli.Dataset, workers: int) -> None:
    batches = feed(load(ds), workers)
    for epoch in range(3):
        plain = load(ds)
        plain.set_epoch(epoch)
        assert [ids(b) for b in itertools.islice(batches, 5)] == [ids(b) for b in itertools.islice(plain, 5)]


def test_without_workers_the_loader_counts(ds: rlds_cli.Dataset) -> None:
    loader = load(ds, steps=10)
    for n, _ in enumerate(feed(loader, 0), 1):
        assert loader.step == n


def test_two_feeds_of_one_loader_are_apart(ds: rlds_cli.Dataset) -> None:
    loader = load(ds, sampler=Shuffled())
    first, second = feed(loader, 1), feed(loader, 2)
    plain = load(ds, sampler=Shuffled())
    passes = [[ids(b) for b in plain] for _ in range(2)]
    assert [ids(b) for b in first] == passes[0]
    assert [ids(b) for b in second] == passes[0]
    assert [ids(b) for b in first] == passes[1]


# -- what crosses


@pytest.mark.sampled(2)
@pytest.mark.parametrize("by_pipe", [0, 1 << 20])
@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_batches_are_the_receivers_own(
    ds: rlds_cli.Dataset, by_pipe: int, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writable, contiguous, and none overlaps another; NumPy arrays become tensors, as DataLoader does it."""
    monkeypatch.setattr(torch_loader, "BY_PIPE", by_pipe)
    made = list(feed(load(ds, sampler=Shuffled(), backend=backend), 2))
    expected = [b.clone() for b in load(ds, sampler=Shuffled())]
    for batch in made:
        for _, x in batch.leaves():
            assert isinstance(x, torch.Tensor) and x.is_contiguous()
    for i, (_, x) in enumerate(made[3].leaves()):
        x.fill_(i % 2)
    for n in (0, 1, 2, 4, 5):
        check_equal(made[n], expected[n])
    assert [bool((x == i % 2).all()) for i, (_, x) in enumerate(made[3].leaves())] == [True] * len(made[3].names())


def test_collate_functions_get_batches(ds: rlds_cli.Dataset) -> None:
    expected = [b["next", "observation"] for b in load(ds, sampler=Shuffled())]
    for workers in (0, 2):
        got = list(feed(load(ds, sampler=Shuffled()), workers, collate_fn=_next_observation))
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    arrays = feed(load(ds, sampler=Shuffled(), backend="numpy"), 2, collate_fn=_same)
    for a, b in zip(arrays, load(ds, sampler=Shuffled(), backend="numpy"), strict=True):
        check_equal(a, b)
        assert a["observation"].flags.writeable


@pytest.mark.parametrize("workers", [0, 1])
def test_arrays_of_functions_become_tensors(ds: rlds_cli.Dataset, workers: int) -> None:
    loader = load(ds, sampler=Sequential(), transform=_with_numbers)
    for batch in feed(loader, workers):
        assert torch.equal(batch["numbers"], torch.arange(len(batch["observation"])))
    (whole,) = feed(load(ds, len(ds), sampler=Sequential(), backend="numpy"), 0)
    assert all(isinstance(x, torch.Tensor) for _, x in whole.leaves())


def _with_numbers(batch: Any) -> None:
    batch["numbers"] = np.arange(len(batch["observation"]))


def _next_observation(batch: Any) -> Any:
    return batch["next", "observation"]


def _same(batch: Any) -> Any:
    return batch


@pytest.mark.parametrize("by_pipe", [0, 1 << 20])
def test_anything_that_a_function_puts_into_a_batch(by_pipe: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_loader, "BY_PIPE", by_pipe)
    batch = Batch.nest(
        {
            "empty": torch.zeros(4, 0),
            "turned": torch.arange(12.0).reshape(3, 4).T,
            "gradient": torch.ones(2, requires_grad=True),
            "deep/er/flag": np.array([True, False]),
            "text": np.array(["go", None], object),
            "number": 3.5,
            "half": torch.tensor([1.5, 2], dtype=torch.bfloat16),
            "wide": np.arange(3, dtype=np.uint16),
            "one": torch.tensor(7),
        }
    )
    again = pickle.loads(multiprocessing.reduction.ForkingPickler.dumps(PackedBatch(batch)))
    assert type(again) is Batch and type(again["deep"]) is Batch and again.names() == batch.names()
    for name, x in batch.leaves():
        y = again[name]
        assert type(x) is type(y), name
        if isinstance(x, torch.Tensor):
            assert x.dtype == y.dtype and torch.equal(x, y) and y.is_contiguous()
        elif isinstance(x, np.ndarray):
            assert x.dtype == y.dtype and x.tolist() == y.tolist()
        else:
            assert x == y
    assert type(pickle.loads(pickle.dumps(PackedBatch()))) is Batch


# -- what cannot be, and what fails


def refusal(loader: Loader, workers: int = 1) -> str:
    """What a loop over batches raises, as text."""
    try:
        for _ in feed(loader, workers):
            pass
    except (InvalidArgument, RuntimeError) as e:
        traceback.clear_frames(e.__traceback__)  # torch's refer to themselves: workers would wait for a collection
        return str(e)
    raise AssertionError("nothing was refused")


@pytest.mark.thorough
def test_priorities_are_not_learned_by_workers(ds: rlds_cli.Dataset) -> None:
    said = refusal(load(ds, sampler=Prioritized()))
    assert "would not learn of priorities" in said and "num_workers=0" in said
    loader = load(ds, sampler=Prioritized(), steps=5)
    for batch in feed(loader, 0):
        loader.update_priorities(batch, np.ones(4))


@pytest.mark.thorough
def test_devices_are_left_to_the_training_process(ds: rlds_cli.Dataset) -> None:
    said = refusal(load(ds, device="meta"))
    assert "batches come from another process" in said and "batch.to(device)" in said


@pytest.mark.thorough
def test_an_error_in_a_worker_reaches_the_loop(ds: rlds_cli.Dataset) -> None:
    assert "episode 2 in worker" in refusal(load(ds, sampler=Sequential(), transform=_fail_at_episode_2), 2)


def _fail_at_episode_2(batch: Any) -> None:
    if (batch["episode"] == 2).any():
        raise RuntimeError("episode 2 in worker")


def test_length_of_a_loop_without_an_end(ds: rlds_cli.Dataset) -> None:
    assert len(feed(load(ds, steps=7), 2)) == 7
    with pytest.raises(TypeError, match="endless"):
        len(feed(load(ds), 2))


# -- other ways to start workers


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_started_afresh(ds: rlds_cli.Dataset, method: str) -> None:
    """They open the dataset anew: only what the loader was made of is handed over."""
    plain = load(ds, sampler=Shuffled(), rank=1, world_size=2, fields=[..., "episode", "step", "text"])
    expected = [[ids(b) for b in plain] for _ in range(2)]
    loader = load(ds, sampler=Shuffled(), rank=1, world_size=2, fields=[..., "episode", "step", "text"])
    batches = feed(loader, 2, multiprocessing_context=method)
    assert [[ids(b) for b in batches] for _ in range(2)] == expected


def test_a_loader_that_is_pickled_goes_on_where_it_is(ds: rlds_cli.Dataset) -> None:
    loader = load(ds, sampler=Shuffled())
    list(itertools.islice(loader, 4))
    batches = pickle.loads(pickle.dumps(loader.as_torch()))
    whole: Callable[[], list[Any]] = lambda: [ids(b) for b in loader]  # noqa: E731
    assert [ids(b) for b in batches] == whole()
