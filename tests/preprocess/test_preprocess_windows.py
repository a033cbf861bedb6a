"""Functions that see every step with its neighbours, against loops over episodes."""

import numpy as np
import preprocess_functions as functions
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.errors import PreprocessError
from rlds_cli.preprocess.reading import StepBlock, StepRange, neighbours

LENGTHS = [5, 8, 3, 9, 10, 1, 6]


def episodes(lengths, observed=lambda i: True):
    rng = np.random.default_rng(0)
    for i, t in enumerate(lengths):
        yield {
            "observation": rng.standard_normal((t + observed(i), 3)).astype(np.float32),
            "action": rng.standard_normal((t, 2)).astype(np.float32),
            "next": {"reward": rng.standard_normal(t), "terminated": i % 2 == 0, "truncated": i % 2 == 1},
            "info": {"word": [f"w{i}.{j}" for j in range(t)]},
        }


@pytest.fixture
def truth():
    return list(episodes(LENGTHS))


@pytest.fixture
def ds(truth):
    return rlds_cli.create("local/ds", truth)


@pytest.fixture(params=[(1 << 16, 1 << 14), (16, 12)], ids=["one block", "blocks of few steps"])
def blocks(request, monkeypatch):
    monkeypatch.setattr("rlds_cli.preprocess.job.PART_ROWS", request.param[0])
    monkeypatch.setattr("rlds_cli.preprocess.job.BLOCK_ROWS", request.param[1])


def clipped(values, t, k):
    """Row t + k of an episode's values, or the nearest there is."""
    return values[min(max(t + k, 0), len(values) - 1)]


# -- what a window holds


@pytest.mark.thorough
@given(
    st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=5),
    st.integers(0, 4),
    st.integers(0, 4),
    st.data(),
)
def test_windows_hold_what_a_loop_puts_into_them(lengths, history, future, data):
    """Rows of the store are numbered; every piece of episodes gives the rows that clipping by hand gives."""
    starts = np.cumsum([0, *(t + 1 for t, _ in lengths)])
    pieces, chosen = [], sorted(data.draw(st.sets(st.integers(0, len(lengths) - 1), min_size=1)))
    for k in chosen:
        first = data.draw(st.integers(0, lengths[k][0] - 1))
        last = data.draw(st.integers(first + 1, lengths[k][0]))
        pieces.append(StepRange(k, first, last, last == lengths[k][0]))
    size = sum(p.steps for p in pieces)
    block = StepBlock(pieces, [], np.ones(size, bool), np.array(chosen))
    of = [lengths[k] for k in chosen]
    n = neighbours(block, starts[chosen], np.array([t for t, _ in of]), np.array([f for _, f in of]), (history, future))
    rows = np.concatenate([np.arange(a, b) for a, b in n.runs])
    at = 0
    for p in pieces:
        length, final = lengths[p.k]
        own = np.arange(starts[p.k], starts[p.k] + length + final)
        for t in range(p.first, p.last):
            reach = range(-history, future + 1)
            assert rows[n.steps[at]].tolist() == [clipped(own[:length], t, k) for k in reach]
            assert rows[n.observed[at]].tolist() == [clipped(own, t, k) for k in reach]
            assert rows[n.after[at]].tolist() == [clipped(own, t, k + 1) for k in reach]
            assert n.mask[at].tolist() == [0 <= t + k < length for k in reach]
            assert n.next_mask[at].tolist() == [0 <= t + k + 1 < len(own) for k in reach]
            at += 1
    assert at == size == len(n.mask)
    assert all(starts[k] <= a < b <= starts[k + 1] for k, (a, b) in zip(chosen, n.runs, strict=True))


@pytest.mark.thorough
def test_shapes_fields_and_masks(ds):
    seen = {}

    def look(w):
        seen.update({n: (v.shape, v.dtype) for n, v in w.leaves()}, word=w["info", "word"][0].tolist())
        return {}

    made = preprocess.run(ds, look, unit="window", history=2, future=1)
    b = sum(LENGTHS)
    assert seen == {
        "observation": ((b, 4, 3), np.float32),
        "next/observation": ((b, 4, 3), np.float32),
        "action": ((b, 4, 2), np.float32),
        "next/reward": ((b, 4, 1), np.float64),
        "next/terminated": ((b, 4, 1), bool),
        "next/truncated": ((b, 4, 1), bool),
        "next/done": ((b, 4, 1), bool),
        "info/word": ((b, 4), object),
        "mask": ((b, 4), bool),
        "next/mask": ((b, 4), bool),
        "word": seen["word"],
    }
    assert made.fingerprint == ds.fingerprint and set(made.manifest.shared) == set(ds.schema)


# -- what comes of it


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("jobs", [0, 2])
def test_a_mean_over_neighbours_is_that_of_a_loop(ds, truth, jobs):
    made = preprocess.run(ds, functions.smooth, jobs=jobs)
    for k, e in enumerate(truth):
        t = len(e["action"])
        want = [e["action"][max(0, i - 2) : i + 2].astype(np.float64).mean(0) for i in range(t)]
        assert np.allclose(made.episode(k)["smooth"], want, rtol=1e-6)
    assert made.schema["smooth"].placement == "root" and set(made.manifest.shared) == set(ds.schema)
    assert made.manifest.provenance[-1]["window"] == [2, 1]


@pytest.mark.thorough
@pytest.mark.usefixtures("blocks")
def test_stacked_frames_stay_one_observation(truth):
    """Made alike of the windows of both, a stack and the next one agree, at the edges and the final row too."""
    source = rlds_cli.create("local/open", episodes(LENGTHS, lambda i: i not in (1, 4)))
    made = preprocess.run(source, functions.stacked, jobs=0)
    assert made.schema["observation"].shape == (3, 3) and made.schema["observation"].placement == "both"
    assert "next/observation" not in made.schema
    assert made.episodes["num_observed"].tolist() == source.episodes["num_observed"].tolist()
    for k, e in enumerate(episodes(LENGTHS, lambda i: i not in (1, 4))):
        o = e["observation"]
        want = np.array([[clipped(o, i, j) for j in (-2, -1, 0)] for i in range(len(o))])
        start = int(made.episodes["start"][k])
        assert np.array_equal(made.column("observation")[start : start + len(o)], want)


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("arrays", ["numpy", "torch", "tensordict"])
def test_steps_summed_up_have_a_next_observation_of_their_own(ds, truth, arrays):
    made = preprocess.run(ds, functions.n_step, arrays=arrays, args={"gamma": 0.5})
    assert (made.schema["observation"].placement, made.schema["next/observation"].placement) == ("root", "next")
    for k, e in enumerate(truth):
        t, reward = len(e["action"]), e["next"]["reward"]
        got = made.episode(k)
        for i in range(t):
            n = min(3, t - i)
            assert got["next", "reward"][i, 0] == pytest.approx(sum(0.5**j * reward[i + j] for j in range(n)))
            assert np.array_equal(got["next", "observation"][i], e["observation"][i + n])
            assert np.array_equal(got["observation"][i], e["observation"][i])
    assert set(ds.schema) - set(made.manifest.shared) == {"observation", "next/reward"}
    batch = next(iter(rlds_cli.loader.Loader(made, batch_size=4)))
    assert batch["next", "observation"].shape == (4, 3)


def test_fields_come_and_go_and_text_is_seen_too(ds, truth):
    def look(w):
        before = [f"{a}>{b}" for a, b in w["info", "word"]]
        return {"info": {"word": None, "pair": before}, "observation": None}

    made = preprocess.run(ds, look, unit="window", history=1)
    assert set(made.schema) == {"action", "info/pair", "next/reward", "next/terminated", "next/truncated"}
    assert made.episode(0)["info", "pair"].tolist() == ["w0.0>w0.0", "w0.0>w0.1", "w0.1>w0.2", "w0.2>w0.3", "w0.3>w0.4"]


@pytest.mark.thorough
def test_a_selection_reads_no_neighbours_but_its_own(ds, truth):
    made = preprocess.run(ds.select(episodes=[4, 0]), functions.smooth)
    for got, k in ((0, 4), (1, 0)):
        want = [truth[k]["action"][max(0, i - 2) : i + 2].mean(0) for i in range(LENGTHS[k])]
        assert np.allclose(made.episode(got)["smooth"], want, rtol=1e-5)
        assert np.array_equal(made.episode(got)["observation"], truth[k]["observation"][:-1])


def test_attempt_shows_an_episode_before_and_after(ds):
    r = preprocess.attempt(ds, functions.stacked, episode=1)
    change = next(c for c in r.fields if c.name == "observation")
    assert (r.unit, change.before.shape, change.after.shape) == ("window", (9, 3), (9, 3, 3))


# -- what is refused


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("fn", "arrays", "what"),
    [
        (lambda w: w["action"].__setitem__(..., 0), "numpy", "raised ValueError: assignment destination is read-only"),
        (lambda w: {"action": w["action"].mul_(2)}, "torch", "the windows of action were changed in place"),
        (lambda w: {"observation": w["observation"][:, 0]}, "numpy", '"observation" came back changed and "next/obs'),
        (lambda w: {"x": w["action"][:-1]}, "numpy", r'returned 4 rows for "x" instead of 5 .episode 0, steps 0 to 4'),
        (lambda w: {**w, "x": w["action"][:, 0]}, "numpy", "the function returned the windows with their mask"),
        (lambda w: None, "numpy", "None was returned"),
        (lambda w: w["action"], "numpy", "a ndarray was returned"),
        (lambda w: {"action/x": w["action"][:, 0]}, "numpy", "action is a field, and a group that holds action/x"),
        (lambda w: 1 / 0, "numpy", r"ZeroDivisionError.* on episode 0, steps 0 to 4: action float32 \[5, 2, 2\]"),
    ],
)
def test_what_no_window_gives_back(ds, fn, arrays, what):
    with pytest.raises(PreprocessError, match=what):
        preprocess.run(ds, fn, "made", unit="window", history=1, arrays=arrays)


def test_what_no_window_is(ds):
    for how, what in (
        ({"unit": "window", "history": -1}, "history=-1 is not a number of steps"),
        ({"unit": "window", "future": 1.5}, "future=1.5 is not a number of steps"),
        ({"unit": "batch", "history": 2}, "history=2 is for unit window; the unit is batch"),
        ({"history": 2}, "the unit is episode"),
    ):
        with pytest.raises(PreprocessError, match=what):
            preprocess.run(ds, functions.same, **how)
    with pytest.raises(PreprocessError, match="for unit window"):
        preprocess.unit("step", future=2)
    masked = rlds_cli.create("local/masked", [{"observation": np.zeros((3, 1)), "mask": np.ones(2)}])
    with pytest.raises(PreprocessError, match='the source has a field "mask"'):
        preprocess.run(masked, lambda w: {}, "x", unit="window")


@pytest.mark.thorough
def test_the_command_to_run_again_says_how_far_a_window_reaches(ds):
    with pytest.raises(PreprocessError) as e:
        preprocess.run(ds.select(episodes=[0]), "preprocess_functions:window_fails", unit="window", history=4)
    assert "--unit window --history 4 --future 0 --episode 0 -j 0" in e.value.hint
