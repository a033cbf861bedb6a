"""Columns of LeRobot datasets."""

from __future__ import annotations

from collections.abc import Mapping

LANGUAGE = ("language_persistent", "language_events")  # annotations; read also where info.json forgets them
PERSISTENT_STYLES = frozenset({"subtask", "plan", "memory", "motion", "task_aug"})  # of the first column alone
EVENT_STYLES = frozenset({"interjection", "vqa", "trace"})  # of the second
COUNTED = ("episode_index", "frame_index", "index")
TASK = "task_index"
SUBTASK, SUBTASKS = "subtask_index", "meta/subtasks.parquet"  # of a row, and the texts
SUBTASK_LISTS = ("subtask_names", "subtask_start_frames", "subtask_end_frames")  # of an episode; the last one is inside
CODE_BITS = 12  # of depth in videos
# What lerobot takes for the codes of depth where info.json leaves a parameter out; all but the last are metres.
DEPTH_FORMULA: Mapping[str, float | bool] = {"depth_min": 0.01, "depth_max": 10.0, "shift": 3.5, "use_log": True}
