"""GCIVL (Park et al. 2024, OGBench, arXiv:2410.20092; after IQL, arXiv:2110.06169): values of goals, weighted cloning.

    python examples/gcivl.py [ID] [--clone] [--steps N] [--seed N]        --help for more

Takes any dataset with vector observations (nested ones are joined) and continuous actions. Rewards are not needed:
hindsight makes the goals. The default is a maze of `worlds.py`, whose walks cross only parts of it: ``--clone``, which
is goal-conditioned behaviour cloning, does not put them together. OGBench's datasets want the paper's 1,000,000 steps
and its settings (--batch 1024 --lr 3e-4 --tau 0.005 --alpha 10), and its package for evaluation.
"""

import argparse
import copy

import numpy as np
import torch
import worlds
from torch import nn
from torch.nn import functional as F

from rlds_cli.errors import RldsError
from rlds_cli.loader import Goals, Loader, Normalize

GAMMA, MAX_WEIGHT = 0.99, 100.0
TASKS = 5  # of every environment of OGBench


def mlp(inputs, outputs):
    """Two hidden layers of 256."""
    layers = [layer for n in (inputs, 256) for layer in (nn.Linear(n, 256), nn.GELU(), nn.LayerNorm(256))]
    return nn.Sequential(*layers, nn.Linear(256, outputs))


class Twin(nn.Module):
    """Two estimates [2, B] of the value of an observation for a goal: minus the discounted steps between them."""

    def __init__(self, inputs):
        super().__init__()
        self.one, self.two = mlp(2 * inputs, 1), mlp(2 * inputs, 1)

    def forward(self, s, g):
        x = torch.cat([s, g], -1)
        return torch.stack([self.one(x), self.two(x)])[..., 0]


def vectors(ds):
    """Names and shapes of the fields of an observation."""
    found = {n: f.shape or (1,) for n, f in ds.schema.items() if n.split("/")[0] == "observation"}
    if any(len(shape) > 1 or ds.schema[name].kind != "array" for name, shape in found.items()):
        raise SystemExit(f"{ds.id}: this example takes vectors, not {', '.join(found)}")
    return found


def join(observation, names, norm):
    """Normalised fields side by side [..., width], of a batch, of goals or of observations of the environment."""
    parts = []
    for name, shape in names.items():
        x = observation
        for key in name.split("/")[1:]:
            x = x[key]
        x = norm.apply(name, torch.as_tensor(x).float())
        parts.append(x.reshape(*x.shape[: x.ndim - len(shape)], -1))
    return torch.cat(parts, -1)


def rollouts(envs, act, seed):
    """Whether each environment's goal is reached [envs], by turns in OGBench's tasks."""
    begun = [env.reset(seed=seed + k, options={"task_id": 1 + k % TASKS}) for k, env in enumerate(envs)]
    observations, goals = [observation for observation, _ in begun], [info["goal"] for _, info in begun]
    success, over = np.zeros(len(envs), bool), np.zeros(len(envs), bool)
    while not over.all():
        actions = act(observations, goals)
        for k in np.flatnonzero(~over):
            observations[k], _, terminated, truncated, info = envs[k].step(actions[k])
            success[k] |= bool(info["success"])
            over[k] = terminated or truncated or success[k]
    return success


def environments(ds, seed, episodes=10 * TASKS):
    """Environments for evaluation, if there are any, and how often a random policy reaches the goal there."""
    try:
        envs = [ds.make_env() for _ in range(episodes)]
    except RldsError as e:
        print(f"no evaluation: {e}")
        return []
    space = envs[0].action_space
    space.seed(seed)
    success = rollouts(envs, lambda *_: [space.sample() for _ in envs], seed)
    print(f"a random policy        success {100 * success.mean():5.1f} %")
    return envs


class Trainer:
    """Policy, values, and their optimizers; with ``clone`` every action weighs the same, and there are no values."""

    def __init__(self, inputs, outputs, clone, expectile, alpha, lr, tau, device):
        self.clone, self.expectile, self.alpha, self.tau = clone, expectile, alpha, tau
        self.policy, self.v = mlp(2 * inputs, outputs).to(device), Twin(inputs).to(device)
        self.v_target = copy.deepcopy(self.v)
        self.v_optimizer, self.optimizer = (torch.optim.Adam(m.parameters(), lr=lr) for m in (self.v, self.policy))

    def train(self, s, a, s2, value_goal, reached, actor_goal):
        """One update of each; returns the losses of V and policy."""
        v_loss = 0.0 if self.clone else self.train_values(s, s2, value_goal, reached)
        told = self.policy(torch.cat([s, actor_goal], -1)).tanh()
        weight = 1.0 if self.clone else self.weight(s, s2, actor_goal)
        loss = (weight * (told - a).square().sum(-1)).mean() / 2  # a Gaussian of deviation 1
        step(self.optimizer, loss)
        return v_loss, loss.item()

    @torch.no_grad()
    def weight(self, s, s2, g):
        """How much nearer to the goal an action led, exponentially."""
        return (self.alpha * (self.v(s2, g) - self.v(s, g)).mean(0)).exp().clamp(max=MAX_WEIGHT)

    def train_values(self, s, s2, g, reached):
        """Expectile regression to what the next observation says: -1 + gamma V, or 0 where the goal is reached."""
        with torch.no_grad():
            after, now, go_on = self.v_target(s2, g), self.v_target(s, g), (~reached).float()
            advantage = go_on * (GAMMA * after.amin(0) - 1) - now.mean(0)
            target = go_on * (GAMMA * after - 1)
            weight = torch.where(advantage > 0, self.expectile, 1 - self.expectile)
        loss = (weight * F.mse_loss(self.v(s, g), target, reduction="none")).sum(0).mean()
        step(self.v_optimizer, loss)
        with torch.no_grad():
            for slow, fast in zip(self.v_target.parameters(), self.v.parameters(), strict=True):
                slow.lerp_(fast, self.tau)
        return loss.item()


def step(optimizer, loss):
    """Descend."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()


def train(
    ref="local/maze",
    *,
    clone=False,
    steps=3_200,
    eval_every=None,
    seed=0,
    batch=256,
    lr=1e-3,
    tau=0.02,
    expectile=0.9,
    alpha=3.0,
    random=0.5,
    device="cpu",
    save=None,
):
    """Train a policy; returns (step, losses of V and policy, successes in percent) of every evaluation, as printed."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # in networks this small, threads only wait for each other
    eval_every = eval_every or max(steps // 8, 1)
    ds = worlds.dataset(ref)
    ds = ds.select(split="train") if "train" in ds.episodes.splits else ds
    names, action = vectors(ds), ds.field("action")
    if not action.dtype.startswith("float"):
        raise SystemExit(f"{ds.id}: this example takes continuous actions, not {action.dtype}")
    print(f"{ds.id}: {ds.num_transitions:,} transitions of {ds.num_episodes:,} episodes")
    envs = environments(ds, seed)
    norm, within = Normalize(ds), Normalize(ds, ["action"], mode="range")
    inputs, outputs = sum(int(np.prod(s)) for s in names.values()), int(np.prod(action.shape))
    trainer = Trainer(inputs, outputs, clone, expectile, alpha, lr, tau, device)

    @torch.no_grad()
    def act(observations, goals):
        seen = [torch.stack([join(x, names, norm) for x in of_all]) for of_all in (observations, goals)]
        told = trainer.policy(torch.cat(seen, -1).to(device)).tanh().cpu()
        return within.invert("action", told.reshape(-1, *action.shape)).numpy()

    # Cloning knows only goals that were reached; a value tells how good an action is for any goal.
    random = 0.0 if clone else random
    extra = (
        Goals("value_goal", current=0.2, future=0.5, random=0.3, gamma=GAMMA),
        Goals("actor_goal", future=1 - random, random=random, horizon="uniform"),
    )
    fields = ("observation", "action", "next/observation")  # no rewards, no ends
    loader = Loader(ds, batch, fields=[*fields, *extra], transform=within, device=device, seed=seed, steps=steps)
    curve, losses = [], []
    for b in loader:
        s, s2 = join(b["observation"], names, norm), join(b["next", "observation"], names, norm)
        value_goal, actor_goal = join(b["value_goal"], names, norm), join(b["actor_goal"], names, norm)
        a, reached = b["action"].flatten(1), b["value_goal_distance"][:, 0] == 0
        losses.append(trainer.train(s, a, s2, value_goal, reached, actor_goal))
        if loader.step % eval_every == 0:
            success = rollouts(envs, act, 1_000 + seed) if envs else [np.nan]
            curve.append((loader.step, *np.mean(losses, axis=0).tolist(), 100 * float(np.mean(success))))
            reached = f"success {curve[-1][-1]:5.1f} %" if envs else ""
            print(f"step {loader.step:7}   V {curve[-1][1]:8.4f}   policy {curve[-1][2]:8.4f}   {reached}", flush=True)
            losses.clear()
    if save:
        state = {"observation": norm.state_dict(), "action": within.state_dict()}
        torch.save({"policy": trainer.policy.state_dict(), "normalize": state}, save)
    return curve


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ref", nargs="?", default="local/maze", metavar="ID")
    parser.add_argument("--clone", action="store_true", help="goal-conditioned behaviour cloning, for comparison")
    parser.add_argument("--steps", type=int, default=3_200, help="batches to train on")
    parser.add_argument("--eval-every", type=int, help="batches from evaluation to evaluation; an eighth of them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--tau", type=float, default=0.02, help="how fast the target of the values follows")
    parser.add_argument("--expectile", type=float, default=0.9)
    parser.add_argument("--alpha", type=float, default=3.0, help="inverse temperature of the weights")
    parser.add_argument("--random", type=float, default=0.5, help="share of the policy's goals from other episodes")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--save", metavar="FILE", help="where the policy and its normalisation go")
    train(**vars(parser.parse_args()))
