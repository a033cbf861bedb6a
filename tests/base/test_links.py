"""The same bytes under a second name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlds_cli.base.files.disk import share


def test_a_link_shares_the_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"bytes")
    assert share(tmp_path / "a", tmp_path / "b") == "link"
    assert (tmp_path / "b").samefile(tmp_path / "a")


def test_a_second_link_of_the_same_file_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"bytes")
    for _ in range(2):
        share(tmp_path / "a", tmp_path / "b")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_what_stood_there_is_replaced_and_its_other_names_keep_it(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"new")
    (tmp_path / "b").write_bytes(b"old")
    (tmp_path / "other").hardlink_to(tmp_path / "b")
    share(tmp_path / "a", tmp_path / "b")
    assert ((tmp_path / "b").read_bytes(), (tmp_path / "other").read_bytes()) == (b"new", b"old")


@pytest.mark.thorough
def test_another_disk_gets_a_copy(tmp_path: Path) -> None:
    other = Path("/dev/shm")
    if not os.access(other, os.W_OK) or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second disk here")
    source = other / f"rlds-links-{os.getpid()}"
    try:
        source.write_bytes(b"bytes" * 1_000_000)
        assert share(source, tmp_path / "b") == "copy"
        assert (tmp_path / "b").read_bytes() == b"bytes" * 1_000_000
    finally:
        source.unlink()


def test_what_is_missing_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        share(tmp_path / "a", tmp_path / "b")
    assert list(tmp_path.iterdir()) == []
