from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from rlds_cli.errors import DamagedDataset
from rlds_cli.store import sharing


def tree(root: Path) -> Path:
    (root / "a/b").mkdir(parents=True)
    (root / "a/b/one").write_bytes(b"1" * 5000)
    (root / "two").write_bytes(b"")
    for name in ("a/b/one", "two"):
        (root / name).chmod(0o444)  # as files of a published dataset are
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
    def refuse(*args: object, **options: object) -> None:
        raise OSError(errno.EXDEV, "another file system")

    monkeypatch.setattr(os, "link", refuse)
    source, target = tree(tmp_path / "s"), tmp_path / "t"
    assert sharing.share_tree(source, target) in ("reflink", "copy")
    assert contents(target) == contents(source)
    (target / "a/b/one").chmod(0o644)
    (target / "a/b/one").write_bytes(b"changed")
    assert (source / "a/b/one").read_bytes() == b"1" * 5000


def test_nothing_is_removed_outside_of_a_directory_of_ones_own(tmp_path: Path) -> None:
    source, work = tree(tmp_path / "s"), tmp_path / "work"
    (tmp_path / "precious/old").mkdir(parents=True)
    work.mkdir()
    (work / "link").symlink_to(tmp_path / "precious")
    for target in (tmp_path / "precious", work / "../precious", work / "link/old"):
        with pytest.raises(ValueError, match=r"not in the subpath|not below|symbolic link"):
            sharing.share_tree(source, target, within=work)
    sharing.share_tree(source, tmp_path / "precious")
    assert (tmp_path / "precious/old").is_dir()


def test_a_link_is_not_shared(tmp_path: Path) -> None:
    source = tree(tmp_path / "s")
    (tmp_path / "key").write_text("secret")
    (source / "a/key").symlink_to(tmp_path / "key")
    with pytest.raises(DamagedDataset, match="symbolic link"):
        sharing.share_tree(source, tmp_path / "t")
    assert not (tmp_path / "t").exists()


def test_what_others_may_write_is_copied(tmp_path: Path) -> None:
    source = tree(tmp_path / "s")
    (source / "a/b/one").chmod(0o666)
    assert sharing.share_tree(source, tmp_path / "t") in ("reflink", "copy")
    assert not (tmp_path / "t/a/b/one").samefile(source / "a/b/one")
