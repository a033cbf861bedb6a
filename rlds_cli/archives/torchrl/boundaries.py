"""Find the episodes of a lane, and read them: each observation once, and the final one if it was recorded.

Without a rule of the user's, an episode ends where the number of the trajectory changes (``collector/traj_ids``,
``episode`` with ``seed``, ...), else where ``next/done`` or ``next/truncated`` is set, and before ``is_init``. A
flagged end or start between rows of the same number is a contradiction, and is refused. Root
flags of TED are not used.

Flattened batches of several environments interleave trajectories: a number that comes back before its episode has ended
is refused.

The next observation of a last step is not a final observation in two cases. It is a filler where all of its values are
zero and those of the observation before are not: TorchRL's converters write zeros there. It belongs to the next episode
if no end is flagged and it is the observation of the row after. Single numbers are always taken as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from rlds_cli.archives.torchrl.lanes import MASKS, NEXT, NUMBERS, Lane, Lanes, LaneWindow, block_steps, load_it
from rlds_cli.base.array_types import Array, BoolArray
from rlds_cli.errors import UnknownLayout
from rlds_cli.ted import CUT, FLAGS, TERMINATED, TRUNCATED, EpisodeData, Field, LazyColumn, Note

RULES = ("flags", "timeouts", "field:KEY", "file")
STARTS, SEED = "is_init", "seed"
MASKED = ("masked",)


@dataclass(frozen=True, slots=True)
class KeyRoles:
    """The keys that mark episodes and hold rewards and observations; None for a role without a key.

    ``done``, ``terminated`` and ``truncated`` are flags of the step, below ``next`` in TED. ``numbers`` identify a
    trajectory together. ``pairs`` are the keys whose next values are stored, ``observations`` those of them that are
    compared with the values of the row after.
    """

    done: str | None
    terminated: str | None
    truncated: str | None
    reward: str | None
    numbers: tuple[str, ...]
    starts: str | None
    mask: str | None
    pairs: tuple[str, ...]
    observations: tuple[str, ...]


@dataclass(slots=True)
class LaneEpisode:
    """One episode: the positions ``start`` to ``stop`` of a lane."""

    lane: Lane
    start: int
    stop: int

    @property
    def steps(self) -> int:
        """The number of steps."""
        return self.stop - self.start


@dataclass(slots=True)
class LaneEpisodes:
    """The episodes of a TensorDict in the order of their first steps, the rule that found them, and notes."""

    episodes: list[LaneEpisode] = field(default_factory=list)
    rule: str = ""
    notes: list[Note] = field(default_factory=list)


@dataclass(slots=True)
class _Run:
    start: int
    stop: int
    number: tuple[object, ...]
    ended: bool
    opens: bool  # whether it begins an episode, instead of continuing the run before


def episodes(lanes: Lanes, roles: KeyRoles, rule: str | None) -> LaneEpisodes:
    """Find the episodes of every lane; reads trajectory numbers and flags, in blocks.

    Raises
    ------
    UnknownLayout
        There is no such rule, nothing marks the ends of episodes, or marks contradict each other.
    """
    kind, _, key = (rule or "").partition(":")
    if rule is not None and (kind not in [r.partition(":")[0] for r in RULES] or bool(key) != (kind == "field")):
        raise UnknownLayout(f'"{rule}" is not a rule for the ends of episodes.', hint=f"one of {', '.join(RULES)}")
    if key and (key not in lanes.keys or np.prod(lanes.keys[key].shape, dtype=int) != 1 or lanes.keys[key].observed):
        raise UnknownLayout(
            f"{lanes.store.name} has no column {key} of one value a row.", hint=f"it has {', '.join(lanes.keys)}"
        )
    chosen = _chosen(lanes, roles, kind, key)
    flagged = chosen.ends or chosen.starts
    found = LaneEpisodes(
        rule=rule or ("field:" + chosen.numbers[0] if chosen.numbers else "flags" if flagged else "file")
    )
    for lane in lanes.lanes:
        found.episodes += _joined(lanes, lane, _runs(lanes, lane, chosen), by_numbers=not rule)
    return found


@dataclass(frozen=True, slots=True)
class _BoundaryKeys:
    """The keys that mark episodes; with ``strict`` flags must agree with the numbers."""

    numbers: tuple[str, ...]
    ends: tuple[str, ...]
    starts: str | None
    mask: str | None
    strict: bool

    @property
    def keys(self) -> list[str]:
        return [*self.numbers, *self.ends, *(k for k in (self.starts, self.mask) if k)]


def _chosen(lanes: Lanes, roles: KeyRoles, kind: str, key: str) -> _BoundaryKeys:
    flags = tuple(
        k for k in ((roles.done, roles.truncated) if roles.done else (roles.terminated, roles.truncated)) if k
    )
    if kind == "field":
        return _BoundaryKeys((key,), (), None, roles.mask, strict=False)
    if kind == "file":
        return _BoundaryKeys((), (), None, roles.mask, strict=False)
    if kind == "timeouts":
        if roles.truncated is None:
            raise UnknownLayout(
                f"{lanes.store.name} has no next/truncated, which --episodes-by timeouts needs.",
                hint="--episodes-by flags",
            )
        return _BoundaryKeys((), (roles.truncated,), None, roles.mask, strict=False)
    numbers = roles.numbers if kind != "flags" else ()
    chosen = _BoundaryKeys(numbers, flags, roles.starts, roles.mask, strict=bool(numbers))
    alone = len(lanes.lanes) == 1 and not len(lanes.lanes[0].ends)
    if alone and not (flags or numbers or roles.starts):
        raise UnknownLayout(
            f"{lanes.store.name}: the ends of episodes are not marked: no next/done, no collector/traj_ids.",
            hint="--episodes-by field:KEY, or --episodes-by file if all of it is one episode",
        )
    return chosen


def _runs(lanes: Lanes, lane: Lane, chosen: _BoundaryKeys) -> Iterator[_Run]:
    """Divide the steps of a lane into runs that lie in one episode each, in order."""
    size, start, opens = block_steps(lanes, chosen.keys), 0, True
    for first in range(0, lane.steps, size):
        stop = min(first + size, lane.steps)
        # One step more at either end: the one before the block, to compare with.
        seen = {k: _flat(lanes, k, lane, max(first - 1, 0), stop) for k in chosen.keys}
        lead = first - max(first - 1, 0)
        ended = _any(seen, chosen.ends, stop - first + lead)
        bound, starts = _bounds(seen, chosen, ended)
        if chosen.strict:
            _agree(lanes, lane, chosen, seen, ended, max(first - 1, 0))
        inner = np.zeros(len(bound), bool)
        inside = lane.ends[(lane.ends >= max(first - 1, 0)) & (lane.ends < stop - 1)] - max(first - 1, 0) + 1
        inner[inside] = True
        for at in np.flatnonzero(bound | starts | inner):
            position = int(at) + first - lead
            if position <= start:
                continue
            yield _run(chosen, seen, int(at) - 1, ended, (start, position), opens)
            start, opens = position, bool(bound[at] | starts[at])
        if stop == lane.steps:
            yield _run(chosen, seen, len(ended) - 1, ended, (start, stop), opens)


def _bounds(seen: Mapping[str, Array], chosen: _BoundaryKeys, ended: BoolArray) -> tuple[BoolArray, BoolArray]:
    """Mark the steps before which an episode ends, by numbers, flags or the mask, and the steps flagged as starts."""
    bound = np.zeros(len(ended), bool)
    for key in (*chosen.numbers, *((chosen.mask,) if chosen.mask else ())):
        bound[1:] |= seen[key][1:] != seen[key][:-1]
    bound[1:] |= ended[:-1]
    starts = seen[chosen.starts] != 0 if chosen.starts else np.zeros(len(ended), bool)
    return bound, starts


def _agree(
    lanes: Lanes, lane: Lane, chosen: _BoundaryKeys, seen: Mapping[str, Array], ended: BoolArray, first: int
) -> None:
    """Refuse flagged ends and starts between rows with the same trajectory number."""
    same = np.ones(max(len(ended) - 1, 0), bool)
    for key in (*chosen.numbers, *((chosen.mask,) if chosen.mask else ())):
        same &= seen[key][1:] == seen[key][:-1]
    if chosen.mask:
        same &= seen[chosen.mask][1:] != 0
    starts = seen[chosen.starts][1:] != 0 if chosen.starts else np.zeros(len(same), bool)
    for flagged, what in ((ended[:-1] & same, " or ".join(chosen.ends)), (starts & same, str(chosen.starts))):
        if flagged.any():
            at = [first + int(i) for i in np.flatnonzero(flagged)[:3]]
            rows = ", ".join(f"{row(lane, p):,} and {row(lane, p + 1):,}" for p in at)
            number = seen[chosen.numbers[0]][int(np.flatnonzero(flagged)[0])]
            raise UnknownLayout(
                f"{lanes.store.name}: {what} says that an episode ends between rows {rows}"
                f"{', ...' if flagged.sum() > len(at) else ''}, and {chosen.numbers[0]} stays {number} there.",
                hint=f"--episodes-by flags, or --episodes-by field:{chosen.numbers[0]}, says which decides",
            )


def row(lane: Lane, position: int) -> int:
    """Return the row of the TensorDict at a position of the lane."""
    return next(lane.rows(position, position + 1))[0]


def _run(
    chosen: _BoundaryKeys, seen: Mapping[str, Array], last: int, ended: BoolArray, span: tuple[int, int], opens: bool
) -> _Run:
    """Make a run from the values at its last step, index ``last`` in the block."""
    hidden = chosen.mask is not None and not seen[chosen.mask][last]
    number = MASKED if hidden else tuple(seen[k][last].item() for k in chosen.numbers)
    return _Run(*span, number, bool(ended[last]), opens)


def _joined(lanes: Lanes, lane: Lane, runs: Iterator[_Run], *, by_numbers: bool) -> Iterator[LaneEpisode]:
    """Join runs that an end in a compact form divides.

    Raises
    ------
    UnknownLayout
        A number comes back before its episode has ended.
    """
    made: list[LaneEpisode] = []
    last: dict[tuple[object, ...], int] = {}  # the last position of numbers whose episodes have not ended
    for run in runs:
        if run.number == MASKED:
            continue
        if not run.opens and made:
            made[-1].stop = run.stop
        elif (before := last.get(run.number)) is not None:
            raise UnknownLayout(
                f"{lanes.store.name}: trajectory {run.number[0]} stops after row {row(lane, before):,} and "
                f"continues at row {row(lane, run.start):,}: steps of several environments are interleaved.",
                hint=load_it(lanes.store),
            )
        else:
            made.append(LaneEpisode(lane, run.start, run.stop))
        last.pop(run.number, None)
        if by_numbers and run.number and not run.ended:
            last[run.number] = run.stop - 1
    yield from made


def equal(a: Array, b: Array) -> BoolArray:
    """Mark the rows that are the same, bool [rows]; NaN equals itself."""
    same = a == b
    if a.dtype.kind in "fc":
        same |= (a != a) & (b != b)
    return np.asarray(same.reshape(len(a), -1).all(axis=1))


def is_set(values: Array) -> BoolArray:
    """Convert a flag of any dtype to bool [rows]; NaN counts as False."""
    return np.asarray((values != 0) & (values == values))


def _flat(lanes: Lanes, key: str, lane: Lane, start: int, stop: int) -> Array:
    return lanes.take(key, lane, start, stop).reshape(stop - start)


def _any(seen: Mapping[str, Array], keys: Sequence[str], rows: int) -> BoolArray:
    out = np.zeros(rows, bool)
    for key in keys:
        out |= is_set(seen[key])
    return out


def roles_of(lanes: Lanes) -> KeyRoles:
    """Find the roles of the keys of a TensorDict by their names."""
    keys = lanes.keys
    ted = any(k.startswith(NEXT) for k in keys)
    prefix = NEXT if ted else ""

    def one(name: str) -> str | None:
        """Return the key, if it has one number per row."""
        there = name in keys and keys[name].dtype != "str" and np.prod(keys[name].shape, dtype=int) == 1
        return name if there and not keys[name].observed else None

    flags = {f: one(prefix + f) for f in ("done", "terminated", "truncated")}
    own = {"done", "terminated", "truncated", "reward"}
    pairs = [
        k for k, about in keys.items()
        if k.rpartition("/")[2] not in own and not k.startswith(NEXT)
        and (about.observed or (NEXT + k in keys and keys[NEXT + k] == about))
    ]  # fmt: skip
    numbers = [k for k in NUMBERS if one(k) and keys[k].dtype not in ("bool", "str")][:1]
    if numbers and numbers[0].startswith("episode") and one(SEED):
        numbers.append(SEED)
    compared = [k for k in pairs if keys[k].dtype != "str"]
    observations = [k for k in compared if k.split("/")[0] in ("observation", "pixels")]
    return KeyRoles(
        **flags,
        reward=prefix + "reward" if prefix + "reward" in keys else None,
        numbers=tuple(numbers),
        starts=one(STARTS),
        mask=next((k for k in MASKS if len(lanes.store.tree.batch) > 1 and one(k) and keys[k].dtype == "bool"), None),
        pairs=tuple(pairs),
        observations=tuple(observations or [k for k in compared if k != STARTS]),
    )


class NextKeysDiffer(Exception):
    """Next values of ``keys`` differ from the rows after at most steps."""

    def __init__(self, keys: Sequence[str]) -> None:
        super().__init__(keys)
        self.keys = tuple(keys)


@dataclass(frozen=True, slots=True)
class EpisodeReading:
    """The settings with which the episodes of one TensorDict are read.

    ``keys`` maps fields to keys, ``compared`` are the keys whose next values are compared with the rows after, and
    ``max_cuts`` says how many steps may differ. With ``forgiving``, zeros inside an episode are fillers, no ends.
    """

    lanes: Lanes | LaneWindow
    roles: KeyRoles
    fields: Sequence[Field]
    keys: Mapping[str, str]
    compared: tuple[str, ...]
    source: int
    max_cuts: int
    forgiving: bool


def wholes(how: EpisodeReading, episodes: Sequence[LaneEpisode]) -> Iterator[EpisodeData]:
    """Read the episodes; they are divided where a next observation is not the observation of the row after.

    Raises
    ------
    NextKeysDiffer
        That happens at more than ``max_cuts`` steps, or to values that are not observations.
    """
    cuts = 0
    for window, group in _groups(how, episodes):
        for episode in group:
            pieces = _pieces(window, episode)
            cuts += len(pieces) - 1
            if cuts > how.max_cuts:
                raise NextKeysDiffer([k for k in how.compared if k in how.roles.observations])
            for number, piece in enumerate(pieces):
                yield _whole(window, piece, unflagged=number < len(pieces) - 1)


def _groups(how: EpisodeReading, episodes: Sequence[LaneEpisode]) -> Iterator[tuple[EpisodeReading, list[LaneEpisode]]]:
    """Group short episodes that follow each other in a lane, to read them together; others are read alone."""
    lanes = how.lanes
    assert isinstance(lanes, Lanes)
    size, group = block_steps(lanes, [*lanes.keys]), list[LaneEpisode]()

    def whole() -> tuple[EpisodeReading, list[LaneEpisode]]:
        if len(group) == 1:
            return how, group
        return replace(how, lanes=LaneWindow(lanes, group[0].lane, group[0].start, group[-1].stop)), group

    for e in episodes:
        follows = group and e.lane is group[0].lane and e.start == group[-1].stop
        if group and not (follows and e.stop - group[0].start <= size):
            yield whole()
            group = []
        group.append(e)
    if group:
        yield whole()


def mismatches(how: EpisodeReading, episode: LaneEpisode, most: int) -> dict[str, int]:
    """Count, for each compared key, the differences of next values from the rows after in the first ``most`` steps."""
    counts = dict.fromkeys(how.compared, 0)
    start, stop = episode.start, min(episode.stop, episode.start + most) - 1
    if stop > start:
        filler = _is_filler(how, episode.lane, start, stop)
        for key in how.compared:
            counts[key] += int(np.count_nonzero(_differs(how.lanes, key, episode.lane, start, stop) & ~filler))
    return counts


def _pieces(how: EpisodeReading, episode: LaneEpisode) -> list[LaneEpisode]:
    if not how.compared:
        return [episode]
    size = block_steps(how.lanes, [*how.compared, *how.compared])
    last = episode.stop - 1
    blocks = [(s, min(s + size, last)) for s in range(episode.start, last, size)]
    marks = [p + 1 for block in blocks for p in _breaks(how, episode.lane, *block)]
    return [LaneEpisode(episode.lane, a, b) for a, b in pairwise([episode.start, *marks, episode.stop])]


def _breaks(how: EpisodeReading, lane: Lane, start: int, stop: int) -> list[int]:
    """Find the positions whose next observation is not the observation of the position after."""
    broken = np.zeros(stop - start, bool)
    filler = _is_filler(how, lane, start, stop) if how.forgiving else broken.copy()
    for key in how.compared:
        if key in how.roles.observations:
            broken |= _differs(how.lanes, key, lane, start, stop) & ~filler
    for key in how.compared:
        if key not in how.roles.observations and (
            (_differs(how.lanes, key, lane, start, stop) & ~broken & ~filler).any()
        ):
            raise NextKeysDiffer([key])
    return [start + int(i) for i in np.flatnonzero(broken)]


def _differs(lanes: Lanes | LaneWindow, key: str, lane: Lane, start: int, stop: int) -> BoolArray:
    return ~equal(lanes.after(key, lane, start, stop), lanes.take(key, lane, start + 1, stop + 1))


def _is_filler(how: EpisodeReading, lane: Lane, start: int, stop: int) -> BoolArray:
    """Mark the steps whose next observation is zeros and whose observation is not."""
    names = [n for n in how.roles.observations if not how.lanes.keys[n].observed]
    if sum(how.lanes.keys[n].row_bytes // np.dtype(how.lanes.keys[n].dtype).itemsize for n in names) < 2:
        return np.zeros(stop - start, bool)
    after = [how.lanes.after(n, lane, start, stop) for n in names]
    now = [how.lanes.take(n, lane, start, stop) for n in names]
    zero = np.all([~x.reshape(len(x), -1).any(axis=1) for x in after], axis=0)
    return np.asarray(zero & np.any([x.reshape(len(x), -1).any(axis=1) for x in now], axis=0))


def _whole(how: EpisodeReading, episode: LaneEpisode, *, unflagged: bool) -> EpisodeData:
    length = episode.steps
    terminated, truncated, done = _flags(how, episode)
    observed, notes = _final(how, episode, done=done)
    end = TERMINATED if terminated[-1] else TRUNCATED if truncated[-1] or (done and how.roles.terminated) else CUT
    if terminated[:-1].any():
        notes.append(_note(how, episode, "terminated-inside", "steps inside episodes are terminated"))
    if truncated[:-1].any():
        notes.append(_note(how, episode, "truncated-inside", "steps inside episodes are truncated: not kept"))
    if unflagged:
        text = "a next observation is not the observation of the row after: the episode is divided there"
        notes.append(_note(how, episode, "unflagged-end", text))
    last = np.zeros(length, bool)
    last[-1] = truncated[-1] or end != TERMINATED
    columns: dict[str, Array | LazyColumn] = {FLAGS[0]: terminated, FLAGS[1]: last}
    for f in how.fields:
        if f.name not in columns:
            columns[f.name] = _column(how, f, episode, observed=observed)
    first = row(episode.lane, episode.start)
    return EpisodeData(
        columns,
        length,
        end,
        source=how.source,
        row=first,
        group=place(how.lanes, episode),
        observed=observed,
        notes=tuple(notes),
    )


def _column(how: EpisodeReading, f: Field, episode: LaneEpisode, *, observed: bool) -> LazyColumn:
    final = observed and f.placement == "both"
    return Steps(how.lanes, how.keys[f.name], episode, f.shape, final=final)


def _flags(how: EpisodeReading, episode: LaneEpisode) -> tuple[BoolArray, BoolArray, bool]:
    """Return terminated and truncated of every step, and whether the last is done."""

    def read(key: str | None) -> BoolArray:
        if key is None:
            return np.zeros(episode.steps, bool)
        return is_set(Steps(how.lanes, key, episode, ()).cut(0, episode.steps))

    roles = how.roles
    done, terminated, truncated = read(roles.done), read(roles.terminated), read(roles.truncated)
    if roles.terminated is None:
        terminated = done & ~truncated
    return terminated, truncated, bool(done[-1] | terminated[-1] | truncated[-1])


def _final(how: EpisodeReading, episode: LaneEpisode, *, done: bool) -> tuple[bool, list[Note]]:
    """Tell whether the final observation is recorded; notes give the reason if not."""
    lane, last = episode.lane, episode.stop - 1
    names = how.roles.observations
    if not names:
        return False, []
    if any(how.lanes.keys[n].observed for n in names):
        return bool(np.isin(last, lane.ends)), []
    if _is_filler(how, lane, last, last + 1)[0]:
        text = "the next observation of a last step is all zeros: a filler, not the final observation"
        return False, [_note(how, episode, "filler-final", text)]
    values = sum(int(np.prod(how.lanes.keys[n].shape, dtype=int)) for n in names)
    if not done and values > 1 and last + 1 < lane.steps:
        same = [
            equal(how.lanes.after(n, lane, last, last + 1), how.lanes.take(n, lane, last + 1, last + 2)).all()
            for n in names
        ]
        if all(same):
            text = "the next observation of a last step is the first one of the next episode, not the final observation"
            return False, [_note(how, episode, "leaked-final", text)]
    return True, []


def _note(how: EpisodeReading, episode: LaneEpisode, code: str, text: str) -> Note:
    return Note(code, text, 1, f"{how.lanes.store.name}{place(how.lanes, episode)}")


class Steps(LazyColumn):
    """A column of an episode, read from its lane on demand."""

    def __init__(
        self, lanes: Lanes | LaneWindow, key: str, episode: LaneEpisode, shape: tuple[int, ...], *, final: bool = False
    ) -> None:
        self._lanes, self._key, self._episode = lanes, key, episode
        self._shape, self._final = shape, final
        self._rows = episode.steps + final
        self._bytes = self._rows * lanes.keys[key].row_bytes

    def __len__(self) -> int:
        return self._rows

    @property
    def nbytes(self) -> int:
        """The approximate bytes of all rows in memory."""
        return self._bytes

    def cut(self, start: int, stop: int) -> Array:
        """Read rows [start, stop)."""
        e = self._episode
        last = min(stop, e.steps)
        parts = [self._lanes.take(self._key, e.lane, e.start + start, e.start + last)] if start < last else []
        if self._final and stop > e.steps:
            parts.append(self._lanes.after(self._key, e.lane, e.stop - 1, e.stop))
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return joined.reshape(len(joined), *self._shape)


def place(lanes: Lanes | LaneWindow, episode: LaneEpisode) -> str:
    """Return the place of an episode as an index of the TensorDict: ``[20:35]``, ``[20:35, 3]``, ``[3, 0:35]``."""
    lane = episode.lane
    text = ", ".join(_index(lanes, lane, *s) for s in lane.rows(episode.start, episode.stop))
    if len(lane.ends) and not lane.group:
        seen = lane.observed(episode.start, episode.start + 1)
        text += f" observed from {int(seen[0])}"
    return lane.group + text


def _index(lanes: Lanes | LaneWindow, lane: Lane, start: int, stop: int) -> str:
    batch = lanes.store.tree.batch
    if len(batch) < 2 or lanes.store.is_compact:
        return f"[{start}:{stop}]"
    others = batch[1:] if lanes.axis == 0 else batch[:-1]
    number = [str(int(i)) for i in np.unravel_index(lane.number, others)]
    return f"[{', '.join([f'{start}:{stop}', *number] if lanes.axis == 0 else [*number, f'{start}:{stop}'])}]"
