"""What other libraries have and rlds calls otherwise: the message says what to write."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from loader_data import create, episode

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.dataset import batch
from rlds_cli.dataset.batch import Batch
from rlds_cli.errors import InvalidArgument, UnknownField
from rlds_cli.loader import Episode, Loader, Normalize, Shuffled

Names = dict[str, Any]


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rlds_cli.Dataset]:
    with pytest.MonkeyPatch.context() as env:
        env.setenv("RLDS_HOME", str(tmp_path_factory.mktemp("home")))
        yield create([episode(k, 6) for k in range(3)])


@pytest.fixture
def things(ds: rlds_cli.Dataset) -> Names:
    loader = Loader(ds, 4, backend="numpy")
    return {"ds": ds, "loader": loader, "batch": next(iter(loader))}


@pytest.mark.parametrize(
    ("what", "name", "code"),
    [
        ("ds", "sample", "batches = iter(Loader(ds, 256)) once"),
        ("ds", "extend", 'rlds_cli.create("local/NAME", episodes)'),
        ("ds", "preprocess", "rlds_cli.preprocess.run(ds, function"),
        ("ds", "iterate_episodes", "for k in range(ds.num_episodes): episode = ds.episode(k)"),
        ("loader", "sample", "batches = iter(loader) once"),
        ("loader", "update_priority", "loader.update_priorities(batch, priority)"),
        ("batch", "observation", 'batch["observation"]'),
        ("batch", "next", 'batch["next"]'),
        ("batch", "reshape", "batch.tensordict().reshape(-1)"),
    ],
)
def test_the_message_says_what_to_write(things: Names, what: str, name: str, code: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{name}'") as e:
        getattr(things[what], name)
    assert f"hint: {code}" in str(e.value)
    assert not hasattr(things[what], name) and getattr(things[what], name, 3) == 3


def test_lines_of_code_that_are_suggested_run(things: Names) -> None:
    scope = {**things, "Loader": Loader, "Shuffled": Shuffled, "Episode": Episode}
    names = ("iterate_episodes", "total_steps", "total_episodes", "keys", "shuffle", "filter")
    lines = [batch.DATASET[name] for name in names]
    lines += [table["sample"].split(" once")[0] for table in (batch.DATASET, batch.LOADER)]
    lines += [batch.DATASET["sample_episodes"].split(" once")[0], *batch.BATCH.values()]
    for line in lines:
        if not line.startswith("Loader(...") and "cuda" not in line:
            exec(line, {**scope, "values": np.zeros(4)})


def test_other_names_are_said_as_ever(things: Names) -> None:
    for thing in things.values():
        with pytest.raises(AttributeError, match=r"no attribute 'samples'$"):
            _ = thing.samples
        assert not hasattr(thing, "__array__") and not hasattr(thing, "pin_memory")
        for again in (copy.copy(thing), copy.deepcopy(thing), pickle.loads(pickle.dumps(thing))):
            assert type(again) is type(thing)


def test_an_error_inside_a_property_is_not_hidden() -> None:
    class Broken(rlds_cli.Dataset):
        @property
        def sample(self) -> int:
            return self.store.nothing_like_it  # type: ignore[attr-defined, no-any-return]

    broken = Broken.__new__(Broken)
    object.__setattr__(broken, "store", 3)
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = broken.sample


@pytest.mark.parametrize("key", [0, -1, (0, 1), None, 2.5])
def test_a_batch_is_indexed_by_names(things: Names, key: Any) -> None:
    batch: Batch = things["batch"]
    with pytest.raises(UnknownField, match="names of fields") as e:
        batch[key]
    assert 'batch["observation"][0]' in str(e.value)
    assert key not in batch and batch.get(key) is None and batch.get(key, 7) == 7
    one = batch.map(lambda x: x[0])  # as the message says
    assert np.array_equal(one["next", "observation"], batch["next/observation"][0])


class TensorDictModule:
    """What TorchRL's transforms and tensordict's modules have in common."""

    in_keys = out_keys = ("observation",)

    def __call__(self, td: Any) -> Any:
        return td


@pytest.mark.parametrize(
    ("transform", "says"),
    [
        (TensorDictModule(), "td = transform(batch.tensordict())"),
        ([np.abs, TensorDictModule()], "td = transform(batch.tensordict())"),
        (Normalize, "transform=Normalize(...)"),
        ("normalise", "neither a transform nor a function"),
        (preprocess.normalise, 'rlds_cli.preprocess.run(ds, "normalise")'),
        ([3], "transform=3 is neither"),
    ],
)
def test_what_is_no_transform_of_a_batch(ds: rlds_cli.Dataset, transform: Any, says: str) -> None:
    with pytest.raises(InvalidArgument) as e:
        Loader(ds, 4, transform=transform)
    assert says in str(e.value)
