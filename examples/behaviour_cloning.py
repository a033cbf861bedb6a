"""Behaviour cloning: a small network learns to act as the data does, in a few seconds on a CPU.

    python examples/behaviour_cloning.py [ID] [--steps N]

Takes any dataset with vector observations (nested ones are concatenated) and continuous or discrete actions.
"""

import argparse
from math import prod

import torch
from torch import nn
from torch.nn import functional as F

import rlds_cli
from rlds_cli.loader import Loader, Shuffled


def width(ds, name):
    """Numbers per row in a field and everything nested below it."""
    return sum(prod(f.shape) for key, f in ds.schema.items() if key.split("/")[0] == name)


def flat(x):
    """Join nested fields into one float vector per sample."""
    return torch.cat([flat(v) for v in x.values()], -1) if isinstance(x, dict) else x.float().reshape(len(x), -1)


def clone(ref, *, steps=1_000):
    """Train a policy on a dataset; returns the policy and the losses that were printed."""
    ds = rlds_cli.download(ref)  # at once when it is here already
    discrete = ds.schema["action"].dtype.startswith(("int", "uint"))
    first = int(ds.stats["action"].min) if discrete else 0
    inputs = width(ds, "observation")
    outputs = int(ds.stats["action"].max) - first + 1 if discrete else width(ds, "action")
    print(f"{ds.id}: {ds.num_steps:,} steps; {inputs} inputs, {outputs} {'choices' if discrete else 'outputs'}")

    torch.manual_seed(0)
    torch.set_num_threads(1)  # in a network this small, threads only wait for each other
    policy = nn.Sequential(nn.BatchNorm1d(inputs), nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, outputs))
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    # An action needs no next observation, so every step counts, not only the transitions.
    loader = Loader(ds, batch_size=256, sampler=Shuffled(), anchors="steps", steps=steps, seed=0)
    losses, total = [], 0.0
    for batch in loader:
        y, action = policy(flat(batch["observation"])), flat(batch["action"])
        loss = F.cross_entropy(y, action[:, 0].long() - first) if discrete else F.mse_loss(y, action)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        if loader.step % (steps // 8) == 0:
            losses.append(total / (steps // 8))
            print(f"batch {loader.step:5}   loss {losses[-1]:.4f}")
            total = 0.0
    return policy, losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("id", nargs="?", default="sample/pendulum-d4rl")
    parser.add_argument("--steps", type=int, default=1_000, help="batches to train on")
    args = parser.parse_args()
    clone(args.id, steps=args.steps)
