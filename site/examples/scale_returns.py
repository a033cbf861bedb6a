"""Rewards divided by the spread of the returns, as Decision Transformer and IQL do: a function with a first pass.

rlds preprocess sample/pendulum-d4rl --fn examples/scale_returns.py:scale_returns
rlds preprocess sample/pendulum-d4rl --fn examples/scale_returns.py:scale_returns --arg to=100
"""


def scale_returns(episode, state, to=1000.0):
    """Second pass: ``state`` is what the first one found out about all episodes."""
    least, greatest = state
    episode["next"]["reward"] *= to / (greatest - least)
    return episode


def fit(episode, state):
    """First pass: called for every episode of a chunk; ``state`` is None at its beginning."""
    total = float(episode["next"]["reward"].sum())
    least, greatest = state or (total, total)
    return min(least, total), max(greatest, total)


def merge(a, b):
    """Two chunks' states become one; ``a`` comes before ``b``."""
    return min(a[0], b[0]), max(a[1], b[1])


scale_returns.fit, scale_returns.merge = fit, merge
