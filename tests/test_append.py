"""Files appended to a dataset that grows, and datasets merged: the values are those of the files."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest
from typer.testing import CliRunner

import rlds_cli
from rlds_cli.cli import app
from rlds_cli.convert import appending, merging
from rlds_cli.errors import InvalidArgument, InvalidEpisode, NameTaken, RldsError, UnknownField
from rlds_cli.maintenance import gc
from rlds_cli.maintenance.verification import trace, verify


def write(path, lengths, first: float, *, width: int = 3, dtype="f4") -> None:
    """Write episodes in D4RL's layout: observations count rows from ``first``, the reward is the action."""
    n = sum(lengths)
    ends = np.zeros(n, bool)
    ends[np.cumsum(lengths) - 1] = True
    with h5py.File(path, "w") as f:
        f["observations"] = (first + np.arange(n)[:, None] + np.arange(width) / 10).astype(dtype)
        f["actions"] = (first + np.arange(n)[:, None]).astype("f4")
        f["rewards"] = (first + np.arange(n)).astype("f4")
        f["terminals"], f["timeouts"] = ends, np.zeros(n, bool)


@pytest.fixture
def files(tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    write(folder / "a.hdf5", [3, 5], 0)
    write(folder / "b.hdf5", [4, 2, 6], 100)
    return folder


def firsts(ds) -> list[float]:
    """Return the first observation of every step, episode by episode."""
    return [ds.episode(k)["observation"][:, 0].tolist() for k in range(ds.num_episodes)]


A = [[0, 1, 2], [3, 4, 5, 6, 7]]
B = [[100, 101, 102, 103], [104, 105], [106, 107, 108, 109, 110, 111]]


def test_episodes_of_files_are_appended_and_know_their_files(tmp_path, files):
    home = tmp_path / "home"
    first = rlds_cli.append("local/all", files / "a.hdf5", cache_dir=home)
    assert (first.generation, first.episodes, first.steps) == (1, 2, 8)
    second = rlds_cli.append("local/all", [files / "b.hdf5"], cache_dir=home)
    assert (second.generation, second.episodes, second.steps) == (2, 3, 12)
    ds = rlds_cli.open_dataset("local/all", cache_dir=home)
    assert ds.generation == 2 and firsts(ds) == A + B
    assert ds.episodes["end"].tolist() == ["terminated"] * 5
    at = [ds.source_of(i) for i in (0, 7, 8, len(ds) - 1)]
    assert [(s.file, s.row, s.step) for s in at] == [
        ("a.hdf5", 0, 0), ("a.hdf5", 7, 4), ("b.hdf5", 0, 0), ("b.hdf5", 11, 5)
    ]  # fmt: skip
    assert [s["file"] for s in ds.sources if not s.get("recorded")] == ["a.hdf5", "b.hdf5"]
    compared = trace("local/all", 20, cache_dir=home)
    assert compared.ok and compared.steps == 20 and {"observation", "action", "next/reward"} <= set(compared.fields)
    assert not list((home / "partial").iterdir())


def test_a_value_that_differs_from_the_appended_file_is_seen(tmp_path, files):
    rlds_cli.append("local/all", sorted(files.iterdir()), cache_dir=tmp_path)
    ds = rlds_cli.open_dataset("local/all", cache_dir=tmp_path)
    segment = np.memmap(ds.path / "observation/c/0/0", "<f4", "r+").reshape(-1, 3)
    row = int(ds.episodes["start"][3])
    segment[row, 1] = 7.0
    (wrong,) = trace("local/all", 20, cache_dir=tmp_path).differences
    assert (wrong.episode, wrong.step, wrong.field) == (3, 0, "observation")
    found = verify("local/all", cache_dir=tmp_path)
    assert not found.ok and [p.where for p in found.problems] == ["episode 3"]


def test_recorded_episodes_come_from_no_file_also_after_an_append(tmp_path, files):
    step = {"observation": np.full(3, -1, "f4"), "action": np.zeros(1, "f4")}
    with rlds_cli.writer("local/all", cache_dir=tmp_path) as w:
        w.add(**step, reward=np.float32(0), terminated=True, next_observation=np.full(3, -2, "f4"))
    rlds_cli.append("local/all", files / "a.hdf5", cache_dir=tmp_path)
    with rlds_cli.writer("local/all", cache_dir=tmp_path) as w:
        w.add(**step, reward=np.float32(0), terminated=True, next_observation=np.full(3, -2, "f4"))
    ds = rlds_cli.open_dataset("local/all", cache_dir=tmp_path)
    assert firsts(ds) == [[-1], *A, [-1]]
    assert ds.source_of(1).file == "a.hdf5"
    for index in (0, len(ds) - 1):
        with pytest.raises(RldsError, match="was recorded from values"):
            ds.source_of(index)
    assert trace("local/all", 100, cache_dir=tmp_path).steps == 8


def test_a_file_that_was_appended_before_is_left_out_by_its_content(tmp_path, files):
    rlds_cli.append("local/all", files / "a.hdf5", cache_dir=tmp_path)
    (files / "a.hdf5").rename(files / "renamed.hdf5")
    done = rlds_cli.append("local/all", sorted(files.iterdir()), cache_dir=tmp_path)
    assert done.skipped == (files / "renamed.hdf5",) and done.files == (files / "b.hdf5",)
    nothing = rlds_cli.append("local/all", sorted(files.iterdir()), cache_dir=tmp_path)
    assert (nothing.episodes, nothing.generation, nothing.files) == (0, 2, ())
    assert firsts(rlds_cli.open_dataset("local/all", cache_dir=tmp_path)) == A + B
    again = rlds_cli.append("local/all", files / "renamed.hdf5", again=True, cache_dir=tmp_path)
    assert again.episodes == 2
    assert firsts(rlds_cli.open_dataset("local/all", cache_dir=tmp_path)) == A + B + A


def test_files_of_other_fields_are_refused_with_all_differences(tmp_path, files):
    rlds_cli.append("local/all", files / "a.hdf5", cache_dir=tmp_path)
    write(files / "c.hdf5", [3], 0, width=4)
    with h5py.File(files / "c.hdf5", "a") as f:
        del f["rewards"]
        f["infos/speed"] = np.zeros(3, "f4")
    for call in (appending.plan_append, rlds_cli.append):
        with pytest.raises(InvalidEpisode) as e:
            call("local/all", files / "c.hdf5", cache_dir=tmp_path)
        assert "observation is float32 [4] (both), not float32 [3] (both)" in e.value.message
        assert "next/reward is missing" in e.value.message and "speed is not in the dataset" in e.value.message
    ds = rlds_cli.open_dataset("local/all", cache_dir=tmp_path)
    assert ds.generation == 1 and firsts(ds) == A


def test_an_ordinary_dataset_is_not_appended_to(tmp_path, files):
    rlds_cli.importing.import_archive(files / "a.hdf5", "local/plain", cache_dir=tmp_path)
    with pytest.raises(NameTaken, match="does not grow"):
        rlds_cli.append("local/plain", files / "b.hdf5", cache_dir=tmp_path)


def test_appended_demonstrations_never_leave_and_a_new_dataset_keeps_what_it_is_told(tmp_path, files):
    keep = rlds_cli.Fifo(episodes=2)
    rlds_cli.append("local/all", files / "a.hdf5", keep=keep, protected=True, cache_dir=tmp_path)
    rlds_cli.append("local/all", files / "b.hdf5", cache_dir=tmp_path)
    assert firsts(rlds_cli.open_dataset("local/all", cache_dir=tmp_path)) == A + B[1:]


def test_work_of_an_append_that_was_killed_is_garbage(tmp_path, files):
    rlds_cli.append("local/all", files / "a.hdf5", cache_dir=tmp_path)
    left = tmp_path / "partial" / "local+all.append-0a1b2c3d"
    (left / "datasets").mkdir(parents=True)
    assert [g.path for g in gc.plan(cache_dir=tmp_path).removed] == [left]


def test_commands_append_and_merge_and_say_what_they_would_do(tmp_path, files, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))
    run = CliRunner().invoke
    planned = run(app, ["append", "local/g", str(files / "a.hdf5"), "--dry-run"])
    assert planned.exit_code == 0 and "will be made" in planned.output
    done = run(app, ["append", "local/g", str(files / "a.hdf5"), "--json"])
    assert json.loads(done.stdout)["episodes"] == 2
    twice = run(app, ["append", "local/g", str(files / "a.hdf5")])
    assert twice.exit_code == 0 and "nothing to append" in twice.output and "--again" in twice.output
    run(app, ["append", "local/h", str(files / "b.hdf5")])
    planned = run(app, ["merge", "local/g", "local/h", "--as", "local/all", "--dry-run"])
    assert "local/g generation 1" in planned.output and "no field is shared on disk" in planned.output
    merged = run(app, ["merge", "local/g", "local/h", "--as", "local/all", "--json"])
    assert json.loads(merged.stdout)["counts"]["episodes"] == 5
    assert firsts(rlds_cli.open_dataset("local/all")) == A + B


# -- merging


@pytest.fixture
def members(tmp_path, files):
    rlds_cli.append("local/grown", files / "a.hdf5", cache_dir=tmp_path)
    rlds_cli.importing.import_archive(files / "b.hdf5", "local/plain", cache_dir=tmp_path)
    return ["local/grown", "local/plain"]


@pytest.mark.parametrize("store", ["memmap", "zarr"])
def test_merged_episodes_say_where_they_came_from(tmp_path, members, store):
    ds = rlds_cli.merge(members, "local/all", store=store, cache_dir=tmp_path)
    assert firsts(ds) == A + B
    assert ds.episodes["dataset"].tolist() == ["local/grown"] * 2 + ["local/plain"] * 3
    assert ds.generation is None and ds.encoding == store
    assert [(ds.source_of(i).file, ds.source_of(i).row) for i in (7, 8)] == [("a.hdf5", 7), ("b.hdf5", 0)]
    assert trace(ds, 20).ok
    assert verify("local/all", cache_dir=tmp_path).ok
    assert firsts(ds.select(where='dataset == "local/plain"')) == B
    # the same content as episodes of one archive, whatever they were merged from
    one = rlds_cli.create("local/one", (ds.episode(k) for k in range(5)), cache_dir=tmp_path)
    assert one.fingerprint == ds.fingerprint


def test_a_generation_with_gaps_and_a_selection_are_merged(tmp_path, files):
    rlds_cli.append("local/g", files / "a.hdf5", keep=rlds_cli.Top(episodes=2), cache_dir=tmp_path)
    old = rlds_cli.open_dataset("local/g", cache_dir=tmp_path)
    rlds_cli.append("local/g", files / "b.hdf5", cache_dir=tmp_path)  # with returns of 406, 209 and 651
    grown = rlds_cli.open_dataset("local/g", cache_dir=tmp_path)
    assert firsts(grown) == [B[0], B[2]] and np.diff(grown.episodes["start"]) > 5
    ds = rlds_cli.merge([grown, old.select(episodes=[1])], "local/all", cache_dir=tmp_path)
    assert firsts(ds) == [B[0], B[2], A[1]]
    assert [ds.source_of(i).row for i in (0, 4, 10)] == [0, 6, 3]


def test_a_single_dataset_is_shared_on_disk(tmp_path, files):
    plain = rlds_cli.importing.import_archive(files / "b.hdf5", "local/plain", cache_dir=tmp_path)
    planned = merging.plan_merge(["local/plain"], "local/copy", cache_dir=tmp_path)
    assert planned.shared == tuple(sorted(plain.schema)) and planned.bytes == 0
    ds = rlds_cli.merge(["local/plain"], "local/copy", cache_dir=tmp_path)
    assert firsts(ds) == B and ds.fingerprint == plain.fingerprint
    assert (ds.path / "observation/c/0/0").samefile(plain.path / "observation/c/0/0")


def test_fields_that_differ_are_listed_and_can_be_chosen(tmp_path, members, files):
    write(files / "wide.hdf5", [2], 50, width=4)
    rlds_cli.importing.import_archive(files / "wide.hdf5", "local/wide", cache_dir=tmp_path)
    with pytest.raises(InvalidEpisode) as e:
        rlds_cli.merge([*members, "local/wide"], "local/all", cache_dir=tmp_path)
    assert "in local/wide, observation is float32 [4] (both), not float32 [3] (both)" in e.value.message
    assert e.value.hint == "--fields action,next/reward,next/terminated,next/truncated takes those that do"
    chosen = ["action", "next/reward", "next/terminated", "next/truncated"]
    ds = rlds_cli.merge([*members, "local/wide"], "local/all", fields=chosen, cache_dir=tmp_path)
    assert sorted(ds.schema) == sorted(chosen) and ds.num_episodes == 6
    assert ds.column("action")[ds.episodes["start"][5], 0] == 50
    with pytest.raises(UnknownField, match="has no field speed"):
        rlds_cli.merge(members, "local/x", fields=["speed"], cache_dir=tmp_path)


def test_names_and_columns_that_are_taken_are_errors(tmp_path, members):
    rlds_cli.merge(members, "local/all", cache_dir=tmp_path)
    with pytest.raises(NameTaken, match="local/all exists"):
        rlds_cli.merge(members, "local/all", cache_dir=tmp_path)
    with pytest.raises(InvalidEpisode, match="has an episode column dataset already"):
        rlds_cli.merge(["local/all", "local/plain"], "local/more", cache_dir=tmp_path)
    more = rlds_cli.merge(["local/all", "local/plain"], "local/more", column="part", cache_dir=tmp_path)
    assert more.episodes["dataset"].tolist()[:2] == ["local/grown"] * 2 and more.episodes["dataset"][5] is None
    with pytest.raises(InvalidArgument, match="nothing to merge"):
        rlds_cli.merge([], "local/none", cache_dir=tmp_path)
