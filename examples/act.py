"""ACT (Zhao et al. 2023, arXiv:2304.13705): chunks of actions by a transformer, from two cameras at their own rates.

    python examples/act.py [--steps N] [--episodes N] [--seed N]        --help for more

First it records demonstrations as a robot would: a table at 50 Hz, a video from above at 10 Hz and one from the wrist
at 25 Hz for each. ``rlds_cli.import_files`` makes a dataset of these files, in which each step has the frame of either
camera that was shown last. The policy acts on the same: what each camera showed last, however long ago.
"""

import argparse
import tempfile
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pyarrow.csv
import torch
from torch import nn

import rlds_cli
from rlds_cli.loader import Loader, Normalize, Offsets, Resize, Shuffled, ToFloat

HZ, CAMERAS = 50, {"top": 10, "wrist": 25}  # rates of the states, and of the cameras
CHUNK, LONGEST = 20, 70  # actions that are told at once; steps of an episode
SIZE, SIDE, LATENT, KL = 64, 32, 8, 1.0  # pixels of a camera, and as the policy sees them; weights of ACT's style


class Reach:
    """A gripper moves to a disc, which the camera above shows coarsely and the one at the wrist when it is near."""

    SPEED, DISC, GRIPPER, NEAR = (
        0.04,
        0.16,
        0.08,
        0.35,
    )  # the way of an action of 1; radii; what the wrist sees around it

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.at, self.goal = self.rng.uniform(-0.9, 0.9, (2, 2))
        self.step_number, self.shown = 0, {}
        self.look()

    def look(self):
        """Show what the cameras see now, where a frame is due."""
        for camera, hz in CAMERAS.items():
            if self.step_number * hz // HZ != (self.step_number - 1) * hz // HZ:
                centre, half = ((0, 0), 1.0) if camera == "top" else (self.at, self.NEAR)
                self.shown[camera] = self.drawn(centre, half)

    def drawn(self, centre, half):
        """The image [SIZE, SIZE, 3] of what lies around a point."""
        pixels = (np.arange(SIZE) + 0.5) * 2 / SIZE - 1
        x, y = np.meshgrid(centre[0] + half * pixels, centre[1] - half * pixels)
        image = np.full((SIZE, SIZE, 3), 0.9)
        for place, radius, colour in (
            (self.goal, self.DISC, (0.9, 0.3, 0.1)),
            (self.at, self.GRIPPER, (0.1, 0.2, 0.8)),
        ):
            inside = np.clip(0.5 - (np.hypot(x - place[0], y - place[1]) - radius) * SIZE / 2 / half, 0, 1)
            image += inside[..., None] * (np.array(colour) - image)
        return (255 * image).astype(np.uint8)

    def expert(self):
        """Move straight to the disc, with an unsteady hand."""
        way = (self.goal - self.at) / self.SPEED
        return np.clip(way / max(1, np.hypot(*way)) + self.rng.normal(0, 0.1, 2), -1, 1)

    def step(self, action):
        self.at = np.clip(self.at + self.SPEED * np.clip(action, -1, 1), -1, 1)
        self.step_number += 1
        self.look()

    @property
    def reached(self):
        """Whether the gripper is in the middle of the disc."""
        return np.hypot(*(self.at - self.goal)) < self.DISC / 2


def record(directory, seed):
    """Write the table and the videos of one demonstration."""
    world, directory = Reach(seed), directory / f"ep_{seed:03}"
    directory.mkdir()
    rows, frames = [], {camera: [] for camera in CAMERAS}
    for t in range(LONGEST):
        action = world.expert()
        rows.append({"timestamp": t / HZ, "observation/x": world.at[0], "observation/y": world.at[1]})
        rows[-1] |= {"action_0": action[0], "action_1": action[1]}
        for camera, hz in CAMERAS.items():
            if t * hz // HZ == len(frames[camera]):
                frames[camera].append(world.shown[camera])
        world.step(action)
    pa.csv.write_csv(pa.Table.from_pylist(rows), directory / "log.csv")
    for camera, hz in CAMERAS.items():
        with av.open(str(directory / f"{camera}.mp4"), "w") as file:
            stream = file.add_stream("libx264", rate=hz, options={"crf": "18", "g": "10"})
            stream.width = stream.height = SIZE
            stream.pix_fmt = "yuv420p"
            for frame in frames[camera]:
                file.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
            file.mux(stream.encode())


def recorded(ref, episodes):
    """The dataset of the demonstrations, which are recorded unless it exists."""
    try:
        return rlds_cli.open_dataset(ref)
    except rlds_cli.errors.DatasetNotFound:
        with tempfile.TemporaryDirectory() as place:
            for k in range(episodes):
                record(Path(place), k)
            return rlds_cli.import_files(place, ref)


class Policy(nn.Module):
    """Tokens of the images, the state and a style become a chunk of actions [B, CHUNK, 2]."""

    def __init__(self, width=96):
        super().__init__()
        layers = [
            module
            for n, m in ((3, 16), (16, 32), (32, width))
            for module in (nn.Conv2d(n, m, 3, 2, 1), nn.GroupNorm(4, m), nn.ReLU())
        ]
        self.eye = nn.Sequential(*layers)  # 4 x 4 tokens of an image
        self.places = nn.Parameter(0.02 * torch.randn(len(CAMERAS) * 16 + 2, width))
        self.state, self.style = nn.Linear(2, width), nn.Linear(LATENT, width)
        self.asked = nn.Parameter(0.02 * torch.randn(CHUNK, width))
        self.body = nn.Transformer(width, 4, 2, 2, 4 * width, 0.0, batch_first=True)
        self.told = nn.Linear(width, 2)
        self.infer = nn.Sequential(nn.Linear(2 + 2 * CHUNK, 256), nn.ReLU(), nn.Linear(256, 2 * LATENT))

    def forward(self, images, state, style):
        tokens = [self.eye(image).flatten(2).transpose(1, 2) for image in images]
        seen = torch.cat([*tokens, self.state(state)[:, None], self.style(style)[:, None]], 1) + self.places
        return self.told(self.body(seen, self.asked.expand(len(state), -1, -1)))

    def loss(self, images, state, actions, real):
        """L1 of the actions that are not beyond the end of the episode, and the divergence of the style."""
        mean, log_variance = self.infer(torch.cat([state, (actions * real[..., None]).flatten(1)], 1)).chunk(2, 1)
        style = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        apart = (self(images, state, style) - actions).abs() * real[..., None]
        divergence = 0.5 * (log_variance.exp() + mean**2 - 1 - log_variance).sum(1).mean()
        return apart.sum() / real.sum() / 2 + KL / CHUNK * divergence


class Sight:
    """What the policy sees of batches, and of worlds."""

    def __init__(self, ds):
        self.cameras = [f"observation/{camera}" for camera in CAMERAS]
        self.norm = Normalize(ds, ["action", "observation/x", "observation/y"])
        small = [Resize(name, (SIDE, SIDE), cache="1GiB") for name in self.cameras]
        self.transforms = [*small, *map(ToFloat, self.cameras), self.norm]

    def of_batch(self, batch):
        state = torch.cat([batch["observation", axis].reshape(-1, 1) for axis in "xy"], 1)
        return [batch[name] for name in self.cameras], state

    def of_worlds(self, worlds):
        images = [torch.from_numpy(np.stack([w.shown[camera] for w in worlds])) for camera in CAMERAS]
        for name, k in zip(self.cameras, range(len(images)), strict=True):
            images[k] = ToFloat(name).apply(name, Resize(name, (SIDE, SIDE)).apply(name, images[k]))
        axes = [torch.tensor([w.at[k] for w in worlds], dtype=torch.float32) for k in range(2)]
        scaled = [self.norm.apply(f"observation/{axis}", x) for axis, x in zip("xy", axes, strict=True)]
        return images, torch.stack(scaled, 1)


def success_of_chance(seed, episodes=50):
    """The share of worlds, in percent, in which random actions reach the disc."""
    worlds = [Reach(10_000 + seed + k) for k in range(episodes)]
    for world in worlds:
        for _ in range(LONGEST):
            world.step(world.rng.uniform(-1, 1, 2))
    return 100 * np.mean([w.reached for w in worlds])


@torch.no_grad()
def success(policy, sight, seed, episodes=50, decay=0.1):
    """The share of worlds, in percent, in which the policy reaches the disc; it acts by temporal ensembling."""
    worlds, told = [Reach(10_000 + seed + k) for k in range(episodes)], []
    for _ in range(LONGEST):
        images, state = sight.of_worlds(worlds)
        told = [policy(images, state, torch.zeros(episodes, LATENT)), *told[: CHUNK - 1]]
        weights = torch.exp(
            -decay * torch.arange(len(told), dtype=torch.float32)
        )  # of this step's chunk, and of earlier
        mean = sum(w * chunk[:, age] for age, (w, chunk) in enumerate(zip(weights, told, strict=True))) / weights.sum()
        for world, action in zip(worlds, sight.norm.invert("action", mean).numpy(), strict=True):
            world.step(action)
    return 100 * np.mean([w.reached for w in worlds])


def train(ref="local/reach", *, episodes=60, steps=960, eval_every=None, seed=0, save=None):
    """Train a policy; returns (step, loss, success in percent) of every evaluation, as printed."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    eval_every = eval_every or max(steps // 8, 1)
    ds = recorded(ref, episodes)
    sight, policy = Sight(ds), Policy()
    rates = ", ".join(f"{camera} at {hz} Hz" for camera, hz in CAMERAS.items())
    print(f"{ds.id}: {ds.num_steps:,} steps of {ds.num_episodes} episodes at {HZ} Hz; {rates}")
    print(f"a random policy        success {success_of_chance(seed):5.1f} %")
    window = Offsets({"action": range(CHUNK)}, after=CHUNK - 1, anchors="steps")
    fields = [*sight.cameras, "observation/x", "observation/y", "action", "mask/action"]
    loader = Loader(
        ds, 32, window=window, sampler=Shuffled(), fields=fields, transform=sight.transforms, seed=seed, steps=steps
    )
    adam = torch.optim.AdamW(policy.parameters(), 5e-4, weight_decay=1e-4)
    slower = torch.optim.lr_scheduler.OneCycleLR(adam, 1e-3, steps)
    curve, losses = [], []
    for batch in loader:
        loss = policy.loss(*sight.of_batch(batch), batch["action"], batch["mask", "action"].float())
        adam.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        adam.step()
        slower.step()
        losses.append(loss.item())
        if loader.step % eval_every == 0:
            curve.append((loader.step, float(np.mean(losses)), float(success(policy, sight, seed))))
            print(f"step {loader.step:6}   loss {curve[-1][1]:.4f}   success {curve[-1][2]:5.1f} %", flush=True)
            losses.clear()
    if save:
        torch.save({"policy": policy.state_dict(), "normalize": sight.norm.state_dict()}, save)
    return curve


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ref", nargs="?", default="local/reach", metavar="ID")
    parser.add_argument("--episodes", type=int, default=60, help="demonstrations to record")
    parser.add_argument("--steps", type=int, default=960, help="batches to train on")
    parser.add_argument("--eval-every", type=int, help="batches from evaluation to evaluation; an eighth of them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", metavar="FILE", help="where the policy and its normalisation go")
    train(**vars(parser.parse_args()))
