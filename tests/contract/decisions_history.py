"""Random decisions of three annotators, undone and applied, beside drops, labels, appends and restores of others.

A list of episodes by their ids says what each version must hold. Where steps are trimmed or episodes are split, it says
so of ``ID@cut``; the trims are undone then, so that the dataset itself goes on. With kills, a change is made by a child
process that may end before any of its operations on files: then the version before is there, or the one after.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from versions_kills import run

import rlds_cli
from rlds_cli.dataset import Dataset
from rlds_cli.errors import ClashingDecisions, DatasetNotFound, InvalidArgument
from rlds_cli.keep import verification
from rlds_cli.make.importing import import_files

ID = "local/decided"
ANNOTATORS = ("ann", "bob", "cid")
LABELS: dict[str, tuple[Any, ...]] = {"success": (True, False, None), "quality": (1, 2, None)}
TAKE = (*ANNOTATORS, "theirs")


@dataclass(frozen=True)
class Episode:
    """An episode, or steps from ``first`` on of one: the action of step t is ``serial`` + t / 64.

    The id of a part is not known.
    """

    serial: int
    id: str | None
    length: int
    first: int = 0
    about: tuple[tuple[str, Any], ...] = ()

    def with_label(self, name: str, value: Any) -> Episode:
        """The episode with another value; None takes it away."""
        about = {n: v for n, v in dict(self.about).items() if n != name} | ({} if value is None else {name: value})
        return replace(self, about=tuple(sorted(about.items())))

    def parts(self, ranges: Sequence[tuple[int, int]]) -> list[Episode]:
        """What stays of the episode."""
        if list(ranges) == [(0, self.length)]:
            return [self]
        return [replace(self, id=None, first=self.first + a, length=b - a) for a, b in ranges]

    @property
    def actions(self) -> list[float]:
        return [self.serial + (self.first + t) / 64 for t in range(self.length)]


@dataclass
class Version:
    """Episodes in order, and the decisions that the version has, in the order in which they were applied."""

    episodes: list[Episode]
    applied: list[dict[str, Any]] = field(default_factory=list)

    def by_id(self) -> dict[str, Episode]:
        return {e.id: e for e in self.episodes}


@dataclass
class Expected:
    """What decisions come to: the episodes, whether somebody must be asked, and whether steps go."""

    episodes: list[Episode]
    clash: bool
    trims: bool


def settled(versions: dict[int, Version], newest: int, decisions: Sequence[dict[str, Any]], take: bool) -> Expected:
    """Apply decisions to the newest version: the slow way, an episode and a label after the other."""
    there, applied = versions[newest].by_id(), versions[newest].applied
    clash, trims = False, False
    left = {id: [e] for id, e in there.items()}
    for id in dict.fromkeys(d["id"] for d in decisions):
        mine = [d for d in decisions if d["id"] == id]
        if id not in there:
            dropped_by = next((d["by"] for d in reversed(applied) if d["id"] == id and d.get("do") == "drop"), None)
            clash |= not take and any(d.get("do") != "drop" and d["by"] != dropped_by for d in mine)
            continue
        stays = ranges_of(mine)
        if len(set(stays.values())) > 1:
            clash |= not take
            stays = {min(stays): stays[min(stays)]}
        ranges = next(iter(stays.values()), ((0, there[id].length),))
        if not ranges and (take or not clash):
            del left[id]
            continue
        for name in LABELS:
            said = {}
            for d in mine:
                if name in d.get("labels", {}):
                    said[d["by"]] = d
            if not said:
                continue
            if len({repr(d["labels"][name]) for d in said.values()}) > 1:
                clash |= not take
                first = repr(said[min(said)]["labels"][name])
                said = {by: d for by, d in said.items() if repr(d["labels"][name]) == first}
            value = next(iter(said.values()))["labels"][name]
            now = dict(there[id].about).get(name)
            seen = max(d["version"] for d in said.values())
            before = versions[seen].by_id().get(id)
            as_seen = before is not None and repr(dict(before.about).get(name)) == repr(now)
            last = next((d for d in reversed(applied) if d["id"] == id and name in d.get("labels", {})), None)
            own = last is not None and repr(last["labels"][name]) == repr(now) and last["by"] in said
            if repr(value) == repr(now):
                continue
            if as_seen or own:
                there[id] = there[id].with_label(name, value)
            else:
                clash |= not take
        left[id] = there[id].parts(ranges)
        trims |= left[id] != [there[id]]
    return Expected([part for e in versions[newest].episodes for part in left.get(e.id, ())], clash, trims)


def ranges_of(decisions: Sequence[dict[str, Any]]) -> dict[str, tuple[tuple[int, int], ...]]:
    """Which steps of an episode stay, by who says so; none of one that is dropped."""
    found: dict[str, tuple[tuple[int, int], ...]] = {}
    for d in decisions:
        if d.get("do") == "drop":
            found[d["by"]] = ()
        elif d.get("do") == "keep":
            first, stop = d["first"], d["stop"]
            apart = [r for r in found.get(d["by"], ()) if r[1] <= first or stop <= r[0]]
            found[d["by"]] = tuple(sorted([*apart, (first, stop)]))
    return found


class History:
    """A dataset, its journal, and what a list says of them."""

    def __init__(self, seed: int, place: Path, *, grows: bool, kills: bool) -> None:
        self.rng = np.random.default_rng(seed)
        self.place, self.grows, self.kills, self.serial = place, grows, kills, 0
        self.made: list[dict[str, Any]] = []  # of the journal, in order; those that were undone are taken out
        self.versions: dict[int, Version] = {}
        self.cut: list[Episode] | None = None  # what ID@cut holds
        self.files = 0
        self._add(4)
        self.look()

    # -- what may happen

    def step(self) -> None:
        """One change, and a look at what it has left."""
        changes = [self.decide] * 4 + [self.apply] * 3 + [self.undo, self.drop, self.label, self.append, self.restore]
        changes[int(self.rng.integers(len(changes)))]()
        self.look()

    def decide(self) -> None:
        """Somebody looks at a version, not always the newest, and decides on some of its episodes."""
        version = int(self.rng.choice([max(self.versions), *self.versions]))
        episodes = self.versions[version].episodes
        if not episodes:
            return
        by, some = str(self.rng.choice(ANNOTATORS)), self.rng.integers(0, len(episodes), int(self.rng.integers(1, 4)))
        new = [self._decision(episodes[k], by, version) for k in some.tolist()]
        ds = rlds_cli.open_dataset(f"{ID}#v{version}")
        if self._done(lambda: ds.decisions().add(new)):
            added = ds.decisions().made()[len(self.made) :]
            self.made += [{**n, "key": d.key} for n, d in zip(new, added, strict=True)]

    def _decision(self, e: Episode, by: str, version: int) -> dict[str, Any]:
        self.serial += 1
        time = f"2026-01-01T00:00:00.{self.serial % 1000:03}+00:00" if self.serial < 1000 else ""
        d: dict[str, Any] = {"id": e.id, "by": by, "version": version, "time": time}
        what = self.rng.random()
        if what < 0.15:
            return {**d, "do": "drop"}
        if what < 0.2:
            return {**d, "do": "keep", "first": 0, "stop": e.length}
        if what < 0.35:  # a trim; two of one annotator are a split, or one takes the other's place
            first = int(self.rng.integers(e.length))
            return {**d, "do": "keep", "first": first, "stop": int(self.rng.integers(first + 1, e.length + 1))}
        names = [n for n in LABELS if self.rng.random() < 0.7] or ["success"]
        return {**d, "labels": {n: LABELS[n][int(self.rng.integers(3))] for n in names}}

    def undo(self) -> None:
        """Somebody takes one back."""
        if self.made:
            gone = self.made[int(self.rng.integers(len(self.made)))]
            if self._done(lambda: rlds_cli.open_dataset(ID).decisions().undo([gone["key"]])):
                self.made = [d for d in self.made if d["key"] != gone["key"]]

    def apply(self) -> None:
        """The decisions of the home that the newest version lacks; somebody is asked if they clash."""
        newest = max(self.versions)
        there = {d["key"] for d in self.versions[newest].applied}
        pending = [d for d in self.made if d["key"] not in there]
        first = settled(self.versions, newest, pending, take=False)
        ds = rlds_cli.open_dataset(ID)
        assert [d.key for d in ds.decisions().pending()] == [d["key"] for d in pending]
        assert bool(ds.plan(ds.decisions()).clashes) == first.clash
        if first.clash:
            try:
                ds.apply(ds.decisions())
            except ClashingDecisions:
                self.look()
            else:
                raise AssertionError("a clash that nobody was asked about")
        wanted = settled(self.versions, newest, pending, take=True)
        if wanted.trims:
            self._trim(ds, pending, wanted.episodes)
        else:
            self._done(lambda: ds.apply(ds.decisions(), take=TAKE))
            self._next(wanted.episodes, [*self.versions[newest].applied, *pending])

    def _trim(self, ds: Dataset, pending: Sequence[dict[str, Any]], wanted: list[Episode]) -> None:
        """Decisions by which steps go make ID@cut, and nothing else; then these are taken back."""
        try:
            ds.apply(ds.decisions(), take=TAKE)
        except InvalidArgument:
            self.look()
        else:
            raise AssertionError("steps of a dataset went in its place")
        whole = self._done(lambda: ds.apply(ds.decisions(), take=TAKE, name="cut", force=True))
        if whole or self._is_cut(wanted):
            self.cut = wanted
        self.look()
        some = [d for d in pending if d.get("do") == "keep"]
        if some and self._done(lambda: ds.decisions().undo([d["key"] for d in some])):
            self.made = [d for d in self.made if d not in some]

    def _is_cut(self, episodes: list[Episode]) -> bool:
        """Whether ID@cut holds these episodes."""
        try:
            check(rlds_cli.open_dataset(f"{ID}@cut"), episodes)
        except (AssertionError, DatasetNotFound):
            return False
        return True

    def drop(self) -> None:
        """Somebody else drops an episode."""
        newest = self.versions[max(self.versions)]
        if len(newest.episodes) > 1:
            k = int(self.rng.integers(len(newest.episodes)))
            self._done(lambda: rlds_cli.open_dataset(ID).select(episodes=[k]).drop())
            self._next([e for i, e in enumerate(newest.episodes) if i != k], newest.applied)

    def label(self) -> None:
        """Somebody else labels an episode."""
        newest = self.versions[max(self.versions)]
        if newest.episodes:
            k, name = int(self.rng.integers(len(newest.episodes))), str(self.rng.choice(list(LABELS)))
            value = LABELS[name][int(self.rng.integers(3))]
            self._done(lambda: rlds_cli.open_dataset(ID).select(episodes=[k]).label({name: value}))
            new = [e.with_label(name, value) if i == k else e for i, e in enumerate(newest.episodes)]
            self._next(new, newest.applied)

    def append(self) -> None:
        """Episodes are recorded."""
        newest = self.versions[max(self.versions)]
        self._add(int(self.rng.integers(1, 3)), after=newest)

    def restore(self) -> None:
        """An earlier version becomes the newest; one of a growing dataset loses what was recorded since."""
        version = int(self.rng.choice(list(self.versions)))
        if version != max(self.versions):
            self._done(lambda: rlds_cli.open_dataset(f"{ID}#v{version}").restore())
            self._next(self.versions[version].episodes, self.versions[version].applied)

    # -- how it is done

    def _done(self, change: Callable[[], Any]) -> bool:
        """Make a change, or with kills a part of it; return whether it came to its end."""
        if not self.kills or self.rng.random() < 0.4:
            change()
            return True
        return run(change, int(self.rng.integers(1, 60)), os.environ["RLDS_HOME"]) > 0

    def _next(self, episodes: list[Episode], applied: list[dict[str, Any]]) -> None:
        """A version was made, or none: then it was ended before, or nothing has changed."""
        newest, found = max(self.versions), rlds_cli.open_dataset(ID).version
        same = episodes == self.versions[newest].episodes
        assert found == newest or (found == newest + 1 and not (same and applied != self.versions[newest].applied))
        if found == newest + 1:
            self.versions[found] = Version(episodes, applied)
        elif not self.kills:
            assert same

    def _add(self, count: int, after: Version | None = None) -> None:
        """Record episodes, or append a file of them."""
        lengths, known = self.rng.integers(2, 6, count).tolist(), [] if after is None else after.episodes
        new = [Episode(self.serial + k + 1, None, n) for k, n in enumerate(lengths)]
        self.serial += count
        file = None if self.grows else self._file(new)
        change = (lambda: record(new)) if file is None else lambda: append(file)
        if self.versions:
            self._done(change)
        else:
            change()
        ds = rlds_cli.open_dataset(ID)
        if self.versions and ds.version == max(self.versions):
            assert self.kills
            return
        ids = (id.tobytes().hex() for id in ds.episodes["id"][len(known) :])
        made = [*known, *(replace(e, id=id) for e, id in zip(new, ids, strict=True))]
        self.versions[ds.version] = Version(made, [] if after is None else after.applied)

    def _file(self, episodes: Sequence[Episode]) -> Path:
        """A file of episodes in D4RL's layout."""
        self.files += 1
        actions = np.array([v for e in episodes for v in e.actions], np.float32)
        ends = np.array([t == e.length - 1 for e in episodes for t in range(e.length)])
        with h5py.File(self.place / f"{self.files}.hdf5", "w") as f:
            f["observations"], f["actions"], f["rewards"] = actions[:, None], actions[:, None], actions
            f["terminals"], f["timeouts"] = ends, np.zeros(len(ends), bool)
        return self.place / f"{self.files}.hdf5"

    # -- what must be there

    def look(self) -> None:
        """Every version is what the list says, and no decision was lost."""
        ds = rlds_cli.open_dataset(ID)
        assert ds.version == max(self.versions)
        assert [d.key for d in ds.decisions().made()] == [d["key"] for d in self.made]
        newest = self.versions[ds.version]
        there = {d["key"] for d in newest.applied}
        assert [d.key for d in ds.decisions().pending()] == [d["key"] for d in self.made if d["key"] not in there]
        check(ds, newest.episodes)
        assert self.cut is None or self._is_cut(self.cut)

    def end(self) -> None:
        """All versions, and their files."""
        for number, version in self.versions.items():
            check(rlds_cli.open_dataset(f"{ID}#v{number}"), version.episodes)
        for id in (ID, *([f"{ID}@cut"] if self.cut else [])):
            assert not verification.verify(rlds_cli.open_dataset(id).path).problems


def record(episodes: Sequence[Episode]) -> None:
    """Add episodes to a dataset that grows."""
    made = []
    for e in episodes:
        actions = np.array(e.actions, np.float32)
        flags = {"reward": actions, "terminated": True}
        made.append(
            {"observation": np.append(actions, actions[-1:])[:, None], "action": actions[:, None], "next": flags}
        )
    with rlds_cli.writer(ID) as w:
        w.add_episodes(made)


def append(file: Path) -> None:
    """Append a file to a dataset that does not grow; the first one makes it."""
    if rlds_cli.find(ID):
        rlds_cli.append(ID, file)
    else:
        import_files(file, ID, progress=False)


def check(ds: Dataset, episodes: list[Episode]) -> None:
    """Compare the episodes of a version with a list."""
    e = ds.episodes
    ids = [row.tobytes().hex() for row in e["id"]]
    assert len({*ids}) == len(ids) == len(episodes)
    assert all(x.id in (id, None) for id, x in zip(ids, episodes, strict=True))
    assert e["length"].tolist() == [x.length for x in episodes]
    for name in LABELS:
        column = ds.store.own_column(name).scalars() if name in ds.store.own_columns else [None] * len(episodes)
        assert column == [dict(x.about).get(name) for x in episodes], name
    for k, x in enumerate(episodes):
        batch = ds.episode(k)
        assert batch["action"].ravel().tolist() == x.actions == batch["next/reward"].ravel().tolist()


if __name__ == "__main__":
    seed, steps, home = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    os.environ["RLDS_HOME"] = str(home / "home")
    history = History(seed, home, grows=False, kills=True)
    for _ in range(steps):
        history.step()
    history.end()
    print(len(history.versions), "versions,", len(history.made), "decisions")
