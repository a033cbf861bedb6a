"""Plans for everything that the registry lists, without network."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from rlds_cli import cli, registry
from rlds_cli.base import ids
from rlds_cli.base.subset import Subset
from rlds_cli.errors import DownloadFailed, Offline
from rlds_cli.make.downloads import download
from rlds_cli.make.downloads.request import DownloadRequest
from rlds_cli.registry import lookup

ENTRIES = [e for f in registry.families() for e in lookup.entries(f.name)]
OPEN = [e for e in ENTRIES if e.status != "closed"]
CLOSED = [e for e in ENTRIES if e.status == "closed"]
ACTIONS = {"reuse", "verify", "adopt", "link", "fetch"}


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a plan without network opened a connection")

    monkeypatch.setattr("socket.create_connection", refuse)
    monkeypatch.setattr("socket.socket.connect", refuse)


@pytest.mark.thorough
def test_every_entry_has_a_plan_without_network() -> None:
    planned = download.plan_download([DownloadRequest(e.id, offline=True) for e in OPEN], guess=True).datasets
    assert [d.id for d in planned] == [e.id for e in OPEN]
    for d, entry in zip(planned, OPEN, strict=True):
        assert d.here is None
        assert d.files == len(entry.files)
        if d.actions is None:
            assert (entry.tree or entry.files[0].urls)[0] in d.note
        else:
            assert set(d.actions) <= ACTIONS
            assert sum(d.actions.values()) == d.files
            assert d.to_fetch + d.unknown > 0 or urlsplit(entry.files[0].urls[0]).scheme == "package"
    assert sum(d.actions is not None for d in planned) > 400  # most need no listing


def test_parts_have_plans_too() -> None:
    first = {e.family: e for e in OPEN}.values()
    portion = Subset.of(episodes="0:10")
    planned = download.plan_download(
        [DownloadRequest(e.id, offline=True, portion=portion) for e in first], guess=True
    ).datasets
    assert [d.id for d in planned] == [f"{e.id}@episodes-0-10" for e in first]


def test_who_would_really_download_is_told_that_there_is_no_network() -> None:
    entry = next(e for e in OPEN if e.tree)
    with pytest.raises(Offline):
        download.plan_download([DownloadRequest(entry.id, offline=True)])


def test_closed_sources_are_named_with_what_takes_their_place() -> None:
    known = {e.id for e in OPEN}
    for entry in CLOSED:
        with pytest.raises(DownloadFailed, match="closed") as caught:
            download.plan_download([DownloadRequest(entry.id, offline=True)], guess=True)
        if entry.replaced_by:
            assert entry.replaced_by in known
            assert entry.replaced_by in (caught.value.hint or "")


def test_a_mirror_opens_what_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = next(e for e in CLOSED if e.tree and e.tree[0].startswith("gs://"))
    copy = tmp_path / "mirror" / entry.tree[0].removeprefix("gs://")
    copy.mkdir(parents=True)
    for name in ("$store$_action_ckpt.0.gz", "$store$_action_ckpt.1.gz"):
        (copy / name).write_bytes(b"1234567")
    monkeypatch.setenv("RLDS_MIRROR", str(tmp_path / "mirror"))
    (planned,) = download.plan_download([DownloadRequest(entry.id, offline=True)]).datasets
    assert (planned.files, planned.actions) == (2, {"link": 2})


@pytest.mark.thorough
def test_the_command_shows_all_of_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["rlds", "download", "*", "--dry-run", "--offline", "--json"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    shown = json.loads(capsys.readouterr().out)
    assert {d["id"] for d in shown["datasets"]} == {e.id for e in OPEN}
    assert all(ids.parse(d["id"]).variant is None for d in shown["datasets"])
