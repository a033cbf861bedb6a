"""The uses that the loader was designed for, as they should read in a training script."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rlds_cli
from rlds_cli.loader import Episode, Goals, Loader, Normalize, Offsets, ReturnToGo, Reward, Shuffled, Slice, ToFloat


def episodes(count, length, observation, width, *, reward=True):
    """Episodes that end terminated and truncated in turn."""
    rng = np.random.default_rng(0)
    for k in range(count):
        after = {"terminated": k % 2 == 0, "truncated": k % 2 == 1}
        yield {
            "observation": observation(rng, length + 1),
            "action": rng.uniform(-1, 1, (length, width)).astype(np.float32),
            "next": after | ({"reward": rng.random(length).astype(np.float32)} if reward else {}),
        }


def vectors(width):
    return lambda rng, rows: rng.standard_normal((rows, width), np.float32)


@pytest.fixture
def hopper(home):
    rlds_cli.create("d4rl/hopper-medium-v2", episodes(12, 50, vectors(11), 3))
    return rlds_cli.download("d4rl/hopper-medium-v2")


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:where=.*selects all")
def test_td3_bc(hopper):
    ds = hopper
    norm, ret = Normalize(ds, eps=1e-3), ds.select(where="end != 'cut'").episodes["total_reward"]
    scale = 1000 / (ret.max() - ret.min())
    loader = Loader(ds, 256, transform=[norm, Reward(scale=scale)], device="cpu", seed=0, steps=10)
    for batch in loader:
        s, a, r, s2, terminated = batch.sarsd()
        if loader.step % 5 == 0:
            # the registry's reference scores of hopper: -20.272305 and 3234.3
            assert 100 * ds.normalized_score([3234.3, -20.272305]).mean() == pytest.approx(50)
    assert loader.step == 10 and s.shape == s2.shape == (256, 11) and a.shape == (256, 3)
    assert r.shape == terminated.shape == (256, 1) and terminated.dtype == r.dtype
    rows = ds.column("observation")
    steps = np.delete(rows, np.cumsum(ds.episodes["length"] + 1) - 1, axis=0)
    expected = (rows[0] - steps.mean(0)) / (steps.std(0) + 1e-3)
    assert norm.apply("observation", rows[0]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.thorough
def test_decision_transformer(hopper):
    extra = ("step", ReturnToGo(scale=1e-3))
    loader = Loader(hopper, 64, window=Slice(20, after=19), fields=[..., *extra], transform=Normalize(hopper, eps=1e-6))
    b = next(iter(loader))
    assert b["observation"].shape == (64, 20, 11) and b["action"].shape == (64, 20, 3)
    assert b["return_to_go"].shape == (64, 20, 1) and b["step"].shape == b["mask"].shape == (64, 20)
    first = b["return_to_go"][:, 0, 0] - b["return_to_go"][:, 1, 0]
    real = b["mask"][:, 1]
    assert first[real].numpy() == pytest.approx(1e-3 * b["next/reward"][:, 0, 0][real].numpy(), rel=1e-3)


@pytest.mark.thorough
def test_diffusion_policy(home):
    def observation(rng, rows):
        frames = rng.integers(0, 256, (rows, 24, 24, 3), np.uint8)
        return {"robot0_eef_pos": rng.standard_normal((rows, 3)), "agentview_image": frames}

    rlds_cli.create("robomimic/can/mh/image/v0.1", episodes(20, 30, observation, 7))
    train, val = rlds_cli.download("robomimic/can/mh/image/v0.1").split(0.9, 0.1, seed=42)
    loader = Loader(
        train,
        64,
        sampler=Shuffled(),
        window=Offsets({"observation": (-1, 0), "action": range(-1, 15)}, after=7),
        transform=[
            Normalize(train, ["action", "observation/robot0_eef_pos"], mode="range"),
            ToFloat("observation/agentview_image"),
        ],
    )
    b = next(iter(loader))
    assert b["observation", "agentview_image"].shape == (64, 2, 3, 24, 24)
    assert b["action"].shape == (64, 16, 7) and b["mask", "action"].shape == (64, 16)
    assert b["action"].abs().max() <= 1 + 1e-6 and b["observation/agentview_image"].max() <= 1
    assert len(loader) == -(-18 * (30 - 14 + 7) // 64)  # steps t with t + 14 at most 7 beyond the last
    assert val.num_episodes == 2


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_goals(home, backend):
    if backend == "jax":
        pytest.importorskip("jax")
    rlds_cli.create("ogbench/cube-single-play-v0", episodes(9, 100, vectors(28), 5, reward=False))
    extra = (Goals("value_goal", current=0.2, future=0.5, random=0.3), Goals("actor_goal", horizon="uniform"))
    loader = Loader("ogbench/cube-single-play-v0", 1024, backend=backend, fields=[..., *extra])

    def update(state, batch, reward):
        return state + reward.sum() + 0 * (batch["value_goal"] - batch["observation"]).sum()

    if backend == "jax":
        import jax

        update = jax.jit(update)
    state = 0.0
    for batch, _ in zip(loader, range(3), strict=False):
        state = update(state, batch, reward=(batch["value_goal_distance"] == 0) - 1.0)
        assert (np.asarray(batch["actor_goal_distance"]) > 0).all()
    assert -0.9 < float(state) / (3 * 1024) < -0.7


@pytest.mark.thorough
def test_own_logs(home):
    def logs():
        rng = np.random.default_rng(1)
        for k in range(3):
            steps = 10 + k
            success = np.zeros(steps, bool)
            success[-1] = k == 0
            yield {
                "observation": rng.standard_normal((steps, 4)),  # T rows: the final observation is not known
                "action": rng.standard_normal((steps, 2)),
                "next": {"reward": rng.random(steps), "terminated": success, "truncated": k == 1},
            }

    ds = rlds_cli.create("local/press", logs())
    assert ds.episodes["end"].tolist() == ["terminated", "truncated", "cut"]
    assert len(ds) == 10 + 10 + 11  # the last step counts where it terminates
    assert len(list(Loader(ds, 8, sampler=Shuffled()))) == 4


TORCHRUN = """
import json, sys, torch.distributed as dist
import rlds_cli
from rlds_cli.loader import Loader, Shuffled
dist.init_process_group("gloo")
loader = Loader("d4rl/hopper-medium-v2", 64, sampler=Shuffled(), fields=[..., "index"])
loader.seek(int(sys.argv[1]))
batches = [b["index"].tolist() for b, _ in zip(loader, range(2))]
open(f"{sys.argv[2]}/{dist.get_rank()}", "w").write(json.dumps(batches))
"""


@pytest.mark.slow
def test_torchrun_killed_on_two_ranks_and_resumed_on_one(hopper, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TORCHRUN)
    whole = [b["index"].tolist() for b in Loader(hopper, 64, sampler=Shuffled(), fields=[..., "index"])]
    for ranks, seek in ((2, 3), (1, 5)):
        out = tmp_path / str(ranks)
        out.mkdir()
        torchrun = Path(sys.executable).with_name("torchrun")
        command = [torchrun, "--standalone", f"--nproc-per-node={ranks}", script, str(seek), out]
        subprocess.run(command, check=True, capture_output=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        parts = [json.loads((out / str(r)).read_text()) for r in range(ranks)]
        merged = [[x for xs in zip(*(p[i] for p in parts), strict=True) for x in xs] for i in range(2)]
        assert merged == whole[seek : seek + 2]


@pytest.mark.thorough
def test_coming_from_torchrl(hopper):
    pytest.importorskip("tensordict")
    for batch in Loader(hopper, 8, window=Slice(32)):
        td = batch.tensordict()
        break
    assert td.batch_size == (8, 32) and td["next", "reward"].shape == (8, 32, 1)
    whole = next(iter(Loader(hopper, 12, window=Episode())))
    assert whole["mask"].shape == (12, 50)
