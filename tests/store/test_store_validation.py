"""A dataset's directory may come from a stranger: what it says is checked before anything goes by it."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import manifest_mutants
import numpy as np
import pytest
from conftest import run_rlds

from rlds_cli.base.files import arrays
from rlds_cli.dataset import open_dataset
from rlds_cli.errors import DamagedDataset, NewerFormat
from rlds_cli.keep.verification import verify
from rlds_cli.store import Manifest, files, layouts, open_store
from rlds_cli.store.paths import is_field_path

Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A dataset in either encoding."""
    root = tmp_path_factory.mktemp("samples")
    return {encoding: manifest_mutants.sample(root / encoding, encoding) for encoding in ("memmap", "zarr")}


@pytest.fixture
def dataset(samples: dict[str, Path], tmp_path: Path) -> Path:
    """A copy that may be written."""
    return manifest_mutants.copied(samples["memmap"], tmp_path / "stranger")


def edit(directory: Path, change: Change) -> Path:
    """Change what a ``zarr.json`` says: the manifest, or the document of an array."""
    file = directory / "zarr.json"
    document = json.loads(file.read_text())
    change(document["attributes"].get("rlds", document))
    file.write_text(json.dumps(document))
    return directory


def empty_field(**changes: Any) -> Change:
    """Add a field of no bytes, whose files nobody would miss."""
    field = {
        "name": "info/zzz", "path": "info/zzz", "dtype": "float32", "shape": [0], "placement": "root", "kind": "array",
        "codec": None, "digest": "0" * 64,
    }  # fmt: skip
    return lambda m: m["fields"].append(field | changes)


def set_count(**counts: Any) -> Change:
    return lambda m: m["counts"].update(counts)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "path",
    ["", ".", "..", "/", "/tmp/x", "../x", "a/../b", "./a", "a/", "a//b", "a\\b", "a\0b", "zarr.json", "a/ZARR.json",
     "episodes", "Episodes/x", "metadata/x", "text/x", "video/x", "digests/x", "rows/x", "sources", ".a", "__a", "é",
     "a b", "a" * 300],
)  # fmt: skip
def test_paths_that_no_field_has(path: str) -> None:
    assert not is_field_path(path)


@pytest.mark.sampled(22)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (empty_field(path="/tmp/x"), "path is '/tmp/x'; a path below the dataset"),
        (empty_field(path="../../x"), "a path below the dataset"),
        (empty_field(path="ACTION"), "two fields have the path 'action'"),
        (empty_field(path="action/c"), "'action/c' lies inside the one at 'action'"),
        (empty_field(name="action"), "two fields are called 'action'"),
        (empty_field(path=5), "path is 5; a text"),
        (empty_field(name="\ud800"), "a text of Unicode"),
        (empty_field(shape=[-1]), r"shape\[0\] is -1"),
        (empty_field(shape=[2**40, 2**40]), "a shape of at most"),
        (empty_field(shape=[1] * 40), "a list of 0 to 31"),
        (empty_field(shape=[True]), "is True; a whole number"),
        (empty_field(dtype="object"), "dtype is 'object'"),
        (empty_field(kind="pickle"), "kind is 'pickle'"),
        (empty_field(codec="png"), "codec is 'png'"),
        (empty_field(kind="frames", codec="png", dtype="uint8", shape=[2**14, 2**14, 3]), "pixels"),
        (empty_field(placement="next"), "placement is 'next'"),
        (empty_field(digest="x"), "64 hexadecimal digits"),
        (empty_field(more=1), "a key is 'more'"),
        (set_count(rows="5"), "rows is '5'; a whole number"),
        (set_count(rows=2**60), "rows is 1152921504606846976"),
        (set_count(rows=9), "rows is 9; at least the 10 steps"),
        (set_count(episodes=-3), "episodes is -3"),
        (set_count(episodes=4, steps=9), "3, of all ends"),
        (set_count(transitions=11), "at most the 10 steps"),
        (lambda m: m.update(id="../x"), "the id of a dataset"),
        (lambda m: m.update(encoding="pickle"), "encoding is 'pickle'"),
        (lambda m: m.update(fingerprint="rlds1:../../x"), "a fingerprint expected"),
        (lambda m: m.update(fields={}), "fields is {}; a list"),
        (lambda m: m.update(provenance=[{"state": 5}]), r"provenance\[0\] lacks"),
        (lambda m: m.update(notes=["x"]), r"notes\[0\] is 'x'"),
        (lambda m: m.update(metadata="x"), "metadata is 'x'"),
        (lambda m: m.update(spaces={"action": {"type": "Box", "shape": "x"}}), 'lacks "'),
        (lambda m: m.update(env={"spec": "x"}), "spec is 'x'"),
        (lambda m: m.update(options={"portion": {"episodes": [1]}}), "a list of 2 to 2"),
        (lambda m: m.update(episode_columns={"": {}}), "1 to 100 bytes"),
        (lambda m: m["stats"]["action"].update(mean=[1.0]), "mean is"),
        (lambda m: m["stats"].update(nothing=m["stats"]["action"]), "without statistics"),
        (lambda m: m.update(facts={"a": [[[[]]]] * 3, "b": 10**400}), "more than 300 digits"),
    ],
)
def test_a_manifest_that_no_dataset_has(dataset: Path, change: Change, message: str) -> None:
    edit(dataset, change)
    with pytest.raises(DamagedDataset, match=message):
        Manifest.read(dataset)


def test_a_field_with_a_clock_is_of_a_later_version(dataset: Path) -> None:
    edit(dataset, empty_field(clock="camera"))
    with pytest.raises(
        NewerFormat, match=r"fields\[\d+\]: clock: only a later version of rlds reads fields with a clock"
    ):
        Manifest.read(dataset)


def test_a_manifest_nested_without_end(dataset: Path) -> None:
    text = '{"attributes": {"rlds": {"format": 1, "facts": ' + "[" * 500 + "]" * 500 + "}}}"
    (dataset / "zarr.json").write_text(text)
    with pytest.raises(DamagedDataset, match="nested"):
        Manifest.read(dataset)


def test_a_stranger_cannot_have_a_directory_removed(dataset: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "work").write_text("mine")
    edit(dataset, empty_field(path=str(precious)))
    done = run_rlds("preprocess", dataset, "--fn", "scale_reward", "--arg", "scale=2", "--name", "local/y")
    assert done.returncode == 1
    assert b"a path below the dataset" in done.stderr
    assert (precious / "work").read_text() == "mine"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "place", ["action", "action/c/0/0", "episodes", "episodes/length/c/0", "digests", "info", "text"]
)
def test_a_link_on_the_way_is_refused(dataset: Path, tmp_path: Path, place: str) -> None:
    (dataset / place).rename(tmp_path / "elsewhere")
    (dataset / place).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DamagedDataset, match=f"{place} is a symbolic link"):
        open_dataset(dataset)
    found = verify(dataset)
    assert not found.ok
    assert "is a symbolic link" in str(found.problems[0])


def test_a_pipe_is_not_waited_for(dataset: Path) -> None:
    (dataset / "zarr.json").unlink()
    os.mkfifo(dataset / "zarr.json")
    with pytest.raises(DamagedDataset, match="no regular file"):
        open_dataset(dataset)
    assert run_rlds("inspect", dataset).returncode == 1


def test_the_directory_itself_may_be_a_link(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(dataset)
    assert open_dataset(tmp_path / "link").num_episodes == 3
    files.check_tree(tmp_path / "link")


def test_rows_that_no_file_has_are_not_looked_for(dataset: Path) -> None:
    edit(dataset, set_count(rows=2**48, steps=2**48 - 3))
    found = verify(dataset)
    assert "the files hold " in str(found.problems[0])
    with pytest.raises(DamagedDataset, match=r"bytes; .* expected"):
        open_dataset(dataset)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("start", [0, 4, 11], "not within the 13 rows"),
        ("start", [-4, 4, 10], "not within the 13 rows"),
        ("start", [0, 2, 10], "share steps"),
        ("length", [3, 5, 3], "not within the 13 rows"),
        ("length", [3, 8, -1], "not within the 13 rows"),
        ("num_transitions", [4, 5, 2], "num_transitions do not fit length"),
        ("num_observed", [4, 2**40, 3], "num_observed or"),
        ("source", [0, 0, 9], "source names files beyond the 1"),
        ("end", [0, 7, 0], "end holds an unknown value"),
    ],
)
def test_an_episode_table_that_leads_elsewhere(dataset: Path, column: str, values: list[int], message: str) -> None:
    array = dataset / "episodes" / column
    arrays.write(array, np.array(values, layouts.open_document(array)[1]))
    with pytest.raises(DamagedDataset, match=message):
        _ = open_dataset(dataset).num_steps


def test_a_column_of_another_length_or_type(dataset: Path) -> None:
    arrays.write(dataset / "episodes/start", np.zeros(3))
    with pytest.raises(DamagedDataset, match="start is float64"):
        _ = open_dataset(dataset).num_steps
    arrays.write(dataset / "episodes/start", np.array([0, 4]))
    with pytest.raises(DamagedDataset, match=r"start is int64 \[2\]"):
        _ = open_dataset(dataset).num_steps


def test_codes_beyond_the_texts(dataset: Path) -> None:
    with (dataset / "info/word/c/0").open("r+b") as f:
        f.write(struct.pack("<i", 99))
    with pytest.raises(DamagedDataset, match="info/word has codes beyond its 3 texts"):
        open_dataset(dataset).episode(0)


@pytest.mark.thorough
@pytest.mark.parametrize("offsets", [(2**62, 0), (0, 2**62), (0, -5)])
def test_offsets_outside_of_the_frames(dataset: Path, offsets: tuple[int, int]) -> None:
    with (dataset / "observation/image/offsets/c/0/0").open("r+b") as f:
        f.write(struct.pack("<2q", *offsets))
    ds = open_dataset(dataset)
    with pytest.raises(DamagedDataset, match="not within its bytes"):
        ds.episode(0)
    with pytest.raises(DamagedDataset, match="not within its bytes"):
        ds.store.frames("observation/image").packet(0)


@pytest.mark.parametrize("text", ['"x"', "{}", '{"file": "../../.ssh/id_rsa"}', '{"file": "/etc/passwd"}', "[" * 9999])
def test_a_source_outside_of_the_archive(dataset: Path, text: str) -> None:
    arrays.write_strings(dataset / "sources", [text])
    with pytest.raises(DamagedDataset, match="does not describe a file"):
        _ = open_store(dataset).sources


@pytest.mark.sampled(7)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(shape=[2**48, 2**40]), "a shape of at most"),
        (lambda d: d.update(shape=[-13, 2]), "is -13"),
        (lambda d: d.update(shape=[]), "without rows"),
        (lambda d: d.update(data_type="object"), "'array' of 'object'"),
        (lambda d: d.update(data_type=["x"]), "cannot be read"),
        (lambda d: d.update(codecs=[{"name": "pickle"}]), "does not describe the file"),
        (lambda d: d["chunk_grid"].update(name="rectilinear"), "does not describe the file"),
        (lambda d: d.update(chunk_key_encoding={"name": "v2"}), "chunks have other names"),
        (lambda d: d.update(shape=[12, 2]), "."),
    ],
)  # fmt: skip
@pytest.mark.parametrize("encoding", ["memmap", "zarr"])
def test_documents_of_arrays(
    samples: dict[str, Path], tmp_path: Path, encoding: str, change: Change, message: str
) -> None:
    copy = manifest_mutants.copied(samples[encoding], tmp_path / "copy")
    edit(copy / "action", change)
    with pytest.raises(DamagedDataset, match=message):
        _ = open_dataset(copy).column("action")


def test_a_chunk_that_would_decode_to_more(samples: dict[str, Path], tmp_path: Path) -> None:
    import numcodecs

    copy = manifest_mutants.copied(samples["zarr"], tmp_path / "copy")
    shard = copy / "action/c/0/0"
    chunk = numcodecs.Zstd(3).encode(bytes(100 << 20))  # 100 MiB of zeros are 3 KiB
    index = struct.pack("<2Q", 0, len(chunk)) + bytes(4)
    shard.write_bytes(chunk + index)
    with pytest.raises(DamagedDataset, match="does not decode to 262,144 bytes"):
        _ = open_dataset(copy).column("action")
    shard.write_bytes(struct.pack("<2Q", 2**60, 2**60) + bytes(4))
    with pytest.raises(DamagedDataset, match="points outside of it"):
        _ = open_dataset(copy).column("action")
    shard.write_bytes(b"x")
    with pytest.raises(DamagedDataset, match="shorter than its index"):
        _ = open_dataset(copy).column("action")
    assert not verify(copy).ok


def test_others_are_listed_beside_a_damaged_one(home: Path) -> None:
    good = manifest_mutants.sample(home)
    edit(manifest_mutants.copied(good, good.with_name("bad")), set_count(rows=2**60))
    listed = run_rlds("list", "--local")
    assert listed.returncode == 0
    assert b"local/sample     10         3" in listed.stdout
    assert b"local/bad cannot be read: rlds info local/bad says why" in listed.stderr
    assert b"damaged" in run_rlds("info", "local/bad").stdout
    assert run_rlds("du").returncode == run_rlds("gc").returncode == 0
    assert run_rlds("rm", "local/bad", "--yes").returncode == 0
    assert good.is_dir()


# -- at random


def look_at_mutants(samples: dict[str, Path], directory: Path, seeds: range) -> None:
    work = {e: manifest_mutants.copied(path, directory / e) for e, path in samples.items()}
    for seed in seeds:
        rng = Random(seed)
        encoding = rng.choice(("memmap", "memmap", "zarr"))
        changed = manifest_mutants.mutate(work[encoding], rng)
        try:
            manifest_mutants.look(work[encoding])
        except Exception as e:
            e.add_note(f"seed {seed}: {changed}")
            raise
        manifest_mutants.restore(changed, work[encoding], samples[encoding])
    for path in work.values():
        assert not manifest_mutants.look(path)  # all was taken back, and the original is fine


def test_mutants_end_in_an_answer_or_an_error_of_rlds(samples: dict[str, Path], tmp_path: Path) -> None:
    look_at_mutants(samples, tmp_path, range(4))


@pytest.mark.slow
def test_many_mutants_end_in_an_answer_or_an_error_of_rlds(samples: dict[str, Path], tmp_path: Path) -> None:
    look_at_mutants(samples, tmp_path, range(100, 300))
