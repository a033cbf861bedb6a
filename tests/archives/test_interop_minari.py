"""Datasets in Minari's form: against Minari itself on the same archive, and for what other families have."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import minari as real
import numpy as np
import pytest
import torch
from conftest import DATA, write_d4rl
from gymnasium import spaces as g
from minari_archives import buffer, by_hand, plain_episode, sampled, write

import rlds_cli
from rlds_cli.errors import DatasetNotFound, MissingPackage, NoEnvironment, NoReward, RldsError, UnknownField
from rlds_cli.interop import minari
from rlds_cli.make.importing import import_files

SAMPLE = Path(__file__).parents[2] / "rlds_cli/samples/cartpole-minari"
GENUINE = [f"{name}_{form}-v0" for name in ("hopper/random", "pointmaze/umaze", "taxi/random", "breakout/random")
           for form in ("hdf5", "arrow", "parquet")]  # fmt: skip


def check_same(ours: Any, theirs: Any, where: str = "") -> None:
    """Equal in nesting, values, dtypes and shapes."""
    if isinstance(theirs, dict):
        assert isinstance(ours, dict) and set(ours) == set(theirs), where
        for key, value in theirs.items():
            check_same(ours[key], value, f"{where}/{key}")
    elif isinstance(theirs, tuple):
        assert isinstance(ours, tuple) and len(ours) == len(theirs), where
        for i, value in enumerate(theirs):
            check_same(ours[i], value, f"{where}/{i}")
    elif isinstance(theirs, list):
        assert ours == theirs, where
    else:
        np.testing.assert_array_equal(ours, theirs, strict=True, err_msg=where)


def check_episode(ours: Any, theirs: Any) -> None:
    assert ours.id == theirs.id and len(ours) == len(theirs)
    for name in ("observations", "actions", "rewards", "terminations", "truncations"):
        check_same(getattr(ours, name), getattr(theirs, name), name)
    check_same(ours.infos, theirs.infos or {}, "infos")


def check_against_minari(data: Path) -> tuple[minari.MinariDataset, real.MinariDataset]:
    """Every value of every episode, as the real library reads it from the archive."""
    import_files(data, "local/same", force=True)
    ours, theirs = minari.load_dataset("local/same"), real.MinariDataset(data)
    assert (len(ours), ours.total_episodes, ours.total_steps) == (
        len(theirs), theirs.total_episodes, theirs.total_steps,
    )  # fmt: skip
    assert ours.observation_space == theirs.observation_space and ours.action_space == theirs.action_space
    for a, b in zip(ours, theirs, strict=True):
        check_episode(a, b)
    return ours, theirs


def press(**changes: Any) -> rlds_cli.Dataset:
    """A dataset of two episodes of 3 and 2 steps, made in memory."""

    def episode(steps: int, end: str) -> dict[str, Any]:
        flag = np.arange(steps) == steps - 1
        return {
            "observation": np.arange(steps + 1, dtype=np.float32)[:, None],
            "action": np.ones((steps, 1)),
            "next": {"reward": np.ones(steps), "terminated": flag & (end == "terminated")},
        } | {name: value(steps) for name, value in changes.items()}

    return rlds_cli.create("local/press", [episode(3, "terminated"), episode(2, "cut")], force=True)


# -- as Minari


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", GENUINE)
def test_real_datasets_are_what_minari_gives(name: str) -> None:
    ours, theirs = check_against_minari(DATA / "minari" / name / "data")
    assert ours.env_spec == theirs.env_spec and ours.minari_version == theirs.minari_version


def test_the_sample_is_what_minari_gives() -> None:
    ours, theirs = check_against_minari(SAMPLE / "data")
    assert ours.env_spec == theirs.env_spec and ours.combined_datasets == theirs.combined_datasets == []
    for data in (ours, theirs):
        data.set_seed(7)
    for count in (3, 12, 1):
        for a, b in zip(ours.sample_episodes(count), theirs.sample_episodes(count), strict=True):
            check_episode(a, b)
    check_episode(ours[-1], theirs[-1])
    for a, b in zip(ours.iterate_episodes([5, 0]), theirs.iterate_episodes([5, 0]), strict=True):
        check_episode(a, b)
    with pytest.raises(ValueError, match="larger sample"):
        ours.sample_episodes(13)
    with pytest.raises(IndexError, match="no number 12"):
        ours[12]


def test_filters_and_splits_are_those_of_minari() -> None:
    rlds_cli.download("sample/cartpole-minari")
    ours, theirs = minari.load_dataset("sample/cartpole-minari"), real.MinariDataset(SAMPLE / "data")
    short = [data.filter_episodes(lambda e: len(e) < 400) for data in (ours, theirs)]
    assert 0 < short[0].total_episodes < 12 and short[0].total_steps == short[1].total_steps
    np.testing.assert_array_equal(short[0].episode_indices, short[1].episode_indices)
    check_episode(short[0][0], short[1][0])
    assert [e.id for e in short[0].filter_episodes(lambda e: False)] == []
    parts = minari.split_dataset(ours, [5, 4], seed=3)
    for a, b in zip(parts, real.split_dataset(theirs, [5, 4], seed=3), strict=True):
        np.testing.assert_array_equal(a.episode_indices, b.episode_indices)
    with pytest.raises(ValueError, match="13 episodes"):
        minari.split_dataset(ours, [13])
    returns = np.array([22.0, 261.0])
    np.testing.assert_array_equal(
        minari.get_normalized_score(ours, returns), real.get_normalized_score(theirs, returns)
    )


@pytest.mark.thorough
def test_the_environment_is_the_archives() -> None:
    ours = minari.load_dataset("sample/cartpole-minari", download=True)
    theirs = real.MinariDataset(SAMPLE / "data")
    for eval_env in (False, True):
        assert ours.recover_environment(eval_env).spec == theirs.recover_environment(eval_env).spec
    env = ours.recover_environment(max_episode_steps=7)
    assert env.spec is not None and env.spec.max_episode_steps == 7
    spec = ours.spec
    assert (spec.dataset_id, spec.namespace, spec.dataset_name, spec.version) == (
        "sample/cartpole-minari", "sample", "cartpole-minari", None,
    )  # fmt: skip
    assert spec.env_spec == theirs.spec.env_spec and spec.total_steps == 4341


@pytest.mark.filterwarnings("ignore:.*CartPole-v0 is out of date:DeprecationWarning")
def test_collection_and_evaluation_have_environments_of_their_own(tmp_path: Path) -> None:
    specs = {
        key: gymnasium.make(name).spec.to_json()  # type: ignore[union-attr]
        for key, name in (("env_spec", "CartPole-v1"), ("eval_env_spec", "CartPole-v0"))
    }
    space = {"type": "Box", "dtype": "float32", "shape": [4], "low": [-9.0] * 4, "high": [9.0] * 4}
    episode = plain_episode(observations=np.zeros((5, 4), np.float32), actions=np.zeros(4, np.int64))
    data = by_hand(tmp_path, [episode], specs | {"observation_space": space, "dataset_id": "x/y-v3"})
    import_files(data, "local/two")
    ours = minari.load_dataset("local/two")
    made = [ours.recover_environment(eval_env).spec for eval_env in (False, True)]
    assert [spec.id for spec in made if spec is not None] == ["CartPole-v1", "CartPole-v0"]
    assert ours.env_spec is not None and ours.env_spec.id == "CartPole-v1"


NESTED = g.Dict(
    {
        "goal": g.Dict({"xy": g.Box(-1, 1, (2,)), "word": g.Text(5)}),
        "parts": g.Tuple([g.MultiBinary(2), g.Dict({"deep": g.Tuple([g.Discrete(2), g.Discrete(3)])})]),
        "camera": g.Box(0, 255, (32, 32, 3), np.uint8),
    }
)


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["hdf5", "arrow"])
@pytest.mark.filterwarnings("ignore::UserWarning:minari")
def test_nested_spaces_and_infos(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def infos(steps: int) -> dict[str, Any]:  # Minari's arrow reader gives dicts in infos as objects
        speed = {"speed": np.ones((steps + 1, 1))}
        return speed if form == "arrow" else speed | {"body": {"q": np.ones((steps + 1, 3), np.float32)}}

    long = g.Tuple([g.Discrete(n + 1) for n in range(12)])
    buffers = [buffer(n, sampled(NESTED, n + 1, n), sampled(long, n, 9), infos=infos(n), end=end)
               for n, end in ((1, "terminated"), (5, "truncated"), (3, ""))]  # fmt: skip
    ours, _ = check_against_minari(write(tmp_path, buffers, NESTED, long, data_format=form, monkeypatch=monkeypatch))
    assert not ours[2].truncations.any()  # no flag in the archive; TED marks the end as cut
    assert ours.dataset.column("next/truncated")[ours.dataset.episodes["start"][2] + 2]


@pytest.mark.thorough
def test_infos_of_steps_keep_their_rows(tmp_path: Path) -> None:
    data = by_hand(tmp_path, [plain_episode(**{"infos/success": np.arange(4) == 3, "infos/q/x": np.arange(5.0)})],
                   {"dataset_id": "a/b-v0", "total_steps": 4})  # fmt: skip
    ours, _ = check_against_minari(data)
    assert len(ours[0].infos["success"]) == 4 and len(ours[0].infos["q"]["x"]) == 5


# -- other data


@pytest.mark.thorough
def test_a_final_observation_that_is_not_recorded_is_not_made_up() -> None:
    flag = np.array([False, True])
    known, unknown = ({
        "observation": np.arange(rows, dtype=np.float32),
        "action": np.zeros(2),
        "info": {"q": np.arange(rows)},
        "next": {"reward": np.ones(2), "truncated": flag},
    } for rows in (3, 2))  # fmt: skip
    ours = minari.MinariDataset(rlds_cli.create("local/some", [known, unknown]))
    assert ours[0].observations.tolist() == [0, 1, 2] and ours[0].infos["q"].tolist() == [0, 1, 2]
    assert ours[1].observations.tolist() == [0, 1] and ours[1].infos["q"].tolist() == [0, 1]
    assert ours[1].truncations.tolist() == [False, True] and len(ours[1].actions) == 2


def test_selections_and_derived_fields() -> None:
    ds = press(return_to_go=lambda n: np.arange(n, 0, -1.0), info=lambda n: {"q": np.arange(n)},
               state=lambda n: {"q": np.zeros(n + 1)})  # fmt: skip
    ours = minari.MinariDataset(ds.select(where="end == 'cut'"))
    assert ours.total_steps == 2 and ours.id == "local/press"
    assert ours[0].infos["return_to_go"].tolist() == [2, 1] and ours[0].infos["q"].tolist() == [0, 1]
    assert ours[0].infos["state"]["q"].tolist() == [0, 0, 0]
    assert ours[0].observations[:, 0].tolist() == [0, 1, 2] and not ours[0].truncations.any()
    assert ours[0].observations.flags.writeable
    assert repr(ours[0]).startswith("EpisodeData(id=0, total_steps=2, observations: float32[3, 1], actions: float64[2")


@pytest.mark.thorough
def test_a_dataset_that_grows_and_forgets() -> None:
    """Its episodes are numbered from the oldest one that is kept."""
    source = minari.load_dataset("sample/cartpole-minari", download=True)
    with rlds_cli.writer("local/grow", like=source.dataset, keep=rlds_cli.Fifo(2000)) as w:
        for k in range(12):
            w.add_episodes([source.dataset.episode(k)])
            w.commit()
    ours = minari.load_dataset("local/grow")
    assert [e.id for e in ours] == list(range(7))  # 1,841 steps
    for a, b in zip(ours, source.iterate_episodes(range(5, 12)), strict=True):
        check_episode(replace(a, id=b.id), b)


@pytest.mark.thorough
def test_a_data_loader_takes_it() -> None:
    """With a function that pads, as in Minari's tutorial, and pickled for a worker."""
    ours = pickle.loads(pickle.dumps(minari.load_dataset("sample/cartpole-minari", download=True)))

    def padded(batch: list[Any]) -> Any:
        return torch.nn.utils.rnn.pad_sequence([torch.as_tensor(e.observations) for e in batch], batch_first=True)

    shapes = [tuple(x.shape) for x in torch.utils.data.DataLoader(ours, batch_size=8, collate_fn=padded)]
    assert shapes == [(8, 501, 4), (4, max(len(ours[k]) for k in range(8, 12)) + 1, 4)]


@pytest.mark.thorough
def test_infos_of_one_name_are_both_given() -> None:
    ds = press(info=lambda n: {"x": np.arange(n), "state": np.zeros(n)}, state=lambda n: {"q": np.ones(n)})
    fields = [{"info/x", "info/state", "state/q"}, {*minari.MinariDataset(ds)[0].infos}]
    assert fields[1] == {"x", "state", "state/q"} and fields[0] <= set(ds.schema)
    again = rlds_cli.create("local/both", [
        {**{k: ds.episode(1)[k] for k in ("observation", "action")}, "info": {"x": np.zeros(2)},
         "next": {"reward": np.ones(2), "info": {"x": np.ones(2)}}}
    ])  # fmt: skip
    infos = minari.MinariDataset(again)[0].infos
    assert infos["x"].tolist() == [0, 0] and infos["next/info/x"].tolist() == [1, 1]


def test_what_minari_cannot_say_is_refused(tmp_path: Path) -> None:
    one = {"observation": np.zeros((3, 2)), "action": np.zeros((2, 1))}
    with pytest.raises(NoReward, match="local/bare has no reward"):
        minari.MinariDataset(rlds_cli.create("local/bare", [one]))
    with pytest.raises(UnknownField, match="no action"):
        minari.MinariDataset(
            rlds_cli.create("local/seen", [{"observation": one["observation"], "next": {"reward": [0, 0]}}])
        )
    columns = write_d4rl(tmp_path / "own.hdf5", [5, 4])
    with h5py.File(tmp_path / "own.hdf5", "a") as f:
        f["next_observations"][...] = columns["next_observations"] + 1  # another clock than that of the observations
    ds = import_files(tmp_path / "own.hdf5", "local/own", episodes_by="flags")
    with pytest.raises(UnknownField, match="local/own stores next/observation"):
        minari.MinariDataset(ds)


@pytest.mark.thorough
def test_ids_of_minari_and_of_rlds() -> None:
    with pytest.raises(DatasetNotFound, match="minari/mujoco/hopper/expert-v0 is not in"):
        minari.load_dataset("mujoco/hopper/expert-v0")
    with pytest.raises(DatasetNotFound, match="minari/mine/arm-v1 is not in"):
        minari.load_dataset("mine/arm-v1")
    with pytest.raises(DatasetNotFound, match="d4rl/hopper-medium-v2 is not in"):
        minari.load_dataset("d4rl/hopper-medium-v2")
    with pytest.raises(DatasetNotFound, match="local/none is not in"):
        minari.load_dataset("local/none")
    ds = press()
    assert minari.load_dataset(ds.path).total_steps == minari.MinariDataset(str(ds.path)).total_steps == 5


def test_what_is_not_there_says_what_to_write() -> None:
    ours = minari.MinariDataset(press())
    with pytest.raises(AttributeError, match=r"update_dataset_from_buffer'\n  hint: with rlds_cli.writer"):
        ours.update_dataset_from_buffer([])
    assert ours.env_spec is None and ours.minari_version is None and ours.spec.version is None
    with pytest.raises(NoEnvironment, match="local/press is not known"):
        ours.recover_environment()
    with pytest.raises(RldsError, match="No reference scores"):
        minari.get_normalized_score(ours, 1.0)


def test_it_needs_no_minari_and_spaces_need_gymnasium(monkeypatch: pytest.MonkeyPatch) -> None:
    ds = press()
    code = (
        "import sys; sys.modules['minari'] = sys.modules['gymnasium'] = None\n"
        "from rlds_cli.interop import minari\n"
        f"print([len(e) for e in minari.load_dataset({str(ds.path)!r})])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[3, 2]\n"
    made = rlds_cli.create("local/env", [ds.episode(0)], env_id="CartPole-v1")
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    monkeypatch.setitem(sys.modules, "gymnasium.envs.registration", None)
    with pytest.raises(MissingPackage, match="Gymnasium"):
        _ = minari.MinariDataset(made).env_spec
