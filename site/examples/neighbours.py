"""Fields made of a step and its neighbours in the episode.

rlds preprocess sample/pendulum-d4rl --fn examples/neighbours.py:smooth_action
"""

from rlds_cli import preprocess


@preprocess.unit("window", history=2, future=2)
def smooth_action(window):
    """``action`` is [B, 5, ...]: two steps before, the step, two after; ``mask`` [B, 5] says which exist."""
    inside = window["mask"][..., None]
    mean = (window["action"] * inside).sum(1) / inside.sum(1)
    return {"action_smooth": mean.astype("float32")}
