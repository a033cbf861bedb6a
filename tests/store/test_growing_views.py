"""Selections, trims, labels and merges of growing datasets: they share the files of rows with them."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from versions_model import Episode, build, check, check_batches, draw

import rlds_cli
from rlds_cli import Fifo, Top, preprocess
from rlds_cli.dataset import Dataset
from rlds_cli.keep import pinning
from rlds_cli.keep.compacting import compact
from rlds_cli.keep.removing import remove
from rlds_cli.keep.verification import verify
from rlds_cli.loader import Loader, Sequential
from rlds_cli.store.growing import segments

LENGTHS = [2, 5, 1, 700, 9, 3, 650, 4]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of 4,096 rows and 64 KiB of frames."""
    monkeypatch.setattr(segments, "rows_of_segment", lambda width, most=None: 4096)
    monkeypatch.setattr(segments, "bytes_of_segment", lambda width, most=None: 1 << 16)


def episodes(lengths: list[int] = LENGTHS, seed: int = 0) -> list[Episode]:
    rng = np.random.default_rng(seed)
    return [draw(rng, n).labelled(take=k) for k, n in enumerate(lengths)]


def record(id: str, given: list[Episode], **options: object) -> Dataset:
    """A growing dataset, with a commit for each episode."""
    with rlds_cli.writer(id, like=build("local/like", episodes([2])), **options) as w:  # type: ignore[arg-type]
        for e in given:
            w.add_episodes([e.item()])
            w.commit()
    return w.dataset()


def shares(ds: Dataset, source: Dataset) -> bool:
    """Whether the rows of a field are in files of the source."""
    inodes = {f.stat().st_ino for f in source.path.rglob("*") if f.is_file()}
    return all(f.stat().st_ino in inodes for f in (ds.path / "observation" / "state").rglob("0/c/*/*"))


def intact(ds: Dataset, expected: list[Episode]) -> None:
    for e in expected:
        e.id = None
    check(ds, expected)
    check_batches(ds, expected, 0)
    assert not verify(ds.path).problems


@pytest.mark.slow
def test_a_selection_shares_the_files_and_stays_while_the_source_goes_on() -> None:
    given = episodes()
    ds = record("local/rec", given)
    with rlds_cli.writer("local/rec") as w:
        some = ds.select(where="take in [1, 3, 6]").save("some")
        w.add_episodes([e.item() for e in episodes([8, 3], seed=1)])
        w.commit()
        more = w.dataset().select(where="length > 3").save("more")
        w.add_episodes([e.item() for e in episodes([800], seed=2)])
    grown = [*given, *episodes([8, 3], seed=1), *episodes([800], seed=2)]
    intact(rlds_cli.open_dataset("local/rec"), grown)
    intact(some, [given[k] for k in (1, 3, 6)])
    intact(more, [e for e in grown[:-1] if e.length > 3])
    assert shares(some, ds) and shares(more, ds)
    assert some.fingerprint == build("local/plain", [given[k] for k in (1, 3, 6)]).fingerprint
    step = some.manifest.provenance[-1]
    assert (step["from"], step["version"], step["source"]) == ("local/rec", ds.version, ds.fingerprint)
    assert some.episodes["source_episode"].tolist() == [1, 3, 6]


@pytest.mark.thorough
def test_whole_numbers_of_a_column_of_floats_count_as_floats() -> None:
    ds = record("local/rec", [e.labelled(score=score) for e, score in zip(episodes([2, 3]), (1, 0.5), strict=True)])
    some = ds.select(episodes=[0])
    assert some.fingerprint == some.save("some").fingerprint


@pytest.mark.thorough
def test_the_source_may_be_compacted_and_removed() -> None:
    given = episodes()
    ds = record("local/rec", given, keep=Fifo(episodes=6))
    some = ds.select(episodes=[0, 3, 5]).save("some")
    with rlds_cli.writer("local/rec") as w:
        w.add_episodes([e.item() for e in episodes([300, 2, 5, 600], seed=1)])
    del ds
    with rlds_cli.writer("local/rec") as w:
        w.clear()
    compact("local/rec")
    intact(some, [given[k] for k in (2, 5, 7)])
    remove(["local/rec"])
    intact(rlds_cli.open_dataset("local/rec@some"), [given[k] for k in (2, 5, 7)])


@pytest.mark.slow
@pytest.mark.parametrize("keep", [Fifo(episodes=3), Top(3, by="length")])
def test_episodes_that_left_are_not_part_of_it(keep: object) -> None:
    lengths = [3900, 2, 4000, 5, 4090, 1, 4100, 7, 3]
    given = episodes(lengths)
    ds = record("local/rec", given, keep=keep)
    kept = [int(k) for k in ds.episodes["take"]]
    intact(ds, [given[k] for k in kept])
    whole = ds.select(episodes=[0, 1, 2]).save("whole")
    intact(whole, [given[k] for k in kept])
    assert whole.fingerprint == ds.fingerprint
    part = whole.select(episodes=[2, 0]).save("part")
    intact(part, [given[kept[2]], given[kept[0]]])


@pytest.mark.thorough
def test_trims_and_labels_and_drops() -> None:
    given = episodes()
    ds = record("local/rec", given)
    trimmed = ds.trim({0: (0, 1), 3: [(5, 200), (200, 640)], 7: []}, "trimmed")
    expected = [given[0].part(0, 1), given[1], given[2], given[3].part(5, 200), given[3].part(200, 640), *given[4:7]]
    intact(trimmed, expected)
    labelled = ds.select(episodes=[2, 3]).label(quality="bad", name="labelled")
    intact(labelled, [e.labelled(quality="bad") if k in (2, 3) else e for k, e in enumerate(given)])
    assert shares(labelled, ds)
    left = labelled.select(where="quality == 'bad'").drop()
    intact(left, [e for k, e in enumerate(given) if k not in (2, 3)])
    dropped = ds.select(episodes=[0, 6]).drop(name="dropped")
    intact(dropped, [e for k, e in enumerate(given) if k not in (0, 6)])


@pytest.mark.slow
def test_a_merge_shares_the_files_of_members_that_grow() -> None:
    first, second, third = episodes(seed=1), episodes([3, 600, 2], seed=2), episodes([4, 4], seed=3)
    a, b = record("local/a", first), record("local/b", second, keep=Fifo(episodes=2))
    plain = build("local/plain", third)
    merged = rlds_cli.merge(["local/a", "local/plain", "local/b"], "local/merged")
    expected = [
        e.labelled(dataset=id)
        for id, of in (("local/a", first), ("local/plain", third), ("local/b", second[1:]))
        for e in of
    ]
    intact(merged, expected)
    assert shares(merged, a) or shares(merged, b)
    inodes = {f.stat().st_ino for d in (a, b, plain) for f in d.path.rglob("*") if f.is_file()}
    rows = [f for f in (merged.path / "observation" / "large").rglob("*") if f.is_file() and f.name != "zarr.json"]
    assert rows and all(f.stat().st_ino in inodes for f in rows)
    compact("local/merged")
    intact(rlds_cli.open_dataset("local/merged"), expected)


@pytest.mark.thorough
def test_a_selection_is_pushed_and_fetched_without_the_room_for_rows_to_come(tmp_path: Path) -> None:
    given = episodes([3, 4, 2])
    some = record("local/rec", given).select(episodes=[0, 2]).save("some")
    rlds_cli.push("local/rec@some", tmp_path / "there", pages=False)
    far = rlds_cli.open_dataset(tmp_path / "there", home=tmp_path / "far")
    check(far, [given[0], given[2]])
    assert sum(f.stat().st_size for f in (tmp_path / "there").rglob("*") if f.is_file()) < 1 << 20
    fetched = rlds_cli.download(tmp_path / "there", name="local/fetched")
    intact(fetched, [given[0], given[2]])
    assert fetched.fingerprint == some.fingerprint


def double(episode: Any) -> Any:
    """Twice the reward, and a picture of the camera that is another one."""
    episode["next"]["reward"] *= 2
    episode["info"]["again"] = np.asarray(episode["action"], np.int16) + 1
    return episode


def doubled(given: list[Episode]) -> list[Episode]:
    return [replace(e, rows=e.rows | {"next/reward": e.rows["next/reward"] * 2}) for e in given]


def holds(result: Dataset, source: Dataset, given: list[Episode]) -> None:
    """Whether a result of `double` has the values of a list of episodes, and the files of its source."""
    again = result.column("info/again", gaps=True)
    for k, e in enumerate(given):
        start, episode = int(result.episodes["start"][k]), result.episode(k)
        assert np.array_equal(again[start : start + e.length], e.rows["action"].astype(np.int16) + 1)
        assert np.array_equal(episode["next/reward"][:, 0], 2 * e.rows["next/reward"])
        assert np.array_equal(episode["observation/state"], e.rows["observation/state"][: e.length], equal_nan=True)
        assert episode["info/word"].tolist() == e.rows["info/word"]
    assert result.episodes["total_reward"].tolist() == [2 * e.total_reward for e in given]
    assert not verify(result.path).problems
    names = [f.path for f in result.manifest.fields if f.name not in ("info/again", "next/reward")]
    inodes = {f.stat().st_ino for f in source.path.rglob("*") if f.is_file()}
    for name in names:
        if name not in ("info/word", "observation/said"):
            of = result.path / name
            files = [f for f in of.rglob("*") if f.is_file() and f.name != "zarr.json" and "offsets" not in f.parts]
            assert files and all(f.stat().st_ino in inodes for f in files), name


@pytest.mark.slow
def test_results_share_the_fields_that_a_function_leaves_alone() -> None:
    lengths = [3900, 2, 4000, 5, 4090, 1, 4100, 7, 3]
    given = episodes(lengths)
    ds = record("local/rec", given, keep=Top(4, by="length"))
    kept = [given[int(k)] for k in ds.episodes["take"]]
    result = preprocess.run(ds, double, "twice", jobs=0)
    holds(result, ds, kept)
    some = ds.select(episodes=[0, 2]).save("some")
    holds(preprocess.run(some, double, "some-twice", jobs=0), ds, [kept[0], kept[2]])
    compact(result.id)
    assert rlds_cli.open_dataset(result.id).episodes["total_reward"].tolist() == [2 * e.total_reward for e in kept]


@pytest.mark.thorough
def test_results_follow_a_dataset_that_grows() -> None:
    given = episodes()
    ds = record("local/rec", given)
    first = preprocess.run(ds, double, "twice", jobs=0)
    holds(first, ds, given)
    more = episodes([12, 5], seed=3)
    with rlds_cli.writer("local/rec") as w:
        w.add_episodes([e.item() for e in more])
    calls = []

    ds = rlds_cli.open_dataset("local/rec")
    result = preprocess.run(ds, double, "twice", jobs=0, progress=calls.append)
    holds(result, ds, [*given, *more])
    assert any("8 of 10 are taken from the result" in str(e.note) for e in calls)


def test_a_selection_of_a_pushed_dataset_is_made_again_from_a_lock(tmp_path: Path) -> None:
    given = episodes([3, 4, 2, 6])
    with rlds_cli.writer("local/rec", keep=Fifo(episodes=3)) as w:
        w.add_episodes([e.item() for e in given])
    rlds_cli.push("local/rec", tmp_path / "there", pages=False)
    trimmed = w.dataset().trim({0: (1, 3), 2: []}, "trimmed")
    labelled = trimmed.select(episodes=[0]).label(quality="good")
    (tmp_path / "rlds.lock").write_text(pinning.lock(["local/rec@trimmed"]))
    pinning.sync(tmp_path / "rlds.lock", home=tmp_path / "other")
    again = rlds_cli.open_dataset("local/rec@trimmed", home=tmp_path / "other")
    assert again.fingerprint == labelled.fingerprint
    check(again, [given[1].part(1, 3).labelled(quality="good"), given[2]])


@pytest.mark.thorough
def test_other_zarr_readers_read_the_segments() -> None:
    zarr = pytest.importorskip("zarr")
    given = episodes([3, 4, 2])
    some = record("local/rec", given).select(episodes=[1]).save("some")
    group = zarr.open_group(some.path / "observation" / "state", mode="r")
    start = int(some.episodes["start"][0])
    (first, rows), *_ = group.attrs["rlds_segments"]["segments"]
    found = group["0"][start - first : start - first + 4]
    assert rows == group["0"].shape[0] and np.array_equal(found, given[1].rows["observation/state"][:4], equal_nan=True)


@pytest.mark.thorough
def test_the_plain_reader_proves_a_selection() -> None:
    given = episodes(seed=5)
    some = record("local/rec", given, keep=Top(4, by="length")).select(episodes=[0, 2, 3]).save("some")
    path = Path(__file__).parents[2] / "docs" / "reference" / "read_with_numpy.py"
    found = spec_from_file_location("read_with_numpy", path)
    assert found is not None and found.loader is not None
    found.loader.exec_module(reader := module_from_spec(found))
    assert reader.Dataset(some.path).fingerprint() == some.fingerprint


@pytest.mark.thorough
def test_training_on_a_selection_goes_on_while_the_source_grows() -> None:
    given = episodes()
    ds = record("local/rec", given)
    some = ds.select(episodes=[1, 4, 5]).save("some")
    loader = Loader(some, batch_size=4, sampler=Sequential(), fields=("action", "observation/state"))
    batches = iter(loader)
    first = next(batches)
    with rlds_cli.writer("local/rec") as w:
        w.clear()
        w.add_episodes([e.item() for e in episodes([900, 900], seed=4)])
    actions = np.concatenate([np.asarray(b["action"]) for b in (first, *batches)])
    assert np.array_equal(
        actions, np.concatenate([given[k].rows["action"][: given[k].transitions] for k in (1, 4, 5)])[: len(actions)]
    )


@pytest.mark.thorough
def test_selecting_while_recording_takes_little_room() -> None:
    given = episodes([3] * 6)
    with rlds_cli.writer("local/rec", like=build("local/like", episodes([2]))) as w:
        for k, e in enumerate(given):
            w.add_episodes([e.item()])
            w.commit()
            last = w.dataset().select(episodes=list(range(k + 1))).save(f"first{k}")
    intact(last, given)
    intact(w.dataset(), given)
    own = [f for f in last.path.rglob("*") if f.is_file() and f.stat().st_nlink == 1]
    assert w.dataset().store.manifest.counts.rows > 5 * 4096
    assert sum(512 * f.stat().st_blocks for f in own) < 400 * 4096


def test_compaction_closes_the_gap_behind_a_shared_segment() -> None:
    given, more = episodes([3, 4]), episodes([2, 5], seed=1)
    some = record("local/rec", given).select(episodes=[1]).save("some")
    with rlds_cli.writer("local/rec") as w:
        w.add_episodes([e.item() for e in more])
    assert w.dataset().store.table.has_gaps
    compact("local/rec")
    ds = rlds_cli.open_dataset("local/rec")
    assert not ds.store.table.has_gaps
    intact(ds, [*given, *more])
    intact(some, [given[1]])
