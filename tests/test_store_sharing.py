from __future__ import annotations

from pathlib import Path

import pytest

from rlds_cli.store import publishing


def tree(root: Path) -> Path:
    (root / "a/b").mkdir(parents=True)
    (root / "a/b/one").write_bytes(b"1" * 5000)
    (root / "two").write_bytes(b"")
    for name in ("a/b/one", "two"):
        (root / name).chmod(0o444)  # as files of a published dataset are
    return root


def test_nothing_is_removed_outside_of_a_directory_of_ones_own(tmp_path: Path) -> None:
    source, work = tree(tmp_path / "s"), tmp_path / "work"
    (tmp_path / "precious/old").mkdir(parents=True)
    work.mkdir()
    (work / "link").symlink_to(tmp_path / "precious")
    for target in (tmp_path / "precious", work / "../precious", work / "link/old"):
        with pytest.raises(ValueError, match=r"not in the subpath|not below|symbolic link"):
            publishing.share_tree(source, target, within=work)
    publishing.share_tree(source, tmp_path / "precious")
    assert (tmp_path / "precious/old").is_dir()
