import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import shuffles

from rlds_cli.loader import kernel
from rlds_cli.loader.order import EPISODE, WINDOW, Order

SEEDS = st.integers(0, 2**64 - 1)


@pytest.mark.thorough
@given(SEEDS, st.integers(0, 2**40), st.integers(0, 10**12), st.integers(1, 30), st.integers(1, 5))
def test_a_draw_depends_on_its_own_position_only(seed, epoch, start, count, step):
    positions = range(start, start + count * step, step)
    drawn = Order(seed, epoch).uniform(WINDOW, positions)
    assert drawn.tolist() == [(shuffles.philox(seed, epoch, WINDOW, p) >> 11) * 2.0**-53 for p in positions]


@pytest.mark.thorough
@given(SEEDS, st.integers(0, 1000), st.integers(1, 400))
def test_a_shuffle_is_the_permutation_that_the_docs_describe(seed, epoch, n):
    assert Order(seed, epoch).shuffled(range(n), n).tolist() == shuffles.shuffled(seed, epoch, n)


@pytest.mark.thorough
@pytest.mark.parametrize("n", [4095, 4096, 4097, 5000])
def test_many_numbers_are_shuffled_in_rounds(n):
    assert Order(5, 2).shuffled(range(n), n).tolist() == shuffles.shuffled(5, 2, n)


def test_the_order_stays_what_it_is():
    assert Order(7, 3).shuffled(range(10), 10).tolist() == [4, 0, 3, 8, 5, 1, 7, 9, 6, 2]
    assert Order(7, 3).shuffled(range(3), 5000).tolist() == [1636, 2136, 3396]
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


@pytest.mark.sampled(2)
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
    a = math.isqrt(n - 1) + 1
    x = np.array([0, 1, 2, 2**40, n - 2, n - 1])
    y = kernel.permute(x, n, (a, -(-n // a)), np.array([1, 2, 3, 4], np.uint32))
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


def orders(n, tries):
    """Shuffles of n numbers [tries, n], each of a seed of its own."""
    return np.stack([Order(seed).shuffled(range(n), n) for seed in range(tries)])


def chi_square(counts, expected):
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.thorough
def test_every_order_of_few_windows_is_as_likely():
    tries = 20 * math.factorial(6)
    counts = Counter(map(tuple, orders(6, tries).tolist()))
    assert len(counts) == 720
    assert chi_square(np.array(list(counts.values())), 20) < 920  # 719 degrees of freedom: 1e-6


@pytest.mark.thorough
@pytest.mark.parametrize("n", [7, 64])
def test_every_place_of_a_small_shuffle_is_as_likely(n):
    tries, seen = 4000, np.zeros((n, n))
    for order in orders(n, tries):
        seen[np.arange(n), order] += 1
    free = (n - 1) ** 2
    assert chi_square(seen, tries / n) < free + 5 * math.sqrt(2 * free)


@pytest.mark.thorough
@pytest.mark.parametrize(("n", "tries"), [(2, 4000), (6, 4000), (100, 3000), (1000, 1500), (5000, 800), (100_003, 40)])
def test_neighbours_stay_neighbours_as_often_as_chance_has_it(n, tries):
    """Numbers that lie side by side or one row of the Feistel square apart, before and after."""
    row = -(-n // (math.isqrt(n - 1) + 1))
    seen, expected = Counter(), Counter()
    for order in orders(n, tries):
        for before in {1, row}:
            steps = order[before:] - order[:-before]
            for after in {1, row}:
                for sign in (1, -1):
                    seen[before, after, sign] += int(np.count_nonzero(steps == sign * after))
                    expected[before, after, sign] += (n - before) * (n - after) / (n * (n - 1))
    for key, number in expected.items():
        assert abs(seen[key] - number) < 4.5 * math.sqrt(number), (key, seen[key], number)


@pytest.mark.thorough
@pytest.mark.parametrize("n", [30, 5000])
def test_pairs_are_as_likely_in_any_two_places(n):
    """Where two neighbours go, in sixteenths of the range: 256 cells."""
    tries = 3000 if n == 30 else 200
    made = orders(n, tries) * 8 // n
    pairs = np.bincount((made[:, :-1] * 8 + made[:, 1:]).reshape(-1), minlength=64)
    share = np.bincount(np.arange(n) * 8 // n, minlength=8) / n
    chance = np.outer(share, share) * n / (n - 1) - np.diag(share) / (n - 1)
    assert chi_square(pairs, pairs.sum() * chance.reshape(-1)) < 63 + 5 * math.sqrt(2 * 63)


def test_draws_below_n_are_uniform():
    counts = np.bincount(Order(11).below(WINDOW, range(100_000), 10), minlength=10)
    assert counts.sum() == 100_000 and ((counts - 10_000) ** 2 / 10_000).sum() < 40


def test_no_positions_give_no_draws():
    assert Order(0).uniform(WINDOW, range(5, 5)).shape == (0,)
    assert Order(0).shuffled(range(5, 5), 10).shape == (0,)
