"""Find the episodes of flat rows, and check that ids, steps, flags and actions agree about them.

The first of these columns that exists decides; the others are checked against it, row by row::

    ids       an episode is a run of rows with one id
    lists     episode_ends or episode_lengths
    starts    an episode begins where it is set
    lasts     an episode ends where it is set
    steps     an episode begins where the step is not that of the row before plus one
    flags     an episode ends where a flag is set

Rows out of order are sorted by id and step. A row without an action holds the final observation of its episode; it is
the last row of the episode, and no step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce

import numpy as np

from rlds_cli.archives.flat_rows import differs, is_set
from rlds_cli.archives.formats.tables import ENDS, MISSING, Readable, Table
from rlds_cli.archives.names import Meaning, flags_of
from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.base.text import natural
from rlds_cli.errors import UnknownLayout, UnsafeArchive
from rlds_cli.ted import FLAGS

SCAN_ROWS = 1 << 18
PACKED_BYTES = 32  # of a text among ids
TEXT_BYTES = 128  # of a text as an object
FREE_MARKS, MARKS_RATIO = 256 << 20, 64  # bytes of the columns that mark episodes, and for each byte of the files
FREE_EPISODES = 8 << 20  # and one for each byte of the files
ID_KINDS = "iufbOS"  # of dtypes
DECIDE = "say which column is right: --episodes-by field:KEY, steps:KEY, starts:KEY or flags"
RULES = {"field": "ids", "steps": "steps", "starts": "starts", "lasts": "lasts"}


@dataclass(frozen=True, slots=True)
class BoundaryColumns:
    """The columns that mark episodes: one decides, and the others are checked against it.

    ``stops`` is derived from a list of ends or lengths. ``explicit`` is the kind of the user's rule, or None; no column
    is checked against such a rule.
    """

    ids: str | None
    steps: str | None
    starts: str | None
    lasts: str | None
    stops: str | None
    terminated: str | None
    truncated: str | None
    done: str | None
    actions: tuple[str, ...]
    masked: bool = False  # terminals mark ends of trajectories, and masks which of them are terminated
    explicit: str | None = None
    agents: str | None = None  # whose step a row is: rows of several agents make no episode
    others: tuple[str, ...] = ()  # further columns of ids, which do not change within an episode
    counts: tuple[str, ...] = ()  # further columns of steps, which do not go back within an episode
    arrive: bool = False  # flags stand in the row after their action, and the last row of every episode is no step

    @property
    def keys(self) -> set[str]:
        """All columns that are read to find episodes."""
        one = (self.ids, self.steps, self.starts, self.lasts, self.stops, self.terminated, self.truncated, self.done)
        told = {k for k in one if k is not None}
        missing = {MISSING + k for k in (*self.actions, *(k for k in told if not k.startswith(ENDS)))}
        return told | missing | {*self.others, *self.counts, *([self.agents] if self.agents else [])}

    @property
    def options(self) -> str:
        """What a user may say instead: the rules by the columns that there are, for hints."""
        named = {"field": self.ids, "steps": self.steps, "starts": self.starts, "lasts": self.lasts}
        found = [f"{kind}:{key}" for kind, key in named.items() if key is not None]
        found += [f"field:{self.stops}"] if self.stops is not None else []
        found += ["flags"] if _has_flags(self) else []
        return f"say which is right: --episodes-by {' or --episodes-by '.join(found)}" if len(found) > 1 else DECIDE


@dataclass(slots=True)
class Boundaries:
    """The ends of the episodes of a table, in the order of reading.

    Attributes
    ----------
    stops : int array [E]
        The row after the last one of each episode.
    finals : bool array [E]
        True if that last row holds the final observation, and no step.
    order : int array [rows] or None
        The rows sorted by time; None if they are in that order.
    rule : str
        The rule that decided.
    ends : int array [3]
        The numbers of episodes that are terminated, truncated and cut.
    late : bool
        True if truncated is set inside an episode, which only a rule of the user's allows.
    closed : bool
        True if the last row has no action, and so ends its episode.
    """

    stops: IntArray
    finals: BoolArray
    order: IntArray | None = None
    rule: str = "flags"
    late: bool = False
    ends: IntArray = field(default_factory=lambda: np.zeros(3, np.int64))
    notes: list[str] = field(default_factory=list)
    closed: bool = False


def boundary_columns(meaning: Meaning, table: Table, *, strict: bool = True, arrive: bool = False) -> BoundaryColumns:
    """Find the columns of a table that mark episodes; derived ones are added to the table.

    Columns that cannot tell episodes apart are an error with ``strict``. Without it, under a rule of the user's, they
    are ignored.

    Raises
    ------
    UnknownLayout
        A flag does not have one value per row.
    """
    fields, done = flags_of(meaning)
    table.derive([*fields.values(), *_marks(meaning)])
    actions = tuple(key for name, key in fields.items() if name.partition("/")[0] == "action")
    rows = max((table[a].shape[0] for a in actions if table[a].shape), default=0)
    table.derive([MISSING + a for a in actions])
    stops = None
    usable = _usable if strict else _per_row
    listed = meaning.lists
    if strict and listed is not None and (table[listed].shape != (rows,) or listed in table.hidden):
        stops = f"ends:{listed}"
        table.derive([stops])
        _check_list(table, listed, table[stops].shape[0], rows)
    lasts = listed if listed is not None and stops is None else meaning.lasts
    found = BoundaryColumns(
        ids=usable(table, meaning.ids, rows, ID_KINDS),
        steps=_per_row(table, "t", rows, "iu") if meaning.steps == "t" else usable(table, meaning.steps, rows, "iuf"),
        starts=usable(table, meaning.starts, rows, "biuf"),
        lasts=usable(table, lasts, rows, "biuf"),
        stops=stops,
        terminated=fields.get(FLAGS[0]),
        truncated=fields.get(FLAGS[1]),
        done=done,
        actions=actions,
        masked=meaning.masked,
        agents=_per_row(table, meaning.agents, rows, ID_KINDS),
        others=tuple(k for k in meaning.more if _per_row(table, k, rows, ID_KINDS)),
        counts=tuple(k for k in meaning.counts if _per_row(table, k, rows, "iu")),
        arrive=arrive,
    )
    for key in (found.terminated, found.truncated, found.done):
        if key is not None and _per_row(table, key, rows, "biuf") is None:
            raise UnknownLayout(
                f"{table.path.name}: {key} is {table[key].dtype} {list(table[key].shape)}; a flag needs one number "
                f"or bool for each of {rows:,} rows.",
                hint="name another column: --map terminated=KEY or --map truncated=KEY",
            )
    return found


def _marks(meaning: Meaning) -> tuple[str, ...]:
    """Return the columns that mark episodes by themselves; they may be derived."""
    return tuple(k for k in (meaning.ids, meaning.steps, meaning.starts, meaning.lasts) if k is not None)


def _check_list(table: Table, key: str, told: int, rows: int) -> None:
    """Refuse a list of ends or lengths that does not account for every row."""
    if told != rows:
        raise UnknownLayout(
            f"{table.path.name}: the episodes of {key} have {told:,} rows together; there are {rows:,} actions.",
            hint="a list of ends names the row after the last one of each episode, a list of lengths counts the "
            "actions; " + DECIDE,
        )


def _usable(table: Table, key: str | None, rows: int, kinds: str) -> str | None:
    """Return a column whose name marks episodes; None if it has another number of rows.

    Raises
    ------
    UnknownLayout
        The column has a row for each action, but its values mark nothing.
    """
    found = _per_row(table, key, rows, kinds)
    if key is not None and found is None and key in table and table[key].shape[:1] == (rows,) and rows > 1:
        c = table[key]
        raise UnknownLayout(
            f"{table.path.name}: {key} is {c.dtype} {list(c.shape)}, which cannot tell episodes apart.",
            hint="--map episode=KEY or step=KEY names another column; or " + DECIDE,
        )
    return found


def _per_row(table: Table, key: str | None, rows: int, kinds: str) -> str | None:
    if key is None:
        return None
    c = table.get(key)
    fits = c is not None and c.shape[:1] == (rows,) and c.shape[1:] in ((), (1,)) and c.dtype.kind in kinds
    return key if fits else None


def find(table: Readable, by: BoundaryColumns, rows: int, stored: int, place: Callable[[int], str]) -> Boundaries:
    """Find the episodes of the first ``rows`` rows, in files of ``stored`` bytes; ``place`` names a row in messages.

    Raises
    ------
    UnknownLayout
        The columns contradict each other; the message names the rows, and the hint the option to give.
    UnsafeArchive
        The columns, or the episodes, are far larger than the files.
    """
    seen = _read(table, by, rows, stored)
    if by.steps is not None and not by.explicit and not is_count(seen[by.steps]):
        by = replace(by, steps=None)  # seconds
    if rows:
        _check_values(seen, by, place)
    order = _order(seen, by, rows, place)
    if order is not None:
        seen = {k: v[order] for k, v in seen.items()}
    at = place if order is None else _Reordered(place, order)
    missing = _without_action(seen, by, rows)
    ends, rule = _ends(seen, by, rows, missing, at)
    if by.arrive and rows:
        _check_arriving(seen, by, ends, missing if rule == "flags" else None, at)
    if (count := int(np.count_nonzero(ends))) > FREE_EPISODES + stored:
        raise UnsafeArchive(f"{place(0)} is the first of {count:,} episodes, and the files have {stored:,} bytes.")
    stops = np.flatnonzero(ends).astype(np.int64, copy=False)
    stops += 1
    finals = np.ones(count, bool) if by.arrive else np.asarray(missing[ends])
    _check_missing(missing, ends, at)
    last = ends if by.arrive else ends | np.append(missing[1:] & ends[1:], False)[:rows]
    if not by.explicit:
        _check_flags(seen, by, last, missing, at)
        _check_others(seen, by, ends, rule, at)
    late = bool((is_set(seen, by.truncated, rows) & ~last).any())
    found = Boundaries(stops, finals, order, rule, late, _count_ends(seen, by, stops, finals))
    found.closed = bool(missing[-1:].any())
    if order is not None:
        found.notes.append(f"rows are out of order: they are sorted by {by.ids} and {by.steps}")
    if rows > 1 and rule == "flags" and not (by.explicit or missing.any() or _has_flags(by)):
        found.notes.append(
            "no column marks the ends of episodes, so each file is one episode; --map episode=KEY or --episodes-by "
            "changes that"
        )
    if missing.any():
        found.notes.append("rows without an action hold the final observations of their episodes")
    return found


def _without_action(seen: Mapping[str, Array], by: BoundaryColumns, rows: int) -> BoolArray:
    """Mark the rows without an action, bool [rows]; ``rows`` is needed only if there are no actions."""
    found = [seen[MISSING + a] for a in by.actions]
    return reduce(np.logical_and, found) if found else np.zeros(rows, bool)


def _has_flags(by: BoundaryColumns) -> bool:
    return bool(_flags_of(by))


def _count_ends(seen: dict[str, Array], by: BoundaryColumns, stops: IntArray, finals: BoolArray) -> IntArray:
    """Count the episodes with steps that are terminated, truncated and cut. int [3]."""
    rows = int(stops[-1]) if len(stops) else 0
    flags = [is_set(seen, key, rows) for key in (by.terminated, by.truncated)]
    counts = np.zeros(3, np.int64)
    for a in range(0, len(stops), SCAN_ROWS):
        those, final = stops[a : a + SCAN_ROWS], finals[a : a + SCAN_ROWS]
        some = np.diff(those, prepend=stops[a - 1] if a else 0) > final
        at = those[some] - 1
        last = at if by.arrive else at - final[some]  # a flag may stand in the row of the final observation
        terminated, truncated = (found[at] | found[last] for found in flags)
        counts += terminated.sum(), (truncated & ~terminated).sum(), (~truncated & ~terminated).sum()
    return counts


@dataclass(frozen=True, slots=True)
class _Reordered:
    """Names rows that are read in another order, for messages."""

    place: Callable[[int], str]
    order: IntArray

    def __call__(self, row: int) -> str:
        return self.place(int(self.order[row]))


def _read(table: Readable, by: BoundaryColumns, rows: int, stored: int) -> dict[str, Array]:
    """Read whole columns that mark episodes; they take some bytes per row."""
    parts: dict[str, list[Array]] = {k: [] for k in by.keys}
    with table.rows(by.keys) as reader:
        for start in range(0, rows, SCAN_ROWS):
            for key, values in reader.read(start, min(start + SCAN_ROWS, rows)).items():
                flat = values.reshape(-1)
                is_id = key in (by.ids, by.agents, *by.others)
                parts[key].append(_packed(flat) if is_id and flat.dtype.kind == "O" else _piece(flat))
            if not start:
                _check_marks({k: v[0] for k, v in parts.items() if not k.startswith(MISSING)}, rows, stored)
    seen = {k: _end_to_end(parts.pop(k)) for k in by.keys}
    return seen | {k: signed(seen[k]) for k in (by.steps, *by.counts) if k is not None}


def _check_marks(first: Mapping[str, Array], rows: int, stored: int) -> None:
    claimed = rows * sum(TEXT_BYTES if v.dtype.kind in "OS" else v.dtype.itemsize for v in first.values())
    if claimed > FREE_MARKS + MARKS_RATIO * stored:
        raise UnsafeArchive(
            f"{', '.join(sorted(first))} mark episodes, and take {claimed:,} bytes; the files have {stored:,} bytes."
        )


def _piece(values: Array) -> Array:
    """Copy values out of a larger array that they view; equal values take the memory of one."""
    if values.dtype.kind in "biu" and len(values) and (values == values[0]).all():
        return np.broadcast_to(values[0], len(values))
    return values.copy()


def _packed(texts: Array) -> Array:
    """Convert texts to bytes of one width, a tenth of the memory, unless they are long or hold a NUL."""
    if not len(texts):
        return texts
    try:
        encoded = [text.encode() for text in texts.tolist()]
    except (AttributeError, UnicodeEncodeError):  # no texts, or none that can be written
        return texts
    width = max(map(len, encoded))
    return texts if width > PACKED_BYTES or any(b"\0" in text for text in encoded) else np.array(encoded, "S")


def _end_to_end(pieces: list[Array]) -> Array:
    """Join the pieces of a column to one array, of objects if a piece has objects."""
    if len({p.dtype.kind for p in pieces}) > 1:
        pieces = [np.char.decode(p, "utf-8").astype(object) if p.dtype.kind == "S" else p for p in pieces]
    if pieces and all(p.strides == (0,) and p[0] == pieces[0][0] for p in pieces):
        return np.broadcast_to(pieces[0][0], sum(map(len, pieces)))
    return np.concatenate(pieces) if pieces else np.zeros(0)


def _label(id: object) -> str:
    return id.decode() if isinstance(id, bytes) else str(id)


def is_count(values: Array) -> bool:
    """Tell whether all values are whole numbers; a step in seconds counts nothing."""
    return values.dtype.kind != "f" or bool((np.isnan(values) | (values == np.floor(values))).all())


def signed(values: Array) -> Array:
    """Convert counts to a dtype whose differences do not wrap around."""
    return values.astype(np.int64) if values.dtype.kind in "iu" else values


def _check_values(seen: dict[str, Array], by: BoundaryColumns, place: Callable[[int], str]) -> None:
    """Refuse rows without an id, and rows with an action but without a step or flag."""
    action = ~_without_action(seen, by, 1)
    flags = _flags_of(by) if by.arrive else ()  # the first row of an episode has none; see `_check_arriving`
    for key in sorted(k for k in by.keys if MISSING + k in seen and k not in (*by.actions, *flags)):
        wrong = np.flatnonzero(seen[MISSING + key] & (action | (key == by.ids)))
        if len(wrong):
            raise UnknownLayout(
                f"{place(int(wrong[0]))} has no {key}.",
                hint=f"every row needs its id, and every row of a step its number and flags; {by.options}",
            )


def _flags_of(by: BoundaryColumns) -> tuple[str, ...]:
    return tuple(key for key in (by.terminated, by.truncated, by.done) if key is not None)


def _check_arriving(
    seen: Mapping[str, Array],
    by: BoundaryColumns,
    ends: BoolArray,
    missing: BoolArray | None,
    place: Callable[[int], str],
) -> None:
    """Refuse rows without a flag, except first rows; with ``missing``, also final rows behind a flag."""
    first = np.append(True, ends[:-1])
    for key in _flags_of(by):
        wrong = np.flatnonzero(seen[MISSING + key] & ~first)
        if len(wrong):
            raise UnknownLayout(
                f"{place(int(wrong[0]))} has no {key}.",
                hint=f"only the first row of an episode may lack its flags; {by.options}",
            )
    if missing is None or not _has_flags(by):
        return
    alone = np.flatnonzero(first & missing & ends)
    if len(alone):
        raise UnknownLayout(
            f"{place(int(alone[0]))} has no action, and the row before it has a flag that ends its episode.",
            hint="flags and rewards in the row of their action are read without --rewards arrive",
        )


# -- order


def _order(seen: dict[str, Array], by: BoundaryColumns, rows: int, place: Callable[[int], str]) -> IntArray | None:
    """Find the order that sorts the rows by time; None if they are sorted."""
    if by.ids is None or by.explicit or rows < 2:
        return None
    ids = seen[by.ids]
    begins = np.concatenate([[0], np.flatnonzero(differs(ids[:-1], ids[1:])) + 1])
    again = _first_again(ids[begins])
    steps = None if by.steps is None else seen[by.steps]
    runs = steps is None or _continues(steps, begins)
    if again is None and runs:
        return None
    if steps is None:
        assert again is not None
        raise UnknownLayout(
            f"episode {_label(ids[begins[again]])} appears again in {place(int(begins[again]))}, after other episodes.",
            hint=f"name the column that counts steps, to sort the rows: --map step=KEY; or {by.options}",
        )
    return _sorted(ids, steps, by, place)


def _first_again(ids: Array) -> int | None:
    """Find the first id that occurred before; None if there is none."""
    if ids.dtype.kind != "O":
        ordered = np.sort(ids)
        if differs(ordered[:-1], ordered[1:]).all():
            return None
    _, first = np.unique(ids.astype(str) if ids.dtype.kind == "O" else ids, return_index=True)
    if len(first) == len(ids):
        return None
    return int(np.flatnonzero(~np.isin(np.arange(len(ids)), first))[0])


def _continues(steps: Array, begins: IntArray) -> bool:
    """Tell whether steps increase by one within each run."""
    inside = np.ones(len(steps), bool)
    inside[begins] = False
    return bool((np.diff(steps)[inside[1:]] == 1).all())


def _sorted(ids: Array, steps: Array, by: BoundaryColumns, place: Callable[[int], str]) -> IntArray:
    labels, codes = np.unique(ids.astype(str) if ids.dtype.kind == "O" else ids, return_inverse=True)
    if ids.dtype.kind in "OS":
        rank = np.empty(len(labels), np.int64)
        rank[sorted(range(len(labels)), key=lambda i: natural(_label(labels[i])))] = np.arange(len(labels))
        codes = rank[codes]
    order = np.lexsort((steps, codes))
    after = np.diff(steps[order]) - 1
    same = np.diff(codes[order]) == 0
    wrong = np.flatnonzero(same & (after != 0))
    if len(wrong):
        a, b = order[wrong[0]], order[wrong[0] + 1]
        there = f"step {steps[b]!s} in {place(int(b))}, and none between them"
        raise UnknownLayout(
            f"episode {_label(ids[a])} has step {steps[a]!s} in {place(int(a))} and "
            f"{there if steps[a] != steps[b] else f'again in {place(int(b))}'}.",
            hint=f"{by.ids} and {by.steps} contradict each other: --episodes-by field:{by.ids} takes the rows as they "
            f"stand, --episodes-by steps:{by.steps} uses the steps",
        )
    return order


# -- ends


def _ends(
    seen: dict[str, Array], by: BoundaryColumns, rows: int, missing: BoolArray, place: Callable[[int], str]
) -> tuple[BoolArray, str]:
    """Find the last rows of episodes, and name the rule that decided. bool [rows]."""
    ends = np.zeros(rows, bool)
    if rows:
        ends[-1] = True
    if by.ids is not None:
        ids = seen[by.ids]
        ends[:-1] |= differs(ids[:-1], ids[1:])
        rule = f"field:{by.ids}"
    elif by.stops is not None:
        numbers = seen[by.stops]
        ends[:-1] |= numbers[:-1] != numbers[1:]
        rule = f"field:{by.stops}"
    elif by.starts is not None:
        ends[:-1] |= is_set(seen, by.starts, rows)[1:]
        rule = f"starts:{by.starts}"
    elif by.lasts is not None:
        ends |= is_set(seen, by.lasts, rows)
        rule = f"lasts:{by.lasts}"
    elif by.steps is not None and _restarts(seen[by.steps]):
        ends[:-1] |= np.diff(seen[by.steps]) != 1
        rule = f"steps:{by.steps}"
    elif by.explicit == "file":
        rule = "file"
    elif by.explicit == "timeouts" or (by.masked and by.truncated):
        ends |= is_set(seen, by.truncated, rows)
        rule = "timeouts"
    else:
        ends |= _flagged(seen, by, rows)
        if by.arrive:
            return ends | missing, "flags"
        ends[:-1] = (ends[:-1] | missing[:-1]) & ~missing[1:]  # the row after a flag may hold the final observation
        return ends, "flags"
    if by.steps is not None and not by.explicit:
        _check_steps(seen[by.steps], by, ends, rule, place)
    if by.starts is not None and not by.explicit:
        _check_starts(seen, by, ends, rule, place)
    if by.lasts is not None and not by.explicit:
        _check_lasts(seen, by, ends, rule, missing, place)
    return ends, rule


def _restarts(steps: Array) -> bool:
    """Tell whether a column counts the steps of each episode, and not the rows of the whole file."""
    return len(steps) > 0 and not (np.diff(steps) == 1).all()


def _check_steps(steps: Array, by: BoundaryColumns, ends: BoolArray, rule: str, place: Callable[[int], str]) -> None:
    """Check that steps count from 0 (or 1) within each episode, or through all episodes."""
    inside = ~ends[:-1]
    wrong = np.flatnonzero(inside & (np.diff(steps) != 1))
    if len(wrong):
        a, b = steps[wrong[0]], steps[wrong[0] + 1]
        raise UnknownLayout(
            f"{place(wrong[0])} is step {a!s} and the next row of its episode ({rule}) is step {b!s}.",
            hint=by.options,
        )
    first = steps[np.concatenate([[0], np.flatnonzero(ends)[:-1] + 1])] if len(steps) else steps
    on = bool((np.diff(steps) == 1).all())
    if on or not len(first) or ((first == first[0]).all() and first[0] in (0, 1)):
        return
    at = int(np.flatnonzero(first != (0 if first[0] not in (0, 1) else first[0]))[0])
    row = int(np.concatenate([[0], np.flatnonzero(ends)[:-1] + 1])[at])
    raise UnknownLayout(
        f"{place(row)} begins an episode ({rule}) with step {first[at]!s}, not 0.",
        hint=f"if steps are missing on purpose, {by.options}",
    )


def _check_starts(
    seen: dict[str, Array], by: BoundaryColumns, ends: BoolArray, rule: str, place: Callable[[int], str]
) -> None:
    starts = is_set(seen, by.starts, len(ends))
    begins = np.concatenate([[True], ends[:-1]])
    wrong = np.flatnonzero(starts[1:] != begins[1:]) + 1
    if len(wrong):
        what = "begins an episode" if starts[wrong[0]] else "does not begin an episode"
        raise UnknownLayout(
            f"{place(wrong[0])} {what} by {by.starts}, {'does' if begins[wrong[0]] else 'does not'} by {rule}.",
            hint=by.options,
        )


def _check_lasts(
    seen: dict[str, Array],
    by: BoundaryColumns,
    ends: BoolArray,
    rule: str,
    missing: BoolArray,
    place: Callable[[int], str],
) -> None:
    """Refuse a last-row mark inside an episode, except in the row before a final observation."""
    final = np.append(missing[1:], False)[: len(ends)]
    wrong = np.flatnonzero(is_set(seen, by.lasts, len(ends)) & ~ends & ~final)
    if len(wrong):
        raise UnknownLayout(
            f"{place(int(wrong[0]))} is the last of an episode by {by.lasts}, and not by {rule}.", hint=by.options
        )


def _check_others(
    seen: Mapping[str, Array], by: BoundaryColumns, ends: BoolArray, rule: str, place: Callable[[int], str]
) -> None:
    """Refuse an episode of several agents, with several ids, or in which a further count of steps goes back."""
    within = ~ends[:-1]
    for key in filter(None, (by.agents, *by.others)):
        wrong = np.flatnonzero(differs(seen[key][:-1], seen[key][1:]) & within)
        if len(wrong):
            a, b = (_label(seen[key][wrong[0] + k]) for k in (0, 1))
            alone = "import the rows of each agent alone, or, if they take turns in one episode, "
            raise UnknownLayout(
                f"{place(int(wrong[0]) + 1)} has the {key} {b}, and the row before it, in the same episode by {rule}, "
                f"{a}.",
                hint=f"{alone if key == by.agents else ''}say which is right: --episodes-by {rule} or --episodes-by "
                f"field:{key}",
            )
    if by.stops is not None:
        wrong = np.flatnonzero(differs(seen[by.stops][:-1], seen[by.stops][1:]) != ends[:-1])
        if len(wrong):
            one, other = (rule, by.stops.removeprefix(ENDS))[:: 1 if ends[wrong[0]] else -1]
            raise UnknownLayout(
                f"{place(int(wrong[0]))} ends an episode by {one}, and not by {other}.",
                hint=f"say which is right: --episodes-by {rule} or --episodes-by field:{by.stops}",
            )
    for key in by.counts:
        wrong = np.flatnonzero((np.diff(seen[key]) < 0) & within)
        if len(wrong):
            raise UnknownLayout(
                f"{place(int(wrong[0]) + 1)} has the {key} {seen[key][wrong[0] + 1]!s}, which goes back, and is in the "
                f"same episode as the row before it by {rule}.",
                hint=f"say which is right: --episodes-by {rule} or --episodes-by steps:{key}",
            )


def _check_missing(missing: BoolArray, ends: BoolArray, place: Callable[[int], str]) -> None:
    wrong = np.flatnonzero(missing & ~ends)
    if len(wrong):
        raise UnknownLayout(
            f"{place(wrong[0])} has no action, but it is not the last row of its episode.",
            hint="only the last row of an episode may lack an action: it holds the final observation",
        )


def _flagged(seen: dict[str, Array], by: BoundaryColumns, rows: int) -> BoolArray:
    out = np.zeros(rows, bool)
    for key in (by.terminated, by.truncated, by.done):
        out |= is_set(seen, key, rows)
    return out


def _check_flags(
    seen: dict[str, Array], by: BoundaryColumns, last: BoolArray, missing: BoolArray, place: Callable[[int], str]
) -> None:
    """Check that no flag is set before the last step of an episode, and that done is terminated or truncated."""
    rows = len(last)
    for key in (by.truncated, by.done, None if by.masked else by.terminated):
        wrong = np.flatnonzero(is_set(seen, key, rows) & ~last)
        if len(wrong):
            raise UnknownLayout(
                f"{place(wrong[0])} is {_shown(key)}, but its episode continues in the next row.", hint=by.options
            )
    if by.done is None or by.terminated is None or by.truncated is None:
        return
    either = is_set(seen, by.terminated, rows) | is_set(seen, by.truncated, rows)
    wrong = np.flatnonzero((is_set(seen, by.done, rows) != either) & ~missing)
    if len(wrong):
        raise UnknownLayout(
            f"{place(wrong[0])}: {by.done} is not {by.terminated} or {by.truncated}.",
            hint="name the right ones: --map terminated=KEY and --map truncated=KEY, or --map done=KEY alone",
        )


def _shown(key: str | None) -> str:
    return str(key).partition(" without ")[0]


def by_rule(by: BoundaryColumns, rule: str, table: Table) -> BoundaryColumns:
    """Apply a rule of the user's: the column that it names decides, and no other column is checked against it.

    Raises
    ------
    UnknownLayout
        There is no such rule, or no column of that name with one value per row.
    """
    kind, _, key = rule.partition(":")
    alone = replace(by, ids=None, steps=None, starts=None, lasts=None, stops=None, explicit=kind)
    alone = replace(alone, agents=None, others=(), counts=())
    if kind in ("flags", "file", "timeouts") and not key:
        if kind == "timeouts" and by.truncated is None:
            raise UnknownLayout(
                f"{table.path.name} has no column of timeouts, which --episodes-by timeouts needs.",
                hint="name it: --map truncated=KEY",
            )
        return alone
    key = key or (getattr(by, RULES[kind]) if kind in RULES and kind != "field" else None) or ""
    if kind not in RULES:
        raise UnknownLayout(
            f'"{rule}" is not a rule for the ends of episodes.',
            hint="one of flags, timeouts, jumps, field:KEY, steps:KEY, starts:KEY, file",
        )
    table.derive([key])
    rows = max((table[a].shape[0] for a in by.actions if table[a].shape), default=0)
    if _per_row(table, key, rows, ID_KINDS) is None:
        raise UnknownLayout(
            f'{table.path.name} has no column "{key}" with one value per row, which --episodes-by {rule} needs.',
            hint=f"columns: {', '.join(table.columns)}",
        )
    return replace(
        alone,
        ids=key if kind == "field" else None,
        steps=key if kind == "steps" else None,
        starts=key if kind == "starts" else None,
        lasts=key if kind == "lasts" else None,
    )
