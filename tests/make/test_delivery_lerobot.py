"""LeRobot from the hub, end to end: a loopback server imitates its listing, its tags and its files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from lerobot_archives import Content, decoded, write_v2, write_v3
from server import COMMIT, Server

import rlds_cli
from rlds_cli import registry
from rlds_cli.errors import DownloadFailed
from rlds_cli.look.report.tracing import trace
from rlds_cli.registry import lookup

TOP = "observation/images/top"
CONTENT = Content(lengths=(6, 5, 9), video=("top",), per_file=2, per_video=2, splits={"train": "0:3"})


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with Server() as server:
        for name, value in server.environment(tmp_path).items():
            monkeypatch.setenv(name, value)
        yield server


def files(root: Path) -> dict[str, bytes]:
    more = {"README.md": b"---", ".gitattributes": b"*.mp4 lfs", "meta/episodes_stats.jsonl": b"{}"}
    return {f.relative_to(root).as_posix(): f.read_bytes() for f in root.rglob("*") if f.is_file()} | more


def check(ds: rlds_cli.Dataset, root: Path) -> None:
    seen = np.concatenate([decoded(f) for f in sorted(root.rglob("*.mp4"))])
    assert ds.episodes["length"].tolist() == [6, 5, 9]
    np.testing.assert_array_equal(
        np.concatenate([ds.episode(k)["observation", "images", "top"] for k in range(3)]), seen
    )


def test_the_newest_layout_of_any_repository(hub: Server, tmp_path: Path) -> None:
    root = write_v3(tmp_path / "a", CONTENT)
    pages = hub.add_repository("alice/pick", files(root), revision="v3.0")
    ds = rlds_cli.download("lerobot/alice/pick")
    check(ds, root)
    assert ds.id == "lerobot/alice/pick"
    assert {s["revision"] for s in ds.sources} == {COMMIT}
    assert {"meta/info.json", "meta/tasks.parquet"} < {s["file"] for s in ds.sources}
    for name in ("README.md", "meta/stats.json", "meta/episodes_stats.jsonl", ".gitattributes"):
        assert not pages[name].requests, name
    traced = trace("lerobot/alice/pick", 20)
    assert traced.ok
    assert TOP in traced.fields


@pytest.mark.thorough
def test_an_older_layout_where_there_is_no_newer(hub: Server, tmp_path: Path) -> None:
    root = write_v2(tmp_path / "a", CONTENT)
    hub.add_repository("lerobot/pusht", files(root), revision="v2.1")
    ds = rlds_cli.download("lerobot/pusht")
    check(ds, root)
    assert ds.manifest.env["id"] == "gym_pusht/PushT-v0"
    assert ds.manifest.facts["layout"] == "v2.1"


@pytest.mark.thorough
def test_a_repository_without_tags(hub: Server, tmp_path: Path) -> None:
    root = write_v3(tmp_path / "a", CONTENT)
    hub.add_repository("bob/fold", files(root), revision="main")
    check(rlds_cli.download("lerobot/bob/fold"), root)


def test_a_repository_of_something_else(hub: Server) -> None:
    hub.add_repository("bob/text", {"train.csv": b"a,b"}, revision="main")
    with pytest.raises(DownloadFailed, match=r"lerobot/bob/text has no files called meta/info\.json"):
        rlds_cli.download("lerobot/bob/text")


@pytest.mark.thorough
def test_some_episodes_need_only_their_files(hub: Server, tmp_path: Path) -> None:
    root = write_v3(tmp_path / "a", CONTENT)
    pages = hub.add_repository("alice/pick", files(root), revision="v3.0")
    ds = rlds_cli.download("lerobot/alice/pick", episodes="2:3")
    assert ds.episodes["length"].tolist() == [9]
    video = "videos/observation.images.top/chunk-000/file-{:03d}.mp4"
    np.testing.assert_array_equal(ds.episode(0)["observation", "images", "top"], decoded(root / video.format(1)))
    assert not pages[video.format(0)].requests
    assert pages[video.format(1)].requests


@pytest.mark.thorough
def test_one_episode_of_a_file_of_several(hub: Server, tmp_path: Path) -> None:
    root = write_v3(tmp_path / "a", CONTENT)
    hub.add_repository("alice/pick", files(root), revision="v3.0")
    ds = rlds_cli.download("lerobot/alice/pick", episodes="1:2")
    assert ds.episodes["length"].tolist() == [5]
    video = root / "videos/observation.images.top/chunk-000/file-000.mp4"
    np.testing.assert_array_equal(ds.episode(0)["observation", "images", "top"], decoded(video)[6:])


def test_one_episode_of_a_data_file_of_several_whose_videos_are_apart(hub: Server, tmp_path: Path) -> None:
    root = write_v3(tmp_path / "a", replace(CONTENT, per_file=3, per_video=1))
    pages = hub.add_repository("alice/pick", files(root), revision="v3.0")
    ds = rlds_cli.download("lerobot/alice/pick", episodes="1:2")
    assert ds.episodes["length"].tolist() == [5]
    video = "videos/observation.images.top/chunk-000/file-{:03d}.mp4"
    np.testing.assert_array_equal(ds.episode(0)["observation", "images", "top"], decoded(root / video.format(1)))
    assert not pages[video.format(0)].requests


@pytest.mark.thorough
def test_a_copy_of_the_repository_called_anything(tmp_path: Path) -> None:
    root = write_v3(tmp_path / "a", CONTENT)
    check(rlds_cli.download("lerobot/alice/pick", source=str(root)), root)


def test_ids() -> None:
    places = [f"hf://datasets/lerobot/pusht@{r}" for r in ("v3.0", "v2.1", "main")]
    assert list(registry.get("lerobot/pusht").tree) == places
    assert registry.get("lerobot/alice/pick").tree[0] == "hf://datasets/alice/pick@v3.0"
    assert registry.get("lerobot/unlisted_set").tree[0] == "hf://datasets/lerobot/unlisted_set@v3.0"
    assert len(lookup.entries("lerobot")) == 83
