"""Merges share the files of rows of their members, and hold what a dataset of the same episodes holds."""

from __future__ import annotations

import shutil
from pathlib import Path

import lerobot_archives
import numpy as np
import pytest
from versions_model import Episode, build, check, check_batches, draw

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.convert import merging
from rlds_cli.dataset import Dataset
from rlds_cli.errors import DamagedDataset, InvalidEpisode
from rlds_cli.importing import import_files
from rlds_cli.loader import Loader, Sequential
from rlds_cli.maintenance.compacting import compact
from rlds_cli.maintenance.reencode import convert
from rlds_cli.maintenance.verification import verify
from rlds_cli.store import arrays


def episodes(seed: int, count: int) -> list[Episode]:
    rng = np.random.default_rng(seed)
    return [draw(rng, int(n), resets=True) for n in rng.choice([1, 2, 3, 5, 9], count)]


def labelled(column: str, **members: list[Episode]) -> list[Episode]:
    return [e.labelled(**{column: f"local/{name}"}) for name, of in members.items() for e in of]


def files(ds: Dataset, field: str) -> set[int]:
    """The inodes of the files of a field's rows."""
    return {f.stat().st_ino for f in (ds.path / field).rglob("*") if f.is_file() and "/c/" in f.as_posix()}


ROWS = ("action", "info/wide", "next/reward", "observation/cam/bytes", "observation/state", "wrist/bytes", "rows")


@pytest.fixture
def two() -> tuple[list[Episode], list[Episode]]:
    a, b = episodes(0, 5), episodes(1, 4)
    build("local/a", a), build("local/b", b)
    return a, b


def test_two_datasets_share_their_files(two: tuple[list[Episode], list[Episode]]) -> None:
    a, b = two
    ds = rlds_cli.merge(["local/a", "local/b"], "local/both", column="of")
    expected = labelled("of", a=a, b=b)
    check(ds, expected)
    check_batches(ds, expected, 0)
    assert verify("local/both").ok
    for name in ROWS:
        assert files(ds, name) == files(rlds_cli.open_dataset("local/a"), name) | files(
            rlds_cli.open_dataset("local/b"), name
        )
    assert ds.episodes["start"][len(a)] == arrays.SEGMENT_ROWS


def numbers(seed: int, state: str, action: str) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 6, 4).tolist()
    wide, small = np.iinfo("int16"), rng.integers(-100, 100, (6, 2))
    return [
        {
            "observation/state": rng.normal(size=(n + 1, 3)).astype(state),
            "observation/wide": rng.normal(size=(n + 1, 700)).astype(state),  # each row has a digest
            "action": np.concatenate([[[wide.min, wide.max]], small])[:n].astype(action),
            "next/reward": rng.normal(size=n).astype(np.float32),
            "next/terminated": np.arange(n) == n - 1,
        }
        for n in lengths
    ]


def test_a_field_of_different_dtypes_is_written_anew_alone() -> None:
    a, b, c = numbers(0, "float32", "int16"), numbers(1, "float64", "float32"), numbers(2, "float16", "int8")
    first, second = rlds_cli.create("local/a", a), rlds_cli.create("local/b", b)
    with rlds_cli.writer("local/c") as w:
        w.add_episodes(c)
    members, given = [first.select(episodes=[2, 0]), second, w.dataset()], [a[2], a[0], *b, *c]
    planned = merging.plan_merge(members, "local/all")
    assert planned.converted == ("action", "observation/state", "observation/wide") and not planned.copied
    ds = rlds_cli.merge(members, "local/all")
    assert {n: ds.schema[n].dtype for n in planned.converted} == {
        "action": "float32", "observation/state": "float64", "observation/wide": "float64",
    }  # fmt: skip
    for start, episode in zip(ds.episodes["start"].tolist(), given, strict=True):
        for name, values in episode.items():
            np.testing.assert_array_equal(ds.store.rows(name)[start : start + len(values)], values)
    assert files(ds, "next/reward") >= files(first, "next/reward") | files(second, "next/reward")
    assert verify("local/all").ok
    fresh = rlds_cli.create(
        "local/fresh", (ds.episode(k) | {"episode": {"dataset": ds.episodes["dataset"][k]}} for k in range(len(given)))
    )
    assert ds.fingerprint == fresh.fingerprint == rlds_cli.merge(members, "local/zarr", store="zarr").fingerprint
    rlds_cli.create("local/d", [e | {"action": e["action"].astype(np.int64)} for e in a])
    with pytest.raises(InvalidEpisode, match=r"action is float32 \[2\] \(root\), not int64"):
        rlds_cli.merge(["local/d", "local/b"], "local/lossy")


def test_changes_of_a_merge(two: tuple[list[Episode], list[Episode]]) -> None:
    a, b = two
    ds = rlds_cli.merge(["local/a", "local/b"], "local/both", column="of")
    whole = labelled("of", a=a, b=b)
    order = [8, 0, 5, 2]
    check(chosen := ds.select(episodes=order).save("some"), [whole[k] for k in order])
    k = next(k for k, e in enumerate(whole) if e.length > 1)
    check(
        cut := ds.trim({k: [(1, whole[k].length)]}, "cut"), [e.part(1, e.length) if e is whole[k] else e for e in whole]
    )
    check(ds.label(quality="good"), [e.labelled(quality="good") for e in whole])
    for made in (chosen, cut):
        assert verify(made.path).ok and files(made, "action") == files(ds, "action")
    doubled = preprocess.run(ds, "scale_reward", "double", args={"scale": 2.0}, jobs=0)
    assert verify(doubled.path).ok
    assert doubled.episodes["total_reward"].tolist() == [2 * e.total_reward for e in whole]


@pytest.mark.slow
def test_the_other_encoding_and_back(two: tuple[list[Episode], list[Episode]]) -> None:
    a, b = two
    rlds_cli.merge(["local/a", "local/b"], "local/both", column="of")
    for encoding in ("zarr", "memmap"):
        convert("local/both", to=encoding)
        check(rlds_cli.open_dataset("local/both"), labelled("of", a=a, b=b))
        assert verify("local/both").ok


def test_videos_are_shared(tmp_path: Path) -> None:
    top, members = "observation/images/top", []
    for k in range(2):
        content = lerobot_archives.Content(lengths=((4, 6, 3), (5, 2, 7))[k], video=("top",))
        lerobot_archives.write_v3(tmp_path / f"robot{k}", content)
        members.append(import_files(tmp_path / f"robot{k}", f"local/day{k}"))
    ds = rlds_cli.merge([members[0].select(episodes=[2, 0]), members[1]], "local/all", column="of")
    episodes = [members[0].episode(2), members[0].episode(0), *(members[1].episode(k) for k in range(3))]
    for k, e in enumerate(episodes):
        for name in ds.schema:
            np.testing.assert_array_equal(ds.episode(k)[name], e[name], name)
    films = [files(of, f"video/{top}/bytes") for of in (*members, ds)]
    assert films[0] | films[1] == films[2] and len(films[2]) == 2
    assert verify("local/all").ok
    batch = next(iter(Loader(ds, len(ds), sampler=Sequential())))
    np.testing.assert_array_equal(
        batch[top], np.concatenate([e[top][:n] for e, n in zip(episodes, ds.episodes["num_transitions"], strict=True)])
    )
    rlds_cli.push("local/all", tmp_path / "there")
    far = rlds_cli.open_dataset(str(tmp_path / "there"), cache_dir=tmp_path / "far")
    np.testing.assert_array_equal(far.episode(3)[top], episodes[3][top])
    np.testing.assert_array_equal(next(iter(Loader(far, len(far), sampler=Sequential())))[top], batch[top])
    compact("local/all")
    whole = rlds_cli.open_dataset("local/all")
    assert whole.fingerprint == ds.fingerprint and not whole.store.is_segmented and verify("local/all").ok
    np.testing.assert_array_equal(whole.episode(3)[top], episodes[3][top])


# -- damage


@pytest.fixture
def merged(two: tuple[list[Episode], list[Episode]]) -> Dataset:
    return rlds_cli.merge(["local/a", "local/b"], "local/both", column="of")


def written(file: Path) -> Path:
    file.chmod(0o644)
    return file


@pytest.mark.thorough
def test_damaged_rows_of_a_segment_are_named_by_their_episodes(merged: Dataset) -> None:
    with written(merged.path / "observation/state/1/c/0/0").open("r+b") as f:
        f.write(b"\xff")
    assert [str(p) for p in verify("local/both").problems] == ["observation/state: episode 5 differs"]


@pytest.mark.thorough
def test_a_segment_that_is_missing_or_short_or_another(merged: Dataset) -> None:
    state = merged.path / "observation/state"
    with written(state / "1/c/0/0").open("r+b") as f:
        f.truncate(100)
    with pytest.raises(DamagedDataset, match=r"state/1/c/0/0 has 100 bytes"):
        rlds_cli.open_dataset("local/both")
    assert any("state/1/c/0/0 has 100 bytes" in str(p) for p in verify("local/both").problems)
    (state / "1/c/0/0").unlink()
    with pytest.raises(DamagedDataset, match=r"state/1/c/0/0 is missing"):
        rlds_cli.open_dataset("local/both")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"segments": [', '"segments": [[0, 1], '),
        ("65536", "65537"),
        ("65536", "1310720"),
        ("float32", "float64"),
        ('"segments"', '"parts"'),
    ],
)
def test_segments_that_cannot_be(merged: Dataset, old: str, new: str) -> None:
    place = written(merged.path / "observation/state/zarr.json")
    text = " ".join(place.read_text().split())
    assert old in text
    place.write_text(text.replace(old, new))
    assert any(p.where == "observation/state" for p in verify("local/both").problems)
    with pytest.raises(DamagedDataset, match="observation/state"):
        rlds_cli.open_dataset("local/both").column("observation/state")


@pytest.mark.thorough
def test_a_merge_at_an_address(
    merged: Dataset, two: tuple[list[Episode], list[Episode]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = labelled("of", a=two[0], b=two[1])
    rlds_cli.push("local/both", tmp_path / "there")
    far = rlds_cli.open_dataset(str(tmp_path / "there"), cache_dir=tmp_path / "far")
    check(far, expected)
    check_batches(far, expected, 0)
    check(far.select(episodes=[8, 0, 5]), [expected[k] for k in (8, 0, 5)])
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "far"))
    got = rlds_cli.download(str(tmp_path / "there"), as_="local/got")
    check(got, expected)
    assert verify("local/got").ok


def test_a_plain_copy_of_a_merge_is_downloaded(
    merged: Dataset, two: tuple[list[Episode], list[Episode]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(merged.path, tmp_path / "there")
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "far"))
    check(rlds_cli.download(str(tmp_path / "there"), as_="local/got"), labelled("of", a=two[0], b=two[1]))
    assert verify("local/got").ok
