"""The training examples run on every kind of dataset that they claim, print what they return, and learn."""

from __future__ import annotations

import importlib
import math
import re
import sys
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
import torch

import rlds_cli
from rlds_cli.errors import NoReward
from rlds_cli.loader import Normalize
from rlds_cli.make import importing

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "rlds_cli" / "samples"
OGBENCH = Path(__file__).parents[1] / "data" / "ogbench"
PENDULUM, CARTPOLE, MOUNTAINCAR = "sample/pendulum-d4rl", "sample/cartpole-minari", "sample/mountaincar-robohive"
TRAINERS = ("behaviour_cloning", "td3_bc", "iql", "decision_transformer")
# For what asks nothing of the environment, the one whose episodes are short: evaluation is most of the work.
SHORT = {name: PENDULUM if name == "td3_bc" else CARTPOLE for name in TRAINERS}


def load(path: str) -> ModuleType:
    sys.path.insert(0, str(ROOT / "examples"))  # as for a script that is run
    try:
        return loaded(path)
    finally:
        sys.path.pop(0)


def loaded(path: str) -> ModuleType:
    spec = spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[module.__name__] = module  # dataclasses look for their module there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def threads() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # on a busy machine two wait for each other at every layer
    yield
    torch.set_num_threads(before)


def nested(name: str = "local/nested", reward: bool = True) -> None:
    """Four episodes of nested observations of a vector and a number, two actions; of no environment."""
    rng = np.random.default_rng(0)
    episodes = []
    for k in range(4):
        n = 30 + k
        e: dict[str, Any] = {"observation": {"x": rng.normal(size=(n + 1, 3)), "goal": rng.normal(size=n + 1)}}
        e["action"] = rng.uniform(-0.3, 0.7, size=(n, 2))
        e["next"] = {"terminated": True} | ({"reward": rng.normal(size=n)} if reward else {})
        episodes.append(e)
    rlds_cli.create(name, episodes)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "id"),
    [
        ("behaviour_cloning", PENDULUM),
        ("td3_bc", MOUNTAINCAR),
        pytest.param("iql", CARTPOLE, marks=pytest.mark.slow),
        ("iql", MOUNTAINCAR),
        pytest.param("decision_transformer", CARTPOLE, marks=pytest.mark.slow),
        pytest.param("decision_transformer", MOUNTAINCAR, marks=pytest.mark.slow),
    ],
)
def test_a_few_steps(name: str, id: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = load(f"examples/{name}.py")
    if id == PENDULUM:  # episodes of 200 steps, of which a third say the same
        plain = module.evaluate
        module.evaluate = lambda env, act, seed, episodes=10: plain(env, act, seed, episodes // 3)
    curve = module.train(id, steps=8, eval_every=4)
    assert [point[0] for point in curve] == [4, 8]
    assert all(math.isfinite(x) for point in curve for x in point)
    output = capsys.readouterr().out
    printed = re.findall(r"^step +(\d+) .*return +(-?[\d.]+)   score +-?[\d.]+$", output, re.M)
    assert [(int(step), float(value)) for step, value in printed] == [(p[0], round(p[-1], 1)) for p in curve]
    known = {PENDULUM: (-176.7, -1255.5, 80), CARTPOLE: (361.8, 22.0, 4), MOUNTAINCAR: (73.7, -6.6, 2)}[id]
    data, random = (float(x) for x in re.findall(r"^(?:the data|a random policy) +return +(-?[\d.]+)", output, re.M))
    assert data == known[0]  # the mean of the archive's episodes
    assert random == pytest.approx(known[1], abs=known[2])  # the reference score that the archive came with


@pytest.mark.thorough
@pytest.mark.parametrize("name", TRAINERS)
def test_nested_observations_of_no_environment(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nested()
    curve = load(f"examples/{name}.py").train("local/nested", steps=6, eval_every=6, save=tmp_path / "policy.pt")
    output = capsys.readouterr().out
    assert "no evaluation: The environment of local/nested is not known" in output
    assert all(math.isfinite(x) for x in curve[0][:-1]) and math.isnan(curve[0][-1])
    assert "nan" not in output
    saved = torch.load(tmp_path / "policy.pt")
    norm = Normalize.from_state_dict(saved["normalize"].get("observation") or saved["normalize"])
    ds = rlds_cli.open_dataset("local/nested")
    mean = ds.stats["observation/x"].mean
    assert norm.apply("observation/x", mean) == pytest.approx(np.zeros(3), abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINERS)
def test_the_same_seed_prints_the_same(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    train = load(f"examples/{name}.py").train
    outputs = []
    for seed in (3, 3, 4):
        train(SHORT[name], steps=6, eval_every=6, seed=seed)
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] != outputs[2]


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINERS)
def test_some_of_the_episodes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if SHORT[name] == CARTPOLE:
        with h5py.File(SAMPLES / "cartpole-minari/data/main_data.hdf5") as f:
            returns = np.array([f[e]["rewards"][:].sum() for e in f])
    else:
        with h5py.File(SAMPLES / "pendulum-d4rl.hdf5") as f:
            returns = np.add.reduceat(f["rewards"][:].astype(np.float64), np.arange(0, 5100, 200))
    middle = round(float(np.median(returns)), 3)
    load(f"examples/{name}.py").train(SHORT[name], where=f"total_reward < {middle}", steps=4, eval_every=4)
    some = returns[returns < middle].mean()
    said = re.search(r"^the data +return +(-?[\d.]+) ", capsys.readouterr().out, re.M)
    assert said is not None and abs(float(said[1]) - some) < 0.06 and 0 < (returns < middle).sum() < len(returns)


@pytest.mark.thorough
def test_what_an_example_does_not_take() -> None:
    with pytest.raises(SystemExit, match="continuous actions, not int64"):
        load("examples/td3_bc.py").train(CARTPOLE, steps=1)
    nested("local/no-reward", reward=False)
    for name in TRAINERS[1:]:
        with pytest.raises(NoReward, match="local/no-reward has no reward"):
            load(f"examples/{name}.py").train("local/no-reward", steps=1)
    image = {"observation": np.zeros((3, 8, 8, 3), np.uint8), "action": np.zeros((2, 1)), "next": {"reward": [0.0, 1]}}
    rlds_cli.create("local/images", [image])
    for name in TRAINERS:
        with pytest.raises(SystemExit, match="takes vectors"):
            load(f"examples/{name}.py").train("local/images", steps=1)


def test_a_told_action_depends_on_nothing_that_comes_later() -> None:
    model = load("examples/decision_transformer.py").DecisionTransformer(3, 2, 50, 16, 2).eval()
    torch.manual_seed(0)
    given = [torch.randn(4, 10, n) for n in (1, 3, 2)]
    step = torch.arange(10).expand(4, -1)
    told = model(*given, step)
    for k in range(3):
        changed = [x.clone() for x in given]
        changed[k][:, 6:] += 1
        later = model(*changed, step)
        own = 7 if k == 2 else 6  # the action of a step is no input of what is told for it
        torch.testing.assert_close(later[:, :own], told[:, :own])
        assert not torch.allclose(later[:, own:], told[:, own:])


@pytest.mark.thorough
def test_it_learns() -> None:
    curve = load("examples/behaviour_cloning.py").train(CARTPOLE, steps=600, eval_every=600)
    assert curve[-1][-1] > 450  # the data: 362 on average, a random policy: 22


# -- growing datasets


@pytest.mark.thorough
def test_dagger_appends_what_the_expert_would_have_done(capsys: pytest.CaptureFixture[str]) -> None:
    module = load("examples/dagger.py")
    curve = module.train(rounds=2, steps=4, evaluations=1, into="local/one")
    assert [point[0] for point in curve] == [4, 8] and all(math.isfinite(x) for point in curve for x in point)
    printed = re.findall(r"^step +(\d+) .*return +(-?[\d.]+)   score +-?[\d.]+$", capsys.readouterr().out, re.M)
    assert [(int(step), float(value)) for step, value in printed] == [(p[0], round(p[-1], 1)) for p in curve]
    ds = rlds_cli.open_dataset("local/one")
    assert ds.episodes["length"].tolist() == [200] * 5  # a demonstration, and two episodes in each round
    for k in range(5):
        e = ds.episode(k)
        assert e["action"].tolist() == [module.expert(o).tolist() for o in e["observation"]]
        same = (e["info/taken"] == e["action"]).all()
        assert same == (k == 0)  # the learner does other things
        speed = e["observation"][:-1, 2] + 0.05 * (15 * e["observation"][:-1, 1] + 3 * e["info/taken"][:-1, 0])
        np.testing.assert_allclose(e["observation"][1:, 2], speed.clip(-8, 8), atol=1e-4)  # Pendulum's own equation
    with pytest.raises(SystemExit, match="local/one is here already"):
        module.train(rounds=1, steps=1, into="local/one")


@pytest.mark.thorough
def test_demonstrations_with_faults_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    module = load("examples/clean_demonstrations.py")
    made = module.datasets(0)
    kept = set(made["filtered"].episodes["source_episode"].tolist())
    same = [np.array_equal(made["clean"].episode(k)["action"], made["planted"].episode(k)["action"]) for k in range(80)]
    assert sum(same) == 64  # of 80, 16 have a fault
    assert len({k for k in range(80) if not same[k]} - kept) >= 15
    assert {k for k in range(80) if same[k]} <= kept
    assert math.isfinite(module.main(seeds=1, steps=4))
    assert "| mean |" in capsys.readouterr().out


@pytest.mark.thorough
def test_a_few_steps_from_offline_to_online(capsys: pytest.CaptureFixture[str]) -> None:
    module = load("examples/rlpd.py")
    curve = module.train(offline=4, online=12, eval_every=8, evaluations=1, into="local/one")
    assert [point[0] for point in curve] == [8, 16] and all(math.isfinite(x) for point in curve for x in point)
    output = capsys.readouterr().out
    printed = re.findall(r"^step +(\d+) .*return +(-?[\d.]+)   score +-?[\d.]+$", output, re.M)
    assert [(int(step), float(value)) for step, value in printed] == [(p[0], round(p[-1], 1)) for p in curve]
    with h5py.File(SAMPLES / "pendulum-d4rl.hdf5") as f:
        returns = np.add.reduceat(f["rewards"][:].astype(np.float64), np.arange(0, 5100, 200))
    assert f"the data               return {np.sort(returns)[:3].mean():8.1f}" in output  # the poorest three
    ds = rlds_cli.open_dataset("local/one")
    assert ds.episodes["length"].tolist() == [12] and ds.episodes["end"].tolist() == ["cut"]
    e = ds.episode(0)
    speed = e["observation"][:, 2] + 0.05 * (15 * e["observation"][:, 1] + 3 * e["action"][:, 0])
    np.testing.assert_allclose(e["next/observation"][:, 2], speed.clip(-8, 8), atol=1e-4)  # Pendulum's own equation


@pytest.mark.slow
def test_rlpd_learns_values_and_the_better_action() -> None:
    """One step with one reward: values become the reward, and the policy moves to the better action."""
    torch.manual_seed(0)
    module = load("examples/rlpd.py")
    trainer = module.Trainer()
    s, a = torch.tensor([[1.0, 0.0, 0.0]]).expand(64, -1), torch.linspace(-2, 2, 64)[:, None]
    r = -8 * (a / 2 - 0.5).abs()  # best at half of the torque

    class Batch:
        def sarsd(self) -> Any:
            return s, a, r, s, torch.ones(64, 1)

    before = trainer.act(np.array([1.0, 0.0, 0.0], np.float32))
    for _ in range(300):
        trainer.train(Batch(), cloning=False)
    with torch.no_grad():
        values = trainer.critics(s * module.OBSERVATION, a / 2).mean(0)
    assert (values - r / 8).abs().mean() < 0.1
    after = trainer.act(np.array([1.0, 0.0, 0.0], np.float32))
    assert abs(after[0] - 1) < 0.5 < abs(before[0] - 1)


# -- images and goals


@pytest.fixture
def worlds(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of the worlds, which makes only a few episodes."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    module = importlib.import_module("worlds")
    few = {ref: (env, partial(episodes, 4)) for ref, (env, episodes) in module.EPISODES.items()}
    monkeypatch.setattr(module, "EPISODES", few)
    monkeypatch.setattr(gymnasium.spec("rlds/Detour-v0"), "max_episode_steps", 4)
    monkeypatch.setattr(gymnasium.spec("rlds/Maze-v0"), "max_episode_steps", 4)
    return module


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "plain"), [("action_chunks", "single"), ("gcivl", "clone")])
def test_a_few_steps_of_images_and_goals(
    name: str, plain: str, worlds: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module, outputs = load(f"examples/{name}.py"), []
    module.environments = partial(module.environments, episodes=5)  # type: ignore[attr-defined]
    for given in ({}, {plain: True}, {}):
        curve = module.train(steps=2, eval_every=1, save=tmp_path / "policy.pt", **given)
        assert [point[0] for point in curve] == [1, 2]
        assert all(math.isfinite(x) for point in curve for x in point)
        outputs.append(capsys.readouterr().out)
        printed = re.findall(r"^step +(\d+) .*success +([\d.]+) %$", outputs[-1], re.M)
        assert [(int(step), float(value)) for step, value in printed] == [(p[0], p[-1]) for p in curve]
        assert re.search(r"^a random policy +success +0\.0 %$", outputs[-1], re.M)
    assert outputs[0] == outputs[2] != outputs[1]  # the same seed prints the same
    saved = torch.load(tmp_path / "policy.pt")
    assert all(torch.isfinite(x).all() for x in saved["policy"].values())


@pytest.mark.thorough
def test_images_of_another_size_and_no_environment(worlds: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (9, 64, 56, 3), dtype=np.uint8)
    observation = {"camera": {"left": frames}, "joint": rng.normal(size=(9, 3)), "grip": rng.normal(size=9)}
    rlds_cli.create("local/arm", [{"observation": observation, "action": rng.uniform(-1, 1, (8, 2, 2))}])
    module = load("examples/action_chunks.py")
    curve = module.train("local/arm", steps=2, eval_every=2)
    assert math.isfinite(curve[0][1]) and math.isnan(curve[0][2])
    assert "no evaluation: The environment of local/arm is not known" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="takes images, not observation"):
        module.train(PENDULUM, steps=1)


@pytest.mark.thorough
def test_two_cameras_at_their_own_rates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = load("examples/act.py")
    module.success = partial(module.success, episodes=2)  # type: ignore[attr-defined]
    curve = module.train(episodes=3, steps=2, eval_every=1, save=tmp_path / "policy.pt")
    assert [point[0] for point in curve] == [1, 2]
    assert all(math.isfinite(x) for point in curve for x in point)
    assert "210 steps of 3 episodes at 50 Hz; top at 10 Hz, wrist at 25 Hz" in capsys.readouterr().out
    ds = rlds_cli.open_dataset("local/reach")
    world, wrist = module.Reach(1), ds.episode(1)["observation", "wrist"]
    for t in range(3):  # what the wrist saw at steps 0 and 2; the codec changes it a little
        assert np.abs(wrist[t].astype(int) - world.shown["wrist"]).mean() < 6
        world.step(world.expert())
    monkeypatch.setattr(module.Reach, "reached", True)
    assert module.success(module.Policy(), module.Sight(ds), 0) == 100


@pytest.mark.thorough
def test_goals_of_an_ogbench_archive(worlds: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    files = [OGBENCH / f"pointmaze-medium-navigate-v0{part}.npz" for part in ("", "-val")]
    importing.import_files(files, "local/ogbench")
    module = load("examples/gcivl.py")
    curve = module.train("local/ogbench", steps=2, eval_every=2)
    assert all(math.isfinite(x) for x in curve[0][:-1]) and math.isnan(curve[0][-1])
    flags = np.load(files[0])["terminals"]
    steps, episodes = (~flags).sum(), flags.sum()  # those of the validation file are left out
    assert f"local/ogbench: {steps:,} transitions of {episodes} episodes" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="continuous actions, not int64"):
        module.train(CARTPOLE, steps=1)


@pytest.mark.thorough
def test_the_values_of_goals_are_of_steps_to_them() -> None:
    """A chain of four places, each leading to the next: with one goal, V becomes minus the discounted steps."""
    torch.manual_seed(0)
    trainer = load("examples/gcivl.py").Trainer(4, 1, False, 0.9, 3.0, 3e-3, 0.1, "cpu")
    places = torch.eye(4)
    s, s2, g = places, places[[1, 2, 3, 3]], places[3].expand(4, -1)
    for _ in range(250):
        trainer.train_values(s, s2, g, torch.tensor([False, False, False, True]))
    steps = [-(1 + 0.99 + 0.99**2), -(1 + 0.99), -1.0, 0.0]
    assert trainer.v(s, g).mean(0).tolist() == pytest.approx(steps, abs=0.1)
    assert (trainer.weight(s[:3], s2[:3], g[:3]) > 10).all() and (trainer.weight(s2[:2], s[:2], g[:2]) < 0.1).all()


@pytest.mark.slow
def test_noise_becomes_one_of_the_actions_that_were_done_not_their_mean() -> None:
    torch.manual_seed(0)
    module = load("examples/action_chunks.py")
    seen, done = torch.zeros(8, 1), torch.tensor([[-0.8], [0.8]]).repeat(4, 1)  # left or right, by turns
    told = {}
    for head in (module.Regression(1, 1), module.Diffusion(1, 1)):
        optimizer = torch.optim.Adam(head.parameters(), lr=3e-3)
        for _ in range(120):
            optimizer.zero_grad()
            head.loss(seen, done).backward()
            optimizer.step()
        told[type(head).__name__] = head(torch.zeros(64, 1)).detach()[:, 0]
    assert told["Regression"].abs().max() < 0.1
    assert told["Diffusion"].abs().mean() > 0.4
    assert 0.2 < (told["Diffusion"] > 0).float().mean() < 0.8


@pytest.mark.thorough
def test_the_maze_moves_a_point_as_ogbench_does(worlds: ModuleType) -> None:
    """The steps of OGBench's own simulation, in its maze and at its speed; where it touches no wall, exactly."""

    class Medium(worlds.Maze):  # type: ignore[name-defined, misc]
        SPEED = 0.2
        ROWS = ("########", "#..##..#", "#..#...#", "##...###", "#..#...#", "#.#..#.#", "#...#..#", "########")
        WALLS = np.array([[c == "#" for c in row] for row in ROWS])

    with np.load(OGBENCH / "pointmaze-medium-navigate-v0.npz") as archive:
        at, actions, last = (archive[name] for name in ("observations", "actions", "terminals"))
    world, wrong = Medium(), []
    world.reset(seed=0)
    for t in np.flatnonzero(~last):
        world.at = at[t].astype(float)
        wrong.append(np.abs(world.step(actions[t])[0] - at[t + 1]).max())
    assert np.mean(np.array(wrong) < 1e-4) > 0.97 and max(wrong) < 0.21


def test_walks_of_the_maze_solve_no_task(worlds: ModuleType) -> None:
    world = worlds.Maze()
    for start, goal in world.TASKS:
        assert worlds.distances(world.WALLS, goal)[start] > 3
    episodes = list(worlds.maze_episodes(20))
    for e in episodes:
        assert len(e["observation"]) == len(e["action"]) + 1 and np.abs(np.diff(e["observation"], axis=0)).max() < 1.01
    again = list(worlds.maze_episodes(20))
    assert all(np.array_equal(x["action"], y["action"]) for x, y in zip(episodes, again, strict=True))


def test_the_detour_is_drawn_and_ends_at_the_block_and_the_target(worlds: ModuleType) -> None:
    world = worlds.Detour()
    first, _ = world.reset(seed=0)
    white, blue = np.array([255, 255, 255]), np.array([26, 76, 230])

    def colour(image: Any, at: Any) -> Any:
        return image[int((1 - at[1]) * 24), int((1 + at[0]) * 24)]

    image = first["image"]
    assert image.shape == (48, 48, 3) and (colour(image, (-0.95, -0.95)) == white).all()
    assert np.abs(colour(image, world.hand).astype(int) - blue).max() <= 1
    assert np.abs(colour(image, world.target).astype(int) - [51, 178, 76]).max() <= 1
    assert np.abs(colour(image, world.block).astype(int) - [204, 51, 51]).max() <= 1
    world.hand = world.block - [0, 0.1 + 0.07 + 0.06]  # below its edge, a radius and a little more away
    assert world.step(np.array([0.0, 0.0]))[1:3] == (0.0, False)
    assert world.step(np.array([0.0, 2.0]))[1:3] == (0.0, False)  # an action of 2 is one of 1: 0.05 of the 0.06
    assert world.step(np.array([0.0, 1.0]))[1:3] == (0.0, True)
    world.hand = world.target + np.array([0, 0.16])
    assert world.step(np.array([0.0, -1.0]))[1:3] == (1.0, True)


# -- the page


def test_the_page_shows_the_commands_and_they_reached_what_is_asked() -> None:
    script = load("scripts/learn.py")
    page = (ROOT / "docs" / "reference" / "learning-curves.md").read_text()
    parts = script.sections(page)
    assert list(parts) == [run.title for run in script.RUNS]
    for run in script.RUNS:
        part = parts[run.title]
        assert f"\n$ {run.command}\n" in part
        if run.least is None:  # it judges itself: 90 % of the gap, over five seeds
            recovered = re.findall(r"^\| (\w+) \|.* (\d+) % \|$", part, re.M)
            assert [seed for seed, _ in recovered] == ["0", "1", "2", "3", "4", "mean"]
            assert int(recovered[-1][1]) >= 90
            continue
        rows = re.findall(r"^\| step ([\d,]+) \| (-?[\d.]+) \|", part, re.M)
        random = float(re.findall(r"^\| a random policy \| (-?[\d.]+) \|", part, re.M)[0])
        assert len(rows) == 8 and float(rows[-1][1]) >= run.least > random
        assert (f"\n| {run.rival} | " in part) == (run.beside is not None)
    drawn = script.picture(script.panels(parts))
    assert drawn == (ROOT / "docs" / "pictures" / "examples.svg").read_text()


def test_what_the_page_is_made_of() -> None:
    script = load("scripts/learn.py")
    output = (
        "the data               return   -176.7   score   99.1\n"
        "a random policy        return  -1207.6   score    4.4\n"
        "step   1000   critic    34.692   actor   2.601   return   -750.2   score   46.4\n"
        "step   2000   loss 0.5761   return   -185.3   score   98.3\n"
        "a random policy        success   2.0 %\n"
        "step    200   loss 0.2271   success  96.0 %\n"
    )
    before = "a\n<!-- figures -->\n<!-- end of figures -->\nb\n"
    once = "a\n<!-- figures -->\nx\n\n<!-- end of figures -->\nb\n"
    assert script.insert(before, "x") == script.insert(once, "x") == once
    found = script.LINE.findall(output)
    assert found == [
        ("the data", "", "-176.7", "99.1", ""),
        ("a random policy", "", "-1207.6", "4.4", ""),
        ("step   1000", "1000", "-750.2", "46.4", ""),
        ("step   2000", "2000", "-185.3", "98.3", ""),
        ("a random policy", "", "", "", "2.0"),
        ("step    200", "200", "", "", "96.0"),
    ]


def test_a_section_of_the_page_and_its_curve() -> None:
    script = load("scripts/learn.py")
    run = script.Run("Some", "python x.py", 50, "python x.py --plain", "plain")
    rival = script.Result(run, {}, ((10, 30.0, 30.0),), 3.0, True)
    curve = ((500, 40.0, 40.0), (1000, 62.5, 62.5))
    result = script.Result(run, {"a random policy": (2.0, 2.0)}, curve, 12.4, True)
    text = (
        "### Some\n\n```console\n$ python x.py\n$ python x.py --plain\n```\n\n| | success, % |\n|---|---|\n"
        "| a random policy | 2.0 |\n| plain | 30.0 |\n| step 500 | 40.0 |\n| step 1,000 | 62.5 |\n\n"
        "12 seconds of one core."
    )
    assert script.section(result, rival) == text
    page = script.insert("a\n<!-- figures -->\n<!-- end of figures -->\n", f"### Other\n\nx\n\n{text}")
    assert script.sections(page) == {"Other": "### Other\n\nx", "Some": text}
    references = {"a random policy": 2.0, "plain": 30.0}
    assert script.panel("Some", text) == script.Panel("Some", ((500, 40.0), (1000, 62.5)), references)


@pytest.mark.thorough
def test_the_code_of_the_page_runs() -> None:
    page = (ROOT / "docs" / "guides" / "examples.md").read_text()
    namespace: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", page, re.S):
        exec(code, namespace)
    assert namespace["observation"] in namespace["env"].observation_space
