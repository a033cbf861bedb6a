from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest
from gymnasium import spaces as g
from hypothesis import given
from hypothesis import strategies as st
from minari_archives import FORMATS, archive, buffer, by_hand, compare, plain_episode, read, same, sampled, write

from rlds_cli import archives
from rlds_cli.archives.minari import read as minari
from rlds_cli.archives.minari.read import EpisodeEntry
from rlds_cli.errors import ArchiveError, CorruptArchive, MissingPackage, UnknownLayout, UnsafeArchive
from rlds_cli.ted import TERMINATED, Space, pieces

SPACE, ACT = g.Box(-1, 1, (2,)), g.Discrete(9)


# --- old, odd and incomplete metadata


def test_old_metadata(tmp_path: Path) -> None:
    """As Minari 0.4 wrote it: no total_steps on episodes, no jpeg_encoding, a spec with keys of an older Gymnasium."""
    spec = {"id": "Hopper-v4", "entry_point": "a:B", "order_enforce": True, "apply_api_compatibility": False}
    data = by_hand(tmp_path, [plain_episode(3)], {"minari_version": "0.4.3", "env_spec": json.dumps(spec)})
    got = read(data)
    assert got.plan.env == {"id": "Hopper-v4", "spec": spec} and "minari-version" not in got.notes


def test_a_version_that_is_not_known_is_read_and_reported(tmp_path: Path) -> None:
    got = read(by_hand(tmp_path, [plain_episode(3)], {"minari_version": "0.9.1"}))
    assert "0.9.1" in got.notes["minari-version"].text and len(got) == 1


def test_totals_that_do_not_fit_are_reported(tmp_path: Path) -> None:
    got = read(by_hand(tmp_path, [plain_episode(3), plain_episode(2)], {"total_steps": 9, "total_episodes": 1}))
    assert "9" in got.notes["total-steps"].text and "2" in got.notes["total-episodes"].text


def test_spaces_that_are_not_recorded_are_inferred(tmp_path: Path) -> None:
    got = read(by_hand(tmp_path, [plain_episode(3)], {"observation_space": None, "action_space": None}))
    assert Space(got.plan.spaces["observation"]).build() == g.Box(-np.inf, np.inf, (2,), np.float32)
    assert Space(got.plan.spaces["action"]).build().contains(np.array(-3))
    assert "observation" in got.notes["inferred-space"].text


def test_images_without_a_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = g.Box(0, 255, (40, 32, 3), np.uint8)
    constant = np.broadcast_to(np.uint8(90), (4, *space.shape))
    buffers = [buffer(3, constant, sampled(ACT, 3, 0)), buffer(3, sampled(space, 4, 1), sampled(ACT, 3, 0))]
    data = write(tmp_path, buffers, space, ACT, monkeypatch=monkeypatch)
    compare(data)
    expected = [e["observation"] for e in read(data).columns]
    content = json.loads((data / "metadata.json").read_text())
    (data / "metadata.json").write_text(json.dumps({k: v for k, v in content.items() if "space" not in k}))
    got = read(data)
    for episode, value in zip(got.columns, expected, strict=True):
        same(episode["observation"], value, "observation")
    assert Space(got.plan.spaces["observation"]).build() == space


def test_no_metadata_at_all(tmp_path: Path) -> None:
    data = by_hand(tmp_path, [plain_episode(3)])
    (data / "metadata.json").unlink()
    assert archives.recognise(archive(data).files) == ("minari", "Minari dataset without metadata.json (hdf5)")
    got = read(data)
    assert len(got) == 1 and "no-metadata" in got.notes and dict(minari.metadata(got.plan)) == {}


def test_the_main_file_alone_finds_the_metadata_beside_it(tmp_path: Path) -> None:
    data = by_hand(tmp_path, [plain_episode(3)])
    plan = minari.plan(archives.Archive(data, (data / "main_data.hdf5",)))
    assert plan.spaces["action"]["type"] == "Discrete"


def test_bounds_of_image_spaces_are_kept_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = g.Dict({"camera": g.Box(0, 255, (64, 64, 3), np.uint8)})
    buffers = [buffer(2, sampled(space, 3, 0), sampled(ACT, 2, 0))]
    got = read(write(tmp_path, buffers, space, ACT, monkeypatch=monkeypatch))
    assert len(json.dumps(got.plan.spaces)) < 500
    assert Space(got.plan.spaces["observation"]).build() == space


# --- long episodes


@pytest.mark.thorough
@pytest.mark.parametrize("data_format", FORMATS)
def test_episodes_of_more_than_one_record_batch(
    data_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library's own reader loses what lies beyond the first 32,768 rows in arrow and parquet."""
    rng = np.random.default_rng(0)
    steps = (70_000, 33_000, 5)
    space = g.Box(-np.inf, np.inf, (2,), np.float64)
    buffers = [buffer(n, rng.standard_normal((n + 1, 2)), rng.integers(0, 9, n)) for n in steps]
    got = read(
        write(tmp_path, buffers, space, ACT, data_format=data_format, monkeypatch=monkeypatch), chunk_rows=10_007
    )
    assert got.table.length.tolist() == list(steps) and got.chunks > 10
    for k, b in enumerate(buffers):
        same(got.columns[k]["observation"], b.observations, "observation")
        same(got.columns[k]["action"], b.actions, "action")
        same(got.columns[k]["next/reward"], b.rewards, "reward")


def test_several_files_of_one_episode_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    directory = tmp_path / "data" / "0"
    directory.mkdir(parents=True)
    rows = np.arange(12)
    for i, part in enumerate(np.split(rows, 12)):
        ends = part == 10
        columns = {
            "observations": part,
            "actions": part % 9,
            "rewards": part / 2,
            "terminations": ends,
            "truncations": ends,
        }
        batch = pa.RecordBatch.from_pydict(columns)
        with pa.OSFile(str(directory / f"part-{i}.arrow"), "wb") as f, pa.ipc.new_file(f, batch.schema) as w:
            w.write_batch(batch)
    got = read(tmp_path / "data")
    assert got.table.length.tolist() == [11] and got.table.end.tolist() == [TERMINATED]
    same(got.columns[0]["observation"], rows, "observation")
    same(got.columns[0]["next/reward"], rows[:-1] / 2, "reward")


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(0, 25))
def test_pieces_cover_every_row_once(lengths: list[int], budget: int) -> None:
    chunks = list(pieces([EpisodeEntry(k, n, 0, "") for k, n in enumerate(lengths)], budget))
    rows = [(p.episode.number, r) for chunk in chunks for p in chunk for r in range(p.start, p.stop)]
    assert rows == [(k, r) for k, length in enumerate(lengths) for r in range(length + 1)]
    assert all(sum(p.stop - p.start for p in chunk) <= max(budget, 2) for chunk in chunks)
    assert all(p.stop - p.start >= 2 for chunk in chunks for p in chunk if p.ends)


def test_parts_are_whole_episodes_of_bounded_size(tmp_path: Path) -> None:
    steps = [30_000, 30_000, 30_000, 90_000, 10]
    columns = [plain_episode(n, observations=np.zeros((n + 1, 1), np.float32)) for n in steps]
    plan = minari.plan(archive(by_hand(tmp_path, columns)))
    assert [p.rows for p in plan.parts] == [60_002, 30_001, 90_001, 11]


# --- bad input


BAD = {
    "observations": (np.zeros((4, 2)), ["episode_1", "observations", "4 rows", "5 expected"]),
    "actions": (np.zeros(5), ["episode_1", "actions", "5 rows", "4 expected"]),
    "terminations": (np.zeros(3, bool), ["episode_1", "terminations", "3 rows", "4 expected"]),
    "infos/x": (np.zeros(7), ["episode_1", "infos/x", "7 rows", "4 or 5 expected"]),
}


@pytest.mark.parametrize("key", BAD)
def test_columns_of_the_wrong_length_are_named(key: str, tmp_path: Path) -> None:
    value, words = BAD[key]
    data = by_hand(tmp_path, [plain_episode(4, **{"infos/x": np.zeros(5)}), plain_episode(4, **{key: value})])
    with pytest.raises(CorruptArchive) as e:
        read(data)
    assert all(w in str(e.value) for w in words), str(e.value)


def test_missing_columns_are_named(tmp_path: Path) -> None:
    with pytest.raises(CorruptArchive, match=r"episode_1: rewards is missing"):
        read(by_hand(tmp_path / "a", [plain_episode(4), plain_episode(4, rewards=None)]))
    with pytest.raises(CorruptArchive, match="actions"):
        read(by_hand(tmp_path / "b", [plain_episode(4, actions=None)]))


def test_observations_of_different_shapes_are_named(tmp_path: Path) -> None:
    columns = [plain_episode(4), plain_episode(4, observations=np.zeros((5, 3), np.float32))]
    with pytest.raises(CorruptArchive, match=r"observations.*\[2\] in .*episode_0.*\[3\] in .*episode_1"):
        read(by_hand(tmp_path, columns))


def test_missing_episodes_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CorruptArchive, match="episode 2 is missing"):
        read(by_hand(tmp_path, [plain_episode(4)] * 2, {"total_episodes": 3}))
    buffers = [buffer(2, sampled(SPACE, 3, i), sampled(ACT, 2, i)) for i in range(4)]
    data = write(tmp_path, buffers, SPACE, ACT, data_format="arrow", monkeypatch=monkeypatch)
    shutil.rmtree(data / "1")
    with pytest.raises(CorruptArchive, match="4 episodes, the archive has 3 \\(episode 1 is missing"):
        read(data)


def test_a_missing_file_of_an_episode_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffers = [buffer(4, sampled(SPACE, 5, 0), sampled(ACT, 4, 0))]
    data = write(tmp_path, buffers, SPACE, ACT, data_format="arrow", monkeypatch=monkeypatch)
    content = json.loads((data / "0" / "metadata.json").read_text())
    (data / "0" / "metadata.json").write_text(json.dumps(content | {"total_steps": 70_000}))
    with pytest.raises(CorruptArchive, match=r"5 rows.*70000 steps"):
        read(data)


@pytest.mark.thorough
def test_truncated_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for data_format in FORMATS:
        buffers = [buffer(2000, sampled(SPACE, 2001, 0), sampled(ACT, 2000, 0))]
        data = write(tmp_path / data_format, buffers, SPACE, ACT, data_format=data_format, monkeypatch=monkeypatch)
        file = data / "main_data.hdf5" if data_format == "hdf5" else data / "0" / f"part-0.{data_format}"
        file.write_bytes(file.read_bytes()[:-1000])
        with pytest.raises(CorruptArchive, match=file.name):
            read(data)


def test_metadata_that_is_a_web_page(tmp_path: Path) -> None:
    data = by_hand(tmp_path, [plain_episode(4)])
    (data / "metadata.json").write_text("<!DOCTYPE html><html>sign in</html>")
    with pytest.raises(CorruptArchive, match=r"metadata\.json is not JSON"):
        read(data)


def test_links_out_of_the_file_are_refused(tmp_path: Path) -> None:
    data = by_hand(tmp_path / "a", [plain_episode(4)])
    other = by_hand(tmp_path / "b", [plain_episode(4)])
    for name in ("episode_1", "episode_0/infos/x"):
        with h5py.File(data / "main_data.hdf5", "a") as f:
            f[name] = h5py.ExternalLink(str(other / "main_data.hdf5"), "/episode_0")
        with pytest.raises(UnsafeArchive):
            read(data)
        with h5py.File(data / "main_data.hdf5", "a") as f:
            del f[name]
    assert len(read(data)) == 1


def test_a_virtual_dataset_over_another_file_is_refused(tmp_path: Path) -> None:
    data = by_hand(tmp_path, [plain_episode(4)])
    layout = h5py.VirtualLayout((4,), "f8")
    layout[:] = h5py.VirtualSource("/etc/other.h5", "x", (4,))
    with h5py.File(data / "main_data.hdf5", "a") as f:
        f["episode_0"].create_virtual_dataset("infos/x", layout)
    with pytest.raises(UnsafeArchive, match="virtual"):
        read(data)


def test_a_shape_that_the_file_cannot_hold_is_refused(tmp_path: Path) -> None:
    data = by_hand(tmp_path, [plain_episode(4, observations=None)])
    with h5py.File(data / "main_data.hdf5", "a") as f:
        f["episode_0"].create_dataset("observations", (5, 1 << 40), "f4", chunks=(1, 1024))
    with pytest.raises(UnsafeArchive, match="claims"):
        read(data)


def test_two_datasets_at_once_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        by_hand(tmp_path / name, [plain_episode(4)])
    with pytest.raises(UnknownLayout, match="2 Minari datasets"):
        read(tmp_path)


def test_a_rule_for_episodes_does_not_apply(tmp_path: Path) -> None:
    with pytest.raises(UnknownLayout, match="whole episodes"):
        read(by_hand(tmp_path, [plain_episode(4)]), episodes_by="timeouts")


def test_other_files_are_not_recognised(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "d4rl.hdf5", "w") as f:
        f["observations"] = np.zeros((4, 2))
        f["actions"] = np.zeros((4, 2))
    (tmp_path / "metadata.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("hello")
    for files in ([tmp_path / "d4rl.hdf5"], [tmp_path / "notes.txt"], [tmp_path / "metadata.json"], []):
        assert minari.recognise(files) is None


def test_without_pyarrow_arrow_archives_say_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffers = [buffer(2, sampled(SPACE, 3, 0), sampled(ACT, 2, 0))]
    data = write(tmp_path, buffers, SPACE, ACT, data_format="arrow", monkeypatch=monkeypatch)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingPackage, match=r"rlds-cli\[arrow\]"):
        read(data)


def test_hdf5_is_read_without_importing_pyarrow_gymnasium_or_minari(tmp_path: Path) -> None:
    data = by_hand(tmp_path, [plain_episode(4)])
    code = (
        "import sys; from pathlib import Path; from rlds_cli.archives import Archive\n"
        "from rlds_cli.archives.minari import read as minari\n"
        f"d = Path({str(data)!r}); p = minari.plan(Archive(d, (d / 'main_data.hdf5', d / 'metadata.json')))\n"
        "print(sum(len(c) for part in p.parts for c in minari.read(p, part)))\n"
        "print([m for m in ('pyarrow', 'gymnasium', 'minari', 'torch') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split("\n")[:2] == ["5", "[]"]


def test_old_files_hold_their_metadata_as_attributes(tmp_path: Path) -> None:
    """As Minari 0.4 wrote it, before there was a metadata.json."""
    data = by_hand(tmp_path, [plain_episode(3)])
    content = json.loads((data / "metadata.json").read_text()) | {"author": "me", "minari_version": "0.4.0"}
    (data / "metadata.json").unlink()
    with h5py.File(data / "main_data.hdf5", "a") as f:
        f.attrs.update(content)
    got = read(data)
    assert Space(got.plan.spaces["action"]).build() == ACT
    assert got.plan.facts["author"] == "me" and not got.notes
    assert json.loads(str(dict(minari.metadata(got.plan))["minari/metadata.json"])) == content


@pytest.mark.parametrize(
    "space",
    [
        "{",
        [1],
        {"type": "Box"},
        {"type": "Box", "shape": ["a"], "dtype": "float32"},
        {"type": "Box", "shape": [-1], "dtype": "float32"},
        {"type": "Box", "shape": [2], "dtype": "float33"},
        {"type": "MultiDiscrete", "nvec": "abc"},
        {"type": "MultiBinary"},
        {"type": "Dict", "subspaces": [1]},
        {"type": "Tuple", "subspaces": [{"type": "Box"}]},
        {"shape": [2]},
    ],
)
def test_descriptions_of_spaces_that_make_no_sense(space: Any, tmp_path: Path) -> None:
    text = space if isinstance(space, str) else json.dumps(space)
    with pytest.raises(CorruptArchive, match="observation_space"):
        read(by_hand(tmp_path, [plain_episode(3)], {"observation_space": text}))


def test_a_space_of_an_unknown_type_is_kept_as_it_is(tmp_path: Path) -> None:
    custom = {"type": "Mine", "of": 3}
    got = read(by_hand(tmp_path, [plain_episode(3)], {"observation_space": json.dumps(custom)}))
    assert got.plan.spaces["observation"] == custom and len(got) == 1


def test_files_of_other_kinds_in_numbered_directories_are_not_recognised(tmp_path: Path) -> None:
    (tmp_path / "2024").mkdir()
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"price": [1, 2]}), tmp_path / "2024" / "sales.parquet")
    assert minari.recognise([tmp_path / "2024" / "sales.parquet"]) is None


def test_a_mixture_of_raw_and_encoded_images_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = g.Box(0, 255, (32, 32, 3), np.uint8)
    buffers = [buffer(2, sampled(space, 3, i), sampled(ACT, 2, i)) for i in range(2)]
    data = write(tmp_path, buffers, space, ACT, monkeypatch=monkeypatch)
    with h5py.File(data / "main_data.hdf5", "a") as f:
        del f["episode_1/observations"]
        f["episode_1/observations"] = buffers[1].observations
    with pytest.raises(CorruptArchive, match=r"encoded images of uint8 .* in .*episode_0, uint8 .* in .*episode_1"):
        read(data)


@pytest.mark.parametrize("data_format", FORMATS)
def test_damaged_bytes_give_an_error_of_ours_or_none(
    data_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = g.Dict({"x": g.Box(-1, 1, (3,)), "word": g.Text(4), "camera": g.Box(0, 255, (32, 32), np.uint8)})
    buffers = [buffer(6, sampled(space, 7, 0), sampled(ACT, 6, 0), seed=3)]
    data = write(tmp_path, buffers, space, ACT, data_format=data_format, monkeypatch=monkeypatch)
    file = data / "main_data.hdf5" if data_format == "hdf5" else data / "0" / f"part-0.{data_format}"
    whole, rng, errors = file.read_bytes(), np.random.default_rng(0), 0
    for _ in range(60):
        damaged = np.frombuffer(whole, np.uint8).copy()
        damaged[rng.integers(0, len(whole), 20)] = rng.integers(0, 256, 20)
        file.write_bytes(damaged.tobytes())
        minari.recognise(archive(data).files)
        try:
            plan = minari.plan(archive(data))
            for part in plan.parts:
                list(minari.read(plan, part))
        except ArchiveError:
            errors += 1
    assert errors > 10
