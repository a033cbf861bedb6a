"""Selections of growing datasets look their values up in the logs, to which writers add; the values are never missing.

The episodes are those of `test_lookups`: each value follows from the number of an episode's first step and its length.
"""

from __future__ import annotations

import json
import runpy
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_lookups import FEW, FEWEST, PER_EPISODE, check, first_steps, lengths_of, starts

import rlds_cli
from rlds_cli.base.files import trees
from rlds_cli.dataset import Dataset
from rlds_cli.errors import DamagedDataset
from rlds_cli.keep.compacting import compact
from rlds_cli.keep.removing import remove
from rlds_cli.keep.verification import verify
from rlds_cli.store import derived

ID = "local/grown"
SOME = 2 * derived.FEWEST + 2
LOGS = ("episodes", "digests")


def episode(first: int, length: int) -> dict[str, Any]:
    steps = np.arange(first, first + length)
    return {
        "observation": np.append(steps, 0)[:, None].astype(np.float64),
        "action": -steps[:, None].astype(np.float64),
        "next": {"reward": (steps % 7).astype(np.float32), "terminated": True},
    }


def record(count: int, numbers: Any = None) -> Dataset:
    """Record episodes of an archive of ``count`` episodes, all of them or some."""
    wanted = range(count) if numbers is None else numbers
    with rlds_cli.writer(ID) as w:
        w.add_episodes([episode(int(starts(count)[k]), int(lengths_of(count)[k])) for k in wanted])
        w.commit()
        return w.dataset()


@pytest.fixture
def few(home: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    monkeypatch.setattr(derived, "FEWEST", FEWEST)
    return record(FEW)


def written(ds: Dataset, source: Dataset) -> int:
    """Return the bytes of the arrays of a dataset that are in no file of its source; documents do not count."""
    shared = {f.stat().st_ino for f in trees.files(source.path)}
    own = (f for f in trees.files(ds.path) if f.stat().st_ino not in shared and f.suffix != ".json")
    return sum(f.stat().st_size for f in own)


def looked_up(ds: Dataset) -> list[str]:
    """Return the logs in which a dataset looks values up."""
    return [name for name in LOGS if (ds.path / "__lookups" / name / "c/0/0").exists()]


@pytest.mark.parametrize("dropped", [[], [0, 5, 100]], ids=["all", "some dropped"])
def test_a_selection_of_a_growing_dataset_takes_16_bytes_an_episode(home: Path, dropped: list[int]) -> None:
    ds = record(SOME)
    there = np.delete(np.arange(SOME), dropped)
    if dropped:
        ds.select(episodes=dropped).drop()
        ds = rlds_cli.open_dataset(ID)
    index = np.arange(0, len(there), 2)
    part = ds.select(episodes=index).save("part")
    assert written(part, ds) <= PER_EPISODE * len(index) + 4096  # and what fills blocks
    assert looked_up(part) == list(LOGS)
    check(part, starts(SOME)[there[index]], lengths_of(SOME)[there[index]])
    assert part.episodes["source_episode"].tolist() == index.tolist()
    assert not part.episodes["source_step"].any()
    assert part.fingerprint == ds.select(episodes=index).fingerprint


def test_the_source_goes_on_and_leaves(few: Dataset) -> None:
    index = np.arange(0, FEW, 2)
    part, first, length = few.select(episodes=index).save("part"), starts(FEW)[index], lengths_of(FEW)[index]
    few.label(quality="good", where="episode < 9")
    record(FEW, range(9))
    compact(ID)
    check(part, first, length)
    later = rlds_cli.open_dataset(ID)
    assert later.num_episodes == FEW + 9
    end = [*range(FEW - 61, FEW), *range(9)]
    check(later.select(episodes=np.arange(FEW - 61, FEW + 9)).save("end"), starts(FEW)[end], lengths_of(FEW)[end])
    remove([ID])
    check(rlds_cli.open_dataset(part.id), first, length)


def test_selections_trims_and_labels_of_it(few: Dataset) -> None:
    short = list(range(0, FEW, 10))
    trimmed = few.trim(dict.fromkeys(short, (1, 2)), "trimmed")
    first, length = starts(FEW), lengths_of(FEW)
    first[short], length[short] = first[short] + 1, 1
    check(trimmed, first, length)
    index = np.arange(FEW - 1, -1, -2)
    part = trimmed.select(episodes=index).save("part")
    assert looked_up(trimmed) == looked_up(part) == list(LOGS)
    check(part, first[index], length[index])
    part.select(episodes=[0, 1]).label(quality="bad")
    labelled = rlds_cli.open_dataset(part.id)
    assert labelled.version == 2 and list(labelled.episodes["quality"][:3]) == ["bad", "bad", None]
    labelled.select(where="quality == 'bad'").drop()
    remove([ID, trimmed.id])
    check(rlds_cli.open_dataset(part.id), first[index[2:]], length[index[2:]])
    assert compact(part.id).changed
    whole = rlds_cli.open_dataset(part.id)
    assert not looked_up(whole)
    check(whole, first[index[2:]], length[index[2:]])


@pytest.mark.slow
def test_copies_pushes_and_readers_have_all_of_it(few: Dataset, tmp_path: Path) -> None:
    index = np.arange(0, FEW, 2)
    part, first, length = few.select(episodes=index).save("part"), starts(FEW)[index], lengths_of(FEW)[index]
    assert few.select(episodes=index).save("copy", copy=True).manifest.files == part.manifest.files
    rlds_cli.push(part.id, tmp_path / "address", pages=False)
    record(FEW, range(9))
    shutil.copytree(part.path, tmp_path / "plain")
    script = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[2] / "docs/reference/read_with_numpy.py")))
    assert script.Dataset(part.path).fingerprint() == part.fingerprint
    remove([ID])
    far = rlds_cli.open_dataset(tmp_path / "address", home=tmp_path / "far")
    assert first_steps(far) == first.tolist() and far.episodes["length"].tolist() == length.tolist()
    for n, address in enumerate((f"{tmp_path}/address", f"file://{tmp_path}/plain")):
        check(rlds_cli.download(address, name=f"local/got{n}", home=tmp_path / "other"), first, length)


def test_a_home_without_hard_links_has_a_copy(few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    index = np.arange(0, FEW, 2)
    monkeypatch.setattr("rlds_cli.base.files.disk.takes_links", lambda _: False)
    monkeypatch.setattr("rlds_cli.base.files.disk._link", lambda *_: None)
    part = few.select(episodes=index).save("part", copy=True)
    assert not looked_up(part)
    check(part, starts(FEW)[index], lengths_of(FEW)[index])


def test_logs_that_others_may_have_linked_are_not_shared(few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer would refuse a file with several names where another user may have given it one."""
    index = np.arange(0, FEW, 2)
    monkeypatch.setattr("rlds_cli.base.files.safe.has_own_links", lambda _: False)
    part = few.select(episodes=index).save("part")
    assert not looked_up(part)
    record(FEW, range(9))
    check(part, starts(FEW)[index], lengths_of(FEW)[index])


# -- damage


@pytest.mark.parametrize("log", LOGS)
def test_damage_of_a_log_is_found(few: Dataset, log: str) -> None:
    part = few.select(episodes=np.arange(0, FEW, 2)).save("part")
    file = part.path / "__lookups" / log / "c/0/0"
    data = bytearray(file.read_bytes())
    file.unlink()
    for damaged in (bytes([data[0] ^ 1]) + data[1:], data[:100], None):
        file.unlink(missing_ok=True)
        if damaged is not None:
            file.write_bytes(damaged)
        assert not verify(part.path).ok
    if log == "episodes":
        with pytest.raises(DamagedDataset):
            dict(rlds_cli.open_dataset(part.path).episodes)


@pytest.mark.parametrize(
    "part",
    [
        ["records", FEW],
        ["records", FEW, 8, 12, "episodes"],
        ["records", FEW, 1 << 40, 112, "episodes"],
        ["records", FEW, -8, 112, "episodes"],
        ["records", FEW, 8, 1 << 30, "episodes"],
        ["records", 1 << 40, 8, 112, "episodes"],
        ["records", FEW, 8, 112, "../episodes"],
        ["records", FEW, 8, 112, "0"],
        ["records", FEW, 8, 112, None],
        ["records", FEW, 8, 112, "episodes", 1],
        ["stored", FEW, 8, 112, "episodes"],
        [],
    ],
    ids=str,
)
def test_records_that_nobody_writes_are_refused(few: Dataset, part: list[Any]) -> None:
    ds = few.select(episodes=np.arange(0, FEW, 2)).save("part")
    file = ds.path / "episodes/length/lookup.json"
    document = json.loads(file.read_text())
    file.unlink()
    file.write_text(json.dumps(document | {"parts": [part]}))
    assert not verify(ds.path).ok
    with pytest.raises(DamagedDataset):
        rlds_cli.open_dataset(ds.path).episodes["length"]
