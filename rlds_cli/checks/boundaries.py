"""What episodes that were merged or cut at wrong steps leave behind in their columns and lengths.

A column that counts steps or time starts again inside an episode, or starts later than in other episodes; a column with
the number of the episode changes; and one episode is several times as long as all others. Such columns are known by
the last part of their names, and count only where they behave as their names say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from rlds_cli.checks.findings import MOST_PLACES, Finding
from rlds_cli.checks.subject import Subject, first_places, plural
from rlds_cli.ted import TRUNCATED, Array, BoolArray, Field, IntArray, split_name

NAME = "boundaries"

# The last part of a field's name, in lower case and without "_" and "-".
_STEPS = re.compile(
    r"t|time|times?stamps?|elapsed(steps?|time)?|(episode|env)?(time)?steps?(id|ids|index|idx|number|num|count)?"
    r"|frame(id|index|idx|number|num)?"
)
_EPISODES = re.compile(r"(ep|eps|episode|traj|trajectory|demo|rollout)(ids?|index|idx|indices|number|num|no)?")

_USUAL = 0.9  # of the episodes start with the same value
_ENOUGH = 4  # episodes, to tell what is usual among them
_TIMES = 5  # as long as the others
_MANY = 20  # episodes, to tell that one is too long from their lengths alone
_ROUND = 50  # time limits are round numbers
_SHORTEST_HORIZON = 10
_FEW = 0.1

_MERGED = "where trajectories were merged, import them again with another --episodes-by"


def find(s: Subject) -> Iterator[Finding]:
    """Columns of steps, columns of episodes, lengths."""
    if s.thorough:
        for f in _named(s, _STEPS, text=False):
            yield from _of_steps(s, f)
        for f in _named(s, _EPISODES, text=True):
            yield from _of_episodes(s, f)
    yield from _lengths(s)


def _named(s: Subject, names: re.Pattern[str], *, text: bool) -> list[Field]:
    """Columns of one number, or of a text, that have one of ``names``."""
    found = [f for f in s.fields(kinds="iuf") if f.shape in ((), (1,))]
    found += [f for f in s.ds.schema.values() if f.kind == "text" and text]
    return [f for f in found if names.fullmatch(re.sub("[_-]", "", split_name(f.name)[-1].lower()))]


@dataclass(slots=True)
class _RowPairs:
    """Pairs of rows inside episodes that something holds for: the row after, all of them counted, the first kept."""

    count: int = 0
    rows: list[IntArray] = field(default_factory=list)

    def add(self, rows: IntArray) -> None:
        self.count += len(rows)
        if sum(map(len, self.rows)) < _MOST_ROWS:
            self.rows.append(rows)


_MOST_ROWS = 1 << 16


def _pairs(s: Subject, f: Field) -> Iterator[tuple[IntArray, Array, Array]]:
    """Neighbouring rows of episodes, in blocks: rows [n] of the second ones, values [n] of the first and the second."""
    observed = _observed(s, f)
    for a, values in s.blocks(f.name, more=1):
        flat = values.reshape(len(values))
        rows = np.arange(a + 1, a + len(flat))
        episode = np.searchsorted(s.start, rows, "right") - 1
        step = rows - s.start[episode]
        inside = (step > 0) & (step < observed[episode])
        yield rows[inside], flat[:-1][inside], flat[1:][inside]


def _observed(s: Subject, f: Field) -> IntArray:
    """How many rows of every episode hold a value of its own."""
    return np.asarray(s.ds.episodes["num_observed"]) if f.placement == "both" else s.length


# -- columns of steps and times


def _of_steps(s: Subject, f: Field) -> Iterator[Finding]:
    unit = _unit(s, f)
    if unit is None:
        return
    first = s.at(f.name, s.start).reshape(-1).astype(np.float64)
    seen = _RowPairs()
    for rows, before, after in _pairs(s, f):
        episode = np.searchsorted(s.start, rows, "right") - 1
        x, y = before.astype(np.float64), after.astype(np.float64)
        again = (y < x - unit / 2) & (y <= first[episode] + 1.5 * unit) & ~_at_maximum(before)
        seen.add(rows[again])
    if seen.count:
        text = f"{f.name} starts again at {plural(seen.count, 'step')} inside episodes: {_MERGED}"
        places = s.places(np.concatenate(seen.rows)[:MOST_PLACES])
        yield Finding(NAME, "step-restarts", "warning", text, seen.count, f.name, tuple(places))
    late = np.flatnonzero(np.abs(first - np.median(first)) > unit / 2)
    if 0 < len(late) <= (1 - _USUAL) * len(first) and not s.ds.manifest.provenance:
        text = f"{f.name} starts at {_number(first[late[0]])}, not at {_number(np.median(first))} as usual,"
        text += f" in {plural(len(late), 'episode')}: their first steps may be in the episodes before"
        yield Finding(NAME, "step-offset", "warning", text, len(late), f.name, first_places(late))


def _unit(s: Subject, f: Field) -> float | None:
    """By how much a column usually grows from row to row; None where it does not count."""
    grown, pairs = list[Array](), 0
    for _, before, after in _pairs(s, f):
        step = after.astype(np.float64) - before.astype(np.float64)
        grown.append(step[step > 0])
        pairs += len(step)
        if pairs >= _MOST_ROWS:
            break
    counts = np.concatenate(grown) if grown else np.zeros(0)
    return float(np.median(counts)) if len(counts) and len(counts) >= pairs / 2 else None


def _at_maximum(values: Array) -> BoolArray:
    """Where a counter of few bits turns over."""
    if values.dtype.kind == "f":
        return np.zeros(len(values), bool)
    return np.asarray(values == np.iinfo(values.dtype).max)


def _number(x: float) -> str:
    return f"{x:.6g}"


# -- columns of episodes


def _of_episodes(s: Subject, f: Field) -> Iterator[Finding]:
    seen, pairs = _RowPairs(), 0
    for rows, before, after in _pairs(s, f):
        seen.add(rows[before != after])
        pairs += len(rows)
    if not seen.count or seen.count > pairs / 2:
        return
    rows = np.concatenate(seen.rows)
    if not _is_id(s, f, rows):
        return
    key = split_name(f.name)[-1]
    text = f"{f.name} changes at {plural(seen.count, 'step')} inside episodes: {_MERGED}, as field:{key}"
    yield Finding(NAME, "id-changes", "warning", text, seen.count, f.name, tuple(s.places(rows[:MOST_PLACES])))


def _is_id(s: Subject, f: Field, changes: IntArray) -> bool:
    """Whether a column that changes at these rows numbers something; others come back to one value again and again."""
    starts = s.start[: np.searchsorted(s.start, changes[-1], "right")]
    values = s.at(f.name, np.union1d(starts, changes)).reshape(-1)
    runs = values[np.r_[True, values[1:] != values[:-1]]]
    return bool(np.unique(runs, return_counts=True)[1].max() <= max(1, len(runs) / 3))


# -- lengths


def _lengths(s: Subject) -> Iterator[Finding]:
    limit, longest = s.max_episode_steps, int(s.length.max(initial=0))
    if len(s.length) <= _ENOUGH or (limit and longest <= limit):
        return
    usual, at = _beyond_horizon(s.length)
    if len(at):
        text = f"{plural(len(at), 'episode', 'has', 'have')} a multiple of {usual:,} steps, the usual and otherwise"
        text += f" greatest length, e.g. {int(s.length[at[0]]):,}: {_MERGED}"
        yield Finding(NAME, "length-multiple", "warning", text, len(at), None, first_places(at))
        return
    usual, at = _beyond_others(s)
    if len(at):
        text = f"{plural(len(at), 'episode', 'is', 'are')} over {_TIMES} times as long as 99 % of the others"
        text += f" ({longest:,} steps, {usual:,}): {_MERGED}"
        yield Finding(NAME, "length-outlier", "warning", text, len(at), None, first_places(at))


def _beyond_horizon(length: IntArray) -> tuple[int, IntArray]:
    """The length of most episodes, and the few that have a multiple of it; none where others are longer, too."""
    lengths, counts = np.unique(length, return_counts=True)
    usual = int(lengths[np.argmax(counts)])
    longer = np.flatnonzero(length > usual)
    few = len(longer) <= max(1, _FEW * len(length))
    if usual < _SHORTEST_HORIZON or counts.max() < len(length) / 2 or not few or (length[longer] % usual).any():
        return usual, longer[:0]
    return usual, longer


def _beyond_others(s: Subject) -> tuple[int, IntArray]:
    """The 99th percentile of the lengths without the longest, and episodes far above it; time limits are round."""
    most = max(1, len(s.length) // 100)
    usual = int(np.percentile(np.sort(s.length)[:-most], 99))
    at = np.flatnonzero(s.length > _TIMES * max(1, usual))
    limited = (s.end[at] == TRUNCATED) & (s.length[at] % _ROUND == 0)
    return usual, at[~limited] if len(s.length) >= _MANY and len(at) <= most else at[:0]
