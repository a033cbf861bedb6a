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
