"""Directories of TorchRL and TensorDict: genuine dumps against the steps that their collectors gave, and every rule."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from archive_rows import Rows
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import NonTensorData, NonTensorStack, TensorDict, lazy_stack
from torchrl_dumps import DATA, rows, tensordict, unpack, walk, written

import rlds_cli
from rlds_cli import archives
from rlds_cli.archives.torchrl import boundaries, lanes
from rlds_cli.archives.torchrl import read as torchrl
from rlds_cli.errors import ArchiveError, CorruptArchive, UnknownLayout, UnsafeArchive
from rlds_cli.look import choose_files
from rlds_cli.look.report import describe_file
from rlds_cli.look.report.tracing import trace
from rlds_cli.make.importing import import_files, plan_import
from rlds_cli.ted import CUT, TERMINATED, TRUNCATED

ENVS = ("envs_part_0", "envs_part_1")
WRAPPED = ("envs_wrapped_0", "envs_wrapped_1")
# Genuine dumps: the truth of each, and how many of its last steps the buffer had room for.
DUMPS: dict[str, tuple[tuple[str, ...], int]] = {
    **{f"{form}_part": (("part",), 80) for form in ("ted", "flat", "nested", "h5")},
    **{f"{form}_wrapped": (("wrapped",), 80) for form in ("ted", "flat", "nested", "h5")},
    **{f"{form}_envs_part": (ENVS, 50) for form in ("ted", "flat", "nested", "h5", "rollout", "ensemble")},
    **{f"{form}_envs_wrapped": (WRAPPED, 50) for form in ("ted", "flat", "nested", "h5")},
    "flat_full": (("full",), 80),
    "padded_part": (("part",), 80),
}
PLAIN = ("observation", "action", "step_count", "is_init", "collector/traj_ids")


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("dumps"))


@pytest.fixture(scope="module")
def truth() -> dict[str, np.ndarray]:
    with np.load(DATA / "truth.npz") as f:
        return dict(f)


def true_episodes(truth: dict[str, np.ndarray], name: str, room: int) -> list[dict[str, np.ndarray]]:
    """The steps of each trajectory among the last ``room`` steps that a collector gave."""
    steps = {k.partition(":")[2]: v[-room:] for k, v in truth.items() if k.partition(":")[0] == name}
    numbers = steps["collector/traj_ids"].reshape(-1)
    return [{k: v[numbers == i] for k, v in steps.items()} for i in dict.fromkeys(numbers.tolist())]


def compare(found: Rows, number: int, episode: dict[str, np.ndarray]) -> None:
    length = len(episode["action"])
    assert found.episodes.length[number] == length and found.episodes.observed[number]
    terminated, truncated = (bool(episode[f"next/{f}"][-1, 0]) for f in ("terminated", "truncated"))
    assert found.episodes.end[number] == (TERMINATED if terminated else TRUNCATED if truncated else CUT)
    for name in PLAIN:
        np.testing.assert_array_equal(
            found.of(number, name)[:length], episode[name].reshape(length, *found.schema[name].shape)
        )
    for name in ("observation", "step_count"):
        after = episode[f"next/{name}"].reshape(length, *found.schema[name].shape)
        np.testing.assert_array_equal(found.of(number, name)[1:], after)
    np.testing.assert_array_equal(found.of(number, "next/reward"), episode["next/reward"][:, 0], strict=True)
    np.testing.assert_array_equal(found.of(number, "next/terminated"), episode["next/terminated"][:, 0])
    assert found.of(number, "next/truncated").tolist() == [False] * (length - 1) + [truncated or not terminated]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", DUMPS)
def test_genuine_dumps(name: str, dumps: Path, truth: dict[str, np.ndarray]) -> None:
    names, room = DUMPS[name]
    expected = [e for n in names for e in true_episodes(truth, n, room)]
    found = rows(dumps / name)
    assert sorted(found.episodes.length) == sorted(len(e["action"]) for e in expected)
    by_number = {int(found.of(k, "collector/traj_ids").reshape(-1)[0]): k for k in range(len(found.episodes))}
    assert len(by_number) == len(expected)
    for episode in expected:
        compare(found, by_number[int(episode["collector/traj_ids"].reshape(-1)[0])], episode)
    if len(names) == 1:  # in the order of time
        assert [int(found.of(k, "collector/traj_ids").reshape(-1)[0]) for k in range(len(expected))] == sorted(
            by_number
        )
    assert {*found.schema} == {*PLAIN, "next/reward", "next/terminated", "next/truncated"}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "name",
    [
        "ted_wrapped",
        "flat_wrapped",
        "nested_part",
        "h5_part",
        "ted_envs_wrapped",
        "padded_part",
    ],
)
def test_steps_are_found_in_the_directory(name: str, dumps: Path) -> None:
    ds = import_files(dumps / name, "local/x", jobs=1)
    found = trace(ds, ds.num_steps)
    assert found.ok and {"action", "observation", "next/reward"} <= set(found.fields)
    file = ds.path / "action" / "c" / "0" / "0"
    file.chmod(0o644)
    np.memmap(file, ds.schema["action"].dtype, "r+")[0] += 1
    assert [(d.episode, d.step) for d in trace(rlds_cli.open_dataset("local/x"), ds.num_steps).differences] == [(0, 0)]


def test_inspect_says_what_it_is(dumps: Path) -> None:
    found = describe_file(dumps / "ted_part")
    assert (found.reader, found.what, found.episodes) == ("torchrl", "TorchRL's replay buffer: TED form, 16 arrays", 6)
    assert found.suggestion is not None and "--name local/ted-part" in found.suggestion.replace("_", "-")
    assert plan_import(dumps / "flat_part", "local/x").rows == 60 + 6
    assert archives.recognise(choose_files([dumps / "rollout_envs_part"]).files) == (
        "torchrl",
        "memory-mapped TensorDict: TED form, 15 arrays",
    )
    assert archives.recognise(choose_files([dumps / "h5_part"]).files) == (
        "torchrl",
        "TorchRL's replay buffer: H5 form",
    )
    alone = choose_files([dumps / "h5_part" / "storage" / "checkpoint.h5"]).files
    assert archives.recognise(alone) == ("torchrl", "TorchRL's checkpoint of trajectories (HDF5)")
    assert rows(dumps / "h5_part" / "storage").episodes.length.sum() == 60


def test_without_its_writer_a_full_buffer_is_read_as_it_lies(dumps: Path, truth: dict[str, np.ndarray]) -> None:
    found = rows(dumps / "ted_wrapped" / "storage")
    assert "no-writer" in found.codes and found.episodes.length.sum() == 80
    assert len(found.episodes) == len(true_episodes(truth, "wrapped", 80)) + 1  # one is in two pieces


# -- TED of anybody's making


def test_a_step_a_row(tmp_path: Path) -> None:
    x = walk([3, 1, 4])
    found = rows(written(tmp_path / "a", x))
    assert found.plan.episodes_by == "flags" and found.notes == ()
    assert found.episodes.length.tolist() == [3, 1, 4]
    assert found.episodes.end.tolist() == [TERMINATED, TRUNCATED, TERMINATED]
    assert found.episodes.row.tolist() == [0, 3, 4] and found.episodes.group == ["[0:3]", "[3:4]", "[4:8]"]
    np.testing.assert_array_equal(found.of(2, "observation"), [*x["observation"][4:], x["next/observation"][7]])
    np.testing.assert_array_equal(found.of(2, "action"), x["action"][4:], strict=True)
    assert found["next/terminated"].tolist() == [0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0]


@pytest.mark.thorough
def test_small_chunks_and_parts_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "a", walk([7, 30, 2, 1, 15] * 4))
    whole = rows(tmp_path / "a")
    monkeypatch.setattr(torchrl, "PART_ROWS", 20)
    monkeypatch.setattr(lanes, "CHUNK_BYTES", 64)
    monkeypatch.setattr(boundaries, "block_steps", lambda lanes, names: 3)
    pieces = rows(tmp_path / "a")
    assert len(pieces.plan.parts) > 4
    for name in whole.schema:
        np.testing.assert_array_equal(pieces[name], whole[name])
    assert pieces.episodes.row.tolist() == whole.episodes.row.tolist()
    assert pieces.notes == whole.notes


def test_root_flags_are_no_ends(tmp_path: Path) -> None:
    x = walk([3, 3])
    x["done"] = np.roll(x["next/done"], 1, axis=0)
    x["terminated"] = x["done"]
    assert rows(written(tmp_path / "a", x)).episodes.length.tolist() == [3, 3]


def test_columns_without_next_have_their_flags_at_the_root(tmp_path: Path) -> None:
    x = walk([3, 2])
    plain = {k.removeprefix("next/"): v for k, v in x.items() if k not in ("done", "next/observation", "next/done")}
    found = rows(written(tmp_path / "a", plain))
    assert found.episodes.length.tolist() == [3, 2] and found.episodes.end.tolist() == [TERMINATED, TRUNCATED]
    assert found.episodes.observed.tolist() == [False, False]
    np.testing.assert_array_equal(found.of(0, "next/reward"), x["next/reward"][:3, 0])
    assert found.schema["observation"].placement == "both"


def test_done_alone_means_terminated(tmp_path: Path) -> None:
    x = {k: v for k, v in walk([3, 2]).items() if k not in ("next/terminated", "next/truncated")}
    assert rows(written(tmp_path / "a", x)).episodes.end.tolist() == [TERMINATED, TERMINATED]


def test_numbers_decide_where_flags_are_missing(tmp_path: Path) -> None:
    x = walk([3, 2, 4])
    x["next/done"][4] = x["next/truncated"][4] = False
    x["collector/traj_ids"] = np.repeat([5, 6, 7], [3, 2, 4])
    found = rows(written(tmp_path / "a", x))
    assert found.plan.episodes_by == "field:collector/traj_ids"
    assert found.episodes.length.tolist() == [3, 2, 4] and found.episodes.end.tolist() == [TERMINATED, CUT, TERMINATED]
    assert found.episodes.observed.all()


@pytest.mark.parametrize("flag", ["next/done", "is_init"])
def test_what_contradicts_is_refused(tmp_path: Path, flag: str) -> None:
    x = walk([3, 2, 4])
    x["collector/traj_ids"] = np.repeat([5, 5, 7], [3, 2, 4])
    if flag == "is_init":
        x["is_init"] = np.isin(np.arange(9), (0, 3, 5))[:, None]
        x |= {k: np.zeros((9, 1), bool) for k in ("next/done", "next/truncated", "next/terminated")}
    written(tmp_path / "a", x)
    with pytest.raises(UnknownLayout, match=rf"{flag}.* says .* between rows 2 and 3, and collector/traj_ids stays 5"):
        rows(tmp_path / "a")
    if flag == "next/done":
        assert rows(tmp_path / "a", episodes_by="flags").episodes.length.tolist() == [3, 2, 4]
        with_field = rows(tmp_path / "a", episodes_by="field:collector/traj_ids")
        # The next observation of row 2 is not row 3's: the episode is cut there all the same.
        assert with_field.episodes.length.tolist() == [3, 2, 4] and "unflagged-end" in with_field.codes


def test_rules_of_the_user(tmp_path: Path) -> None:
    x = {k: v for k, v in walk([3, 2, 4]).items() if k != "next/observation"}
    x["lap"] = np.repeat([0, 1], [4, 5])
    written(tmp_path / "a", x)
    assert rows(tmp_path / "a", episodes_by="file").episodes.length.tolist() == [9]
    assert rows(tmp_path / "a", episodes_by="timeouts").episodes.length.tolist() == [5, 4]
    assert rows(tmp_path / "a", episodes_by="field:lap").episodes.length.tolist() == [4, 5]
    for bad in ("jumps", "field:", "field:action", "field:nothing"):
        with pytest.raises(UnknownLayout):
            rows(tmp_path / "a", episodes_by=bad)
    inside = rows(tmp_path / "a", episodes_by="file")
    assert inside["next/terminated"].sum() == 2 and inside["next/truncated"].sum() == 0
    assert {"terminated-inside", "truncated-inside"} <= set(inside.codes)


def test_nothing_says_where_episodes_end(tmp_path: Path) -> None:
    x = {k: v for k, v in walk([4]).items() if k in ("observation", "action")}
    with pytest.raises(UnknownLayout, match="ends of episodes are not marked"):
        rows(written(tmp_path / "a", x))


def test_an_end_that_nobody_flagged(tmp_path: Path) -> None:
    x = walk([3, 40, 4])
    x["next/done"][2] = x["next/terminated"][2] = False
    found = rows(written(tmp_path / "a", x))
    assert found.episodes.length.tolist() == [3, 40, 4] and found.episodes.end.tolist() == [CUT, TRUNCATED, TERMINATED]
    assert found.codes["unflagged-end"] == 1
    np.testing.assert_array_equal(found.of(0, "observation")[-1], x["next/observation"][2])


@pytest.mark.thorough
def test_environments_without_numbers(tmp_path: Path) -> None:
    """Flattened batches of 4 environments, 5 steps of each at a time: a fifth of the steps ends unflagged."""
    lanes = [walk([20], seed=k) for k in range(4)]
    order = [(e, slice(t, t + 5)) for t in range(0, 20, 5) for e in range(4)]
    x = {k: np.concatenate([lanes[e][k][span] for e, span in order]) for k in lanes[0]}
    found = rows(written(tmp_path / "a", x))
    assert found.episodes.length.tolist() == [5] * 16 and found.codes["unflagged-end"] == 12
    np.testing.assert_array_equal(found.of(1, "observation")[-1], lanes[1]["next/observation"][4])
    x["collector/traj_ids"] = np.concatenate([np.full(5, e) for e, _ in order])
    with pytest.raises(UnknownLayout, match="trajectory 0 stops after row 4 and continues at row 20") as caught:
        rows(written(tmp_path / "b", x))
    assert "TensorDict.load_memmap" in str(caught.value.hint) and "rlds_cli.create" in str(caught.value.hint)
    assert rows(tmp_path / "b", episodes_by="flags").episodes.length.tolist() == [5] * 16


def test_interleaved_steps_of_a_collector_are_refused(dumps: Path) -> None:
    with pytest.raises(UnknownLayout, match=r"trajectory 2 stops .* interleaved"):
        rows(dumps / "interleaved_envs_part")


def test_trees_of_tensors_are_refused(dumps: Path) -> None:
    with pytest.raises(UnknownLayout, match="no TensorDict, but a tree"):
        rows(dumps / "pytree_wrapped")


def test_goals_that_terminate_and_go_on(tmp_path: Path) -> None:
    """As of AntMaze in TorchRL's D4RL: done, and zeros after it, at every step at the goal."""
    x = walk([6, 3])
    x["next/done"][2] = x["next/terminated"][2] = True
    x["next/truncated"][[5, 8]] = True
    x["next/observation"][[2, 5, 8]] = 0
    written(tmp_path / "a", x)
    assert rows(tmp_path / "a").episodes.length.tolist() == [3, 3, 3]
    found = rows(tmp_path / "a", episodes_by="timeouts")
    assert found.episodes.length.tolist() == [6, 3] and found.codes["terminated-inside"] == 1
    np.testing.assert_array_equal(found.of(0, "observation"), x["observation"][[0, 1, 2, 3, 4, 5, 5]])


def test_next_observations_of_n_steps_are_kept(tmp_path: Path) -> None:
    x = walk([30, 20])
    ahead = np.array([min(t + 3, 30 if t < 30 else 50) - 1 for t in range(50)])
    x["next/observation"] = x["next/observation"][ahead]
    found = rows(written(tmp_path / "a", x))
    assert found.episodes.length.tolist() == [30, 20] and "next-observation" in found.codes
    np.testing.assert_array_equal(found.of(1, "next/observation"), x["next/observation"][30:], strict=True)
    np.testing.assert_array_equal(found.of(1, "observation")[:-1], x["observation"][30:])


def test_what_differs_beyond_the_sample_is_planned_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = walk([3, 50, 50])
    x["next/observation"][3:] = 7
    monkeypatch.setattr(torchrl, "SAMPLED", 1)
    ds = import_files(written(tmp_path / "a", x), "local/x", jobs=1)
    assert ds.schema["next/observation"].placement == "next" and ds.episodes["length"].tolist() == [3, 50, 50]


@pytest.mark.thorough
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    data=st.data(),
    with_numbers=st.booleans(),
    with_flags=st.booleans(),
    unfinished=st.booleans(),
)
@settings(max_examples=40)
def test_rings_of_any_kind(
    lengths: list[int], data: st.DataObject, with_numbers: bool, with_flags: bool, unfinished: bool, tmp_path: Path
) -> None:
    """The last ``room`` steps of a stream in a ring: every step once, in order, with what was observed after it."""
    x, steps = walk(lengths), sum(lengths)
    room = data.draw(st.integers(1, steps + 5), label="room")
    number = np.repeat(np.arange(len(lengths)), lengths)
    if unfinished:
        for flag in ("next/done", "next/terminated", "next/truncated"):
            x[flag][-1] = False
    kept = np.arange(max(0, steps - room), steps)
    slots = np.zeros(room, int) - 1
    slots[kept % room] = kept
    columns = {
        k: np.where((slots >= 0).reshape(-1, *[1] * (v.ndim - 1)), v[slots], 0).astype(v.dtype) for k, v in x.items()
    }
    if with_numbers or not with_flags:
        columns["collector/traj_ids"] = np.where(slots >= 0, number[slots], 0)
    if not with_flags:
        columns = {k: v for k, v in columns.items() if k.rpartition("/")[2] not in ("done", "terminated", "truncated")}
    directory = tmp_path / f"ring{len(list(tmp_path.iterdir()))}"
    written(directory / "storage", columns)
    about = {"metadata": {}, "is_pytree": False, "len": len(kept)}
    (directory / "storage" / "storage_metadata.json").write_text(json.dumps(about))
    (directory / "buffer_metadata.json").write_text("{}")
    (directory / "writer").mkdir()
    (directory / "writer" / "metadata.json").write_text(json.dumps({"cursor": steps % room, "write_count": steps}))
    found = rows(directory)
    episodes = [kept[number[kept] == i] for i in dict.fromkeys(number[kept].tolist())]
    assert found.episodes.length.tolist() == [len(e) for e in episodes] and found.episodes.observed.all()
    for k, episode in enumerate(episodes):
        np.testing.assert_array_equal(found.of(k, "observation")[:-1], x["observation"][episode])
        np.testing.assert_array_equal(found.of(k, "observation")[1:], x["next/observation"][episode])
        np.testing.assert_array_equal(found.of(k, "action"), x["action"][episode])
        last = bool(x["next/terminated"][episode[-1], 0]) if with_flags else False
        assert found.of(k, "next/terminated").tolist() == [False] * (len(episode) - 1) + [last]


# -- the faults of TorchRL's converters


def test_zeros_are_no_final_observations(tmp_path: Path) -> None:
    """As of D4RL: zero where done; infos of the next episode; flags and rewards at the root a step late."""
    x = walk([3, 2, 4])
    x["next/observation"][[2, 4]] = 0  # the last row is open
    x["next/done"][8] = x["next/terminated"][8] = False
    x["info/qpos"] = x["observation"] * 2
    x["next/info/qpos"] = np.roll(x["info/qpos"], -1, axis=0)
    x["done"], x["reward"] = np.roll(x["next/done"], 1, axis=0), np.roll(x["next/reward"], 1, axis=0)
    found = rows(written(tmp_path / "a", x))
    assert found.episodes.length.tolist() == [3, 2, 4] and found.episodes.observed.tolist() == [False, False, True]
    assert found.episodes.num_transitions.tolist() == [3, 1, 4]
    assert found.codes["filler-final"] == 2 and "reward" not in found.schema
    np.testing.assert_array_equal(found.of(0, "observation"), x["observation"][[0, 1, 2, 2]])
    np.testing.assert_array_equal(found.of(0, "info/qpos"), x["info/qpos"][[0, 1, 2, 2]])


def test_trials_of_several_files(tmp_path: Path) -> None:
    """As of RoboSet: the same numbers in every file, no flag at some ends, zeros after every last step."""
    x = {k: v for k, v in walk([3, 2, 4, 2]).items() if k != "next/truncated"}
    x["episode"], x["seed"] = np.repeat([0, 0, 1, 1], [3, 2, 4, 2]), np.repeat([0, 1, 0, 1], [3, 2, 4, 2])
    x["next/observation"][[2, 4, 8, 10]] = 0
    x["next/done"][4] = x["next/terminated"][4] = False
    x["done"] = x["next/done"]
    found = rows(written(tmp_path / "a", x))
    assert found.episodes.length.tolist() == [3, 2, 4, 2] and not found.episodes.observed.any()
    assert "repeated-numbers" in found.codes and found.codes["filler-final"] == 4


@pytest.mark.parametrize("lengths", [[3, 2], []], ids=["at the end", "everywhere"])
def test_rows_that_were_never_written(tmp_path: Path, lengths: list[int]) -> None:
    """As of GenDGRL, where the number of rows was assumed, and of Minari, since TorchRL 0.11."""
    x = {k: np.concatenate([v[: sum(lengths)], np.zeros_like(v[:5])]) for k, v in walk([3, 2]).items()}
    with pytest.raises(CorruptArchive, match=rf"row {sum(lengths) + 4} is zero in every entry"):
        rows(written(tmp_path / "a", x))


def test_the_first_observation_of_the_next_episode_is_no_final_one(tmp_path: Path) -> None:
    """As of D4RL with ``use_truncated_as_done=False``: done is not set at timeouts."""
    x = walk([3, 2, 4])
    x["next/observation"][:-1] = x["observation"][1:]
    x["next/done"][4] = False
    x["next/observation"][2] = x["next/observation"][8] = 0
    found = rows(written(tmp_path / "a", x))
    assert found.episodes.length.tolist() == [3, 2, 4]
    assert found.episodes.observed.tolist() == [False, True, False]  # truncated counts as an end


# -- shapes, dtypes and what is no tensor


@pytest.mark.parametrize("order", ["ET", "TE", "EET"])
def test_batches_of_environments(tmp_path: Path, order: str) -> None:
    lanes = [walk([3, 5], seed=0), walk([4, 4], seed=1), walk([7, 1], seed=2), walk([8], seed=3)]
    for e, lane in enumerate(lanes):
        lane["collector/traj_ids"] = np.cumsum(np.roll(lane["next/done"][:, 0], 1)) + 10 * e
    x = {k: np.stack([lane[k] for lane in lanes]) for k in lanes[0]}
    batch: tuple[int, ...] = (4, 8)
    if order == "TE":
        x, batch = {k: v.swapaxes(0, 1) for k, v in x.items()}, (8, 4)
    if order == "EET":
        x, batch = {k: v.reshape(2, 2, 8, *v.shape[2:]) for k, v in x.items()}, (2, 2, 8)
    found = rows(written(tmp_path / "a", x, batch))
    assert found.episodes.length.tolist() == [3, 5, 4, 4, 7, 1, 8]
    np.testing.assert_array_equal(found.of(1, "observation")[:-1], lanes[0]["observation"][3:])
    np.testing.assert_array_equal(found.of(4, "observation")[1:], lanes[2]["next/observation"][:7])
    assert found.episodes.group[1] == {"ET": "[0, 3:8]", "TE": "[3:8, 0]", "EET": "[0, 0, 3:8]"}[order]
    for numbers in (None, np.zeros(batch, int), np.arange(32).reshape(batch)):
        del x["collector/traj_ids"]
        x |= {} if numbers is None else {"collector/traj_ids": numbers}
        with pytest.raises(UnknownLayout, match="which of its axes is time") as caught:
            rows(written(tmp_path / f"b{len([*tmp_path.iterdir()])}", x, batch))
        assert "rlds_cli.create" in str(caught.value.hint)
        x.setdefault("collector/traj_ids", np.zeros(0))


def test_dtypes_are_kept(tmp_path: Path) -> None:
    x = walk([3, 2])
    x["half"], x["flag"] = np.arange(5, dtype=np.float16), np.arange(5) % 2 == 0
    x["pixels"] = np.arange(5 * 12, dtype=np.uint8).reshape(5, 2, 2, 3)
    brain = torch.tensor([1.5, -2.25, 3e38, 0.1, float("nan")], dtype=torch.bfloat16)
    x["brain"] = brain
    x["wave"] = np.ones(5, np.complex64)
    x["empty"] = np.zeros((5, 0), np.float32)
    found = rows(written(tmp_path / "a", x))
    for name in ("half", "flag", "pixels"):
        np.testing.assert_array_equal(np.concatenate([found.of(0, name), found.of(1, name)]), x[name], strict=True)
    got = np.concatenate([found.of(0, "brain"), found.of(1, "brain")])
    np.testing.assert_array_equal(got, brain.float().numpy(), strict=True)
    assert "wave" not in found.schema and "wave (complex64)" in found.notes[0].text
    assert found["empty"].shape == (7, 0)


def test_what_is_no_tensor(tmp_path: Path) -> None:
    x = walk([3, 2])
    texts = ["push", "push", "push", "pull", "pull"]
    td = tensordict(x)
    td["task"], td["robot"] = NonTensorStack(*texts), NonTensorData("xarm", batch_size=[5])
    td["limits"] = NonTensorData([1, 2], batch_size=[5])
    td["odd"] = NonTensorData(Path, batch_size=[5])
    td["mission"], td["next", "mission"] = (NonTensorStack(*texts) for _ in range(2))
    td["observation/a"] = torch.arange(5)
    td["b/c"] = torch.arange(5)
    td.memmap(tmp_path / "a")
    found = rows(tmp_path / "a")
    assert found.episodes.extra == {"task": ["push", "pull"]}
    assert found.of(0, "mission") == ["push"] * 4 and found.of(1, "mission") == ["pull"] * 3
    assert found.of(1, "extra/observation/a").tolist() == [3, 4]
    assert found.metadata == {"robot": "xarm", "limits": "[1, 2]"}
    assert found.of(1, "b/c").tolist() == [3, 4]
    assert "odd (a pickle" in found.notes[0].text


def test_lazy_stacks_and_several_directories(tmp_path: Path) -> None:
    a, b = walk([3, 2]), walk([4], seed=1)
    lazy_stack([tensordict(a), tensordict(b)]).memmap(tmp_path / "stack")
    written(tmp_path / "many" / "run10", b)
    written(tmp_path / "many" / "run2", a)
    for place in ("stack", "many"):
        found = rows(tmp_path / place)
        assert found.episodes.length.tolist() == [3, 2, 4]
        np.testing.assert_array_equal(found.of(2, "observation")[:-1], b["observation"])
        assert [found.plan.archive.name_of(i) for i in found.episodes.source[1:]] == (
            ["0/meta.json", "1/meta.json"] if place == "stack" else ["run2/meta.json", "run10/meta.json"]
        )
    written(tmp_path / "many" / "run3", {**b, "more": np.zeros(4)})
    with pytest.raises(CorruptArchive, match="do not hold the same fields: more"):
        rows(tmp_path / "many")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_tensors(tmp_path: Path) -> None:
    episodes = [walk([3]), walk([5], seed=1)]
    seen = [np.concatenate([e["observation"], e["next/observation"][-1:]]) for e in episodes]
    columns = {"observation": seen, "action": [e["action"] for e in episodes]}
    columns |= {f: [e["next/" + f] for e in episodes] for f in ("reward", "done", "terminated", "truncated")}
    nested = {k: torch.nested.nested_tensor([torch.from_numpy(v) for v in vs]) for k, vs in columns.items()}
    TensorDict(nested, [2]).memmap(tmp_path / "a")
    found = rows(tmp_path / "a")
    assert found.episodes.length.tolist() == [3, 5] and found.episodes.observed.all()
    for k in range(2):
        np.testing.assert_array_equal(found.of(k, "observation"), seen[k], strict=True)
        np.testing.assert_array_equal(found.of(k, "next/reward"), columns["reward"][k][:, 0], strict=True)


def test_other_names(tmp_path: Path) -> None:
    x = {k.replace("observation", "pixels"): v for k, v in walk([3, 2]).items()}
    written(tmp_path / "a", x)
    plain = rows(tmp_path / "a")
    assert plain.schema["pixels"].placement == "both" and "no-observation" in plain.codes
    found = rows(tmp_path / "a", fields={"observation": "pixels"})
    np.testing.assert_array_equal(found.of(0, "observation")[1:], x["next/pixels"][:3])
    ds = import_files(tmp_path / "a", "local/x", fields={"observation": "pixels"}, jobs=1)
    assert trace(ds, 5).ok
    with pytest.raises(UnknownLayout, match='no "nothing"'):
        rows(tmp_path / "a", fields={"observation": "nothing"})


# -- hostile directories


def meta(directory: Path, **changes: Any) -> None:
    file = directory / "meta.json"
    content = json.loads(file.read_text())
    content.update(changes)
    file.write_text(json.dumps(content))


def entry(shape: Any, dtype: Any = "torch.float32", **more: Any) -> dict[str, Any]:
    return {"device": "cpu", "shape": shape, "dtype": dtype, "is_nested": False, **more}


HOSTILE: dict[str, dict[str, Any]] = {
    "short": {"action": entry([50, 2])},
    "long": {"action": entry([5, 1])},
    "negative": {"action": entry([-5, 2])},
    "huge": {"action": entry([5, 2**62, 2**40])},
    "missing": {"ghost": entry([5])},
    "climbs": {"../../secret": entry([5])},
    "absolute": {"/etc/passwd": entry([5])},
    "no shape": {"action": entry("five")},
    "nested nowhere": {"ghost": {"type": "TensorDict"}},
    "batch": {"shape": "all"},
    "no name": {"action": entry([5], dtype=["torch.float32"]), "next": {"type": 1}, "observation": entry([5])},
    "zero width": {"shape": [10**15], "action": entry([10**15, 0])},
    "nested table": {"action": entry([5, 2], is_nested=True)},
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_descriptions_are_refused(name: str, tmp_path: Path) -> None:
    directory = written(tmp_path / "a", walk([3, 2]))
    (tmp_path / "secret.memmap").write_bytes(bytes(20))
    meta(directory, **HOSTILE[name])
    with pytest.raises(ArchiveError):
        rows(directory)


def test_links_out_of_the_directory_are_refused(tmp_path: Path) -> None:
    directory = written(tmp_path / "a", walk([3, 2]))
    for name in ("action.memmap", "next"):
        target = directory / name
        target.rename(tmp_path / target.name)
        target.symlink_to(tmp_path / target.name)
        with pytest.raises(UnsafeArchive, match="a place outside"):
            rows(directory)
        target.unlink()
        (tmp_path / target.name).rename(target)


@pytest.mark.thorough
def test_damaged_directories_are_skipped_where_asked(tmp_path: Path) -> None:
    for k, name in enumerate(("a", "b", "c")):
        written(tmp_path / "many" / name, walk([3, 2], seed=k))
    (tmp_path / "many" / "b" / "action.memmap").write_bytes(b"short")
    with pytest.raises(CorruptArchive, match=r"b/action.memmap has 5 bytes; \[5, 2\] float32 takes 40"):
        rows(tmp_path / "many")
    found = rows(tmp_path / "many", skip_bad=True)
    assert found.episodes.length.tolist() == [3, 2, 3, 2] and found.codes["skipped-files"] == 1


def test_tensors_without_a_description(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "action.memmap").write_bytes(bytes(8))
    (tmp_path / "old" / "meta.pt").write_bytes(b"PK")
    with pytest.raises(UnknownLayout, match=r"meta\.pt, a pickle"):
        plan_import(tmp_path / "old", "local/x")


def test_endless_nesting_and_no_json(tmp_path: Path) -> None:
    directory = written(tmp_path / "a", walk([3, 2]))
    inner = directory
    for _ in range(40):
        meta(inner, deep={"type": "TensorDict"})
        inner = inner / "deep"
        inner.mkdir()
        (inner / "meta.json").write_text('{"_type": "<class \'x.TensorDict\'>", "shape": []}')
    with pytest.raises(UnsafeArchive, match="nested deeper"):
        rows(directory)
    (directory / "next" / "meta.json").write_text("[" * 10_000)
    with pytest.raises(CorruptArchive, match=r"meta\.json is not JSON"):
        rows(directory)


@pytest.mark.parametrize("about", [{"len": -1}, {"len": "x"}, {"len": 10**9}])
def test_hostile_buffers_are_refused(about: dict[str, Any], tmp_path: Path) -> None:
    directory = written(tmp_path / "a", walk([3, 2]))
    (directory / "storage_metadata.json").write_text(json.dumps({"metadata": {}, "is_pytree": False, **about}))
    with pytest.raises(CorruptArchive):
        rows(directory)


@pytest.mark.parametrize(
    "mark", [("shift", -1), ("shift", 10**9), ("is_full", "x"), ("_storage_shape", [7]), ("shift", None)]
)
def test_hostile_flat_buffers_are_refused(mark: tuple[str, Any], dumps: Path, tmp_path: Path) -> None:
    shutil.copytree(dumps / "flat_part", tmp_path / "a")
    meta(tmp_path / "a" / "storage" / mark[0], data=mark[1])
    with pytest.raises(ArchiveError):
        rows(tmp_path / "a")


def test_pickles_are_refused(tmp_path: Path) -> None:
    torch.save({"observation": torch.zeros(3)}, tmp_path / "x.pt")
    with pytest.raises(UnsafeArchive, match="pickle"):
        plan_import(tmp_path / "x.pt", "local/x")
    tensordict(walk([3])).save(tmp_path / "x.tdz")
    with pytest.raises(UnknownLayout, match="in one file"):
        plan_import(tmp_path / "x.tdz", "local/x")
