"""Exports of replay buffers, read by zarr, by the rules of Diffusion Policy's ReplayBuffer, and by an import."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from test_exports_hdf5 import episode, jpegs

import rlds_cli
from rlds_cli.archives.exports.exporting import plan_export
from rlds_cli.archives.exports.format import Unit
from rlds_cli.archives.names import NAMES
from rlds_cli.archives.zarr_replay_buffer import write
from rlds_cli.errors import LossyExport
from rlds_cli.make import importing

TO = "zarr-replay-buffer"


def buffer(path: Path) -> dict[str, Any]:
    """Arrays by key, as ReplayBuffer takes them: it asserts that each has the rows of all episodes."""
    root = zarr.open_group(zarr.storage.ZipStore(path) if path.suffix == ".zip" else path, mode="r")
    ends = root["meta/episode_ends"]
    assert root.metadata.zarr_format == 2 and ends.dtype == np.int64
    arrays = dict(root["data"].members())
    assert all(a.shape[0] == ends[-1] for a in arrays.values())
    return {"ends": ends[:].tolist(), **arrays}


def test_episodes_end_to_end(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [3, 1, 2]
    given = [
        episode(n, end, first=10 * k, info={"y": {"z": np.arange(n) + k}})
        for k, (n, end) in enumerate(zip(lengths, ("terminated", "truncated", "cut"), strict=True))
    ]
    ds = rlds_cli.create("local/a", given, progress=False)
    one_each = [Unit(f"{k}", k, k + 1) for k in range(3)]  # a chunk has rows of several
    monkeypatch.setattr(write.ZarrReplayBuffer, "units", lambda made: one_each)
    with pytest.raises(LossyExport, match="final observations of 3 episodes"):
        rlds_cli.export(ds, TO, tmp_path / "a")
    done = rlds_cli.export(ds, TO, tmp_path / "a", lossy=True, jobs=1)
    assert {(loss.field, loss.kind) for loss in done.losses} == {
        ("", "final"),
        ("info/y/z", "name"),
        ("info/y/z", "placement"),
        ("observation", "name"),
    }
    found = buffer(tmp_path / "a/a.zarr")
    assert found["ends"] == [3, 4, 6]
    first, t = np.repeat([0, 10, 20], lengths), np.array([0, 1, 2, 0, 0, 1])
    assert found["observation"][:].tolist() == np.stack([first + t, -t], 1).tolist()
    assert found["action"][:].tolist() == (first + t).tolist()
    assert found["reward"][:].tolist() == ((first + t) / 2).tolist()
    assert found["info_y_z"][:].tolist() == [0, 1, 2, 1, 2, 3]
    assert found["terminated"][:].tolist() == [0, 0, 1, 0, 0, 0]
    assert found["truncated"][:].tolist() == [0, 0, 0, 1, 0, 0], "an episode that was cut has no flag"
    again = importing.import_files(tmp_path / "a", "local/again", progress=False)
    assert again.fingerprint == done.fingerprint
    assert again.episodes["end"].tolist() == ["terminated", "truncated", "cut"]


def test_images_are_arrays_with_a_chunk_each(home: Path, tmp_path: Path) -> None:
    shown, small = jpegs(4), np.arange(4 * 12, dtype=np.uint8).reshape(4, 2, 2, 3)
    e = {"observation": {"cam": shown, "map": small, "state": np.zeros((4, 2))}, "action": np.ones((4, 2))}
    rlds_cli.create("local/a", [e], progress=False)
    done = rlds_cli.export("local/a", TO, tmp_path / "a", lossy=True)
    assert {(loss.field, loss.kind) for loss in done.losses} == {("observation/cam", "encoding")}
    found = buffer(tmp_path / "a" / "a.zarr")
    assert found.keys() == {"ends", "cam", "map", "state", "action"}, "flags say nothing of episodes that were cut"
    assert found["cam"].shape == (4, 40, 36, 3) and found["cam"].dtype == np.uint8
    assert found["cam"].chunks == (1, 40, 36, 3) and found["map"].chunks == (1, 2, 2, 3)
    assert [np.unique(image).tolist() for image in found["cam"]] == [[0], [1], [2], [3]]
    assert np.array_equal(found["map"][:], small)
    about = json.loads((tmp_path / "a/a.zarr/data/cam/.zarray").read_text())
    assert about["compressor"] == {"id": "blosc", "cname": "zstd", "clevel": 5, "shuffle": 2, "blocksize": 0}
    notes = importing.plan_import(tmp_path / "a/a.zarr", "local/again").plan.notes
    assert "chunk" not in str(notes), "one that holds zeros is there, too"


def test_names_that_would_be_read_as_something_else_are_changed(home: Path, tmp_path: Path) -> None:
    e = {"action": np.ones(2)} | {n: np.arange(2.0) for n in ("observation/reward", "observation/a/b", "a_b", "cost")}
    rlds_cli.create("local/a", [e], progress=False)
    names = {loss.field: loss.becomes for loss in plan_export("local/a", TO, tmp_path / "a").losses}
    assert names["observation/reward"] == "observation/reward_2" and names["observation/a/b"] == "observation/a_b"
    rlds_cli.export("local/a", TO, tmp_path / "a", lossy=True)
    assert buffer(tmp_path / "a/a.zarr").keys() == {"ends", "action", "reward_2", "a_b", "a_b_2", "cost"}


def test_the_meaning_of_keys_is_that_of_the_reader() -> None:
    meant = {*NAMES["action"], *NAMES["next/reward"], *NAMES["next/terminated"], *NAMES["next/truncated"]}
    assert {n for n in meant if "/" not in n} == write.MEANT
    assert {*NAMES["observation"]} == write.ALONE


def test_a_zip_has_the_store_at_its_root_and_texts_are_texts(home: Path, tmp_path: Path) -> None:
    e = {"observation": np.arange(3.0), "action": np.ones(3), "note": ["a", None, "é"], "task": ["x"] * 3}
    rlds_cli.create("local/a", [e], progress=False)
    done = rlds_cli.export("local/a", TO, tmp_path / "a", form="zip", lossy=True)
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == [".rlds-export.json", "a.zarr.zip"]
    assert ("note", "missing") in {(loss.field, loss.kind) for loss in done.losses}
    assert buffer(tmp_path / "a/a.zarr.zip")["note"][:].tolist() == ["a", "", "é"]
