"""Datasets whose rows lie in the home of another user, or on another disk: what they share, and what they need."""

from __future__ import annotations

import json
import os
import pickle
import runpy
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import zarr
from torch.utils.data import DataLoader
from typer.testing import CliRunner
from versions_model import Episode, build, check, check_batches, draw

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.base.files.sizes import size_on_disk
from rlds_cli.cli import main
from rlds_cli.cli.commands import app
from rlds_cli.dataset import Dataset
from rlds_cli.errors import DamagedDataset, DatasetNotFound
from rlds_cli.homes import usage
from rlds_cli.keep import removing
from rlds_cli.keep.compacting import compact
from rlds_cli.keep.reencoding import reencode
from rlds_cli.keep.verification import verify
from rlds_cli.loader import Loader, Sequential
from rlds_cli.loader.storage import blocks
from rlds_cli.make.convert import merging
from rlds_cli.store import references

assert main
STRANGER = 54321
DISKS = (Path("/dev/shm"), Path(tempfile.gettempdir()), Path("/var/tmp"))


class Elsewhere:
    """A home that files cannot be linked from: of another user, or on another disk than the home of the tests."""

    def __init__(self, root: Path, owner: int) -> None:
        self.root, self.owner = root, owner

    def make(self, change: Callable[[], Dataset], monkeypatch: pytest.MonkeyPatch) -> Dataset:
        """Return what the owner of the home makes there; then it belongs to the owner."""
        self._own(os.geteuid())
        with monkeypatch.context() as m:
            m.setenv("RLDS_HOME", str(self.root))
            made = change()
        self._own(self.owner)
        return made

    def _own(self, user: int) -> None:
        for path in (self.root, *self.root.rglob("*")):
            if path.lstat().st_uid != user:
                os.chown(path, user, -1)

    def files(self) -> dict[str, tuple[int, int]]:
        return {str(p): (p.stat().st_mtime_ns, p.stat().st_ino) for p in self.root.rglob("*") if p.is_file()}


@pytest.fixture(params=["user", "disk"])
def there(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Elsewhere]:
    if request.param == "user":
        if os.geteuid() != 0:
            pytest.skip("only root gives files away")
        root, owner = tmp_path / "theirs", STRANGER
    else:
        device = tmp_path.stat().st_dev
        disk = next((d for d in DISKS if os.access(d, os.W_OK) and d.stat().st_dev != device), None)
        if disk is None:
            pytest.skip("no second disk here")
        root, owner = Path(tempfile.mkdtemp(dir=disk)), os.geteuid()
    root.mkdir(exist_ok=True)
    monkeypatch.setenv("RLDS_PATH", str(root))
    yield Elsewhere(root, owner)
    shutil.rmtree(root)


@pytest.fixture
def five() -> list[Episode]:
    rng = np.random.default_rng(0)
    return [replace(draw(rng, 3), about={}) for _ in range(5)]


@pytest.fixture
def source(there: Elsewhere, five: list[Episode], monkeypatch: pytest.MonkeyPatch) -> Dataset:
    there.make(lambda: build("local/five", five), monkeypatch)
    return rlds_cli.open_dataset("local/five")


def run(*arguments: str) -> str:
    found = CliRunner().invoke(app, list(arguments), catch_exceptions=True)
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found.output


def part(source: Dataset) -> Dataset:
    return source.select(episodes=[2, 0]).save("part")


@pytest.mark.slow
def test_every_change_by_name_leaves_the_rows_where_they_are(
    there: Elsewhere, source: Dataset, five: list[Episode], home: Path
) -> None:
    before = there.files()
    made = [
        (part(source), [five[2], five[0]]),
        (source.trim({0: (0, 2), 3: None}, "short"), [five[0].part(0, 2), five[1], five[2], five[4]]),
        (source.label(quality="good", name="good"), [e.labelled(quality="good") for e in five]),
        (source.select(episodes=[1]).drop(name="most"), [five[0], *five[2:]]),
    ]
    for ds, episodes in made:
        check(ds, episodes)
        check_batches(ds, episodes, 0)
        assert verify(ds.path).ok
        assert ds.path.is_relative_to(home) and [s.id for s in ds.store.files.refers_to] == ["local/five"]
        assert not (ds.path / "observation/state/c").exists()
    assert there.files() == before


@pytest.mark.thorough
def test_changes_of_changes_refer_to_the_first_dataset(source: Dataset, five: list[Episode]) -> None:
    few = part(source)
    short = few.trim({1: (0, 2)}, "short")
    next_one = few.label(quality="good")
    few = rlds_cli.open_dataset(f"{few.id}#v1")
    found = [
        (short, [five[2], five[0].part(0, 2)]),
        (next_one, [e.labelled(quality="good") for e in (five[2], five[0])]),
    ]
    for ds, episodes in [*found, (few, [five[2], five[0]])]:
        check(ds, episodes)
        assert ds.store.files.refers_to == (source.store.files.identity,)
    removing.remove([few.id])
    check(rlds_cli.open_dataset(short.id), found[0][1])


@pytest.mark.thorough
def test_a_chain_over_three_homes_is_one_reference(
    there: Elsewhere, source: Dataset, five: list[Episode], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = part(source)
    monkeypatch.setattr(os, "link", _no_link)
    one = few.select(episodes=[1]).save("one", home=tmp_path / "third")
    merged = rlds_cli.merge([few], "local/all", home=tmp_path / "third")
    shutil.rmtree(few.path)
    check(one, [five[0]])
    check(merged, [e.labelled(dataset=few.id) for e in (five[2], five[0])])
    assert one.store.files.refers_to == merged.store.files.refers_to == (source.store.files.identity,)


def _no_link(*_: object, **__: object) -> None:
    raise OSError(18, "another file system")


@pytest.mark.thorough
def test_a_merge_with_a_dataset_elsewhere(source: Dataset, five: list[Episode]) -> None:
    more = [replace(draw(np.random.default_rng(7), 4), about={}) for _ in range(3)]
    here = build("local/here", more)
    planned = merging.plan_merge([here, source], "local/all")
    assert (planned.copied, planned.referred, planned.bytes) == ((), ("local/five",), 0)
    merged = rlds_cli.merge([here, source.select(episodes=[4, 1])], "local/all")
    wanted = [e.labelled(dataset=here.id) for e in more] + [e.labelled(dataset=source.id) for e in (five[4], five[1])]
    check(merged, wanted)
    check_batches(merged, wanted, 0)
    assert verify(merged.path).ok and len(merged.store.files.refers_to) == 1
    few = merged.select(episodes=[0, 4]).save("few")
    check(few, [wanted[0], wanted[4]])
    copied = rlds_cli.merge([here, source], "local/copied", copy=True)
    assert merging.plan_merge([here, source], "local/x", copy=True).copied == ("local/five",)
    assert not copied.store.files.refers_to and verify(copied.path).ok


@pytest.mark.slow
def test_the_version_that_is_referred_to_is_found_after_the_next_one(
    there: Elsewhere, source: Dataset, five: list[Episode], monkeypatch: pytest.MonkeyPatch
) -> None:
    few, wanted = part(source), [five[2], five[0]]
    pickled = pickle.dumps(few)
    there.make(lambda: rlds_cli.open_dataset("local/five").select(episodes=[0]).drop(), monkeypatch)
    assert rlds_cli.open_dataset("local/five").version == 2
    for ds in (few, rlds_cli.open_dataset(few.id), pickle.loads(pickled)):
        check(ds, wanted)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as other:
        check(other.submit(_again, few).result(), wanted)
    assert verify(few.path).ok
    late = source.select(episodes=[1]).save("late")  # of the version that is open
    check(late, [five[1]])
    assert [s.version for s in late.store.files.refers_to] == [1]


def _again(ds: Dataset) -> Dataset:
    assert ds.num_episodes
    return ds


@pytest.mark.slow
def test_loaders_with_workers_and_packed_rows(
    source: Dataset, five: list[Episode], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = part(source)
    loader = Loader(few, 2, sampler=Sequential(), fields=["all", "episode/number"], seed=3)
    wanted = [batch["observation/state"].numpy().tobytes() for batch in loader]
    workers = DataLoader(loader.as_torch(), batch_size=None, num_workers=2, multiprocessing_context="spawn")
    assert [batch["observation/state"].numpy().tobytes() for batch in workers] == wanted
    monkeypatch.setattr(blocks, "LEAST_BYTES", 0)
    check_batches(few, [five[2], five[0]], 0)


@pytest.mark.sampled(1)
def test_a_source_that_is_gone_is_named(there: Elsewhere, source: Dataset, five: list[Episode]) -> None:
    few = part(source)
    aside = there.root.with_name(f"{there.root.name}.aside")
    there.root.rename(aside)
    try:
        why = rf"version 1 of local/five in {there.root}/datasets/local/five, which is not there or may not be read"
        with pytest.raises(DatasetNotFound, match=rf"local/five@part refers to the rows of {why}"):
            rlds_cli.open_dataset(few.id)
        with pytest.raises(DatasetNotFound, match=why):
            few.store.rows("observation/state")
        with pytest.raises(DatasetNotFound, match=why):
            few.select(episodes=[0]).save("one")
        found = verify(few.path)
        assert not found.ok and [why.split(",")[0] in str(p) for p in found.problems] == [True]
        assert [d.refers_to for d in usage().datasets] == [(str(source.store.files.identity),)]
        assert "rows in" in run("info", few.id)
    finally:
        aside.rename(there.root)
    check(rlds_cli.open_dataset(few.id), [five[2], five[0]])
    shutil.rmtree(there.root / "datasets")
    run("rm", few.id, "--yes")
    assert not few.path.exists()


@pytest.mark.thorough
def test_another_dataset_in_the_place_of_the_source_is_refused(
    there: Elsewhere, source: Dataset, five: list[Episode], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = part(source)
    there.make(lambda: rlds_cli.create("local/five", [e.item() for e in five[::-1]], force=True), monkeypatch)
    with pytest.raises(DatasetNotFound, match="was removed or replaced"):
        rlds_cli.open_dataset(few.id)
    with pytest.raises(DatasetNotFound, match="was removed or replaced"):
        few.store.rows("observation/state")


@pytest.mark.sampled(1)
def test_rm_and_compact_know_the_datasets_that_refer_to_one(
    there: Elsewhere, source: Dataset, five: list[Episode], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = part(source)
    there.make(lambda: rlds_cli.open_dataset("local/five").label(quality="good"), monkeypatch)
    monkeypatch.delenv("RLDS_PATH")
    planned = removing.plan_removal(["local/five"], home=there.root)
    assert planned[0].referring == (few.path,)
    assert f"rows of {few.path} are stored there" in run("rm", "local/five", "--dry-run", "--home", str(there.root))
    monkeypatch.setenv("RLDS_PATH", os.pathsep.join([str(home), str(there.root)]))
    there.make(lambda: compact("local/five") and rlds_cli.open_dataset("local/five"), monkeypatch)
    assert [v.number for v in rlds_cli.open_dataset("local/five").versions] == [1, 3]
    check(rlds_cli.open_dataset(few.id), [five[2], five[0]])


@pytest.mark.thorough
def test_copy_and_compact_make_a_dataset_whole(there: Elsewhere, source: Dataset, five: list[Episode]) -> None:
    few, wanted = part(source), [five[2], five[0]]
    whole = source.select(episodes=[2, 0]).save("whole", copy=True)
    again = few.select(episodes=slice(None)).save("again", copy=True)
    compacted = compact(few.id)
    assert compacted.changed and not compact(few.id).changed
    encoded = reencode(source.select(episodes=[2, 0]).save("encoded").id, to="zarr")
    shutil.rmtree(there.root / "datasets")
    for ds in (whole, again, rlds_cli.open_dataset(few.id), rlds_cli.open_dataset(encoded.id)):
        check(ds, wanted)
        assert verify(ds.path).ok and not ds.store.files.refers_to and ds.fingerprint == few.fingerprint


@pytest.mark.thorough
def test_a_dataset_is_the_same_version_wherever_its_rows_are(source: Dataset, tmp_path: Path) -> None:
    few = part(source)
    whole = tmp_path / "whole"
    for name, file in references.files(few.path).items():
        (whole / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, whole / name)
    ds = rlds_cli.open_dataset(whole)
    assert ds.store.version_id == few.store.version_id and verify(whole).ok


@pytest.mark.sampled(1)
def test_pushed_datasets_are_whole(there: Elsewhere, source: Dataset, five: list[Episode], tmp_path: Path) -> None:
    few, wanted, address = part(source), [five[2], five[0]], tmp_path / "address"
    rlds_cli.push(few.id, address, pages=False)
    shutil.rmtree(there.root / "datasets")
    far = rlds_cli.open_dataset(address, home=tmp_path / "far")
    check(far, wanted)
    check_batches(far, wanted, 0)
    came = rlds_cli.download(str(address), name="local/came")
    check(came, wanted)
    assert verify(came.path).ok and came.fingerprint == few.fingerprint and not came.store.files.refers_to


@pytest.mark.thorough
def test_preprocess_and_conversion_read_rows_elsewhere(source: Dataset, five: list[Episode]) -> None:
    few = part(source)
    made = preprocess.run(few, _double, "double", jobs=0)
    assert verify(made.path).ok and not made.store.files.refers_to
    check(
        made,
        [replace(e, rows=e.rows | {"next/reward": e.rows["next/reward"] * 2}, id=None) for e in (five[2], five[0])],
    )


def _double(episode: dict[str, dict[str, np.ndarray]]) -> object:
    episode["next"]["reward"] *= 2
    return episode


@pytest.mark.thorough
def test_compressed_sources_are_referred_to_as_well(
    there: Elsewhere, five: list[Episode], monkeypatch: pytest.MonkeyPatch
) -> None:
    there.make(lambda: build("local/five", five, "zarr"), monkeypatch)
    few = part(rlds_cli.open_dataset("local/five"))
    check(few, [five[2], five[0]])
    check_batches(few, [five[2], five[0]], 0)
    assert few.store.files.refers_to and verify(few.path).ok


@pytest.mark.thorough
def test_a_plain_copy_refers_to_the_same_source(source: Dataset, five: list[Episode], tmp_path: Path) -> None:
    few = part(source)
    shutil.copytree(few.path, tmp_path / "copy")
    ds = rlds_cli.open_dataset(tmp_path / "copy")
    check(ds, [five[2], five[0]])
    assert size_on_disk(ds.path / "observation/large") <= 4096 < size_on_disk(source.path / "observation/large")


@pytest.mark.thorough
def test_damage_of_the_source_is_found(there: Elsewhere, source: Dataset) -> None:
    few = part(source)
    file = source.path / "observation/state/c/0/0"
    file.chmod(0o644)
    data = bytearray(file.read_bytes())
    data[0] ^= 1
    file.write_bytes(data)
    assert [p.where for p in verify(few.path).problems] == ["observation/state"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "wrong",
    [{"array": "../x"}, {"array": ""}, {"array": "/etc"}, {"version": True}, {"version": 0}, {"dataset": "five"},
     {"dataset": "/x\0"}, {"array": None}, {"array": "observation/cam"}],
)  # fmt: skip
def test_references_that_lead_anywhere_else_are_refused(source: Dataset, wrong: dict[str, object]) -> None:
    few = part(source)
    file = few.path / "observation/state/reference.json"
    values = json.loads(file.read_text()) | wrong
    file.chmod(0o644)
    file.write_text(json.dumps({n: v for n, v in values.items() if v is not None}))
    with pytest.raises(DamagedDataset):
        rlds_cli.open_dataset(few.id)
    assert not verify(few.path).ok


@pytest.mark.sampled(1)
def test_a_reference_to_a_reference_is_refused(source: Dataset) -> None:
    few = part(source)
    file = few.path / "observation/state/reference.json"
    file.chmod(0o644)
    file.write_text(json.dumps(json.loads(file.read_text()) | {
        "dataset": str(few.path), "id": few.id, "version": 1, "version_id": few.store.version_id,
        "array": "observation/large"}))  # fmt: skip
    with pytest.raises(DamagedDataset, match="another reference"):
        rlds_cli.open_dataset(few.id)


@pytest.mark.sampled(1)
def test_links_in_the_source_are_refused(there: Elsewhere, source: Dataset, tmp_path: Path) -> None:
    few = part(source)
    (source.path / "metadata").mkdir(exist_ok=True)
    (source.path / "metadata/x").symlink_to(tmp_path)
    with pytest.raises(DamagedDataset, match="symbolic link"):
        rlds_cli.open_dataset(few.id)


@pytest.mark.sampled(1)
def test_other_zarr_readers_see_the_fields_that_are_here(source: Dataset) -> None:
    short = source.trim({0: (0, 2)}, "short")
    group = zarr.open_group(str(short.path), mode="r")
    assert "next/truncated" in group and "observation/state" not in group
    assert group["episodes/length"].shape == (5,)


@pytest.mark.thorough
def test_numpy_alone_follows_references(there: Elsewhere, source: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    merged = rlds_cli.merge([part(source), build("local/here", [draw(np.random.default_rng(3), 4)])], "local/all")
    there.make(lambda: rlds_cli.open_dataset("local/five").label(quality="good"), monkeypatch)
    script = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "reference" / "read_with_numpy.py"))
    assert script["Dataset"](merged.path).fingerprint() == merged.fingerprint


@pytest.mark.sampled(1)
def test_commands_say_where_the_rows_are(source: Dataset) -> None:
    where = str(source.store.files.identity)
    out = run("select", "local/five", "--episodes", "2,0", "--name", "part")
    assert f"note: rows stay in {where}; --copy copies them" in out.replace("\n", " ")
    for shown in (run("inspect", "local/five@part", "--verbose"), run("info", "local/five@part"), run("du")):
        assert "local/five#v1 in" in shown
    assert "rows stay" not in run("select", "local/five", "--episodes", "1", "--name", "one", "--copy")
    assert "stay where they are: local/five" in run("merge", "local/five", "--name", "local/m", "--dry-run")
    run("merge", "local/five", "--name", "local/m", "--copy")
    assert not rlds_cli.open_dataset("local/m").store.files.refers_to
