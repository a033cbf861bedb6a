"""Leave out the steps at which nothing moves: ``rlds select ID --trim examples/idle.py:moving --name moving``."""

import numpy as np


def moving(episode):
    """Return True for the steps from the first large action to the last one [T]."""
    size = np.abs(episode["action"]).reshape(len(episode["action"]), -1).max(axis=1)
    large = np.flatnonzero(size > 0.1 * size.max())
    keep = np.zeros(len(size), bool)
    keep[large[0] : large[-1] + 1] = True
    return keep
