"""The account of an archive: each file, column, key, attribute and group is used, left out, or refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from image_archives import dgrl_episode, npz_bytes, write_dgrl, write_tar, write_vd4rl_shards
from lerobot_archives import Content, write_v2, write_v3
from minari_archives import by_hand, plain_episode
from typer.testing import CliRunner

import rlds_cli
from rlds_cli.errors import RldsError
from rlds_cli.look.report.source import describe_source
from rlds_cli.make import importing
from rlds_cli.make.importing import ImportPlan, import_files

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import random_archives

DATA = Path(__file__).parents[1] / "data"


def planned(directory: Path, **how: Any) -> ImportPlan:
    return importing.plan_import(directory, "local/x", **how)


def fates(plan: ImportPlan) -> dict[tuple[str, str], tuple[int, str]]:
    """The number and the fate of each entry, by kind and name; a reason for leaving it out begins with a minus."""
    return {(e.kind, e.name): (e.count, ", ".join(e.used_as) or f"- {e.left_out}") for e in plan.account}


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """Three files of an episode each, and what a lab keeps beside and in them."""
    directory = tmp_path / "lab"
    directory.mkdir()
    for k in range(3):
        with h5py.File(directory / f"ep_{k}.hdf5", "w") as f:
            f["observations/qpos"], f["action"] = np.zeros((4, 3)), np.zeros((4, 2))
            f["observations"].attrs["unit"] = "rad"
            f.attrs["task"] = "pick"
            f.create_group("empty")
            f["seed_of_scene"] = 5.0
        (directory / f"ep_{k}.json").write_text(json.dumps({"success": True}))
    (directory / "notes.txt").write_text("operator: A")
    (directory / "README.md").write_text("x")
    return directory


def test_all_that_a_folder_holds_is_used_or_left_out(lab: Path) -> None:
    assert fates(planned(lab)) == {
        ("file", "ep_*.hdf5"): (3, "episodes"),
        ("file", "ep_*.json"): (3, "episode/success"),
        ("key", "success"): (3, "episode/success"),
        ("file", "notes.txt"): (1, "- not a table"),
        ("file", "README.md"): (1, "- by its name it holds no data"),
        ("dataset", "observations/qpos"): (3, "observation/qpos"),
        ("dataset", "action"): (3, "action"),
        ("dataset", "seed_of_scene"): (3, "episode/seed_of_scene"),
        ("attribute", "observations@unit"): (3, "metadata"),
        ("attribute", "@task"): (3, "episode/task"),
        ("group", "empty"): (3, "- it is empty"),
    }


def test_a_dry_run_and_the_import_say_the_same(lab: Path) -> None:
    from rlds_cli.cli import app

    said = CliRunner().invoke(app, ["import", str(lab), "--name", "local/x", "--dry-run"]).output
    made = CliRunner().invoke(app, ["import", str(lab), "--name", "local/x"]).output
    for line in ("used: 6 files, 6 attributes, 9 datasets, 3 keys", "left out: 2 files, 3 groups", "empty (3 groups)"):
        assert line in said and line in made


def test_the_manifest_keeps_the_account_and_inspect_shows_it(lab: Path) -> None:
    from rlds_cli.cli import app

    plan, ds = planned(lab), importing.import_files(lab, "local/x")
    assert list(ds.manifest.account) == [e.as_json() for e in plan.account]
    shown = json.loads(CliRunner().invoke(app, ["inspect", "local/x", "--source", "--json"]).output)
    assert {e["name"] for e in shown["account"]} == {e.name for e in plan.account}
    page = CliRunner().invoke(app, ["inspect", "local/x", "--source"]).output
    assert "observations@unit" in page and "notes.txt: not a table" in page
    ds.label(quality="good")
    assert rlds_cli.open_dataset("local/x").manifest.account == ds.manifest.account


def test_a_dataset_without_a_source_says_so() -> None:
    from rlds_cli.cli import app

    rlds_cli.create("local/own", [{"observation": np.zeros((3, 1)), "action": np.zeros((2, 1))}])
    result = CliRunner().invoke(app, ["inspect", "local/own", "--source"])
    assert result.exit_code != 0 and isinstance(result.exception, RldsError | SystemExit)


def test_an_append_accounts_for_its_files(lab: Path) -> None:
    from rlds_cli.make.convert.appending import append, plan_append

    plan = plan_append("local/g", str(lab))
    assert plan.reader is not None
    done = append("local/g", str(lab))
    assert done.account == plan.reader.account
    assert {e.name for e in done.account if e.left_out} == {"README.md", "notes.txt", "empty"}


def test_timeouts_are_a_field_only_where_they_end_nothing(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as f:
        f["observations"], f["actions"], f["rewards"] = np.zeros((4, 2)), np.zeros((4, 1)), np.zeros(4)
        f["terminals"], f["timeouts"] = [0, 1, 0, 0], [0, 0, 0, 1]
    assert fates(planned(tmp_path))["dataset", "timeouts"] == (1, "next/truncated")
    inside = fates(planned(tmp_path, episodes_by="file", reader="d4rl"))
    assert inside["dataset", "timeouts"] == (1, "next/truncated, timeouts")


def test_a_name_with_a_comma_is_a_field_like_any_other(tmp_path: Path) -> None:
    flags, place = np.arange(4) == 3, np.arange(4.0)
    np.savez(tmp_path / "a.npz", obs=np.zeros((4, 2)), action=np.zeros((4, 1)), terminated=flags, **{"pos, x": place})
    assert [e.used_as for e in planned(tmp_path).account if e.name == "pos, x"] == [("pos, x",)]
    ds = import_files(tmp_path, "local/x", progress=False)
    assert [e["used_as"] for e in ds.manifest.account if e["name"] == "pos, x"] == [["pos, x"]]
    (found,) = (e for e in describe_source(ds).account if e.name == "pos, x")
    assert found.used_as == ("pos, x",)


def _recorded(directory: Path) -> None:
    import robot_recordings

    robot_recordings.record(directory / "run.mcap")


GENUINE: dict[str, Callable[[Path], Any]] = {
    "lerobot v3": lambda d: write_v3(d, Content(video=("top",), image=("wrist",))),
    "lerobot v2": lambda d: write_v2(d, Content(video=("top",))),
    "minari": lambda d: by_hand(d, [plain_episode(seed=3), plain_episode(steps=2)]),
    "vd4rl": lambda d: write_vd4rl_shards(d, [4, 3], [5]),
    "gen_dgrl": lambda d: write_dgrl(d / "game.tar", [3, 2]),
    "recordings": _recorded,
}


@pytest.mark.parametrize("name", GENUINE)
def test_every_file_of_an_archive_has_a_fate(tmp_path: Path, name: str) -> None:
    directory = tmp_path / "archive"
    directory.mkdir()
    GENUINE[name](directory)
    (directory / "stranger.bin").write_bytes(b"x") if name.startswith("lerobot") else None
    plan = planned(directory)
    assert sum(e.count for e in plan.account if e.kind == "file") == sum(p.is_file() for p in directory.rglob("*"))
    used = {name for e in plan.account for name in e.used_as}
    flags = {"next/terminated", "next/truncated"}
    assert {f.name for f in plan.fields} - flags <= used | set(plan.plan.computed)
    if name.startswith("lerobot"):
        assert ("file", "stranger.bin") in fates(plan)


def test_the_arrays_of_all_episodes_of_a_tar_are_counted_once_they_were_read(tmp_path: Path) -> None:
    whole = [npz_bytes(dgrl_episode(n, k)) for k, n in enumerate([3, 2, 4])]
    empty, damaged = npz_bytes(dgrl_episode(0, 4)), bytearray(npz_bytes(dgrl_episode(30, 5)))
    damaged[3000] ^= 0xFF
    members = [("README.md", b"x"), *((f"{k}.npz", e) for k, e in enumerate(whole)), ("8.npz", empty)]
    write_tar(tmp_path / "a.tar", [*members, ("9.npz", bytes(damaged))], "w")
    assert fates(planned(tmp_path, skip_bad=True))["array", "actions"] == (1, "action")
    ds = import_files(tmp_path, "local/x", skip_bad=True, progress=False)
    said = {(e["name"], *e.get("used_as", [None]), e.get("left_out")): e["count"] for e in ds.manifest.account}
    used = {"observations": "observation", "actions": "action", "rewards": "next/reward", "dones": "next/terminated"}
    assert said.pop(("a.tar", "episodes", None)) == 1
    assert said == {
        key: count
        for name, field in used.items()
        for key, count in (
            ((name, field, None), 3),
            ((name, None, "its episode has no steps"), 1),
            ((name, None, "the reader does not read it; a note says why if it is damaged"), 1),
        )
    }


def test_what_reading_shows_to_be_otherwise_is_in_the_account(tmp_path: Path) -> None:
    rows = [f"{k // 3},{k},{k},{'aaadef'[k]}" for k in range(6)]  # the second episode has several tasks
    (tmp_path / "a.csv").write_text("\n".join(["episode,observation,action,task", *rows]))
    (tmp_path / "README.md").write_text("x")
    assert fates(planned(tmp_path))["column", "task"] == (1, "episode/task")
    ds = import_files(tmp_path, "local/x", progress=False)
    assert ds.schema["task_at"].kind == "text" and ds.episodes["task"].tolist() == ["a", "d"]
    said = {e["name"]: e.get("used_as", e.get("left_out")) for e in ds.manifest.account}
    assert said == {
        "README.md": "by its name it holds no data",
        "a.csv": ["episodes"],
        "episode": ["episode", "ends of episodes"],
        "observation": ["observation"],
        "action": ["action"],
        "task": ["episode/task", "task_at"],
    }


def test_groups_in_episodes_of_minari_that_are_empty_are_named(tmp_path: Path) -> None:
    by_hand(tmp_path, [plain_episode(seed=3), plain_episode(steps=2), plain_episode(steps=4)])
    (file,) = tmp_path.rglob("*.hdf5")
    with h5py.File(file, "r+") as f:
        for k in (0, 2):
            f[f"episode_{k}"].create_group("infos/sensors").attrs["unit"] = "m"
        f["episode_1"].create_group("infos")
        f["episode_1/again"] = h5py.SoftLink("infos")  # a link to a group is none of its own
    account = fates(planned(tmp_path))
    assert account["group", "episode_*/infos/sensors"] == (2, "- it is empty")
    assert account["group", "episode_*/infos"] == (1, "- it is empty")
    assert account["attribute", "episode_*/infos/sensors@unit"] == (2, "- such attributes are not read")
    assert [name for kind, name in account if kind == "group"] == ["episode_*/infos", "episode_*/infos/sensors"]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("family", random_archives.LIBRARIES)
def test_a_stranger_is_in_the_account_or_refused(tmp_path: Path, family: str, seed: int) -> None:
    check_stranger(tmp_path, family, seed)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(6, 60))
@pytest.mark.parametrize("family", random_archives.LIBRARIES)
def test_many_strangers_are_in_the_account_or_refused(tmp_path: Path, family: str, seed: int) -> None:
    check_stranger(tmp_path, family, seed)


def check_stranger(tmp_path: Path, family: str, seed: int) -> None:
    """A random archive, to which one thing was added: it is named in the account, or the archive is refused."""
    rng, directory = np.random.default_rng([seed, *family.encode()]), tmp_path / "files"
    directory.mkdir()
    how = random_archives.LIBRARIES[family](rng, directory)
    how["reader"] = how.pop("format")
    what = random_archives.add_stranger(rng, directory)
    try:
        account = planned(directory, **how).account
    except RldsError:
        return
    if how.get("skip_bad") and any(e.kind == "file" and e.left_out for e in account):
        return  # a file is left out as a whole, since the stranger does not fit its rows
    named = [e for e in account if "stranger" in e.name]
    assert named, f"{what} of {family} is not in the account: {[(e.kind, e.name) for e in account]}"
    assert all(bool(e.used_as) != bool(e.left_out) for e in account)
