from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlds_cli import ids
from rlds_cli.home import Home


def put(root: Path, text: str) -> Path:
    """A directory that looks like a published dataset."""
    path = Home(root).dataset(ids.parse(text))
    path.mkdir(parents=True)
    (path / "zarr.json").write_text("{}")
    return path


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_directory_that_may_not_be_read_holds_nothing(tmp_path: Path) -> None:
    put(tmp_path, "a/x")
    (tmp_path / "datasets/a").chmod(0)
    try:
        assert list(Home(tmp_path).datasets()) == []
    finally:
        (tmp_path / "datasets/a").chmod(0o755)
