"""Observations with mean 0 and standard deviation 1; the originals stay beside them.

rlds preprocess sample/pendulum-d4rl --fn examples/normalise.py:normalise
rlds preprocess d4rl/hopper-medium-v2 --fn examples/normalise.py:normalise --arg dataset=d4rl/hopper-medium-v2
"""

from functools import cache

import numpy as np

import rlds_cli


def normalise(episode, dataset="sample/pendulum-d4rl"):
    """Sees one episode: T+1 observations, so observation and next observation cannot drift apart."""
    mean, std = moments(dataset)
    raw = episode["observation"]
    scaled = ((raw - mean) / (std + 1e-3)).astype(np.float32)
    return {**episode, "observation": scaled, "observation_raw": raw}


@cache
def moments(dataset):
    """Mean and standard deviation over the steps; computed at conversion, so this reads one small file."""
    stats = rlds_cli.open_dataset(dataset).stats["observation"]
    return np.asarray(stats.mean), np.asarray(stats.std)
