"""Any order of selecting, trimming, labelling, dropping, restoring, merging: every version is what a list says."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader
from versions_model import Episode, build, check, check_batches, draw

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.dataset import Dataset
from rlds_cli.errors import DatasetNotFound, InvalidArgument
from rlds_cli.loader import Loader, Sequential
from rlds_cli.loader.storage import blocks
from rlds_cli.maintenance.compacting import compact
from rlds_cli.maintenance.verification import verify
from rlds_cli.store import versions

ROOT = Path(__file__).parents[1]
SEEDS = int(os.environ.get("RLDS_HISTORIES", "4"))
STEPS = 10
LABELS: dict[str, tuple[Any, ...]] = {
    "quality": ("good", "bad", "", None),
    "score": (0.5, 3, -1.25, None),
    "count": (0, 7, (1 << 63) + 1, None),
    "success": (True, False, None),
}


def double(episode: Any) -> Any:
    """Twice the reward, and no episodes of one step."""
    episode["next"]["reward"] *= 2
    return episode if len(episode["action"]) > 1 else None


@dataclass
class History:
    """Datasets by id, each with the list of its episodes at every version; some grow."""

    rng: np.random.Generator
    resets: bool
    store: str
    known: dict[str, dict[int, list[Episode]]] = field(default_factory=dict)
    opened: list[tuple[Dataset, list[Episode]]] = field(default_factory=list)
    count: int = 0
    done: list[str] = field(default_factory=list)

    def step(self) -> None:
        changes = ("label", "label", "drop", "select", "trim", "trim", "merge", "preprocess", "restore")
        change = changes[self.rng.integers(len(changes))]
        id = sorted(self.known)[self.rng.integers(len(self.known))]
        episodes = self.newest(id)
        self.done.append(f"{change} {id} {len(episodes)}")
        ds = rlds_cli.open_dataset(id)
        self.opened.append((ds, episodes))
        if ds.store.segment_rows and self.rng.random() < 0.4:
            change = ("append", "drop_beside_a_writer")[self.rng.integers(2)]
        if change in ("merge", "restore", "append") or episodes:
            getattr(self, change)(ds, episodes)

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
        self.made(build(id, episodes, self.store), episodes)

    def made(self, ds: Dataset, episodes: list[Episode]) -> None:
        """Check what a change returned, and remember it."""
        check(ds, episodes)
        every = self.known.setdefault(ds.id, {})
        assert ds.version == max(every, default=ds.version - 1) + 1
        every[ds.version] = episodes

    def label(self, ds: Dataset, episodes: list[Episode]) -> None:
        some, name = self.chosen(episodes), sorted(LABELS)[self.rng.integers(len(LABELS))]
        values = [LABELS[name][k] for k in self.rng.integers(0, len(LABELS[name]), len(some))]
        new = list(episodes)
        for k, v in zip(some, values, strict=True):
            new[k] = new[k].labelled(**{name: v})
        if any(isinstance(e.about.get(name), float) for e in new):
            new = [e.labelled(**{name: float(e.about[name])}) if name in e.about else e for e in new]
        made = ds.select(episodes=some).label({name: values})
        if made.version == ds.version:  # every label was set already
            assert [e.about for e in new] == [e.about for e in episodes]
            check(made, episodes)
        else:
            self.made(made, new)

    def drop(self, ds: Dataset, episodes: list[Episode]) -> None:
        gone = self.chosen(episodes)
        self.made(ds.select(episodes=gone).drop(), [e for k, e in enumerate(episodes) if k not in gone])

    def select(self, ds: Dataset, episodes: list[Episode]) -> None:
        some = self.chosen(episodes)
        selected = ds.select(episodes=some)
        check(selected, [episodes[k] for k in some])
        self.made(selected.save(self.name("s")), [episodes[k] for k in some])

    def trim(self, ds: Dataset, episodes: list[Episode]) -> None:
        """Up to three ranges of each episode, which may adjoin; some episodes stay whole, some go."""
        ranges = {}
        for k, e in enumerate(episodes):
            if self.rng.random() < 0.8:
                edges = np.sort(self.rng.integers(0, e.length + 1, 4)).tolist()
                pairs = [(edges[0], edges[1]), (edges[1], edges[2]), (edges[2], edges[3])]
                keep = self.rng.random(3) < 0.7
                ranges[k] = [p for p, yes in zip(pairs, keep, strict=True) if yes and p[0] < p[1]]
        new = [e.part(a, b) for k, e in enumerate(episodes) for a, b in ranges.get(k, [(0, e.length)])]
        self.made(ds.trim(ranges, self.name("t")), new)

    def merge(self, ds: Dataset, episodes: list[Episode]) -> None:
        others = {i: self.newest(i) for i in sorted(self.known) if not _common(self.newest(i), episodes)}
        if self.rng.random() < 0.5 or not others:
            others = self.record(ds)
        other = list(others)[self.rng.integers(len(others))]
        column, store = self.name("from"), ("memmap", "zarr")[self.rng.integers(2)]
        members = {ds.id: episodes, other: others[other]}
        new = [e.labelled(**{column: id}) for id, of in members.items() for e in of]
        for name in ("score", "count"):
            if any(isinstance(e.about.get(name), float) for e in new):
                new = [e.labelled(**{name: float(e.about[name])}) if name in e.about else e for e in new]
        self.made(rlds_cli.merge(list(members), f"local/{self.name('m')}", column=column, store=store), new)

    def record(self, like: Dataset) -> dict[str, list[Episode]]:
        """A dataset that grows, of several commits."""
        id, episodes = f"local/{self.name('g')}", list[Episode]()
        self.known[id] = {}
        with rlds_cli.writer(id, like=like) as w:
            for _ in range(2):
                episodes = self.recorded(w, episodes)
        check_batches(w.dataset(), episodes, 0)
        return {id: episodes}

    def recorded(self, w: Any, episodes: list[Episode]) -> list[Episode]:
        """Commit two more episodes; return all."""
        new = [draw(self.rng, int(n)) for n in self.rng.choice([1, 2, 5], 2)]
        w.add_episodes([e.item() for e in new])
        w.commit()
        self.made(w.dataset(), [*episodes, *new])
        return [*episodes, *new]

    def append(self, ds: Dataset, episodes: list[Episode]) -> None:
        """Record more into a dataset that grows."""
        with rlds_cli.writer(ds.id) as w:
            self.recorded(w, episodes)

    def drop_beside_a_writer(self, ds: Dataset, episodes: list[Episode]) -> None:
        """Drop and label episodes of an earlier version while a writer goes on."""
        gone = self.chosen(episodes)
        with rlds_cli.writer(ds.id) as w:
            more = self.recorded(w, episodes)
            left = [e for e in more if e not in [episodes[k] for k in gone]]
            dropped = ds.select(episodes=gone).drop()
            self.made(dropped, left)
            more = self.recorded(w, left)
            if left:
                value = "good" if left[0].about.get("quality") == "bad" else "bad"
                new = [left[0].labelled(quality=value), *more[1:]]
                self.made(dropped.select(episodes=[0]).label(quality=value), new)
                more = new
            self.recorded(w, more)

    def restore(self, ds: Dataset, episodes: list[Episode]) -> None:
        """The content of any earlier version; the newest version stays if it has that content."""
        number = sorted(self.known[ds.id])[self.rng.integers(len(self.known[ds.id]))]
        wanted = self.known[ds.id][number]
        made = rlds_cli.open_dataset(f"{ds.id}#v{number}").restore()
        if made.version == ds.version:
            assert made.fingerprint == ds.fingerprint
            check(made, wanted)
        else:
            self.made(made, wanted)

    def preprocess(self, ds: Dataset, episodes: list[Episode]) -> None:
        new = []
        for e in episodes:
            if e.length > 1:
                rows = e.rows | {"next/reward": e.rows["next/reward"] * 2}
                new.append(replace(e, rows=rows, id=None))
        if new:
            self.made(preprocess.run(ds, double, self.name("p"), jobs=0), new)

    def look(self) -> None:
        """Every version of every dataset, opened now, and those that were opened before."""
        for id, every in self.known.items():
            newest = rlds_cli.open_dataset(id)
            assert [v.number for v in newest.versions if v.number] == sorted(every)
            for number, episodes in every.items():
                ds = rlds_cli.open_dataset(f"{id}#v{number}")
                check(ds, episodes)
                check_batches(ds, episodes, number)
                assert not verify(f"{id}#v{number}").problems
        for ds, episodes in self.opened:
            check(ds, episodes)
        if not self.resets:
            self._make_again()

    def end(self, place: Path) -> None:
        """All versions, pushed and read at their addresses; and compact."""
        for id, every in self.known.items():
            ds, episodes = rlds_cli.open_dataset(id), self.newest(id)
            before, address = ds.fingerprint, place / ds.path.name
            for number in self.rng.permutation(sorted(every)):
                rlds_cli.push(f"{id}#v{number}", address, pages=False)
            rlds_cli.push(id, address, pages=False)
            for number in sorted(every)[:-1]:
                far = rlds_cli.download(f"{address}#v{number}", as_=f"local/v{number}", cache_dir=place / ds.path.name)
                assert far.version == number
                check(far, every[number])
            if ds.store.segment_rows:  # images are not read from an address then
                far = rlds_cli.download(address, cache_dir=place / "far")
                assert not verify(id, cache_dir=place / "far").problems
            else:
                far = rlds_cli.open_dataset(address, cache_dir=place / "far")
            check(far, episodes)
            check_batches(far, episodes, 0)
            compact(id)
            ds = rlds_cli.open_dataset(id)
            assert ds.fingerprint == before and not ds.store.has_gaps and not verify(ds.path).problems
            check(ds, episodes)

    def _make_again(self) -> None:
        """The newest version of each dataset has the fingerprint of a dataset that is made of its episodes."""
        for id in self.known:
            if self.newest(id):
                again = rlds_cli.create("local/again", [e.item() for e in self.newest(id)], force=True)
                assert again.fingerprint == rlds_cli.open_dataset(id).fingerprint


def _common(a: list[Episode], b: list[Episode]) -> bool:
    return bool({e.id for e in a} & {e.id for e in b})


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_version_is_what_the_list_says(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second dataset is in another home, on another disk: what is made of it here refers to its rows."""
    monkeypatch.setattr("rlds_cli.convert.writer._INTERVAL", 600.0)  # the history says when a writer commits
    rng = np.random.default_rng(seed)
    history = History(rng, resets=seed % 2 == 0, store=("memmap", "zarr")[seed // 2 % 2])
    history.create("local/a")
    elsewhere = tmp_path / "elsewhere"
    _on_a_disk_of_its_own(elsewhere, monkeypatch)
    with monkeypatch.context() as m:
        m.setenv("RLDS_HOME", str(elsewhere))
        history.create("local/b")
    monkeypatch.setenv("RLDS_PATH", str(elsewhere))
    history.record(rlds_cli.open_dataset("local/a"))
    for _ in range(STEPS):
        history.step()
    history.look()
    history.end(tmp_path)


def _on_a_disk_of_its_own(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def link_within(source: Path, target: Path, **how: bool) -> None:
        if Path(source).is_relative_to(directory) != Path(target).is_relative_to(directory):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        link(source, target, **how)

    monkeypatch.setattr(os, "link", link_within)


# -- cases by themselves


@pytest.fixture
def five() -> list[Episode]:
    """Five episodes of three steps, without columns."""
    rng = np.random.default_rng(0)
    return [replace(draw(rng, 3), about={}) for _ in range(5)]


def test_an_open_version_reads_its_own_table_after_the_next_one_was_made(five: list[Episode]) -> None:
    first = build("local/a", five).label(quality="good")
    second = first.label(quality="bad")
    check(first, [e.labelled(quality="good") for e in five])  # reads its columns only now
    check(second, [e.labelled(quality="bad") for e in five])
    assert first.path == versions.at(second.path, 2)


def test_changes_of_an_open_version_are_made_of_it(five: list[Episode]) -> None:
    first = build("local/a", five)
    first.label(quality="good")
    check(first.select(episodes=[3, 1]).save("few"), [five[3], five[1]])
    check(first.trim({0: (1, 2)}, "short"), [five[0].part(1, 2), *five[1:]])
    check(rlds_cli.open_dataset(versions.at(first.path, 1)).select(episodes=[0]).save("one"), five[:1])


def test_only_the_newest_version_is_changed_in_its_place(five: list[Episode]) -> None:
    first = build("local/a", five)
    first.label(quality="good")
    for ds in (first, rlds_cli.open_dataset(versions.at(first.path, 1))):
        with pytest.raises(InvalidArgument, match="v1 is not the newest version: that is v2"):
            ds.label(quality="bad")
    check(first.label(quality="bad", name="other"), [e.labelled(quality="bad") for e in five])


def test_a_second_label_with_missing_values(five: list[Episode]) -> None:
    ds = build("local/a", five).label(a=[1, None, 2, None, 3]).label(b=["x", None, "", None, "y"])
    new = [
        e.labelled(a=a, b=b) for e, a, b in zip(five, [1, None, 2, None, 3], ["x", None, "", None, "y"], strict=True)
    ]
    check(ds, new)
    check(ds.label(a=None), [e.labelled(a=None) for e in new])


def test_large_numbers_that_leave_take_their_type_along(five: list[Episode]) -> None:
    new = [e.labelled(count=n) for e, n in zip(five, [1, 2, (1 << 63) + 1, 4, 5], strict=True)]
    ds = build("local/a", five).label(count=[e.about["count"] for e in new])
    check(ds.select(episodes=[0, 1]).save("few"), new[:2])
    check(ds.select(episodes=[2]).drop(), [*new[:2], *new[3:]])


def test_a_version_without_episodes(five: list[Episode]) -> None:
    build("local/a", five[:2])
    build("local/b", five[2:])
    merged = rlds_cli.merge(["local/a", "local/b"], "local/m")
    none = merged.select(episodes=slice(None)).drop()
    check(none, [])
    assert not verify(none.path).problems


def test_an_episode_is_not_saved_twice(five: list[Episode]) -> None:
    ds = build("local/a", five)
    with pytest.raises(InvalidArgument, match="selected twice"):
        ds.select(episodes=[0, 1, 0]).save("twice")
    assert not rlds_cli.find("local/a@twice")


def test_versions_of_a_dataset_that_was_replaced_are_not_those_of_the_new_one(five: list[Episode]) -> None:
    build("local/a", five).label(quality="good").label(quality="bad")
    ds = rlds_cli.create("local/a", [e.item() for e in five[:2]], force=True)
    assert [v.number for v in ds.versions] == [1]
    ds = ds.label(quality="good")
    assert [v.episodes for v in ds.versions] == [2, 2]
    check(rlds_cli.open_dataset(versions.at(ds.path, 1)), five[:2])


def test_a_part_that_was_merged_with_its_episode_is_another_episode(five: list[Episode]) -> None:
    ds = build("local/a", five)
    part = five[0].part(0, 2)
    ds.trim({0: (0, 2), 1: None, 2: None, 3: None, 4: None}, "part")
    merged = rlds_cli.merge(["local/a@part", "local/a"], "local/b", column="source_of")
    check(
        merged,
        [e.labelled(source_of=id) for id, e in zip(["local/a@part"] + 5 * ["local/a"], [part, *five], strict=True)],
    )
    check(
        merged.trim({1: (0, 2)}, "parts"),
        [
            e.labelled(source_of=id)
            for id, e in zip(["local/a@part"] + 5 * ["local/a"], [part, part, *five[1:]], strict=True)
        ],
    )


def test_a_killed_change_leaves_the_version_before_or_the_one_after() -> None:
    """The script forks: it runs in a process of its own, without the threads and the memory of this one."""
    every = os.environ.get("RLDS_KILLS_EVERY", "500")
    run = subprocess.run(
        [sys.executable, ROOT / "tests" / "versions_kills.py", every],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("ended") == 4


def test_episodes_that_are_made_again_keep_their_ids(five: list[Episode]) -> None:
    new = [five[0].part(0, 2), *five[1:]]
    ds = build("local/a", five).trim({0: (0, 2)}, "short")
    check(ds, new)
    check(rlds_cli.create("local/b", [ds.episode(k) for k in range(5)]), new)
    check(rlds_cli.merge([ds], "local/c", column="from"), [e.labelled(**{"from": ds.id}) for e in new])


def test_a_column_that_lost_its_values_merges_with_any(five: list[Episode]) -> None:
    build("local/a", five).select(episodes=[0]).label(task="press")
    rest = rlds_cli.open_dataset("local/a").select(episodes=[1, 2]).save("rest")
    copy = preprocess.run(rest, double, "doubled", jobs=0)
    other = build("local/b", [five[3].labelled(task="lift")])
    merged = rlds_cli.merge([copy, other], "local/c")
    assert merged.episodes["task"].tolist() == [None, None, "lift"]


def test_episodes_in_common_are_not_merged(five: list[Episode]) -> None:
    ds = build("local/a", five)
    few, more = (ds.select(episodes=some).save(name) for name, some in (("few", [0, 1]), ("more", [1, 2])))
    later = few.label(quality="good")
    for pair in ([ds, few], [few, more], [ds.select(episodes=[1]), later], [few, later]):
        with pytest.raises(InvalidArgument, match="would be repeated"):
            rlds_cli.merge(pair, "local/b")
    assert rlds_cli.merge([few, ds.select(episodes=[2, 3, 4])], "local/b").num_episodes == 5


def test_no_episode_is_left(five: list[Episode]) -> None:
    ds = build("local/a", five)
    check(ds.select(episodes=slice(None)).drop().label(facts={"fps": 10.0}), [])
    check(ds.select(episodes=[]).save("none"), [])


def test_two_layouts_of_one_content_are_packed_apart(five: list[Episode], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "LEAST_BYTES", 0)
    whole = build("local/a", five)
    trimmed = whole.trim(dict.fromkeys(range(5), (1, 3)), "ends")
    new = [e.part(1, 3) for e in five]
    again = build("local/b", new)
    assert again.fingerprint == trimmed.fingerprint and again.num_rows != trimmed.num_rows
    for ds, episodes in ((again, new), (trimmed, new), (whole, five)):
        check_batches(ds, episodes, 0)


@pytest.mark.slow
def test_a_label_does_not_change_what_a_loader_and_its_workers_read(five: list[Episode]) -> None:
    ds = build("local/a", five).label(score=[0.0, 1.0, 2.0, 3.0, 4.0])
    loader = Loader(ds, 2, sampler=Sequential(), fields="all", extra=("episode/score", "episode/number"), seed=3)
    wanted = [batch["observation/state"].numpy().tobytes() for batch in loader]
    batches = iter(DataLoader(loader.as_torch(), batch_size=None, num_workers=2, multiprocessing_context="spawn"))
    rlds_cli.open_dataset("local/a").label(score=5.0)
    found = list(batches)
    assert [batch["observation/state"].numpy().tobytes() for batch in found] == wanted
    assert all(batch["episode/score"].ravel().tolist() == batch["episode/number"].ravel().tolist() for batch in found)


@pytest.mark.slow
def test_pickles_and_other_processes_open_their_version(five: list[Episode]) -> None:
    first = build("local/a", five).label(quality="good")
    pickled = pickle.dumps(first)
    second = first.select(episodes=[0]).drop()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as other:
        for ds in (pickle.loads(pickled), other.submit(_again, first).result(), pickle.loads(pickle.dumps(first))):
            check(ds, [e.labelled(quality="good") for e in five])
        gone = pickle.dumps(rlds_cli.open_dataset(versions.at(second.path, 2)))
        versions.remove(second.path)
        for data in (pickled, gone):
            with pytest.raises(DatasetNotFound, match=r"#v2 was removed since it was pickled"):
                pickle.loads(data)
            with pytest.raises(DatasetNotFound):
                other.submit(pickle.loads, data).result()
        with pytest.raises(DatasetNotFound, match=r"#v2 was removed since it was opened: rlds compact"):
            first.store.digests("action")
    check(pickle.loads(pickle.dumps(second)), [e.labelled(quality="good") for e in five[1:]])


def _again(ds: Dataset) -> Dataset:
    """Send a dataset back from another process, which opened it."""
    assert ds.num_episodes
    return ds
