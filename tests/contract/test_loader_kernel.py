"""The compiled kernel against slow, plain Python, bit by bit; and damaged tables, which it refuses or stays inside."""

import itertools
import math
import random
import subprocess
import sys
from dataclasses import replace

import kernel_reference as reference
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_data import create, episode

from rlds_cli.errors import DamagedDataset
from rlds_cli.loader import Goals, Loader, Offsets, Shuffled, Slice, Transition, kernel
from rlds_cli.loader.index import EpisodeIndex, PrefixIndex
from rlds_cli.loader.kernel import (
    OF_PLACE,
    OF_WINDOW,
    BlockRange,
    Bound,
    GoalTable,
    NStep,
    Output,
    Plan,
    PrefixTable,
    RowPlace,
    SumTree,
    Value,
    WindowTable,
)
from rlds_cli.loader.samplers.weighted import Cumulative

SEEDS = st.integers(0, 2**32)
WORDS = st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 9), st.integers(2**64 - 9, 2**64 - 1))
SIZES = st.sampled_from([0, 1, 2, 63, 64, 65, 130, 255, 256, 257, 520])  # around 64 and 256, the kernel's tiles
LAST = 1 - 2.0**-53  # the greatest float below 1
FAR = [2**40 - 1, -(2**40) + 1]
HUGE = [2**31, 2**53, 2**60, 2**61, 2**62, 2**63 - 1]


def same(got, expected, dtype=None):
    """Equality of every bit."""
    expected = np.asarray(expected, got.dtype if dtype is None else dtype)
    assert got.dtype == expected.dtype and got.shape == expected.shape
    assert np.ascontiguousarray(got).tobytes() == expected.tobytes()


# -- random numbers


@pytest.mark.thorough
@settings(max_examples=15)
@given(WORDS, WORDS, WORDS, st.integers(0, 2**62), st.integers(0, 70))
def test_words(seed, key, salt, first, count):
    got = kernel.words(seed, key, salt, first, count)
    same(got, reference.words(seed, key, salt, first, count))
    generator = np.random.Philox(key=seed | key << 64, counter=first // 4 | salt << 64)
    same(got, generator.random_raw(first % 4 + count)[first % 4 :])


@st.composite
def positions(draw, limit=2**62):
    """Sample numbers: ranges, also backwards, and arrays in any order."""
    n = draw(SIZES.filter(lambda n: n < 300))
    if draw(st.booleans()):
        step = draw(st.sampled_from([1, 1, 2, 5]))
        first = draw(st.integers(0, max(0, limit - n * step)))
        return range(first, first + n * step, step)[: max(0, limit)]
    rng = random.Random(draw(SEEDS))
    return np.array([rng.randrange(min(limit, rng.choice([10, 1000, limit]))) for _ in range(n)], np.int64)


@settings(max_examples=10)
@given(WORDS, WORDS, WORDS, positions(), st.sampled_from([1.0, 0.5, 3.7e5, 2.0**62]), st.integers(1, 2**62))
def test_draws(seed, key, salt, numbers, scale, limit):
    listed = [int(i) for i in numbers]
    same(kernel.uniform(seed, key, salt, numbers, scale), reference.uniform(seed, key, salt, listed, scale))
    drawn = kernel.below(seed, key, salt, numbers, limit)
    same(drawn, reference.below(seed, key, salt, listed, limit))
    assert not len(drawn) or 0 <= drawn.min() <= drawn.max() <= limit


@settings(max_examples=15)
@given(SEEDS, st.one_of(st.integers(1, 300), st.integers(2**30, 2**61)), st.integers(0, 7), st.integers(1, 9))
def test_permutations(seed, total, rounds, narrow):
    rng = random.Random(seed)
    a = min(max(1, math.isqrt(total) // narrow), 2**31 - 1)
    while -(-total // a) >= 2**31:
        a += 1 + a // 2
    sides = rng.choice([(a, -(-total // a)), (-(-total // a), a)])
    keys = np.array([rng.randrange(2**32) for _ in range(rounds)], np.uint32)
    numbers = range(total) if total <= 300 else np.array([rng.randrange(total) for _ in range(100)])
    got = kernel.permute(numbers, total, sides, keys)
    same(got, reference.permute(numbers, total, sides, keys))
    if total <= 300:
        assert sorted(got.tolist()) == list(range(total))


@pytest.mark.parametrize("position", [-1, 7, 8, 2**31, -(2**62), 2**62])
def test_numbers_that_a_permutation_does_not_have(position):
    keys = np.arange(4, dtype=np.uint32)
    for numbers in (np.array([0, position]), range(position, position + 1)):
        with pytest.raises(IndexError, match=rf"number {position} of 7"):
            kernel.permute(numbers, 7, (3, 3), keys)


@pytest.mark.parametrize(("total", "sides"), [(0, (1, 1)), (-1, (1, 1)), (5, (2, 2)), (1, (0, 9)), (9, (-3, -3))])
def test_permutations_that_cannot_be(total, sides):
    with pytest.raises(ValueError, match="sides"):
        kernel.permute(range(0), total, sides, np.zeros(4, np.uint32))
    with pytest.raises(ValueError, match="sides"):
        kernel.permute(range(1), total, sides, np.zeros(4, np.uint32))


# -- tables


@settings(max_examples=15)
@given(SEEDS, st.sampled_from([1, 2, 9, 80]), st.sampled_from([(1, 1), (1, 9), (0, 3), (1, 5000)]), SIZES)
def test_intervals(seed, count, lengths, n):
    rng = random.Random(seed)
    counts = np.array([rng.randint(*lengths) for _ in range(count)] + [1])
    counts[rng.randrange(count)] = rng.choice([1, 7, 10**6])  # many short intervals in a slice of the guide table
    index = PrefixIndex(counts)
    numbers = np.array([rng.choice([0, index.total - 1, rng.randrange(index.total)]) for _ in range(n)], np.int64)
    got = index.find(numbers)
    for one, expected in zip(got, reference.find(np.r_[0, np.cumsum(counts)], numbers), strict=True):
        same(one, expected)
    same(index.find(numbers.reshape(-1, 1))[0], np.reshape(got[0], (-1, 1)))


@pytest.mark.parametrize("count", [(1 << 16) - 1, 1 << 16, (1 << 16) + 1, 200_000])
def test_intervals_of_many_episodes(count):
    """Tables are made in pieces of 65,536 episodes."""
    counts = np.random.default_rng(count).integers(1, 9, count)
    counts[[0, count // 2, 65_533]] = 3000
    bounds = np.r_[0, np.cumsum(counts)]
    numbers = np.r_[bounds[:-1], bounds[1:] - 1]  # the first and the last number of each
    episode, within = PrefixIndex(counts).find(numbers)
    same(episode, np.tile(np.arange(count), 2))
    same(within, np.r_[np.zeros(count, np.int64), counts - 1])


@pytest.mark.parametrize("number", [-1, 30, -(2**63), *HUGE])
def test_numbers_of_no_interval(number):
    index = PrefixIndex(np.array([10, 20]))
    with pytest.raises(IndexError, match=f"number {number} of 30"):
        index.find(np.array([0, number, 2]))
    with pytest.raises(IndexError, match="of 0"):
        PrefixIndex(np.zeros(2, np.int64)).find(np.array([0]))


@pytest.mark.parametrize("counts", [[5, -3, 9], [-1], [2**62, 2**62, 2**62], [2**63 - 1, 2]])
def test_lengths_that_cannot_be(counts):
    with pytest.raises(DamagedDataset, match="not possible"):
        PrefixIndex(np.array(counts))


@pytest.mark.parametrize("guide", [[], [0], [0, 2, 1], [-1, 0, 0], [0, 0, 2**31 - 1]])
def test_guide_tables_that_cannot_be(guide):
    with pytest.raises(ValueError, match="guide"):
        PrefixTable(np.array([0, 4, 9]), np.array(guide, np.int32), 2)


@pytest.mark.thorough
@settings(max_examples=15)
@given(SEEDS, st.sampled_from([1, 2, 3, 50, 300]), st.sampled_from([1, 40]))
def test_weighted_draws(seed, count, spread):
    rng = np.random.default_rng(seed)
    weights = np.exp(spread * rng.standard_normal(count)) * (rng.random(count) < 0.7)
    weights[rng.integers(count)] = 1.0
    found = Cumulative(weights)
    u = np.r_[0.0, 5e-324, LAST, rng.random(60)]
    ends = [float(x) for x in np.cumsum(np.ldexp(weights, -math.frexp(weights.max())[1]))]
    same(found.find(u), reference.fall(ends, u), np.int64)


def test_draws_and_guide_tables_out_of_range_stay_among_the_items():
    ends = np.array([1.0, 2.0, 4.0])
    u = np.array([np.nan, np.inf, -np.inf, 1.0, 1.5, -0.5, 1e300, -1e300, 0.3])
    for guide in ([0, 0, 1, 2], [0], [2**31 - 1] * 4, [-(2**31)] * 4):
        found = kernel.fall(ends, np.array(guide, np.int32), u)
        assert found.min() >= 0 and found.max() < 3
    for damaged in ([np.nan] * 3, [np.inf] * 3, [4.0, 2.0, 1.0], [0.0] * 3):
        found = kernel.fall(np.array(damaged), np.zeros(4, np.int32), u)
        assert found.min() >= 0 and found.max() < 3


# -- the tree of sums


@pytest.mark.thorough
@settings(max_examples=12)
@given(SEEDS, st.sampled_from([1, 2, 7, 8, 9, 64, 65, 512, 530]), st.sampled_from([0, 1, 30, 300]))
def test_the_tree(seed, count, spread):
    rng = np.random.default_rng(seed)
    masses = np.exp(np.clip(spread * rng.standard_normal(count), -640, 640))
    tree, slow = SumTree(count, 1.0), reference.Tree(masses)
    tree.fill(masses)
    for size in (0, 3, 270):
        numbers, priority = rng.integers(0, count, size), 10.0 ** rng.uniform(-3, 3, size)
        assert tree.update(numbers, priority, eps=1e-6, alpha=0.6, most=1e200) is None
        slow.update(numbers.tolist(), priority.tolist(), 1e-6, 0.6)
        same(tree.masses, slow.masses)
        assert (tree.total, tree.least) == slow.top()
        u = np.r_[0.0, 5e-324, LAST, rng.random(20)]
        same(tree.find(u), slow.find(u))
        picked = rng.integers(0, count, 30)
        for got, expected in zip(tree.weigh(picked, 0.4), slow.weigh(picked.tolist(), 0.4), strict=True):
            same(got, expected)


@pytest.mark.thorough
@pytest.mark.parametrize("count", [1, 8, 9, 70, 600])
@pytest.mark.parametrize("mass", [0.0, np.nan, np.inf, -1.0, 5e-324, 1.7e308])
def test_draws_stay_inside_a_tree_of_masses_that_cannot_be(count, mass):
    u = np.array([np.nan, np.inf, -np.inf, 0.0, 0.5, LAST, 1.0, 2.0, -1.0])
    for number in (0, count - 1, None):
        tree = SumTree(count, 1.0)
        masses = np.full(count, mass)
        if number is not None:
            masses[:] = 1
            masses[number] = mass
        tree.fill(masses)
        found = tree.find(u)
        assert found.min() >= 0 and found.max() < count


@pytest.mark.parametrize("number", [-1, 70, -(2**63), *HUGE])
def test_numbers_that_a_tree_does_not_have(number):
    tree = SumTree(70, 1.0)
    with pytest.raises(IndexError, match=f"number {number} of 70"):
        tree.weigh(np.array([3, number]), 0.4)
    assert tree.update(np.array([3, number]), np.array([5.0, 6.0]), eps=1e-6, alpha=0.6, most=1e9) == 1
    assert tree.total == 70


@pytest.mark.parametrize("priority", [-1.0, np.nan, np.inf, -np.inf, 1e10, -5e-324])
def test_priorities_that_cannot_be(priority):
    tree = SumTree(9, 1.0)
    assert tree.update(np.array([3, 4]), np.array([5.0, priority]), eps=1e-6, alpha=0.6, most=1e9) == 1
    assert tree.total == 9 and (tree.masses == 1).all()
    with pytest.raises(ValueError, match="1 priorities for 2 numbers"):
        tree.update(np.array([3, 4]), np.array([5.0]), eps=1e-6, alpha=0.6, most=1e9)


# -- plans


def table_of(rng, episodes=9, stride=1, offset=0, longest=40, pad=None):
    """Episodes of a store, some left out, whose rows end at the last column's."""
    steps = [rng.choice([1, 2, rng.randint(1, longest)]) for _ in range(episodes)]
    start = list(itertools.accumulate([rng.randint(0, 2), *(t + 1 + rng.randint(0, 1) for t in steps[:-1])]))
    transitions = [rng.choice([t, t - 1, rng.randint(0, t)]) for t in steps]
    observed = [rng.choice([t + 1, t, rng.randint(0, t + 1)]) for t in steps]
    index = [rng.randrange(1000) for _ in steps]
    columns = (np.array(c, np.int64) for c in (start, steps, transitions, observed, index))
    return reference.Table(*columns, stride=stride, offset=offset, pad=pad)


def rows_of(table):
    return int((table.start + table.steps).max()) + 1


def column_of(rng, rows, dtype, shape):
    """Values with some of the extremes of their dtype; contiguous, or rows within wider ones."""
    seed = np.random.default_rng(rng.randrange(2**32))
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        values = seed.standard_normal((rows, *shape)) * 10.0 ** seed.integers(-6, 6, (rows, *shape))
        odd = seed.random(values.shape)
        values[odd < 0.05] = -0.0
        values[odd > 0.97] = np.inf
        values[(odd > 0.95) & (odd < 0.97)] = 1e-42 if dtype.itemsize == 4 else 1e300
    else:
        values = seed.integers(0, 2 if dtype.kind == "b" else 100, (rows, *shape))
    with np.errstate(over="ignore"):
        values = values.astype(dtype)
    if rng.random() < 0.5:
        return values
    wide = np.zeros(rows, np.dtype({"names": ["a", "x", "b"], "formats": ["u8", (dtype, shape), "u8"]}, align=True))
    wide["x"] = values
    return wide["x"]


SHAPES = [(), (1,), (3,), (6,), (2, 4), (17,), (300,), (0,)]


def outputs_of(rng, table, n, most, length):
    """Outputs of every kind, at random places."""
    rows = rows_of(table)
    limit = np.array([rng.choice([0, t, t + 1, rng.randint(0, t + 1)]) for t in table.steps])
    given_rows = np.array([rng.randrange(rows) for _ in range(n)], np.int64)
    given_steps = np.array([rng.choice([-1, rng.randrange(50), 2**40]) for _ in range(n)], np.int64)
    given_floats = np.array([rng.gauss(0, 1e20) for _ in range(n)])
    given = {make_rows: given_rows, make_steps: given_steps, make_floats: given_floats}

    def place():
        mask = rng.choice([0, OF_WINDOW, OF_PLACE, OF_WINDOW | OF_PLACE])
        blank = rng.random() < 0.5
        kind = rng.choice(["here", "last", "neighbour", "offsets", "given"])
        if kind == "here" or (kind == "last" and length):
            return {"place": RowPlace.HERE, "mask": mask, "blank": blank, "shift": rng.choice([0, 1])}
        if kind == "last":
            return {"place": RowPlace.LAST, "mask": mask, "blank": blank, "shift": rng.choice([0, 1])}
        if kind == "neighbour":
            amount = rng.choice([-1, 1, 2, -3])
            return {"place": RowPlace.NEIGHBOUR, "amount": amount, "mask": mask, "blank": blank}
        if kind == "offsets":
            offsets = tuple(rng.choice([-1, 0, 1, 5, -9, rng.randint(-50, 50), *FAR]) for _ in range(rng.randint(1, 6)))
            return {"place": RowPlace.OFFSETS, "offsets": offsets, "limit": limit, "mask": OF_PLACE, "blank": blank}
        return {"place": RowPlace.GIVEN, "given": make_rows, "mask": OF_WINDOW, "blank": blank}

    def values(dtype, wanted):
        shape = rng.choice(SHAPES)
        value, made = kernel.cast(np.dtype(dtype), wanted)
        source = column_of(rng, rows, dtype, shape)
        flag = (*shape, 1) if rng.random() < 0.2 else shape
        scale = None
        if made == np.float32 and rng.random() < 0.5:
            scale = tuple(np.array([rng.uniform(0.1, 9) for _ in range(math.prod(flag))]).reshape(flag) for _ in "ab")
        return Output(value, made, flag, source=source, scale=scale, **place())

    bools = column_of(rng, rows, bool, ()), column_of(rng, rows, bool, ())
    if bools[0].strides != bools[1].strides:
        bools = tuple(np.ascontiguousarray(x) for x in bools)
    int64, flag = np.dtype(np.int64), np.dtype(bool)
    kinds = [("f4", "float32"), ("f8", "float32"), ("f4", "float64"), ("f8", None), ("u1", None), ("i2", "float32")]
    made = [values(*rng.choice([*kinds, ("f2", "float32"), (">f4", "float32"), ("i8", None)])) for _ in range(4)]
    made += [values(*kind) for kind in rng.sample(kinds, 2)]
    rewards = column_of(rng, rows, rng.choice(["f4", "f8"]), rng.choice([(), (1,), (3,)]))
    sums = {"source": rewards, "other": np.array([rng.choice([0.9, 1.0, 0.0]) ** j for j in range(most)])}
    made += [
        Output(Value.EITHER, flag, (1,), source=bools[0], other=bools[1], **place()),
        Output(Value.SUM, np.dtype(rng.choice(["f4", "f8"])), rewards.shape[1:] or (1,), **sums),
        Output(Value.ROW, int64, **{**place(), "shift": 0}),
        Output(Value.ROW, int64, (1,), place=RowPlace.SPAN),
        Output(
            Value.COPY, np.dtype(np.float32), (1,), place=RowPlace.SPAN, source=np.arange(most + 1, dtype=np.float32)
        ),
        Output(Value.COPY, int64, place=RowPlace.EPISODE, source=np.arange(len(table.start)) * 7),
        Output(Value.INSIDE, flag, **{**place(), "blank": False, "shift": 0, "given": None}),
        Output(Value.STEP, int64),
        Output(Value.INDEX, int64, place=RowPlace.EPISODE, source=table.index),
        Output(Value.OBSERVED, flag, (1,), mask=OF_WINDOW, blank=rng.random() < 0.5),
        Output(Value.ZERO, flag, (1,)),
        Output(Value.DISTANCE, int64, place=RowPlace.SAMPLE, given=make_steps),
        Output(Value.NARROW, np.dtype(np.float32), (1,), place=RowPlace.SAMPLE, given=make_floats),
        Output(Value.COPY, np.dtype(np.float64), place=RowPlace.SAMPLE, given=make_floats),
    ]
    rng.shuffle(made)
    return made, given


def make_rows(located): ...
def make_steps(located): ...
def make_floats(located): ...


def samples_of(rng, table, n, length, of=None):
    """Episodes and window numbers: of a step below ``of``, or of a window that may lie outside its episode."""
    of = table.steps if of is None else of
    episode = np.array([rng.choice(np.flatnonzero(of)) for _ in range(n)], np.int64)
    if length:
        numbers = [rng.choice([rng.randint(-60, 60), *HUGE, -(2**63)]) for _ in range(n)]
        if table.stride * table.stride != 1:
            numbers = [rng.randint(-60, 60) for _ in range(n)]
        return episode, np.array(numbers, np.int64)
    return episode, np.array([rng.randrange(int(of[e])) for e in episode], np.int64)


def check(plan, outputs, table, samples, given, length, part):
    episode, number, span = samples
    made = Bound(plan, episode, number, [given[g] for g in plan.givens], length).read(*part)
    here = slice(part[0], part[0] + part[1])
    with np.errstate(all="ignore"):
        expected = reference.gather(
            table,
            outputs,
            episode[here],
            number[here],
            None if span is None else span[here],
            {make: array[here] for make, array in given.items()},
            length,
        )
    for output, got, wanted in zip(outputs, made, expected, strict=True):
        assert got.tobytes() == wanted.tobytes() and got.dtype == wanted.dtype and got.shape == wanted.shape, output
    check_slots(Bound(plan, episode, number, [given[g] for g in plan.givens], length), part, expected)


def check_slots(bound, part, expected):
    """Scatter the samples over batches of three, of which a slot in three stays as it is."""
    first, n = part
    slots = np.sort(np.random.default_rng(n).permutation(n + n // 2 + 1)[:n])
    batches = -(-(n + n // 2 + 1) // 3)
    made = [[np.full((3, *x.shape[1:]), 7).astype(x.dtype) for x in expected] for _ in range(batches)]
    places = np.array([[kernel.address(x) for x in batch] for batch in made], np.int64).reshape(batches, -1)
    bound.scatter(first, slots, 3, places)
    for column, wanted in enumerate(expected):
        got = np.concatenate([batch[column] for batch in made]).astype(wanted.dtype)
        assert got[slots].tobytes() == wanted.tobytes()
        others = np.setdiff1d(np.arange(len(got)), slots)
        assert got[others].tobytes() == np.full_like(got[others], 7).tobytes()
    for slot in (-1, 3 * batches):
        with pytest.raises(IndexError):
            bound.scatter(first, np.full(n, slot), 3, places) if n else bound.scatter(
                first, np.zeros(9, int), 3, places
            )


@pytest.mark.thorough
@settings(max_examples=25)
@given(SEEDS, st.sampled_from([0, 1, 2, 3, 63, 64, 65, 90, 257]), st.sampled_from([1, 1, 3, 8]))
def test_single_steps(seed, n, most):
    rng = random.Random(seed)
    table = table_of(rng)
    outputs, given = outputs_of(rng, table, n, most, 0)
    if n > 100:
        outputs = outputs[:6]  # the reference is slow
    n_step, span, of = None, None, table.steps
    if most > 1 and table.transitions.any():
        n_step, of = NStep(most, *flags_of(rng, table, rng.choice([0.0, 0.1, 0.6]))), table.transitions
    episode, number = samples_of(rng, table, n, 0, of)
    if n_step is not None:
        span = reference.spans(table, episode, number, most, n_step.terminated, n_step.truncated)
    first = rng.choice([0, n // 3])
    plan = Plan(table.windows(), outputs, n_step)
    check(plan, outputs, table, (episode, number, span), given, 0, (first, n - first))


def flags_of(rng, table, share):
    """Two flags of every row, one after the other or as parts of rows."""
    flags = np.array([[rng.random() < share for _ in range(2)] for _ in range(rows_of(table))])
    return list(flags.T) if rng.random() < 0.5 else [x.copy() for x in flags.T]


@pytest.mark.thorough
@settings(max_examples=25)
@given(SEEDS, st.sampled_from([(0, 3), (1, 1), (4, 5), (3, 64), (2, 65), (1, 256), (1, 257)]))
def test_windows(seed, extent):
    (n, length), rng = extent, random.Random(seed)
    starts = {"stride": rng.choice([0, 1, 1, 3]), "offset": -rng.choice([0, 2, 40])}
    table = table_of(rng, **starts, longest=rng.choice([9, 90]), pad=rng.choice([None, "left", "right"]))
    outputs, given = outputs_of(rng, table, n, 1, length)
    if length > 60:
        outputs = outputs[:5]
    episode, number = samples_of(rng, table, n, length)
    check(Plan(table.windows(), outputs), outputs, table, (episode, number, None), given, length, (0, n))


@settings(max_examples=10)
@given(SEEDS, SIZES, st.sampled_from([1, 2, 3, 50]), st.sampled_from([0.0, 0.1, 0.6]))
def test_spans(seed, n, most, share):
    rng = random.Random(seed)
    table = table_of(rng)
    if not table.transitions.any():
        return
    n_step = NStep(most, *flags_of(rng, table, share))
    episode, number = samples_of(rng, table, n, 0, table.transitions)
    plan = Plan(table.windows(), [Output(Value.ROW, np.dtype(np.int64), place=RowPlace.SPAN)], n_step)
    expected = reference.spans(table, episode, number, most, n_step.terminated, n_step.truncated)
    (got,) = Bound(plan, episode, number, (), 0).read(0, n)
    same(got, expected)
    if share == 0:  # flags need not be read
        plan = Plan(table.windows(), plan.outputs, NStep(most))
        same(Bound(plan, episode, number, (), 0).read(0, n)[0], expected)


@pytest.mark.thorough
@settings(max_examples=25)
@given(SEEDS, st.sampled_from([0, 1, 5, 70]), st.sampled_from([0, 0, 1, 6]), st.integers(0, 4))
def test_goals(seed, n, length, horizon):
    rng = random.Random(seed)
    table = table_of(rng, stride=rng.choice([1, 2]), offset=-rng.choice([0, 3]) if length else 0)
    shares = rng.choice([(0, 1, 0), (0.2, 0.5, 0.3), (0, 0, 1), (1, 0, 0), (0.25, 0.75, 0)])
    rule = reference.Rule(*shares, math.log(rng.choice([0.9, 0.99])), horizon, rng.choice([1, 7, 10**6]))
    limit = np.array([rng.randint(1, t + 1) for t in table.steps])
    index = PrefixIndex(limit)
    episode = np.array([rng.randrange(len(table.start)) for _ in range(n)], np.int64)
    number = np.array([rng.randrange(-5 if length else 0, 30) for _ in range(n)], np.int64)
    u = np.array([rng.choice([rng.random(), 0.0, 0.2, 0.7, LAST]) for _ in range(n)])
    goals = rule.table(limit, index.table if shares[2] else None, table)
    bounds = np.r_[0, np.cumsum(limit)]
    for got, expected in zip(
        goals.find(episode, number, length, u),
        reference.goals(rule, limit, bounds, table, episode, number, length, u),
        strict=True,
    ):
        same(got, expected, np.int64)


@pytest.mark.parametrize("gamma", [0.01, 0.5, 0.9, 0.99, 0.999, 0.99999, 1 - 1e-9, math.nextafter(1, 0)])
def test_geometric_goals_at_the_borders_of_their_steps(gamma):
    steps = 1 << 50
    table = WindowTable(*(np.array([n]) for n in (0, steps, steps, steps + 1)), (1, 0))
    goals = GoalTable((0.0, 1.0, 0.0), (0, 0, math.log(gamma)), table, np.array([steps]), None)
    borders = [1 - gamma**k for k in range(0, 400, 7)]
    near = [*borders, *(math.nextafter(x, 0) for x in borders), *(math.nextafter(x, 1) for x in borders)]
    u = np.array([min(x, LAST) for x in (*near, 5e-324, 2.0**-53, 1e-9, 0.5, 1 - 1e-9, LAST)])
    none = np.zeros(len(u), np.int64)
    _, ahead = goals.find(none, none, 0, u)
    same(ahead, [int(min(math.log(1 - x) / math.log(gamma) + 1.0, steps - 1.0)) for x in u.tolist()], np.int64)


# -- the blocks that are read


class Recorded:
    """An array that notes which of its rows are read."""

    def __init__(self, values):
        self.values, self.rows = values, set()

    def __getitem__(self, row):
        self.rows.add(int(row))
        return self.values[row]


def file_of(rng, values, block):
    """The file that an array lies in: one, or several with some rows each."""
    stride = values.strides[0]
    nbytes = (len(values) - 1) * stride + values.itemsize * math.prod(values.shape[1:])
    if rng.random() < 0.5:
        return BlockRange(kernel.address(values), nbytes, -(-nbytes // block))
    chunk = stride * rng.randint(1, len(values))
    return BlockRange(kernel.address(values), nbytes, -(-chunk // block) * -(-nbytes // chunk), chunk)


def blocks_of(values, rows, file, block):
    """The blocks with a byte of these rows of an array."""
    stride, size = values.strides[0], values.itemsize * math.prod(values.shape[1:])
    chunk = file.chunk or file.nbytes
    found = set()
    for row in rows:
        first = row * stride // chunk * -(-chunk // block)
        found |= {first + at // block for at in range(row * stride % chunk, row * stride % chunk + size)}
    return found


def check_touches(rng, table, outputs, n_step, samples, given, length):
    """The kernel marks the blocks that the plain reference reads, and no others."""
    episode, number, span = samples
    outputs = [o for o in outputs if o.place not in (RowPlace.EPISODE, RowPlace.SPAN, RowPlace.SAMPLE)]
    noted = [o if o.source is None else replace(o, source=Recorded(o.source)) for o in outputs]
    with np.errstate(all="ignore"):
        reference.gather(table, noted, episode, number, span, given, length)
    wanted = [(o.source.values, o.source.rows) for o in noted if o.source is not None and o.source.values.size]
    wanted += [(o.other, o.source.rows) for o in noted if o.value is Value.EITHER]
    if n_step is not None:
        flags = set()
        for e, at in zip(episode.tolist(), number.tolist(), strict=True):
            row, left = int(table.start[e]) + at, int(table.transitions[e]) - at
            flags |= set(range(row, row + min(left, n_step.most) - 1))
        wanted += [(n_step.terminated, flags), (n_step.truncated, flags)]
    block, plan = rng.choice([16, 64, 1024]), Plan(table.windows(), outputs, n_step)
    files = [file_of(rng, values, block) for values, _ in wanted]
    bound = Bound(plan, episode, number, [given[g] for g in plan.givens], length)
    touches = kernel.Touches(plan, files, block)
    expected = [blocks_of(*read, f, block) for read, f in zip(wanted, files, strict=True)]
    found = touches.blocks(bound, 0, len(episode))
    assert [(i, b.tolist()) for i, b in found] == [(i, sorted(b)) for i, b in enumerate(expected) if b]
    before = touches.blocks(bound, 0, len(episode), before=True)
    if n_step is not None:  # as if no flag were set
        n_step.terminated[:] = n_step.truncated[:] = False
    found = touches.blocks(bound, 0, len(episode))
    assert [(i, b.tolist()) for i, b in before] == [(i, b.tolist()) for i, b in found]


@pytest.mark.thorough
@settings(max_examples=25)
@given(SEEDS, st.sampled_from([0, 1, 3, 64, 90]), st.sampled_from([1, 3, 8]))
def test_blocks_that_single_steps_read(seed, n, most):
    rng = random.Random(seed)
    table = table_of(rng)
    outputs, given = outputs_of(rng, table, n, most, 0)
    n_step, span, of = None, None, table.steps
    if most > 1 and table.transitions.any():
        flags = [x.copy() for x in flags_of(rng, table, rng.choice([0.0, 0.1, 0.6]))]
        n_step, of = NStep(most, *flags), table.transitions
    episode, number = samples_of(rng, table, n, 0, of)
    if n_step is not None:
        span = reference.spans(table, episode, number, most, n_step.terminated, n_step.truncated)
    check_touches(rng, table, outputs[:10], n_step, (episode, number, span), given, 0)


@pytest.mark.thorough
@settings(max_examples=25)
@given(SEEDS, st.sampled_from([(0, 3), (1, 1), (4, 5), (3, 64), (1, 257)]))
def test_blocks_that_windows_read(seed, extent):
    (n, length), rng = extent, random.Random(seed)
    starts = {"stride": rng.choice([0, 1, 1, 3]), "offset": -rng.choice([0, 2, 40])}
    table = table_of(rng, **starts, longest=rng.choice([9, 90]), pad=rng.choice([None, "left", "right"]))
    outputs, given = outputs_of(rng, table, n, 1, length)
    samples = *samples_of(rng, table, n, length), None
    check_touches(rng, table, outputs[: 10 if length < 60 else 5], None, samples, given, length)


def test_blocks_of_more_rows_than_are_listed_and_of_samples_that_are_not_there(monkeypatch):
    monkeypatch.setattr(kernel, "_LISTED", 3)
    table = reference.Table(*(np.array([x]) for x in (0, 90, 90, 91, 0)))
    source = np.arange(91.0)
    plan = Plan(table.windows(), [Output(Value.COPY, source.dtype, source=source)])
    touches = kernel.Touches(plan, [BlockRange(kernel.address(source), source.nbytes, 46)], 16)
    number = np.array([80, 4, 5, 30, 4, 60])
    bound = Bound(plan, np.zeros(6, np.int64), number, (), 0)
    assert [(i, b.tolist()) for i, b in touches.blocks(bound, 0, 6)] == [(0, [2, 15, 30, 40])]
    assert [(i, b.tolist()) for i, b in touches.blocks(bound, 1, 2)] == [(0, [2])]
    with pytest.raises(IndexError, match="samples 3 to 7 of 6"):
        touches.blocks(bound, 3, 4)
    with pytest.raises(IndexError, match="sample 1 names no step"):
        touches.blocks(Bound(plan, np.zeros(2, np.int64), np.array([3, 90]), (), 0), 0, 2)
    assert [(i, b.tolist()) for i, b in touches.blocks(bound, 0, 1)] == [(0, [40])]  # no mark is left


# -- damaged tables


def plain(rows=12, **changed):
    """Two episodes of 5 and 4 steps in 12 rows."""
    columns = {"start": [0, 6], "steps": [5, 4], "transitions": [5, 3], "observed": [6, 5], "index": [0, 5]}
    columns = {name: np.array(changed.get(name, column), np.int64) for name, column in columns.items()}
    return reference.Table(**columns, stride=changed.get("stride", 1), offset=changed.get("offset", 0))


def copied(rows=12, **where):
    return Output(Value.COPY, np.dtype(np.int64), source=np.arange(rows), **where)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("column", ["start", "steps", "transitions", "observed"])
@pytest.mark.parametrize("number", [-1, -(2**63), 2**60, 2**63 - 1])
def test_columns_over_episodes_that_cannot_be(column, number):
    many = {name: np.resize(getattr(plain(), name), 70_000) for name in ("start", "steps", "transitions", "observed")}
    many[column][66_000] = number
    with pytest.raises(DamagedDataset, match="episode 66,000: its rows or steps are not possible"):
        kernel.WindowTable(**many, starts=(1, 0))
    for at in (0, 1):
        values = getattr(plain(), column).copy()
        values[at] = number
        with pytest.raises(DamagedDataset, match=f"episode {at}: its rows or steps are not possible"):
            plain(**{column: values}).windows()


def test_episodes_with_more_transitions_or_observations_than_steps():
    for changed in ({"transitions": [5, 5]}, {"observed": [6, 6]}):
        with pytest.raises(DamagedDataset, match="episode 1"):
            plain(**changed).windows()


@pytest.mark.parametrize("column", ["start", "steps", "transitions", "observed"])
def test_columns_over_other_episodes(column):
    for values in ([1], [1, 1, 1], []):
        with pytest.raises(DamagedDataset, match="columns over episodes"):
            plain(**{column: values}).windows()


@pytest.mark.thorough
@pytest.mark.parametrize("changed", [{"start": [0, 8]}, {"start": [2**50, 6]}, {"steps": [2**50, 4]}])
def test_rows_beyond_a_column(changed):
    with pytest.raises(DamagedDataset, match="a column of 12 rows"):
        Plan(plain(**changed, transitions=[0, 0]).windows(), [copied()])
    with pytest.raises(DamagedDataset, match="flags of 12 and 12 rows"):
        Plan(plain(**changed, transitions=[0, 0]).windows(), [], NStep(3, *[np.zeros(12, bool)] * 2))


def test_columns_that_are_too_short():
    grid = {"place": RowPlace.OFFSETS, "offsets": (0, 1), "limit": np.array([6, 5])}
    late = {"place": RowPlace.GIVEN, "given": make_rows}
    for where in ({}, {"place": RowPlace.LAST}, {"place": RowPlace.NEIGHBOUR, "amount": 1}, grid, late):
        Plan(plain().windows(), [copied(11, **where)])
        with pytest.raises(DamagedDataset, match="a column of 10 rows"):
            Plan(plain().windows(), [copied(10, **where)])
    for where in (grid, late):
        with pytest.raises(DamagedDataset, match="a column of 11 rows"):
            Plan(plain().windows(), [copied(11, shift=1, **where)])
    with pytest.raises(DamagedDataset, match="a column of 1 rows"):
        Plan(plain().windows(), [copied(1, place=RowPlace.EPISODE)])
    flags = [np.zeros(11, bool), np.zeros(10, bool)]
    for flag, other in (flags, flags[::-1]):
        with pytest.raises(DamagedDataset, match="10 rows"):
            Plan(plain().windows(), [Output(Value.EITHER, np.dtype(bool), (1,), source=flag, other=other)])
        with pytest.raises(DamagedDataset, match="10"):
            Plan(plain().windows(), [], NStep(3, flag, other))


@pytest.mark.parametrize("limit", [[7, 5], [6, 6], [-1, 5], [2**62, 5], [-(2**63), 1], [6], [6, 5, 1]])
def test_limits_that_an_episode_does_not_have(limit):
    limit = np.array(limit)
    with pytest.raises(DamagedDataset, match="observations"):
        Plan(plain().windows(), [copied(place=RowPlace.OFFSETS, offsets=(0,), limit=limit)])
    with pytest.raises(DamagedDataset, match="observations"):
        reference.Rule(0, 1, 0, -0.1, 0, 0).table(limit, None, plain())


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("episode", "number"),
    [(-1, 0), (2, 0), (2**62, 0), (-(2**63), 0), (0, -1), (0, 5), (1, 4), (1, 2**62), (0, 2**63 - 1), (0, -(2**63))],
)
def test_samples_of_no_step(episode, number):
    episode, number = np.array([0, episode]), np.array([0, number])
    plan = Plan(plain().windows(), [copied()])
    with pytest.raises(IndexError, match="sample 1 "):
        Bound(plan, episode, number, (), 0).read(0, 2)
    if not 0 <= episode[1] < 2:
        with pytest.raises(IndexError, match="sample 1 "):
            Bound(plan, episode, number, (), 4).read(0, 2)
        with pytest.raises(IndexError, match="sample 1 "):
            reference.Rule(0, 1, 0, -0.1, 0, 0).table(np.array([6, 5]), None, plain()).find(
                episode, number, 4, np.zeros(2)
            )


def test_an_episode_without_steps():
    table = plain(steps=[0, 4], transitions=[0, 3], observed=[1, 5])
    none = np.zeros(1, np.int64)
    for length in (0, 3):
        with pytest.raises(IndexError, match="sample 0 "):
            Bound(Plan(table.windows(), [copied()]), none, none, (), length).read(0, 1)
    with pytest.raises(IndexError, match="sample 0 "):
        reference.Rule(0, 1, 0, -0.1, 0, 0).table(np.array([1, 5]), None, table).find(none, none, 0, np.zeros(1))


@pytest.mark.thorough
@pytest.mark.parametrize("number", [*HUGE, -(2**63), -(2**61), 10**6])
@pytest.mark.parametrize("stride", [1, 2**40, 2**62])
def test_windows_far_away_repeat_the_nearest_step(number, stride):
    plan = Plan(
        plain(stride=stride, offset=-1).windows(), [copied(), Output(Value.INSIDE, np.dtype(bool), mask=OF_WINDOW)]
    )
    first = (number * stride - 1 + 2**63) % 2**64 - 2**63
    values, inside = Bound(plan, np.array([1]), np.array([number]), (), 300).read(0, 1)
    steps = [first + k for k in range(300)]
    assert values[0].tolist() == [6 + max(0, min(x, 3)) for x in steps]
    assert inside[0].tolist() == [0 <= x < 4 for x in steps]


@pytest.mark.thorough
@pytest.mark.parametrize("limit", [0, 1, 4, 5])
def test_offsets_stay_in_the_rows_that_they_may_reach(limit):
    where = {"place": RowPlace.OFFSETS, "offsets": (FAR[1], -1, 0, 1, 9, FAR[0]), "limit": np.array([limit, limit])}
    mask = Output(Value.INSIDE, np.dtype(bool), **where)
    values, inside = Bound(Plan(plain().windows(), [copied(**where), mask]), np.array([0]), np.array([3]), (), 0).read(
        0, 1
    )
    steps = [3 + x for x in where["offsets"]]
    assert values[0].tolist() == [max(0, min(x, limit - 1)) for x in steps]
    assert inside[0].tolist() == [0 <= x < limit for x in steps]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("episode", "number"), [(0, 5), (1, 3), (0, -1), (2, 0), (0, 2**62), (1, 2**63 - 1), (0, -(2**63))]
)
def test_sums_that_start_at_no_transition(episode, number):
    """The last step of the second episode has no transition."""
    plan = Plan(plain().windows(), [copied(place=RowPlace.LAST)], NStep(3, *[np.zeros(12, bool)] * 2))
    with pytest.raises(IndexError, match="sample 1 "):
        Bound(plan, np.array([0, episode]), np.array([0, number]), (), 0).read(0, 2)


def test_sums_of_more_steps_than_there_are_powers():
    flags = [np.zeros(12, bool)] * 2
    summed = Output(Value.SUM, np.dtype(np.float64), (1,), source=np.ones(12), other=np.ones(2))
    discount = Output(Value.COPY, np.dtype(np.float64), (1,), place=RowPlace.SPAN, source=np.ones(3))
    Plan(plain().windows(), [summed, discount], NStep(2, *flags))
    with pytest.raises(ValueError, match="2 powers of the discount for sums of 3 steps"):
        Plan(plain().windows(), [summed], NStep(3, *flags))
    with pytest.raises(DamagedDataset, match="a column of 3 rows where episodes have 4"):
        Plan(plain().windows(), [discount], NStep(3, *flags))


@pytest.mark.thorough
@pytest.mark.parametrize("row", [-1, 11, 12, 2**62, -(2**63)])
@pytest.mark.parametrize("length", [0, 3])
def test_goals_that_are_no_rows(row, length):
    plan = Plan(plain().windows(), [copied(place=RowPlace.GIVEN, given=make_rows)])
    zero = np.zeros(2, np.int64)
    with pytest.raises(IndexError, match="sample 1 "):
        Bound(plan, zero, zero, [np.array([10, row])], length).read(0, 2)


def test_parts_that_are_not_bound():
    bound = Bound(Plan(plain().windows(), [copied()]), np.zeros(3, np.int64), np.zeros(3, np.int64), (), 0)
    assert len(bound.read(3, 0)[0]) == 0 and len(bound.read(0, 3)[0]) == 3
    for first, n in ((0, 4), (3, 1), (-1, 2), (2, -1), (2**62, 1)):
        with pytest.raises(IndexError, match="of 3"):
            bound.read(first, n)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("horizon", range(5))
@pytest.mark.parametrize("shares", [(0, 1, 0), (0.2, 0.5, 0.3), (0, 0, 1), (1, 0, 0)])
def test_draws_of_goals_that_cannot_be(shares, horizon):
    table, limit = plain(), np.array([6, 2])
    u = np.array([np.nan, np.inf, -np.inf, 1.0, -1.0, 2.0, 0.0, LAST])
    goals = reference.Rule(*shares, -1e-9, horizon, 2**62).table(limit, PrefixIndex(limit).table, table)
    for number, length in itertools.product((0, 3, 2**62, -(2**63)), (0, 1, 5, 2**61)):
        for e in (0, 1):
            row, step = goals.find(np.full(8, e), np.full(8, number), length, u)
            assert row.min() >= 0 and row.max() < 11 and step.min() >= -1 and step.max() <= 5
    with pytest.raises(ValueError, match="7 draws for 8 samples"):
        goals.find(np.zeros(8, np.int64), np.zeros(8, np.int64), 0, u[:7])


def test_goals_anywhere_in_other_episodes():
    """A table of goals that is not of these episodes."""
    u, zero = np.full(4, 0.99), np.zeros(4, np.int64)
    for counts in ([100, 100], [1, 1, 1, 9], [6, 90]):
        goals = reference.Rule(0, 0, 1, -0.1, 0, 0).table(
            np.array([6, 5]), PrefixIndex(np.array(counts)).table, plain()
        )
        with pytest.raises(IndexError, match="sample 0 "):
            goals.find(zero, zero, 0, u)


NUMBERS = st.one_of(st.integers(-2, 14), st.sampled_from([-(2**63), -(2**40), 2**40, *HUGE]))


@pytest.mark.thorough
@settings(max_examples=60)
@given(st.data())
def test_tables_of_any_numbers(data):
    """Whatever the tables hold: an error, or values of the rows that there are."""
    count, rows = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 14))
    near = st.lists(st.one_of(st.integers(0, 6), NUMBERS), min_size=count, max_size=count)
    columns = [np.array(data.draw(near), np.int64) for _ in range(5)]
    limit = np.array(data.draw(near), np.int64)
    pad = data.draw(st.sampled_from([None, "left", "right"]))
    table = reference.Table(*columns, stride=data.draw(NUMBERS), offset=data.draw(NUMBERS), pad=pad)
    source, flags = np.arange(rows, dtype=np.float64) + 1, [np.zeros(rows, bool)] * 2
    floats, length = np.dtype(np.float64), data.draw(st.sampled_from([0, 1, 3]))
    offsets = tuple(data.draw(st.lists(st.one_of(st.integers(-9, 9), st.sampled_from(FAR)), min_size=1, max_size=3)))
    samples = st.lists(st.one_of(st.integers(0, 3), NUMBERS), min_size=2, max_size=2)
    episode, number = (np.array(data.draw(samples), np.int64) for _ in "ab")
    try:
        index = PrefixIndex(limit)
        goals = reference.Rule(0.1, 0.4, 0.5, -0.1, data.draw(st.integers(0, 4)), 3).table(limit, index.table, table)
        outputs = [
            Output(Value.COPY, floats, source=source),
            Output(Value.COPY, floats, source=source, place=RowPlace.NEIGHBOUR, amount=data.draw(NUMBERS) % 2**60),
            Output(Value.COPY, floats, source=source, place=RowPlace.OFFSETS, offsets=offsets, limit=limit),
            Output(Value.COPY, floats, source=source, place=RowPlace.GIVEN, given=make_rows),
        ]
        n_step = NStep(3, *flags) if data.draw(st.booleans()) else None
        plan = Plan(table.windows(), outputs, n_step)
        row, _ = goals.find(episode, number, length, np.array([0.3, 0.9]))
        made = Bound(plan, episode, number, [row], length).read(0, 2)
    except (DamagedDataset, IndexError):
        return
    for values in made:
        assert values.size == 0 or (values.min() >= 1 and values.max() <= rows)


@pytest.mark.parametrize("aligned", [True, False])
def test_rows_that_lie_unevenly(aligned):
    """Values that are not aligned, or whose rows are not contiguous, are copied once."""
    raw = np.zeros(12 * 24 + 4, np.uint8)
    source = np.ndarray((12, 2), np.float64, raw, 4, (24, 8)) if not aligned else np.zeros((2, 12)).T
    source[...] = np.arange(24).reshape(12, 2)
    output = Output(Value.NARROW, np.dtype(np.float32), (2,), source=source)
    (got,) = Bound(Plan(plain().windows(), [output]), np.array([1]), np.array([2]), (), 0).read(0, 1)
    assert got.tolist() == [[16.0, 17.0]]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "window",
    [
        Transition(3),
        Slice(4, before=2, after=3, fill="zero"),
        Offsets({"observation": (-1, 0, 1), "action": (0, 3)}),
    ],
)
@pytest.mark.parametrize("column", ["start", "steps", "transitions", "observed"])
def test_a_loader_of_a_dataset_with_damaged_episodes(home, window, column, monkeypatch):
    """It refuses them, or reads rows that there are."""
    ds = create([episode(0, 9), episode(1, 1), episode(2, 30)])
    sound = EpisodeIndex.of(ds)
    refused = 0
    for number, at in itertools.product((-1, 31, 2**40, 2**60, 2**63 - 1), (0, 2)):
        columns = {name: getattr(sound, name).copy() for name in ("start", "steps", "transitions", "observed")}
        columns[column][at] = number
        monkeypatch.setattr(EpisodeIndex, "of", classmethod(lambda cls, dataset, c=columns: EpisodeIndex(**c)))
        extra = ("step", Goals("goal", future=0.5, random=0.5), "previous/action")
        try:
            for batch in Loader(ds, 4, window=window, sampler=Shuffled(), fields=[..., *extra], backend="numpy"):
                assert np.isfinite(batch["observation"]).all()
        except (DamagedDataset, IndexError):
            refused += 1
    assert refused >= 4  # an episode of no window is left out


def test_steps_and_transitions_are_one_column_where_every_step_is_a_transition(home):
    table = EpisodeIndex.of(create([episode(0, 9), episode(1, 4)]))
    assert table.transitions is table.steps and table.steps.tolist() == [9, 4]
    table = EpisodeIndex.of(create([episode(0, 9, observed=False, end="truncated"), episode(1, 4)], ref="local/cut"))
    assert table.transitions.tolist() == [8, 4] and table.steps.tolist() == [9, 4]


ALTERED = """
import pickle
import sys
from itertools import islice
from pathlib import Path
import numpy as np
import rlds_cli
from rlds_cli.loader import Episode, Goals, Loader, Offsets, Prioritized, Shuffled, Slice, Transition, Weighted

ds, windows = rlds_cli.open_dataset(sys.argv[1]), (
    Transition(), Transition(3), Slice(4, before=2, after=3, fill="zero"), Episode(bucket=2),
    Offsets({"observation": (-1, 0, 1), "action": (0, 3)}),
)
extra = "step", "episode", Goals("goal", future=0.5, random=0.5), "previous/action"
samplers = [Shuffled() for _ in windows]
how = {"fields": [..., *extra], "backend": "numpy"}
loaders = [Loader(ds, 16, window=w, sampler=s, **how) for w, s in zip(windows, samplers)]
loaders += [Loader(ds, 16, sampler=s, backend="numpy") for s in (Weighted("length"), Prioritized())]
kept = [[pickle.dumps(b) for b in islice(loader, 2)] for loader in loaders]
for value in (-1, 0, 2**20, 2**40, 2**63 - 1):
    for name in ("start", "length", "num_transitions", "num_observed"):
        file = Path(sys.argv[1], "episodes", name, "c", "0")
        before = file.read_bytes()
        with file.open("r+b") as f:
            f.write(np.full(ds.num_episodes, value, "<i8").tobytes())
        assert ds.episodes[name][0] == value, "the file is not mapped"
        for loader, batches in zip(loaders, kept):
            loader.seek(0)
            for batch, same in zip(islice(loader, 2), batches):
                assert pickle.dumps(batch) == same, (loader, name)
        with file.open("r+b") as f:
            f.write(before)
print("the same")
"""


def test_a_table_of_episodes_that_is_altered_while_it_is_read(home):
    """In another process: addresses that are made of other numbers would end it. Batches stay what they were."""
    ds = create([episode(0, 9), episode(1, 2), episode(2, 30)])
    for name in ("start", "length", "num_transitions", "num_observed"):
        (ds.path / "episodes" / name / "c" / "0").chmod(0o644)
    done = subprocess.run([sys.executable, "-c", ALTERED, ds.path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "the same\n", "")
