"""Replay buffers of tianshou: filled rows alone, in the order of time, and episodes that end with their ring."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from archive_rows import Rows

from rlds_cli.errors import ArchiveError, CorruptArchive, UnknownLayout
from rlds_cli.look.report.tracing import trace
from rlds_cli.make.importing import import_files, plan_import
from rlds_cli.ted import CUT, TERMINATED


def buffer(path: Path, rings: list[list[int]], ends: tuple[int, ...], capacity: int, **told: Any) -> Path:
    """Write a buffer as ``save_hdf5`` does: step i observes i, then i + 1, and has the action i / 10 and the reward i.

    ``rings`` holds the steps that each ring of ``capacity`` rows was given, one after the other.
    """
    size = capacity * len(rings)
    place = np.zeros(size, np.int64)
    filled, newest = np.zeros(len(rings), np.int64), np.zeros(len(rings), np.int64)
    for k, steps in enumerate(rings):
        for i, step in enumerate(steps):
            place[k * capacity + i % capacity] = step
            newest[k] = k * capacity + i % capacity
        filled[k] = min(len(steps), capacity)
    written = np.concatenate([np.arange(capacity) < n for n in filled])
    with h5py.File(path, "w") as f:
        f.attrs.update(maxsize=size, _size=filled[0] if len(rings) == 1 else 0, stack_num=1)
        f.attrs["_index" if "old" in told else "_insertion_idx"] = len(rings[0]) % capacity if len(rings) == 1 else 0
        rows = f.create_group("_meta")
        rows.attrs["__data_type__"] = "Batch"
        columns: dict[str, Any] = {"obs": np.stack([place, place * 0 + 1], 1).astype("f4")}
        columns |= {"act": (place / 10)[:, None].astype("f4"), "rew": place.astype("f8")}
        columns |= {"terminated": np.isin(place, ends), "truncated": np.zeros(size, bool)}
        columns |= {"done": columns["terminated"], "obs_next": columns["obs"] + np.array([1, 0], "f4")}
        columns |= {"info/env_id": np.repeat(np.arange(len(rings)), capacity)}
        for key, values in columns.items():
            rows[key] = np.where(written.reshape(-1, *[1] * (values.ndim - 1)), values, 0).astype(values.dtype)
            rows[key].attrs["__data_type__"] = "ndarray"
        rows["info/why"] = np.frombuffer(b"\x80\x04N.", "i1")
        rows["info/why"].attrs["__data_type__"] = "pickled_ndarray"
        f["_indices"], f["last_index"] = np.arange(size), newest
        if len(rings) > 1:
            f["_offset"], f["_lengths"] = capacity * np.arange(len(rings)), filled
            f["buffers"] = np.zeros(9, "i1")
    return path


def check(rows: Rows, episodes: list[list[int]], ends: list[int]) -> None:
    """Compare with the steps of each episode."""
    assert rows.episodes.length.tolist() == [*map(len, episodes)] and rows.episodes.end.tolist() == ends
    assert rows.episodes.observed.all()
    for k, steps in enumerate(episodes):
        assert rows.of(k, "observation")[:, 0].tolist() == [*steps, steps[-1] + 1]
        assert rows.of(k, "next/reward").tolist() == steps
        assert np.allclose(rows.of(k, "action").reshape(-1), np.array(steps) / 10)


@pytest.mark.parametrize("old", [{}, {"old": True}])
def test_a_buffer_that_is_not_full(tmp_path: Path, old: dict[str, Any]) -> None:
    path = buffer(tmp_path / "a.hdf5", [[*range(7)]], (3,), 20, **old)
    check(Rows("plain", path), [[0, 1, 2, 3], [4, 5, 6]], [TERMINATED, CUT])


def test_an_episode_across_the_seam_of_a_ring_is_one(tmp_path: Path) -> None:
    rows = Rows("plain", buffer(tmp_path / "a.hdf5", [[*range(11)]], (3, 8), 8))
    check(rows, [[3], [4, 5, 6, 7, 8], [9, 10]], [TERMINATED, TERMINATED, CUT])
    assert any("lost its first steps" in n.text for n in rows.notes)
    assert any("info/why (pickled)" in n.text for n in rows.notes)


def test_a_ring_for_each_environment(tmp_path: Path) -> None:
    rings = [[*range(5)], [*range(100, 111)], []]
    rows = Rows("plain", buffer(tmp_path / "a.hdf5", rings, (4, 103, 107), 8))
    steps = [[0, 1, 2, 3, 4], [103], [104, 105, 106, 107], [108, 109, 110]]
    check(rows, steps, [TERMINATED, TERMINATED, TERMINATED, CUT])
    assert rows.of(1, "info/env_id").tolist() == [1]


def test_a_buffer_is_imported_whole_and_traced(tmp_path: Path) -> None:
    ds = import_files(buffer(tmp_path / "a.hdf5", [[*range(11)]], (3, 8), 8), "local/x")
    assert ds.episodes["total_reward"].tolist() == [3.0, 30.0, 19.0]
    assert trace(ds, 10).ok


def test_names_and_rules_that_leave_the_order_of_time_out_are_refused(tmp_path: Path) -> None:
    path = buffer(tmp_path / "a.hdf5", [[*range(11)]], (3, 8), 8)
    with pytest.raises(UnknownLayout, match='has no "_meta/obs"'):
        plan_import(path, "local/x", fields={"observation": "_meta/obs", "action": "_meta/act"})
    for rule in ("flags", "file", "jumps"):
        with pytest.raises(UnknownLayout, match="says where its episodes end"):
            plan_import(path, "local/x", episodes_by=rule)
    mapped = plan_import(path, "local/x", fields={"observation/state": "obs"})
    assert mapped.episodes is not None and mapped.episodes["episodes"] == 3


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("_size", 5, CorruptArchive),  # with 3 as the next row
        ("_size", 9, CorruptArchive),
        ("_insertion_idx", 9, CorruptArchive),
        ("_size", 0, ArchiveError),
        ("_size", [1, 2], CorruptArchive),
    ],
)
def test_counts_that_contradict_each_other_are_refused(tmp_path: Path, key: str, value: Any, error: Any) -> None:
    path = buffer(tmp_path / "a.hdf5", [[*range(11)]], (3, 8), 8)
    with h5py.File(path, "r+") as f:
        f.attrs[key] = value
        if value == 0:
            f.attrs["_insertion_idx"] = 0
    with pytest.raises(error):
        plan_import(path, "local/x")


def test_rings_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    path = buffer(tmp_path / "a.hdf5", [[*range(5)], [*range(3)]], (4,), 8)
    with h5py.File(path, "r+") as f:
        f["last_index"][0] = 2  # and five rows are filled
    with pytest.raises(CorruptArchive, match="contradict each other"):
        plan_import(path, "local/x")
