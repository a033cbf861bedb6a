"""Trees of directories, which are walked and removed without following links."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import run_rlds

import rlds_cli
from rlds_cli.base.files import trees


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


def test_links_are_neither_walked_nor_removed_through(tmp_path: Path) -> None:
    outside = deep(tmp_path / "outside", 1)
    tree = deep(tmp_path / "tree", 3)
    (tree / "link").symlink_to(outside)
    (tree / "d/to a file").symlink_to(outside / "f")
    assert sorted(p.relative_to(tree).as_posix() for p in trees.files(tree)) == ["d/d/f", "d/f", "d/to a file", "f"]
    assert len(trees.files(tree, most=2)) == 3
    trees.remove(tree)
    assert not tree.exists()
    assert (outside / "f").exists()


def test_who_finds_a_directory_that_another_process_removes_leaves_its_name(tmp_path: Path) -> None:
    """Else it grows with each of them, until no file can have it."""
    aside = trees.set_aside(deep(tmp_path / "tree", 1))
    assert not (tmp_path / "tree").exists() and aside.name.startswith(".tree.")
    assert trees.is_aside(aside) and not trees.is_aside(tmp_path / "tree.removed")
    assert trees.set_aside(aside) == aside and (aside / "f").exists()
    trees.remove_aside(aside)
    trees.remove_aside(aside)  # another process was faster
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_directory_is_not_removed(tmp_path: Path) -> None:
    tree = deep(tmp_path / "tree", 1)
    (tmp_path / "link").symlink_to(tree)
    for path in (tmp_path / "link", tree / "f", tmp_path / "none"):
        trees.discard(path)
        with pytest.raises(OSError, match=r"symbolic link|Not a directory|No such file"):
            trees.remove(path)
    assert (tree / "f").exists()


@pytest.fixture
def emptied(home: Path) -> Iterator[Path]:
    """A home that is removed without Python, which pytest would try in vain."""
    yield home
    subprocess.run(["rm", "-rf", home], check=True)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("levels", "name"), [(20, "d" * 250), (1100, "d")])  # for Python's stack; for a path
def test_commands_on_directories_that_are_too_deep_end_in_an_error(emptied: Path, levels: int, name: str) -> None:
    made = rlds_cli.create("local/x", [{"observation": np.zeros((3, 1)), "action": np.zeros((2, 1))}]).path
    deep(emptied / "partial/local+x.0123456789abcdef", levels, name)
    deep(made, levels, name)
    for words in (["verify", "local/x"], ["gc", "--yes"], ["du"], ["rm", "local/x", "--yes"]):
        done = run_rlds(*words)
        assert done.returncode in (0, 1) and b"Traceback" not in done.stderr, done.stderr.decode()
