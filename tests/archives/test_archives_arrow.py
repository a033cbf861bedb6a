"""Arrow streams, and directories of them that ``Dataset.save_to_disk`` of the datasets library writes."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hub_tables import LENGTHS, rows, saved, stream
from PIL import Image

import rlds_cli
from rlds_cli.errors import ArchiveError, CorruptArchive, UnknownLayout, UnsafeArchive
from rlds_cli.look.report.tracing import trace
from rlds_cli.make import plan_import


def check_values(ds: rlds_cli.Dataset, table: pa.Table, lengths: Sequence[int] = LENGTHS) -> None:
    """Compare with the table that pyarrow holds."""
    assert ds.episodes["length"].tolist() == list(lengths)
    stops = np.cumsum(lengths)
    for k, (a, b) in enumerate(zip([0, *stops.tolist()], stops.tolist(), strict=False)):
        e, part = ds.episode(k), table.slice(a, b - a).to_pydict()
        np.testing.assert_array_equal(e["observation"], part["observation"])
        np.testing.assert_array_equal(e["action"].ravel(), part["action"])
        np.testing.assert_array_equal(e["next", "reward"].ravel(), part["reward"])


@pytest.mark.parametrize("ids", [pytest.param(True, marks=pytest.mark.thorough), False])
def test_an_episode_goes_on_in_the_next_shard(tmp_path: Path, ids: bool) -> None:
    table = rows(ids=ids)
    ds = rlds_cli.import_files(saved(tmp_path / "d", table, cuts=(2, 5, 6)), "local/x")
    check_values(ds, table)
    assert ds.episodes["end"].tolist() == ["terminated", "truncated", "terminated"]
    assert trace(rlds_cli.open_dataset("local/x"), 8).ok
    batch = next(iter(rlds_cli.Loader("local/x", 64, dtype=None)))
    assert {*batch["action"].ravel().tolist()} <= {*table["action"].to_pylist()}
    used = {(e["kind"], e["name"]): e.get("used_as") for e in ds.manifest.account}
    assert used["part", "state.json"] == ["the order of rows"]
    assert used["attribute", "@dataset_info.json"] == ["metadata"]


@pytest.mark.thorough
def test_a_stream_alone_is_a_table(tmp_path: Path) -> None:
    table = rows()
    check_values(rlds_cli.import_files(stream(tmp_path / "rows.arrow", table), "local/x"), table)


def test_a_stream_without_its_end_is_refused(tmp_path: Path) -> None:
    path = stream(tmp_path / "rows.arrow", rows(), closed=False)
    with pytest.raises(CorruptArchive, match="without its end"):
        plan_import(path, "local/x")


@pytest.mark.thorough
def test_the_order_of_rows_is_that_of_the_document(tmp_path: Path) -> None:
    table = rows((3, 3), ids=False)
    directory = saved(tmp_path / "d", table, cuts=(3,))
    said = json.loads((directory / "state.json").read_text())
    said["_data_files"].reverse()
    (directory / "state.json").write_text(json.dumps(said))
    ds = rlds_cli.import_files(directory, "local/x")
    check_values(ds, pa.concat_tables([table.slice(3), table.slice(0, 3)]), (3, 3))


@pytest.mark.thorough
def test_what_the_document_does_not_name_is_left_out(tmp_path: Path) -> None:
    table = rows()
    directory = saved(tmp_path / "d", table)
    stream(directory / "cache-0123456789abcdef.arrow", rows((7,)))  # of a later ``map``
    ds = rlds_cli.import_files(directory, "local/x")
    check_values(ds, table)
    (left,) = [e for e in ds.manifest.account if e["name"].startswith("cache-")]
    assert left["left_out"] == "state.json does not name it"


def test_directories_of_splits_become_splits(tmp_path: Path) -> None:
    table = rows()
    saved(tmp_path / "d/train", table.slice(0, 9))
    saved(tmp_path / "d/test", table.slice(9), cuts=())
    (tmp_path / "d/dataset_dict.json").write_text('{"splits": ["train", "test", "extra"]}')
    ds = rlds_cli.import_files(tmp_path / "d", "local/x")
    assert ds.select(split="train").episodes["length"].tolist() == [4, 5]
    check_values(ds.select(split="train"), table.slice(0, 9), (4, 5))
    check_values(ds.select(split="test"), table.slice(9), (3,))
    assert [n["where"] for n in ds.manifest.notes if n["code"] == "missing-splits"] == ["extra"]


def test_a_directory_that_is_none_of_the_splits_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "d/train", rows())
    saved(tmp_path / "d/old", rows())
    (tmp_path / "d/dataset_dict.json").write_text('{"splits": ["train"]}')
    with pytest.raises(UnknownLayout, match="and not old"):
        plan_import(tmp_path / "d", "local/x")


def test_matrices_tensors_and_images_keep_their_shapes(tmp_path: Path) -> None:
    table = rows((3, 2))
    grid = np.arange(30.0).reshape(5, 2, 3)
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(grid.astype(np.float32))
    images = []
    for value in range(5):
        data = io.BytesIO()
        Image.fromarray(np.full((4, 6, 3), value * 40, np.uint8)).save(data, "PNG")
        images.append({"bytes": data.getvalue(), "path": None})
    table = table.append_column("tensor", tensors).append_column("grid", pa.array(grid.tolist()))
    table = table.append_column("image", pa.array(images, pa.struct([("bytes", pa.binary()), ("path", pa.string())])))
    ds = rlds_cli.import_files(saved(tmp_path / "d", table, cuts=(2,)), "local/x")
    assert ds.schema["tensor"].shape == ds.schema["grid"].shape == (2, 3)
    for k, part in enumerate((slice(0, 3), slice(3, 5))):
        e = ds.episode(k)
        np.testing.assert_array_equal(e["tensor"], grid[part])
        np.testing.assert_array_equal(e["grid"], grid[part])
        assert e["image"][:, 0, 0, 0].tolist() == [value * 40 for value in range(5)][part]


def broken(directory: Path, how: str) -> Path:
    """A saved table with one defect."""
    state = directory / "state.json"
    if how == "lost":
        (directory / "data-00001-of-00002.arrow").unlink()
    elif how == "elsewhere":
        state.write_text('{"_data_files": [{"filename": "../rows.arrow"}]}')
    elif how == "indices":
        state.write_text(json.dumps({**json.loads(state.read_text()), "_indices_files": [{"filename": "i.arrow"}]}))
    elif how == "columns":
        stream(directory / "data-00001-of-00002.arrow", rows().drop(["reward"]))
    elif how == "pointer":
        (directory / "data-00001-of-00002.arrow").write_text("version https://git-lfs.github.com/spec/v1\noid x\n")
    elif how == "twice":
        state.write_text('{"_data_files": [{"filename": "data-00000-of-00002.arrow"}, {"filename": '
                         '"data-00000-of-00002.arrow"}]}')  # fmt: skip
    else:
        state.write_text(how)
    return directory


@pytest.mark.parametrize(
    ("how", "error", "said"),
    [
        ("lost", CorruptArchive, "names 1 file that is not there"),
        ("elsewhere", UnsafeArchive, "names a file elsewhere"),
        ("indices", UnknownLayout, "a choice among those"),
        ("columns", CorruptArchive, "do not have the same columns"),
        ("pointer", CorruptArchive, "pointer of Git LFS"),
        ("twice", CorruptArchive, "names a file twice"),
        ("[]", CorruptArchive, "does not describe a dataset"),
        ("{}", CorruptArchive, "does not name the files"),
        ('{"_data_files": [1]}', CorruptArchive, "does not name the files"),
        ("{", CorruptArchive, "is not JSON"),
    ],
)
def test_a_directory_with_a_defect_is_refused(tmp_path: Path, how: str, error: type[ArchiveError], said: str) -> None:
    with pytest.raises(error, match=said):
        plan_import(broken(saved(tmp_path / "d", rows()), how), "local/x")


@pytest.mark.thorough
def test_a_shard_alone_is_a_table(tmp_path: Path) -> None:
    directory = saved(tmp_path / "d", rows())
    ds = rlds_cli.import_files(directory / "data-00001-of-00002.arrow", "local/x")
    assert ds.num_steps == len(rows()) - 5
