"""ExORL's episodes in the order of dm_env, and NeoRL-2's list of trajectories; NumPy reads what is expected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds_cli
from rlds_cli.errors import CorruptArchive, RldsError
from rlds_cli.look.report.tracing import trace
from rlds_cli.make.importing import import_files, plan_import

RNG = np.random.default_rng(0)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory beside the home."""
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def made(data: Path, reader: str, **how: Any) -> rlds_cli.Dataset:
    assert plan_import(data, "local/x", **how).reader == reader
    return import_files(data, "local/x", progress=False, **how)


# -- ExORL


def save(data: Path, number: int, steps: int, *, last: float = 1, **more: Any) -> dict[str, Any]:
    """Write an episode as ExORL's ``save_episode`` does."""
    e = {
        "observation": RNG.normal(size=(steps + 1, 5)).astype("f4"),
        "action": RNG.normal(size=(steps + 1, 2)).astype("f4"),
        "reward": RNG.normal(size=(steps + 1, 1)).astype("f4"),
        "discount": np.r_[np.ones(steps), last].astype("f4")[:, None],
        "physics": RNG.normal(size=(steps + 1, 7)),
        **more,
    }
    e["action"][0], e["reward"][0] = 0, 0
    np.savez_compressed(data / f"episode_{number:06d}_{steps}.npz", **e)
    return e


def test_rows_of_exorl_hold_the_action_that_led_to_them(data: Path) -> None:
    episodes = [save(data, k, steps, last=k != 1) for k, steps in enumerate((4, 1, 6))]
    ds = made(data, "exorl")
    assert ds.episodes["length"].tolist() == [4, 1, 6]
    assert ds.episodes["end"].tolist() == ["truncated", "terminated", "truncated"]
    for k, e in enumerate(episodes):
        found = ds.episode(k)
        np.testing.assert_array_equal(found["observation"], e["observation"][:-1])
        np.testing.assert_array_equal(found["next", "observation"], e["observation"][1:])
        np.testing.assert_array_equal(found["action"], e["action"][1:])
        np.testing.assert_array_equal(np.ravel(found["next", "reward"]), e["reward"][1:, 0])
        np.testing.assert_array_equal(np.ravel(found["next", "discount"]), e["discount"][1:, 0])
        np.testing.assert_array_equal(np.asarray(found["state", "physics"])[:4], e["physics"][:-1][:4])
    assert trace(ds, 3).ok


def test_a_first_row_with_an_action_is_noted_and_a_ragged_file_refused(data: Path) -> None:
    e = save(data, 0, 3, action=np.ones((4, 2), "f4"))
    e["action"][0] = 1
    np.savez(data / "episode_000000_3.npz", **e)
    assert any(n["code"] == "first-action" for n in made(data, "exorl").manifest.notes)
    np.savez(data / "episode_000001_3.npz", **{**e, "reward": np.zeros((3, 1))})
    with pytest.raises(CorruptArchive, match="ragged"):
        plan_import(data, "local/y")
    assert len(plan_import(data, "local/y", skip_bad=True).files) == 1


def test_other_episodes_are_not_taken_for_exorl(data: Path) -> None:
    save(data, 0, 3)
    (data / "episode_000000_3.npz").rename(data / "episode_000000_4.npz")  # as many rows as steps: another order
    assert plan_import(data, "local/x", rewards="action").reader == "plain"


# -- NeoRL-2


def steps(lengths: list[int], ends: list[str], dtype: str = "f4") -> dict[str, Any]:
    """Trajectories end to end, each ending as ``ends`` says."""
    n, begins = sum(lengths), np.cumsum([0, *lengths[:-1]])
    stops = np.cumsum(lengths)
    rows = [RNG.normal(size=(length + 1, 3)).astype(dtype) for length in lengths]
    e = {"obs": np.concatenate([r[:-1] for r in rows]), "next_obs": np.concatenate([r[1:] for r in rows])}
    e |= {"action": RNG.normal(size=(n, 2)).astype(dtype), "reward": RNG.normal(size=(n, 1)).astype(dtype)}
    for key, name in (("done", "terminated"), ("truncated", "truncated")):
        flag = np.zeros((n, 1), dtype)
        flag[[stop - 1 for stop, end in zip(stops, ends, strict=True) if end == name]] = 1
        e[key] = flag
    return e | {"index": begins}


@pytest.mark.parametrize("without", ["truncated", "index", ""])
def test_trajectories_of_neorl_end_where_the_list_or_a_flag_says(data: Path, without: str) -> None:
    lengths, ends = [3, 1, 5, 2], ["terminated", "truncated", "truncated", "terminated"]
    e = steps(lengths, ends)
    e.pop(without, None)
    np.savez(data / "DMSD-train.npz", **e)
    np.savez(data / "DMSD-val.npz", **{k: v[:3] if k != "index" else v[:1] for k, v in e.items()})
    ds = made(data, "neorl2")
    known = [e if e == "terminated" or without != "truncated" else "cut" for e in ends]
    assert ds.episodes["length"].tolist() == [*lengths, 3] and ds.episodes["end"].tolist() == [*known, "terminated"]
    assert ds.select(split="val").episodes["length"].tolist() == [3] and ds.num_transitions == ds.num_steps
    stops = np.cumsum([0, *lengths])
    for k in range(4):
        rows = slice(*stops[k : k + 2])
        np.testing.assert_array_equal(ds.episode(k)["observation"], e["obs"][rows])
        np.testing.assert_array_equal(ds.episode(k)["next", "observation"], e["next_obs"][rows])
        np.testing.assert_array_equal(ds.episode(k)["action"], e["action"][rows])
        np.testing.assert_array_equal(np.ravel(ds.episode(k)["next", "reward"]), e["reward"][rows, 0])
    assert trace(ds, 5).ok


@pytest.mark.parametrize("index", [[1, 3], [0, 3, 3], [0, 99], [0.5, 2]])
def test_a_list_that_is_none_of_first_rows_is_refused(data: Path, index: list[float]) -> None:
    np.savez(data / "DMSD-train.npz", **{**steps([3, 2], ["cut", "cut"]), "index": np.array(index)})
    with pytest.raises(RldsError, match="index"):
        plan_import(data, "local/x")
