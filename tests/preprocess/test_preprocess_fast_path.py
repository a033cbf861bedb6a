"""Episodes that match the plan take a fast path; the rows are the same if some of them do not."""

import numpy as np
import pytest

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.errors import PreprocessError

LENGTHS = [5, 8, 3, 9, 10, 1, 6, 40, 7, 2, 12, 4]
EVERY = range(len(LENGTHS))


def episodes():
    rng = np.random.default_rng(0)
    for i, t in enumerate(LENGTHS):
        yield {
            "observation": rng.standard_normal((t + 1, 3)).astype(np.float32),
            "action": rng.standard_normal((t, 2)).astype(np.float32),
            "next": {"reward": rng.standard_normal(t), "terminated": i % 2 == 0, "truncated": i % 2 == 1},
        }


@pytest.fixture
def truth():
    return list(episodes())


@pytest.fixture
def ds(truth):
    return rlds_cli.create("local/ds", truth)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr("rlds_cli.preprocess.episodes.BLOCK_ROWS", 24)


def doubled(e):
    e["observation"] = e["observation"] * 2
    return e


def scribbled(e):
    """Changes actions in place, of one episode only."""
    if len(e["action"]) == 12:
        e["action"][3] += 1
    return doubled(e)


def copied(e):
    """Now and then gives back equal arrays that are others, in other containers, and writes into those given."""
    if len(e["action"]) in (9, 7):
        same = {k: v.copy() for k, v in e["next"].items()}
        new = {"observation": e["observation"] * 2, "action": e["action"].copy(), "next": same}
        e["action"][:] = np.nan
        return new
    return doubled(e)


BUFFER = np.zeros((64, 3), np.float32)


def buffered(e):
    """Fills one buffer again and again."""
    out = BUFFER[: len(e["observation"])]
    np.multiply(e["observation"], 2, out=out)
    e["observation"] = out
    return e


def fails(e):
    """Spoils what it was given before it fails."""
    if len(e["action"]) in (9, 40):
        e["action"][:] = 0
        raise ValueError("no")
    return doubled(e)


def check(made, truth, of=EVERY, change=lambda action: action):
    assert made.episodes["length"].tolist() == [LENGTHS[k] for k in of]
    for got, k in enumerate(of):
        e = made.episode(got)
        assert np.array_equal(e["observation"], truth[k]["observation"][:-1] * 2)
        assert np.array_equal(e["next", "observation"], truth[k]["observation"][1:] * 2)
        assert np.array_equal(e["action"], change(truth[k]["action"]))
        assert np.array_equal(e["next", "reward"].ravel(), truth[k]["next"]["reward"])
        assert e["next", "terminated"].ravel()[-1] == (k % 2 == 0)
        assert e["next", "truncated"].ravel()[-1] == (k % 2 == 1)


@pytest.mark.parametrize("fn", [doubled, copied, buffered])
def test_untouched_fields_are_shared_and_others_are_rows(ds, truth, fn):
    made = preprocess.run(ds, fn, "new", jobs=0)
    check(made, truth)
    assert sorted(made.manifest.shared) == ["action", "next/reward", "next/terminated", "next/truncated"]


@pytest.mark.thorough
def test_one_episode_that_is_edited_in_place_is_written_and_the_source_is_not(ds, truth):
    def change(action):
        return action + (np.arange(len(action)) == 3)[:, None] * np.float32(len(action) == 12)

    made = preprocess.run(ds, scribbled, "new", jobs=0)
    check(made, truth, change=change)
    assert "action" not in made.manifest.shared
    assert all(np.array_equal(ds.episode(k)["action"], e["action"]) for k, e in enumerate(truth))


@pytest.mark.thorough
def test_what_a_failing_episode_was_given_is_of_no_account(ds, truth):
    made = preprocess.run(ds, fails, "new", jobs=0, keep_going=True)
    check(made, truth, [k for k, t in enumerate(LENGTHS) if t not in (9, 40)])


@pytest.mark.thorough
def test_of_a_selection_rows_are_copied(ds, truth):
    chosen = [1, 2, 5, 7, 11]
    made = preprocess.run(ds.select(episodes=chosen), copied, "new", jobs=0)
    check(made, truth, chosen)
    assert not made.manifest.shared


@pytest.mark.thorough
def test_flags_that_are_set_in_place_end_an_episode_otherwise(ds):
    def ended(e):
        if len(e["action"]) == 8:
            e["next"]["terminated"][-1], e["next"]["truncated"][-1] = True, False
        return e

    made = preprocess.run(ds, ended, "new", jobs=0)
    assert (made.manifest.counts.terminated, made.manifest.counts.truncated) == (7, 5)


def test_flags_inside_an_episode_that_are_set_in_place_are_refused(ds):
    def broken(e):
        if len(e["action"]) == 12:
            e["next"]["truncated"][2] = True
        return e

    with pytest.raises(PreprocessError, match="episode 10: truncated at step 2 of 12"):
        preprocess.run(ds, broken, "new", jobs=0)
