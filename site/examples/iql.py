"""IQL (Kostrikov et al. 2021, arXiv:2110.06169): values by expectile regression, a policy by weighted cloning.

    python examples/iql.py [ID] [--where EXPRESSION] [--steps N] [--seed N]        --help for more

Takes any dataset with vector observations (nested ones are joined), rewards, and continuous or discrete actions. A few
thousand steps do for the samples; D4RL's datasets want the paper's 1,000,000.
"""

import argparse
import copy

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical, Independent, Normal
from torch.nn import functional as F

import rlds_cli
from rlds_cli.errors import RldsError
from rlds_cli.loader import Loader, Normalize, Reward

GAMMA, TAU = 0.99, 0.005
MAX_WEIGHT = 100.0


def mlp(inputs, outputs):
    """The networks of the paper: two hidden layers of 256."""
    return nn.Sequential(nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, outputs))


class Twin(nn.Module):
    """The smaller of two value networks of observation and action."""

    def __init__(self, inputs):
        super().__init__()
        self.one, self.two = mlp(inputs, 1), mlp(inputs, 1)

    def both(self, s, a):
        x = torch.cat([s, a], -1)
        return self.one(x), self.two(x)

    def forward(self, s, a):
        return torch.min(*self.both(s, a))


class Policy(nn.Module):
    """A distribution over choices, or a Gaussian within [-1, 1] with one deviation per dimension."""

    def __init__(self, inputs, outputs, discrete):
        super().__init__()
        self.net, self.discrete = mlp(inputs, outputs), discrete
        self.log_std = nn.Parameter(torch.zeros(outputs))

    def forward(self, s):
        y = self.net(s)
        if self.discrete:
            return Categorical(logits=y)
        return Independent(Normal(y.tanh(), self.log_std.clamp(-5, 2).exp()), 1)

    def log_prob(self, s, a):
        return self(s).log_prob(a.argmax(-1) if self.discrete else a)[:, None]


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


class Trainer:
    """Policy, values, and their optimizers."""

    def __init__(self, inputs, outputs, discrete, expectile, beta, steps, device):
        self.expectile, self.beta = expectile, beta
        self.policy = Policy(inputs, outputs, discrete).to(device)
        self.q, self.v = Twin(inputs + outputs).to(device), mlp(inputs, 1).to(device)
        self.q_target = copy.deepcopy(self.q)
        self.optimizers = [torch.optim.Adam(m.parameters(), lr=3e-4) for m in (self.v, self.q, self.policy)]
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizers[2], steps)

    def train(self, s, a, r, s2, terminated):
        """One update of each; returns the losses of V, Q and policy."""
        with torch.no_grad():
            q, next_v = self.q_target(s, a), self.v(s2)
        advantage = q - self.v(s)
        weight = torch.where(advantage > 0, self.expectile, 1 - self.expectile)
        v_loss = (weight * advantage**2).mean()
        target = r + GAMMA * (1 - terminated) * next_v
        q_loss = sum(F.mse_loss(q, target) for q in self.q.both(s, a)) / 2
        weight = (self.beta * advantage.detach()).exp().clamp(max=MAX_WEIGHT)
        policy_loss = -(weight * self.policy.log_prob(s, a)).mean()
        for optimizer, loss in zip(self.optimizers, (v_loss, q_loss, policy_loss), strict=True):
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        self.schedule.step()
        with torch.no_grad():
            for slow, fast in zip(self.q_target.parameters(), self.q.parameters(), strict=True):
                slow.lerp_(fast, TAU)
        return v_loss.item(), q_loss.item(), policy_loss.item()


def train(
    ref="sample/cartpole-minari",
    *,
    where=None,
    steps=4_000,
    eval_every=None,
    seed=0,
    expectile=0.7,
    beta=3.0,
    device="cpu",
    save=None,
):
    """Train a policy; returns (step, losses of V, Q and policy, mean return) of every evaluation, as printed."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # in networks this small, threads only wait for each other
    eval_every = eval_every or max(steps // 8, 1)
    ds = rlds_cli.download(ref)  # at once when it is here already
    ds = ds.select(where=where) if where else ds
    names, action, _ = vectors(ds), ds.field("action"), ds.field("next/reward")  # an error where there is none
    discrete = action.dtype.startswith(("int", "uint"))
    first = int(ds.stats["action"].min) if discrete else 0
    inputs = sum(int(np.prod(s)) for s in names.values())
    outputs = int(ds.stats["action"].max) - first + 1 if discrete else int(np.prod(action.shape))
    print(f"{ds.id}: {ds.num_transitions:,} transitions of {ds.num_episodes:,} episodes")
    env = environment(ds, seed)

    norm, within = Normalize(ds), Normalize(ds, ["action"], mode="range")
    returns = ds.episodes["total_reward"]
    scale = Reward(scale=1000 / (np.ptp(returns) or 1000))  # as in the paper: the range of returns becomes 1,000

    def vectorise(batch):
        batch["observation"] = join(batch["observation"], names, norm)
        batch["next", "observation"] = join(batch["next", "observation"], names, norm)
        if discrete:
            batch["action"] = F.one_hot(batch["action"].flatten().long() - first, outputs).float()
        else:
            batch["action"] = within.apply("action", batch["action"])
        return batch

    trainer = Trainer(inputs, outputs, discrete, expectile, beta, steps, device)

    @torch.no_grad()
    def act(observation):
        mode = trainer.policy(join(observation, names, norm).to(device)).mode.cpu()
        return first + int(mode) if discrete else within.invert("action", mode.reshape(action.shape)).numpy()

    loader = Loader(ds, 256, transform=[vectorise, scale], device=device, seed=seed, steps=steps)
    curve, losses = [], []
    for batch in loader:
        losses.append(trainer.train(*batch.sarsd()))
        if loader.step % eval_every == 0:
            returns = evaluate(env, act, 1_000 + seed) if env else [np.nan]
            v, q, policy = np.mean(losses, axis=0).tolist()
            curve.append((loader.step, v, q, policy, float(np.mean(returns))))
            reached = show(ds, returns) if env else ""
            print(f"step {loader.step:7}   V {v:8.3f}   Q {q:9.3f}   policy {policy:7.3f}   {reached}", flush=True)
            losses.clear()
    if save:
        state = {"observation": norm.state_dict(), "action": within.state_dict()}
        torch.save({"policy": trainer.policy.state_dict(), "normalize": state}, save)
    return curve


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ref", nargs="?", default="sample/cartpole-minari", metavar="ID")
    parser.add_argument("--where", help='episodes to learn from: "total_reward < 200"')
    parser.add_argument("--steps", type=int, default=4_000, help="batches to train on")
    parser.add_argument("--eval-every", type=int, help="batches from evaluation to evaluation; an eighth of them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--expectile", type=float, default=0.7)
    parser.add_argument("--beta", type=float, default=3.0, help="inverse temperature of the weights")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--save", metavar="FILE", help="where the policy and its normalisation go")
    train(**vars(parser.parse_args()))
