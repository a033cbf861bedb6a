"""Agents in groups: ``agents/observation``, ``next/agents/reward``, as environments of several agents have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import run_rlds
from tensordict import TensorDict

import rlds_cli
from rlds_cli import create, preprocess, writer
from rlds_cli.errors import InvalidArgument, InvalidEpisode, NoReward
from rlds_cli.loader import Loader, ReturnToGo, Sequential, Transition
from rlds_cli.make.importing import import_files
from rlds_cli.ted import Field

PLACED = {
    "agents/action": "root",
    "agents/observation": "both",
    "next/agents/reward": "next",
    "next/terminated": "next",
    "next/truncated": "next",
}


def episode(steps: int = 3, rows: int | None = None, **more: Any) -> dict[str, Any]:
    rows = steps + 1 if rows is None else rows
    observation = np.arange(rows * 6.0, dtype=np.float32).reshape(rows, 3, 2)
    agents = {"observation": observation, "action": np.ones((steps, 3, 1), np.float32)}
    reward = np.arange(steps * 3.0, dtype=np.float32).reshape(steps, 3, 1)
    return {"agents": agents, "next": {"agents": {"reward": reward}, "terminated": True}, **more}


def collected() -> TensorDict:
    """Two trajectories of three steps, three agents each."""
    o = torch.arange(36.0).reshape(6, 3, 2)
    o[3:] += 100  # the environment was reset
    done = (torch.arange(6) % 3 == 2)[:, None]
    after = {"agents": {"observation": o + 6, "reward": torch.ones(6, 3, 1)}, "done": done, "terminated": done}
    return TensorDict({"agents": {"observation": o, "action": torch.zeros(6, 3, 1)}, "next": after}, [6])


@pytest.mark.thorough
def test_a_group_is_stored_as_an_agent_is() -> None:
    ds = create("local/team", [episode(3), episode(2)])
    assert {f.name: f.placement for f in ds.schema.values()} == PLACED
    assert ds.schema["agents/observation"] == Field("agents/observation", "float32", (3, 2), "both")
    assert ds.episodes["num_observed"].tolist() == [4, 3]
    batch = next(iter(Loader(ds, 3, sampler=Sequential(), fields="all")))
    assert np.array_equal(batch["next", "agents", "observation"], episode()["agents"]["observation"][1:])
    assert create("local/again", [ds.episode(0), ds.episode(1)]).fingerprint == ds.fingerprint


@pytest.mark.thorough
def test_a_final_observation_that_is_not_given_is_unknown() -> None:
    ds = create("local/team", [episode(3, rows=3)])
    assert ds.schema["agents/observation"].placement == "both" and ds.episodes["num_observed"].tolist() == [3]
    assert np.array_equal(ds.column("agents/observation")[3], episode()["agents"]["observation"][2])


@pytest.mark.thorough
def test_a_batch_of_a_collector_is_what_import_makes_of_it(tmp_path: Path) -> None:
    collected().memmap(tmp_path / "td")
    imported = import_files(tmp_path / "td", "local/imported")
    created = create("local/created", [collected()])
    assert created.num_episodes == 2 and created.fingerprint == imported.fingerprint
    with writer("local/run") as w:
        w.add_episodes(collected())
    assert w.dataset().schema == imported.schema
    assert np.array_equal(w.dataset().column("agents/observation"), imported.column("agents/observation"))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"agents": {"observation": np.zeros((2, 3)), "action": np.zeros((3, 1))}}, "agents/observation has 2 rows"),
        ({"agents": {"observation": np.zeros((4, 3)), "action": np.zeros((5, 1))}}, "agents/action has 5 rows"),
        ({"prey": {"observation": np.zeros((3, 3))}}, "fields disagree on the final row: agents/observation has 4"),
        ({"prey": {"observation": np.zeros((6, 3))}}, r"prey/observation has 6 rows; expected 3 or 4"),
        ({"agents": {"action": np.zeros((3, 1))}}, "has no observation: agents/action"),
        ({"agents": {"obs": np.zeros((4, 1)), "action": np.zeros((3, 1))}}, "agents/obs is not a TED name"),
        ({"next": {"agents": {"rewards": np.zeros(3)}}}, "next/agents/rewards is not a TED name"),
        ({"agents": {"observation": 1.0, "action": np.zeros((3, 1))}}, "agents/observation is a single value"),
    ],
)
def test_rows_of_a_group_are_counted(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidEpisode, match=f"episode 0:? .*{message}"):
        create("local/team", [episode() | change])


def test_dtypes_and_shapes_of_a_group_stay() -> None:
    other = episode()
    other["agents"]["observation"] = other["agents"]["observation"].astype(np.float64)
    with pytest.raises(
        InvalidEpisode, match=r"episode 1: agents/observation is float64; the first episode's is float32"
    ):
        create("local/team", [episode(), other])
    other["agents"]["observation"] = np.zeros((4, 2, 2), np.float32)
    with pytest.raises(InvalidEpisode, match=r"episode 1: a row of agents/observation has shape \[2, 2\]"):
        create("local/team", [episode(), other])


@pytest.mark.thorough
def test_of_an_agent_with_an_observation_other_groups_are_fields() -> None:
    seen = {"observation": np.zeros(3)}
    ds = create("local/one", [{"observation": np.zeros((4, 2)), "action": np.zeros(3), "seen": seen}])
    assert ds.schema["seen/observation"].placement == "root" and ds.episodes["num_observed"].tolist() == [4]


def test_steps_of_groups_are_recorded() -> None:
    whole = episode(3)
    o, a, r = whole["agents"]["observation"], whole["agents"]["action"], whole["next"]["agents"]["reward"]
    with writer("local/run") as w:
        for _ in range(2):
            for t in range(3):
                after = {"agents": {"reward": r[t], "observation": o[t + 1]}}
                w.add(agents={"observation": o[t], "action": a[t]}, next=after, terminated=t == 2)
        with pytest.raises(InvalidEpisode, match="step 0 lacks agents/observation"):
            w.add(agents={"action": a[0]}, next={"agents": {"reward": r[0]}})
    ds = w.dataset()
    wanted = create("local/whole", [whole, whole])
    assert ds.schema == wanted.schema and ds.episodes["num_observed"].tolist() == [4, 4]
    for name in ds.schema:
        assert np.array_equal(ds.column(name), wanted.column(name))


def test_a_step_needs_observation_and_action() -> None:
    with writer("local/run") as w:
        with pytest.raises(InvalidEpisode, match="step 0 has no action: observation"):
            w.add(np.zeros(2))
        with pytest.raises(InvalidEpisode, match="step 0 has no observation: agents/action"):
            w.add(agents={"action": np.zeros(2)})


# -- their rewards


def test_rewards_of_groups_are_named_where_one_is_needed() -> None:
    ds = create("local/team", [episode()])
    message = "local/team has no next/reward; groups of agents have their own: next/agents/reward"
    for ask in (
        lambda: Loader(ds, 2, window=Transition(n_step=3)),
        lambda: Loader(ds, 2, fields=[..., ReturnToGo()]),
        lambda: Loader(ds, 2, fields="reward"),
        lambda: ds.column("next/reward"),
        lambda: preprocess.run(ds, "return_to_go", jobs=1),
    ):
        with pytest.raises(NoReward, match=message) as e:
            ask()
        assert "--fn rename_fields --arg names=next/agents/reward=next/reward" in str(e.value.hint)


@pytest.mark.thorough
def test_the_command_of_the_hint_makes_one_the_reward() -> None:
    create("local/team", [episode()])
    run_rlds("preprocess", "local/team", "--fn", "rename_fields", "--arg", "names=next/agents/reward=next/reward")
    ds = rlds_cli.open_dataset("local/team@rename_fields")
    loader = Loader(ds, 1, window=Transition(n_step=3, gamma=1.0), sampler=Sequential(), fields=("next/reward",))
    assert next(iter(loader))["next", "reward"].tolist() == [[[9.0], [12.0], [15.0]]]  # 0 + 3 + 6, 1 + 4 + 7, ...


# -- a single episode


@pytest.mark.parametrize("single", [episode(), collected(), "demos", 3])
def test_a_single_episode_is_answered_with_what_to_write(single: Any) -> None:
    with pytest.raises(InvalidArgument, match="a list of episodes is needed") as e:
        create("local/team", single)
    if hasattr(single, "items"):
        assert e.value.hint == 'create("local/team", [episode])'
        create("local/team", [single])


def test_a_dataset_is_answered_with_its_episodes() -> None:
    ds = create("local/team", [episode()])
    with pytest.raises(InvalidArgument) as e:
        create("local/copy", ds)  # type: ignore[arg-type]
    assert "(ds.episode(k) for k in range(ds.num_episodes))" in str(e.value.hint)
    with pytest.raises(InvalidArgument, match="a single Batch"):
        create("local/copy", ds.episode(0))  # type: ignore[arg-type]


def test_flags_of_agents_do_not_end_an_episode_silently() -> None:
    flags = np.zeros((3, 2), bool)
    flags[2, 0] = True
    agents = {"observation": np.zeros((4, 2, 3)), "action": np.zeros((3, 2, 1))}
    after = {"agents": {"reward": np.zeros((3, 2)), "terminated": flags}}
    with pytest.raises(InvalidEpisode, match="next/agents/terminated is set, which is a flag of agents") as e:
        create("local/x", [{"agents": agents, "next": after}])
    assert '"terminated"' in str(e.value.hint)
    with pytest.raises(InvalidEpisode, match=r"as the flags are \[3, 2\]") as e:
        create("local/x", [{"agents": agents, "next": {**after, "terminated": flags}}])
    assert "belong to their group" in str(e.value.hint)
    ds = create("local/x", [{"agents": agents, "next": {**after, "terminated": flags.any(1)}}])
    assert ds.episodes["end"].tolist() == ["terminated"]
    assert ds.schema["next/agents/terminated"].shape == (2,)
