from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlds_cli import archives
from rlds_cli.archives import Archive, Plan, Replan, d4rl
from rlds_cli.errors import CorruptArchive, UnknownLayout, UnsafeArchive
from rlds_cli.ted import CUT, TERMINATED, TRUNCATED, EpisodeTable, Field

SAMPLES = Path(__file__).parents[2] / "shared" / "data" / "d4rl"

samples = pytest.mark.skipif(not SAMPLES.exists(), reason=f"{SAMPLES} is not there")


class Rows:
    """Everything that a reader gives for some files, parts and chunks joined."""

    def __init__(self, *files: Path, episodes_by: str | None = None, fields: Mapping[str, str] | None = None) -> None:
        plan = d4rl.plan(Archive(files[0].parent, files, episodes_by, fields or {}))
        try:
            chunks = [[*d4rl.read(plan, part)] for part in plan.parts]
        except Replan as better:
            plan = better.plan
            chunks = [[*d4rl.read(plan, part)] for part in plan.parts]
        self.plan: Plan = plan
        for part, of_part in zip(plan.parts, chunks, strict=True):
            assert part.rows in (None, sum(len(c) for c in of_part))
        self.chunks = [c for of_part in chunks for c in of_part]
        self.schema = {f.name: f for f in plan.schema}
        self.episodes = EpisodeTable.concat([c.episodes for c in self.chunks])
        self.notes = [n for c in self.chunks for n in c.notes] + list(plan.notes)
        for c in self.chunks:
            assert set(c.columns) == set(self.schema)
            assert {len(v) for v in c.columns.values()} == {len(c.last)}
        self.last = np.concatenate([c.last for c in self.chunks]) if self.chunks else np.zeros(0, bool)
        assert np.array_equal(
            np.flatnonzero(self.last), np.cumsum(self.episodes.length + 1) - 1 if len(self.episodes) else []
        )

    def __getitem__(self, name: str) -> Any:
        columns = [c.columns[name] for c in self.chunks]
        if self.schema[name].kind == "text":
            return [v for c in columns for v in c]
        joined = np.concatenate(columns)
        assert joined.dtype == self.schema[name].dtype and joined.shape[1:] == self.schema[name].shape
        return joined

    def codes(self) -> dict[str, int]:
        return {code: sum(n.count for n in self.notes if n.code == code) for code in {n.code for n in self.notes}}


def write(path: Path, **columns: Any) -> Path:
    with h5py.File(path, "w") as f:
        for key, value in columns.items():
            f.create_dataset(key.replace("__", "/"), data=value)
    return path


def ramp(n: int, width: int = 2, dtype: str = "float32") -> np.ndarray:
    return (np.arange(n)[:, None] + np.arange(width) / 10).astype(dtype)


def flags(n: int, *rows: int, dtype: Any = bool) -> np.ndarray:
    out = np.zeros(n, dtype)
    out[list(rows)] = 1
    return out


def test_ends_flags_and_repeated_finals_by_hand(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.hdf5",
        observations=ramp(6),
        actions=ramp(6, 1),
        rewards=np.arange(6, dtype="float64"),
        terminals=flags(6, 1),
        timeouts=flags(6, 3),
    )
    rows = Rows(path)
    assert rows.plan.episodes_by == "flags"
    assert [p.rows for p in rows.plan.parts] == [9]
    assert rows["observation"][:, 0].tolist() == [0, 1, 1, 2, 3, 3, 4, 5, 5]
    assert rows["action"][:, 0].tolist() == [0, 1, 0, 2, 3, 0, 4, 5, 0]
    assert rows["next/reward"].tolist() == [0, 1, 0, 2, 3, 0, 4, 5, 0]
    assert rows["next/reward"].dtype == np.float64
    assert rows["next/terminated"].tolist() == [0, 1, 0, 0, 0, 0, 0, 0, 0]
    assert rows["next/truncated"].tolist() == [0, 0, 0, 0, 1, 0, 0, 1, 0]
    assert rows.episodes.length.tolist() == [2, 2, 2]
    assert rows.episodes.end.tolist() == [TERMINATED, TRUNCATED, CUT]
    assert rows.episodes.num_transitions.tolist() == [2, 1, 1]
    assert rows.episodes.row.tolist() == [0, 2, 4]
    assert rows.codes() == {"open-end": 1}
    assert rows.schema["observation"] == Field("observation", "float32", (2,), "both")
    assert rows.schema["next/reward"].placement == "next"


def test_finals_come_from_next_observations(tmp_path: Path) -> None:
    o = ramp(5)
    n = np.concatenate([o[1:], o[:1]])
    n[1], n[4] = 70, 80
    rows = Rows(
        write(tmp_path / "a.hdf5", observations=o, actions=ramp(5, 1), next_observations=n, terminals=flags(5, 1))
    )
    assert rows["observation"][:, 0].tolist() == [0, 1, 70, 2, 3, 4, 80]
    assert rows.episodes.observed.all()
    assert rows.episodes.num_transitions.tolist() == [2, 3]
    assert [p.rows for p in rows.plan.parts] == [None]
    assert "next/reward" not in rows.schema
    assert rows.codes() == {"open-end": 1}


def test_both_flags_are_terminated_and_kept(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.hdf5",
        observations=ramp(2),
        actions=ramp(2),
        terminals=flags(2, 1),
        timeouts=flags(2, 1),
    )
    rows = Rows(path)
    assert rows.episodes.end.tolist() == [TERMINATED]
    assert rows["next/terminated"].tolist() == [0, 1, 0]
    assert rows["next/truncated"].tolist() == [0, 1, 0]
    assert rows.codes() == {}


@pytest.mark.parametrize("dtype", ["bool", "float32", "float64", "uint8", "int64"])
@pytest.mark.parametrize("column", [False, True])
def test_flags_of_any_type_and_shape(tmp_path: Path, dtype: str, column: bool) -> None:
    flag, reward = flags(4, 1, dtype=dtype), np.arange(4, dtype="float32")
    path = write(
        tmp_path / "a.hdf5",
        observations=ramp(4),
        actions=ramp(4),
        rewards=reward[:, None] if column else reward,
        terminals=flag[:, None] if column else flag,
    )
    rows = Rows(path)
    assert rows.episodes.end.tolist() == [TERMINATED, CUT]
    assert rows["next/terminated"].tolist() == [0, 1, 0, 0, 0, 0]
    assert rows["next/reward"].tolist() == [0, 1, 0, 2, 3, 0]
    assert rows.schema["next/reward"].shape == ()


def test_rewards_of_two_objectives_stay_two(tmp_path: Path) -> None:
    rows = Rows(write(tmp_path / "a.hdf5", observations=ramp(2), actions=ramp(2), rewards=ramp(2)))
    assert rows["next/reward"].shape == (3, 2)


def test_nan_in_a_flag_is_not_set_and_in_values_is_kept(tmp_path: Path) -> None:
    o = ramp(3)
    o[1, 0] = np.nan
    path = write(tmp_path / "a.hdf5", observations=o, actions=ramp(3), terminals=np.array([np.nan, 0, 1]))
    rows = Rows(path)
    assert rows.episodes.end.tolist() == [TERMINATED]
    assert np.isnan(rows["observation"][1, 0])
    assert rows.codes() == {"nan": 1}


def test_opposite_infinities_are_not_reported_as_nan(tmp_path: Path) -> None:
    o = ramp(3)
    o[0], o[1] = np.inf, -np.inf
    rows = Rows(write(tmp_path / "a.hdf5", observations=o, actions=ramp(3), terminals=flags(3, 2)))
    assert rows["observation"][0, 0] == np.inf
    assert rows.codes() == {}


def test_no_flags_at_all_is_one_cut_episode(tmp_path: Path) -> None:
    rows = Rows(write(tmp_path / "a.hdf5", observations=ramp(3), actions=ramp(3)))
    assert rows.episodes.length.tolist() == [3]
    assert rows.episodes.end.tolist() == [CUT]
    assert rows["next/truncated"].tolist() == [0, 0, 1, 0]


def test_no_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "a.hdf5", observations=np.zeros((0, 3), "f4"), actions=np.zeros((0, 2), "f4"))
    for rule in (None, "file", "jumps"):
        rows = Rows(path, episodes_by=rule)
        assert rows.plan.parts == ()
        assert rows.schema["observation"].shape == (3,)
        assert rows.codes() == {"empty-file": 1}


def test_infos_of_every_kind_and_other_columns(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.hdf5",
        observations=ramp(3),
        actions=ramp(3),
        infos__qpos=ramp(3, 4, "float64"),
        infos__deep__er=np.arange(3, dtype="int16"),
        goal=ramp(3, 2, "float16"),
        sub__x=np.arange(3, dtype=">i4"),
        terminals=flags(3, 1),
        version="2.1",
        pi=3.5,
        gains=np.arange(7),
        metadata__policy__weight=ramp(3),
        metadata__algorithm=np.bytes_("SAC"),
        metadata__tags=["a", "b"],
    )
    rows = Rows(path)
    with h5py.File(path, "a") as f:
        f.attrs["fps"] = 20
        f["infos"].attrs["unit"] = "rad"
    assert {"info/qpos", "info/deep/er", "goal", "sub/x"} <= set(rows.schema)
    assert rows["info/qpos"].dtype == np.float64
    assert rows["info/deep/er"].tolist() == [0, 1, 0, 2, 0]
    assert rows["sub/x"].tolist() == [0, 1, 0, 2, 0]
    assert rows.schema["sub/x"].dtype == "int32"
    assert {f.placement for n, f in rows.schema.items() if n.startswith(("info", "goal", "sub"))} == {"root"}
    constants = dict(d4rl.metadata(rows.plan))
    assert {k: v for k, v in constants.items() if isinstance(v, str)} == {
        "version": "2.1",
        "algorithm": "SAC",
        "tags": "a\nb",
        "infos/attributes/unit": "rad",
    }
    assert constants["attributes/fps"] == 20
    assert constants["pi"] == 3.5
    assert np.array_equal(constants["policy/weight"], ramp(3))
    assert np.array_equal(constants["gains"], np.arange(7))
    assert rows.codes() == {"open-end": 1, "not-per-row": 1}


def test_flat_infos_are_one_field(tmp_path: Path) -> None:
    rows = Rows(write(tmp_path / "a.hdf5", observations=ramp(2), actions=ramp(2), infos=np.array([4, 5])))
    assert rows["info"].tolist() == [4, 5, 0]


def test_text_columns(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.hdf5",
        observations__state=ramp(3),
        observations__say=["a", "bä", "c"],
        actions=ramp(3),
        task=np.array([b"x", b"y", b"z"]),
        terminals=flags(3, 1),
    )
    rows = Rows(path)
    assert rows["task"] == ["x", "y", None, "z", None]
    assert rows["observation/say"] == ["a", "bä", "bä", "c", "c"]
    assert rows.schema["task"].kind == "text"


def test_observations_in_parts(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.hdf5",
        observations__state=ramp(3),
        observations__images__top=np.arange(3 * 4, dtype="uint8").reshape(3, 2, 2),
        next_observations__state=ramp(3) + 1,
        next_observations__images__top=np.arange(4, 16, dtype="uint8").reshape(3, 2, 2),
        actions__arm=ramp(3),
        actions__hand=np.arange(3),
        timeouts=flags(3, 2),
    )
    rows = Rows(path)
    assert rows["observation/images/top"][:, 0, 0].tolist() == [0, 4, 8, 12]
    assert rows["observation/state"][:, 0].tolist() == [0, 1, 2, 3]
    assert rows["action/hand"].tolist() == [0, 1, 2, 0]
    assert rows.episodes.observed.tolist() == [True]


def test_names_that_meet_a_meaning_move_aside(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.hdf5",
        observations=ramp(2),
        actions=ramp(2),
        observation=np.arange(2),
        action__x=np.arange(2),
        next__terminated=np.arange(2),
        next__success=flags(2, 1),
    )
    rows = Rows(path)
    assert rows["extra/observation"].tolist() == [0, 1, 0]
    assert rows["extra/action/x"].tolist() == [0, 1, 0]
    assert rows["extra/next/terminated"].tolist() == [0, 1, 0]
    assert rows.schema["next/success"].placement == "next"


def test_timeouts_rule_keeps_terminated_inside(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.hdf5",
        observations=ramp(6),
        actions=ramp(6),
        terminals=flags(6, 0, 1, 5),
        timeouts=flags(6, 3),
    )
    rows = Rows(path, episodes_by="timeouts")
    assert rows.plan.episodes_by == "timeouts"
    assert rows.episodes.length.tolist() == [4, 2]
    assert rows.episodes.end.tolist() == [TRUNCATED, TERMINATED]
    assert rows["next/terminated"].tolist() == [1, 1, 0, 0, 0, 0, 1, 0]
    assert rows["next/truncated"].tolist() == [0, 0, 0, 1, 0, 0, 0, 0]
    assert rows.codes() == {"terminated-inside": 2}
    assert "timeouts" not in rows.schema


def test_file_rule_keeps_timeouts_as_a_field(tmp_path: Path) -> None:
    one = write(tmp_path / "1.hdf5", observations=ramp(3), actions=ramp(3), timeouts=flags(3, 1, dtype="uint8"))
    two = write(tmp_path / "2.hdf5", observations=ramp(2) + 5, actions=ramp(2), timeouts=flags(2, 1, dtype="uint8"))
    rows = Rows(one, two, episodes_by="file")
    assert rows.episodes.length.tolist() == [3, 2]
    assert rows.episodes.end.tolist() == [CUT, TRUNCATED]
    assert rows.episodes.source.tolist() == [0, 1]
    assert rows.episodes.row.tolist() == [0, 0]
    assert rows["timeouts"].tolist() == [0, 1, 0, 0, 0, 1, 0]
    assert rows["timeouts"].dtype == np.uint8
    assert rows["observation"][:, 0].tolist() == [0, 1, 2, 2, 5, 6, 6]


@pytest.mark.parametrize("key", ["infos", "info"])
def test_field_rule(tmp_path: Path, key: str) -> None:
    path = write(
        tmp_path / "a.hdf5",
        observations=ramp(6),
        actions=ramp(6),
        terminals=flags(6, 1, 2),
        infos=np.array([[7], [7], [8], [3], [3], [3]]),
    )
    rows = Rows(path, episodes_by=f"field:{key}")
    assert rows.episodes.length.tolist() == [2, 1, 3]
    assert rows.episodes.end.tolist() == [TERMINATED, TERMINATED, CUT]
    assert rows["info"].reshape(-1).tolist() == [7, 7, 0, 8, 0, 3, 3, 3, 0]


def test_jumps_rule_by_next_observations(tmp_path: Path) -> None:
    o = ramp(8)
    n = o + 1
    n[[1, 2, 5]] += 50
    n[7] = 99
    path = write(
        tmp_path / "a.hdf5",
        observations=o,
        actions=ramp(8),
        next_observations=n,
        terminals=flags(8, 4, 5),
        timeouts=flags(8, 2, 3),
    )
    rows = Rows(path, episodes_by="jumps")
    assert rows.episodes.length.tolist() == [2, 1, 3, 2]
    assert rows.episodes.end.tolist() == [CUT, TRUNCATED, TERMINATED, CUT]
    finals = rows["observation"][rows.last]
    assert finals[:, 0].tolist() == [52, 53, 56, 99]
    assert rows["timeouts"][~rows.last].tolist() == [0, 0, 1, 1, 0, 0, 0, 0]
    assert rows["next/truncated"][~rows.last].tolist() == [0, 1, 1, 0, 0, 0, 0, 1]
    assert "unflagged-end" not in rows.codes()


def test_jumps_rule_by_observations_alone(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    n, ends = 6000, [699, 1400, 2987, 5000]
    o = np.cumsum(rng.uniform(-0.1, 0.1, (n, 3)), axis=0)
    for end in ends:
        o[end + 1 :, :2] += 20
    o[:, 2] = 4.0
    o[3000:, 2] = 5.0  # a component that hardly ever moves has no scale
    path = write(tmp_path / "a.hdf5", observations=o.astype("f4"), actions=ramp(n), timeouts=flags(n, 10, 20))
    rows = Rows(path, episodes_by="jumps")
    assert np.cumsum(rows.episodes.length).tolist() == [e + 1 for e in ends] + [n]
    (limits,) = rows.plan.facts["jumps"]
    assert limits["observations"][2] is None
    assert 0.7 < limits["observations"][0] < 0.9
    assert rows["timeouts"].sum() == 2
    still = write(tmp_path / "b.hdf5", observations=np.ones((10, 2)), actions=ramp(10))
    with pytest.raises(UnknownLayout, match="no jump"):
        Rows(still, episodes_by="jumps")


def test_single_mismatches_cut_and_are_reported(tmp_path: Path) -> None:
    n = 4000
    o = ramp(n)
    after = o + 1
    after[[100, 2500]] = -5
    after[n - 1] = -9
    o[200] = np.nan
    after[199] = np.nan
    path = write(
        tmp_path / "a.hdf5", observations=o, actions=ramp(n), next_observations=after, timeouts=flags(n, 999, n - 1)
    )
    rows = Rows(path)
    assert rows.episodes.length.tolist() == [101, 899, 1501, n - 2501]
    assert rows.episodes.end.tolist() == [CUT, TRUNCATED, CUT, TRUNCATED]
    assert rows["observation"][rows.last][:, 0].tolist() == [-5, 1000, -5, -9]
    assert rows.codes()["unflagged-end"] == 2
    (note,) = [x for x in rows.notes if x.code == "unflagged-end"]
    assert note.where == "row 100 of a.hdf5"
    assert rows.plan.facts["next_observations"] == "final"
    assert set(rows.schema) == {"observation", "action", "next/terminated", "next/truncated"}


@pytest.mark.parametrize("n", [20, 4000])
def test_mismatches_throughout_make_a_field_of_their_own(tmp_path: Path, n: int) -> None:
    rng = np.random.default_rng(1)
    o, after = rng.normal(size=(n, 2)), rng.normal(size=(n, 2))
    ends = flags(n, n // 2, n - 1)
    path = write(tmp_path / "a.hdf5", observations=o, actions=ramp(n), next_observations=after, terminals=ends)
    rows = Rows(path)
    assert rows.plan.facts["next_observations"] == "own"
    assert rows.episodes.length.tolist() == [n // 2 + 1, n - n // 2 - 1]
    assert np.array_equal(rows["next/observation"][~rows.last], after)
    assert not rows["next/observation"][rows.last].any()
    assert np.array_equal(rows["observation"][~rows.last], o)
    assert np.array_equal(rows["observation"][rows.last], after[ends])
    assert rows.schema["next/observation"].placement == "next"
    assert rows.episodes.num_transitions.tolist() == rows.episodes.length.tolist()
    assert rows.codes() == {"next-observation": 1}
    assert all(p.rows is not None for p in rows.plan.parts)


def test_next_observations_unlike_the_observations_are_kept(tmp_path: Path) -> None:
    o = ramp(4)
    path = write(
        tmp_path / "a.hdf5", observations=o, actions=ramp(4), next_observations=ramp(4, 3), terminals=flags(4, 3)
    )
    rows = Rows(path)
    assert rows["next/observation"].shape == (5, 3)
    assert not rows.episodes.observed.any()
    wider = write(
        tmp_path / "b.hdf5",
        observations=o,
        actions=ramp(4),
        next_observations=o.astype("f8") + 1,
        terminals=flags(4, 3),
    )
    rows = Rows(wider)
    assert rows["next/observation"].dtype == np.float64
    assert rows["observation"][-1, 0] == 4
    assert rows.episodes.observed.all()


def test_several_files_one_after_the_other(tmp_path: Path) -> None:
    one = write(tmp_path / "1.hdf5", observations=ramp(3), actions=ramp(3), terminals=flags(3, 0), metadata__a=1)
    none = write(
        tmp_path / "2.hdf5",
        observations=np.zeros((0, 2), "f4"),
        actions=np.zeros((0, 2), "f4"),
        terminals=np.zeros(0, bool),
    )
    two = write(tmp_path / "3.hdf5", observations=ramp(2) + 9, actions=ramp(2), terminals=flags(2, 1), metadata__a=2)
    rows = Rows(one, none, two)
    assert rows.episodes.length.tolist() == [1, 2, 2]
    assert rows.episodes.source.tolist() == [0, 0, 2]
    assert rows.episodes.row.tolist() == [0, 1, 0]
    assert {k: int(v) for k, v in d4rl.metadata(rows.plan)} == {"1.hdf5/a": 1, "3.hdf5/a": 2}
    other = write(tmp_path / "4.hdf5", observations=ramp(2, dtype="f8"), actions=ramp(2), extra=np.arange(2))
    with pytest.raises(CorruptArchive, match=r"extra is int64 \[\] and absent; observation is float64 \[2\]") as e:
        Rows(one, other)
    assert "4.hdf5" in str(e.value)


def test_map_reads_columns_of_any_names(tmp_path: Path) -> None:
    path = write(
        tmp_path / "run.h5",
        state__q=ramp(4, 7, "f8"),
        state__dq=ramp(4, 7, "f8"),
        cmd=ramp(4, 7),
        r=np.arange(4, dtype="f4"),
        success=flags(4, 1),
        t=np.arange(4) / 50,
    )
    with pytest.raises(UnknownLayout, match='no "observations"') as e:
        Rows(path)
    assert "state/q [4, 7]" in str(e.value) and "--map observation=KEY" in str(e.value)
    assert d4rl.recognise([path]) is None
    names = {"observation": "state/q", "action": "cmd", "next/reward": "r", "terminated": "success"}
    rows = Rows(path, fields=names)
    assert np.array_equal(rows["observation"][~rows.last], ramp(4, 7, "f8"))
    assert rows.episodes.end.tolist() == [TERMINATED, CUT]
    assert rows["next/reward"].tolist() == [0, 1, 0, 2, 3, 0]
    assert {"state/dq", "t"} <= set(rows.schema)
    assert "state/q" not in rows.schema
    whole = Rows(path, fields={"observation": "state", "action": "cmd", "info/when": "t"})
    assert {"observation/q", "observation/dq", "info/when"} <= set(whole.schema)
    with pytest.raises(UnknownLayout, match=r'no "stat/q"\..*Did you mean "state/q"'):
        Rows(path, fields={**names, "observation": "stat/q"})


def test_map_of_parts_of_the_observation_and_of_a_d4rl_file(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.h5",
        observations=ramp(3),
        actions=ramp(3),
        infos__goal=ramp(3, 1),
        infos__qpos=ramp(3, 5),
        episode_terminals=flags(3, 1),
    )
    fields = {
        "observation/state": "observations",
        "observation/goal": "infos/goal",
        "info/q": "infos/qpos",
        "next/truncated": "episode_terminals",
    }
    rows = Rows(path, fields=fields)
    assert set(rows.schema) == {
        "observation/state",
        "observation/goal",
        "action",
        "info/goal",
        "info/qpos",
        "info/q",
        "next/terminated",
        "next/truncated",
    }
    assert rows.schema["observation/goal"].placement == "both"
    assert rows.episodes.end.tolist() == [TRUNCATED, CUT]


def test_ragged_columns_are_named_with_their_lengths(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", observations=ramp(5), actions=ramp(4), rewards=np.zeros(5), infos__x=np.zeros(3))
    with pytest.raises(CorruptArchive, match=r"observations 5, actions 4, rewards 5, infos/x 3"):
        Rows(path)


def test_scalars_in_place_of_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", observations=ramp(5), actions=1.0)
    with pytest.raises(CorruptArchive, match="actions no rows"):
        Rows(path)


@pytest.mark.parametrize(
    ("flag", "message"),
    [(np.zeros((4, 2)), r"terminals is float64 \[4, 2\]"), (np.array([b"a"] * 4), "terminals is")],
)
def test_flags_that_are_none(tmp_path: Path, flag: np.ndarray, message: str) -> None:
    path = write(tmp_path / "a.h5", observations=ramp(4), actions=ramp(4), terminals=flag)
    with pytest.raises(CorruptArchive, match=message):
        Rows(path)


def test_values_that_no_field_holds(tmp_path: Path) -> None:
    compound = np.zeros(3, [("a", "f4"), ("b", "i4")])
    with pytest.raises(UnknownLayout, match="/odd holds compound values"):
        Rows(write(tmp_path / "a.h5", observations=ramp(3), actions=ramp(3), odd=compound))
    path = write(tmp_path / "b.h5", observations=ramp(3), actions=ramp(3))
    with h5py.File(path, "a") as f:
        f.create_dataset("odd", (3,), h5py.vlen_dtype("f4"))
    with pytest.raises(UnknownLayout, match=r"create\(ID"):
        Rows(path)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("timeouts", 'no "timeouts"'),
        ("field:nothing", 'no column "nothing"'),
        ("field", "is no rule"),
        ("file:x", "is no rule"),
        ("sometimes", "is no rule"),
        ("field:observations", "one value per row"),
    ],
)
def test_rules_that_cannot_be_followed(tmp_path: Path, rule: str, message: str) -> None:
    path = write(tmp_path / "a.h5", observations=ramp(3), actions=ramp(3))
    with pytest.raises(UnknownLayout, match=message):
        Rows(path, episodes_by=rule)


def test_recognise(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", observations=ramp(3), actions=ramp(3), timeouts=flags(3))
    assert d4rl.recognise([path]) == "D4RL layout: 3 rows; observation, action, timeouts"
    assert archives.recognise([path])[0] == "d4rl"
    page = tmp_path / "b.h5"
    page.write_text("<!doctype html><html>not found</html>")
    assert d4rl.recognise([page]) is None
    assert d4rl.recognise([path, page]) is None
    assert d4rl.recognise([]) is None
    with pytest.raises(CorruptArchive, match="HTML page"):
        Rows(page)


def test_external_links_are_refused(tmp_path: Path) -> None:
    secret = write(tmp_path / "secret.h5", x=ramp(3))
    path = write(tmp_path / "a.h5", observations=ramp(3), actions=ramp(3))
    with h5py.File(path, "a") as f:
        f["rewards"] = h5py.ExternalLink(str(secret), "x")
    with pytest.raises(UnsafeArchive, match="rewards is a link to another file"):
        Rows(path)


def test_damaged_chunks_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as f:
        f.create_dataset("observations", data=np.random.default_rng(0).normal(size=(5000, 3)), compression="gzip")
        f.create_dataset("actions", data=ramp(5000), compression="gzip")
        info = f["observations"].id.get_chunk_info(1)
    data = bytearray(path.read_bytes())
    middle = info.byte_offset + info.size // 2
    data[middle : middle + 40] = bytes(40)
    path.write_bytes(data)
    with pytest.raises(CorruptArchive, match=r"a\.h5: /?observations cannot be read"):
        Rows(path)


def test_chunks_are_bounded_and_long_episodes_run_through_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlds_cli.archives.d4rl.rows.CHUNK_BYTES", 4096)
    monkeypatch.setattr(d4rl, "PART_ROWS", 700)
    n = 3000
    path = write(
        tmp_path / "a.h5", observations=ramp(n, 6), actions=ramp(n), timeouts=flags(n, 1999, *range(2000, 2100), 2900)
    )
    rows = Rows(path)
    assert max(sum(v.nbytes for v in c.columns.values()) for c in rows.chunks) <= 4096
    assert len(rows.plan.parts) == 3
    assert rows.episodes.length.tolist() == [2000, *[1] * 100, 801, 99]
    assert rows.episodes.row.tolist() == [0, *range(2000, 2101), 2901]
    assert np.array_equal(rows["observation"][~rows.last], ramp(n, 6))
    assert sum(not len(c.episodes) for c in rows.chunks) > 10


def test_many_short_episodes(tmp_path: Path) -> None:
    n, length = 220_000, 22
    ends = np.zeros(n, bool)
    ends[length - 1 :: length] = True
    path = write(tmp_path / "a.h5", observations=ramp(n), actions=ramp(n), timeouts=ends)
    rows = Rows(path)
    assert len(rows.episodes) == n // length
    expected = np.insert(ramp(n), np.flatnonzero(ends) + 1, ramp(n)[ends], axis=0)
    assert np.array_equal(rows["observation"], expected)


def slow_reference(
    o: list[float], after: list[float] | None, term: list[bool], tout: list[bool], rule: str
) -> dict[str, list[Any]]:
    """One row at a time, straight from the rules; `after` has few enough mismatches to cut at them."""
    out: dict[str, list[Any]] = {
        k: [] for k in ("observation", "terminated", "truncated", "last", "length", "end", "observed", "row")
    }
    start = 0
    for t in range(len(o)):
        end = t == len(o) - 1
        if rule == "flags":
            end = end or term[t] or tout[t]
        elif rule == "timeouts":
            end = end or tout[t]
        if after is not None and not end:
            end = not (after[t] == o[t + 1] or (np.isnan(after[t]) and np.isnan(o[t + 1])))
        out["observation"].append(o[t])
        out["terminated"].append(term[t])
        out["truncated"].append(end and (tout[t] or not term[t]))
        out["last"].append(False)
        if end:
            out["observation"].append(o[t] if after is None else after[t])
            out["terminated"].append(False)
            out["truncated"].append(False)
            out["last"].append(True)
            out["length"].append(t + 1 - start)
            out["end"].append(TERMINATED if term[t] else TRUNCATED if tout[t] else CUT)
            out["observed"].append(after is not None)
            out["row"].append(start)
            start = t + 1
    return out


values = st.sampled_from([0.0, 1.0, 2.0, float("nan")])
steps = st.lists(st.tuples(values, values, st.booleans(), st.booleans()), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps, st.sampled_from(["flags", "timeouts", "file"]), st.booleans(), st.booleans(), st.integers(1, 9))
def test_layout_equals_the_slow_reference(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    drawn: list[tuple[float, float, bool, bool]],
    rule: str,
    recorded: bool,
    gzip: bool,
    block: int,
) -> None:
    o, after, term, tout = ([*x] for x in zip(*drawn, strict=True))
    if recorded:  # mostly the row after: few mismatches
        after = [a if t % 5 == 3 else b for t, (a, b) in enumerate(zip(after, [*o[1:], after[-1]], strict=True))]
    monkeypatch.setattr("rlds_cli.archives.d4rl.rows.CHUNK_ROWS", 2 * block)
    monkeypatch.setattr(d4rl, "PART_ROWS", 4 * block)
    monkeypatch.setattr(d4rl, "_max_cuts", lambda pairs: pairs)
    monkeypatch.setattr("rlds_cli.archives.hdf5_rows.MIN_CHUNK_BYTES", 0)
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as f:
        kinds = {"compression": "gzip", "shuffle": True, "chunks": (min(7, len(o)), 1)} if gzip else {}
        f.create_dataset("observations", data=np.array(o)[:, None], **kinds)
        f.create_dataset("actions", data=np.arange(len(o))[:, None])
        f.create_dataset("terminals", data=np.array(term))
        f.create_dataset("timeouts", data=np.array(tout))
        if recorded:
            f.create_dataset("next_observations", data=np.array(after)[:, None], **kinds)
    want = slow_reference(o, after if recorded else None, term, tout, rule)
    rows = Rows(path, episodes_by=rule)
    assert np.array_equal(rows["observation"][:, 0], np.array(want["observation"]), equal_nan=True)
    assert rows["next/terminated"].tolist() == want["terminated"]
    assert rows["next/truncated"].tolist() == want["truncated"]
    assert rows.last.tolist() == want["last"]
    assert rows["action"][~rows.last][:, 0].tolist() == [*range(len(o))]
    assert rows.episodes.length.tolist() == want["length"]
    assert rows.episodes.end.tolist() == want["end"]
    assert rows.episodes.observed.tolist() == want["observed"]
    assert rows.episodes.row.tolist() == want["row"]


@samples
@pytest.mark.parametrize("name", ["hopper_random_layout-v2.hdf5", "kitchen_layout-v0.hdf5"])
def test_samples_value_by_value(name: str) -> None:
    rows = Rows(SAMPLES / name)
    with h5py.File(SAMPLES / name) as f:
        n = len(f["observations"])
        done = f["terminals"][:] != 0
        timeouts = f["timeouts"][:] if "timeouts" in f else np.zeros(n, bool)
        keys = {"observation": "observations", "action": "actions", "next/reward": "rewards", "info": "infos"}
        keys = {k: v for k, v in keys.items() if isinstance(f[v], h5py.Dataset)}
        if isinstance(f["infos"], h5py.Group):
            keys |= {f"info/{k}": f"infos/{k}" for k in f["infos"]}
        assert set(rows.schema) == {*keys, "next/terminated", "next/truncated"}
        for field, key in keys.items():
            assert rows[field].dtype == f[key].dtype
            assert np.array_equal(rows[field][~rows.last], f[key][:])
        ends = done | timeouts
        ends[-1] = True
        finals = f["next_observations" if "next_observations" in f else "observations"][:][ends]
        assert np.array_equal(rows["observation"][rows.last], finals)
        assert np.array_equal(rows["next/terminated"][~rows.last], done)
        open_tail = ends & ~done & ~timeouts
        assert np.array_equal(rows["next/truncated"][~rows.last], timeouts | open_tail)
        assert np.array_equal(rows.episodes.length, np.diff([-1, *np.flatnonzero(ends)]))
        assert rows.episodes.observed.all() == ("next_observations" in f)
        constants = dict(d4rl.metadata(rows.plan))
        if "metadata" in f:
            assert np.array_equal(constants["policy/fc0/weight"], f["metadata/policy/fc0/weight"][:])
            assert constants["algorithm"] == f["metadata/algorithm"][()].decode()
            assert int(constants["iteration"]) == f["metadata/iteration"][()]
            assert len(constants) == 8
