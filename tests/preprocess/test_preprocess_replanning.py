"""An episode that contradicts the plan: finished chunks are kept, and the result is that of a plan that knew."""

from pathlib import Path

import numpy as np
import pytest
from made_once import made_once

import rlds_cli
from rlds_cli import preprocess

LENGTHS = [20 + i % 14 for i in range(60)]
STATE = "observation/state/c/0/0"
LATE = 50  # the episode that is unlike all before it
PROBED = (0, 30, 59)  # episodes that a plan is made from


def number_of(episode):
    return int(episode["info"]["number"][0])


def note_call(episode, log):
    with Path(log).open("a") as file:
        file.write(f"{number_of(episode)}\n")


def calls(log):
    """The episodes that the function was called with, but for those that plans are made from."""
    return [n for n in map(int, Path(log).read_text().split()) if n not in PROBED]


def drops_one(episode, log):
    note_call(episode, log)
    return None if number_of(episode) == LATE else episode


def changes_one(episode, log):
    note_call(episode, log)
    if number_of(episode) == LATE:
        episode["action"] = episode["action"] * 2
    return episode


def changes_words(episode, log):
    note_call(episode, log)
    episode["info"]["word"] = [w and f"{w}!" for w in episode["info"]["word"]]
    return None if number_of(episode) == LATE else episode


def changes_frames_of_one(episode, log):
    note_call(episode, log)
    if number_of(episode) == LATE:
        episode["observation"]["pixels"] = 255 - episode["observation"]["pixels"]
    return episode


@pytest.fixture(scope="module")
def truth():
    rng = np.random.default_rng(0)
    return [
        {
            "observation": {
                "state": rng.standard_normal((t + 1, 3)).astype(np.float32),
                "pixels": rlds_cli.Frames([png(i, k) for k in range(t + 1)]),
            },
            "action": rng.standard_normal((t, 2)).astype(np.float32),
            "next": {"reward": rng.standard_normal(t), "terminated": i % 3 == 0, "truncated": i % 3 == 1},
            "info": {"number": np.full(t, i), "word": [f"w{(i + k) % 7}" if k % 4 else None for k in range(t)]},
        }
        for i, t in enumerate(LENGTHS)
    ]


def png(i, k):
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.full((4, 4, 3), (i * 4, k, 7), np.uint8)).save(file, "png")
    return file.getvalue()


@pytest.fixture
def ds(truth):
    return made_once("local/ds", lambda: rlds_cli.create("local/ds", truth), __name__)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr("rlds_cli.preprocess.job.PART_ROWS", 210)


def whole(episode, name):
    """All T+1 observations of an episode."""
    now, after = (np.asarray(part["observation"][name]) for part in (episode, episode["next"]))
    return np.concatenate([now, after[-1:]])


def check_rows(made, truth, left, change=lambda name, i, values: values):
    """Compare each episode with what it was made of."""
    assert made.num_episodes == len(left)
    for k, i in enumerate(left):
        got, made_of = made.episode(k), truth[i]
        np.testing.assert_array_equal(whole(got, "state"), made_of["observation"]["state"])
        np.testing.assert_array_equal(got["action"], change("action", i, made_of["action"]))
        np.testing.assert_array_equal(np.ravel(got["next"]["reward"]), made_of["next"]["reward"])
        assert list(got["info"]["word"]) == change("word", i, made_of["info"]["word"])
        pixels = np.stack([np.full((4, 4, 3), (i * 4, j, 7), np.uint8) for j in range(LENGTHS[i] + 1)])
        np.testing.assert_array_equal(whole(got, "pixels"), change("pixels", i, pixels))


@pytest.mark.parametrize("jobs", [0, pytest.param(2, marks=pytest.mark.thorough)])
def test_a_late_drop_costs_no_second_call(ds, truth, tmp_path, jobs):
    log, said = str(tmp_path / "log"), []
    made = preprocess.run(ds, drops_one, args={"log": log}, jobs=jobs, progress=lambda e: said.append(e.note))
    check_rows(made, truth, [i for i in range(60) if i != LATE])
    assert "episode lengths change" in said and any("finished chunks of 8 kept" in s for s in said), said
    assert len(calls(log)) < 60 + 20 and calls(log).count(5) == 1


@pytest.mark.parametrize("jobs", [0, pytest.param(2, marks=pytest.mark.thorough)])
def test_a_late_change_costs_no_second_call(ds, truth, tmp_path, jobs):
    log = str(tmp_path / "log")
    made = preprocess.run(ds, changes_one, args={"log": log}, jobs=jobs, progress=False)
    check_rows(made, truth, range(60), lambda name, i, v: v * 2 if name == "action" and i == LATE else v)
    assert calls(log).count(5) == 1
    assert (ds.path / STATE).samefile(made.path / STATE)  # shared with the source


def test_texts_that_were_written_before_stay_with_their_codes(ds, truth, tmp_path):
    log = str(tmp_path / "log")
    made = preprocess.run(ds, changes_words, args={"log": log}, jobs=0, progress=False)
    left = [i for i in range(60) if i != LATE]
    check_rows(made, truth, left, lambda n, i, v: [w and f"{w}!" for w in v] if n == "word" else v)
    assert calls(log).count(5) == 1


def test_images_that_one_late_episode_changes_are_all_stored_decoded(ds, truth, tmp_path):
    log = str(tmp_path / "log")
    made = preprocess.run(ds, changes_frames_of_one, args={"log": log}, jobs=0, progress=False)
    check_rows(made, truth, range(60), lambda name, i, v: 255 - v if name == "pixels" and i == LATE else v)


def test_a_run_that_is_interrupted_after_its_plan_changed_continues(ds, truth, tmp_path):
    log = str(tmp_path / "log")
    stop = tmp_path / "stop"
    stop.touch()

    def notes(event):
        if stop.exists() and "kept" in event.note:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        preprocess.run(ds, drops_one, args={"log": log}, jobs=0, progress=notes)
    stop.unlink()
    made = preprocess.run(ds, drops_one, args={"log": log}, jobs=0, progress=False)
    check_rows(made, truth, [i for i in range(60) if i != LATE])
    assert calls(log).count(5) <= 2
