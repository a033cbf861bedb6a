"""Which environment a dataset is of, and what is refused."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import rlds_cli
from rlds_cli import preprocess, registry
from rlds_cli.base.files.packaged import registry_directory
from rlds_cli.dataset import Dataset, environments, reference_scores
from rlds_cli.dataset.environments import Recipe
from rlds_cli.errors import MissingPackage, NoEnvironment, RldsError
from rlds_cli.interop import minari
from rlds_cli.make.importing import import_files
from rlds_cli.registry import lookup
from rlds_cli.store.manifest import Manifest

PENDULUM, CARTPOLE, MOUNTAINCAR = "sample/pendulum-d4rl", "sample/cartpole-minari", "sample/mountaincar-robohive"
GYMNASIUM = {"Hopper-v4", "HalfCheetah-v4", "Walker2d-v4", "CartPole-v1", "Pendulum-v1"}


@pytest.fixture(scope="module")
def any_manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return press(tmp_path_factory.mktemp("home")).manifest


def press(home: Any = None, env_id: str | None = None, observation: int = 2) -> Dataset:
    episode = {"observation": np.zeros((3, observation)), "action": np.zeros((2, 1)), "next": {"reward": [0.0, 1.0]}}
    return rlds_cli.create("local/press", [episode], env_id=env_id, home=home, force=True)


def of(manifest: Manifest, env: Mapping[str, Any], id: str = "local/press") -> Manifest:
    return replace(manifest, env=env, id=id)


# -- the samples


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("id", "name", "limit"),
    [(PENDULUM, "Pendulum-v1", 200), (CARTPOLE, "CartPole-v1", 500), (MOUNTAINCAR, "MountainCarContinuous-v0", 200)],
)
def test_the_samples_have_their_environments(id: str, name: str, limit: int) -> None:
    env = rlds_cli.download(id).make_env()
    assert env.spec is not None and env.spec.id == name
    env.reset(seed=0)
    zero, steps, over = np.zeros(env.action_space.shape or (), env.action_space.dtype), 0, False
    while not over:
        _, _, terminated, truncated, _ = env.step(zero)
        steps, over = steps + 1, terminated or truncated
    assert steps == limit or (name == "CartPole-v1" and terminated)


@pytest.mark.thorough
def test_cartpole_replays_in_its_own_environment() -> None:
    ds = rlds_cli.download(CARTPOLE)
    env, episode = ds.make_env(), ds.episode(0)
    observation, _ = env.reset(seed=2**63, options={"low": -0.05, "high": 0.05})
    for t in range(50):
        np.testing.assert_allclose(observation, episode["observation"][t], atol=1e-5)
        observation, *_ = env.step(int(episode["action"][t]))


def test_settings_go_to_gymnasium() -> None:
    ds = rlds_cli.download(PENDULUM)
    env = ds.make_env(max_episode_steps=7, g=1.0, render_mode="rgb_array")
    assert env.spec is not None and env.spec.max_episode_steps == 7
    assert env.unwrapped.g == 1.0 and env.render_mode == "rgb_array"  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="gravity"):
        ds.make_env(gravity=1.0)


@pytest.mark.thorough
def test_a_selection_has_the_environment_of_the_whole() -> None:
    env = rlds_cli.download(CARTPOLE).select(where="total_reward > 400").make_env()
    assert env.spec is not None and env.spec.id == "CartPole-v1"


# -- deciding


def test_evaluation_comes_first_and_a_description_before_an_id(any_manifest: Manifest) -> None:
    spec = {"id": "CartPole-v1", "kwargs": {"sutton_barto_reward": True, "render_mode": "human"}}
    evaluation = {"id": "Pendulum-v1", "kwargs": {"g": 9.8}, "max_episode_steps": 300}
    env = {"id": "CartPole-v1", "spec": spec, "eval_spec": evaluation, "max_episode_steps": 100}
    assert environments.plan(of(any_manifest, env), GYMNASIUM) == Recipe("Pendulum-v1", {"g": 9.8}, 300)
    del env["eval_spec"]
    expected = Recipe("CartPole-v1", {"sutton_barto_reward": True}, 100)  # no window of the collector's
    assert environments.plan(of(any_manifest, env), GYMNASIUM) == expected
    named = {"id": "CartPole-v1", "eval_id": "Pendulum-v1"}
    assert environments.plan(of(any_manifest, named), GYMNASIUM).id == "Pendulum-v1"


@pytest.mark.parametrize(
    ("legacy", "made"),
    [
        ("hopper-medium-v2", "Hopper-v4"),
        ("halfcheetah-random-v0", "HalfCheetah-v4"),
        ("walker2d-medium-expert-v1", "Walker2d-v4"),
    ],
)
def test_d4rl_locomotion_becomes_v4_and_says_so(any_manifest: Manifest, legacy: str, made: str) -> None:
    entry = registry.get(f"d4rl/{legacy}")
    described = {"id": entry.env_id, "max_episode_steps": entry.max_episode_steps}
    recipe = environments.plan(of(any_manifest, described), GYMNASIUM)
    assert (recipe.id, recipe.max_episode_steps) == (made, 1000)
    assert recipe.note is not None and "newer MuJoCo" in recipe.note
    assert made in gym.registry  # the version of Gymnasium installed has it
    registered = environments.plan(of(any_manifest, described), {legacy})
    assert registered == Recipe(legacy, {}, 1000)  # somebody registered D4RL's own


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("legacy", "why", "instead"),
    [
        ("ant-medium-v2", "contact forces", "minari/mujoco/ant"),
        ("antmaze-large-play-v2", "29 observations", "minari/D4RL/antmaze"),
        ("maze2d-umaze-v1", "flat observations", "pointmaze"),
        ("pen-human-v1", "dropped", "minari/D4RL/pen"),
        ("door-expert-v1", "rewards", "minari/D4RL/door"),
        ("kitchen-mixed-v0", "60 flat observations", "minari/D4RL/kitchen"),
        ("bullet-hopper-medium-v0", "PyBullet", ""),
        ("minigrid-fourrooms-v0", "gym-minigrid", "minari/D4RL/minigrid"),
        ("FK1_MicroOpenRandom_v2d-v4", "RoboHive", "import robohive"),
    ],
)
def test_what_has_no_equal_is_refused_with_the_reason(
    any_manifest: Manifest, legacy: str, why: str, instead: str
) -> None:
    with pytest.raises(NoEnvironment) as e:
        environments.plan(of(any_manifest, {"id": legacy}), GYMNASIUM)
    assert why in e.value.message and legacy in e.value.message and instead in (e.value.hint or "")


def test_every_environment_of_the_registry_is_decided(any_manifest: Manifest) -> None:
    decided = {"made": 0, "refused": 0, "package": 0}
    for family in ("d4rl", "roboset"):
        for entry in lookup.entries(family):
            try:
                environments.plan(of(any_manifest, {"id": entry.env_id}), GYMNASIUM)
                decided["made"] += 1
            except NoEnvironment as e:
                assert entry.env_id is None or "no replacement" in e.message, entry.id
                decided["refused"] += 1
    locomotion = [
        e for e in lookup.entries("d4rl") if e.id.split("/")[1].split("-")[0] in ("hopper", "halfcheetah", "walker2d")
    ]
    assert decided["made"] == len(locomotion) > 50 and decided["refused"] > 100


def test_the_file_of_environments_names_what_exists() -> None:
    facts = json.loads((registry_directory() / "environments.json").read_text())
    for old in facts["legacy"]:
        assert set(old) <= {"env_ids", "make", "why", "instead"} and old["env_ids"] and old["why"]
        assert old.get("make", "CartPole-v1") in gym.registry
        for word in old.get("instead", "").split():
            assert not word.startswith("minari/") or registry.get(word).env_id
    for name in facts["wrappers"]["gymnasium"]:
        assert issubclass(getattr(gym.wrappers, name), gym.Wrapper)
    for package in facts["packages"]:
        assert set(package) == {"env_ids", "module", "install"}


# -- what an archive names is data


def test_an_entry_point_of_an_archive_is_never_run(any_manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    evil = {"id": "evil:Evil-v0", "entry_point": "os:system", "kwargs": {"command": "exit 1"}}
    with pytest.raises(NoEnvironment, match=r"Evil-v0, which Gymnasium does not know.*package os"):
        environments.plan(of(any_manifest, {"spec": evil}), gym.registry)
    assert "evil" not in sys.modules
    disguised = evil | {"id": "CartPole-v1", "kwargs": {}}
    manifest = rlds_cli.download(CARTPOLE).manifest
    fields = tuple(rlds_cli.open_dataset(CARTPOLE).schema.values())
    env = environments.make_env(replace(manifest, env={"spec": disguised}), fields)
    assert type(env.unwrapped).__name__ == "CartPoleEnv"


@pytest.mark.filterwarnings("ignore:.*precision lowered by casting")  # Gymnasium's, of its own wrapper
def test_known_wrappers_are_put_on_again(any_manifest: Manifest) -> None:
    spec = {
        "id": "Pendulum-v1",
        "additional_wrappers": [
            {
                "name": "RescaleAction",
                "entry_point": "gymnasium.wrappers.transform_action:RescaleAction",
                "kwargs": {"min_action": -1.0, "max_action": 1.0},
            },
            {"name": "TimeAwareObservation", "entry_point": "gymnasium.wrappers.any:TimeAwareObservation"},
        ],
    }
    ds = press(observation=4)  # Pendulum's three and the time
    env = environments.make_env(of(ds.manifest, {"spec": spec}), tuple(ds.schema.values()))
    assert env.action_space.high.tolist() == [1.0]  # type: ignore[attr-defined]
    assert env.observation_space.shape == (4,)
    spec["additional_wrappers"] = [{"name": "x", "entry_point": "os.path:join", "kwargs": {}}]
    with pytest.raises(NoEnvironment, match=r"wrapped in os\.path:join"):
        environments.plan(of(any_manifest, {"spec": spec}), gym.registry)


# -- what cannot be


@pytest.mark.thorough
def test_nobody_says_which() -> None:
    with pytest.raises(NoEnvironment, match="The environment of local/press is not known") as e:
        press().make_env()
    assert "env_id=" in str(e.value.hint)


def test_an_environment_that_nobody_registered() -> None:
    with pytest.raises(NoEnvironment, match="Press-v0, which Gymnasium does not know"):
        press(env_id="Press-v0").make_env()


def test_an_environment_of_other_shapes() -> None:
    with pytest.raises(NoEnvironment, match=r"observation of local/press has shape \[2\]; Pendulum-v1 has shape \[3\]"):
        press(env_id="Pendulum-v1").make_env()
    assert press(env_id="Pendulum-v1", observation=3).make_env().action_space.shape == (1,)


def test_parts_of_nested_spaces() -> None:
    boxes = gym.spaces.Tuple([gym.spaces.Box(0, 1, (5,)), gym.spaces.Discrete(3)])
    space = gym.spaces.Dict({"a": gym.spaces.Box(0, 1, (2, 3)), "b": boxes})
    expected = {"a": (2, 3), "b/0": (5,), "b/1": (), "b/2": None, "c": None, "a/x": None}
    assert {path: environments._shape(space, path.split("/")) for path in expected} == expected


def test_a_changed_observation_has_no_environment() -> None:
    rlds_cli.download(PENDULUM)
    changed = preprocess.run(PENDULUM, halve, "halved")
    with pytest.raises(NoEnvironment, match="halve changed observation") as e:
        changed.make_env()
    assert f'open_dataset("{PENDULUM}")' in str(e.value.hint)
    again = preprocess.run(changed, shift_rewards, "shifted")
    with pytest.raises(NoEnvironment, match="halve changed observation"):
        again.make_env()


@pytest.mark.thorough
def test_rewards_and_episodes_may_be_changed() -> None:
    rlds_cli.download(PENDULUM)
    for fn in (shift_rewards, first_half):
        env = preprocess.run(PENDULUM, fn, fn.__name__.replace("_", "-")).make_env()
        assert env.spec is not None and env.spec.id == "Pendulum-v1"


def halve(episode: dict[str, Any]) -> dict[str, Any]:
    return {**episode, "observation": episode["observation"] / 2}


def shift_rewards(episode: dict[str, Any]) -> dict[str, Any]:
    return {**episode, "next": {**episode["next"], "reward": episode["next"]["reward"] - 1}}


def first_half(episode: dict[str, Any]) -> dict[str, Any] | None:
    return episode if episode["next"]["reward"].sum() > -150 else None


# -- what is not installed


def test_gymnasium_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    ds = rlds_cli.download(PENDULUM)
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(MissingPackage) as e:
        ds.make_env()
    assert e.value.hint == "pip install 'rlds-cli[spaces]'"


def test_the_package_of_an_environment_is_missing(any_manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium_robotics", None)
    with pytest.raises(MissingPackage, match="gymnasium_robotics") as e:
        environments.plan(of(any_manifest, {"id": "AntMaze_UMaze-v4"}), GYMNASIUM)
    assert e.value.hint == "pip install gymnasium-robotics"


def test_mujoco_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mujoco", None)
    for name in [n for n in sys.modules if n.startswith("gymnasium.envs.mujoco")]:
        monkeypatch.delitem(sys.modules, name)
    ds = press(env_id="hopper-medium-v2")
    with (
        pytest.warns(UserWarning, match=r"Hopper-v4 is made\. D4RL made it with Gym's Hopper-v2"),
        pytest.warns(DeprecationWarning, match="Hopper-v4 is out of date"),
        pytest.raises(MissingPackage, match="MuJoCo is not installed"),
    ):
        ds.make_env()


@pytest.mark.thorough
def test_a_version_that_gymnasium_lost(any_manifest: Manifest) -> None:
    ds = press()
    with pytest.raises(NoEnvironment, match="CartPole-v9, which Gymnasium does not know"):
        environments.make_env(of(ds.manifest, {"id": "CartPole-v9"}), ())


# -- scores


@pytest.mark.thorough
def test_scores_are_the_archives_or_the_registrys(any_manifest: Manifest) -> None:
    known = registry.get("d4rl/hopper-medium-v2")
    expected = (known.ref_min_score, known.ref_max_score)
    assert reference_scores(replace(any_manifest, id="d4rl/hopper-medium-v2@norm")) == expected
    own = replace(any_manifest, facts={"ref_min_score": 1, "ref_max_score": 3})
    assert reference_scores(own) == (1.0, 3.0)
    with pytest.raises(RldsError, match="No reference scores are known for local/press"):
        press().normalized_score(1.0)


# -- packages that an archive requires


def test_requirements_that_are_not_met_are_said_as_minari_says_them(tmp_path: Path) -> None:
    archive = tmp_path / "cartpole" / "sample-v0"
    shutil.copytree(Path(rlds_cli.__file__).parent / "samples" / "cartpole-minari", archive)
    described = archive / "data" / "metadata.json"
    wanted = ["numpy>=1", "numpy<1", "no-such-package-of-rlds==3", "not a requirement"]
    described.write_text(json.dumps({**json.loads(described.read_text()), "requirements": wanted}))
    ds = import_files(archive, "local/cartpole")
    with pytest.warns(UserWarning) as told:
        ds.make_env()
    texts = [str(w.message) for w in told]
    assert [t for t in texts if "requires numpy<1, and numpy" in t] and not [t for t in texts if "numpy>=1" in t]
    assert [t for t in texts if "no-such-package-of-rlds==3, which is not installed" in t]
    assert [t for t in texts if "'not a requirement'" in t] and len(texts) == 3
    with pytest.warns(UserWarning) as again:
        minari.MinariDataset(ds).recover_environment()
    assert [str(w.message) for w in again] == texts
