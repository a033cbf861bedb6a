"""What the viewer knows of an episode, and of a step: compared with what the datasets were made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lerobot_archives import Content, write_v3
from viewer import viewing

import rlds_cli
from rlds_cli.make import import_files


def steps(length: int, **more: Any) -> dict[str, Any]:
    """An episode of a user: observations count rows, actions are their halves."""
    return {
        "observation": np.arange(length + 1, dtype=np.float32)[:, None] * [1, 10],
        "action": np.arange(length, dtype=np.float32)[:, None] / 2,
        "next/reward": np.ones(length, np.float32),
        "next/terminated": np.arange(length) == length - 1,
        **more,
    }


def test_an_episode_of_lerobot(tmp_path: Path) -> None:
    content = Content(video=("top",), options={"g": "4", "bf": "0"})
    write_v3(tmp_path / "arm", content)
    ds = import_files(tmp_path / "arm", "local/arm", progress=False)
    with viewing(ds) as viewer:
        e = viewer.record("episode", d="~0", episode=1)
        step = viewer.record("step", d="~0", episode=1, step=3)
    assert (e["version"], e["number"], e["steps"], e["rows"], e["task"]) == (1, 1, 7, 7, "pull")
    assert e["time"] == {"rate": 10.0, "at": None, "by": "timestamp"}
    fields = {f["name"]: f for f in e["fields"]}
    assert fields["observation/state"]["kind"] == "curve"
    (camera,) = e["cameras"]
    assert (camera["rows"], camera["width"], camera["height"], camera["codec"]) == ([0, 7], 64, 48, "video")
    assert camera["stream"]["mime"].startswith('video/mp4; codecs="avc1.')
    np.testing.assert_allclose(camera["stream"]["times"], (12 + np.arange(7)) / 10, atol=1e-6)
    np.testing.assert_allclose(step["values"]["observation/state"], content.column("observation.state")[15])


def test_fields_marks_and_columns() -> None:
    ds = rlds_cli.create("local/marked", [steps(4), steps(6)], progress=False)
    with viewing(ds) as viewer:
        e = viewer.record("episode", d="~0", episode=1)
        step = viewer.record("step", d="~0", episode=1, step=6)
        for number in (-1, 2):
            assert viewer.ask("api/episode", d="~0", episode=number).status == 422
        assert viewer.ask("api/step", d="~0", episode=0, step=5).status == 422
    assert (e["steps"], e["rows"], e["end"]) == (6, 7, "terminated")
    assert e["time"] == {"rate": None, "at": None, "by": None}
    assert {"step": 5, "kind": "terminated", "text": "terminated"} in e["marks"]
    columns = {c["name"]: c["value"] for c in e["columns"]}
    assert columns["length"] == 6 and columns["total_reward"] == 6.0
    assert step["values"]["observation"] == [6.0, 60.0] and step["values"]["action"] is None
    fields = {f["name"]: f for f in e["fields"]}
    assert (fields["observation"]["placement"], fields["observation"]["rows"]) == ("both", 7)
    assert (fields["action"]["placement"], fields["action"]["rows"]) == ("step", 6)
    assert fields["next/terminated"]["kind"] == "flag" and fields["next/terminated"]["hold"]


@pytest.mark.parametrize("width", [3, 7, 100])
def test_curves_are_the_lowest_and_highest_values(width: int) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(51, 3))
    values[10:40, 1] = np.nan
    ds = rlds_cli.create("local/curved", [steps(50, observation=values)], progress=False)
    with viewing(ds) as viewer:
        asked = {"field": ["observation", "action"], "first": 2, "stop": 51, "width": width}
        answer = viewer.ask("api/curves", d="~0", episode=0, **asked)
    columns = min(width, 49)
    assert answer.headers["x-columns"] == str(columns)
    found = np.frombuffer(answer.body, "<f4").reshape(4, columns, 2)
    edges = np.arange(columns + 1) * 49 // columns + 2
    actions = np.append(np.arange(50) / 2, np.nan)[:, None]
    stored = np.concatenate([values.astype(ds.schema["observation"].dtype), actions], 1).astype(np.float32)
    for k in range(columns):
        part = stored[edges[k] : edges[k + 1]]
        expected = np.stack([np.fmin.reduce(part), np.fmax.reduce(part)], 1)
        np.testing.assert_array_equal(found[:, k], expected)
