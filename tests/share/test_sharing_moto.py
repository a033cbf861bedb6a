"""Pushed datasets in moto, which behaves like S3 where it matters here: parts of uploads, pages of lists, permissions.

moto is not among the packages for development; `pip install 'moto[s3,server]'` runs these tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds_cli
from rlds_cli.errors import DatasetNotFound, DownloadFailed, UploadFailed
from rlds_cli.loader import Loader, Shuffled
from rlds_cli.places import Address
from rlds_cli.places.sources import buckets
from rlds_cli.places.sources.opening import open_objects
from rlds_cli.places.sources.place import Body, Overtaken
from rlds_cli.share import collecting, packing
from rlds_cli.share.pushing import push

pytest.importorskip("obstore")
pytest.importorskip("moto")


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0)
    server.start()
    _, port = server.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "AKIDMOTO",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "NO_PROXY": "*",
    }.items():
        monkeypatch.setenv(name, value)
    import boto3
    import requests

    requests.post(f"http://127.0.0.1:{port}/moto-api/reset", timeout=5)  # servers of one process share everything
    client = boto3.client("s3")
    client.create_bucket(Bucket="lab")
    yield client
    server.stop()


def large(seed: int = 0, rows: int = 300_000) -> rlds_cli.Dataset:
    values = np.random.default_rng(seed).integers(0, 256, (rows + 1, 64), np.uint8)
    return rlds_cli.create("local/large", [{"observation": values, "action": np.arange(rows) + seed}], force=True)


def test_parts_lists_and_copies(s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = large()  # 21 MiB: an object in three parts
    push(ds.id, "s3://lab/a/large")
    listed = s3.list_objects_v2(Bucket="lab", Prefix="a/large/objects/")["Contents"]
    assert [o["ETag"].strip('"').rpartition("-")[2] for o in listed] == ["3"]
    assert push(ds.id, "s3://lab/a/large").sent == 0
    assert push(ds.id, "s3://lab/a/beside").sent == 0
    came = rlds_cli.download("s3://lab/a/beside", name="local/b", home=tmp_path / "other")
    assert came.fingerprint == ds.fingerprint
    second = large(1)
    push(second.id, "s3://lab/a/large")
    assert collecting.collect("s3://lab/a/large").bytes >= 21 << 20
    came = rlds_cli.download("s3://lab/a/large", name="local/c", home=tmp_path / "other")
    assert came.fingerprint == second.fingerprint


def test_lists_of_several_pages(s3: Any) -> None:
    from rlds_cli.base import settings

    for k in range(1100):
        s3.put_object(Bucket="lab", Key=f"x/objects/{k:04}", Body=b"")
    with open_objects(Address.parse("s3://lab/x"), settings.read()) as objects:
        assert len(objects.names("objects/")) == 1100


def test_conditions(s3: Any) -> None:
    from rlds_cli.base import settings

    with open_objects(Address.parse("s3://lab/x"), settings.read()) as objects:
        objects.replace("rlds.json", b"one", None)
        with pytest.raises(Overtaken):
            objects.replace("rlds.json", b"two", None)
        seen = objects.read("rlds.json")
        assert seen is not None and seen.data == b"one"
        objects.replace("rlds.json", b"three", seen.tag)
        with pytest.raises(Overtaken):
            objects.replace("rlds.json", b"four", seen.tag)
        assert objects.put("objects/x", Body.of(bytes(buckets.PART + 1))) == buckets.PART + 1
        assert objects.size("objects/x") == buckets.PART + 1


def test_what_is_not_permitted(s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import requests

    monkeypatch.setattr(packing, "LEAST", 1 << 20)
    ds = large(rows=1000)
    push(ds.id, "s3://lab/x")
    endpoint = s3.meta.endpoint_url
    with pytest.raises(DownloadFailed, match="there is no bucket"):
        push(ds.id, "s3://nobody/x")
    with pytest.raises(DownloadFailed, match="there is no bucket"):
        rlds_cli.download("s3://nobody/x", name="local/n")
    requests.post(f"{endpoint}/moto-api/reset-auth", data="0", timeout=5)  # from here on, moto checks permissions
    try:
        with pytest.raises((UploadFailed, DownloadFailed), match=r"access key|denied"):
            push(large(2, 1000).id, "s3://lab/x")
    finally:
        requests.post(f"{endpoint}/moto-api/reset-auth", data="9999", timeout=5)
    came = rlds_cli.download("s3://lab/x", name="local/y", home=tmp_path / "other")
    assert came.fingerprint == ds.fingerprint


def test_training_from_a_bucket(s3: Any, tmp_path: Path) -> None:
    """Blocks come by ranges of S3; the batches are those of the disk, and another push changes nothing."""
    ds = large()
    push(ds.id, "s3://lab/t/large")
    there = rlds_cli.open_dataset("s3://lab/t/large", home=tmp_path / "other")
    assert not (tmp_path / "other" / "datasets").exists()
    here, remote = (Loader(d, 64, sampler=Shuffled(), seed=3, backend="numpy") for d in (ds, there))
    for a, b in islice(zip(here, remote, strict=True), 5):
        for (name, x), (_, y) in zip(a.leaves(), b.leaves(), strict=True):
            assert np.array_equal(x, y), name
    assert remote.stats().requests > 0
    values = ds.column("observation")[:]
    push(large(1).id, "s3://lab/t/large")
    assert np.array_equal(there.column("observation")[:], values)
    again = rlds_cli.open_dataset("s3://lab/t/large", home=tmp_path / "other")
    assert again.fingerprint != there.fingerprint


def _object(s3: Any) -> str:
    """Return the name of the one object of a dataset."""
    (found,) = s3.list_objects_v2(Bucket="lab", Prefix="t/large/objects/")["Contents"]
    return str(found["Key"])


def test_objects_that_are_gone(s3: Any, tmp_path: Path) -> None:
    ds = large(rows=40_000)
    push(ds.id, "s3://lab/t/large")
    with pytest.raises(DatasetNotFound, match=r"rlds\.json"):
        rlds_cli.open_dataset("s3://lab/t/nothing", home=tmp_path / "other")
    there = rlds_cli.open_dataset("s3://lab/t/large", home=tmp_path / "other")
    s3.delete_object(Bucket="lab", Key=_object(s3))
    with pytest.raises(DownloadFailed, match="Block"):
        there.column("observation")[:]
