"""Compute measures of the episodes of a dataset, keep them in the home, and read them as columns."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.base import settings
from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files.locks import file_lock
from rlds_cli.base.progress import Event, Progress, shown
from rlds_cli.base.settings import StrPath
from rlds_cli.base.text import plural, size_of
from rlds_cli.base.workers import Processes, check_started, run_items
from rlds_cli.dataset import Dataset, Rows
from rlds_cli.errors import InvalidArgument, RldsError
from rlds_cli.homes import Home, writing
from rlds_cli.look.measures import cameras, catalogue, results
from rlds_cli.look.measures.blocks import Block, divided
from rlds_cli.look.measures.catalogue import Group
from rlds_cli.look.measures.results import Results
from rlds_cli.look.measures.roles import Roles
from rlds_cli.look.measures.vectors import Values, Vectors
from rlds_cli.store import Store
from rlds_cli.ted import REWARD, VIDEO

_ROLES, _OWN = "roles.json", "own.json"
_BLOCK_BYTES = 64 << 20  # of the fields that a block of episodes reads
_FRAMES_AT_ONCE = 512  # of a task of the group camera
_SMALL = 256 << 20  # bytes that one process reads sooner than others start
_TASK = "task"
SUCCESS, RETURN, STATED_RATE = "success", "total_reward", "fps"  # columns, and what a manifest says of the environment
Function = Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What is still to be computed of a group: episodes, bytes that are read for them, and frames to decode.

    ``lacking`` says which fields of the dataset the group would need; empty where it has all of them.
    """

    group: str
    episodes: int
    known: int
    bytes: int
    frames: int
    lacking: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.episodes:
            return f"{self.group}: all of {plural(self.known, 'episode')} are measured"
        frames = f"{plural(self.frames, 'frame')} are decoded" if self.frames else "no frame is decoded"
        return f"{self.group}: {plural(self.episodes, 'episode')} to measure; {size_of(self.bytes)} are read, {frames}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Own:
    """A function of a user's own, and its name."""

    function: Function
    reference: str


class StoredMeasures:
    """The measures of the episodes of a dataset that lie in the home; see `asking.Measures`."""

    def __init__(self, dataset: Dataset, *, home: StrPath | None = None) -> None:
        self.store, self.selected_by = dataset.store, dataset.selected_by
        self.index = dataset.episodes.index if dataset.is_selection else None
        self._places = results.directories(self.store, home)
        self._opened: dict[tuple[str, Path], Results] = {}
        self._named: dict[tuple[str, ...], Array] = {}  # of episodes, by fields

    @property
    def directory(self) -> Path:
        """Where new measures are kept."""
        return self._places[0]

    @cached_property
    def dataset(self) -> Dataset:
        """The whole version."""
        return Dataset(self.store)

    @cached_property
    def rows(self) -> Rows:
        """The rows of all its episodes."""
        return Rows(self.dataset)

    @cached_property
    def roles(self) -> Roles:
        """What its fields are to measures; and what is learned of them, if somebody has looked."""
        of_fields = Roles.of(self.store.fields)
        for place in self._places:
            kept = _read_json(place / _ROLES)
            try:
                found = Roles.of_json(kept)
            except (KeyError, TypeError, ValueError):
                continue
            if found.unlearned == of_fields and self._fit(found):
                return found
        return of_fields

    def _fit(self, roles: Roles) -> bool:
        """Return whether what was read of learned roles names elements that there are."""
        actions, states = (
            sum(max(1, math.prod(self.store.fields[n].shape)) for n in of) for of in (roles.actions, roles.states)
        )
        named = [(p.action, actions) for p in roles.pairs or ()] + [(p.state, states) for p in roles.pairs or ()]
        named += [(k, states) for d in roles.derivatives or () for k in (d.position, d.velocity)]
        return all(type(k) is int and 0 <= k < width for k, width in named)

    # -- reading

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the measures that were computed for all episodes, those of the user's own last."""
        return tuple(n for n in (*(m.name for m in catalogue.MEASURES), *self._own) if self._is_known(n))

    def has(self, name: str) -> bool:
        """Return whether there is a measure of this name, computed or not."""
        return any(m.name == name for m in catalogue.MEASURES) or name in self._own

    def version(self, name: str) -> int | str:
        """Return the version of a measure; of one of the user's own, the hash of its code."""
        return self._own[name]["group"].partition("-")[2] if name in self._own else catalogue.measure(name).version

    def lacks(self, name: str) -> str:
        """Return which fields the dataset would need for a measure; empty if it has them."""
        return "" if name in self._own else self._lacking.get(catalogue.measure(name).needs, "")

    @cached_property
    def _lacking(self) -> Mapping[str, str]:
        """What is not there of what measures need, in words."""
        r = self.roles
        there = {
            "stamps": r.stamp,
            "states": r.states,
            "actions": r.actions,
            "actions and states": r.actions and r.states,
            "positions and velocities": r.derivatives is None or r.derivatives,
            "joint velocities": r.velocity,
            "cameras": r.cameras,
            "two cameras": len(r.cameras) > 1,
            "task texts": (self.tasks >= 0).any(),
            "tasks and states": (self.tasks >= 0).any() and r.states,
            "success and rewards": (SUCCESS in self.store.own_columns or r.success) and REWARD in self.store.fields,
            "rewards": RETURN in self.store.episodes,
            "stamps and a stated rate": r.stamp and self._stated_rate,
            "ages of topics": r.ages,
        }
        return {needs: needs for needs, found in there.items() if not found}

    @property
    def _stated_rate(self) -> float | None:
        """Steps a second that the manifest states."""
        said = self.store.manifest.env.get(STATED_RATE)
        return float(said) if isinstance(said, int | float) and said > 0 else None

    def elements(self, name: str) -> list[str]:
        """Return what each of the columns of a measure with several is of: an element, a field or a camera."""
        r = self.roles
        if name in ("quality_saturation", "quality_frozen_element"):
            return self.elements_of(r.actions if name == "quality_saturation" else r.states)
        if name in ("quality_action_sign", "quality_follow_error"):
            every = self.elements_of(r.actions)
            pairs = [p for p in r.pairs or () if name == "quality_action_sign" or p.gain]
            return [every[p.action] for p in pairs]
        if name == "quality_age":
            return list(r.ages)
        return list(r.states if catalogue.measure(name).group == "motion" else r.cameras)

    def elements_of(self, fields: Iterable[str]) -> list[str]:
        """Return the names of the elements of some fields, end to end."""
        widths = {n: max(1, math.prod(self.store.fields[n].shape)) for n in fields}
        return [n if w == 1 else f"{n}[{i}]" for n, w in widths.items() for i in range(w)]

    def column(self, name: str) -> Array:
        """Return a measure of each episode [n]; NaN where it has no value.

        Raises
        ------
        InvalidArgument
            There is no such measure.
        RldsError
            It was not computed for all of them; the hint is the command that does it. Or the dataset lacks the fields.
        """
        if needs := self.lacks(name):
            what = f"{name} has no value in {self.store.manifest.id}, which has no {needs}."
            raise RldsError(what, hint="rlds check --list says what each measure needs")
        found = np.asarray(self.values(name), np.float64)
        if found.ndim == 2:
            over = catalogue.measure(name).over
            with np.errstate(invalid="ignore"):
                reduced = (np.fmin if over == "min" else np.fmax).reduce(found, axis=1, initial=np.nan)
            found = np.asarray(reduced)
        return np.asarray(found if self.index is None else found[self.index])

    def values(self, name: str) -> Array:
        """Return a measure of all episodes of the version [episodes], or of each element of them [episodes, n]."""
        group = self._own[name]["group"] if name in self._own else catalogue.measure(name).group
        return self._stored(name, name, group)

    def _stored(self, name: str, key: str, group: str) -> Array:
        """Return what lies in the files of a group by a key, of all episodes, for the measure ``name``."""
        found, names = self._results(group), self._names(group)
        there = found.find(names)[1]
        if not there.all():
            raise self._not_computed(name, group, int((~there).sum()))
        return found.values(key, names)

    def _not_computed(self, name: str, group: str, count: int) -> RldsError:
        """Return the error that says how a measure is computed, which ``count`` episodes lack."""
        id = self.store.address or self.store.manifest.id
        own = self._own.get(name)
        which = f"--fn {own['reference']}" if own else f"--measure {'motion' if group == 'labels' else group}"
        some = "any" if count == self.store.manifest.counts.episodes else f"{count:,} of the"
        what = f"{name} was not computed for {some} {'episode' if some == 'any' else 'episodes'} of {id}."
        return RldsError(what, hint=f"rlds check {id} {which}")

    def _is_known(self, name: str) -> bool:
        if self.lacks(name):
            return False
        group = self._own[name]["group"] if name in self._own else catalogue.measure(name).group
        of = "motion" if group == "labels" else group
        if not any(len(self._open(of, place)) for place in self._places):
            return False  # without a look at the digests, which may be at an address
        return bool(self._results(of).find(self._names(of))[1].all())

    @cached_property
    def tasks(self) -> IntArray:
        """Codes of the texts of the tasks of all episodes; -1 without one."""
        if _TASK not in self.store.own_columns:
            return np.full(self.store.manifest.counts.episodes, -1)
        texts = self.store.own_column(_TASK).scalars()
        codes = {t: k for k, t in enumerate(dict.fromkeys(t for t in texts if t))}
        return np.array([codes.get(t, -1) if t else -1 for t in texts], np.int64)

    # -- computing

    def costs(self, groups: Iterable[str]) -> tuple[Cost, ...]:
        """Return what is still to be computed of these groups; nothing is read."""
        return tuple(self._cost(g, self._missing_of(g)) for g in catalogue.groups(groups))

    def compute(
        self, groups: Iterable[str], *, jobs: int | None = None, progress: Progress | bool | None = None
    ) -> tuple[Cost, ...]:
        """Compute what is not known yet, and return what it cost; finished episodes are kept if it is interrupted.

        Parameters
        ----------
        jobs : int, optional
            Processes; 0 starts none, by default as many as there are cores where it takes long.

        Raises
        ------
        NoPermission, NoSpace
            The home cannot be written.
        """
        wanted = catalogue.groups(groups)
        if {"action", "motion"} & {*wanted} and self.roles.pairs is None:
            with self._writing():
                self._learn()
        costs = {g: self._cost(g, self._missing_of(g)) for g in wanted}
        together: dict[bytes, list[Group]] = {}  # groups of the same episodes, whose fields are read once
        for group in (g for g in wanted if costs[g].episodes and g != "labels"):
            alone = group.encode() if group == "camera" else b""
            together.setdefault(alone + self._missing_of(group).tobytes(), []).append(group)
        for some in together.values():
            with self._writing():
                size = sum(costs[g].bytes for g in some)
                self._compute(tuple(some), self._missing_of(some[0]), size, jobs, shown(progress))
        return tuple(costs.values())

    def compute_own(
        self, function: Function, reference: str, code: str, *, progress: Progress | bool | None = None
    ) -> tuple[str, ...]:
        """Compute a measure of the user's own, and return the names of its columns.

        Parameters
        ----------
        function : callable
            Of an episode, as ``ds.episode(k)`` gives it, that returns a number, or a mapping of numbers by names.
        reference : str
            The name that users write: ``my.py:grip`` makes ``quality_grip``.
        code : str
            A hash of its source: other code is another measure.

        Raises
        ------
        InvalidArgument
            It returns something else than numbers, or those of other names for some episodes.
        """
        own = _Own(function=function, reference=reference)
        tell, stem = shown(progress), f"own-{code[:16]}"
        with self._writing():
            file = Results(self.directory, stem, self._about(stem))
            names = self._names(stem)
            missing = np.flatnonzero(~file.find(names)[1])
            file.resume()
            word, columns = own.reference.rpartition(":")[2], file.measures
            length = self.store.episodes["length"][missing]
            before, total = np.cumsum(length) - length, int(length.sum())
            for done, k in zip(before.tolist(), missing.tolist(), strict=True):
                tell(Event(self.store.manifest.id, "measure", own.reference, done, total, "steps"))
                numbers = _numbers(own, word, self.dataset.episode(k), f"{self.store.manifest.id}, episode {k:,}")
                if columns and tuple(numbers) != columns:
                    of_others = f"and {', '.join(columns)} for others"
                    raise InvalidArgument(
                        f"{own.reference} gives {', '.join(numbers)} for episode {k:,}, {of_others}.",
                        hint="the same names for all episodes; float('nan') where there is no value",
                    )
                columns = tuple(numbers)
                file.add(names[k : k + 1], {n: np.array([x]) for n, x in numbers.items()})
            known = dict(self._own) | {n: {"group": stem, "reference": own.reference} for n in columns}
            safe_files.replace_text(self.directory / _OWN, json.dumps(known, indent=1))
        self._opened.clear()
        self.__dict__.pop("_own", None)
        return columns

    def _missing_of(self, group: Group) -> IntArray:
        """Return the numbers of the episodes that are not measured yet."""
        of: Group = "motion" if group == "labels" else group
        return np.flatnonzero(~self._results(of).find(self._names(of))[1])

    def _cost(self, group: Group, missing: IntArray) -> Cost:
        r, fields = self.roles, self._fields(group)
        steps = int(self.store.episodes["length"][missing].sum())
        row = sum(_row_bytes(self.store, n) for n in fields if n not in r.cameras)
        size = row * steps
        if group == "camera" and steps:
            whole = max(1, int(self.store.episodes["length"].sum()))
            size += sum(_bytes_of(self.store, n) for n in r.cameras) * steps // whole
        needs = {m.needs for m in catalogue.of_group(group)}
        return Cost(
            group=group,
            episodes=len(missing),
            known=self.store.manifest.counts.episodes - len(missing),
            bytes=size,
            frames=steps * len(r.cameras) if group == "camera" else 0,
            lacking=tuple(n for n in sorted(needs) if n in self._lacking),
        )

    def _learn(self) -> None:
        """Look which states the actions move, and which are velocities, and write it down."""
        self.roles = self.roles.learned(self.rows)
        safe_files.replace_text(self.directory / _ROLES, json.dumps(self.roles.to_json(), indent=1))
        self._opened.clear()

    def _compute(
        self, groups: tuple[Group, ...], missing: IntArray, size: int, jobs: int | None, tell: Progress
    ) -> None:
        files = {g: self._results(g, self.directory) for g in groups}
        for file in files.values():
            file.resume()
        task = _Task(self.dataset, self.roles)
        items = {k: (groups, first, stop) for k, (first, stop) in enumerate(self._divided(groups, missing))}
        count = settings.cores() if jobs is None else jobs
        large = "camera" in groups or size > _SMALL
        executor = Processes(min(count, len(items))) if count and large and len(items) > 1 else None
        id, length, done = self.store.manifest.id, self.store.episodes["length"], 0
        total = int(length[missing].sum())
        found = run_items(
            _measure, task, items, executor, id=id, name=lambda k: f"episodes from {items[k][1]:,} on", progress=tell
        )
        for k, values in found:
            _, first, stop = items[k]
            for group, file in files.items():
                file.add(self._names(group)[first:stop], values[group])
            done += int(length[first:stop].sum())
            tell(Event(id, "measure", ", ".join(groups), done, total, "steps"))
        self._opened.clear()

    def _divided(self, groups: tuple[Group, ...], missing: IntArray) -> Iterator[tuple[int, int]]:
        """Yield runs of episodes (first, stop) that are not known, of about as many rows as are read at once."""
        fields = {n for g in groups for n in self._fields(g)}.difference(self.roles.cameras)
        row = max(1, sum(_row_bytes(self.store, n) for n in fields))
        most = _FRAMES_AT_ONCE if "camera" in groups else _BLOCK_BYTES // row
        length = self.store.episodes["length"]
        for run in np.split(missing, np.flatnonzero(np.diff(missing) != 1) + 1):
            for part in divided(length[run], most):
                yield int(run[part][0]), int(run[part][-1]) + 1

    # -- files

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Hold the lock of the directory of the measures, which is made if there is none."""
        check_started()
        place = Home(self.directory.parent.parent)
        with writing(place):
            safe_files.directory(self.directory, place.root)
            with file_lock(self.directory / "lock").acquire():
                yield

    def _fields(self, group: str) -> tuple[str, ...]:
        """Return the fields that a group of measures reads."""
        return tuple(sorted(self.store.fields)) if group.startswith("own-") else self.roles.read_by(group)

    def _names(self, group: str) -> Array:
        fields = self._fields(group)
        if fields not in self._named:
            self._named[fields] = results.names_of(self.store, self.store.table.numbers, fields)
        return self._named[fields]

    def _about(self, group: str) -> dict[str, Any]:
        """Return all that the values of a group depend on beside the content of its fields."""
        fields = {n: [f.dtype, list(f.shape)] for n in self._fields(group) for f in (self.store.fields[n],)}
        versions = {m.name: m.version for m in catalogue.MEASURES if m.group == group}
        learned = self.roles.to_json() if group in ("motion", "action") else self.roles.unlearned.to_json()
        return {"group": group, "measures": versions, "fields": fields, "roles": learned}

    def _results(self, group: str, place: Path | None = None) -> Results:
        """Return the results of a group: those of a directory, or of the first that has some of all episodes."""
        names = self._names(group)
        found = list[Results]()
        for where in self._places if place is None else [place]:
            found.append(self._open(group, where))
            if found[-1].find(names)[1].all():
                return found[-1]
        return found[0]

    def _open(self, group: str, place: Path) -> Results:
        if (group, place) not in self._opened:
            self._opened[group, place] = Results(place, group, self._about(group))
        return self._opened[group, place]

    @cached_property
    def _own(self) -> Mapping[str, Mapping[str, str]]:
        """The user's own measures that were computed, by name: their groups and functions."""
        found: dict[str, Mapping[str, str]] = {}
        for place in self._places:
            kept = _read_json(place / _OWN)
            for name, of in kept.items() if isinstance(kept, dict) else ():
                if isinstance(of, dict) and all(isinstance(of.get(k), str) for k in ("group", "reference")):
                    found.setdefault(name, of)
        return found


class _Task:
    """A dataset and the roles of its fields, for the processes that measure it."""

    def __init__(self, dataset: Dataset, roles: Roles) -> None:
        self.dataset, self.roles = dataset, roles

    def __reduce__(self) -> tuple[object, ...]:
        return _Task, (self.dataset, self.roles)

    @cached_property
    def rows(self) -> Rows:
        return Rows(self.dataset)


def _measure(task: _Task, groups: tuple[Group, ...], first: int, stop: int) -> dict[Group, Values]:
    """Return the measures of groups, of episodes ``first`` up to, but without, ``stop``."""
    if "camera" in groups:
        with np.errstate(all="ignore"):
            each = [cameras.measured(task.rows, task.roles, k) for k in range(first, stop)]
        whole = {name: np.concatenate([of[name] for of in each]) for name in each[0]}
        return {"camera": whole | _nothing(whole, stop - first)}
    names = list(dict.fromkeys(n for g in groups for n in task.roles.read_by(g)))
    with np.errstate(all="ignore"):  # infinities among the values
        parts = [_of_part(Vectors(b, task.roles), groups) for b in Block(task.rows, first, stop).parts(names)]
    found = {g: {name: np.concatenate([of[g][name] for of in parts]) for name in parts[0][g]} for g in groups}
    return {g: values | _nothing(values, stop - first) for g, values in found.items()}


def _of_part(v: Vectors, groups: tuple[Group, ...]) -> dict[Group, Values]:
    return {g: {"time": v.time, "motion": v.motion, "action": v.action}[g]() for g in groups}


def _nothing(found: Values, count: int) -> Values:
    """Return a column for episodes of which nothing can be measured: that they were looked at is written down, too."""
    return {} if found else {"none": np.full(count, np.nan)}


def _numbers(own: _Own, word: str, episode: Any, where: str) -> dict[str, float]:
    """Return what a user's own function says of an episode, by names of columns."""
    try:
        given = own.function(episode)
    except Exception as e:
        raise InvalidArgument(f"{own.reference} fails for {where}: {type(e).__name__}: {e}") from e
    named = given if isinstance(given, Mapping) else {"": given}
    found = dict[str, float]()
    for name, value in named.items():
        try:
            number = float(np.asarray(value, np.float64).item())
        except (TypeError, ValueError):
            number = None
        if number is None:
            raise InvalidArgument(
                f"{own.reference} returns {type(value).__name__} for {where}.",
                hint="a number, or a mapping of numbers by name: {'grip': 0.3}",
            )
        column = f"{catalogue.PREFIX}{word}" + (f"_{name}" if name else "")
        if not column.isidentifier() or any(m.name == column for m in catalogue.MEASURES):
            raise InvalidArgument(f"{own.reference}: {column} cannot be the name of a measure.", hint="another word")
        found[column] = number
    return found


def _row_bytes(store: Store, name: str) -> int:
    f = store.fields[name]
    return int(math.prod(f.shape)) * np.dtype(f.dtype).itemsize


def _bytes_of(store: Store, name: str) -> int:
    """Return the bytes of the frames of a camera."""
    f = store.fields[name]
    if f.kind == "array":
        return _row_bytes(store, name) * store.manifest.counts.rows
    column = store.table.column(name, "films" if f.codec == VIDEO else "frames")
    return column.stop - column.first


def _read_json(path: Path) -> Any:
    try:
        with safe_files.reading(path) as file:
            return json.loads(file.read())
    except (OSError, ValueError, RldsError):
        return {}
