"""Lock files of datasets whose source has changed since, or that came from a place of somebody's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from lerobot_archives import Content, write_v3
from server import Server

import rlds_cli
from rlds_cli.errors import TransferError, WrongFingerprint
from rlds_cli.keep import pinning

ID = "lerobot/alice/pick"
THEN = Content(lengths=(6, 5, 9), per_file=1)
NOW = Content(lengths=(6, 7, 9, 4), per_file=1)
LATER = "fedcba9876543210" * 2 + "fedcba98"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with Server() as server:
        for name, value in server.environment(tmp_path).items():
            monkeypatch.setenv(name, value)
        server.add_repository("alice/pick", files(write_v3(tmp_path / "then", THEN)), revision="v3.0")
        yield server


def files(root: Path) -> dict[str, bytes]:
    return {f.relative_to(root).as_posix(): f.read_bytes() for f in root.rglob("*") if f.is_file()}


def locked(tmp_path: Path, ref: str) -> Path:
    file = tmp_path / "rlds.lock"
    file.write_text(pinning.lock([ref]))
    return file


def move_on(hub: Server, tmp_path: Path) -> None:
    """The repository has another commit from now on, and the earlier one still."""
    hub.add_repository("alice/pick", files(write_v3(tmp_path / "now", NOW)), revision="v3.0", commit=LATER)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("episodes", [None, "1:2"])
def test_a_repository_that_has_moved_on(hub: Server, tmp_path: Path, episodes: str | None) -> None:
    ds = rlds_cli.download(ID, episodes=episodes)
    file = locked(tmp_path, ds.id)
    move_on(hub, tmp_path)
    other = rlds_cli.download(ID, episodes=episodes, home=tmp_path / "today")
    assert other.fingerprint != ds.fingerprint
    done = pinning.sync(file, home=tmp_path / "elsewhere")
    assert [d.fingerprint for d in done] == [ds.fingerprint]
    again = rlds_cli.open_dataset(ds.id, home=tmp_path / "elsewhere")
    assert again.manifest.options == ds.manifest.options


@pytest.mark.thorough
def test_a_copy_of_ones_own_is_not_there_elsewhere(hub: Server, tmp_path: Path) -> None:
    ds = rlds_cli.download(ID, source=str(tmp_path / "then"))
    file = locked(tmp_path, ID)
    (tmp_path / "then").rename(tmp_path / "gone")
    assert pinning.sync(file, home=tmp_path / "elsewhere")[0].fingerprint == ds.fingerprint
    move_on(hub, tmp_path)
    with pytest.raises(TransferError, match=r"offers .* B; .* B expected"):
        pinning.sync(file, home=tmp_path / "later")
    assert not (tmp_path / "later" / "datasets").exists()


def test_what_would_be_another_is_not_published(hub: Server, tmp_path: Path) -> None:
    rlds_cli.download(ID)
    content = json.loads(locked(tmp_path, ID).read_text())
    content["datasets"][0]["fingerprint"] = "rlds1:" + "0" * 64
    content["datasets"][0]["fields"]["action"] = "0" * 64
    file = tmp_path / "other.lock"
    file.write_text(json.dumps(content))
    with pytest.raises(WrongFingerprint, match=r"would be rlds1:.*: other values in action") as caught:
        pinning.sync(file, home=tmp_path / "elsewhere")
    assert caught.value.hint.startswith("Nothing is published.")
    assert not list((tmp_path / "elsewhere" / "datasets").rglob("zarr.json"))
    assert not list((tmp_path / "elsewhere" / "partial").rglob("zarr.json"))
