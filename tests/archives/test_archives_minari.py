from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as g
from minari import MinariDataset
from minari_archives import FORMATS, archive, buffer, compare, read, same, sampled, write

from rlds_cli import archives
from rlds_cli.archives.minari import read as minari
from rlds_cli.ted import Field, Space

SAMPLES = Path(__file__).parents[1] / "data" / "minari"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("name", ["hopper/random", "pointmaze/umaze", "taxi/random", "breakout/random"])
@pytest.mark.parametrize("chunk_rows", [None, 17])
def test_a_real_dataset_is_read_as_the_real_library_reads_it(
    name: str, data_format: str, chunk_rows: int | None
) -> None:
    directory = SAMPLES / f"{name}_{data_format}-v0" / "data"
    got = compare(directory, chunk_rows=chunk_rows)
    real = MinariDataset(directory)
    assert got.table.seed == [m["seed"] for m in real.storage.get_episode_metadata(range(len(got)))]
    assert got.plan.env["id"] == real.env_spec.id
    assert Space(got.plan.spaces["observation"]).build() == real.observation_space
    assert Space(got.plan.spaces["action"]).build() == real.action_space
    assert got.plan.facts["minari_version"] == "0.5.4"
    assert archives.recognise(archive(directory).files) == (
        "minari",
        f"Minari dataset genuine/{name}_{data_format}-v0 "
        f"({data_format}, {real.total_episodes:,} episodes, {real.total_steps:,} steps)",
    )


SPACES = {
    "box": g.Box(-np.inf, np.inf, (3, 2), np.float32),
    "scalar": g.Box(0.0, 1.0, (), np.float64),
    "one": g.Box(0.0, 1.0, (1,), np.float64),
    "discrete": g.Discrete(7, start=-3),
    "multidiscrete": g.MultiDiscrete([3, 4, 5], start=[1, 0, -2]),
    "multidiscrete 2d": g.MultiDiscrete(np.array([[3, 4], [5, 6]])),
    "multibinary": g.MultiBinary(5),
    "multibinary 2d": g.MultiBinary([2, 3]),
    "text": g.Text(12, min_length=0, charset="abcäöü 漢字"),
    "dict": g.Dict({"b": g.Discrete(4, start=1), "a": g.Box(-1, 1, (2,), np.float16)}),
    "tuple": g.Tuple([g.Discrete(3), g.Box(0, 9, (2,), np.int32), g.Text(4)]),
    "long tuple": g.Tuple([g.Discrete(n + 1) for n in range(12)]),
    "nested": g.Dict(
        {
            "goal": g.Dict({"xy": g.Box(-1, 1, (2,)), "word": g.Text(5)}),
            "parts": g.Tuple([g.MultiBinary(2), g.Dict({"deep": g.Tuple([g.Discrete(2), g.Discrete(3)])})]),
            "grid": g.Box(0, 255, (7, 7, 3), np.uint8),
        }
    ),
    "raw bytes": g.Box(0, 255, (128,), np.uint8),
}


@pytest.mark.sampled(11)
@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("name", SPACES)
def test_every_space_as_observation_and_as_action(
    name: str, data_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = SPACES[name]
    buffers = [buffer(n, sampled(space, n + 1, n), sampled(space, n, 50 + n)) for n in (1, 5, 11)]
    directory = write(tmp_path, buffers, space, space, data_format=data_format, monkeypatch=monkeypatch)
    got = compare(directory)
    assert Space(got.plan.spaces["observation"]).build() == space
    assert compare(directory, chunk_rows=3).chunks > got.chunks == 1


IMAGES = {
    "rgb": g.Box(0, 255, (40, 32, 3), np.uint8),
    "grey": g.Box(0, 255, (32, 36), np.uint8),
    "in a dict": g.Dict({"camera": g.Box(0, 255, (32, 32, 3), np.uint8), "small": g.Box(0, 255, (8, 8, 3), np.uint8)}),
}


@pytest.mark.thorough
@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("name", IMAGES)
def test_images_stay_encoded_and_decode_to_what_the_library_decodes(
    name: str, data_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space, act = IMAGES[name], g.Discrete(3)
    buffers = [buffer(n, sampled(space, n + 1, n), sampled(act, n, 1)) for n in (2, 6)]
    directory = write(tmp_path, buffers, space, act, data_format=data_format, monkeypatch=monkeypatch)
    got = compare(directory)
    field = {f.name: f for f in got.plan.schema}["observation/camera" if name == "in a dict" else "observation"]
    shape = space["camera"].shape if name == "in a dict" else space.shape
    assert field == Field(field.name, "uint8", shape, "both", "frames", "jpeg")
    compare(directory, chunk_rows=2)


@pytest.mark.thorough
@pytest.mark.parametrize("data_format", FORMATS)
def test_images_stored_raw_are_arrays(data_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space, act = IMAGES["rgb"], g.Discrete(3)
    buffers = [buffer(n, sampled(space, n + 1, n), sampled(act, n, 1)) for n in (2, 6)]
    options = {"data_format": data_format, "monkeypatch": monkeypatch, "jpeg_encoding": False}
    got = compare(write(tmp_path, buffers, space, act, **options))
    assert got.plan.schema[0] == Field("observation", "uint8", (40, 32, 3), "both")


def test_jpegs_of_one_length_make_a_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space, act = IMAGES["rgb"], g.Discrete(3)
    constant = np.broadcast_to(np.uint8(90), (4, *space.shape))  # equal images encode to equal lengths
    buffers = [buffer(3, constant, sampled(act, 3, 1)), buffer(3, sampled(space, 4, 0), sampled(act, 3, 1))]
    directory = write(tmp_path, buffers, space, act, monkeypatch=monkeypatch)
    import h5py

    with h5py.File(directory / "main_data.hdf5") as f:
        assert f["episode_0/observations"].ndim == 2 and f["episode_1/observations"].dtype == object
    compare(directory)


def test_images_as_actions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = IMAGES["rgb"]
    buffers = [buffer(3, sampled(g.Discrete(2), 4, 0), sampled(space, 3, 5))]
    got = compare(write(tmp_path, buffers, g.Discrete(2), space, monkeypatch=monkeypatch))
    assert got.plan.schema[1] == Field("action", "uint8", space.shape, "root", "frames", "jpeg")


@pytest.mark.parametrize("data_format", FORMATS)
def test_seeds_and_options(data_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space, act = g.Box(-1, 1, (2,)), g.Discrete(3)
    more: list[dict[str, Any]] = [
        {"seed": 12545766524678614138, "options": {"goal": np.array([1.5, 2.0]), "deep": {"level": 3, "name": "maze"}}},
        {},
        {"seed": 0, "options": {"flag": True}},
        {"seed": 2**64 - 1},
    ]
    buffers = [buffer(2, sampled(space, 3, i), sampled(act, 2, i), **m) for i, m in enumerate(more)]
    got = compare(write(tmp_path, buffers, space, act, data_format=data_format, monkeypatch=monkeypatch))
    assert got.table.seed == [12545766524678614138, None, 0, 2**64 - 1]
    assert [None if o is None else json.loads(o) for o in got.table.options] == [
        {"goal": [1.5, 2.0], "deep": {"level": 3, "name": "maze"}},
        None,
        {"flag": True},
        None,
    ]


@pytest.mark.thorough
def test_the_same_data_in_three_formats_give_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space, act = SPACES["nested"], SPACES["tuple"]
    results = []
    for data_format in FORMATS:
        buffers = [buffer(n, sampled(space, n + 1, n), sampled(act, n, n), seed=n, options={"n": n}) for n in (3, 8)]
        data = write(tmp_path / data_format, buffers, space, act, data_format=data_format, monkeypatch=monkeypatch)
        results.append(read(data))
    for other in results[1:]:
        assert set(other.plan.schema) == set(results[0].plan.schema)
        assert other.table.seed == results[0].table.seed and other.table.options == results[0].table.options
        for a, b in zip(results[0].columns, other.columns, strict=True):
            for name, value in a.items():
                same(b[name], value, name)


def test_a_plan_is_picklable_and_its_parts_are_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space, act = SPACES["nested"], g.Discrete(3)
    buffers = [buffer(3, sampled(space, 4, 0), sampled(act, 3, 0))]
    plan = minari.plan(archive(write(tmp_path, buffers, space, act, monkeypatch=monkeypatch)))
    assert pickle.loads(pickle.dumps(plan)) == plan
    for value in [p.args for p in plan.parts] + [plan.facts, plan.env, plan.spaces]:
        json.dumps(value)


def test_metadata_is_kept_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffers = [buffer(3, sampled(g.Discrete(3), 4, 0), sampled(g.Discrete(3), 3, 0))]
    data = write(tmp_path, buffers, g.Discrete(3), g.Discrete(3), monkeypatch=monkeypatch)
    plan = minari.plan(archive(data))
    assert dict(minari.metadata(plan)) == {"minari/metadata.json": (data / "metadata.json").read_text()}
    assert plan.facts["author"] == ["me"] and plan.facts["algorithm"] == "hand" and plan.facts["format"] == "hdf5"
