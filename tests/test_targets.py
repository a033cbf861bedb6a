from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlds_cli import create, targets
from rlds_cli.errors import DatasetNotFound, InvalidId, UnknownDataset


def make(ref: str, cache_dir: Path | None = None) -> Path:
    return create(ref, [{"observation": np.zeros(3), "action": np.zeros(2)}], cache_dir=cache_dir).path


def test_by_id_alias_case_and_path(monkeypatch: pytest.MonkeyPatch) -> None:
    path = make("roboset/dapg-expert/door_v2d-v1")
    variant = make("roboset/dapg-expert/door_v2d-v1@n")
    for ref in ("roboset/dapg-expert/door_v2d-v1", "ROBOSET/DAPG-expert/door_v2d-v1".replace("ROBOSET", "roboset")):
        assert targets.dataset(ref) == path
    assert targets.dataset("DAPG(expert)/door_v2d-v1") == path  # the source's own name
    assert targets.dataset("DAPG(expert)/door_v2d-v1@n") == variant
    assert targets.dataset(path) == path
    monkeypatch.chdir(path.parent)
    assert targets.dataset(path.name) == path
    assert str(targets.id_of(variant)) == "roboset/dapg-expert/door_v2d-v1@n"


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
        targets.dataset(ref)
    found = caught.value.hint  # type: ignore[attr-defined]
    assert hint is None or hint in str(found)


def test_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = make("local/a"), make("local/b")
    shared = tmp_path / "shared"
    make("local/a", shared)  # hidden by the one in the own home
    c = make("local/c", shared)
    monkeypatch.setenv("RLDS_PATH", str(shared))
    assert targets.datasets(everything=True) == (a, b, c)
    assert targets.datasets(["local/*"]) == (a, b, c)
    assert targets.datasets(["local/c", "LOCAL/[ab]"]) == (c, a, b)
    assert targets.datasets() == ()
    with pytest.raises(DatasetNotFound, match=r'matches "d4rl/\*"'):
        targets.datasets(["local/a", "d4rl/*"])


def test_datasets_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make("local/a")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.h5").write_bytes(b"x")
    (tmp_path / "local").mkdir()
    (tmp_path / "local/a").mkdir()  # an id comes before a file of its name
    assert targets.dataset_or_file("local/a") == (path, True)
    assert targets.dataset_or_file("./local/a") == (Path("local/a"), False)
    assert targets.dataset_or_file("run.h5") == (Path("run.h5"), False)
    assert targets.dataset_or_file("*.h5") == (Path("*.h5"), False)
    assert targets.dataset_or_file(path) == (path, True)
    with pytest.raises(UnknownDataset, match="neither a file nor a dataset"):
        targets.dataset_or_file("run.h6")
    with pytest.raises(UnknownDataset, match="neither a file nor a dataset"):
        targets.dataset_or_file("d4rl/hoper-medium-v2")
    with pytest.raises(DatasetNotFound):
        targets.dataset_or_file("d4rl/hopper-medium-v2")


def test_a_zarr_group_of_others_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    assert targets.dataset_or_file(tmp_path / "theirs") == (tmp_path / "theirs", False)
