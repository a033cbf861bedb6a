"""Which member every sample of a mixture comes from: turns, lots, weights that change."""

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_data import create, episode

from rlds_cli.errors import InvalidArgument, WrongState
from rlds_cli.loader import Loader, Mixture
from rlds_cli.loader.mixture.shares import (
    LONGEST_PERIOD,
    Checkpoints,
    ConstantShares,
    DeficitRounds,
    MemberDraws,
    RandomShares,
    apportion,
    normalised,
    period,
    places,
    quantised,
    spread,
)
from rlds_cli.loader.order import Order
from rlds_cli.loader.schedule import SampleRun

WEIGHTS = st.one_of(
    st.lists(st.integers(1, 9).map(float), min_size=1, max_size=7),
    st.lists(st.floats(1e-3, 1), min_size=1, max_size=7),
    st.lists(st.sampled_from([0.5, 0.25, 0.1, 1e-3, 3.0]), min_size=1, max_size=12),
)


def run(first, size, batches, epoch=0):
    return SampleRun(Order(0, epoch), first, size, batches)


def bound(members):
    """How far the count in any stretch may be from weight * length: twice Tijdeman's 1 - 1 / (2K - 2)."""
    return 2 - 1 / (members - 1) if members > 1 else 0.0


def far_off(member, k, share, length):
    """The largest distance of a count of ``k`` in any ``length`` consecutive places from share * length."""
    taken = np.concatenate([[0], np.cumsum(member == k)])
    return np.abs(taken[length:] - taken[:-length] - share * length).max()


# -- turns


@pytest.mark.thorough
@settings(max_examples=30)
@given(WEIGHTS)
def test_any_stretch_holds_its_shares(weights):
    turns = quantised(weights, 2000)
    member = period(turns).find(np.arange(2 * sum(turns) + 300))[0]
    for k, length in itertools.product(range(len(weights)), range(1, 300)):
        off = far_off(member, k, turns[k] / sum(turns), length)
        assert off <= bound(len(weights)) + 1e-9


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(12))
def test_two_and_three_members_hold_the_rounded_number_or_one_more_or_less(seed):
    rng = np.random.default_rng(seed)
    turns = quantised(rng.random(2 + seed % 2) ** 2)
    member = period(turns).find(np.arange(3000))[0]
    for k, length in itertools.product(range(len(turns)), range(1, 400)):
        rounded = np.floor(turns[k] / sum(turns) * length + 0.5)
        assert far_off(member, k, rounded / length, length) < 1.5  # a whole number, but for rounding


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("weights", "turns"),
    [
        ([0.7, 0.3], (7, 3)),
        ([7, 3], (7, 3)),
        ([1 / 3, 1 / 3, 1 / 3], (1, 1, 1)),
        ([0.5, 0, 0.25, 0.25], (2, 0, 1, 1)),
        ([0.8, 0.1, 0.1], (8, 1, 1)),
        ([5.0], (1,)),
        ([1_000_000, 402_000], (500, 201)),
        ([0.1 + 0.2, 0.7], (3, 7)),
    ],
)
def test_fractions_are_exact(weights, turns):
    assert quantised(weights) == turns


def test_a_batch_that_is_a_multiple_of_the_period_holds_exactly_its_shares():
    member = period(quantised([0.5, 0.3, 0.2])).find(np.arange(10_007))[0]
    for start in range(0, 10_007 - 100, 53):
        assert np.bincount(member[start : start + 100]).tolist() == [50, 30, 20]


@settings(max_examples=20)
@given(st.lists(st.floats(1e-3, 1), min_size=2, max_size=8))
def test_other_weights_are_close(weights):
    turns, w = np.array(quantised(weights)), np.array(weights)
    assert turns.sum() <= LONGEST_PERIOD and turns.min() >= 1
    relative = turns / turns.sum() / (w / w.sum()) - 1
    assert np.abs(relative).max() < 0.02  # half a turn of the smallest, 1 / 8000 of the samples, is 1 in 16


def test_tiny_weights_get_a_turn():
    for weights in ([1.0, 1e-12], [1e9, 1, 1, 1], [1.0] * 50 + [1e-9] * 50):
        turns = np.array(quantised(weights))
        assert turns.min() >= 1 and turns.sum() <= LONGEST_PERIOD
    assert quantised([1, 1e-12]) == (LONGEST_PERIOD - 1, 1)


@settings(max_examples=20)
@given(WEIGHTS, st.integers(0, 5000))
def test_places_count_the_turns_before(weights, start):
    table = period(quantised(weights, 500))
    member, place = table.find(np.arange(start + 300))
    seen = [0] * len(weights)
    for m, p in zip(member.tolist(), place.tolist(), strict=True):
        assert p == seen[m]
        seen[m] += 1
    assert table.counts(start + 300).tolist() == seen
    far = 10**12 + start
    one, two = table.find(np.array([far])), table.counts(far)
    assert one[1][0] == two[one[0][0]]


@pytest.mark.thorough
def test_building_the_longest_period_is_quick():
    rng = np.random.default_rng(0)
    for members in (2, 10, 60):
        begun = time.process_time()
        period(quantised(rng.random(members)))
        assert time.process_time() - begun < 0.3


# -- in one batch


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(sum))
def test_samples_of_a_batch_are_spread_evenly(counts):
    member, place = spread(counts)
    assert np.bincount(member, minlength=len(counts)).tolist() == counts
    for m, count in enumerate(counts):
        slots = np.flatnonzero(member == m)
        assert place[slots].tolist() == list(range(count))
        if count > 1:
            assert np.diff(slots).max() <= sum(counts) / count + len(counts)


@given(st.lists(st.floats(-0.99, 5), min_size=1, max_size=6), st.integers(0, 40), st.lists(st.booleans(), min_size=6))
def test_whole_numbers_near_what_is_due(due, total, on):
    weights = [float(x) for x in on[: len(due)]]
    weights[0] = 1.0
    due[0] += total - sum(due)  # what is due adds up
    given_ = apportion(due, weights, total)
    assert sum(given_) == total and min(given_) >= 0
    assert all(g == 0 for g, w in zip(given_, weights, strict=True) if not w)
    if all(weights) and min(due) >= 0:
        assert all(abs(g - d) < 1 for g, d in zip(given_, due, strict=True))


def test_places_go_on_from_what_was_before():
    place, after = places(np.array([1, 0, 1, 1, 0]), [5, 7, 9])
    assert place.tolist() == [7, 5, 8, 9, 6] and after == [7, 10, 9]


# -- lots


def test_lots_fall_by_weight_and_never_on_zero():
    lots = MemberDraws((0.0, 3.0, 0.0, 1.0, 0.0))
    counts = np.bincount(lots.draw(Order(5), range(100_000)), minlength=5)
    assert counts[[0, 2, 4]].tolist() == [0, 0, 0]
    assert abs(counts[1] / 100_000 - 0.75) < 4 * np.sqrt(0.75 * 0.25 / 100_000)


def test_lots_are_followed_in_any_steps():
    lots, order = MemberDraws((0.2, 0.8)), Order(1)
    member = lots.draw(order, range(1000))
    assert lots.follow(order, [0, 0], 0, 1000) == np.bincount(member).tolist()
    halfway = lots.follow(order, [0, 0], 0, 391)
    assert lots.follow(order, halfway, 391, 1000) == np.bincount(member).tolist()


# -- ledger


def test_a_ledger_follows_from_the_nearest_point_it_knows():
    walked = []

    def follow(epoch, state, start, stop):
        walked.append((epoch, start, stop))
        return state + sum(range(start, stop)) * (epoch + 1)

    ledger = Checkpoints(0, follow)
    assert ledger.at(0, 10) == 45 and ledger.at(0, 10) == 45 and ledger.at(0, 12) == 66
    assert ledger.at(0, 5) == 10 and ledger.at(1, 3) == 6 and ledger.at(1, 0) == 0
    assert walked == [(0, 0, 10), (0, 10, 12), (0, 0, 5), (1, 0, 3)]
    ledger.note(1, 100, 7)
    assert ledger.at(1, 101) == 7 + 200


def test_a_ledger_stays_small_and_keeps_the_latest_points():
    ledger = Checkpoints(0, lambda epoch, state, start, stop: state + stop - start)
    for point in range(0, 50_000, 10):
        ledger.note(0, point, point)
    walked = []
    ledger._follow = lambda epoch, state, start, stop: walked.append(stop - start) or state + stop - start
    assert ledger.at(0, 49_995) == 49_995 and ledger.at(0, 45_005) == 45_005 and ledger.at(0, 33) == 33
    assert walked[:2] == [5, 5] and len(ledger._points) < 2000


# -- the three ways


def orders(epoch):
    return Order(77, epoch)


def drift(step):
    f = min(step / 40, 1.0)
    return [1 - 0.75 * f, 0.25 * f, 0.5 * f]


WAYS = {
    "constant": lambda: ConstantShares([0.55, 0.2, 0.25]),
    "random": lambda: RandomShares([0.55, 0.2, 0.25], orders),
    "changing": lambda: DeficitRounds(drift, 3, 12),
    "changing lots": lambda: DeficitRounds(drift, 3, 12, orders),
}


def sequence(way, batches, epoch=0):
    return [way.turns(run(12 * n, 12, 1, epoch), range(12 * n, 12 * n + 12)) for n in range(batches)]


@pytest.mark.parametrize("name", WAYS)
def test_turns_do_not_depend_on_how_they_are_asked_for(name):
    whole = sequence(WAYS[name](), 60)
    member = np.concatenate([t.member for t in whole])
    place = np.concatenate([t.place for t in whole])
    seen = [0, 0, 0]
    for m, p in zip(member.tolist(), place.tolist(), strict=True):
        assert p == seen[m]
        seen[m] += 1
    way = WAYS[name]()
    for first, batches, world in [(36, 5, 1), (0, 3, 2), (25, 7, 3), (50, 10, 4), (3, 1, 12)]:
        everyone = range(12 * first, 12 * (first + batches))
        for rank in range(world):
            mine = everyone[rank::world]
            turns = way.turns(run(everyone.start, 12, batches), mine)
            assert turns.member.tolist() == member[mine].tolist() and turns.place.tolist() == place[mine].tolist()
            assert np.allclose(turns.chance(), np.concatenate([t.chance() for t in whole])[mine])
        expected = np.bincount(member[: everyone.start], minlength=3).tolist()
        assert way.counts(0, everyone.start) == expected


@pytest.mark.parametrize("name", WAYS)
def test_a_state_spares_the_way_from_the_start(name):
    whole = sequence(WAYS[name](), 30)
    there = WAYS[name]()
    there.turns(run(0, 12, 20), range(240))
    other = WAYS[name]()
    other.load(0, 240, there.counts(0, 240), there.state(0, 240))
    if name.startswith("changing"):
        other._weights = lambda step: drift(step) if step >= 20 else pytest.fail("went back")
    for n in range(20, 30):
        turns = other.turns(run(12 * n, 12, 1), range(12 * n, 12 * n + 12))
        assert turns.place.tolist() == whole[n].place.tolist() and turns.member.tolist() == whole[n].member.tolist()


def test_epochs_have_lots_of_their_own():
    way = WAYS["random"]()
    one, two = sequence(way, 5, 0), sequence(way, 5, 1)
    assert [t.member.tolist() for t in one] != [t.member.tolist() for t in two]
    assert way.counts(0, 60) == np.bincount(np.concatenate([t.member for t in one]), minlength=3).tolist()


@pytest.mark.thorough
@settings(max_examples=20)
@given(
    st.lists(st.lists(st.floats(0, 1), min_size=4, max_size=4).filter(lambda w: sum(w) > 0.1), min_size=1, max_size=8),
    st.integers(1, 40),
)
def test_changing_weights_hold_over_time(table, size):
    """What a member had is what its weights add up to, off by less than two, as long as it has a weight."""
    shares = [[x / sum(w) for x in w] for w in table]
    way, due = DeficitRounds(lambda step: shares[step % len(shares)], 4, size), np.zeros(4)
    for step in range(60):
        turns = way.turns(run(step * size, size, 1), range(step * size, (step + 1) * size))
        counts = np.bincount(turns.member, minlength=4)
        assert all(counts[k] == 0 for k in range(4) if shares[step % len(shares)][k] == 0)
        due += size * np.array(shares[step % len(shares)])
        if all(min(w) > 0 for w in shares):
            assert np.abs(way.counts(0, (step + 1) * size) - due).max() < 2


def test_changing_weights_need_the_same_batch_size():
    way = DeficitRounds(drift, 3, 12)
    with pytest.raises(WrongState, match="batches of 6, this loader's have 12"):
        way.load(0, 60, [20, 20, 20], {"batch_size": 6, "owed": [0, 0, 0]})


# -- weights


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        ({"a": 1}, "no weight of b"),
        ({"a": 1, "b": 1, "c": 1}, "a weight of no member"),
        ({"a": -1, "b": 2}, '"a" at step 3 is -1'),
        ({"a": float("nan"), "b": 2}, "nan"),
        ({"a": "much", "b": 2}, "'much'"),
        ({"a": 0, "b": 0}, "sum to 0"),
        ({"a": 1e308, "b": 1e308}, "sum to inf"),
        ([1, 2], "a number for each of a, b"),
        (None, "a number for each of a, b"),
    ],
)
def test_weights_that_cannot_be(weights, says):
    with pytest.raises(InvalidArgument, match=says):
        normalised(weights, ("a", "b"), " at step 3")


def test_weights_are_divided_by_their_sum():
    assert normalised({"b": 1, "a": 3}, ("a", "b")) == [0.75, 0.25]
    assert normalised({"a": np.float32(0.5), "b": np.int64(0)}, ("a", "b")) == [1.0, 0.0]


# -- ranks


@pytest.mark.sampled(2)
@pytest.mark.parametrize("world", [2, 3, 8])
@pytest.mark.parametrize(
    "weights",
    [(100, 101), (7, 3), (33, 34, 34), (5, 7, 9), (1, 65_000)],
)
def test_every_batch_of_every_rank_holds_its_shares(home, weights, world):
    """100 samples of each rank are as good as docs/guides/mixtures.md says, whatever divides the period."""
    members = {f"m{i}": create([episode(i, 8)], ref=f"local/m{i}") for i in range(len(weights))}
    mixture = Mixture(members, dict(zip(members, weights, strict=True)))
    share = np.array(weights) / sum(weights)
    options = {"batch_size": 100 * world, "fields": ("action",), "backend": "numpy", "steps": 6}
    whole = [batch["source"] for batch in Loader(mixture, **options)]
    parts = [[b["source"] for b in Loader(mixture, rank=r, world_size=world, **options)] for r in range(world)]
    for batch, *of_ranks in zip(whole, *parts, strict=True):
        assert sorted(np.concatenate(of_ranks)) == sorted(batch)
        for part in of_ranks:
            counts = np.bincount(part, minlength=len(weights))
            assert np.abs(counts - 100 * share).max() < 2.5
