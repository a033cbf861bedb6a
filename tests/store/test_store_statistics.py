from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds_cli.store.manifest import Stats
from rlds_cli.store.statistics import MAX_WIDTH, Accumulator, of_episodes, sampled


def gather(values: np.ndarray, cuts: list[int]) -> Stats:
    a = Accumulator(values.shape[1:])
    for block in np.split(values, cuts):
        a.add(block)
    return a.result(values)


def test_by_hand() -> None:
    s = gather(np.array([1, 2, 3, 6], np.int64), [1, 3])
    assert (s.mean, s.min, s.max, s.count, s.nonfinite) == (3.0, 1.0, 6.0, 4, 0)
    assert s.std == pytest.approx(math.sqrt((4 + 1 + 0 + 9) / 4))
    assert (s.low, s.high, sum(s.histogram)) == (1.0, 6.0, 4)
    # Bins of 5/16: 1 is in the first, 2 in bin 3, 3 in bin 6, 6 closes the last.
    assert [i for i, n in enumerate(s.histogram) if n] == [0, 3, 6, 15]


@pytest.mark.thorough
@settings(max_examples=30)
@given(st.integers(1, 60), st.integers(1, 4), st.lists(st.integers(0, 60), max_size=4), st.integers(0, 2**31))
def test_blocks_do_not_matter_and_numpy_agrees(rows: int, width: int, cuts: list[int], seed: int) -> None:
    x = np.random.default_rng(seed).normal(1e4, 1.0, (rows, width)).astype(np.float32)
    s = gather(x, sorted(c for c in cuts if c <= rows))
    wide = x.astype(np.float64)
    assert np.allclose(s.mean, wide.mean(0), rtol=1e-12)
    assert np.allclose(s.std, wide.std(0), rtol=1e-6, atol=1e-9)
    assert np.array_equal(s.min, wide.min(0))
    assert np.array_equal(s.max, wide.max(0))
    assert np.allclose(s.q01, np.quantile(wide, 0.01, axis=0))
    assert np.allclose(s.q99, np.quantile(wide, 0.99, axis=0))


def test_large_offsets_do_not_cancel() -> None:
    x = 1e9 + np.tile([0.0, 1.0], 100_000)
    s = gather(x, [65_536, 131_072])
    assert s.mean == pytest.approx(1e9 + 0.5, abs=1e-6)
    assert s.std == pytest.approx(0.5, rel=1e-9)


def test_nan_and_infinities_are_left_out_and_counted() -> None:
    x = np.array([[1.0, np.nan], [np.inf, np.nan], [3.0, np.nan], [-np.inf, np.nan]])
    for cuts in ([], [2], [1, 2, 3]):
        s = gather(x, cuts)
        assert (s.mean[0], s.std[0], s.min[0], s.max[0]) == (2.0, 1.0, 1.0, 3.0)
        assert all(math.isnan(v[1]) for v in (s.mean, s.std, s.min, s.max))
        assert (s.nonfinite, s.count) == (6, 4)
        assert sum(s.histogram) == 2


def test_halves_and_large_integers_do_not_overflow() -> None:
    half = gather(np.full(70_000, 60_000, np.float16), [])
    assert half.mean == pytest.approx(float(np.float16(60_000)))
    big = gather(np.array([2**62, 2**62 + 2**53], np.int64), [])
    assert big.mean == pytest.approx(float(2**62 + 2**52))
    unsigned = gather(np.array([2**64 - 1], np.uint64), [])
    assert unsigned.max == float(2**64 - 1)
    huge = gather(np.array([-1.5e308, 1.5e308]), [])
    assert (huge.min, huge.max) == (-1.5e308, 1.5e308)


def test_flags_and_constants() -> None:
    s = gather(np.array([True, False, False, False]), [])
    assert (s.mean, s.min, s.max) == (0.25, 0.0, 1.0)
    constant = gather(np.full(5, 7.0), [])
    assert (constant.std, constant.histogram, constant.low, constant.high) == (0.0, (5,), 7.0, 7.0)


def test_nothing() -> None:
    for x in (np.zeros((0, 3)), np.zeros((4, 0))):
        s = gather(x, [])
        assert s.count == len(x)
        assert s.histogram == ()
        assert all(math.isnan(v) for v in np.ravel(s.mean))


def test_the_shape_of_a_row_is_kept() -> None:
    s = gather(np.arange(24.0).reshape(4, 2, 3), [])
    assert np.shape(s.mean) == np.shape(s.q01) == (2, 3)
    assert s.mean[1][2] == np.mean([5, 11, 17, 23])


def test_wide_rows_are_pooled() -> None:
    x = np.random.default_rng(0).integers(0, 256, (5, 1, MAX_WIDTH + 1)).astype(np.uint8)
    s = gather(x, [2])
    assert s.mean == pytest.approx(x.mean())
    assert s.std == pytest.approx(x.std())
    assert (s.min, s.max) == (x.min(), x.max())
    narrow = gather(x[..., :MAX_WIDTH], [])
    assert np.shape(narrow.mean) == (1, MAX_WIDTH)


@given(st.integers(1, 10**9), st.integers(1, 10**5))
def test_samples_stay_small_and_cover_all_parts(steps: int, width: int) -> None:
    taken = sampled(steps, width)
    assert 1 <= len(taken) <= 1 << 16
    assert len(taken) * width <= max(1 << 22, width)
    assert taken[0] >= 0
    assert taken[-1] < steps
    apart = np.diff(taken)
    assert len(taken) == steps or ((apart > 0).all() and apart.max() < 2 * -(-steps // len(taken)) + 2)


def test_quantiles_do_not_depend_on_how_long_episodes_are() -> None:
    """20 times as many steps as are sampled, in episodes of 20: evenly spaced ones would be the first of each."""
    count = 1 << 16
    values = np.tile(np.arange(20.0), count)
    found = of_episodes(values, np.arange(count) * 20, np.full(count, 20))
    assert (found.q01, found.q99) == (0, 19)


def test_quantiles_have_the_stated_error() -> None:
    """Of at least 32,768 sampled steps, 1 % of all lie below the quantile, with an error of 0.17 percent points."""
    rng = np.random.default_rng(0)
    steps = 3 * (1 << 16) + 1  # every fourth is taken
    for values in (rng.normal(size=steps), np.cumsum(rng.normal(size=steps)), rng.exponential(size=steps) ** 3):
        found = of_episodes(values, np.array([0]), np.array([steps]))
        assert (values < found.q01).mean() == pytest.approx(0.01, abs=0.0017)
        assert (values < found.q99).mean() == pytest.approx(0.99, abs=0.0017)


@given(st.integers(1, 40), st.integers(0, 255), st.integers(0, 255), st.integers(0, 2**31))
@settings(max_examples=12)
def test_raw_images_are_what_numpy_says_of_all_their_elements(n: int, one: int, other: int, seed: int) -> None:
    low, high = sorted((one, other))
    x = np.random.default_rng(seed).integers(low, high, (n, 65, 64), np.uint8, endpoint=True)
    s = gather(x, [n // 3, n // 2])
    assert (s.mean, s.std) == (pytest.approx(x.mean(), rel=1e-12), pytest.approx(x.std(), rel=1e-9, abs=1e-9))
    assert (s.min, s.max, s.low, s.high) == (x.min(), x.max(), x.min(), x.max())
    assert [s.q01, s.q99] == pytest.approx(np.quantile(x, [0.01, 0.99]).tolist())
    bins = np.histogram(x, 16, (low, high))[0] if x.min() == low < high == x.max() else None
    assert bins is None or s.histogram == tuple(bins.tolist())


@pytest.mark.parametrize("least", [5e-324, 1e-310, 1e-308])
def test_subnormal_numbers_are_data(least: float) -> None:
    s = gather(np.array([0.0, least, 0.0, least, 0.0]), [2])
    assert (s.min, s.max, s.low, s.high) == (0.0, least, 0.0, least)
    assert s.histogram == (3, *[0] * 14, 2)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("column", "rel"),
    [
        (1.7e9 + np.arange(3000) % 100, 1e-9),
        (1e15 + np.arange(3000) % 2, 1e-9),
        (1e15 + np.arange(3000) % 100, 1e-4),  # means are of float64: multiples of 1/8
        (10**15 + np.arange(3000) % 2, 1e-9),
        (1_700_000_000_000_000_000 + np.arange(3000) * 1_000_000, 1e-9),
        ((5.4e6 + np.arange(3000) % 7 * 0.5).astype(np.float32), 1e-9),
        ((0.1 + np.arange(3000) % 3 * 7.45e-9).astype(np.float32), 1e-9),
        (np.append(1e15 + np.arange(3000) % 2, np.nan), 1e-9),
    ],
    ids=["times", "narrow", "large", "int64", "nanoseconds", "metres", "rounding", "nan"],
)
def test_narrow_ranges_around_large_numbers_are_exact(column: np.ndarray, rel: float) -> None:
    """As fractions, which do not round."""
    s = gather(column, [1000, 2048])
    x = [Fraction(v) for v in column[np.isfinite(column)].tolist()]
    mean = sum(x, Fraction(0)) / len(x)
    variance = sum(((v - mean) ** 2 for v in x), Fraction(0)) / len(x)
    assert s.mean == pytest.approx(float(mean), abs=float(np.spacing(float(mean))))
    assert s.std == pytest.approx(math.sqrt(variance), rel=rel)


@pytest.mark.thorough
@pytest.mark.parametrize("value", [0.1, 1e15 + 0.125, -3e-9])
def test_a_constant_has_no_deviation(value: float) -> None:
    s = gather(np.full(5000, value), [1000, 3333])
    assert (s.mean, s.std) == (value, 0.0)
