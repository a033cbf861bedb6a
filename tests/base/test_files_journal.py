"""Journals of interrupted work: torn, damaged, of other work, and read while they are written."""

from pathlib import Path

import pytest

from rlds_cli.base.files.journal import Journal
from rlds_cli.errors import NoPermission

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
