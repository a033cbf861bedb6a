"""Zarr stores at addresses: directories whose files a place lists, downloaded as one file of an archive."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zarr
from server import Server
from test_delivery_urls import sources

import rlds_cli
from rlds_cli.errors import DownloadFailed, UnsafeArchive
from rlds_cli.keep import pinning
from rlds_cli.make.importing import import_files


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    with Server() as server:
        for name, value in server.environment(tmp_path).items():
            monkeypatch.setenv(name, value)
        yield server


def buffer(path: Path, form: int = 2) -> dict[str, bytes]:
    """Write a replay buffer of two episodes; return its files."""
    group = zarr.open_group(path, mode="w", zarr_format=form)
    values = {"data/action": np.arange(20.0).reshape(10, 2), "data/state": np.arange(30.0, dtype="f4").reshape(10, 3)}
    for name, of in (values | {"meta/episode_ends": np.array([4, 10])}).items():
        group.create_array(name, shape=of.shape, dtype=of.dtype, chunks=(4, *of.shape[1:]))[...] = of
    return {f.relative_to(path).as_posix(): f.read_bytes() for f in path.rglob("*") if f.is_file()}


def serve(web: Server, files: dict[str, bytes], root: str, *, hidden: bool = True) -> None:
    """Serve files with a page of links for each directory; without ``hidden`` as nginx lists them."""
    pages: dict[str, set[str]] = {}
    for name, content in files.items():
        web.add(f"{root}/{name}", content)
        parts = name.split("/")
        for k, part in enumerate(parts):
            link = part + "/" * (k + 1 < len(parts))
            pages.setdefault("/".join(parts[:k]), set()).update([link] if hidden or link[0] != "." else [])
    for directory, links in pages.items():
        shown = "".join(f'<a href="{link}">{link}</a>' for link in sorted(links))
        web.add(f"{root}/{directory}/".replace("//", "/"), shown, content_type="text/html")


@pytest.mark.parametrize(
    ("form", "hidden", "tail"),
    [
        (2, True, ""),
        pytest.param(3, True, "/", marks=pytest.mark.thorough),
        (2, False, ""),
        pytest.param(3, True, "/**", marks=pytest.mark.thorough),
    ],
)
def test_a_store_whose_files_are_listed(web: Server, tmp_path: Path, form: int, hidden: bool, tail: str) -> None:
    """Documents whose names begin with a dot are asked for where a server leaves them out."""
    serve(web, buffer(tmp_path / "push.zarr", form), "/runs/push.zarr", hidden=hidden)
    ds = rlds_cli.download(f"{web.url}/runs/push.zarr{tail}", name="local/push")
    same = import_files(tmp_path / "push.zarr", "local/same")
    assert ds.fingerprint == same.fingerprint
    assert sources(ds) == {"push.zarr": f"{web.url}/runs/push.zarr"}
    assert ds.store.sources[0]["sha256"] == same.store.sources[0]["sha256"]
    np.testing.assert_array_equal(ds.episode(1)["action"], np.arange(20.0).reshape(10, 2)[4:])
    asked = len(web.asked)
    assert rlds_cli.download(f"{web.url}/runs/push.zarr{tail}", name="local/push").path == ds.path
    assert len(web.asked) == asked, "it is known to be made of this store"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("scheme", ["hf", "s3", "gs"])
def test_buckets_and_the_hub_list_stores(web: Server, tmp_path: Path, scheme: str) -> None:
    files = {f"day1/push.zarr/{n}": content for n, content in buffer(tmp_path / "push.zarr").items()}
    _ = web.add_repository("lab/runs", files) if scheme == "hf" else web.add_bucket("lab", files)
    place = {"hf": "hf://datasets/lab/runs", "s3": "s3://lab", "gs": "gs://lab"}[scheme]
    ds = rlds_cli.download(f"{place}/day1/push.zarr", name="local/push")
    assert ds.fingerprint == import_files(tmp_path / "push.zarr", "local/same").fingerprint
    lock = tmp_path / "rlds.lock"
    lock.write_text(pinning.lock(["local/push"]))
    done = pinning.sync(lock, allow_address=True, home=tmp_path / "elsewhere")
    assert [(d.fingerprint, d.how) for d in done] == [(ds.fingerprint, "downloaded")]


def test_the_kept_store_is_the_one_that_was_there(web: Server, tmp_path: Path) -> None:
    """Also of one whose chunks are not all written, beside the records of its files."""
    files = buffer(tmp_path / "push.zarr")
    (tmp_path / "push.zarr/data/state/1.0").unlink()
    del files["data/state/1.0"]
    serve(web, files, "/push.zarr")
    ds = rlds_cli.download(f"{web.url}/push.zarr", name="local/push", keep_archive=True)
    here = tmp_path / "home/archives/local/push/push.zarr"
    same, again = import_files(tmp_path / "push.zarr", "local/same"), import_files(here, "local/again")
    assert ds.fingerprint == same.fingerprint == again.fingerprint
    assert again.store.sources[0]["sha256"] == same.store.sources[0]["sha256"]
    chunks = [[n for n in map(str, of.manifest.notes) if "chunk" in n] for of in (ds, same, again)]
    assert chunks[0] == chunks[1] == chunks[2] and len(chunks[0]) == 1


def test_a_place_without_a_list_is_refused_with_the_way(web: Server, tmp_path: Path) -> None:
    for name, content in buffer(tmp_path / "push.zarr").items():
        web.add(f"/push.zarr/{name}", content)
    with pytest.raises(DownloadFailed, match="does not list its files") as e:
        rlds_cli.download(f"{web.url}/push.zarr", name="local/push")
    assert "zip -0 -r" in str(e.value.hint)


def test_files_that_are_no_store_are_refused_before_any_is_fetched(web: Server, tmp_path: Path) -> None:
    serve(web, {"a.txt": b"x", "b/c.txt": b"x"}, "/push.zarr")
    with pytest.raises(DownloadFailed, match="is no Zarr store"):
        rlds_cli.download(f"{web.url}/push.zarr", name="local/push")
    assert not any(path.endswith(".txt") for path in web.asked)


def test_a_codec_that_runs_code_is_refused(web: Server, tmp_path: Path) -> None:
    files = buffer(tmp_path / "push.zarr")
    document = json.loads(files["data/state/.zarray"]) | {"filters": [{"id": "pickle"}]}
    files["data/state/.zarray"] = json.dumps(document).encode()
    serve(web, files, "/push.zarr")
    with pytest.raises(UnsafeArchive, match="'pickle'"):
        rlds_cli.download(f"{web.url}/push.zarr", name="local/push")
