"""Exports, merges and new datasets from an address: results are those of the dataset on disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from object_store import Fault, ObjectStore
from test_remote_preprocess import MIB, blocks_of, blocks_of_all
from test_remote_store import HASTY, MAKERS, large

import rlds_cli
from rlds_cli.archives.exports.format import Format, units_of
from rlds_cli.errors import DownloadFailed, NameTaken
from rlds_cli.share.pushing import push


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlds_cli.places.sources.objects.POLICY", HASTY)
    monkeypatch.setattr("rlds_cli.places.remote.content.POLICY", HASTY)
    monkeypatch.setenv("NO_PROXY", "*")


@pytest.fixture
def far(tmp_path: Path) -> Path:
    """The home of somebody who has no dataset."""
    return tmp_path / "far"


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    pytest.importorskip("obstore")
    with ObjectStore() as running:
        running.buckets["lab"] = {}
        for name, value in running.environ(tmp_path / "home").items():
            monkeypatch.setenv(name, value)
        yield running


@pytest.mark.parametrize(("to", "times"), [("minari", 1), pytest.param("d4rl", 2, marks=pytest.mark.slow)])
def test_an_export_with_a_small_cache(to: str, times: int, bucket: ObjectStore, far: Path, tmp_path: Path) -> None:
    ds = large(15_000, width=512)
    push(ds.id, "s3://lab/large", pages=False)
    there = rlds_cli.open_dataset("s3://lab/large", home=far, cache="4MiB")
    with bucket.counting() as requests:
        done = rlds_cli.export(there, to, tmp_path / "made-v0", lossy=True, jobs=1)
    assert (
        done.proved
        and done.fingerprint == rlds_cli.export(ds, to, tmp_path / "here-v0", lossy=True, jobs=1).fingerprint
    )
    asked = blocks_of(requests)  # next observations, a column of their own in D4RL's layout, are a second pass
    assert len(asked) <= blocks_of_all(bucket) and sum(asked.values()) <= times * len(asked) + 3
    here = sum(f.stat().st_blocks * 512 for f in (far / "remote").rglob("rows/*") if f.is_file())
    assert here <= 6 * MIB


@pytest.mark.thorough
def test_an_export_goes_on_when_the_store_is_back(
    bucket: ObjectStore, far: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Format, "units", lambda x: units_of(x.content, sum(map(x.content.row_bytes, x.content.fields)), 1 << 20)
    )
    ds = large(15_000, width=512)
    push(ds.id, "s3://lab/large", pages=False)
    there = rlds_cli.open_dataset("s3://lab/large", home=far, timeout=2)
    bucket.faults.append(Fault("503", "GET", "/objects/", times=1000, skip=2))
    with bucket.counting() as first, pytest.raises(DownloadFailed):
        rlds_cli.export(there, "minari", tmp_path / "made-v0", jobs=1)
    bucket.faults.clear()
    assert not (tmp_path / "made-v0").exists()
    there = rlds_cli.open_dataset("s3://lab/large", home=far)
    with bucket.counting() as second:
        done = rlds_cli.export(there, "minari", tmp_path / "made-v0", jobs=1)
    assert done.fingerprint == ds.fingerprint and first
    assert sum(blocks_of(second).values()) < blocks_of_all(bucket)


def test_a_link_to_a_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(NameTaken, match=r"link is a symbolic link to .*real") as e:
        rlds_cli.export(large(500), "minari", tmp_path / "link")
    assert str(tmp_path / "real") in (e.value.hint or "")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["compressed texts", "videos", "grown"])
def test_merging_and_creating_from_an_address(kind: str, tmp_path: Path, far: Path) -> None:
    here = MAKERS[kind](tmp_path)
    push(here.id, tmp_path / "store", pages=False)
    there = rlds_cli.open_dataset(tmp_path / "store", home=far)
    assert there.store.address
    merged = [
        rlds_cli.merge([ds.select(episodes=[1, 0]), ds.select(episodes=slice(2, None))], "local/both", home=home)
        for ds, home in ((here, None), (there, far))
    ]
    digests = [{f.name: f.digest for f in ds.manifest.fields} for ds in merged]  # the column names another directory
    assert digests[0] == digests[1] and merged[0].num_episodes == here.num_episodes
    made = [
        rlds_cli.create("local/made", (ds.episode(k) for k in (1, 0)), home=home)
        for ds, home in ((here, None), (there, far))
    ]
    assert made[0].fingerprint == made[1].fingerprint
    for ds, home in ((here, None), (there, far)):
        with rlds_cli.writer("local/grows", like=ds, home=home) as w:
            w.add_episodes([ds.episode(0)])
    grows = [rlds_cli.open_dataset("local/grows", home=home) for home in (None, far)]
    assert grows[0].fingerprint == grows[1].fingerprint
