"""Columns of LeRobot datasets."""

from __future__ import annotations

LANGUAGE = ("language_persistent", "language_events")  # annotations; read also where info.json forgets them
COUNTED = ("episode_index", "frame_index", "index")
TASK = "task_index"
