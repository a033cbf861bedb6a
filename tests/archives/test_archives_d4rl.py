from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from d4rl_files import Rows, flags, ramp, write

from rlds_cli import archives
from rlds_cli.archives.d4rl import read as d4rl
from rlds_cli.errors import ArchiveError, CorruptArchive, UnknownLayout, UnsafeArchive
from rlds_cli.ted import CUT, TERMINATED, TRUNCATED, Field

SAMPLES = Path(__file__).parents[1] / "data" / "d4rl"


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


@pytest.mark.thorough
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
    rows = Rows(write(tmp_path / "a.hdf5", observations=ramp(2), actions=ramp(2)[:, :1], rewards=ramp(2)))
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
        with pytest.raises(ArchiveError, match=r"a\.hdf5 has no rows"):
            Rows(path, episodes_by=rule)


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
    constants = dict(d4rl.READER.metadata(rows.plan))
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
    assert d4rl.READER.recognise([path]) is None
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
    with pytest.raises(UnknownLayout, match=r"observations 5, actions 4, rewards 5, infos/x 3"):
        Rows(path)


def test_scalars_in_place_of_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", observations=ramp(5), actions=1.0)
    with pytest.raises(UnknownLayout, match="actions no rows"):
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
    with pytest.raises(UnknownLayout, match="odd holds compound values"):
        Rows(write(tmp_path / "a.h5", observations=ramp(3), actions=ramp(3), odd=compound))
    path = write(tmp_path / "b.h5", observations=ramp(3), actions=ramp(3))
    with h5py.File(path, "a") as f:
        f.create_dataset("odd", (3,), h5py.vlen_dtype("f4"))
    with pytest.raises(UnknownLayout, match=r"create\(ID"):
        Rows(path)


def test_recognise(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", observations=ramp(3), actions=ramp(3), timeouts=flags(3))
    assert d4rl.READER.recognise([path]) == "D4RL layout: 3 rows; observation, action, timeouts"
    assert archives.recognise([path])[0] == "d4rl"
    page = tmp_path / "b.h5"
    page.write_text("<!doctype html><html>not found</html>")
    assert d4rl.READER.recognise([page]) is None
    assert d4rl.READER.recognise([path, page]) is None
    assert d4rl.READER.recognise([]) is None
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


@pytest.mark.thorough
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
        constants = dict(d4rl.READER.metadata(rows.plan))
        if "metadata" in f:
            assert np.array_equal(constants["policy/fc0/weight"], f["metadata/policy/fc0/weight"][:])
            assert constants["algorithm"] == f["metadata/algorithm"][()].decode()
            assert int(constants["iteration"]) == f["metadata/iteration"][()]
            assert len(constants) == 8
