"""Where the episodes of flat rows begin and end, and whether id, step, flags and actions agree on it.

One column decides, the first of these that is there; all others are checked against it, row by row::

    ids       an episode is a run of rows of one id
    lists     episode_ends, episode_lengths
    starts    a row that is set begins an episode;  lasts: a row that is set ends one
    steps     a row whose step is not that of the row before plus one begins an episode; a flag ends one
    flags     a row that is set ends an episode

Rows that are out of order are put in the order of id and step. A row without an action is no step: it is the last of
its episode, and holds the final observation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from rlds_cli.archives.d4rl.ends import differs, is_set
from rlds_cli.archives.names import Meaning, flags_of
from rlds_cli.archives.tables import ENDS, MISSING, Readable, Table
from rlds_cli.errors import ArchiveError, UnknownLayout
from rlds_cli.ordering import natural
from rlds_cli.ted import FLAGS, REWARD, Array, BoolArray, IntArray, Note

SCAN_ROWS = 1 << 18
IDS = "iufbOS"  # kinds of dtypes
DECIDE = "--episodes-by field:KEY, steps:KEY, starts:KEY or flags says which of them decides"


@dataclass(frozen=True, slots=True)
class Judges:
    """The columns that say where episodes are: the one that decides and those that are checked against it.

    ``explicit`` is the kind of the rule, where the user gave one: nothing is checked against it then.
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
    masked: bool = False  # terminals say where trajectories end, masks what terminates
    explicit: str | None = None

    @property
    def keys(self) -> set[str]:
        """All columns that are looked at."""
        one = (self.ids, self.steps, self.starts, self.lasts, self.stops, self.terminated, self.truncated, self.done)
        told = {k for k in one if k is not None}
        return told | {MISSING + k for k in (*self.actions, *(k for k in told if not k.startswith(ENDS)))}


@dataclass(slots=True)
class Found:
    """Boundaries of the rows of one table, in the order in which they are to be read.

    Attributes
    ----------
    stops : int array [E]
        The row after the last one of each episode.
    finals : bool array [E]
        Whether that last row holds the final observation, and no step.
    order : int array [rows] or None
        The rows of the table in the order of time; None where they are.
    rule : str
        What decided.
    ends : int array [3]
        How many episodes are terminated, truncated and cut.
    late : bool
        Whether truncated is set inside an episode, which only a rule of the user's allows.
    """

    stops: IntArray
    finals: BoolArray
    order: IntArray | None = None
    rule: str = "flags"
    late: bool = False
    ends: IntArray = field(default_factory=lambda: np.zeros(3, np.int64))
    notes: list[str] = field(default_factory=list)


def judges(meaning: Meaning, table: Table, *, strict: bool = True) -> Judges:
    """The columns of a table that say where episodes are; adds those that are made of others to it.

    Columns that cannot tell episodes apart are left aside without ``strict``, where the user says what decides.

    Raises
    ------
    UnknownLayout
        One of them is not one value per row.
    """
    fields, done = flags_of(meaning)
    table.derive([*fields.values()])
    actions = tuple(key for name, key in fields.items() if name.partition("/")[0] == "action")
    rows = max((table[a].shape[0] for a in actions if table[a].shape), default=0)
    table.derive([MISSING + a for a in actions])
    stops = None
    usable = _usable if strict else _per_row
    if strict and meaning.lists is not None and table[meaning.lists].shape != (rows,):
        stops = f"ends:{meaning.lists}"
        table.derive([stops])
        _check_list(table, meaning.lists, table[stops].shape[0], rows)
    lasts = meaning.lists if meaning.lists is not None and stops is None else meaning.lasts
    found = Judges(
        ids=usable(table, meaning.ids, rows, IDS),
        steps=_per_row(table, "t", rows, "iu") if meaning.steps == "t" else usable(table, meaning.steps, rows, "iuf"),
        starts=usable(table, meaning.starts, rows, "biuf"),
        lasts=usable(table, lasts, rows, "biuf"),
        stops=stops,
        terminated=fields.get(FLAGS[0]),
        truncated=fields.get(FLAGS[1]),
        done=done,
        actions=actions,
        masked=meaning.masked,
    )
    for key in (found.terminated, found.truncated, found.done):
        if key is not None and _per_row(table, key, rows, "biuf") is None:
            raise UnknownLayout(
                f"{table.path.name}: {key} is {table[key].dtype} {list(table[key].shape)}; a flag is one number or "
                f"bool for each of {rows:,} rows.",
                hint="--map terminated=KEY or truncated=KEY names another",
            )
    return found


def check_numbers(table: Table, fields: Mapping[str, str]) -> None:
    """A reward is a number; an observation or action is no text that shows a list.

    Raises
    ------
    UnknownLayout
        One is not; the message names the first such row.
    """
    for name, key in fields.items():
        if table[key].dtype.kind not in "OS" or not table[key].shape or not table[key].shape[0]:
            continue
        if name == REWARD:
            at, value = _first(table, key, lambda v: not _is_number(v)) or _first(table, key, lambda _: True) or (0, "")
            says = "is no number"
        elif name.partition("/")[0] in ("observation", "action") and (
            found := _first(table, key, lambda v: str(v).startswith(("[", "(")))
        ):
            at, value = found
            says = 'is a text, and no list of numbers as JSON has it, "[1.0, 2.0]"'
        else:
            continue
        raise UnknownLayout(
            f"{key} {says}: row {at:,} of {table.path.name} holds {value[:40]!r}.",
            hint=f"write numbers, or name another column: --map {name.removeprefix('next/')}=KEY",
        )


def _first(table: Table, key: str, test: Callable[[str], bool]) -> tuple[int, str] | None:
    """The first row of a column of texts that passes a test, and its text."""
    rows = table[key].shape[0]
    with table.rows([key]) as reader:
        for start in range(0, rows, SCAN_ROWS):
            for i, value in enumerate(reader.read(start, min(start + SCAN_ROWS, rows))[key].reshape(-1)):
                text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
                if test(text):
                    return start + i, text
    return None


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def _check_list(table: Table, key: str, told: int, rows: int) -> None:
    """A list of ends or lengths accounts for every row."""
    if told != rows:
        raise UnknownLayout(
            f"{table.path.name}: the episodes of {key} have {told:,} rows together; there are {rows:,} actions.",
            hint="a list of ends names the row after the last one of each episode, a list of lengths counts the "
            "actions; " + DECIDE,
        )


def _usable(table: Table, key: str | None, rows: int, kinds: str) -> str | None:
    """A column that says where episodes are by its name; None where it has other rows.

    Raises
    ------
    UnknownLayout
        It has a row for each action, and what stands there says nothing.
    """
    found = _per_row(table, key, rows, kinds)
    if key is not None and found is None and key in table and table[key].shape[:1] == (rows,) and rows > 1:
        c = table[key]
        raise UnknownLayout(
            f"{table.path.name}: {key} is {c.dtype} {list(c.shape)}, by which no episodes are told apart.",
            hint="--map episode=KEY or step=KEY names another column; or " + DECIDE,
        )
    return found


def _per_row(table: Table, key: str | None, rows: int, kinds: str) -> str | None:
    if key is None:
        return None
    c = table.get(key)
    fits = c is not None and c.shape[:1] == (rows,) and c.shape[1:] in ((), (1,)) and c.dtype.kind in kinds
    return key if fits else None


def find(table: Readable, by: Judges, rows: int, place: Callable[[int], str]) -> Found:
    """Find the episodes of the first ``rows`` rows; ``place`` says where a row stands.

    Raises
    ------
    UnknownLayout
        The columns contradict each other; the message names the rows, the hint the option that decides.
    """
    seen = _read(table, by, rows)
    if by.steps is not None and not by.explicit and not is_count(seen[by.steps]):
        by = replace(by, steps=None)  # seconds
    if rows:
        _check_values(seen, by, place)
    order = _order(seen, by, rows, place)
    if order is not None:
        seen = {k: v[order] for k, v in seen.items()}
    at = place if order is None else _Reordered(place, order)
    missing = np.logical_and.reduce([seen[MISSING + a] for a in by.actions]) if by.actions else np.zeros(rows, bool)
    ends, rule = _ends(seen, by, rows, missing, at)
    stops = np.flatnonzero(ends).astype(np.int64) + 1
    finals = np.asarray(missing[stops - 1])
    _check_missing(missing, ends, at)
    last = ends | np.append(missing[1:] & ends[1:], False)[:rows]
    if not by.explicit:
        _check_flags(seen, by, last, missing, at)
    late = bool((is_set(seen, by.truncated, rows) & ~last).any())
    found = Found(stops, finals, order, rule, late, _count_ends(seen, by, stops, finals))
    if order is not None:
        found.notes.append(f"rows out of order: read in the order of {by.ids} and {by.steps}")
    if rows > 1 and rule == "flags" and not (by.explicit or finals.any() or _has_flags(by)):
        found.notes.append(
            "no column says where episodes end: each file is one episode; --map episode=KEY or --episodes-by says more"
        )
    if finals.any():
        found.notes.append("rows without an action hold the final observations of their episodes")
    return found


def _has_flags(by: Judges) -> bool:
    return any((by.terminated, by.truncated, by.done))


def _count_ends(seen: dict[str, Array], by: Judges, stops: IntArray, finals: BoolArray) -> IntArray:
    """How many episodes with steps are terminated, truncated and cut."""
    rows = int(stops[-1]) if len(stops) else 0
    some = np.diff(stops, prepend=0) > finals
    at, last = stops[some] - 1, stops[some] - 1 - finals[some]  # a flag may stand in the row of the final observation
    terminated, truncated = (
        (found := is_set(seen, key, rows))[at] | found[last] for key in (by.terminated, by.truncated)
    )
    return np.array([terminated.sum(), (truncated & ~terminated).sum(), (~truncated & ~terminated).sum()])


@dataclass(frozen=True, slots=True)
class _Reordered:
    """Where a row stands that is read in another order."""

    place: Callable[[int], str]
    order: IntArray

    def __call__(self, row: int) -> str:
        return self.place(int(self.order[row]))


def _read(table: Readable, by: Judges, rows: int) -> dict[str, Array]:
    """The columns that decide, whole: some bytes a row."""
    parts: dict[str, list[Array]] = {k: [] for k in by.keys}
    with table.rows(by.keys) as reader:
        for start in range(0, rows, SCAN_ROWS):
            for key, values in reader.read(start, min(start + SCAN_ROWS, rows)).items():
                parts[key].append(values.reshape(-1))
    seen = {k: np.concatenate(v) if v else np.zeros(0) for k, v in parts.items()}
    return seen if by.steps is None else {**seen, by.steps: signed(seen[by.steps])}


def is_count(values: Array) -> bool:
    """Whether all values are whole numbers; a step in seconds counts nothing."""
    return values.dtype.kind != "f" or bool((np.isnan(values) | (values == np.floor(values))).all())


def signed(values: Array) -> Array:
    """Counts whose differences do not wrap around."""
    return values.astype(np.int64) if values.dtype.kind in "iu" else values


def _check_values(seen: dict[str, Array], by: Judges, place: Callable[[int], str]) -> None:
    """Every row has its id, and every row with an action its step and its flags."""
    action = ~np.logical_and.reduce([seen[MISSING + a] for a in by.actions]) if by.actions else np.array(True)
    for key in sorted(k for k in by.keys if MISSING + k in seen and k not in by.actions):
        wrong = np.flatnonzero(seen[MISSING + key] & (action | (key == by.ids)))
        if len(wrong):
            raise UnknownLayout(
                f"{place(int(wrong[0]))} has no {key}.",
                hint="every row needs its id, and every row of a step its number and flags; " + DECIDE,
            )


# -- order


def _order(seen: dict[str, Array], by: Judges, rows: int, place: Callable[[int], str]) -> IntArray | None:
    """The rows in the order of time, where they are not; None where they are."""
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
            f"episode {ids[begins[again]]!s} comes back in {place(int(begins[again]))}, after another one.",
            hint="rows that are out of order need a column that counts the steps: --map step=KEY; or " + DECIDE,
        )
    return _sorted(ids, steps, by, place)


def _first_again(ids: Array) -> int | None:
    """The first of these ids that was there before."""
    _, first = np.unique(ids.astype(str) if ids.dtype.kind == "O" else ids, return_index=True)
    if len(first) == len(ids):
        return None
    return int(np.flatnonzero(~np.isin(np.arange(len(ids)), first))[0])


def _continues(steps: Array, begins: IntArray) -> bool:
    """Whether steps count on by one within each run."""
    inside = np.ones(len(steps), bool)
    inside[begins] = False
    return bool((np.diff(steps)[inside[1:]] == 1).all())


def _sorted(ids: Array, steps: Array, by: Judges, place: Callable[[int], str]) -> IntArray:
    labels, codes = np.unique(ids.astype(str) if ids.dtype.kind == "O" else ids, return_inverse=True)
    if ids.dtype.kind == "O":
        rank = np.empty(len(labels), np.int64)
        rank[sorted(range(len(labels)), key=lambda i: natural(str(labels[i])))] = np.arange(len(labels))
        codes = rank[codes]
    order = np.lexsort((steps, codes))
    after = np.diff(steps[order]) - 1
    same = np.diff(codes[order]) == 0
    wrong = np.flatnonzero(same & (after != 0))
    if len(wrong):
        a, b = order[wrong[0]], order[wrong[0] + 1]
        there = f"step {steps[b]!s} in {place(int(b))}, and none between them"
        raise UnknownLayout(
            f"episode {ids[a]!s} has step {steps[a]!s} in {place(int(a))} and "
            f"{there if steps[a] != steps[b] else f'again in {place(int(b))}'}.",
            hint=f"{by.ids} and {by.steps} contradict each other: --episodes-by field:{by.ids} takes the rows as they "
            f"stand, --episodes-by steps:{by.steps} goes by the steps",
        )
    return order


# -- ends


def _ends(
    seen: dict[str, Array], by: Judges, rows: int, missing: BoolArray, place: Callable[[int], str]
) -> tuple[BoolArray, str]:
    """Which rows are the last of an episode, and the rule that says so."""
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
        ends[:-1] = (ends[:-1] | missing[:-1]) & ~missing[1:]  # the row after a flag may hold the final observation
        return ends, "flags"
    if by.steps is not None and not by.explicit:
        _check_steps(seen[by.steps], ends, rule, place)
    if by.starts is not None and not by.explicit:
        _check_starts(seen, by, ends, rule, place)
    if by.lasts is not None and not by.explicit:
        _check_lasts(seen, by, ends, rule, missing, place)
    return ends, rule


def _restarts(steps: Array) -> bool:
    """Whether a column counts the steps of an episode, and not those of the whole file."""
    return len(steps) > 0 and not (np.diff(steps) == 1).all()


def _check_steps(steps: Array, ends: BoolArray, rule: str, place: Callable[[int], str]) -> None:
    """Steps count 0, 1, 2, ... (or 1, 2, 3, ...) within each episode, or on through all of them."""
    inside = ~ends[:-1]
    wrong = np.flatnonzero(inside & (np.diff(steps) != 1))
    if len(wrong):
        a, b = steps[wrong[0]], steps[wrong[0] + 1]
        raise UnknownLayout(
            f"{place(wrong[0])} is step {a!s} and the next row of its episode ({rule}) is step {b!s}.", hint=DECIDE
        )
    first = steps[np.concatenate([[0], np.flatnonzero(ends)[:-1] + 1])] if len(steps) else steps
    on = bool((np.diff(steps) == 1).all())
    if on or not len(first) or ((first == first[0]).all() and first[0] in (0, 1)):
        return
    at = int(np.flatnonzero(first != (0 if first[0] not in (0, 1) else first[0]))[0])
    row = int(np.concatenate([[0], np.flatnonzero(ends)[:-1] + 1])[at])
    raise UnknownLayout(
        f"{place(row)} begins an episode ({rule}) with step {first[at]!s}, not 0.",
        hint="where steps are missing on purpose: " + DECIDE,
    )


def _check_starts(seen: dict[str, Array], by: Judges, ends: BoolArray, rule: str, place: Callable[[int], str]) -> None:
    starts = is_set(seen, by.starts, len(ends))
    begins = np.concatenate([[True], ends[:-1]])
    wrong = np.flatnonzero(starts[1:] != begins[1:]) + 1
    if len(wrong):
        what = "begins an episode" if starts[wrong[0]] else "does not begin an episode"
        raise UnknownLayout(
            f"{place(wrong[0])} {what} by {by.starts}, {'does' if begins[wrong[0]] else 'does not'} by {rule}.",
            hint=DECIDE,
        )


def _check_lasts(
    seen: dict[str, Array], by: Judges, ends: BoolArray, rule: str, missing: BoolArray, place: Callable[[int], str]
) -> None:
    """No row within an episode is marked as its last, but for the one before the row of a final observation."""
    final = np.append(missing[1:], False)[: len(ends)]
    wrong = np.flatnonzero(is_set(seen, by.lasts, len(ends)) & ~ends & ~final)
    if len(wrong):
        raise UnknownLayout(
            f"{place(int(wrong[0]))} is the last of an episode by {by.lasts}, and not by {rule}.", hint=DECIDE
        )


def _check_missing(missing: BoolArray, ends: BoolArray, place: Callable[[int], str]) -> None:
    wrong = np.flatnonzero(missing & ~ends)
    if len(wrong):
        raise UnknownLayout(
            f"{place(wrong[0])} has no action, and its episode goes on.",
            hint="only the last row of an episode may lack its action: it then holds the final observation",
        )


def _flagged(seen: dict[str, Array], by: Judges, rows: int) -> BoolArray:
    out = np.zeros(rows, bool)
    for key in (by.terminated, by.truncated, by.done):
        out |= is_set(seen, key, rows)
    return out


def _check_flags(
    seen: dict[str, Array], by: Judges, last: BoolArray, missing: BoolArray, place: Callable[[int], str]
) -> None:
    """No flag is set before the last step of an episode, and done is what terminated or truncated are."""
    rows = len(last)
    for key in (by.truncated, by.done, None if by.masked else by.terminated):
        wrong = np.flatnonzero(is_set(seen, key, rows) & ~last)
        if len(wrong):
            raise UnknownLayout(
                f"{place(wrong[0])} is {_shown(key)}, and its episode goes on in the next row.", hint=DECIDE
            )
    if by.done is None or by.terminated is None or by.truncated is None:
        return
    either = is_set(seen, by.terminated, rows) | is_set(seen, by.truncated, rows)
    wrong = np.flatnonzero((is_set(seen, by.done, rows) != either) & ~missing)
    if len(wrong):
        raise UnknownLayout(
            f"{place(wrong[0])}: {by.done} is not what {by.terminated} or {by.truncated} is.",
            hint="--map terminated=KEY with --map truncated=KEY, or --map done=KEY alone, says which are right",
        )


def _shown(key: str | None) -> str:
    return str(key).partition(" without ")[0]


RULES = {"field": "ids", "steps": "steps", "starts": "starts", "lasts": "lasts"}


def decided(by: Judges, rule: str, table: Table) -> Judges:
    """The judges under a rule that the user gave: its column alone decides.

    Raises
    ------
    UnknownLayout
        There is no such rule, or no such column with one value per row.
    """
    kind, _, key = rule.partition(":")
    alone = replace(by, ids=None, steps=None, starts=None, lasts=None, stops=None, explicit=kind)
    if kind in ("flags", "file", "timeouts") and not key:
        if kind == "timeouts" and by.truncated is None:
            raise UnknownLayout(
                f"{table.path.name} has no column of timeouts, at which its episodes are said to end.",
                hint="--map truncated=KEY names it",
            )
        return alone
    key = key or (getattr(by, RULES[kind]) if kind in RULES and kind != "field" else None) or ""
    if kind not in RULES:
        raise UnknownLayout(
            f'"{rule}" is no rule for where episodes end.',
            hint="one of flags, timeouts, jumps, field:KEY, steps:KEY, starts:KEY, file",
        )
    table.derive([key])
    rows = max((table[a].shape[0] for a in by.actions if table[a].shape), default=0)
    if _per_row(table, key, rows, IDS) is None:
        raise UnknownLayout(
            f'{table.path.name} has no column "{key}" with one value per row, by which its episodes are said to end.',
            hint=f"columns: {', '.join(table.columns)}",
        )
    return replace(
        alone,
        ids=key if kind == "field" else None,
        steps=key if kind == "steps" else None,
        starts=key if kind == "starts" else None,
        lasts=key if kind == "lasts" else None,
    )


def skipped(file: str, error: ArchiveError) -> Note:
    """Say that a file was left out, which ``skip_bad`` allows."""
    return Note("skipped-file", "files that cannot be read were left out", 1, f"{file}: {error.message}")
