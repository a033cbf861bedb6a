"""Exports to TFDS, read by a decoder of the tests' own, by the wire format of protocol buffers."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import frames_data
import lerobot_archives
import numpy as np
import pytest
import tfds_files
from made_once import sample_dataset
from test_exports import episodes

import rlds_cli
from rlds_cli.archives.exports.exporting import plan_export
from rlds_cli.archives.exports.format import Unit
from rlds_cli.archives.tfds.write import Tfds
from rlds_cli.errors import CorruptArchive, ExportError, InvalidArgument, LossyExport
from rlds_cli.make.importing import import_files


def number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return value, at


def parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields of a message that have a length."""
    at = 0
    while at < len(data):
        tag, at = number(data, at)
        assert tag & 7 == 2
        size, at = number(data, at)
        yield tag >> 3, data[at : at + size]
        at += size
    assert at == len(data)


def decoded(record: bytes) -> dict[str, list[Any]]:
    """The lists of an Example."""
    found: dict[str, list[Any]] = {}
    ((_, features),) = parts(record)
    for _, entry in parts(features):
        (_, key), (_, feature) = parts(entry)
        ((kind, values),) = parts(feature)
        inner = [content for _, content in parts(values)]
        if kind == 2:
            inner = [x for content in inner for x in struct.unpack(f"<{len(content) // 4}f", content)]
        elif kind == 3:
            numbers, at = list[int](), 0
            while at < len(inner[0]):
                n, at = number(inner[0], at)
                numbers.append(n - (1 << 64) if n >> 63 else n)
            inner = numbers
        found[key.decode()] = inner
    return found


def records(path: Path) -> list[dict[str, list[Any]]]:
    """The Examples of a file, with both checksums of each record."""
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        record = data[at + 12 : at + 12 + size]
        assert data[at : at + 16 + size] == tfds_files.framed(record)
        found.append(decoded(record))
        at += 16 + size
    return found


def test_the_last_step_holds_the_final_observation(home: Path, tmp_path: Path) -> None:
    ds = rlds_cli.create("local/three", episodes())
    done = rlds_cli.export(ds, "tfds", tmp_path / "Three Lights")
    assert done.proved and done.fingerprint == ds.fingerprint and not done.losses
    made = records(tmp_path / "Three Lights" / "three_lights-train.tfrecord-00000-of-00001")
    first, second, third = made
    assert first["steps/observation"] == [struct.pack("<2d", *row) for row in ([0, 0], [1, 10], [2, 20])]
    assert first["steps/action"] == [struct.pack("<d", x) for x in (0, 0.125, 0)]
    assert first["steps/info/height"] == [struct.pack("<d", x) for x in (0, 2.5, 0)]
    assert second["steps/reward"] == [100, 100, 100, 0]
    assert second["steps/is_first"] == [1, 0, 0, 0] and second["steps/is_last"] == [0, 0, 0, 1]
    assert second["steps/is_terminal"] == [0, 0, 0, 1]  # the state after the last step has no future
    assert third["steps/is_terminal"] == [0, 0] and third["steps/is_last"] == [0, 1]
    features = json.loads((tmp_path / "Three Lights" / "features.json").read_text())
    inner = features["featuresDict"]["features"]["steps"]["sequence"]["feature"]["featuresDict"]["features"]
    assert inner["observation"]["tensor"] == {"shape": {"dimensions": ["2"]}, "dtype": "float64", "encoding": "bytes"}
    assert inner["reward"]["tensor"] == {"shape": {}, "dtype": "float32", "encoding": "none"}


def test_without_final_observations_every_step_is_real(home: Path, tmp_path: Path) -> None:
    made = episodes(final=False)
    made[0]["next"] = {"reward": made[0]["next"]["reward"]}  # cut
    ds = rlds_cli.create("local/three", made)
    assert rlds_cli.export(ds, "tfds", tmp_path / "out").fingerprint == ds.fingerprint
    first, second, _ = records(tmp_path / "out" / "out-train.tfrecord-00000-of-00001")
    assert first["steps/is_first"] == [1, 0] and first["steps/is_last"] == [0, 0]
    assert second["steps/is_last"] == [0, 0, 1] and second["steps/is_terminal"] == [0, 0, 1]
    assert len(second["steps/action"]) == 3


def test_final_observations_of_some_episodes_are_a_loss(home: Path, tmp_path: Path) -> None:
    ds = rlds_cli.create("local/mixed", [episodes()[0], episodes(final=False)[1]])
    with pytest.raises(LossyExport, match="final observations of 1 of 2 episodes"):
        rlds_cli.export(ds, "tfds", tmp_path / "out")
    assert rlds_cli.export(ds, "tfds", tmp_path / "out", lossy=True).proved


def test_rewards_of_several_values(home: Path, tmp_path: Path) -> None:
    made = [
        {**e, "next": {**e["next"], "reward": np.outer(np.arange(len(e["action"])) + 1, [1.0, 10])}} for e in episodes()
    ]
    ds = rlds_cli.create("local/two-goals", made)
    done = rlds_cli.export(ds, "tfds", tmp_path / "out")
    assert done.fingerprint == ds.fingerprint and not done.losses
    _, second, _ = records(tmp_path / "out" / "out-train.tfrecord-00000-of-00001")
    assert second["steps/reward"] == [struct.pack("<2d", k, 10 * k) for k in (1, 2, 3, 0)]


def test_without_an_observation_nothing_is_written(home: Path, tmp_path: Path) -> None:
    made = {"observation": np.full((3, 2), 1 + 1j), "action": np.zeros(2), "next": {"reward": np.zeros(2)}}
    ds = rlds_cli.create("local/waves", [made])
    with pytest.raises(ExportError, match="local/waves has no observation"):
        rlds_cli.export(ds, "tfds", tmp_path / "out", lossy=True)
    assert not list(tmp_path.glob("*out*"))


def test_lists_of_every_kind(home: Path, tmp_path: Path) -> None:
    steps = np.arange(3)
    e = {
        "observation": {
            "half": (steps * 0.5).astype(np.float16),
            "grid": np.arange(192, dtype=np.uint8).reshape(3, 64),
        },
        "action": np.array([-1, 2**40, 0]),
        "large": np.array([2**64 - 1, 0, 5], np.uint64),
        "is_first": steps == 2,
        "said": ["a", "é", ""],
        "info": {"both": np.arange(3) * 1.0},
        "next": {"reward": np.zeros((3, 2), np.float32), "discount": np.ones(3, np.float32), "info": {"x": steps}},
        "episode": {"success": True, "score": 0.5, "note": "n"},
    }
    other = {**e, "episode": {"success": False, "score": None, "note": "m"}}
    ds = rlds_cli.create("local/kinds", [e, other])
    with pytest.raises(InvalidArgument, match="several texts that could be the instruction: note, said"):
        rlds_cli.export(ds, "tfds", tmp_path / "out")
    done = rlds_cli.export(ds, "tfds", tmp_path / "out", task="said")
    assert done.fingerprint == ds.fingerprint and not done.losses
    made = records(tmp_path / "out" / "out-train.tfrecord-00000-of-00001")
    assert made[0]["steps/language_instruction"] == made[0]["steps/said"]
    assert made[0]["steps/action"] == [-1, 2**40, 0]
    assert made[0]["steps/large"] == [-1, 0, 5]  # as TFDS has them: 64 bits
    assert made[0]["steps/observation/half"] == [0, 0.5, 1]
    assert made[0]["steps/observation/grid"][1] == bytes(range(64, 128))
    assert made[0]["steps/said"] == [b"a", "é".encode(), b""]
    assert made[0]["steps/is_first_"] == [0, 0, 1] and made[0]["steps/is_first"] == [1, 0, 0]
    assert made[0]["steps/discount"] == [1, 1, 1] and made[0]["steps/next/info/x"] == [0, 1, 2]
    assert made[1]["episode_metadata/score_missing"] == [1] and made[0]["episode_metadata/note"] == [b"n"]
    again = import_files(tmp_path / "out", "local/again")
    assert again.episodes["score"].tolist() == pytest.approx([0.5, np.nan], nan_ok=True)
    assert again.episodes["success"].tolist() == [True, False]


def test_steps_without_a_text_are_a_loss(home: Path, tmp_path: Path) -> None:
    made = episodes()
    for e in made:
        e["said"] = [None, "b", "c"][: len(e["action"])]
    ds = rlds_cli.create("local/said", made)
    assert [loss.kind for loss in plan_export(ds, "tfds", tmp_path / "out").losses] == ["missing"]
    assert rlds_cli.export(ds, "tfds", tmp_path / "out", lossy=True).proved
    first = records(tmp_path / "out" / "out-train.tfrecord-00000-of-00001")[0]
    assert first["steps/said"] == [b"", b"b", b""]


def test_images_stay_encoded(home: Path, tmp_path: Path) -> None:
    ds = frames_data.film([3, 2])
    assert rlds_cli.export(ds, "tfds", tmp_path / "out").fingerprint == ds.fingerprint
    made = records(tmp_path / "out" / "out-train.tfrecord-00000-of-00001")
    for k, length in enumerate((3, 2)):
        assert made[k]["steps/observation"] == [frames_data.jpeg(k, t) for t in range(length + 1)]


def test_splits_and_seeds(home: Path, tmp_path: Path) -> None:
    root = lerobot_archives.write_v3(tmp_path / "in", lerobot_archives.Content())
    ds = import_files(root, "local/arm")
    rlds_cli.export(ds, "tfds", tmp_path / "out", lossy=True)
    info = json.loads((tmp_path / "out" / "dataset_info.json").read_text())
    assert [(s["name"], s["shardLengths"]) for s in info["splits"]] == [("train", ["2"]), ("val", ["1"])]
    poles = sample_dataset("cartpole-minari").select(episodes=[1, 0])
    done = rlds_cli.export(poles, "tfds", tmp_path / "poles", lossy=True)
    assert [loss.kind for loss in done.losses] == ["metadata"] and done.proved
    seeds = [r["episode_metadata/seed"] for r in records(tmp_path / "poles" / "poles-train.tfrecord-00000-of-00001")]
    assert [s % 2**64 for (s,) in seeds] == poles.episodes["seed"].tolist()


def test_shards_are_counted(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = rlds_cli.create("local/three", episodes())
    monkeypatch.setattr(Tfds, "_units_of", lambda self, a, b: [Unit(f"{k}", k, k + 1) for k in range(a, b)])
    assert rlds_cli.export(ds, "tfds", tmp_path / "out", jobs=1).fingerprint == ds.fingerprint
    names = sorted(p.name for p in (tmp_path / "out").glob("*.tfrecord*"))
    assert names == [f"out-train.tfrecord-0000{k}-of-00003" for k in range(3)]
    info = json.loads((tmp_path / "out" / "dataset_info.json").read_text())
    assert info["splits"][0]["shardLengths"] == ["1", "1", "1"]


def test_a_damaged_file_of_an_export_is_refused(home: Path, tmp_path: Path) -> None:
    rlds_cli.export(rlds_cli.create("local/three", episodes()), "tfds", tmp_path / "out", verify=False)
    (tmp_path / "out" / "rlds.json").write_text('{"columns": {"steps/action": {"shape": [7]}}}')
    with pytest.raises(CorruptArchive, match="shape"):
        import_files(tmp_path / "out", "local/again")
