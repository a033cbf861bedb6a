"""Open X-Embodiment and Atari, end to end: listed and fetched from a loopback bucket, converted, compared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import test_archives_openx as openx
import test_archives_rlu_atari as atari
from server import Server
from tfds_files import write_dataset

import rlds_cli
from rlds_cli.errors import CorruptArchive
from rlds_cli.make.importing import import_files


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "*")
    with Server() as running:
        for name, value in running.environment(tmp_path).items():
            monkeypatch.setenv(name, value)
        yield running


def files_of(directory: Path, prefix: str) -> dict[str, bytes]:
    return {f"{prefix}/{p.name}": p.read_bytes() for p in sorted(directory.iterdir())}


def toy(tmp_path: Path, *, filler: bool = False) -> Path:
    train = [[openx.record(openx.episode(4 + i, i, filler=filler))] for i in range(2)]
    val = [[openx.record(openx.episode(3, 9, filler=filler))]]
    return write_dataset(tmp_path / "0.1.0", openx.STEP, {"train": train, "val": val}, metadata=openx.META)


@pytest.mark.thorough
def test_a_directory_of_the_bucket(server: Server, tmp_path: Path) -> None:
    there = toy(tmp_path)
    others = {"robotics/roboturk_more/0.1.0/features.json": b"{}", "robotics/roboturk/0.2.0/features.json": b"{}"}
    pages = server.add_bucket("gresearch", files_of(there, "robotics/roboturk/0.1.0") | others)
    ds = rlds_cli.download("openx/roboturk")
    assert ds.fingerprint == import_files(there, "local/toy").fingerprint
    assert ds.episodes["length"].tolist() == [4, 5, 3]
    assert ds.select(split="val").num_steps == 3
    assert not any(page.requests for name, page in pages.items() if name in others)
    assert np.array_equal(openx.column(ds, "observation/state", 2)[:-1], openx.episode(3, 9)["state"])


@pytest.mark.thorough
def test_the_other_bucket_when_the_first_is_closed(server: Server, tmp_path: Path) -> None:
    there = toy(tmp_path)
    server.add_bucket("gresearch", {"robotics/roboturk/0.1.0/features.json": b"{}"}, closed=True)
    markers = {"roboturk_$folder$": b"", "roboturk/0.1.0_$folder$": b""}
    server.add_bucket("gdm-robotics-open-x-embodiment", files_of(there, "roboturk/0.1.0") | markers)
    ds = rlds_cli.download("openx/roboturk")
    assert ds.fingerprint == import_files(there, "local/toy").fingerprint


@pytest.mark.thorough
def test_the_registered_rule_for_the_last_step(server: Server, tmp_path: Path) -> None:
    there = toy(tmp_path, filler=True)
    name = "austin_buds_dataset_converted_externally_to_rlds"
    server.add_bucket("gresearch", files_of(there, f"robotics/{name}/0.1.0") | files_of(there, "robotics/viola/0.1.0"))
    converted = rlds_cli.download(f"openx/{name}")
    assert converted.episodes["length"].tolist() == [4, 5, 3]
    assert converted.manifest.options["last_step"] == "action"
    assert "last-action" in [n["code"] for n in converted.manifest.notes]
    viola = rlds_cli.download("openx/viola")  # of which nothing is registered
    assert viola.episodes["length"].tolist() == [3, 4, 2]


def test_a_file_that_a_bucket_cut_short(server: Server, tmp_path: Path) -> None:
    files = files_of(toy(tmp_path), "robotics/viola/0.1.0")
    last = max(files)
    server.add_bucket("gresearch", files | {last: files[last][:-100]})
    with pytest.raises(CorruptArchive, match="record 0 at byte 0: the file ends inside it"):
        rlds_cli.download("openx/viola")


@pytest.mark.thorough
def test_the_files_of_one_run(server: Server, tmp_path: Path) -> None:
    there = atari.run_of(tmp_path / "Alien", [atari.episode(4, 1)], [atari.episode(5, 2)])
    other = {"atari_episodes_ordered/Alien/run_10-00000-of-00001": b"no TFRecord"}
    server.add_bucket("rl_unplugged", files_of(there, "atari_episodes_ordered/Alien") | other)
    ds = rlds_cli.download("rlu_atari/Alien_run_1")
    assert ds.episodes["length"].tolist() == [3, 4]
    assert ds.fingerprint == import_files(there, "local/alien").fingerprint
    assert np.array_equal(atari.column(ds, "observation", 1), atari.episode(5, 2)["frames"])
