from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import rlds_cli
from rlds_cli import cli, create, homes, preprocess
from rlds_cli.base.refs import Ref
from rlds_cli.errors import ArchiveError, DatasetNotFound, InvalidId, RldsError, UnknownDataset
from rlds_cli.keep import pinning
from rlds_cli.keep.removing import remove
from rlds_cli.loader import Loader, Mixture, Transition
from rlds_cli.look import checks, report
from rlds_cli.look.report import catalogue
from rlds_cli.make.importing import import_files


def make(ref: str, home: Path | None = None) -> Path:
    return create(ref, [{"observation": np.zeros(3), "action": np.zeros(2)}], home=home).path


def test_by_id_alias_case_and_path(monkeypatch: pytest.MonkeyPatch) -> None:
    path = make("roboset/dapg-expert/door_v2d-v1")
    variant = make("roboset/dapg-expert/door_v2d-v1@n")
    for ref in ("roboset/dapg-expert/door_v2d-v1", "ROBOSET/DAPG-expert/door_v2d-v1".replace("ROBOSET", "roboset")):
        assert homes.dataset(ref) == path
    assert homes.dataset("DAPG(expert)/door_v2d-v1") == path  # the source's own name
    assert homes.dataset("DAPG(expert)/door_v2d-v1@n") == variant
    assert homes.dataset(path) == path
    monkeypatch.chdir(path.parent)
    assert homes.dataset(path.name) == path
    assert str(homes.id_of(variant)) == "roboset/dapg-expert/door_v2d-v1@n"


@pytest.mark.parametrize(
    ("id", "refs"),
    [
        ("roboset/dapg-expert/door_v2d-v1", ("DAPG(expert)/door_v2d-v1", "roboset/DAPG(Expert)/door_v2d-v1")),
        ("minari/D4RL/door/human-v2", ("D4RL/door/human-v2", "minari/d4rl/door/human-v2")),
        ("d4rl/hopper-medium-v2", ("hopper-medium-v2", "D4RL/Hopper-medium-v2")),
        ("local/Press", ("local/press", "LOCAL/PRESS")),
    ],
)
def test_every_way_to_name_a_dataset_works_everywhere(id: str, refs: tuple[str, ...]) -> None:
    path, variant = make(id), make(f"{id}@n")
    for ref in refs:
        assert rlds_cli.open_dataset(ref).path == path and rlds_cli.open_dataset(f"{ref}@N").path == variant
        assert rlds_cli.download(ref, offline=True).path == path
        assert rlds_cli.download(f"{ref}@n", offline=True).path == variant
        for dataset in (ref, Mixture({"a": ref})):
            assert next(iter(Loader(dataset, 2, window=Transition(anchors="steps"))))["action"].shape[0] == 2
        assert preprocess.attempt(ref, "select_fields", name="t", args={"fields": "action"}).episode == 0
        assert checks.check(ref).id == report.summarise(ref).id == id and catalogue.card(ref).here.path == path
        assert f'"{id}"' in pinning.lock([ref], allow_unreproducible=True)
        assert homes.datasets([ref]) == (path,)
    if "(" in refs[0]:
        assert homes.datasets(["dapg(*)/*"]) == (path, variant)


@pytest.mark.thorough
def test_a_dataset_that_is_here_comes_before_an_alias() -> None:
    make("minari/D4RL/door/human-v2")
    own = make("d4rl/door/human-v2")  # of the user's own, by what is a name of Minari's in another case
    assert rlds_cli.open_dataset("D4RL/door/human-v2").path == own


@pytest.mark.parametrize("ref", ["toto", "DAPG(expert)/none", "hopper"])
def test_what_no_or_more_than_one_dataset_is_called(ref: str) -> None:
    with pytest.raises(InvalidId, match="is not a dataset id"):
        rlds_cli.open_dataset(ref)


@pytest.mark.thorough
@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("ref", "kind", "hint"),
    [
        ("d4rl/hopper-medium-v2", DatasetNotFound, "rlds download d4rl/hopper-medium-v2"),
        ("d4rl/hopper-medium-v2@n", DatasetNotFound, "preprocess"),
        ("d4rl/hoper-medium-v2", UnknownDataset, "d4rl/hopper-medium-v2"),
        ("local/pres", DatasetNotFound, "local/press"),
        ("nofamily/x", UnknownDataset, "rlds list"),
        ("hopper", InvalidId, "family/name"),
        ("/nowhere/at/all", DatasetNotFound, None),
        ("./nowhere", DatasetNotFound, None),
    ],
)
def test_what_is_not_here(ref: str, kind: type[Exception], hint: str | None) -> None:
    make("local/press")
    with pytest.raises(kind) as caught:
        homes.dataset(ref)
    found = caught.value.hint  # type: ignore[attr-defined]
    assert hint is None or hint in str(found)


@pytest.mark.thorough
def test_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = make("local/a"), make("local/b")
    shared = tmp_path / "shared"
    make("local/a", shared)  # hidden by the one in the own home
    c = make("local/c", shared)
    monkeypatch.setenv("RLDS_PATH", str(shared))
    assert homes.datasets(all_=True) == (a, b, c)
    assert homes.datasets(["local/*"]) == (a, b, c)
    assert homes.datasets(["local/c", "LOCAL/[ab]"]) == (c, a, b)
    assert homes.datasets() == ()
    with pytest.raises(DatasetNotFound, match=r'matches "d4rl/\*"'):
        homes.datasets(["local/a", "d4rl/*"])


@pytest.mark.thorough
def test_datasets_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make("local/a")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.h5").write_bytes(b"x")
    (tmp_path / "local").mkdir()
    (tmp_path / "local/a").mkdir()  # an id comes before a file of its name
    assert homes.version_or_file("local/a") == (Ref(path), True)
    assert homes.version_or_file("./local/a") == (Ref(Path("local/a")), False)
    assert homes.version_or_file("run.h5") == (Ref(Path("run.h5")), False)
    assert homes.version_or_file("*.h5") == (Ref(Path("*.h5")), False)
    assert homes.version_or_file(path) == (Ref(path), True)
    with pytest.raises(UnknownDataset, match="neither a file nor a known dataset"):
        homes.version_or_file("run.h6")
    with pytest.raises(UnknownDataset, match="neither a file nor a known dataset"):
        homes.version_or_file("d4rl/hoper-medium-v2")
    with pytest.raises(DatasetNotFound):
        homes.version_or_file("d4rl/hopper-medium-v2")


def test_a_zarr_group_of_others_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    assert homes.version_or_file(tmp_path / "theirs") == (Ref(tmp_path / "theirs"), False)


# what people give instead of what is here


ADDRESSES = {
    "hf://datasets/lerobot/pusht": "rlds download lerobot/pusht ",
    "hf://me/press": "rlds download lerobot/me/press ",
    "https://huggingface.co/datasets/me/press": "rlds download lerobot/me/press ",
    "s3://bucket/press": "rlds download s3://bucket/press --name local/NAME",
    "gs://bucket/press.zarr": "rlds import PATH --name local/NAME",
    "https://example.org/press.hdf5": "rlds download https://example.org/press.hdf5 --name local/",
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("address", ADDRESSES)
def test_addresses_are_answered_with_what_to_do(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLDS_OFFLINE", "1")
    with pytest.raises(RldsError, match=r"is on the network|is not on this disk|is not an address") as e:
        rlds_cli.open_dataset(address)
    assert e.value.hint is not None
    calls: list[Callable[[], object]] = [
        lambda: rlds_cli.open_dataset(Path(address)),
        lambda: homes.dataset(address),
        lambda: homes.version_or_file(address),
        lambda: homes.datasets([address]),
        lambda: import_files(address, "local/x"),
        lambda: import_files([address], "local/x"),
    ]
    for call in calls:
        with pytest.raises(RldsError) as e:
            call()
        assert e.value.hint is not None
        assert ADDRESSES[address] in e.value.hint


def test_a_copied_dataset_is_not_imported(tmp_path: Path, home: Path) -> None:
    ds = rlds_cli.create("local/press", [{"observation": np.zeros((4, 2)), "action": np.zeros((3, 1))}])
    copy, fingerprint = tmp_path / "copy", ds.fingerprint
    shutil.copytree(ds.path, copy)
    remove(["local/press"])
    for path in (copy, str(copy), [copy / "observation"]):
        with pytest.raises(ArchiveError, match="is the dataset local/press already") as e:
            import_files(path, "local/again")
    assert e.value.hint is not None
    assert rlds_cli.open_dataset(copy).fingerprint == fingerprint
    command = e.value.hint.partition("; ")[2].partition(" makes it local/press")[0]
    subprocess.run(command, shell=True, check=True)  # as the hint says
    assert rlds_cli.open_dataset("local/press").path == home / "datasets/local/press"
    assert rlds_cli.open_dataset("local/press").fingerprint == fingerprint


@pytest.mark.parametrize(("name", "said"), [("upload", "rlds push ID ADDRESS")])
def test_commands_that_are_not_there(
    name: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["rlds", name, "local/x", "--to", "hub"])
    with pytest.raises(SystemExit) as e:
        cli.main()
    assert e.value.code == 1
    assert said in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["rlds", "--help"])
    with pytest.raises(SystemExit):
        cli.main()
    assert name not in capsys.readouterr().out
