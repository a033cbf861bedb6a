"""What other libraries have and rlds calls otherwise: the message says what to write."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
import warnings
from collections.abc import Iterator
from functools import reduce
from typing import Any

import numpy as np
import pytest
from loader_data import create, episode

import rlds_cli
from rlds_cli import loader as loading
from rlds_cli import preprocess
from rlds_cli.base import counterparts
from rlds_cli.dataset.batch import Batch
from rlds_cli.errors import InvalidArgument, UnknownField
from rlds_cli.interop import d3rlpy, d4rl, minari
from rlds_cli.loader import Episode, Loader, Mixture, Normalize, Shuffled, Slice

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


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("what", "name", "code"),
    [
        ("ds", "sample", "batches = iter(Loader(ds, 256)) once"),
        ("ds", "extend", "rlds_cli.append(ID, FILES)"),
        ("ds", "preprocess", 'ds.map(function, "name")'),
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


MODULES = {"minari": minari, "d4rl": d4rl, "d3rlpy": d3rlpy}
TABLES = {
    "ds": counterparts.DATASET,
    "loader": counterparts.LOADER,
    "batch": counterparts.BATCH,
    "rlds_cli": counterparts.MODULE,
} | {name: module._ELSEWHERE for name, module in MODULES.items()}


def test_every_name_is_answered_with_its_code(things: Names) -> None:
    scope = {**things, **MODULES, "rlds_cli": rlds_cli}
    for what, table in TABLES.items():
        for name, code in table.items():
            with pytest.raises(AttributeError) as told:
                getattr(scope[what], name)
            assert str(told.value).endswith(f"\n  hint: {code}"), (what, name)


def test_the_code_names_what_there_is(things: Names) -> None:
    """Attributes of rlds_cli, of datasets and loaders, and arguments by name."""
    scope = {**things, "rlds_cli": rlds_cli, **{name: getattr(loading, name) for name in loading.__all__}}
    names = "|".join(scope)
    call = rf"(?<![\w.\"'/])((?:{names})(?:\.\w+)*)(?:\(((?:[^()]|\([^()]*\))*)\))?"
    texts = [code for table in (*TABLES.values(), counterparts.LOADER_ARGUMENTS) for code in table.values()]
    seen = set()
    for name, arguments in (found for text in texts for found in re.findall(call, text)):
        if "." not in name and not arguments:
            continue  # a word of a sentence
        first, *path = name.split(".")
        what = reduce(getattr, path, scope[first])
        given = re.findall(r"(\w+)=", re.sub(r"\([^()]*\)", "", arguments))
        if given:
            assert set(given) <= set(inspect.signature(what).parameters), (name, given)
        seen.add(name)
    assert len(seen) > 40


def test_fields_of_other_libraries_are_answered_with_the_field(things: Names) -> None:
    batch: Batch = things["batch"]
    for name, field in counterparts.FIELDS.items():
        if name in batch or field not in batch.names():
            continue
        with pytest.raises(UnknownField) as told:
            batch[name]
        quoted = ", ".join(f'"{part}"' for part in field.split("/"))
        assert told.value.hint == f"batch[{quoted}]", name
    with pytest.raises(AttributeError, match=r'hint: batch\["observation"\]'):
        _ = batch.obs


def test_ipython_completes_the_names_of_fields(things: Names) -> None:
    batch: Batch = things["batch"]
    assert batch._ipython_key_completions_() == batch.names()
    completer = pytest.importorskip("IPython.core.completer")
    shell = completer.IPCompleter(namespace=things, use_jedi=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [c.text for c in shell.completions('batch["', len('batch["'))]
        below = [c.text for c in shell.completions('batch["next/r', len('batch["next/r'))]
    assert sorted(found) == sorted(batch.names()) and below == ["next/reward"]


def test_lines_of_code_that_are_suggested_run(things: Names) -> None:
    scope = {**things, "Loader": Loader, "Shuffled": Shuffled, "Episode": Episode}
    names = ("iterate_episodes", "total_steps", "total_episodes", "keys", "shuffle")
    lines = [counterparts.DATASET[name] for name in names]
    lines += [table["sample"].split(" once")[0] for table in (counterparts.DATASET, counterparts.LOADER)]
    lines += [counterparts.DATASET["sample_episodes"].split(" once")[0], *counterparts.BATCH.values()]
    for line in lines:
        if not line.startswith("Loader(...") and "cuda" not in line:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # a condition that fits no episode
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


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"shuffle": True}, "sampler=Shuffled()"),
        ({"num_workers": 4}, "DataLoader(loader.as_torch(), batch_size=None, num_workers=4)"),
        ({"gamma": 0.99}, "window=Transition(n_step=3, gamma=0.99)"),
        ({"drop_last": True}, "sampler=Shuffled(drop_last=True)"),
        ({"pin_memory": True}, 'device="cuda"'),
        ({"collate_fn": len}, "transform=function_of_a_batch"),
        ({"smapler": Shuffled()}, "hint: sampler="),
        ({"window": 20}, "hint: window=Slice(20)"),
        ({"window": Slice}, "hint: window=Slice(20)"),
        ({"window": "episode"}, "hint: window=Episode()"),
        ({"sampler": "shuffled"}, "hint: sampler=Shuffled()"),
        ({"sampler": "Prioritised"}, "hint: sampler=Prioritized()"),
    ],
)
def test_arguments_that_a_loader_does_not_have(ds: rlds_cli.Dataset, arguments: Names, says: str) -> None:
    with pytest.raises(InvalidArgument) as e:
        Loader(ds, 4, **arguments)
    assert says in str(e.value) and f"{next(iter(arguments))}=" in str(e.value)


@pytest.mark.parametrize("given", [list, tuple])
def test_several_datasets_are_a_mixture(ds: rlds_cli.Dataset, given: Any) -> None:
    for make in (Loader, Mixture):
        with pytest.raises(InvalidArgument) as e:
            make(given([ds, "d4rl/hopper-medium-v2"]))
        assert f'Mixture({{"{ds.id.partition("/")[2]}": "{ds.id}", "hopper-medium-v2": "d4rl/h' in (e.value.hint or "")


def test_weights_of_a_mixture_come_second(ds: rlds_cli.Dataset) -> None:
    with pytest.raises(InvalidArgument) as e:
        Mixture({"lab/a": 0.5, "lab/b": 0.5})  # type: ignore[dict-item]
    assert e.value.hint == 'Mixture({"a": "lab/a", "b": "lab/b"}, {"a": 0.5, "b": 0.5})'


def test_a_loader_is_iterated(things: Names) -> None:
    with pytest.raises(TypeError, match=r"batches = iter\(loader\) once"):
        next(things["loader"])


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda ds: ds.split("train"), "ds.split(0.9)"),
        (lambda ds: ds.split("length"), 'ds.split(by="length")'),
        (lambda ds: ds.split(), "ds.split(0.9, 0.1)"),
        (lambda ds: ds.split(0.5, 0.6), "ds.split(0.9, 0.1)"),
        (lambda ds: ds.select(lambda ep: True), "if keep(ds.episode(k))"),
        (lambda ds: ds.select("length > 3"), 'ds.select(where="length > 3")'),
        (lambda ds: ds.select([0, 1]), "ds.select(episodes=...)"),
        (lambda ds: ds["length"], 'ds.episodes["length"]'),
    ],
)
def test_ways_to_ask_a_dataset(ds: rlds_cli.Dataset, call: Any, says: str) -> None:
    with pytest.raises((InvalidArgument, IndexError)) as e:
        call(ds)
    assert says in str(e.value)


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("reward", 'batch["next", "reward"]'),
        ("obsrevation", 'batch["observation"]'),
        (("observation", "position"), 'batch["observation"], which has nothing below it'),
        ("mask", "window=Slice(20)"),
        (("mask", "observation"), "window=Slice(20)"),
    ],
)
def test_fields_that_a_batch_does_not_have(things: Names, key: Any, says: str) -> None:
    with pytest.raises(UnknownField) as e:
        things["batch"][key]
    assert says in str(e.value)


def test_the_mask_of_slices_is_for_all_fields(ds: rlds_cli.Dataset) -> None:
    batch = next(iter(Loader(ds, 4, window=Slice(3), backend="numpy")))
    with pytest.raises(UnknownField, match='batch\\["mask"\\], which has nothing below it'):
        batch["mask", "observation"]


def test_one_transition_is_a_tensordict_without_batch_dimensions(ds: rlds_cli.Dataset) -> None:
    pytest.importorskip("tensordict")
    one, td = ds[1], ds[1].tensordict()
    assert td.batch_size == () and td["next", "reward"].shape == (1,) and int(td["episode"]) == one["episode"]
    assert np.array_equal(td["observation"].numpy(), one["observation"])
