"""Exports to MCAP, read by the library mcap with the decoder of ROS 2, and by an import."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mcap.reader import make_reader
from mcap.writer import Writer
from mcap_ros2.decoder import DecoderFactory
from PIL import Image
from test_exports_hdf5 import episode, jpegs

import rlds_cli
from rlds_cli.archives.exports.exporting import plan_export
from rlds_cli.errors import CorruptArchive
from rlds_cli.look.report.tracing import trace
from rlds_cli.make import importing

MS = 1_000_000


def messages(path: Path) -> dict[str, list[tuple[int, Any]]]:
    """Time in milliseconds and message, by topic, as the library decodes them."""
    found: dict[str, list[tuple[int, Any]]] = {}
    with path.open("rb") as f:
        reader = make_reader(f, decoder_factories=[DecoderFactory()])
        for _, channel, m, message in reader.iter_decoded_messages():
            found.setdefault(channel.topic, []).append((m.log_time // MS, message))
    return found


def values(sent: list[tuple[int, Any]]) -> list[list[float]]:
    return [list(m.data) for _, m in sent]


def given() -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    made = []
    for k, (steps, end) in enumerate([(3, "terminated"), (1, "truncated"), (2, "cut")]):
        e = episode(steps, end, first=10 * k, note=[f"s{i}" for i in range(steps)])
        pixels = rng.integers(0, 255, (steps + 1, 4, 5, 3), dtype=np.uint8)
        e["observation"] = {"q": e["observation"], "cam": jpegs(steps + 1), "map": pixels}
        e["episode"] = {"task": "pick" if k else "place", "score": k / 4}
        made.append(e)
    return made


def test_times_that_count_steps_are_said(home: Path, tmp_path: Path) -> None:
    ds = rlds_cli.create("local/a", given(), progress=False)
    done = rlds_cli.export(ds, "mcap", tmp_path / "a", progress=False)
    assert [t for t, _ in messages(tmp_path / "a/episode_0000.mcap")["/action"]] == [0, 1000, 2000]
    assert [note for note in done.notes if "1 s apart" in note and "--set fps=20" in note]
    stated = rlds_cli.create("local/b", given(), fps=20, progress=False)
    assert not rlds_cli.export(stated, "mcap", tmp_path / "b", progress=False).notes


def test_a_recording_of_each_episode(home: Path, tmp_path: Path) -> None:
    episodes = given()
    ds = rlds_cli.create("local/a", episodes, fps=20, progress=False)
    done = rlds_cli.export(ds, "mcap", tmp_path / "a", progress=False)
    assert done.losses == () and done.fingerprint == ds.fingerprint
    assert sorted(p.name for p in (tmp_path / "a").glob("*.mcap")) == [f"episode_000{k}.mcap" for k in range(3)]
    sent = messages(tmp_path / "a/episode_0000.mcap")
    times = {topic: [t for t, _ in of] for topic, of in sent.items()}
    assert times["/observation/q"] == times["/observation/cam"] == [0, 50, 100, 150]
    assert times["/action"] == times["/note"] == [0, 50, 100]
    assert times["/next/reward"] == times["/next/terminated"] == [50, 100, 150], "what came of a step is known after it"
    assert values(sent["/observation/q"]) == [[t, -t] for t in range(4)]
    assert values(sent["/action"]) == [[0], [1], [2]] and values(sent["/next/reward"]) == [[0], [0.5], [1]]
    assert values(sent["/next/terminated"]) == [[0], [0], [1]]
    assert [m.data for _, m in sent["/note"]] == ["s0", "s1", "s2"]
    shown = sent["/observation/cam"][2][1]
    assert shown.format == "jpeg" and (shown.header.stamp.sec, shown.header.stamp.nanosec) == (0, 100 * MS)
    assert np.unique(np.asarray(Image.open(io.BytesIO(bytes(shown.data))))).tolist() == [2]
    image = sent["/observation/map"][1][1]
    assert (image.encoding, image.height, image.width, image.step) == ("rgb8", 4, 5, 15)
    assert bytes(image.data) == episodes[0]["observation"]["map"][1].tobytes()
    with (tmp_path / "a/episode_0002.mcap").open("rb") as f:
        (record,) = make_reader(f).iter_metadata()
    said = json.loads(record.metadata["episode"])
    assert record.name == "rlds" and said["columns"] == {"task": "pick", "score": 0.5}
    assert values(messages(tmp_path / "a/episode_0002.mcap")["/next/truncated"]) == [[0], [0]], "it was cut"


def test_an_import_gives_the_same_dataset(home: Path, tmp_path: Path) -> None:
    ds = rlds_cli.create("local/a", given(), fps=20, progress=False)
    rlds_cli.export(ds, "mcap", tmp_path / "a", progress=False)
    again = importing.import_files(tmp_path / "a", "local/again", progress=False)
    assert again.fingerprint == ds.fingerprint and again.manifest.env["fps"] == 20
    assert again.episodes["end"].tolist() == ["terminated", "truncated", "cut"]
    assert again.episodes["task"].tolist() == ["place", "pick", "pick"]
    assert trace(again, 6).ok
    as_recording = importing.plan_import(
        tmp_path / "a/episode_0000.mcap", "local/x", topics=["/observation/q", "/action"]
    )
    assert "info/age/action" in {f.name for f in as_recording.fields}, "with options it is read as any recording"


def test_what_messages_cannot_hold_is_declared(home: Path, tmp_path: Path) -> None:
    e = {"observation": np.arange(3.0), "action": np.ones(2), "note": ["a", None], "none": np.zeros((2, 0))}
    e |= {
        "episode": {"score": float("nan"), "won": True, "who": None},
        "half": np.array([0.1, np.nan], np.float16),
        "odd": np.ones(2, np.complex64),
    }
    ds = rlds_cli.create("local/a", [e], progress=False)
    losses = {(loss.field, loss.kind) for loss in plan_export(ds, "mcap", tmp_path / "a").losses}
    assert losses == {("note", "missing"), ("none", "field"), ("odd", "field")}
    done = rlds_cli.export(ds, "mcap", tmp_path / "a", lossy=True, progress=False)
    again = importing.import_files(tmp_path / "a", "local/again", progress=False)
    assert again.fingerprint == done.fingerprint and again.schema["half"].dtype == "float16"
    assert np.isnan(again.episodes["score"][0]) and again.episodes["won"][0]
    assert np.array_equal(again.episode(0)["half"].ravel(), e["half"], equal_nan=True)
    assert values(messages(tmp_path / "a/episode_0000.mcap")["/half"])[0] == [float(np.float16(0.1))]


@pytest.mark.parametrize("wrong", ["times", "fields", "text", "values"])
def test_a_record_that_lies_is_refused(tmp_path: Path, wrong: str) -> None:
    field = {"dtype": "float64", "shape": [], "placement": "root", "kind": "array", "codec": None}
    about = {"steps": 2, "hz": 10.0, "end": "cut", "final": False, "columns": {}, "fields": {"action": field}}
    about |= {"fields": {"action": field | {"dtype": "object"}}} if wrong == "fields" else {}
    with (tmp_path / "a.mcap").open("wb") as f:
        writer = Writer(f)
        writer.start()
        writer.add_metadata("rlds", {"episode": "no JSON" if wrong == "text" else json.dumps(about)})
        channel = writer.register_channel("/action", "json", 0)
        for time in (0, 50 if wrong == "times" else 100):
            writer.add_message(channel, log_time=time * MS, data=b'{"x": [1, 2]}', publish_time=0)
        writer.finish()
    said = r"a\.mcap: /action: a message does not hold" if wrong == "values" else r"a\.mcap: its record rlds"
    with pytest.raises(CorruptArchive, match=said):
        importing.import_files(tmp_path / "a.mcap", "local/x", progress=False)
