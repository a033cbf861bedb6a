"""The reader of a Zarr layout of one's own in docs/reference/zarr.md."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from zarr_files import documented, sessions

import rlds_cli
from rlds_cli import make
from rlds_cli.errors import ArchiveError, ReaderError, UnknownLayout
from rlds_cli.look.report.tracing import trace


def test_the_documented_reader_of_trials(tmp_path: Path) -> None:
    reader, held = documented(tmp_path), sessions(tmp_path / "lab.zarr")
    ds = rlds_cli.import_files(tmp_path / "lab.zarr", "local/lab", reader=reader)
    assert ds.episodes["length"].tolist() == [3, 1, 5]
    assert ds.episodes["end"].tolist() == ["terminated", "cut", "cut"]
    assert ds.episodes["task"].tolist() == ["push", "pull", "push"] and ds.episodes["operator"][2] == "bb"
    for k, (name, rows) in enumerate((("a", slice(0, 3)), ("a", slice(3, 4)), ("b", slice(0, 5)))):
        np.testing.assert_array_equal(ds.episode(k)["observation/q"], held[name]["q"][rows], strict=True)
        np.testing.assert_array_equal(ds.episode(k)["observation/cam"], held[name]["cam"][rows], strict=True)
        np.testing.assert_array_equal(ds.episode(k)["action"], held[name]["cmd"][rows], strict=True)
    found = trace(ds, 9, reader=reader)
    assert found.ok and found.steps == 9


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("row=first,", 'row=first, options={"a": 1},', (ArchiveError, "options is a dict")),
        ('episodes_by="trials")', 'episodes_by="trials", account=[])', (ReaderError, "account is a list")),
    ],
)
def test_what_a_reader_gives_wrongly_is_said(
    tmp_path: Path, old: str, new: str, error: tuple[type[Exception], str]
) -> None:
    sessions(tmp_path / "lab.zarr")
    with pytest.raises(error[0], match=error[1]):
        rlds_cli.import_files(tmp_path / "lab.zarr", "local/lab", reader=documented(tmp_path, old, new))


def test_a_mapping_that_divides_groups_is_refused(tmp_path: Path) -> None:
    sessions(tmp_path / "lab.zarr")
    fields = {"observation": "sessions/*/q", "action": "sessions/*/cmd", "episode": "sessions/*/trials"}
    with pytest.raises(UnknownLayout, match=r"sessions/\*/trials does not divide them further"):
        make.plan_import(tmp_path / "lab.zarr", "local/lab", fields=fields)
