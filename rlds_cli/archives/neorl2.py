"""NeoRL-2's npz: steps of all trajectories one after the other, with next observations.

::

    row         0    1    2    3    4          two trajectories, of 3 and 2 steps
    obs         o0   o1   o2   o0   o1         -> observation      both
    next_obs    o1   o2   o3   o1   o2         the final observation, and a check on the others
    action      a0   a1   a2   a0   a1         -> action           root
    reward      r0   r1   r2   r0   r1         -> next/reward
    done        0    0    1    0    0          -> next/terminated
    truncated   0    0    0    0    1          -> next/truncated, where there is one
    index       0              3               the first row of each trajectory

A trajectory ends before the next one of ``index``, and where it is done or truncated. ``<task>-val.npz`` holds the
validation trajectories: the splits ``val`` and, of all other files, ``train``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.archives.d4rl import ends
from rlds_cli.archives.flat import Flat, FlatEpisodes, FlatLayout, nonzero, stops_of
from rlds_cli.archives.formats.tables import Table
from rlds_cli.archives.readers import Archive, Plan
from rlds_cli.base.array_types import IntArray
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.ted import CUT, FLAGS, REWARD, TERMINATED, TRUNCATED

INDEX = "index"
NAMES = {"observation": "obs", "next/observation": "next_obs", "action": "action", REWARD: "reward", FLAGS[0]: "done"}
FLAG_KEYS = ("done", "truncated")
VAL = "-val.npz"


class NeoRL2(Flat):
    """Rows of steps, and a list of the first row of each trajectory."""

    name, title, container = "neorl2", "NeoRL-2", "npz"
    no_rule = "NeoRL-2 lists the first row of every trajectory"
    whole_files = True
    marks = (INDEX,)

    def describe(self, table: Table, paths: Sequence[Path]) -> tuple[str, str] | None:
        """Tell the files by their columns: ``index`` is a list of rows, or the last row of each is flagged."""
        there = table.columns
        if not {*NAMES.values()} <= set(there) or not {INDEX, "truncated"} & set(there):
            return None
        rows = there["obs"].shape[:1]
        if INDEX in there and (len(there[INDEX].shape) != 1 or there[INDEX].shape == rows or not rows):
            return None
        return "NeoRL-2 layout", f"{rows[0] if rows else 0:,} rows; {', '.join(sorted(there))}"

    def layout(self, table: Table, archive: Archive) -> FlatLayout:
        """Assign the members of an npz to fields, as D4RL's columns of other names."""
        if missing := [key for key in NAMES.values() if key not in table.columns]:
            raise UnknownLayout(
                f"{table.path.name} has no {', '.join(missing)}. It holds {', '.join(table.columns)}.",
                hint="NeoRL-2's files have obs, next_obs, action, reward and done; --reader plain takes others",
            )
        table.hidden.add(INDEX)
        chosen = NAMES | ({FLAGS[1]: "truncated"} if "truncated" in table.columns else {})
        return ends.of(table, table.path.name, chosen)

    def episodes(self, table: Table, found: FlatLayout, archive: Archive) -> FlatEpisodes:
        """End a trajectory before the next one of the list, and in each row that is flagged.

        Raises
        ------
        CorruptArchive
            The list does not begin with row 0, does not ascend, or goes beyond the rows.
        """
        flags = nonzero(table, [key for key in FLAG_KEYS if key in table], found.rows)
        over, late = (flags.get(key, np.zeros(found.rows, bool)) for key in FLAG_KEYS)
        last = over | late
        if INDEX in table:
            begins = _begins(table, found.rows)
            last[begins[1:] - 1] = True
        stops = stops_of(last)
        at = stops - 1
        end = np.where(over[at], TERMINATED, np.where(late[at], TRUNCATED, CUT)).astype(np.uint8)
        return FlatEpisodes(stops, np.zeros(len(stops), bool), end)

    def facts(
        self, archive: Archive, seen: Sequence[FlatLayout], found: Sequence[FlatEpisodes], mode: str | None
    ) -> Mapping[str, Any]:
        """Record whether there are splits, and how next observations are kept."""
        return {**seen[0].facts, "next_observations": mode, "splits": any(p.name.endswith(VAL) for p in archive.files)}

    def splits(self, plan: Plan, file: int) -> Mapping[str, bool]:
        """Tell by a file's name."""
        val = plan.archive.name_of(file).endswith(VAL)
        return {"train": not val, "val": val} if plan.facts["splits"] else {}


def _begins(table: Table, rows: int) -> IntArray:
    found = table.source.array(INDEX)
    if found.dtype.kind not in "iuf" or found.ndim != 1 or not len(found) or (found != np.floor(found)).any():
        raise CorruptArchive(
            f"{table.path.name}: index is {found.dtype} {list(found.shape)}; a list of rows is expected."
        )
    begins = found.astype(np.int64)
    wrong = np.flatnonzero(np.diff(begins, prepend=-1) <= 0).tolist() or np.flatnonzero(begins >= rows).tolist()
    if begins[0] != 0 or wrong:
        at = wrong[0] if wrong else 0
        raise CorruptArchive(
            f"{table.path.name}: index[{at}] is {begins[at]:,}; the first rows of trajectories are expected, from 0 "
            f"on, of {rows:,} rows.",
            hint="--reader plain --episodes-by flags goes by done alone",
        )
    return begins


READER = NeoRL2()
