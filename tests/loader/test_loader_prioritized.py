import copy
import itertools
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from loader_data import create, episode

from rlds_cli.errors import InvalidArgument, RldsError, WrongState
from rlds_cli.loader import (
    Loader,
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

EPISODES = [episode(0, 40), episode(1, 25, end="truncated", inner=(7,)), episode(2, 6, observed=False, end="cut")]
TRANSITIONS = 40 + 25 + 5


@pytest.fixture
def ds(home):
    return create(EPISODES)


def load(ds, size=16, **options):
    sampler = options.pop("sampler", Prioritized())
    return Loader(ds, size, sampler=sampler, **{"backend": "numpy", "fields": [..., "index"], **options})


def priority_of(index):
    """Any function of the sample will do: priorities then do not depend on when they are set."""
    return (index * 37 % 11 + 1.0) / 3


def by_step(step):
    return {"a": 1 + step, "b": 1}


def train(loader, steps):
    seen = []
    for _, batch in zip(range(steps), loader, strict=False):
        seen.append((batch["index"].tolist(), batch["probability"].tolist(), batch["weight"][:, 0].tolist()))
        loader.update_priorities(batch, priority_of(batch["index"]))
    return seen


@pytest.mark.thorough
def test_the_first_batch_is_uniform_with_weight_one(ds):
    batch = next(iter(load(ds)))
    assert batch["probability"] == pytest.approx(np.full(16, 1 / TRANSITIONS))
    assert batch["weight"].tolist() == [[1.0]] * 16
    assert batch["window"].tolist() == batch["index"].tolist()


@pytest.mark.thorough
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


@pytest.mark.parametrize("sizes", [(16, 16), (16, 3)])
def test_loops_side_by_side_keep_to_their_own_draws(ds, sizes):
    priority = priority_of(np.arange(TRANSITIONS))
    chance = (priority + 1e-6) ** 0.6 / ((priority + 1e-6) ** 0.6).sum()
    actions = ds.to_numpy()["action"]
    loader = load(ds, sampler=Prioritized(priority=priority))

    def loop():
        return list(itertools.islice(iter(loader), 200))

    with ThreadPoolExecutor(3) as threads:
        several = [threads.submit(loop) for _ in range(3)]
        batches = [batch for found in several for batch in found.result()]
    alternately = [iter(load(ds, size, sampler=Prioritized(priority=priority))) for size in sizes]
    batches += [next(batches) for _ in range(50) for batches in alternately]
    for batch in batches:
        assert batch["action"].tolist() == actions[batch["index"]].tolist()
        assert batch["probability"] == pytest.approx(chance[batch["index"]])
        assert batch["weight"][:, 0] == pytest.approx((chance.min() / chance[batch["index"]]) ** 0.4, rel=1e-6)


@pytest.mark.thorough
def test_the_last_of_two_updates_of_one_window_counts(ds):
    loader = load(ds, 2)
    batch = next(iter(loader))
    batch["window"] = np.array([3, 3])
    loader.update_priorities(batch, np.array([100.0, 5.0]))
    mass = np.full(TRANSITIONS, (1 + 1e-6) ** 0.6)
    mass[3] = (5 + 1e-6) ** 0.6
    after = next(iter(loader))
    assert after["probability"] == pytest.approx((mass / mass.sum())[after["index"]])


@pytest.mark.thorough
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


@pytest.mark.thorough
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
    for priority in (
        torch.ones(4),
        torch.ones(4, 1, requires_grad=True),
        torch.ones(4).bfloat16(),
        [1.0, 2, 3, 4],
        np.ones((4, 1, 1)),
    ):
        loader.update_priorities(batch, priority)
    with pytest.raises(InvalidArgument, match=r"\[4, 5\]") as e:
        loader.update_priorities(batch, torch.ones(4, 5))
    assert 'reduce="max"' in str(e.value.hint)
    with pytest.raises(InvalidArgument, match="reduce='sum'"):
        loader.update_priorities(batch, torch.ones(4, 5), reduce="sum")


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["steps", "axis", "tensordict"])
@pytest.mark.parametrize("reduce", ["max", "mean"])
def test_errors_per_step_are_reduced_without_masked_steps(ds, reduce, form):
    loader = Loader(ds, 64, window=Slice(5, after=4), sampler=Prioritized(alpha=1.0, eps=1.0), seed=3)
    batch = next(iter(loader))
    assert not batch["mask"].all()
    errors = torch.arange(320.0).reshape(64, 5) * 37 % 11
    errors[~batch["mask"]] = torch.nan  # whatever a network says there
    given = batch.tensordict() if form == "tensordict" else batch
    loader.update_priorities(given, errors[..., None] if form == "axis" else errors, reduce=reduce)
    masses = loader.state_dict()["priorities"]["masses"]
    expected = {}
    for window, row, real in zip(batch["window"][:, 0].tolist(), errors.tolist(), batch["mask"].tolist(), strict=True):
        steps = [x for x, is_real in zip(row, real, strict=True) if is_real]
        expected[window] = 1.0 + (max(steps) if reduce == "max" else sum(steps) / len(steps))
    assert {w: float(masses[w]) for w in expected} == pytest.approx(expected)


@pytest.mark.thorough
def test_a_negative_error_of_a_step_is_refused_when_it_is_reduced_too(ds):
    loader = Loader(ds, 2, window=Slice(3), sampler=Prioritized())
    batch = next(iter(loader))
    with pytest.raises(InvalidArgument, match=r"-1\.0"):
        loader.update_priorities(batch, [[-1.0, 5.0, 5.0], [1.0, 1.0, 1.0]], reduce="max")


def test_errors_of_several_critics_and_of_chunks_are_reduced(ds):
    loader = load(ds, 4, sampler=Prioritized(alpha=1.0, eps=1.0))
    batch = next(iter(loader))
    loader.update_priorities(batch, [[1, 2], [3, 4], [5, 6], [7, 8]], reduce="mean")
    masses = loader.state_dict()["priorities"]["masses"]
    last = dict(zip(batch["window"].tolist(), [2.5, 4.5, 6.5, 8.5], strict=True))
    assert {w: float(masses[w]) for w in last} == last

    window = Offsets({"action": range(4)})
    loader = load(ds, 64, window=window, sampler=Prioritized(alpha=1.0, eps=1.0), seed=1)
    batch = next(iter(loader))
    real = batch["mask", "action"]
    assert not real.all()
    loader.update_priorities(batch, np.where(real, 1.0, np.inf), reduce="max")
    masses = loader.state_dict()["priorities"]["masses"]
    assert {float(masses[w]) for w in batch["window"].tolist()} == {2.0}


def test_errors_of_a_mixture_are_reduced_by_the_mask_of_its_steps(ds):
    mixture = Mixture({"a": ds, "b": ds}, pad={"action": 3})
    loader = Loader(mixture, 64, window=Slice(5, after=4), sampler=Prioritized(), seed=3)
    batch = next(iter(loader))
    real = batch["mask", "step"]
    assert not real.all()
    loader.update_priorities(batch, torch.where(real, 1.0, torch.nan), reduce="mean")


@pytest.mark.thorough
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


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_a_state_without_priorities_is_refused(ds):
    state = load(ds).state_dict()
    del state["priorities"]
    with pytest.raises(WrongState, match="priorities"):
        load(ds).load_state_dict(state)


@pytest.mark.thorough
def test_n_step_transitions(ds):
    batch = next(iter(load(ds, window=Transition(3, 0.9))))
    assert batch["weight"].shape == (16, 1) and batch["next/discount"].shape == (16, 1)


@pytest.mark.thorough
@pytest.mark.parametrize("lag", [0, 2])
def test_a_pickled_loader_takes_its_priorities_along(ds, lag):
    options = {"sampler": Prioritized(lag=lag)}
    whole = train(load(ds, **options), 9)
    loader = load(ds, **options)
    assert train(loader, 4) == whole[:4]
    assert train(pickle.loads(pickle.dumps(loader)), 5) == whole[4:]


# -- initial priorities


def masses(loader):
    return np.asarray(loader.state_dict()["priorities"]["masses"])


@pytest.mark.thorough
def test_initial_priorities_by_transition(ds):
    given = np.arange(TRANSITIONS) + 0.5
    loader = load(ds, sampler=Prioritized(alpha=1.0, eps=1e-9, priority=given))
    given[:] = 0  # which the sampler does not see
    expected = np.arange(TRANSITIONS) + 0.5
    batch = next(iter(loader))
    assert batch["probability"] == pytest.approx(expected[batch["index"]] / expected.sum())
    loader.update_priorities(batch, np.full(16, 3.0))
    expected[batch["index"]] = 3
    assert masses(loader) == pytest.approx(expected)


@pytest.mark.thorough
def test_initial_priorities_by_episode_and_by_step(ds):
    by_episode = np.repeat([40.0, 25.0, 6.0], [40, 25, 5])
    for priority in ("length", [40, 25, 6]):
        loader = load(ds, sampler=Prioritized(alpha=1.0, eps=1e-9, priority=priority))
        assert masses(loader) == pytest.approx(by_episode)
    by_step = np.arange(71.0)
    loader = load(ds, sampler=Prioritized(alpha=1.0, eps=1e-9, priority=by_step), window=Transition(anchors="steps"))
    assert masses(loader) == pytest.approx(by_step, abs=1e-8)
    by_transition = np.arange(2.0, 2 + TRANSITIONS)  # the last step is no transition: it keeps 1
    loader = load(
        ds, sampler=Prioritized(alpha=1.0, eps=1e-9, priority=by_transition), window=Transition(anchors="steps")
    )
    assert masses(loader) == pytest.approx([*by_transition, 1.0])


@pytest.mark.thorough
def test_a_slice_has_the_priority_of_its_first_step(ds):
    given = np.arange(TRANSITIONS) + 1.0
    loader = load(ds, sampler=Prioritized(alpha=1.0, eps=1e-9, priority=given), window=Slice(10, stride=10))
    assert masses(loader) == pytest.approx([1, 11, 21, 31, 41, 51])  # three of 40, two of 25, none of 5 transitions


@pytest.mark.thorough
def test_initial_priorities_of_a_selection(ds):
    view = ds.select(episodes=[2, 0])
    loader = load(view, sampler=Prioritized(alpha=1.0, eps=1e-9, priority="length"))
    assert masses(loader) == pytest.approx(np.repeat([6.0, 40.0], [5, 40]))


def test_initial_priorities_are_part_of_the_sampler(ds):
    one, same, other = (Prioritized(priority=p) for p in ([1, 2, 3], [1, 2, 3], [1, 2, 4]))
    assert one == same and hash(one) == hash(same) and one != other and one != Prioritized()
    assert repr(Prioritized()) == "Prioritized(alpha=0.6, beta=0.4, eps=1e-06, lag=0)"  # as states have it
    first = load(ds, sampler=one)
    train(first, 3)
    again = load(ds, sampler=same)
    again.load_state_dict(first.state_dict())
    assert train(again, 3) == train(first, 3)
    with pytest.raises(WrongState, match="sampler"):
        load(ds, sampler=other).load_state_dict(first.state_dict())
    assert pickle.loads(pickle.dumps(one)) == one


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("priority", "says"),
    [
        ([1.0, -1.0, 2.0], "priorities by episode: priority -1.0 at place 1 of 3"),
        ([1.0, np.nan, 2.0], "priority nan at place 1"),
        ([1.0, np.inf, 2.0], "priority inf at place 1"),
        ([1.0] * 4, "4 priorities; local/known has 3 episodes, 70 transitions and 71 steps"),
        (np.ones((3, 1)), r"priorities of shape \[3, 1\]"),
        (["a", "b", "c"], "numbers"),
        ("lenght", 'no episode column of numbers "lenght". Did you mean "length"'),
    ],
)
def test_what_is_no_initial_priority_is_refused(ds, priority, says):
    with pytest.raises(RldsError, match=says):
        load(ds, sampler=Prioritized(priority=priority))


# -- states on disk


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options",
    [
        {"sampler": Prioritized()},
        {"sampler": Prioritized(lag=2), "prefetch": 1},
        {"sampler": Prioritized(priority="length"), "window": Slice(3)},
        {"sampler": Uniform(by="episode")},
        {"sampler": Shuffled()},
        {"sampler": Sequential()},
        {"sampler": Weighted(np.array([1.0, 2, 3]))},
        {"mixed": {"weights": {"a": 1, "b": 2}}},
        {"mixed": {"exact": False}},
        {"mixed": {"weights": by_step}},
    ],
)
def test_torch_saves_a_state_and_loads_it_without_unpickling_objects(ds, tmp_path, options):
    given = dict(options)
    mixed = given.pop("mixed", None)
    data = ds if mixed is None else Mixture({"a": ds, "b": ds}, **mixed)
    plain = {**given, "fields": [..., "step"]}
    loader = load(data, **({"sampler": Uniform()} | plain))
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    torch.save({"loader": loader.state_dict()}, tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)["loader"]
    again = load(data, **({"sampler": Uniform()} | plain))
    again.load_state_dict(state)
    expected, found = next(batches), next(iter(again))
    assert found["step"].tolist() == expected["step"].tolist()
    assert np.array_equal(found["observation"], expected["observation"])


@pytest.mark.thorough
def test_states_with_arrays_or_lists_load_as_well(ds):
    """As NumPy or JSON keeps them."""
    loader = load(ds, sampler=Prioritized(lag=1))
    train(loader, 4)
    state = loader.state_dict()
    expected = train(loader, 3)
    for convert in (np.asarray, lambda x: x.tolist()):
        old = copy.deepcopy(state)
        old["priorities"]["masses"] = convert(old["priorities"]["masses"])
        for drawn in old["drawn"]:
            drawn |= {name: convert(drawn[name]) for name in ("windows", "probability", "weight")}
        assert old["drawn"]
        again = load(ds, sampler=Prioritized(lag=1))
        again.load_state_dict(old)
        assert train(again, 3) == expected
