"""--verify: a chunk is done again in a fresh process; what is not the same is named, and not published."""

import json
import sys
from pathlib import Path

import numpy as np
import preprocess_functions as functions
import preprocess_units as units
import pytest

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.cli import main
from rlds_cli.errors import PreprocessError
from rlds_cli.preprocess import verifying


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr("rlds_cli.preprocess.job.PART_ROWS", units.ROWS)


@pytest.fixture
def ds():
    return rlds_cli.create("local/ds", units.episodes())


def notes(call, *given, **how):
    said = []
    made = call(*given, progress=lambda e: e.note and said.append(e.note), verify=True, **how)
    return made, said


@pytest.fixture
def always(monkeypatch):
    """Chunk number 5, from 0, is the one that is drawn."""
    monkeypatch.setattr("rlds_cli.preprocess.verifying._drawn", lambda numbers: 5)


# -- functions that make the same of the same


@pytest.mark.slow
@pytest.mark.parametrize("name", ["episode", "window", "two passes", "pipeline", "split"])
def test_the_same_again_is_published_and_can_be_verified_again(ds, name, home):
    case = units.CASES[name]
    made, said = notes(preprocess.run, ds, case.fn, "made", jobs=0, **case.how)
    stages = len(case.fn) if isinstance(case.fn, list) else 1
    assert len([s for s in said if s.startswith("verified: chunk ") and "came out the same again" in s]) == stages
    units.check(made, case)
    if stages > 1:
        with pytest.raises(PreprocessError, match="made by 2 functions") as e:
            notes(preprocess.run, ds, case.fn, "made", jobs=0, **case.how)
        assert "--force --verify" in e.value.hint
        return
    before = made.fingerprint, (made.path / "zarr.json").stat().st_mtime_ns
    made, said = notes(preprocess.run, ds, case.fn, "made", jobs=0, **case.how)
    assert said[0].startswith("is here") and said[1].startswith("verified: chunk ") and len(said) == 2
    assert (made.fingerprint, (made.path / "zarr.json").stat().st_mtime_ns) == before
    assert list((home / "partial").iterdir()) == []


def test_functions_that_draw_are_seeded(ds):
    assert "came out the same again" in notes(preprocess.run, ds, functions.noisy, jobs=0)[1][0]


def test_any_chunk_may_be_drawn_but_the_first():
    assert {verifying._drawn(range(8)) for _ in range(300)} == set(range(1, 8))
    assert verifying._drawn([3]) == 3


def test_shards_are_verified_when_they_are_published(ds, home):
    for number in (1, 2):
        preprocess.run_shard(ds, functions.halves, "part", shard=(number, 2), jobs=0)
    made, said = notes(preprocess.finish, ds, functions.halves, "part")
    assert made.num_episodes == 120 and "came out the same again" in said[-1]


@pytest.mark.slow
def test_selections_and_what_was_learned_late_are_taken_into_account(ds):
    chosen = ds.select(episodes=[50, 3, 4, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39])
    cases = (
        (chosen, units.whole, {"args": {"gamma": 0.5}}),
        (ds, "select_episodes", {"args": {"where": "length > 80"}}),
        (ds, functions.fails, {"keep_going": True}),
        (ds, functions.late_change, {"args": {"at": 33}}),
    )
    for i, (source, fn, how) in enumerate(cases):
        preprocess.run(source, fn, f"made{i}", jobs=0, **how)
        _, said = notes(preprocess.run, source, fn, f"made{i}", jobs=0, **how)
        assert "came out the same again" in said[-1], fn


# -- functions that do not

_STATE = """
import itertools
import random
import numpy as np
from rlds_cli.preprocess import unit

SEEN = []
COUNT = itertools.count()
OWN = np.random.default_rng()


def running_mean(episode):
    SEEN.append(episode["observation"].mean(0))
    episode["observation"] -= np.mean(SEEN, 0)
    return episode


@unit("step")
def counted(step):
    step["count"] = next(COUNT)
    return step


@unit("window")
def drawn(window):
    return {"noise": OWN.standard_normal(len(window["action"]))}


def in_words(episode):
    number = int(episode["info"]["number"][0])
    episode["info"]["word"] = [f"{len(SEEN)}" if k == 7 and number == 41 else w
                               for k, w in enumerate(episode["info"]["word"])]
    SEEN.append(1)
    return episode


def drops(episode):
    SEEN.append(1)
    return None if len(SEEN) > 50 and len(SEEN) % 3 == 0 else episode


def shorter(episode):
    SEEN.append(1)
    cut = len(SEEN) > 40
    rows = lambda v: {k: rows(x) for k, x in v.items()} if isinstance(v, dict) else v[cut:]
    return rows(episode)


def fails_when_fresh(episode):
    SEEN.append(1)
    if int(episode["info"]["number"][0]) == 40 and len(SEEN) < 20:
        raise RuntimeError("too early")
    return episode


def changes_when_fresh(episode):
    SEEN.append(1)
    if len(SEEN) < 4 and 30 < int(episode["info"]["number"][0]) < 50:
        episode["action"] += 1
    return episode


@unit("batch")
def scaled(batch, state):
    return {**batch, "action": batch["action"] * np.float32(state["scale"])}


def fit(batch, state):
    SEEN.append(1)
    return {"scale": len(SEEN) * 1.0}


scaled.fit, scaled.merge = fit, lambda a, b: {"scale": a["scale"] + b["scale"]}
"""

EPISODES = list(range(37, 45))  # of chunk 5
# Units of transitions are given whole episodes, of at most 600 steps; chunks end where these do.
NAMES = dict.fromkeys(("counted", "drawn"), "chunk 6 of 8 (episodes 36 to 41)")
NAMES["scaled"] = "chunk 6 of 8 of the first pass (episodes 36 to 41)"


@pytest.fixture
def stateful(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("stateful.py").write_text(_STATE)
    return "stateful.py"


@pytest.mark.parametrize(
    ("fn", "what"),
    [
        (
            "running_mean",
            r"observation of episode 37, step 0 \[0\] was -?[\d.e-]+, is -?[\d.e-]+ \(\d+ of \d+ rows differ",
        ),
        ("counted", r"count of episode 36, step 0 was \d+, is 0 \("),
        ("drawn", r"noise of episode 36, step 0 was \S+, is \S+ \("),
        ("in_words", r"info/word of episode 41, step 7 was '\d+', is '4' \(1 of \d+ rows differ\)"),
        ("drops", r"episode \d+ did not come back, now came back\."),
        ("shorter", r"episode 37 was 96 steps \(truncated\), is 97 steps \(truncated\)\."),
        ("fails_when_fresh", r"it failed: .*RuntimeError: too early"),
        ("changes_when_fresh", r"shows what it did not: action changed after all"),
        ("scaled", r"fit found out something else: the state\['scale'\] was \d+.0, is 1.0"),
    ],
)
def test_what_differs_is_named_and_nothing_is_published(ds, stateful, fn, what, always, home):
    with pytest.raises(PreprocessError, match=what) as e:
        notes(preprocess.run, ds, f"{stateful}:{fn}", "made", jobs=0)
    name = NAMES.get(fn, "chunk 6 of 8 (episodes 37 to 44)")
    start = f"{stateful}:{fn} does not make the same of the same: {name} done again, "
    assert e.value.message.startswith(start) and e.value.message.endswith("Nothing was published.")
    assert "must follow from what it is given alone" in e.value.hint
    assert e.value.episode in (None, 36, *EPISODES)
    assert [p.name for p in (home / "datasets/local").iterdir()] == ["ds"]
    assert list((home / "partial").iterdir()) == []


@pytest.mark.parametrize("fn", ["in_words", "drops"])
def test_a_published_result_stays_as_it_is(ds, stateful, fn, always, home):
    made = preprocess.run(ds, f"{stateful}:{fn}", "made", jobs=0)
    before = units.content(made)
    with pytest.raises(PreprocessError, match=r"does not make the same of the same: .* The dataset stays as it is\."):
        notes(preprocess.run, ds, f"{stateful}:{fn}", "made", jobs=0)
    assert units.content(rlds_cli.open_dataset("local/ds@made")) == before
    assert list((home / "partial").iterdir()) == []


def test_a_field_that_is_another_by_now_is_named(ds, stateful):
    Path("kind.txt").write_text("float32")
    Path("kinds.py").write_text(
        "from pathlib import Path\n"
        "def kinds(e):\n    return {**e, 'new': e['action'].astype(Path('kind.txt').read_text())}\n"
    )
    preprocess.run(ds, "kinds.py:kinds", jobs=0)
    Path("kind.txt").write_text("float64")
    with pytest.raises(PreprocessError, match=r"new was float32 \[2\] \(root\), is float64 \[2\] \(root\)"):
        notes(preprocess.run, ds, "kinds.py:kinds", jobs=0)


def test_each_function_of_a_pipeline_is_verified(ds, stateful, always):
    with pytest.raises(PreprocessError, match=r"Function 2 of 2: .* does not make the same of the same"):
        notes(preprocess.run, ds, [functions.twice, f"{stateful}:drawn"], "made", jobs=0)


def test_which_chunk_cannot_always_be_told(ds):
    """Halves of episodes come from one place in the archive; some are dropped."""
    halves = preprocess.run(ds, functions.halves)
    made = preprocess.run(halves, functions.long_ones, "long", args={"at_least": 40}, jobs=0)
    assert made.num_episodes < 120
    with pytest.raises(PreprocessError, match="which chunk its episodes were made in cannot be told") as e:
        notes(preprocess.run, halves, functions.long_ones, "long", args={"at_least": 40}, jobs=0)
    assert "--force --verify" in e.value.hint
    _, said = notes(preprocess.run, halves, functions.long_ones, "long", args={"at_least": 40}, jobs=0, force=True)
    assert "came out the same again" in said[-1]


def test_the_command(ds, stateful, monkeypatch, capsys):
    def rlds(*words):
        monkeypatch.setattr(sys, "argv", ["rlds", "preprocess", "local/ds", *words])
        with pytest.raises(SystemExit) as left:
            main()
        return left.value.code or 0, *capsys.readouterr()

    monkeypatch.setattr("rlds_cli.preprocess.job.PART_ROWS", 1 << 16)
    Path("fine.py").write_text("def fine(e):\n    e['action'] *= 2\n    return e\n")
    code, shown, said = rlds("--fn", "fine.py:fine", "--verify", "--json")
    assert code == 0 and "verified: chunk 1 of 1 (episodes 0 to 59)" in said
    assert json.loads(shown)["id"] == "local/ds@fine"
    code, _, said = rlds("--fn", "stateful.py:drawn", "--verify")
    assert code == 1 and "noise of episode 0, step 0" in said
    for words, what in (
        (("--verify", "--shard", "1/2"), "works on a whole result only"),
        (("--executor", "ray", "--shard", "1/2"), "works on a whole job only"),
        (("--address", "127.0.0.1:1"), "needs --executor ray"),
    ):
        code, _, said = rlds("--fn", "fine.py:fine", *words)
        assert code == 2 and what in said


def test_a_function_that_cannot_leave_is_verified_here(ds, monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    _, said = notes(preprocess.run, ds, lambda e: {**e, "action": -e["action"]}, "minus", jobs=0)
    assert said[0].startswith("verifying in this process") and "came out the same again" in said[1]
    own = np.random.default_rng()
    with pytest.raises(PreprocessError, match=r"action of episode \d+, step 0 \[0\] was"):
        notes(preprocess.run, ds, lambda e: {**e, "action": own.random(e["action"].shape)}, "drawn", jobs=0)
