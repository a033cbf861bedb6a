"""ManiSkill's HDF5: one group per trajectory, with a row more of observations and of states than of actions.

::

    traj_<k>/obs/<key>, or obs   [T+1, ...]   -> observation/<key>
             env_states/<key>    [T+1, ...]   -> env_states/<key>, both; observation/<key>, where there is no other
             actions, or below   [T, ...]     -> action
             rewards             [T]          -> next/reward
             terminated          [T]          -> next/terminated
             truncated           [T]          how a trajectory ends that is not terminated
             success, fail       [T]          -> root fields of the same names
             anything else       [T, ...]     -> a root field of its own name

What ``<name>.json`` beside ``<name>.h5`` says of the trajectories is read by `episode_info`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np

from rlds_cli.archives.account import ENDS, Fate, used_as
from rlds_cli.archives.formats.hdf5 import keys_found
from rlds_cli.archives.formats.inventory import Item
from rlds_cli.archives.grouped import Group, Grouped
from rlds_cli.archives.names import free_name, is_observation, row_field
from rlds_cli.archives.readers import Archive
from rlds_cli.base.text import natural
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.ted import FLAGS, REWARD, TRUNCATED, Note

GROUP = re.compile(r"traj_\d+")
OBSERVATION, ACTIONS, STATES = "obs", "actions", "env_states"
MEANINGS = {"rewards": REWARD, "terminated": FLAGS[0]}
TIME_LIMIT = "truncated"


class ManiSkillFamily(Grouped):
    """A group for each trajectory, with its final observation."""

    name, title, what = "maniskill", "ManiSkill", "trajectories"
    example = "traj_0, traj_1, ..."

    def describe(self, f: h5py.File, paths: Sequence[Path]) -> tuple[str, str] | None:
        """Tell the files by their groups, and by actions in the first."""
        groups = self.groups(f)
        if not groups or ACTIONS not in f[groups[0]] or not {OBSERVATION, STATES} & set(f[groups[0]]):
            return None
        return "ManiSkill layout", f"{len(groups):,} trajectories"

    def groups(self, f: h5py.File) -> list[str]:
        """Name the trajectories of a file, in the order of their numbers."""
        return sorted((k for k in f if GROUP.fullmatch(k) and isinstance(f.get(k), h5py.Group)), key=natural)

    def group(self, where: str, name: str, found: Mapping[str, h5py.Dataset], archive: Archive) -> Group:
        """Describe one trajectory: T is the rows of the actions.

        Raises
        ------
        UnknownLayout
            There are no actions, or neither observations nor states.
        CorruptArchive
            A known column has another number of rows.
        """
        rows = next((int(d.shape[0]) for k, d in found.items() if _top(k) == ACTIONS and d.shape), None)
        if rows is None:
            raise UnknownLayout(f"{where} has no actions. It holds {keys_found(found)}.")
        columns = _columns({k: d for k, d in found.items() if d.shape}, rows)
        if not any(map(is_observation, columns)):
            raise UnknownLayout(f"{where} has neither observations nor states. It holds {keys_found(found)}.")
        for key, d in found.items():
            wanted = rows + (_top(key) in (OBSERVATION, STATES))
            if self.is_known(key) and d.shape[:1] != (wanted,):
                said = f"{d.shape[0]} rows" if d.shape else "no rows"
                raise CorruptArchive(f"{where}: {key} has {said}; there are {rows} actions, and {wanted} are expected.")
        fields = {n: row_field(n, found[key], scalar=n in (REWARD, FLAGS[0])) for n, key in sorted(columns.items())}
        fields = {n: replace(f, placement="both") if _top(columns[n]) == STATES else f for n, f in fields.items()}
        constants = tuple(k for k in found if k not in columns.values() and k != TIME_LIMIT)
        return Group(name, rows, columns, {}, fields, constants, longer=True)

    def look(self, f: h5py.File, path: Path, found: list[Group]) -> list[Group]:
        """Read whether the last step of each trajectory is truncated."""
        return [replace(g, end=TRUNCATED) if _is_cut_short(f, g) else g for g in found]

    def is_known(self, key: str) -> bool:
        """Tell the keys of the layout."""
        return key in MEANINGS or key == TIME_LIMIT or _top(key) in (OBSERVATION, ACTIONS, STATES)

    def notes(self, f: h5py.File, name: str, found: Sequence[Group]) -> Iterator[Note]:
        """Note states that stand in for observations."""
        if found and all(_top(key) == STATES for n, key in found[0].columns.items() if is_observation(n)):
            yield Note("states-only", "no observations are recorded: states of the simulator are used instead", 1, name)

    def fate(self, item: Item) -> Fate | None:
        """State the fate of the flag of time limits."""
        group, _, key = item.name.partition("/")
        return used_as(ENDS) if key == TIME_LIMIT and GROUP.fullmatch(group) else None


def _top(key: str) -> str:
    return key.partition("/")[0]


def _columns(found: Mapping[str, h5py.Dataset], rows: int) -> dict[str, str]:
    """Return the key of each field."""
    tops = {OBSERVATION: "observation", ACTIONS: "action"}
    columns = {tops[_top(k)] + k[len(_top(k)) :]: k for k in found if _top(k) in tops}
    states = [k for k in found if _top(k) == STATES]
    if any(map(is_observation, columns)):
        columns |= {k: k for k in states}
    else:
        columns |= {"observation" + k[len(STATES) :]: k for k in states}
    columns |= {MEANINGS[k]: k for k in found if k in MEANINGS}
    others = [k for k, d in found.items() if k not in columns.values() and k != TIME_LIMIT and d.shape[0] == rows]
    for key in others:
        columns[free_name(key, {*columns, *FLAGS})] = key
    return columns


def _is_cut_short(f: h5py.File, g: Group) -> bool:
    key = f"{g.group}/{TIME_LIMIT}"
    return g.rows > 0 and key in f and bool(np.any(f[key][g.rows - 1]))


READER = ManiSkillFamily()
