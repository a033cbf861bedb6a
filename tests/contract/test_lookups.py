"""Datasets of very many episodes that are made of each other: what they take, and that none of it is ever missing.

The step with the number s, counted over the whole archive, has the observation s and the reward s % 7. So every value
of an episode follows from the number of its first step and its length.
"""

from __future__ import annotations

import errno
import json
import os
import runpy
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.base.files import trees
from rlds_cli.dataset import Dataset
from rlds_cli.errors import DamagedDataset
from rlds_cli.keep.compacting import compact
from rlds_cli.keep.gc import collect, find_garbage
from rlds_cli.keep.reencoding import reencode
from rlds_cli.keep.removing import remove
from rlds_cli.keep.verification import verify
from rlds_cli.loader import Loader, Shuffled, Slice
from rlds_cli.make.importing import import_files
from rlds_cli.store import derived, lookups

ID = "local/short"
MANY = 13_000
FEW = 240  # of the dataset in which so few are looked up
FEWEST = 60  # of the dataset that histories begin with
PER_EPISODE = 16  # bytes of an episode that stays as it is
DOCUMENTS = 64 << 10  # bytes of documents, whatever the number of episodes


def lengths_of(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(2, 6, count)


def archive(file: Path, count: int) -> Path:
    ends = np.cumsum(lengths_of(count))
    steps = np.arange(int(ends[-1]))
    with h5py.File(file, "w") as f:
        f["observations"] = steps[:, None].astype(np.float64)
        f["actions"] = -steps[:, None].astype(np.float64)
        f["rewards"] = (steps % 7).astype(np.float32)
        f["terminals"], f["timeouts"] = np.isin(steps, ends[::2] - 1), np.isin(steps, ends[1::2] - 1)
    return file


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Homes with the dataset, by its number of episodes."""
    found = {}
    for count in (FEWEST, FEW, MANY):
        found[count] = tmp_path_factory.mktemp(f"home{count}")
        file = archive(tmp_path_factory.mktemp("archive") / "short.hdf5", count)
        import_files(file, ID, progress=False, home=found[count])
    return found


@pytest.fixture
def many(made: dict[int, Path], home: Path) -> Dataset:
    shutil.copytree(made[MANY], home)
    return rlds_cli.open_dataset(ID)


@pytest.fixture
def few(made: dict[int, Path], home: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    monkeypatch.setattr(derived, "FEWEST", FEWEST)
    shutil.copytree(made[FEW], home)
    return rlds_cli.open_dataset(ID)


@pytest.fixture(scope="module")
def home_with_part(made: dict[int, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("part")
    shutil.copytree(made[FEW], home, dirs_exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(derived, "FEWEST", FEWEST)
        ds = rlds_cli.open_dataset(ID, home=home)
        ds.select(episodes=np.arange(0, FEW, 2)).save("part", home=home)
    return home


@pytest.fixture
def part(home_with_part: Path, home: Path) -> Dataset:
    """Every other one of the few episodes."""
    shutil.copytree(home_with_part, home)
    return rlds_cli.open_dataset(f"{ID}@part")


def own_bytes(ds: Dataset, *others: Dataset) -> int:
    """Return the bytes of the files of a dataset that are none of others."""
    sizes = [{f.stat().st_ino: f.stat().st_size for f in trees.files(d.path)} for d in (ds, *others)]
    return sum(size for inode, size in sizes[0].items() if all(inode not in s for s in sizes[1:]))


def first_steps(ds: Dataset) -> list[int]:
    """Return the number of the first step of each episode, as its observations say it."""
    values = ds.store.rows("observation")
    return values[ds.episodes["start"], 0].astype(int).tolist()


def check(ds: Dataset, first: np.ndarray, length: np.ndarray) -> None:
    """Compare the episodes of a dataset with those that begin at these steps of the archive."""
    assert first_steps(ds) == first.tolist() and ds.episodes["length"].tolist() == length.tolist()
    total = [sum(s % 7 for s in range(a, a + n)) for a, n in zip(first.tolist(), length.tolist(), strict=True)]
    assert ds.episodes["total_reward"].tolist() == total
    assert len({row.tobytes() for row in ds.store.episodes["id"]}) == len(first)
    found = verify(ds.path)
    assert found.ok and found.fingerprint == ds.fingerprint, found.problems


def starts(count: int) -> np.ndarray:
    return np.cumsum(lengths_of(count)) - lengths_of(count)


def test_a_selection_takes_16_bytes_an_episode(many: Dataset) -> None:
    index = np.arange(0, MANY, 2)
    part = many.select(episodes=index).save("part")
    assert own_bytes(part, many) < PER_EPISODE * len(index) + DOCUMENTS
    check(part, starts(MANY)[index], lengths_of(MANY)[index])
    assert part.episodes["source_episode"].tolist() == index.tolist()
    assert not part.episodes["source_step"].any()


def test_a_drop_takes_16_bytes_an_episode(many: Dataset) -> None:
    later = many.select(episodes=np.arange(0, MANY, 3)).drop()
    index = np.flatnonzero(np.arange(MANY) % 3)
    assert own_bytes(later, rlds_cli.open_dataset(f"{ID}#v1")) < PER_EPISODE * len(index) + DOCUMENTS
    check(later, starts(MANY)[index], lengths_of(MANY)[index])
    again = later.select(episodes=[0]).drop()
    assert own_bytes(again, later, rlds_cli.open_dataset(f"{ID}#v1")) < PER_EPISODE * len(index) + DOCUMENTS
    assert again.episodes["source_episode"].tolist() == index[1:].tolist()


def test_a_trim_takes_16_bytes_an_episode_that_is_not_trimmed(many: Dataset) -> None:
    short = np.arange(0, MANY, 100)
    part = many.trim(dict.fromkeys(short.tolist(), (1, 2)), "trimmed")
    first, length = starts(MANY), lengths_of(MANY)
    first[short], length[short] = first[short] + 1, 1
    assert own_bytes(part, many) < PER_EPISODE * MANY + 600 * len(short) + DOCUMENTS
    check(part, first, length)
    step = np.zeros(MANY, int)
    step[short] = 1
    assert part.episodes["source_step"].tolist() == step.tolist()
    assert part.episodes["source_episode"].tolist() == list(range(MANY))


def test_columns_of_the_users_own_are_not_written_again(many: Dataset) -> None:
    texts = [f"the task of episode {k}, so many bytes that the column has a file of its own" for k in range(MANY)]
    labelled = many.label(task=texts)
    index = np.arange(1, MANY, 2)
    part = labelled.select(episodes=index).save("part")
    assert own_bytes(part, labelled) < PER_EPISODE * len(index) + DOCUMENTS
    assert part.episodes["task"].tolist() == [texts[k] for k in index]
    trimmed = labelled.trim({0: (0, 1)}, "trimmed")
    assert own_bytes(trimmed, labelled) < PER_EPISODE * MANY + DOCUMENTS
    assert trimmed.episodes["task"].tolist() == texts


def test_columns_of_the_users_own_keep_their_values(few: Dataset) -> None:
    """Small ones, which lie in the document of the table, and large ones; with values that are missing, and without."""
    long = [f"{k} " * 200 if k % 7 else None for k in range(FEW)]
    score = [k / 2 if k % 5 else None for k in range(FEW)]
    labelled = few.label(long=long, score=score, whole=list(range(FEW)))
    index = np.random.default_rng(0).permutation(FEW)[: FEW // 2]
    part = labelled.select(episodes=index).save("part")
    part = part.select(episodes=np.arange(0, len(index), 2)).save("half")
    assert part.episodes["long"].tolist() == [long[k] for k in index[::2]]
    assert [None if np.isnan(x) else x for x in part.episodes["score"]] == [score[k] for k in index[::2]]
    assert part.episodes["whole"].tolist() == index[::2].tolist()
    assert part.fingerprint == labelled.select(episodes=index[::2]).fingerprint and verify(part.path).ok


def test_a_label_of_a_selection_takes_the_label(many: Dataset) -> None:
    part = many.select(episodes=np.arange(0, MANY, 2)).save("part")
    labelled = part.label(good=[k % 3 == 0 for k in range(MANY // 2)])
    assert own_bytes(labelled, many, rlds_cli.open_dataset(f"{part.id}#v1")) < PER_EPISODE * MANY // 2 + DOCUMENTS
    assert labelled.episodes["good"].tolist() == [k % 3 == 0 for k in range(MANY // 2)]
    check(labelled, starts(MANY)[::2], lengths_of(MANY)[::2])


def test_selections_of_selections_lead_to_the_first_table(many: Dataset) -> None:
    """Not through each other: the third one reads as few files as the first, and stays whole without the others."""
    index, ds = np.arange(MANY), many
    for name, step in (("one", 2), ("two", 3), ("three", 2)):
        ds = ds.select(episodes=np.arange(0, len(index), step)).save(name)
        index = index[::step]
        assert own_bytes(ds, many) < PER_EPISODE * len(index) + DOCUMENTS
        length = lookups.Lookup.of(ds.path / "episodes/length")
        assert length is not None and [p.rows for p in length.parts] == [MANY]
    assert ds.episodes["source_episode"].tolist() == list(range(0, 2 * len(index), 2))
    remove([f"{ID}@one", f"{ID}@two", ID])
    check(rlds_cli.open_dataset(ds.id), starts(MANY)[index], lengths_of(MANY)[index])


def test_trims_of_trims(few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than parts may be in a lookup."""
    monkeypatch.setattr(lookups, "MOST_PARTS", 2)
    first, length, ds = starts(FEW), lengths_of(FEW), few
    rng = np.random.default_rng(0)
    for k in range(lookups.MOST_PARTS + 3):
        some = rng.choice(FEW, 20, replace=False)
        some = some[length[some] > 1]
        ds = ds.trim({int(e): (1, int(length[e])) for e in some}, f"t{k}")
        first[some], length[some] = first[some] + 1, length[some] - 1
    check(ds, first, length)
    kept = np.arange(0, FEW, 3)
    check(ds.select(episodes=kept).save("kept"), first[kept], length[kept])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("ranges", [[(0, 1), (1, 2)], (0, 1), None, (1, 2)], ids=str)
def test_a_trim_of_a_selection(few: Dataset, ranges: Any) -> None:
    index = np.random.default_rng(1).permutation(FEW)[: FEW // 2]
    part = few.select(episodes=index).save("part")
    short = range(0, len(index), 7)
    trimmed = part.trim(dict.fromkeys(short, ranges), "trimmed")
    wanted = []
    first, length = starts(FEW)[index], lengths_of(FEW)[index]
    for k, (a, n) in enumerate(zip(first.tolist(), length.tolist(), strict=True)):
        pairs = ([] if ranges is None else ranges if isinstance(ranges, list) else [ranges]) if k in short else [(0, n)]
        wanted += [(a + x, y - x) for x, y in pairs]
    check(trimmed, *np.array(wanted).T)
    remove([part.id, ID])
    check(trimmed, *np.array(wanted).T)


def test_the_files_are_described_as_if_they_were_written(few: Dataset) -> None:
    """A copy has them: its list of digests is the same."""
    few.label(task=[f"task {k}" * 40 for k in range(FEW)], many=[10**17 + k for k in range(FEW)])
    ds = rlds_cli.open_dataset(ID).select(episodes=np.arange(FEW - 1, FEW // 5, -1))
    one, copy = ds.save("one"), ds.save("copy", copy=True)
    assert not list(copy.path.rglob(lookups.Lookup.FILE)) and len(list(one.path.rglob(lookups.Lookup.FILE))) > 10
    assert one.manifest.files == copy.manifest.files and one.fingerprint == copy.fingerprint
    assert verify(copy.path).ok and verify(one.path).ok


def test_what_is_removed_takes_nothing_with_it(few: Dataset) -> None:
    index = np.arange(0, FEW, 2)
    part, first, length = few.select(episodes=index).save("part"), starts(FEW)[index], lengths_of(FEW)[index]
    few.label(x=1)
    compact(ID)
    check(part, first, length)
    remove([ID])
    collect(find_garbage())
    check(rlds_cli.open_dataset(part.id), first, length)
    assert compact(part.id).changed
    whole = rlds_cli.open_dataset(part.id)
    assert not list(whole.path.rglob(lookups.Lookup.FILE)) and whole.num_rows == whole.num_steps + whole.num_episodes
    check(whole, first, length)


def test_an_open_version_keeps_its_values(few: Dataset) -> None:
    """Its directory is that of the next version then. What it was asked for before does not matter."""
    index = np.arange(0, FEW, 2)
    part = few.select(episodes=index).save("part")
    opened = rlds_cli.open_dataset(part.id)
    assert opened.episodes["length"].tolist() == lengths_of(FEW)[index].tolist()
    part.select(episodes=[0]).drop()
    check(opened, starts(FEW)[index], lengths_of(FEW)[index])
    assert opened.episodes["source_episode"].tolist() == index.tolist()


def test_a_home_without_hard_links(many: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    index = np.arange(0, MANY, 2)
    part = many.select(episodes=index).save("part")
    assert own_bytes(part) < PER_EPISODE * len(index) + DOCUMENTS
    later = part.select(episodes=[0, 1]).drop()
    assert own_bytes(later) < PER_EPISODE * len(index) + DOCUMENTS
    check(later, starts(MANY)[index[2:]], lengths_of(MANY)[index[2:]])
    compact(ID)
    compact(part.id)
    shutil.rmtree(many.path)
    check(rlds_cli.open_dataset(part.id), starts(MANY)[index[2:]], lengths_of(MANY)[index[2:]])


def test_a_pushed_selection_is_whole(few: Dataset, tmp_path: Path) -> None:
    index = np.arange(0, FEW, 2)
    part = few.trim({0: (0, 1)}, "trimmed").select(episodes=index).save("part")
    first, length = starts(FEW)[index], lengths_of(FEW)[index]
    length[0] = 1
    rlds_cli.push(part.id, tmp_path / "address", pages=False)
    remove([ID])
    far = rlds_cli.open_dataset(tmp_path / "address", home=tmp_path / "far")
    assert first_steps(far) == first.tolist() and far.episodes["length"].tolist() == length.tolist()
    got = rlds_cli.download(str(tmp_path / "address"), name="local/got", home=tmp_path / "other")
    assert not list(got.path.rglob(lookups.Lookup.FILE)) and got.fingerprint == part.fingerprint
    check(got, first, length)


def test_a_plain_copy_of_a_selection_is_downloaded(few: Dataset, tmp_path: Path) -> None:
    few.label(long=[f"{k} " * 200 if k % 7 else None for k in range(FEW)])
    index = np.arange(0, FEW, 2)
    part = rlds_cli.open_dataset(ID).trim({0: (0, 1)}, "trimmed").select(episodes=index).save("part")
    length = lengths_of(FEW)[index]
    length[0] = 1
    shutil.copytree(part.path, tmp_path / "copy")
    remove([ID])
    got = rlds_cli.download(f"file://{tmp_path}/copy", name="local/got", home=tmp_path / "other")
    assert got.fingerprint == part.fingerprint and got.episodes["long"].tolist() == part.episodes["long"].tolist()
    check(got, starts(FEW)[index], length)
    (tmp_path / "copy/__lookups/0/c/0").unlink()
    with pytest.raises(DamagedDataset):
        rlds_cli.download(f"file://{tmp_path}/copy", name="local/other", home=tmp_path / "other")


def test_what_reads_datasets_reads_selections(few: Dataset, tmp_path: Path) -> None:
    index = np.arange(0, FEW, 2)
    part = few.select(episodes=index).save("part")
    steps = [range(int(a), int(a) + int(n)) for a, n in zip(starts(FEW)[index], lengths_of(FEW)[index], strict=True)]
    loader = Loader(part, 100, window=Slice(2), sampler=Shuffled(), seed=0, backend="numpy")
    assert sorted(int(x) for b in loader for x in b["observation"][:, 0, 0]) == [a for of in steps for a in of[:-1]]
    other = few.select(episodes=index + 1).save("other")
    merged = rlds_cli.merge([part.id, other.id], "local/merged")
    assert first_steps(merged) == [*starts(FEW)[index].tolist(), *starts(FEW)[index + 1].tolist()]
    doubled = preprocess.run(part, double, "double", jobs=0)
    assert doubled.episodes["length"].tolist() == part.episodes["length"].tolist() and verify(doubled.path).ok
    assert reencode(part.id, to="zarr").fingerprint == part.fingerprint
    check(rlds_cli.open_dataset(part.id), starts(FEW)[index], lengths_of(FEW)[index])


def double(episode: Any) -> Any:
    episode["action"] = 2 * episode["action"]
    return episode


def test_numpy_alone_reads_lookups(few: Dataset) -> None:
    script = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[2] / "docs/reference/read_with_numpy.py")))
    few.label(long=[f"{k} " * 200 if k % 7 else None for k in range(FEW)])
    part = rlds_cli.open_dataset(ID).trim(dict.fromkeys(range(50), (0, 1)), "trimmed")
    part = part.select(episodes=np.arange(FEW - 1, -1, -2)).save("part")
    assert script.Dataset(part.path).fingerprint() == part.fingerprint
    source = script.array(part.path / "episodes/source_episode")
    assert source.tolist() == list(range(FEW - 1, -1, -2))


# -- damage


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["episodes/length", "episodes/source", "episodes/id", "digests/action"])
def test_damage_of_what_is_looked_up_is_found(part: Dataset, name: str) -> None:
    (file,) = trees.files(part.path / name / "0/c")
    data = bytearray(file.read_bytes())
    data[0] ^= 1
    file.unlink()
    file.write_bytes(data)
    found = verify(part.path)
    assert not found.ok and any(name.split("/")[1] in str(p) for p in found.problems), found.problems
    file.write_bytes(data[:100])
    assert not verify(part.path).ok
    file.unlink()
    assert not verify(part.path).ok
    if not name.startswith("digests"):
        with pytest.raises(DamagedDataset):
            dict(rlds_cli.open_dataset(part.path).episodes)


def test_numbers_of_rows_that_are_not_there_are_refused(part: Dataset) -> None:
    (file,) = (p for p in (part.path / "__lookups/0/c").iterdir() if p.is_file())
    for wrong in (FEW, -1, 2**31 - 1):
        data = np.fromfile(file, np.uint8)
        data[:4] = np.array([wrong], "<i4").view(np.uint8)
        file.unlink()
        data.tofile(file)
        assert not verify(part.path).ok
        with pytest.raises(DamagedDataset):
            rlds_cli.open_dataset(part.path).episodes["length"]


@pytest.mark.sampled(9)
@pytest.mark.parametrize(
    "change",
    [
        {"array": "../episodes/length"},
        {"array": "episodes/start"},
        {"index": "../../local/short"},
        {"array": None},
        {"row": [1 << 62]},
        {"index": "7"},
        {"parts": [["stored", FEW], ["stored", 1 << 60]]},
        {"index": 0},
        {"data_type": "object"},
        {"data_type": None},
        {"data_type": "int32"},
        {"row": [-1]},
        {"parts": [["stored", 1]]},
        {"parts": []},
        {"parts": [["zeros", FEW]] * 99},
        {"parts": [["numbers", FEW]]},
        {"parts": [["elsewhere", FEW]]},
    ],
    ids=str,
)
def test_documents_that_nobody_writes_are_refused(part: Dataset, change: dict[str, Any]) -> None:
    file = part.path / "episodes/length/lookup.json"
    document = json.loads(file.read_text())
    file.unlink()
    file.write_text(json.dumps(document | change))
    assert not verify(part.path).ok
    with pytest.raises(DamagedDataset):
        rlds_cli.open_dataset(part.path).episodes["length"]


# -- any history


@settings(max_examples=settings().max_examples // 5)
@given(data=st.data())
def test_any_history(made: dict[int, Path], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    home = tmp_path_factory.mktemp("history")
    shutil.copytree(made[FEWEST], home, dirs_exist_ok=True, copy_function=os.link)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(derived, "FEWEST", 1)
        ds = rlds_cli.open_dataset(ID, home=home).select(episodes=np.arange(40)).save("a", home=home)
        first, length = starts(FEWEST)[:40], lengths_of(FEWEST)[:40]
        for step in range(data.draw(st.integers(1, 5))):
            name, what = f"s{step}", data.draw(st.sampled_from(["select", "trim", "drop", "label"]))
            some = np.array(data.draw(st.permutations(range(len(first)))))[: data.draw(st.integers(1, len(first)))]
            if what == "select":
                ds, first, length = ds.select(episodes=some).save(name, home=home), first[some], length[some]
            elif what == "drop" and len(some) < len(first):
                ds = ds.select(episodes=some).drop(name=name, home=home)
                first, length = np.delete(first, some), np.delete(length, some)
            elif what == "label":
                ds = ds.label({name: "x" * 50}, name=name, home=home)
                assert ds.episodes[name].tolist() == ["x" * 50] * len(first)
            elif what == "trim":
                short = some[length[some] > 1]
                ds = ds.trim({int(k): (0, int(length[k]) - 1) for k in short}, name, home=home)
                length[short] -= 1
        check(ds, first, length)
    shutil.rmtree(home)
