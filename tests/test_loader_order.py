import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds_cli.loader.sampling.order import EPISODE, SHUFFLE, VERSION, WINDOW, Order, permute

SEEDS = st.integers(0, 2**64 - 1)


def philox(seed, epoch, stream, p):
    """Draw p by the definition, one block at a time."""
    key = np.array([seed, epoch << 8 | stream], np.uint64)
    return int(np.random.Philox(key=key, counter=np.array([p // 4, 0, 0, 0], np.uint64)).random_raw(4)[p % 4])


@given(SEEDS, st.integers(0, 2**40), st.integers(0, 10**12), st.integers(1, 30), st.integers(1, 5))
def test_a_draw_depends_on_its_own_position_only(seed, epoch, start, count, step):
    positions = range(start, start + count * step, step)
    drawn = Order(seed, epoch).uniform(WINDOW, positions)
    assert drawn.tolist() == [(philox(seed, epoch, WINDOW, p) >> 11) * 2.0**-53 for p in positions]


def feistel(x, n, keys):
    """One value, in whole numbers: rounds add a scattering of one half to the other, by turns."""
    a = 1
    while a * a < n:
        a += 1
    b = -(-n // a)
    while True:
        left, right = divmod(x, b)
        for i, key in enumerate(keys):
            f = ((left if i % 2 else right) ^ key) * 0x9E3779B1 % 2**32
            f ^= f >> 15
            f = f * 0x85EBCA77 % 2**32
            f ^= f >> 13
            left, right = (left, (right + f) % b) if i % 2 else ((left + f) % a, right)
        x = left * b + right
        if x < n:
            return x


@given(SEEDS, st.integers(0, 1000), st.integers(1, 400))
def test_a_shuffle_is_the_permutation_that_the_docs_describe(seed, epoch, n):
    keys = [philox(seed, epoch, SHUFFLE, i) % 2**32 for i in range(4)]
    assert Order(seed, epoch).shuffled(range(n), n).tolist() == [feistel(x, n, keys) for x in range(n)]


def test_version_1_of_the_order_stays_what_it_is():
    assert VERSION == 1
    assert Order(7, 3).shuffled(range(10), 10).tolist() == [7, 6, 0, 2, 8, 1, 4, 9, 3, 5]
    assert Order(7, 3).below(WINDOW, range(6), 1000).tolist() == [328, 988, 19, 712, 942, 462]


def test_streams_epochs_and_seeds_differ():
    draws = [
        tuple(Order(seed, epoch).uniform(stream, range(4)))
        for seed in (0, 1, 2**63)
        for epoch in (0, 1, 2)
        for stream in (WINDOW, EPISODE)
    ]
    assert len(set(draws)) == len(draws)


@given(SEEDS, st.integers(0, 1000), st.integers(1, 3000))
def test_a_shuffle_is_a_permutation(seed, epoch, n):
    assert sorted(Order(seed, epoch).shuffled(range(n), n).tolist()) == list(range(n))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 9, 10, 1 << 16, (1 << 16) + 1, 100_003, 316 * 316, 316 * 317 + 1])
def test_a_shuffle_is_a_permutation_at_the_edges_of_its_factors(n):
    assert np.array_equal(np.sort(Order(3, 4).shuffled(range(n), n)), np.arange(n))


@given(SEEDS, st.integers(1, 10**12), st.data())
def test_any_part_of_a_shuffle_is_found_without_the_rest(seed, n, data):
    start = data.draw(st.integers(0, n - 1))
    stop = min(n, start + data.draw(st.integers(1, 50)))
    step = data.draw(st.integers(1, 4))
    part = Order(seed).shuffled(range(start, stop, step), n)
    assert part.tolist() == [Order(seed).shuffled(range(p, p + 1), n)[0] for p in range(start, stop, step)]
    assert len(set(part.tolist())) == len(part) and part.min() >= 0 and part.max() < n


def test_huge_ranges_stay_one_to_one():
    n = 2**62 - 57
    x = np.array([0, 1, 2, 2**40, n - 2, n - 1], np.uint64)
    y = permute(x, n, np.array([1, 2, 3, 4], np.uint32))
    assert len(set(y.tolist())) == len(x) and y.min() >= 0 and y.max() < n


def test_neighbours_of_a_shuffle_are_not_related():
    n = 1_000_003
    for seed in range(3):
        y = Order(seed).shuffled(range(200_000), n).astype(float)
        assert abs(np.corrcoef(y[:-1], y[1:])[0, 1]) < 0.01
        counts = np.bincount((y * 100 / n).astype(int), minlength=100)
        assert ((counts - 2000) ** 2 / 2000).sum() < 170  # chi-square, 99 degrees of freedom: 1e-5
        means = y[: 200_000 // 256 * 256].reshape(-1, 256).mean(1)
        assert 0.9 < means.std() / (n / np.sqrt(12) / 16) < 1.1


def test_every_place_of_a_small_shuffle_is_as_likely():
    n, tries = 7, 4000
    seen = np.zeros((n, n))
    for seed in range(tries):
        seen[np.arange(n), Order(seed).shuffled(range(n), n)] += 1
    expected = tries / n
    assert ((seen - expected) ** 2 / expected).sum() < 90  # chi-square, 36 degrees of freedom: 1e-6


def test_draws_below_n_are_uniform():
    counts = np.bincount(Order(11).below(WINDOW, range(100_000), 10), minlength=10)
    assert counts.sum() == 100_000 and ((counts - 10_000) ** 2 / 10_000).sum() < 40


def test_no_positions_give_no_draws():
    assert Order(0).uniform(WINDOW, range(5, 5)).shape == (0,)
    assert Order(0).shuffled(range(5, 5), 10).shape == (0,)
