"""A second generator of robot data with faults, for reporting alone: no threshold was chosen by it.

It differs from that of the tests in all that thresholds could have been fitted to. Six joints are commanded by
velocities at 15 Hz, follow with a delay of the first order, and move in pieces of minimum jerk with the pauses of a
person between them. Episodes have 60 to 140 steps. Two cameras of other sizes see other scenes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt

RATE, JOINTS = 15.0, 6
CAMERAS = {"front": (48, 64), "wrist": (40, 40)}
TASKS = ("put the bowl on the stove", "close the microwave", "turn on the light", "push the plate")
Numbers = npt.NDArray[np.float64]
Frames = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """Velocity commands and a gripper target [T, 7], joints [T, 6], velocities [T, 6], opening in mm [T, 1], ..."""

    action: Numbers
    joints: Numbers
    velocities: Numbers
    opening: Numbers
    stamp: Numbers
    cameras: Mapping[str, Frames]
    task: str
    success: bool
    reward: Numbers

    def at(self, index: npt.NDArray[np.int64]) -> Episode:
        """Return some of the steps; the stamps are those of as many steps from the first on."""
        of_rows = {n: getattr(self, n)[index] for n in ("action", "joints", "velocities", "opening", "reward")}
        cameras = {n: f[index] for n, f in self.cameras.items()}
        return replace(self, **of_rows, cameras=cameras, stamp=self.stamp[: len(index)])


def episode(rng: np.random.Generator, kind: int) -> Episode:
    """Return an episode of a task without a fault."""
    of_task = np.random.default_rng(77 + kind)
    goals = of_task.uniform(-1.2, 1.2, (4, JOINTS)) + rng.normal(0, 0.05, (4, JOINTS))
    wanted, at = list[Numbers](), goals[0]
    for goal in goals[1:]:
        n = int(rng.integers(18, 40))
        s = np.linspace(0, 1, n)[:, None]
        speed = (goal - at) * 30 * s**2 * (1 - s) ** 2 / n * RATE  # minimum jerk, Flash and Hogan 1985
        pause = np.zeros((int(rng.integers(0, 6)), JOINTS))
        wanted += [speed, pause]
        at = goal
    command = np.concatenate(wanted) + rng.normal(0, 0.01, (sum(map(len, wanted)), JOINTS))
    steps = len(command)
    velocity, joints = np.zeros_like(command), np.zeros_like(command)
    joints[0] = goals[0]
    for t in range(1, steps):
        velocity[t] = velocity[t - 1] + 0.6 * (command[t - 1] - velocity[t - 1])
        joints[t] = joints[t - 1] + velocity[t] / RATE
    closed = np.clip((np.arange(steps) - steps * rng.uniform(0.3, 0.4)) / 5, 0, 1)
    target = 80 * (1 - closed * (np.arange(steps) < steps * 0.8))
    opening = np.concatenate([target[:1], target[:-1]])[:, None] + rng.normal(0, 0.3, (steps, 1))
    stamp = np.cumsum(1 / RATE * rng.normal(1, 0.02, steps))
    noisy = joints + rng.normal(0, 0.001, joints.shape)
    reward = np.zeros(steps)
    reward[-1] = 1
    return Episode(
        action=np.concatenate([command, target[:, None]], 1),
        joints=noisy,
        velocities=velocity + rng.normal(0, 0.005, velocity.shape),
        opening=opening,
        stamp=stamp,
        cameras={name: _seen(name, noisy, rng) for name in CAMERAS},
        task=TASKS[kind],
        success=True,
        reward=reward,
    )


def _seen(name: str, joints: Numbers, rng: np.random.Generator) -> Frames:
    """Return frames of a camera: two blobs that move with the joints over a textured ground."""
    height, width = CAMERAS[name]
    y, x = np.mgrid[:height, :width]
    ground = 90 + 40 * np.sin(x / 3) * np.cos(y / 5) if name == "front" else 140 + 50 * ((x // 5 + y // 5) % 2)
    frames = np.empty((len(joints), height, width, 3))
    for t, q in enumerate(joints):
        a = np.exp(-((x - width * (0.5 + q[0] / 4)) ** 2 + (y - height * (0.5 + q[1] / 4)) ** 2) / 30)
        b = np.exp(-((x - width * (0.5 + q[2] / 4)) ** 2 + (y - height * (0.5 + q[3] / 4)) ** 2) / 60)
        frames[t] = np.stack([ground + 90 * a, ground - 60 * b, ground], 2)
    return np.clip(frames + rng.normal(0, 3, frames.shape), 0, 255).astype(np.uint8)


# -- faults, at strengths 0 (hardly), 1 and 2 (clear)


def _idle(e: Episode, k: int, rng: np.random.Generator) -> Episode:
    """Rest at the start; the episode keeps its length."""
    n = int(len(e.joints) * (0.15, 0.3, 0.5)[k])
    made = e.at(np.r_[np.zeros(n, np.int64), np.arange(len(e.joints) - n)])
    action = made.action.copy()
    action[:n, :JOINTS] = 0
    noise = rng.normal(0, 0.001, (n, JOINTS))
    joints = made.joints.copy()
    joints[:n] = e.joints[0] + noise
    return replace(made, action=action, joints=joints)


def _frozen_camera(e: Episode, k: int, rng: np.random.Generator) -> Episode:
    n, first = (8, 20, 40)[k], 10
    frames = {name: f.copy() for name, f in e.cameras.items()}
    frames["wrist"][first : first + n] = frames["wrist"][first]
    return replace(e, cameras=frames)


def _saturated(e: Episode, k: int, rng: np.random.Generator) -> Episode:
    action = e.action.copy()
    limit = np.abs(action[:, :JOINTS]).max(0) * (0.6, 0.4, 0.2)[k]
    action[:, :JOINTS] = np.clip(action[:, :JOINTS], -limit, limit)
    return replace(e, action=action)


def _inverted(e: Episode, k: int, rng: np.random.Generator) -> Episode:
    action = e.action.copy()
    column = (2, 4, 6)[k]
    action[:, column] = (80 if column == 6 else 0) - action[:, column]
    return replace(e, action=action)


def _time_jump(e: Episode, k: int, rng: np.random.Generator) -> Episode:
    stamp = e.stamp.copy()
    stamp[len(stamp) // 3 :] += (2.5, 10, 300)[k] / RATE
    return replace(e, stamp=stamp)


def _lag(e: Episode, k: int, rng: np.random.Generator) -> Episode:
    n = k + 1
    return replace(e, action=np.concatenate([e.action[:1].repeat(n, 0), e.action[:-n]]))


def _dropped_rows(e: Episode, k: int, rng: np.random.Generator) -> Episode:
    n = (4, 8, 15)[k]
    busiest = int(np.argmax(np.convolve(np.abs(e.velocities).sum(1), np.ones(n), "valid")[5:-5])) + 5
    return e.at(np.r_[np.arange(busiest), np.arange(busiest + n, len(e.joints))])


def _not_finite(e: Episode, k: int, rng: np.random.Generator) -> Episode:
    velocities = e.velocities.copy()
    velocities[30 : 30 + (1, 5, 20)[k], 0] = (np.inf, np.nan, np.nan)[k]
    return replace(e, velocities=velocities)


def _lone_task(e: Episode, k: int, rng: np.random.Generator) -> Episode:
    return replace(e, task=TASKS[(TASKS.index(e.task) + 1 + k) % len(TASKS)])


def _frozen_signal(e: Episode, k: int, rng: np.random.Generator) -> Episode:
    n, joints = (6, 15, 40)[k], e.joints.copy()
    joints[12 : 12 + n] = joints[12]
    return replace(e, joints=joints)


def _dead_joint(e: Episode, k: int, rng: np.random.Generator) -> Episode:
    joints = e.joints.copy()
    joints[:, : k + 1] = joints[0, : k + 1]
    return replace(e, joints=joints)


def _wrap(e: Episode, k: int, rng: np.random.Generator) -> Episode:
    joints = e.joints.copy()
    for i in range(k + 1):
        joints[20 * (i + 1) :, 5] += 2 * np.pi
    return replace(e, joints=joints)


def _black(e: Episode, k: int, rng: np.random.Generator) -> Episode:
    frames = {name: f.copy() for name, f in e.cameras.items()}
    frames["front"][: int(len(e.joints) * (0.15, 0.5, 1)[k])] = 3
    return replace(e, cameras=frames)


def _overexposed(e: Episode, k: int, rng: np.random.Generator) -> Episode:
    frames = {n: np.clip(f * (2.0, 3.0, 6.0)[k] + 60, 0, 255).astype(np.uint8) for n, f in e.cameras.items()}
    return replace(e, cameras=frames)


def _blurred(e: Episode, k: int, rng: np.random.Generator) -> Episode:
    def soft(frames: Frames) -> Frames:
        x = frames.astype(np.float32)
        for _ in range((2, 5, 12)[k]):
            x = (np.roll(x, 1, 1) + np.roll(x, -1, 1) + np.roll(x, 1, 2) + np.roll(x, -1, 2) + 4 * x) / 8
        return x.astype(np.uint8)

    return replace(e, cameras={n: soft(f) for n, f in e.cameras.items()})


def _empty_task(e: Episode, k: int, rng: np.random.Generator) -> Episode:
    return replace(e, task="")


def _mismatch(e: Episode, k: int, rng: np.random.Generator) -> Episode:
    return replace(e, reward=np.zeros_like(e.reward))


FAULTS: Mapping[str, Callable[[Episode, int, np.random.Generator], Episode]] = {
    "idle": _idle,
    "frozen-camera": _frozen_camera,
    "saturated-action": _saturated,
    "inverted-action": _inverted,
    "time-jump": _time_jump,
    "action-lag": _lag,
    "dropped-rows": _dropped_rows,
    "not-finite": _not_finite,
    "lone-task": _lone_task,
    "frozen-signal": _frozen_signal,
    "dead-joint": _dead_joint,
    "encoder-wrap": _wrap,
    "black-camera": _black,
    "overexposed-camera": _overexposed,
    "blurred-camera": _blurred,
    "empty-task": _empty_task,
    "success-mismatch": _mismatch,
}
TWINS = ("duplicate", "near-duplicate")


def planted(seed: int, strength: int, episodes: int) -> tuple[list[Episode], dict[str, int]]:
    """Return episodes, and the number of the one with each fault by code; strength -1 plants none."""
    rng = np.random.default_rng([seed, strength + 1])
    made = [episode(rng, k % len(TASKS)) for k in range(episodes)]
    if strength < 0:
        return made, {}
    places = dict(zip((*FAULTS, *TWINS), rng.permutation(np.arange(len(TASKS), episodes)).tolist(), strict=False))
    taken = set(places.values())
    for code, k in places.items():
        if code in FAULTS:
            made[k] = FAULTS[code](made[k], strength, rng)
    free = [k for k in range(episodes) if k not in taken]
    for code, of in zip(TWINS, free, strict=False):
        twin, noise = made[of], (0.0 if code == "duplicate" else (0.002, 0.001, 0.0002)[strength])
        made[places[code]] = replace(twin, joints=twin.joints + noise * rng.normal(0, 1, twin.joints.shape))
    return made, places


# -- files of families


def write_files(directory: Path, made: list[Episode]) -> Path:
    """Write a file for each episode, as laboratories have them."""
    directory.mkdir(parents=True)
    for k, e in enumerate(made):
        with h5py.File(directory / f"run_{k:04}.h5", "w") as f:
            if e.task:
                f.attrs["task"] = e.task
            f.attrs["success"] = e.success
            f["action"] = e.action
            for name in ("joints", "velocities", "opening"):
                f[f"observations/{name}"] = getattr(e, name)
            for name, frames in e.cameras.items():
                f[f"observations/images/{name}"] = frames
            f["reward"], f["timestamp"] = e.reward, e.stamp
    return directory


def write_robomimic(file: Path, made: list[Episode]) -> Path:
    """Write one file with a group for each demonstration, as robomimic has them: without tasks, stamps and success."""
    with h5py.File(file, "w") as f:
        data = f.create_group("data")
        data.attrs["env_args"] = '{"env_name": "Arm", "type": 1, "env_kwargs": {}}'
        for k, e in enumerate(made):
            g = data.create_group(f"demo_{k}")
            g.attrs["num_samples"] = len(e.action)
            g["actions"], g["rewards"], g["dones"] = e.action, e.reward, e.reward > 0
            for name in ("joints", "velocities", "opening"):
                g[f"obs/{name}"] = getattr(e, name)
            for name, frames in e.cameras.items():
                g[f"obs/{name}_image"] = frames
    return file


def write_d4rl(file: Path, made: list[Episode]) -> Path:
    """Write one flat file, as D4RL has them: vectors alone."""
    with h5py.File(file, "w") as f:
        rows = [np.concatenate([e.joints, e.velocities, e.opening], 1) for e in made]
        f["observations"] = np.concatenate(rows).astype(np.float32)
        f["actions"] = np.concatenate([e.action for e in made]).astype(np.float32)
        f["rewards"] = np.concatenate([e.reward for e in made]).astype(np.float32)
        ends = np.cumsum([len(e.action) for e in made]) - 1
        for name, flagged in (("terminals", ends[:0]), ("timeouts", ends)):
            flags = np.zeros(int(ends[-1]) + 1, bool)
            flags[flagged] = True
            f[name] = flags
    return file
