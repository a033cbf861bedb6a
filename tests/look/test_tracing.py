"""Steps followed back to the archive: the places are those where the values stand, and damage is seen."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from d4rl_files import flags, ramp, write
from made_once import sample_dataset

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.errors import RldsError
from rlds_cli.look.report.tracing import trace
from rlds_cli.make.importing import import_files

SAMPLES = Path(rlds_cli.__file__).parent / "samples"
DATA = Path(__file__).parents[1] / "data"


@pytest.fixture
def pendulum():
    return sample_dataset("pendulum-d4rl")


def damage(ds, field, row, value):
    """Write one element of a column, behind the back of everything."""
    about = json.loads((ds.path / field / "zarr.json").read_text())
    file = ds.path / field / "c" / "/".join("0" * len(about["shape"]))
    file.chmod(0o644)
    rows = np.memmap(file, about["data_type"], "r+", shape=tuple(about["shape"]))
    rows[row] = value
    rows.flush()


@pytest.mark.thorough
def test_the_source_of_a_transition_is_where_its_values_stand(pendulum):
    with h5py.File(SAMPLES / "pendulum-d4rl.hdf5") as f:
        for index in (0, 199, 200, 4321, -1):
            at = pendulum.source_of(index)
            assert (at.file, at.group) == ("pendulum-d4rl.hdf5", "")
            assert at.row == index % len(pendulum) and at.episode == at.row // 200 and at.step == at.row % 200
            got = pendulum[index]
            assert np.array_equal(got["observation"], f["observations"][at.row])
            assert np.array_equal(got["next", "observation"], f["next_observations"][at.row])
            assert got["next", "reward"] == f["rewards"][at.row]
    with pytest.raises(IndexError, match="no number 5,100 of the 5,100 transitions"):
        pendulum.source_of(5100)


@pytest.mark.thorough
def test_the_source_of_a_selection_is_that_of_its_own_transitions():
    cartpole = sample_dataset("cartpole-minari")
    some = cartpole.select(episodes=[7, 2])
    at = some.source_of(3)
    assert (at.group, at.row, at.episode, at.step) == ("episode_7", 3, 7, 3)
    at = some.source_of(-1)
    assert (at.group, at.step) == ("episode_2", cartpole.episodes["length"][2] - 1)
    with h5py.File(SAMPLES / "cartpole-minari/data/main_data.hdf5") as f:
        assert np.array_equal(some[-1]["observation"], f["episode_2/observations"][at.row])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["cartpole-minari", "pendulum-d4rl", "mountaincar-robohive"])
def test_every_sample_is_as_in_its_archive_and_one_wrong_element_is_seen(name):
    ds = sample_dataset(name)
    found = trace(ds, 60)
    assert found.ok and 40 < found.steps <= 60
    assert {"observation", "action", "next/reward", "next/terminated"} <= set(found.fields)
    damage(ds, "observation", (ds.episodes["start"], 0), 77.0)
    wrong = trace(f"sample/{name}", 60).differences
    assert len(wrong) > 3 and {(d.step, d.field) for d in wrong} == {(0, "observation")}
    assert "7" in wrong[0].stored and "[" in wrong[0].key


@pytest.mark.thorough
def test_one_wrong_element_is_seen_by_the_steps_that_share_it(home):
    rng = np.random.default_rng(0)
    write(home.parent / "x.hdf5", observations=rng.normal(size=(30, 2)), actions=ramp(30, 1), terminals=flags(30, 9))
    ds = import_files(home.parent / "x.hdf5", "local/x")
    assert trace(ds, 10**6).steps == 30
    damage(ds, "observation", (int(ds.episodes["start"][1]) + 5, 0), 77.0)
    wrong = trace("local/x", 10**6).differences
    assert {(d.episode, d.step, d.field) for d in wrong} == {(1, 5, "observation"), (1, 4, "next/observation")}


@pytest.mark.thorough
def test_half_of_the_steps_are_at_the_ends_of_episodes(pendulum):
    damage(pendulum, "next/reward", [int(s) + 199 for s in pendulum.episodes["start"][:25]], 1.0)
    assert len(trace(pendulum, 60).differences) >= 8  # of 25 last steps among 5,100


def test_an_archive_that_has_moved_is_named_and_can_be_shown(tmp_path):
    file = tmp_path / "runs" / "mine.hdf5"
    file.parent.mkdir()
    rewards, ends = np.arange(50, dtype=np.float32), flags(50, 9, 49)
    write(file, observations=ramp(50), actions=ramp(50, 1), rewards=rewards, terminals=ends)
    import_files(file, "local/mine")
    assert trace("local/mine").ok
    moved = shutil.move(file, tmp_path / "elsewhere.hdf5")
    with pytest.raises(RldsError, match=r"mine\.hdf5 of the archive of local/mine is not here") as e:
        trace("local/mine")
    assert "--archive DIR" in e.value.hint
    assert trace("local/mine", archive=moved).ok
    with h5py.File(moved, "r+") as f:
        f["rewards"][7] += 1
    with pytest.raises(RldsError, match="is not the file that local/mine was made of"):
        trace("local/mine", archive=moved)


@pytest.mark.slow
def test_what_functions_left_alone_is_followed_and_what_they_moved_is_not(pendulum):
    def shift(episode):
        episode["next"]["reward"] += 1
        return episode

    made = preprocess.run(pendulum, shift)
    found = trace(made, 40)
    assert found.ok and "next/reward" in found.others and "observation" in found.fields
    assert made.source_of(4321).row == 4321

    cut = preprocess.run(pendulum, lambda e: e.map(lambda x: x[10:]), "tail")
    assert cut.source_of(0).row is None
    with pytest.raises(RldsError, match="they cannot be traced") as e:
        trace(cut)
    assert e.value.hint == "rlds verify sample/pendulum-d4rl --trace 100"


def test_texts_and_flags_that_are_nan_are_as_in_the_archive(tmp_path):
    with h5py.File(tmp_path / "a.hdf5", "w") as f:
        f["observations"], f["actions"] = np.arange(4.0), np.zeros(4)
        f["terminals"], f["infos/said"] = [0, np.nan, 0, 1], ["é", "b", "", "d"]
    found = trace(import_files(tmp_path / "a.hdf5", "local/said", home=tmp_path))
    assert found.ok and {"info/said", "next/terminated"} <= {*found.fields}


def test_the_flag_of_an_end_without_one_does_not_stand_in_the_archive(tmp_path):
    with h5py.File(tmp_path / "main_data.hdf5", "w") as f:
        f["episode_0/observations"], f["episode_0/actions"] = np.arange(4.0), np.zeros(3)
        f["episode_0/rewards"] = np.zeros(3)
        f["episode_0/terminations"], f["episode_0/truncations"] = np.zeros(3, bool), np.zeros(3, bool)
    ds = import_files(tmp_path / "main_data.hdf5", "local/open", home=tmp_path)
    assert ds.episodes["end"].tolist() == ["cut"]
    assert trace(ds).ok


def test_values_given_in_python_have_no_archive():
    episode = {"observation": np.zeros((3, 1)), "action": np.zeros((2, 1)), "next": {"truncated": True}}
    ds = rlds_cli.create("local/made", [episode])
    for call in (lambda: trace(ds), lambda: ds.source_of(0)):
        with pytest.raises(RldsError, match="it was created from values in Python"):
            call()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("format", ["hdf5", "arrow", "parquet"])
@pytest.mark.parametrize("name", ["hopper/random", "pointmaze/umaze", "taxi/random", "breakout/random"])
def test_minari_in_every_format(name, format):
    import_files(DATA / "minari" / f"{name}_{format}-v0", "local/x", force=True)
    assert trace("local/x", 20).ok


@pytest.mark.slow
def test_the_command_shows_places_and_fails_where_values_differ(pendulum, home):
    def rlds(*words):
        code = "from rlds_cli.cli import main; main()"
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, env=os.environ)
        return done.returncode, done.stdout

    code, text = rlds("verify", "sample/pendulum-d4rl", "--trace", "50")
    assert code == 0 and " as in the archive" in text and "observation = observations[" in text
    damage(pendulum, "action", (slice(None), 0), 9.0)
    code, text = rlds("verify", "sample/pendulum-d4rl", "--trace", "50", "--json")
    assert code == 1 and json.loads(text)[0]["differences"][0]["field"] == "action"
