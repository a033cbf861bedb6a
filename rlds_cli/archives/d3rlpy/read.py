"""d3rlpy's HDF5: the flat files of version 1, and the dumps of version 2.

The second format, ``ReplayBuffer.dump``, has a dataset per column and episode.

::

    version        "2.1"
    columns        ["observations", "actions", "rewards", "terminated"]
    num_episodes   E
    observations_<i>      [T, ...]    -> observation;  observations_<i>_<j>, of a tuple, -> observation/<j>
    actions_<i>           [T, ...]    -> action
    rewards_<i>           [T, 1]      -> next/reward
    terminated_<i>        bool        -> how the episode ends: terminated, else truncated
    any other column      [T, ...]    -> a root field of its own name

The observation after the last step is not recorded: ``Episode.transition_count`` counts T steps of an episode that
terminated, and T-1 of another.

The first format has flat columns; an episode that terminated has one more row, which is padding.

::

    row                 0    1    2    3    4    5    6         an episode that terminated, and one that timed out
    observations        o0   o1   o2   o3   o0   o1   o2        o3 is the final observation
    actions, rewards    a0   a1   a2   ??   a0   a1   a2        row 3 is padding; row 6 is a step like any other
    terminals           0    0    1    1    0    0    0         on the last two rows
    episode_terminals   0    0    0    1    0    0    1

An episode that timed out has no padding: the reward of its last row is that of its own observation and action, and the
observation after it is not recorded. Older files have no ``episode_terminals``: episodes end at ``terminals``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rlds_cli.archives.account import LAYOUT, METADATA, Fate, used_as
from rlds_cli.archives.flat import Flat, FlatEpisodes, FlatLayout, nonzero, stops_of
from rlds_cli.archives.formats.hdf5 import attributes, whole
from rlds_cli.archives.formats.inventory import Item
from rlds_cli.archives.formats.tables import Table
from rlds_cli.archives.grouped import Group, Grouped
from rlds_cli.archives.names import common_rows, free_name, row_field
from rlds_cli.archives.readers import Archive, ArchivedStep, Plan
from rlds_cli.archives.variants import Variants
from rlds_cli.base.array_types import Array
from rlds_cli.base.text import is_below
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.ted import CUT, FLAGS, REWARD, TERMINATED, TRUNCATED, Note

NAMES = {"observations": "observation", "actions": "action", "rewards": REWARD}
# Version 1: the columns that a file must have, and the column of ends.
NEEDED = ("observations", "actions", "rewards", "terminals")
ENDS = "episode_terminals"
# Version 2: the columns that are not per episode, the column of ends, the version that is read, observations of a step.
MARKS = ("columns", "num_episodes", "version")
END = "terminated"
ENDED = re.compile(rf"{END}_\d+")
KNOWN = "2.1"
MAX_TUPLE = 256


def _check(archive: Archive) -> None:
    if archive.episodes_by is not None or archive.fields:
        raise UnknownLayout(
            "d3rlpy's files define their own fields and ends of episodes: --map and --episodes-by do not apply.",
            hint="--reader d4rl reads flat files with these options",
        )


class Version1(Flat):
    """Flat columns, and a row of padding behind each episode that terminated."""

    name, title, container, flag = "d3rlpy", "d3rlpy", "hdf5", "terminals"
    marks = ("terminals", ENDS)

    def describe(self, table: Table, paths: Sequence[Path]) -> tuple[str, str] | None:
        """Tell d3rlpy's columns, which it alone has together."""
        there = set(table.columns)
        if not set(NEEDED) <= there or not (ENDS in there or {"discrete_action", "version"} <= there):
            return None
        found = self.layout(table, Archive(paths[0].parent, tuple(paths)))
        return "d3rlpy layout (version 1)", f"{found.rows:,} rows"

    def check(self, archive: Archive) -> None:
        """Refuse mappings and rules for ends."""
        _check(archive)

    def layout(self, table: Table, archive: Archive) -> FlatLayout:
        """Assign the datasets of a file to fields."""
        there = table.own
        core = [k for k in (*NEEDED, ENDS) if k in there]
        rows = common_rows(table.path.name, {k: there[k] for k in core})
        if missing := [k for k in NEEDED if k not in there]:
            raise UnknownLayout(
                f"{table.path.name} has no {', '.join(missing)}. It holds {', '.join(there)}.",
                hint="d3rlpy's files have observations, actions, rewards and terminals; --reader plain takes others",
            )
        columns = {field: key for key, field in NAMES.items()}
        others = [k for k, c in there.items() if k not in core and c.shape[:1] == (rows,)]
        columns |= {free_name(k, {*columns, *FLAGS}): k for k in others}
        fields = tuple(row_field(n, there[k], scalar=n == REWARD) for n, k in columns.items())
        constants = tuple(k for k in there if k not in core and k not in others)
        return FlatLayout(rows, fields, columns, metadata=constants, facts={"d3rlpy": [1]})

    def episodes(self, table: Table, found: FlatLayout, archive: Archive) -> FlatEpisodes:
        """End episodes at their marks, else at the last of the flagged rows; two flagged rows mean one of padding."""
        seen = nonzero(table, [k for k in ("terminals", ENDS) if k in table], found.rows)
        terminal = seen["terminals"]
        marks = seen[ENDS] if ENDS in seen else terminal & ~np.append(terminal[1:], False)
        stops = stops_of(marks)
        last = stops - 1
        longer = np.diff(stops, prepend=0) > 1
        padded = terminal[last] & terminal[np.maximum(last - 1, 0)] & longer
        end = np.where(terminal[last], TERMINATED, np.where(marks[last], TRUNCATED, CUT)).astype(np.uint8)
        return FlatEpisodes(stops, np.asarray(padded), end)

    def has_final(self, table: Table, place: ArchivedStep) -> bool:
        """Tell whether the row behind the last step is padding."""
        flags = next(iter(table.samples("terminals", [place.first + place.step], 2)))
        return len(flags) > 1 and bool(np.all(flags != 0))


class Version2(Grouped):
    """A dataset for each column and episode; episodes are not groups, but end the names of their datasets."""

    name, title, rule = "d3rlpy", "d3rlpy", "flags"

    def describe(self, f: h5py.File, paths: Sequence[Path]) -> tuple[str, str] | None:
        """Tell a dump by what it says about itself."""
        if not set(MARKS) <= set(f):
            return None
        return "d3rlpy layout (version 2)", f"{int(whole(f['num_episodes'])):,} episodes"

    def check(self, archive: Archive) -> None:
        """Refuse mappings and rules for ends."""
        _check(archive)

    def groups(self, f: h5py.File) -> list[str]:
        """Name the episodes that a file says it has."""
        return [f"episode_{i}" for i in range(int(whole(f["num_episodes"])))]

    def path(self, group: str, key: str) -> str:
        """Put the number of an episode into the name of a dataset."""
        return key.format(group.removeprefix("episode_"))

    def described(self, f: h5py.File, group: str, archive: Archive) -> Group:
        """Describe one episode."""
        name = Path(f.filename).name
        columns = _columns(f, name, group.removeprefix("episode_"))
        there = {n: f[self.path(group, key)] for n, key in columns.items()}
        end = there.pop(END, None)
        fields = {n: row_field(n, d, scalar=n == REWARD) for n, d in there.items()}
        rows = common_rows(name, {d.name.strip("/"): d for d in there.values()})
        over = end is not None and bool(np.all(whole(end)))
        keys = {n: columns[n] for n in there}
        return Group(group, rows, keys, {}, fields, (), end=TERMINATED if over else TRUNCATED)

    def facts(
        self, archive: Archive, found: Sequence[Sequence[Group]], chance: Sequence[str]
    ) -> tuple[dict[str, Any], list[Note]]:
        """Record the version."""
        return {"d3rlpy": [2]}, []

    def fate(self, item: Item) -> Fate | None:
        """State the fate of attributes, of what a dump says about itself, and of the flag that ends an episode."""
        if item.name in MARKS:
            return used_as(LAYOUT)
        if item.name.startswith("@"):
            return used_as(METADATA)
        return used_as(FLAGS[0]) if ENDED.fullmatch(item.name) else None

    def constants(self, f: h5py.File, plan: Plan, name: str) -> Iterator[tuple[str, Array | str]]:
        """Return attributes and the version."""
        yield from attributes(f)
        yield "version", _text(whole(f["version"]))


def _columns(f: h5py.File, name: str, episode: str) -> dict[str, str]:
    """Map fields to the names of datasets, with braces for the episode's number.

    Raises
    ------
    UnknownLayout
        An older version, or no observations or actions.
    CorruptArchive
        A column is not there.
    """
    version = _text(whole(f["version"]))
    if version != KNOWN:
        raise UnknownLayout(
            f"{name} is of version {version[:40]} of d3rlpy's format; 2.1 and the flat files of d3rlpy 1 are read.",
            hint="load it with the d3rlpy that wrote it, and dump it with a newer one",
        )
    found: dict[str, str] = {}
    for column in map(_text, np.ravel(whole(f["columns"]))):
        key, field = f"{column}_{episode}", NAMES.get(column, column)
        pattern = column.replace("{", "{{").replace("}", "}}") + "_{}"
        parts = [j for j in range(MAX_TUPLE) if f"{key}_{j}" in f] if key not in f else []
        if key not in f and not parts:
            raise CorruptArchive(f"{name}: {key} is not there, though {whole(f['num_episodes'])} episodes are.")
        found |= {f"{field}/{j}": f"{pattern}_{j}" for j in parts} if parts else {field: pattern}
    for needed in ("observation", "action"):
        if not any(is_below(n, needed) for n in found):
            raise UnknownLayout(f"{name} has no {needed}s.")
    return found


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


READER = Variants(Version2(), Version1())
