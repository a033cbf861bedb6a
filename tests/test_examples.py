"""The training examples run on every kind of dataset that they claim, print what they return, and learn."""

from __future__ import annotations

import math
import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import h5py
import numpy as np
import pytest
import torch

import rlds_cli
from rlds_cli.errors import NoReward
from rlds_cli.loader import Normalize

ROOT = Path(__file__).parents[1]
SAMPLES = ROOT / "rlds_cli" / "samples"
PENDULUM, CARTPOLE, MOUNTAINCAR = "sample/pendulum-d4rl", "sample/cartpole-minari", "sample/mountaincar-robohive"
TRAINERS = ("behaviour_cloning", "td3_bc", "iql", "decision_transformer")
# For what asks nothing of the environment, the one whose episodes are short: evaluation is most of the work.
SHORT = {name: PENDULUM if name == "td3_bc" else CARTPOLE for name in TRAINERS}


def load(path: str) -> ModuleType:
    spec = spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[module.__name__] = module  # dataclasses look for their module there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def threads() -> Any:
    before = torch.get_num_threads()
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


@pytest.mark.parametrize(
    ("name", "id"),
    [
        ("behaviour_cloning", PENDULUM),
        ("td3_bc", MOUNTAINCAR),
        ("iql", CARTPOLE),
        ("iql", MOUNTAINCAR),
        ("decision_transformer", CARTPOLE),
        ("decision_transformer", MOUNTAINCAR),
    ],
)
def test_a_few_steps(name: str, id: str, capsys: pytest.CaptureFixture[str]) -> None:
    curve = load(f"examples/{name}.py").train(id, steps=8, eval_every=4)
    assert [point[0] for point in curve] == [4, 8]
    assert all(math.isfinite(x) for point in curve for x in point)
    output = capsys.readouterr().out
    printed = re.findall(r"^step +(\d+) .*return +(-?[\d.]+)   score +-?[\d.]+$", output, re.M)
    assert [(int(step), float(value)) for step, value in printed] == [(p[0], round(p[-1], 1)) for p in curve]
    known = {PENDULUM: (-176.7, -1255.5, 80), CARTPOLE: (361.8, 22.0, 4), MOUNTAINCAR: (73.7, -6.6, 2)}[id]
    data, random = (float(x) for x in re.findall(r"^(?:the data|a random policy) +return +(-?[\d.]+)", output, re.M))
    assert data == known[0]  # the mean of the archive's episodes
    assert random == pytest.approx(known[1], abs=known[2])  # the reference score that the archive came with


@pytest.mark.parametrize("name", TRAINERS)
def test_nested_observations_of_no_environment(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nested()
    curve = load(f"examples/{name}.py").train("local/nested", steps=6, eval_every=6, save=tmp_path / "policy.pt")
    output = capsys.readouterr().out
    assert "no evaluation: Nobody says which environment local/nested is of" in output
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


def test_it_learns() -> None:
    curve = load("examples/behaviour_cloning.py").train(CARTPOLE, steps=600, eval_every=600)
    assert curve[-1][-1] > 450  # the data: 362 on average, a random policy: 22


# -- the page


def test_the_page_shows_the_commands_and_they_reached_what_is_asked() -> None:
    script = load("scripts/learn.py")
    page = (ROOT / "docs" / "examples.md").read_text()
    parts = re.split(r"^### ", page, flags=re.M)
    for run in script.RUNS:
        part = next(p for p in parts if p.startswith(f"{run.title}\n"))
        assert f"\n$ {run.command}\n" in part
        rows = re.findall(r"^\| step ([\d,]+) \| (-?[\d.]+) \| (-?[\d.]+) \|$", part, re.M)
        random = float(re.findall(r"^\| a random policy \| (-?[\d.]+) \|", part, re.M)[0])
        assert len(rows) == 8 and float(rows[-1][1]) >= run.least > random
        assert f"{run.title}</text>" in (ROOT / "docs" / "examples.svg").read_text()


def test_what_the_page_is_made_of() -> None:
    script = load("scripts/learn.py")
    output = (
        "the data               return   -176.7   score   99.1\n"
        "a random policy        return  -1207.6   score    4.4\n"
        "step   1000   critic    34.692   actor   2.601   return   -750.2   score   46.4\n"
        "step   2000   loss 0.5761   return   -185.3   score   98.3\n"
    )
    before = "a\n<!-- figures -->\n<!-- end of figures -->\nb\n"
    once = "a\n<!-- figures -->\nx\n\n<!-- end of figures -->\nb\n"
    assert script.insert(before, "x") == script.insert(once, "x") == once
    found = script.LINE.findall(output)
    assert found == [
        ("the data", "", "-176.7", "99.1"),
        ("a random policy", "", "-1207.6", "4.4"),
        ("step   1000", "1000", "-750.2", "46.4"),
        ("step   2000", "2000", "-185.3", "98.3"),
    ]


def test_the_code_of_the_page_runs() -> None:
    page = (ROOT / "docs" / "examples.md").read_text()
    namespace: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", page, re.S):
        exec(code, namespace)
    assert namespace["observation"] in namespace["env"].observation_space
