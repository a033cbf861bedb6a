"""Read the episodes of a TensorDict: each observation once, and the final one where it was recorded.

The next observation of a last step is no final observation in two cases. It is a filler where all of its values are
zero and those of the observation before are not: TorchRL's converters write zeros there. And it belongs to the next
episode where no end is flagged and it is the observation of the row after. Single numbers are always taken as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlds_cli.archives.pieces import Slices, Whole
from rlds_cli.archives.torchrl.boundaries import Episode, KeyRoles, equal, is_set
from rlds_cli.archives.torchrl.lanes import Lane, Lanes, Window, block_steps
from rlds_cli.ted import CUT, FLAGS, TERMINATED, TRUNCATED, Array, BoolArray, Field, Note, Text


class NextValuesDiffer(Exception):
    """Next values of ``keys`` differ from the rows after at most steps."""

    def __init__(self, keys: Sequence[str]) -> None:
        super().__init__(keys)
        self.keys = tuple(keys)


@dataclass(frozen=True, slots=True)
class Reading:
    """How the episodes of one TensorDict are read.

    ``keys`` maps fields to keys, ``compared`` are the keys whose next values are compared with the rows after, and
    ``max_cuts`` says how many steps may differ. With ``forgiving``, zeros inside an episode are fillers, no ends.
    """

    lanes: Lanes | Window
    roles: KeyRoles
    fields: Sequence[Field]
    keys: Mapping[str, str]
    compared: tuple[str, ...]
    source: int
    max_cuts: int
    forgiving: bool


def wholes(how: Reading, episodes: Sequence[Episode]) -> Iterator[Whole]:
    """Read the episodes; they are divided where a next observation is not the observation of the row after.

    Raises
    ------
    NextValuesDiffer
        That happens at more than ``max_cuts`` steps, or to values that are no observations.
    """
    cuts = 0
    for window, group in _groups(how, episodes):
        for episode in group:
            pieces = _pieces(window, episode)
            cuts += len(pieces) - 1
            if cuts > how.max_cuts:
                raise NextValuesDiffer([k for k in how.compared if k in how.roles.observations])
            for number, piece in enumerate(pieces):
                yield _whole(window, piece, unflagged=number < len(pieces) - 1)


def _groups(how: Reading, episodes: Sequence[Episode]) -> Iterator[tuple[Reading, list[Episode]]]:
    """Group short episodes that follow each other in a lane, to read them together; others are read alone."""
    lanes = how.lanes
    assert isinstance(lanes, Lanes)
    size, group = block_steps(lanes, [*lanes.keys]), list[Episode]()

    def whole() -> tuple[Reading, list[Episode]]:
        if len(group) == 1:
            return how, group
        return replace(how, lanes=Window(lanes, group[0].lane, group[0].runs[0][0], group[-1].runs[-1][1])), group

    for e in episodes:
        follows = group and e.lane is group[0].lane and len(e.runs) == 1 and e.runs[0][0] == group[-1].runs[-1][1]
        if group and not (follows and e.runs[0][1] - group[0].runs[0][0] <= size):
            yield whole()
            group = []
        group.append(e)
    if group:
        yield whole()


def mismatches(how: Reading, episode: Episode, most: int) -> dict[str, int]:
    """Count, for each compared key, those of the first ``most`` steps whose next value is not that of the row after."""
    counts = dict.fromkeys(how.compared, 0)
    for a, b in episode.runs:
        stop = min(b, a + most) - 1
        if stop <= a:
            continue
        filler = _is_filler(how, episode.lane, a, stop)
        for key in how.compared:
            counts[key] += int(np.count_nonzero(_differs(how.lanes, key, episode.lane, a, stop) & ~filler))
    return counts


def _pieces(how: Reading, episode: Episode) -> list[Episode]:
    if not how.compared:
        return [episode]
    size = block_steps(how.lanes, [*how.compared, *how.compared])
    blocks = [(s, min(s + size, b - 1)) for a, b in episode.runs for s in range(a, b - 1, size)]
    marks = [p + 1 for block in blocks for p in _breaks(how, episode.lane, *block)]
    pieces: list[Episode] = []
    runs: list[tuple[int, int]] = []
    for a, b in episode.runs:
        for mark in (m for m in marks if a < m < b):
            pieces.append(Episode(episode.lane, [*runs, (a, mark)]))
            runs, a = [], mark
        runs.append((a, b))
    return [*pieces, Episode(episode.lane, runs)]


def _breaks(how: Reading, lane: Lane, start: int, stop: int) -> list[int]:
    """Positions whose next observation is not the observation of the position after."""
    broken = np.zeros(stop - start, bool)
    filler = _is_filler(how, lane, start, stop) if how.forgiving else broken.copy()
    for key in how.compared:
        if key in how.roles.observations:
            broken |= _differs(how.lanes, key, lane, start, stop) & ~filler
    for key in how.compared:
        if key not in how.roles.observations and (
            (_differs(how.lanes, key, lane, start, stop) & ~broken & ~filler).any()
        ):
            raise NextValuesDiffer([key])
    return [start + int(i) for i in np.flatnonzero(broken)]


def _differs(lanes: Lanes | Window, key: str, lane: Lane, start: int, stop: int) -> BoolArray:
    return ~equal(lanes.after(key, lane, start, stop), lanes.take(key, lane, start + 1, stop + 1))


def _is_filler(how: Reading, lane: Lane, start: int, stop: int) -> BoolArray:
    """Which steps have a next observation of zeros, and an observation that is not zero."""
    names = [n for n in how.roles.observations if not how.lanes.keys[n].observed]
    if sum(how.lanes.keys[n].row_bytes // np.dtype(how.lanes.keys[n].dtype).itemsize for n in names) < 2:
        return np.zeros(stop - start, bool)
    after = [how.lanes.after(n, lane, start, stop) for n in names]
    now = [how.lanes.take(n, lane, start, stop) for n in names]
    zero = np.all([~x.reshape(len(x), -1).any(axis=1) for x in after], axis=0)
    return np.asarray(zero & np.any([x.reshape(len(x), -1).any(axis=1) for x in now], axis=0))


def _whole(how: Reading, episode: Episode, *, unflagged: bool) -> Whole:
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
    columns: dict[str, Array | Text | Slices] = {FLAGS[0]: terminated, FLAGS[1]: last}
    for f in how.fields:
        if f.name not in columns:
            columns[f.name] = _column(how, f, episode, observed=observed)
    first = next(episode.lane.rows(*episode.runs[0]))[0]
    return Whole(columns, length, end, observed, how.source, place(how.lanes, episode), notes=tuple(notes), row=first)


def _column(how: Reading, f: Field, episode: Episode, *, observed: bool) -> Slices | Text:
    final = observed and f.placement == "both"
    steps = Steps(how.lanes, how.keys[f.name], episode, f.shape, final=final)
    return steps.cut(0, len(steps)).tolist() if f.kind == "text" else steps


def _flags(how: Reading, episode: Episode) -> tuple[BoolArray, BoolArray, bool]:
    """Terminated and truncated of every step, and whether the last is done."""

    def read(key: str | None) -> BoolArray:
        if key is None:
            return np.zeros(episode.steps, bool)
        return is_set(Steps(how.lanes, key, episode, ()).cut(0, episode.steps))

    roles = how.roles
    done, terminated, truncated = read(roles.done), read(roles.terminated), read(roles.truncated)
    if roles.terminated is None:
        terminated = done & ~truncated
    return terminated, truncated, bool(done[-1] | terminated[-1] | truncated[-1])


def _final(how: Reading, episode: Episode, *, done: bool) -> tuple[bool, list[Note]]:
    """Whether the final observation is recorded, and notes that say why not."""
    lane, last = episode.lane, episode.runs[-1][1] - 1
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


def _note(how: Reading, episode: Episode, code: str, text: str) -> Note:
    return Note(code, text, 1, f"{how.lanes.store.name}{place(how.lanes, episode)}")


class Steps(Slices):
    """A column of an episode, read from its lane on demand."""

    def __init__(
        self, lanes: Lanes | Window, key: str, episode: Episode, shape: tuple[int, ...], *, final: bool = False
    ) -> None:
        self._lanes, self._key, self._episode = lanes, key, episode
        self._shape, self._final = shape, final
        self._rows = episode.steps + final
        self._bytes = self._rows * lanes.keys[key].row_bytes

    def __len__(self) -> int:
        return self._rows

    @property
    def nbytes(self) -> int:
        """About how many bytes all rows take in memory."""
        return self._bytes

    def cut(self, start: int, stop: int) -> Array:
        """Rows [start, stop)."""
        lane, at, parts = self._episode.lane, 0, []
        for a, b in self._episode.runs:
            first, last = max(start, at), min(stop, at + b - a)
            if first < last:
                parts.append(self._lanes.take(self._key, lane, a + first - at, a + last - at))
            at += b - a
        if self._final and stop > at:
            last = self._episode.runs[-1][1]
            parts.append(self._lanes.after(self._key, lane, last - 1, last))
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return joined.reshape(len(joined), *self._shape)


def place(lanes: Lanes | Window, episode: Episode) -> str:
    """Where an episode is, as an index of the TensorDict: ``[20:35]``, ``[20:35, 3]``, ``[3, 0:35]``."""
    lane = episode.lane
    spans = [s for a, b in episode.runs for s in lane.rows(a, b)]
    text = ", ".join(_index(lanes, lane, *s) for s in _merged(spans))
    if len(lane.ends) and not lane.group:
        seen = lane.observed(episode.runs[0][0], episode.runs[0][0] + 1)
        text += f" observed from {int(seen[0])}"
    return lane.group + text


def _index(lanes: Lanes | Window, lane: Lane, start: int, stop: int) -> str:
    batch = lanes.store.tree.batch
    if len(batch) < 2 or lanes.store.is_compact:
        return f"[{start}:{stop}]"
    others = batch[1:] if lanes.axis == 0 else batch[:-1]
    number = [str(int(i)) for i in np.unravel_index(lane.number, others)]
    return f"[{', '.join([f'{start}:{stop}', *number] if lanes.axis == 0 else [*number, f'{start}:{stop}'])}]"


def _merged(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for a, b in spans:
        if merged and merged[-1][1] == a:
            merged[-1] = (merged[-1][0], b)
        else:
            merged.append((a, b))
    return merged
