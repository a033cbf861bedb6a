"""LeRobot's version 2.0 as its own scripts wrote it, and data files that differ from one another."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lerobot_archives import Content, decoded, encode, write_v2

from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.loader import Loader, Sequential, Slice
from rlds_cli.make.importing import import_files, plan_import

TOP = "observation/images/top"


def data_file(root: Path, k: int) -> Path:
    return root / f"data/chunk-000/episode_{k:06d}.parquet"


def edited(root: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = root / "meta/info.json"
    info = json.loads(path.read_text())
    change(info)
    path.write_text(json.dumps(info))


def store_as(path: Path, column: str, kind: Any) -> None:
    """Write the values of a column again, as another type of Arrow."""
    rows = pq.read_table(path)
    at, values = rows.schema.get_field_index(column), rows[column].to_pylist()
    pq.write_table(rows.set_column(at, column, pa.array(values, kind)), path)


def test_what_the_script_of_version_1_wrote_is_read_to_batches(tmp_path: Path) -> None:
    """It described ``language_instruction``, the column that it made the tasks of, and kept images of ``images/``."""
    root = write_v2(tmp_path / "a", Content(lengths=(4, 1, 3), video=("top",)), "v2.0")
    text = {"dtype": "string", "shape": [1], "names": None}
    edited(root, lambda info: info["features"].update(language_instruction=text))
    left = root / "images/observation.images.top/episode_000000/frame_000000.png"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"png")
    ds = import_files(root, "local/a")
    left_out = {e["name"]: e.get("left_out") for e in ds.manifest.account}
    assert left_out["language_instruction"] == "no data file has such a column"
    assert left_out["meta/stats.json"] == "statistics are computed from the rows"
    assert left_out[left.relative_to(root).as_posix()] == "the layout has no such file"
    assert ("absent-columns", "language_instruction") in {(n["code"], n["where"]) for n in ds.manifest.notes}
    assert list(ds.episodes["task"]) == ["push the block", "pull", "push the block"]
    loader = Loader(ds, 2, window=Slice(2), sampler=Sequential(), fields=[..., "timestamp"])
    batch = next(iter(loader))
    rows, frames = pq.read_table(data_file(root, 0)), decoded(next(root.rglob("*_000000.mp4")))
    wanted = np.array(rows["action"].to_pylist(), np.float32)
    np.testing.assert_array_equal(np.asarray(batch["action"]), [wanted[0:2], wanted[1:3]])
    np.testing.assert_array_equal(np.asarray(batch[tuple(TOP.split("/"))]), [frames[0:2], frames[1:3]])
    np.testing.assert_array_equal(np.asarray(batch["timestamp"])[0, :, 0], np.float32([0, 0.1]))


@pytest.mark.parametrize(("k", "other"), [(0, 1), (2, 0)])
@pytest.mark.parametrize("column", ["action", "timestamp"])
def test_a_data_file_without_a_column_is_named_before_and_at_the_import(
    tmp_path: Path, k: int, other: int, column: str
) -> None:
    root = write_v2(tmp_path / "a", Content(lengths=(4, 1, 3)), "v2.0")
    pq.write_table(pq.read_table(data_file(root, k)).drop_columns([column]), data_file(root, k))
    wanted = rf"episode_00000{k}\.parquet: it has no column {column}, which .*episode_00000{other}\.parquet has"
    for act in (plan_import, import_files):
        with pytest.raises(UnknownLayout, match=wanted) as e:
            act(root, "local/a")
        assert "--skip-bad" in str(e.value.hint)


def test_skip_bad_leaves_out_data_files_that_differ(tmp_path: Path) -> None:
    root = write_v2(tmp_path / "a", Content(lengths=(4, 1, 3)), "v2.0")
    pq.write_table(pq.read_table(data_file(root, 0)).drop_columns(["action"]), data_file(root, 0))
    ds = import_files(root, "local/a", skip_bad=True)
    assert list(ds.episodes["group"]) == ["episode_1", "episode_2"]
    np.testing.assert_array_equal(ds.episode(1)["action"], pq.read_table(data_file(root, 2))["action"].to_pylist())


def test_a_column_may_be_stored_in_two_ways_and_not_as_two_types(tmp_path: Path) -> None:
    c = Content(lengths=(4, 1, 3), extra={"info.mode": ({"dtype": "string", "shape": [1]}, list("abcdefgh"))})
    root = write_v2(tmp_path / "a", c, "v2.0")
    store_as(data_file(root, 1), "action", pa.list_(pa.float32()))
    store_as(data_file(root, 1), "info.mode", pa.large_string())
    ds = import_files(root, "local/a")
    np.testing.assert_array_equal(ds.episode(1)["action"], c.column("action")[4:5])
    assert [list(ds.episode(k)["info/mode"]) for k in range(3)] == [list("abcd"), ["e"], list("fgh")]
    store_as(data_file(root, 1), "action", pa.list_(pa.float64()))
    with pytest.raises(UnknownLayout, match=r"episode_000001\.parquet: action is list<element: double>; in .*float"):
        plan_import(root, "local/b")


def test_an_episode_whose_video_ends_early_is_left_out_with_skip_bad(tmp_path: Path) -> None:
    c = Content(lengths=(4, 1, 3), video=("top",))
    root = write_v2(tmp_path / "a", c, "v2.0")
    path = root / "videos/chunk-000/observation.images.top/episode_000002.mp4"
    encode(path, c.frames("top")[5:7], c.codec, c.options)
    with pytest.raises(CorruptArchive, match=r"no frame is shown at 0\.200 s"):
        import_files(root, "local/a")
    ds = import_files(root, "local/a", skip_bad=True)
    assert list(ds.episodes["group"]) == ["episode_0", "episode_1"]
    assert [n["text"] for n in ds.manifest.notes if n["code"] == "bad-files"] == [
        "episodes of damaged files were left out. "
        "videos/chunk-000/observation.images.top/episode_000002.mp4: the video has 2 frames for 3 rows."
    ]


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (None, r"tasks\.jsonl is missing"),
        ('{"task_index": "x", "task": "a"}', r"tasks\.jsonl: the task number 'x'"),
        ('{"task_index": 0, "task": {"a": 1}}', r"number 0 with the text \{'a': 1\}"),
    ],
)
def test_a_list_of_tasks_that_says_none_is_refused_before_the_import(
    tmp_path: Path, lines: str | None, why: str
) -> None:
    root = write_v2(tmp_path / "a", Content(lengths=(2,)), "v2.0")
    path = root / "meta/tasks.jsonl"
    path.unlink() if lines is None else path.write_text(lines)
    with pytest.raises(CorruptArchive, match=why):
        plan_import(root, "local/a")


@pytest.mark.parametrize(("change", "why"), [({"fps": None}, "fps is None"), ({"fps": True}, "fps is True")])
def test_a_damaged_description_is_named_and_not_taken_for_a_table(
    tmp_path: Path, change: dict[str, Any], why: str
) -> None:
    root = write_v2(tmp_path / "a", Content(lengths=(2,)), "v2.0")
    edited(root, lambda info: info.update(change))
    with pytest.raises(CorruptArchive, match=rf"info\.json is not a LeRobot file .*{why}"):
        plan_import(root, "local/a")
