"""The parts of live loaders, against plain dictionaries and lists."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds_cli.errors import InvalidArgument, WrongState
from rlds_cli.loader.index import NumberIndex, PrefixIndex
from rlds_cli.loader.kernel import SumTree
from rlds_cli.loader.samplers.places import Places
from rlds_cli.loader.samplers.priorities import Priorities
from rlds_cli.loader.storage.page_cache import MappedRows


@pytest.mark.thorough
@given(st.sets(st.integers(0, 3000), min_size=1, max_size=300), st.integers(0, 5000))
def test_places_of_numbers(numbers: set[int], first: int) -> None:
    """Dense ones, those with gaps, and those that lie far apart."""
    for apart in (1, 100):
        ascending = np.array(sorted(numbers)) * apart + first
        where = {number: place for place, number in enumerate(ascending.tolist())}
        wanted = np.concatenate([ascending, ascending + 1, [0, 10**12]])
        assert NumberIndex(ascending).find(wanted).tolist() == [where.get(n, -1) for n in wanted.tolist()]
    dense = NumberIndex(np.arange(first, first + 5))
    assert dense.find(np.array([first + 4, first, first - 1, first + 5])).tolist() == [4, 0, -1, -1]
    assert NumberIndex(np.zeros(0, np.int64)).find(np.arange(3)).tolist() == [-1, -1, -1]


@pytest.mark.thorough
@given(st.lists(st.integers(1, 300), min_size=1, max_size=200))
def test_the_guide_of_a_prefix_index(counts: list[int]) -> None:
    found = PrefixIndex(np.array(counts)).find(np.arange(sum(counts)))
    assert found[0].tolist() == [e for e, n in enumerate(counts) for _ in range(n)]
    assert found[1].tolist() == [k for n in counts for k in range(n)]


def name(episode: int, window: int = 0) -> int:
    return (episode + 1) * 2**32 + window


def pool(episodes: dict[int, int], version: int, order: Any = None) -> Any:
    """Episodes by number, with their windows, in some order of the table."""
    rows = sorted(episodes) if order is None else sorted(episodes, key=order)
    ascending = sorted(episodes)
    return SimpleNamespace(
        dataset=SimpleNamespace(id="local/a", version=version),
        names=np.array([name(n) for n in ascending]),
        rows_ascending=lambda at: np.array([rows.index(ascending[k]) for k in at.tolist()], np.int64),
        prefix=SimpleNamespace(counts=np.array([episodes[n] for n in rows])),
    )


def take_up(places: Places, tree: Priorities, now: Any) -> None:
    for first, stop in places.leave(now):
        tree.leave(first, stop)
    stay = places.close_gaps()
    if stay is not None:
        tree.keep(stay)
    rows = places.come(now)
    tree.come(int(now.prefix.counts[rows].sum()))


@given(st.integers(0, 10_000), st.sampled_from([0, 4096]))
def test_windows_keep_their_priorities_through_any_versions(seed: int, least: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rlds_cli.loader.samplers.places._LEAST", least)  # gaps are closed early, or not at all
        go_through_versions(np.random.default_rng(seed))


def go_through_versions(rng: np.random.Generator) -> None:
    places, tree = Places(), Priorities(0, alpha=1.0, beta=0.5, eps=0.5, room=4)
    episodes: dict[int, int] = {}
    priority: dict[int, float] = {}
    highest, number = 1.0, int(rng.integers(0, 1000))
    for version in range(1, 13):
        leaving = [n for n in episodes if rng.random() < 0.4]
        for n in leaving:
            del episodes[n]
        for _ in range(int(rng.integers(0 if episodes else 1, 5))):
            number += int(rng.integers(1, 3))
            episodes[number] = int(rng.integers(1, 7))
        take_up(places, tree, pool(episodes, version, lambda n: n % 5))
        names = np.array([name(n, k) for n in sorted(episodes) for k in range(episodes[n])])
        priority = {x: priority.get(x, highest) for x in names.tolist()}
        at, there = places.find(names)
        assert (there is None or there.all()) and len(set(at.tolist())) == len(names)
        assert places.names(at).tolist() == names.tolist()
        mass = np.array([priority[x] + 0.5 for x in names.tolist()])
        chance, weight = tree.weigh(at)
        assert chance == pytest.approx(mass / mass.sum())
        assert weight == pytest.approx((mass.min() / mass) ** 0.5)
        drawn = places.names(tree.find(np.concatenate([rng.random(200), [0.0, 1 - 2.0**-53]])))
        assert set(drawn.tolist()) <= set(priority)
        some = names[rng.integers(0, len(names), 5)]
        new = np.round(rng.random(5) * 3, 3)
        tree.update(places.find(some)[0], new)
        for x, p in zip(some.tolist(), new.tolist(), strict=True):
            priority[x] = p
        highest = max(highest, *new.tolist())
        gone = [name(n) for n in leaving]
        if gone:
            _, there = places.find(np.array(gone))
            assert there is not None and not there.any()
        saved, held = places.state(), tree.state()
        places, tree = Places(), Priorities(0, alpha=1.0, beta=0.5, eps=0.5, room=1)
        places.load(saved)
        tree.load(held, count=places.total)
        assert tree.highest == highest
    for wrong in (name(number + 1), name(max(episodes), episodes[max(episodes)]), -1):
        with pytest.raises(InvalidArgument, match="is none of this dataset"):
            places.find(np.array([wrong]))
    with pytest.raises(WrongState, match="do not go back to version 1"):
        places.leave(pool(episodes, 1))


def test_states_of_places_that_cannot_be() -> None:
    places = Places()
    sound = {"version": 1, "last": 4, "episodes": np.array([0, 4]), "windows": np.array([3, -2])}
    places.load(sound)
    assert (places.total, places.there.tolist(), places.version) == (5, [True, False], 1)
    for change in (
        {"episodes": np.array([4, 0])},
        {"episodes": np.array([0])},
        {"windows": np.array([3, 0])},
    ):
        with pytest.raises(WrongState, match="not those that were saved"):
            Places().load(sound | change)
    with pytest.raises(WrongState, match="not those of a live loader"):
        Places().load({"episodes": np.array([0])})


def test_a_tree_that_grows_is_the_tree_of_its_masses() -> None:
    rng = np.random.default_rng(0)
    masses = rng.integers(0, 5, 700).astype(np.float64)
    masses[0] = 1
    whole, grown = SumTree(700, 1.0, 700), SumTree(0, 1.0, 700)
    whole.fill(masses)
    at = 0
    for size in (1, 7, 8, 100, 333, 251):
        grown.extend(np.ones(size))
        grown.set(at, at + size, masses[at : at + size])
        at += size
        assert grown.total == masses[:at].sum() and grown.least == masses[:at][masses[:at] > 0].min()
    u = rng.random(3000)
    expected = np.searchsorted(np.cumsum(masses), u * masses.sum(), "right")
    assert np.array_equal(grown.find(u), expected) and np.array_equal(whole.find(u), expected)
    with pytest.raises(IndexError):
        grown.extend(np.ones(1))
    with pytest.raises(IndexError):
        grown.set(0, 701, 1.0)


def test_rows_that_are_mapped() -> None:
    values = np.zeros((5000, 7), np.float32)[3:]
    values[:] = 1
    for sparing in (False, True):
        rows = MappedRows(values, sparing=sparing, mine=True)
        assert rows.row_bytes == 28
        for start in (0, 4096, values.nbytes - 1):
            rows.will_need(start, 8192)
            assert rows.resident(start) in (True, None)
    assert MappedRows(values, sparing=False, mine=False).resident(0) is None
    assert (values == 1).all()
