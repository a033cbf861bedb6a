"""What the columns of one flat file mean, and which of them mark episodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rlds_cli.archives import Archive
from rlds_cli.archives.d4rl import layout as layouts
from rlds_cli.archives.d4rl.layout import Layout
from rlds_cli.archives.hdf5 import is_observation
from rlds_cli.archives.names import Meaning, flags_of, has_essentials, meaning
from rlds_cli.archives.plain.boundaries import BoundaryColumns, boundary_columns, by_rule, check_numbers
from rlds_cli.archives.tables import Column, Table, open_flat
from rlds_cli.errors import UnknownLayout
from rlds_cli.ted import FLAGS


@dataclass(frozen=True, slots=True)
class FileSurvey:
    """What the columns of one file mean.

    ``by`` are the columns that mark episodes, ``rows`` counts the actions and ``observations`` the observations;
    ``lists`` are columns that may have one value per episode, with their shapes.
    """

    path: Path
    meaning: Meaning
    by: BoundaryColumns
    rows: int
    layout: Layout
    observations: int
    lists: Mapping[str, tuple[int, ...]]

    @property
    def keys(self) -> dict[str, str]:
        """Columns by the fields that are made of them."""
        flags = {FLAGS[0]: self.layout.terminals, FLAGS[1]: self.layout.timeouts}
        following = {f"next/{n}": k for n, k in self.layout.next_columns.items()}
        return {**self.layout.columns, **following, **{n: k for n, k in flags.items() if k}}


def survey(archive: Archive, path: Path) -> FileSurvey:
    """Look at the names, shapes and dtypes of the columns of one file; reads no rows."""
    with open_flat(path, fill=True) as table:
        what = understood(table, archive.fields)
        by = boundary_columns(what, table, strict=not archive.episodes_by)
        if archive.episodes_by:
            by = by_rule(by, archive.episodes_by, table)
        rows = max((table[a].shape[0] for a in by.actions if table[a].shape), default=0)
        observed = [key for name, key in what.fields.items() if is_observation(name) and table[key].shape]
        observations = max((table[key].shape[0] for key in observed), default=rows)
        for key in observed:  # for the layout, which wants as many rows of all
            table.columns[key] = replace(table[key], shape=(rows, *table[key].shape[1:]))
        found = layouts.of(table, path.name, flags_of(what)[0])
        lists = {k: table[k].shape for k in (*found.metadata, *what.per_episode.values()) if _is_list(table[k])}
        return FileSurvey(path, what, by, rows, found, observations, lists)


def _is_list(c: Column) -> bool:
    """Whether a column could have one number, flag or text per episode."""
    return len(c.shape) in (1, 2) and c.shape[1:] in ((), (1,)) and c.dtype.kind in "biufOS"


def understood(table: Table, chosen: Mapping[str, str]) -> Meaning:
    """Find the meaning of a table's columns; hide those that become no fields.

    Raises
    ------
    UnknownLayout
        It has no observations or no actions.
    """
    if not table.columns:
        raise UnknownLayout(f"{table.path.name} has no rows.", hint="--skip-bad leaves it out; or remove the file")
    what = meaning(table.columns, chosen, table.path.name)
    if not has_essentials(what):
        missing = "action" if any(map(is_observation, what.fields)) else "observation"
        raise UnknownLayout(
            f'{table.path.name} has no "{missing}" by any name that is known. It holds {_held(table)}.',
            hint=f"say which column it is: --map {missing}=KEY",
        )
    fields, done = flags_of(what)
    table.derive([*what.fields.values(), *fields.values()])
    check_numbers(table, fields)
    table.hidden.update(what.ignored, what.per_episode.values())
    if done is not None and done not in fields.values():
        table.hidden.add(done)
    for key in fields.values():
        if key.startswith("["):
            table.hidden.update(table.made_of(key))
    return what


def _held(table: Table) -> str:
    shown = [f"{n} {list(c.shape)}" for n, c in list(table.own.items())[:12]]
    return ", ".join(shown) + (", ..." if len(table.own) > len(shown) else "") if shown else "nothing"
