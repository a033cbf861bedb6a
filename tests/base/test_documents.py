"""What is written is read again, however long; what would not be read is not written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlds_cli import create
from rlds_cli.base import settings
from rlds_cli.base.files import arrays
from rlds_cli.base.files import json as documents
from rlds_cli.errors import RldsError
from rlds_cli.keep import pinning
from rlds_cli.make.downloads.fetch import fetching, planning
from rlds_cli.places import RemoteFile

REVISION, SHA256 = "0123456789" * 4, "0123456789abcdef" * 4


def listed(count: int) -> tuple[RemoteFile, ...]:
    """Files as the hub lists them, a little more than 400 bytes each as JSON."""
    place = "datasets/somebody/robots/resolve"
    names = [f"data/chunk-{k // 1000:03d}/episode_{k:06d}.parquet" for k in range(count)]
    return tuple(
        RemoteFile(n, (f"https://huggingface.co/{place}/{REVISION}/{n}",), 10, SHA256, None, REVISION, f"{place}/{n}")
        for n in names
    )


@pytest.mark.slow
def test_a_listing_of_many_files_is_remembered(tmp_path: Path) -> None:
    plan = planning.FetchPlan(tmp_path, (), listed=listed(50_000))
    planning.remember(plan, planning.listing_of(plan))
    assert (tmp_path / ".listing.json").stat().st_size > documents.LONGEST
    assert planning.remembered(tmp_path) == plan.listed


@pytest.mark.slow
def test_a_lock_of_many_files_is_read_again(tmp_path: Path) -> None:
    ds = create("local/x", [{"observation": np.arange(3.0), "action": np.arange(2)}])
    sources = '{"file": "%s", "sha256": "' + SHA256 + '", "size": 10, "url": "https://example.org/%s"}'
    names = [f"data/chunk-{k // 1000:03d}/episode_{k:06d}.parquet" for k in range(60_000)]
    arrays.write_strings(ds.path / "sources", [sources % (n, n) for n in names])
    text = pinning.lock(["local/x"], allow_unreproducible=True)
    (tmp_path / "rlds.lock").write_text(text)
    assert len(text) > 13 << 20
    (found,) = pinning.read(tmp_path / "rlds.lock")
    assert [f["file"] for f in found.files] == names


def test_what_would_not_be_read_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "OWN", 1000)
    documents.save_own(tmp_path / "a.json", {"a": "x" * 900})
    assert documents.load_own(tmp_path / "a.json") == {"a": "x" * 900}
    message = (
        r"^b.json is too large to be written: 1,0\d\d bytes are too many for a description; at most 1,000 are read.\n"
    )
    with pytest.raises(RldsError, match=message):
        documents.save_own(tmp_path / "b.json", {"a": "x" * 1000})
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_nothing_is_fetched_where_the_listing_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "OWN", 10_000)
    where = settings.read()
    plan = planning.plan(listed(30), tmp_path / "archive", where)
    with pytest.raises(RldsError, match="the list of 30 files is too large to be written"):
        fetching.fetch(plan, where, id="local/x")
    assert not (tmp_path / "archive").exists()
