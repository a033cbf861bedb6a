"""V-D4RL: rows hold the action that led to them. NumPy and h5py read the same files for the truth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from image_archives import vd4rl_episode, write_vd4rl, write_vd4rl_shards
from server import Server

import rlds_cli
from rlds_cli import archives
from rlds_cli.archives import Archive, vd4rl
from rlds_cli.base.text import natural
from rlds_cli.errors import CorruptArchive, FrameError, RldsError, UnknownLayout
from rlds_cli.look.report.tracing import trace
from rlds_cli.make.importing import import_files, plan_import

SAMPLES = Path(__file__).parents[1] / "data/vd4rl/main/walker_walk/random"
MAIN = "vd4rl/main/walker_walk/random"


def check_episode(ds: Any, k: int, rows: dict[str, np.ndarray], names: dict[str, str]) -> None:
    """Episode k of a dataset against rows of the archive, by the rule that row t+1 tells of step t."""
    steps = len(rows["action"]) - 1
    assert ds.episodes["length"][k] == steps
    start = int(ds.episodes["start"][k])
    for key, name in names.items():
        stored = ds.column(name)[start : start + steps + 1]
        assert stored.dtype == rows[key].dtype
        if name == "action" or name.startswith("next/"):
            np.testing.assert_array_equal(stored[:steps], rows[key][1:])
        else:
            np.testing.assert_array_equal(stored, rows[key])


def names_of(directory: Path) -> list[Path]:
    return sorted(directory.iterdir(), key=lambda p: natural(p.name))


@pytest.mark.thorough
def test_files_by_hand(tmp_path: Path) -> None:
    made = write_vd4rl(tmp_path / "64px", [5, 3])
    made[1]["is_terminal"][-1], made[1]["discount"][-1] = True, 0
    np.savez_compressed(names_of(tmp_path / "64px")[1], **made[1])
    ds = import_files(tmp_path / "64px", "local/walker")
    assert ds.manifest.reader == "vd4rl"
    assert ds.episodes["end"].tolist() == ["truncated", "terminated"]
    assert ds.episodes["num_observed"].tolist() == [6, 4]
    assert ds.column("next/terminated")[:10].tolist() == [0, 0, 0, 0, 0, 0, 0, 0, 1, 0]
    assert ds.column("next/truncated")[:10].tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 0, 0]
    keys = {"image": "observation", "action": "action", "reward": "next/reward", "discount": "next/discount"}
    for k, rows in enumerate(made):
        check_episode(ds, k, rows, {**keys, "height": "state/height"})
    assert set(ds.schema) == {*keys.values(), "state/height", "next/terminated", "next/truncated"}


@pytest.mark.thorough
@pytest.mark.parametrize("cuts", [[], [6], [2, 4, 5], [3, 6, 12], [1, 14]])
def test_episodes_cut_between_shards_are_joined(tmp_path: Path, cuts: list[int]) -> None:
    rows = write_vd4rl_shards(tmp_path / "84px", [5, 3, 4], cuts)
    ds = import_files(tmp_path / "84px", "local/walker")
    assert ds.episodes["length"].tolist() == [5, 3, 4]
    assert ds.episodes["end"].tolist() == ["truncated"] * 3
    keys = {"observation": "observation", "action": "action", "reward": "next/reward", "discount": "next/discount"}
    for k, (a, b) in enumerate([(0, 6), (6, 10), (10, 15)]):
        check_episode(ds, k, {key: rows[key][a:b] for key in keys}, keys)
    bounds = [0, *cuts, 15]
    first = [max(i for i in range(len(bounds) - 1) if bounds[i] <= a) for a in (0, 6, 10)]
    assert ds.episodes["source"].tolist() == first
    assert not [n for n in ds.manifest.notes if n["code"] in ("cut", "fragments", "missing-shards")]


def test_a_missing_shard_cuts_and_joins_nothing(tmp_path: Path) -> None:
    rows = write_vd4rl_shards(tmp_path / "84px", [5, 3, 4], [3, 8])
    (tmp_path / "84px" / "1.hdf5").unlink()
    ds = import_files(tmp_path / "84px", "local/walker")
    codes = {n["code"]: n["count"] for n in ds.manifest.notes}
    assert ds.episodes["length"].tolist() == [2, 1, 4]
    assert ds.episodes["end"].tolist() == ["cut", "truncated", "truncated"]
    assert codes["missing-shards"] == 1 and codes["fragments"] == 1 and codes["cut"] == 1
    np.testing.assert_array_equal(ds.column("action")[:2], rows["action"][1:3])
    np.testing.assert_array_equal(ds.column("observation")[3:5], rows["observation"][8:10])


def test_a_terminal_of_shards_is_a_discount_of_zero_at_a_last_row(tmp_path: Path) -> None:
    here = tmp_path / "archive"
    write_vd4rl_shards(here, [5, 3], [])
    with h5py.File(here / "0.hdf5", "a") as f:
        f["discount"][[3, 9]] = 0
    ds = import_files(here, "local/walker")
    assert ds.episodes["end"].tolist() == ["truncated", "terminated"]
    assert ds.column("next/discount")[:6].tolist() == [1, 1, 0, 1, 1, 0]


def ragged(directory: Path) -> None:
    write_vd4rl(directory, [5, 3, 4])
    path = names_of(directory)[1]
    with np.load(path) as f:
        columns = dict(f)
    np.savez_compressed(path, **columns | {"image": columns["image"][:-1]})


def test_ragged_files_are_an_error_that_names_them(tmp_path: Path) -> None:
    ragged(tmp_path / "64px")
    name = names_of(tmp_path / "64px")[1].name
    with pytest.raises(CorruptArchive, match=rf"{name} is ragged: image 3 rows, action 4") as e:
        import_files(tmp_path / "64px", "local/walker")
    assert "--skip-bad leaves it out" in str(e.value.hint)


@pytest.mark.thorough
def test_skip_bad_leaves_them_out_and_says_so(tmp_path: Path) -> None:
    ragged(tmp_path / "64px")
    name = names_of(tmp_path / "64px")[1].name
    ds = import_files(tmp_path / "64px", "local/walker", skip_bad=True)
    assert ds.episodes["length"].tolist() == [5, 4]
    (note,) = [n for n in ds.manifest.notes if n["code"] == "bad-files"]
    assert (note["count"], note["where"]) == (1, name) and "image 3 rows" in note["text"]


@pytest.mark.thorough
def test_damage_that_shows_when_read(tmp_path: Path) -> None:
    write_vd4rl(tmp_path / "64px", [5, 3, 4])
    path = names_of(tmp_path / "64px")[2]
    content = bytearray(path.read_bytes())
    content[2000] ^= 0xFF  # inside the images
    path.write_bytes(content)
    with pytest.raises(CorruptArchive, match="image cannot be read"):
        import_files(tmp_path / "64px", "local/walker")
    ds = import_files(tmp_path / "64px", "local/walker", skip_bad=True)
    assert ds.episodes["length"].tolist() == [5, 3]
    assert [n["where"] for n in ds.manifest.notes if n["code"] == "bad-files"] == [path.name]


def test_what_makes_a_file_bad(tmp_path: Path) -> None:
    good = vd4rl_episode(4, 0)
    twice = good | {"is_first": np.array([1, 0, 1, 0, 0], bool)}
    cases = {
        "no reward": {k: v for k, v in good.items() if k != "reward"},
        "is_first is set in rows 0, 2": twice,
        "do not hold the same fields": good | {"action": np.zeros((5, 7), "f4")},
        "more than one value a row in reward": good | {"reward": np.zeros((5, 2))},
        "not numbers": good | {"height": np.array(["a"] * 5)},
    }
    for why, columns in cases.items():
        directory = tmp_path / why.replace(" ", "-")
        write_vd4rl(directory, [3, 3])
        np.savez_compressed(directory / "z-5.npz", **columns)
        with pytest.raises(CorruptArchive, match=why):
            vd4rl.READER.plan(Archive(directory, tuple(names_of(directory))))
        plan = plan_import(directory, "local/x", reader="vd4rl", skip_bad=True)
        assert plan.rows == 8 and [e.name for e in plan.account if e.left_out] == ["z-5.npz"]
    ds = import_files(directory, "local/x", reader="vd4rl", skip_bad=True)
    assert ds.episodes["length"].tolist() == [3, 3]
    (tmp_path / "no-reward" / "z-5.npz").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(UnknownLayout, match=r"z-5\.npz is not of the kind of .*, or damaged"):
        vd4rl.READER.plan(Archive(tmp_path / "no-reward", tuple(names_of(tmp_path / "no-reward"))))


@pytest.mark.thorough
def test_values_of_all_files_fit_the_schema(tmp_path: Path) -> None:
    here = tmp_path / "archive"
    made = write_vd4rl(here, [3, 4])
    np.savez_compressed(names_of(here)[1], **made[1] | {"reward": made[1]["reward"].astype("f8") / 3})
    ds = import_files(here, "local/walker")
    assert ds.column("next/reward").dtype == np.float64
    np.testing.assert_array_equal(ds.column("next/reward")[4:8], made[1]["reward"][1:].astype("f8") / 3)


def test_remarks(tmp_path: Path) -> None:
    here = tmp_path / "archive"
    made = write_vd4rl(here, [3, 4])
    made[0]["action"][0] = 0.5
    made[1]["is_terminal"][2] = True
    for path, columns in zip(names_of(here), made, strict=True):
        np.savez_compressed(path, **columns)
    names_of(here)[0].rename(here / "20220101T000000-0-77.npz")
    ds = import_files(here, "local/walker")
    codes = {n["code"]: n["count"] for n in ds.manifest.notes}
    assert codes["first-action"] == 1 and codes["length-in-name"] == 1 and codes["terminated-inside"] >= 1


@pytest.mark.thorough
def test_ragged_and_odd_shards(tmp_path: Path) -> None:
    here = tmp_path / "archive"
    write_vd4rl_shards(here, [5, 3, 4], [6, 10])
    with h5py.File(here / "1.hdf5", "a") as f:
        del f["reward"]
        f["reward"] = np.zeros(3)
    with pytest.raises(CorruptArchive, match=r"1\.hdf5 is ragged: reward 3 rows"):
        vd4rl.READER.plan(Archive(here, tuple(names_of(here))))
    ds = import_files(here, "local/walker", skip_bad=True)
    assert ds.episodes["length"].tolist() == [5, 4]
    with h5py.File(here / "1.hdf5", "a") as f:
        del f["step_type"]
        f["step_type"] = np.full(4, 7)
    with pytest.raises(CorruptArchive, match=r"1\.hdf5 .*(step types|ragged)"):
        vd4rl.READER.plan(Archive(here, tuple(names_of(here))))


def test_frames_are_resized_when_asked(tmp_path: Path) -> None:
    here = tmp_path / "archive"
    write_vd4rl_shards(here, [5, 3], [])
    assert import_files(here, "local/a").schema["observation"].shape == (3, 20, 20)
    small = import_files(here, "local/b", frames="10x10")
    assert small.schema["observation"].shape == (3, 10, 10)
    with h5py.File(here / "0.hdf5") as f:
        blocks = f["observation"][:6].reshape(6, 3, 10, 2, 10, 2).mean(axis=(3, 5))
    np.testing.assert_allclose(small.column("observation")[:6], blocks, atol=1)  # Pillow rounds twice
    with pytest.raises(FrameError, match="published raw"):
        import_files(here, "local/c", frames="raw")


def test_recognised_by_content(tmp_path: Path) -> None:
    write_vd4rl(tmp_path / "a", [3, 3])
    write_vd4rl_shards(tmp_path / "b", [3, 3], [4])
    assert archives.recognise(names_of(tmp_path / "a")) == (
        "vd4rl",
        "V-D4RL layout: 2 files, the first with an episode of 4 rows",
    )
    assert archives.recognise(names_of(tmp_path / "b")) == (
        "vd4rl",
        "V-D4RL layout: 2 files, the first with 4 rows",
    )
    np.savez(tmp_path / "c.npz", image=np.zeros(3))
    assert vd4rl.READER.recognise([tmp_path / "c.npz"]) is None
    with pytest.raises(UnknownLayout, match="have different layouts") as e:
        plan_import([tmp_path / "a", tmp_path / "b"], "local/both")
    assert "one of their directories" in str(e.value.hint)
    with pytest.raises(UnknownLayout, match=r"0\.hdf5 is not of the kind"):
        vd4rl.READER.plan(Archive(tmp_path, (*names_of(tmp_path / "a"), *names_of(tmp_path / "b"))))
    assert plan_import(tmp_path / "a", "local/x").rows == 8


def test_steps_are_traced_back_to_the_files(tmp_path: Path) -> None:
    write_vd4rl(tmp_path / "64px", [5, 3])
    write_vd4rl_shards(tmp_path / "84px", [4, 2, 3], [3, 6])
    for size, fields in (("64px", 8), ("84px", 5)):
        import_files(tmp_path / size, f"local/w{size}")
        found = trace(f"local/w{size}", 100)
        assert found.ok and found.steps == (8 if size == "64px" else 9) and len(found.fields) >= fields - 2
    moved = tmp_path / "moved"
    moved.mkdir()
    for shard in (tmp_path / "84px").iterdir():
        (moved / shard.name).write_bytes(shard.read_bytes())
    assert trace("local/w84px", 100, archive=moved).ok
    (broken,) = [p for p in (tmp_path / "84px").iterdir() if p.name == "1.hdf5"]
    content = broken.read_bytes()
    broken.unlink()
    with pytest.raises(RldsError, match=r"1\.hdf5|not here"):
        trace("local/w84px", 100)
    broken.write_bytes(content)


@pytest.mark.thorough
def test_some_episodes_are_some_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = write_vd4rl(tmp_path / "64px", [5, 3, 4])
    files = {f"{MAIN}/64px/{p.name}": p.read_bytes() for p in names_of(tmp_path / "64px")}
    with Server() as server:
        pages = server.add_repository("conglu/vd4rl", files)
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        ds = rlds_cli.download(f"{MAIN}/64px", episodes="1:2")
    assert ds.id.startswith(f"{MAIN}/64px@") and ds.num_episodes == 1
    np.testing.assert_array_equal(ds.column("action")[:3], made[1]["action"][1:])
    assert [bool(p.requests) for _, p in sorted(pages.items())] == [False, True, False]


@pytest.mark.slow
def test_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = write_vd4rl(tmp_path / "64px", [5, 3])
    rows = write_vd4rl_shards(tmp_path / "84px", [4, 2], [3])
    files = {
        f"{MAIN}/{p.parent.name}/{p.name}": p.read_bytes() for d in ("64px", "84px") for p in names_of(tmp_path / d)
    }
    with Server() as server:
        server.add_repository("conglu/vd4rl", files | {f"{MAIN}/README.md": b"no"})
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        small = rlds_cli.download(f"{MAIN}/64px")
        large = rlds_cli.download(f"{MAIN}/84px")  # has no entry: the family is open
        assert rlds_cli.download("main/walker_walk/random/64px").fingerprint == small.fingerprint
    check_episode(small, 1, made[1], {"image": "observation", "action": "action", "reward": "next/reward"})
    assert large.episodes["length"].tolist() == [4, 2]
    np.testing.assert_array_equal(large.column("observation"), rows["observation"])
    copy = rlds_cli.download(f"{MAIN}/64px", source=str(tmp_path), home=tmp_path / "other")
    assert copy.fingerprint == small.fingerprint


def test_samples_value_by_value(tmp_path: Path) -> None:
    small = import_files(SAMPLES / "64px", "local/small")
    keys = {"image": "observation", "action": "action", "reward": "next/reward", "discount": "next/discount"}
    keys |= {key: f"state/{key}" for key in ("height", "orientations", "velocity")}
    for k, path in enumerate(names_of(SAMPLES / "64px")):
        with np.load(path) as f:
            check_episode(small, k, dict(f), keys)
    large = import_files(SAMPLES / "84px", "local/large")
    with h5py.File(SAMPLES / "84px" / "data.hdf5") as f:
        rows = {key: d[:] for key, d in f.items()}
    for k in (0, 1):
        part = {key: v[501 * k : 501 * (k + 1)] for key, v in rows.items()}
        check_episode(large, k, part, {"observation": "observation", "action": "action", "reward": "next/reward"})
    assert small.episodes["length"].tolist() == large.episodes["length"].tolist() == [500, 500]
    assert small.episodes["end"].tolist() == large.episodes["end"].tolist() == ["truncated", "truncated"]
    assert small.num_transitions == 1000
