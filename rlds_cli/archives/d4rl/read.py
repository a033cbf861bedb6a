"""D4RL's flat HDF5, and any other HDF5 file with one row per step (``--map FIELD=KEY``).

::

    observations       [N, ...]   or a group, one dataset per part       -> observation, observation/<key>
    actions            [N, ...]                                          -> action
    rewards            [N] or [N, 1], if any                             -> next/reward
    terminals          [N] or [N, 1], bool or number, if any             -> next/terminated
    timeouts           [N] or [N, 1], if any                             -> next/truncated
    next_observations  if any: final observations, and a check on ends
    infos              a group, or one flat dataset                      -> info/<key>, info
    metadata           a group, and every scalar                         -> metadata
    anything else      [N, ...]                                          -> a root field of its own name

Row t holds (o_t, a_t, r_t, d_t); the observation after the last step of an episode stands in ``next_observations`` or
nowhere. Files are read one after the other, and each ends its last episode.

Episodes end at ``terminals`` or ``timeouts`` (rule ``flags``), at ``timeouts`` only, where ``next_observations`` and
the row after differ (``jumps``), where a column changes (``field:KEY``), or nowhere (``file``). A flag inside an
episode is kept: as ``next/terminated``, and as a root field ``timeouts``.

Under every rule but ``jumps``, a next observation that is not the row after ends the episode too, and is its final
observation. If that happens at more than one step in a hundred of a part, next observations are not copies of the rows
after: they become a field of their own, ``next/observation``, and cut nothing. ``observation`` stays placed ``both``,
since the final observation is known there as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.archives import once
from rlds_cli.archives.d4rl import ends
from rlds_cli.archives.d4rl.ends import D4RL_KEYS, DEFAULT
from rlds_cli.archives.flat import Flat, FlatEpisodes, FlatLayout
from rlds_cli.archives.formats.tables import MISSING, Table, no_rows
from rlds_cli.archives.names import meaning, says_more
from rlds_cli.archives.readers import Archive, Plan
from rlds_cli.archives.steps import check_steps
from rlds_cli.base.text import is_below
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.ted import Note


class D4RLFamily(Flat):
    """Rows of steps, and ends by a rule."""

    name, title, container = "d4rl", "D4RL", "hdf5"
    rules = (DEFAULT,)
    mapped = True
    unlike = CorruptArchive

    def describe(self, table: Table, paths: Sequence[Path]) -> tuple[str, str] | None:
        """Tell D4RL's columns from tables that say more about their episodes than D4RL's flags do."""
        if not {D4RL_KEYS["observation"], D4RL_KEYS["action"]} <= {key.partition("/")[0] for key in table.columns}:
            return None
        what = meaning(table.columns, {}, table.path.name)
        if says_more(what) or not {k.partition("/")[0] for k in what.fields.values()} <= {*D4RL_KEYS.values()}:
            return None  # D4RL's names would not do
        try:
            found = ends.of(table, table.path.name, {})
        except UnknownLayout:  # observations of a row more, for one
            return None
        if _ends_without_action(table, found) or once.has_attributes(table):
            return None  # a final observation, or what arrived with it; columns of the episode table
        more = {"timeouts": found.timeouts, "next_observations": found.next_columns}
        names = [*(f.name for f in found.fields), *(name for name, there in more.items() if there)]
        return "D4RL layout", f"{found.rows:,} rows; {', '.join(names)}"

    def check(self, archive: Archive) -> None:
        """Accept all options; a rule that does not apply is refused when the columns are known."""

    def plan(self, archive: Archive) -> Plan:
        """Refuse files without rows."""
        made = super().plan(archive)
        if not made.parts:
            raise no_rows(archive.name_of(0))
        return made

    def layout(self, table: Table, archive: Archive) -> FlatLayout:
        """Assign columns to fields by D4RL's keys, and by those that the user names."""
        found = ends.of(table, table.path.name, archive.fields)
        check_steps(table, found.columns, archive.episodes_by)
        return found

    def episodes(self, table: Table, found: FlatLayout, archive: Archive) -> FlatEpisodes:
        """Find the ends by the rule; jumps between next observations and the rows after are found as they are read."""
        by = ends.rule(archive.episodes_by, found, table)
        read_later = by.kind == "jumps" and not by.limits
        stops = np.array([found.rows] if read_later and found.rows else [], np.int64)
        stops = stops if read_later else ends.scan(table, by) + 1
        return FlatEpisodes(stops, np.zeros(len(stops), bool), about={"jumps": by.limits})

    def facts(
        self, archive: Archive, seen: Sequence[FlatLayout], found: Sequence[FlatEpisodes], mode: str | None
    ) -> Mapping[str, Any]:
        """Record the dtypes of flags, which D4RL's own helpers go by, and what a jump is."""
        flags = {name: dtype for s in seen for name, dtype in s.facts["flags"].items()}
        limits = [e.about["jumps"] for e in found]
        return {"next_observations": mode, "flags": flags} | ({"jumps": limits} if any(limits) else {})

    def notes(self, archive: Archive, index: int, found: FlatLayout, episodes: FlatEpisodes) -> Iterator[Note]:
        """Note a file without rows."""
        yield from super().notes(archive, index, found, episodes)
        if not found.rows:
            yield Note("empty-file", "has no rows", 1, archive.name_of(index))


def _ends_without_action(table: Table, found: FlatLayout) -> bool:
    """Tell whether the action of the last row is NaN."""
    missing = [MISSING + key for name, key in found.columns.items() if is_below(name, "action")]
    table.derive(missing)
    with table.rows(missing) as rows:
        seen = rows.read(found.rows - 1, found.rows) if found.rows else {}
    return bool(seen) and all(values.all() for values in seen.values())


READER = D4RLFamily()
