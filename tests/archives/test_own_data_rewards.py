"""Rewards that stand in the row after their action, as in dm_env's logs, and rows that hold a final observation."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from own_files import FORMATS, write
from typer.testing import CliRunner

import rlds_cli
from rlds_cli.cli import app
from rlds_cli.dataset import Dataset
from rlds_cli.errors import InvalidArgument, UnknownLayout
from rlds_cli.look.report.tracing import trace
from rlds_cli.make.importing import import_files, plan_import

NAN = float("nan")
# One episode of two steps: the action 0.5 has the reward 6, the action 0.7 the reward 9.
LOG: dict[str, Any] = {
    "observation": [[0.0], [1.0], [2.0]],
    "action": [[0.5], [0.7], [NAN]],
    "reward": [0.0, 6.0, 9.0],
    "terminated": [False, False, True],
}


def of(ds: Dataset, k: int = 0) -> tuple[list[Any], ...]:
    """Return the observations, actions, rewards and terminated flags of an episode."""
    e = ds.episode(k)
    found = (e["observation"], e["action"], e["next", "reward"], e["next", "terminated"])
    return tuple(np.asarray(x).reshape(-1).tolist() for x in found)


STEPS = ([0.0, 1.0], [0.5, 0.7], [6.0, 9.0], [False, True])


def groups(path: Path, columns: dict[str, Any], count: int = 2) -> Path:
    with h5py.File(path, "w") as f:
        for k in range(count):
            for key, values in columns.items():
                f[f"demo_{k}/{key}"] = values
    return path


def files(directory: Path, columns: dict[str, Any], suffix: str) -> Path:
    for k in range(2):
        write(directory / f"e{k}{suffix}", {**columns, **({} if suffix == ".csv" else {"success": True})})
    return directory


LAYOUTS = {
    **{f"table{suffix}": lambda d, c, s=suffix: write(d / f"a{s}", c) for suffix in FORMATS},
    "groups": lambda d, c: groups(d / "a.h5", c),
    "a file per episode, HDF5": lambda d, c: files(d / "h5", c, ".h5"),
    "a file per episode, npz": lambda d, c: files(d / "npz", c, ".npz"),
    "a file per episode, CSV": lambda d, c: files(d / "csv", c, ".csv"),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_reward_without_an_action_is_refused_until_its_step_is_named(tmp_path: Path, layout: str) -> None:
    path = LAYOUTS[layout](tmp_path, LOG)
    with pytest.raises(UnknownLayout, match=r"row 2 of .* has no action, but the reward 9") as e:
        import_files(path, "local/x")
    assert "--rewards arrive" in str(e.value.hint)
    ds = import_files(path, "local/x", rewards="arrive")
    assert of(ds) == STEPS
    assert ds.episodes["end"].tolist() == ["terminated"] * ds.num_episodes
    assert ds.episodes["num_observed"].tolist() == [3] * ds.num_episodes
    assert ds.episodes["total_reward"].tolist() == [15.0] * ds.num_episodes
    assert ds.manifest.options["rewards"] == "arrive"
    assert trace(ds, 10).ok and "next/reward" in trace(ds, 10).fields
    own = import_files(path, "local/own", rewards="action")
    assert of(own)[2] == [0.0, 6.0] and any("left out of reward" in n["text"] for n in own.manifest.notes)
    assert trace(own, 10).ok


@pytest.mark.sampled(2)
@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("first", [NAN, 0.0])
def test_episodes_of_one_table_in_the_order_of_dm_env(tmp_path: Path, suffix: str, first: float) -> None:
    table = {
        "episode": [3, 3, 3, 4, 4],
        "observation": [0.0, 1.0, 2.0, 10.0, 11.0],
        "action": [0.5, 0.7, 0.0, 0.1, 0.0],  # the last ones are padding
        "reward": [first, 6.0, 9.0, first, 2.0],
        "discount": [NAN, 1.0, 0.0, NAN, 1.0],
        "step_type": [0, 1, 2, 0, 2],
    }
    planned = plan_import(write(tmp_path / f"a{suffix}", table), "local/x", rewards="arrive")
    assert planned.episodes is not None
    assert planned.episodes["ends"] == {"terminated": 1, "truncated": 1, "cut": 0} and planned.episodes["steps"] == 3
    ds = import_files(tmp_path / f"a{suffix}", "local/x", rewards="arrive")
    assert [of(ds, k)[:3] for k in (0, 1)] == [STEPS[:3], ([10.0], [0.1], [2.0])]
    assert ds.episodes["end"].tolist() == ["terminated", "truncated"]  # the last discount is 0, and 1
    assert ds.episode(0)["next", "discount"].reshape(-1).tolist() == [1.0, 0.0]
    assert ds.episode(0)["next", "observation"].reshape(-1).tolist() == [1.0, 2.0]
    assert trace(ds, 10).ok


@pytest.mark.parametrize("step_type", [[0, 1, 2, 0, 2], ["FIRST", "MID", "LAST", "FIRST", "StepType.LAST"]])
def test_step_types_divide_episodes(tmp_path: Path, step_type: list[Any]) -> None:
    table = {"obs": np.arange(5.0), "action": [1, 2, 0, 3, 0], "reward": [0, 6, 9, 0, 2], "step_type": step_type}
    ds = import_files(write(tmp_path / "a.csv", table), "local/x", rewards="arrive")
    assert [of(ds, k)[1:3] for k in (0, 1)] == [([1, 2], [6, 9]), ([3], [2])]
    assert ds.episodes["end"].tolist() == ["cut", "cut"]  # no discount says how they end


@pytest.mark.parametrize("last", [0.0, 1.0])
def test_a_discount_of_zero_terminates_without_step_types(tmp_path: Path, last: float) -> None:
    """Rows 0 to 2 and 3 to 4 are episodes; what arrives with the first row of each belongs to no action."""
    table = {"obs": np.arange(5.0), "action": [1, 2, 0, 3, 0], "reward": [0, 6, 9, 0, 2]}
    table |= {"episode": [0, 0, 0, 1, 1], "discount": [1.0, 1.0, last, np.nan, 1.0]}
    ds = import_files(write(tmp_path / "a.csv", table), "local/x", rewards="arrive")
    assert [of(ds, k)[1:3] for k in (0, 1)] == [([1, 2], [6, 9]), ([3], [2])]
    assert ds.episodes["end"].tolist() == ["cut" if last else "terminated", "cut"]
    assert ds.episode(0)["next", "discount"].reshape(-1).tolist() == [1.0, last]


def test_observations_and_rewards_with_a_row_more_than_actions(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **{**LOG, "action": [[0.5], [0.7]]})
    with pytest.raises(UnknownLayout, match="reward has 3 rows") as e:
        import_files(tmp_path / "a.npz", "local/x")
    assert "--rewards arrive" in str(e.value.hint)
    assert of(import_files(tmp_path / "a.npz", "local/x", rewards="arrive")) == STEPS
    np.savez(tmp_path / "b.npz", obs=[[0.0], [1.0], [2.0]], action=[[0.5], [0.7]], reward=[6.0, 9.0])
    with pytest.raises(UnknownLayout, match="reward has 2 rows"):
        import_files(tmp_path / "b.npz", "local/y", rewards="arrive")


@pytest.mark.thorough
def test_d4rl_names_with_an_action_of_nan_are_a_table(tmp_path: Path) -> None:
    names = {"observation": "observations", "action": "actions", "reward": "rewards", "terminated": "terminals"}
    path = write(tmp_path / "a.h5", {names[k]: v for k, v in LOG.items()})
    with pytest.raises(UnknownLayout, match=r"row 2 of a\.h5 has no action, but the rewards 9"):
        import_files(path, "local/x")
    assert of(import_files(path, "local/x", rewards="arrive")) == STEPS
    full = write(tmp_path / "b.h5", {names[k]: v for k, v in {**LOG, "action": [[0.5], [0.7], [0.0]]}.items()})
    assert of(import_files(full, "local/y", rewards="arrive")) == STEPS


@pytest.mark.thorough
@pytest.mark.parametrize("suffix", FORMATS)
def test_padding_of_final_rows_is_no_reward(tmp_path: Path, suffix: str) -> None:
    """Flags in the row of the last action, or rewards in first rows, show that rewards belong to their own actions."""
    padded = {**LOG, "reward": [6.0, 9.0, 0.0], "terminated": [False, True, False]}
    ds = import_files(write(tmp_path / f"a{suffix}", padded), "local/x")
    assert of(ds) == STEPS and ds.episodes["num_observed"].tolist() == [3]
    missing = {**LOG, "reward": [6.0, 9.0, NAN]}
    assert of(import_files(write(tmp_path / f"b{suffix}", missing), "local/y"))[2] == [6.0, 9.0]


@pytest.mark.parametrize("rewards", [[NAN, 6.0, 0.0], [0.0, 6.0, 0.0]])
def test_a_last_reward_of_0_that_may_have_arrived_is_refused(tmp_path: Path, rewards: list[float]) -> None:
    path = write(tmp_path / "a.jsonl", {**LOG, "reward": rewards})
    with pytest.raises(UnknownLayout, match=r"row 2 of a\.jsonl has no action, but the reward 0"):
        import_files(path, "local/x")
    assert of(import_files(path, "local/x", rewards="arrive"))[2] == [6.0, 0.0]


@pytest.mark.parametrize("rewards", [None, "arrive"])
def test_other_values_of_final_rows_are_named(tmp_path: Path, rewards: str | None) -> None:
    more = {"info": [1, 2, 3], "discount": [1.0, 1.0, 0.0], "same": [5, 5, 5], "note": ["a", "b", "c"]}
    last = {} if rewards else {"reward": [6.0, 9.0, NAN]}
    planned = plan_import(write(tmp_path / "a.csv", {**LOG, **more, **last}), "local/x", rewards=rewards)
    (note,) = (n for n in planned.notes if "left out of" in n)
    assert note.endswith("left out of info, note" if rewards else "left out of discount, info, note")


def test_a_reward_of_a_first_row_that_belongs_to_no_action_is_noted(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", {**LOG, "reward": [5.0, 6.0, 9.0]})
    ds = import_files(path, "local/x", rewards="arrive")
    assert of(ds)[2] == [6.0, 9.0] and any("not 0 in the first row" in n["text"] for n in ds.manifest.notes)


def test_flags_that_arrive_may_be_missing_in_first_rows_only(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("episode,obs,action,reward,done\n0,1,3,,\n0,2,4,6,false\n0,3,,9,true\n")
    ds = import_files(tmp_path / "a.csv", "local/x", rewards="arrive")
    assert of(ds)[1:] == ([3, 4], [6, 9], [False, True])
    (tmp_path / "b.csv").write_text("episode,obs,action,reward,done\n0,1,3,,\n0,2,4,6,\n0,3,,9,true\n")
    with pytest.raises(UnknownLayout, match=r"row 1 of b\.csv has no done"):
        import_files(tmp_path / "b.csv", "local/y", rewards="arrive")
    (tmp_path / "c.csv").write_text("episode,obs,action,reward\n0,1,3,0\n0,2,4,\n0,3,,9\n")
    with pytest.raises(UnknownLayout, match="has no reward at step 0"):
        import_files(tmp_path / "c.csv", "local/z", rewards="arrive")


def test_an_episode_whose_rewards_arrive_continues_in_the_next_file(tmp_path: Path) -> None:
    whole = {"episode": [0] * 4, "step": range(4), "obs": range(4), "action": [1, 2, 3, 0], "reward": [0, 6, 9, 4]}
    for k, rows in enumerate((slice(0, 2), slice(2, 4))):
        write(tmp_path / "log" / f"part{k}.csv", {n: [*v][rows] for n, v in whole.items()})
    ds = import_files(tmp_path / "log", "local/x", rewards="arrive")
    assert ds.num_episodes == 1 and of(ds)[1:3] == ([1, 2, 3], [6, 9, 4])


def test_rows_out_of_order_whose_rewards_arrive(tmp_path: Path) -> None:
    table = {"episode": [0] * 3, "step": range(3), **LOG}
    shuffled = {k: [[*v][i] for i in (2, 0, 1)] for k, v in table.items()}
    ds = import_files(write(tmp_path / "a.parquet", shuffled), "local/x", rewards="arrive")
    assert of(ds) == STEPS and trace(ds, 10).ok


def test_rewards_of_files_that_are_no_tables_have_no_option(tmp_path: Path) -> None:
    folder = Path(rlds_cli.__file__).parent / "samples" / "cartpole-minari"
    with pytest.raises(InvalidArgument, match="minari"):
        plan_import(folder, "local/x", rewards="arrive")
    robomimic = Path(__file__).parents[1] / "data/robomimic/low_dim_layout.hdf5"
    with pytest.raises(InvalidArgument, match="robomimic") as caught:
        plan_import(robomimic, "local/x", rewards="arrive")
    assert "--reader plain" in str(caught.value.hint)
    with pytest.raises(InvalidArgument, match="'late'"):
        plan_import(write(tmp_path / "a.csv", LOG), "local/x", rewards="late")
    with pytest.raises(UnknownLayout, match="jumps"):
        plan_import(tmp_path / "a.csv", "local/x", rewards="arrive", episodes_by="jumps")


def test_commands_import_and_append_rewards_that_arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.csv", LOG)
    shutil.copy("a.csv", "b.csv")
    (tmp_path / "b.csv").write_text((tmp_path / "a.csv").read_text().replace("9.0", "8.0"))
    run = CliRunner().invoke
    refused = run(app, ["import", "a.csv", "--name", "local/x", "--dry-run"])
    assert refused.exit_code and "--rewards arrive" in str(refused.exception)
    shown = run(app, ["import", "a.csv", "--name", "local/x", "--rewards", "arrive", "--dry-run"])
    assert shown.exit_code == 0 and "rewards arrive" in shown.output and "1 episode of 2 steps" in shown.output
    assert run(app, ["append", "local/g", "a.csv", "--rewards", "arrive"]).exit_code == 0
    assert run(app, ["append", "local/g", "b.csv"]).exit_code == 0  # as the first one
    ds = rlds_cli.open_dataset("local/g")
    assert [of(ds, k)[2] for k in (0, 1)] == [[6.0, 9.0], [6.0, 8.0]]
    assert trace(ds, 10).ok


@pytest.mark.sampled(1)
@pytest.mark.parametrize("suffix", [".npz", ".h5", ".parquet"])
def test_step_types_without_rewards_in_first_rows_are_refused_with_both_options(tmp_path: Path, suffix: str) -> None:
    log = {"observation": [[0.0], [1.0], [2.0]], "action": [[0.5], [0.7], [0.0]], "reward": [0.0, 6.0, 9.0]}
    path = write(tmp_path / f"a{suffix}", log | {"step_type": [0, 1, 2], "discount": [1.0, 1.0, 0.0]})
    with pytest.raises(UnknownLayout, match="has step_type, and no reward in the first row") as e:
        plan_import(path, "local/x")
    assert "--rewards arrive" in str(e.value.hint) and "--rewards action" in str(e.value.hint)
    assert of(import_files(path, "local/x", rewards="arrive")) == STEPS
    assert of(import_files(path, "local/own", rewards="action"))[2] == [0.0, 6.0, 9.0]
    own = write(tmp_path / f"b{suffix}", log | {"step_type": [0, 1, 2], "reward": [6.0, 9.0, 0.0]})
    assert of(import_files(own, "local/y"))[2] == [6.0, 9.0, 0.0]  # dm_env's first rows have no reward


# -- the order that is assumed where nothing shows it

# As Dreamer writes an episode: a row for each observation, with what came with it; the last action is padding.
DREAMER: dict[str, Any] = {
    "observation": [[0.0], [1.0], [2.0]],
    "action": [[0.5], [0.7], [0.0]],
    "reward": [0.0, 6.0, 9.0],
    "is_first": [True, False, False],
    "is_last": [False, False, True],
    "is_terminal": [False, False, True],
}
ASSUMED = "rewards and flags of a row are taken for the results of its own action"


def assumed(notes: Any) -> list[str]:
    return [text for text in (n if isinstance(n, str) else n["text"] for n in notes) if text.startswith(ASSUMED)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_order_of_rewards_that_nothing_shows_is_said(tmp_path: Path, layout: str) -> None:
    path = LAYOUTS[layout](tmp_path, DREAMER)
    planned = plan_import(path, "local/x")
    (note,) = assumed(planned.notes)
    assert "is_first, is_last, is_terminal may be of a log" in note and "--rewards arrive" in note
    ds = import_files(path, "local/x")
    assert of(ds) == ([0.0, 1.0, 2.0], [0.5, 0.7, 0.0], [0.0, 6.0, 9.0], [False, False, True])
    assert assumed(ds.manifest.notes) == [note]
    arriving = import_files(path, "local/arrive", rewards="arrive")
    assert of(arriving) == STEPS and not assumed(arriving.manifest.notes)
    stated = import_files(path, "local/action", rewards="action")
    assert of(stated) == of(ds) and not assumed(stated.manifest.notes)


def test_a_log_of_dm_env_without_step_types(tmp_path: Path) -> None:
    log = {"observation": DREAMER["observation"], "action": DREAMER["action"], "reward": [NAN, 6.0, 9.0]}
    path = write(tmp_path / "a.npz", {**log, "discount": [NAN, 1.0, 0.0]})
    (note,) = assumed(plan_import(path, "local/x", episodes_by="file").notes)
    assert "discount may be of a log" in note
    ds = import_files(path, "local/x", episodes_by="file", rewards="arrive")
    assert of(ds) == STEPS


SHOWN: dict[str, dict[str, Any]] = {
    "a reward in a first row": {"reward": [5.0, 6.0, 9.0]},
    "next observations": {"next_observation": [[1.0], [2.0], [3.0]]},
    "no other names": {"is_first": None, "is_last": None, "is_terminal": None, "terminated": DREAMER["is_terminal"]},
    "no rewards": {"reward": None},
}


@pytest.mark.parametrize("case", SHOWN)
@pytest.mark.parametrize("layout", ["table.npz", "groups"])
def test_where_the_order_of_rewards_is_shown_nothing_is_assumed(tmp_path: Path, layout: str, case: str) -> None:
    columns = {k: v for k, v in {**DREAMER, **SHOWN[case]}.items() if v is not None}
    assert not assumed(plan_import(LAYOUTS[layout](tmp_path, columns), "local/x").notes)


def test_an_observation_more_than_rewards_shows_their_order(tmp_path: Path) -> None:
    path = groups(tmp_path / "a.h5", {**DREAMER, "observation": [[0.0], [1.0], [2.0], [3.0]]})
    assert not assumed(plan_import(path, "local/x").notes)


def test_the_assumption_is_printed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.npz", DREAMER)
    for how in (["--dry-run"], []):
        done = CliRunner().invoke(app, ["import", str(path), "--name", "local/x", *how])
        assert done.exit_code == 0 and ASSUMED in " ".join(done.output.split())
