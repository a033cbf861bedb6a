"""d3rlpy's files of both versions, read with h5py: every value, and the padded last row."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import h5py
import numpy as np
import pytest
from archive_rows import Rows
from server import Server

import rlds_cli
from rlds_cli import archives, registry
from rlds_cli.archives import flat as engine
from rlds_cli.archives import flat_rows
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.ted import CUT, TERMINATED, TRUNCATED

SAMPLE = Path(__file__).parents[1] / "data" / "d3rlpy" / "pendulum_random_v1.1.0.h5"
RNG = np.random.default_rng(0)


def flat(path: Path, terminals: list[int], ends: list[int] | None, **others: Any) -> dict[str, np.ndarray]:
    n = len(terminals)
    columns: dict[str, Any] = {
        "observations": RNG.normal(size=(n, 3)).astype("f4"),
        "actions": RNG.integers(0, 2, (n, 1)).astype("i4"),
        "rewards": RNG.random(n).astype("f4"),
        "terminals": np.array(terminals, "f4"),
        "discrete_action": True,
        "version": b"1.0",
    } | others
    if ends is not None:
        columns["episode_terminals"] = np.array(ends, "f4")
    with h5py.File(path, "w") as f:
        for key, value in columns.items():
            f[key] = value
    return columns


@pytest.mark.thorough
def test_the_last_row_is_padding_where_an_episode_terminated(tmp_path: Path) -> None:
    x = flat(tmp_path / "a.h5", [0, 0, 1, 1, 0, 0, 0], [0, 0, 0, 1, 0, 0, 1])
    assert archives.recognise([tmp_path / "a.h5"]) == ("d3rlpy", "d3rlpy layout (version 1): 7 rows")
    rows = Rows("d3rlpy", tmp_path / "a.h5")
    assert rows.episodes.length.tolist() == [3, 3]
    assert rows.episodes.end.tolist() == [TERMINATED, TRUNCATED]
    assert rows.episodes.observed.tolist() == [True, False]
    assert rows.episodes.num_transitions.tolist() == [3, 2]
    assert rows.episodes.row.tolist() == [0, 4]
    np.testing.assert_array_equal(rows["observation"], x["observations"][[0, 1, 2, 3, 4, 5, 6, 6]])
    np.testing.assert_array_equal(rows.of(0, "action"), x["actions"][:3], strict=True)
    np.testing.assert_array_equal(rows.of(1, "next/reward"), x["rewards"][4:], strict=True)
    assert rows["next/terminated"].tolist() == [0, 0, 1, 0, 0, 0, 0, 0]
    assert rows["next/truncated"].tolist() == [0, 0, 0, 0, 0, 0, 1, 0]
    assert rows.metadata["discrete_action"] and rows.metadata["version"] == "1.0"


def test_without_episode_terminals(tmp_path: Path) -> None:
    """A flag on one row is a step's own; on two rows the second is padding; what follows the last is open."""
    x = flat(tmp_path / "a.h5", [0, 0, 1, 0, 1, 1, 0, 0], None, extra=np.arange(8))
    rows = Rows("d3rlpy", tmp_path / "a.h5")
    assert rows.episodes.length.tolist() == [3, 2, 2]
    assert rows.episodes.end.tolist() == [TERMINATED, TERMINATED, CUT]
    assert rows.episodes.observed.tolist() == [False, True, False]
    np.testing.assert_array_equal(rows.of(1, "observation"), x["observations"][3:6])
    assert rows.of(2, "extra").tolist() == [6, 7]


@pytest.mark.thorough
def test_small_chunks_and_parts_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = (RNG.random(400) < 0.1).astype(int)
    terminals = ends * (RNG.random(400) < 0.6)
    terminals = np.maximum(terminals, np.append(terminals[1:], 0) * (1 - ends))
    flat(tmp_path / "a.h5", terminals.tolist(), ends.tolist())
    whole = Rows("d3rlpy", tmp_path / "a.h5")
    monkeypatch.setattr(flat_rows, "CHUNK_ROWS", 7)
    monkeypatch.setattr(engine, "PART_ROWS", 50)
    pieces = Rows("d3rlpy", tmp_path / "a.h5")
    assert len(pieces.plan.parts) > 4 and len(pieces.chunks) > 20
    for name in whole.schema:
        np.testing.assert_array_equal(pieces[name], whole[name])
    assert pieces.episodes.row.tolist() == whole.episodes.row.tolist()


def buffer(path: Path, episodes: list[dict[str, Any]], version: str = "2.1") -> Path:
    """As ``d3rlpy.dataset.dump`` of 2.8.1 writes: scalars and lists as plain datasets."""
    with h5py.File(path, "w") as f:
        f["columns"] = [*episodes[0]]
        f["num_episodes"] = len(episodes)
        for i, episode in enumerate(episodes):
            for key, value in episode.items():
                for j, part in enumerate(value if isinstance(value, list) else [value]):
                    f[f"{key}_{i}_{j}" if isinstance(value, list) else f"{key}_{i}"] = part
        f["version"] = version
    return path


def episode(steps: int, *, terminated: bool, **others: Any) -> dict[str, Any]:
    return {
        "observations": RNG.normal(size=(steps, 2)).astype("f4"),
        "actions": RNG.normal(size=(steps, 1)).astype("f4"),
        "rewards": RNG.random((steps, 1)).astype("f4"),
        "terminated": terminated,
    } | others


@pytest.mark.thorough
def test_version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    episodes = [episode(3, terminated=True), episode(4, terminated=False), episode(2, terminated=True)]
    path = buffer(tmp_path / "a.h5", episodes)
    assert archives.recognise([path]) == ("d3rlpy", "d3rlpy layout (version 2): 3 episodes")
    monkeypatch.setattr("rlds_cli.archives.grouped.CHUNK_ROWS", 5)
    rows = Rows("d3rlpy", path)
    assert rows.episodes.length.tolist() == [3, 4, 2]
    assert rows.episodes.end.tolist() == [TERMINATED, TRUNCATED, TERMINATED]
    assert rows.episodes.num_transitions.tolist() == [3, 3, 2]  # Episode.transition_count
    assert rows.episodes.group == ["episode_0", "episode_1", "episode_2"]
    for k, e in enumerate(episodes):
        np.testing.assert_array_equal(rows.of(k, "observation")[:-1], e["observations"], strict=True)
        np.testing.assert_array_equal(rows.of(k, "action"), e["actions"], strict=True)
        np.testing.assert_array_equal(rows.of(k, "next/reward"), e["rewards"][:, 0], strict=True)
    assert rows.metadata == {"version": "2.1"}


def test_version_2_with_tuples(tmp_path: Path) -> None:
    frames, parts = RNG.integers(0, 255, (3, 1, 8, 8), dtype="u1"), np.eye(3)
    observations = [frames, parts, np.zeros((3, 0))]
    rows = Rows("d3rlpy", buffer(tmp_path / "a.h5", [episode(3, terminated=True, observations=observations)]))
    assert rows["observation/2"].shape == (4, 0)
    np.testing.assert_array_equal(rows.of(0, "observation/0")[:-1], frames, strict=True)
    np.testing.assert_array_equal(rows.of(0, "observation/1")[:-1], parts, strict=True)


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownLayout, match=r"version 2\.0"):
        Rows("d3rlpy", buffer(tmp_path / "a.h5", [episode(3, terminated=True)], version="2.0"))
    odd = [episode(3, terminated=True), episode(3, terminated=True, actions=np.zeros((3, 2)))]
    with pytest.raises(UnknownLayout, match=r"episode_1 .* action is float64 \[2\]"):
        Rows("d3rlpy", buffer(tmp_path / "b.h5", odd))
    path = buffer(tmp_path / "c.h5", [episode(3, terminated=True)])
    with h5py.File(path, "a") as f:
        f["num_episodes"][...] = 2
    with pytest.raises(CorruptArchive, match="observations_1 is not there"):
        Rows("d3rlpy", path)
    flat(tmp_path / "d.h5", [0, 1, 1], [0, 0, 1], rewards=np.zeros(2))
    with pytest.raises(CorruptArchive, match="rewards 2"):
        Rows("d3rlpy", tmp_path / "d.h5")


@pytest.mark.thorough
def test_the_sample() -> None:
    """Pendulum never terminates: nothing is padded, and the reward of every row is that of its own action."""
    rows = Rows("d3rlpy", SAMPLE)
    with h5py.File(SAMPLE) as f:
        x = {k: f[k][()] for k in f}
    assert rows.episodes.length.tolist() == [199] * 500
    assert (rows.episodes.end == TRUNCATED).all() and not rows.episodes.observed.any()
    steps = np.delete(np.arange(100_000), np.arange(199, 100_000, 200))
    np.testing.assert_array_equal(rows["observation"][steps], x["observations"], strict=True)
    np.testing.assert_array_equal(rows["action"][steps], x["actions"], strict=True)
    np.testing.assert_array_equal(rows["next/reward"][steps], x["rewards"], strict=True)
    angle = np.arctan2(x["observations"][:, 1], x["observations"][:, 0])
    cost = angle**2 + 0.1 * x["observations"][:, 2] ** 2 + 0.001 * x["actions"][:, 0] ** 2
    np.testing.assert_allclose(-cost, x["rewards"], atol=1e-5)


@pytest.mark.thorough
def test_from_its_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flat(tmp_path / "a.h5", [0, 0, 1, 1, 0, 0, 0], [0, 0, 0, 1, 0, 0, 1])
    url = registry.get("d3rlpy/cartpole-replay").files[0].urls[0]
    with Server() as server:
        server.add(urlsplit(url).path, (tmp_path / "a.h5").read_bytes())
        ds = rlds_cli.download("d3rlpy/cartpole-replay", source=server.url)
    assert ds.num_steps == 6 and len(ds) == 5 and ds.manifest.reader == "d3rlpy"
