"""Decision Transformer (Chen et al. 2021, arXiv:2106.01345): asked for a return, it continues the sequence.

    python examples/decision_transformer.py [ID] [--target RETURN] [--steps N] [--seed N]        --help for more

Takes any dataset with vector observations (nested ones are joined), rewards, and continuous or discrete actions. The
network is small, for the samples; D4RL's datasets want --width 128 --layers 3 --steps 100000.
"""

import argparse

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import rlds_cli
from rlds_cli.errors import RldsError
from rlds_cli.loader import Loader, Normalize, ReturnToGo, Slice


class DecisionTransformer(nn.Module):
    """Tokens return-to-go, observation, action, one of each a step; from each observation the action is told."""

    def __init__(self, inputs, outputs, longest, width, layers):
        super().__init__()
        self.embed = nn.ModuleList(nn.Linear(n, width) for n in (1, inputs, outputs))
        self.time = nn.Embedding(longest, width)
        layer = nn.TransformerEncoderLayer(width, 1, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.start, self.head = nn.LayerNorm(width), nn.Linear(width, outputs)

    def forward(self, return_to_go, observation, action, step):
        """Actions told [B, L, outputs]; returns are [B, L, 1], observations and actions [B, L, n], steps [B, L]."""
        time = self.time(step.clamp(max=self.time.num_embeddings - 1))
        kinds = zip(self.embed, (return_to_go, observation, action), strict=True)
        tokens = torch.stack([embed(x) + time for embed, x in kinds], 2).flatten(1, 2)  # [B, 3 L, width]
        causal = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], tokens.device)
        told = self.layers(self.start(tokens), causal, is_causal=True)
        return self.head(told[:, 1::3])


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


class Actions:
    """Actions as the network takes them: within [-1, 1], or one out of several choices."""

    def __init__(self, ds):
        field = ds.field("action")
        self.shape, self.discrete = field.shape, field.dtype.startswith(("int", "uint"))
        self.first = int(ds.stats["action"].min) if self.discrete else 0
        self.range = Normalize(ds, ["action"], mode="range")
        self.width = int(ds.stats["action"].max) - self.first + 1 if self.discrete else int(np.prod(self.shape))

    def encode(self, action):
        """Of a batch [B, L, ...] to [B, L, width]."""
        if not self.discrete:
            action = self.range.apply("action", action)
        flat = action.reshape(*action.shape[:2], -1)
        return F.one_hot(flat[..., 0].long() - self.first, self.width).float() if self.discrete else flat

    def loss(self, told, action):
        """Told and true actions of the real steps, [n, width]."""
        return F.cross_entropy(told, action.argmax(-1)) if self.discrete else F.mse_loss(told, action)

    def decode(self, told):
        """Told actions [n, width] to actions of the environment, and to what the network sees of them [n, width]."""
        if self.discrete:
            best = told.argmax(-1)
            return (best + self.first).tolist(), F.one_hot(best, self.width).float()
        return list(self.range.invert("action", told.clamp(-1, 1).reshape(-1, *self.shape)).numpy()), told.clamp(-1, 1)


def show(ds, returns):
    """A mean return, with the normalised score where reference returns are known."""
    try:
        return f"return {np.mean(returns):8.1f}   score {100 * ds.normalized_score(returns).mean():6.1f}"
    except RldsError:
        return f"return {np.mean(returns):8.1f}"


def environments(ds, seed, episodes=10):
    """Environments for evaluation, if there are any, and what the data and a random policy reach there."""
    print(f"the data               {show(ds, ds.episodes['total_reward'])}")
    try:
        envs = [ds.make_env() for _ in range(episodes)]
    except RldsError as e:
        print(f"no evaluation: {e}")
        return []
    space = envs[0].action_space
    space.seed(seed)
    returns = [rollouts(envs, lambda *_: [space.sample() for _ in envs], seed + 10 * k) for k in range(10)]
    print(f"a random policy        {show(ds, np.concatenate(returns))}")
    return envs


def rollouts(envs, act, seed):
    """Returns of one episode of each environment [envs]; ``act`` takes all observations, and returns so far."""
    observations = [env.reset(seed=seed + k)[0] for k, env in enumerate(envs)]
    returns, over = np.zeros(len(envs)), np.zeros(len(envs), bool)
    while not over.all():
        actions = act(observations, returns)
        for k in np.flatnonzero(~over):
            observations[k], reward, terminated, truncated, _ = envs[k].step(actions[k])
            returns[k] += reward
            over[k] = terminated or truncated
    return returns


class Memory:
    """What the network has seen, asked for and done in an episode of each environment: it acts from the last steps."""

    def __init__(self, model, see, actions, target, scale, context, device):
        self.model, self.see, self.actions, self.device = model, see, actions, device
        self.target, self.scale, self.context = target, scale, context
        self.past = []

    @torch.no_grad()
    def __call__(self, observations, returns):
        seen = torch.stack([self.see(x) for x in observations])
        left = torch.as_tensor((self.target - returns) * self.scale).float()[:, None]
        self.past.append([left, seen, torch.zeros(len(seen), self.actions.width)])
        recent = self.past[-self.context :]
        step = torch.arange(len(self.past) - len(recent), len(self.past)).expand(len(seen), -1)
        told = self.model(*(torch.stack(x, 1).to(self.device) for x in zip(*recent, strict=True)), step.to(self.device))
        acted, self.past[-1][2] = self.actions.decode(told[:, -1].cpu())
        return acted


def train(
    ref="sample/cartpole-minari",
    *,
    where=None,
    target=None,
    steps=160,
    eval_every=None,
    seed=0,
    context=20,
    width=64,
    layers=2,
    device="cpu",
    save=None,
):
    """Train a network; returns (step, loss, mean return) of every evaluation, as printed."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # in a network this small, threads only wait for each other
    eval_every = eval_every or max(steps // 8, 1)
    ds = rlds_cli.download(ref)  # at once when it is here already
    ds = ds.select(where=where) if where else ds
    ds.field("next/reward")  # an error where there is none
    norm, names, actions = Normalize(ds, eps=1e-6), vectors(ds), Actions(ds)
    best = float(ds.episodes["total_reward"].max())
    target, scale = best if target is None else target, 1 / (np.abs(ds.episodes["total_reward"]).max() or 1)
    print(f"{ds.id}: {ds.num_steps:,} steps of {ds.num_episodes:,} episodes; asked for {target:.1f}")
    envs = environments(ds, seed)

    inputs = sum(int(np.prod(shape)) for shape in names.values())
    model = DecisionTransformer(inputs, actions.width, int(ds.episodes["length"].max()), width, layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1, (n + 1) / (steps / 10)))

    # Every step starts a slice; beyond the episode's end the mask is False.
    window, extra = Slice(context, after=context - 1), ("step", ReturnToGo(scale=scale))
    loader = Loader(ds, 64, window=window, fields=[..., *extra], device=device, seed=seed, steps=steps)
    curve, losses = [], []
    for batch in loader:
        model.train()
        observation, action = join(batch["observation"], names, norm), actions.encode(batch["action"])
        told = model(batch["return_to_go"], observation, action, batch["step"])
        loss = actions.loss(told[batch["mask"]], action[batch["mask"]])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        warm_up.step()
        losses.append(loss.item())
        if loader.step % eval_every == 0:
            model.eval()
            act = Memory(model, lambda x: join(x, names, norm), actions, target, scale, context, device)
            returns = rollouts(envs, act, 1_000 + seed) if envs else [np.nan]
            curve.append((loader.step, float(np.mean(losses)), float(np.mean(returns))))
            print(f"step {loader.step:6}   loss {curve[-1][1]:.4f}   {show(ds, returns) if envs else ''}", flush=True)
            losses.clear()
    if save:
        state = {"observation": norm.state_dict(), "action": actions.range.state_dict()}
        torch.save({"model": model.state_dict(), "normalize": state}, save)
    return curve


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ref", nargs="?", default="sample/cartpole-minari", metavar="ID")
    parser.add_argument("--where", help='episodes to learn from: "length >= 100"')
    parser.add_argument("--target", type=float, help="the return to ask for; the best of the data")
    parser.add_argument("--steps", type=int, default=160, help="batches to train on")
    parser.add_argument("--eval-every", type=int, help="batches from evaluation to evaluation; an eighth of them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--context", type=int, default=20, help="steps that the network sees")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--save", metavar="FILE", help="where the network and its normalisation go")
    train(**vars(parser.parse_args()))
