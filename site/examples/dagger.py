"""DAgger (Ross et al. 2011, arXiv:1011.0686): the learner acts, an expert says what it would have done, both go on.

    python examples/dagger.py [--rounds N] [--steps N] [--seed N]        --help for more

Each round appends episodes to a growing dataset, while one loader keeps training on it. The task is Gymnasium's
Pendulum; the expert pumps energy into it, and balances it at the top. Demonstrations never leave the dataset;
``keep=`` bounds what the learner adds.
"""

import argparse

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import rlds_cli
from rlds_cli.loader import Loader

SCALE = torch.tensor([1.0, 1.0, 0.25])  # of an observation: cosine, sine, speed
MOST = 2.0  # the largest torque


def expert(observation):
    """Torque [1] that swings the pendulum up and holds it there; 0 is upright."""
    cosine, sine, speed = map(float, observation)
    angle, energy = np.arctan2(sine, cosine), speed**2 / 2 + 15 * (cosine - 1)  # none at rest at the top
    near = 1 / (1 + np.exp(-20 * (cosine - 0.85)))
    torque = near * -(8 * angle + 1.6 * speed) + (1 - near) * (-0.25 * energy * speed)
    return np.clip([torque], -MOST, MOST).astype(np.float32)


def play(env, act, seed, writer=None, **how):
    """Return of one episode; its steps are recorded with what the expert would have done."""
    observation, _ = env.reset(seed=seed)
    total, over = 0.0, False
    while not over:
        taken = act(observation)
        after, reward, terminated, truncated, _ = env.step(taken)
        total, over = total + reward, terminated or truncated
        if writer:
            done = {"next_observation": after, "info": {"taken": taken}} | how
            writer.add(observation, expert(observation), np.float32(reward), terminated, truncated, **done)
        observation = after
    return total


def train(rounds=8, steps=400, demonstrations=1, episodes=2, clone=False, seed=0, into=None, evaluations=10):
    """Train a policy; returns (step, loss, mean return) of every round, as printed."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    into = into or f"local/{'cloned' if clone else 'dagger'}-{seed}"
    if rlds_cli.find(into):
        raise SystemExit(f"{into} is here already; rlds rm {into}, or --into another name")
    reference = rlds_cli.download("sample/pendulum-d4rl")  # for the environment and the scores
    env = reference.make_env()
    policy = nn.Sequential(nn.Linear(3, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1), nn.Tanh())
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)

    @torch.no_grad()
    def act(observation):
        return (MOST * policy(torch.as_tensor(observation) * SCALE)).numpy()

    def show(name, returns):
        mean = float(np.mean(returns))
        score = 100 * reference.normalized_score(mean)
        print(f"{name:22} return {mean:8.1f}   score {score:6.1f}", flush=True)
        return mean

    curve = []
    with rlds_cli.writer(into, keep=rlds_cli.Fifo(steps=100_000)) as writer:
        for k in range(demonstrations):
            play(env, expert, seed + k, writer, protected=True)
        writer.commit()
        env.action_space.seed(seed)
        show("the data", writer.dataset().episodes["total_reward"])
        show("a random policy", [play(env, lambda _: env.action_space.sample(), seed + k) for k in range(20)])
        batches = iter(Loader(writer.dataset(), 256, live=True, seed=seed))
        for number in range(1, rounds + 1):
            losses = []
            for _ in range(steps):
                batch = next(batches)
                loss = F.mse_loss(MOST * policy(batch["observation"] * SCALE), batch["action"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            loss, name = float(np.mean(losses)), f"step {number * steps:7}"
            returns = [play(env, act, 1_000 + k) for k in range(evaluations)]
            curve.append((number * steps, loss, show(f"{name}   loss {loss:.3f}", returns)))
            for k in range(0 if clone else episodes):
                play(env, act, seed + 100 * number + k, writer)
            writer.commit()
    return curve


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8, help="times that the learner acts and is told better")
    parser.add_argument("--steps", type=int, default=400, help="batches in each round")
    parser.add_argument("--demonstrations", type=int, default=1, help="episodes of the expert to begin with")
    parser.add_argument("--episodes", type=int, default=2, help="episodes of the learner in each round")
    parser.add_argument("--clone", action="store_true", help="clone the demonstrations alone, for comparison")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--into", metavar="ID", help="the dataset; local/dagger-SEED")
    train(**vars(parser.parse_args()))
