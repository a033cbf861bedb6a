"""Own tables in which several columns say where episodes are: known names of RLlib, and statements that differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from archive_rows import Rows
from own_files import write

from rlds_cli.errors import UnknownLayout
from rlds_cli.make.importing import import_files
from rlds_cli.ted import TERMINATED, TRUNCATED

LENGTHS = (4, 6, 3)


def rllib(path: Path, *, order: list[int] | None = None, t: bool = False) -> Path:
    """Three episodes with the columns of RLlib's new stack: the observations of episode e begin with 10 e."""
    rows: list[dict[str, Any]] = []
    for e, n in enumerate(LENGTHS):
        for k in range(n):
            row: dict[str, Any] = {"eps_id": f"{e:x}9f3c2", "agent_id": None, "obs": [10.0 * e + k, 1.0]}
            row |= {"actions": k % 2, "rewards": 0.5 * k, "new_obs": [10.0 * e + k + 1, 1.0]}
            row |= {"terminateds": k == n - 1 and e != 1, "truncateds": k == n - 1 and e == 1}
            rows.append(row | ({"t": k} if t else {}))
    pq.write_table(pa.Table.from_pylist([rows[k] for k in order] if order else rows), path)
    return path


MIXED = [0, 2, 4, 5, 6, 7, 1, 3, 8, 9, 10, 11, 12]


@pytest.mark.parametrize("order", [None, MIXED])
def test_columns_of_rllib_have_ids_and_final_observations(tmp_path: Path, order: list[int] | None) -> None:
    rows = Rows("plain", rllib(tmp_path / "a.parquet", order=order, t=True))
    assert rows.plan.episodes_by == "field:eps_id"
    assert rows.episodes.length.tolist() == [*LENGTHS] and rows.episodes.observed.all()
    assert rows.episodes.end.tolist() == [TERMINATED, TRUNCATED, TERMINATED]
    for e, n in enumerate(LENGTHS):
        assert rows.of(e, "observation")[:, 0].tolist() == [10 * e + k for k in range(n + 1)]
        assert rows.of(e, "next/reward").tolist() == [0.5 * k for k in range(n)]


def test_rows_of_interleaved_episodes_without_a_step_are_refused(tmp_path: Path) -> None:
    assert Rows("plain", rllib(tmp_path / "a.parquet")).episodes.length.tolist() == [*LENGTHS]
    with pytest.raises(UnknownLayout, match=r"episode 09f3c2 appears again in row 6") as e:
        Rows("plain", rllib(tmp_path / "b.parquet", order=MIXED))
    assert "--map step=KEY" in str(e.value.hint)


# Two episodes of three steps, as a column of ids says.
STEPS: dict[str, Any] = {"obs": np.arange(6.0), "action": np.arange(6.0), "episode": [0, 0, 0, 1, 1, 1]}


@pytest.mark.parametrize(
    ("more", "message", "options"),
    [
        ({"agent_id": ["a", "b", "a", "b", "a", "b"]}, "row 1 of .* has the agent_id b", ["flags", "field:agent_id"]),
        ({"agent_index": [0, 0, 0, 1, 1, 1]}, "row 3 of .* has the agent_index 1", ["field:agent_index"]),
        ({"trial": [0, 0, 1, 1, 1, 1]}, "row 2 of .* has the trial 1", ["field:episode", "field:trial"]),
        ({"step": range(6), "t": [0, 1, 2, 3, 0, 1]}, "row 4 of .* has the t 0, which goes back", ["steps:t"]),
        (
            {"episode_ends": [2, 6]},
            "row 1 ends .* by episode_ends, and not by field:episode",
            ["field:ends:episode_ends"],
        ),
    ],
)
@pytest.mark.parametrize("suffix", [".npz", ".h5"])
def test_statements_that_differ_are_refused_with_both_options(
    tmp_path: Path, suffix: str, more: dict[str, Any], message: str, options: list[str]
) -> None:
    without = {"episode"} if "t" in more or "agent_index" in more or "agent_id" in more else set()
    path = write(tmp_path / f"a{suffix}", {k: v for k, v in STEPS.items() if k not in without} | more)
    with pytest.raises(UnknownLayout, match=message.replace("row 1 ends", f"row 1 of a{suffix} ends")) as e:
        Rows("plain", path)
    for option in options:
        assert f"--episodes-by {option}" in str(e.value.hint)
        Rows("plain", path, episodes_by=option)


def test_coarser_ids_and_one_agent_are_no_contradiction(tmp_path: Path) -> None:
    found = STEPS | {"trial": [0] * 6, "agent_id": ["a"] * 6, "step": range(6), "t": [0, 1, 2, 0, 1, 2]}
    assert Rows("plain", write(tmp_path / "a.npz", found)).episodes.length.tolist() == [3, 3]


def test_agents_in_a_file_of_one_episode_are_refused(tmp_path: Path) -> None:
    one = {"obs": np.arange(5.0)[:, None], "action": np.arange(4.0), "agent_id": [0, 1, 0, 1]}
    with pytest.raises(UnknownLayout, match="agent_id changes at row 1"):
        import_files(write(tmp_path / "a.npz", one), "local/x")


def test_a_whole_number_beside_a_flag_in_json_lines_is_exact(tmp_path: Path) -> None:
    stamps = [1_700_000_000_123_456_789, 1_700_000_000_123_456_791, 9_007_199_254_740_993]
    found = {"stamp": stamps, "obs": [0.5, 1.5, 2.5], "action": [0.0, 1.0, 2.0], "done": [False, True, True]}
    rows = Rows("plain", write(tmp_path / "a.jsonl", found))
    assert [*rows.of(0, "stamp").tolist(), *rows.of(1, "stamp").tolist()] == stamps
    assert rows.episodes.end.tolist() == [TERMINATED] * 2


# -- rows that are no steps

GRID = {"obs": np.zeros((3, 5, 2)), "action": np.zeros((3, 5, 1)), "reward": np.arange(15.0).reshape(3, 5)}


@pytest.mark.parametrize("suffix", [".npz", ".h5", ".parquet", ".jsonl"])
@pytest.mark.parametrize("keys", [("obs", "action", "reward"), ("obs", "action")])
def test_arrays_of_episodes_and_times_are_not_one_episode(tmp_path: Path, suffix: str, keys: tuple[str, ...]) -> None:
    path = write(tmp_path / f"a{suffix}", {key: GRID[key] for key in keys})
    with pytest.raises(UnknownLayout, match=r"with 5 values in a row, so a row is not a step") as e:
        Rows("plain", path)
    assert "rlds_cli.create" in str(e.value.hint) and "--episodes-by" in str(e.value.hint)
    rows = Rows("plain", path, episodes_by="file")  # so the user says that rows are steps
    assert rows.of(0, "observation")[:3].shape == (3, 5, 2)


def test_a_leading_axis_of_one_episode_is_refused_in_files_of_an_episode(tmp_path: Path) -> None:
    one = {key: value[:1] for key, value in GRID.items()} | {"terminated": True}
    with pytest.raises(UnknownLayout, match=r"reward is float64 \[1, 5\]"):
        import_files(write(tmp_path / "a.npz", one), "local/x")


def test_names_of_d4rl_with_rows_of_episodes_are_refused(tmp_path: Path) -> None:
    names = {"obs": "observations", "action": "actions", "reward": "rewards"}
    with pytest.raises(UnknownLayout, match=r"rewards is float64 \[3, 5\]"):
        import_files(write(tmp_path / "a.h5", {names[k]: v for k, v in GRID.items()}), "local/x")


def test_images_and_chunks_of_actions_are_steps(tmp_path: Path) -> None:
    images = {"obs": np.zeros((6, 4, 8, 3), "u1"), "action": np.zeros((6, 4)), "reward": np.ones((6, 1))}
    chunks = {"obs": np.zeros((6, 8)), "action": np.zeros((6, 5, 2))}
    for k, found in enumerate((images, chunks)):
        assert Rows("plain", write(tmp_path / f"{k}.npz", found)).episodes.length.tolist() == [6]


@pytest.mark.parametrize("lengths", [(4, 6, 3), (1, 6, 3)])
@pytest.mark.parametrize("keys", [("obs", "new_obs", "actions", "rewards", "dones"), ("obs", "acts", "rews")])
@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_a_row_for_each_episode_is_read(
    tmp_path: Path, suffix: str, keys: tuple[str, ...], lengths: tuple[int, ...]
) -> None:
    ends = {n: [False] * (n - 1) + [True] for n in lengths}
    rows = [
        {key: ends[n] if key == "dones" else [[0.5]] * n if "obs" in key else [0.5] * n for key in keys}
        for n in lengths
    ]
    if suffix == ".jsonl":
        path = tmp_path / "a.jsonl"
        path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path := tmp_path / "a.parquet")
    ds = import_files(path, "local/x")
    assert ds.episodes["length"].tolist() == list(lengths) and ds.schema["action"].shape == ()
    assert ds.episodes["end"][0] == ("terminated" if "dones" in keys else "cut")


def test_a_single_numbered_column_is_a_field_of_one_component(tmp_path: Path) -> None:
    rows = Rows("plain", write(tmp_path / "a.csv", {"obs_0": [1.5, 2.5], "action_0": [0.5, 0.25], "done": [0, 1]}))
    assert rows.of(0, "observation")[:2].tolist() == [[1.5], [2.5]]
    assert rows.of(0, "action").tolist() == [[0.5], [0.25]]
