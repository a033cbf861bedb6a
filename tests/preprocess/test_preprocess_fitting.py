"""Functions with a first pass: the state is that of a plain computation, however many work at it."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import preprocess_functions as functions
import pytest

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.errors import NameTaken, PreprocessError
from rlds_cli.preprocess import job

LENGTHS = [60 + i % 41 for i in range(60)]


def episodes():
    rng = np.random.default_rng(0)
    for i, t in enumerate(LENGTHS):
        yield {
            "observation": rng.standard_normal((t + 1, 3)).astype(np.float32),
            "action": rng.standard_normal((t, 2)).astype(np.float32) + 5,
            "next": {"reward": rng.standard_normal(t), "terminated": i % 2 == 0},
            "info": {"number": np.full(t, i)},
        }


@pytest.fixture(scope="module")
def truth():
    return list(episodes())


@pytest.fixture
def ds(truth):
    return rlds_cli.create("local/ds", truth)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr("rlds_cli.preprocess.job.PART_ROWS", 700)


def joined(truth, name, rows=slice(None)):
    return np.concatenate([e[name][rows] for e in truth])


@pytest.mark.slow
def test_statistics_of_the_steps_are_those_of_numpy_with_any_number_of_workers(ds, truth):
    made = [preprocess.run(ds, functions.standardise, f"by{n}", jobs=n) for n in (0, 1, 2)]
    assert len({m.fingerprint for m in made}) == 1
    assert len({json.dumps(m.manifest.provenance[-1]["state"]["sha256"]) for m in made}) == 1
    x = joined(truth, "observation", slice(-1)).astype(np.float64)
    state = preprocess.state(made[2])
    assert state["count"] == len(x) and np.allclose(state["mean"], x.mean(0)) and np.allclose(state["std"], x.std(0))
    for k in (0, 41):
        want = (truth[k]["observation"] - x.mean(0)) / x.std(0)
        assert np.allclose(made[2].episode(k)["observation"], want[:-1])
        assert np.allclose(made[2].episode(k)["next", "observation"], want[1:])


def chunks():
    """The chunk of every episode: batches of whole episodes, of at most 700 steps; a chunk ends behind 700 rows."""
    batches = [[0]]
    for k in range(1, len(LENGTHS)):
        if sum(LENGTHS[j] for j in batches[-1]) + LENGTHS[k] > 700:
            batches.append([])
        batches[-1].append(k)
    rows = np.cumsum([sum(LENGTHS[k] + 1 for k in batch) for batch in batches]) // 700
    return np.unique(np.repeat(rows, [len(batch) for batch in batches]), return_inverse=True)[1]


@pytest.mark.slow
def test_chunks_are_merged_in_their_order(ds):
    first = np.unique(chunks(), return_index=True)[1].tolist()
    assert preprocess.state(preprocess.run(ds, functions.standardise, jobs=2))["seen"] == first
    assert len(first) > 5


@pytest.mark.slow
def test_an_object_with_three_methods_is_a_function(ds, truth):
    made = preprocess.run(ds, "preprocess_functions:scale_returns", jobs=2, args={"factor": 10.0})
    returns = [e["next"]["reward"].sum() for e in truth]
    spread = max(returns) - min(returns)
    assert preprocess.state(made) == [pytest.approx(min(returns)), pytest.approx(max(returns))]
    assert np.allclose(made.episode(7)["next", "reward"][:, 0], truth[7]["next"]["reward"] * 10 / spread)
    assert np.ptp(made.episodes["total_reward"]) == pytest.approx(10)


@pytest.mark.thorough
def test_a_function_of_steps_is_fitted_to_many_and_arguments_go_where_they_are_taken(ds, truth):
    with pytest.raises(PreprocessError, match=r"centre raised ValueError.* on episode 0, step 0"):
        preprocess.run(ds, functions.centre, args={"field": "action"})  # a sum of three is not a mean of two
    a = joined(truth, "action").astype(np.float64)

    def centre(step, state, field):
        step[field] = step[field] - state[1:] / state[0]
        return step

    centre.fit, centre.merge = functions.centre.fit, functions.centre.merge
    made = preprocess.run(ds, centre, unit="step", args={"field": "action"})
    assert np.allclose(made.episode(3)["action"], truth[3]["action"] - a.mean(0), atol=1e-5)
    partly = preprocess.run(ds, partial(centre, field="action"), "partly", unit="step")
    assert np.array_equal(partly.column("action"), made.column("action"))


def test_a_fit_may_see_the_data_in_another_way(ds):
    seen = set()

    def fit(batch, state):
        seen.add((batch["action"].ndim, "mask" in batch))
        return len(batch["action"]) + (state or 0)

    def f(episode, state):
        seen.add(state)
        return episode

    f.fit, f.merge = preprocess.unit("window", history=1)(fit), lambda a, b: a + b
    preprocess.run(ds, f)
    assert seen == {(3, True), sum(LENGTHS)}


def test_the_state_stays_with_the_result_and_those_made_of_it(ds):
    one = preprocess.run(ds, functions.standardise)
    again = preprocess.run(one, functions.standardise, "again", args={"eps": 1e-3})
    last = preprocess.run(again, functions.same)
    assert last.manifest.metadata == ("state/standardise", "state/standardise-2")
    assert np.allclose(preprocess.state(last)["mean"], 0, atol=1e-6)
    assert preprocess.state(one)["mean"] == pytest.approx(preprocess.state(one, "standardise")["mean"])
    said = one.manifest.provenance[-1]["state"]
    assert said["value"]["count"] == sum(LENGTHS) and said["metadata"] == "state/standardise"
    with pytest.raises(PreprocessError, match="local/ds was not made by a function with a first pass"):
        preprocess.state(ds)
    with pytest.raises(ValueError, match="read-only"):
        preprocess.state(one)["mean"][0] = 0


@pytest.mark.thorough
def test_fit_and_merge_are_part_of_the_function(ds):
    def f(episode, state):
        return episode

    f.fit, f.merge = (lambda b, s: 1), (lambda a, b: a + b)
    preprocess.run(ds, f)
    f.fit = lambda b, s: 2
    with pytest.raises(NameTaken, match="fn source was"):
        preprocess.run(ds, f)


def test_attempt_is_fitted_on_the_chunk_of_the_episode(ds, truth, home):
    r = preprocess.attempt(ds, functions.standardise, episode=50)
    of = chunks()
    chunk = np.flatnonzero(of == of[50])
    x = np.concatenate([truth[k]["observation"][:-1] for k in chunk]).astype(np.float64)
    want = (truth[50]["observation"] - x.mean(0)) / x.std(0)
    assert r.fitted == f"chunk {of[50] + 1} of {of[-1] + 1}"
    assert next(c for c in r.fields if c.name == "observation").after.mean == pytest.approx(want.mean(), abs=1e-6)
    assert not list(home.glob("partial/*"))


# -- gone on with


_RUN = """
import sys
from rlds_cli import preprocess
from rlds_cli.preprocess import job
import preprocess_functions as f

if __name__ == "__main__":
    job.PART_ROWS = 700
    preprocess.run("local/ds", "prep.py:slowly", jobs=int(sys.argv[1]))
"""

_SLOWLY = """
import time
from pathlib import Path
from preprocess_functions import _fit, _merge

def slowly(episode, state):
    if Path("wait").exists():
        time.sleep(0.05)
    episode["observation"] = episode["observation"] - state["mean"]
    return episode

def fit(episode, state):
    with open("fitted", "a") as f:
        f.write("x")
    if Path("wait").exists():
        time.sleep(0.02)
    return _fit(episode, state)

slowly.fit, slowly.merge = fit, _merge
"""


@pytest.mark.parametrize("jobs", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_first_pass_that_is_killed_is_gone_on_with(ds, home, tmp_path, monkeypatch, jobs):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    Path("prep.py").write_text(_SLOWLY)
    Path("run.py").write_text(_RUN)
    undisturbed = preprocess.run(ds, "prep.py:slowly", "undisturbed")
    Path("wait").touch()
    Path("fitted").unlink()
    process = subprocess.Popen([sys.executable, "run.py", str(jobs)], start_new_session=True)
    deadline = time.monotonic() + 60
    journal = home / "partial"
    while time.monotonic() < deadline:
        lines = [p.read_text().count("\n") for p in journal.glob("local+ds@slowly.*/state.jsonl")]
        if lines and lines[0] >= 4:
            break
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert lines[0] >= 4  # the key, and three chunks
    Path("wait").unlink()
    Path("fitted").unlink()
    made = preprocess.run(ds, "prep.py:slowly", jobs=jobs)
    assert made.fingerprint == undisturbed.fingerprint
    assert made.manifest.provenance[-1]["state"] == undisturbed.manifest.provenance[-1]["state"]
    assert len(Path("fitted").read_text()) <= len(LENGTHS) - 3 * 7  # chunks of 7 episodes and more


@pytest.mark.thorough
def test_starting_anew_does_not_fit_again(ds):
    fitted = []

    def f(episode, state):
        if int(episode["info"]["number"][0]) == 17:
            return None
        return episode

    def fit(episode, state):
        fitted.append(int(episode["info"]["number"][0]))
        return len(fitted)

    f.fit, f.merge = fit, lambda a, b: b
    said = []
    made = preprocess.run(ds, f, jobs=0, progress=lambda e: said.append(e.note))
    assert "episode lengths change" in said and fitted == list(range(60)) and made.num_episodes == 59


# -- what a state is


def test_a_state_comes_back_as_it_was():
    given = {
        "n": 3, "x": [1.5, None, True, "text", float("inf")], "none": None,
        "a": np.array([[0.1, np.nan], [-0.0, 1e-45]], np.float32), "i": np.arange(3, dtype=np.uint64) + 2**63,
        "empty": np.zeros((0, 4)), "one": np.float32(0.1), "flags": np.array([True, False]), "d": {"deep": {}},
    }  # fmt: skip
    back = job.decode_state(job.encode_state(given, "f"))
    assert back["x"] == given["x"] and (back["n"], back["none"], back["d"]) == (3, None, {"deep": {}})
    for name in ("a", "i", "empty", "flags", "one"):
        assert back[name].dtype == given[name].dtype and back[name].tobytes() == np.asarray(given[name]).tobytes()
        assert np.shape(back[name]) == np.shape(given[name])
    import torch

    assert job.decode_state(job.encode_state((torch.ones(2), 1), "f"))[0].dtype == np.float32


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (object(), "the state is a object"),
        ({"a": [1, {2}]}, r"the state\['a'\]\[1\] is a set"),
        ({1: 2}, "the state has the key 1; keys must be str"),
        (np.array(["a"]), "the state is an array of <U1"),
        (np.array([object()]), "the state is an array of object"),
    ],
)
def test_what_is_no_state_is_refused(value, what):
    with pytest.raises(PreprocessError, match=f"f.fit: {what}"):
        job.encode_state(value, "f.fit")


def made_of(fit, merge, call=lambda e, state: e):
    def f(e, state):
        return call(e, state)

    f.fit, f.merge = fit, merge
    return f


def test_what_fails_is_named(ds):
    def raises(batch, state):
        if batch["info"]["number"][0] == 33:
            raise KeyError("lidar")
        return 1

    def no_state(e):
        return e

    no_state.fit, no_state.merge = (lambda b, s: 1), (lambda a, b: a)
    half = made_of(lambda b, s: 1, None)

    def spoils(e, state):
        state += 1
        return e

    for fn, how, what in (
        (
            made_of(raises, max),
            {},
            r"f.fit raised KeyError: 'lidar' .*on episode 33 \(93 steps\): action float32 \[93, 2",
        ),
        (made_of(lambda b, s: None, max), {}, r"f.fit returned None on episode 0 \(60 steps\)"),
        (made_of(lambda b, s: 1, lambda a, b: 1 / 0), {}, "f.merge raised ZeroDivisionError: .* on 1 and 1"),
        (made_of(lambda b, s: 1, lambda a, b: None), {}, "f.merge returned None"),
        (made_of(lambda b, s: {1}, max), {}, "f.fit: the state is a set"),
        (no_state, {}, "no_state.* cannot be called with one argument, state=...: got an unexpected keyword"),
        (half, {}, "f has fit but no merge"),
        (functions.standardise, {"args": {"state": 1}}, "state= holds the state of the first pass"),
        (made_of(lambda b, s: np.zeros(2), lambda a, b: a, spoils), {}, "raised ValueError: output array is read-only"),
    ):
        with pytest.raises(PreprocessError, match=what):
            preprocess.run(ds, fn, "made", **how)
    assert not (ds.path.parent / "ds@made").exists()
