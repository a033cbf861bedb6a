"""Files that a function reads are part of what identifies its result: by their content, not by their names alone."""

import functools
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from made_once import sample_dataset

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.errors import NameTaken, PreprocessError


@pytest.fixture
def ds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("model.npy", np.array(2.0))
    return rlds_cli.create("local/ds", [{"observation": np.zeros((4, 2)), "action": np.ones((3, 1))}])


def scaled(episode, model="model.npy", more=None):
    episode["action"] = episode["action"] * np.load(model)
    return episode


def sha(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "args", [{"model": "model.npy"}, {"model": Path("model.npy")}, {"more": {"all": ["x", "model.npy"]}}]
)
def test_a_model_saved_anew_under_its_name_is_another_job(ds, args):
    made = preprocess.run(ds, scaled, args=args, jobs=0)
    assert made.manifest.provenance[-1]["depends"] == {"model.npy": sha("model.npy")}
    assert made.episode(0)["action"].ravel().tolist() == [2, 2, 2]
    np.save("model.npy", np.array(3.0))
    with pytest.raises(NameTaken, match=r"files that it reads was model.npy \(\w+\), is model.npy \(\w+\)"):
        preprocess.run(ds, scaled, args=args, jobs=0)
    made = preprocess.run(ds, scaled, args=args, jobs=0, force=True)
    assert made.episode(0)["action"].ravel().tolist() == [3, 3, 3]


def test_files_that_a_partial_holds_and_directories_count(ds):
    Path("models").mkdir()
    np.save("models/a.npy", np.array(5.0))
    fn = functools.partial(scaled, model="models/a.npy", more=".")
    made = preprocess.run(ds, fn, "x", depends_on=["./models"], jobs=0)
    assert set(made.manifest.provenance[-1]["depends"]) == {"models/a.npy", "./models"}
    Path("models/b.npy").touch()
    with pytest.raises(NameTaken, match="files that it reads"):
        preprocess.run(ds, fn, "x", depends_on=["./models"], jobs=0)


def test_other_files_can_be_named(ds):
    preprocess.run(ds, scaled, "one", depends_on=["model.npy"], jobs=0)
    assert preprocess.run(ds, scaled, "one", depends_on=["model.npy"], jobs=0).num_steps == 3
    with pytest.raises(NameTaken, match=r"files that it reads was model\.npy"):
        preprocess.run(ds, scaled, "one", jobs=0)
    with pytest.raises(PreprocessError, match=r"There is no lost\.npy"):
        preprocess.run(ds, scaled, "x", depends_on=["lost.npy"])


@pytest.mark.thorough
def test_without_files_keys_are_as_they_were(ds):
    made = preprocess.run(ds, scaled, "x", args={"more": "no file"}, jobs=0)
    assert "depends" not in made.manifest.provenance[-1]


@pytest.mark.thorough
def test_names_of_fields_are_no_files(ds):
    Path("action").write_text("not the field")
    made = preprocess.run(ds, "cast", args={"fields": "action", "dtype": "float32"}, jobs=0)
    assert "depends" not in made.manifest.provenance[-1]


def test_a_lock_says_which_files_and_sync_refuses_others(ds):
    from rlds_cli.keep import pinning

    Path("prep.py").write_text("import numpy\ndef f(e, model):\n    e['action'] *= numpy.load(model)\n    return e\n")
    source = sample_dataset("pendulum-d4rl")
    preprocess.run(source, "prep.py:f", args={"model": "model.npy"}, jobs=0)
    Path("lock").write_text(pinning.lock(["sample/pendulum-d4rl@f"]))
    locked = json.loads(Path("lock").read_text())["datasets"][-1]
    assert locked["made_by"][0]["depends"] == {"model.npy": sha("model.npy")}
    before = sha("model.npy")
    np.save("model.npy", np.array(3.0))
    from rlds_cli.keep.removing import remove

    remove(["sample/pendulum-d4rl@f"])
    with pytest.raises(rlds_cli.errors.WrongFingerprint) as e:
        pinning.sync("lock", allow_code=["prep.py:f"])
    assert "model.npy" in e.value.message and before in e.value.message


@pytest.mark.sampled(2)
@pytest.mark.parametrize("made", ["lambda", "partial", "selection", "created"])
def test_what_no_other_machine_can_make_is_refused_or_marked(ds, made):
    from rlds_cli.keep import pinning
    from rlds_cli.keep.removing import remove

    source = sample_dataset("pendulum-d4rl")
    id, why = {
        "created": ("local/ds", "created from values in Python"),
        "lambda": ("sample/pendulum-d4rl@x", "its function <lambda> is in no module"),
        "selection": ("sample/pendulum-d4rl@x", "made of a selection of the episodes of sample/pendulum-d4rl"),
        "partial": ("sample/pendulum-d4rl@x", "with bound arguments"),
    }[made]
    if made == "lambda":
        preprocess.run(source, lambda e: e, "x", jobs=0)
    elif made == "selection":
        preprocess.run(source.select(episodes=[0, 1]), "scale_reward", "x", args={"scale": 2.0}, jobs=0)
    elif made == "partial":
        preprocess.run(source, functools.partial(scaled, model="model.npy"), "x", jobs=0)
    with pytest.raises(rlds_cli.errors.RldsError, match=why):
        pinning.lock([id])
    Path("lock").write_text(pinning.lock([id], allow_unreproducible=True))
    assert json.loads(Path("lock").read_text())["datasets"][-1]["reproducible"] is False
    assert pinning.sync("lock", allow_code=["prep.py:f"])[-1].how == "here"
    remove([id])
    with pytest.raises(rlds_cli.errors.DatasetNotFound, match=f"the lock says that it cannot be made again: .*{why}"):
        pinning.sync("lock", allow_code=["prep.py:f"])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fn", "args"),
    [
        ("scale_reward", {"scale": 2.0}),
        ("top_episodes", {"percent": 20}),
        ("select_episodes", {"where": "episode != 3"}),
    ],
)
def test_what_can_be_made_again_has_no_mark(fn, args):
    from rlds_cli.keep import pinning

    preprocess.run(sample_dataset("pendulum-d4rl"), fn, "x", args=args, jobs=0)
    for d in json.loads(pinning.lock(["sample/pendulum-d4rl@x"]))["datasets"]:
        assert "reproducible" not in d and "why" not in d
