"""A random history of datasets, killed changes included: every version is what a list of episodes says.

Usage: python tests/contract/versions_history.py SEED DIRECTORY [--foreign]

Some changes are made by a child process first, which kills itself before one of its operations on files; the dataset
is then as it was or as it will be, and the change is made again. The program has no threads while it forks. One of the
two first datasets lies on a disk of its own. With ``--foreign`` it lies in the home of another user, which this process
may only read: it gives up what root may do.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import gc
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from versions_kills import run
from versions_model import Episode, build, check, check_batches, draw

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.base.files import child
from rlds_cli.dataset import Dataset
from rlds_cli.errors import DatasetNotFound, NoPermission
from rlds_cli.keep import gc as garbage
from rlds_cli.keep.compacting import compact
from rlds_cli.keep.verification import verify

STEPS = 12
STRANGER = 65534
LABELS: dict[str, tuple[Any, ...]] = {
    "quality": ("good", "bad", "", None),
    "score": (0.5, 3, -1.25, None),
    "count": (0, 7, (1 << 63) + 1, None),
    "success": (True, False, None),
}
CHANGES = ("label", "label", "drop", "select", "trim", "trim", "merge", "preprocess", "restore", "compact", "gc", "tag")
IN_PLACE = ("label", "drop", "restore", "compact", "tag")


def double(episode: Any) -> Any:
    """Twice the reward, and no episodes of one step."""
    episode["next"]["reward"] *= 2
    return episode if len(episode["action"]) > 1 else None


@dataclass(frozen=True)
class Change:
    """What makes the next version of dataset ``id``, or the dataset, and the episodes that it then has."""

    id: str
    act: Callable[[], Dataset]
    episodes: list[Episode]


@dataclass
class History:
    """Datasets by id, each with the list of its episodes at every version; some grow.

    ``foreign`` are those that may only be read. With ``below``, changes are killed: before operations on files there.
    """

    rng: np.random.Generator
    resets: bool
    storage: str
    below: Path | None = None
    foreign: set[str] = field(default_factory=set)
    known: dict[str, dict[int, list[Episode]]] = field(default_factory=dict)
    tags: dict[str, dict[str, int]] = field(default_factory=dict)
    opened: list[tuple[Dataset, list[Episode]]] = field(default_factory=list)
    count: int = 0
    kills: int = 0
    done: list[str] = field(default_factory=list)

    def step(self) -> None:
        """Make one change of one dataset."""
        name = CHANGES[self.rng.integers(len(CHANGES))]
        id = sorted(self.known)[self.rng.integers(len(self.known))]
        episodes = self.newest(id)
        ds = rlds_cli.open_dataset(id)
        self.opened.append((ds, episodes))
        if ds.store.table.segment_rows and self.rng.random() < 0.4:
            name = ("append", "drop_beside_a_writer")[self.rng.integers(2)]
        if not episodes and name not in ("merge", "restore", "append", "compact", "gc"):
            return
        self.done.append(f"{name} {id} {len(episodes)}")
        change = getattr(self, name)(ds, episodes)
        if id in self.foreign and name in IN_PLACE:
            self.refused(change)
        elif change is not None:
            self.apply(change)
        if name in ("compact", "gc"):
            self.forget(id)

    def apply(self, change: Change) -> None:
        """Make a change, killed once before, or not."""
        if self.below is not None and self.rng.random() < 0.4 and self.killed(change, self.below):
            return
        self.made(change.act(), change.episodes)

    def killed(self, change: Change, below: Path) -> bool:
        """Make a change in a process that is killed; return whether it was made nevertheless."""
        at = int(2 ** self.rng.uniform(0, 9))
        self.kills += run(change.act, at, str(below)) == 0
        self.done.append(f"killed at {at}")
        every = self.known.get(change.id, {})
        try:
            ds = rlds_cli.open_dataset(change.id)
        except DatasetNotFound:
            assert not every
            return False
        if ds.version == max(every, default=-1):
            check(ds, every[ds.version])
            return False
        if ds.store.table.segment_rows and ds.version == 0:  # a growing dataset begins without episodes
            check(ds, [])
            every[0] = []
            self.known[change.id] = every
            return False
        self.made(ds, change.episodes)
        return True

    def refused(self, change: Change | None) -> None:
        """A dataset of another user is not changed."""
        before = {id: dict(every) for id, every in self.known.items()}
        if change is None:
            return
        every = self.known[change.id]
        with suppress(NoPermission):
            ds = change.act()
            assert ds.version == max(every), "a dataset of another user was changed"  # nothing was to be changed
        assert self.known == before
        check(rlds_cli.open_dataset(change.id), self.newest(change.id))

    def newest(self, id: str) -> list[Episode]:
        return self.known[id][max(self.known[id])]

    def name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    def chosen(self, episodes: list[Episode]) -> list[int]:
        """Some episodes, in any order."""
        order = self.rng.permutation(len(episodes))
        return order[: self.rng.integers(1, len(episodes) + 1)].tolist()

    def create(self, id: str) -> None:
        episodes = [draw(self.rng, int(n), resets=self.resets) for n in self.rng.choice([1, 2, 3, 5, 9], 6)]
        self.made(build(id, episodes, self.storage), episodes)

    def made(self, ds: Dataset, episodes: list[Episode]) -> None:
        """Check what a change returned, and remember it; some make no version, since nothing changes."""
        check(ds, episodes)
        every = self.known.setdefault(ds.id, {})
        if ds.version == max(every, default=-1):
            check(ds, every[ds.version])
            return
        assert ds.version == max(every, default=ds.version - 1) + 1
        every[ds.version] = episodes

    def label(self, ds: Dataset, episodes: list[Episode]) -> Change:
        some, name = self.chosen(episodes), sorted(LABELS)[self.rng.integers(len(LABELS))]
        values = [LABELS[name][k] for k in self.rng.integers(0, len(LABELS[name]), len(some))]
        new = list(episodes)
        for k, v in zip(some, values, strict=True):
            new[k] = new[k].labelled(**{name: v})
        new = _of_one_type(new, name)
        return Change(ds.id, lambda: ds.select(episodes=some).label({name: values}), new)

    def drop(self, ds: Dataset, episodes: list[Episode]) -> Change:
        gone = self.chosen(episodes)
        left = [e for k, e in enumerate(episodes) if k not in gone]
        return Change(ds.id, lambda: ds.select(episodes=gone).drop(), left)

    def select(self, ds: Dataset, episodes: list[Episode]) -> Change:
        some, name = self.chosen(episodes), self.name("s")
        selected = ds.select(episodes=some)
        check(selected, [episodes[k] for k in some])
        return Change(f"{ds.id.partition('@')[0]}@{name}", lambda: selected.save(name), [episodes[k] for k in some])

    def trim(self, ds: Dataset, episodes: list[Episode]) -> Change:
        """Up to three ranges of each episode, which may adjoin; some episodes stay whole, some go."""
        ranges = {}
        for k, e in enumerate(episodes):
            if self.rng.random() < 0.8:
                edges = np.sort(self.rng.integers(0, e.length + 1, 4)).tolist()
                pairs = [(edges[0], edges[1]), (edges[1], edges[2]), (edges[2], edges[3])]
                keep = self.rng.random(3) < 0.7
                ranges[k] = [p for p, yes in zip(pairs, keep, strict=True) if yes and p[0] < p[1]]
        new = [e.part(a, b) for k, e in enumerate(episodes) for a, b in ranges.get(k, [(0, e.length)])]
        name = self.name("t")
        return Change(f"{ds.id.partition('@')[0]}@{name}", lambda: ds.trim(ranges, name), new)

    def merge(self, ds: Dataset, episodes: list[Episode]) -> Change:
        others = {i: self.newest(i) for i in sorted(self.known) if not _common(self.newest(i), episodes)}
        if self.rng.random() < 0.5 or not others:
            others = self.record(ds)
        other = list(others)[self.rng.integers(len(others))]
        column, storage, id = self.name("from"), ("memmap", "zarr")[self.rng.integers(2)], f"local/{self.name('m')}"
        members = {ds.id: episodes, other: others[other]}
        new = [e.labelled(**{column: member}) for member, of in members.items() for e in of]
        new = _of_one_type(_of_one_type(new, "score"), "count")
        return Change(id, lambda: rlds_cli.merge(list(members), id, column=column, storage=storage), new)

    def record(self, like: Dataset) -> dict[str, list[Episode]]:
        """A growing dataset, of several commits."""
        id = f"local/{self.name('g')}"
        for _ in range(2):
            self.apply(self.recorded(id, like))
        return {id: self.newest(id)}

    def recorded(self, id: str, like: Dataset | None = None) -> Change:
        """Two more episodes of a growing dataset, in one commit."""
        new = self.drawn()

        def act() -> Dataset:
            with rlds_cli.writer(id, like=None if self.known.get(id) else like) as w:
                w.add_episodes([e.item() for e in new])
                w.commit()
                return w.dataset()

        return Change(id, act, [*(self.newest(id) if self.known.get(id) else []), *new])

    def drawn(self) -> list[Episode]:
        return [draw(self.rng, int(n)) for n in self.rng.choice([1, 2, 5], 2)]

    def append(self, ds: Dataset, episodes: list[Episode]) -> Change:
        """Record more into a growing dataset."""
        return self.recorded(ds.id)

    def drop_beside_a_writer(self, ds: Dataset, episodes: list[Episode]) -> None:
        """Drop and label episodes of an earlier version while a writer goes on."""

        def committed(before: list[Episode]) -> list[Episode]:
            more = [*before, *(new := self.drawn())]
            w.add_episodes([e.item() for e in new])
            w.commit()
            self.made(w.dataset(), more)
            return more

        gone = self.chosen(episodes)
        with rlds_cli.writer(ds.id) as w:
            more = committed(episodes)
            left = [e for e in more if e not in [episodes[k] for k in gone]]
            dropped = ds.select(episodes=gone).drop()
            self.made(dropped, left)
            more = committed(left)
            if left:
                value = "good" if left[0].about.get("quality") == "bad" else "bad"
                new = [left[0].labelled(quality=value), *more[1:]]
                self.made(dropped.select(episodes=[0]).label(quality=value), new)
                more = new
            committed(more)

    def restore(self, ds: Dataset, episodes: list[Episode]) -> Change:
        """The content of any earlier version; the newest version stays if it has that content."""
        number = sorted(self.known[ds.id])[self.rng.integers(len(self.known[ds.id]))]
        wanted = self.known[ds.id][number]
        return Change(ds.id, lambda: rlds_cli.open_dataset(f"{ds.id}#v{number}").restore(), wanted)

    def preprocess(self, ds: Dataset, episodes: list[Episode]) -> Change | None:
        new, name = [], self.name("p")
        for e in episodes:
            if e.length > 1:
                rows = e.rows | {"next/reward": e.rows["next/reward"] * 2}
                new.append(replace(e, rows=rows, id=None))
        id = f"{ds.id.partition('@')[0]}@{name}"
        return Change(id, lambda: preprocess.run(ds, double, name, jobs=0), new) if new else None

    def compact(self, ds: Dataset, episodes: list[Episode]) -> Change:
        """Often nobody has a version open; who has reads on, or is told that the version was removed."""
        if self.rng.random() < 0.5:
            self.closed(ds.id)
        return Change(ds.id, lambda: rlds_cli.open_dataset(compact(ds.id).id), episodes)

    def gc(self, ds: Dataset, episodes: list[Episode]) -> Change:
        def act() -> Dataset:
            garbage.collect(garbage.find_garbage())
            return rlds_cli.open_dataset(ds.id)

        return Change(ds.id, act, episodes)

    def tag(self, ds: Dataset, episodes: list[Episode]) -> Change:
        """Name an earlier version, which stays then."""
        number = sorted(self.known[ds.id])[self.rng.integers(len(self.known[ds.id]))]
        name = self.name("tag")

        def act() -> Dataset:
            rlds_cli.open_dataset(f"{ds.id}#v{number}").tag(name)
            self.tags.setdefault(ds.id, {})[name] = number
            return rlds_cli.open_dataset(ds.id)

        return Change(ds.id, act, episodes)

    def closed(self, id: str) -> None:
        """Close what is open of a dataset."""
        self.opened = [(ds, episodes) for ds, episodes in self.opened if ds.id != id]
        gc.collect()

    def forget(self, id: str) -> None:
        """Forget the versions that were removed: none that has a tag, or that is open and grows."""
        kept = {max(self.known[id]), *self.tags.get(id, {}).values()}
        kept |= {ds.version for ds, _ in self.opened if ds.id == id and ds.store.table.segment_rows}
        for number in sorted(self.known[id]):
            try:
                rlds_cli.open_dataset(f"{id}#v{number}")
            except DatasetNotFound:
                assert number not in kept, f"{id}#v{number} was removed"
                del self.known[id][number]
        still = []
        for ds, episodes in self.opened:
            if ds.id == id and ds.version not in self.known[id]:
                with pytest.raises(DatasetNotFound, match="was removed since it was opened"):
                    check(ds, episodes)
                    ds.store.digests("action")
            else:
                still.append((ds, episodes))
        self.opened = still

    def look(self) -> None:
        """Every version of every dataset, opened now, and those that were opened before."""
        for id, every in self.known.items():
            newest = rlds_cli.open_dataset(id)
            there = [v.number for v in newest.versions]
            assert there == sorted(every) or (newest.store.table.segment_rows and set(every) <= set(there))
            assert dict(newest.tags) == self.tags.get(id, {})
            for number, episodes in every.items():
                ds = rlds_cli.open_dataset(f"{id}#v{number}")
                check(ds, episodes)
                check_batches(ds, episodes, number)
                assert not verify(f"{id}#v{number}").problems
        for ds, episodes in self.opened:
            check(ds, episodes)
        if not self.resets:
            self._make_again()

    def end(self) -> None:
        """Compact all datasets."""
        for id in sorted(self.known.keys() - self.foreign):
            before = rlds_cli.open_dataset(id).fingerprint
            compact(id)
            ds = rlds_cli.open_dataset(id)
            assert ds.fingerprint == before and not ds.store.table.has_gaps and not verify(ds.path).problems
            check(ds, self.newest(id))

    def _make_again(self) -> None:
        """The newest version of each dataset has the fingerprint of a dataset that is made of its episodes."""
        for id in self.known:
            if self.newest(id):
                again = rlds_cli.create("local/again", [e.item() for e in self.newest(id)], force=True)
                assert again.fingerprint == rlds_cli.open_dataset(id).fingerprint


def _of_one_type(episodes: list[Episode], name: str) -> list[Episode]:
    """A column has numbers of one type."""
    if not any(isinstance(e.about.get(name), float) for e in episodes):
        return episodes
    return [e.labelled(**{name: float(e.about[name])}) if name in e.about else e for e in episodes]


def _common(a: list[Episode], b: list[Episode]) -> bool:
    return bool({e.id for e in a} & {e.id for e in b})


def begin(seed: int, place: Path, *, foreign: bool = False, kills: bool = False) -> History:
    """Begin a history below a directory; the second dataset is in another home, which is on another disk or foreign."""
    home, elsewhere = place / "home", place / "elsewhere"
    os.environ["RLDS_HOME"] = str(elsewhere)
    rng = np.random.default_rng(seed)
    storage = ("memmap", "zarr")[seed // 2 % 2]
    history = History(rng, resets=seed % 2 == 0, storage=storage, below=place if kills else None)
    history.create("local/b")
    if foreign:
        history.foreign.add("local/b")
        for path in (elsewhere, *elsewhere.rglob("*")):
            os.chown(path, STRANGER, -1)
        give_up_root()
    os.environ |= {"RLDS_HOME": str(home), "RLDS_PATH": str(elsewhere)}
    history.create("local/a")
    history.record(rlds_cli.open_dataset("local/a"))
    return history


def give_up_root() -> None:
    """Have the permissions of files hold for this process, which runs as root."""
    header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if ctypes.CDLL(None, use_errno=True).capset(header, none):
        raise OSError(ctypes.get_errno(), "capset")


def links_within(directory: Path) -> Callable[..., None]:
    """Return `os.link` for a machine on which a directory is on a disk of its own."""
    link = os.link

    def within(source: Path, target: Path, **how: bool) -> None:
        if Path(source).is_relative_to(directory) != Path(target).is_relative_to(directory):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        link(source, target, **how)

    return within


def main(seed: int, place: Path, *, foreign: bool) -> None:
    """Live through one history, with kills, below an empty directory."""
    from rlds_cli.make.convert import writer

    writer._INTERVAL = 600.0  # the history says when a writer commits
    os.fsync = lambda fd: None
    os.link = links_within(place / "elsewhere")
    with child.here():
        history = begin(seed, place, foreign=foreign, kills=True)
        try:
            for _ in range(STEPS):
                history.step()
            history.look()
            history.end()
        except BaseException:
            print(*history.done, sep="\n")
            raise
        print(f"{len(history.known)} datasets, {history.kills} kills")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("seed", type=int)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--foreign", action="store_true")
    given = parser.parse_args()
    main(given.seed, given.directory, foreign=given.foreign)
