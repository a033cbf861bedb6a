from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as g
from minari_archives import buffer, by_hand, compare, plain_episode, read, same, sampled, write

from rlds_cli.archives.minari import description
from rlds_cli.errors import UnknownLayout
from rlds_cli.ted import CUT, TERMINATED, TRUNCATED, Field

SPACE, ACT = g.Box(-1, 1, (2,)), g.Discrete(9)


def fields(got: Any) -> dict[str, Field]:
    return {f.name: f for f in got.plan.schema}


# --- infos and other columns


def infos(rows: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "qpos": rng.standard_normal((rows, 3, 2)),
        "flag": rng.random(rows) < 0.5,
        "count": np.arange(rows),
        "word": [f"w{i}ß" for i in range(rows)],
        "deep": {"one": rng.standard_normal(rows).astype(np.float32), "two": {"three": rng.integers(0, 9, (rows, 1))}},
    }


def test_infos_with_a_row_more_than_steps_belong_to_observations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffers = [buffer(n, sampled(SPACE, n + 1, n), sampled(ACT, n, n), infos=infos(n + 1, n)) for n in (3, 9)]
    data = write(tmp_path, buffers, SPACE, ACT, monkeypatch=monkeypatch)
    got = read(data)
    for k, b in enumerate(buffers):
        for name in ("qpos", "flag", "count", "word"):
            same(got.columns[k][f"info/{name}"], b.infos[name], name)
        same(got.columns[k]["info/deep/one"], b.infos["deep"]["one"], "one")
        same(got.columns[k]["info/deep/two/three"], b.infos["deep"]["two"]["three"], "three")
    assert fields(got)["info/qpos"] == Field("info/qpos", "float64", (3, 2), "both")
    assert fields(got)["info/word"].kind == "text"


@pytest.mark.parametrize("data_format", ["arrow", "parquet"])
def test_nested_infos_in_arrow_which_the_library_misreads(
    data_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffers = [buffer(n, sampled(SPACE, n + 1, n), sampled(ACT, n, n), infos=infos(n + 1, n)) for n in (3, 9)]
    got = read(write(tmp_path, buffers, SPACE, ACT, data_format=data_format, monkeypatch=monkeypatch))
    for k, b in enumerate(buffers):
        for name in ("qpos", "flag", "count", "word"):
            same(got.columns[k][f"info/{name}"], b.infos[name], name)
        same(got.columns[k]["info/deep/one"], b.infos["deep"]["one"], "one")
        same(got.columns[k]["info/deep/two/three"], b.infos["deep"]["two"]["three"], "three")


@pytest.mark.parametrize("data_format", ["arrow", "parquet"])
def test_infos_as_lists_in_arrow(data_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = {"pair": [[i, i + 1] for i in range(4)], "ragged": [[0] * i for i in range(4)]}
    buffers = [buffer(3, sampled(SPACE, 4, 0), sampled(ACT, 3, 0), infos=more)]
    got = read(write(tmp_path, buffers, SPACE, ACT, data_format=data_format, monkeypatch=monkeypatch))
    same(got.columns[0]["info/pair"], np.array(more["pair"]), "pair")
    assert "info/ragged" not in fields(got)
    assert "infos/ragged" in got.notes["unreadable-column"].text


def test_infos_with_a_row_per_step_come_after_the_step(tmp_path: Path) -> None:
    columns = [plain_episode(n, **{"infos/x": np.arange(n) * 1.5, "infos/deep/y": np.ones((n, 2))}) for n in (2, 5)]
    got = compare(by_hand(tmp_path, columns, {"dataset_id": "a/b-v0", "total_steps": 7}))
    assert fields(got)["next/info/x"] == Field("next/info/x", "float64", (), "next")
    same(got.columns[1]["next/info/deep/y"], np.ones((5, 2)), "y")


def test_infos_that_only_some_episodes_have_are_left_out_and_reported(tmp_path: Path) -> None:
    columns = [plain_episode(3, **{"infos/all": np.zeros(4)}), plain_episode(2, **{"infos/all": np.ones(3)})]
    columns[1]["infos/some"] = np.ones(3)
    got = read(by_hand(tmp_path, columns))
    assert "info/all" in fields(got) and "info/some" not in fields(got)
    assert "infos/some" in got.notes["partial-column"].text and "episode_0" in got.notes["partial-column"].text


def test_infos_whose_rows_differ_in_shape_are_left_out_and_reported(tmp_path: Path) -> None:
    columns = [plain_episode(3, **{"infos/x": np.zeros((4, n))}) for n in (2, 3)]
    got = read(by_hand(tmp_path, columns))
    assert "info/x" not in fields(got)
    assert "[2]" in got.notes["ragged-column"].text and "[3]" in got.notes["ragged-column"].text


def test_what_is_not_per_step_is_left_out_and_reported(tmp_path: Path) -> None:
    compound = np.zeros(4, [("a", "f4"), ("b", "i4")])
    got = read(by_hand(tmp_path, [plain_episode(3, **{"infos/scalar": 1.0, "infos/pairs": compound})]))
    assert {f.name for f in got.plan.schema if "info" in f.name} == set()
    assert got.notes["unreadable-column"].count == 2


def test_groups_of_old_step_callbacks(tmp_path: Path) -> None:
    more = {"state/qpos": np.arange(8.0).reshape(4, 2), "extra_action/x": np.arange(3), "info/odd": np.arange(3)}
    got = read(by_hand(tmp_path, [plain_episode(3, **more)]))
    assert fields(got)["state/qpos"].placement == "both"
    assert fields(got)["extra_action/x"].placement == "root"
    assert fields(got)["extra/info/odd"].placement == "root"
    same(got.columns[0]["state/qpos"], more["state/qpos"], "qpos")


def test_rewards_of_both_types_become_the_type_that_holds_both(tmp_path: Path) -> None:
    got = read(
        by_hand(tmp_path, [plain_episode(2, rewards=np.array([1, 2])), plain_episode(1, rewards=np.array([0.5]))])
    )
    same(got.columns[0]["next/reward"], np.array([1.0, 2.0]), "first")
    same(got.columns[1]["next/reward"], np.array([0.5]), "second")


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["int64", "float32", ">f8", "uint8", "float16", "bool"])
def test_rewards_keep_their_type(dtype: str, tmp_path: Path) -> None:
    rewards = np.array([1, 0, 1, 1]).astype(dtype)
    got = read(by_hand(tmp_path, [plain_episode(4, rewards=rewards)]))
    same(got.columns[0]["next/reward"], rewards.astype(rewards.dtype.newbyteorder("=")), "rewards")


def test_nan_and_infinities_are_kept(tmp_path: Path) -> None:
    observations = np.array([[np.nan, 1], [np.inf, -np.inf], [-0.0, np.nan]], np.float32)
    got = read(by_hand(tmp_path, [plain_episode(2, observations=observations)]))
    assert got.columns[0]["observation"].tobytes() == observations.tobytes()


def test_a_column_may_be_renamed(tmp_path: Path) -> None:
    data = by_hand(tmp_path, [plain_episode(3, **{"infos/success": np.array([0, 0, 1])})])
    got = read(data, fields={"next/success": "infos/success"})
    same(got.columns[0]["next/success"], np.array([0, 0, 1]), "success")
    with pytest.raises(UnknownLayout, match="infos/sucess"):
        read(data, fields={"next/success": "infos/sucess"})


# --- ends


def test_how_episodes_end(tmp_path: Path) -> None:
    def flags(*, terminated: list[int], truncated: list[int]) -> dict[str, Any]:
        return plain_episode(3, terminations=np.array(terminated, bool), truncations=np.array(truncated, bool))

    columns = [
        flags(terminated=[0, 0, 1], truncated=[0, 0, 0]),
        flags(terminated=[0, 0, 0], truncated=[0, 0, 1]),
        flags(terminated=[0, 0, 1], truncated=[0, 0, 1]),
        flags(terminated=[0, 0, 0], truncated=[0, 0, 0]),
        flags(terminated=[1, 1, 0], truncated=[0, 0, 1]),
        flags(terminated=[0, 0, 1], truncated=[0, 1, 0]),
    ]
    got = read(by_hand(tmp_path, columns))
    assert got.table.end.tolist() == [TERMINATED, TRUNCATED, TERMINATED, CUT, TRUNCATED, TERMINATED]
    assert got.table.observed.all()
    truncated = [e["next/truncated"].astype(int).tolist() for e in got.columns]
    assert truncated == [[0, 0, 0], [0, 0, 1], [0, 0, 1], [0, 0, 1], [0, 0, 1], [0, 1, 0]]
    assert got.columns[4]["next/terminated"].tolist() == [True, True, False]
    assert {c: n.count for c, n in got.notes.items() if c in ("terminated-inside", "truncated-inside", "open-end")} == {
        "terminated-inside": 2,
        "truncated-inside": 1,
        "open-end": 1,
    }
    where = {code: note.where for code, note in got.notes.items()}
    assert where == {"terminated-inside": "episode_4", "truncated-inside": "episode_5", "open-end": "episode_3"}


def test_flags_stored_as_numbers(tmp_path: Path) -> None:
    columns = plain_episode(3, terminations=np.array([0, 2, 255], np.uint8), truncations=np.array([0.0, 0.0, 0.0]))
    got = read(by_hand(tmp_path, [columns]))
    assert got.columns[0]["next/terminated"].tobytes() == b"\0\1\1"
    assert fields(got)["next/terminated"].dtype == "bool" and got.table.end.tolist() == [TERMINATED]


def test_flags_that_are_not_there(tmp_path: Path) -> None:
    got = read(by_hand(tmp_path, [plain_episode(3, terminations=None, truncations=None)]))
    assert got.table.end.tolist() == [CUT]
    assert got.columns[0]["next/truncated"].tolist() == [False, False, True]


def test_zero_length_episodes_are_left_out(tmp_path: Path) -> None:
    got = read(by_hand(tmp_path, [plain_episode(2), plain_episode(0), plain_episode(3), plain_episode(0)]))
    assert got.table.length.tolist() == [2, 3] and got.table.group == ["episode_0", "episode_2"]
    assert got.notes["empty-episodes"].count == 2


@pytest.mark.thorough
def test_episodes_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    got = read(by_hand(tmp_path, [plain_episode(1, rewards=np.array([float(i)])) for i in range(12)]))
    assert [e["next/reward"][0] for e in got.columns] == list(range(12))
    assert got.table.group == [f"episode_{i}" for i in range(12)]


@pytest.mark.parametrize("limit", ["x", [1], -5, 0, True, 1.5])
def test_a_time_limit_that_is_no_number_is_left_out(limit: object) -> None:
    described = {"env_spec": json.dumps({"id": "X-v0", "max_episode_steps": limit}), "ref_min_score": "low"}
    assert description.env(described) == {"id": "X-v0", "spec": {"id": "X-v0"}}
    assert description.facts(described) == {}
    (note,) = [n for n in description.notes(described, 1, 1) if n.code == "odd-metadata"]
    assert note.count == 2 and "ref_min_score, env_spec.max_episode_steps" in note.text
