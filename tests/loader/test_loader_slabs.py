"""Batches that are made in C: of the same values as those made in Python, with memory that outlives what made it."""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from loader_data import create, episode

import rlds_cli
from rlds_cli.dataset import Batch
from rlds_cli.loader import (
    Episode,
    Goals,
    Loader,
    Mixture,
    Normalize,
    Offsets,
    Pairs,
    Prioritized,
    ReturnToGo,
    Sequential,
    Shuffled,
    Slice,
    Transition,
    slabs,
)

FIELDS = ["observation", "action", "info", "next"]
Make = Callable[..., Loader]


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rlds_cli.Dataset]:
    with pytest.MonkeyPatch.context() as env:
        env.setenv("RLDS_HOME", str(tmp_path_factory.mktemp("home")))
        yield create([episode(0, 40), episode(1, 25, end="truncated", inner=(7,)), episode(2, 9, observed=False)])


def of(size: int = 6, **how: Any) -> Make:
    def make(ds: rlds_cli.Dataset, **more: Any) -> Loader:
        return Loader(ds, size, **{"fields": FIELDS, "steps": 9, "seed": 3, **how, **more})

    return make


def mixed(**how: Any) -> Make:
    def make(ds: rlds_cli.Dataset, **more: Any) -> Loader:
        return of(**how)(Mixture({"a": ds, "b": ds.select(episodes=np.array([0, 1]))}), **more)

    return make


def normalised(ds: rlds_cli.Dataset, **more: Any) -> Loader:
    return of(transform=Normalize(ds))(ds, **more)


KINDS: dict[str, Make] = {
    "transitions": of(),
    "as stored": of(dtype=None),
    "half floats": of(dtype="float16"),
    "with text": of(fields=None),
    "shuffled": of(sampler=Shuffled()),
    "with a smaller last batch": of(50, sampler=Sequential(), steps=None),
    "normalised": normalised,
    "a function": of(transform=lambda batch: batch.map(lambda x: x[::2])),
    "n-step": of(window=Transition(n_step=3, gamma=0.9)),
    "slices": of(window=Slice(5)),
    "slices beyond their episodes": of(window=Slice(12, before=3, after=11)),
    "offsets": of(window=Offsets({"observation": range(-2, 1), "action": range(4)})),
    "episodes": of(2, window=Episode()),
    "pairs": of(sampler=Pairs(), window=Slice(4)),
    "goals": of(fields=[*FIELDS, Goals("goal", current=0.2, future=0.5, random=0.3)]),
    "goals of slices": of(fields=[*FIELDS, Goals("goal")], window=Slice(5)),
    "returns and numbers": of(fields=[*FIELDS, ReturnToGo(), "index", "episode", "step"]),
    "prioritised": of(sampler=Prioritized()),
    "prioritised slices": of(sampler=Prioritized(), window=Slice(5)),
    "read ahead": of(prefetch=2),
    "a mixture": mixed(),
    "a mixture of slices": mixed(window=Slice(5), fields=[*FIELDS, "probability"]),
    "a prioritised mixture": mixed(sampler=Prioritized()),
}


def batches_of(loader: Loader) -> list[list[tuple[Any, ...]]]:
    """All batches as plain values; training reports priorities, and overwrites what it was given."""
    found = []
    for batch in loader:
        found.append([(name, type(x), x.dtype, x.shape, np.asarray(x).tolist()) for name, x in batch.leaves()])
        assert all(type(x) is Batch for x in batch.values() if isinstance(x, dict))
        if "window" in batch:
            loader.update_priorities(batch, np.arange(1.0, 1.0 + len(batch["observation"])))
        for _, x in batch.leaves():
            x[...] = 0
    return found


@pytest.mark.parametrize("missing", ["_native", "_new_tensor"])
@pytest.mark.parametrize("backend", ["torch", "numpy"])
@pytest.mark.parametrize("kind", KINDS)
def test_batches_made_in_c_are_those_made_in_python(
    ds: rlds_cli.Dataset, kind: str, backend: str, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the library; and with a torch that has no function for it."""
    in_c = batches_of(KINDS[kind](ds, backend=backend))
    monkeypatch.setattr(slabs, missing, lambda: None)
    assert batches_of(KINDS[kind](ds, backend=backend)) == in_c


# -- memory


@pytest.fixture(params=["in C", "in Python"])
def batches(request: pytest.FixtureRequest, ds: rlds_cli.Dataset, monkeypatch: pytest.MonkeyPatch) -> Iterator[Batch]:
    """Batches of tensors, whose loader nothing else refers to."""
    if request.param == "in Python":
        monkeypatch.setattr(slabs, "_native", lambda: None)
    return iter(of(steps=None, dtype=None)(ds))


def test_a_tensor_is_saved_without_the_others_of_its_batch(batches: Iterator[Batch]) -> None:
    batch = next(batches)
    for name, x in batch.leaves():
        assert x.untyped_storage().nbytes() == x.nbytes and x.storage_offset() == 0, name
    file = io.BytesIO()
    torch.save(batch["observation"], file)
    file.seek(0)
    assert torch.equal(torch.load(file), batch["observation"])


def test_a_batch_outlives_its_loader_and_is_pickled(batches: Iterator[Batch]) -> None:
    kept, copies = [], []
    for batch in islice(batches, 30):
        kept.append(batch)
        copies.append(pickle.dumps(batch))
    del batches
    for batch, copied in zip(kept, copies, strict=True):
        for (name, x), (_, y) in zip(batch.leaves(), pickle.loads(copied).leaves(), strict=True):
            assert torch.equal(x, y), name


def test_tensors_of_a_batch_change_apart(batches: Iterator[Batch]) -> None:
    """What autograd has saved of one stays valid when another of the same memory is changed in place."""
    batch = next(batches)
    x, weight = batch["observation"], torch.ones(3, dtype=torch.float64, requires_grad=True)
    loss = (x * weight).sum()
    batch["next", "observation"].zero_()
    loss.backward()
    assert torch.equal(weight.grad, x.sum(0))
    assert {name: y._version for name, y in batch.leaves() if y._version} == {"next/observation": 1}


def test_batches_are_dropped_by_other_threads(batches: Iterator[Batch]) -> None:
    passed: list[tuple[torch.Tensor, list[Any]]] = []

    def drop() -> None:
        for _ in range(300):
            while passed:
                x, values = passed.pop()
                assert x.tolist() == values
        finished.append(1)

    finished: list[int] = []
    thread = threading.Thread(target=drop)
    thread.start()
    passed.extend((batch["observation"], batch["observation"].tolist()) for batch in islice(batches, 300))
    thread.join()
    assert finished and all(x.tolist() == values for x, values in passed)


def test_dtypes_and_shapes_that_c_does_not_know_are_made_in_python() -> None:
    for dtype, shape in [(">f4", (2,)), ("M8[s]", ()), ("S3", (1,)), ("f4", (1,) * 14)]:
        made = slabs.Slabs([(np.dtype(dtype), shape)])
        ((values,),), (at,) = made.take((3,), 1)
        assert not made.compiled
        assert (values.dtype, values.shape, values.ctypes.data) == (np.dtype(dtype), (3, *shape), at)


@pytest.mark.skipif(not slabs.LIBRARY.exists(), reason="not compiled: make kernel")
def test_arrays_and_tensors_are_made_in_c() -> None:
    kinds = [(np.dtype(dtype), (2,)) for dtype in ("?", "u1", "i1", "i2", "u2", "i4", "i8", "f2", "f4", "f8", "c8")]
    assert slabs.Slabs(kinds).compiled
    tensors = slabs.Slabs(kinds, wrap=torch.from_numpy)
    assert tensors.compiled == hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
    for lead in [(3,), (0,), (2, 4)]:
        made, places = tensors.take(lead, 2)
        assert [x.data_ptr() for batch in made for x in batch] == list(places) or not np.prod(lead)
        assert [x.shape for x in made[1]] == [(*lead, 2)] * len(kinds)
        assert len({*places}) == len(places) or not np.prod(lead)
