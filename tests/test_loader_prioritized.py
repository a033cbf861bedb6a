import pickle

import numpy as np
import pytest
import torch
from loader_data import create, episode

from rlds_cli.errors import InvalidArgument, WrongState
from rlds_cli.loader import Loader, Prioritized, Slice, Transition

EPISODES = [episode(0, 40), episode(1, 25, end="truncated", inner=(7,)), episode(2, 6, observed=False, end="cut")]
TRANSITIONS = 40 + 25 + 5


@pytest.fixture
def ds(home):
    return create(EPISODES)


def load(ds, size=16, **options):
    sampler = options.pop("sampler", Prioritized())
    return Loader(ds, size, sampler=sampler, **{"backend": "numpy", "extra": ("index",), **options})


def priority_of(index):
    """Any function of the sample will do: priorities then do not depend on when they are set."""
    return (index * 37 % 11 + 1.0) / 3


def train(loader, steps):
    seen = []
    for _, batch in zip(range(steps), loader, strict=False):
        seen.append((batch["index"].tolist(), batch["probability"].tolist(), batch["weight"][:, 0].tolist()))
        loader.update_priorities(batch, priority_of(batch["index"]))
    return seen


def test_the_first_batch_is_uniform_with_weight_one(ds):
    batch = next(iter(load(ds)))
    assert batch["probability"] == pytest.approx(np.full(16, 1 / TRANSITIONS))
    assert batch["weight"].tolist() == [[1.0]] * 16
    assert batch["window"].tolist() == batch["index"].tolist()


def test_draws_follow_the_priorities_and_weights_correct_for_them(ds):
    loader = load(ds, 64, sampler=Prioritized(alpha=0.7, beta=0.5, eps=0.01))
    priority = np.ones(TRANSITIONS)
    counts = np.zeros(TRANSITIONS)
    for _ in range(100):
        batch = next(iter(loader))
        index = batch["index"]
        mass = (priority + 0.01) ** 0.7
        p = mass / mass.sum()
        assert batch["probability"] == pytest.approx(p[index])
        largest = (TRANSITIONS * p.min()) ** -0.5
        assert batch["weight"][:, 0] == pytest.approx((TRANSITIONS * p[index]) ** -0.5 / largest, rel=1e-6)
        priority[index] = priority_of(index)
        loader.update_priorities(batch, priority_of(index))
    for _ in range(1000):
        counts += np.bincount(next(iter(loader))["index"], minlength=TRANSITIONS)
    mass = (priority + 0.01) ** 0.7
    expected = 64_000 * mass / mass.sum()
    assert ((counts - expected) ** 2 / expected).sum() < TRANSITIONS + 6 * np.sqrt(2 * TRANSITIONS)


def test_the_last_of_two_updates_of_one_window_counts(ds):
    loader = load(ds, 2)
    batch = next(iter(loader))
    batch["window"] = np.array([3, 3])
    loader.update_priorities(batch, np.array([100.0, 5.0]))
    mass = np.full(TRANSITIONS, (1 + 1e-6) ** 0.6)
    mass[3] = (5 + 1e-6) ** 0.6
    after = next(iter(loader))
    assert after["probability"] == pytest.approx((mass / mass.sum())[after["index"]])


@pytest.mark.parametrize("lag", [0, 1, 3])
@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_an_update_counts_lag_batches_later_whoever_reads_ahead(ds, lag, prefetch):
    sampler = Prioritized(lag=lag)
    if prefetch > lag:
        with pytest.raises(InvalidArgument, match=rf"prefetch={prefetch}"):
            load(ds, sampler=sampler, prefetch=prefetch)
        return
    seen = train(load(ds, sampler=sampler, prefetch=prefetch), 12)
    assert seen == train(load(ds, sampler=sampler), 12)
    mass = np.full(TRANSITIONS, (1 + 1e-6) ** 0.6)
    masses = [mass]
    for index, _, _ in seen:
        mass = mass.copy()
        mass[index] = (priority_of(np.array(index)) + 1e-6) ** 0.6
        masses.append(mass)
    for n, (index, probability, _) in enumerate(seen):  # batch n is drawn by what was known lag batches before
        known = masses[max(0, n - lag)]
        assert probability == pytest.approx((known / known.sum())[index])


@pytest.mark.parametrize(("lag", "prefetch"), [(0, 0), (2, 0), (2, 2)])
def test_a_resumed_loader_goes_on_as_if_nothing_had_happened(ds, lag, prefetch):
    options = {"sampler": Prioritized(lag=lag), "prefetch": prefetch}
    whole = train(load(ds, **options), 9)
    first = load(ds, **options)
    assert train(first, 4) == whole[:4]
    state = first.state_dict()
    again = load(ds, **options)
    again.load_state_dict(state)
    assert train(again, 5) == whole[4:]


def test_tensors_of_any_shape_and_slices(ds):
    loader = Loader(ds, 4, window=Slice(5, after=4), sampler=Prioritized())
    batch = next(iter(loader))
    assert batch["weight"].shape == (4, 5, 1) and batch["window"].shape == batch["probability"].shape == (4, 5)
    for priority in (torch.ones(4), torch.ones(4, 1, requires_grad=True), [1.0, 2, 3, 4], np.ones((4, 1, 1))):
        loader.update_priorities(batch, priority)
    with pytest.raises(InvalidArgument, match=r"\[4, 5\]"):
        loader.update_priorities(batch, torch.ones(4, 5))


def test_bad_updates_change_nothing(ds):
    loader = load(ds)
    batch = next(iter(loader))
    before = loader.state_dict()["priorities"]
    for priority, words in (
        (np.full(16, -1.0), "-1.0"),
        (np.append(np.ones(15), np.nan), "nan"),
        (np.append(np.ones(15), np.inf), "inf"),
        (np.ones(15), r"\[15\]"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            loader.update_priorities(batch, priority)
    after = loader.state_dict()["priorities"]
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[k], after[k]) for k in before)
    with pytest.raises(InvalidArgument, match="no 'window'"):
        loader.update_priorities(type(batch)(observation=batch["observation"]), np.ones(16))
    with pytest.raises(InvalidArgument, match="no priorities"):
        Loader(ds, 4).update_priorities(batch, np.ones(16))


def test_one_rank_only(ds):
    with pytest.raises(InvalidArgument, match="Prioritized on rank 0 of 2"):
        load(ds, rank=0, world_size=2)


def test_beta_is_annealed(ds):
    loader = load(ds, 32, sampler=Prioritized(beta=0.0))
    train(loader, 20)
    batch = next(iter(loader))
    assert set(batch["weight"][:, 0].tolist()) == {1.0}
    loader.update_priorities(batch, priority_of(batch["index"]), beta=1.0)
    batch = next(iter(loader))
    ratio = batch["weight"][:, 0] * batch["probability"]
    assert ratio == pytest.approx(np.full(32, ratio[0])) and len(set(batch["weight"][:, 0].tolist())) > 1


def test_a_state_without_priorities_is_refused(ds):
    state = load(ds).state_dict()
    del state["priorities"]
    with pytest.raises(WrongState, match="priorities"):
        load(ds).load_state_dict(state)


def test_n_step_transitions(ds):
    batch = next(iter(load(ds, window=Transition(3, 0.9))))
    assert batch["weight"].shape == (16, 1) and batch["next/discount"].shape == (16, 1)


@pytest.mark.parametrize("lag", [0, 2])
def test_a_pickled_loader_takes_its_priorities_along(ds, lag):
    options = {"sampler": Prioritized(lag=lag)}
    whole = train(load(ds, **options), 9)
    loader = load(ds, **options)
    assert train(loader, 4) == whole[:4]
    assert train(pickle.loads(pickle.dumps(loader)), 5) == whole[4:]
