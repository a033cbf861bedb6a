"""Columns of the episode table in batches, against the table itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_growing_compacting import episode as recorded

import rlds_cli
from rlds_cli import create
from rlds_cli.dataset import Dataset
from rlds_cli.errors import InvalidArgument, UnknownField
from rlds_cli.loader import (
    Episode,
    Loader,
    Member,
    Mixture,
    Offsets,
    Prioritized,
    Sequential,
    Shuffled,
    Slice,
    Transition,
    Uniform,
    Weighted,
)

LENGTHS = [3, 6, 2, 5, 9, 4]
NUMPY: dict[str, Any] = {"backend": "numpy"}
OWN = ("episode/task", "episode/success", "episode/trial", "episode/speed")
TED = ("episode/length", "episode/end", "episode/total_reward", "episode/number")


def about(k: int) -> dict[str, Any]:
    return {"task": "lift" if k % 2 else "press", "success": k > 2, "trial": 10 + k, "speed": k / 3}


def write(name: str, columns: Any = about, lengths: list[int] = LENGTHS) -> Dataset:
    return create(
        name,
        (
            {
                "observation": np.full((t + 1, 2), k, np.float32),
                "action": np.full((t, 1), k, np.float32),
                "next": {"reward": np.arange(t, dtype=np.float32), "terminated": True},
                "episode": columns(k),
            }
            for k, t in enumerate(lengths)
        ),
    )


@pytest.fixture
def ds() -> Dataset:
    return write("local/x")


SAMPLERS = [Uniform(), Uniform(by="episode"), Shuffled(), Sequential(), Weighted("total_reward"), Prioritized()]
WINDOWS = [Transition(), Transition(n_step=3), Slice(2), Slice(3, after=2), Offsets({"action": (-1, 0, 1)}), Episode()]


def check(batch: Any, numbers: Any) -> None:
    """Compare every own column with `about` and those of TED with the lengths, at the episodes ``numbers`` [...]."""
    k = np.asarray(numbers)
    want = np.vectorize(lambda k, n: about(k)[n], otypes=[object])
    assert np.array_equal(batch["episode/task"], want(k, "task"))
    assert batch["episode/task"].dtype == object
    assert batch["episode/success"].dtype == bool
    assert np.array_equal(batch["episode/success"], k > 2)
    assert batch["episode/trial"].dtype == np.int64
    assert np.array_equal(batch["episode/trial"], 10 + k)
    assert batch["episode/speed"].dtype == np.float32
    assert np.array_equal(batch["episode/speed"], (k / 3).astype(np.float32)[..., None])
    lengths = np.array(LENGTHS)[k]
    assert np.array_equal(batch["episode/length"], lengths)
    assert np.array_equal(batch["episode/number"], k)
    assert (batch["episode/end"] == "terminated").all()
    assert np.allclose(batch["episode/total_reward"], (lengths * (lengths - 1) / 2)[..., None])


@pytest.mark.sampled(7)
@pytest.mark.parametrize("window", WINDOWS, ids=repr)
@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_every_sampler_and_window_gives_the_values_of_the_episode(ds, sampler, window):
    loader = Loader(ds, 4, window=window, sampler=sampler, fields=[..., *OWN, *TED], steps=6, **NUMPY)
    for batch in loader:
        observation = batch["observation"]
        numbers = observation[..., 0].astype(int)
        check(batch, numbers)
        if window.masked:
            assert batch["mask"].shape == numbers.shape


@pytest.mark.thorough
def test_a_selection_has_its_own_numbers(ds):
    some = ds.select(episodes=[4, 1])
    for batch in Loader(some, 4, sampler=Shuffled(), fields=[..., "episode/trial", "episode/number"], **NUMPY):
        k = batch["observation"][:, 0].astype(int)
        assert np.array_equal(batch["episode/trial"], 10 + k)
        assert np.array_equal(batch["episode/number"], np.where(k == 4, 0, 1))


def sparse(k: int) -> dict[str, Any]:
    return {n: v for i, (n, v) in enumerate(about(k).items()) if (k + i) % 4} | {"seed_of_mine": k}


@pytest.mark.thorough
@pytest.mark.parametrize("window", WINDOWS, ids=repr)
def test_missing_values_are_zeros_and_masked(window):
    ds = write("local/sparse", sparse)
    extra = (*OWN, "episode/seed_of_mine")
    for batch in Loader(ds, 4, window=window, fields=[..., *extra], steps=5, seed=3, **NUMPY):
        numbers = batch["observation"][..., 0].astype(int)
        for name in ("task", "success", "trial", "speed"):
            values, known = batch["episode", name], batch["mask", "episode", name]
            assert known.shape == numbers.shape
            values = values[..., 0] if name == "speed" else values
            for k, value, there in zip(numbers.ravel(), values.ravel(), known.ravel(), strict=True):
                assert there == (name in sparse(k))
                filler = None if name == "task" else 0
                assert (
                    value == (np.float32(sparse(k)[name]) if name == "speed" else sparse(k)[name])
                    if there
                    else value == filler
                )
        assert "seed_of_mine" not in batch["mask"]["episode"]
        if window.masked:
            assert batch["mask", "step"].shape == numbers.shape
            assert batch.tensordict().batch_size == numbers.shape


@pytest.mark.thorough
def test_torch_and_jax_get_texts_as_objects(ds):
    torch = pytest.importorskip("torch")
    batch = next(iter(Loader(ds, 4, fields=[..., *OWN])))
    assert batch["episode/success"].dtype == torch.bool
    assert batch["episode/speed"].shape == (4, 1)
    assert isinstance(batch["episode/task"], np.ndarray)
    kept = next(iter(Loader(ds, 4, fields=[..., *OWN], memory="device", device="cpu")))
    assert {n: kept["episode", n].dtype for n in ("success", "trial")} == {"success": torch.bool, "trial": torch.int64}


def test_names_that_do_not_exist_or_collide_are_refused(ds):
    with pytest.raises(UnknownField, match=r'no field "episode/tsk" in local/x. Did you mean "episode/task"\?'):
        Loader(ds, 2, fields=[..., "episode/tsk"])
    with pytest.raises(InvalidArgument, match='"episode" and "episode/task": a field cannot be a group') as failed:
        Loader(ds, 2, fields=[..., "episode", "episode/task"])
    assert '"episode/number"' in failed.value.hint


def test_a_mixture_needs_a_column_in_every_member_or_masks_it(ds):
    plain = write("local/plain", lambda k: {"task": "none"})
    gaps = write("local/gaps", lambda k: {"trial": 50 + k} if k % 2 else {})
    batch = next(iter(Loader(Mixture({"a": ds, "b": plain}), 8, fields=[..., "episode/task"], **NUMPY)))
    want = [
        "none" if s else about(int(k))["task"] for s, k in zip(batch["source"], batch["observation"][:, 0], strict=True)
    ]
    assert batch["episode/task"].tolist() == want
    with pytest.raises(UnknownField, match='b: no field "episode/trial" in local/plain'):
        Loader(Mixture({"a": ds, "b": plain}), 8, fields=[..., "episode/trial"], **NUMPY)
    for window in (Transition(), Slice(3, after=2), Episode()):
        mixture = Mixture({"a": Member(ds), "b": Member(plain), "c": Member(gaps)}, missing="zero")
        seen = set()
        for batch in Loader(mixture, 12, window=window, fields=[..., "episode/trial"], seed=1, steps=4, **NUMPY):
            numbers, source = batch["observation"][..., 0].astype(int), batch["source"]
            known = (source == 0) | ((source == 2) & (numbers % 2 == 1))
            assert np.array_equal(batch["mask", "episode", "trial"], known)
            assert np.array_equal(batch["episode/trial"], np.where(known, np.where(source == 0, 10, 50) + numbers, 0))
            seen |= set(np.unique(source).tolist())
            if window.masked:
                assert batch["mask", "step"].shape == numbers.shape
        assert seen == {0, 1, 2}


def test_a_live_loader_gives_columns_of_new_episodes():
    def add(first, last, **about):
        with rlds_cli.writer("local/run") as w:
            w.add_episodes({**recorded(k), "episode": about} for k in range(first, last))

    add(0, 4, task="a", trial=1)
    loader = Loader(
        "local/run", 16, fields=[..., "episode/task", "episode/trial", "episode/number"], live=True, **NUMPY
    )
    batches = iter(loader)
    first = next(batches)
    assert set(first["episode/task"]) == {"a"}
    assert first["mask", "episode", "trial"].all()
    add(4, 8, task="b")
    for _ in range(2000):
        batch = next(batches)
        new = batch["episode/number"] >= 4
        assert np.array_equal(batch["episode/task"], np.where(new, "b", "a").astype(object))
        assert np.array_equal(batch["mask", "episode", "trial"], ~new)
        if new.any():
            break
    assert new.any()
