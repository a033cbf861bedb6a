from __future__ import annotations

import errno
from pathlib import Path

import pytest

from rlds_cli.store import sharing


def tree(root: Path) -> Path:
    (root / "a/b").mkdir(parents=True)
    (root / "a/b/one").write_bytes(b"1" * 5000)
    (root / "two").write_bytes(b"")
    return root


def contents(root: Path) -> dict[str, bytes]:
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_files_become_hard_links(tmp_path: Path) -> None:
    source, target = tree(tmp_path / "s"), tmp_path / "t"
    assert sharing.share_tree(source, target) == "link"
    assert contents(target) == contents(source)
    assert (target / "a/b/one").samefile(source / "a/b/one")


def test_what_was_there_is_replaced(tmp_path: Path) -> None:
    source, target = tree(tmp_path / "s"), tmp_path / "t"
    (target / "old").mkdir(parents=True)
    sharing.share_tree(source, target, within=tmp_path)
    assert contents(target) == contents(source)
    assert not (target / "old").exists()


def test_without_links_there_are_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise OSError(errno.EXDEV, "another file system")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    source, target = tree(tmp_path / "s"), tmp_path / "t"
    assert sharing.share_tree(source, target) in ("reflink", "copy")
    assert contents(target) == contents(source)
    (target / "a/b/one").write_bytes(b"changed")
    assert (source / "a/b/one").read_bytes() == b"1" * 5000
