"""Lock files: the same content in another home, or a failure that says what differs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import preprocess_functions as functions
import pytest
from made_once import sample_dataset

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.errors import DatasetNotFound, RldsError, WrongFingerprint, WrongHash
from rlds_cli.keep import pinning
from rlds_cli.make.importing import import_files

SAMPLES = Path(rlds_cli.__file__).parent / "samples"


@pytest.fixture
def elsewhere(tmp_path):
    return tmp_path / "elsewhere"


def locked(tmp_path, *refs):
    file = tmp_path / "rlds.lock"
    file.write_text(pinning.lock(refs))
    return file


@pytest.mark.thorough
def test_what_was_downloaded_and_made_is_so_elsewhere(tmp_path, elsewhere):
    ds = sample_dataset("pendulum-d4rl")
    one = preprocess.run(ds, functions.normalise)
    two = preprocess.run(one, "preprocess_functions:normalise_step", "two", unit="step")
    last = preprocess.run(two, preprocess.return_to_go, "last", args={"gamma": 0.5})
    wide = preprocess.run(ds, "preprocess_functions:smooth", "w", unit="window", history=3, future=1)
    file = locked(tmp_path, last.id, wide.id)
    own = [f"preprocess_functions:{name}" for name in ("normalise", "normalise_step", "smooth")]
    assert [w.reference for w in pinning.functions(file, home=elsewhere)] == own
    done = pinning.sync(file, allow_code=own, home=elsewhere)
    assert [d.how for d in done] == ["downloaded", "made", "made", "made", "made"]
    for d in done:
        assert d.path.is_relative_to(elsewhere)
        assert rlds_cli.open_dataset(d.id, home=elsewhere).fingerprint == rlds_cli.open_dataset(d.id).fingerprint
    assert {d.how for d in pinning.sync(file, home=elsewhere)} == {"here"}


def test_other_content_is_named_and_stays(tmp_path, elsewhere):
    rng = np.random.default_rng(0)
    episode = {"observation": rng.normal(size=(5, 2)), "action": np.zeros((4, 1)), "next": {"truncated": True}}
    sample_dataset("pendulum-d4rl")
    file = locked(tmp_path, "sample/pendulum-d4rl")
    other = rlds_cli.create("sample/pendulum-d4rl", [episode], home=elsewhere)
    with pytest.raises(WrongFingerprint) as e:
        pinning.sync(file, home=elsewhere)
    for words in ("pendulum-d4rl.hdf5 is not of its archive", "other values in", "without info/action_log_probs"):
        assert words in e.value.message
    assert rlds_cli.open_dataset("sample/pendulum-d4rl", home=elsewhere).fingerprint == other.fingerprint
    assert pinning.sync(file, home=elsewhere, force=True)[0].how == "downloaded"


def test_what_would_be_made_otherwise_leaves_what_is_there(tmp_path, elsewhere):
    sample_dataset("pendulum-d4rl")
    preprocess.run("sample/pendulum-d4rl", "scale_reward", "x", args={"scale": 2})
    file = locked(tmp_path, "sample/pendulum-d4rl@x")
    content = json.loads(file.read_text())
    content["datasets"][1]["fingerprint"] = "rlds1:" + "0" * 64
    file.write_text(json.dumps(content))
    rlds_cli.download("sample/pendulum-d4rl", home=elsewhere)
    old = preprocess.run("sample/pendulum-d4rl", "scale_reward", "x", args={"scale": 3}, home=elsewhere)
    for _ in range(2):  # what was made for nothing does not stand in the way
        with pytest.raises(WrongFingerprint, match="would be"):
            pinning.sync(file, force=True, home=elsewhere)
        assert rlds_cli.open_dataset(old.id, home=elsewhere).fingerprint == old.fingerprint
    assert not [p for p in (elsewhere / "partial").iterdir() if p.is_dir()]


@pytest.mark.thorough
def test_an_archive_that_is_another_now_is_refused(tmp_path, elsewhere):
    sample_dataset("pendulum-d4rl")
    file = locked(tmp_path, "sample/pendulum-d4rl")
    content = json.loads(file.read_text())
    content["datasets"][0]["files"][0]["sha256"] = "0" * 64
    file.write_text(json.dumps(content))
    with pytest.raises(WrongHash):
        pinning.sync(file, home=elsewhere)
    assert not (elsewhere / "datasets").exists()


@pytest.mark.thorough
def test_a_function_that_is_another_now_is_named(tmp_path, elsewhere, monkeypatch):
    module = tmp_path / "prep.py"
    module.write_text("def f(episode):\n    episode['action'] += 1\n    return episode\n")
    monkeypatch.chdir(tmp_path)
    sample_dataset("pendulum-d4rl")
    preprocess.run("sample/pendulum-d4rl", "prep.py:f")
    file = locked(tmp_path, "sample/pendulum-d4rl@f")
    module.write_text("def f(episode):\n    episode['action'] += 2\n    return episode\n")
    with pytest.raises(WrongFingerprint, match=r"prep.py:f has changed: prep.py has sha256 .*, the lock says"):
        pinning.sync(file, allow_code=["prep.py:f"], home=elsewhere)
    assert not elsewhere.exists()


def test_an_import_must_be_brought(tmp_path, elsewhere):
    source = tmp_path / "mine.hdf5"
    source.write_bytes((SAMPLES / "pendulum-d4rl.hdf5").read_bytes())
    import_files(source, "local/mine")
    file = locked(tmp_path, "local/mine")
    with pytest.raises(DatasetNotFound, match=r"was made of mine\.hdf5") as e:
        pinning.sync(file, home=elsewhere)
    assert e.value.hint.startswith("rlds import PATH --name local/mine")
    with h5py.File(source, "r+") as f:
        f["actions"][0] += 1
    import_files(source, "local/mine", home=elsewhere)
    with pytest.raises(WrongFingerprint, match=r"mine\.hdf5 of its archive has sha256 .*; other values in action\."):
        pinning.sync(file, home=elsewhere)


@pytest.mark.thorough
@pytest.mark.parametrize("text", ["", "[]", "{}", '{"rlds_lock": 1, "datasets": [{"id": 3}]}', '{"rlds_lock": 9}'])
def test_what_is_no_lock_file(tmp_path, text):
    (tmp_path / "rlds.lock").write_text(text)
    with pytest.raises(RldsError, match=r"is not a lock file|later rlds"):
        pinning.read(tmp_path / "rlds.lock")


@pytest.mark.thorough
def test_the_commands(tmp_path, elsewhere):
    sample_dataset("pendulum-d4rl")

    def rlds(*words):
        code = "from rlds_cli.cli import main; main()"
        return subprocess.run(
            [sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, cwd=tmp_path, env=os.environ
        )

    (tmp_path / "rlds.lock").write_text(rlds("lock", "sample/pendulum-d4rl").stdout)
    done = rlds("sync", "--home", elsewhere)
    assert done.returncode == 0 and done.stdout.split()[:2] == ["sample/pendulum-d4rl", "downloaded"]
    assert rlds("sync", "nothing.lock").returncode == 1
