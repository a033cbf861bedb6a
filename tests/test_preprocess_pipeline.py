"""Several functions as one: the same as one after the other, with one result, one name and one key."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import preprocess_functions as functions
import pytest

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.dataset.batch import Batch
from rlds_cli.errors import NameTaken, PreprocessError

LENGTHS = [5, 8, 3, 9, 10, 1, 6, 12, 4]


def episodes(lengths=LENGTHS):
    rng = np.random.default_rng(0)
    for i, t in enumerate(lengths):
        yield {
            "observation": rng.standard_normal((t + 1, 3)).astype(np.float32),
            "action": rng.standard_normal((t, 2)).astype(np.float32),
            "next": {"reward": rng.standard_normal(t), "terminated": i % 2 == 0},
            "info": {"number": np.full(t, i), "word": [f"w{i}"] * t},
        }


@pytest.fixture
def truth():
    return list(episodes())


@pytest.fixture
def ds(truth):
    return rlds_cli.create("local/ds", truth)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr("rlds_cli.preprocess.job.PART_ROWS", 20)


LONG = [functions.long_ones, functions.standardise, functions.smooth, functions.twice]


@pytest.mark.slow
def test_each_works_on_what_the_one_before_made_in_its_own_unit(ds, truth, home):
    """Drop short episodes; scale observations by those left; look at neighbours; go step by step."""
    made = [preprocess.run(ds, LONG, f"by{n}", jobs=n, args={"at_least": 6}) for n in (0, 1, 2)]
    assert len({m.fingerprint for m in made}) == 1
    kept = [e for e in truth if len(e["action"]) >= 6]
    x = np.concatenate([e["observation"][:-1] for e in kept]).astype(np.float64)
    assert made[2].episodes["row"].tolist() == [k for k, t in enumerate(LENGTHS) if t >= 6]
    for k, e in enumerate(kept):
        got, t = made[2].episode(k), len(e["action"])
        assert np.allclose(got["observation"], ((e["observation"] - x.mean(0)) / x.std(0))[:-1])
        assert np.allclose(got["smooth"], [e["action"][max(0, i - 2) : i + 2].mean(0) for i in range(t)], rtol=1e-5)
        assert np.array_equal(got["action"], e["action"] * 2)
        assert got["info"]["word"].tolist() == e["info"]["word"]
    assert list((home / "partial").iterdir()) == []
    assert made[0].manifest.shared == {}


def test_it_is_the_same_as_one_after_the_other(ds):
    at_once = preprocess.run(ds, LONG[:3], args=[{"at_least": 6}, {}, {}])
    step = preprocess.run(ds, functions.long_ones, args={"at_least": 6})
    for f in LONG[1:3]:
        step = preprocess.run(step, f, f"{f.__name__}-alone")
    assert at_once.id == "local/ds@long_ones-standardise-smooth"
    assert at_once.fingerprint == step.fingerprint
    assert preprocess.state(at_once)["count"] == preprocess.state(step)["count"] == 6 + 8 + 9 + 10 + 12


def test_what_none_of_them_changes_is_the_sources_own(ds):
    made = preprocess.run(ds, [functions.smooth, functions.twice])
    assert set(made.manifest.shared) == set(ds.schema) - {"action"}
    assert (made.path / "observation/c/0/0").samefile(ds.path / "observation/c/0/0")
    assert (made.path / "smooth/c/0/0").stat().st_nlink == 1  # what lay between is gone


def test_the_manifest_tells_all_of_it(ds):
    made = preprocess.run(ds, [functions.halves, functions.twice], "both")
    first, second = made.manifest.provenance
    assert (first["id"], first["from"], first["function"]) == ("local/ds@both.1", "local/ds", "halves")
    assert (second["id"], second["from"], second["function"]) == ("local/ds@both", "local/ds@both.1", "twice")
    assert "pipeline" not in first
    assert [f["function"] for f in second["pipeline"]["functions"]] == ["halves", "twice"]
    assert second["pipeline"]["source"] == ds.fingerprint


def test_running_again_returns_at_once_and_another_key_says_what_differs(ds):
    made = preprocess.run(ds, [functions.halves, functions.twice], "both")
    said = []
    again = preprocess.run(ds, ["preprocess_functions:halves", functions.twice], "both", progress=said.append)
    assert again.manifest.created == made.manifest.created and "already exists" in said[0].note
    for fns, how, what in (
        ([functions.halves, functions.smooth], {}, "function 2: fn was twice, is smooth; unit was step, is window"),
        ([functions.halves] * 3, {}, "by 2 functions; these are 3"),
        (
            [functions.halves, functions.twice],
            {"args": {"2.factor": 3}},
            r'function 2: args was \{\}, is \{"factor": 3',
        ),
        ([functions.halves, functions.twice], {"fields": ["action"]}, r'differently: fields was null, is \["action"\]'),
        (functions.twice, {}, "by 2 functions one after the other"),
    ):
        with pytest.raises(NameTaken, match=what):
            preprocess.run(ds, fns, "both", **how)
    single = preprocess.run(ds, functions.twice)
    with pytest.raises(NameTaken, match="by 1 function; these are 2"):
        preprocess.run(ds, [functions.halves, functions.twice], "twice")
    forced = preprocess.run(ds, [functions.halves, functions.twice], "twice", force=True)
    assert forced.fingerprint == made.fingerprint != single.fingerprint


def test_arguments_go_to_those_that_take_them(ds, truth):
    made = preprocess.run(ds, [functions.twice, functions.twice], "both", args={"1.factor": 3, "2.factor": 5})
    assert np.array_equal(made.episode(0)["action"], truth[0]["action"] * 3 * 5)
    made = preprocess.run(ds, [functions.twice, functions.twice], "all", args={"factor": 3})
    assert np.array_equal(made.episode(0)["action"], truth[0]["action"] * 3 * 3)
    made = preprocess.run(ds, [functions.twice, functions.same], "named", args={"twice.factor": 3})
    assert np.array_equal(made.episode(0)["action"], truth[0]["action"] * 3)
    with pytest.raises(PreprocessError, match=r"No function takes the argument eps: 1. twice, 2. same"):
        preprocess.run(ds, [functions.twice, functions.same], "x", args={"eps": 3})
    with pytest.raises(PreprocessError, match="2 functions and 1 mappings of arguments"):
        preprocess.run(ds, [functions.twice, functions.same], "x", args=[{}])


def test_units_and_arrays_for_each(ds, truth):
    seen = []

    def look(data, mark):
        seen.append((mark, isinstance(data, Batch), type(data["action"]).__name__, tuple(data["action"].shape)[1:]))
        return data

    preprocess.run(
        ds, [look, look, functions.obs_norm], "kinds", unit=["batch", "step", "episode"],
        arrays=["torch", "numpy", "tensordict"], args=[{"mark": 1}, {"mark": 2}, {}],
    )  # fmt: skip
    assert set(seen) == {(1, True, "Tensor", (2,)), (2, True, "ndarray", ())}
    with pytest.raises(PreprocessError, match="3 functions and 2 of unit"):
        preprocess.run(ds, [look] * 3, "x", unit=["batch", "step"])
    with pytest.raises(PreprocessError, match="for unit window, which no function has"):
        preprocess.run(ds, [functions.same] * 2, "x", history=3)
    with pytest.raises(PreprocessError, match="The list of functions is empty"):
        preprocess.run(ds, [], "x")


def test_only_the_fields_asked_for_are_read_and_those_that_are_new(ds):
    seen = []

    def look(e):
        seen.append(sorted(e.names()))
        return e

    made = preprocess.run(ds, [functions.smooth, look], fields=["action"])
    assert seen[-1] == ["action", "next/terminated", "next/truncated", "smooth"]
    assert set(made.schema) == {*ds.schema, "smooth"} and "observation" in made.manifest.shared


def test_built_in_functions_know_what_they_work_on(ds, truth):
    made = preprocess.run(ds, ["select_episodes", "normalise"], "both", args={"where": "length >= 6"})
    x = np.concatenate([e["observation"][:-1] for e in truth if len(e["action"]) >= 6]).astype(np.float64)
    got = np.concatenate([made.episode(k)["observation"] for k in range(made.num_episodes)])
    assert np.allclose(got, (x - x.mean(0)) / (x.std(0) + 1e-3), atol=1e-5)


# -- failures


@pytest.mark.slow
def test_a_failure_names_function_and_episode_of_the_source_and_its_command(ds):
    fns = ["preprocess_functions:halves", "preprocess_functions:fails"]
    with pytest.raises(PreprocessError) as e:
        preprocess.run(ds, fns, "x")
    assert e.value.message.startswith("Function 2 of 2: preprocess_functions:fails raised KeyError: 'no such sensor'")
    assert "on episode 8 (5 steps)" in e.value.message
    assert "Its episode 8 was made from episode 4 of local/ds." in e.value.message
    assert e.value.hint == (
        "rlds preprocess local/ds --fn preprocess_functions:halves --unit episode --arrays numpy "
        "--fn preprocess_functions:fails --unit episode --arrays numpy --episode 4 -j 0"
    )
    assert e.value.episode == 4
    with pytest.raises(PreprocessError, match=r"Function 2 of 2: .* KeyError.* was made from episode 4 of local/ds"):
        preprocess.attempt(ds, fns, episode=4)
    assert preprocess.attempt(ds, fns, episode=3).returned == (4, 5)
    with pytest.raises(PreprocessError, match=r"Function 1 of 2: .*KeyError") as e:
        preprocess.run(ds, fns[::-1], "x")
    assert e.value.episode == 4 and e.value.hint.endswith("--fn preprocess_functions:fails --episode 4 -j 0")


def test_episodes_that_fail_are_left_out_by_any_of_them(ds):
    def fails_at(e, bad=0):
        if e["info"]["number"][0] == bad:
            raise ValueError(bad)
        return e

    fns = [functions.halves, fails_at, functions.same, fails_at]
    made = preprocess.run(ds, fns, "some", keep_going=True, args={"2.bad": 3, "4.bad": 7})
    numbers = [int(made.episode(k)["info"]["number"][0]) for k in range(made.num_episodes)]
    found = [json.loads(line) for line in (made.path / "errors.jsonl").read_text().splitlines()]
    assert [(f["id"], f["episode"], f["message"].partition(" raised ")[2][:13]) for f in found] == [
        ("local/ds", 3, "ValueError: 3"), ("local/ds", 3, "ValueError: 3"),
        ("local/ds", 7, "ValueError: 7"), ("local/ds", 7, "ValueError: 7"),
    ]  # fmt: skip
    notes = {n["code"]: n["count"] for n in made.manifest.notes}
    assert notes == {"empty-episodes": 1, "failed-episodes": 4}
    assert numbers == [0, 0, 1, 1, 2, 2, 4, 4, 5, 6, 6, 8, 8]  # of one step is one half


# -- trying


def test_attempt_shows_one_episode_through_all_of_them(ds, truth, home):
    before = sorted(home.rglob("*"))
    r = preprocess.attempt(ds, [functions.smooth, functions.twice], episode=3)
    assert sorted(home.rglob("*")) == before
    assert (r.function, r.unit, r.id) == ("smooth | twice", "window | step", "local/ds@smooth-twice")
    assert (r.episode, r.length, r.returned, r.linked) == (3, 9, (9,), True)
    by_name = {c.name: c for c in r.fields}
    assert by_name["action"].what == "changed" and by_name["action"].bytes == 8 * ds.num_rows
    assert by_name["action"].after.mean == pytest.approx(2 * truth[3]["action"].mean(), rel=1e-5)
    assert by_name["smooth"].what == "new" and by_name["observation"].what == "untouched"
    assert preprocess.attempt(ds, [functions.long_ones, functions.twice], episode=2).returned == ()
    with pytest.raises(PreprocessError, match="several functions are tried on a whole episode"):
        preprocess.attempt(ds, [functions.twice] * 2, episode=2, step=1)


# -- gone on with

_RUN = """
import sys
from rlds_cli import preprocess
from rlds_cli.preprocess import job
import preprocess_functions as f

if __name__ == "__main__":
    job.PART_ROWS = 20
    preprocess.run("local/ds", [f.halves, f.waits, f.smooth, f.waits], "killed", jobs=int(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [0, 2])
def test_a_pipeline_that_is_killed_goes_on_at_its_function(ds, home, tmp_path, monkeypatch, jobs):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    script = tmp_path / "run.py"
    script.write_text(_RUN)
    fns = [functions.halves, functions.waits, functions.smooth, functions.waits]
    undisturbed = preprocess.run(ds, fns, "undisturbed")
    for number in (2, 4):  # the functions that take their time
        monkeypatch.setenv("WAIT", "0.2")
        process = subprocess.Popen([sys.executable, str(script), str(jobs)], start_new_session=True)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            journals = list(home.glob(f"partial/local+ds@killed.*/{number}/rows/journal.jsonl"))
            if journals and journals[0].read_text().count("\n") > 2:
                break
            time.sleep(0.01)
        assert process.poll() is None
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert not (home / "datasets/local/ds@killed").exists()
    work = next(home.glob("partial/local+ds@killed.*"))
    assert sorted(p.parents[1].name for p in work.glob("*/dataset/zarr.json")) == ["3"]
    monkeypatch.delenv("WAIT")
    said = []
    made = preprocess.run(ds, fns, "killed", jobs=jobs, progress=said.append)
    assert {e.id for e in said} == {"local/ds@killed"} and any("resumed" in e.note for e in said)
    assert made.fingerprint == undisturbed.fingerprint
    assert list((home / "partial").iterdir()) == []


def test_unfinished_work_of_a_name_with_a_dot_is_not_anothers(ds, home):
    def fails(e):
        if e["info"]["number"][0] == 8:
            raise ValueError
        return e

    def fails_late(e):
        return fails(e)

    with pytest.raises(PreprocessError):
        preprocess.run(ds.select(episodes=[0, 1, 2, 4, 3, 8, 5]), fails_late, "made.v2")
    assert len(list((home / "partial").iterdir())) == 1
    preprocess.run(ds, functions.same, "made")
    assert len(list((home / "partial").iterdir())) == 1
