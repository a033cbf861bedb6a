"""What `create` is told of a dataset as a whole: spaces, licence, description, citation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rlds_cli import create, open_dataset
from rlds_cli.dataset import Dataset
from rlds_cli.errors import DatasetNotFound, InvalidArgument
from rlds_cli.look.report import catalogue, summarise
from rlds_cli.preprocess import run

BOX = gym.spaces.Box(np.array([-1, -np.inf], np.float32), np.array([1, np.inf], np.float32))
BIBTEX = "@misc{press,\n  title = {Presses}\n}"


def episode(observation: Any = None, action: Any = None) -> dict[str, Any]:
    return {
        "observation": np.zeros((4, 2), np.float32) if observation is None else observation,
        "action": np.zeros(3, np.int64) if action is None else action,
    }


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["gymnasium", "json", "text"])
def test_spaces_come_back(form: str) -> None:
    described = {
        "type": "Box", "dtype": "float32", "shape": [2], "low": [-1.0, "-Infinity"], "high": [1.0, "Infinity"],
    }  # fmt: skip
    given: Any = {"gymnasium": BOX, "json": described, "text": json.dumps(described)}[form]
    create("local/x", [episode()], observation_space=given, action_space=gym.spaces.Discrete(3, start=-1))
    ds = open_dataset("local/x")
    assert ds.observation_space == BOX
    assert ds.action_space == gym.spaces.Discrete(3, start=-1)
    assert summarise(ds).spaces["action"] == {"type": "Discrete", "dtype": "int64", "start": -1, "n": 3}


def test_spaces_of_nested_observations() -> None:
    space = gym.spaces.Dict({"pos": gym.spaces.Box(-1, 1, (2,), np.float32), "gripper": gym.spaces.Discrete(2)})
    nested = {"pos": np.zeros((4, 2), np.float32), "gripper": np.zeros(4, np.int64)}
    ds = create("local/x", [episode(nested)], observation_space=space)
    assert ds.observation_space == space
    with pytest.raises(InvalidArgument, match="observation_space: the space has no place for observation/gripper"):
        create("local/y", [episode(nested)], observation_space=gym.spaces.Dict({"pos": space["pos"]}))


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (gym.spaces.Box(-1, 1, (3,)), r"a row of observation has shape \[2\], in the space \[3\]"),
        (gym.spaces.Graph(BOX, None), "a space of type Graph|A space of type Graph has no JSON form"),
        ({"type": "Sphere"}, "'Sphere' is not a space"),
        ({"type": "Box", "shape": [2]}, "the description of a Box space lacks dtype, low, high"),
        ("{", "observation_space is a text, but not JSON"),
        (3, "'int' is not a space"),
    ],
)
def test_what_is_no_space_of_the_data_is_refused(home: Path, space: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=f"observation_space.*({message})|{message}"):
        create("local/x", [episode()], observation_space=space)
    with pytest.raises(DatasetNotFound):
        open_dataset("local/x")
    assert not list(home.glob("partial/*"))


@pytest.mark.thorough
def test_spaces_of_an_environment_that_gymnasium_has() -> None:
    cartpole = episode(np.zeros((4, 4), np.float32))
    ds = create("local/x", [cartpole], env_id="CartPole-v1")
    env = gym.make("CartPole-v1")
    assert (ds.observation_space, ds.action_space) == (env.observation_space, env.action_space)
    assert not ds.manifest.notes or "no-space" not in {n["code"] for n in ds.manifest.notes}
    own = create("local/y", [cartpole], env_id="CartPole-v1", action_space=gym.spaces.Discrete(5))
    assert own.action_space == gym.spaces.Discrete(5) and own.observation_space == env.observation_space


@pytest.mark.thorough
def test_an_environment_that_cannot_say_leaves_a_note() -> None:
    ds = create("local/x", [episode()], env_id="CartPole-v1")  # whose observations have four elements
    notes = {n["code"]: n["text"] for n in ds.manifest.notes}
    assert notes["no-space"].startswith("the observation space of CartPole-v1 is not taken: a row of observation has")
    assert set(ds.manifest.spaces) == {"action"}
    for unknown in ("Press-v0", "os:Press-v0"):
        assert create("local/y", [episode()], env_id=unknown, force=True).manifest.spaces == {}


def test_gymnasium_is_not_imported_without_an_environment() -> None:
    code = (
        "import sys, numpy as np, rlds_cli\n"
        "rlds_cli.create('local/x', [{'observation': np.zeros(4), 'action': np.zeros(3)}],\n"
        "    observation_space={'type': 'Discrete', 'n': 2})\n"
        "assert 'gymnasium' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def dataset() -> Dataset:
    return create("local/x", [episode()], license="CC-BY-4.0", description="Presses of a button.", citation=BIBTEX)


def test_licence_description_and_citation_are_shown() -> None:
    ds = dataset()
    for one in (ds, run(ds, _same, "same")):
        about = summarise(one).about
        assert (about.licence, about.description) == ("CC-BY-4.0", "Presses of a button.")
    assert catalogue.citation("local/x").startswith("@misc{press,\n  title = {Presses},\n  note = {dataset local/x")
    for command, words in (("inspect", "licence CC-BY-4.0"), ("info", "CC-BY-4.0   --cite for BibTeX")):
        shown = subprocess.run([sys.executable, "-m", "rlds_cli", command, "local/x"], capture_output=True, text=True)
        assert words in shown.stdout and "Presses of a button." in shown.stdout, shown


def _same(ep: dict[str, Any]) -> dict[str, Any]:
    return ep


def test_they_are_texts() -> None:
    with pytest.raises(InvalidArgument, match="license=3: a text is needed"):
        create("local/x", [episode()], license=3)  # type: ignore[arg-type]
