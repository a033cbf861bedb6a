"""Distinct numbers."""

from __future__ import annotations

import numpy as np
import pytest

from rlds_cli.base.repeated import distinct


@pytest.mark.parametrize(
    ("numbers", "found"),
    [
        ([], []),
        ([7], [7]),
        ([3, -1, 3, 2**62, -1], [-1, 3, 2**62]),
        ([[5, 4, 4], [5, 0, 5]], [0, 4, 5]),
    ],
)
def test_distinct_numbers_ascend(numbers, found) -> None:
    given = np.array(numbers, np.int64)
    assert distinct(given).tolist() == found
    assert given.tolist() == numbers  # it is not sorted itself
