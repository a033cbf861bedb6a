"""Whether a row of a table is a step, and not an episode or a batch of steps, as in arrays [episodes, time, ...]."""

from __future__ import annotations

from collections.abc import Mapping

from rlds_cli.archives.formats.tables import Table, TableColumn
from rlds_cli.archives.names import NEXT_DONE, is_observation
from rlds_cli.base.text import is_below
from rlds_cli.errors import UnknownLayout
from rlds_cli.ted import FLAGS, REWARD


def check_steps(table: Table, fields: Mapping[str, str], rule: str | None) -> None:
    """Refuse a table whose rows hold several steps.

    A flag has one value a row. A reward of several parts is one of several objectives, unless observations and actions
    have as many rows of their own; and so have observations and actions of more than two axes without rewards.

    Parameters
    ----------
    table : Table
    fields : mapping of str to str
        The column of each field.
    rule : str or None
        The user's rule for the ends of episodes: with one, rows are steps.

    Raises
    ------
    UnknownLayout
        They do.
    """
    known = {name: table[key] for name, key in fields.items() if key in table and table[key].shape}
    flags = [c for name, c in known.items() if name in (*FLAGS, NEXT_DONE) and c.dtype.kind in "biuf"]
    for c in flags:
        if not _is_one(c):
            raise _no_step(table, c)
    rewards = [c for name, c in known.items() if name == REWARD]
    observed = [c for name, c in known.items() if is_observation(name)]
    acted = [c for name, c in known.items() if is_below(name, "action")]
    top = [*observed, *acted]
    if rule or not acted or not observed or any(len(c.shape) < 2 or c.image or c.shape[1] < 2 for c in top):
        return
    rows = {c.shape[1] for c in (*acted, *rewards) if c not in rewards or not _is_one(c)}
    many = any(not _is_one(c) for c in rewards)
    deep = [len(c.shape) > 2 for c in top]
    is_grid = (any(deep) if flags else True) if many else all(deep) and not rewards and not flags
    if is_grid and len(rows) == 1 and all(c.shape[1] - min(rows) in (0, 1) for c in observed):
        raise _no_step(table, rewards[0] if many else acted[0], "file, flags, or another rule")


def _is_one(c: TableColumn) -> bool:
    return c.shape[1:] in ((), (1,))


def _no_step(table: Table, c: TableColumn, rules: str = "") -> UnknownLayout:
    option = f"; if each row is one step nevertheless: --episodes-by {rules}" if rules else ""
    return UnknownLayout(
        f"{table.path.name}: {c.name} is {c.dtype} {list(c.shape)}, with {c.shape[1]:,} values in a row, so a row is "
        "not a step, but an episode, a batch of steps, or a step of several environments or agents.",
        hint="write a row for each step, with a column of episode ids, or pass the episodes to rlds_cli.create"
        + option,
    )
