from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from rlds_cli.base.files import arrays
from rlds_cli.errors import DamagedDataset, NewerFormat
from rlds_cli.store.manifest import Counts, Manifest, StoredField

SAMPLE = Manifest(
    format=1,
    id="local/x",
    encoding="memmap",
    fields=(StoredField("next/reward", "next/reward", "float32", (), "next", "array", None, "ab" * 32),),
    counts=Counts(5, 1, 4, 4, 1, 0, 0, 1, 0),
    fingerprint="rlds1:" + "0" * 64,
    created="2026-01-02T03:04:05+00:00",
    rlds_version="0.1.0",
    stats={
        "next/reward": {
            "mean": math.nan,
            "std": 1.0,
            "min": -math.inf,
            "max": math.inf,
            "q01": 0.0,
            "q99": 1.0,
            "count": 4,
            "nonfinite": 0,
            "histogram": (),
            "low": 0.0,
            "high": 0.0,
        }
    },
    files="cd" * 32,
    notes=({"code": "a", "text": "b", "count": 1, "where": ""},),
    metadata=("policy",),
)


def write(directory: Path, m: Manifest, **more: object) -> None:
    arrays.write_group(directory, {"rlds": m.to_json() | more})


def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    write(tmp_path, SAMPLE)
    read = Manifest.read(tmp_path)
    assert replace(read, stats={}) == replace(SAMPLE, stats={})
    found = read.stats["next/reward"]
    assert math.isnan(found["mean"])
    assert (found["max"], found["min"], found["count"]) == (math.inf, -math.inf, 4)


def test_the_document_is_strict_json(tmp_path: Path) -> None:
    write(tmp_path, SAMPLE)

    def refuse(token: str) -> None:
        raise AssertionError(token)

    json.loads((tmp_path / "zarr.json").read_text(), parse_constant=refuse)


def test_what_a_later_version_adds_is_left_alone(tmp_path: Path) -> None:
    write(tmp_path, SAMPLE, colour="blue")
    assert Manifest.read(tmp_path).id == "local/x"


def test_a_newer_format_is_refused_with_its_writer(tmp_path: Path) -> None:
    write(tmp_path, SAMPLE, format=3, rlds_version="9.1")
    with pytest.raises(NewerFormat, match=r"format 3, written by rlds 9\.1") as caught:
        Manifest.read(tmp_path)
    assert "--upgrade" in str(caught.value.hint)


@pytest.mark.thorough
@pytest.mark.parametrize("text", ["", "{", "null", "[]", "{}", '{"attributes": null}', '{"attributes": {"rlds": {}}}'])
def test_what_is_no_manifest_is_damage(tmp_path: Path, text: str) -> None:
    (tmp_path / "zarr.json").write_text(text)
    with pytest.raises(DamagedDataset, match="is not the manifest of a dataset"):
        Manifest.read(tmp_path)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("lost", ["fields", "counts", "fingerprint", "id", "notes", "stats", "provenance", "files"])
def test_a_manifest_that_lacks_something_is_damage(tmp_path: Path, lost: str) -> None:
    document = SAMPLE.to_json()
    del document[lost]
    arrays.write_group(tmp_path, {"rlds": document})
    with pytest.raises(DamagedDataset, match='lacks "'):
        Manifest.read(tmp_path)


def test_no_manifest(tmp_path: Path) -> None:
    with pytest.raises(DamagedDataset, match="FileNotFoundError"):
        Manifest.read(tmp_path)
