"""Batches of every window as TensorDicts, and what else a batch can be turned into."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from loader_data import Known, create, episode

import rlds_cli
from rlds_cli.dataset.batch import Batch
from rlds_cli.errors import InvalidArgument
from rlds_cli.loader import Episode, Loader, Offsets, Prioritized, Sequential, Shuffled, Slice, Transition

tensordict = pytest.importorskip("tensordict")

KNOWN = [episode(k, 6 + k, observed=k % 2 == 0, inner=(2,)) for k in range(4)]
FLAGS = ("done", "terminated", "truncated")
SIZES = [
    (Transition(), (3,)),
    (Transition(3), (3,)),
    (Slice(4), (3, 4)),
    (Slice(4, before=2, after=3, fill="zero"), (3, 4)),
    (Offsets({"observation": (-1, 0), "action": range(3)}), (3,)),
    (Offsets({"observation": (0,), "next/reward": (0, 1)}), (3,)),
    (Episode(), (3, 9)),
    (Episode(max_length=7), (3, 7)),
]


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rlds_cli.Dataset]:
    with pytest.MonkeyPatch.context() as env:
        env.setenv("RLDS_HOME", str(tmp_path_factory.mktemp("home")))
        yield create(KNOWN)


def first(ds: rlds_cli.Dataset, **options: Any) -> Batch:
    loader = Loader(ds, 3, **{"sampler": Shuffled(), "steps": 3, "fields": [..., "episode", "step"], **options})
    return next(iter(loader))


@pytest.mark.thorough
@pytest.mark.parametrize(("window", "size"), SIZES)
@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_every_window(ds: rlds_cli.Dataset, window: Any, size: tuple[int, ...], backend: Any) -> None:
    batch = first(ds, window=window, backend=backend, fields=[..., "episode", "step", "text"])
    td = batch.tensordict()
    assert tuple(td.batch_size) == size and td.device == torch.device("cpu")
    for flag in FLAGS:
        assert td[flag].shape == (*size, 1) and td[flag].dtype == torch.bool and not td[flag].any()
    for name, x in batch.leaves():
        key = tuple(name.split("/"))
        if name == "text":
            assert td[key] == x.tolist()
        else:
            assert td[key].shape == x.shape and np.array_equal(td[key].numpy(), np.asarray(x)), name
    assert td.reshape(-1).batch_size.numel() == int(np.prod(size))


def test_the_mask_of_offsets_is_nested(ds: rlds_cli.Dataset) -> None:
    td = first(ds, window=Offsets({"observation": (-1, 0), "action": range(3)})).tensordict()
    assert td["mask", "observation"].shape == (3, 2) and td["mask", "action"].shape == (3, 3)
    assert td["mask", "next", "observation"].shape == (3, 2) and td["observation"].shape == (3, 2, 3)


def test_rows_of_a_tensordict_are_steps_of_the_data(ds: rlds_cli.Dataset) -> None:
    td = first(ds, window=Slice(4, after=3)).tensordict()
    for row in td[td["mask"]]:
        known: Known = KNOWN[int(row["episode"])]
        t = int(row["step"])
        assert np.allclose(row["observation"], known.observation[t]) and np.allclose(row["action"], known.action[t])
        assert bool(row["next", "done"]) == bool(known.terminated[t] or known.truncated[t])
        assert np.allclose(row["next", "reward"], known.reward[t])


def test_root_flags_that_were_asked_for_stay(ds: rlds_cli.Dataset) -> None:
    td = first(ds, fields=[..., "done", "terminated"]).tensordict()
    assert all(td[flag].shape == (3, 1) and not td[flag].any() for flag in FLAGS)


def test_few_fields(ds: rlds_cli.Dataset) -> None:
    td = first(ds, fields=["observation"]).tensordict()
    assert set(td.keys()) == {"observation", *FLAGS} and tuple(td.batch_size) == (3,)
    td = first(ds, fields=["observation"], window=Slice(3)).tensordict()
    assert set(td.keys()) == {"observation", "mask", *FLAGS} and tuple(td.batch_size) == (3, 3)
    text = first(ds, fields=["text"]).tensordict()
    assert tuple(text.batch_size) == (3,) and set(text.keys()) == {"text", *FLAGS}


def test_tensors_stay_on_their_device(ds: rlds_cli.Dataset) -> None:
    batch = first(ds, fields=[..., "text"]).to("meta")
    batch["more"] = np.zeros((3, 1), np.float32)
    td = batch.tensordict()
    assert td.device == torch.device("meta") and td["observation"].device.type == td["more"].device.type == "meta"


def test_an_episode_of_a_dataset(ds: rlds_cli.Dataset) -> None:
    td = ds.episode(1).tensordict()
    assert tuple(td.batch_size) == (7,) and td["next", "terminated"].shape == (7, 1)


# -- what TorchRL's losses read, see test_loader_torchrl.py for the losses


@pytest.mark.thorough
@pytest.mark.parametrize("n", [1, 2, 5])
def test_n_step_transitions_say_how_many_steps_they_sum_up(ds: rlds_cli.Dataset, n: int) -> None:
    loader = Loader(ds, len(ds), sampler=Sequential(), window=Transition(n, 0.9), fields=[..., "episode", "step"])
    td = next(iter(loader)).tensordict()
    if n == 1:
        assert "steps_to_next_obs" not in td.keys()  # noqa: SIM118  (losses take 1)
        return
    expected = [KNOWN[k].n_step(t, n, 0.9)[1] for k, t in zip(td["episode"], td["step"], strict=True)]
    assert td["steps_to_next_obs"].tolist() == [[k] for k in expected] and set(expected) >= {1, 2, n}
    np.testing.assert_allclose(td["next", "discount"].numpy(), 0.9 ** td["steps_to_next_obs"].numpy(), rtol=1e-6)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("window", [Transition(), Transition(3), Slice(4, after=3), Episode()])
@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_prioritised_batches_have_the_weights_and_numbers_of_their_samples(
    ds: rlds_cli.Dataset, window: Any, backend: Any
) -> None:
    loader = Loader(ds, 5, window=window, sampler=Prioritized(priority="length"), backend=backend)
    batch = next(iter(loader))
    td = batch.tensordict()
    size = tuple(td.batch_size)
    assert td["priority_weight"].shape == td["index"].shape == size and batch["weight"].shape == (*size, 1)
    assert np.array_equal(td["priority_weight"].numpy(), np.asarray(batch["weight"])[..., 0])
    for i in np.ndindex(*size):
        if td["index"][i] >= 0 and ("mask" not in batch or batch["mask"][i]):
            np.testing.assert_allclose(td["observation"][i], ds[int(td["index"][i])]["observation"], rtol=1e-6)
    before = loader.state_dict()["priorities"]["masses"]
    loader.update_priorities(td, torch.full((5,), 50.0))  # the TensorDict will do
    after = loader.state_dict()["priorities"]["masses"]
    changed = td["window"].reshape(5, -1)[:, 0].unique()
    torch.testing.assert_close(after[changed], torch.full(changed.shape, (50 + 1e-6) ** 0.6, dtype=torch.float64))
    assert int((after != before).sum()) == len(changed)


def test_a_tensordict_without_windows_updates_nothing(ds: rlds_cli.Dataset) -> None:
    loader = Loader(ds, 5, sampler=Prioritized())
    with pytest.raises(InvalidArgument, match=r"no 'window'.*observation"):
        loader.update_priorities(first(ds).tensordict(), torch.ones(3))


def test_no_other_sampler_gives_weights(ds: rlds_cli.Dataset) -> None:
    assert "priority_weight" not in first(ds).tensordict().keys()  # noqa: SIM118


# -- the other ways out of a batch


@pytest.mark.parametrize(("window", "size"), SIZES)
def test_every_window_in_other_forms(ds: rlds_cli.Dataset, window: Any, size: tuple[int, ...]) -> None:
    batch = first(ds, window=window, fields=[..., "episode", "step", "text"])
    arrays = batch.numpy()
    back, cloned = arrays.to("cpu"), batch.clone()
    for form in (arrays, back, cloned, batch.map(lambda x: x)):
        assert type(form) is Batch and form.names() == batch.names()
    for name, x in batch.leaves():
        if name == "text":
            assert cloned[name] is not x and cloned[name].tolist() == x.tolist()
            continue
        assert isinstance(arrays[name], np.ndarray) and arrays[name].shape == x.shape, name
        assert torch.equal(back[name], x) and torch.equal(cloned[name], x) and cloned[name].data_ptr() != x.data_ptr()
    s, a, r, s2, d = batch.sarsd()
    assert s is batch["observation"] and a is batch["action"] and r is batch["next", "reward"]
    assert s2 is batch["next", "observation"] and d.dtype == r.dtype
    assert torch.equal(d.bool(), batch["next", "terminated"])


def test_a_clone_outlives_the_gather(ds: rlds_cli.Dataset) -> None:
    loader = Loader(ds, 3, sampler=Sequential(), steps=8)
    kept = [b.clone() for b in loader]
    whole = torch.cat([b["observation"] for b in kept])
    assert whole.untyped_storage().nbytes() == whole.nbytes
    assert all(b["observation"].untyped_storage().nbytes() == b["observation"].nbytes for b in kept)


@pytest.mark.thorough
def test_arrays_of_jax_go_by_numpy(ds: rlds_cli.Dataset) -> None:
    pytest.importorskip("jax")
    batch = first(ds, backend="jax", window=Slice(4))
    with pytest.raises(InvalidArgument, match="torch tensors") as e:
        batch.tensordict()
    assert "batch.numpy()" in str(e.value)
    assert tuple(batch.numpy().tensordict().batch_size) == (3, 4)
