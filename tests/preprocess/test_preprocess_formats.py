"""Sources of every kind: encoded frames, text, compressed ones, read-only homes; and bounded memory."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import preprocess_functions as functions
import pytest
from PIL import Image

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.base.files import publishing
from rlds_cli.base.ids import parse
from rlds_cli.homes import Home
from rlds_cli.store import Description, Work, finish
from rlds_cli.ted import EncodedFrames, EpisodeData, Field, lay_out

LENGTHS = [4, 6, 3, 5]


def png(image):
    import io

    out = io.BytesIO()
    Image.fromarray(image).save(out, "PNG")
    return np.frombuffer(out.getvalue(), np.uint8)


def encoded(images):
    files = [png(i) for i in images]
    return EncodedFrames(np.concatenate(files), np.array([len(f) for f in files], np.int64))


class Film:
    """A dataset with frames as an archive publishes them: what ``create`` cannot make."""

    id, key, stage, parts = "local/film", "film", "convert", ()
    schema = (
        Field("action", "float32", (1,)),
        Field("instruction", "str", (), "root", "text"),
        Field("next/terminated", "bool", (), "next"),
        Field("next/truncated", "bool", (), "next"),
        Field("observation/camera", "uint8", (8, 6, 3), "both", "frames", "png"),
        Field("observation/state", "float32", (2,), "both"),
    )

    def __init__(self):
        from rlds_cli.archives import Part

        rng = np.random.default_rng(0)
        self.images = [rng.integers(0, 255, (t + 1, 8, 6, 3), np.uint8) for t in LENGTHS]
        self.parts = (Part(None, {}),)

    def read(self, part):
        yield lay_out(
            self.schema,
            [
                EpisodeData(
                    {
                        "action": np.full((t, 1), i, np.float32),
                        "instruction": [f"open {i}"] * t,
                        "next/terminated": np.arange(t) == t - 1,
                        "next/truncated": np.zeros(t, bool),
                        "observation/camera": encoded(images),
                        "observation/state": np.full((t + 1, 2), i, np.float32),
                    },
                    t,
                    0,
                    row=i,
                )
                for i, (t, images) in enumerate(zip(LENGTHS, self.images, strict=True))
            ],
        )


@pytest.fixture
def film(home):
    job = Film()
    place = Home(home)
    built = Work(job, home / "partial" / "film").run(progress=lambda event: None)
    finish(built, Description(job.id))
    publishing.publish(built.directory, place.dataset(parse(job.id)))
    return rlds_cli.open_dataset(job.id), job.images


@pytest.mark.thorough
def test_a_function_sees_decoded_frames_and_text(film):
    ds, images = film
    seen = {}

    def look(e):
        i = int(e["action"][0, 0])
        seen[i] = (e["observation", "camera"].copy(), e["instruction"].tolist())
        return e

    made = preprocess.run(ds, look)
    for i, t in enumerate(LENGTHS):
        if i in seen:
            assert np.array_equal(seen[i][0], images[i]) and seen[i][1] == [f"open {i}"] * t
    assert len(seen) == 4
    assert set(made.manifest.shared) == set(ds.schema) and made.fingerprint == ds.fingerprint
    assert made.schema["observation/camera"].codec == "png"


@pytest.mark.thorough
def test_frames_that_are_changed_become_arrays(film):
    ds, images = film

    def invert(e):
        e["observation"]["camera"] = 255 - e["observation"]["camera"]
        e["instruction"] = [w.upper() for w in e["instruction"]]
        return e

    def invert_batch(b):
        for at in (b, b["next"]):
            at["observation"]["camera"] = 255 - at["observation"]["camera"]
        b["instruction"] = [w.upper() for w in b["instruction"]]
        return b

    a = preprocess.run(ds, invert)
    b = preprocess.run(ds, invert_batch, unit="batch")
    assert a.fingerprint == b.fingerprint
    f = a.schema["observation/camera"]
    assert (f.kind, f.dtype, f.shape, f.codec) == ("array", "uint8", (8, 6, 3), None)
    assert np.array_equal(a.column("observation/camera"), 255 - np.concatenate(images))
    assert a.schema["instruction"].kind == "text" and a.episode(2)["instruction"].tolist() == ["OPEN 2"] * 3
    assert sorted(a.manifest.shared) == ["action", "next/terminated", "next/truncated", "observation/state"]


def test_frames_of_filtered_cropped_and_split_episodes_stay_as_published(film):
    ds, images = film
    kept = preprocess.run(ds, lambda e: e if len(e["action"]) > 3 else None, "long")
    halves = preprocess.run(ds, functions.halves)
    steps = preprocess.run(ds.select(episodes=[3, 1]), lambda s: {**s, "action": s["action"] + 1}, "step", unit="step")
    for made in (kept, halves, steps):
        assert made.schema["observation/camera"] == ds.schema["observation/camera"]
    assert np.array_equal(
        kept.gather("observation/camera", np.arange(kept.num_rows)), np.concatenate([*images[:2], images[3]])
    )
    assert halves.episodes["length"].tolist() == [2, 2, 3, 3, 1, 2, 2, 3]
    for k, (start, length) in enumerate(zip(halves.episodes["start"], halves.episodes["length"], strict=True)):
        frames = halves.gather("observation/camera", np.arange(start, start + length + 1))
        assert np.array_equal(frames, images[k // 2][: len(frames)] if k % 2 == 0 else images[k // 2][-len(frames) :])
    assert np.array_equal(
        steps.gather("observation/camera", np.arange(steps.num_rows)), np.concatenate([images[3], images[1]])
    )


@pytest.mark.thorough
def test_frames_picked_by_hand_become_arrays_of_the_same_values(film):
    ds, images = film

    def every_second(e):
        n = len(e["action"])
        rows = np.arange(0, n, 2)
        return {
            "observation": {k: v[np.append(rows, n)] for k, v in e["observation"].items()},
            "action": e["action"][rows],
            "next": {k: v[[*rows[1:] - 1, n - 1]] for k, v in e["next"].items()},
        }

    made = preprocess.run(ds, every_second)
    assert made.schema["observation/camera"].kind == "array"
    assert np.array_equal(made.column("observation/camera")[:3], images[0][[0, 2, 4]])
    assert "instruction" not in made.schema


@pytest.mark.thorough
@pytest.mark.parametrize("fn", [functions.normalise_in_place, functions.good, functions.normalise_batch])
def test_a_compressed_source_gives_the_same_and_a_compressed_result(fn):
    def source(name, storage):
        rng = np.random.default_rng(1)
        episodes = (
            {
                "observation": rng.standard_normal((t + 1, 3)).astype(np.float32),
                "action": rng.standard_normal((t, 2)),
                "next": {"reward": rng.standard_normal(t), "terminated": True},
                "text": [f"t{i}" for i in range(t)],
            }
            for t in (3, 7, 2, 9)
        )
        return rlds_cli.create(name, episodes, storage=storage)

    plain = preprocess.run(source("local/plain", "memmap"), fn)
    packed = preprocess.run(source("local/packed", "zarr"), fn)
    assert (plain.encoding, packed.encoding) == ("memmap", "zarr")
    assert plain.fingerprint == packed.fingerprint
    for name in plain.schema:
        assert np.array_equal(
            plain.gather(name, np.arange(plain.num_rows)), packed.gather(name, np.arange(packed.num_rows))
        )
    assert set(plain.manifest.shared) == set(packed.manifest.shared)


def test_a_source_that_cannot_be_linked_is_copied(tmp_path, monkeypatch, home):
    shared = tmp_path / "shared"
    source = rlds_cli.create("local/there", [{"observation": np.zeros((4, 2)), "action": np.ones((3, 1))}], home=shared)
    monkeypatch.setenv("RLDS_PATH", str(shared))

    def refuse(*args, **kwargs):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    made = preprocess.run("local/there", lambda e: {**e, "action": e["action"] * 2}, "twice")
    assert made.path.is_relative_to(home) and set(made.manifest.shared) == {
        "observation", "next/terminated", "next/truncated",
    }  # fmt: skip
    assert set(made.manifest.shared.values()) <= {"reflink", "copy"}
    assert not (made.path / "observation/c/0/0").samefile(source.path / "observation/c/0/0")
    monkeypatch.undo()
    linked = preprocess.run(source, lambda e: {**e, "action": e["action"] * 2}, "twice", home=shared)
    assert set(linked.manifest.shared.values()) == {"link"} and linked.fingerprint == made.fingerprint


_MEMORY = """
import re, sys
from pathlib import Path
import rlds_cli
from rlds_cli import preprocess
import preprocess_functions as f

def anonymous():
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024

most = 0.0
def watch(event):
    global most
    most = max(most, anonymous())

ds = rlds_cli.open_dataset("local/wide")
f.preprocess = preprocess
import zarr
before = anonymous()
preprocess.run(ds, f.scale, sys.argv[1], unit=sys.argv[1], jobs=0, progress=watch)
print(most - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
@pytest.mark.parametrize(("unit", "storage"), [("episode", "zarr"), ("batch", "memmap")])
def test_memory_stays_bounded(unit, storage):
    """400 MB of observations; the function's own copies count as well."""

    def episodes():
        rng = np.random.default_rng(0)
        for _ in range(100):
            yield {
                "observation": rng.integers(0, 4, (1001, 1000)).astype(np.float32),
                "action": np.zeros((1000, 1), np.float32),
                "next": {"terminated": True},
            }

    rlds_cli.create("local/wide", episodes(), storage=storage)
    run = subprocess.run(
        [sys.executable, "-c", _MEMORY, unit],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert run.returncode == 0, run.stderr
    assert float(run.stdout) < 300
