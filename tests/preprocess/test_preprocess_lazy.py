"""Functions decode the fields that they use, and no others; what they leave alone keeps its stored bytes."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from frames_data import decoded, film

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.dataset import Dataset
from rlds_cli.preprocess import reading
from rlds_cli.store import encoded

LENGTHS = [3, 5, 4, 2]
FLAGS = ("next/terminated", "next/truncated")


@pytest.fixture
def ds() -> Dataset:
    return film(LENGTHS)


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The row of every frame that is decoded."""
    rows: list[int] = []
    decode = encoded.decode_frames

    def counted(data, offsets, wanted, *about):
        rows.extend(wanted.tolist())
        return decode(data, offsets, wanted, *about)

    monkeypatch.setattr(encoded, "decode_frames", counted)
    return rows


def stored(ds: Dataset, name: str = "observation") -> list[bytes]:
    """The encoded frames of the steps and final observations, episode by episode."""
    e = ds.episodes
    spans = zip(e["start"].tolist(), e["num_observed"].tolist(), strict=True)
    return [ds.store.frames(name).packet(row) for start, rows in spans for row in range(start, start + rows)]


def doubled(data):
    data["action"] = data["action"] * 2
    return data


def splatted(data):
    return {**data, "action": data["action"] * 2}


def updated(data):
    return dict(data, action=data["action"] * 2)


def comprehended(data):
    return {n: v * 2 if n == "action" else v for n, v in data.items()}


def copied(data):
    return doubled(data.copy())


def deeply_copied(data):
    return doubled(copy.deepcopy(data))


FORMS = [doubled, splatted, updated, comprehended, copied, deeply_copied]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("arrays", ["numpy", "torch"])
@pytest.mark.parametrize("unit", ["episode", "batch", "step"])
@pytest.mark.parametrize("form", FORMS)
def test_frames_that_a_function_leaves_alone_are_not_decoded_and_share_their_files(ds, frames, form, unit, arrays):
    made = preprocess.run(ds, form, unit=unit, arrays=arrays, jobs=0)
    assert frames == []
    assert sorted(made.manifest.shared) == ["next/reward", *FLAGS, "observation"]
    assert (made.path / "observation" / "bytes").exists()
    before, after = (next((d.path / "observation" / "bytes").rglob("0")) for d in (ds, made))
    assert before.stat().st_ino == after.stat().st_ino
    assert np.array_equal(made.column("action"), ds.column("action") * 2)


@pytest.mark.thorough
def test_a_window_that_looks_at_actions_decodes_no_frames(ds, frames):
    def smooth(window):
        return {"action": window["action"].mean(1)}

    made = preprocess.run(ds, smooth, unit="window", history=1, jobs=0)
    assert frames == []
    assert "observation" in made.manifest.shared


def late(data):
    """Look at the frames of episodes that have an action of 2 in their first step; change nothing."""
    if data["action"].reshape(-1, 2)[0, 0] == 2:
        assert data["observation"].dtype == np.uint8
        assert data["observation"].sum() > 0
    return data


@pytest.mark.thorough
@pytest.mark.parametrize("unit", ["episode", "step"])
def test_only_the_frames_that_are_looked_at_are_decoded(ds, frames, unit):
    made = preprocess.run(ds, late, unit=unit, jobs=0)
    start = int(ds.episodes["start"][2])
    assert set(frames) == set(range(start, start + LENGTHS[2] + 1))
    assert "observation" in made.manifest.shared


@pytest.mark.thorough
@pytest.mark.parametrize("unit", ["batch", "window"])
def test_values_of_frames_are_those_that_pillow_decodes(ds, unit):
    def means(data):
        camera = np.asarray(data["observation"])
        return {**({} if unit == "window" else data), "mean": camera.reshape(len(camera), -1).mean(1)}

    made = preprocess.run(ds, means, unit=unit, jobs=0)
    want = [decoded(k, t).mean() for k, length in enumerate(LENGTHS) for t in range(length)]
    got = np.concatenate([made.episode(k)["mean"].ravel() for k in range(len(LENGTHS))])
    assert np.allclose(got, want)
    assert "observation" in made.manifest.shared


def trimmed(episode):
    """Leave out the first step of every field, whatever its name."""

    def rows(value):
        return {k: rows(v) for k, v in value.items()} if isinstance(value, dict) else value[1:]

    return rows(episode)


def halves(episode):
    n = len(episode["action"]) // 2
    for a, b in ((0, n), (n, len(episode["action"]))):
        camera = {**episode}["observation"][a : b + 1]
        flags = {name: episode["next"][name][a:b] for name in ("reward", "terminated", "truncated")}
        yield {"observation": camera, "action": episode["action"][a:b], "next": flags}


@pytest.mark.thorough
@pytest.mark.parametrize("jobs", [0, 2])
def test_trimmed_episodes_keep_the_encoded_frames_of_the_rows_that_stay(ds, frames, jobs):
    made = preprocess.run(ds, trimmed, jobs=jobs)
    assert frames == []
    assert made.episodes["length"].tolist() == [n - 1 for n in LENGTHS]
    first = np.cumsum([0, *(n + 1 for n in LENGTHS)])[:-1]
    assert stored(made) == [f for i, f in enumerate(stored(ds)) if i not in first]
    pieces = preprocess.run(ds, halves, jobs=0)
    assert frames == []
    assert pieces.num_steps == ds.num_steps
    assert set(stored(pieces)) == set(stored(ds))


@pytest.mark.thorough
def test_dropped_frames_and_episodes_are_not_decoded(ds, frames):
    def without(episode):
        episode.pop("observation")
        return episode if len(episode["action"]) > 2 else None

    made = preprocess.run(ds, without, jobs=0)
    assert frames == []
    assert "observation" not in made.schema
    assert made.num_episodes == 3


def test_frames_that_are_changed_in_place_are_stored_as_they_were_left(ds):
    def dark(episode):
        if len(episode["action"]) == 5:
            {**episode}["observation"][2] = 0  # through the copy of the dict
        return episode

    made = preprocess.run(ds, dark, jobs=0)
    assert made.schema["observation"].kind == "array"
    got = made.gather("observation", np.arange(4, 10))
    want = np.stack([np.zeros_like(decoded(1, t)) if t == 2 else decoded(1, t) for t in range(6)])
    assert np.array_equal(got, want)
    assert np.array_equal(made.gather("observation", np.array([0])), decoded(0, 0)[None])


def test_a_generator_that_writes_into_frames_after_it_returned_them_changes_nothing(ds):
    def once(episode):
        yield {**episode}
        episode["observation"][:] = 0

    made = preprocess.run(ds, once, jobs=0)
    assert stored(made) == stored(ds)


def test_an_array_that_is_not_read_behaves_as_one(ds):
    seen = {}

    def look(episode):
        camera = dict(episode)["observation"]
        seen.update(shape=camera.shape, ndim=camera.ndim, rows=len(camera), dtype=camera.dtype)
        values = episode["observation"].copy()
        assert np.array_equal(camera, values)
        assert (camera - values == 0).all()
        assert np.array_equal(255 - camera, 255 - values)
        assert np.array_equal(np.stack([camera[0], camera[-1]]), values[[0, -1]])
        assert np.array_equal(camera[..., 0], values[..., 0])
        assert np.array_equal(camera.mean((1, 2, 3)), values.mean((1, 2, 3)))
        assert not hasattr(camera, "keys")
        return episode

    preprocess.run(ds, look, jobs=0)
    assert seen == {"shape": (3, 16, 12, 3), "ndim": 4, "rows": 3, "dtype": np.dtype(np.uint8)}


def texts_and_arrays():
    for k, t in enumerate([4, 6, 5]):
        yield {
            "observation": {"grid": np.full((t + 1, 64, 32), k, np.int16), "state": np.full((t + 1, 2), k, np.float32)},
            "action": np.arange(t, dtype=np.float32)[:, None],
            "note": [f"{k} {i}" if i % 2 else None for i in range(t)],
            "next": {"terminated": True},
        }


@pytest.mark.thorough
def test_texts_and_large_rows_are_read_when_they_are_used(monkeypatch):
    ds = rlds_cli.create("local/x", texts_and_arrays())
    read: list[str] = []
    rows = reading.SourceReader.rows

    def counted(self, name, runs):
        read.append(name)
        return rows(self, name, runs)

    monkeypatch.setattr(reading.SourceReader, "rows", counted)
    for form in FORMS:
        made = preprocess.run(ds, form, jobs=0)
        assert not {"note", "observation/grid"} & set(read)
        assert {"note", "observation/grid"} <= set(made.manifest.shared)
    some = preprocess.run(ds, trimmed, jobs=0)
    assert some.gather("note", np.arange(3)).tolist() == ["0 1", None, "0 3"]
    assert np.array_equal(some.episode(1)["observation/grid"], np.full((5, 64, 32), 1))

    def shout(episode):
        episode["note"] = [t and t.upper() + "!" for t in episode["note"]]
        return episode

    loud = preprocess.run(ds, shout, jobs=0)
    assert loud.gather("note", np.arange(4)).tolist() == [None, "0 1!", None, "0 3!"]
    assert "observation/grid" in loud.manifest.shared


@pytest.mark.thorough
def test_a_trial_decodes_one_episode(ds, frames):
    report = preprocess.attempt(ds, splatted, episode=1)
    assert {c.name: c.what for c in report.fields}["observation"] == "untouched"
    assert set(frames) <= set(range(4, 10))
