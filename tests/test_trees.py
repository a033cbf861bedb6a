"""Trees of directories deeper than Python calls functions, and than a path may be long."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlds_cli.files import trees


def deep(top: Path, levels: int, name: str = "d") -> Path:
    """Directories inside each other, each with a file."""
    top.mkdir(parents=True, exist_ok=True)
    here = os.open(top, os.O_RDONLY)
    for _ in range(levels):
        os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=here))
        os.mkdir(name, dir_fd=here)
        above, here = here, os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(above)
    os.close(here)
    return top


def test_a_tree_is_walked_and_removed_however_deep_it_is(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    tree = deep(tmp_path / "tree", 1100)
    (tree / "link").symlink_to(outside)
    assert len(trees.files(tree)) == 1100
    trees.remove(tree)
    assert not tree.exists()
    assert (outside / "kept").exists()


def test_what_is_too_deep_for_a_path_is_passed_over_and_removed(tmp_path: Path) -> None:
    tree = deep(tmp_path / "tree", 20, "d" * 250)  # 5,000 characters; 4,096 is the limit
    assert 10 < len(trees.files(tree)) < 20
    with pytest.raises(OSError, match="too long"):
        trees.below(tree, strict=True)
    trees.remove(tree)
    assert not tree.exists()


def test_what_is_no_directory_is_not_removed(tmp_path: Path) -> None:
    tree = deep(tmp_path / "tree", 1)
    (tmp_path / "link").symlink_to(tree)
    for path in (tmp_path / "link", tree / "f", tmp_path / "none"):
        trees.discard(path)
        with pytest.raises(OSError, match=r"Not a directory|No such file|Too many levels"):
            trees.remove(path)
    assert (tree / "f").exists()


def test_what_cannot_be_removed_is_named_and_the_rest_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = deep(tmp_path / "tree", 3)
    (tree / "d" / "d" / "stays").mkdir()
    rmdir = os.rmdir

    def refusing(path: str, *, dir_fd: int | None = None) -> None:
        if path == "stays":
            raise PermissionError(13, "Permission denied", path)
        rmdir(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", refusing)
    with pytest.raises(PermissionError) as caught:
        trees.remove(tree)
    assert caught.value.filename == str(tree / "d" / "d" / "stays")
    assert [e.name for e in trees.below(tree)] == ["d", "d", "stays"]
