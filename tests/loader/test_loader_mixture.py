"""Mixtures: whose samples, how many of each, in what order, and going on."""

import itertools
import json
import pickle
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_data import create, episode

from rlds_cli.errors import EmptyWindow, InvalidArgument, RldsError, UnknownField, WrongState
from rlds_cli.loader import (
    Episode,
    Loader,
    Member,
    Mixture,
    Normalize,
    Offsets,
    Prioritized,
    Sequential,
    Shuffled,
    Slice,
    Transition,
    Uniform,
    Weighted,
)

SAMPLERS = [Uniform(), Uniform(by="episode"), Shuffled(), Sequential()]
WINDOWS = [Transition(), Transition(3), Slice(4, before=2, after=3, stride=2), Offsets({"observation": (-1, 0)})]
NAMES = ("a", "b", "c")
WEIGHTS = {"a": 0.5, "b": 0.3, "c": 0.2}


def drift(step):
    f = min(step / 20, 1.0)
    return {"a": 1 - 0.7 * f, "b": 0.5 * f, "c": 0.2 * f}


RULES = {
    "exact": {"weights": WEIGHTS},
    "size": {},
    "lots": {"weights": WEIGHTS, "exact": False},
    "schedule": {"weights": drift},
    "schedule by lots": {"weights": drift, "exact": False},
}
EPISODES = {
    "a": [episode(k, 5 + k, inner=(2,)) for k in range(4)],
    "b": [episode(10 + k, 9 - k, observed=k % 2 == 0, end="truncated") for k in range(3)],
    "c": [episode(20, 3), episode(21, 11, inner=(4, 5))],
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    with pytest.MonkeyPatch.context() as env:
        env.setenv("RLDS_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="module")
def three(home):
    return {name: create(known, ref=f"local/{name}") for name, known in EPISODES.items()}


def load(members, size=10, rule="exact", /, **options):
    chosen = {name: members[name] for name in NAMES}
    return Loader(
        Mixture(chosen, **RULES[rule]), size, **{"backend": "numpy", "fields": [..., "episode", "step"], **options}
    )


def ids(batch):
    """Which samples a batch holds: member, episode and first step of each."""
    columns = (batch[name].reshape(len(batch["source"]), -1)[:, 0].tolist() for name in ("source", "episode", "step"))
    return list(zip(*columns, strict=True))


def first(loader, n):
    return [ids(b) for b in itertools.islice(loader, n)]


def drawn(loader, n):
    """The samples of each member, in order."""
    own = {name: [] for name in NAMES}
    for m, e, t in itertools.chain(*first(loader, n)):
        own[NAMES[m]].append((e, t))
    return own


def check_parted(ranks, batch, exact=True):
    """Ranks have parts of equal size, in the order of the batch, together all of it, and the same shares."""
    assert {len(part) for part in ranks} == {len(batch) // len(ranks)}
    assert sorted(itertools.chain(*ranks)) == sorted(batch)
    for part in ranks:
        rest = iter(batch)
        assert all(sample in rest for sample in part)  # a subsequence
    counts = np.array([[sum(m == own for m, _, _ in part) for own in range(3)] for part in ranks])
    assert not exact or np.ptp(counts, axis=0).max() <= 1


# -- values


@pytest.mark.thorough
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_values_are_those_of_the_member_named(three, sampler, backend):
    for batch in itertools.islice(load(three, 16, sampler=sampler, backend=backend, dtype=None), 12):
        batch = batch.numpy()
        assert batch["source"].dtype == np.int64 and batch["source"].shape == (16,)
        for i, (m, e, t) in enumerate(ids(batch)):
            known = EPISODES[NAMES[m]][e]
            assert np.array_equal(batch["observation"][i], known.observation[t])
            assert np.array_equal(batch["action"][i], known.action[t])
            assert np.array_equal(batch["next/observation"][i], known.next_observation(t))
            assert batch["next/reward"][i] == known.reward[t]
            assert batch["next/terminated"][i] == known.terminated[t]
            assert batch["next/done"][i] == known.terminated[t] | known.truncated[t]


@pytest.mark.thorough
def test_n_step_sums_are_those_of_each_member(three):
    for batch in itertools.islice(load(three, window=Transition(3, 0.9), dtype=None), 20):
        for i, (m, e, t) in enumerate(ids(batch)):
            known = EPISODES[NAMES[m]][e]
            total, k = known.n_step(t, 3, 0.9)
            assert np.isclose(batch["next/reward"][i, 0], total) and np.isclose(batch["next/discount"][i, 0], 0.9**k)
            assert np.array_equal(batch["next/observation"][i], known.next_observation(t + k - 1))


@pytest.mark.thorough
@pytest.mark.parametrize("fill", ["edge", "zero"])
def test_slices(three, fill):
    for batch in itertools.islice(load(three, 6, window=Slice(4, after=3, fill=fill), dtype=None), 20):
        assert batch["source"].shape == batch["mask"].shape == (6, 4)
        for i, (m, e, t) in enumerate(ids(batch)):
            known = EPISODES[NAMES[m]][e]
            for j in range(4):
                inside = t + j < known.length
                assert batch["mask"][i, j] == inside and batch["source"][i, j] == m
                expected = known.action[min(t + j, known.length - 1)]
                assert np.array_equal(batch["action"][i, j], expected if inside or fill == "edge" else 0 * expected)


def test_offsets(three):
    window = Offsets({"observation": (-2, 0), "action": range(3)})
    for batch in itertools.islice(load(three, 6, window=window, dtype=None), 20):
        for i, (m, e, t) in enumerate(ids(batch)):
            known = EPISODES[NAMES[m]][e]
            assert np.array_equal(batch["observation"][i], known.observation[[max(t - 2, 0), t]])
            assert batch["mask/observation"][i].tolist() == [t >= 2, True]
            assert batch["mask/action"][i].tolist() == [t + j < known.length for j in range(3)]


@pytest.mark.thorough
@pytest.mark.parametrize(("window", "longest"), [(Episode(), 11), (Episode(max_length=6), 6)])
def test_whole_episodes_are_padded_to_the_longest_of_any_member(three, window, longest):
    for batch in itertools.islice(load(three, 5, window=window), 10):
        assert batch["action"].shape == (5, longest, 2)
        for i, (m, e, _) in enumerate(ids(batch)):
            known = EPISODES[NAMES[m]][e]
            n = min(known.length, longest)
            assert batch["mask"][i].sum() == n and np.array_equal(batch["action"][i, :n], known.action[:n])


@pytest.mark.parametrize("sampler", [Uniform(), Shuffled()])
def test_buckets_are_as_long_as_the_longest_episode_of_all_ranks(three, sampler):
    whole = load(three, 4, window=Episode(bucket=2), sampler=sampler)
    parts = [
        load(three, 4, window=Episode(bucket=2), sampler=sampler, rank=r, world_size=2, prefetch=r) for r in (0, 1)
    ]
    lengths = set()
    for batch, *ranks in itertools.islice(zip(whole, *parts, strict=False), 12):
        longest = max(EPISODES[NAMES[m]][e].length for m, e, _ in ids(batch))
        assert [b["action"].shape[1] for b in (batch, *ranks)] == [longest] * 3
        check_parted([ids(b) for b in ranks], ids(batch))  # 2 divides the period of 10
        lengths.add(longest)
    assert len(lengths) > 1


# -- shares


@pytest.mark.thorough
@settings(max_examples=12)
@given(st.lists(st.integers(1, 9), min_size=3, max_size=3), st.integers(1, 30))
def test_every_batch_holds_its_shares(three, weights, size):
    loader = Loader(Mixture(three, dict(zip(NAMES, weights, strict=True))), size, backend="numpy")
    for batch in itertools.islice(loader, 20):
        counts = np.bincount(batch["source"], minlength=3)
        assert np.abs(counts - size * np.array(weights) / sum(weights)).max() <= 1.5 + 1e-9


@pytest.mark.thorough
def test_shares_by_size_are_those_of_the_windows(three):
    batch = next(iter(load(three, sum(len(ds) for ds in three.values()), "size")))
    assert np.bincount(batch["source"]).tolist() == [len(three[name]) for name in NAMES]
    slices = load(three, 6 * 7, "size", window=Slice(7))
    windows = [sum(max(e.length - 6, 0) for e in EPISODES[name]) for name in NAMES]
    assert np.bincount(ids_of(slices)).tolist() == [6 * 7 * w // sum(windows) for w in windows]


def ids_of(loader):
    return [m for m, _, _ in ids(next(iter(loader)))]


def test_a_member_of_weight_zero_is_never_drawn(three):
    loader = Loader(Mixture(three, {"a": 1, "b": 0, "c": 1}), 20, backend="numpy")
    assert Counter(itertools.chain(*(b["source"].tolist() for b in itertools.islice(loader, 5)))) == {0: 50, 2: 50}


@pytest.mark.thorough
def test_members_of_lots_are_independent(three):
    loader = load(three, 100, "lots")
    counts = np.array([np.bincount(b["source"], minlength=3) for b in itertools.islice(loader, 300)])
    share = np.array([0.5, 0.3, 0.2])
    assert np.abs(counts.mean(0) - 100 * share).max() < 1
    assert np.abs(counts.var(0) / (100 * share * (1 - share)) - 1).max() < 0.35  # that of a binomial


@pytest.mark.thorough
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("prefetch", [0, 2])
def test_what_was_consumed_is_what_was_handed_out(three, rule, prefetch):
    loader, counts = load(three, 7, rule, prefetch=prefetch), Counter()
    for batch in itertools.islice(loader, 150):
        counts.update(NAMES[m] for m in batch["source"].tolist())
        assert loader.consumed() == {name: counts[name] for name in NAMES}
    other = load(three, 7, rule)
    other.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert other.consumed() == loader.consumed()
    other.seek(loader.step - 100)
    other.seek(loader.step)
    assert other.consumed() == loader.consumed()


@pytest.mark.thorough
def test_all_ranks_count_all(three):
    whole = load(three, 12)
    ranks = [load(three, 12, rank=r, world_size=4) for r in range(4)]
    for loader in (whole, *ranks):
        list(itertools.islice(loader, 9))
    assert [r.consumed() for r in ranks] == [whole.consumed()] * 4 and sum(whole.consumed().values()) == 9 * 12


def test_one_dataset_counts_too(three):
    loader = Loader(three["a"], 5, backend="numpy", sampler=Shuffled())
    list(loader), next(iter(loader))
    assert loader.consumed() == {"local/a": len(three["a"]) + 5}


# -- order


@pytest.mark.thorough
@pytest.mark.parametrize("sampler", [Shuffled(), Shuffled(drop_last=True), Sequential()])
def test_members_have_epochs_of_their_own(three, sampler):
    own = drawn(load(three, 10, sampler=sampler), 60)
    for name, samples in own.items():
        every = sorted((e, t) for e, k in enumerate(EPISODES[name]) for t in range(k.num_transitions))
        epochs = [samples[i : i + len(every)] for i in range(0, len(samples) - len(every) + 1, len(every))]
        assert len(epochs) > 2
        assert all(sorted(epoch) == every for epoch in epochs)
        if isinstance(sampler, Shuffled):
            assert epochs[0] != epochs[1] != epochs[2]
        else:
            assert all(epoch == every for epoch in epochs)


@pytest.mark.thorough
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_members_order_is_its_own(three, sampler):
    """Not changed by weights, nor by who else is there; and not that of another."""
    own = drawn(load(three, sampler=sampler), 50)
    alone = Loader(Mixture({"b": three["b"]}), 10, backend="numpy", fields=[..., "episode", "step"], sampler=sampler)
    samples = [(e, t) for _, e, t in itertools.chain(*first(alone, 15))]
    assert own["b"][:100] == samples[:100]
    twice = Mixture({"a": three["a"], "b": three["a"]}, {"a": 1, "b": 1})
    both = drawn_of(Loader(twice, 10, backend="numpy", fields=[..., "episode", "step"], sampler=sampler), 40)
    assert (both[0] == both[1]) == isinstance(sampler, Sequential)
    other = drawn(load(three, sampler=sampler, seed=1), 50)
    assert (own["a"][:50] == other["a"][:50]) == isinstance(sampler, Sequential)


def drawn_of(loader, n):
    own = ([], [])
    for m, e, t in itertools.chain(*first(loader, n)):
        own[m].append((e, t))
    return own


def test_another_epoch_draws_other_samples(three):
    loader = load(three)
    before = first(loader, 5)
    loader.set_epoch(1)
    after = first(loader, 5)
    assert [[m for m, *_ in b] for b in before] == [[m for m, *_ in b] for b in after] and before != after
    assert sum(loader.consumed().values()) == 50


@pytest.mark.thorough
@settings(max_examples=20)
@given(
    st.sampled_from(list(RULES)),
    st.sampled_from(SAMPLERS),
    st.sampled_from(WINDOWS),
    st.integers(1, 3),
    st.sampled_from([1, 2, 3]),
    st.integers(0, 40),
)
def test_ranks_part_every_batch_wherever_it_starts(three, rule, sampler, window, share, world, start):
    size, options = share * world, {"sampler": sampler, "window": window}
    whole = first(load(three, size, rule, **options), start + 5)[start:]
    parts = []
    for r in range(world):
        loader = load(three, size, rule, **options, rank=r, world_size=world)
        loader.seek(start)
        parts.append(first(loader, 5))
    for batch, *of_ranks in zip(whole, *parts, strict=True):
        in_turn = "lots" in rule or (rule == "exact" and world == 3)  # 3 and the period of 10 have no common divisor
        check_parted(of_ranks, batch, exact=not in_turn and rule != "size")
        if in_turn:
            assert of_ranks == [batch[r::world] for r in range(world)]


@settings(max_examples=20)
@given(
    st.sampled_from(list(RULES)),
    st.sampled_from(SAMPLERS),
    st.sampled_from(WINDOWS),
    st.integers(0, 70),
    st.sampled_from([(6, 1), (6, 2), (3, 1), (4, 4), (10, 5)]),
    st.booleans(),
)
@pytest.mark.slow
def test_going_on_anywhere_is_the_uninterrupted_run(three, rule, sampler, window, done, target, pickled):
    size, world = target if not rule.startswith("schedule") else (6, target[1] if target[1] in (1, 2) else 3)
    options = {"sampler": sampler, "window": window}
    loader = load(three, 6, rule, **options)
    first(loader, done)
    samples = list(itertools.chain(*first(load(three, 6, rule, **options), done + 10)))[6 * done :]
    state, resumed = json.loads(json.dumps(loader.state_dict())), []
    for rank in range(world):
        other = load(three, size, rule, **options, rank=rank, world_size=world)
        other.load_state_dict(state)
        resumed.append(first(pickle.loads(pickle.dumps(other)) if pickled else other, 5))
    for n in range(5):
        check_parted([r[n] for r in resumed], samples[n * size : (n + 1) * size], exact=rule == "schedule")


@pytest.mark.thorough
def test_what_does_not_enter_the_order(three):
    reference = first(load(three, sampler=Shuffled()), 30)
    for options in (
        {"prefetch": 3},
        {"fields": ["action", "episode", "step"]},
        {"backend": "torch"},
        {"dtype": None},
        {"memory": 0},
    ):
        batches = itertools.islice(load(three, sampler=Shuffled(), **options), 30)
        assert [ids(b.numpy()) for b in batches] == reference


@pytest.mark.thorough
def test_a_mixture_ends_after_steps_alone(three):
    loader = load(three, sampler=Shuffled(), steps=7)
    assert len(loader) == 7 and len(list(loader)) == 7 and loader.step == 7
    with pytest.raises(TypeError, match=r"a mixture continues for ever.*\n.*steps=100_000"):
        len(load(three, sampler=Shuffled()))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rule", ["schedule", "lots"])
def test_workers_give_the_same_samples(three, rule):
    data = pytest.importorskip("torch.utils.data")
    options = {"sampler": Shuffled(), "backend": "torch", "steps": 40}
    reference = first(load(three, 12, rule, **options), 40)
    loader = load(three, 12, rule, **options)
    workers = data.DataLoader(loader.as_torch(), batch_size=None, num_workers=2)
    assert [ids(batch) for batch in workers] == reference
    loader.seek(40)
    counts = Counter(NAMES[m] for m, *_ in itertools.chain(*reference))
    assert loader.consumed() == counts


# -- weights that change


@dataclass(frozen=True)
class Ramp:
    """AMAGO's ``smooth_sudden_starts``: members that become ready get to their weight in ``length`` epochs."""

    final: tuple[float, ...]
    ready: tuple[int, ...]
    length: int
    steps_per_epoch: int

    def __call__(self, step):
        epoch, weights = step // self.steps_per_epoch, {}
        for name, final, ready in zip("ab", self.final, self.ready, strict=True):
            initial = final if ready == 0 else 0.0
            slope = (final - initial) / self.length
            low, high = sorted((initial, final))
            weights[name] = 0.0 if epoch < ready else min(max(initial + slope * (epoch - ready + 1), low), high)
        return weights


@pytest.mark.thorough
def test_amagos_ramp(three):
    """One to four quarters of 0.2 beside 0.8, from the epoch on in which the second dataset is ready."""
    ramp = Ramp((0.8, 0.2), (0, 2), 4, 10)
    loader = Loader(Mixture({"a": three["a"], "b": three["b"]}, ramp), 40, backend="numpy")
    expected = [0, 0, 0.05 / 0.85, 0.1 / 0.9, 0.15 / 0.95, 0.2, 0.2]
    total = 0.0
    for share in expected:
        counts = [int((b["source"] == 1).sum()) for b in itertools.islice(loader, 10)]
        assert max(counts) - min(counts) <= 1 and abs(sum(counts) - 400 * share) < 2
        total += 400 * share
        assert abs(loader.consumed()["b"] - total) < 1
    assert np.isclose(expected[2], 0.059, atol=5e-4)
    again = pickle.loads(pickle.dumps(loader))
    assert again.step == 70 and np.array_equal(next(iter(again))["source"], next(iter(loader))["source"])


def test_a_schedule_is_given_the_number_of_the_batch(three):
    seen = []

    def weights(step):
        seen.append(step)
        return {"a": step % 2, "b": 1 - step % 2}

    loader = Loader(Mixture({"a": three["a"], "b": three["b"]}, weights), 8, backend="numpy")
    for batch in itertools.islice(loader, 6):
        assert (batch["source"] == loader.step % 2).all()
    assert seen[:6] == list(range(6))
    loader.seek(101)
    assert (next(iter(loader))["source"] == 0).all()


@pytest.mark.thorough
def test_a_schedule_that_goes_wrong_says_where(three):
    loader = Loader(Mixture(three, lambda step: {**WEIGHTS, "c": -1.0 if step == 5 else 0.2}), 8, backend="numpy")
    with pytest.raises(InvalidArgument, match='"c" at step 5 is -1'):
        list(itertools.islice(loader, 20))
    with pytest.raises(InvalidArgument, match="no weight of c"):
        next(iter(Loader(Mixture(three, lambda step: {"a": 1, "b": 1}), 8)))


# -- states


def test_a_state_of_something_else_is_refused(three):
    loader = load(three, sampler=Shuffled())
    first(loader, 3)
    state = loader.state_dict()
    named = {"d" if name == "c" else name: ds for name, ds in three.items()}
    part = three | {"c": three["c"].select(episodes=[0])}
    others = [
        (load(three, sampler=Uniform()), "They differ in sampler"),
        (load(three, 10, "lots", sampler=Shuffled()), "exact counts, weights a 0.5, b 0.3, c 0.2"),
        (load(part, sampler=Shuffled()), "it was saved with c: local/c"),
        (Loader(Mixture(named), 10, sampler=Shuffled()), "it was saved with c: local/c"),
        (Loader(three["a"], 10, sampler=Shuffled()), "differ in fingerprint, members, weights"),
    ]
    for other, says in others:
        before = other.state_dict()
        with pytest.raises(WrongState, match=says):
            other.load_state_dict(state)
        assert str(other.state_dict()) == str(before)
    with pytest.raises(WrongState, match="this loader is on Mixture"):
        loader.load_state_dict(others[-1][0].state_dict())
    with pytest.raises(WrongState, match="31 samples of the members, and 30 in all"):
        loader.load_state_dict({**state, "consumed": {"a": 15, "b": 9, "c": 7}})
    with pytest.raises(WrongState, match="how much of each member"):
        loader.load_state_dict({**state, "consumed": {"a": 30}})


@pytest.mark.parametrize("rule", ["schedule", "schedule by lots"])
def test_a_schedule_goes_on_with_the_same_batch_size_alone(three, rule):
    loader = load(three, 6, rule)
    first(loader, 4)
    other = load(three, 12, rule)
    with pytest.raises(WrongState, match="batches of 6, this loader's have 12") as e:
        other.load_state_dict(loader.state_dict())
    assert "batch_size=6" in str(e.value) and other.step == 0


# -- what it says


def test_describe_and_repr(three):
    loader = load(three, window=Slice(5))
    first(loader, 2)
    text = loader.describe()
    for part in (
        "mixture of 3 datasets: exact counts, weights a 0.5, b 0.3, c 0.2",
        "a: local/a (rlds1:",
        "50.0000% of the samples, 10 so far",
        "left out  1 episode (3 steps) without a window",
        "window    Slice(length=5",
        "fields    observation, action",
        "memory map, float64[3] to float32",
    ):
        assert part in text, part
    assert "share changes, 0 so far" in load(three, 10, "schedule").describe()
    assert repr(loader).startswith("Loader(Mixture({'a': 'local/a', 'b': 'local/b', 'c': 'local/c'}, {'a': 0.5,")
    mixture = Mixture({"a": three["a"]}, drift, exact=False, pad={"action": 3}, missing="zero")
    assert repr(mixture) == (
        "Mixture({'a': 'local/a'}, test_loader_mixture:drift, exact=False, pad={'action': 3}, missing='zero')"
    )


@pytest.mark.thorough
def test_members_by_id_and_path(three):
    mixture = Mixture({"a": "local/a", "b": three["b"].path, "c": Member(three["c"])}, WEIGHTS)
    assert first(Loader(mixture, 10, backend="numpy", fields=[..., "episode", "step"]), 4) == first(load(three), 4)


def test_a_lambda_cannot_be_sent_to_another_process(three):
    loader = Loader(Mixture({"a": three["a"]}, lambda step: {"a": 1}), 4)
    with pytest.raises(pickle.PicklingError, match=r"lambda.* cannot be sent to another process") as e:
        pickle.dumps(loader)
    assert "a function at the top of a module" in str(e.value)


# -- what cannot be


@pytest.mark.sampled(11)
@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda m: Mixture({}), InvalidArgument, "a mapping of names to datasets"),
        (lambda m: Mixture([m["a"]]), InvalidArgument, "a mapping of names to datasets"),
        (lambda m: Mixture({1: m["a"]}), InvalidArgument, "1 is not a name"),
        (lambda m: Mixture({"a": []}), InvalidArgument, r"Member\(\[\]\)"),
        (lambda m: Mixture({"a": Mixture(m)}), InvalidArgument, "an id, a path or a dataset"),
        (lambda m: Mixture(m, "even"), InvalidArgument, "weights='even'"),
        (lambda m: Mixture(m, {"a": 1, "b": 1}), InvalidArgument, "no weight of c"),
        (lambda m: Mixture(m, dict.fromkeys("abc", 0)), InvalidArgument, "sum to 0"),
        (lambda m: Mixture(m, missing="skip"), InvalidArgument, "missing='skip'"),
        (lambda m: Mixture(m, pad={"action": 0}), InvalidArgument, 'pad\\["action"\\]=0'),
        (lambda m: Loader(Mixture({"a": "local/nothing"})), RldsError, "local/nothing"),
        (lambda m: Loader(Mixture(m), window=Slice(10)), EmptyWindow, "Mixture, a: Slice.10. fits none of 4 episodes"),
        (
            lambda m: Loader(Mixture(m), fields=("reward",)),
            UnknownField,
            'Mixture, a: no field "reward" in local/a. Did you mean',
        ),
        (
            lambda m: Loader(Mixture(m), sampler=Prioritized(priority=np.ones(4))),
            InvalidArgument,
            "an array is of the episodes of one dataset",
        ),
        (lambda m: Loader(Mixture(m), sampler=Prioritized(lag=2)), InvalidArgument, "a: .*draws no batches ahead"),
        (lambda m: Loader(Mixture(m), sampler=Prioritized(), prefetch=2), InvalidArgument, "prefetch=2 with Prior"),
        (lambda m: Member(m["a"], sampler=Prioritized), InvalidArgument, "is not a sampler"),
        (lambda m: Loader(Mixture(m), sampler=Weighted(np.ones(4))), InvalidArgument, "of the episodes of one dataset"),
        (lambda m: Loader(Mixture(m), sampler=Weighted("much")), UnknownField, 'Mixture, a: .*column .*"much"'),
        (lambda m: Loader(Mixture(m), transform=Normalize(m["a"], "info/step")), UnknownField, "touches none"),
    ],
)
def test_what_cannot_be(three, make, error, says):
    with pytest.raises(error, match=says):
        make(three)


def test_priorities_are_refused(three):
    loader = load(three)
    with pytest.raises(InvalidArgument, match="no priorities"):
        loader.update_priorities(next(iter(loader)), np.ones(10))


# -- probabilities


@pytest.mark.thorough
@pytest.mark.parametrize("rule", RULES)
def test_probability_is_that_of_the_member_times_its_share(three, rule):
    loader = load(three, 20, rule, sampler=Weighted("length"), dtype=None)
    windows = {name: len(three[name]) for name in NAMES}
    for n, batch in enumerate(itertools.islice(loader, 12)):
        shares = {name: windows[name] / sum(windows.values()) for name in NAMES}
        if rule != "size":
            given = drift(n) if rule.startswith("schedule") else WEIGHTS
            shares = {name: given[name] / sum(given.values()) for name in NAMES}
        for i, (m, e, _) in enumerate(ids(batch)):
            known = EPISODES[NAMES[m]]
            chance = known[e].length / sum(k.length for k in known) / known[e].num_transitions
            assert np.isclose(batch["probability"][i], shares[NAMES[m]] * chance)
