import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds_cli.errors import InvalidArgument, WrongState
from rlds_cli.loader.samplers import device_priorities
from rlds_cli.loader.samplers.device_priorities import DevicePriorities
from rlds_cli.loader.samplers.priorities import Priorities
from rlds_cli.loader.tensors import host

FLOATS = st.one_of(st.sampled_from([0.0, 1e-12, 1.0, 1e6]), st.floats(0, 100))


@pytest.fixture(scope="module", params=["host", "device", "device, nodes of 4"])
def some(request):
    """Priorities on the host; and on a device, for which the CPU stands in."""

    def made(count=10, **changes):
        priorities = Priorities(count, **{"alpha": 0.6, "beta": 0.4, "eps": 1e-6} | changes)
        return priorities if request.param == "host" else DevicePriorities(priorities, torch.device("cpu"))

    with pytest.MonkeyPatch.context() as patch:
        if request.param == "device, nodes of 4":
            patch.setattr(device_priorities, "WIDTH", 4)
        yield made


def chance(priorities, windows):
    return host(priorities.weigh(priorities.sent(windows))[0])


def weight(priorities, windows):
    return host(priorities.weigh(priorities.sent(windows))[1])


def find(priorities, u):
    return host(priorities.find(u))


def update(priorities, windows, priority):
    priorities.update(np.asarray(windows, np.int64), np.asarray(priority, np.float64))


def raw(priorities):
    return priorities.state()["masses"]


@pytest.mark.thorough
@settings(max_examples=25)
@given(
    st.lists(FLOATS, min_size=1, max_size=30),
    st.lists(st.tuples(st.integers(0, 29), FLOATS), max_size=20),
    st.sampled_from([0.0, 0.6, 1.0, 2.0]),
    st.sampled_from([0.0, 0.4, 1.0]),
)
def test_probabilities_and_weights_are_those_of_the_formula(some, start, updates, alpha, beta):
    count, eps = len(start), 1e-3
    updates = [(i, p) for i, p in updates if i < count]
    priorities = some(count, alpha=alpha, beta=beta, eps=eps)
    update(priorities, range(count), start)
    update(priorities, [i for i, _ in updates] or np.zeros(0, int), [p for _, p in updates])
    known = dict(enumerate(start)) | dict(updates)

    mass = [(known[i] + eps) ** alpha for i in range(count)]
    probability = [m / sum(mass) for m in mass]
    weights = [(count * p) ** -beta for p in probability]
    largest = max(weights)
    every = np.arange(count)
    assert chance(priorities, every) == pytest.approx(probability)
    assert weight(priorities, every) == pytest.approx([w / largest for w in weights])


def test_weights_are_those_of_torchrl(some):
    """PrioritizedSampler(max_capacity=5, alpha=0.7, beta=0.9, eps=1e-8): ``(p_sum_tree / p_min) ** -beta``."""
    priorities = some(5, alpha=0.7, beta=0.9, eps=1e-8)
    update(priorities, [0, 1, 2, 3], [0.5, 2.0, 0.1, 8.0])  # the last keeps the priority of what is new: 1
    mass = [(p + 1e-8) ** 0.7 for p in (0.5, 2.0, 0.1, 8.0, 1.0)]
    assert weight(priorities, np.arange(5)) == pytest.approx([(m / min(mass)) ** -0.9 for m in mass])


@pytest.mark.thorough
@pytest.mark.parametrize("count", [1, 2, 3, 63, 64, 65, 5000])
def test_draws_are_in_proportion(some, count):
    priorities, draws = some(count, alpha=1, eps=1e-9), 200_003
    errors = np.random.default_rng(count).random(count)
    update(priorities, range(count), errors)
    u = (np.arange(draws) + 0.5) / draws
    found = find(priorities, u)
    expected = draws * (errors + 1e-9) / (errors + 1e-9).sum()
    assert np.abs(np.bincount(found, minlength=count) - expected).max() <= 1 + 1e-6


def test_random_draws_pass_a_chi_square_test(some):
    priorities = some(5000)
    errors = np.repeat(np.linspace(0, 3, 50), 100)
    update(priorities, np.arange(5000), errors)
    found = find(priorities, np.random.default_rng(5).random(50_000))
    mass = ((errors + 1e-6) ** 0.6).reshape(50, 100).sum(1)
    expected = 50_000 * mass / mass.sum()
    seen = np.bincount(found // 100, minlength=50)
    assert ((seen - expected) ** 2 / expected).sum() < 103  # 49 degrees of freedom: 1e-5


def test_a_priority_of_zero_is_still_drawn(some):
    priorities = some(2, alpha=1, eps=1e-3)
    update(priorities, [0, 1], [0, 1])
    assert chance(priorities, np.arange(2)) == pytest.approx([0.001 / 1.002, 1.001 / 1.002])
    assert find(priorities, np.array([0.0, 0.0009, 0.0011])).tolist() == [0, 0, 1]


def test_beta_may_be_annealed(some):
    priorities = some(2, alpha=1, eps=1e-12)
    update(priorities, [0, 1], [1, 4])
    assert weight(priorities, np.arange(2)) == pytest.approx([1, 4**-0.4])
    priorities.beta = 1
    assert weight(priorities, np.arange(2)) == pytest.approx([1, 1 / 4])
    priorities.beta = 0.0
    assert weight(priorities, np.arange(2)).tolist() == [1, 1]
    with pytest.raises(InvalidArgument, match="beta=-1"):
        priorities.beta = -1
    assert priorities.beta == 0


@pytest.mark.parametrize(
    ("which", "errors", "words"),
    [
        ([0, 4, 2], [1, -0.5, -1], r"priority -0.5 at place 1 of 3 \(window 4\)"),
        ([0, 1], [1, float("nan")], r"priority nan at place 1 of 2 \(window 1\)"),
        ([3, 1], [float("inf"), 1], r"priority inf at place 0 of 2 \(window 3\)"),
        ([3], [1e300], "at most 1e"),
        ([0, 10], [1, 1], "window 10 at place 1 of 2: there are 10"),
        ([-1, 1], [1, 1], "window -1 at place 0 of 2"),
    ],
)
def test_other_priorities_are_refused_and_nothing_changes(some, which, errors, words):
    priorities = some(10)
    update(priorities, [1, 2], [7, 0.1])
    before = raw(priorities)
    with pytest.raises(InvalidArgument, match=words):
        update(priorities, which, errors)
    assert np.array_equal(raw(priorities), before)


def test_the_greatest_priorities_keep_everything_finite(some):
    for alpha in (0.0, 0.6, 1.0, 3.0):
        priorities = some(70_000, alpha=alpha)
        update(priorities, range(70_000), np.full(70_000, 10 ** min(280.0, 280 / max(alpha, 1))))
        update(priorities, [69_999], [0])
        assert np.isfinite(chance(priorities, np.arange(70_000))).all()
        weights = weight(priorities, np.arange(70_000))
        assert weights[-1] == 1 and (weights >= 0).all()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"alpha": -0.1}, "alpha=-0.1"),
        ({"alpha": float("nan")}, "alpha=nan"),
        ({"beta": "x"}, "beta='x'"),
        ({"beta": float("inf")}, "beta=inf"),
        ({"eps": 0}, "eps=0: a window of priority 0 would never be drawn"),
        ({"alpha": 60.0}, "out of range"),
        ({"alpha": 1e300}, "out of range"),
    ],
)
def test_other_settings_are_refused(some, changes, words):
    with pytest.raises(InvalidArgument, match=words):
        some(**changes)


def test_a_state_goes_from_one_to_another(some):
    rng = np.random.default_rng(6)
    first, second = some(80_000), some(80_000, beta=0.9)
    for _ in range(5):
        update(first, rng.integers(0, 80_000, 1000), rng.random(1000))
    first.beta = 0.7
    state = first.state()
    update(first, [0, 1], [9, 9])  # what was saved does not change
    second.load(state)
    assert np.array_equal(raw(second), state["masses"]) and not np.array_equal(raw(first), state["masses"])
    assert second.beta == 0.7
    third = some(80_000)
    third.load(state)
    every = np.arange(80_000)
    assert np.allclose(chance(second, every), chance(third, np.arange(80_000)), rtol=1e-12, atol=0)
    assert np.allclose(weight(second, every), weight(third, np.arange(80_000)), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"alpha": 0.5}, "alpha=0.5, not 0.6"),
        ({"eps": 1e-3}, "eps=0.001, not 1e-06"),
        ({"masses": np.ones(9)}, r"shape \[9\]; 10 are needed"),
        ({"masses": np.ones(10, np.float32)}, "float32"),
        ({"masses": np.zeros(10)}, "not those that were saved"),
        ({"masses": np.full(10, np.nan)}, "not those that were saved"),
        ({"beta": -1}, "beta=-1"),
    ],
)
def test_other_states_are_refused_and_nothing_changes(some, changes, words):
    priorities = some(10)
    update(priorities, [3], [5])
    before = priorities.state()
    with pytest.raises((WrongState, InvalidArgument), match=words):
        priorities.load(before | changes)
    with pytest.raises(WrongState, match="no masses"):
        priorities.load({"alpha": 0.6, "beta": 0.4, "eps": 1e-6})
    assert np.array_equal(raw(priorities), before["masses"]) and priorities.beta == 0.4
