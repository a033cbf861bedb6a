"""Functions that the preprocess tests run, in a module that worker processes find too."""

import random

import numpy as np

from rlds_cli.preprocess import unit

MEAN = np.array([0.25, -1.0, 2.0], np.float32)
STD = np.array([2.0, 0.5, 4.0], np.float32)


def normalise(episode):
    raw = episode["observation"]
    return {**episode, "observation": (raw - MEAN) / STD, "observation_raw": raw}


def normalise_in_place(episode):
    episode["observation_raw"] = episode["observation"].copy()
    episode["observation"] -= MEAN
    episode["observation"] /= STD
    return episode


@unit("batch")
def normalise_batch(batch):
    for observation, raw in ((batch, "observation_raw"), (batch["next"], "observation_raw")):
        observation[raw] = observation["observation"].copy()
        observation["observation"] -= MEAN
        observation["observation"] /= STD
    return batch


@unit("step")
def normalise_step(step):
    for at in (step, step["next"]):
        at["observation_raw"] = at["observation"].copy()
        at["observation"] = (at["observation"] - MEAN) / STD
    return step


def obs_norm(td):
    """In TorchRL's manner: TensorDict in, TensorDict out."""
    return td.set("obs_norm", td["observation"].norm(dim=-1))


def obs_norm_torch(episode):
    episode["obs_norm"] = episode["observation"].norm(dim=-1)
    return episode


def good(episode, at_least=0.0):
    return episode if episode["next"]["reward"].sum() >= at_least else None


def halves(episode):
    """Every episode as two: the observation in the middle ends the first and starts the second."""
    n = len(episode["action"])
    return [cut(episode, 0, n // 2), cut(episode, n // 2, n)]


def cut(episode, a, b):
    def rows(name, value):
        if isinstance(value, dict):
            return {k: rows(f"{name}/{k}", v) for k, v in value.items()}
        both = len(value) == len(episode["action"]) + 1
        return value[a : b + 1] if both else value[a:b]

    return {k: rows(k, v) for k, v in episode.items()}


def first_half(episode):
    return cut(episode, 0, len(episode["action"]) // 2)


def noisy(episode):
    episode["action"] += np.random.standard_normal(episode["action"].shape).astype(np.float32)
    episode["action"][0] = random.random()
    return episode


def same(episode):
    return episode


def late_change(episode, at=0):
    """Changes one episode alone, and not one of those that are looked at first."""
    if int(episode["info"]["number"][0]) == at:
        episode["action"] += 1
    return episode


def late_drop(episode, at=0):
    return None if int(episode["info"]["number"][0]) == at else episode


def forgets_next(batch):
    batch["observation"] += 1
    return batch


def one_short(episode):
    if int(episode["info"]["number"][0]) == 4:
        episode["next"]["reward"] = episode["next"]["reward"][1:]
    return episode


def fails(episode):
    if int(episode["info"]["number"][0]) == 4:
        raise KeyError("no such sensor")
    return episode


def fails_at_step(step):
    if step["info"]["number"] == 4 and step["action"][0] == 7:
        raise ValueError("seven")
    return step


def slow(episode):
    """Takes its time, so that a kill hits it."""
    import time

    time.sleep(0.002)
    episode["observation"] *= 2
    return episode


def scale(data):
    data["observation"] *= 2
    if "observation" in data["next"]:
        data["next"]["observation"] *= 2
    return data


@unit("batch")
def late_in_a_batch(batch, at=0):
    """Changes the actions of one episode alone."""
    batch["action"][batch["info"]["number"] == at] += 1
    return batch


@unit("batch")
def late_pair(batch, at=0):
    """A new field whose next values follow it, but for one step of one episode."""
    batch["place"] = batch["observation"][:, 0].copy()
    batch["next"]["place"] = batch["next"]["observation"][:, 0].copy()
    batch["next"]["place"][np.flatnonzero(batch["info"]["number"] == at)[3:4]] = 0
    return batch


BUFFER = np.zeros((200, 3), np.float32)


def fills_a_buffer(episode):
    out = BUFFER[: len(episode["observation"])]
    np.multiply(episode["observation"], 2, out=out)
    return {**episode, "observation": out}


def dies(episode, at=0, once=None):
    """Ends its process at one episode; with the name of a file, only the first time."""
    import os
    from pathlib import Path

    if int(episode["info"]["number"][0]) == at and not (once and Path(once).exists()):
        if once:
            Path(once).touch()
        os._exit(9)
    episode["action"] += 1
    return episode


@unit("window", history=2, future=1)
def smooth(window):
    """The mean of the actions from two steps before to one after."""
    inside = window["mask"][..., None]
    return {"smooth": (window["action"] * inside).sum(1) / inside.sum(1)}


@unit("window", history=2)
def stacked(window):
    return {"observation": window["observation"], "next": {"observation": window["next"]["observation"]}}


@unit("window", future=2)
def n_step(window, gamma=1.0):
    """Rewards of three steps, and the observation behind the last of them."""
    mask, reward, after = (
        np.asarray(x) for x in (window["mask"], window["next", "reward"], window["next", "observation"])
    )
    weight = mask * gamma ** np.arange(3)
    last = mask.sum(1) - 1
    return {"next": {"reward": (reward[..., 0] * weight).sum(1), "observation": after[np.arange(len(last)), last]}}


def window_fails(window):
    raise ValueError("no")


@unit("batch")
def standardise(batch, state, eps=0.0):
    for at in (batch, batch["next"]):
        at["observation"] = (at["observation"] - state["mean"]) / (state["std"] + eps)
    return batch


def _fit(batch, state):
    x = batch["observation"].astype(np.float64)
    new = {"count": len(x), "mean": x.mean(0), "std": x.std(0), "seen": [int(batch["info"]["number"][0])]}
    return new if state is None else _merge(state, new)


def _merge(a, b):
    """Mean and standard deviation of two parts, by Chan et al. (1979); numbers of first episodes in their order."""
    n = a["count"] + b["count"]
    delta = b["mean"] - a["mean"]
    mean = a["mean"] + delta * b["count"] / n
    squares = a["std"] ** 2 * a["count"] + b["std"] ** 2 * b["count"] + delta**2 * a["count"] * b["count"] / n
    return {"count": n, "mean": mean, "std": np.sqrt(squares / n), "seen": a["seen"] + b["seen"]}


standardise.fit, standardise.merge = _fit, _merge


class ScaleReturns:
    """Rewards divided by the spread of the returns: D4RL's way for locomotion. An object that is a function."""

    def fit(self, episode, state):
        total = float(episode["next"]["reward"].sum())
        low, high = state or (total, total)
        return [min(low, total), max(high, total)]

    def merge(self, a, b):
        return [min(a[0], b[0]), max(a[1], b[1])]

    def __call__(self, episode, state, factor=1000.0):
        episode["next"]["reward"] *= factor / (state[1] - state[0])
        return episode


scale_returns = ScaleReturns()


@unit("step")
def centre(step, *, state, field="action"):
    step[field] = step[field] - state
    return step


def _fit_centre(batch, state, field="action"):
    """Of unit step, many steps together."""
    new = np.array([len(batch[field]), *batch[field].sum(0, dtype=np.float64)])
    return new if state is None else state + new


centre.fit = _fit_centre
centre.merge = lambda a, b: a + b


def doubles_but_some(data, bad=()):
    """Doubles actions, in every unit; fails on some episodes, at step 3 or the last one before."""
    number, action = np.asarray(data["info"]["number"]), np.asarray(data["action"])
    if "mask" in data:
        number, action = number[:, 0], action[:, 0]
    wanted = {0: 0}
    for k in bad:
        if ((number == k) & (action[..., 0] == wanted.get(k, 3))).any():
            raise KeyError("no such sensor")
    if "mask" in data:
        return {"action": action * 2}
    data["action"] *= 2
    return data


def long_ones(episode, at_least=5):
    return episode if len(episode["action"]) >= at_least else None


@unit("step")
def twice(step, factor=2):
    step["action"] = step["action"] * factor
    return step


def waits(episode):
    """Takes as long as the environment says."""
    import os
    import time

    time.sleep(float(os.environ.get("WAIT", "0")))
    episode["observation"] = episode["observation"] + 1
    return episode


def slow_fit(episode, state):
    """Rewards less their mean, which takes its time."""
    episode["next"]["reward"] -= state[1] / state[0]
    return episode


def _slow_fit(episode, state):
    import time

    time.sleep(0.002)
    reward = episode["next"]["reward"]
    return np.array([len(reward), reward.sum()]) + (0 if state is None else state)


slow_fit.fit = _slow_fit
slow_fit.merge = lambda a, b: a + b
