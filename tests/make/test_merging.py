"""Merges share the files of rows of their members, and hold what a dataset of the same episodes holds."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import lerobot_archives
import numpy as np
import pytest
import tensorstore
import zarr
from versions_model import Episode, build, check, check_batches, draw

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.base.files import disk
from rlds_cli.dataset import Dataset
from rlds_cli.errors import DamagedDataset, InvalidEpisode
from rlds_cli.keep.compacting import compact
from rlds_cli.keep.reencoding import reencode
from rlds_cli.keep.removing import remove
from rlds_cli.keep.verification import verify
from rlds_cli.loader import Loader, Sequential
from rlds_cli.make.convert import merging
from rlds_cli.make.importing import import_files
from rlds_cli.store import layouts


def episodes(seed: int, count: int) -> list[Episode]:
    rng = np.random.default_rng(seed)
    return [draw(rng, int(n), resets=True) for n in rng.choice([1, 2, 3, 5, 9], count)]


def labelled(column: str, **members: list[Episode]) -> list[Episode]:
    return [e.labelled(**{column: f"local/{name}"}) for name, of in members.items() for e in of]


def files(ds: Dataset, field: str) -> set[int]:
    """The inodes of the files of a field's rows."""
    return {f.stat().st_ino for f in (ds.path / field).rglob("*") if f.is_file() and "/c/" in f.as_posix()}


ROWS = ("action", "info/wide", "next/reward", "observation/cam/bytes", "observation/state", "wrist/bytes", "rows")


def is_segmented(ds: Dataset) -> bool:
    """Whether an array of rows is in several files."""
    columns = (*ds.store.table.columns(), *ds.store.table.digest_columns())
    return any(layouts.is_segmented(ds.path / c.directory) for c in columns)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Episode], list[Episode]]:
    """A home with two datasets, and their episodes."""
    home, a, b = tmp_path_factory.mktemp("built") / "home", episodes(0, 5), episodes(1, 4)
    with pytest.MonkeyPatch.context() as env:
        env.setenv("RLDS_HOME", str(home))
        build("local/a", a), build("local/b", b)
    return home, a, b


@pytest.fixture
def two(home: Path, built: tuple[Path, list[Episode], list[Episode]]) -> tuple[list[Episode], list[Episode]]:
    """The same two datasets in the home of the test."""
    there, a, b = built
    shutil.copytree(there, home)
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
    assert ds.episodes["start"][len(a)] == layouts.SEGMENT_ROWS


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
    assert ds.fingerprint == fresh.fingerprint == rlds_cli.merge(members, "local/zarr", storage="zarr").fingerprint
    rlds_cli.create("local/d", [e | {"action": e["action"].astype(np.int64)} for e in a])
    with pytest.raises(InvalidEpisode, match=r"action is float32 \[2\] \(root\), not int64"):
        rlds_cli.merge(["local/d", "local/b"], "local/lossy")


@pytest.mark.thorough
def test_merges_of_merges_selections_trims_and_growing_datasets(two: tuple[list[Episode], list[Episode]]) -> None:
    a, b = two
    c, d = episodes(2, 3), episodes(3, 3)
    build("local/c", c, "zarr"), build("local/d", d)
    trimmed = rlds_cli.open_dataset("local/d").trim({0: [(0, 1)], 1: None}, "t")
    parts = [d[0].part(0, 1), d[2]]
    both = rlds_cli.merge(["local/a", "local/b"], "local/both", column="of")
    chosen = [3, 7, 0]
    members = [rlds_cli.open_dataset("local/c"), both.select(episodes=chosen), trimmed]
    ds = rlds_cli.merge(members, "local/more", column="by")
    whole = labelled("of", a=a, b=b)
    new = labelled("by", c=c, both=[whole[k] for k in chosen])
    expected = [*new, *(e.labelled(by="local/d@t") for e in parts)]
    check(ds, expected)
    check_batches(ds, expected, 0)
    assert verify("local/more").ok
    segments = layouts.layout(ds.path / "observation/state").segments
    assert [len(layouts.layout(m.path / "action").segments) for m in (both, trimmed)] == [2, 1]
    assert len(segments) == 4  # a compressed member is written, and is first
    assert not files(ds, "action") & files(members[0], "action") and files(ds, "action") > files(both, "action")


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


@pytest.mark.thorough
def test_compact_writes_files_of_its_own(two: tuple[list[Episode], list[Episode]]) -> None:
    a, b = two
    expected = labelled("of", a=a, b=b)
    before = rlds_cli.merge(["local/a", "local/b"], "local/both", column="of").fingerprint
    assert compact("local/both").changed and not compact("local/both").changed
    ds = rlds_cli.open_dataset("local/both")
    assert ds.fingerprint == before and not is_segmented(ds)
    assert ds.num_rows == sum(e.length + 1 for e in expected)
    check(ds, expected)
    assert verify("local/both").ok


@pytest.mark.slow
def test_the_other_encoding_and_back(two: tuple[list[Episode], list[Episode]]) -> None:
    a, b = two
    rlds_cli.merge(["local/a", "local/b"], "local/both", column="of")
    for encoding in ("zarr", "memmap"):
        reencode("local/both", to=encoding)
        check(rlds_cli.open_dataset("local/both"), labelled("of", a=a, b=b))
        assert verify("local/both").ok


@pytest.mark.thorough
def test_a_merge_outlives_its_members(two: tuple[list[Episode], list[Episode]]) -> None:
    a, b = two
    ds = rlds_cli.merge(["local/a", "local/b"], "local/both", column="of")
    remove(["local/a", "local/b"])
    check(ds, labelled("of", a=a, b=b))


@pytest.mark.thorough
def test_members_that_cannot_be_linked_are_referred_to_or_copied(
    two: tuple[list[Episode], list[Episode]], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = two
    monkeypatch.setattr(disk, "_link", lambda *args, **kwargs: None)
    ds = rlds_cli.merge(["local/a", "local/b"], "local/both", column="of")
    check(ds, labelled("of", a=a, b=b))
    assert [s.id for s in ds.store.files.refers_to] == ["local/a", "local/b"]
    assert not list((Path(os.environ["RLDS_HOME"]) / "partial").glob("*both*"))
    ds = rlds_cli.merge(["local/a", "local/b"], "local/copied", column="of", copy=True)
    remove(["local/a", "local/b"])
    check(ds, labelled("of", a=a, b=b))


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
    rlds_cli.push("local/all", tmp_path / "there", pages=False)
    far = rlds_cli.open_dataset(str(tmp_path / "there"), home=tmp_path / "far")
    np.testing.assert_array_equal(far.episode(3)[top], episodes[3][top])
    np.testing.assert_array_equal(next(iter(Loader(far, len(far), sampler=Sequential())))[top], batch[top])
    compact("local/all")
    whole = rlds_cli.open_dataset("local/all")
    assert whole.fingerprint == ds.fingerprint and not is_segmented(whole) and verify("local/all").ok
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


@pytest.mark.sampled(1)
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
def test_zarr_and_tensorstore_read_selections_trims_labels_and_merges(
    merged: Dataset, two: tuple[list[Episode], list[Episode]]
) -> None:
    a, b = two
    ds = rlds_cli.open_dataset("local/a")
    k = next(k for k, e in enumerate(a) if e.length > 2)
    views = [
        (ds.select(episodes=[4, 1]).save("some"), [a[4], a[1]]),
        (ds.trim({k: [(0, 1), (1, 3)]}, "cut"), [*a[:k], a[k].part(0, 1), a[k].part(1, 3), *a[k + 1 :]]),
        (ds.label(quality="good"), a),
        (merged, [*a, *b]),
    ]
    for view, episodes in views:
        group = zarr.open_group(str(view.path), mode="r")
        for name in ("action", "next/reward", "next/truncated", "observation/state", "observation/large"):
            segments = layouts.layout(view.path / name).segments
            parts = [s.directory.relative_to(view.path).as_posix() for s in segments]
            assert (parts == [name]) is (view is not merged)  # an array by itself, or one for each segment
            for start, e in zip(view.episodes["start"].tolist(), episodes, strict=True):
                at = max(i for i, s in enumerate(segments) if s.start <= start)
                first, wanted = start - segments[at].start, e.rows[name]
                spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{view.path / parts[at]}/"}}
                found = tensorstore.open(spec).result()[first : first + len(wanted)].read().result()
                np.testing.assert_array_equal(found, wanted)
                np.testing.assert_array_equal(group[parts[at]][first : first + len(wanted)], wanted)


@pytest.mark.thorough
def test_a_merge_at_an_address(
    merged: Dataset, two: tuple[list[Episode], list[Episode]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = labelled("of", a=two[0], b=two[1])
    rlds_cli.push("local/both", tmp_path / "there", pages=False)
    far = rlds_cli.open_dataset(str(tmp_path / "there"), home=tmp_path / "far")
    check(far, expected)
    check_batches(far, expected, 0)
    check(far.select(episodes=[8, 0, 5]), [expected[k] for k in (8, 0, 5)])
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "far"))
    got = rlds_cli.download(str(tmp_path / "there"), name="local/got")
    check(got, expected)
    assert verify("local/got").ok


def test_a_plain_copy_of_a_merge_is_downloaded(
    merged: Dataset, two: tuple[list[Episode], list[Episode]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(merged.path, tmp_path / "there")
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "far"))
    check(rlds_cli.download(str(tmp_path / "there"), name="local/got"), labelled("of", a=two[0], b=two[1]))
    assert verify("local/got").ok


@pytest.mark.thorough
def test_a_plan_says_which_rows_are_written(two: tuple[list[Episode], list[Episode]]) -> None:
    build("local/z", episodes(4, 2), "zarr")
    assert merging.plan_merge(["local/a", "local/b"], "local/both", column="of").copied == ()
    planned = merging.plan_merge(["local/a", "local/z"], "local/both", column="of")
    assert planned.copied == ("local/z",) and planned.bytes > 0
    assert merging.plan_merge(["local/a"], "local/both", column="of", storage="zarr").copied == ("local/a",)
