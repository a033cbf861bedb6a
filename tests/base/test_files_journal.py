"""Journals: torn, damaged, of other work, read while they are written, and written by several processes."""

import subprocess
import sys
from pathlib import Path

import pytest

from rlds_cli.base.files.journal import Journal, SharedJournal
from rlds_cli.errors import DamagedDataset, NoPermission

RECORDS = [{"part": 0}, ["unit", {"text": "line\nbreak", "é": None}], 2]


def written(path: Path) -> Journal:
    journal = Journal(path, "key")
    assert journal.resume() == []
    for record in RECORDS:
        journal.add(record)
    return journal


def test_records_of_the_same_work_are_resumed(tmp_path: Path) -> None:
    path = written(tmp_path / "below" / "journal").path
    again = Journal(path, "key")
    assert again.resume() == RECORDS
    again.add("more")
    assert Journal(path, "key").records() == [*RECORDS, "more"]


def test_a_kill_at_any_byte_leaves_whole_records(tmp_path: Path) -> None:
    data = written(tmp_path / "journal").path.read_bytes()
    for size in range(len(data) + 1):
        journal = Journal(tmp_path / str(size), "key")
        journal.path.write_bytes(data[:size])
        whole = data[:size].count(b"\n") - 1  # without the line of the key
        expected = RECORDS[:whole] if whole >= 0 else None
        assert journal.records() == expected
        assert journal.path.read_bytes() == data[:size]  # another process may be writing it
        assert journal.resume() == (expected or [])
        journal.add("next")
        assert journal.records() == [*(expected or []), "next"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "content", [b"", b"no journal\n", b'{"key": "other"}\n{"part": 0}\n', b'{"key": "key"}\n\x80\n']
)
def test_a_file_that_is_not_valid_is_replaced(tmp_path: Path, content: bytes) -> None:
    journal = Journal(tmp_path / "journal", "key")
    assert journal.records() is None
    journal.path.write_bytes(content)
    assert journal.records() is None
    assert journal.resume() == [] == journal.records()


def test_a_link_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "journal").path
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(NoPermission):
        Journal(tmp_path / "link", "key").records()
    with pytest.raises(NoPermission):
        Journal(tmp_path / "link", "key").add(3)
    assert Journal(path, "key").records() == RECORDS


# -- journals that several processes append to


def test_what_two_append_is_read_by_both_in_order(tmp_path: Path) -> None:
    one, other = SharedJournal(tmp_path / "shared", "key"), SharedJournal(tmp_path / "shared", "key")
    assert one.since().records == []
    first = one.append(RECORDS)
    assert other.append(["é", 3]) > first
    assert one.since().records == [*RECORDS, "é", 3]
    assert one.since(first).records == ["é", 3]
    assert one.since(one.since().revision).records == []


def test_an_append_that_was_torn_at_any_byte_loses_only_its_line(tmp_path: Path) -> None:
    whole = SharedJournal(tmp_path / "whole", "key")
    whole.append(["before"])
    kept = len(whole.path.read_bytes())
    whole.append([{"torn": "é"}])
    data = whole.path.read_bytes()
    for size in range(len(data)):
        journal = SharedJournal(tmp_path / str(size), "key")
        journal.path.write_bytes(data[:size])
        before = ["before"] if size >= kept else []
        read = journal.since()
        assert read.records == before
        journal.append(["after"])
        found = journal.since().records
        if size in (kept - 1, len(data) - 1):  # the line break alone was missing
            assert found[-2:] == [["before"], [{"torn": "é"}]][size > kept] + ["after"]
        else:
            assert found == [*before, "after"]
        if read.revision:  # whoever has read before it was mended reads on from there
            assert journal.since(read.revision).records[-1] == "after"


def test_processes_that_append_at_once_lose_nothing(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from rlds_cli.base.files.journal import SharedJournal as J\n"
        "for k in range(40): J(Path(sys.argv[1]), 'key').append([[sys.argv[2], k, '.' * 9000]])"
    )
    path = tmp_path / "shared"
    running = [subprocess.Popen([sys.executable, "-c", code, path, name]) for name in "abc"]
    assert [p.wait() for p in running] == [0, 0, 0]
    found = SharedJournal(path, "key").since().records
    assert sorted((name, k) for name, k, _ in found) == [(name, k) for name in "abc" for k in range(40)]


def test_a_journal_of_another_key_is_neither_read_nor_replaced(tmp_path: Path) -> None:
    SharedJournal(tmp_path / "shared", "key").append([1])
    before = (tmp_path / "shared").read_bytes()
    for wrong in (SharedJournal(tmp_path / "shared", "other"), SharedJournal(tmp_path / "shared", "k")):
        with pytest.raises(DamagedDataset):
            wrong.append([2])
        with pytest.raises(DamagedDataset):
            wrong.since()
    assert (tmp_path / "shared").read_bytes() == before
