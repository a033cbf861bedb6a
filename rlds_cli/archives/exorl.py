"""ExORL, URLB and DrQ-v2: an npz for each episode of the DeepMind control suite, in the order of dm_env.

A row holds an observation, and the action, reward and discount that led to it, as in V-D4RL::

    episode_12_1000.npz    row            0     1     2    ...    T = 1000 steps, T+1 rows
                           observation    o0    o1    o2          -> observation     both
                           action         -     a0    a1          -> action          of step t in row t+1
                           reward         0     r0    r1          -> next/reward, next/discount: likewise
                           physics        s0    s1    s2          -> state/physics   both: the state of the simulator

The name is ``episode_<number>_<steps>``, or ``<time>_<number>_<steps>``. An episode is saved at its last step: one
whose last discount is 0 is terminated, any other truncated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.archives.flat import FlatEpisodes, FlatLayout
from rlds_cli.archives.formats.tables import NOT, Table
from rlds_cli.archives.readers import Archive
from rlds_cli.archives.vd4rl import EpisodeShards
from rlds_cli.ted import CUT, TRUNCATED

NAMED = re.compile(r"(?:episode|\d{8}T\d{6})_\d+_(\d+)\.npz")


class ExORL(EpisodeShards):
    """An npz for each episode, called by its number and its steps."""

    name, title = "exorl", "ExORL"
    frames, marks = "observation", ()
    needed = ("observation", "action", "reward", "discount")

    def describe(self, table: Table, paths: Sequence[Path]) -> tuple[str, str] | None:
        """Tell the files by their names, and by a row more than these say."""
        steps = NAMED.fullmatch(table.path.name)
        rows = table["action"].shape[:1] if "action" in table else ()
        if not {*self.needed} <= set(table.columns) or not steps or rows != (int(steps[1]) + 1,):
            return None
        return "ExORL layout", f"an episode of {rows[0]:,} rows"

    def terminals(self, table: Table) -> str | None:
        """A discount of 0 is a flag."""
        return f"{NOT}discount"

    def episodes(self, table: Table, found: FlatLayout, archive: Archive) -> FlatEpisodes:
        """Find how the episode of a file ends: one that is not terminated ran into the limit of time."""
        said = super().episodes(table, found, archive)
        end = np.asarray(said.end)
        return replace(said, end=np.where(end == CUT, TRUNCATED, end).astype(np.uint8))

    def facts(
        self, archive: Archive, seen: Sequence[FlatLayout], found: Sequence[FlatEpisodes], mode: str | None
    ) -> Mapping[str, Any]:
        """Record the convention of rows."""
        return {"rows": "a row holds the action and reward that led to it"}


READER = ExORL()
