"""Parts of archives from a loopback server: only what is needed is fetched, and only what is wanted is there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from image_archives import write_vd4rl
from server import Page, Server
from tfds_files import FLAGS, example, tensor, write_dataset

import rlds_cli
from rlds_cli import cli
from rlds_cli.base.subset import Subset
from rlds_cli.errors import ArchiveError, DatasetNotFound, DownloadFailed, InvalidId, NameTaken, WrongHash
from rlds_cli.keep import pinning
from rlds_cli.make.downloads import download
from rlds_cli.make.downloads.request import DownloadRequest

STEP = {"observation": {"state": tensor("float32", 2)}, "action": tensor("float32", 1), **FLAGS}
TOY = "openx/aloha_mobile"
BUCKET = "robotics/aloha_mobile/0.0.1"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with Server() as running:
        for name, value in running.environment(tmp_path).items():
            monkeypatch.setenv(name, value)
        yield running


def record(number: int, steps: int = 3) -> bytes:
    """An episode whose every value is its number."""
    ends = {k: (np.arange(steps) == at).astype(int) for k, at in (("first", 0), ("last", steps - 1), ("terminal", -1))}
    return example(
        {
            "steps/observation/state": np.full((steps, 2), number, np.float32),
            "steps/action": np.full((steps, 1), number, np.float32),
            **{f"steps/is_{k}": v for k, v in ends.items()},
        }
    )


def files_of(directory: Path) -> dict[str, bytes]:
    return {p.relative_to(directory).as_posix(): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


def numbers(ds: rlds_cli.Dataset, field: str = "observation/state") -> list[int]:
    """The number of each episode, by its first observation."""
    return [int(x) for x in ds.gather(field, ds.episodes["start"])[:, 0]]


def fetched(pages: dict[str, Page]) -> set[str]:
    return {name.rpartition("/")[2] for name, page in pages.items() if page.sent}


@pytest.fixture
def toy(server: Server, tmp_path: Path) -> dict[str, Page]:
    """Episodes 0 to 9 of the split train in four shards, and 10 to 12 of val, in a bucket."""
    train = [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]
    splits = {"train": [[record(n) for n in s] for s in train], "val": [[record(n) for n in (10, 11, 12)]]}
    write_dataset(tmp_path / "toy", STEP, splits)
    return server.add_bucket("gresearch", {f"{BUCKET}/{n}": c for n, c in files_of(tmp_path / "toy").items()})


SHARD = "toy-train.tfrecord-0000{}-of-00004"
DESCRIBED = {"features.json", "dataset_info.json"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("said", "variant", "expected", "shards"),
    [
        ({"split": "val"}, "split-val", [10, 11, 12], ["toy-val.tfrecord-00000-of-00001"]),
        ({"episodes": "4:7"}, "episodes-4-7", [4, 5, 6], [SHARD.format(1), SHARD.format(2)]),
        ({"split": "train", "episodes": "8:"}, "split-train_episodes-8-end", [8, 9], [SHARD.format(3)]),
        ({"include": "*-00002-of-*"}, None, [6, 7], [SHARD.format(2)]),
        ({"include": "*-00002-of-*", "episodes": "1"}, None, [7], [SHARD.format(2)]),
        ({"exclude": ["toy-train*"]}, None, [10, 11, 12], ["toy-val.tfrecord-00000-of-00001"]),
    ],
)
def test_shards_of_a_bucket(
    toy: dict[str, Page], said: dict[str, Any], variant: str | None, expected: list[int], shards: list[str]
) -> None:
    ds = rlds_cli.download(TOY, **said)
    assert ds.id == f"{TOY}@{variant or Subset.of(**said).name}"
    assert numbers(ds) == expected
    assert fetched(toy) == {*shards, *DESCRIBED}
    assert {s["file"] for s in ds.sources} == {*shards, *DESCRIBED}
    told = ds.manifest.options["portion"]
    assert told.pop("files") == [len(shards) + 2, 7]
    assert Subset.from_facts(told) == Subset.of(**said)
    assert rlds_cli.download(TOY, **said).fingerprint == ds.fingerprint


@pytest.mark.thorough
def test_a_part_is_a_start_of_the_whole(toy: dict[str, Page]) -> None:
    part = rlds_cli.download(TOY, episodes="0:2")
    whole = rlds_cli.download(TOY)
    assert (part.num_episodes, whole.num_episodes) == (2, 13)
    np.testing.assert_array_equal(part.column("action"), whole.column("action")[: part.num_rows])
    assert toy[f"{BUCKET}/{SHARD.format(0)}"].sent == len(toy[f"{BUCKET}/{SHARD.format(0)}"].content)  # once
    asked = [len(p.requests) for p in toy.values()]
    assert numbers(rlds_cli.download(TOY, split="val")) == [10, 11, 12]  # all of it is here
    assert [len(p.requests) for p in toy.values()] == asked


@pytest.mark.thorough
def test_an_archive_of_which_a_part_is_here_is_not_taken_for_whole(toy: dict[str, Page]) -> None:
    rlds_cli.download(TOY, split="val")
    assert rlds_cli.download(TOY).num_episodes == 13


def test_what_is_not_kept_is_only_what_came(toy: dict[str, Page], tmp_path: Path) -> None:
    rlds_cli.download(TOY, split="val")
    archive = tmp_path / "home" / "archives" / "openx" / "aloha_mobile"
    kept = {p.name for p in archive.glob("toy-*")}
    assert rlds_cli.download(TOY, episodes="0:1", keep_archive=False).num_episodes == 1
    assert {p.name for p in archive.glob("toy-*")} == kept


def test_a_lock_of_a_part_names_its_files(toy: dict[str, Page], tmp_path: Path) -> None:
    ds = rlds_cli.download(TOY, episodes="4:7")
    lock = tmp_path / "rlds.lock"
    lock.write_text(pinning.lock([ds.id]))
    (made,) = pinning.sync(lock, home=tmp_path / "other")
    assert made.fingerprint == ds.fingerprint
    assert rlds_cli.download(TOY, home=tmp_path / "other").num_episodes == 13
    toy[f"{BUCKET}/{SHARD.format(1)}"].content = toy[f"{BUCKET}/{SHARD.format(0)}"].content
    with pytest.raises(WrongHash, match=SHARD.format(1)):
        pinning.sync(lock, home=tmp_path / "later")
    assert not (tmp_path / "later" / "datasets").exists()


def test_what_there_is_not(toy: dict[str, Page], tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="no split trian") as caught:
        rlds_cli.download(TOY, split="trian")
    assert "train, val" in (caught.value.hint or "")
    with pytest.raises(ArchiveError, match="there are 13"):
        rlds_cli.download(TOY, episodes="13:20")
    with pytest.raises(DownloadFailed, match="no such files") as caught:
        rlds_cli.download(TOY, include="*.hdf5")
    assert "7 files" in (caught.value.hint or "")
    with pytest.raises(InvalidId, match="0-3"):
        rlds_cli.download(TOY, episodes="0-3")
    with pytest.raises(DatasetNotFound) as not_here:
        rlds_cli.download(f"{TOY}@episodes-0-3")
    assert "--episodes" in (not_here.value.hint or "")
    with pytest.raises(InvalidId, match="is a variant"):
        rlds_cli.download(f"{TOY}@norm", episodes="0:3")
    assert not (tmp_path / "home" / "datasets").exists()
    assert fetched(toy) <= DESCRIBED


def test_a_name_that_stands_for_another_part(toy: dict[str, Page], tmp_path: Path) -> None:
    ds = rlds_cli.download(TOY, episodes="0:1")
    ds.path.rename(ds.path.with_name("aloha_mobile@episodes-1-2"))
    with pytest.raises(NameTaken):
        rlds_cli.download(TOY, episodes="1:2")
    assert numbers(rlds_cli.download(TOY, episodes="1:2", force=True)) == [1]


def test_a_plan_fetches_nothing_but_the_description(toy: dict[str, Page], tmp_path: Path) -> None:
    (planned,) = download.plan_download([DownloadRequest(TOY, portion=Subset.of(episodes="0:1"))]).datasets
    assert (planned.id, planned.files) == (f"{TOY}@episodes-0-1", 3)
    sizes = [len(toy[f"{BUCKET}/{n}"].content) for n in (*DESCRIBED, SHARD.format(0))]
    assert planned.to_fetch == sum(sizes)
    assert fetched(toy) == {"dataset_info.json"}
    assert not (tmp_path / "home").exists()


def test_rows_are_cut_where_files_do_not_tell(tmp_path: Path) -> None:
    whole = rlds_cli.download("sample/cartpole-minari")
    for jobs in (0, 2):
        some = rlds_cli.download("sample/cartpole-minari", episodes="1:3", jobs=jobs, force=True)
        assert some.episodes["length"].tolist() == whole.episodes["length"][1:3].tolist()
        start, stop = whole.episodes["start"][1], whole.episodes["start"][3]
        np.testing.assert_array_equal(some.column("observation"), whole.column("observation")[start:stop])
    with pytest.raises(ArchiveError, match="has no episodes for") as caught:
        rlds_cli.download("sample/cartpole-minari", split="train")
    assert "no splits" in (caught.value.hint or "")


def test_files_of_one_episode_each(server: Server, tmp_path: Path) -> None:
    made = write_vd4rl(tmp_path / "64px", [5, 3, 4])
    files = {f"vd4rl/main/walker_walk/random/64px/{n}": c for n, c in files_of(tmp_path / "64px").items()}
    pages = server.add_repository("conglu/vd4rl", files)
    ds = rlds_cli.download("vd4rl/main/walker_walk/random/64px", episodes="1:")
    assert ds.episodes["length"].tolist() == [3, 4]
    np.testing.assert_array_equal(ds.gather("observation", np.arange(4)), made[1]["image"])
    assert len(fetched(pages)) == 2


def lerobot(version: int, lengths: list[int], per_file: int = 2) -> dict[str, bytes]:
    """A LeRobot dataset of states; the values of episode k are k."""
    feature = {name: {"dtype": "float32", "shape": [2], "names": None} for name in ("observation.state", "action")}
    count = {n: {"dtype": "int64", "shape": [1], "names": None} for n in ("frame_index", "episode_index", "index")}
    info = {"codebase_version": f"v{version}.{1 if version == 2 else 0}", "fps": 10, "total_episodes": len(lengths)}
    info |= {"features": feature | count, "splits": {"train": "0:3", "test": f"3:{len(lengths)}"}}
    files = {"meta/info.json": json.dumps(info).encode(), "meta/stats.json": b"{}"}
    tables = [_table(k, n) for k, n in enumerate(lengths)]
    if version == 2:
        lines = [{"episode_index": k, "length": n, "tasks": []} for k, n in enumerate(lengths)]
        files["meta/episodes.jsonl"] = "\n".join(map(json.dumps, lines)).encode()
        return files | {f"data/chunk-000/episode_{k:06d}.parquet": _parquet(t) for k, t in enumerate(tables)}
    places = [{"data/chunk_index": 0, "data/file_index": k // per_file} for k in range(len(lengths))]
    rows = [{"episode_index": k, "length": n, **p} for (k, n), p in zip(enumerate(lengths), places, strict=True)]
    files["meta/episodes/chunk-000/file-000.parquet"] = _parquet(pa.Table.from_pylist(rows))
    for k in range(0, len(lengths), per_file):
        both = pa.concat_tables(tables[k : k + per_file])
        files[f"data/chunk-000/file-{k // per_file:03d}.parquet"] = _parquet(both)
    return files


def _table(number: int, steps: int) -> pa.Table:
    values = pa.array([[float(number)] * 2] * steps, pa.list_(pa.float32(), 2))
    index = {"frame_index": range(steps), "episode_index": [number] * steps, "index": range(steps)}
    return pa.table({"observation.state": values, "action": values, **{k: pa.array(v) for k, v in index.items()}})


def _parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"episodes": "1:3"}, [1, 2]),
        ({"split": "test"}, [3, 4]),
        ({"split": "test", "episodes": "1:"}, [4]),
    ],
)
def test_lerobot_fetches_the_files_of_the_episodes(
    server: Server, version: int, said: dict[str, str], expected: list[int]
) -> None:
    pages = server.add_repository("someone/toy", lerobot(version, [3, 4, 2, 5, 3]))
    ds = rlds_cli.download("lerobot/someone/toy", **said)
    assert numbers(ds, "observation/state") == expected
    data = {k if version == 2 else k // 2 for k in expected}
    form = "episode_{:06d}.parquet" if version == 2 else "file-{:03d}.parquet"
    needed = {form.format(k) for k in data}
    assert fetched({n: p for n, p in pages.items() if n.startswith("data/")}) == needed
    assert {Path(s["file"]).name for s in ds.sources if s["file"].startswith("data/")} == needed


def test_what_it_is_a_part_of_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    id = rlds_cli.download("sample/cartpole-minari", episodes="0:2", exclude="*.md").id
    for command in (["info", id], ["inspect", id], ["inspect", id, "--html", str(tmp_path / "page.html")]):
        monkeypatch.setattr("sys.argv", ["rlds", *command])
        try:
            cli.main()
        except SystemExit as ended:
            assert not ended.code
        if "--html" not in command:
            assert "episodes 0 to 1, of files * without *.md; 2 of 2 files" in capsys.readouterr().out
    assert "episodes 0 to 1, of files * without *.md" in (tmp_path / "page.html").read_text()
