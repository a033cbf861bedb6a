from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from rlds_cli import archives
from rlds_cli.archives import Archive, roboset
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.ted import CUT, TERMINATED, EpisodeTable

SAMPLES = Path(__file__).parents[1] / "data" / "roboset"
OURS = Path(__file__).parents[2] / "rlds_cli" / "samples" / "mountaincar-robohive.h5"


class Rows:
    """Everything that the reader gives for some files."""

    def __init__(self, *files: Path, fields: Mapping[str, str] | None = None) -> None:
        self.plan = roboset.READER.plan(Archive(files[0].parent, files, None, fields or {}))
        parts = [[*roboset.READER.read(self.plan, part)] for part in self.plan.parts]
        assert [p.rows for p in self.plan.parts] == [sum(map(len, of_part)) for of_part in parts]
        self.chunks = [c for of_part in parts for c in of_part]
        self.schema = {f.name: f for f in self.plan.schema}
        self.episodes = EpisodeTable.concat([c.episodes for c in self.chunks])
        self.notes = [*self.plan.notes, *(n for c in self.chunks for n in c.notes)]
        for c in self.chunks:
            assert set(c.columns) == set(self.schema)
            assert {len(v) for v in c.columns.values()} == {len(c.last)}
        self.last = np.concatenate([c.last for c in self.chunks]) if self.chunks else np.zeros(0, bool)
        assert np.flatnonzero(self.last).tolist() == (np.cumsum(self.episodes.length + 1) - 1).tolist()

    def __getitem__(self, name: str) -> Any:
        columns = [c.columns[name] for c in self.chunks]
        if self.schema[name].kind == "text":
            return [v for c in columns for v in c]
        joined = np.concatenate(columns)
        assert joined.dtype == self.schema[name].dtype and joined.shape[1:] == self.schema[name].shape
        return joined

    def episode(self, k: int, name: str) -> np.ndarray:
        start = int(self.episodes.start[k])
        return self[name][start : start + int(self.episodes.length[k]) + 1]

    def codes(self) -> dict[str, int]:
        return {code: sum(n.count for n in self.notes if n.code == code) for code in {n.code for n in self.notes}}


def trial(convention: str, seed: int, h: int = 5, *, done: int | None = None, dtype: str = "f8") -> dict[str, Any]:
    """A trial of h rows that follows a convention: obs_dict is a piece of the observation, elsewhere or here."""
    rng = np.random.default_rng(seed)
    o, flags = rng.normal(size=(h + 1, 3)).astype(dtype), np.zeros(h, bool)
    if done is not None:
        flags[done] = True
    infos = o[1:, 1:2] if convention == "path" else o[:-1, 1:2]
    actions = rng.normal(size=(h, 2)).astype(dtype)
    if convention == "trace" and h:
        actions[-1] = np.nan
    return {
        "observations": o[:-1],
        "actions": actions,
        "rewards": rng.normal(size=h).astype(dtype),
        "done": flags,
        "time": np.arange(h) / 10,
        "env_infos/obs_dict/door": infos,
        "env_infos/solved": flags,
        "env_infos/time": np.arange(h) / 10,
    }


def write(path: Path, trials: Mapping[str, Mapping[str, Any]], **kinds: Any) -> Path:
    with h5py.File(path, "w") as f:
        for name, columns in trials.items():
            group = f.create_group(name)
            for key, value in columns.items():
                group.create_dataset(key, data=value, **(kinds if np.shape(value) else {}))
    return path


def test_trace_by_hand(tmp_path: Path) -> None:
    first, second = trial("trace", 0, 4, done=3), trial("trace", 1, 3, done=0)
    rows = Rows(write(tmp_path / "a.h5", {"Trial0": first, "Trial1": second}))
    assert rows.plan.facts["rows"] == {"a.h5": "trace"}
    assert rows.episodes.length.tolist() == [3, 2]
    assert rows.episodes.end.tolist() == [TERMINATED, CUT]
    assert rows.episodes.observed.tolist() == [True, True]
    assert np.array_equal(rows["observation"], np.concatenate([first["observations"], second["observations"]]))
    assert np.array_equal(rows.episode(0, "action"), [*first["actions"][:3], [0, 0]])
    assert np.array_equal(rows.episode(0, "next/reward"), [*first["rewards"][1:], 0])
    assert rows.episode(0, "next/terminated").tolist() == [0, 0, 1, 0]
    assert rows.episode(1, "next/terminated").tolist() == [0, 0, 0]
    assert rows.episode(1, "next/truncated").tolist() == [0, 1, 0]
    assert np.array_equal(rows.episode(1, "info/obs_dict/door"), second["env_infos/obs_dict/door"])
    assert rows.schema["info/solved"].placement == "both"
    assert np.array_equal(rows.episode(0, "time"), first["time"])
    assert rows.codes() == {}


def test_path_by_hand(tmp_path: Path) -> None:
    one = trial("path", 0, 3, done=1)
    rows = Rows(write(tmp_path / "a.h5", {"Trial0": one}))
    assert rows.plan.facts["rows"] == {"a.h5": "path"}
    assert rows.episodes.length.tolist() == [3]
    assert rows.episodes.end.tolist() == [CUT]
    assert rows.episodes.num_transitions.tolist() == [2]
    assert np.array_equal(rows["observation"], one["observations"][[0, 1, 2, 2]])
    assert np.array_equal(rows["next/info/obs_dict/door"], [*one["env_infos/obs_dict/door"], [0]])
    assert rows["next/terminated"].tolist() == [0, 1, 0, 0]
    assert rows["next/truncated"].tolist() == [0, 0, 1, 0]
    assert rows.schema["next/info/solved"].placement == "next"
    assert rows.codes() == {"terminated-inside": 1}


def test_demo_by_hand(tmp_path: Path) -> None:
    one = trial("demo", 0, 3, done=2, dtype="f2")
    rows = Rows(write(tmp_path / "a.h5", {"Trial0": one}, compression="gzip"))
    assert rows.plan.facts["rows"] == {"a.h5": "demo"}
    assert rows.episodes.end.tolist() == [TERMINATED]
    assert rows.episodes.observed.tolist() == [False]
    assert np.array_equal(rows["observation"], one["observations"][[0, 1, 2, 2]])
    assert rows["observation"].dtype == np.float16
    assert np.array_equal(rows["info/obs_dict/door"], [*one["env_infos/obs_dict/door"], [0]])
    assert np.array_equal(rows["next/reward"], [*one["rewards"], 0])
    assert rows["next/terminated"].tolist() == [0, 0, 1, 0]
    assert {f.placement for n, f in rows.schema.items() if n.startswith("info/")} == {"root"}
    assert rows.schema["time"].placement == "both"
    assert rows.codes() == {}


def test_rows_that_do_not_say_are_demos_with_a_note(tmp_path: Path) -> None:
    still = {**trial("demo", 0), "env_infos/obs_dict/door": np.ones((5, 1))}
    still["observations"][:, 1] = 1
    rows = Rows(write(tmp_path / "a.h5", {"Trial0": still}))
    assert rows.plan.facts["rows"] == {"a.h5": "demo"}
    assert rows.codes()["row-convention"] == 1


@pytest.mark.thorough
def test_trials_sort_as_numbers_and_files_stay_apart(tmp_path: Path) -> None:
    first = write(tmp_path / "seed1.h5", {f"Trial{k}": trial("demo", k, 3 + k) for k in (0, 10, 2, 1)})
    second = write(tmp_path / "seed2.h5", {"Trial0": trial("demo", 77, 3)})
    rows = Rows(first, second)
    assert rows.episodes.group == ["Trial0", "Trial1", "Trial2", "Trial10", "Trial0"]
    assert rows.episodes.source.tolist() == [0, 0, 0, 0, 1]
    assert rows.episodes.length.tolist() == [3, 4, 5, 13, 3]
    assert np.array_equal(rows.episode(4, "observation")[:3], trial("demo", 77, 3)["observations"])


def test_traces_and_demos_go_together(tmp_path: Path) -> None:
    a = write(tmp_path / "a.h5", {"Trial0": trial("demo", 0, 3)})
    b = write(tmp_path / "b.h5", {"Trial0": trial("trace", 1, 3)})
    rows = Rows(a, b)
    assert rows.plan.facts["rows"] == {"a.h5": "demo", "b.h5": "trace"}
    assert rows.episodes.length.tolist() == [3, 2]
    assert rows.episodes.observed.tolist() == [False, True]
    assert rows.schema["info/obs_dict/door"].placement == "both"
    door = trial("demo", 0, 3)["env_infos/obs_dict/door"]
    assert np.array_equal(rows.episode(0, "info/obs_dict/door"), door[[0, 1, 2, 2]])


def test_paths_go_with_their_own_kind(tmp_path: Path) -> None:
    a = write(tmp_path / "a.h5", {"Trial0": trial("path", 0)})
    b = write(tmp_path / "b.h5", {"Trial0": trial("trace", 1)})
    with pytest.raises(UnknownLayout, match=r"a\.h5: path, b\.h5: trace"):
        Rows(a, b)
    still = {**trial("path", 2), "env_infos/obs_dict/door": np.ones((5, 1))}
    c = write(tmp_path / "c.h5", {"Trial0": still})
    rows = Rows(a, c)
    assert rows.plan.facts["rows"] == {"a.h5": "path", "c.h5": "path"}
    assert rows.codes()["row-convention"] == 1


def test_conventions_without_infos_go_together(tmp_path: Path) -> None:
    bare = [{k: v for k, v in trial(c, 0, 3).items() if "/" not in k} for c in ("demo", "trace")]
    a = write(tmp_path / "a.h5", {"Trial0": bare[0]})
    b = write(tmp_path / "b.h5", {"Trial0": bare[1]})
    rows = Rows(a, b)
    assert rows.episodes.length.tolist() == [3, 2]
    assert "row-convention" not in rows.codes()


def test_trials_without_steps_are_left_out(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.h5",
        {"Trial0": trial("trace", 0, 1), "Trial1": trial("trace", 1, 3), "Trial2": trial("trace", 2, 0)},
    )
    rows = Rows(path)
    assert rows.episodes.group == ["Trial1"]
    assert rows.codes() == {"empty-episodes": 2}
    nothing = Rows(write(tmp_path / "b.h5", {"Trial0": trial("demo", 0, 0)}))
    assert nothing.plan.parts == ()


def test_a_trial_of_a_trace_without_its_last_row(tmp_path: Path) -> None:
    odd = trial("trace", 1, 4)
    odd["actions"][-1] = 0.5
    rows = Rows(write(tmp_path / "a.h5", {"Trial0": trial("trace", 0), "Trial1": odd, "Trial2": trial("trace", 2)}))
    assert rows.episodes.length.tolist() == [4, 3, 4]
    assert np.array_equal(rows.episode(1, "observation"), odd["observations"])
    assert rows.codes() == {"last-action": 1}


def test_nan_inside_is_kept(tmp_path: Path) -> None:
    one = trial("demo", 0)
    one["actions"][2, 1] = np.nan
    rows = Rows(write(tmp_path / "a.h5", {"Trial0": one}))
    assert np.isnan(rows["action"][2, 1])
    assert rows.codes() == {"nan": 1}


def test_parts_of_observations_and_other_columns(tmp_path: Path) -> None:
    h = 4
    one = {
        "observations/state": np.arange(h * 2.0).reshape(h, 2),
        "observations/rgb:top": np.arange(h * 12, dtype="u1").reshape(h, 2, 2, 3),
        "actions/arm": np.ones((h, 7)),
        "rewards": np.arange(4.0)[:, None],
        "done": np.array([0, 0, 0, 1.0]),
        "env_infos/state/qpos": np.arange(h * 2.0).reshape(h, 2),
        "env_infos/note": ["a", "b", "c", "d"],
        "effort": np.arange(h),
        "user_cmt": 3.5,
        "config/gains": np.arange(h),
    }
    rows = Rows(write(tmp_path / "a.h5", {"Trial7": one}))
    assert np.array_equal(rows["observation/rgb:top"], one["observations/rgb:top"][[0, 1, 2, 3, 3]])
    assert rows["observation/rgb:top"].dtype == np.uint8
    assert rows["action/arm"].shape == (5, 7)
    assert rows["next/reward"].tolist() == [0, 1, 2, 3, 0]
    assert rows["info/note"] == ["a", "b", "c", "d", None]
    assert rows["info/state/qpos"].shape == (5, 2)
    assert rows["effort"].tolist() == [0, 1, 2, 3, 0]
    assert rows.episodes.end.tolist() == [TERMINATED]
    with h5py.File(tmp_path / "a.h5", "a") as f:
        f["Trial7"].attrs["operator"] = "ann"
    constants = dict(roboset.READER.metadata(rows.plan))
    assert constants["Trial7/attributes/operator"] == "ann"
    assert constants["Trial7/user_cmt"] == 3.5
    assert np.array_equal(constants["Trial7/config/gains"], np.arange(h))


@pytest.mark.parametrize("budget", [2, 3, 4, 100])
def test_texts_observed_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: int) -> None:
    monkeypatch.setattr("rlds_cli.archives.grouped.CHUNK_ROWS", budget)
    said = ["é", "b", "", "d"]
    columns = {"observations/said": said, "observations/x": np.arange(4.0), "actions": np.zeros((4, 1))}
    rows = Rows(write(tmp_path / "a.h5", {"Trial0": columns}))
    assert [x for c in rows.chunks for x in c.columns["observation/said"]] == [*said, "d"]


def test_constants_of_as_many_values_as_one_trial_has_rows(tmp_path: Path) -> None:
    gains = np.arange(4.0)
    trials = {f"Trial{k}": trial("demo", k, h) | {"gains": gains} for k, h in enumerate((3, 4, 5))}
    rows = Rows(write(tmp_path / "a.h5", trials))
    assert "gains" not in rows.schema
    kept = dict(roboset.READER.metadata(rows.plan))
    assert [np.array_equal(kept[f"Trial{k}/gains"], gains) for k in range(3)] == [True] * 3


def test_hardware_schema(tmp_path: Path) -> None:
    h = 3
    one = {
        "data/time": np.arange(h) / 20,
        "data/ctrl_arm": np.ones((h, 7)),
        "data/ctrl_ee": np.ones((h, 1)),
        "data/qp_arm": np.arange(h * 7.0).reshape(h, 7),
        "data/rgb_left": np.zeros((h, 4, 4, 3), "u1"),
        "data/d_left": np.zeros((h, 4, 4), "u2"),
        "data/user_input": np.zeros(h),
        "derived/pose_ee": np.ones((h, 6)),
        "config/solved": np.float16(1),
    }
    path = write(tmp_path / "a.h5", {"Trial0": one, "Trial1": one})
    assert roboset.READER.recognise([path]) == "RoboSet layout: 2 trials"
    rows = Rows(path)
    assert set(rows.schema) == {
        "time",
        "action/ctrl_arm",
        "action/ctrl_ee",
        "observation/qp_arm",
        "observation/rgb_left",
        "observation/d_left",
        "info/user_input",
        "info/derived/pose_ee",
        "next/terminated",
        "next/truncated",
    }
    assert rows.episodes.end.tolist() == [CUT, CUT]
    assert np.array_equal(rows.episode(1, "observation/qp_arm")[:h], one["data/qp_arm"])
    assert dict(roboset.READER.metadata(rows.plan)) == {"Trial0/config/solved": 1, "Trial1/config/solved": 1}


def test_map(tmp_path: Path) -> None:
    one = {**trial("demo", 0, 3), "cmd": np.ones((3, 9))}
    path = write(tmp_path / "a.h5", {"Trial0": one})
    rows = Rows(path, fields={"action": "cmd", "reward": "env_infos/time"})
    assert rows["action"].shape == (4, 9)
    assert rows["next/reward"].tolist() == [0, 0.1, 0.2, 0]
    assert {"actions", "rewards"} <= set(rows.schema)
    with pytest.raises(UnknownLayout, match='no "nothing"'):
        Rows(path, fields={"action": "nothing"})


def test_names_that_meet_a_meaning_move_aside(tmp_path: Path) -> None:
    rows = Rows(write(tmp_path / "a.h5", {"Trial0": {**trial("demo", 0, 3), "observation": np.arange(3)}}))
    assert rows["extra/observation"].tolist() == [0, 1, 2, 0]


def test_trials_with_other_fields_are_named(tmp_path: Path) -> None:
    less = {k: v for k, v in trial("demo", 1).items() if k != "env_infos/solved"}
    with pytest.raises(UnknownLayout, match=r"Trial3 does not hold .* Trial0 of a\.h5: info/solved is absent and bool"):
        Rows(write(tmp_path / "a.h5", {"Trial0": trial("demo", 0), "Trial3": less}))
    half = write(tmp_path / "b.h5", {"Trial0": trial("demo", 0, dtype="f2")})
    whole = write(tmp_path / "c.h5", {"Trial0": trial("demo", 0)})
    with pytest.raises(
        UnknownLayout, match=r"c\.h5: Trial0 .* Trial0 of b\.h5: action is float64 \[2\] and float16 \[2\]"
    ):
        Rows(half, whole)


def test_ragged_and_missing_columns_are_named(tmp_path: Path) -> None:
    ragged = {**trial("demo", 0), "rewards": np.zeros(4)}
    with pytest.raises(CorruptArchive, match=r"Trial0: columns .* actions 5, .*observations 5, rewards 4"):
        Rows(write(tmp_path / "a.h5", {"Trial0": ragged}))
    blind = {k: v for k, v in trial("demo", 0).items() if k != "observations"}
    with pytest.raises(UnknownLayout, match=r"Trial0 has no observations\. It holds actions \[5, 2\]"):
        Rows(write(tmp_path / "b.h5", {"Trial0": blind}))
    with pytest.raises(UnknownLayout, match=r"no trials .* It holds run/x \[3\]"):
        Rows(write(tmp_path / "c.h5", {"run": {"x": np.zeros(3)}}))


def test_recognise(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", {"Trial0": trial("demo", 0), "Trial1": trial("demo", 1)})
    assert archives.recognise([path]) == ("roboset", "RoboHive layout: 2 trials")
    assert roboset.READER.recognise([path, path]) == "RoboHive layout: 2 files, the first with 2 trials"
    other = write(tmp_path / "b.h5", {"data": {"x": np.zeros(3)}})
    assert roboset.READER.recognise([other]) is None
    assert roboset.READER.recognise([]) is None


def test_rule_for_ends_does_not_apply(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", {"Trial0": trial("demo", 0)})
    with pytest.raises(UnknownLayout, match="keeps its trials apart"):
        roboset.READER.plan(Archive(tmp_path, (path,), "timeouts"))


@pytest.mark.thorough
@pytest.mark.parametrize("convention", ["trace", "path", "demo"])
@pytest.mark.parametrize("budget", [2, 3, 7, 100])
def test_pieces_of_any_size_give_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, convention: str, budget: int
) -> None:
    lengths = [4, 9, 2, 3, 3, 20, 5]
    trials = {f"Trial{k}": trial(convention, k, h, done=h - 1 if k % 2 else None) for k, h in enumerate(lengths)}
    path = write(tmp_path / "a.h5", trials)
    whole = Rows(path)
    monkeypatch.setattr("rlds_cli.archives.grouped.CHUNK_ROWS", budget)
    monkeypatch.setattr("rlds_cli.archives.grouped.PART_ROWS", 10)
    pieces = Rows(path)
    assert max(map(len, pieces.chunks)) <= budget
    assert len(pieces.plan.parts) > 2
    for name in whole.schema:
        assert np.array_equal(whole[name], pieces[name]), name
    assert whole.episodes.end.tolist() == pieces.episodes.end.tolist() == [CUT if k % 2 == 0 else 0 for k in range(7)]


@pytest.mark.thorough
def test_embedded_sample_is_a_trace_value_by_value() -> None:
    rows = Rows(OURS)
    assert rows.plan.facts["rows"] == {OURS.name: "trace"}
    with h5py.File(OURS) as f:
        groups = sorted(f, key=lambda name: int(name[5:]))
        assert rows.episodes.group == groups
        for k, group in enumerate(groups):
            g = f[group]
            assert np.array_equal(rows.episode(k, "observation"), g["observations"][:])
            assert np.array_equal(rows.episode(k, "action")[:-1], g["actions"][:-1])
            assert np.array_equal(rows.episode(k, "next/reward")[:-1], g["rewards"][1:])
            assert np.array_equal(rows.episode(k, "next/terminated")[:-1], g["done"][1:])
            assert rows.episodes.end[k] == (TERMINATED if g["done"][-1] else CUT)
            assert np.array_equal(rows.episode(k, "time"), g["time"][:])
            for key in ("obs_dict/position", "rwd_dict/goal", "state/qpos", "solved", "rwd_dense"):
                assert np.array_equal(rows.episode(k, f"info/{key}"), g[f"env_infos/{key}"][:])
    assert CUT in rows.episodes.end and TERMINATED in rows.episodes.end


@pytest.mark.thorough
def test_sample_value_by_value() -> None:
    path = SAMPLES / "door_paths.h5"
    rows = Rows(path)
    assert rows.plan.facts["rows"] == {"door_paths.h5": "demo"}
    keys = {
        "observation": "observations",
        "action": "actions",
        "next/reward": "rewards",
        "next/terminated": "done",
        "time": "time",
        "info/obs_dict/door": "env_infos/obs_dict/door",
        "info/rwd_dense": "env_infos/rwd_dense",
        "info/solved": "env_infos/solved",
        "info/time": "env_infos/time",
    }
    assert set(rows.schema) == {*keys, "next/truncated"}
    with h5py.File(path) as f:
        for k in range(5):
            for name, key in keys.items():
                values = f[f"Trial{k}"][key][:]
                assert rows.schema[name].dtype == values.dtype
                assert np.array_equal(rows.episode(k, name)[:-1], values)
    assert rows.episodes.end.tolist() == [TERMINATED] * 5
    assert rows.episodes.length.tolist() == [300] * 5
