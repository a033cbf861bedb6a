"""The journal of decisions: what it takes, who reads it, what an undo leaves, and which dataset it is of."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from loader_data import create, episode

import rlds_cli
from rlds_cli.dataset import Dataset
from rlds_cli.errors import InvalidArgument, NoPermission


@pytest.fixture
def ds(home: Path) -> Dataset:
    return create([episode(k, 4 + k) for k in range(3)], ref="local/looked")


def ids_of(ds: Dataset) -> list[str]:
    return [row.tobytes().hex() for row in ds.episodes["id"]]


def test_decisions_come_back_in_order_with_time_and_version(ds: Dataset) -> None:
    a, b, _ = ids_of(ds)
    journal, before = ds.decisions(), datetime.now(UTC) - timedelta(milliseconds=1)
    journal.add([{"id": a, "labels": {"success": True, "quality": 3}, "by": "ann"}, {"id": b, "do": "drop"}])
    first, second = rlds_cli.open_dataset("local/looked").decisions().made()
    assert (first.id, first.do, dict(first.labels), first.by) == (a, "", {"success": True, "quality": 3}, "ann")
    assert (second.id, second.do, dict(second.labels), second.by) == (b, "drop", {}, "")
    assert first.version == second.version == 1
    assert before <= datetime.fromisoformat(first.time) <= datetime.now(UTC)


def test_a_reader_goes_on_where_it_stopped(ds: Dataset) -> None:
    a, b, _ = ids_of(ds)
    mine, theirs = ds.decisions(), rlds_cli.open_dataset("local/looked").decisions()
    seen = mine.add([{"id": a, "do": "drop", "by": "ann"}])
    theirs.add([{"id": b, "do": "keep", "first": 1, "stop": 3, "by": "bob"}])
    (key,) = [d.key for d in theirs.made() if d.by == "ann"]
    theirs.undo([key], by="bob")
    made, undone = mine.read(since=seen).entries
    assert made.decision is not None and (made.decision.first, made.decision.stop, made.by) == (1, 3, "bob")
    assert (undone.decision, undone.undone, undone.by) == (None, (key,), "bob")
    assert mine.read(since=mine.read().revision).entries == ()


def test_what_was_undone_can_be_decided_again(ds: Dataset) -> None:
    a, *_ = ids_of(ds)
    journal = ds.decisions()
    decision = {"id": a, "do": "drop", "by": "ann", "time": "2026-03-01T09:30:00Z"}
    journal.add([decision])
    (made,) = journal.made()
    journal.undo([made.key])
    assert journal.made() == []
    with pytest.raises(InvalidArgument, match=made.key):
        journal.undo([made.key])
    journal.add([decision])
    assert journal.made() == [made]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"id": "3"}, "3"),
    ({"id": 3}, "3"),
    ({"do": "delete"}, "delete"),
    ({"do": "drop", "first": 0}, "first"),
    ({"do": "keep", "first": 2, "stop": 2}, "2"),
    ({"do": "keep", "first": 2, "stop": 5}, "5"),
    ({"do": "keep", "first": 1.5, "stop": 3}, "1.5"),
    ({"do": "keep", "first": 0, "stop": 2, "text": "reach"}, "reach"),
    ({"do": "subtask", "first": 0, "stop": 2, "text": " "}, "text"),
    ({"labels": {"length": 3}}, "length"),
    ({"labels": {"subtasks": "[]"}}, "subtask"),
    ({"labels": {"quality": float("nan")}}, "quality"),
    ({"labels": {"quality": [1]}}, "quality"),
    ({"time": "yesterday"}, "yesterday"),
    ({"version": "v3"}, "v3"),
    ({"reviews": "bob"}, "bob"),
    ({"by": 7}, "7"),
    ({"quality": 3}, "quality"),
    ({"id": "0" * 32}, "0" * 32),
]


@pytest.mark.parametrize(("wrong", "named"), WRONG, ids=[str(w) for w, _ in WRONG])
def test_what_cannot_be_understood_is_refused_with_all_that_came_with_it(
    ds: Dataset, wrong: dict[str, Any], named: str
) -> None:
    a, b, _ = ids_of(ds)
    journal = ds.decisions()
    with pytest.raises(InvalidArgument, match=named):
        journal.add([{"id": b, "do": "drop"}, {"id": a, **wrong}])
    assert journal.made() == []


def test_all_versions_of_a_dataset_have_one_journal(ds: Dataset) -> None:
    a, b, c = ids_of(ds)
    ds.decisions().add([{"id": a, "do": "drop"}])
    second = ds.label(good=True)
    second.decisions().add([{"id": b, "do": "drop"}])
    third = second.select(episodes=[2]).drop()
    with pytest.raises(InvalidArgument, match=c):
        third.decisions().add([{"id": c, "do": "drop"}])
    rlds_cli.open_dataset("local/looked#v1").decisions().add([{"id": c, "do": "drop"}])
    restored = rlds_cli.open_dataset("local/looked#v2").restore()
    assert [(d.id, d.version) for d in restored.decisions().made()] == [(a, 1), (b, 2), (c, 1)]


def test_another_dataset_of_the_name_gets_nothing(ds: Dataset) -> None:
    a, *_ = ids_of(ds)
    ds.decisions().add([{"id": a, "do": "drop"}])
    other = rlds_cli.create("local/looked", [episode(8, 3).plain(reward=True)], force=True)
    assert other.decisions().made() == []
    saved = other.save("few")
    assert saved.decisions().made() == []


def test_versions_of_a_growing_dataset_have_one_journal(home: Path) -> None:
    with rlds_cli.writer("local/grown") as w:
        w.add_episodes([episode(k, 4).plain(reward=True) for k in range(2)])
        w.commit()
        first = rlds_cli.open_dataset("local/grown")
        first.decisions().add([{"id": ids_of(first)[1], "do": "drop"}])
        w.add_episodes([episode(2, 4).plain(reward=True)])
    newest = rlds_cli.open_dataset("local/grown")
    assert newest.num_episodes == 3
    assert [d.id for d in newest.decisions().made()] == [ids_of(first)[1]]


def test_a_dataset_that_may_only_be_read_has_its_journal_in_ones_own_home(
    ds: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, *_ = ids_of(ds)
    before = sorted(p for p in (tmp_path / "home").rglob("*"))
    monkeypatch.setenv("RLDS_PATH", str(tmp_path / "home"))
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "own"))
    rlds_cli.open_dataset("local/looked").decisions().add([{"id": a, "do": "drop"}])
    assert len(rlds_cli.open_dataset("local/looked").decisions().made()) == 1
    assert sorted(p for p in (tmp_path / "home").rglob("*")) == before


def test_a_process_that_is_killed_has_lost_nothing_that_was_added(ds: Dataset) -> None:
    code = (
        "import os, sys, rlds_cli\n"
        "ds = rlds_cli.open_dataset('local/looked'); journal = ds.decisions()\n"
        "for k in range(3):\n"
        "    journal.add([{'id': i.tobytes().hex(), 'labels': {'seen': k}} for i in ds.episodes['id']])\n"
        "    print(k, flush=True)\n"
        "os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (killed.returncode, killed.stdout.split()) == (-9, ["0", "1", "2"]), killed.stderr
    assert [d.labels["seen"] for d in ds.decisions().made()] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_a_link_in_its_place_is_not_followed(ds: Dataset, tmp_path: Path) -> None:
    a, *_ = ids_of(ds)
    ds.decisions().add([{"id": a, "do": "drop"}])
    (file,) = (tmp_path / "home" / "decisions").iterdir()
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    before = (tmp_path / "elsewhere").read_bytes()
    with pytest.raises(NoPermission):
        ds.decisions().add([{"id": a, "do": "drop"}])
    assert (tmp_path / "elsewhere").read_bytes() == before
