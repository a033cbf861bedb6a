"""TD3+BC (Fujimoto & Gu 2021, arXiv:2106.06860): TD3 whose actor also stays near the actions of the data.

    python examples/td3_bc.py [ID] [--where EXPRESSION] [--steps N] [--seed N]        --help for more

Takes any dataset with vector observations (nested ones are joined), continuous actions and rewards. A few thousand
steps do for the samples; D4RL's datasets want the paper's 1,000,000.
"""

import argparse
import copy

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import rlds_cli
from rlds_cli.errors import RldsError
from rlds_cli.loader import Loader, Normalize, Reward

GAMMA, TAU = 0.99, 0.005
POLICY_NOISE, NOISE_CLIP, POLICY_DELAY = 0.2, 0.5, 2


def mlp(inputs, outputs, *last):
    """The networks of the paper: two hidden layers of 256."""
    hidden = [nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(256, outputs), *last)


class Twin(nn.Module):
    """Two value networks of observation and action."""

    def __init__(self, inputs):
        super().__init__()
        self.one, self.two = mlp(inputs, 1), mlp(inputs, 1)

    def forward(self, s, a):
        x = torch.cat([s, a], -1)
        return self.one(x), self.two(x)


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
    """Actor, critics, their targets and their optimizers."""

    def __init__(self, inputs, outputs, alpha, device):
        self.alpha, self.updates = alpha, 0
        self.actor, self.critic = mlp(inputs, outputs, nn.Tanh()).to(device), Twin(inputs + outputs).to(device)
        self.actor_target, self.critic_target = copy.deepcopy(self.actor), copy.deepcopy(self.critic)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=3e-4)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=3e-4)

    def train(self, s, a, r, s2, terminated):
        """One update; returns the losses of the critics and, every other time, of the actor."""
        self.updates += 1
        with torch.no_grad():
            noise = (torch.randn_like(a) * POLICY_NOISE).clamp(-NOISE_CLIP, NOISE_CLIP)
            a2 = (self.actor_target(s2) + noise).clamp(-1, 1)
            target = r + GAMMA * (1 - terminated) * torch.min(*self.critic_target(s2, a2))
        q1, q2 = self.critic(s, a)
        critic_loss = F.mse_loss(q1, target) + F.mse_loss(q2, target)
        step(self.critic_optimizer, critic_loss)
        log = {"critic": critic_loss.item()}
        if self.updates % POLICY_DELAY == 0:
            mine = self.actor(s)
            q = self.critic.one(torch.cat([s, mine], -1))
            actor_loss = -self.alpha * (q / q.abs().mean().detach()).mean() + F.mse_loss(mine, a)
            step(self.actor_optimizer, actor_loss)
            log["actor"] = actor_loss.item()
            follow(self.actor_target, self.actor)
            follow(self.critic_target, self.critic)
        return log


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


def train(
    ref="sample/pendulum-d4rl", *, where=None, steps=8_000, eval_every=None, seed=0, alpha=2.5, device="cpu", save=None
):
    """Train a policy; returns (step, critic loss, actor loss, mean return) of every evaluation, as printed."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # in networks this small, threads only wait for each other
    eval_every = eval_every or max(steps // 8, 1)
    ds = rlds_cli.download(ref)  # at once when it is here already
    ds = ds.select(where=where) if where else ds
    names, action, _ = vectors(ds), ds.field("action"), ds.field("next/reward")  # an error where there is none
    if not action.dtype.startswith("float"):
        raise SystemExit(f"{ds.id}: TD3+BC takes continuous actions, not {action.dtype}; iql.py takes both")
    print(f"{ds.id}: {ds.num_transitions:,} transitions of {ds.num_episodes:,} episodes")
    env = environment(ds, seed)

    # The range of the data's actions becomes [-1, 1], as the actor's tanh; the range of its returns becomes 1,000.
    norm, within = Normalize(ds, eps=1e-3), Normalize(ds, ["action"], mode="range")
    returns = ds.episodes["total_reward"]
    scale = Reward(scale=1000 / (np.ptp(returns) or 1000))

    def vectorise(batch):
        batch["observation"] = join(batch["observation"], names, norm)
        batch["next", "observation"] = join(batch["next", "observation"], names, norm)
        return batch

    trainer = Trainer(sum(int(np.prod(s)) for s in names.values()), int(np.prod(action.shape)), alpha, device)

    @torch.no_grad()
    def act(observation):
        a = trainer.actor(join(observation, names, norm).to(device)).cpu()
        return within.invert("action", a.reshape(action.shape)).numpy()

    loader = Loader(ds, 256, transform=[vectorise, within, scale], device=device, seed=seed, steps=steps)
    curve, losses = [], {"critic": [], "actor": []}
    for batch in loader:
        for name, loss in trainer.train(*batch.sarsd()).items():
            losses[name].append(loss)
        if loader.step % eval_every == 0:
            returns = evaluate(env, act, 1_000 + seed) if env else [np.nan]
            critic, actor = (float(np.mean(x)) for x in losses.values())
            curve.append((loader.step, critic, actor, float(np.mean(returns))))
            reached = show(ds, returns) if env else ""
            print(f"step {loader.step:7}   critic {critic:9.3f}   actor {actor:7.3f}   {reached}", flush=True)
            losses = {"critic": [], "actor": []}
    if save:
        state = {"observation": norm.state_dict(), "action": within.state_dict()}
        torch.save({"actor": trainer.actor.state_dict(), "normalize": state}, save)
    return curve


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ref", nargs="?", default="sample/pendulum-d4rl", metavar="ID")
    parser.add_argument("--where", help='episodes to learn from: "total_reward < -200"')
    parser.add_argument("--steps", type=int, default=8_000, help="batches to train on")
    parser.add_argument("--eval-every", type=int, help="batches from evaluation to evaluation; an eighth of them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--alpha", type=float, default=2.5, help="weight of the value against the data's actions")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--save", metavar="FILE", help="where the policy and its normalisation go")
    train(**vars(parser.parse_args()))
