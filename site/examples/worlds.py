"""Two small worlds drawn with NumPy, and the data of their scripted experts: what examples need that no sample has.

    python examples/worlds.py                    makes local/detour and local/maze in RLDS_HOME, in seconds

Importing this module registers the worlds with Gymnasium, so that ``ds.make_env()`` makes them.
"""

from contextlib import suppress

import gymnasium
import numpy as np

import rlds_cli
from rlds_cli.errors import NameTaken


class Detour(gymnasium.Env):
    """A hand below moves to a target above, around a block that ends the episode when it is touched.

    Block and target are seen in the image alone, the hand as a vector, too. All lengths are halves of the image.
    """

    SIZE, SPEED, BLOCK = 48, 0.05, np.array([0.4, 0.1])  # pixels; the way of an action of 1; half the sides
    HAND, TARGET = 0.07, 0.15  # radii

    def __init__(self):
        pixels = (np.arange(self.SIZE) + 0.5) * 2 / self.SIZE - 1
        self.x, self.y = np.meshgrid(pixels, -pixels)
        self.observation_space = gymnasium.spaces.Dict(
            {
                "image": gymnasium.spaces.Box(0, 255, (self.SIZE, self.SIZE, 3), np.uint8),
                "hand": gymnasium.spaces.Box(-1, 1, (2,), np.float32),
            }
        )
        self.action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.hand = np.array([self.np_random.uniform(-0.3, 0.3), -0.85])
        self.block = self.np_random.uniform([-0.3, -0.25], [0.3, 0.15])
        self.target = np.array([self.np_random.uniform(-0.6, 0.6), 0.8])
        return self._observe(), {"success": False}

    def step(self, action):
        self.hand = np.clip(self.hand + self.SPEED * np.clip(action, -1, 1), -1, 1)
        apart = np.maximum(np.abs(self.hand - self.block) - self.BLOCK, 0)
        touched = bool(np.hypot(*apart) < self.HAND)
        reached = bool(np.hypot(*(self.hand - self.target)) < self.TARGET)
        return self._observe(), float(reached), touched or reached, False, {"success": reached}

    def _observe(self):
        """White ground, red block, green target, blue hand; edges are a pixel soft, so that places are seen exactly."""

        def disc(at, radius):
            return np.hypot(self.x - at[0], self.y - at[1]) - radius

        x, y = np.abs(self.x - self.block[0]) - self.BLOCK[0], np.abs(self.y - self.block[1]) - self.BLOCK[1]
        outside = np.maximum(x, y), disc(self.target, self.TARGET), disc(self.hand, self.HAND)
        image = np.ones((self.SIZE, self.SIZE, 3))
        for distance, colour in zip(outside, ((0.8, 0.2, 0.2), (0.2, 0.7, 0.3), (0.1, 0.3, 0.9)), strict=True):
            image += np.clip(0.5 - distance * self.SIZE / 2, 0, 1)[..., None] * (np.array(colour) - image)
        return {"image": (255 * image).round().astype(np.uint8), "hand": self.hand.astype(np.float32)}


def detour_episodes(count=300, seed=0):
    """Demonstrations: up to the block, a pause, then left or right by the toss of a coin and past two corners."""
    world, rng = Detour(), np.random.default_rng(seed)
    for k in range(count):
        observation, _ = world.reset(seed=seed + k)
        y, side = world.block[1], world.block[0] + rng.choice([-1, 1]) * 0.6
        path = [np.array(p) for p in ((world.hand[0], y - 0.3), (side, y - 0.3), (side, y + 0.15), world.target)]
        observations, actions, rewards, over, pause = [observation], [], [], False, rng.integers(5, 20)
        while not over:
            if len(path) > 1 and np.hypot(*(path[0] - world.hand)) < 0.08:
                path.pop(0)
            waits, pause = len(path) == 3 and pause > 0, pause - (len(path) == 3)
            way = (path[0] - world.hand) / world.SPEED
            action = (not waits) * way / max(1, np.hypot(*way)) + rng.normal(0, 0.05, 2)
            observation, reward, over, _, _ = world.step(action)
            observations.append(observation)
            actions.append(action.clip(-1, 1).astype(np.float32))
            rewards.append(reward)
        seen = {name: np.stack([o[name] for o in observations]) for name in observation}
        yield {"observation": seen, "action": np.stack(actions), "next": {"reward": rewards, "terminated": True}}


class Maze(gymnasium.Env):
    """A U after OGBench's pointmaze (Park et al. 2024, arXiv:2410.20092), five times as fast, its walls without bounce.

    As OGBench's, ``reset(options={"task_id": k})`` begins task k of five, and ``info`` holds the goal
    and whether it is reached.
    """

    WALLS = np.array([[c == "#" for c in row] for row in ("#####", "#...#", "###.#", "#...#", "#####")])
    TASKS = (((1, 1), (3, 1)), ((3, 1), (1, 1)), ((1, 2), (3, 1)), ((3, 2), (1, 1)), ((1, 2), (3, 2)))
    UNIT, RADIUS, SPEED, REACHED = 4.0, 0.7, 1.0, 1.0  # side of a cell; of the point; way of an action of 1; of a goal

    def __init__(self):
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def place(self, cell):
        """The middle (x, y) of a cell (row, column); that of cell (1, 1) is the origin."""
        return self.UNIT * (np.array(cell[::-1]) - 1.0)

    def cell(self, at):
        """The cell (row, column) around a place (x, y)."""
        return int(at[1] / self.UNIT + 1.5), int(at[0] / self.UNIT + 1.5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        start, goal = self.TASKS[(options or {}).get("task_id", 1 + self.np_random.integers(5)) - 1]
        self.at = self.place(start) + self.np_random.uniform(-1, 1, 2)
        self.goal = self.place(goal) + self.np_random.uniform(-1, 1, 2)
        return self.at.astype(np.float32), {"goal": self.goal.astype(np.float32), "success": False}

    def step(self, action):
        for axis in range(2):
            before = self.at[axis]
            self.at[axis] += self.SPEED * min(max(float(action[axis]), -1.0), 1.0)
            if self._blocked():
                self.at[axis] = before
        success = bool(np.hypot(*(self.at - self.goal)) <= self.REACHED)
        return self.at.astype(np.float32), float(success), success, False, {"success": success}

    def _blocked(self):
        """Whether the square around the point overlaps a wall."""
        return any(
            self.WALLS[self.cell((self.at[0] + x, self.at[1] + y))]
            for x in (-self.RADIUS, self.RADIUS)
            for y in (-self.RADIUS, self.RADIUS)
        )


def distances(walls, goal):
    """How many cells lie between each free cell and the goal, by breadth-first search."""
    found, edge = {goal: 0}, [goal]
    for i, j in edge:
        for cell in ((i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1)):
            if not walls[cell] and cell not in found:
                found[cell] = found[i, j] + 1
                edge.append(cell)
    return found


def maze_episodes(count=1_000, longest=3, seed=0):
    """Walks between cells at most ``longest`` apart, with much noise; no walk solves a task, together they do."""
    world, rng = Maze(), np.random.default_rng(seed)
    world.reset(seed=seed)
    free = [(int(i), int(j)) for i, j in np.argwhere(~world.WALLS)]
    tables = {goal: distances(world.WALLS, goal) for goal in free}
    for _ in range(count):
        goal = free[rng.integers(len(free))]
        left = tables[goal]
        near = [cell for cell in free if 0 < left[cell] <= longest]
        cell = near[rng.integers(len(near))]
        world.at, world.goal = world.place(cell) + rng.uniform(-1, 1, 2), world.place(goal) + rng.uniform(-1, 1, 2)
        observations, actions, over = [world.at.astype(np.float32)], [], False
        while not over and len(actions) < 200:
            i, j = world.cell(world.at)
            following = min(((i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1)), key=lambda c: left.get(c, np.inf))
            way = (world.place(following) if left[i, j] else world.goal) - world.at
            action = (way / np.hypot(*way) + rng.normal(0, 0.5, 2)).clip(-1, 1).astype(np.float32)
            observation, _, over, _, _ = world.step(action)
            observations.append(observation)
            actions.append(action)
        yield {"observation": np.stack(observations), "action": np.stack(actions), "next": {"truncated": True}}


gymnasium.register("rlds/Detour-v0", Detour, max_episode_steps=150)
gymnasium.register("rlds/Maze-v0", Maze, max_episode_steps=100)
EPISODES = {
    "local/detour": ("rlds/Detour-v0", detour_episodes),
    "local/maze": ("rlds/Maze-v0", maze_episodes),
}


def dataset(ref):
    """The dataset of this id: made where it is of one of these worlds and not here yet, else downloaded."""
    if ref in EPISODES:
        env_id, episodes = EPISODES[ref]
        with suppress(NameTaken):  # it is here
            return rlds_cli.create(ref, episodes(), env_id=env_id)
    return rlds_cli.download(ref)


if __name__ == "__main__":
    for ref in EPISODES:
        print(dataset(ref))
