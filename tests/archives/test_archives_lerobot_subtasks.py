"""Sub-tasks of LeRobot: lists of SARM's annotation in meta/episodes, and numbers of rows with their texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lerobot_archives import Content, write_v3

import rlds_cli
from rlds_cli import Dataset, Loader
from rlds_cli.errors import CorruptArchive
from rlds_cli.loader import Sequential, Transition

A, B = "reach", "lift"


def annotated(root: Path, lists: dict[str, list[Any]]) -> Path:
    """Add columns to meta/episodes, as pandas writes lists."""
    write_v3(root, Content(lengths=(6, 3, 4)))
    path = root / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    for name, values in lists.items():
        table = table.append_column(name, pa.array(values))
    pq.write_table(table, path)
    return root


def imported(root: Path) -> Dataset:
    return rlds_cli.import_files(root, "local/x")


def fate(ds: Dataset, name: str) -> Any:
    return next(e.get("used_as") or e["left_out"] for e in ds.manifest.account if e["name"] == name)


def test_lists_of_meta_are_intervals(tmp_path: Path) -> None:
    """An interval has its last frame; a frame of two belongs to the first, and those beyond the episode to none."""
    root = annotated(
        tmp_path / "d",
        {
            "subtask_names": [[A, B], None, [A]],
            "subtask_start_frames": [[0, 2], None, [1]],
            "subtask_end_frames": [[2, 9], None, [2]],
            "subtask_end_times": [[0.2, 0.9], None, [0.2]],
        },
    )
    ds = imported(root)
    assert [ds.episode(k)["subtask"].tolist() for k in range(3)] == [
        [A, A, A, B, B, B],
        [None] * 3,
        [None, A, A, None],
    ]
    assert fate(ds, "subtask_names") == ["columns of episodes"]
    assert fate(ds, "subtask_end_times") == "the frames say the same"


def test_dense_lists_come_before_sparse_ones(tmp_path: Path) -> None:
    lists = {f"dense_subtask_{n}": v for n, v in (("names", [[A, B]] * 3), ("start_frames", [[0, 1]] * 3))}
    lists |= {f"sparse_subtask_{n}": v for n, v in (("names", [["all"]] * 3), ("start_frames", [[0]] * 3))}
    lists |= {"dense_subtask_end_frames": [[0, 2]] * 3, "sparse_subtask_end_frames": [[2]] * 3}
    ds = imported(annotated(tmp_path / "d", lists))
    assert ds.episode(1)["subtask"].tolist() == [A, B, B]
    assert ds.episodes["sparse_subtasks"].tolist() == ['[[0, 3, "all"]]'] * 3


@pytest.mark.parametrize("lists", [([A, B], [0], [1]), ([A], ["x"], [1]), ([" "], [0], [1])])
def test_lists_that_do_not_fit_are_refused(tmp_path: Path, lists: tuple[list[Any], ...]) -> None:
    names = ("subtask_names", "subtask_start_frames", "subtask_end_frames")
    root = annotated(tmp_path / "d", {name: [values] * 3 for name, values in zip(names, lists, strict=True)})
    with pytest.raises(CorruptArchive, match=r"file-000\.parquet"):
        imported(root)


def test_numbers_of_rows_are_intervals(tmp_path: Path) -> None:
    """Episodes may run through several blocks; a negative number is no sub-task."""
    numbers = np.array([1, 1, 0, 0, -1, 1, 0, 0, 0, -1, -1, -1, -1])
    extra = {"subtask_index": ({"dtype": "int64", "shape": [1]}, numbers)}
    root = write_v3(tmp_path / "d", Content(lengths=(6, 3, 4), extra=extra))
    texts = pa.table({"subtask_index": [0, 1], "__index_level_0__": [A, B]})
    pq.write_table(texts, root / "meta/subtasks.parquet")
    ds = imported(root)
    assert "subtask_index" not in ds.schema
    named = [{0: A, 1: B}.get(n) for n in numbers.tolist()]
    assert [ds.episode(k)["subtask"].tolist() for k in range(3)] == [named[:6], named[6:9], named[9:]]
    assert ds.episodes["subtasks"][2] is None
    every = Loader(ds, 13, window=Transition(anchors="steps"), sampler=Sequential(), fields=["action", "subtask"])
    assert next(iter(every))["subtask"].tolist() == named
    assert fate(ds, "subtask_index") == fate(ds, "meta/subtasks.parquet") == ["subtasks"]

    pq.write_table(texts.slice(0, 1), root / "meta/subtasks.parquet")
    with pytest.raises(CorruptArchive, match="there is no sub-task 1"):
        rlds_cli.import_files(root, "local/y")
