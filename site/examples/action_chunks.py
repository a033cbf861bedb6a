"""Diffusion Policy (Chi et al. 2023, arXiv:2303.04137): chunks of actions, made out of noise, given images.

    python examples/action_chunks.py [ID] [--single] [--steps N] [--seed N]        --help for more

Takes any dataset with camera images in its observations, vectors beside them or not, and continuous actions. The
networks are small, for demonstrations of `worlds.py`: they hesitate before a block, and pass it now on its left, now on
its right. ``--single`` clones single actions by regression, for comparison; it tells the mean of all that was done.
"""

import argparse
import copy
import math

import numpy as np
import torch
import worlds
from torch import nn
from torch.nn import functional as F

from rlds_cli.errors import RldsError
from rlds_cli.loader import Loader, Normalize, Offsets, Resize, Shuffled, ToFloat

SEEN, CHUNK, DONE = 2, 16, 8  # observations that the policy sees, actions that it tells, those of them that are done
SIDE = 48  # pixels of the images that it sees
LEVELS, DENOISINGS, REPEATS = 50, 10, 4  # levels of noise; how many of them acting takes; draws per training chunk


class Encoder(nn.Module):
    """Features [B, 64] of images [B, C, 48, 48]."""

    def __init__(self, channels):
        super().__init__()
        sizes = (channels, 16, 5, 3), (16, 32, 3, 2), (32, 32, 3, 1)
        layers = [layer for m, n, side, step in sizes for layer in (nn.Conv2d(m, n, side, step, 1), nn.ReLU())]
        self.net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 8 * 8, 64), nn.LayerNorm(64))

    def forward(self, images):
        return self.net(images)


def mlp(inputs, outputs):
    """Three hidden layers of 512."""
    layers = [layer for n in (inputs, 512, 512) for layer in (nn.Linear(n, 512), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(512, outputs))


class Regression(nn.Module):
    """Actions [B, outputs] from what is seen [B, seen]: their mean."""

    def __init__(self, seen, outputs):
        super().__init__()
        self.net = mlp(seen, outputs)

    def loss(self, seen, actions):
        return F.mse_loss(self.net(seen), actions)

    def forward(self, seen):
        return self.net(seen).clamp(-1, 1)


class Diffusion(nn.Module):
    """Actions [B, outputs] from what is seen [B, seen]: one of those that were done, drawn out of noise."""

    def __init__(self, seen, outputs):
        super().__init__()
        self.outputs, self.level = outputs, nn.Embedding(LEVELS, 64)
        self.net = mlp(seen + outputs + 64, outputs)
        # How much of the signal's variance each level leaves: the cosine of Nichol & Dhariwal 2021, arXiv:2102.09672.
        left = torch.cos((torch.linspace(0, 1, LEVELS + 1) + 0.008) / 1.008 * math.pi / 2) ** 2
        self.register_buffer("left", (left[1:] / left[0]).clamp(min=1e-4))

    def clean(self, seen, noisy, level):
        """The chunk without its noise; of a small network better told than the noise itself."""
        return self.net(torch.cat([seen, noisy, self.level(level)], -1))

    def loss(self, seen, actions):
        seen, actions = seen.repeat(REPEATS, 1), actions.repeat(REPEATS, 1)  # images are what costs, noise is cheap
        level = torch.randint(LEVELS, (len(actions),), device=actions.device)
        left = self.left[level, None]
        noisy = left.sqrt() * actions + (1 - left).sqrt() * torch.randn_like(actions)
        return F.mse_loss(self.clean(seen, noisy, level), actions)

    def forward(self, seen):
        """DDIM (Song et al. 2021, arXiv:2010.02502): from noise to a chunk, in fewer levels than there are."""
        x = torch.randn(len(seen), self.outputs, device=seen.device)
        levels = torch.linspace(LEVELS - 1, 0, DENOISINGS).round().long().to(seen.device)
        for k, level in enumerate(levels):
            left, after = self.left[level], self.left[levels[k + 1]] if k + 1 < DENOISINGS else torch.ones_like(x[0, 0])
            clean = self.clean(seen, x, level.expand(len(x))).clamp(-1, 1)
            noise = (x - left.sqrt() * clean) / (1 - left).sqrt()
            x = after.sqrt() * clean + (1 - after).sqrt() * noise
        return x


class Policy(nn.Module):
    """Encoders of the cameras, and a head that tells actions."""

    def __init__(self, sight, outputs, head):
        super().__init__()
        self.cameras, self.encoders = list(sight.cameras), nn.ModuleList(map(Encoder, sight.cameras.values()))
        self.head = head(SEEN * (64 * len(sight.cameras) + sum(sight.vectors.values())), outputs)

    def see(self, observations):
        """Features [B, n] of what was seen: {field: [B, 2, ...]}."""
        parts = dict(observations)
        for name, encode in zip(self.cameras, self.encoders, strict=True):
            parts[name] = encode(observations[name].flatten(0, 1)).view(-1, SEEN, 64)
        return torch.cat([x.flatten(1) for x in parts.values()], -1)

    def loss(self, observations, actions):
        return self.head.loss(self.see(observations), actions.flatten(1))

    def forward(self, observations):
        return self.head(self.see(observations))


class Sight:
    """The fields of an observation, and what becomes of them on their way into the network."""

    def __init__(self, ds):
        fields = {n: f for n, f in ds.schema.items() if n.split("/")[0] == "observation" and f.kind != "text"}
        self.cameras = {n: f.shape[-1] for n, f in fields.items() if len(f.shape) == 3}
        self.vectors = {n: int(np.prod(f.shape)) for n, f in fields.items() if n not in self.cameras}
        if not self.cameras:
            raise SystemExit(f"{ds.id}: this example takes images, not {', '.join(fields)}")
        self.norm = Normalize(ds, ["action", *self.vectors], mode="range")
        other = [n for n in self.cameras if fields[n].shape[:2] != (SIDE, SIDE)]
        self.transforms = [self.norm, *(Resize(n, (SIDE, SIDE)) for n in other), *map(ToFloat, self.cameras)]

    def of_batch(self, batch):
        return {name: batch[name] for name in (*self.cameras, *self.vectors)}

    def of_histories(self, histories, device):
        """The same of the last two observations in each environment: [B, 2, ...]."""
        return {n: self._stack(n, histories).to(device) for n in (*self.cameras, *self.vectors)}

    def _stack(self, name, histories):
        keys = name.split("/")[1:]
        rows = [[o[keys[0]] if keys else o for o in history] for history in histories]
        for key in keys[1:]:
            rows = [[o[key] for o in history] for history in rows]
        x = torch.as_tensor(np.array(rows))
        for transform in self.transforms:
            x = transform.apply(name, x) if transform.touches(name) else x
        return x.float()


def rollouts(envs, act, seed):
    """Whether an episode of each environment succeeds [envs]; ``act`` takes the last two observations of each."""
    histories = [[env.reset(seed=seed + k)[0]] * SEEN for k, env in enumerate(envs)]
    success, over = np.zeros(len(envs), bool), np.zeros(len(envs), bool)
    while not over.all():
        chunks = act(histories)
        for k in np.flatnonzero(~over):
            for action in chunks[k]:
                observation, reward, terminated, truncated, info = envs[k].step(action)
                histories[k] = [*histories[k][1:], observation]
                success[k] |= bool(info.get("success", reward > 0))
                over[k] = terminated or truncated
                if over[k]:
                    break
    return success


def environments(ds, seed, episodes=50):
    """Environments for evaluation, if there are any, and how often the data and a random policy succeed there."""
    if "next/reward" in ds.schema:
        print(f"the data               success {100 * np.mean(ds.episodes['total_reward'] > 0):5.1f} %")
    try:
        envs = [ds.make_env() for _ in range(episodes)]
    except RldsError as e:
        print(f"no evaluation: {e}")
        return []
    space = envs[0].action_space
    space.seed(seed)
    success = rollouts(envs, lambda _: [[space.sample()] for _ in envs], seed)
    print(f"a random policy        success {100 * success.mean():5.1f} %")
    return envs


def train(ref="local/detour", *, single=False, steps=1_600, eval_every=None, seed=0, device="cpu", save=None):
    """Train a policy; returns (step, loss, successes in percent) of every evaluation, as printed."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # in networks this small, threads only wait for each other
    eval_every = eval_every or max(steps // 8, 1)
    ds = worlds.dataset(ref)
    action, sight = ds.field("action"), Sight(ds)
    if not action.dtype.startswith("float"):
        raise SystemExit(f"{ds.id}: this example takes continuous actions, not {action.dtype}")
    print(f"{ds.id}: {ds.num_steps:,} steps of {ds.num_episodes:,} episodes; {', '.join(sight.cameras)}")
    envs = environments(ds, seed)

    # A chunk begins with the action before; of the last ones of an episode, all but one may lie beyond its end.
    told = range(1) if single else range(-1, CHUNK - 1)
    head, outputs = Regression if single else Diffusion, len(told) * int(np.prod(action.shape))
    window = Offsets({"observation": range(1 - SEEN, 1), "action": told}, after=0 if single else DONE - 1)
    loader = Loader(
        ds,
        64,
        window=window,
        sampler=Shuffled(),
        fields=("observation", "action"),
        transform=sight.transforms,
        device=device,
        seed=seed,
        steps=steps,
    )
    policy = Policy(sight, outputs, head).to(device)
    smooth = copy.deepcopy(policy)  # the mean of the last few hundred updates is what acts
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3, weight_decay=1e-4)
    warm_up = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda n: min(1, (n + 1) / 100) * (1 + math.cos(math.pi * n / steps)) / 2
    )

    @torch.no_grad()
    def act(histories):
        chunks = smooth(sight.of_histories(histories, device)).cpu().reshape(len(histories), -1, *action.shape)
        return sight.norm.invert("action", chunks if single else chunks[:, 1 : 1 + DONE]).numpy()

    curve, losses = [], []
    for batch in loader:
        loss = policy.loss(sight.of_batch(batch), batch["action"])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        warm_up.step()
        with torch.no_grad():
            for slow, fast in zip(smooth.parameters(), policy.parameters(), strict=True):
                slow.lerp_(fast, 0.005)
        losses.append(loss.item())
        if loader.step % eval_every == 0:
            success = rollouts(envs, act, 1_000 + seed) if envs else [np.nan]
            curve.append((loader.step, float(np.mean(losses)), 100 * float(np.mean(success))))
            reached = f"success {curve[-1][2]:5.1f} %" if envs else ""
            print(f"step {loader.step:6}   loss {curve[-1][1]:.4f}   {reached}", flush=True)
            losses.clear()
    if save:
        torch.save({"policy": smooth.state_dict(), "normalize": sight.norm.state_dict()}, save)
    return curve


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ref", nargs="?", default="local/detour", metavar="ID")
    parser.add_argument("--single", action="store_true", help="clone single actions by regression")
    parser.add_argument("--steps", type=int, default=1_600, help="batches to train on")
    parser.add_argument("--eval-every", type=int, help="batches from evaluation to evaluation; an eighth of them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--save", metavar="FILE", help="where the policy and its normalisation go")
    train(**vars(parser.parse_args()))
