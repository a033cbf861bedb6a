"""Describe the episodes of a file of a user that holds one, or one in each HDF5 group, and read how they end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.archives import once
from rlds_cli.archives.account import (
    COLUMN,
    ENDS,
    METADATA,
    NO_STEPS,
    NOT_ALL,
    Fate,
    fates_of,
    left_out,
    used_as,
)
from rlds_cli.archives.flat_rows import differs, is_set
from rlds_cli.archives.formats.tables import MISSING, Table, TableRows, TableSource, made_of, open_flat
from rlds_cli.archives.names import (
    EPISODE_PREFIX,
    NEXT_OBSERVATION,
    Meaning,
    check_key,
    check_numbers,
    chosen_of,
    flags_of,
    free_name,
    has_essentials,
    is_observation,
    meaning,
    row_field,
)
from rlds_cli.archives.plain import accounting, arriving, cameras, lacking
from rlds_cli.archives.plain.boundaries import is_count, signed
from rlds_cli.archives.plain.lacking import Lacking
from rlds_cli.archives.plain.survey import ended, groups_of, is_pattern
from rlds_cli.archives.readers import ARRIVE, Archive
from rlds_cli.archives.tasks import episode_column
from rlds_cli.base.array_types import Array
from rlds_cli.base.text import is_below
from rlds_cli.errors import UnknownLayout
from rlds_cli.ted import FLAGS, REWARD, Field, Note, Scalar

MAX_METADATA = 64 << 20


class _GroupSource:
    """Some columns of a source, under other names."""

    def __init__(self, source: TableSource, names: Mapping[str, str]) -> None:
        self._source, self._names = source, names

    def rows(self, names: Collection[str]) -> TableRows:
        return _RenamedRows(self._source.rows([self._names[n] for n in names]), {self._names[n]: n for n in names})

    def array(self, name: str, *, most: int = MAX_METADATA) -> Array:
        return self._source.array(self._names[name], most=most)


class _RenamedRows:
    def __init__(self, rows: TableRows, names: Mapping[str, str]) -> None:
        self._rows, self._names = rows, names

    def __enter__(self) -> _RenamedRows:
        self._rows.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._rows.__exit__(*exc)

    def read(self, start: int, stop: int) -> dict[str, Array]:
        return {self._names[k]: v for k, v in self._rows.read(start, stop).items()}


@dataclass(slots=True)
class GroupEpisode:
    """One episode of a file, as its headers describe it.

    ``keys`` maps fields to columns, ``next_keys`` next observations, ``once`` the columns of the episode table;
    ``others`` are columns kept as metadata, ``used`` the attributes that columns are made of. ``trimmed``: the last row
    of the actions is not a step, but the row of the final observation. ``rewards`` is as in `Archive`. ``videos`` are
    the rules by which frames belong to rows.
    """

    group: str
    table: Table
    meaning: Meaning
    length: int
    keys: dict[str, str]
    next_keys: dict[str, str]
    once: dict[str, str]
    done: str | None = None
    others: tuple[str, ...] = ()
    attributes: dict[str, Scalar] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    trimmed: bool = False
    rewards: str | None = None
    videos: Mapping[str, str] = field(default_factory=dict)
    odd: dict[str, Lacking] = field(default_factory=dict)  # fields that have too few or too many rows

    def late(self, name: str) -> int:
        """Return the rows between an action and its result in a column."""
        return int(self.rewards == ARRIVE and arriving.is_late(name))

    def steps(self, name: str) -> slice:
        """Return the rows of a column that belong to steps; all rows of a field that is known at both ends."""
        if name.startswith("next/") or is_below(name, "action"):
            return slice(self.late(name), self.length + self.late(name))
        return slice(None)

    @property
    def where(self) -> str:
        """The name of the episode in messages."""
        return f"{self.group} of {self.table.path.name}" if self.group else self.table.path.name

    def fates(self) -> dict[str, Fate]:
        """State the fate of the columns of the file that are those of the episode."""
        names = {**self.keys, **self.next_keys, **{COLUMN + n: key for n, key in self.once.items()}}
        what = self.meaning
        marks = (what.ids, what.steps, what.starts, what.lasts, self.done)
        there = self.table.stored
        fates = {key: used_as(ENDS) for mark in marks if mark for key in made_of(mark, there)}
        fates |= {key: left_out(accounting.ROOT_FLAGS) for key in what.ignored}
        fates |= {one.key: left_out(NOT_ALL) for one in self.odd.values()}
        for key in self.others:
            kept = self.table[key].nbytes <= MAX_METADATA
            fates[key] = used_as(METADATA) if kept else left_out(accounting.TOO_LARGE)
        fates |= fates_of(names, there) if self.length else dict.fromkeys(fates_of(names, there), left_out(NO_STEPS))
        return {f"{self.group}/{key}" if self.group else key: fate for key, fate in fates.items()}

    def fields(self) -> dict[str, Field]:
        """Describe the fields by name; a column with one row more than there are steps is placed ``both``."""
        made = {}
        for name, key in self.keys.items():
            if name in FLAGS:
                continue
            c = self.table[key]
            f = row_field(name, c, scalar=name == REWARD)
            longer = c.shape[0] == self.length + 1 and f.placement == "root" and not is_below(name, "action")
            made[name] = replace(f, placement="both") if longer else f
        return made


@contextmanager
def open_episodes(path: Path, archive: Archive) -> Iterator[Iterator[GroupEpisode]]:
    """Open a file and iterate over its episodes."""
    with open_flat(path, fill=True) as table:
        yield episodes_of(table, archive)


def episodes_of(table: Table, archive: Archive) -> Iterator[GroupEpisode]:
    """Iterate over the episodes of a file."""
    chosen, rewards = archive.fields, archive.rewards
    found = groups_of(table, chosen)
    if found is None:
        yield _episode(table, "", chosen_of(archive, table.columns), rewards, once.of_attributes(table))
        return
    level, groups = found
    local = {k: _local(v, level) for k, v in chosen.items()}
    for g, names in groups.items():
        sub = _sub(table, names)
        yield _episode(sub, g, chosen_of(archive, sub.columns, local), rewards, once.of_attributes(table, g))


def _local(key: str, level: str) -> str:
    """Make a key of the user's relative to its group."""
    above = level.removesuffix("*")
    parts = key.strip("/").removeprefix(above).split("/")
    return "/".join(parts[1:]) if is_pattern(key) else key


def _sub(table: Table, names: Mapping[str, str]) -> Table:
    columns = {local: replace(table[name], name=local) for local, name in names.items()}
    return Table(table.path, _GroupSource(table.source, names), columns)


def _episode(table: Table, group: str, chosen: Mapping[str, str], rewards: str | None, said: once.Once) -> GroupEpisode:
    name = f"{group} of {table.path.name}" if group else table.path.name
    what = meaning(table.columns, {k: v for k, v in chosen.items() if not k.startswith(EPISODE_PREFIX)}, name)
    if not has_essentials(what):
        missing = "action" if any(is_observation(n) for n in what.fields) else "observation"
        raise UnknownLayout(
            f'{name} has no column with a known name for "{missing}". It holds {", ".join(table.columns)}.',
            hint=f"name the column: --map {missing}='GROUPS/*/KEY'"
            if group
            else f"name the column: --map {missing}=KEY",
        )
    if rewards == ARRIVE:
        what = arriving.with_time_steps(what, table)
    fields, done = flags_of(what)
    table.derive([*fields.values(), *(k for k in (what.starts, what.lasts) if k is not None)])
    check_numbers(table, fields)
    table.hidden.update(what.ignored, [done] if done else [])
    following = {n: k for n, k in fields.items() if is_below(n, NEXT_OBSERVATION)}
    for name_of_column, key in chosen.items():
        if name_of_column.startswith(EPISODE_PREFIX):
            check_key(table.columns, key, name)
    rows = _length(table, fields, name)
    videos = cameras.fit(table, fields, rows, name, final=True)
    trimmed = _is_trimmed(table, fields, rows, rewards)
    found = GroupEpisode(
        group=group,
        table=table,
        meaning=what,
        length=rows - trimmed,
        keys={n: k for n, k in fields.items() if n not in following},
        next_keys=following,
        once={k.removeprefix(EPISODE_PREFIX): v for k, v in chosen.items() if k.startswith(EPISODE_PREFIX)},
        done=done,
        trimmed=trimmed,
        rewards=rewards,
        videos=videos,
    )
    _sort_others(found, {*fields.values(), *what.fields.values()})
    found.attributes |= {name: value for name, value in said.columns.items() if name not in found.once}
    found.used |= {said.keys[name] for name in found.attributes}
    _check_rows(found)
    return found


def _length(table: Table, fields: Mapping[str, str], name: str) -> int:
    shapes = {k: table[k].shape for n, k in fields.items() if is_below(n, "action")}
    if len({s[:1] for s in shapes.values()}) != 1 or () in shapes.values():
        raise UnknownLayout(f"{name}: actions have different numbers of rows, or none: {shapes}.")
    return next(iter(shapes.values()))[0]


def _is_trimmed(table: Table, fields: Mapping[str, str], rows: int, rewards: str | None) -> bool:
    """Tell whether the last row of the actions is that of the final observation: it has no action, or no reward."""
    observed = {table[k].shape[:1] for n, k in fields.items() if is_observation(n)}
    if observed != {(rows,)} or not rows:
        return False
    actions = [k for n, k in fields.items() if is_below(n, "action")]
    if rewards == ARRIVE or any(table[k].dtype.kind not in "fc" for k in actions):
        return rewards == ARRIVE
    missing = [MISSING + k for k in actions]
    table.derive(missing)
    with table.rows(missing) as reader:
        return all(values.all() for values in reader.read(rows - 1, rows).values())


def _sort_others(e: GroupEpisode, claimed: set[str]) -> None:
    """Make other columns fields, columns of the episode table or metadata, by how many rows they have."""
    known = {*claimed, *e.once.values(), *(i for k in claimed for i in e.table.made_of(k))}
    others = []
    for key, c in e.table.own.items():
        if key in known:
            continue
        if c.shape[:1] in ((e.length,), (e.length + 1,)) and not (c.shape == (1,) and e.length != 1):
            e.keys[free_name(key, {*e.keys, *FLAGS, NEXT_OBSERVATION})] = key
        elif c.shape in ((), (1,)) and c.dtype.kind in "biufO":
            e.once[episode_column(key)] = key
        else:
            others.append(key)
    e.others = tuple(others)


def _check_rows(e: GroupEpisode) -> None:
    """Take out the fields that have too few or too many rows, and say why; raises UnknownLayout for a needed one."""
    for name, key in [*e.keys.items()]:
        rows = e.table[key].shape[0] if e.table[key].shape else None
        both = not name.startswith("next/") and not is_below(name, "action")
        allowed: set[int | None] = {e.length + 1} if e.late(name) else {e.length}
        allowed |= {e.length, e.length + 1} if both else {e.length + 1} if e.trimmed else set()
        allowed |= {None} if name in FLAGS else set()
        if rows not in allowed:
            why = f"{e.where}: {key} has {f'{rows:,}' if rows else 'no'} rows; there are {e.length:,} actions"
            if lacking.can_drop(name):
                e.odd[name] = Lacking(name, key, why, can_fill=rows == 0)
                del e.keys[name]
                continue
            raise UnknownLayout(
                f"{why}.",
                hint="--rewards arrive is for rewards and flags that stand in the rows of the T+1 observations"
                if e.late(name)
                else "an episode of T actions has T or T+1 observations, and T rewards and flags; if it has T+1 of "
                "these, which came with the observations: --rewards arrive",
            )


def shows_order(e: GroupEpisode) -> bool:
    """Tell whether it is stated or seen in an episode that rewards are those of their own actions, or the other order.

    It is seen where a final observation has a row of its own, and where the first row has a reward.
    """
    reward = e.keys.get(REWARD)
    if e.rewards is not None or reward is None or e.trimmed or e.next_keys:
        return True
    if any(e.table[k].shape[:1] != (e.length,) for n, k in e.keys.items() if is_observation(n) or n == REWARD):
        return True
    return arriving.has_first_rewards(e.table, reward, np.zeros(1, np.int64))


def check_final(e: GroupEpisode) -> list[Note]:
    """Refuse a reward in the row of the final observation that would be dropped; note other values that are."""
    columns = {
        n: k
        for n, k in e.keys.items()
        if (n.startswith("next/") or is_below(n, "action")) and e.table[k].shape[:1] == (e.length + 1,)
    }
    if not e.length or not columns:
        return []
    e.table.derive([MISSING + k for k in columns.values()])
    ends = np.array([0]), np.array([e.length])
    rows = arriving.read_final_rows(e.table, *ends, columns.values())
    return arriving.judge(rows, columns, e.rewards, lambda row: f"row {row:,} of {e.where}")


# -- flags and ends


@dataclass(frozen=True, slots=True)
class Ends:
    """The flags of the steps of an episode [T], and how it ends: an index of `END_NAMES`."""

    terminated: Array
    truncated: Array
    end: int


def end_keys(e: GroupEpisode) -> set[str]:
    """Return the columns that say how an episode ends, or that there is more than one."""
    what = e.meaning
    told = (what.ids, *what.more, what.agents, what.steps, *what.counts, what.starts, what.lasts, e.done)
    return {e.keys[n] for n in FLAGS if n in e.keys} | {k for k in told if k}


def read_ends(e: GroupEpisode, *, strict: bool, read: Mapping[str, Array] | None = None) -> Ends:
    """Read the flags of the steps, and how the episode ends; ``read`` are columns [T+1 or fewer] that were read.

    Raises
    ------
    UnknownLayout
        A flag, an id or a step shows that there is more than one episode.
    """
    keys, seen = end_keys(e), dict(read or {})
    single = {k for k in keys if not e.table[k].shape}
    seen |= {k: np.asarray(e.table.source.array(k)) for k in single}
    if rest := sorted(keys - seen.keys()):
        with e.table.rows(rest) as rows:
            seen |= rows.read(0, e.length + 1)
    if strict:
        _check_alone(e, seen)
    terminated, truncated = (_flag(e, name, seen, strict=strict) for name in FLAGS)
    if strict and e.done is not None:
        _check_done(e, seen[e.done], terminated | truncated)
    truncated, end = ended(terminated, truncated)
    return Ends(terminated=terminated, truncated=truncated, end=end)


def _check_alone(e: GroupEpisode, seen: Mapping[str, Array]) -> None:
    """Refuse an id that changes, steps that do not increase by one, and starts or ends elsewhere than at them."""
    what = e.meaning
    checks: tuple[tuple[str | None, Callable[[Array], Array], str], ...] = (
        *((k, lambda v: 1 + np.flatnonzero(differs(v[:-1], v[1:])), "changes") for k in (what.ids, *what.more)),
        (what.agents, lambda v: 1 + np.flatnonzero(differs(v[:-1], v[1:])), "changes"),
        (what.steps, lambda v: 1 + np.flatnonzero(is_count(v) & (np.diff(signed(v)) != 1)), "does not increase by one"),
        *((k, lambda v: 1 + np.flatnonzero(is_count(v) & (np.diff(signed(v)) < 0)), "goes back") for k in what.counts),
        (what.starts, lambda v: 1 + np.flatnonzero(v[1:]), "is set"),
        (what.lasts, lambda v: np.flatnonzero(v[: e.length - 1]), "is set"),
    )
    for key, rows, says in checks:
        if key is None or key not in seen or seen[key].shape[1:] not in ((), (1,)):
            continue
        if seen[key].dtype.kind not in ("iuf" if key in (what.steps, *what.counts) else "biufOS"):
            continue
        wrong = rows(seen[key].reshape(-1))
        if len(wrong):
            raise UnknownLayout(
                f"{e.where}: {key} {says} at row {int(wrong[0]):,}, so it holds more than one episode.",
                hint="if it is one episode nevertheless: --episodes-by file",
            )


def _check_done(e: GroupEpisode, done: Array, either: Array) -> None:
    """Refuse a done that differs from terminated or truncated, if there are all three."""
    if {e.keys.get(n) is None or " without " in e.keys[n] for n in FLAGS} != {False} or len(np.atleast_1d(done)) == 1:
        return
    wrong = np.flatnonzero((done.reshape(-1)[e.steps(FLAGS[0])] != 0) != either)
    if len(wrong):
        raise UnknownLayout(
            f"{e.where}: {e.done} is not what {e.keys[FLAGS[0]]} or {e.keys[FLAGS[1]]} is, at row {int(wrong[0]):,}.",
            hint="--map terminated=KEY with --map truncated=KEY, or --map done=KEY alone, says which are right",
        )


def _flag(e: GroupEpisode, name: str, seen: Mapping[str, Array], *, strict: bool) -> Array:
    key, flag = e.keys.get(name), np.zeros(e.length, bool)
    if key is None:
        return flag
    values = np.atleast_1d(seen[key])
    found = is_set({key: values}, key, len(values))
    if len(found) == 1 and (e.length > 1 or e.late(name)):
        flag[-1] = found[0]
        return flag
    flag[:] = found[e.steps(name)]
    if e.trimmed and not e.late(name):  # a flag may stand in the row of the final observation
        flag[-1] |= found[e.length :].any()
    wrong = np.flatnonzero(flag[:-1])
    if len(wrong) and (strict or name == FLAGS[1]):
        raise UnknownLayout(
            f"{e.where}: row {int(wrong[0]):,} is {key.partition(' without ')[0]}, but it is not the last row.",
            hint="if steps may be terminated inside an episode: --episodes-by file",
        )
    return flag
