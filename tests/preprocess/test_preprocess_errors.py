"""Functions that fail, and what they return that cannot be stored: named, with nothing published."""

import shutil

import numpy as np
import preprocess_functions as functions
import pytest

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.errors import DatasetNotFound, InvalidId, NameTaken, PreprocessError, UnknownField

LENGTHS = [5, 8, 3, 9, 10, 1, 6]


def episodes(lengths):
    rng = np.random.default_rng(0)
    for i, t in enumerate(lengths):
        yield {
            "observation": rng.standard_normal((t + 1, 3)).astype(np.float32),
            "action": np.stack([np.arange(t), np.full(t, i)], -1).astype(np.float32),
            "next": {"reward": rng.standard_normal(t), "terminated": i % 2 == 0, "truncated": i % 2 == 1},
            "info": {"number": np.full(t, i), "word": [f"w{i}"] * t},
        }


@pytest.fixture
def ds():
    return rlds_cli.create("local/ds", episodes(LENGTHS))


@pytest.fixture
def nothing_made(ds, home):
    yield
    assert [p.name for p in (home / "datasets" / "local").iterdir()] == ["ds"]
    source = rlds_cli.open_dataset("local/ds")
    assert np.array_equal(source.column("observation"), np.concatenate([e["observation"] for e in episodes(LENGTHS)]))


pytestmark = pytest.mark.usefixtures("nothing_made")


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [0, 2])
def test_an_exception_names_episode_shapes_and_line_and_is_chained(ds, jobs, monkeypatch):
    monkeypatch.setattr("rlds_cli.preprocess.job.PART_ROWS", 8)
    with pytest.raises(PreprocessError) as e:
        preprocess.run(ds, "preprocess_functions:fails", jobs=jobs)
    message = e.value.message
    assert message.startswith(
        "preprocess_functions:fails raised KeyError: 'no such sensor' (preprocess_functions.py, line"
    )
    assert "on episode 4 (10 steps): action float32 [10, 2], info/number int64 [10], info/word text [10]" in message
    assert "observation float32 [11, 3]" in message
    assert "Nothing was published. " in message and "chunks are kept." in message
    assert e.value.hint == "rlds preprocess local/ds --fn preprocess_functions:fails --episode 4 -j 0"
    if jobs == 0:
        assert isinstance(e.value.__cause__, KeyError) and e.value.__cause__.__traceback__
    else:
        assert "def fails" not in str(e.value.__cause__) and "KeyError" in str(e.value.__cause__)


def test_an_exception_at_one_step_names_the_step(ds):
    with pytest.raises(
        PreprocessError, match=r"raised ValueError: seven .* on episode 4, step 7: action float32 \[2\]"
    ):
        preprocess.run(ds, functions.fails_at_step, unit="step")


@pytest.mark.thorough
def test_an_exception_in_a_batch_names_what_it_was_given(ds):
    def fails(b):
        raise ValueError("no")

    with pytest.raises(PreprocessError, match=r"on episode 0, steps 0 to 4: action float32 \[5, 2\]"):
        preprocess.run(ds, fails, unit="batch")


@pytest.mark.thorough
def test_leaving_the_program_is_a_failure_too(ds):
    def leaves(e):
        raise SystemExit(3)

    with pytest.raises(PreprocessError, match="SystemExit: 3"):
        preprocess.run(ds, leaves)


@pytest.mark.thorough
def test_a_wrong_number_of_rows_names_field_and_numbers(ds):
    with pytest.raises(PreprocessError) as e:
        preprocess.run(ds, functions.one_short)
    assert 'returned 9 rows for "next/reward", episode 4 has 10. Nothing was published' in e.value.message
    assert "--episode 4 -j 0" in e.value.hint


def test_a_batch_function_may_not_change_which_steps_exist(ds):
    def shorter(b):
        b["next"]["reward"] = b["next"]["reward"][1:]
        return b

    with pytest.raises(
        PreprocessError, match=r'returned 4 rows for "next/reward" instead of 5 .episode 0, steps 0 to 4'
    ):
        preprocess.run(ds, shorter, unit="batch")
    with pytest.raises(PreprocessError, match="None was returned; units batch and step return every transition"):
        preprocess.run(ds, lambda b: None, "none", unit="batch")
    with pytest.raises(PreprocessError, match=r"episode 0, step 0: None was returned"):
        preprocess.run(ds, lambda b: None, "none", unit="step")


@pytest.mark.thorough
@pytest.mark.parametrize("how", [{"unit": "batch"}, {"unit": "step"}, {"unit": "batch", "arrays": "torch"}])
def test_observations_changed_without_the_next_ones_are_refused(ds, how):
    with pytest.raises(PreprocessError) as e:
        preprocess.run(ds, functions.forgets_next, **how)
    assert '"observation" was changed and "next/observation" was not: ' in e.value.message
    assert "they are no longer the same observation after episode 0, step 0" in e.value.message
    assert "change both, or use unit=episode" in e.value.hint


def test_changed_apart_or_the_next_ones_alone_are_refused_too(ds):
    def only_next(b):
        b["next"]["observation"] *= 3
        return b

    def apart(b):
        b["observation"] *= 2
        b["next"]["observation"] *= 3
        return b

    def late(b):
        b["observation"][b["info"]["number"] == 4] += 1
        return b

    with pytest.raises(PreprocessError, match='"next/observation" was changed and "observation" was not'):
        preprocess.run(ds, only_next, unit="batch")
    with pytest.raises(PreprocessError, match='"observation" and "next/observation" were changed, but not alike'):
        preprocess.run(ds, apart, unit="batch")
    with pytest.raises(
        PreprocessError,
        match=r'"observation" was changed and "next/observation" was not.* after episode 4',
    ):
        preprocess.run(ds, late, unit="batch")
    with pytest.raises(PreprocessError, match='"observation" and "next/observation" disagree'):
        preprocess.run(ds, lambda td: td.set("observation", td["observation"] + 1), "td", arrays="tensordict")
    with pytest.raises(PreprocessError, match='"observation" came back without "next/observation"'):
        preprocess.run(ds, lambda b: {k: v for k, v in b.items() if k != "next"}, "gone", unit="batch")


@pytest.mark.thorough
def test_later_episodes_must_be_like_the_first(ds):
    def dtype(e):
        return {**e, "x": e["action"].astype(np.float64 if e["info"]["number"][0] == 2 else np.float32)}

    def shape(e):
        return {**e, "x": e["action"][:, : 1 if e["info"]["number"][0] == 2 else 2]}

    def gone(e):
        return e if e["info"]["number"][0] == 2 else {**e, "x": e["action"]}

    def text(e):
        return {**e, "x": ["a"] * len(e["action"]) if e["info"]["number"][0] == 2 else e["action"]}

    for fn, what in (
        (dtype, "episode 2: x is float64; the first episode's is float32"),
        (shape, r"episode 2: a row of x has shape \[1\]; the first episode's have \[2\]"),
        (gone, "episode 2 lacks x"),
        (text, "episode 2: x is text here only"),
    ):
        with pytest.raises(PreprocessError, match=what):
            preprocess.run(ds, fn, "made")


def test_what_no_store_holds_is_refused(ds):
    def returns(value):
        return lambda e: value(e)

    for value, what in (
        (lambda e: e["action"], "a ndarray was returned; a dict of fields is needed"),
        (lambda e: [e, 3], "piece 1: a int was returned"),
        (lambda e: {**e, "x": np.array([object()] * len(e["action"]))}, "x holds Python objects"),
        (lambda e: {**e, "x": [[1], [1, 2]] + [[1]] * (len(e["action"]) - 2)}, "x is ragged"),
        (lambda e: {**e, "x": 3.0}, "x has a single value"),
        (lambda e: {**e, "action": {"a": e["action"]}, "action/a/b": e["action"]}, "action/a is a field, and a group"),
        (lambda e: {**e, "x": np.zeros(len(e["action"]), "datetime64[s]")}, "x has dtype datetime64"),
        (lambda e: {"action": e["action"][:2], "observation": e["observation"][:3]}, "without next/terminated"),
        (lambda e: {**e, "next": {**e["next"], "terminated": np.full(len(e["action"]), 0.5)}}, "holds 0.5"),
    ):
        with pytest.raises(PreprocessError, match=what):
            preprocess.run(ds.select(episodes=slice(0, 2)), returns(value), "made")


def test_dropping_everything_says_what_a_function_returns(ds):
    def forgets(e):
        e["observation"] *= 2

    with pytest.raises(PreprocessError, match="forgets returned no episode for all 7 episodes") as e:
        preprocess.run(ds, forgets)
    assert "a function returns the episode" in e.value.hint


def test_what_cannot_be_asked_for(ds):
    same = functions.same
    for ask, kind, what in (
        (lambda: preprocess.run("local/none", same), DatasetNotFound, "local/none"),
        (lambda: preprocess.run(ds, same, "../up"), InvalidId, "cannot name a variant"),
        (lambda: preprocess.run(ds, lambda e: e), PreprocessError, "lambda has no name"),
        (lambda: preprocess.run(ds, 3), PreprocessError, "3 is not a function"),
        (lambda: preprocess.run(ds, same, unit="epoch"), PreprocessError, 'no unit "epoch"'),
        (lambda: preprocess.run(ds, same, arrays="jax"), PreprocessError, 'arrays must not be "jax"'),
        (lambda: preprocess.run(ds, same, fields=["rewards"]), UnknownField, 'Did you mean "next/reward"'),
        (lambda: preprocess.run(ds, same, args={"k": 1}), PreprocessError, "cannot be called with one argument, k=..."),
        (lambda: preprocess.run(ds, functions.good, args={"at_least": object()}), PreprocessError, "Arguments must be"),
        (lambda: preprocess.run(ds.select(episodes=[]), same), PreprocessError, "no episodes"),
        (lambda: preprocess.attempt(ds, same, episode=7), PreprocessError, "no episode 7"),
        (lambda: preprocess.unit("all"), PreprocessError, 'no unit "all"'),
    ):
        with pytest.raises(kind, match=what):
            ask()


def test_cropping_what_was_not_given_is_refused(ds):
    def half(e):
        n = len(e["next"]["reward"]) // 2
        return {"next": {k: v[:n] for k, v in e["next"].items()}}

    with pytest.raises(PreprocessError, match="info/word/x was returned, but the source has info/word"):
        preprocess.run(ds, lambda e: {**e, "info/word/x": e["action"]}, "nested", fields=["action"])
    with pytest.raises(PreprocessError, match=r"episode 0: 2 of 5 steps came back, but \w+(/\w+)? is not in fields="):
        preprocess.run(ds, half, fields=["next/reward"])


def test_a_result_does_not_replace_its_source_nor_another_dataset(ds, home):
    made = preprocess.run(ds, functions.same)
    try:
        with pytest.raises(PreprocessError, match="would replace its own source"):
            preprocess.run(made, functions.same, "same", force=True)
        other = rlds_cli.create("local/ds@mine", episodes([3]))
        with pytest.raises(NameTaken, match="was not made by preprocess"):
            preprocess.run(ds, functions.same, "mine")
    finally:
        from rlds_cli.base.files.publishing import remove

        remove(made.path)
        remove(other.path)


def test_a_source_that_is_removed_meanwhile_is_named(home):
    gone = rlds_cli.create("local/gone", episodes(LENGTHS))

    def f(episode):
        if (gone.path / "zarr.json").exists() and episode["info", "number"][0] == 3:
            shutil.rmtree(gone.path)
        return {**episode, "action": episode["action"] + 1}

    with pytest.raises(PreprocessError, match=r"local/gone was removed from .* during the work") as e:
        preprocess.run(gone, f, jobs=0)
    assert "rlds download local/gone" in e.value.hint
