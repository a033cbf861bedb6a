"""Attributes of HDF5 files and groups: those that are columns of the episode table, the others, and their files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

import rlds_cli
from rlds_cli.archives.exports.exporting import plan_export
from rlds_cli.dataset import Dataset
from rlds_cli.errors import DamagedDataset
from rlds_cli.keep.verification import verify
from rlds_cli.make.importing import import_files
from rlds_cli.store import History, metadata
from rlds_cli.store.integrity import verify_directory

LONG = "<mujoco/>" * 1000  # no text of the episode table
EIGHT: dict[str, Any] = {
    "task": "pick", "operator": "ann", "success": True, "trial": 7, "score": 0.5, "robot": "xarm", "site": "b", "run": 3
}  # fmt: skip


def write(path: Path, attributes: Mapping[str, Any], *, groups: int = 0, more: Mapping[str, Any] = {}) -> Path:
    """Write a file of one episode of three steps, or one with a group for each episode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as f:
        for prefix in [f"demo_{k}/" for k in range(groups)] or [""]:
            f[f"{prefix}observations"] = np.arange(6, dtype=np.float32).reshape(3, 2)
            f[f"{prefix}action"] = np.arange(3, dtype=np.float32)
            f[f"{prefix}terminated"] = np.array([False, False, True])
            (f[prefix] if prefix else f).attrs.update(attributes)
        f.attrs.update(more)
    return path


def folder(path: Path, count: int, attributes: Mapping[str, Any]) -> Path:
    for k in range(count):
        write(path / f"episode_{k}.hdf5", {n: f"{v} {k}" if isinstance(v, str) else v for n, v in attributes.items()})
    return path


def files(directory: Path) -> set[str]:
    return {p.relative_to(directory).as_posix() for p in directory.rglob("*") if p.is_file()}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("groups", [3, 0])
def test_attributes_take_no_file_in_any_version(tmp_path: Path, groups: int) -> None:
    """The dataset, a selection, and the versions that a label and a drop make have the files of one without any."""
    found: dict[str, list[set[str]]] = {}
    for name, attributes in (("bare", {}), ("eight", EIGHT)):
        if groups:
            source = write(tmp_path / f"{name}.hdf5", attributes, groups=groups)
        else:
            source = folder(tmp_path / name, 3, attributes)
        ds = import_files(source, f"local/{name}", progress=False)
        made = [ds.path, ds.select(episodes=[2, 0]).save("some").path]
        rlds_cli.open_dataset(ds.id).label(quality="good")
        rlds_cli.open_dataset(ds.id).select(episodes=[1]).drop()
        made += History(ds.path).directories
        found[name] = [files(directory) for directory in made]
        if attributes:
            assert verify(ds.id).ok and verify(f"{ds.id}@some").ok and verify(f"{ds.id}#v1").ok
            assert ds.episodes["success"].tolist() == [True] * 3 and ds.episodes["trial"].tolist() == [7] * 3
            texts = ["pick"] * 3 if groups else ["pick 0", "pick 1", "pick 2"]
            assert ds.episodes["task"].tolist() == texts
            assert ds.manifest.metadata == () and set(ds.manifest.episode_columns) == set(EIGHT)
    assert found["eight"] == found["bare"]


@pytest.mark.parametrize("to", ["lerobot", "tensordict"])
def test_what_became_a_column_is_no_loss_of_an_export(tmp_path: Path, to: str) -> None:
    ds = import_files(folder(tmp_path / "a", 2, EIGHT), "local/a", progress=False)
    assert {loss.kind for loss in plan_export(ds, to, tmp_path / "out").losses} <= {"unknown-final"}


def test_what_is_no_column_is_kept(tmp_path: Path) -> None:
    """A long text, an array and an attribute of a dataset, each by the name of its file; equal ones are stored once."""
    for k in range(3):
        path = write(tmp_path / "a" / f"{k}.hdf5", {"task": "pick", "model": LONG, "gains": np.arange(3.0) + k})
        with h5py.File(path, "a") as f:
            f["action"].attrs["unit"] = "m/s"
    ds = import_files(tmp_path / "a", "local/a", progress=False)
    kept = ds.store.table.metadata
    assert (
        set(kept.index)
        == set(ds.manifest.metadata)
        == {
            f"{k}.hdf5/{name}"
            for k in range(3)
            for name in ("attributes/model", "attributes/gains", "action/attributes/unit")
        }
    )
    for k in range(3):
        assert kept[f"{k}.hdf5/attributes/model"] == LONG and kept[f"{k}.hdf5/action/attributes/unit"] == "m/s"
        np.testing.assert_array_equal(kept[f"{k}.hdf5/attributes/gains"], np.arange(3.0) + k, strict=True)
    assert kept.data.nbytes < 2 * len(LONG)
    assert list(ds.manifest.episode_columns) == ["task"]


def test_attributes_of_groups_that_are_no_columns_are_kept(tmp_path: Path) -> None:
    source = write(
        tmp_path / "a.hdf5", {"task": "pick", "gains": np.arange(3)}, groups=2, more={"model": LONG, "lab": "b"}
    )
    ds = import_files(source, "local/a", progress=False)
    assert ds.episodes["task"].tolist() == ["pick"] * 2 and ds.episodes["lab"].tolist() == ["b"] * 2
    assert ds.manifest.metadata == ("attributes/model", "demo_0/attributes/gains", "demo_1/attributes/gains")
    assert ds.store.table.metadata["demo_1/attributes/gains"].tolist() == [0, 1, 2]  # type: ignore[union-attr]


def test_an_attribute_whose_column_a_scalar_makes_is_kept(tmp_path: Path) -> None:
    for k in range(2):
        path = write(tmp_path / "a" / f"{k}.hdf5", {"success": False, "task": "pick"})
        with h5py.File(path, "a") as f:
            f["success"] = True
    ds = import_files(tmp_path / "a", "local/a", progress=False)
    assert ds.episodes["success"].tolist() == [True, True] and ds.episodes["task"].tolist() == ["pick"] * 2
    assert [ds.store.table.metadata[f"{k}.hdf5/attributes/success"] for k in range(2)] == [False, False]


def test_files_with_other_attributes(tmp_path: Path) -> None:
    """A file without an attribute has no value in the column."""
    write(tmp_path / "a" / "0.hdf5", {"task": "pick"})
    write(tmp_path / "a" / "1.hdf5", {"score": 0.5})
    ds = import_files(tmp_path / "a", "local/a", progress=False)
    assert ds.episodes["task"].tolist() == ["pick", None]
    assert np.array_equal(ds.episodes["score"], [np.nan, 0.5], equal_nan=True)


# -- columns of the episode table on disk

VALUES: dict[str, list[Any]] = {
    "text": ["a", None, "\udcff\n", ""],
    "flag": [True, None, False, True],
    "whole": [-(1 << 63), None, (1 << 63) - 1, 0],
    "large": [1 << 63, 0, (1 << 64) - 1, 1],
    "number": [0.1, None, -0.0, 5e-324],
    "odd": [float("nan"), float("inf"), float("-inf"), None],
}


def episode(values: Mapping[str, Any]) -> dict[str, Any]:
    return {"observation": np.arange(4.0), "action": np.arange(3), "episode": dict(values)}


def stored() -> Dataset:
    return rlds_cli.create("local/x", [episode({n: v[k] for n, v in VALUES.items()}) for k in range(4)])


def values(ds: Dataset) -> dict[str, list[str]]:
    return {name: [repr(v) for v in ds.store.own_column(name).scalars()] for name in ds.store.own_columns}


def test_small_columns_lie_in_the_document_of_the_table_exactly() -> None:
    ds = stored()
    assert values(ds) == {name: [repr(v) for v in of] for name, of in VALUES.items()}
    assert verify(ds.id).ok
    assert not {p for p in files(ds.path) if p.startswith(tuple(f"episodes/{name}" for name in VALUES))}
    read = dict(zarr.open_group(ds.path, mode="r")["episodes"].attrs["rlds_columns"])
    assert read["text"] == ["a", None, "\udcff\n", ""] and read["whole"] == VALUES["whole"]
    assert read["odd"] == ["NaN", "Infinity", "-Infinity", None]


def test_a_large_column_is_an_array_that_versions_share() -> None:
    """Of episodes with small and large columns, a label writes the new column alone."""
    about = [{"task": "pick", "plan": "long " * 100_000 + str(k)} for k in range(3)]
    ds = rlds_cli.create("local/x", [episode(a) for a in about])
    assert "episodes/plan/bytes/c/0" in files(ds.path) and "episodes/task/zarr.json" not in files(ds.path)
    labelled = ds.label(quality=[1, None, 3])
    assert labelled.path.joinpath("episodes/plan/bytes/c/0").samefile(
        History(ds.path).at(1) / "episodes/plan/bytes/c/0"
    )
    shorter = labelled.label(plan="short")
    assert "episodes/plan/zarr.json" not in files(shorter.path)
    assert shorter.episodes["plan"].tolist() == ["short"] * 3
    whole = rlds_cli.open_dataset("local/x#v2")
    assert whole.episodes["plan"].tolist() == [a["plan"] for a in about]
    picked = whole.select(episodes=[2, 0]).save("two")
    assert picked.episodes["plan"].tolist() == [about[2]["plan"], about[0]["plan"]]
    assert picked.episodes["quality"].tolist() == [3.0, 1.0]
    for id in ("local/x", "local/x#v1", "local/x#v2", "local/x@two"):
        assert verify(id).ok


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("whole", [1, 2, 3, "4"]), ("whole", [1, 2, 3]), ("flag", [1, 0, 1, 0]), ("text", {}), ("number", ["x"] * 4),
     ("whole", [1 << 80, 0, 0, 0]), ("odd", [[1.0]] * 4)],
)  # fmt: skip
def test_values_of_another_type_are_refused(name: str, wrong: Any) -> None:
    """The document may come from a stranger."""
    ds = stored()
    document = ds.path / "episodes" / "zarr.json"
    content = json.loads(document.read_text())
    content["attributes"]["rlds_columns"][name] = wrong
    document.chmod(0o644)
    document.write_text(json.dumps(content))
    with pytest.raises(DamagedDataset, match=name):
        rlds_cli.open_dataset("local/x").store.own_column(name)
    assert not verify("local/x").ok


# -- data that are not per row


def test_data_that_are_not_per_row_take_two_files_whatever_their_number(tmp_path: Path) -> None:
    given: dict[str, Any] = {f"x/{k}": np.arange(k, dtype=np.int16) for k in range(40)}
    given |= {
        "scalar": np.float64(2.5),
        "complex": np.array([1 + 2j]),
        "empty": "",
        "text": "é\udcff",
        "flag": np.bool_(True),
    }
    given |= {"a/" * 100 + "b": "deep", "time": np.array(["2020-01-02"], "datetime64[D]")}
    assert metadata.write(tmp_path, given.items()) == sorted(given)
    assert files(tmp_path) == {"metadata/zarr.json", "metadata/c/0"}
    found = metadata.read(tmp_path)
    for name, value in given.items():
        wanted = "2020-01-02" if name == "time" else value if isinstance(value, str) else np.asarray(value)
        np.testing.assert_array_equal(found[name], wanted, strict=True)
    assert zarr.open_array(tmp_path / "metadata", mode="r").dtype == np.uint8
    assert metadata.write(tmp_path / "none", []) == [] and not (tmp_path / "none").exists()


def test_versions_share_the_data_that_are_not_per_row(tmp_path: Path) -> None:
    ds = import_files(write(tmp_path / "a.hdf5", {"model": LONG}), "local/a", progress=False)
    data = "metadata/c/0"
    labelled = ds.label(task="pick")
    assert (labelled.path / data).samefile(History(ds.path).at(1) / data)
    picked = labelled.select(episodes=[0]).save("one")
    assert (picked.path / data).samefile(labelled.path / data)
    assert picked.store.table.metadata.text("attributes/model") == LONG


@pytest.mark.parametrize("damage", ["index", "value", "missing"])
def test_damage_of_data_that_are_not_per_row_is_found(tmp_path: Path, damage: str) -> None:
    ds = import_files(write(tmp_path / "a.hdf5", {"model": LONG}), "local/a", progress=False)
    file = ds.path / "metadata" / "c" / "0"
    file.chmod(0o644)
    content = file.read_bytes()
    changed = {"index": content.replace(b"[0, ", b"[9, "), "value": b"X" + content[1:], "missing": b""}[damage]
    assert changed != content
    file.write_bytes(changed)
    found = verify_directory(ds.path)
    assert not found.ok and any("metadata" in str(p) for p in found.problems)
