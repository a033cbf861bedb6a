"""Rollouts of imitation in its npz format, in which trajectories lie end to end."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from archive_rows import Rows

import rlds_cli
from rlds_cli.errors import ArchiveError, CorruptArchive, UnsafeArchive
from rlds_cli.look.report.tracing import trace
from rlds_cli.ted import CUT, TERMINATED

LENGTHS = (4, 1, 5)


def rollouts(lengths: tuple[int, ...] = LENGTHS, **changed: Any) -> dict[str, Any]:
    """The arrays that imitation writes, by its own layout; None leaves one out."""
    n, e = sum(lengths), len(lengths)
    arrays: dict[str, Any] = {
        "obs": np.random.default_rng(0).normal(size=(n + e, 3)).astype(np.float32),
        "acts": np.arange(n),
        "infos": np.array([{"t": t} for t in range(n)], object),
        "terminal": np.arange(e) % 2 == 0,
        "indices": np.cumsum(lengths)[:-1],
        "rews": np.arange(n) / 4,
    }
    return {name: values for name, values in {**arrays, **changed}.items() if values is not None}


def write(path: Path, arrays: dict[str, Any]) -> Path:
    np.savez_compressed(path, **arrays)
    return path


def check_values(read: Rows, arrays: dict[str, Any]) -> None:
    """Compare with the arrays, divided as imitation's own ``load`` divides them."""
    cuts = arrays["indices"]
    observed = np.split(arrays["obs"], cuts + np.arange(len(cuts)) + 1)
    acted, rewarded = np.split(arrays["acts"], cuts), np.split(arrays["rews"], cuts)
    assert len(read.episodes) == len(observed)
    for k, (o, a, r) in enumerate(zip(observed, acted, rewarded, strict=True)):
        np.testing.assert_array_equal(read.of(k, "observation"), o)
        np.testing.assert_array_equal(read.of(k, "action"), a)
        np.testing.assert_array_equal(read.of(k, "next/reward"), r)
        terminal = bool(arrays["terminal"][k])
        assert read.of(k, "next/terminated").tolist() == [False] * (len(a) - 1) + [terminal]
        assert read.episodes.end[k] == (TERMINATED if terminal else CUT)
        assert read.episodes.observed[k]


@pytest.mark.parametrize("lengths", [LENGTHS, (3,), (1, 1, 1), (2, 2)])
def test_trajectories_are_read_with_their_final_observations(tmp_path: Path, lengths: tuple[int, ...]) -> None:
    arrays = rollouts(lengths)
    read = Rows("plain", write(tmp_path / "final.npz", arrays))
    check_values(read, arrays)
    assert "info" not in read.schema
    told = {e.name: e.left_out or ", ".join(e.used_as) for e in read.plan.account.things}
    assert told["infos"] == "pickled objects are never read" and told["indices"] == "ends of episodes"


@pytest.mark.thorough
def test_rollouts_are_trained_on(tmp_path: Path) -> None:
    arrays = rollouts()
    ds = rlds_cli.import_files(write(tmp_path / "final.npz", arrays), "local/x")
    assert ds.episodes["length"].tolist() == [*LENGTHS] and ds.num_transitions == sum(LENGTHS)
    assert trace(rlds_cli.open_dataset("local/x"), 8).ok
    o = np.split(arrays["obs"], arrays["indices"] + np.arange(2) + 1)
    after = {tuple(a): tuple(b) for x in map(np.ndarray.tolist, o) for a, b in pairwise(x)}
    batch = next(iter(rlds_cli.Loader("local/x", 64, dtype=None)))
    for now, then in zip(batch["observation"].tolist(), batch["next", "observation"].tolist(), strict=True):
        assert after[tuple(now)] == tuple(then)


def test_rewards_and_infos_may_be_missing(tmp_path: Path) -> None:
    read = Rows("plain", write(tmp_path / "final.npz", rollouts(rews=None, infos=None)))
    assert "next/reward" not in read.schema and read.episodes.length.tolist() == [*LENGTHS]


@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        ({"indices": np.array([4, 4])}, CorruptArchive, "indices does not ascend"),
        ({"indices": np.array([5, 4])}, CorruptArchive, "indices does not ascend"),
        ({"indices": np.array([4, 10])}, CorruptArchive, "indices does not ascend"),
        ({"indices": np.array([0, 4])}, CorruptArchive, "indices does not ascend"),
        ({"indices": np.array([4.0, 5.0])}, CorruptArchive, "indices does not ascend"),
        ({"indices": np.array([4])}, CorruptArchive, r"terminal is \[3\]"),
        ({"terminal": np.array([True])}, CorruptArchive, r"terminal is \[1\]"),
        ({"obs": np.zeros((10, 3))}, CorruptArchive, r"obs is \[10, 3\]"),
        ({"rews": np.zeros(9)}, ArchiveError, "rews"),
        ({"acts": np.array([{}] * 10, object)}, UnsafeArchive, "acts holds Python objects"),
    ],
)
def test_arrays_that_contradict_each_other_are_refused(
    tmp_path: Path, changed: dict[str, Any], error: type[ArchiveError], said: str
) -> None:
    with pytest.raises(error, match=said):
        Rows("plain", write(tmp_path / "final.npz", rollouts(**changed)))


def test_pickled_objects_of_other_files_are_refused(tmp_path: Path) -> None:
    arrays = {"observations": np.zeros((4, 2)), "actions": np.zeros(4), "infos": np.array([{}] * 4, object)}
    with pytest.raises(UnsafeArchive, match="infos holds Python objects"):
        Rows("plain", write(tmp_path / "a.npz", arrays))
