import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds_cli.loader.schedule import Position, Schedule

SCHEDULES = st.builds(
    Schedule,
    st.integers(1, 7),
    st.one_of(st.none(), st.integers(7, 30)),
    st.booleans(),
    st.one_of(st.none(), st.integers(1, 12)),
)


def walk(schedule, spot, batches, most):
    """The samples of each batch, read ``most`` batches at a time."""
    seen = []
    while len(seen) < batches:
        spot = schedule.settle(spot)
        count, size = schedule.run(spot, most)
        for _ in range(count):
            seen.append([(spot.epoch, spot.sample + i) for i in range(size)])
            spot = Position(spot.epoch, spot.sample + size)
    return seen[:batches]


@pytest.mark.thorough
@given(SCHEDULES, st.integers(1, 9))
def test_how_many_are_read_at_once_changes_nothing(schedule, most):
    assert walk(schedule, Position(0, 0), 20, most) == walk(schedule, Position(0, 0), 20, 1)


@pytest.mark.thorough
@given(SCHEDULES, st.integers(0, 40))
def test_a_step_and_its_spot_are_one(schedule, step):
    spot = schedule.at(step, 0)
    assert schedule.step(spot) == step
    assert walk(schedule, spot, 5, 3) == walk(schedule, Position(0, 0), step + 5, 4)[step:]


@pytest.mark.thorough
@given(SCHEDULES)
def test_an_epoch_holds_every_sample_once_but_for_a_dropped_batch(schedule):
    if schedule.total is None:
        return
    batches = walk(schedule, Position(0, 0), schedule.per_epoch, 4)
    samples = [s for batch in batches for s in batch]
    kept = schedule.total // schedule.batch_size * schedule.batch_size if schedule.drop_last else schedule.total
    assert samples == [(0, i) for i in range(kept)]
    assert all(len(b) == schedule.batch_size for b in batches[:-1])
    assert walk(schedule, Position(0, 0), schedule.per_epoch + 1, 4)[-1][0] == (1, 0)


@pytest.mark.thorough
@given(SCHEDULES, st.integers(0, 40))
def test_a_fresh_pass_starts_at_a_multiple_of_its_length(schedule, step):
    spot = schedule.at(step, 0)
    fresh = schedule.step(schedule.fresh(spot))
    if schedule.per_pass is None:
        assert fresh == step
    else:
        assert fresh >= step and fresh - step < schedule.per_pass and fresh % schedule.per_pass == 0
        assert 1 <= schedule.left(spot) <= schedule.per_pass
        assert (step + schedule.left(spot)) % schedule.per_pass == 0


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("schedule", "epoch", "one_pass"),
    [
        (Schedule(4, 10), 3, 3),
        (Schedule(4, 10, drop_last=True), 2, 2),
        (Schedule(4, 10, steps=7), 3, 7),
        (Schedule(4, None), None, None),
        (Schedule(4, None, steps=7), None, 7),
        (Schedule(16, 10), 1, 1),
        (Schedule(16, 10, drop_last=True), 0, 0),
    ],
)
def test_lengths(schedule, epoch, one_pass):
    assert (schedule.per_epoch, schedule.per_pass) == (epoch, one_pass)


def test_a_place_taken_over_from_another_batch_size_goes_on_from_its_sample():
    schedule = Schedule(4, 10)
    assert walk(schedule, Position(0, 5), 3, 9) == [
        [(0, 5), (0, 6), (0, 7), (0, 8)],
        [(0, 9)],
        [(1, 0), (1, 1), (1, 2), (1, 3)],
    ]
    assert schedule.settle(Position(0, 10)) == Position(1, 0)
    assert Schedule(4, 10, drop_last=True).settle(Position(0, 7)) == Position(1, 0)


@pytest.mark.thorough
@given(SCHEDULES, st.integers(0, 2), st.integers(0, 29), st.integers(1, 4))
def test_from_anywhere_each_batch_counts_one_and_passes_end_with_epochs(schedule, epoch, sample, most):
    """Also from samples at which no batch of this size begins: the place was saved with another size."""
    spot = schedule.settle(Position(epoch, sample if schedule.total is None else sample % schedule.total))
    for _ in range(2):
        left, step = schedule.left(spot), schedule.step(spot)
        for _ in range(left or 9):
            _, size = schedule.run(spot, most)
            spot, before = Position(spot.epoch, spot.sample + size), spot
            step += 1
            assert schedule.step(spot) == schedule.step(schedule.settle(spot)) == step
            spot = schedule.settle(spot)
        assert left is None or schedule.fresh(spot) == spot
        if schedule.total is not None and schedule.steps is None:
            assert spot == (before.epoch + 1, 0)
