"""Columns of LeRobot datasets."""

from __future__ import annotations

LANGUAGE = ("language_persistent", "language_events")  # annotations; read also where info.json forgets them
PERSISTENT_STYLES = frozenset({"subtask", "plan", "memory", "motion", "task_aug"})  # of the first column alone
EVENT_STYLES = frozenset({"interjection", "vqa", "trace"})  # of the second
COUNTED = ("episode_index", "frame_index", "index")
TASK = "task_index"
