"""Fields that some files, rows or episodes do not have: refused by plan and import alike, filled or left out."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from own_files import write
from PIL import Image
from typer.testing import CliRunner

import rlds_cli
from rlds_cli.cli import app
from rlds_cli.dataset import Dataset
from rlds_cli.errors import InvalidArgument, UnknownLayout
from rlds_cli.look.report.tracing import trace
from rlds_cli.make.convert.appending import append
from rlds_cli.make.importing import import_files, plan_import


def both_refuse(path: Path, message: str, **how: Any) -> str:
    """Check that the plan and the import give the same refusal; return its hint."""
    hints = []
    for ask in (plan_import, import_files):
        with pytest.raises(UnknownLayout, match=message) as e:
            ask(path, "local/x", **how)
        hints.append(str(e.value.hint))
    assert hints[0] == hints[1]
    return hints[0]


def column(ds: Dataset, k: int, *name: str) -> list[Any]:
    found: list[Any] = np.asarray(ds.episode(k)[name if len(name) > 1 else name[0]]).reshape(-1).tolist()
    return found


def steps(n: int, **more: Any) -> dict[str, Any]:
    """An episode of n steps without a final observation."""
    found = {"obs/q": np.arange(2.0 * n).reshape(n, 2), "action": np.arange(float(n))[:, None]}
    return {**found, **more}


def files(directory: Path, episodes: list[dict[str, Any]], suffix: str) -> Path:
    for k, columns in enumerate(episodes):
        write(directory / f"e{k}{suffix}", columns)
    return directory


def groups(path: Path, episodes: list[dict[str, Any]]) -> Path:
    with h5py.File(path, "w") as f:
        for k, columns in enumerate(episodes):
            for key, values in columns.items():
                f[f"demo_{k}/{key}"] = values
    return path


FORCE = {"obs/force": np.array([1.0, 2.0, 3.0, 4.0]), "contact": np.array([1, 0, 1, 1])}
SENSOR = [steps(3), steps(4, **FORCE), steps(2)]
LAYOUTS = {
    "a file per episode, HDF5": lambda d: files(d / "h5", SENSOR, ".h5"),
    "a file per episode, npz": lambda d: files(d / "npz", SENSOR, ".npz"),
    "a file per episode, Parquet": lambda d: files(
        d / "pq", [{k.replace("/", "."): v for k, v in e.items()} for e in SENSOR], ".parquet"
    ),
    "groups": lambda d: groups(d / "a.h5", SENSOR),
    "scalars beside": lambda d: files(d / "s", [e | {"success": True} for e in SENSOR], ".npz"),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_episode_with_one_more_sensor(tmp_path: Path, layout: str) -> None:
    path = LAYOUTS[layout](tmp_path)
    hint = both_refuse(path, "force")
    assert "--missing drop" in hint and "--missing fill" in hint
    dropped = import_files(path, "local/dropped", missing="drop")
    names = {*dropped.store.fields}
    assert "observation/q" in names and not any("force" in n or "contact" in n for n in names)
    assert [len(column(dropped, k, "action")) for k in range(3)] == [3, 4, 2]
    assert any("force" in n["text"] and "left out" in n["text"] for n in dropped.manifest.notes)
    account = plan_import(path, "local/y", missing="drop").plan.account
    assert account is not None
    assert {e.left_out for e in account.entries if "force" in e.name} == {"some files, episodes or rows do not have it"}
    filled = import_files(path, "local/filled", missing="fill")
    assert filled.manifest.options["missing"] == "fill"
    assert column(filled, 1, "observation", "force")[:4] == [1.0, 2.0, 3.0, 4.0]
    assert np.isnan(column(filled, 0, "observation", "force")[:3]).all()
    assert column(filled, 1, "contact") == [1, 0, 1, 1] and column(filled, 2, "contact") == [0, 0]
    for ds in (dropped, filled):
        assert plan_import(path, "local/y", missing=ds.manifest.options["missing"]).fields == tuple(
            ds.store.fields.values()
        )
        assert trace(ds, 9).ok


@pytest.mark.parametrize("suffix", [".h5", ".npz"])
def test_a_column_that_is_shorter_than_the_actions_is_named(tmp_path: Path, suffix: str) -> None:
    path = files(tmp_path / "d", [steps(4), steps(5, **{"obs/q": np.zeros((4, 2)), "obs/v": np.ones((5, 2))})], suffix)
    whole = files(tmp_path / "w", [steps(5, **{"obs/v": np.ones((5, 2))}) for _ in range(2)], suffix)
    assert import_files(whole, "local/w").num_steps == 10
    hint = both_refuse(path / f"e1{suffix}", rf"e1{suffix}: obs/q has 4 rows; there are 5 actions")
    assert "--missing drop" in hint and "fill" not in hint
    both_refuse(path / f"e1{suffix}", "cannot be filled", missing="fill")
    ds = import_files(path / f"e1{suffix}", "local/one", missing="drop")
    assert [n for n in ds.store.fields if n.startswith("observation")] == ["observation/v"]


def aloha(directory: Path, *, empty: tuple[int, ...]) -> Path:
    """Files of ALOHA with two cameras, one of them empty in some files."""

    def jpeg(value: int) -> bytes:
        buffer = io.BytesIO()
        Image.fromarray(np.full((8, 8, 3), value, "u1")).save(buffer, "JPEG")
        return buffer.getvalue()

    directory.mkdir()
    for e, n in enumerate((3, 4)):
        with h5py.File(directory / f"episode_{e}.hdf5", "w") as f:
            f["observations/qpos"], f["action"] = np.arange(2.0 * n).reshape(n, 2), np.zeros((n, 2))
            for camera in ("high", "wrist"):
                images = [jpeg(20 * t) for t in range(n)]
                width = max(map(len, images))
                rows = np.stack([np.frombuffer(i.ljust(width, b"\0"), "u1") for i in images])
                is_empty = camera == "wrist" and e in empty
                f[f"observations/images/{camera}"] = np.zeros((0, width), "u1") if is_empty else rows
    return directory


@pytest.mark.sampled(2)
@pytest.mark.parametrize("empty", [(0, 1), (0,), (1,)])
def test_an_empty_camera_is_named_and_can_be_left_out(tmp_path: Path, empty: tuple[int, ...]) -> None:
    path = aloha(tmp_path / "d", empty=empty)
    hint = both_refuse(path, rf"episode_{empty[0]}.hdf5: observations/images/wrist has no rows")
    assert hint.startswith("--missing drop") and "fill" not in hint
    both_refuse(path, "cannot be filled", missing="fill")
    ds = import_files(path, "local/x", missing="drop")
    assert {n for n in ds.store.fields if "images" in n} == {"observation/images/high"}


def sparse(path: Path) -> Path:
    rows = []
    for e, n in ((0, 4), (1, 3)):
        for t in range(n):
            row: dict[str, Any] = {"episode": e, "step": t, "obs": [float(t), 1.0], "action": 0.5 * t, "reward": 1.0}
            rows.append(row | ({"info": {"success": e == 0, "length": n, "note": "end"}} if t == n - 1 else {}))
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


def test_keys_that_only_some_rows_have(tmp_path: Path) -> None:
    path = sparse(tmp_path / "a.jsonl")
    hint = both_refuse(path, r"row 0 of a\.jsonl has no info/(length|success)")
    assert "--missing drop" in hint and "--missing fill" in hint
    dropped = import_files(path, "local/d", missing="drop")
    assert {n for n in dropped.store.fields if n.startswith("info")} == {"info/note"}  # a missing text is none
    filled = import_files(path, "local/f", missing="fill")
    assert column(filled, 0, "info", "length") == [0, 0, 0, 4] and column(filled, 1, "info", "length") == [0, 0, 3]
    assert column(filled, 0, "info", "success") == [False, False, False, True]
    assert trace(filled, 7).ok and trace(dropped, 7).ok


def test_rows_of_different_lengths_in_a_column_that_nobody_asked_for(tmp_path: Path) -> None:
    rows = [{"obs": [0.0], "action": 0.5, "scan": [0.0] * (3 + t)} for t in range(4)]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    assert "--missing drop" in both_refuse(path, "scan has rows")
    assert "scan" not in import_files(path, "local/x", missing="drop").store.fields


@pytest.mark.parametrize("missing", ["fill", "drop"])
def test_what_every_step_needs_is_refused_all_the_same(tmp_path: Path, missing: str) -> None:
    path = files(tmp_path / "d", [steps(3, reward=np.ones(3)), steps(3)], ".npz")
    assert "every step needs one" in both_refuse(path, "reward", missing=missing)


def test_a_mapped_column_may_be_missing(tmp_path: Path) -> None:
    path = LAYOUTS["a file per episode, HDF5"](tmp_path)
    ds = import_files(path, "local/x", fields={"observation/touch": "obs/force"}, missing="fill")
    assert column(ds, 1, "observation", "touch")[:4] == [1.0, 2.0, 3.0, 4.0]
    assert np.isnan(column(ds, 2, "observation", "touch")[:2]).all()


def test_the_option_of_commands_holds_for_appends_too(tmp_path: Path) -> None:
    path = LAYOUTS["a file per episode, npz"](tmp_path)
    run = CliRunner().invoke(app, ["import", str(path), "--name", "local/x", "--missing", "drop"])
    assert run.exit_code == 0, run.output
    odd = CliRunner().invoke(app, ["import", str(path), "--name", "local/y", "--missing", "zero"])
    assert odd.exit_code != 0 and isinstance(odd.exception, InvalidArgument)
    append("local/grow", path, missing="fill")
    more = append("local/grow", files(tmp_path / "more", SENSOR[1:], ".npz"), again=True)
    assert more.episodes == 2 and rlds_cli.open_dataset("local/grow").num_episodes == 5


def test_other_readers_refuse_the_option(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as f:
        f["observations"], f["actions"] = np.zeros((4, 2)), np.zeros((4, 1))
        f["terminals"] = np.array([0, 1, 0, 1])
    with pytest.raises(InvalidArgument, match="read as d4rl"):
        plan_import(tmp_path / "a.hdf5", "local/x", missing="drop")


def test_a_file_that_is_left_out_does_not_decide_which_fields_others_keep(tmp_path: Path) -> None:
    """Its first group lacks a field, and is read before the group that is damaged."""
    force = {"obs/force": np.array([1.0, 2.0, 3.0])}
    bad = steps(2, **{"obs/force": np.zeros(2), "reward": np.zeros(7)})
    groups(tmp_path / "a.h5", [steps(3, **force), steps(3, **force)])
    groups(tmp_path / "b.h5", [steps(2, reward=np.zeros(2)), bad])
    groups(tmp_path / "c.h5", [steps(3, **force)])

    ds = import_files(tmp_path, "local/x", missing="drop", skip_bad=True)

    assert ds.num_episodes == 3
    assert [column(ds, k, "observation", "force") for k in range(3)] == [[1.0, 2.0, 3.0]] * 3


def test_flags_at_the_root_are_named_whichever_file_has_them(tmp_path: Path) -> None:
    ends = {"next/terminated": np.array([False, False, True])}
    write(tmp_path / "a.npz", steps(3, **ends))
    write(tmp_path / "b.npz", steps(3, **ends, terminated=np.array([True, False, False])))

    plan = plan_import(tmp_path, "local/x")

    assert [note for note in plan.notes if note.endswith("mark no ends: terminated")]
