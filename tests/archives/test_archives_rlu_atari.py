"""RL Unplugged's Atari episodes, against what the test wrote into gzip TFRecords."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tfds_files import example, image, write_records

import rlds_cli
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.look.report.tracing import trace
from rlds_cli.make.importing import import_files, plan_import


def episode(n: int, seed: int, *, terminal: bool = True, last_reward: float = 0.0) -> dict[str, Any]:
    rng = np.random.default_rng([n, seed])
    rewards = rng.integers(-3, 4, n).astype(np.float32)
    rewards[-1] = last_reward
    return {
        "frames": rng.integers(0, 256, (n, 84, 84, 1)).astype(np.uint8) // 128 * 255,
        "actions": rng.integers(0, 18, n),
        "unclipped_rewards": rewards,
        "clipped_rewards": rewards.clip(-1, 1),
        "discounts": np.append(np.ones(n - 1, np.float32), np.float32(not terminal)),
        "checkpoint_idx": [seed],
        "episode_idx": [100 + seed],
        "episode_return": np.array([rewards.sum()]),
        "clipped_episode_return": np.array([rewards.clip(-1, 1).sum()]),
    }


def record(e: dict[str, Any], **changed: Any) -> bytes:
    lists = {"observations": [image(f) for f in e["frames"]]} | {k: v for k, v in e.items() if k != "frames"}
    return example(lists | changed)


def run_of(path: Path, *files: list[dict[str, Any]]) -> Path:
    for i, episodes in enumerate(files):
        write_records(path / f"run_1-{i:05d}-of-{len(files):05d}", map(record, episodes), packed=True)
    return path


def column(ds: rlds_cli.Dataset, name: str, number: int) -> np.ndarray:
    start, length = int(ds.episodes["start"][number]), int(ds.episodes["length"][number])
    return np.asarray(ds.gather(name, np.arange(start, start + length + 1)))


def test_the_last_row_is_the_final_observation(tmp_path: Path) -> None:
    written = [[episode(6, 1), episode(4, 2, terminal=False)], [episode(3, 3), episode(1, 4)]]
    planned = plan_import(run_of(tmp_path / "Alien", *written), "local/alien")
    assert planned.recognised == "RL Unplugged Atari episodes: 2 files"
    ds = import_files(tmp_path / "Alien", "local/alien")
    assert ds.manifest.facts["last_step"] == "observation"
    assert ds.episodes["length"].tolist() == [5, 3, 2]
    assert ds.episodes["end"].tolist() == ["terminated", "truncated", "terminated"]
    assert ds.episodes["num_observed"].tolist() == [6, 4, 3]
    assert ds.schema["observation"].codec == "png"
    for i, e in enumerate([*written[0], written[1][0]]):
        assert np.array_equal(column(ds, "observation", i), e["frames"])
        assert np.array_equal(column(ds, "action", i)[:-1], e["actions"][:-1])
        assert np.array_equal(column(ds, "next/reward", i)[:-1], e["unclipped_rewards"][:-1])
        assert np.array_equal(column(ds, "next/clipped_reward", i)[:-1], e["clipped_rewards"][:-1])
        assert np.array_equal(column(ds, "next/discount", i)[:-1], e["discounts"][1:])
        ends = [False] * (len(e["frames"]) - 2) + [True]
        flag, other = ("terminated", "truncated")[:: 1 if i != 1 else -1]
        assert column(ds, f"next/{flag}", i)[:-1].tolist() == ends
        assert not column(ds, f"next/{other}", i).any()
        options = json.loads(ds.episodes["options"][i])
        assert (options["checkpoint_idx"], options["episode_idx"]) == (e["checkpoint_idx"][0], e["episode_idx"][0])
        assert options["episode_return"] == e["unclipped_rewards"].sum()
        assert options["clipped_episode_return"] == e["clipped_rewards"].sum()
    assert {n["code"]: n["count"] for n in ds.manifest.notes}["empty-episodes"] == 1


def test_returns_that_count_the_last_reward_say_that_it_is_a_step(tmp_path: Path) -> None:
    e = episode(5, 1, last_reward=2)
    ds = import_files(run_of(tmp_path / "Alien", [e]), "local/alien")
    assert ds.manifest.facts == {"last_step": "action", "last_step_by": "episode_return counts the last reward"}
    assert ds.episodes["length"].tolist() == [5]
    assert ds.episodes["num_observed"].tolist() == [5]
    assert np.array_equal(column(ds, "next/reward", 0)[:-1], e["unclipped_rewards"])
    assert np.array_equal(column(ds, "next/discount", 0)[:-1], e["discounts"])
    assert np.array_equal(column(ds, "observation", 0), e["frames"][[0, 1, 2, 3, 4, 4]])
    said = import_files(tmp_path / "Alien", "local/said", last_step="observation")
    assert said.episodes["length"].tolist() == [4]
    assert "last-reward" in [n["code"] for n in said.manifest.notes]


@pytest.mark.parametrize("rule", ["action", "observation"])
def test_steps_are_traced_back_to_the_records(tmp_path: Path, rule: str) -> None:
    path = run_of(tmp_path / "Alien", [episode(3, 1)], [episode(4, 2, terminal=False)])
    import_files(path, "local/a", last_step=rule)
    assert trace("local/a", 100).ok


@pytest.mark.thorough
def test_files_in_parallel_are_the_same(tmp_path: Path) -> None:
    path = run_of(tmp_path / "Alien", *[[episode(4, i), episode(3, 10 + i)] for i in range(3)])
    a, b = import_files(path, "local/a"), import_files(path, "local/b", jobs=2)
    assert a.fingerprint == b.fingerprint


def test_frames_are_decoded_when_asked(tmp_path: Path) -> None:
    e = episode(4, 1)
    ds = import_files(run_of(tmp_path / "Alien", [e]), "local/alien", frames="raw")
    assert ds.schema["observation"].kind == "array"
    assert np.array_equal(column(ds, "observation", 0), e["frames"])


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"actions": [1, 2]}, "lists have different numbers of rows"),
        ({"observations": [image(np.zeros((84, 80, 1), np.uint8))] * 4}, "an image is not 84x84 grayscale"),
        ({"observations": [image(np.zeros((84, 84, 3), np.uint8))] * 4}, "an image is not 84x84 grayscale"),
        ({"discounts": [1, 1, 1, 0]}, "discounts is a list of int64; float32 expected"),
    ],
)
def test_records_that_do_not_fit(tmp_path: Path, changed: dict[str, Any], why: str) -> None:
    path = write_records(tmp_path / "run_1-00000-of-00001", [record(episode(4, 1), **changed)], packed=True)
    with pytest.raises(CorruptArchive, match=f"record 0.*{why}"):
        import_files(path, "local/a")


def test_a_file_cut_short(tmp_path: Path) -> None:
    path = run_of(tmp_path / "Alien", [episode(3, 1)], [episode(3, 2), episode(4, 3)])
    broken = path / "run_1-00001-of-00002"
    broken.write_bytes(broken.read_bytes()[:-40])
    with pytest.raises(CorruptArchive, match="run_1-00001-of-00002"):
        import_files(path, "local/a")
    assert import_files(path, "local/a", skip_bad=True).episodes["length"].tolist() == [2, 2]


def test_what_does_not_apply(tmp_path: Path) -> None:
    path = run_of(tmp_path / "Alien", [episode(3, 1)])
    for asked in ({"episodes_by": "flags"}, {"fields": {"action": "actions"}}, {"last_step": "none"}):
        with pytest.raises(UnknownLayout):
            plan_import(path, "local/a", **asked)
