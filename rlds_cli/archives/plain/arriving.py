"""Rows that hold what arrived with an observation: its reward, flags and discount, as dm_env and Acme log them.

::

    row            0      1      2        T = 2 steps
    observation    o0     o1     o2
    action         a0     a1     -        none, or padding
    reward         -      r0     r1       that of row t+1 belongs to the action of row t
    step_type      FIRST  MID    LAST     with discount 0 the last step is terminated, else truncated
    discount       -      d0     d1       without step types: 0 is terminated, and nothing says truncated

A user says so by ``--rewards arrive``. Without it the reward of a row belongs to its own action, and a reward in a row
without an action is refused, since it would be lost and the others would belong to the wrong actions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlds_cli.archives.flat_rows import differs, is_set
from rlds_cli.archives.formats.tables import FIRST, LAST, MISSING, NOT, WITHOUT, Readable, Table
from rlds_cli.archives.names import NEXT_OBSERVATION, Meaning
from rlds_cli.archives.plain.boundaries import SCAN_ROWS
from rlds_cli.archives.readers import ACTION, ARRIVE
from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.base.text import is_below
from rlds_cli.errors import UnknownLayout
from rlds_cli.ted import FLAGS, REWARD, Note

STEP_TYPE = "step_type"
DISCOUNTS = ("discount", "discounts")
SIGNS = (*DISCOUNTS, "is_first", "is_last", "is_terminal")  # names in logs of dm_env, Acme and Dreamer, and elsewhere
WIDE = 1 << 12  # bytes of a row: wider columns are not read to look at their last rows
SAYS = (
    "--rewards arrive, if the reward of a row came with its observation (dm_env, Acme); --rewards action, if the last "
    "reward is padding"
)


def with_time_steps(found: Meaning, table: Table) -> Meaning:
    """Add dm_env's columns to the meaning of a table whose rewards arrive: ``discount`` and ``step_type``.

    Flags of the file come before those that follow from the step types.
    """
    taken = {*found.fields.values(), *found.per_episode.values()}
    free = {name.lower(): name for name in reversed([*table.own]) if name not in taken}
    fields = dict(found.fields)
    discount = next((free[name] for name in DISCOUNTS if name in free), None)
    if discount is not None and table[discount].dtype.kind in "biuf":
        fields["next/discount"] = discount
    discount = fields.get("next/discount")
    step_type = free.get(STEP_TYPE)
    if step_type is None:
        if discount is not None and not found.flags:
            fields[FLAGS[0]] = NOT + discount
        return replace(found, fields=fields)
    last = LAST + step_type
    if discount is not None and not found.flags:
        fields[FLAGS[0]] = last + WITHOUT + discount
        fields[FLAGS[1]] = last + WITHOUT + fields[FLAGS[0]]
    return replace(found, fields=fields, starts=found.starts or FIRST + step_type, lasts=found.lasts or last)


def check_order(table: Table, reward: str | None, convention: str | None, where: str) -> None:
    """Refuse rewards beside dm_env's step types, where nothing says to which action they belong.

    A reward other than 0 in a first row is that of its own action: in dm_env's order first rows have none.

    Raises
    ------
    UnknownLayout
        No first row has a reward, and the user does not say what rewards belong to.
    """
    step_type = next((name for name in table.own if name.lower() == STEP_TYPE), None)
    if convention is not None or step_type is None or reward is None or reward not in table:
        return
    first, rows = FIRST + step_type, table[step_type].shape[0] if table[step_type].shape else 0
    if table[reward].shape[:1] != (rows,) or table[reward].dtype.kind not in "biuf":
        return
    table.derive([first])
    begins = 0
    with table.rows([first, reward]) as reader:
        for start in range(0, rows, SCAN_ROWS):
            seen = reader.read(start, min(start + SCAN_ROWS, rows))
            at = seen[first].reshape(-1)
            values = seen[reward].reshape(len(at), -1)[at]
            begins += int(np.count_nonzero(at))
            if ((values != 0) & (values == values)).any():
                return
    if begins:
        raise UnknownLayout(
            f"{where} has {step_type}, and no {reward} in the first row of an episode: the {reward} of a row may "
            "belong to its own action, or to that of the row before.",
            hint="--rewards arrive, if it came with the observation (dm_env, Acme); --rewards action, if it is the "
            "result of the action of its row",
        )


def signs(columns: Iterable[str]) -> list[str]:
    """Return the columns whose names are also those of logs in which rewards arrive."""
    return [name for name in columns if name.lower() in SIGNS]


def has_first_rewards(table: Readable, reward: str, begins: IntArray) -> bool:
    """Tell whether the first row of an episode has a reward other than 0, which then is that of its own action.

    ``begins`` are the first rows of episodes, ascending. Reading ends at the first such reward.
    """
    stop = int(begins[-1]) + 1 if len(begins) else 0
    with table.rows([reward]) as reader:
        for start in range(0, stop, SCAN_ROWS):
            values = reader.read(start, min(start + SCAN_ROWS, stop))[reward]
            here = begins[slice(*np.searchsorted(begins, (start, start + SCAN_ROWS)))] - start
            found = values.reshape(len(values), -1)[here]
            if ((found != 0) & (found == found)).any():
                return True
    return False


def assumed(signs: Sequence[str]) -> Note:
    """Return the note that the order of rewards was not stated, and that nothing in the files shows it."""
    text = (
        "rewards and flags of a row are taken for the results of its own action: no first row has a reward, so that "
        f"the files do not show it, and {', '.join(signs)} may be of a log in which they came with the observation "
        "(dm_env, Acme, Dreamer). --rewards arrive reads such a log; --rewards action states what was assumed"
    )
    return Note("reward-order", text)


def is_late(name: str) -> bool:
    """Tell whether a field is the result of an action, so that it arrives one row later."""
    return name.startswith("next/") and not is_below(name, NEXT_OBSERVATION)


@dataclass(slots=True)
class FinalRows:
    """The last and the first rows of episodes whose last row is not a step, and the row before each.

    ``values`` [2 or 3 per episode] are those of some columns, and ``missing:KEY`` whether there is none.
    """

    final: IntArray
    first: IntArray
    rows: IntArray
    values: Mapping[str, Array]

    def at(self, key: str, rows: IntArray) -> Array:
        """Return the values of a column in some of the rows."""
        return np.asarray(self.values[key][np.searchsorted(self.rows, rows)])

    def present(self, key: str, rows: IntArray) -> BoolArray:
        """Tell which of some rows have a value of a column. bool [n]."""
        values = self.at(key, rows)
        if values.dtype.kind == "O":
            return np.array([v not in (None, "", b"") for v in values.reshape(-1)], bool)
        return ~np.asarray(self.at(MISSING + key, rows)).reshape(len(rows))

    def nonzero(self, key: str, rows: IntArray) -> BoolArray:
        """Tell which of some rows have a value other than 0. bool [n]."""
        values = self.at(key, rows).reshape(len(rows), -1)
        return np.asarray(self.present(key, rows) & (values != 0).any(axis=1))


def read_final_rows(table: Readable, first: IntArray, final: IntArray, keys: Collection[str]) -> FinalRows:
    """Read some columns, and whether they miss values, in the first and last rows of episodes with a step."""
    some = final > first
    first, final = first[some], final[some]
    rows = np.unique(np.concatenate([first, final - 1, final]))
    columns = sorted({*keys, *(MISSING + key for key in keys)})
    parts: dict[str, list[Array]] = {key: [] for key in columns}
    with table.rows(columns) as reader:
        for start in range(0, int(rows[-1]) + 1 if len(rows) else 0, SCAN_ROWS):
            here = rows[slice(*np.searchsorted(rows, (start, start + SCAN_ROWS)))] - start
            if len(here):
                for key, values in reader.read(start, start + int(here[-1]) + 1).items():
                    parts[key].append(values[here])
    return FinalRows(final, first, rows, {k: np.concatenate(v) if v else np.zeros(0) for k, v in parts.items()})


def judge(
    rows: FinalRows,
    columns: Mapping[str, str],
    convention: str | None,
    place: Callable[[int], str],
    *,
    unread: Sequence[str] = (),
) -> list[Note]:
    """Refuse a reward of a final row that would be lost; note all other values of final rows that are.

    Parameters
    ----------
    rows : FinalRows
    columns : mapping of str to str
        Keys of the columns with values for steps, by field, flags among them.
    convention : str or None
        As ``rewards`` of `Archive`.
    place : callable
        Names a row, for messages.
    unread : sequence of str
        Keys of columns that are too wide to be looked at.

    Raises
    ------
    UnknownLayout
        The last row of an episode has a reward and no action, and the user does not say what it belongs to.
    """
    if not len(rows.final):
        return []
    notes = []
    rewards = [k for n, k in columns.items() if is_below(n, REWARD)]
    others = {n: k for n, k in columns.items() if n not in FLAGS and k not in rewards}
    if convention == ARRIVE:
        notes.append(Note("rewards", "rewards arrive: those of a row, and its flags, belong to the action before it"))
        notes += [note for key in rewards if (note := _first_rewards(rows, key)) is not None]
        others = {n: k for n, k in others.items() if not is_late(n)}
    elif convention is None:
        _refuse_rewards(rows, rewards, [columns[n] for n in FLAGS if n in columns], place)
    lost = [k for n, k in others.items() if _is_lost(rows, k, padded=is_below(n, "action"))]
    if convention == ACTION:
        lost += [key for key in rewards if rows.nonzero(key, rows.final).any()]
    if lost or unread:
        text = f"final rows are not steps; their values are left out of {', '.join(sorted([*lost, *unread]))}"
        notes.append(Note("final-rows", text, len(rows.final)))
    return notes


def _is_lost(rows: FinalRows, key: str, *, padded: bool) -> bool:
    """Tell whether a final row has a value that the row before lacks; zeros are padding where ``padded``."""
    there = rows.nonzero(key, rows.final) if padded else rows.present(key, rows.final)
    return bool((there & _changes(rows, key)).any())


def _changes(rows: FinalRows, key: str) -> BoolArray:
    """Tell which final rows have another value than the row before. bool [n]."""
    after, before = rows.at(key, rows.final), rows.at(key, rows.final - 1)
    return np.asarray(differs(after, before).reshape(len(after), -1).any(axis=1))


def _first_rewards(rows: FinalRows, key: str) -> Note | None:
    """Note rewards of first rows: no action comes before them."""
    count = int(rows.nonzero(key, rows.first).sum())
    if not count:
        return None
    text = f"{key} is not 0 in the first row of an episode, where it belongs to no action: it is left out there"
    return Note("first-rewards", text, count)


def _refuse_rewards(rows: FinalRows, rewards: Sequence[str], flags: Sequence[str], place: Callable[[int], str]) -> None:
    """Refuse rewards in rows without an action, unless they are padding: 0, or the reward of the row before once more.

    Such a reward is padding only if other rows show that rewards belong to their own actions: flags stand in the row of
    the last action, or first rows have rewards.
    """
    at, before = (_is_flagged(rows, flags, where) for where in (rows.final, rows.final - 1))
    for key in rewards:
        shown = not at.any() and (before.any() or rows.nonzero(key, rows.first).any())
        padding = ~rows.nonzero(key, rows.final) | ~_changes(rows, key)
        padding &= rows.present(key, rows.first) & shown
        wrong = rows.present(key, rows.final) & ~padding
        if wrong.any():
            row = int(rows.final[np.argmax(wrong)])
            value = rows.at(key, np.array([row])).reshape(-1)[0]
            raise UnknownLayout(f"{place(row)} has no action, but the {key} {value:g}, which would be lost.", hint=SAYS)


def _is_flagged(rows: FinalRows, flags: Sequence[str], where: IntArray) -> BoolArray:
    found = np.zeros(len(where), bool)
    for key in flags:
        found |= is_set({key: rows.at(key, where)}, key, len(where))
    return found
