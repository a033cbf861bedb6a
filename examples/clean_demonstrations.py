"""Behaviour cloning of demonstrations with faults, before and after `rlds select --drop-findings`.

    python examples/clean_demonstrations.py [--seeds N] [--steps N]        --help for more

An arm of three joints reaches for one goal after the other. Of its 80 demonstrations 8 have actions of the other sign,
4 have actions that are four steps late, and 4 rest at first. Measures name them, and a selection leaves them out. For
each seed a policy is cloned from the demonstrations without faults, from those with faults, and from the selection. The
figures are distances to the goal. The command fails if less than 90 % of what the faults cost are recovered.
"""

import argparse
import sys

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import rlds_cli
from rlds_cli.loader import Loader, Normalize, Shuffled, Transition
from rlds_cli.measures import Measures

JOINTS, STEPS, RATE = 3, 90, 20  # steps of an episode, and of a second
EACH = 30  # steps until the next goal
SETS = ("clean", "planted", "filtered")
LEAST = 90  # percent of the gap


def start(rng):
    """A posture [3], and the goals of all steps [90, 3], in radians."""
    return rng.uniform(-1, 1, JOINTS), rng.uniform(-1, 1, (STEPS // EACH, JOINTS)).repeat(EACH, 0)


def move(joints, speed, command):
    """The next posture and speed: joints follow the commanded speed with a delay of the first order."""
    speed = speed + 0.6 * (np.clip(command, -1.5, 1.5) - speed)
    return joints + speed / RATE, speed


def demonstration(rng, fault=None):
    """An episode of a controller that heads for the goal, with the fault that its recorder had."""
    (joints, goals), speed = start(rng), np.zeros(JOINTS)
    rest = STEPS // 2 if fault == "idle" else 0
    seen, commands = [], []
    for t in range(STEPS):
        command = (3 * (goals[t] - joints) + rng.normal(0, 0.1, JOINTS)) * (t >= rest)
        seen.append(joints + rng.normal(0, 0.001, JOINTS))
        commands.append(np.clip(command, -1.5, 1.5))
        joints, speed = move(joints, speed, command)
    action = np.stack(commands)
    if fault == "inverted":
        action = -action
    if fault == "late":
        action = np.concatenate([action[:1].repeat(4, 0), action[:-4]])
    observation = {"joints": np.stack(seen), "goal": goals}
    observation = {name: x.astype(np.float32) for name, x in observation.items()}
    return {"observation": observation, "action": action.astype(np.float32)}


def datasets(seed):
    """The demonstrations without faults, with faults, and those of the latter that no finding names."""
    faults = ["inverted"] * 8 + ["late"] * 4 + ["idle"] * 4 + [None] * 64
    order = np.random.default_rng(seed).permutation(len(faults))
    made = {}
    for name in SETS[:2]:
        rng = np.random.default_rng([seed, 1])
        episodes = [demonstration(rng, faults[k] if name == "planted" else None) for k in order]
        made[name] = rlds_cli.create(f"local/reach-{name}-{seed}", episodes, fps=RATE, force=True)
    m = Measures(made["planted"])
    m.compute(["motion", "action"], jobs=0, progress=False)
    codes = sorted({f.code for f in m.findings(["motion", "action"])})
    made["filtered"] = m.dropping(codes).save("filtered", force=True)
    left_out = len(order) - made["filtered"].num_episodes
    print(f"seed {seed}: {', '.join(codes)}: {left_out} of {len(order)} demonstrations are left out", flush=True)
    return made


def clone(ds, steps, seed):
    """A policy that acts as the demonstrations do: joints [3], goal [3] -> command [3]."""
    torch.manual_seed(seed)
    norm = Normalize(ds)
    policy = nn.Sequential(nn.Linear(2 * JOINTS, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, JOINTS))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)

    def inputs(observation):
        return torch.cat([norm.apply(f"observation/{n}", observation[n].float()) for n in ("joints", "goal")], -1)

    loader = Loader(ds, 256, sampler=Shuffled(), window=Transition(anchors="steps"), seed=seed, steps=steps)
    for batch in loader:
        loss = F.mse_loss(policy(inputs(batch["observation"])), batch["action"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    @torch.no_grad()
    def act(joints, goal):
        seen = {"joints": torch.as_tensor(joints), "goal": torch.as_tensor(goal)}
        return policy(inputs(seen)).numpy()

    return act


def evaluate(act, seed, episodes=200):
    """The mean distance to the goal over all steps of some episodes, in radians, of the worst joint."""
    rng = np.random.default_rng(1_000 + seed)
    joints, goals = map(np.stack, zip(*(start(rng) for _ in range(episodes)), strict=True))
    speed, distances = np.zeros_like(joints), []
    for t in range(STEPS):
        joints, speed = move(joints, speed, act(joints, goals[:, t]))
        distances.append(np.abs(goals[:, t] - joints).max(axis=1))
    return float(np.mean(distances))


def main(seeds=5, steps=1_500):
    """Print the table; returns the share of the gap that is recovered, in percent, over all seeds."""
    torch.set_num_threads(1)  # in a network this small, threads only wait for each other
    rows = []
    for seed in range(seeds):
        made = datasets(seed)
        rows.append([evaluate(clone(made[name], steps, seed), seed) for name in SETS])
    clean, planted, filtered = np.mean(rows, axis=0)
    recovered = 100 * (planted - filtered) / (planted - clean)
    print("\n| seed | without faults | with faults | after the filter | of the gap |\n|--:|--:|--:|--:|--:|")
    for name, (a, b, c) in [*enumerate(rows), ("mean", (clean, planted, filtered))]:
        print(f"| {name} | {a:.3f} | {b:.3f} | {c:.3f} | {100 * (b - c) / (b - a):.0f} % |")
    return recovered


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="sets of demonstrations, and policies of each")
    parser.add_argument("--steps", type=int, default=1_500, help="batches to train on")
    sys.exit(int(main(**vars(parser.parse_args())) < LEAST))
