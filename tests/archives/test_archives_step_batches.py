"""Tables whose rows are episodes or batches of steps: right values, or a refusal that says which row."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from archive_rows import Rows
from hub_tables import episode_rows, saved, write_rows

import rlds_cli
from rlds_cli.errors import UnknownLayout
from rlds_cli.look.report.tracing import trace
from rlds_cli.ted import CUT, TERMINATED

Row = dict[str, Any]
FORMATS = (".parquet", ".jsonl", pytest.param(".arrow", marks=pytest.mark.thorough))


def check_rows(read: Rows, given: Sequence[Mapping[str, Any]], *, final: bool = False) -> None:
    """Compare with the lists that were written."""
    obs, act, rew = ("obs", "acts", "rews") if final else ("observations", "actions", "rewards")
    assert read.episodes.length.tolist() == [len(row[act]) for row in given]
    for k, row in enumerate(given):
        n = len(row[act])
        seen = read.of(k, "observation")
        np.testing.assert_array_equal(seen[: n + final], row[obs])
        np.testing.assert_array_equal(read.of(k, "action"), row[act])
        np.testing.assert_array_equal(read.of(k, "next/reward").reshape(-1), row[rew])
        ended = row["terminal"] if final else row["dones"][-1]
        assert read.of(k, "next/terminated").tolist() == [False] * (n - 1) + [ended]
        assert read.episodes.end[k] == (TERMINATED if ended else CUT)
        assert read.episodes.observed[k] == final


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("lengths", [(4, 5, 3), (1, 6, 1), (3, 3, 3), (5,)])
def test_a_row_is_an_episode(tmp_path: Path, suffix: str, final: bool, lengths: tuple[int, ...]) -> None:
    given = episode_rows(lengths, final=final)
    read = Rows("plain", write_rows(tmp_path / f"rows{suffix}", given))
    check_rows(read, given, final=final)
    if final:
        assert read.of(1 % len(given), "info") == given[1 % len(given)]["infos"]


def test_episodes_of_a_saved_table_are_trained_on(tmp_path: Path) -> None:
    given = episode_rows(final=True)
    ds = rlds_cli.import_files(saved(tmp_path / "d", pa.Table.from_pylist(given), cuts=(1,)), "local/x")
    assert ds.episodes["num_observed"].tolist() == [5, 6, 4] and ds.num_transitions == 12
    assert trace(rlds_cli.open_dataset("local/x"), 8).ok
    after = {tuple(now): tuple(then) for row in given for now, then in zip(row["obs"], row["obs"][1:], strict=False)}
    batch = next(iter(rlds_cli.Loader("local/x", 64, dtype=None)))
    for now, then in zip(batch["observation"].tolist(), batch["next", "observation"].tolist(), strict=True):
        assert after[tuple(now)] == tuple(then)
    used = {e["name"]: e.get("used_as") for e in ds.manifest.account if e["kind"] == "column"}
    assert used == {
        "obs": ["observation"],
        "acts": ["action"],
        "rews": ["next/reward"],
        "infos": ["info"],
        "terminal": ["next/terminated", "ends of episodes"],
    }


def test_values_of_the_row_are_columns_of_episodes(tmp_path: Path) -> None:
    given = [{**row, "task": f"reach {k}", "score": k / 4} for k, row in enumerate(episode_rows())]
    read = Rows("plain", write_rows(tmp_path / "rows.parquet", given))
    check_rows(read, given)
    assert read.episodes.extra["task"] == ["reach 0", "reach 1", "reach 2"]
    assert read.episodes.extra["score"] == [0.0, 0.25, 0.5]


def test_a_row_without_steps_is_left_out_and_counted(tmp_path: Path) -> None:
    given = episode_rows(final=True)
    none = {"obs": [[7.0, 7.0]], "acts": [], "rews": [], "infos": [], "terminal": False}
    read = Rows("plain", write_rows(tmp_path / "rows.parquet", [none, *given[:1], none, *given[1:]]))
    check_rows(read, given, final=True)
    assert [n.text for n in read.notes if n.code == "empty-episodes"] == ["2 rows without steps were left out"]


def test_members_of_structs_are_columns(tmp_path: Path) -> None:
    given = [{**row, "infos": [{"x": t, "y": str(t)} for t in range(len(row["actions"]))]} for row in episode_rows()]
    nested = [{**row, "observations": {"state": row["observations"], "goal": row["observations"]}} for row in given]
    read = Rows("plain", write_rows(tmp_path / "rows.parquet", nested))
    for k, row in enumerate(given):
        np.testing.assert_array_equal(read.of(k, "observation/goal")[:-1], row["observations"])
        assert read.of(k, "info/x").tolist() == [*range(len(row["actions"]))]
        assert read.of(k, "info/y") == [str(t) for t in range(len(row["actions"]))]


def test_ids_of_steps_mark_episodes_in_batches(tmp_path: Path) -> None:
    rows = episode_rows((4, 5, 3))
    steps = {key: [v for row in rows for v in row[key]] for key in rows[0]}
    steps |= {"eps_id": [7] * 4 + [9] * 5 + [8] * 3, "t": [*range(4), *range(5), *range(3)]}
    cuts = [0, 6, 7, 12]  # batches that begin and end inside of episodes
    given = [{key: v[a:b] for key, v in steps.items()} for a, b in pairwise(cuts)]
    read = Rows("plain", write_rows(tmp_path / "rows.jsonl", given))
    check_rows(read, rows)
    assert read.plan.episodes_by == "field:eps_id"


def of_environments(*, ended: bool) -> list[Row]:
    """Rows that are steps of four environments."""
    rng = np.random.default_rng(0)
    seen, found = rng.normal(size=(4, 2)), list[Row]()
    for t in range(5):
        seen = seen + 0.01 * rng.normal(size=(4, 2))
        row = {"observations": seen.tolist(), "actions": rng.normal(size=(4, 1)).tolist(), "rewards": [0.0] * 4}
        found.append({**row, "dones": [ended and t == 2 and k == 1 for k in range(4)]})
    return found


@pytest.mark.parametrize("ended", [True, False])
def test_steps_of_several_environments_are_no_episodes(tmp_path: Path, ended: bool) -> None:
    with pytest.raises(UnknownLayout, match="a step of several environments"):
        Rows("plain", write_rows(tmp_path / "rows.parquet", of_environments(ended=ended)))


def test_episodes_of_one_length_without_flags_are_told_by_their_observations(tmp_path: Path) -> None:
    given = [{**row, "dones": [False] * 4} for row in episode_rows((4, 4, 4))]
    check_rows(Rows("plain", write_rows(tmp_path / "rows.parquet", given)), given)


def test_vectors_of_several_objectives_stay_steps(tmp_path: Path) -> None:
    rows = [{"obs": [1.0 * t, 2.0], "action": [0.0, 1.0], "reward": [1.0, t], "done": t == 5} for t in range(6)]
    read = Rows("plain", write_rows(tmp_path / "rows.parquet", rows))
    assert read.schema["next/reward"].shape == (2,) and read.episodes.length.tolist() == [6]


def _set(rows: list[Row], key: str, value: Callable[[Any], Any]) -> None:
    rows[1][key] = value(copy.deepcopy(rows[1][key]))


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("rewards", lambda v: v[:-1], "rewards has 4 values in row 1, which has 5 steps"),
        ("observations", lambda v: v[:-1], "observations has 4 values in row 1"),
        ("actions", lambda v: v + v[-1:], "actions has 6 values in row 1"),
        ("rewards", lambda v: None, "rewards has no list in row 1"),
        ("rewards", lambda v: [], "rewards has 0 values in row 1"),
        ("dones", lambda v: [False, True, *v[2:]], "is dones, but its episode continues"),
        ("observations", lambda v: [v[0][:1], *v[1:]], "observations has rows of different lengths"),
        ("actions", lambda v: [[None], *v[1:]], "has no action, but it is not the last row"),
    ],
)
@pytest.mark.parametrize("suffix", [".parquet", pytest.param(".jsonl", marks=pytest.mark.thorough)])
def test_what_does_not_fit_is_refused_by_its_row(
    tmp_path: Path, suffix: str, key: str, value: Callable[[Any], Any], said: str
) -> None:
    rows = episode_rows((4, 5, 6))
    _set(rows, key, value)
    with pytest.raises(UnknownLayout, match=said):
        Rows("plain", write_rows(tmp_path / f"rows{suffix}", rows))


def test_rows_that_are_parts_of_an_episode_are_refused(tmp_path: Path) -> None:
    given = [{**row, "episode_id": k // 2} for k, row in enumerate(episode_rows())]
    with pytest.raises(UnknownLayout, match="2 rows have the episode_id 0"):
        Rows("plain", write_rows(tmp_path / "rows.parquet", given))


def test_a_flag_of_the_row_without_a_value_is_refused(tmp_path: Path) -> None:
    given = episode_rows(final=True)
    given[1]["terminal"] = None
    with pytest.raises(UnknownLayout, match="row 1 has no terminal"):
        Rows("plain", write_rows(tmp_path / "rows.parquet", given))


def test_columns_that_are_not_of_the_steps_are_left_out_and_named(tmp_path: Path) -> None:
    given = [{**row, "goal": [1.0, 2.0], "level": k or None} for k, row in enumerate(episode_rows())]
    read = Rows("plain", write_rows(tmp_path / "rows.parquet", given))
    check_rows(read, given)
    told = {e.name: e.left_out for e in read.plan.account.things if e.left_out}
    assert told["goal"] == "its lists are not as long as the steps"
    assert told["level"] == "some rows have no value"
