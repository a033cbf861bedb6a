"""Failures found down to the step, and episodes that are left out because of them."""

import json
import re

import numpy as np
import preprocess_functions as functions
import pytest

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.errors import NameTaken, PreprocessError

LENGTHS = [5, 8, 3, 9, 10, 1, 6, 40, 7, 2, 12, 4]
BAD = (0, 4, 7, 11)  # those that are looked at first, one in the middle, one longer than a block


def episodes():
    rng = np.random.default_rng(0)
    for i, t in enumerate(LENGTHS):
        yield {
            "observation": rng.standard_normal((t + 1, 3)).astype(np.float32),
            "action": np.stack([np.arange(t), np.full(t, i)], -1).astype(np.float32),
            "next": {"reward": rng.standard_normal(t), "terminated": i % 2 == 0, "truncated": i % 2 == 1},
            "info": {"number": np.full(t, i), "word": [f"w{i}"] * t},
        }


@pytest.fixture
def truth():
    return list(episodes())


@pytest.fixture
def ds(truth):
    return rlds_cli.create("local/ds", truth)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr("rlds_cli.preprocess.job.PART_ROWS", 30)
    monkeypatch.setattr("rlds_cli.preprocess.job.BLOCK_ROWS", 16)


def lines(ds):
    return [json.loads(line) for line in (ds.path / "errors.jsonl").read_text().splitlines()]


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("unit", ["episode", "batch", "step", "window"])
@pytest.mark.parametrize("jobs", [0, 2])
def test_failing_episodes_are_left_out_and_named(ds, truth, unit, jobs):
    made = preprocess.run(ds, functions.doubles_but_some, unit=unit, jobs=jobs, keep_going=True, args={"bad": BAD})
    kept = [k for k in range(len(LENGTHS)) if k not in BAD]
    assert made.episodes["length"].tolist() == [LENGTHS[k] for k in kept]
    assert made.episodes["row"].tolist() == kept
    for got, k in enumerate(kept):
        e = made.episode(got)
        assert np.array_equal(e["action"], truth[k]["action"] * 2)
        assert np.array_equal(e["observation"], truth[k]["observation"][:-1])
        assert np.array_equal(e["next", "observation"], truth[k]["observation"][1:])
        assert e["info"]["word"].tolist() == truth[k]["info"]["word"]
        assert made.episodes["end"][got] == ds.episodes["end"][k]
    found = lines(made)
    assert [f["episode"] for f in found] == list(BAD)
    at = {0: 0, 4: 3, 7: 3, 11: 3}  # where it fails: at step 3, but at step 0 of the first
    for f in found:
        assert (f["id"], f["exception"], f["function"]) == (
            "local/ds", "KeyError", "preprocess_functions:doubles_but_some",
        )  # fmt: skip
        assert f["step"] == (at[f["episode"]] if unit == "step" else None)
        step = f" --step {at[f['episode']]}" if unit == "step" else ""
        assert f["again"].endswith(f"--episode {f['episode']}{step} -j 0")
        assert f"on episode {f['episode']}" in f["message"] and "action float32 [" in f["message"]
    assert [(n["code"], n["count"], n["where"]) for n in made.manifest.notes] == [("failed-episodes", 4, "episode 0")]
    assert made.manifest.provenance[-1]["keep_going"] is True


@pytest.mark.parametrize("unit", ["episode", "batch"])
def test_where_nothing_fails_the_result_is_the_same_and_has_no_such_file(ds, unit):
    made = preprocess.run(ds, functions.doubles_but_some, "made", unit=unit, keep_going=True, args={"bad": []})
    plain = preprocess.run(ds, functions.doubles_but_some, "plain", unit=unit, args={"bad": []})
    assert made.fingerprint == plain.fingerprint and not (made.path / "errors.jsonl").exists()
    assert "observation" in made.manifest.shared
    with pytest.raises(NameTaken, match="keep_going was false, is true"):
        preprocess.run(ds, functions.doubles_but_some, "plain", unit=unit, keep_going=True, args={"bad": []})


def test_what_cannot_be_stored_is_left_out_too(ds):
    def shorter(e):
        if e["info"]["number"][0] == 3:
            e["next"]["reward"] = e["next"]["reward"][1:]
        if e["info"]["number"][0] == 8:
            e["action"] = e["action"].astype(np.float64)
        return e

    said = []
    made = preprocess.run(ds, shorter, keep_going=True, progress=lambda e: said.append(e.note))
    assert [(f["episode"], f["exception"]) for f in lines(made)] == [(3, "InvalidEpisode"), (8, "InvalidEpisode")]
    assert made.num_episodes == 10
    assert "1 episode left out so far: the function failed" in said


def test_where_everything_fails_that_is_the_failure(ds):
    ds = ds.select(episodes=[0, 4, 7, 11])
    with pytest.raises(PreprocessError, match=r"No episode came back of 4 episodes.* The first failure: .*KeyError"):
        preprocess.run(ds, functions.doubles_but_some, keep_going=True, args={"bad": list(range(12))})
    assert not (ds.path.parent / "ds@doubles_but_some").exists()


@pytest.mark.thorough
def test_a_result_that_misses_some_can_be_worked_with(ds):
    made = preprocess.run(ds, functions.doubles_but_some, "some", keep_going=True, args={"bad": [2]})
    again = preprocess.run(made, functions.same, "again")
    assert again.fingerprint == made.fingerprint and not (again.path / "errors.jsonl").exists()
    from rlds_cli.keep.verification import verify

    assert verify(made.id).ok


# -- down to the step


@pytest.mark.thorough
@pytest.mark.parametrize("unit", ["batch", "window"])
def test_a_function_that_fails_on_steps_of_several_episodes_names_them(ds, unit):
    with pytest.raises(PreprocessError, match=r"11 transitions of episodes (\d) to \d: ") as e:
        preprocess.run(ds, functions.doubles_but_some, unit=unit, args={"bad": [4]})
    first = int(re.search(r"of episodes (\d)", e.value.message)[1])
    assert (e.value.episode, e.value.step) == (first, None)
    assert e.value.hint == "--keep-going (keep_going=True) tries each episode alone and leaves out those that fail"
    with pytest.raises(PreprocessError, match="on episode 4, steps 0 to 9") as e:
        preprocess.run(ds.select(episodes=[4]), functions.doubles_but_some, unit=unit, args={"bad": [4]})
    assert (e.value.episode, e.value.step) == (4, None)
    assert e.value.hint.endswith("--episode 4 -j 0")


def test_attempt_of_a_step_runs_that_one(ds, truth):
    seen = []

    def look(b):
        seen.append(b["action"].tolist())
        return {**b, "twice": b["action"] * 2}

    r = preprocess.attempt(ds, look, unit="batch", episode=4, step=7)
    assert seen[0] == [[7, 4]] and (r.episode, r.step, r.length, r.returned) == (4, 7, 1, (1,))
    by_name = {c.name: c for c in r.fields}
    assert by_name["twice"].after.mean == 11 and by_name["twice"].what == "new"
    assert by_name["observation"].before.shape == (2, 3)
    assert by_name["observation"].before.max == pytest.approx(truth[4]["observation"][7:9].max())
    last = preprocess.attempt(ds, functions.smooth, episode=4, step=9)
    assert last.step == 9 and last.returned == (1,)
    for how, what in (
        ({"unit": "batch", "step": 10}, "Episode 4 has no step 10"),
        ({"unit": "batch", "step": -1}, "Episode 4 has no step -1"),
        ({"step": 1}, "the unit is episode, and has no single steps"),
    ):
        with pytest.raises(PreprocessError, match=what):
            preprocess.attempt(ds, look, episode=4, **how)
