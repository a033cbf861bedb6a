"""Any order of selecting, trimming, labelling, dropping, restoring, merging: every version is what a list says."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader
from versions_history import STEPS, History, begin, double, links_within
from versions_model import Episode, build, check, check_batches, draw

import rlds_cli
from rlds_cli import preprocess, store
from rlds_cli.base.files import publishing
from rlds_cli.dataset import Dataset
from rlds_cli.errors import DatasetNotFound, InvalidArgument
from rlds_cli.keep import gc as garbage
from rlds_cli.keep.compacting import compact
from rlds_cli.keep.verification import verify
from rlds_cli.loader import Loader, Sequential
from rlds_cli.loader.storage import blocks

ROOT = Path(__file__).parents[2]
SEEDS = int(os.environ.get("RLDS_HISTORIES", "2"))


@pytest.mark.parametrize(
    ("seed", "steps"),
    [(0, STEPS // 8), *(pytest.param(seed, STEPS, marks=pytest.mark.thorough) for seed in range(SEEDS))],
)
def test_every_version_is_what_the_list_says(
    seed: int, steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All versions, and pushed ones at their addresses; one of the two first datasets is on another disk."""
    monkeypatch.setattr(os, "link", links_within(tmp_path / "elsewhere"))
    monkeypatch.setenv("RLDS_PATH", "")  # set by `begin`, and put back at the end
    history = begin(seed, tmp_path)
    for _ in range(steps):
        history.step()
    history.look()
    _push_and_read(history, tmp_path)
    history.end()


def _push_and_read(history: History, place: Path) -> None:
    """All versions are pushed, and read at their addresses."""
    for id, every in history.known.items():
        ds, address = rlds_cli.open_dataset(id), place / rlds_cli.open_dataset(id).path.name
        for number in history.rng.permutation(sorted(every)):
            rlds_cli.push(f"{id}#v{number}", address, pages=False)
        rlds_cli.push(id, address, pages=False)
        for number in sorted(every)[:-1]:
            far = rlds_cli.download(f"{address}#v{number}", name=f"local/v{number}", home=place / ds.path.name)
            assert far.version == number
            check(far, every[number])
        far = rlds_cli.open_dataset(address, home=place / "far")
        check(far, history.newest(id))
        check_batches(far, history.newest(id), 0)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(SEEDS // 2))
def test_histories_with_killed_changes(seed: int, tmp_path: Path) -> None:
    """They fork, in a process of their own; every other one over a home of another user, which may only be read."""
    foreign = ["--foreign"] if seed % 2 and os.geteuid() == 0 and sys.platform == "linux" else []
    _program("versions_history.py", seed, tmp_path, *foreign)


def _program(name: str, *arguments: object) -> str:
    """Run a program of this directory; return what it prints."""
    run = subprocess.run(
        [sys.executable, ROOT / "tests" / "contract" / name, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-1000:] + run.stderr
    return run.stdout


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
    assert first.path == store.History(second.path).at(2)


def test_changes_of_an_open_version_are_made_of_it(five: list[Episode]) -> None:
    first = build("local/a", five)
    first.label(quality="good")
    check(first.select(episodes=[3, 1]).save("few"), [five[3], five[1]])
    check(first.trim({0: (1, 2)}, "short"), [five[0].part(1, 2), *five[1:]])
    check(rlds_cli.open_dataset(store.History(first.path).at(1)).select(episodes=[0]).save("one"), five[:1])


def test_only_the_newest_version_is_changed_in_its_place(five: list[Episode]) -> None:
    first = build("local/a", five)
    first.label(quality="good")
    for ds in (first, rlds_cli.open_dataset(store.History(first.path).at(1))):
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


@pytest.mark.thorough
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
    check(rlds_cli.open_dataset(store.History(ds.path).at(1)), five[:2])


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


@pytest.mark.thorough
def test_a_killed_change_leaves_the_version_before_or_the_one_after() -> None:
    """The script forks: it runs in a process of its own, without the threads and the memory of this one."""
    every = os.environ.get("RLDS_KILLS_EVERY", "500")
    assert _program("versions_kills.py", every).count("ended") == 4


def test_offsets_of_images_beyond_their_bytes_are_damage(five: list[Episode]) -> None:
    ds = build("local/a", five)
    file = ds.path / "wrist/offsets/c/0/0"
    content = np.frombuffer(file.read_bytes(), np.int64).copy()
    content[1:] = 1 << 60
    file.chmod(0o644)
    file.write_bytes(content.tobytes())
    assert "do not increase within" in str(verify(ds.path).problems)


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
    loader = Loader(ds, 2, sampler=Sequential(), fields=["all", "episode/score", "episode/number"], seed=3)
    wanted = [batch["observation/state"].numpy().tobytes() for batch in loader]
    batches = iter(DataLoader(loader.as_torch(), batch_size=None, num_workers=2, multiprocessing_context="spawn"))
    rlds_cli.open_dataset("local/a").label(score=5.0)
    found = list(batches)
    assert [batch["observation/state"].numpy().tobytes() for batch in found] == wanted
    assert all(batch["episode/score"].ravel().tolist() == batch["episode/number"].ravel().tolist() for batch in found)


@pytest.mark.slow
@pytest.mark.parametrize("grows", [False, True])
def test_spawned_workers_open_a_version_that_is_removed_meanwhile(five: list[Episode], grows: bool) -> None:
    """One with a tag, and one that grows and is open, stay."""
    ds = build("local/a", five)
    if grows:
        with rlds_cli.writer("local/g", like=ds) as w:
            w.add_episodes([e.item() for e in five])
            w.commit()
            ds = w.dataset()
    loader = Loader(ds, 2, sampler=Sequential(), fields=["all", "episode/number"], seed=3)
    wanted = [batch["action"].numpy().tobytes() for batch in loader]
    how: dict[str, Any] = {"batch_size": None, "num_workers": 2, "multiprocessing_context": "spawn"}
    if not grows:
        ds.tag("kept")
    batches = iter(DataLoader(loader.as_torch(), **how))
    _dropped_and_compacted(ds.id)
    assert [batch["action"].numpy().tobytes() for batch in batches] == wanted


def _dropped_and_compacted(id: str) -> None:
    rlds_cli.open_dataset(id).select(episodes=[0]).drop()
    compact(id)
    garbage.collect(garbage.find_garbage())


@pytest.mark.slow
def test_pickles_and_other_processes_open_their_version(five: list[Episode]) -> None:
    first = build("local/a", five).label(quality="good")
    pickled = pickle.dumps(first)
    second = first.select(episodes=[0]).drop()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as other:
        for ds in (pickle.loads(pickled), other.submit(_again, first).result(), pickle.loads(pickle.dumps(first))):
            check(ds, [e.labelled(quality="good") for e in five])
        gone = pickle.dumps(rlds_cli.open_dataset(store.History(second.path).at(2)))
        publishing.remove(store.History(second.path).beside)
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
