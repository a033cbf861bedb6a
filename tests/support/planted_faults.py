"""Robot data in HDF5 files, one for each episode, with faults planted in some episodes.

An arm with seven joints and a gripper follows position commands at 25 Hz: the commands move from a task's start to its
end with a bump on the way, the joints follow one step later. A camera sees a square that moves with the first two
joints. Each task is a motion of its own, and its text says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt

RATE, JOINTS, SIZE = 25.0, 7, (32, 40)
TASKS = ("pick up the cube", "open the drawer", "wipe the table")
Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """Commands and states [T, 8], stamps [T], frames [T, height, width, 3], and the text of the task."""

    action: Values
    state: Values
    stamp: Values
    frames: npt.NDArray[np.uint8]
    task: str


def episode(seed: int, *, steps: int = 60, task: int | None = None) -> Episode:
    """Return an episode without a fault."""
    rng = np.random.default_rng(seed)
    kind = seed % len(TASKS) if task is None else task
    of_task = np.random.default_rng(1_000 + kind)
    start, end, bump = (of_task.uniform(-1, 1, JOINTS) for _ in range(3))
    start, end, bump = (x + rng.normal(0, 0.03, JOINTS) for x in (start, end, bump))
    t = np.linspace(0, 1, steps)[:, None]
    wave = 0.15 * np.sin(2 * np.pi * (t * rng.uniform(1.5, 2.5, JOINTS) + rng.uniform(0, 1, JOINTS)))
    joints = start + (end - start) * t + bump * np.sin(np.pi * t) + wave
    closing = np.clip((np.arange(steps) - steps * rng.uniform(0.4, 0.5)) / 6, 0, 1)
    opening = np.clip((np.arange(steps) - steps * rng.uniform(0.75, 0.85)) / 6, 0, 1)
    action = np.concatenate([joints, (closing - opening)[:, None]], 1)
    state = np.concatenate([action[:1], action[:-1]]) + rng.normal(0, 0.002, action.shape)
    stamp = np.arange(steps) / RATE + rng.normal(0, 0.0005, steps)
    return Episode(action=action, state=state, stamp=stamp, frames=seen(state, rng), task=TASKS[kind])


def seen(state: Values, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Return what a camera sees: a square in front of a background, with noise."""
    height, width = SIZE
    background = np.linspace(60, 180, width)[None, :, None] * np.ones((height, 1, 3))
    frames = background + rng.normal(0, 2, (len(state), height, width, 3))
    for frame, (x, y) in zip(frames, (state[:, :2] + 2.5) / 5 * (width, height), strict=True):
        frame[max(0, int(y) - 4) : int(y) + 4, max(0, int(x) - 4) : int(x) + 4] = (220, 40, 40)
    return np.clip(frames, 0, 255).astype(np.uint8)


# -- faults: each at a strength of 1 (weak) or 2 (strong)


def idle(e: Episode, strength: int, rng: np.random.Generator) -> Episode:
    """The arm rests before it moves; the episode keeps its length."""
    n = len(e.action) * (2 * strength) // 10
    rest = np.repeat(np.arange(0, 1), n)
    index = np.concatenate([rest, np.arange(len(e.action) - n)])
    state = e.state[index] + np.where(index[:, None] == 0, rng.normal(0, 0.0005, e.state.shape), 0)
    return replace(e, action=e.action[index], state=state, frames=seen(state, rng))


def frozen_camera(e: Episode, strength: int, rng: np.random.Generator) -> Episode:
    """The camera gives the same frame again and again while the arm moves."""
    n, first = len(e.action) * (2 * strength) // 10, int(rng.integers(10, 20))
    frames = e.frames.copy()
    frames[first : first + n] = frames[first]
    return replace(e, frames=frames)


def saturated_action(e: Episode, strength: int, rng: np.random.Generator) -> Episode:
    """Commands of the joints are cut off at 55 or 35 per cent of their reach."""
    joints = e.action[:, :JOINTS]
    middle, reach = (joints.max(0) + joints.min(0)) / 2, np.ptp(joints, 0) / 2
    share = (0.75, 0.55, 0.35)[strength]
    action = e.action.copy()
    action[:, :JOINTS] = np.clip(joints, middle - share * reach, middle + share * reach)
    state = np.concatenate([action[:1], action[:-1]]) + rng.normal(0, 0.002, action.shape)
    return replace(e, action=action, state=state, frames=seen(state, rng))


def inverted_action(e: Episode, strength: int, rng: np.random.Generator) -> Episode:
    """The command of the gripper has the other sign; weak: with noise."""
    action = e.action.copy()
    action[:, -1] = -action[:, -1] + (rng.normal(0, 0.1, len(action)) if strength == 1 else 0)
    return replace(e, action=action)


def time_jump(e: Episode, strength: int, rng: np.random.Generator) -> Episode:
    """The clock jumps ahead by 3 or 50 periods."""
    stamp = e.stamp.copy()
    stamp[int(rng.integers(20, 40)) :] += (0, 3, 50)[strength] / RATE
    return replace(e, stamp=stamp)


def action_lag(e: Episode, strength: int, rng: np.random.Generator) -> Episode:
    """Actions stand one or two steps too late."""
    return replace(e, action=np.concatenate([e.action[:1].repeat(strength, 0), e.action[:-strength]]))


def dropped_rows(e: Episode, strength: int, rng: np.random.Generator) -> Episode:
    """Rows are missing in the middle, 4 or 8, and stamps are numbered anew; the rows before come a little earlier."""
    n, first = 4 * strength, int(rng.integers(18, 26))
    keep = np.r_[np.arange(first), np.arange(first + n, len(e.action))]
    frames, stamp = e.frames[keep], e.stamp[: len(keep)]
    return replace(e, action=e.action[keep], state=e.state[keep], frames=frames, stamp=stamp)


def not_finite(e: Episode, strength: int, rng: np.random.Generator) -> Episode:
    """One state, or ten, are NaN."""
    state = e.state.copy()
    state[20 : 20 + (1, 1, 10)[strength], 2] = np.nan
    return replace(e, state=state)


def lone_task(e: Episode, strength: int, rng: np.random.Generator) -> Episode:
    """The text is that of another task; strong: of none that there is."""
    other = TASKS[(TASKS.index(e.task) + 1) % len(TASKS)]
    return replace(e, task=other if strength == 1 else "stack the plates")


FAULTS: Mapping[str, Callable[[Episode, int, np.random.Generator], Episode]] = {
    "idle": idle,
    "frozen-camera": frozen_camera,
    "saturated-action": saturated_action,
    "inverted-action": inverted_action,
    "time-jump": time_jump,
    "action-lag": action_lag,
    "dropped-rows": dropped_rows,
    "not-finite": not_finite,
    "lone-task": lone_task,
}
DUPLICATE = "duplicate"  # the tenth: an episode that another one is a copy of


def planted(
    faults: Mapping[str, int], *, strength: int = 2, episodes: int = 48, seed: int = 0, steps: int = 60
) -> list[Episode]:
    """Return episodes, with one fault each at the numbers that ``faults`` gives by code.

    A dropped row leaves an episode shorter than the others by no more than the strength asks for: all others vary by
    as much.
    """
    rng = np.random.default_rng(seed)
    made = [
        episode(seed + k, steps=steps + (int(rng.integers(0, 5)) if k not in faults.values() else 2))
        for k in range(episodes)
    ]
    for code, k in faults.items():
        made[k] = made[k - len(TASKS)] if code == DUPLICATE else FAULTS[code](made[k], strength, rng)
    return made


def write(directory: Path, made: list[Episode]) -> Path:
    """Write one HDF5 file for each episode, as laboratories lay them out."""
    directory.mkdir(parents=True)
    for k, e in enumerate(made):
        with h5py.File(directory / f"episode_{k:03}.hdf5", "w") as f:
            f.attrs["task"] = e.task
            f["action"] = e.action.astype(np.float32)
            f["observations/qpos"] = e.state.astype(np.float32)
            f["observations/images/top"] = e.frames
            f["timestamp"] = e.stamp
    return directory
