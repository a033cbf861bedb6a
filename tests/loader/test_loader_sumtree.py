import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds_cli.loader.kernel import SumTree
from rlds_cli.loader.samplers.priorities import LEAST, MOST

LAST = 1 - 2.0**-53  # the greatest float below 1
SIZES = [1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65, 255, 257, 511, 512, 513, 4095, 4096, 4097, 4104, 4105, 32_769, 100_000]


def tree_of(masses):
    tree = SumTree(len(masses), 1.0)
    tree.fill(masses)
    return tree


def update(tree, numbers, masses):
    """Set masses: the powers of priorities with alpha 1."""
    assert tree.update(numbers, masses, eps=0.0, alpha=1.0, most=MOST) is None


def find(tree, u):
    found = tree.find(u)
    assert found.dtype == np.int64 and found.shape == u.shape
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("count", SIZES)
def test_draws_fall_where_the_sums_say(count):
    rng = np.random.default_rng(count)
    masses = rng.integers(1, 10, count).astype(np.float64)  # no sum of them is rounded
    u = np.r_[0, rng.random(2000), LAST]
    expected = np.searchsorted(np.cumsum(masses), u * masses.sum(), "right")
    tree = tree_of(masses)
    assert np.array_equal(find(tree, u), expected)
    assert float(tree.total) == masses.sum() and float(tree.least) == masses.min()


@pytest.mark.thorough
@pytest.mark.parametrize("count", SIZES)
def test_all_are_equal_at_first(count):
    tree = SumTree(count, 0.25)
    assert float(tree.total) == count / 4 and float(tree.least) == 0.25
    assert find(tree, (np.arange(min(count, 999)) + 0.5) / min(count, 999)).size == min(count, 999)
    if count < 5000:
        assert find(tree, (np.arange(count) + 0.5) / count).tolist() == list(range(count))


@pytest.mark.thorough
@settings(max_examples=15)
@given(st.integers(0, 2**32), st.sampled_from(SIZES))
def test_a_tree_that_was_updated_is_the_tree_of_its_masses(seed, count):
    rng = np.random.default_rng(seed)
    masses = np.exp(20 * rng.standard_normal(count))
    tree = tree_of(masses)
    for size in (1, 2, 7, 300):
        numbers, new = rng.integers(0, count, size), np.exp(20 * rng.standard_normal(size))
        numbers[: size // 4] = count - 1 - numbers[: size // 4] % min(count, 20)  # the last nodes are not full
        update(tree, numbers, new)
        for number, mass in zip(numbers, new, strict=True):
            masses[number] = mass
    again, u = tree_of(masses), np.r_[0, rng.random(500), LAST]
    assert np.array_equal(tree.masses, masses)
    assert tree.total == again.total and tree.least == masses.min()
    assert np.array_equal(tree.find(u), again.find(u))


@pytest.mark.thorough
@settings(max_examples=30)
@given(st.integers(0, 2**32), st.sampled_from(SIZES), st.sampled_from([1, 30, 500]))
def test_rounding_finds_nothing_that_is_not_there(seed, count, spread):
    rng = np.random.default_rng(seed)
    masses = np.exp(np.clip(spread * rng.standard_normal(count), np.log(LEAST), np.log(MOST)))
    sums = np.cumsum(masses) / masses.sum()
    at = np.r_[0, 5e-324, 2.0**-53, LAST, rng.random(50), sums[-3:], rng.choice(sums, 50)]
    u = np.clip(np.r_[at, np.nextafter(at, 0), np.nextafter(at, 1)], 0, LAST)
    found = tree_of(masses).find(u)
    assert found.min() >= 0 and found.max() < count
    before = np.r_[0, sums][found]
    assert (before <= u + 1e-11).all() and (u <= sums[found] + 1e-11).all()


@pytest.mark.parametrize("zeros", [1, 2, 4, 30_000])
def test_a_draw_that_rounding_leads_past_the_last_mass_falls_on_it(zeros):
    masses = np.r_[0.76048659866525, 0.10982788606390892, 0.6249409616679835, 0.41395588246519277, np.zeros(zeros)]
    assert find(tree_of(masses), np.array([LAST])).tolist() == [3]


@pytest.mark.thorough
@pytest.mark.parametrize("before", [0, 8, 4096, 65_536])
def test_a_draw_beyond_the_last_mass_of_a_node_falls_on_it(before):
    masses = np.r_[np.full(before, 1e-280), 1.0, 2.0**-53, 2.0**-60, 2.0**-53]
    found = find(tree_of(masses), np.array([0.5, LAST]))
    assert found[0] == before and before <= found[1] < before + 4


def test_the_last_of_several_masses_counts():
    tree = SumTree(70_000, 1.0)
    numbers, masses = np.array([5, 69_999, 5, 5, 8, 69_999]), np.array([9.0, 8, 7, 6, 5, 4])
    update(tree, numbers, masses)
    assert [float(tree.masses[i]) for i in (5, 8, 69_999, 4)] == [6, 5, 4, 1]
    assert float(tree.total) == 70_000 - 3 + 15 and float(tree.least) == 1


def test_evenly_spaced_draws_give_each_number_its_share():
    masses = np.exp(2 * np.random.default_rng(3).standard_normal(20_000))
    draws = 400_009
    found = find(tree_of(masses), (np.arange(draws) + 0.5) / draws)
    expected = draws * masses / masses.sum()
    assert np.abs(np.bincount(found, minlength=20_000) - expected).max() <= 1 + 1e-6


@pytest.mark.parametrize("count", [1, 100_000])
def test_nothing_drawn_and_nothing_updated(count):
    tree = SumTree(count, 1.0)
    none = np.arange(0)
    assert find(tree, np.zeros(0)).shape == (0,)
    update(tree, none, tree.masses[:0])
    assert float(tree.total) == count
