"""OGBench's npz: all trajectories one after the other, each with one row more than it has steps.

::

    row              0    1    2    3    4    5    6         two trajectories, of 3 and 2 steps
    observations     o0   o1   o2   o3   o0   o1   o2        -> observation    both
    actions          a0   a1   a2   ??   a0   a1   ??        -> action         root; the last one leads nowhere: zeros
    terminals        0    0    0    1    0    0    1         -> where a trajectory ends, always by a time limit
    qpos, qvel, button_states                                -> info/<key>     both
    valids           1    1    1    0    1    1    0         the compact form; terminals are then 1 on the last two rows
    rewards, masks   of row t, where a task has relabelled   -> next/reward, next/terminated (masks == 0)

``<id>-val.npz`` holds the validation trajectories: the splits ``val`` and, of all other files, ``train``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.archives.flat import Flat, FlatEpisodes, FlatLayout, nonzero, stops_of
from rlds_cli.archives.formats.tables import NOT, Table
from rlds_cli.archives.names import free_name, row_field
from rlds_cli.archives.readers import Archive, ArchivedStep, Plan
from rlds_cli.base.subset import Subset
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.ted import CUT, FLAGS, REWARD, TRUNCATED

NEEDED = ("observations", "actions", "terminals")
NAMES = {"observations": "observation", "actions": "action", "rewards": REWARD}
INFOS = ("qpos", "qvel", "button_states")
MASKS, VALIDS = "masks", "valids"
NAMED = re.compile(r".+-v\d+(-val)?\.npz")
VAL = "-val.npz"


class OGBench(Flat):
    """Rows of trajectories, and a row more for each final observation."""

    name, title, container = "ogbench", "OGBench", "npz"
    no_rule = "OGBench flags the last row of every trajectory"
    whole_files = True
    marks = ("terminals", VALIDS)
    inside_notes = False  # masks are 0 wherever the goal is reached

    def describe(self, table: Table, paths: Sequence[Path]) -> tuple[str, str] | None:
        """Tell OGBench's npz from others that have columns of the same names.

        Its name ends as OGBench's do, or it has ``qpos`` or ``valids``, which no other has; and it has no flags or next
        observations of its own.
        """
        there = set(table.columns)
        own = {"qpos", VALIDS} & there or all(NAMED.fullmatch(p.name) for p in paths)
        if not set(NEEDED) <= there or not own or {"timeouts", "next_observations"} & there:
            return None
        rows = table["observations"].shape[:1]
        return "OGBench layout", f"{rows[0] if rows else 0:,} rows; {', '.join(sorted(there))}"

    def choose(
        self, names: Sequence[str], portion: Subset, read: Callable[[str], bytes]
    ) -> tuple[Sequence[str], Subset]:
        """Choose the files of a split; only rows tell the episodes, so a range of them is cut out later."""
        splits = {n: "val" if n.endswith(VAL) else "train" for n in names if n.endswith(".npz")}
        if portion.split is None or "val" not in splits.values():
            return names, portion
        if portion.split not in splits.values():
            raise portion.no_split(("train", "val"))
        chosen = [n for n in names if splits.get(n, portion.split) == portion.split]
        return chosen, replace(portion, split=None)

    def plan(self, archive: Archive) -> Plan:
        """Put the validation files last."""
        made = super().plan(archive)
        return replace(made, parts=tuple(sorted(made.parts, key=lambda p: _is_val(made, p.args["file"]))))

    def layout(self, table: Table, archive: Archive) -> FlatLayout:
        """Assign the members of an npz to fields."""
        there = table.columns
        missing = [key for key in NEEDED if key not in there]
        if missing:
            raise UnknownLayout(
                f"{table.path.name} has no {', '.join(missing)}. It holds {', '.join(there)}.",
                hint="OGBench's files have observations, actions and terminals; --reader plain takes others",
            )
        rows = there["observations"].shape[0] if there["observations"].shape else 0
        core = (*NEEDED, *NAMES, MASKS, "terminals", VALIDS)
        short = {k: list(c.shape) for k in core if (c := there.get(k)) and c.shape[:1] != (rows,)}
        if short:
            raise CorruptArchive(f"{table.path.name}: columns have different numbers of rows: {rows} and {short}.")
        columns = {name: key for key, name in NAMES.items() if key in there}
        columns |= {f"info/{key}": key for key in INFOS if key in there and there[key].shape[:1] == (rows,)}
        others = [k for k in there if k not in (*columns.values(), MASKS, "terminals", VALIDS)]
        per_row = [k for k in others if there[k].shape[:1] == (rows,) and there[k].dtype.kind in "biufc"]
        columns |= {free_name(k, {*columns, *FLAGS}): k for k in per_row}
        known = {n: row_field(n, there[key], scalar=n == REWARD) for n, key in columns.items()}
        both = ("action", REWARD)
        fields = [f if f.name in both else replace(f, placement="both") for f in known.values()]
        terminals = NOT + MASKS if MASKS in there else None
        table.derive([terminals] if terminals else [])
        constants = tuple(k for k in others if k not in per_row)
        return FlatLayout(rows, tuple(fields), columns, terminals=terminals, metadata=constants)

    def episodes(self, table: Table, found: FlatLayout, archive: Archive) -> FlatEpisodes:
        """End a trajectory in each row that is flagged; the last row of all ends one that is cut, without a flag."""
        key = VALIDS if VALIDS in table else "terminals"
        flags = nonzero(table, [key], found.rows)[key]
        last = ~flags if key == VALIDS else flags
        stops = stops_of(last)
        end = np.full(len(stops), TRUNCATED, np.uint8)
        if found.rows and not last[-1]:
            end[-1] = CUT
        return FlatEpisodes(stops, np.ones(len(stops), bool), end)

    def facts(
        self, archive: Archive, seen: Sequence[FlatLayout], found: Sequence[FlatEpisodes], mode: str | None
    ) -> Mapping[str, Any]:
        """Record whether there are splits."""
        return {"splits": any(p.name.endswith(VAL) for p in archive.files)}

    def splits(self, plan: Plan, file: int) -> Mapping[str, bool]:
        """Tell by a file's name."""
        val = _is_val(plan, file)
        return {"train": not val, "val": val} if plan.facts["splits"] else {}

    def has_final(self, table: Table, place: ArchivedStep) -> bool:
        """Every trajectory has its final row."""
        return True


def _is_val(plan: Plan, file: int) -> bool:
    return plan.archive.name_of(file).endswith(VAL)


READER = OGBench()
