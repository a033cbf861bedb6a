"""No byte of a dataset is changed unseen: whatever is flipped, in whichever file, `verify` fails."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from lerobot_archives import Content, write_v3
from test_store_build import Job

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.base.files import arrays
from rlds_cli.base.progress import silent
from rlds_cli.dataset import Dataset
from rlds_cli.errors import DamagedDataset
from rlds_cli.keep.reencoding import reencode
from rlds_cli.make.importing import import_files
from rlds_cli.store import Description, Manifest, Work, finish, sealing
from rlds_cli.store.integrity import verify_directory


def everything(directory: Path, encoding: str) -> Path:
    """Arrays, frames, texts, all columns that an episode table may have, metadata and sources."""
    built = Work(Job(), directory).run(progress=silent)
    n = len(built.episodes)
    table = replace(
        built.episodes,
        group=[f"episode_{k}" for k in range(n)],
        seed=[None if k % 3 else k for k in range(n)],
        options=[None if k % 2 else json.dumps({"level": k}) for k in range(n)],
        splits={"train": np.arange(n) % 4 > 0},
        extra={
            "task": [k % 5 for k in range(n)],
            "success": [None if k == 1 else k % 2 == 0 for k in range(n)],
            "note": [f"number {k}" for k in range(n)],
        },
    )
    sources = ({"file": "a.hdf5", "size": 3, "sha256": "0" * 64, "url": "https://example.org/a.hdf5"},)
    about = Description("local/all", encoding=encoding, sources=sources, options={"skip_bad": False})
    metadata = [("policy/weights", np.arange(6.0)), ("algorithm", "sac")]
    finish(replace(built, episodes=table), about, metadata=metadata)
    return built.directory


def made(kind: str, directory: Path) -> Path:
    """A dataset of each kind."""
    if kind in ("memmap", "zarr"):
        return everything(directory, kind)
    if kind == "videos":
        archive = write_v3(directory / "a", Content(lengths=(3, 2), video=("top",)))
        return import_files(archive, "local/film").path
    return derived().path


def derived() -> Dataset:
    """Most of it is shared with its source."""
    step = {"observation": np.arange(8.0).reshape(4, 2), "action": np.arange(3), "next": {"reward": np.ones(3)}}
    rlds_cli.create("local/source", [step | {"info": {"word": ["a", None, "b"]}}] * 2)
    return preprocess.run("local/source", "scale_reward", "scaled", args={"scale": 2.0}, jobs=0)


def files(directory: Path) -> list[Path]:
    return sorted(p for p in directory.rglob("*") if p.is_file())


def flip(file: Path, at: int, bit: int) -> bytes:
    """Change one bit; the file as it was. What is shared with another dataset stays as it is there."""
    good = file.read_bytes()
    file.unlink()
    file.write_bytes(good[:at] + bytes([good[at] ^ bit]) + good[at + 1 :])
    return good


def flip_any(file: Path, rng: np.random.Generator) -> bytes:
    return flip(file, int(rng.integers(file.stat().st_size)), 1 << int(rng.integers(8)))


def flip_counted(file: Path, rng: np.random.Generator) -> bytes:
    """Flip a bit of the first row: a row behind the last step of an episode may mean nothing, and is not compared."""
    return flip(file, 0, 1 << int(rng.integers(8)))


KINDS = ["memmap", "zarr", "videos", "derived"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_file_is_named_in_which_a_bit_is_flipped(kind: str, tmp_path: Path) -> None:
    directory, rng = made(kind, tmp_path / "work"), np.random.default_rng(0)
    assert verify_directory(directory).problems == ()
    fields = {f.path: f.name for f in Manifest.read(directory).fields}
    names = {file.relative_to(directory).as_posix(): file for file in files(directory)}
    rows = set(names) - set(Manifest.listed(directory)) - {Manifest.FILE, Manifest.LISTING}
    assert rows or kind == "zarr"
    for some in (sorted(rows), sorted(Manifest.listed(directory))):
        good = {name: flip_counted(names[name], rng) if name in rows else flip_any(names[name], rng) for name in some}
        found = {p.where for p in verify_directory(directory).problems}
        for name in some:
            array = name.removeprefix("video/").partition("/c/")[0]
            field = fields.get(array) or fields.get(array.rpartition("/")[0])
            named = {name, array, field} & found
            assert named or any(where.startswith(f"{field} ") for where in found), name
        for name, content in good.items():
            names[name].write_bytes(content)
    assert verify_directory(directory).ok


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_one_bit_of_one_file_is_enough(kind: str, tmp_path: Path) -> None:
    directory, rng = made(kind, tmp_path / "work"), np.random.default_rng(1)
    others = {*Manifest.listed(directory), Manifest.FILE, Manifest.LISTING}
    for file in files(directory):
        of_rows = file.relative_to(directory).as_posix() not in others
        good = flip_counted(file, rng) if of_rows else flip_any(file, rng)
        assert not verify_directory(directory).ok, file
        file.write_bytes(good)


def check(directory: Path) -> tuple[sealing.Problem, ...]:
    return sealing.check(directory, Manifest.read(directory), 1)


@pytest.mark.parametrize("name", [Manifest.FILE, Manifest.LISTING])
def test_the_manifest_and_the_list_anywhere(name: str, tmp_path: Path) -> None:
    directory = everything(tmp_path, "memmap")
    file, rng = directory / name, np.random.default_rng(2)
    for at in rng.integers(file.stat().st_size, size=60).tolist():
        good = flip(file, at, 1 << int(rng.integers(8)))
        try:
            found: tuple[object, ...] = check(directory)
        except DamagedDataset:
            found = (None,)
        assert found, f"byte {at}"
        file.write_bytes(good)
    assert check(directory) == ()


@pytest.mark.thorough
@pytest.mark.parametrize("storage", ["memmap", "zarr"])
def test_a_dataset_without_digests_of_files_is_damaged(storage: str, tmp_path: Path) -> None:
    directory = everything(tmp_path, storage)
    own = json.loads((directory / "zarr.json").read_text())["attributes"]["rlds"]
    arrays.write_group(directory, {"rlds": own})
    assert [p.where for p in verify_directory(directory).problems] == ["manifest"]
    arrays.write_group(directory, {"rlds": own | {"files": ""}})
    (found,) = verify_directory(directory).problems
    assert "a sha256 expected" in found.what
    with pytest.raises(DamagedDataset):
        rlds_cli.open_dataset(directory)


@pytest.mark.thorough
@pytest.mark.parametrize("key", ["rlds_sha256", '"files": "'])
def test_a_key_of_the_digests_that_is_lost(key: str, tmp_path: Path) -> None:
    directory = everything(tmp_path, "memmap")
    text = (directory / "zarr.json").read_text()
    flip(directory / "zarr.json", text.index(key) + 2, 1)
    assert not verify_directory(directory).ok


@pytest.mark.thorough
def test_space_between_values_counts(tmp_path: Path) -> None:
    directory = everything(tmp_path, "memmap")
    text = (directory / "zarr.json").read_text()
    (directory / "zarr.json").write_text(text.replace(": ", ":\t", 1))
    assert json.loads((directory / "zarr.json").read_text()) == json.loads(text)
    assert [str(p) for p in check(directory)] == ["manifest: its digest is not that of zarr.json"]


def test_a_column_that_is_added_or_removed(tmp_path: Path) -> None:
    directory = everything(tmp_path, "memmap")
    (directory / "episodes/.DS_Store").write_text("of a file manager")
    (directory / "notes.txt").write_text("of the user")
    assert check(directory) == ()
    arrays.write(directory / "episodes/extra", np.zeros(10))
    shutil.rmtree(directory / "episodes/row")
    found = {str(p) for p in check(directory)}
    assert "episodes/extra/c/0: is not of this dataset" in found
    assert "episodes/row/c/0: is missing" in found


STATISTICS = ("mean", "std", "min", "max", "q01", "q99", "count", "nonfinite", "histogram", "low", "high")


@pytest.mark.parametrize(
    ("storage", "keys"),
    [
        ("memmap", ("std", "q99", "count", "histogram", "low")),
        *(pytest.param(storage, STATISTICS, marks=pytest.mark.thorough) for storage in ("memmap", "zarr")),
    ],
)
def test_statistics_follow_from_the_rows(storage: str, keys: tuple[str, ...], tmp_path: Path) -> None:
    directory = everything(tmp_path, storage)
    m = Manifest.read(directory)
    for key in keys:
        other = (np.asarray(m.stats["action"][key]) + 1).tolist()
        replace(m, stats=m.stats | {"action": {**m.stats["action"], key: other}}).write(directory)
        assert [str(p) for p in verify_directory(directory).problems] == [
            f"statistics of action: {key} are not those of its rows"
        ]


@pytest.mark.thorough
def test_the_other_encoding_keeps_digests(tmp_path: Path) -> None:
    ds = rlds_cli.create("local/x", [{"observation": np.arange(4.0), "action": np.arange(3)}])
    before = Manifest.listed(ds.path)
    reencode("local/x", to="zarr")
    after = Manifest.listed(ds.path)
    assert {n for n in after if n.startswith("action/c/")}
    assert {n: d for n, d in after.items() if n.startswith(("episodes/", "digests/"))} == {
        n: d for n, d in before.items() if n.startswith(("episodes/", "digests/"))
    }
    reencode("local/x", to="memmap")
    assert Manifest.listed(ds.path) == before


@pytest.mark.thorough
def test_damage_that_is_shared_is_not_made_right(tmp_path: Path) -> None:
    source = derived().manifest.provenance[0]["from"]
    file = rlds_cli.open_dataset(source).path / "text/info/word/offsets/zarr.json"
    flip_in_place(file, 3)
    again = preprocess.run(source, "scale_reward", "again", args={"scale": 3.0}, jobs=0)
    assert "text/info/word/offsets/zarr.json" in {p.where for p in verify_directory(again.path).problems}


def flip_in_place(file: Path, at: int) -> None:
    content = file.read_bytes()
    file.chmod(0o644)
    file.write_bytes(content[:at] + b"\t" + content[at + 1 :] if content[at : at + 1] == b" " else content + b"\n")
