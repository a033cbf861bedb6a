import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds_cli.loader.index import PrefixIndex


def slowly(counts, number):
    """Walk through the episodes."""
    for e, count in enumerate(counts):
        if number < count:
            return e, number
        number -= count
    raise AssertionError


@pytest.mark.thorough
@given(st.lists(st.one_of(st.integers(1, 3), st.integers(1, 300)), min_size=1, max_size=40))
def test_every_number_is_found(counts):
    guide = PrefixIndex(np.array(counts))
    assert guide.total == sum(counts)
    episode, place = guide.find(np.arange(guide.total))
    assert list(zip(episode.tolist(), place.tolist(), strict=True)) == [slowly(counts, n) for n in range(guide.total)]


def test_a_giant_among_dwarfs_takes_the_binary_search():
    for counts in (np.r_[np.ones(5000, int), 10**9, np.ones(5000, int)], np.r_[10**12, np.ones(300, int)]):
        guide = PrefixIndex(counts)
        numbers = np.r_[0, 1, 4999, 5000, 10**9, guide.total - 5001, guide.total - 300, guide.total - 1]
        numbers = numbers[(numbers >= 0) & (numbers < guide.total)]
        episode, place = guide.find(numbers)
        assert np.array_equal(episode, np.searchsorted(np.cumsum(counts), numbers, "right"))
        assert np.array_equal(place, numbers - np.r_[0, np.cumsum(counts)][episode])


def test_one_episode_of_one_step():
    episode, place = PrefixIndex(np.array([1])).find(np.array([0, 0]))
    assert episode.tolist() == [0, 0] and place.tolist() == [0, 0]


def test_no_episodes_hold_no_numbers():
    assert PrefixIndex(np.zeros(0, int)).total == 0
