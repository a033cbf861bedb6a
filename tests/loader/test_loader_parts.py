"""Packed rows by parts: a merge and its members share them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_loader_packed import alter, files

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.base.files.sizes import size_on_disk
from rlds_cli.dataset import Dataset
from rlds_cli.homes import usage
from rlds_cli.keep.compacting import compact
from rlds_cli.keep.gc import collect, find_garbage
from rlds_cli.keep.removing import remove
from rlds_cli.keep.repair import repair
from rlds_cli.keep.verification import verify
from rlds_cli.loader import Loader, Sequential, Transition
from rlds_cli.loader.storage import blocks, packed
from rlds_cli.store import layouts


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small datasets are packed, too."""
    monkeypatch.setattr(blocks, "LEAST_BYTES", 0)


def create(name: str, seed: int, lengths: tuple[int, ...] = (7, 1, 30)) -> Dataset:
    rng = np.random.default_rng(seed)
    return rlds_cli.create(
        f"local/{name}",
        [
            {
                "observation": rng.normal(size=(n + 1, 5)),
                "action": rng.normal(size=(n, 2)).astype(np.float32),
                "next": {"reward": rng.normal(size=n), "terminated": True},
            }
            for n in lengths
        ],
    )


@pytest.fixture
def merged(home: Path) -> Dataset:
    create("a", 0), create("b", 1, (12, 3)), create("c", 2)
    return rlds_cli.merge(["local/a", "local/b", "local/c"], "local/all")


def loaded(ds: Dataset, **options: object) -> tuple[str, list[dict[str, np.ndarray]]]:
    """How a dataset is read, and all of its transitions."""
    loader = Loader(ds, 16, sampler=Sequential(), backend="numpy", **options)  # type: ignore[arg-type]
    reading = next(line for line in loader.describe().splitlines() if "packed rows" in line)
    return reading, [dict(batch.leaves()) for batch in loader]


def check(ds: Dataset, **options: object) -> str:
    """Compare all transitions with those that are read column by column; return how they are read."""
    reading, found = loaded(ds, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "MOST_ROW_BYTES", 0)
        _, expected = loaded(ds, **options)
    assert len(found) == len(expected) > 0
    for batch, other in zip(found, expected, strict=True):
        for name, values in other.items():
            np.testing.assert_array_equal(batch[name], values, name)
    return reading


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{}, {"dtype": None}, {"window": Transition(3, 0.9)}])
def test_a_merge_holds_what_its_members_hold(merged: Dataset, options: dict[str, object]) -> None:
    assert "3 files in" in check(merged, **options)


@pytest.mark.thorough
def test_members_and_merges_share_packed_rows(merged: Dataset, home: Path) -> None:
    for name in "ab":
        check(rlds_cli.open_dataset(f"local/{name}"))
    before = {file: file.stat().st_ino for file in files(home)}
    assert len(before) == 2
    check(merged)
    assert len(files(home)) == 3 and before.items() <= {f: f.stat().st_ino for f in files(home)}.items()
    check(rlds_cli.open_dataset("local/c"))
    check(merged.select(episodes=[5, 1]).save("some"))
    check(rlds_cli.merge(["local/all", create("d", 3)], "local/more", column="by"))
    assert len(files(home)) == 4
    check(merged.trim({2: [(3, 20)]}, "cut"))


@pytest.mark.thorough
def test_a_merge_keeps_packed_rows_when_its_members_are_removed(merged: Dataset, home: Path) -> None:
    check(rlds_cli.open_dataset("local/a"))
    (file,) = files(home)
    remove(["local/a", "local/b", "local/c"])
    check(rlds_cli.open_dataset("local/all"))
    assert file in files(home) and len(files(home)) == 3


@pytest.mark.thorough
def test_rows_between_parts_take_no_disk(merged: Dataset, home: Path) -> None:
    check(merged)
    assert merged.num_rows > 2 * layouts.SEGMENT_ROWS
    assert sum(file.stat().st_size for file in files(home)) < 20_000


@pytest.mark.thorough
def test_fields_that_are_segmented_differently(merged: Dataset, home: Path) -> None:
    """A step that writes one field anew has one file of it, and the members' files of the others."""
    ds = preprocess.run(merged, "scale_reward", "double", args={"scale": 2.0}, jobs=0)
    check(ds)
    assert verify(ds.path).ok


@pytest.mark.thorough
def test_a_compacted_merge_is_packed_as_one(merged: Dataset, home: Path) -> None:
    check(merged)
    compact("local/all")
    assert "files in" not in check(rlds_cli.open_dataset("local/all"))
    assert len(files(home)) == 4


@pytest.mark.thorough
def test_a_damaged_part_is_named_by_verify_and_packed_again_after_a_repair(merged: Dataset, home: Path) -> None:
    check(merged)
    of_b = next(f for f in files(home) if f.stat().st_size == min(f.stat().st_size for f in files(home)))
    alter(of_b, 10)
    for name in ("all", "b"):
        assert [p.where for p in verify(f"local/{name}").problems] == [f"packed {of_b.name}"]
    assert verify("local/a").ok
    assert repair(merged.path).deleted == (of_b,)
    assert verify("local/all").ok
    check(merged)


def test_parts_for_which_there_is_no_space_are_in_memory(
    merged: Dataset, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(rlds_cli.open_dataset("local/a"))
    monkeypatch.setattr(packed, "MOST_BYTES", 100)
    reading = check(merged)
    assert "1 files in" in reading and "private memory" in reading and "too large to be packed" in reading
    assert len(files(home)) == 1
    reading = check(merged, memory=1500)  # enough for one of two parts
    assert reading.startswith("reading   no packed rows")


@pytest.mark.thorough
def test_packed_rows_that_are_removed_while_they_are_read(merged: Dataset, home: Path) -> None:
    whole = np.concatenate([batch["action"] for batch in loaded(merged)[1]])
    loader = Loader(merged, 16, sampler=Sequential(), backend="numpy")
    assert usage().packed == size_on_disk(home / "packed") > 0
    removed = collect(find_garbage()).removed
    assert [g.kind for g in removed] == ["packed"] * 3 and not (home / "packed").exists()
    np.testing.assert_array_equal(np.concatenate([batch["action"] for batch in loader]), whole)
    check(merged)
    assert len(files(home)) == 3


BUILDER = """
import sys
import rlds_cli
from rlds_cli.loader import Loader
from rlds_cli.loader.storage import blocks
blocks.LEAST_BYTES = 0
tiles = blocks.RowLayout.tiles
def slow(self, first, stop):
    print("packs", first, flush=True)
    if first:
        sys.stdin.read()
    return tiles(self, first, stop)
blocks.RowLayout.tiles = slow
Loader(rlds_cli.open_dataset("local/all"), 16)
"""


@pytest.mark.slow
def test_a_packer_that_is_killed_leaves_the_parts_that_it_has_written(merged: Dataset, home: Path) -> None:
    killed = subprocess.Popen([sys.executable, "-c", BUILDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert killed.stdout is not None
    assert killed.stdout.readline() == "packs 0\n"
    assert killed.stdout.readline() == f"packs {layouts.SEGMENT_ROWS}\n"
    killed.kill()
    killed.communicate()
    (first,) = [f for f in files(home) if f.suffix == ".rows"]
    identity = first.stat().st_ino
    check(merged)
    assert len(files(home)) == 3 and first.stat().st_ino == identity
    assert all(f.suffix == ".rows" for f in files(home))
