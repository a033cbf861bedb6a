"""Split the items that users pass to `create` into trajectories.

An item is one episode, or holds several: the batch of a collector, a window of whole episodes, a slice of a dataset.
Trajectories in an item are separated by, in this order::

    mask                     [B, L]        each row is one, of the steps where it is True
    shape of the flags       [E, T, 1]     rows are environments, or windows
    collector/traj_ids       [T] or [E, T] where the number changes; continues in the next item with the same number
    episode                  [T]           where the number changes
    next/done                [T, 1]        behind each step that is done, unless the observations continue there

``next/observed`` (False: the next observation is a filler) is used and not kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from rlds_cli.base.array_types import BoolArray, IntArray
from rlds_cli.dataset import Batch
from rlds_cli.dataset.provenance import EpisodeOrigin
from rlds_cli.errors import InvalidEpisode
from rlds_cli.store import split_columns
from rlds_cli.ted import FLAGS, Flat, Scalar, Value, flatten, parts_of

OBSERVED, DONE, EPISODE, MASK = "next/observed", "next/done", "episode", "mask"
_IDS, _MASKS = "collector/traj_ids", ("collector/mask", MASK)
_FLAGS = (DONE, *FLAGS, "done", "terminated", "truncated")


@dataclass(slots=True)
class Trajectory:
    """One episode: its fields and facts.

    ``both`` are fields known at both ends of a step although the final row is missing; ``observed`` is then False.
    ``origin`` is its episode in a dataset. ``id`` is the number that a collector gave it; ``open`` is True if it may
    continue in the next batch. ``number`` is its value in the field ``episode``, if it is the last one of a slice;
    ``unnumbered`` is True if a batch has no such field.
    """

    name: str
    flat: Flat
    about: dict[str, Scalar] = field(default_factory=dict)
    both: frozenset[str] = frozenset()
    observed: bool = True
    origin: EpisodeOrigin | None = None
    id: int | None = None
    open: bool = False
    number: int | None = None
    unnumbered: bool = False


def trajectories(items: Iterable[Any]) -> Iterator[Trajectory]:
    """Yield the trajectories of ``items`` in order. Unfinished ones of a collector wait for its next batch.

    Raises
    ------
    InvalidEpisode
        An item is not a mapping, or holds several trajectories that cannot be separated.
    """
    stream = TrajectoryStream()
    yield from stream.read(items)
    yield from stream.rest()


class TrajectoryStream:
    """Trajectories of items that come in several calls; those of a collector continue from call to call.

    Attributes
    ----------
    waiting : dict of int to Trajectory
        Unfinished trajectories of a collector by their numbers.
    """

    def __init__(self) -> None:
        self.waiting: dict[int, Trajectory] = {}
        self._count = self._items = 0

    def read(self, items: Iterable[Any]) -> Iterator[Trajectory]:
        """Yield the trajectories of ``items``, but for those that wait; raises as `trajectories`."""
        last: Trajectory | None = None  # of the previous item; the first one of this item may continue it
        for item in items:
            name = f"episode {self._count}"
            going_on: dict[int, Trajectory] = {}
            numbered = False
            for found in _of_item(item, name if self._count == self._items else f"{name} (item {self._items})"):
                numbered |= found.id is not None
                if last is not None:
                    rest, found = _follow(last, found)
                    yield from map(_complete, rest)
                    last = None
                if found.open and (found.number is not None or found.unnumbered):
                    last = found
                    continue
                before = self.waiting.pop(found.id, None) if found.id is not None else None
                if before is not None and _goes_on(before.flat, found.flat):
                    found = _joined(before, found)
                elif before is not None:
                    yield _complete(before)
                if found.id is not None and found.open:
                    going_on[found.id] = found
                else:
                    yield _complete(found)
                self._count += 1
            self._items += 1
            if numbered:  # another batch of the collector: those that it has no more of are complete
                yield from self.rest()
            self.waiting |= going_on
        yield from map(_complete, [last] if last is not None else [])

    def rest(self) -> Iterator[Trajectory]:
        """Yield the trajectories that wait, as they are."""
        waiting, self.waiting = self.waiting, {}
        yield from map(_complete, waiting.values())


def completed(t: Trajectory) -> Trajectory:
    """Return a trajectory that waits, as it would be if it did not continue."""
    return _complete(replace(t, flat=dict(t.flat)))


def _follow(last: Trajectory, found: Trajectory) -> tuple[list[Trajectory], Trajectory]:
    """Join ``found`` to ``last`` if it continues the episode; returns complete trajectories and the current one."""
    same = last.number == found.number and last.unnumbered == found.unnumbered
    if not (same and _observed_at_both(last.flat) and _goes_on(last.flat, found.flat)):
        return [last], found
    if found.unnumbered:
        raise InvalidEpisode(
            f"{found.name} continues the previous batch: batches of transitions are not episodes.",
            hint="of a Loader, window=Episode() gives whole episodes, with their ends; of a dataset, ds.episode(k)",
        )
    return [], _joined(last, found)


def _observed_at_both(flat: Flat) -> bool:
    return any(f"next/{n}" in flat for n in parts_of(flat, "observation"))


def _of_item(item: Any, name: str) -> Iterator[Trajectory]:
    if not hasattr(item, "items"):
        raise InvalidEpisode(f"{name} is a {type(item).__name__}; a mapping of fields is needed.")
    origin = item.origin if isinstance(item, Batch) else None
    if origin is not None and any(n.partition("/")[0] == EPISODE for n in origin.store.fields):
        yield Trajectory(name, flatten(item, name), origin=origin)  # a dataset with a field of this name
        return
    fields, about = split_columns(item, name)
    flat = flatten(fields, name)
    if origin is not None:
        yield Trajectory(name, flat, about, origin=origin)
        return
    lead = _leading(flat, item)
    if len(lead) < 2:
        yield from _pieces(flat, about, item, name)
        return
    if len(lead) > 2:
        raise InvalidEpisode(f"{name} has flags of shape {list(lead)}; [T] or [rows, T] is needed.")
    mask = next((key for key in _MASKS if key in flat and _shape(flat[key])[:2] == lead), None)
    for row in range(lead[0]):
        where = f"{name}, row {row}"
        one = _row(flat, row, lead, mask, where)
        if mask or isinstance(item, Batch):  # a window does not go beyond its episode
            origin = item.origins[row] if isinstance(item, Batch) and item.origins is not None else None
            one = {key: v for key, v in one.items() if key not in (_IDS, EPISODE)}
            yield Trajectory(where, one, about, origin=origin if origin and origin.is_held_by(one) else None)
        else:
            yield from _pieces(one, about, item, where)


# -- rows of [E, T, ...]


def _shape(values: Any) -> tuple[int, ...]:
    return values.shape if isinstance(values, np.ndarray) else (len(values),)


def _leading(flat: Flat, item: Any) -> tuple[int, ...]:
    """Return the shape of the steps: [T] or [E, T]; [] if no field tells."""
    size = tuple(getattr(item, "batch_size", ()))
    if len(size) > 1:
        return size
    for name in (*_FLAGS, _IDS, *_MASKS):
        value = flat.get(name)
        if isinstance(value, np.ndarray) and value.ndim:
            return value.shape[:-1] if value.ndim > 1 and value.shape[-1] == 1 else value.shape
    return ()


def _row(flat: Flat, row: int, lead: tuple[int, ...], mask: str | None, where: str) -> Flat:
    """Return one row of all fields, without masked steps."""
    for key, value in flat.items():
        if key != EPISODE and _shape(value)[:2] != lead:
            shape = list(_shape(value))
            raise InvalidEpisode(
                f"{where}: {key} has shape {shape}; [{lead[0]}, {lead[1]}, ...] expected, as the flags are "
                f"[{lead[0]}, {lead[1]}].",
                hint='flags of each agent belong to their group, "next": {"agents": {"terminated": [T, agents]}}, '
                'beside those of the episode, "next": {"terminated": [T]}',
            )
    steps = np.arange(lead[1]) if mask is None else np.flatnonzero(np.asarray(flat[mask])[row])
    if len(steps) and steps[-1] - steps[0] + 1 != len(steps):
        raise InvalidEpisode(f"{where}: {mask} masks steps in the middle of an episode.")
    a, b = (int(steps[0]), int(steps[-1]) + 1) if len(steps) else (0, 0)
    chosen = {key: np.asarray(v)[row][a:b] for key, v in flat.items() if key not in (mask, EPISODE)}
    return {key: v.tolist() if v.dtype == object else v for key, v in chosen.items()}


# -- one row of [T, ...]


def _pieces(flat: Flat, about: dict[str, Scalar], item: Any, name: str) -> Iterator[Trajectory]:
    """Yield the trajectories of one row; a collector may continue the last one."""
    ids, key = _ids(flat)
    steps = _steps(flat)
    fields = {n: v for n, v in flat.items() if n != key}
    if ids is None:
        begins = _begins_after_done(fields, item, name, steps)
    else:
        _check_ids(ids, name)
        begins = np.flatnonzero(ids[1:] != ids[:-1]) + 1
    for k, (a, b) in enumerate(pairwise([0, *begins.tolist(), steps])):
        where = f"{name}, trajectory {k}" if k else name
        piece = {n: _between(v, a, b, steps, f"{where}: {n}") for n, v in fields.items()} if len(begins) else fields
        id = int(ids[a]) if ids is not None and key == _IDS and b > a else None
        is_open = b == steps and not _done(piece, b - a)[-1:].any()
        number = int(ids[a]) if ids is not None and key == EPISODE and b > a else None
        unnumbered = ids is None and isinstance(item, Batch)
        yield Trajectory(where, piece, about, id=id, open=is_open, number=number, unnumbered=unnumbered)


def _between(values: Value, a: int, b: int, steps: int, what: str) -> Value:
    """Return rows a to b of a field."""
    if not isinstance(values, np.ndarray | list) or not _shape(values) or len(values) != steps:
        rows = "no rows" if not _shape(values) else f"{len(values)} rows"
        raise InvalidEpisode(f"{what} has {rows}; {steps} are needed, since there are several trajectories.")
    return values[a:b]


def _ids(flat: Flat) -> tuple[IntArray | None, str]:
    """Return the trajectory number of each step, and the field that holds it."""
    for key in (_IDS, EPISODE):
        value = flat.get(key)
        if isinstance(value, np.ndarray) and value.ndim and value.size == len(value):
            return value.reshape(-1), key
    return None, ""


def _check_ids(ids: IntArray, name: str) -> None:
    starts = ids[np.concatenate([[True], ids[1:] != ids[:-1]])] if len(ids) else ids
    numbers, times = np.unique(starts, return_counts=True)
    if (times > 1).any():
        raise InvalidEpisode(
            f"{name}: trajectory {numbers[np.argmax(times)]} continues after another one.",
            hint="steps must be in the order of their trajectories; of a Loader, window=Episode() gives whole ones",
        )


def _steps(flat: Flat) -> int:
    """Return T from a flag, an id or an action; 0 if none has rows."""
    for name in (*_FLAGS, _IDS, "action", "next/reward", *parts_of(flat, "action")):
        value = flat.get(name)
        if value is not None and _shape(value):
            return len(value)
    return max((len(v) for v in flat.values() if not isinstance(v, np.ndarray) or v.ndim), default=0)


def _begins_after_done(flat: Flat, item: Any, name: str, steps: int) -> IntArray:
    """Return where trajectories begin after steps that are done; refuses breaks that no flag marks."""
    pairs = _pairs(flat, steps)
    if not steps or not (pairs or hasattr(item, "batch_size")):
        return np.zeros(0, np.int64)  # one episode: next observations are the observations of the next rows
    done = _done(flat, steps)[:-1]
    breaks = np.ones(steps - 1, bool)
    if pairs:
        breaks = ~np.logical_and.reduce([_continuous(a, b) for a, b in pairs])
        _check_breaks(breaks & ~done, name, always=isinstance(item, Batch))
    return np.asarray(np.flatnonzero(done & (breaks | _flag(flat, FLAGS[1], steps)[:-1])) + 1, np.int64)


def _check_breaks(breaks: BoolArray, name: str, *, always: bool) -> None:
    """Refuse steps whose next observation differs from the next row, unless that is so for most steps."""
    if breaks.any() and (always or 2 * breaks.sum() < len(breaks)):
        step = int(np.argmax(breaks))
        raise InvalidEpisode(
            f"{name}: the observation of step {step + 1} is not the next observation of step {step}, and no flag "
            "marks the end of an episode.",
            hint="give one episode at a time, or mark their ends: next/terminated, next/truncated; of a Loader, "
            "window=Episode() gives whole ones",
        )


def _pairs(flat: Flat, steps: int) -> list[tuple[Value, Value]]:
    """Return pairs of observations and next observations with a row per step each."""
    names = [n for n in parts_of(flat, "observation") if f"next/{n}" in flat]
    found = [(flat[n], flat[f"next/{n}"]) for n in names]
    return [(a, b) for a, b in found if len(a) == len(b) == steps and steps]


def _continuous(root: Any, after: Any) -> BoolArray:
    """Return for each step but the last whether its next observation is that of the next step [T-1]."""
    root, after = (np.asarray(x, object if isinstance(x, list) else None) for x in (root, after))
    a, b = root[1:], after[:-1]
    if a.shape != b.shape:
        return np.zeros(len(a), bool)
    same = a == b
    if a.dtype.kind in "fc":
        same = same | ((a != a) & (b != b))
    return np.asarray(same.reshape(len(a), -1).all(1), bool) if len(a) else np.zeros(0, bool)


def _flag(flat: Flat, name: str, steps: int) -> BoolArray:
    value = flat.get(name)
    if not isinstance(value, np.ndarray) or value.size != steps or value.ndim == 0:
        return np.zeros(steps, bool)
    return value.reshape(steps).astype(bool)


def _done(flat: Flat, steps: int) -> BoolArray:
    return np.asarray(np.logical_or.reduce([_flag(flat, name, steps) for name in (DONE, *FLAGS)]))


# -- trajectories that continue


def _goes_on(before: Flat, after: Flat) -> bool:
    """Return whether ``after`` begins where ``before`` ended, by their observations."""
    names = [n for n in parts_of(before, "observation") if f"next/{n}" in before]
    return set(before) == set(after) and all(
        bool(_continuous(_ends(after[n], 0), _ends(before[f"next/{n}"], -1)).all()) for n in names
    )


def _ends(values: Any, row: int) -> Any:
    """Return one row twice, as a pair of successive rows."""
    return np.asarray([values[row]] * 2)


def _joined(before: Trajectory, after: Trajectory) -> Trajectory:
    flat = {n: _concatenated(before.flat[n], value) for n, value in after.flat.items()}
    return Trajectory(before.name, flat, before.about | after.about, id=after.id, open=after.open, number=after.number)


def _concatenated(a: Value, b: Value) -> Value:
    return [*a, *b] if isinstance(a, list) and isinstance(b, list) else np.concatenate([np.asarray(a), np.asarray(b)])


# -- an unknown final observation


def _complete(t: Trajectory) -> Trajectory:
    """Remove the filler of a final observation that is unknown by ``next/observed``."""
    observed = t.flat.pop(OBSERVED, None)
    if observed is None or not isinstance(observed, np.ndarray) or not observed.size:
        return t
    known = np.asarray(observed).reshape(-1).astype(bool)
    if not known[:-1].all():
        step = int(np.argmin(known))
        raise InvalidEpisode(
            f"{t.name}: next/observed is False at step {step} of {len(known)}; only the last may be unknown."
        )
    if known[-1]:
        return t
    filled = {n for n in t.flat if n not in _FLAGS and _is_filled(t.flat, n, len(known))}
    flat = {
        n: value for n, value in t.flat.items() if not (n.startswith("next/") and n.removeprefix("next/") in filled)
    }
    return Trajectory(t.name, flat, t.about, frozenset(filled), False, t.origin, t.id)


def _is_filled(flat: Flat, name: str, steps: int) -> bool:
    """Return whether ``next/name`` is ``name`` shifted by one row, with a filler at the end."""
    after = flat.get(f"next/{name}")
    if after is None or len(after) != steps or len(flat[name]) != steps:
        return False
    return bool(_continuous(flat[name], after).all())
