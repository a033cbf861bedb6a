"""Rows written part by part: in one process or several, interrupted and resumed, with text and frames among them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from part_jobs import PARTS, SCHEMA, Interrupted, Job, episodes

from rlds_cli.archives import Part
from rlds_cli.base.progress import Event, silent
from rlds_cli.base.repeated import Repeated
from rlds_cli.errors import RldsError
from rlds_cli.store import Built, Description, Work, finish, open_store, rows
from rlds_cli.ted import Chunk, EpisodeTable, Field, lay_out


def check(built: Built) -> str:
    """Finish the dataset, compare everything with what was put in, and return the fingerprint."""
    m = finish(built, Description("local/x"))
    store = open_store(built.directory)
    want = [e for p in range(PARTS) for e in episodes(p)]
    start = 0
    for k, e in enumerate(want):
        stop = start + e.length
        assert store.episodes["start"][k] == start
        assert np.array_equal(store.rows("action")[start:stop], e.columns["action"])
        assert not store.rows("action")[stop].any()
        if "info/word" in store.fields:
            assert store.gather("info/word", np.arange(start, stop + 1)).tolist() == [*e.columns["info/word"], None]
            offsets, frames = store.rows("observation/pixels"), e.columns["observation/pixels"]
            assert np.diff(offsets[start : stop + 1])[:, 0].tolist() == frames.lengths.tolist()
            assert (
                store.frames("observation/pixels").data[offsets[start, 0] : offsets[stop, 1]].tolist()
                == frames.data.tolist()
            )
        start = stop + 1
    assert m.counts.rows == start
    assert store.table.episode_strings("group") == [e.group for e in want]
    assert store.episodes["seed"].tolist() == [e.seed for e in want]
    assert m.notes == ({"code": "seen", "text": "episodes", "count": 10, "where": ""},)
    return m.fingerprint


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The fingerprint of what one process writes without an interruption."""
    return check(Work(Job(), tmp_path_factory.mktemp("undisturbed") / "w").run(progress=silent))


def test_workers_and_segments_change_nothing(tmp_path: Path, undisturbed: str) -> None:
    for known in (False, True):
        built = Work(Job(known), tmp_path / f"two{known}").run(jobs=2, progress=silent)
        assert check(built) == undisturbed


def test_arrays_alone_are_written_in_place(tmp_path: Path) -> None:
    plain = SCHEMA[:3]
    one = check(Work(Job(True, schema=plain), tmp_path / "one").run(progress=silent))
    two = Work(Job(True, schema=plain), tmp_path / "two").run(jobs=2, progress=silent)
    assert not (tmp_path / "two/segments").exists()
    assert check(two) == one


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("first", "then"), [(0, 0), (0, 2), (2, 0), pytest.param(2, 2, marks=pytest.mark.slow)])
def test_resumed_after_a_failure(tmp_path: Path, undisturbed: str, first: int, then: int) -> None:
    for fail_at in (1, 4) if first == 0 else (3,):
        work = tmp_path / f"{fail_at}"
        with pytest.raises(Interrupted):
            Work(Job(fail_at=fail_at), work).run(jobs=first, progress=silent)
        events: list[Event] = []
        assert check(Work(Job(), work).run(jobs=then, progress=events.append)) == undisturbed
        finished = len((work / "journal.jsonl").read_text().splitlines())
        assert finished == 1 + PARTS
        if first == 0:
            assert events[0].note == f"resumed: {fail_at} of {PARTS} parts were finished"


@pytest.mark.thorough
def test_a_part_is_done_again_when_its_rows_are_not_what_they_were(tmp_path: Path, undisturbed: str) -> None:
    with pytest.raises(Interrupted):
        Work(Job(fail_at=3), tmp_path / "w").run(progress=silent)
    file = tmp_path / "w/dataset/action/c/0/0"
    data = bytearray(file.read_bytes())
    data[5] ^= 1
    file.write_bytes(bytes(data))
    events: list[Event] = []
    assert check(Work(Job(), tmp_path / "w").run(progress=events.append)) == undisturbed
    assert "2 of 5" in events[0].note


@pytest.mark.parametrize("damage", ["cut", "garbage", "empty", "gone"])
def test_a_damaged_journal_is_no_obstacle(tmp_path: Path, undisturbed: str, damage: str) -> None:
    with pytest.raises(Interrupted):
        Work(Job(fail_at=3), tmp_path / "w").run(progress=silent)
    journal = tmp_path / "w/journal.jsonl"
    text = journal.read_text()
    journal.write_text({"cut": text[:-40], "garbage": text + "garbage\n", "empty": "", "gone": ""}[damage])
    if damage == "gone":
        journal.unlink()
    assert check(Work(Job(), tmp_path / "w").run(progress=silent)) == undisturbed
    for line in journal.read_text().splitlines():
        json.loads(line)


def test_work_of_another_key_is_forgotten(tmp_path: Path, undisturbed: str) -> None:
    with pytest.raises(Interrupted):
        Work(Job(key="other", fail_at=3), tmp_path / "w").run(jobs=2, progress=silent)
    events: list[Event] = []
    assert check(Work(Job(), tmp_path / "w").run(progress=events.append)) == undisturbed
    assert not events[0].note
    assert not list((tmp_path / "w/segments").glob("*"))


def test_a_part_that_gives_other_rows_than_planned_is_an_error(tmp_path: Path) -> None:
    job = Job(known=True)
    job.parts[1] = Part(1, {"part": 1})
    with pytest.raises(RldsError, match="a part gave 13 rows; 1 were planned"):
        Work(job, tmp_path / "w").run(progress=silent)


@pytest.mark.thorough
def test_progress_counts_rows(tmp_path: Path) -> None:
    for known in (True, False):
        events: list[Event] = []
        Work(Job(known), tmp_path / str(known)).run(progress=events.append)
        assert {(e.unit, e.stage) for e in events} == {("rows", "convert")}
        assert {e.total for e in events[:-1]} == {85 if known else None}
        assert [e.done for e in events] == sorted(e.done for e in events)
        assert events[-1].done == events[-1].total == 85
        assert [e.beside for e in events if e.beside][-1:] == ([] if known else [f"{PARTS - 1} of {PARTS} parts"])


def test_columns_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    f = Field("x", "float32", (2,))
    table = lay_out((), []).episodes
    with rows.RowWriter(tmp_path, (f,), {"x": "x"}, rows.RowPosition()) as writer:
        for column in (np.zeros((3, 2)), np.zeros((3, 3), np.float32), np.zeros((2, 2), np.float32)):
            with pytest.raises(RldsError, match="x"):
                writer.append(Chunk({"x": column}, np.zeros(3, bool), table))


@pytest.mark.thorough
def test_resumed_where_publishing_was_interrupted(tmp_path: Path, undisturbed: str) -> None:
    built = Work(Job(), tmp_path / "w").run(progress=silent)
    assert check(built) == undisturbed
    sealed = [f for f in built.directory.rglob("*") if f.is_file()]
    for file in sealed:
        file.chmod(0o444)
    events: list[Event] = []
    again = Work(Job(), tmp_path / "w").run(progress=events.append)
    assert "5 of 5" in events[0].note
    assert all(f.stat().st_mode & 0o200 for f in sealed)  # else only the superuser could finish it
    assert check(again) == undisturbed


def test_columns_of_the_episode_table_without_values_take_no_memory() -> None:
    n = 3
    table = EpisodeTable(np.ones(n), np.zeros(n), np.ones(n), np.zeros(n), np.arange(n), group=["", "", ""])
    assert isinstance(table.group, Repeated)
    both = EpisodeTable.concat([table, table])
    assert (list(both.group), list(both.seed), list(both.options)) == ([""] * 6, [None] * 6, [None] * 6)
    assert isinstance(both.seed, Repeated)
    assert (both.seed[5], list(both.group[4:])) == (None, ["", ""])
    with pytest.raises(IndexError):
        both.seed[6]
    seeded = EpisodeTable(np.ones(n), np.zeros(n), np.ones(n), np.zeros(n), np.arange(n), seed=[None, 0, 5])
    assert list(EpisodeTable.concat([table, seeded]).seed) == [None, None, None, None, 0, 5]
    assert list(EpisodeTable.concat([table, seeded]).take(np.array([5, 0])).seed) == [5, None]
