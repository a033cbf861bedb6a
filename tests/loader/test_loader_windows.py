from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds_cli.errors import InvalidArgument
from rlds_cli.loader import Slice, Transition
from rlds_cli.loader.kernel import OF_WINDOW, Bound, Output, Plan, Value, WindowTable


@st.composite
def slices(draw):
    length = draw(st.integers(1, 6))
    reach = st.integers(0, length - 1)
    return Slice(length, before=draw(reach), after=draw(reach), stride=draw(st.integers(1, 7)))


@given(slices(), st.integers(0, 12))
def test_slices_are_all_starts_from_before_to_after(window, steps):
    starts = [
        s for s in range(-window.before, steps, window.stride) if steps and s + window.length <= steps + window.after
    ]
    assert window.counts(np.array([steps]))[0] == len(starts)


@given(slices(), st.integers(1, 12))
def test_every_slice_holds_a_real_step(window, steps):
    for number in range(int(window.counts(np.array([steps]))[0])):
        first = number * window.stride - window.before
        assert first < steps and first + window.length > 0


def test_equivalents_of_well_known_loaders():
    steps = np.array([10])
    assert Slice(4).counts(steps) == 7  # whole slices only
    assert Slice(4, after=3).counts(steps) == 10  # Decision Transformer: every step starts one
    assert Slice(4, before=3).counts(steps) == 10  # every step ends one
    assert Slice(4, before=1, after=2).counts(steps) == 10  # Diffusion Policy: pad_before 1, pad_after 2
    assert Slice(4, stride=4).counts(steps) == 2  # disjoint, the tail is left out
    assert Slice(4, stride=4, after=3).counts(steps) == 3  # disjoint, the tail is padded
    assert Slice(64, after=63).counts(np.array([1, 50, 64])).tolist() == [1, 50, 64]
    assert Slice(4, after=3).counts(np.array([0])) == 0


def test_transitions_are_one_per_step():
    assert Transition(5).counts(np.array([0, 1, 7])).tolist() == [0, 1, 7]


def table(starts, steps):
    starts, steps = np.array(starts, np.int64), np.array(steps, np.int64)
    return WindowTable(starts, steps, steps, steps + 1, (1, 0))


def column(values, **options):
    return Output(Value.COPY, values.dtype, values.shape[1:], source=values, **options)


def read(plan, episode, first, length):
    return Bound(plan, np.array(episode, np.int64), np.array(first, np.int64), (), length).read(0, len(episode))


@pytest.mark.thorough
@given(st.lists(st.tuples(st.integers(1, 8), st.data()), min_size=1, max_size=5), st.integers(1, 6), st.integers(0, 1))
def test_windows_stop_at_the_ends_of_their_episode(episodes, length, shift):
    starts, firsts, steps, row = [], [], [], 0
    for count, data in episodes:
        starts.append(row)
        steps.append(count)
        firsts.append(data.draw(st.integers(1 - length, count - 1)))
        row += count + 1
    values = np.random.default_rng(0).standard_normal((row, 3))
    at = [[min(max(f + j, 0), n - 1) for j in range(length)] for f, n in zip(firsts, steps, strict=True)]
    real = [[0 <= f + j < n for j in range(length)] for f, n in zip(firsts, steps, strict=True)]
    rows = [[s + t for t in a] for s, a in zip(starts, at, strict=True)]
    int64, flag = np.dtype(np.int64), np.dtype(bool)
    outputs = [
        Output(Value.STEP, int64),
        Output(Value.INSIDE, flag, mask=OF_WINDOW),
        Output(Value.ROW, int64),
        column(values, shift=shift),
        column(values, shift=shift, mask=OF_WINDOW, blank=True),
    ]
    plan = Plan(table(starts, steps), outputs)
    step, mask, row, taken, zeroed = first = read(plan, np.arange(len(steps)), firsts, length)
    assert step.tolist() == at and mask.tolist() == real and row.tolist() == rows
    expected = values[np.array(rows) + shift]
    assert np.array_equal(taken, expected)
    assert np.array_equal(zeroed, np.where(np.array(real)[..., None], expected, 0))
    assert taken.flags.c_contiguous and taken.flags.writeable
    again = read(plan, np.arange(len(steps)), firsts, length)
    arrays = [values, *first, *again]
    assert not any(np.shares_memory(a, b) for a, b in combinations(arrays, 2))  # memory of its own


@pytest.mark.thorough
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 2), (0,), (2, 0)])
@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.uint8, bool, np.int64])
def test_rows_of_any_shape_and_dtype_are_read(shape, dtype):
    values = (np.random.default_rng(0).standard_normal((30, *shape)) * 9).astype(dtype)
    values.flags.writeable = False
    plan, rows = Plan(table([0], [29]), [column(values), column(values, shift=1)]), np.array([3, 28, 0, 3])
    points = read(plan, [0] * 4, rows, 0)
    windows = read(plan, [0] * 4, rows, 1)
    for shift in (0, 1):
        assert points[shift].dtype == windows[shift].dtype == dtype
        assert np.array_equal(points[shift], values[rows + shift])
        assert np.array_equal(windows[shift][:, 0], values[rows + shift])
        assert points[shift].flags.writeable and windows[shift].flags.writeable


@pytest.mark.parametrize("length", [1, 5, 64, 300])
@pytest.mark.parametrize("width", [1, 15, 16, 17, 250])
def test_slices_of_narrow_and_wide_rows_of_any_length(width, length):
    rng = np.random.default_rng(width)
    values = rng.standard_normal((1302, width), np.float32)
    starts, steps = np.array([0, 401]), np.array([400, 900])
    episodes = rng.integers(0, 2, 9)
    firsts = rng.integers(1 - length, steps[episodes])
    now, after = read(Plan(table(starts, steps), [column(values), column(values, shift=1)]), episodes, firsts, length)
    at = firsts[:, None] + np.arange(length)
    rows = starts[episodes][:, None] + at.clip(0, steps[episodes][:, None] - 1)
    assert np.array_equal(now, values[rows]) and np.array_equal(after, values[rows + 1])


def test_a_column_may_be_shorter_than_the_window():
    values = np.arange(4)
    now, after = read(Plan(table([0], [3]), [column(values), column(values, shift=1)]), [0], [-1], 6)
    assert now.tolist() == [[0, 0, 1, 2, 2, 2]]
    assert after.tolist() == [[1, 1, 2, 3, 3, 3]]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Transition(0), "n_step"),
        (lambda: Transition(1.5), "n_step"),
        (lambda: Transition(True), "n_step"),
        (lambda: Transition(3, gamma=1.5), r"\[0, 1\]"),
        (lambda: Slice(0), "length"),
        (lambda: Slice("64"), "length"),
        (lambda: Slice(4, stride=0), "stride"),
        (lambda: Slice(4, before=-1), "before"),
        (lambda: Slice(4, before=4), "before=3 at most"),
        (lambda: Slice(4, after=9), "after=3 at most"),
        (lambda: Slice(4, fill="nan"), '"edge" or "zero"'),
    ],
)
def test_windows_that_cannot_be_are_refused_at_once(make, says):
    with pytest.raises(InvalidArgument, match=says) as e:
        make()
    assert isinstance(e.value, ValueError)


def test_numbers_of_numpy_count_as_plain_ones():
    assert repr(Transition(np.int64(3), gamma=np.float64(0.5))) == repr(Transition(3, 0.5))
    assert repr(Slice(np.int32(4), after=np.int64(3))) == repr(Slice(4, after=3))
