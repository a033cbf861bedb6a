"""Behaviour cloning: a small network learns to act as the data does, in seconds on a CPU.

    python examples/behaviour_cloning.py [ID] [--where EXPRESSION] [--steps N] [--seed N]        --help for more

Takes any dataset with vector observations (nested ones are joined) and continuous or discrete actions.
"""

import argparse

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import rlds_cli
from rlds_cli.errors import RldsError
from rlds_cli.loader import Loader, Normalize, Shuffled, Transition


def vectors(ds):
    """Names and shapes of the fields of an observation."""
    found = {n: f.shape or (1,) for n, f in ds.schema.items() if n.split("/")[0] == "observation"}
    if any(len(shape) > 1 or ds.schema[name].kind != "array" for name, shape in found.items()):
        raise SystemExit(f"{ds.id}: this example takes vectors, not {', '.join(found)}")
    return found


def join(observation, names, norm):
    """Normalised fields side by side [..., width], of a batch or of one observation of the environment."""
    parts = []
    for name, shape in names.items():
        x = observation
        for key in name.split("/")[1:]:
            x = x[key]
        x = norm.apply(name, torch.as_tensor(x).float())
        parts.append(x.reshape(*x.shape[: x.ndim - len(shape)], -1))
    return torch.cat(parts, -1)


def evaluate(env, act, seed, episodes=10):
    """Returns of some episodes [episodes]; the same seed, the same starts."""
    returns = np.zeros(episodes)
    for k in range(episodes):
        observation, _ = env.reset(seed=seed + k)
        over = False
        while not over:
            observation, reward, terminated, truncated, _ = env.step(act(observation))
            returns[k] += reward
            over = terminated or truncated
    return returns


def show(ds, returns):
    """A mean return, with the normalised score where reference returns are known."""
    try:
        return f"return {np.mean(returns):8.1f}   score {100 * ds.normalized_score(returns).mean():6.1f}"
    except RldsError:
        return f"return {np.mean(returns):8.1f}"


def environment(ds, seed):
    """The environment for evaluation, if there is one, and what the data and a random policy reach there."""
    if "next/reward" in ds.schema:
        print(f"the data               {show(ds, ds.episodes['total_reward'])}")
    try:
        env = ds.make_env()
    except RldsError as e:
        return print(f"no evaluation: {e}")
    env.action_space.seed(seed)
    print(f"a random policy        {show(ds, evaluate(env, lambda _: env.action_space.sample(), seed, 100))}")
    return env


def train(ref="sample/pendulum-d4rl", *, where=None, steps=4_000, eval_every=None, seed=0, save=None):
    """Train a policy; returns (step, loss, mean return) of every evaluation, as printed."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # in a network this small, threads only wait for each other
    eval_every = eval_every or max(steps // 8, 1)
    ds = rlds_cli.download(ref)  # at once when it is here already
    ds = ds.select(where=where) if where else ds
    norm, names, action = Normalize(ds), vectors(ds), ds.field("action")
    discrete = action.dtype.startswith(("int", "uint"))
    first = int(ds.stats["action"].min) if discrete else 0
    inputs = sum(int(np.prod(shape)) for shape in names.values())
    outputs = int(ds.stats["action"].max) - first + 1 if discrete else int(np.prod(action.shape))
    print(f"{ds.id}: {ds.num_steps:,} steps; {inputs} inputs, {outputs} {'choices' if discrete else 'outputs'}")
    env = environment(ds, seed)

    policy = nn.Sequential(nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, outputs))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)

    @torch.no_grad()
    def act(observation):
        y = policy(join(observation, names, norm))
        return first + int(y.argmax()) if discrete else y.numpy().reshape(action.shape)

    # An action needs no next observation, so every step counts, not only the transitions.
    loader = Loader(ds, 256, sampler=Shuffled(), window=Transition(anchors="steps"), seed=seed, steps=steps)
    curve, losses = [], []
    for batch in loader:
        y = policy(join(batch["observation"], names, norm))
        target = batch["action"]
        loss = F.cross_entropy(y, target.flatten().long() - first) if discrete else F.mse_loss(y, target.view_as(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if loader.step % eval_every == 0:
            returns = evaluate(env, act, 1_000 + seed) if env else [np.nan]
            curve.append((loader.step, float(np.mean(losses)), float(np.mean(returns))))
            print(f"step {loader.step:6}   loss {curve[-1][1]:.4f}   {show(ds, returns) if env else ''}", flush=True)
            losses.clear()
    if save:
        torch.save({"policy": policy.state_dict(), "normalize": norm.state_dict()}, save)
    return curve


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ref", nargs="?", default="sample/pendulum-d4rl", metavar="ID")
    parser.add_argument("--where", help='episodes to learn from: "total_reward > -200"')
    parser.add_argument("--steps", type=int, default=4_000, help="batches to train on")
    parser.add_argument("--eval-every", type=int, help="batches from evaluation to evaluation; an eighth of them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", metavar="FILE", help="where the policy and its normalisation go")
    train(**vars(parser.parse_args()))
