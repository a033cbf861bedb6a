"""States that a release with version 1 of the order saved: what came next there comes next here."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from loader_data import create, episode
from reference import shuffles

import rlds_cli
from rlds_cli.loader import Episode, Loader, Mixture, Prioritized, Sequential, Shuffled, Transition, Uniform

LENGTHS = (5, 3, 7, 1, 4)
WINDOWS = [(e, t) for e, length in enumerate(LENGTHS) for t in range(length)]

# Episode and step of every sample after the first batch, seed 7: written down from the last release with version 1.
IN_BLOCKS = [
    *((3, 0), (0, 2), (0, 3), (0, 1), (4, 2), (2, 0), (2, 3), (2, 2)),
    *((4, 0), (4, 1), (2, 1), (4, 3), (1, 0), (1, 2), (0, 4), (1, 1)),
]
IN_BUCKETS = [(1, 0), (3, 0), (2, 0)]
MIXED = [
    *((0, 2), (0, 4), (2, 5), (1, 2), (2, 6), (0, 0), (0, 3), (2, 1), (4, 1), (1, 1)),
    *((2, 3), (1, 1), (1, 3), (2, 4), (0, 2), (1, 0), (3, 0), (1, 2), (0, 0), (4, 0)),
    *((4, 2), (1, 5), (1, 0), (2, 0), (1, 4), (0, 1), (4, 0), (0, 2), (1, 1), (2, 0)),
    *((1, 4), (2, 1), (4, 2), (1, 2), (4, 3), (2, 2), (1, 5), (2, 5), (0, 1), (1, 1)),
]


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[rlds_cli.Dataset]]:
    with pytest.MonkeyPatch.context() as env:
        env.setenv("RLDS_HOME", str(tmp_path_factory.mktemp("home")))
        yield [
            create([episode(k, n) for k, n in enumerate(LENGTHS)]),
            create([episode(k, n) for k, n in enumerate((4, 6))], ref="local/other"),
        ]


@pytest.fixture
def ds(members: list[rlds_cli.Dataset]) -> rlds_cli.Dataset:
    return members[0]


def load(dataset: Any, size: int = 4, **options: Any) -> Loader:
    plain = {"backend": "numpy", "extra": ("episode", "step"), "seed": 7, "sampler": Shuffled()}
    return Loader(dataset, size, **plain | options)


def ids(batch: Any) -> list[tuple[int, int]]:
    pairs = zip(batch["episode"], batch["step"], strict=True)
    return [(int(np.atleast_1d(e)[0]), int(np.atleast_1d(t)[0])) for e, t in pairs]


def rest(loader: Loader, batches: int | None = None) -> list[tuple[int, int]]:
    return [sample for b in itertools.islice(loader, batches) for sample in ids(b)]


def old_state(loader: Loader, **changes: Any) -> dict[str, Any]:
    """What the earlier release saved after a batch."""
    return {**loader.state_dict(), "order": 1, "samples": loader.batch_size, **changes}


def test_a_shuffle_goes_on_as_it_was(ds: rlds_cli.Dataset) -> None:
    loader = load(ds)
    loader.load_state_dict(old_state(loader))
    assert "version 1 of the order" in loader.describe()
    epochs = [[WINDOWS[i] for i in shuffles.shuffled(7, epoch, 20, 1)] for epoch in range(3)]
    assert rest(loader) == epochs[0][4:]
    assert rest(loader) == epochs[1]
    state = loader.state_dict()
    assert state["order"] == 1
    again = load(ds, 5)
    again.load_state_dict(json.loads(json.dumps(state)))
    assert rest(again) == epochs[2]
    again.seek(0)
    assert rest(again) == epochs[0]  # wherever it goes


def test_a_fresh_loader_and_a_newer_state_have_the_new_order(ds: rlds_cli.Dataset) -> None:
    epoch = [WINDOWS[i] for i in shuffles.shuffled(7, 0, 20, 2)]
    fresh = load(ds)
    assert rest(fresh, 2) == epoch[:8] and fresh.state_dict()["order"] == 2
    assert "of the order" not in fresh.describe()
    state = fresh.state_dict()
    loader = load(ds)
    loader.load_state_dict(old_state(loader))
    rest(loader, 1)
    loader.load_state_dict(state)
    assert rest(loader) == epoch[8:]


@pytest.mark.parametrize(
    ("size", "options", "expected"),
    [
        (4, {"sampler": Shuffled(block=4, live=2)}, IN_BLOCKS),
        (2, {"window": Episode(bucket=2)}, IN_BUCKETS),
    ],
)
def test_blocks_and_buckets_go_on_as_they_were(
    ds: rlds_cli.Dataset, size: int, options: dict[str, Any], expected: list[tuple[int, int]]
) -> None:
    loader = load(ds, size, **options)
    loader.load_state_dict(old_state(loader))
    assert rest(loader) == expected
    assert rest(load(ds, size, **options))[size:] != expected


def test_members_of_a_mixture_go_on_as_they_were(members: list[rlds_cli.Dataset]) -> None:
    loader = load(Mixture({"a": members[0], "b": members[1]}))
    loader.load_state_dict(old_state(loader, consumed={"a": 3, "b": 1}))
    assert "version 1 of the order" in loader.describe()
    assert rest(loader, 10) == MIXED


@pytest.mark.parametrize("sampler", [Uniform(), Sequential()])
def test_orders_without_a_shuffle_are_the_same_in_both(ds: rlds_cli.Dataset, sampler: Any) -> None:
    loader, plain = load(ds, sampler=sampler), load(ds, sampler=sampler)
    loader.load_state_dict(old_state(loader))
    assert rest(loader, 4) == rest(plain, 5)[4:]


def test_priorities_of_an_old_state_are_taken_over(ds: rlds_cli.Dataset) -> None:
    loader, plain = load(ds, sampler=Prioritized()), load(ds, sampler=Prioritized())
    batch = next(iter(plain))
    plain.update_priorities(batch, np.arange(4.0))
    loader.load_state_dict(plain.state_dict() | {"order": 1})
    assert rest(loader, 3) == rest(plain, 3)


def test_a_copy_in_another_process_has_the_same_order(ds: rlds_cli.Dataset) -> None:
    loader = load(ds, window=Transition())
    loader.load_state_dict(old_state(loader))
    assert rest(pickle.loads(pickle.dumps(loader))) == rest(loader)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_that_run_already_take_over_the_order(ds: rlds_cli.Dataset, persistent: bool) -> None:
    torch_data = pytest.importorskip("torch.utils.data")
    loader = load(ds)
    batches = torch_data.DataLoader(loader.as_torch(), batch_size=None, num_workers=2, persistent_workers=persistent)
    old, new = ([WINDOWS[i] for i in shuffles.shuffled(7, 0, 20, version)] for version in (1, 2))
    assert [sample for b in batches for sample in ids(b)] == new
    loader.load_state_dict(old_state(loader, epoch=0))
    assert [sample for b in batches for sample in ids(b)] == old[4:]
