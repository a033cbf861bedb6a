"""Labels, drops, facts and restoring of a growing dataset, in its place, while others write and read it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_versions_commands import run

import rlds_cli
from rlds_cli import Fifo, Top
from rlds_cli.dataset import Dataset
from rlds_cli.errors import DamagedDataset, InvalidArgument, InvalidEpisode
from rlds_cli.keep import compacting, pinning
from rlds_cli.keep.verification import verify
from rlds_cli.loader import Loader, Prioritized, Sequential, Weighted
from rlds_cli.make.convert.writer import Writer
from rlds_cli.store.growing import logs

ID = "local/rec"


def episode(k: int, **about: Any) -> dict[str, Any]:
    """An episode of 3 steps, all of whose values are its number."""
    return {
        "observation": np.full((4, 2), k, np.float32),
        "action": np.full((3, 1), k, np.float32),
        "next": {"reward": np.full(3, float(k)), "terminated": True},
        "episode": about,
    }


def add(w: Writer, *numbers: int, **about: Any) -> Dataset:
    """Commit episodes."""
    w.add_episodes([episode(k, **about) for k in numbers])
    w.commit()
    return w.dataset()


def record(count: int = 5, **options: Any) -> Dataset:
    """A dataset of one commit for each episode."""
    with rlds_cli.writer(ID, **options) as w:
        for k in range(count):
            add(w, k)
    return w.dataset()


def numbers(ds: Dataset) -> list[int]:
    """The numbers of the episodes of a dataset, by their rows."""
    return [int(ds.episode(k)["action"][0, 0]) for k in range(ds.num_episodes)]


def newest() -> Dataset:
    return rlds_cli.open_dataset(ID)


def assert_whole(ds: Dataset) -> None:
    """A version is sound, and has the fingerprint of an ordinary dataset of its episodes."""
    assert not verify(f"{ds.path}#v{ds.version}").problems
    items = []
    for k, number in zip(ds.episodes.index.tolist(), numbers(ds), strict=True):
        about = {n: ds.store.own_column(n).scalar(k) for n in ds.store.own_columns}
        items.append(episode(number, **{n: v for n, v in about.items() if v is not None}))
    assert ds.fingerprint == rlds_cli.create("local/ordinary", items, force=True).fingerprint


# -- commands


@pytest.mark.thorough
def test_commands_change_it_and_the_log_names_them() -> None:
    record(6)
    assert "local/rec#v7" in run("label", ID, "--episodes", "1,3", "quality=bad", "take=2")
    run("label", ID, "--set", "fps=50", "--set", "license=CC-BY-4.0")
    run("drop", ID, "--where", "quality == 'bad'")
    assert numbers(newest()) == [0, 2, 4, 5]
    assert "quality" not in newest().episodes
    assert newest().manifest.env["fps"] == 50 and newest().manifest.facts["licence"] == "CC-BY-4.0"
    run("restore", f"{ID}#v7")
    ds = newest()
    assert ds.fingerprint == rlds_cli.open_dataset(f"{ID}#v7").fingerprint and ds.version == 10
    assert ds.manifest.env["fps"] is None
    assert [v.change for v in ds.versions][6:] == [
        "commit",
        "label --episodes 1,3 quality=bad take=2 (2 episodes)",
        "label --set fps=50 --set license=CC-BY-4.0",
        "drop --where \"quality == 'bad'\" (2 episodes)",
        "restore local/rec#v7",
    ]
    assert [v.episodes for v in ds.versions][6:] == [6, 6, 6, 4, 6]
    assert "label --episodes 1,3 quality=bad" in run("log", ID)
    assert "nothing changed" in run("restore", f"{ID}#v7")
    assert "nothing changed" in run("label", ID, "--where", "quality == 'bad'", "quality=bad")
    assert "nothing changed" in run("restore", f"{ID}#v10")
    for number in range(1, 11):
        assert_whole(rlds_cli.open_dataset(f"{ID}#v{number}"))


def test_versions_are_compared_by_labels_and_facts() -> None:
    ds = record(3).select(episodes=[1]).label(quality="bad").label(facts={"description": "a trial"})
    said = run("diff", f"{ID}#v3", ID)
    assert "quality" in said and "a trial" in said
    assert "a trial" in run("info", ID)
    assert ds.select(where="quality == 'bad'").num_episodes == 1


def test_labels_supersede_what_was_recorded() -> None:
    with rlds_cli.writer(ID) as w:
        add(w, 0, score=1, task="press")
        add(w, 1, score=2, task="lift")
        add(w, 2)
    ds = w.dataset().select(episodes=[0, 2]).label(score=[None, 0.5], task="push")
    assert ds.episodes["score"].tolist()[1:] == [2.0, 0.5] and np.isnan(ds.episodes["score"][0])
    assert ds.episodes["task"].tolist() == ["push", "lift", "push"]
    assert_whole(ds)
    ds = ds.label(task=None)
    assert "task" not in ds.episodes
    assert_whole(ds)
    with pytest.raises(InvalidArgument, match="of type float64"):
        ds.label(score="high")
    with pytest.raises(InvalidArgument, match="3 values for 1"):
        ds.select(episodes=[1]).label(score=[1, 2, 3])
    other = ds.select(episodes=[1]).label(score=1, name="other")
    assert other.episodes["score"].tolist()[1:] == [1.0, 0.5]
    assert newest().version == ds.version


@pytest.mark.thorough
def test_texts_that_are_no_unicode_are_refused() -> None:
    with rlds_cli.writer(ID) as w:
        add(w, 0)
        w.commit()
        with pytest.raises(InvalidEpisode, match="not valid Unicode"):
            add(w, 1, task="\ud800")
    with pytest.raises(InvalidEpisode, match="not valid Unicode"):
        w.dataset().label(task="a\ud800")
    assert_whole(newest())


def test_only_a_change_of_another_is_in_the_way() -> None:
    with rlds_cli.writer(ID) as w:
        first = add(w, 0, 1)
        add(w, 2)
        changed = first.select(episodes=[1]).label(quality="bad")
        assert changed.num_episodes == 3
        with pytest.raises(InvalidArgument, match=r"v1 is not the newest version: that is v3"):
            first.select(episodes=[0]).drop()
        add(w, 3)
    assert numbers(changed.select(episodes=[0]).drop()) == [1, 2, 3]


# -- beside a writer


def test_a_selection_is_not_refreshed_once_there_is_a_newer_version() -> None:
    with rlds_cli.writer(ID) as w:
        some = add(w, 0, 1).select(episodes=[1])
        assert some.refresh() is some
        add(w, 2)
        with pytest.raises(InvalidArgument, match="a selection is not refreshed"):
            some.refresh()


def test_an_open_episode_keeps_its_labels_and_stays_dropped() -> None:
    def step(w: Writer, env: int, last: bool = False) -> None:
        mask = np.arange(2) == env
        zeros = np.zeros(2)
        w.add(zeros, zeros, reward=zeros, terminated=mask & last, mask=mask, next_observation=zeros)

    with rlds_cli.writer(ID, envs=2, durable=False) as w:
        step(w, 0)
        step(w, 1)
        w.commit()
        ds = first = w.dataset()
        before = ds.episodes["id"].copy()
        ds = ds.select(episodes=[0]).label(quality="bad")
        ds = ds.select(episodes=[1]).drop()
        step(w, 0)
        step(w, 1)
        w.commit()
        ds = ds.refresh()
        assert ds.num_episodes == 1 and ds.episodes["length"].tolist() == [2]
        assert ds.episodes["quality"].tolist() == ["bad"] and ds.episodes["id"].tolist() == before[:1].tolist()
        step(w, 0, last=True)
        step(w, 1, last=True)
        step(w, 0, last=True)
    ds = w.dataset()
    assert ds.episodes["length"].tolist() == [3, 1] and ds.episodes["quality"].tolist() == ["bad", None]
    with pytest.raises(InvalidArgument, match="2 episodes of it left since, or continued"):
        first.restore()
    assert not verify(ID).problems


def test_a_value_of_another_type_than_the_labels_waits_until_they_are_gone() -> None:
    with rlds_cli.writer(ID) as w:
        add(w, 0).label(quality="bad")
        w.add_episodes([episode(1, quality=0.5)])
        with pytest.raises(InvalidEpisode, match="is a number here, a text before"):
            w.commit()
        assert newest().num_episodes == 1
        newest().label(quality=None)
        w.commit()
        assert newest().episodes["quality"].tolist()[1] == 0.5


@pytest.mark.thorough
def test_ids_stay_unique_when_dropped_episodes_are_added_again() -> None:
    ds = record(3)
    gone, name = ds.episode(1), bytes(ds.episodes["id"][1])
    ds.select(episodes=[1]).drop()
    with rlds_cli.writer(ID) as w:
        w.add_episodes([gone])
    assert numbers(newest()) == [0, 2, 1]
    number = newest().version
    restored = rlds_cli.open_dataset(f"{ID}#v3").restore()
    assert restored.episodes["id"].tolist() == rlds_cli.open_dataset(f"{ID}#v3").episodes["id"].tolist()
    assert numbers(rlds_cli.open_dataset(f"{ID}#v{number}").restore()) == [0, 2, 1]
    compacting.compact(ID)
    with rlds_cli.writer(ID) as w:
        w.add_episodes([gone])
    ids = [bytes(x) for x in newest().episodes["id"]]
    assert numbers(newest()) == [0, 2, 1, 1] and len(set(ids)) == 4 and ids[3] == name


def test_what_is_dropped_does_not_count_for_what_is_kept() -> None:
    with rlds_cli.writer(ID, keep=Fifo(episodes=3)) as w:
        ds = add(w, 0, 1, 2)
        ds.select(episodes=[1]).drop()
        assert numbers(add(w, 3)) == [0, 2, 3]
        assert numbers(rlds_cli.open_dataset(f"{ID}#v1").restore()) == [0, 1, 2]
        rlds_cli.open_dataset(f"{ID}#v3").restore()
        ds = add(w, 4, 5)
    assert numbers(ds) == [3, 4, 5]
    assert ds.store.table.commit.dropped == 0 and ds.store.table.commit.first_episode == 3  # as old as what left
    assert not verify(ID).problems


def test_the_best_are_kept_by_their_labels() -> None:
    with rlds_cli.writer(ID, keep=Top(episodes=2, by="score")) as w:
        ds = add(w, 0, 1, score=1)
        ds.select(episodes=[0]).label(score=9)
        add(w, 2, score=5)
        assert numbers(add(w, 3, score=0)) == [0, 2]
    with rlds_cli.writer(ID) as w:
        assert numbers(add(w, 4, score=8)) == [0, 4]


@pytest.mark.thorough
def test_clearing_lets_dropped_episodes_leave() -> None:
    before = record(3)
    before.select(episodes=[0, 1, 2]).drop()
    found = compacting.clear(ID)
    assert (found.left, found.kept) == (0, 0) and newest().store.table.commit.dropped == 0
    with pytest.raises(InvalidArgument, match=r"#v3 cannot be restored: 3 episodes of it left"):
        before.restore()


def test_compacting_removes_what_is_dropped_and_keeps_labels() -> None:
    ds = record(4).select(episodes=[0, 2]).label(quality=["bad", "good"], flag=False).label(facts={"fps": 10})
    before = ds.select(where="quality == 'bad'").drop()
    labelled = before.select(episodes=[0]).label(quality="fine")
    held = rlds_cli.open_dataset(f"{ID}#v6")
    found = compacting.compact(ID)
    assert found.changed and found.fingerprint == labelled.fingerprint and newest().store.table.commit.dropped == 0
    assert newest().episodes["quality"].tolist() == ["fine", "good", None] and newest().manifest.env["fps"] == 10
    assert newest().versions[-1].change == "compact"
    with pytest.raises(InvalidArgument, match=r"#v6 cannot be restored: 1 episode of it left since"):
        held.restore()
    assert numbers(held) == [0, 1, 2, 3]
    restored = before.restore()
    assert restored.fingerprint == before.fingerprint and restored.episodes["quality"].tolist() == [None, "good", None]
    assert_whole(restored)


# -- kills

_KILLED = """
import os, signal, sys
import rlds_cli
count = 0
def seen(event, args):
    global count
    if event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR) and str(args[0]).endswith(".log"):
        count += 1
        if count == int(sys.argv[1]):
            os.kill(os.getpid(), signal.SIGKILL)
ds = rlds_cli.open_dataset("local/rec").select(episodes=[1])
sys.addaudithook(seen)
ds.label(quality="a long word that is cut") if sys.argv[2] == "label" else ds.drop()
"""


@pytest.mark.thorough
@pytest.mark.parametrize("change", ["label", "drop"])
def test_a_killed_change_leaves_the_version_before_or_the_one_after(change: str) -> None:
    """It is ended before it opens the first log that it writes, and the second one."""
    before = record(3)
    for at in (1, 2, 3):
        done = subprocess.run([sys.executable, "-c", _KILLED, str(at), change], env=os.environ, check=False)
        assert done.returncode == (-signal.SIGKILL if at < 3 else 0)
        assert newest().version == before.version + (at == 3)
        assert not verify(ID).problems
        if at == 2:  # a shorter change, and a commit, write over what is left of it
            assert (before.path / logs.EDITS).stat().st_size > 0
            before.label(facts={"fps": 1})
            with rlds_cli.writer(ID) as w:
                before = add(w, 3)
            assert not verify(ID).problems and before.manifest.env["fps"] == 1
    assert_whole(newest())


# -- loaders


def draws(batches: Any, wanted: set[int]) -> bool:
    """Return whether the loader comes to draw these episodes and no others, within seconds."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        if {k for _ in range(50) for k in next(batches)["action"].ravel().astype(int).tolist()} == wanted:
            return True
    return False


@pytest.mark.thorough
def test_loaders_leave_out_what_their_version_has_dropped() -> None:
    ds = record(5)
    after = ds.select(episodes=[1, 4]).drop()
    for version, wanted in ((ds, [0, 1, 2, 3, 4]), (after, [0, 2, 3])):
        loader = Loader(version, 3, sampler=Sequential(), backend="numpy")
        assert [int(b["action"][0, 0]) for b in loader] == wanted
    labelled = after.select(episodes=[0, 2]).label(quality="bad")
    loader = Loader(labelled.select(where="quality == 'bad'"), 3, sampler=Sequential(), backend="numpy")
    assert [int(b["action"][0, 0]) for b in loader] == [0, 3]


@pytest.mark.thorough
@pytest.mark.parametrize("sampler", [None, Prioritized()])
def test_a_live_loader_takes_up_drops_and_restored_episodes(sampler: Any) -> None:
    ds = record(5)
    options = {} if sampler is None else {"sampler": sampler}
    batches = iter(Loader(ds, 16, live=True, backend="numpy", seed=0, **options))
    assert draws(batches, {0, 1, 2, 3, 4})
    ds.select(episodes=[1, 4]).drop()
    assert draws(batches, {0, 2, 3})
    ds.restore()
    assert draws(batches, {0, 1, 2, 3, 4})
    with rlds_cli.writer(ID) as w:
        add(w, 5).select(episodes=[0, 1, 2, 3, 4]).drop()
    assert draws(batches, {5})


@pytest.mark.thorough
def test_a_live_loader_weighs_by_labels() -> None:
    ds = record(3).label(weight=[1.0, 0.0, 0.0])
    batches = iter(Loader(ds, 16, live=True, backend="numpy", seed=0, sampler=Weighted("weight")))
    assert draws(batches, {0})
    ds.label(weight=[0.0, 0.0, 1.0])
    assert draws(batches, {2})


# -- elsewhere


def test_a_push_takes_edits_along(tmp_path: Path) -> None:
    ds = record(5).select(episodes=[1, 4]).label(quality="bad").label(facts={"fps": 5.0})
    ds = ds.select(episodes=[4]).drop()
    assert "with 1 dropped episode, which rlds compact removes" in run("push", ID, str(tmp_path / "there"))
    far = rlds_cli.open_dataset(tmp_path / "there", home=tmp_path / "far")
    assert numbers(far) == [0, 1, 2, 3] and far.fingerprint == ds.fingerprint
    assert far.episodes["quality"].tolist() == [None, "bad", None, None] and far.manifest.env["fps"] == 5
    for change in (lambda: far.label(quality="good"), lambda: far.select(episodes=[0]).drop(), far.restore):
        with pytest.raises(InvalidArgument, match="at an address, where it is not changed"):
            change()
    copy = rlds_cli.download(tmp_path / "there", home=tmp_path / "home2")
    assert copy.fingerprint == ds.fingerprint and not verify(copy.path).problems
    earlier = rlds_cli.open_dataset(f"{copy.path}#v6")
    assert numbers(earlier) == [0, 1, 2, 3, 4]
    assert earlier.restore().fingerprint == rlds_cli.open_dataset(f"{ID}#v6").fingerprint
    ds.select(episodes=[0]).label(quality="fine")
    rlds_cli.push(ID, tmp_path / "there", pages=False)
    assert rlds_cli.open_dataset(tmp_path / "there", home=tmp_path / "far").episodes["quality"][0] == "fine"


def test_a_merge_and_numpy_alone_read_what_it_holds() -> None:
    ds = record(5).select(episodes=[0, 1, 4]).label(quality=["bad", None, "good"], take=3)
    ds = ds.select(episodes=[0]).drop()
    merged = rlds_cli.merge([ID], "local/merged", column="of")
    assert merged.episodes["quality"].tolist() == ds.episodes["quality"].tolist() == [None, None, None, "good"]
    assert numbers(merged) == [1, 2, 3, 4]
    code = f"import sys; sys.argv = ['', '{ds.path}']; exec(open('docs/reference/read_with_numpy.py').read())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    assert ds.fingerprint in done.stdout


def test_a_log_of_edits_that_is_wrong_is_refused() -> None:
    path = record(3).select(episodes=[1]).label(quality="bad").path
    text = (path / logs.EDITS).read_bytes()
    wrong = (
        b"[]", b"{", b'{"episodes": [[1, 2]], "columns": {"quality": [1, 2]}}', b'{"episodes": [[2, 1]]}',
        b'{"episodes": [[0, 9]], "dropped": true}', b'{"episodes": [[0, 1]], "dropped": 1}', b'{"episodes": 3}',
        b'{"by": "rm"}', b'{"by": "restore", "args": {}}', b'{"columns": {"length": 1}}', b'{"facts": {"fps": "x"}}',
        b'{"facts": {"speed": 1}}', b'{"args": {"where": []}}', b'{"columns": []}', b'{"end": 3}', b'{"episodes": [3]}',
    )  # fmt: skip
    for line in wrong:
        (path / logs.EDITS).write_bytes(line.ljust(len(text) - 1) + b"\n")
        assert any(p.where == logs.EDITS for p in verify(ID).problems), line
        with pytest.raises(DamagedDataset):
            _ = newest().num_episodes, newest().episodes["quality"], newest().manifest
    (path / logs.EDITS).write_bytes(text.replace(b"bad", b"mad"))
    (problem,) = verify(ID).problems
    assert (problem.where, problem.what) == ("logs", "are not what version 4 wrote")
    (path / logs.EDITS).write_bytes(text[:-3])
    assert verify(ID).problems
    (path / logs.EDITS).write_bytes(text)
    assert verify(ID).ok


@pytest.mark.thorough
def test_a_lock_names_the_version_that_was_labelled() -> None:
    ds = record(3).select(episodes=[1]).label(quality="bad")
    text = pinning.lock([ID], allow_unreproducible=True)
    ds.select(episodes=[0]).drop()
    (locked,) = json.loads(text)["datasets"]
    assert (locked["version"], locked["fingerprint"]) == (4, ds.fingerprint)
    assert locked["fingerprint"] == rlds_cli.open_dataset(f"{ID}#v4").fingerprint
