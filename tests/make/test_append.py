"""Files appended to a growing dataset, and datasets merged: the values are those of the files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import h5py
import lerobot_archives
import numpy as np
import own_files
import pytest
from typer.testing import CliRunner

import rlds_cli
from rlds_cli.base.files import child
from rlds_cli.cli import app
from rlds_cli.errors import InvalidArgument, InvalidEpisode, NameTaken, RldsError, UnknownField, UnknownLayout
from rlds_cli.keep import gc, pinning
from rlds_cli.keep.verification import verify
from rlds_cli.look.report.diff import compare
from rlds_cli.look.report.tracing import trace
from rlds_cli.make.convert import appending, merging
from rlds_cli.ted import VIDEO


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


@pytest.mark.thorough
def test_episodes_of_files_are_appended_and_know_their_files(tmp_path, files):
    home = tmp_path / "home"
    first = rlds_cli.append("local/all", files / "a.hdf5", home=home)
    assert (first.version, first.episodes, first.steps) == (1, 2, 8)
    second = rlds_cli.append("local/all", [files / "b.hdf5"], home=home)
    assert (second.version, second.episodes, second.steps) == (2, 3, 12)
    ds = rlds_cli.open_dataset("local/all", home=home)
    assert ds.version == 2 and firsts(ds) == A + B
    assert ds.episodes["end"].tolist() == ["terminated"] * 5
    at = [ds.source_of(i) for i in (0, 7, 8, len(ds) - 1)]
    assert [(s.file, s.row, s.step) for s in at] == [
        ("a.hdf5", 0, 0), ("a.hdf5", 7, 4), ("b.hdf5", 0, 0), ("b.hdf5", 11, 5)
    ]  # fmt: skip
    assert [s["file"] for s in ds.sources if not s.get("recorded")] == ["a.hdf5", "b.hdf5"]
    compared = trace("local/all", 20, home=home)
    assert compared.ok and compared.steps == 20 and {"observation", "action", "next/reward"} <= set(compared.fields)
    assert not list((home / "partial").iterdir())


@pytest.mark.thorough
def test_a_value_that_differs_from_the_appended_file_is_seen(tmp_path, files):
    rlds_cli.append("local/all", sorted(files.iterdir()), home=tmp_path)
    ds = rlds_cli.open_dataset("local/all", home=tmp_path)
    segment = np.memmap(ds.path / "observation/c/0/0", "<f4", "r+").reshape(-1, 3)
    row = int(ds.episodes["start"][3])
    segment[row, 1] = 7.0
    (wrong,) = trace("local/all", 20, home=tmp_path).differences
    assert (wrong.episode, wrong.step, wrong.field) == (3, 0, "observation")
    found = verify("local/all", home=tmp_path)
    assert not found.ok and [str(p) for p in found.problems] == ["observation: episode 3 is not as it was written"]


def test_recorded_episodes_come_from_no_file_also_after_an_append(tmp_path, files):
    step = {"observation": np.full(3, -1, "f4"), "action": np.zeros(1, "f4")}
    with rlds_cli.writer("local/all", home=tmp_path) as w:
        w.add(**step, reward=np.float32(0), terminated=True, next_observation=np.full(3, -2, "f4"))
    rlds_cli.append("local/all", files / "a.hdf5", home=tmp_path)
    with rlds_cli.writer("local/all", home=tmp_path) as w:
        w.add(**step, reward=np.float32(0), terminated=True, next_observation=np.full(3, -2, "f4"))
    ds = rlds_cli.open_dataset("local/all", home=tmp_path)
    assert firsts(ds) == [[-1], *A, [-1]]
    assert ds.source_of(1).file == "a.hdf5"
    for index in (0, len(ds) - 1):
        with pytest.raises(RldsError, match="was recorded from values"):
            ds.source_of(index)
    assert trace("local/all", 100, home=tmp_path).steps == 8


@pytest.mark.thorough
def test_a_file_that_was_appended_before_is_left_out_by_its_content(tmp_path, files):
    rlds_cli.append("local/all", files / "a.hdf5", home=tmp_path)
    (files / "a.hdf5").rename(files / "renamed.hdf5")
    done = rlds_cli.append("local/all", sorted(files.iterdir()), home=tmp_path)
    assert done.skipped == (files / "renamed.hdf5",) and done.files == (files / "b.hdf5",)
    nothing = rlds_cli.append("local/all", sorted(files.iterdir()), home=tmp_path)
    assert (nothing.episodes, nothing.version, nothing.files) == (0, 2, ())
    assert firsts(rlds_cli.open_dataset("local/all", home=tmp_path)) == A + B
    again = rlds_cli.append("local/all", files / "renamed.hdf5", again=True, home=tmp_path)
    assert again.episodes == 2
    assert firsts(rlds_cli.open_dataset("local/all", home=tmp_path)) == A + B + A


def test_files_of_other_fields_are_refused_with_all_differences(tmp_path, files):
    rlds_cli.append("local/all", files / "a.hdf5", home=tmp_path)
    write(files / "c.hdf5", [3], 0, width=4)
    with h5py.File(files / "c.hdf5", "a") as f:
        del f["rewards"]
        f["infos/speed"] = np.zeros(3, "f4")
    for call in (appending.plan_append, rlds_cli.append):
        with pytest.raises(InvalidEpisode) as e:
            call("local/all", files / "c.hdf5", home=tmp_path)
        assert "observation is float32 [4] (both), not float32 [3] (both)" in e.value.message
        assert "next/reward is missing" in e.value.message and "speed is not in the dataset" in e.value.message
    ds = rlds_cli.open_dataset("local/all", home=tmp_path)
    assert ds.version == 1 and firsts(ds) == A


@pytest.mark.thorough
@pytest.mark.parametrize("storage", ["memmap", "zarr"])
def test_an_append_to_an_ordinary_dataset_is_its_next_version(tmp_path, files, storage):
    write(files / "c.hdf5", [2, 1], 200)
    first = rlds_cli.make.importing.import_files(files / "a.hdf5", "local/day", storage=storage, home=tmp_path)
    rlds_cli.open_dataset("local/day", home=tmp_path).label(quality="good")
    done = rlds_cli.append("local/day", [files / "a.hdf5", files / "b.hdf5"], home=tmp_path)
    assert (done.version, done.episodes, done.steps) == (3, 3, 12)
    assert [f.name for f in done.skipped] == ["a.hdf5"]
    rlds_cli.append("local/day", files / "c.hdf5", home=tmp_path)
    ds = rlds_cli.open_dataset("local/day", home=tmp_path)
    assert ds.version == 4 and firsts(ds) == [*A, *B, [200, 201], [202]] and ds.manifest.encoding == storage
    assert ds.episodes["quality"].tolist() == ["good"] * 2 + [None] * 5
    at = [ds.source_of(i) for i in (0, 7, 8, len(ds) - 1)]
    assert [(s.file, s.row) for s in at] == [("a.hdf5", 0), ("a.hdf5", 7), ("b.hdf5", 0), ("c.hdf5", 2)]
    assert trace("local/day", 20, home=tmp_path).ok and verify("local/day", home=tmp_path).ok
    assert ds.fingerprint == done_of_all(tmp_path, files, ds)
    assert rlds_cli.open_dataset("local/day#v1", home=tmp_path).fingerprint == first.fingerprint
    assert len({tuple(i) for i in ds.episodes["id"].tolist()}) == 7
    assert ds.episodes["id"][:2].tolist() == first.episodes["id"].tolist()
    if storage == "memmap":
        assert (ds.path / "observation/0/c/0/0").samefile(first.path / "observation/c/0/0")
    assert not list((tmp_path / "partial").iterdir())


def done_of_all(home, files, like) -> str:
    """Return the fingerprint of one import of all files, with the labels of another dataset."""
    ds = rlds_cli.make.importing.import_files(sorted(files.iterdir()), "local/whole", home=home)
    quality = like.episodes["quality"].tolist()
    return ds.label(quality=quality).fingerprint


def test_a_lock_of_an_append_names_the_address_where_it_was_pushed(tmp_path, files):
    rlds_cli.make.importing.import_files(files / "a.hdf5", "local/day")
    rlds_cli.append("local/day", files / "b.hdf5")
    ds = rlds_cli.open_dataset("local/day").label(quality="good")
    assert [v.change for v in ds.versions][1:] == ["append b.hdf5 (3 episodes)", "label quality=good"]
    with pytest.raises(RldsError, match="files were appended to it"):
        pinning.lock(["local/day"])
    rlds_cli.push("local/day", tmp_path / "there", pages=False)
    (tmp_path / "rlds.lock").write_text(pinning.lock(["local/day"]))
    pinning.sync(tmp_path / "rlds.lock", home=tmp_path / "another")
    assert rlds_cli.open_dataset("local/day", home=tmp_path / "another").fingerprint == ds.fingerprint


def test_what_an_ordinary_dataset_does_not_take(tmp_path, files):
    rlds_cli.make.importing.import_files(files / "a.hdf5", "local/day", home=tmp_path)
    write(files / "wide.hdf5", [2], 50, width=4)
    with pytest.raises(InvalidEpisode, match=r"observation is float32 \[4\]"):
        rlds_cli.append("local/day", files / "wide.hdf5", home=tmp_path)
    with pytest.raises(InvalidArgument, match="has 2 episodes of the files already"):
        rlds_cli.append("local/day", files / "a.hdf5", again=True, home=tmp_path)
    with pytest.raises(InvalidArgument, match="does not grow"):
        rlds_cli.append("local/day", files / "b.hdf5", protected=True, home=tmp_path)
    ds = rlds_cli.open_dataset("local/day", home=tmp_path)
    assert ds.version == 1 and firsts(ds) == A


def encoded(ds, name, row) -> bytes:
    """The bytes of a frame, of images or of videos."""
    if ds.schema[name].codec != VIDEO:
        return ds.store.frames(name).packet(row)
    return ds.store.videos(name).packet(*ds.store.rows(name)[row].tolist())


def test_frames_and_videos_are_appended_as_they_are(tmp_path):
    top, wrist = "observation/images/top", "observation/images/wrist"
    for k, lengths in enumerate(((4, 6, 3), (5, 2, 7))):
        content = lerobot_archives.Content(lengths=lengths, video=("top",), image=("wrist",))
        lerobot_archives.write_v3(tmp_path / f"robot{k}", content)
    days = [rlds_cli.make.importing.import_files(tmp_path / f"robot{k}", f"local/day{k}") for k in range(2)]
    rlds_cli.append("local/day0", tmp_path / "robot1")
    ds = rlds_cli.open_dataset("local/day0")
    assert ds.version == 2 and ds.schema == days[1].schema and verify("local/day0").ok
    for k in range(3):
        for name in (top, wrist):
            np.testing.assert_array_equal(ds.episode(3 + k)[name], days[1].episode(k)[name])
            row, of = int(ds.episodes["start"][3 + k]), int(days[1].episodes["start"][k])
            assert encoded(ds, name, row) == encoded(days[1], name, of)


@pytest.mark.thorough
def test_appended_demonstrations_never_leave_and_a_new_dataset_keeps_what_it_is_told(tmp_path, files):
    keep = rlds_cli.Fifo(episodes=2)
    rlds_cli.append("local/all", files / "a.hdf5", keep=keep, protected=True, home=tmp_path)
    rlds_cli.append("local/all", files / "b.hdf5", home=tmp_path)
    assert firsts(rlds_cli.open_dataset("local/all", home=tmp_path)) == A + B[1:]


def test_work_of_an_append_that_was_killed_is_garbage(tmp_path, files):
    rlds_cli.append("local/all", files / "a.hdf5", home=tmp_path)
    left = tmp_path / "partial" / "local+all.append-0a1b2c3d"
    (left / "datasets").mkdir(parents=True)
    assert [g.path for g in gc.find_garbage(home=tmp_path).removed] == [left]


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
    planned = run(app, ["merge", "local/g", "local/h", "--name", "local/all", "--dry-run"])
    assert "local/g#v1" in planned.output and "no row is copied" in planned.output
    merged = run(app, ["merge", "local/g", "local/h", "--name", "local/all", "--json"])
    assert json.loads(merged.stdout)["counts"]["episodes"] == 5
    assert firsts(rlds_cli.open_dataset("local/all")) == A + B


# -- merging


@pytest.fixture(scope="module")
def home_with_members(tmp_path_factory):
    home, folder = (tmp_path_factory.mktemp(name) for name in ("members", "archives"))
    write(folder / "a.hdf5", [3, 5], 0)
    write(folder / "b.hdf5", [4, 2, 6], 100)
    with child.here():
        rlds_cli.append("local/grown", folder / "a.hdf5", home=home)
        rlds_cli.make.importing.import_files(folder / "b.hdf5", "local/plain", home=home)
    return home


@pytest.fixture
def members(tmp_path, home_with_members):
    shutil.copytree(home_with_members, tmp_path, dirs_exist_ok=True)
    return ["local/grown", "local/plain"]


@pytest.mark.thorough
@pytest.mark.parametrize("storage", ["memmap", "zarr"])
def test_merged_episodes_say_where_they_came_from(tmp_path, members, storage):
    ds = rlds_cli.merge(members, "local/all", storage=storage, home=tmp_path)
    assert firsts(ds) == A + B
    assert ds.episodes["dataset"].tolist() == ["local/grown"] * 2 + ["local/plain"] * 3
    assert ds.version == 1 and ds.encoding == storage
    assert [(ds.source_of(i).file, ds.source_of(i).row) for i in (7, 8)] == [("a.hdf5", 7), ("b.hdf5", 0)]
    assert trace(ds, 20).ok
    assert verify("local/all", home=tmp_path).ok
    assert firsts(ds.select(where='dataset == "local/plain"')) == B
    # the same content as episodes of one archive, whatever they were merged from
    one = rlds_cli.create("local/one", (ds.episode(k) for k in range(5)), home=tmp_path)
    assert one.fingerprint == ds.fingerprint


@pytest.mark.thorough
def test_a_version_with_gaps_and_a_selection_are_merged(tmp_path, files):
    rlds_cli.append("local/g", files / "a.hdf5", keep=rlds_cli.Top(episodes=2), home=tmp_path)
    old = rlds_cli.open_dataset("local/g", home=tmp_path)
    rlds_cli.append("local/g", files / "b.hdf5", home=tmp_path)  # with returns of 406, 209 and 651
    grown = rlds_cli.open_dataset("local/g", home=tmp_path)
    assert firsts(grown) == [B[0], B[2]] and np.diff(grown.episodes["start"]) > 5
    ds = rlds_cli.merge([grown, old.select(episodes=[1])], "local/all", home=tmp_path)
    assert firsts(ds) == [B[0], B[2], A[1]]
    assert [ds.source_of(i).row for i in (0, 4, 10)] == [0, 6, 3]


def test_members_with_episodes_in_common_are_refused(tmp_path, files):
    rlds_cli.append("local/g", files / "a.hdf5", home=tmp_path)
    before = rlds_cli.open_dataset("local/g", home=tmp_path)
    rlds_cli.append("local/g", files / "b.hdf5", home=tmp_path)
    grown = rlds_cli.open_dataset("local/g", home=tmp_path)
    one = rlds_cli.make.importing.import_files(files / "b.hdf5", "local/one", home=tmp_path)
    copy = rlds_cli.create("local/copy", [one.episode(k) for k in range(3)], home=tmp_path)
    args = {"where": "episode > 0"}
    some = rlds_cli.preprocess.run(one, "select_episodes", "some", args=args, home=tmp_path)
    merged = rlds_cli.merge([before, one], "local/merged", home=tmp_path)
    for pair, count in (
        (["local/one", "local/one"], "3 episodes"),
        (["local/one", str(one.path)], "3 episodes"),
        ([one, one.select(episodes=[1])], "1 episode"),
        ([one.select(episodes=[0, 1]), one.select(episodes=[2, 1])], "1 episode"),
        ([copy, one], "3 episodes"),
        ([one, some], "2 episodes"),
        ([some, one.select(episodes=[1, 2])], "2 episodes"),
        ([merged, one], "3 episodes"),
        ([before, grown], "2 episodes"),  # two versions
    ):
        with pytest.raises(InvalidArgument, match=f"{count} would be repeated") as e:
            rlds_cli.merge(pair, "local/twice", column="from", home=tmp_path)
        assert "Mixture" in (e.value.hint or "")
    apart = [one.select(episodes=[0]), one.select(episodes=[2, 1])]
    assert rlds_cli.merge(apart, "local/twice", home=tmp_path).num_episodes == 3


@pytest.mark.thorough
def test_a_single_dataset_is_shared_on_disk(tmp_path, files):
    plain = rlds_cli.make.importing.import_files(files / "b.hdf5", "local/plain", home=tmp_path)
    planned = merging.plan_merge(["local/plain"], "local/copy", home=tmp_path)
    assert planned.copied == () and planned.bytes == 0
    ds = rlds_cli.merge(["local/plain"], "local/copy", home=tmp_path)
    assert firsts(ds) == B and ds.episodes["dataset"].tolist() == ["local/plain"] * 3
    digests = [{f.name: f.digest for f in of.manifest.fields} for of in (ds, plain)]
    assert digests[0] == digests[1]
    assert (ds.path / "observation/c/0/0").samefile(plain.path / "observation/c/0/0")


def test_fields_that_differ_are_listed_and_can_be_chosen(tmp_path, members, files):
    write(files / "wide.hdf5", [2], 50, width=4)
    rlds_cli.make.importing.import_files(files / "wide.hdf5", "local/wide", home=tmp_path)
    with pytest.raises(InvalidEpisode) as e:
        rlds_cli.merge([*members, "local/wide"], "local/all", home=tmp_path)
    assert "in local/wide, observation is float32 [4] (both), not float32 [3] (both)" in e.value.message
    assert e.value.hint == "--fields action,next/reward,next/terminated,next/truncated takes those that do"
    less = rlds_cli.create("local/less", [{"observation": np.zeros((3, 3)), "action": np.zeros((2, 1))}], home=tmp_path)
    with pytest.raises(InvalidEpisode, match=r"in local/less, .*next/reward is missing"):
        rlds_cli.merge([members[0], less], "local/all", home=tmp_path)
    chosen = ["action", "next/reward", "next/terminated", "next/truncated"]
    ds = rlds_cli.merge([*members, "local/wide"], "local/all", fields=chosen, home=tmp_path)
    assert sorted(ds.schema) == sorted(chosen) and ds.num_episodes == 6
    assert ds.column("action", gaps=True)[ds.episodes["start"][5], 0] == 50
    with pytest.raises(InvalidArgument, match="rows of no episode"):
        ds.column("action")
    with pytest.raises(UnknownField, match="has no field speed"):
        rlds_cli.merge(members, "local/x", fields=["speed"], home=tmp_path)


def test_names_and_columns_that_are_taken_are_errors(tmp_path, members, files):
    write(files / "wide.hdf5", [2], 50)
    rlds_cli.make.importing.import_files(files / "wide.hdf5", "local/wide", home=tmp_path)
    rlds_cli.merge(members, "local/all", home=tmp_path)
    with pytest.raises(NameTaken, match="local/all exists"):
        rlds_cli.merge(members, "local/all", home=tmp_path)
    with pytest.raises(InvalidEpisode, match="has an episode column dataset already"):
        rlds_cli.merge(["local/all", "local/wide"], "local/more", home=tmp_path)
    more = rlds_cli.merge(["local/all", "local/wide"], "local/more", column="part", home=tmp_path)
    assert more.episodes["dataset"].tolist()[:2] == ["local/grown"] * 2 and more.episodes["dataset"][5] is None
    with pytest.raises(InvalidArgument, match="nothing to merge"):
        rlds_cli.merge([], "local/none", home=tmp_path)


# -- archives of all kinds


@pytest.mark.thorough
def test_encoded_frames_and_texts_of_an_archive_are_kept(tmp_path):
    content = lerobot_archives.Content(lengths=(4, 6, 3), image=("front",))
    lerobot_archives.write_v3(tmp_path / "robot", content)
    done = rlds_cli.append("local/robot", tmp_path / "robot", home=tmp_path)
    assert (done.episodes, done.steps) == (3, 13)
    ds = rlds_cli.open_dataset("local/robot", home=tmp_path)
    name = next(n for n, f in ds.schema.items() if f.dtype == "uint8" and len(f.shape) == 3)
    pictures, states = content.frames("front"), content.column("observation.state")
    for k, (first, length) in enumerate(zip(content.starts, content.lengths, strict=True)):
        episode = ds.episode(k)
        assert np.array_equal(episode[name], pictures[first : first + length])
        state = next(n for n, f in ds.schema.items() if f.shape == (4,))
        assert np.array_equal(episode[state], states[first : first + length])
    plain = rlds_cli.make.importing.import_files(tmp_path / "robot", "local/plain", home=tmp_path)
    assert compare(ds, plain).same and ds.fingerprint == plain.fingerprint
    assert ds.schema[name].codec == "png"
    again = rlds_cli.append("local/robot", tmp_path / "robot", home=tmp_path)
    assert again.episodes == 0 and not again.files


@pytest.mark.thorough
@pytest.mark.parametrize("suffix", own_files.FORMATS)
def test_tables_of_every_format_are_appended(tmp_path, suffix):
    columns = {
        "observation": np.arange(6.0), "action": np.arange(6.0) / 2, "reward": np.ones(6),
        "trial": np.array([1, 1, 1, 2, 2, 2]), "said": np.array(["a", "b", "a", "c", "c", "b"]),
    }  # fmt: skip
    how = {"episodes_by": "field:trial", "fields": {"observation": "observation", "action": "action", "said": "said"}}
    if suffix == ".npz":
        del columns["said"], how["fields"]["said"]
    for day in (1, 2):
        file = own_files.write(tmp_path / f"day{day}{suffix}", {**columns, "observation": columns["observation"] * day})
        rlds_cli.append("local/tables", file, home=tmp_path, **how)
    ds = rlds_cli.open_dataset("local/tables", home=tmp_path)
    seen = [ds.episode(k)["observation"].ravel().tolist() for k in range(4)]
    assert seen == [[0, 1, 2], [3, 4, 5], [0, 2, 4], [6, 8, 10]]
    if suffix != ".npz":
        assert [ds.episode(k)["said"].tolist() for k in (0, 3)] == [["a", "b", "a"], ["c", "c", "b"]]
    assert trace("local/tables", 12, home=tmp_path).ok
    assert verify("local/tables", home=tmp_path).ok


@pytest.mark.thorough
def test_seeds_options_and_groups_of_an_archive_are_kept(tmp_path):
    folder = Path(rlds_cli.__file__).parent / "samples" / "cartpole-minari"
    rlds_cli.append("local/g", folder, home=tmp_path)
    grown = rlds_cli.open_dataset("local/g", home=tmp_path)
    plain = rlds_cli.make.importing.import_files(folder, "local/plain", home=tmp_path)
    assert compare(grown, plain).same
    for column in ("seed", "group", "options", "row", "num_transitions", "total_reward"):
        assert grown.episodes[column].tolist() == plain.episodes[column].tolist()
    assert grown.observation_space == plain.observation_space
    assert trace(grown, 50).ok


def test_a_merge_that_was_interrupted_goes_on(tmp_path, members, files, monkeypatch):
    for name, value in (("second", 40), ("third", 60)):  # compressed: their rows are copied
        write(files / f"{name}.hdf5", [2], value)
        rlds_cli.make.importing.import_files(files / f"{name}.hdf5", f"local/{name}", storage="zarr", home=tmp_path)
    members = [*members, "local/second", "local/third"]
    read, count = merging.MergeJob.read, []

    def killed(self, part):
        if count:
            raise KeyboardInterrupt
        count.append(part)
        yield from read(self, part)

    monkeypatch.setattr(merging.MergeJob, "read", killed)
    with pytest.raises(KeyboardInterrupt):
        rlds_cli.merge(members, "local/all", home=tmp_path)
    assert len(count) == 1 and list((tmp_path / "partial").iterdir())
    parts = []
    monkeypatch.setattr(merging.MergeJob, "read", lambda self, part: parts.append(part) or read(self, part))
    ds = rlds_cli.merge(members, "local/all", home=tmp_path)
    assert firsts(ds) == [*A, *B, [40, 41], [60, 61]] and [p.args["member"] for p in parts] == [3]
    assert not list((tmp_path / "partial").iterdir())


@pytest.mark.thorough
def test_a_merge_of_a_download_is_traced_to_its_archive_and_one_of_values_has_none(tmp_path):
    pendulum = rlds_cli.download("sample/pendulum-d4rl", home=tmp_path)
    ds = rlds_cli.merge([pendulum.select(episodes=[3, 1])], "local/two", home=tmp_path)
    assert ds.source_of(0).row == pendulum.episodes["start"][3] - 3 == 600  # 200 steps each, and a last row
    assert trace(ds, 40).ok
    e = pendulum.episode(0)
    made = rlds_cli.create("local/made", [{**e, "observation": e["observation"] + 1}], home=tmp_path)
    assert not made.sources
    again = rlds_cli.create("local/again", [{**e, "observation": e["observation"] + 2}], home=tmp_path)
    both = rlds_cli.merge(["local/made", again.select(episodes=[0])], "local/values", home=tmp_path)
    assert not both.sources and verify("local/values", home=tmp_path).ok
    with pytest.raises(RldsError, match="created from values"):
        both.source_of(0)


def test_a_writer_that_does_not_share_is_told_of_before_anything_is_read(tmp_path, files):
    rlds_cli.append("local/all", files / "a.hdf5", home=tmp_path)
    with rlds_cli.writer("local/all", home=tmp_path), pytest.raises(NameTaken, match="does not share it"):
        appending.plan_append("local/all", files / "b.hdf5", home=tmp_path)
    with rlds_cli.writer("local/all", shared=True, home=tmp_path):
        assert rlds_cli.append("local/all", files / "b.hdf5", home=tmp_path).episodes == 3


@pytest.mark.thorough
def test_pieces_of_long_episodes_and_compressed_members_are_merged(tmp_path, members, files, monkeypatch):
    write(files / "small.hdf5", [2, 1], 40)
    rlds_cli.make.importing.import_files(files / "small.hdf5", "local/small", storage="zarr", home=tmp_path)
    want = rlds_cli.merge([*members, "local/small"], "local/all", home=tmp_path)
    assert firsts(want) == [*A, *B, [40, 41], [42]]
    monkeypatch.setattr(merging, "_CHUNK_BYTES", 60)  # three rows
    monkeypatch.setattr(merging, "_PART_ROWS", 5)
    ds = rlds_cli.merge([*members, "local/small"], "local/pieces", home=tmp_path)
    assert ds.fingerprint == want.fingerprint
    assert ds.episodes["total_reward"].tolist() == [3, 25, 406, 209, 651, 81, 42]


@pytest.mark.thorough
def test_encoded_frames_and_videos_are_merged_as_they_are(tmp_path):
    content = lerobot_archives.Content(lengths=(4, 6, 3), image=("front",), video=("top",))
    lerobot_archives.write_v3(tmp_path / "robot", content)
    one = rlds_cli.make.importing.import_files(tmp_path / "robot", "local/one", home=tmp_path)
    parts = [one.select(episodes=[1]), one.select(episodes=[2, 0])]
    ds = rlds_cli.merge(parts, "local/both", column="from", home=tmp_path)
    assert {f.codec for f in ds.schema.values()} == {f.codec for f in one.schema.values()}
    for k, number in enumerate([1, 2, 0]):
        for name in one.schema:
            assert np.array_equal(ds.episode(k)[name], one.episode(number)[name]), name
    assert verify("local/both", home=tmp_path).ok


def test_the_second_day_is_read_as_the_first_one(tmp_path):
    for day in (1, 2, 3):
        key = "cmd" if day < 3 else "command"
        columns = {"q": np.arange(4.0) * day, key: np.ones(4), "gain": np.full(4, day), "run": [1, 1, 2, 2]}
        own_files.write(tmp_path / f"day{day}.parquet", columns)
    how = {"fields": {"observation": "q", "action": "cmd", "reward": "gain"}, "episodes_by": "field:run"}
    about = {"fps": 20, "license": "CC-BY-4.0", "description": "A robot presses."}
    rlds_cli.append("local/all", tmp_path / "day1.parquet", home=tmp_path, **how, **about)
    assert rlds_cli.append("local/all", tmp_path / "day2.parquet", home=tmp_path, fps=20.0).episodes == 2
    with pytest.raises(UnknownLayout, match='no "cmd"') as e:
        rlds_cli.append("local/all", tmp_path / "day3.parquet", home=tmp_path)
    assert "first append" in str(e.value.hint)
    rlds_cli.append("local/all", tmp_path / "day3.parquet", home=tmp_path, fields={"action": "command"})
    ds = rlds_cli.open_dataset("local/all", home=tmp_path)
    assert firsts_flat(ds) == [[0, 1], [2, 3], [0, 2], [4, 6], [0, 3], [6, 9]]
    assert ds.manifest.env["fps"] == 20 and ds.manifest.facts["licence"] == "CC-BY-4.0"
    assert ds.manifest.facts["description"] == "A robot presses." and trace(ds, 20).ok
    with pytest.raises(InvalidArgument, match="fps of local/all cannot become 10"):
        rlds_cli.append("local/all", tmp_path / "day1.parquet", home=tmp_path, fps=10, again=True)
    assert ds.num_episodes == rlds_cli.open_dataset("local/all", home=tmp_path).num_episodes


def firsts_flat(ds) -> list[list[float]]:
    return [np.ravel(ds.episode(k)["observation"]).tolist() for k in range(ds.num_episodes)]


@pytest.mark.thorough
def test_commands_import_and_append_take_what_a_dataset_is(tmp_path, files, monkeypatch):
    monkeypatch.chdir(tmp_path)
    about = ["--set", "fps=12.5", "--set", "license=MIT", "--set", "description=Two runs."]
    for command in (["import", "files/a.hdf5", "--name", "local/i"], ["append", "local/a", "files/a.hdf5"]):
        result = CliRunner().invoke(app, [*command, *about])
        assert result.exit_code == 0, result.output
        ds = rlds_cli.open_dataset(f"local/{command[0][0]}")
        assert ds.manifest.env["fps"] == 12.5
        assert (ds.manifest.facts["licence"], ds.manifest.facts["description"]) == ("MIT", "Two runs.")
        for fact in ("fps=-3", "rate=3"):
            wrong = CliRunner().invoke(app, [*command, "--set", fact, "--dry-run"])
            assert wrong.exit_code and isinstance(wrong.exception, InvalidArgument)


def test_an_append_says_what_is_left_out_and_a_second_one_of_the_same_directory_has_nothing_to_append(tmp_path, files):
    (files / "README.md").write_text("press")
    (files / "a.hdf5").unlink()
    (files / "b.hdf5").unlink()
    np.savez(files / "ep_0.npz", obs=np.zeros((4, 2)), action=np.ones((4, 1)))
    np.savez(files / "ep_1.npz", obs=np.zeros((3, 2)), action=np.ones((3, 1)))
    (files / "rig.yaml").write_text("rate: 10")
    done = rlds_cli.append("local/all", files)
    said = " ".join(n["text"] for n in done.notes)
    assert done.episodes == 2 and "README.md" in said and "rig.yaml" in said
    printed = CliRunner().invoke(app, ["append", "local/more", str(files)]).output
    assert "README.md" in printed and "rig.yaml" in printed
    again = rlds_cli.append("local/all", files)
    assert (again.version, again.files) == (done.version, ()) and len(again.skipped) == 2
