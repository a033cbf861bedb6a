from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds_cli.errors import InvalidArgument
from rlds_cli.loader.samplers.weighted import Cumulative

LAST = 1 - 2.0**-53  # the greatest float below 1
ODD = [0.0, 5e-324, 1e-300, 1e-17, 0.1, 1 / 3, 1.0, 7.0, 1e17, 1e308]
WEIGHTS = st.lists(st.one_of(st.sampled_from(ODD), st.floats(0, 1e308)), min_size=1, max_size=40).filter(any)
WHOLE = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 1000)), min_size=1, max_size=60).filter(any)


def edges(weights):
    """The draws at which one item ends and the next begins, and their neighbours."""
    sums = np.cumsum([Fraction(w) for w in weights])
    at = np.array([0.0, 5e-324, 2.0**-53, LAST] + [float(s / sums[-1]) for s in sums])
    return np.unique(np.clip(np.concatenate([at, np.nextafter(at, 0), np.nextafter(at, 1)]), 0, LAST))


def slowly(weights, u):
    """Walk through the items, in exact numbers."""
    at = Fraction(u) * sum(weights)
    for item, weight in enumerate(weights):
        if at < weight:
            return item
        at -= weight
    raise AssertionError


@pytest.mark.thorough
@given(WHOLE, st.lists(st.integers(0, 2**20 - 1), min_size=1, max_size=30))
def test_draws_fall_where_a_walk_in_exact_numbers_ends(weights, draws):
    u = np.array(draws) * 2.0**-20  # so few bits that no product is rounded
    found = Cumulative(weights).find(u)
    assert found.dtype == np.int64
    assert found.tolist() == [slowly(weights, x) for x in u]


def test_an_item_ends_before_the_edge_and_the_next_begins_on_it():
    eighths = np.arange(8) / 8  # two of them in each of four slices
    assert Cumulative([1, 1, 1, 5]).find(eighths).tolist() == [0, 1, 2, 3, 3, 3, 3, 3]
    assert Cumulative([3, 0, 1, 4]).find(eighths).tolist() == [0, 0, 0, 2, 3, 3, 3, 3]
    assert Cumulative([5, 1, 1, 1]).find(np.nextafter(eighths, 1)).tolist() == [0, 0, 0, 0, 0, 1, 2, 3]


@pytest.mark.thorough
@given(WEIGHTS)
def test_at_every_edge_the_item_weighs_something_and_is_a_rounding_away(weights):
    u = edges(weights)
    found = Cumulative(weights).find(u)
    sums = [Fraction(0), *np.cumsum([Fraction(w) for w in weights])]
    off = Fraction(len(weights) + 2, 2**53)
    for x, item in zip(u, found.tolist(), strict=True):
        assert weights[item] > 0
        assert sums[item] / sums[-1] - off <= Fraction(x) <= sums[item + 1] / sums[-1] + off


@pytest.mark.thorough
@given(WEIGHTS)
def test_probabilities_are_shares_of_the_sum(weights):
    total = sum(map(Fraction, weights))
    numbers = np.arange(len(weights))
    expected = [float(w / total) for w in map(Fraction, weights)]
    probability = Cumulative(weights).probability(numbers)
    assert probability == pytest.approx(expected, abs=len(weights) * 2.0**-53)
    assert (probability[np.array(weights) == 0] == 0).all()
    assert probability.sum() == pytest.approx(1)


@pytest.mark.thorough
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 1023, 1024, 1025, 40_000])
@pytest.mark.parametrize("spread", [0, 1, 8])
def test_evenly_spaced_draws_give_each_item_its_share(n, spread):
    weights = np.exp(spread * np.random.default_rng(n).standard_normal(n))
    draws = 100_003
    seen = np.bincount(Cumulative(weights).find((np.arange(draws) + 0.5) / draws), minlength=n)
    assert np.abs(seen - draws * weights / weights.sum()).max() <= 1 + 1e-6


def test_random_draws_pass_a_chi_square_test():
    weights = np.random.default_rng(1).random(100)
    weights[[0, 17, 99]] = 0
    seen = np.bincount(Cumulative(weights).find(np.random.default_rng(2).random(200_000)), minlength=100)
    expected = 200_000 * weights / weights.sum()
    assert not seen[weights == 0].any()
    some = weights > 0
    assert ((seen - expected)[some] ** 2 / expected[some]).sum() < 165  # 96 degrees of freedom: 1e-5


def test_a_crowd_within_one_slice_takes_the_binary_search():
    weights = np.r_[np.zeros(5), np.full(50_000, 1e-9), 1.0, np.zeros(50_000), np.full(3, 1e-12), 0.0]
    cumulative, sums = Cumulative(weights), np.cumsum(weights)
    u = np.r_[np.random.default_rng(0).random(2000) * 6e-5, 0.5, 1 - 1e-12, LAST]
    assert np.array_equal(cumulative.find(u), np.searchsorted(sums, u * sums[-1], "right"))
    assert cumulative.find(np.array([0.0, 0.5, LAST])).tolist() == [5, 50_005, 100_008]


def test_weights_that_neither_sum_up_nor_divide_as_floats():
    huge = Cumulative([1e308, 0, 1e308, 1e308])
    assert huge.find(np.array([0, 0.3, 0.4, 0.7])).tolist() == [0, 0, 2, 3]
    assert huge.probability(np.array([0, 1, 2])) == pytest.approx([1 / 3, 0, 1 / 3])
    assert huge.total == np.inf
    tiny = Cumulative([5e-324, 0, 1.5e-323])
    assert tiny.find(np.array([0, 0.2499, 0.25, LAST])).tolist() == [0, 0, 2, 2]
    assert tiny.probability(np.arange(3)).tolist() == [0.25, 0, 0.75]
    assert Cumulative([1, 2, 3.5]).total == 6.5


def test_the_weights_may_change_afterwards_and_come_as_anything():
    weights = np.array([1.0, 1.0])
    cumulative = Cumulative(weights)
    weights[:] = [0, 5]
    assert cumulative.probability(np.arange(2)).tolist() == [0.5, 0.5]
    for same in ([True, True, False], (1, 1, 0), np.array([2, 2, 0], np.uint8), np.float32([9, 9, 0])):
        assert Cumulative(same).probability(np.arange(3)).tolist() == [0.5, 0.5, 0]
    assert len(Cumulative([1, 2, 3])) == 3


def test_shapes_of_draws_are_kept():
    assert Cumulative([1.0]).find(np.zeros(0)).shape == (0,)
    assert Cumulative([1.0, 2.0]).probability(np.zeros((3, 4), int)).shape == (3, 4)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([], "no weights"),
        ([0.0, 0.0], "All 2 weights are zero"),
        ([1.0, -0.5, -3.0], "weight -0.5 at place 1 of 3"),
        ([1.0, 2.0, float("nan"), -1.0], "weight nan at place 2 of 4"),
        ([float("inf")], "weight inf at place 0 of 1"),
        ([[1.0], [2.0]], r"shape \[2, 1\]"),
        (["a", "b"], "not numbers"),
        (3.0, r"shape \[\]"),
    ],
)
def test_other_weights_are_refused(weights, words):
    with pytest.raises(InvalidArgument, match=words):
        Cumulative(weights)
