"""From offline to online: cloning with values, as TD3+BC (Fujimoto & Gu 2021), then RLPD (Ball et al. 2023).

    python examples/rlpd.py [--offline N] [--online N] [--seed N]        --help for more

First a policy is trained on a few poor episodes of Pendulum. Then it acts: its episodes go into a growing dataset,
and half of each batch comes from there, half from the data. As in RLPD (arXiv:2302.02948) the learner is SAC with an
ensemble of critics with layer normalisation. Offline, its actor also stays near the actions of the data.
"""

import argparse
import copy

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import rlds_cli
from rlds_cli.loader import Loader, Mixture

GAMMA, TAU = 0.98, 0.005
CRITICS, SUBSET = 5, 2  # of the ensemble; of it, for a target
ALPHA, ENTROPY = 2.5, -1.0  # weight of the value beside cloning; the entropy that the policy is to have
OBSERVATION, TORQUE, REWARD = torch.tensor([1.0, 1.0, 0.125]), 2.0, 1 / 8  # what brings them to about 1


class Linear(nn.Module):
    """Linear layers side by side [networks, batch, outputs]."""

    def __init__(self, networks, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(networks, inputs, outputs).uniform_(-1, 1) / inputs**0.5)
        self.bias = nn.Parameter(torch.zeros(networks, 1, outputs))

    def forward(self, x):
        return torch.baddbmm(self.bias, x.expand(len(self.weight), -1, -1), self.weight)


class Critics(nn.Module):
    """Values of observations and actions, one of each network [networks, batch, 1]."""

    def __init__(self):
        super().__init__()
        hidden = [nn.LayerNorm(128), nn.ReLU(), Linear(CRITICS, 128, 128), nn.LayerNorm(128), nn.ReLU()]
        self.net = nn.Sequential(Linear(CRITICS, 4, 128), *hidden, Linear(CRITICS, 128, 1))

    def forward(self, s, a):
        return self.net(torch.cat([s, a], -1))


class Trainer:
    """Actor, critics and temperature, the critics' targets, and the optimizers."""

    def __init__(self):
        hidden = [nn.Linear(3, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU()]
        self.actor, self.critics, self.updates = nn.Sequential(*hidden, nn.Linear(128, 2)), Critics(), 0
        self.log_temperature, self.target = torch.tensor(-1.0, requires_grad=True), copy.deepcopy(self.critics)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=1e-3)
        self.critics_optimizer = torch.optim.Adam(self.critics.parameters(), lr=1e-3)
        self.temperature_optimizer = torch.optim.Adam([self.log_temperature], lr=1e-3)

    def policy(self, s):
        """Drawn actions in [-1, 1] and their log-probabilities, both [batch, 1], and the actions without noise."""
        mean, log_std = self.actor(s).chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-5, 1).exp())
        drawn = normal.rsample()
        correction = 2 * (np.log(2) - drawn - F.softplus(-2 * drawn))  # log(1 - tanh(x)^2)
        return drawn.tanh(), normal.log_prob(drawn) - correction, mean.tanh()

    def train(self, batch, cloning):
        """One update, near the actions of the batch or not; returns the loss of the critics."""
        s, a, r, s2, terminated = batch.sarsd()
        s, a, r, s2 = s * OBSERVATION, a / TORQUE, r * REWARD, s2 * OBSERVATION
        self.updates += 1
        temperature = self.log_temperature.exp().detach()
        with torch.no_grad():
            a2, log2, _ = self.policy(s2)
            value = self.target(s2, a2)[torch.randperm(CRITICS)[:SUBSET]].amin(0) - temperature * log2
            target = r + GAMMA * (1 - terminated) * value
        loss = CRITICS * F.mse_loss(self.critics(s, a), target.expand(CRITICS, -1, -1))
        step(self.critics_optimizer, loss)
        mine, log, mean = self.policy(s)
        q = self.critics(s, mine).mean(0)
        objective = (q - temperature * log).mean()
        if cloning:
            step(self.actor_optimizer, F.mse_loss(mean, a) - ALPHA * objective / q.abs().mean().detach())
        else:
            step(self.actor_optimizer, -objective)
            step(self.temperature_optimizer, -self.log_temperature * (log.detach().mean() + ENTROPY))
        follow(self.target, self.critics)
        return loss.item() / CRITICS

    @torch.no_grad()
    def act(self, observation, explore=False):
        """The torque [1] of an observation: drawn, or the policy's best."""
        drawn, _, mean = self.policy(torch.as_tensor(observation) * OBSERVATION)
        return (TORQUE * (drawn if explore else mean)).numpy()


def step(optimizer, loss):
    """Descend."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()


@torch.no_grad()
def follow(target, network):
    """Move the target a little towards the network."""
    for slow, fast in zip(target.parameters(), network.parameters(), strict=True):
        slow.lerp_(fast, TAU)


def evaluate(env, act, seed, episodes):
    """Returns of some episodes [episodes]; the same seed, the same starts."""
    returns = np.zeros(episodes)
    for k in range(episodes):
        observation, over = env.reset(seed=seed + k)[0], False
        while not over:
            observation, reward, terminated, truncated, _ = env.step(act(observation))
            returns[k] += reward
            over = terminated or truncated
    return returns


def train(offline=2_000, online=6_000, eval_every=None, episodes=3, seed=0, into=None, evaluations=10):
    """Train a policy; returns (step, critic loss, mean return) of every evaluation, as printed."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    into = into or f"local/rlpd-{seed}"
    if rlds_cli.find(into):
        raise SystemExit(f"{into} is here already; rlds rm {into}, or --into another name")
    ds = rlds_cli.download("sample/pendulum-d4rl")
    env, play = ds.make_env(), ds.make_env()
    ds = ds.select(episodes=np.sort(np.argsort(ds.episodes["total_reward"])[:episodes]))  # the poorest
    eval_every = eval_every or (offline + online) // 8

    def show(name, returns):
        score = 100 * ds.normalized_score(returns).mean()
        print(f"{name:22} return {np.mean(returns):8.1f}   score {score:6.1f}", flush=True)
        return float(np.mean(returns))

    env.action_space.seed(seed)
    show("the data", ds.episodes["total_reward"])
    show("a random policy", evaluate(env, lambda _: env.action_space.sample(), seed, 20))
    trainer, curve, losses = Trainer(), [], []

    def learn(batch, cloning):
        losses.append(trainer.train(batch, cloning))
        if trainer.updates % eval_every == 0:
            loss, returns = float(np.mean(losses[-eval_every:])), evaluate(env, trainer.act, 1_000 + seed, evaluations)
            curve.append((trainer.updates, loss, show(f"step {trainer.updates:7}   critic {loss:6.3f}", returns)))

    for batch in Loader(ds, 256, seed=seed, steps=offline):
        learn(batch, cloning=True)

    fields = [f for f in ds.schema.values() if not f.name.startswith("info/")]
    with rlds_cli.writer(into, fields=fields, keep=rlds_cli.Fifo(steps=1_000_000)) as writer:
        both = Mixture({"offline": ds, "online": writer.dataset()}, {"offline": 1, "online": 1})
        observation, number = play.reset(seed=seed)[0], 1
        for batch in Loader(both, 256, live=True, seed=seed, steps=online):  # one update for each step
            action = trainer.act(observation, explore=True)
            after, reward, terminated, truncated, _ = play.step(action)
            writer.add(observation, action, np.float32(reward), terminated, truncated, next_observation=after)
            observation = after
            if terminated or truncated:
                observation, number = play.reset(seed=seed + number)[0], number + 1
            learn(batch, cloning=False)
    return curve


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--offline", type=int, default=2_000, help="batches of the data alone")
    parser.add_argument("--online", type=int, default=6_000, help="batches of both, and steps that the policy acts")
    parser.add_argument("--eval-every", type=int, help="batches from evaluation to evaluation; an eighth of them")
    parser.add_argument("--episodes", type=int, default=3, help="episodes of the data, the poorest")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--into", metavar="ID", help="the dataset of the policy's episodes; local/rlpd-SEED")
    train(**vars(parser.parse_args()))
