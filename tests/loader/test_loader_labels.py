"""A label changes neither the order of samples nor a training that does not draw by it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import rlds_cli
from rlds_cli.errors import WrongState
from rlds_cli.loader import Loader, Member, Mixture, Pairs, Prioritized, Sampler, Shuffled, Uniform, Weighted

EPISODES: list[dict[str, object]] = [
    {"observation": np.arange(6.0)[:, None] + 10 * k, "action": np.full((5, 1), k), "next": {"reward": np.ones(5)}}
    for k in range(4)
]


def ordinary() -> rlds_cli.Dataset:
    return rlds_cli.create("local/ordinary", EPISODES)


def growing() -> rlds_cli.Dataset:
    with rlds_cli.writer("local/growing") as w:
        w.add_episodes(EPISODES)
    return rlds_cli.open_dataset("local/growing")


def mixed() -> rlds_cli.Dataset:
    other = rlds_cli.create("local/other", [{**EPISODES[0], "action": np.full((5, 1), 9)}])
    return rlds_cli.merge([ordinary(), other], "local/mixed")


MADE: list[Callable[[], rlds_cli.Dataset]] = [ordinary, growing, mixed]


def rest(loader: Loader, count: int = 6) -> list[list[list[float]]]:
    batches = iter(loader)
    return [next(batches)["observation"].tolist() for _ in range(count)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("make", MADE)
@pytest.mark.parametrize("selected", [False, True])
def test_a_training_goes_on_after_a_label_that_it_does_not_read(
    make: Callable[[], rlds_cli.Dataset], selected: bool
) -> None:
    ds = make().label(rated=1.0)
    part = ds.select(episodes=[2, 0, 3]) if selected else ds
    loader = Loader(part, 4, seed=5)
    rest(loader, 3)
    state = loader.state_dict()
    wanted = rest(Loader(part, 4, seed=5), 9)[3:]
    labelled = ds.label(rated=2.0, good=True)
    resumed = Loader(labelled.select(episodes=[2, 0, 3]) if selected else labelled, 4, seed=5)
    resumed.load_state_dict(state)
    assert rest(resumed) == wanted


@pytest.mark.thorough
@pytest.mark.parametrize("make", MADE)
def test_other_episodes_are_other_data(make: Callable[[], rlds_cli.Dataset]) -> None:
    ds = make()
    state = Loader(ds, 4).state_dict()
    with pytest.raises(WrongState, match="fingerprint"):
        Loader(ds.select(episodes=[0]).drop(), 4).load_state_dict(state)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("sampler", [Weighted("rated"), Prioritized(priority="rated"), Pairs("rated")])
@pytest.mark.parametrize("in_mixture", [False, True])
def test_a_column_that_the_sampler_reads_is_content(sampler: Sampler, in_mixture: bool) -> None:
    first = ordinary().label(rated=[1.0, 1.0, 2.0, 2.0], other=0)
    if in_mixture and isinstance(sampler, Pairs):
        pytest.skip("pairs are of one dataset")

    def loader(ds: rlds_cli.Dataset) -> Loader:
        return Loader(Mixture({"a": ds, "b": ds.select(episodes=[1])}) if in_mixture else ds, 4, sampler=sampler)

    state = loader(first).state_dict()
    second = first.label(other=1)
    loader(second).load_state_dict(state)
    with pytest.raises(WrongState):
        loader(second.label(rated=[2.0, 1.0, 2.0, 1.0])).load_state_dict(state)


@pytest.mark.thorough
def test_members_of_a_mixture_have_columns_of_their_own() -> None:
    ds = ordinary().label(rated=[1.0, 2.0, 3.0, 4.0])
    plain = rlds_cli.create("local/plain", EPISODES[:2])

    def loader(ds: rlds_cli.Dataset, plain: rlds_cli.Dataset) -> Loader:
        members = {"a": Member(ds, sampler=Weighted("rated")), "b": plain}
        return Loader(Mixture(members), 4, sampler=Uniform())

    state = loader(ds, plain).state_dict()
    ds = ds.label(other=True)
    loader(ds, plain.label(rated=5.0)).load_state_dict(state)
    with pytest.raises(WrongState, match="rated"):
        loader(ds.label(rated=1.0), plain).load_state_dict(state)


@pytest.mark.thorough
def test_a_state_of_a_growing_dataset_is_of_its_episodes() -> None:
    ds = growing()
    state = Loader(ds, 4, sampler=Shuffled()).state_dict()
    with rlds_cli.writer("local/growing") as w:
        w.add_episodes(EPISODES[:1])
    with pytest.raises(WrongState, match="fingerprint"):
        Loader("local/growing", 4, sampler=Shuffled()).load_state_dict(state)
    Loader("local/growing#v1", 4, sampler=Shuffled()).load_state_dict(state)
