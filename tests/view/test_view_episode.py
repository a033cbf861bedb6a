"""What the viewer knows of an episode, and of a step: compared with what the datasets were made of."""

from __future__ import annotations

import json
import shutil
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


def lerobot(tmp_path: Path, names: Any) -> Any:
    """A LeRobot dataset that names the elements of its state."""
    write_v3(tmp_path / "arm", Content())
    path = tmp_path / "arm" / "meta" / "info.json"
    info = json.loads(path.read_text())
    info["features"]["observation.state"]["names"] = names
    path.write_text(json.dumps(info))
    return import_files(tmp_path / "arm", "local/arm", progress=False)


@pytest.mark.parametrize(
    ("names", "elements"),
    [
        (["a", "b", "c", "d"], ["a", "b", "c", "d"]),
        ({"motors": ["a", "b"], "gripper": ["c", "d"]}, ["a", "b", "c", "d"]),
        (["a", "b"], ["0", "1", "2", "3"]),  # of another width
        (None, ["0", "1", "2", "3"]),
        ([1, 2, 3, 4], ["0", "1", "2", "3"]),
    ],
)
def test_elements_have_the_names_of_the_archive(tmp_path: Path, names: Any, elements: list[str]) -> None:
    with viewing(lerobot(tmp_path, names)) as viewer:
        fields = viewer.record("episode", d="~0", episode=0)["fields"]
    (state,) = (f for f in fields if f["name"] == "observation/state")
    assert state["elements"] == elements and state["hidden"] == 0


def test_fields_of_every_kind() -> None:
    rows = 4
    seen = {
        "state": np.zeros((rows, 2, 3), np.float32),
        "wide": np.zeros((rows, 300), np.float32),
        "waves": np.zeros((rows, 2), np.complex64),
        "nothing": np.zeros((rows, 0), np.float32),
        "count": np.arange(rows, dtype=np.int16),
        "lights": np.zeros((rows, 2), bool),
        "picture": np.zeros((rows, 24, 24, 3), np.uint8),
        "said": np.array(["a", "a", "b", "b"], object),
    }
    action = np.zeros((rows - 1, 2, 3), np.float32)
    ds = rlds_cli.create("local/kinds", [{"observation": seen, "action": action}], progress=False)
    with viewing(ds) as viewer:
        e = viewer.record("episode", d="~0", episode=0)
        step = viewer.record("step", d="~0", episode=0, step=1)["values"]
        for field in ("observation/said", "observation/waves", "observation/none"):
            answer = viewer.ask("api/curves", d="~0", episode=0, field=field)
            assert answer.status in (404, 422) and answer.record["error"]
    fields = {f["name"].removeprefix("observation/"): f for f in e["fields"]}
    kinds = {name: f["kind"] for name, f in fields.items()}
    assert kinds == {
        "state": "curve", "wide": "curve", "waves": "other", "nothing": "other", "count": "curve", "lights": "flag",
        "picture": "camera", "said": "text", "action": "curve", "next/terminated": "flag", "next/truncated": "flag",
    }  # fmt: skip
    assert fields["state"]["elements"] == ["0,0", "0,1", "0,2", "1,0", "1,1", "1,2"]
    assert fields["action"]["partner"] == "observation/state"
    assert (len(fields["wide"]["elements"]), fields["wide"]["hidden"]) == (256, 44)
    assert fields["count"]["hold"] and fields["lights"]["hold"] and not fields["state"]["hold"]
    assert e["texts"] == {"observation/said": [[0, "a"], [2, "b"]]}
    assert "observation/picture" not in step and len(step["observation/wide"]) == 256
    assert (step["observation/count"], step["observation/said"], step["observation/lights"]) == (1, "a", [False, False])


# -- times

NOW = 1_764_000_000  # seconds since 1970
UNEVEN = np.array([0.0, 0.1, 0.25, 0.3, 0.5, 0.61])


@pytest.mark.parametrize(
    ("name", "times", "fps", "unit"),
    [
        ("timestamp", UNEVEN, None, 1.0),
        ("info/time", 5 + UNEVEN, None, 1.0),
        ("timestamp", NOW + UNEVEN, None, 1.0),
        ("timestamp", (1000 * UNEVEN).astype(np.int64), 10.0, 1e-3),
        ("timestamp", (NOW * 10**9 + (UNEVEN * 1e9)).astype(np.int64), None, 1e-9),
        ("timestamp", np.array([NOW * 10**6 + round(1e6 * t) for t in UNEVEN]), None, 1e-6),
    ],
)
def test_times_of_rows(name: str, times: Any, fps: float | None, unit: float) -> None:
    """The final observation has no time of its own: it follows after the usual step."""
    ds = rlds_cli.create("local/timed", [steps(6, **{name: times})], progress=False, fps=fps)
    with viewing(ds) as viewer:
        time = viewer.record("episode", d="~0", episode=0)["time"]
    assert time["by"] == name and len(time["at"]) == 7
    wanted = np.array([t - times[0] for t in times], np.float64) * unit
    np.testing.assert_allclose(time["at"], [*wanted, wanted[-1] + np.median(np.diff(wanted))], atol=2e-6)
    np.testing.assert_allclose(time["rate"], 1 / np.median(np.diff(wanted)), rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "times", "fps", "expected"),
    [
        ("timestamp", np.arange(6) / 30, None, {"rate": pytest.approx(30), "at": None, "by": "timestamp"}),
        ("timestamp", 3 + np.arange(6) / 30, 30.0, {"rate": 30.0, "at": None, "by": "timestamp"}),
        ("timestamp", np.arange(6), None, {"rate": None, "at": None, "by": None}),  # seconds, or ticks?
        ("timestamp", np.zeros(6), 20.0, {"rate": 20.0, "at": None, "by": "fps"}),
        ("timestamp", np.array([0, 1, 2, np.nan, 4, 5]), 20.0, {"rate": 20.0, "at": None, "by": "fps"}),
        ("info/age/time", UNEVEN, 20.0, {"rate": 20.0, "at": None, "by": "fps"}),
    ],
)
def test_rates(name: str, times: Any, fps: float | None, expected: Any) -> None:
    ds = rlds_cli.create("local/timed", [steps(6, **{name: times})], progress=False, fps=fps)
    with viewing(ds) as viewer:
        assert viewer.record("episode", d="~0", episode=0)["time"] == expected


# -- marks, bands, and where they are


def test_subtasks_are_bands_of_the_steps_of_an_episode() -> None:
    said = [[0, 2, "reach"], [3, 5, "grasp"]]
    with rlds_cli.writer("local/told") as w:
        w.add_episodes([steps(3), steps(5)])
    ds = rlds_cli.open_dataset("local/told").label({"subtasks": [None, json.dumps(said)]})
    with viewing(ds.select(episodes=[1])) as viewer:
        e = viewer.record("episode", d="~0", episode=0)
    assert [[b["first"], b["stop"], b["text"]] for b in e["bands"] if b["kind"] == "subtask"] == said


def test_findings_are_marks_of_their_episodes() -> None:
    wrong = steps(5)
    wrong["observation"] = wrong["observation"].astype(np.float32)
    wrong["observation"][3] = np.nan
    ds = rlds_cli.create("local/found", [steps(5), wrong], progress=False)
    with viewing(ds) as viewer:
        marks = [viewer.record("episode", d="~0", episode=k)["marks"] for k in (0, 1)]
    found = [[(m["step"], m["severity"]) for m in of if "not-finite" in m["text"]] for of in marks]
    assert found == [[], [(3, "error")]]


def test_a_note_that_concerns_all_episodes_marks_none() -> None:
    open_ended = {name: values for name, values in steps(5).items() if name != "next/terminated"}
    open_ended["observation"] = open_ended["observation"][:-1]
    for others, marked in (([open_ended], False), ([steps(5)], True)):
        ds = rlds_cli.create("local/short", [open_ended, *others], progress=False)
        with viewing(ds) as viewer:
            marks = viewer.record("episode", d="~0", episode=0)["marks"]
            codes = {f["code"] for f in viewer.record("dataset", d="~0")["findings"]}
        assert "next-unknown" in codes
        assert any("next-unknown" in m["text"] for m in marks) == marked
        shutil.rmtree(ds.path)


def test_values_of_some_steps() -> None:
    ds = rlds_cli.create("local/values", [steps(5)], progress=False)
    with viewing(ds) as viewer:
        single = [viewer.record("step", d="~0", episode=0, step=k)["values"] for k in range(6)]
        found = viewer.record("step", d="~0", episode=0, step=2, count=50)
        refused = [viewer.ask("api/step", d="~0", episode=0, step=0, count=n).status for n in (0, 65)]
    assert found["values"] == single[2:] and single[5]["action"] is None and single[4]["action"] is not None
    assert refused == [422, 422]


def test_the_mark_at_the_end_of_a_cut_episode_says_so() -> None:
    open_ended = steps(5)
    del open_ended["next/terminated"]
    ds = rlds_cli.create("local/ended", [open_ended], progress=False)
    with viewing(ds) as viewer:
        e = viewer.record("episode", d="~0", episode=0)
    assert e["end"] == "cut" and e["marks"][0] == {"step": 4, "kind": "truncated", "text": "cut"}


def test_an_episode_of_very_many_rows_is_told_of_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("times", "episode", "cameras"):
        monkeypatch.setattr(f"rlds_cli.view.{module}.MOST_ROWS", 5)
    said = np.array([str(k) for k in range(13)], object)
    seen = {"said": said, "camera": np.zeros((13, 20, 30), np.uint8)}
    flags = {"next/terminated": np.isin(np.arange(12), [2, 7, 11])}
    uneven = np.cumsum(1 + np.arange(12) % 2)
    ds = rlds_cli.create("local/many", [steps(12, observation=seen, timestamp=uneven / 10, **flags)], progress=False)
    with viewing(ds) as viewer:
        e = viewer.record("episode", d="~0", episode=0)
    assert e["time"]["by"] == "timestamp" and e["time"]["at"] is None and e["time"]["rate"] > 5
    assert [text for _, text in e["texts"]["observation/said"]] == list("01234")
    assert e["cameras"][0]["rows"] == [0, 13]
    flagged = [(m["step"], m["kind"]) for m in e["marks"] if m["kind"] != "finding"]
    assert flagged == [(2, "terminated"), (7, "terminated"), (11, "terminated")]


def test_long_texts_are_cut() -> None:
    said = np.array([f"{k}" + "x" * 100_000 for k in range(30)], object)
    ds = rlds_cli.create("local/long", [steps(29, observation={"said": said})], progress=False)
    with viewing(ds) as viewer:
        answer = viewer.ask("api/episode", d="~0", episode=0)
    assert len(answer.body) < 200_000
    assert [text[: len(str(k))] for k, (_, text) in enumerate(answer.record["texts"]["observation/said"])] == [
        str(k) for k in range(30)
    ]


# -- curves


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
