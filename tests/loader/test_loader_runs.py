"""What is read of a pass: every batch once, whoever shares it, against a count of one batch after the other."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds_cli.loader.order import Order
from rlds_cli.loader.schedule import Position, Ranks, Schedule, runs

MOST = 40  # batches looked at of a pass without an end

SCHEDULES = st.builds(
    Schedule,
    batch_size=st.integers(1, 7),
    total=st.one_of(st.none(), st.integers(7, 30)),
    drop_last=st.booleans(),
    steps=st.one_of(st.none(), st.integers(1, 25)),
)
Found = list[tuple[int, list[int]]]


def one_by_one(schedule: Schedule, spot: Position, batches: int | None) -> tuple[Found, Position]:
    """Epoch and samples of each batch, and where they end."""
    found: Found = []
    epoch, sample = spot
    while batches is None or len(found) < batches:
        left = None if schedule.total is None else schedule.total - sample
        if left is not None and (left <= 0 or (schedule.drop_last and left < schedule.batch_size)):
            epoch, sample = epoch + 1, 0
            continue
        size = schedule.batch_size if left is None else min(left, schedule.batch_size)
        found.append((epoch, list(range(sample, sample + size))))
        sample += size
        if batches is None and len(found) == MOST:
            break
    return found, Position(epoch, sample)


def read(schedule: Schedule, spot: Position, most: int, *, worker: int = 0, workers: int = 1) -> Found:
    found: Found = []
    for run in runs(schedule, spot, Order(3), lambda _: most, worker=worker, workers=workers):
        assert run.order.seed == 3 and 1 <= run.batches <= most
        numbers = np.asarray(run.of(Ranks(0, 1, "")))
        found += [(run.order.epoch, part.tolist()) for part in numbers.reshape(run.batches, run.size)]
        if len(found) >= MOST:
            break
    return found[:MOST]


@pytest.mark.thorough
@given(SCHEDULES, st.integers(0, 40), st.integers(1, 9), st.integers(1, 5))
def test_workers_take_turns(schedule: Schedule, step: int, most: int, workers: int) -> None:
    spot = schedule.settle(schedule.at(step, 0))
    whole = one_by_one(schedule, spot, schedule.left(spot))[0]
    assert read(schedule, spot, most) == whole[:MOST]
    for worker in range(workers):
        mine = read(schedule, spot, most, worker=worker, workers=workers)
        expected = whole[worker::workers]
        assert mine[: len(expected)] == expected[: len(mine)]
        assert len(mine) == len(expected) or schedule.per_pass is None


@pytest.mark.thorough
@given(SCHEDULES, st.integers(0, 60), st.integers(0, 60))
def test_skipping_is_going_on_batch_by_batch(schedule: Schedule, step: int, batches: int) -> None:
    spot = schedule.settle(schedule.at(step, 0))
    assert schedule.settle(schedule.skip(spot, batches)) == schedule.settle(one_by_one(schedule, spot, batches)[1])


@given(SCHEDULES, st.integers(0, 40), st.integers(0, 6))
def test_later_passes_begin_where_those_before_end(schedule: Schedule, step: int, passes: int) -> None:
    spot = expected = schedule.settle(schedule.at(step, 0))
    for _ in range(passes):
        left = schedule.left(expected)
        if left is None:
            expected = Position(expected.epoch + 1, 0)
        else:
            expected = schedule.settle(one_by_one(schedule, expected, left)[1])
    assert schedule.later(spot, passes) == expected


def test_gathers_grow() -> None:
    """A pass that is broken off after a batch has not read many."""
    sizes = [run.batches for run in islice(runs(Schedule(4, None), Position(0, 0), Order(0), lambda _: 10), 6)]
    assert sizes == [1, 2, 4, 8, 10, 10]


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 5), st.integers(1, 4), st.integers(0, 9))
def test_a_rank_of_a_run_that_skips(share: int, world: int, batches: int, every: int, first: int) -> None:
    size = share * world
    *_, run = islice(
        runs(Schedule(size, None), Position(0, first * size), Order(0), lambda _: batches, workers=every), 4
    )
    for rank in range(world):
        expected = [
            run.first + batch * every * size + i for batch in range(run.batches) for i in range(rank, size, world)
        ]
        assert list(run.of(Ranks(rank, world, ""))) == expected
