from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds_cli.errors import InvalidArgument
from rlds_cli.loader import Sequential, Shuffled, Uniform
from rlds_cli.loader.index import PrefixIndex, WindowIndex
from rlds_cli.loader.order import Order

SAMPLERS = (Uniform(), Uniform(by="episode"), Shuffled(), Shuffled(block=4, live=2), Sequential())
COUNTS = st.lists(st.integers(1, 20), min_size=1, max_size=8)


def pairs(sampler, counts, positions, seed=0, epoch=0):
    pool = WindowIndex(None, None, PrefixIndex(np.array(counts)), lambda number: number)
    drawn = sampler.over(pool)(Order(seed, epoch), positions)
    return list(zip(drawn.episode.tolist(), drawn.number.tolist(), strict=True))


@pytest.mark.thorough
@given(COUNTS, st.integers(0, 100))
def test_every_draw_is_a_window_that_exists(counts, seed):
    for sampler in SAMPLERS:
        for e, w in pairs(sampler, counts, range(sum(counts)), seed):
            assert 0 <= e < len(counts) and 0 <= w < counts[e]


@pytest.mark.thorough
@given(COUNTS, st.integers(0, 100), st.data())
def test_a_sample_does_not_depend_on_who_asks(counts, seed, data):
    total = sum(counts)
    for sampler in SAMPLERS:
        whole = pairs(sampler, counts, range(total), seed)
        start = data.draw(st.integers(0, total - 1))
        step = data.draw(st.integers(1, 4))
        assert pairs(sampler, counts, range(start, total, step), seed) == whole[start::step]
        some = np.array(data.draw(st.lists(st.integers(0, total - 1), max_size=9)), np.int64)
        assert pairs(sampler, counts, some, seed) == [whole[p] for p in some]


@pytest.mark.thorough
@given(COUNTS, st.integers(0, 100), st.integers(0, 5))
def test_epochs_hold_every_window_once(counts, seed, epoch):
    everything = [(e, w) for e, count in enumerate(counts) for w in range(count)]
    assert sorted(pairs(Shuffled(), counts, range(len(everything)), seed, epoch)) == everything
    in_blocks = pairs(Shuffled(block=3, live=2), counts, range(len(everything)), seed, epoch)
    assert sorted(in_blocks) == everything
    assert pairs(Sequential(), counts, range(len(everything)), seed, epoch) == everything


def test_epochs_are_shuffled_anew():
    counts = [50, 50]
    orders = {tuple(pairs(Shuffled(), counts, range(100), seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}
    assert len(orders) == 4


@pytest.mark.thorough
def test_uniform_by_window_weighs_windows_and_by_episode_weighs_episodes():
    counts, n = [1, 9, 30], 40_000
    by_window = Counter(pairs(Uniform(), counts, range(n)))
    by_episode = Counter(pairs(Uniform(by="episode"), counts, range(n)))
    assert len(by_window) == len(by_episode) == 40
    for (e, w), seen in by_window.items():
        assert abs(seen - n / 40) < 6 * np.sqrt(n / 40), (e, w)
    for (e, w), seen in by_episode.items():
        expected = n / 3 / counts[e]
        assert abs(seen - expected) < 6 * np.sqrt(expected), (e, w)


def test_the_episode_of_a_draw_says_nothing_about_its_window():
    drawn = np.array(pairs(Uniform(by="episode"), [100] * 50, range(20_000)))
    assert abs(np.corrcoef(drawn[:, 0], drawn[:, 1])[0, 1]) < 0.03


def test_only_uniform_is_endless():
    assert [s.endless for s in SAMPLERS] == [True, True, False, False, False]
    assert Shuffled(drop_last=True).drop_last and not Shuffled().drop_last


def test_another_kind_of_uniform_is_refused():
    with pytest.raises(InvalidArgument, match='"window" or "episode"'):
        Uniform(by="step")


@given(st.integers(1, 200), st.integers(1, 9), st.integers(1, 4), st.integers(0, 50))
def test_blocks_come_whole_and_mixed_with_so_many_others(n, block, live, seed):
    order = [w for _, w in pairs(Shuffled(block=block, live=live), [n], range(n), seed)]
    size = {b: min(block, n - b * block) for b in range(-(-n // block))}
    at = 0
    while at < n:  # group by group: all windows of its blocks, and of no other
        blocks = {order[at] // block}
        while sum(size[b] for b in blocks) > len(group := order[at : at + sum(size[b] for b in blocks)]) or len(
            blocks
        ) < len({w // block for w in group}):
            blocks |= {w // block for w in group}
        assert len(blocks) <= live
        assert sorted(group) == sorted(w for b in blocks for w in range(b * block, b * block + size[b]))
        at += len(group)


def test_blocks_are_in_random_order_and_their_windows_mixed():
    order = [w for _, w in pairs(Shuffled(block=10, live=3), [1000], range(1000))]
    assert [w // 10 for w in order] != sorted(w // 10 for w in order)
    assert len({w // 10 for w in order[:30]}) == 3 and len({w // 10 for w in order[:8]}) > 1
