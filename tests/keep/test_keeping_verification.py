"""Every way to damage a dataset that could be thought of is found, and named."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import write_d4rl
from made_once import made_once
from test_store_build import Job

import rlds_cli
from rlds_cli import Dataset, create, preprocess
from rlds_cli.base.progress import silent
from rlds_cli.errors import DatasetNotFound, RldsError, UnknownDataset
from rlds_cli.keep.verification import verify, verify_all
from rlds_cli.make.importing import import_files
from rlds_cli.store import Description, Work, finish
from rlds_cli.store.integrity import Verification, verify_directory

STEPS = 70_000


def make(ref: str = "local/x", **more: Any) -> Dataset:
    rng = np.random.default_rng(0)

    def episodes() -> Any:
        for t in (STEPS, 10, 7):
            yield {
                "observation": rng.normal(size=(t + 1, 3)).astype(np.float32),
                "action": rng.integers(0, 4, t),
                "next": {"reward": rng.normal(size=t), "terminated": True},
                "info": {"word": ["ab", None, "c"] * (t // 3) + ["ab"] * (t % 3)},
            }

    return made_once(ref, lambda: create(ref, episodes(), **more), __name__, more)


def write(file: Path, at: int, data: bytes) -> None:
    file.chmod(0o644)
    with file.open("r+b") as f:
        f.seek(at)
        f.write(data)


def found(v: Verification) -> str:
    assert not v.ok
    assert v.problems
    return "\n".join(str(p) for p in v.problems)


@pytest.mark.thorough
@pytest.mark.parametrize("storage", ["memmap", "zarr"])
def test_whole(storage: Any) -> None:
    ds = make(storage=storage)
    v = verify("local/x")
    assert v.ok
    assert v.problems == ()
    assert v.fingerprint == ds.fingerprint
    assert (v.id, v.path, v.arrays) == ("local/x", ds.path, 6)
    assert v.bytes >= 70_000 * (12 + 8 + 8 + 2 + 4)


@pytest.mark.thorough
def test_the_episodes_that_differ_are_named() -> None:
    ds = make()
    file = ds.path / "observation/c/0/0"
    write(file, 100, b"\xff")
    v = verify("local/x")
    assert found(v) == "observation: episode 0 differs"
    assert v.problems[0].episodes == (0, 1)
    assert v.fingerprint is not None
    assert v.fingerprint != ds.fingerprint
    write(file, 12 * (STEPS + 1), b"\xff")
    assert found(verify("local/x")) == "observation: episodes 0-1 differ"


@pytest.mark.thorough
def test_rows_that_do_not_count_are_not_compared() -> None:
    ds = make()
    write(ds.path / "action/c/0", 8 * STEPS, b"\x55")  # the row behind the last step of the first episode
    assert verify("local/x").ok


@pytest.mark.slow
def test_every_bit_of_a_small_dataset_counts() -> None:
    ds = create("local/s", [{"observation": np.arange(4.0), "action": np.arange(3), "next": {"terminated": True}}])
    widths = {"observation": 8, "action": 8, "next/terminated": 1, "next/truncated": 1}
    for name, width in widths.items():
        last = range(0) if name == "observation" else range(3 * width, 4 * width)  # a row that is not a step
        for file in (p for p in (ds.path / name / "c").rglob("*") if p.is_file()):
            good = file.read_bytes()
            file.chmod(0o644)
            for at in sorted({*range(len(good))} - {*last}):
                file.write_bytes(good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :])
                assert not verify_directory(ds.path).ok, (file, at)
            file.write_bytes(good)
    assert verify("local/s").ok


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: (p / "action/c/0").unlink(), r"action: .*action/c/0 is missing"),
        (lambda p: os.truncate(p / "action/c/0", 100), r"action: .* has 100 bytes; .* expected"),
        (lambda p: shutil.rmtree(p / "action"), r"action: .*zarr.json cannot be read"),
        (lambda p: (p / "action/zarr.json").write_text("x"), r"action: .*zarr.json cannot be read"),
        (lambda p: edit(p / "action/zarr.json", shape=[5]), r"action: zarr.json says int64 \[5\]; the manifest"),
        (lambda p: edit(p / "action/zarr.json", codecs=[]), r"action: zarr.json does not describe the file"),
        (lambda p: write(p / "digests/action/c/0/0", 3, b"\x55\x55"), r"digests of action: are not those"),
        (lambda p: shutil.rmtree(p / "digests"), r"digests of action"),
        (lambda p: write(p / "info/word/c/0", 0, struct.pack("<i", 9)), r"info/word: episode 0 has codes"),
        (lambda p: write(p / "info/word/c/0", 0, struct.pack("<i", 1)), r"info/word: episode 0 differs"),
        (lambda p: write(p / "text/info/word/bytes/c/0", 0, b"X"), r"info/word: episodes 0-2 differ"),
        (lambda p: (p / "zarr.json").write_text("{}"), r"manifest: .*is not the manifest of a dataset"),
        (lambda p: shutil.rmtree(p / "episodes"), r"episodes: "),
        (lambda p: (p / "episodes/length/c/0").unlink(), r"episodes: .*length/c/0 is missing"),
        (lambda p: write(p / "episodes/length/c/0", 8, b"\x0b"), r"action: episode 1 differs"),
        (lambda p: write(p / "episodes/start/c/0", 8, b"\x01"), r"episodes: .*its episodes share steps"),
        (lambda p: write(p / "episodes/end/c/0", 2, b"\x07"), r"episodes/end: episode 2 has the unknown end 7"),
        (lambda p: write(p / "episodes/end/c/0", 2, b"\x01"), r"episodes/counts: 2 terminated; the manifest says 3"),
        (lambda p: write(p / "episodes/num_observed/c/0", 0, b"\x00"), r"episodes/num_observed: is neither"),
        (lambda p: write(p / "episodes/num_transitions/c/0", 0, b"\x00"), r"episodes/num_transitions: episode 0"),
        (lambda p: write(p / "episodes/source/c/0", 0, b"\x09"), r"episodes/source: names files beyond the 1"),
        (lambda p: write(p / "episodes/total_reward/c/0", 8, struct.pack("<d", 9e9)), r"episodes/total_reward"),
        (lambda p: write(p / "episodes/num_done/c/0", 8, b"\x05"), r"episodes/num_done: episode 1 has 5"),
        (lambda p: (p / "next/zarr.json").write_text("no"), r"next: .*zarr.json cannot be read"),
    ],
)  # fmt: skip
def test_damage_is_named(damage: Callable[[Path], Any], message: str) -> None:
    ds = make()
    for file in ds.path.rglob("*"):
        if file.is_file():
            file.chmod(0o644)
    damage(ds.path)
    v = verify(ds.path)
    assert not v.ok
    assert any(re.match(message, str(p)) for p in v.problems), found(v)


def edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["flip", "cut", "gone"])
def test_damaged_shards(how: str) -> None:
    ds = make(storage="zarr")
    shard = next(p for p in (ds.path / "observation/c").rglob("*") if p.is_file())
    data = shard.read_bytes()
    shard.chmod(0o644)
    if how == "flip":
        shard.write_bytes(data[:5000] + bytes([data[5000] ^ 1]) + data[5001:])
    elif how == "cut":
        shard.write_bytes(data[: len(data) // 2])
    else:
        shard.unlink()
    assert "observation: " in found(verify("local/x"))


def test_flags_that_disagree_with_the_table() -> None:
    ds = make()
    m = json.loads((ds.path / "zarr.json").read_text())
    write(ds.path / "next/terminated/c/0", 70_010, b"\0")  # the last step of the second episode
    problems = found(verify("local/x"))
    assert "next/terminated: episode 1 differs" in problems
    assert "episodes/end: episode 1 has flags that contradict its end" in problems
    assert m["attributes"]["rlds"]["id"] == "local/x"


@pytest.mark.thorough
def test_frames(tmp_path: Path) -> None:
    built = Work(Job(), tmp_path / "work").run(progress=silent)
    finish(built, Description("local/frames"))
    assert verify_directory(built.directory).ok
    pixels = built.directory / "observation/pixels"
    data = (pixels / "bytes/c/0").read_bytes()
    (pixels / "bytes/c/0").write_bytes(b"\xff" + data[1:])
    assert found(verify_directory(built.directory)) == "observation/pixels: episode 0 differs"
    (pixels / "bytes/c/0").write_bytes(data)
    offsets = (pixels / "offsets/c/0/0").read_bytes()
    (pixels / "offsets/c/0/0").write_bytes(offsets[:8] + struct.pack("<q", 99) + offsets[16:])
    assert "observation/pixels offsets: do not increase" in found(verify_directory(built.directory))


def test_what_was_expected() -> None:
    ds = make()
    digits = ds.fingerprint.removeprefix("rlds1:")
    short = f"rlds1:{digits[:4]}-{digits[4:8]}-{digits[8:12]}"
    for expect in (ds.fingerprint, digits, digits.upper(), short, digits[:8], f" {short} "):
        assert verify("local/x", expect=expect).ok
    other = "rlds1:" + ("0" if digits[0] != "0" else "1") + digits[1:]
    v = verify("local/x", expect=other)
    assert found(v) == f"fingerprint: is {ds.fingerprint}; {other} expected"
    for expect in ("", "rlds1:", "1234567", "rlds1:xyzxyzxyz", digits + "0", "sha256:" + digits):
        with pytest.raises(RldsError, match="is not a fingerprint"):
            verify("local/x", expect=expect)
    with pytest.raises(RldsError, match="2 datasets"):
        create("local/y", [{"observation": np.arange(4.0), "action": np.arange(3)}])
        verify_all(["local/*"], expect=short)


@pytest.mark.thorough
def test_several_and_all() -> None:
    make()
    create("local/y", [{"observation": np.arange(4.0), "action": np.arange(3)}])
    assert [v.id for v in verify_all(all_=True)] == ["local/x", "local/y"]
    assert [v.id for v in verify_all(["local/y", "local/*"])] == ["local/y", "local/x"]
    with pytest.raises(DatasetNotFound, match="matches"):
        verify_all(["d4rl/*"])
    with pytest.raises(DatasetNotFound):
        verify("local/z")
    with pytest.raises(UnknownDataset, match="does not know"):
        verify("d4rl/hoppper")


@pytest.mark.thorough
def test_nothing_is_written() -> None:
    ds = make()
    before = sorted((str(p), p.lstat().st_mtime_ns) for p in ds.path.parents[2].rglob("*"))
    verify("local/x")
    assert sorted((str(p), p.lstat().st_mtime_ns) for p in ds.path.parents[2].rglob("*")) == before


@pytest.mark.thorough
def test_the_archive_is_compared_with_what_it_was(home: Path) -> None:
    rlds_cli.download("sample/pendulum-d4rl")
    assert verify("sample/pendulum-d4rl").remarks == ("archive sha256 known to the registry", "archive unchanged")
    archive = home / "archives/sample/pendulum-d4rl/pendulum-d4rl.hdf5"
    kept = archive.read_bytes()
    archive.unlink()
    assert verify("sample/pendulum-d4rl").remarks == ("archive sha256 known to the registry",)
    archive.write_bytes(kept + b"x")
    v = verify("sample/pendulum-d4rl")
    assert "archive pendulum-d4rl.hdf5: has sha256" in found(v)
    assert v.hint == "rlds verify sample/pendulum-d4rl --fix"


@pytest.mark.thorough
def test_an_imported_archive(tmp_path: Path) -> None:
    write_d4rl(tmp_path / "a.hdf5", [5, 6])
    import_files(tmp_path / "a.hdf5", "local/a")
    assert verify("local/a").remarks == ("archive not kept",)


def test_the_dataset_that_it_was_made_of(home: Path) -> None:
    small = [{"observation": np.arange(4.0), "action": np.arange(3)}]
    source = create("local/y", small)
    preprocess.run(source, "cast", "v", args={"fields": "observation", "dtype": "float32"}, jobs=0)
    assert verify("local/y@v").remarks == ("source unchanged",)
    create("local/y", [{"observation": np.zeros(4), "action": np.arange(3)}], force=True)
    (remark,) = verify("local/y@v").remarks
    assert remark.startswith("its source local/y has changed (rlds1:")
    shutil.rmtree(source.path)
    assert verify("local/y@v").remarks == ("its source local/y is not here",)
    assert verify("local/y@v").ok


def test_a_shared_home_that_may_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = make(home=tmp_path / "shared")
    monkeypatch.setenv("RLDS_PATH", str(tmp_path / "shared"))
    for directory, _, _ in os.walk(tmp_path / "shared"):
        Path(directory).chmod(0o555)
    try:
        assert verify("local/x").path == ds.path
        assert verify("local/x").ok
    finally:
        for directory, _, _ in os.walk(tmp_path / "shared"):
            Path(directory).chmod(0o755)
