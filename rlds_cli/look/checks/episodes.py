"""Checks of episodes: merged or misplaced boundaries, flags, time limits, missing next observations, repetitions.

Merged episodes leave traces. A column that counts steps or time starts again inside an episode, or starts later than
in other episodes. A column with the number of the episode changes. One episode is several times as long as all others.
Such columns are recognised by the last part of their names, and count only where they behave as their names say.

Repeated episodes count twice, and may lie on both sides of a split. Episodes with equal lengths and first steps are
hashed as a whole; those with equal hashes are compared row by row. Frames that are kept encoded are compared by their
lengths in bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.base.text import is_below, split_name
from rlds_cli.look.checks.findings import Finding, Seen, finding
from rlds_cli.look.checks.subject import Sightings, Skipped, Subject, at_steps, plural, whole
from rlds_cli.ted import FLAGS, REWARD, TERMINATED, TRUNCATED, Field

# The last part of a field's name, in lower case and without "_" and "-".
_STEPS = re.compile(
    r"t|time|times?stamps?|elapsed(steps?|time)?|(episode|env)?(time)?steps?(id|ids|index|idx|number|num|count)?"
    r"|frame(id|index|idx|number|num)?"
)
_EPISODES = re.compile(r"(ep|eps|episode|traj|trajectory|demo|rollout)(ids?|index|idx|indices|number|num|no)?")

_USUAL_SHARE = 0.9  # at least this share of the episodes starts with the same value
_MIN_EPISODES = 4  # with fewer, no length is the usual one
_OUTLIER_FACTOR = 5  # times the 99th percentile of the lengths
_MIN_EPISODES_OUTLIER = 20  # with fewer, lengths alone do not show an outlier
_ROUND_LIMIT = 50  # time limits are multiples of this
_SHORTEST_HORIZON = 10
_FEW_SHARE = 0.1  # at most this share of the episodes is longer than the usual length
_MOST_ROWS = 1 << 16
_MERGED = "where trajectories were merged, import them again with another --episodes-by"
_TERMINATED, _TRUNCATED = FLAGS
_GAP, _JITTER, _JITTER_SHARE = 1.5, 4.0, 90  # times the usual growth of a counter, and times what it varies by
_FEWEST = 3  # episodes of full length that tell something
_SPARSE_SHARE = 0.05  # of the steps
_KEYS_AT_ONCE = 1 << 14  # episodes whose keys are computed at a time
_COMPARED_BYTES = 1 << 22  # bytes that are hashed or compared at a time
_ROOTS = ("observation", "action", "next/reward")
Words = np.ndarray


# -- merged episodes, and boundaries at wrong steps


def boundaries(s: Subject) -> Iterator[Finding]:
    """Find wrong boundaries by columns that count steps, columns that number episodes, and lengths."""
    if s.thorough:
        for f in _columns_named(s, _STEPS, text=False):
            yield from _step_column(s, f)
        for f in _columns_named(s, _EPISODES, text=True):
            yield from _episode_column(s, f)
    limit, longest = s.max_episode_steps, int(s.length.max(initial=0))
    if len(s.length) <= _MIN_EPISODES or (limit and longest <= limit):
        return
    usual, at = _beyond_horizon(s.length)
    if len(at):
        text = f"{plural(len(at), 'episode', 'has', 'have')} a multiple of {usual:,} steps, the usual and otherwise"
        text += f" greatest length, e.g. {int(s.length[at[0]]):,}: {_MERGED}"
        yield finding("length-multiple", "warning", text, len(at), None, whole(at))
        return
    usual, at = _beyond_others(s)
    if len(at):
        text = f"{plural(len(at), 'episode', 'is', 'are')} over {_OUTLIER_FACTOR} times as long as 99 % of the others"
        text += f" ({longest:,} steps, {usual:,}): {_MERGED}"
        yield finding("length-outlier", "warning", text, len(at), None, whole(at))


def _columns_named(s: Subject, names: re.Pattern[str], *, text: bool) -> list[Field]:
    """Scalar fields, and text fields with ``text``, whose name matches ``names``."""
    found = [f for f in s.fields(kinds="iuf") if f.shape in ((), (1,))]
    found += [f for f in s.ds.schema.values() if f.kind == "text" and text]
    return [f for f in found if names.fullmatch(re.sub("[_-]", "", split_name(f.name)[-1].lower()))]


def _neighbours(s: Subject, f: Field) -> Iterator[tuple[IntArray, Array, Array]]:
    """Neighbouring rows of one episode, block by block: rows [n], values [n] in the row before, values [n] there."""
    observed = s.rows.count(f)
    for a, values in s.rows.blocks(f.name, more=1):
        flat = values.reshape(len(values))
        rows = np.arange(a + 1, a + len(flat))
        episode = s.rows.episodes_at(rows)
        step = rows - s.start[episode]
        inside = (step > 0) & (step < observed[episode])
        yield rows[inside], flat[:-1][inside], flat[1:][inside]


# -- columns of steps and times


def _step_column(s: Subject, f: Field) -> Iterator[Finding]:
    growth = _growth(s, f)
    if growth is None:
        return
    unit, limit = growth
    first = s.at(f.name, s.start).reshape(-1).astype(np.float64)
    seen, gaps, widest, pairs = Sightings(s), Sightings(s), 0.0, 0
    for rows, before, after in _neighbours(s, f):
        episode = s.rows.episodes_at(rows)
        x, y = before.astype(np.float64), after.astype(np.float64)
        again = (y < x - unit / 2) & (y <= first[episode] + 1.5 * unit) & ~_at_maximum(before)
        seen.add(rows[again])
        wide = (y - x) > limit
        gaps.add(rows[wide] - 1)  # the step that is followed by less than there was
        widest, pairs = max(widest, float((y - x).max(initial=0))), pairs + len(rows)
    if 0 < gaps.count <= max(1, _FEW_SHARE * pairs):
        text = f"{f.name} grows by up to {_short_number(widest)} at {plural(gaps.count, 'step')} inside episodes, and"
        text += f" usually by {_short_number(unit)}: steps were left out there"
        yield finding("step-gap", "warning", text, gaps.count, f.name, gaps.seen)
    if seen.count:
        text = f"{f.name} starts again at {plural(seen.count, 'step')} inside episodes: {_MERGED}"
        yield finding("step-restarts", "warning", text, seen.count, f.name, seen.seen)
    late = np.flatnonzero(np.abs(first - np.median(first)) > unit / 2)
    if 0 < len(late) <= (1 - _USUAL_SHARE) * len(first) and not s.ds.manifest.provenance:
        text = f"{f.name} starts at {_short_number(first[late[0]])}, not at {_short_number(np.median(first))} as usual,"
        text += f" in {plural(len(late), 'episode')}: their first steps may be in the episodes before"
        yield finding("step-offset", "warning", text, len(late), f.name, whole(late))


def _growth(s: Subject, f: Field) -> tuple[float, float] | None:
    """The usual growth of a column from row to row, and the most by which it varies; None where it does not count."""
    grown, pairs = list[Array](), 0
    for _, before, after in _neighbours(s, f):
        step = after.astype(np.float64) - before.astype(np.float64)
        grown.append(step[step > 0])
        pairs += len(step)
        if pairs >= _MOST_ROWS:
            break
    counts = np.concatenate(grown) if grown else np.zeros(0)
    if not len(counts) or len(counts) < pairs / 2:
        return None
    unit = float(np.median(counts))
    return unit, _GAP * unit + _JITTER * float(np.percentile(np.abs(counts - unit), _JITTER_SHARE))


def _at_maximum(values: Array) -> BoolArray:
    """Mask of the values after which a counter of few bits wraps around."""
    if values.dtype.kind == "f":
        return np.zeros(len(values), bool)
    return np.asarray(values == np.iinfo(values.dtype).max)


def _short_number(x: float) -> str:
    return f"{x:.6g}"


# -- columns of episodes


def _episode_column(s: Subject, f: Field) -> Iterator[Finding]:
    seen, first, pairs = Sightings(s), list[IntArray](), 0
    for rows, before, after in _neighbours(s, f):
        changed = rows[before != after]
        if seen.count < _MOST_ROWS:
            first.append(changed)
        seen.add(changed)
        pairs += len(rows)
    if not seen.count or seen.count > pairs / 2:
        return
    if not _is_id(s, f, np.concatenate(first)):
        return
    key = split_name(f.name)[-1]
    text = f"{f.name} changes at {plural(seen.count, 'step')} inside episodes: {_MERGED}, as field:{key}"
    yield finding("id-changes", "warning", text, seen.count, f.name, seen.seen)


def _is_id(s: Subject, f: Field, changes: IntArray) -> bool:
    """Tell an id from a category by its changes: a category comes back to the same values again and again."""
    starts = s.start[s.start <= changes[-1]]
    values = s.at(f.name, np.union1d(starts, changes)).reshape(-1)
    runs = values[np.r_[True, values[1:] != values[:-1]]]
    return bool(np.unique(runs, return_counts=True)[1].max() <= max(1, len(runs) / 3))


# -- lengths


def _beyond_horizon(length: IntArray) -> tuple[int, IntArray]:
    """The usual length, and the few episodes with a multiple of it; none where episodes have other greater lengths."""
    lengths, counts = np.unique(length, return_counts=True)
    usual = int(lengths[np.argmax(counts)])
    longer = np.flatnonzero(length > usual)
    few = len(longer) <= max(1, _FEW_SHARE * len(length))
    if usual < _SHORTEST_HORIZON or counts.max() < len(length) / 2 or not few or (length[longer] % usual).any():
        return usual, longer[:0]
    return usual, longer


def _beyond_others(s: Subject) -> tuple[int, IntArray]:
    """The 99th percentile of the lengths without the longest, and the episodes far above it.

    Truncated episodes with a round length are left out: the round number is most likely a time limit.
    """
    if s.length.max() <= _OUTLIER_FACTOR * max(1, int(s.length.min())):
        return 0, s.length[:0]  # no percentile is needed, nor numpy.ma, which np.percentile imports in 10 ms
    most = max(1, len(s.length) // 100)
    usual = int(np.percentile(np.sort(s.length)[:-most], 99))
    at = np.flatnonzero(s.length > _OUTLIER_FACTOR * max(1, usual))
    limited = (s.rows.end[at] == TRUNCATED) & (s.length[at] % _ROUND_LIMIT == 0)
    told = usual > 1 and len(s.length) >= _MIN_EPISODES_OUTLIER and len(at) <= most  # among single steps, all are long
    return usual, at[~limited] if told else at[:0]


# -- flags that contradict each other or the episode table, or stand inside episodes


def flags(s: Subject) -> Iterator[Finding]:
    """Compare the flags with the episode table.

    Inside an episode, ``terminated`` is a warning and ``truncated`` an error. A last step without its flag is an error.
    """
    if not s.ds.schema.keys() >= set(FLAGS):
        raise Skipped("it has no flags")
    c, seen = s.ds.manifest.counts, Seen()
    count = c.terminated_inside
    if count and s.thorough:
        found = s.steps_where(_TERMINATED, np.asarray, last=False)
        count, seen = found.count, found.seen
    elif count and (of_episodes := s.ds.episodes.get("num_terminated")) is not None:
        seen = whole(np.flatnonzero(of_episodes > (s.rows.end == TERMINATED)))
    if count:
        known = s.known("terminated-inside")
        yield finding("terminated-inside", "warning", _goes_on(count, "terminated"), count, _TERMINATED, seen, known)
    if c.cut == c.episodes > 0:
        text = f"no episode ends with a flag: all {c.episodes:,} count as cut"
        yield finding("never-flagged", "warning", text, c.cut, None, _all(s))
    elif c.episodes and not c.terminated and not c.terminated_inside:
        known = s.known("never-terminated")
        yield finding("never-terminated", "note", "no step is terminated", 1, _TERMINATED, Seen(), known)
    if s.thorough:
        found = s.steps_where(_TRUNCATED, np.asarray, last=False)
        if found.count:
            text = _goes_on(found.count, "truncated")
            yield finding("truncated-inside", "error", text, found.count, _TRUNCATED, found.seen)
        yield from _flags_of_ends(s)


def _goes_on(count: int, flagged: str) -> str:
    whose = "its" if count == 1 else "their"
    return f"{plural(count, 'step', 'is', 'are')} {flagged} and {whose} episode continues"


def _flags_of_ends(s: Subject) -> Iterator[Finding]:
    """Compare the flags of the last steps with the episode table."""
    terminated, truncated = (np.asarray(s.at(name, s.last), bool) for name in FLAGS)
    ended = s.rows.end == TERMINATED
    unflagged = np.flatnonzero(~terminated & ~truncated)
    differs = np.flatnonzero((terminated != ended) & (terminated | truncated))
    both = np.flatnonzero(terminated & truncated)
    if len(unflagged):
        text = f"{plural(len(unflagged), 'episode', 'ends', 'end')} with no flag"
        yield finding("unflagged-end", "error", text, len(unflagged), None, _last_steps(s, unflagged))
    if len(differs):
        text = f"{plural(len(differs), 'episode', 'ends', 'end')} otherwise than the flags say"
        yield finding("end-differs", "error", text, len(differs), None, _last_steps(s, differs))
    if len(both):
        text = f"{plural(len(both), 'last step', 'is', 'are')} both terminated and truncated"
        yield finding("both-flags", "note", text, len(both), None, _last_steps(s, both))


def _last_steps(s: Subject, episodes: IntArray) -> Seen:
    return at_steps(episodes, s.length[episodes] - 1)


def _all(s: Subject) -> Seen:
    """Return all episodes; where each is concerned, none is an example."""
    return Seen(tuple(range(len(s.length))))


# -- time limits


def time_limits(s: Subject) -> Iterator[Finding]:
    """Find episodes longer than the environment's limit, and time limits that are stored as terminations.

    Where no limit is known, lengths are compared with each other.
    """
    limit, longest = s.max_episode_steps, int(s.length.max(initial=0))
    if limit and longest > limit:
        over = np.flatnonzero(s.length > limit)
        text = f"{plural(len(over), 'episode', 'is', 'are')} longer than the environment's limit of {limit:,} steps"
        text += f", the longest {longest:,}"
        yield finding("too-long", "warning", text, len(over), None, whole(over), s.known("too-long"))
    full = s.length == (limit or longest)
    if full.sum() < _FEWEST or longest < 2 or not (s.rows.end[full] == TERMINATED).all():
        return
    if limit:
        at = np.flatnonzero(full)
        text = f"all {len(at):,} episodes of {limit:,} steps, the environment's limit, are terminated, not truncated"
        known = s.known("limit-terminated")
        yield finding("limit-terminated", "warning", text, len(at), None, whole(at), known)
    elif full.all():
        text = f"all {len(full):,} episodes have {longest:,} steps and are terminated: this may be a time limit"
        yield finding("limit-terminated", "note", text, len(full), None, _all(s))


def next_unknown(s: Subject) -> Iterator[Finding]:
    """Count last steps without a recorded next observation: a value-based learner cannot use them."""
    short = np.flatnonzero(np.asarray(s.ds.episodes["num_transitions"]) < s.length)
    if len(short):
        c = s.ds.manifest.counts
        text = f"{plural(len(short), 'last step', 'has', 'have')} no recorded next observation:"
        text += f" {c.transitions:,} transitions of {c.steps:,} steps"
        known = s.known("next-unknown")
        yield finding("next-unknown", "note", text, len(short), None, _last_steps(s, short), known)


# -- isolated successes


def isolated_rewards(s: Subject) -> Iterator[Finding]:
    """Find successes that are rewarded and terminated at a single step while their episode continues.

    Where a goal is reached and the agent stays, rewards and terminations come in runs. A single one, as in D4RL's
    antmaze-umaze-diverse, makes the steps after it look like failures. Only rewards of two values are looked at.
    """
    if not s.fields(REWARD):
        raise Skipped("it has no rewards")
    if REWARD not in s.stats or s.ds.schema[REWARD].shape:
        return  # a vector, or several rewards by name: a success cannot be recognised
    stats = s.stats[REWARD]
    low, high = (float(np.ravel(x)[0]) if np.size(x) else np.nan for x in (stats.min, stats.max))
    if not s.ds.manifest.counts.terminated_inside or not low < high or sum(c > 0 for c in stats.histogram) > 2:
        return
    found = _isolated(s, low, high)
    if found is not None and found.count:
        text = f"{plural(found.count, 'step')} rewarded and terminated, never two in a row; their episode continues"
        known = s.known("reward-isolated")
        yield finding("reward-isolated", "warning", text, found.count, REWARD, found.seen, known)


def _isolated(s: Subject, low: float, high: float) -> Sightings | None:
    """Find rewarded steps inside episodes; None unless rewards are sparse and never come in a row."""
    seen, before = Sightings(s), -2
    for a, values in s.rows.blocks(REWARD):
        stop = a + len(values)
        is_step, is_last = np.ones(len(values), bool), np.zeros(len(values), bool)
        is_step[s.rows.last_rows(a, stop) - a] = False
        is_last[s.rows.last_rows(a + 1, stop + 1) - 1 - a] = True
        rewarded = values == high
        if not (rewarded | (values == low) | ~is_step).all():
            return None
        rows: IntArray = a + np.flatnonzero(rewarded & is_step)
        if len(rows):
            if rows[0] == before + 1 or (np.diff(rows) == 1).any():
                return None
            before = int(rows[-1])
        inside = rows[~is_last[rows - a]]
        inside = inside[np.asarray(s.at(_TERMINATED, inside), bool)]
        seen.add(inside)
        if seen.count > _SPARSE_SHARE * s.ds.num_steps:
            return None
    return seen


# -- repeated episodes


def repeats(s: Subject) -> Iterator[Finding]:
    """Find episodes whose observations, actions and rewards all equal those of an earlier episode."""
    columns = [f for f in s.ds.schema.values() if any(is_below(f.name, r) for r in _ROOTS)]
    columns = [f for f in columns if f.kind != "text" and 0 not in f.shape]
    if not any(f.name.split("/")[0] in ("observation", "action") for f in columns):
        raise Skipped("neither observations nor actions can be compared")
    if len(s.length) < 2:
        return
    first = repeated(s, columns)
    again = np.flatnonzero(first >= 0)
    if len(again):
        text = f"{plural(len(again), 'episode', 'repeats an earlier one', 'repeat earlier ones')}, e.g."
        text += f" episode {again[0]:,} is episode {first[again[0]]:,} again"
        yield finding("duplicate", "warning", text, len(again), None, whole(again))


def repeated(s: Subject, columns: list[Field]) -> IntArray:
    """For every episode the number of the first one with the same content, -1 for that one itself; int64 [E]."""
    first = np.full(len(s.length), -1, np.int64)
    group, size = np.unique(episode_keys(s, columns, shares=(0.0,)), return_inverse=True, return_counts=True)[1:]
    todo = np.flatnonzero(size[group] > 1)
    keys = s.length[todo].astype(np.uint64)  # of the whole content of these episodes
    for chosen, steps in _batches(s, columns, todo):
        keys[chosen] = _mix(keys[chosen], _words(_rows_of(s, columns, todo[chosen], steps)))
    earliest, group = np.unique(keys, return_index=True, return_inverse=True)[1:]
    later = np.flatnonzero(earliest[group] != np.arange(len(keys)))
    again, of = todo[later], todo[earliest[group][later]]
    same = np.zeros(len(again), bool)
    for pairs, steps in _batches(s, columns, again):
        x, y = (_rows_of(s, columns, which[pairs], steps) for which in (of, again))
        same[pairs] = (same[pairs] | (steps[0] == 0)) & (x == y).all(axis=1)
    first[again[same]] = of[same]
    return first


def episode_keys(s: Subject, columns: list[Field], *, shares: tuple[float, ...] = (0.0, 0.5, 1.0)) -> Words:
    """Hash every episode to uint64 [E]: its length, and its steps at the fractions ``shares`` of it in ``columns``."""
    keys = s.length.astype(np.uint64)
    for a in range(0, len(keys), _KEYS_AT_ONCE):
        start, length = s.start[a : a + _KEYS_AT_ONCE], s.length[a : a + _KEYS_AT_ONCE]
        for share in shares:
            rows = start + np.minimum((length * share).astype(np.int64), length - 1)
            for f in columns:
                keys[a : a + _KEYS_AT_ONCE] = _mix(keys[a : a + _KEYS_AT_ONCE], _words(s.at(f.name, rows)))
    return keys


def _batches(s: Subject, columns: list[Field], episodes: IntArray) -> Iterator[tuple[IntArray, IntArray]]:
    """Batches of episodes of one length (as indices into ``episodes``) and ranges of their steps, 4 MiB at a time."""
    if not len(episodes):
        return
    width = sum(8 if f.kind == "frames" else f.row_bytes for f in columns)
    order = np.argsort(s.length[episodes], kind="stable")
    lengths, starts = np.unique(s.length[episodes][order], return_index=True)
    for length, group in zip(lengths, np.split(order, starts[1:]), strict=True):
        span = min(int(length), max(1, _COMPARED_BYTES // width))
        at_once = max(1, _COMPARED_BYTES // (span * width))
        for a in range(0, len(group), at_once):
            for step in range(0, int(length), span):
                yield group[a : a + at_once], np.arange(step, min(step + span, int(length)))


def _rows_of(s: Subject, columns: list[Field], episodes: IntArray, steps: IntArray) -> Array:
    """The bytes of some steps of episodes, in all columns; uint8 [n, ...], so that NaN equals itself."""
    rows = (s.start[episodes][:, None] + steps).ravel()
    values = [np.ascontiguousarray(s.at(f.name, rows)).reshape(len(episodes), -1) for f in columns]
    return np.concatenate([v.view(np.uint8) for v in values], axis=1)


def _words(values: Array) -> Words:
    """The bytes of every row as unsigned 64-bit words [n, w]."""
    raw = np.ascontiguousarray(values).reshape(len(values), -1).view(np.uint8)
    padded = np.zeros((len(raw), -(-raw.shape[1] // 8) * 8), np.uint8)
    padded[:, : raw.shape[1]] = raw
    return padded.view(np.uint64)


def _mix(keys: Words, words: Words) -> Words:
    """Fold words into keys: multiplied by odd numbers of their own, as in multilinear hashing."""
    odd = np.random.default_rng(words.shape[1]).integers(0, 2**63, words.shape[1], np.uint64) | np.uint64(1)
    folded = (words ^ (words >> np.uint64(29))) * odd
    total: Words = folded.sum(axis=1, dtype=np.uint64) + keys * np.uint64(0x9E3779B97F4A7C15)
    mixed: Words = total ^ (total >> np.uint64(32))
    return mixed
