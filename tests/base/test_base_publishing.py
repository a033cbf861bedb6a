from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from rlds_cli.base.files import publishing


def build(path: Path, text: str) -> Path:
    (path / "a").mkdir(parents=True)
    (path / "a/file").write_text(text)
    (path / "zarr.json").write_text(text)
    return path


def test_a_new_dataset_appears_whole_and_read_only(tmp_path: Path) -> None:
    target = tmp_path / "family/name"
    publishing.publish(build(tmp_path / "work", "new"), target)
    assert (target / "a/file").read_text() == "new"
    assert not (tmp_path / "work").exists()
    for file in (target / "a/file", target / "zarr.json"):
        assert not file.stat().st_mode & 0o222


@pytest.mark.parametrize("exchange", [True, False])
def test_a_dataset_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool) -> None:
    if not exchange:  # a system without renameat2
        monkeypatch.setattr(publishing, "_exchange", lambda a, b: False)
    target = tmp_path / "family/name"
    publishing.publish(build(tmp_path / "one", "old"), target)
    reader = (target / "a/file").open()
    publishing.publish(build(tmp_path / "two", "new"), target)
    assert (target / "a/file").read_text() == "new"
    assert reader.read() == "old"  # whoever has it open continues the old one
    reader.close()
    assert [p.name for p in (tmp_path / "family").iterdir()] == ["name"]
    assert [p.name for p in tmp_path.iterdir()] == ["family"]


def test_the_umask_says_who_may_read(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        publishing.publish(build(tmp_path / "work", "x"), tmp_path / "family/name")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "family/name/a/file").stat().st_mode) == 0o440
    assert stat.S_IMODE((tmp_path / "family/name").stat().st_mode) == 0o750


def test_hard_links_of_others_keep_their_mode(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.write_text("x")
    shared.chmod(0o444)
    work = build(tmp_path / "work", "x")
    os.link(shared, work / "linked")
    publishing.publish(work, tmp_path / "family/name")
    assert stat.S_IMODE(shared.stat().st_mode) == 0o444


def test_removing_takes_the_name_first(tmp_path: Path) -> None:
    target = tmp_path / "family/name"
    publishing.publish(build(tmp_path / "work", "x"), target)
    left = tmp_path / "family/.name.removed"  # by a removal that was killed
    build(left, "left")
    publishing.remove(target)
    assert list((tmp_path / "family").iterdir()) == []


def test_unsealed_are_files_of_its_own(tmp_path: Path) -> None:
    elsewhere = tmp_path / "shared"
    elsewhere.write_text("rows")
    elsewhere.chmod(0o444)
    work = build(tmp_path / "work", "new")
    (work / "a/linked").hardlink_to(elsewhere)
    for file in (work / "a/file", work / "zarr.json"):
        file.chmod(0o444)
    publishing.unseal(work)
    assert stat.S_IMODE((work / "a/file").stat().st_mode) == stat.S_IMODE((work / "zarr.json").stat().st_mode) == 0o644
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o444
