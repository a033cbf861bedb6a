"""``--skip-bad``: damaged files of one's own beside sound ones, for every reader that takes several."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lerobot_archives import Content, decoded, write_v3

from rlds_cli.errors import ArchiveError, CorruptArchive
from rlds_cli.look.report.tracing import trace
from rlds_cli.make.importing import import_files, plan_import

DATA = Path(__file__).parents[1] / "data"
SAMPLES = {
    "d3rlpy": DATA / "d3rlpy/pendulum_random_v1.1.0.h5",
    "d4rl": DATA / "d4rl/hopper_random_layout-v2.hdf5",
    "ogbench": DATA / "ogbench/pointmaze-medium-navigate-v0.npz",
    "robomimic": DATA / "robomimic/low_dim_layout.hdf5",
    "roboset": DATA / "roboset/door_paths.h5",
}


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def page(path: Path) -> None:
    path.write_bytes(b"<!doctype html><p>sign in</p>")


def named(directory: Path, sample: Path, name: str) -> Path:
    """A copy of a sample under a name of its layout."""
    directory.mkdir(exist_ok=True)
    stem, _, version = sample.stem.rpartition("-")
    target = f"{stem}{name}-{version}{sample.suffix}" if stem else f"{sample.stem}{name}{sample.suffix}"
    return Path(shutil.copyfile(sample, directory / target))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("reader", SAMPLES)
def test_damaged_files_are_left_out(tmp_path: Path, reader: str) -> None:
    sound = [named(tmp_path / "sound", SAMPLES[reader], n) for n in ("b", "d")]
    bad = [named(tmp_path / "mixed", SAMPLES[reader], n) for n in ("a", "c")]
    for path in sound:
        shutil.copyfile(path, tmp_path / "mixed" / path.name)
    page(bad[0])
    half(bad[1])
    with pytest.raises(ArchiveError):
        import_files(tmp_path / "mixed", "local/mixed", reader=reader)
    ds = import_files(tmp_path / "mixed", "local/mixed", skip_bad=True)
    wanted = import_files(tmp_path / "sound", "local/sound")
    assert (ds.manifest.reader, wanted.manifest.reader) == (reader, reader)
    assert ds.fingerprint == wanted.fingerprint
    assert [s["file"] for s in ds.sources] == [p.name for p in sound]
    (note,) = [n for n in ds.manifest.notes if n["code"] == "bad-files"]
    assert (note["count"], note["where"]) == (2, bad[0].name)
    assert all(p.name in note["text"] for p in bad)
    assert any("files were left out" in n for n in plan_import(tmp_path / "mixed", "local/x", skip_bad=True).notes)


@pytest.mark.thorough
def test_damage_in_the_middle_of_a_file(tmp_path: Path) -> None:
    good, bad = (named(tmp_path / "mixed", SAMPLES["ogbench"], n) for n in ("a", "b"))
    with np.load(bad) as npz:
        content = dict(npz)
    np.savez(bad, **content)  # not deflated: what is flipped is a value
    data = bytearray(bad.read_bytes())
    at = data.index(content["qpos"].tobytes()[:64])
    data[at + 9] ^= 1
    bad.write_bytes(bytes(data))
    with pytest.raises(CorruptArchive, match="CRC"):
        import_files(tmp_path / "mixed", "local/a")
    ds = import_files(tmp_path / "mixed", "local/a", skip_bad=True)
    assert [s["file"] for s in ds.sources] == [good.name]


def test_where_all_files_are_damaged_the_first_is_named(tmp_path: Path) -> None:
    for name in ("a", "b"):
        half(named(tmp_path / "mixed", SAMPLES["ogbench"], name))
    with pytest.raises(CorruptArchive, match="navigatea"):
        import_files(tmp_path / "mixed", "local/a", reader="ogbench", skip_bad=True)


@pytest.mark.parametrize("what", ["data", "videos"])
def test_lerobot_leaves_episodes_of_damaged_files_out(tmp_path: Path, what: str) -> None:
    c = Content(lengths=(4, 3, 5, 6), video=("top",), per_file=1, per_video=1, splits={})
    root = write_v3(tmp_path / "a", c)
    files = sorted((root / what).rglob("file-*"))
    half(files[1])
    with pytest.raises(ArchiveError):
        import_files(root, "local/a")
    ds = import_files(root, "local/a", skip_bad=True)
    assert ds.episodes["length"].tolist() == [4, 5, 6]
    (note,) = [n for n in ds.manifest.notes if n["code"] == "bad-files"]
    assert note["count"] == 1 and files[1].name in note["text"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", ["missing", "damaged"])
@pytest.mark.parametrize("lost", [(0,), (1,), (3,), (1, 2), (0, 3, 4)])
def test_lerobot_leaves_an_episode_of_a_data_file_of_several_out(
    tmp_path: Path, lost: tuple[int, ...], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = Content(lengths=(4, 3, 5, 6, 2, 7), video=("top",), per_file=4, per_video=1, splits={})
    root = write_v3(tmp_path / "a", c)
    videos = sorted((root / "videos").rglob("*.mp4"))
    for k in lost:
        half(videos[k]) if how == "damaged" else videos[k].unlink()
    with pytest.raises(CorruptArchive):
        import_files(root, "local/a")
    kept = [k for k in range(6) if k not in lost]
    for block_rows in (1 << 14, 2):
        monkeypatch.setattr("rlds_cli.archives.lerobot.rows._BLOCK_ROWS", block_rows)
        ds = import_files(root, "local/a", skip_bad=True, force=True)
        assert list(ds.episodes["group"]) == [f"episode_{k}" for k in kept]
        assert ds.episodes["length"].tolist() == [c.lengths[k] for k in kept]
        for at, k in enumerate(kept):
            rows = slice(c.starts[k], c.starts[k] + c.lengths[k])
            np.testing.assert_array_equal(ds.episode(at)["action"], c.column("action")[rows])
            np.testing.assert_array_equal(ds.episode(at)["observation/state"], c.column("observation.state")[rows])
            published = decoded(videos[k])
            assert np.array_equal(ds.episode(at)["observation/images/top"], published)
    code = "bad-files" if how == "damaged" else "missing-files"
    (note,) = [n for n in ds.manifest.notes if n["code"] == code]
    assert note["count"] == len(lost)
    assert trace(ds, 20).ok


@pytest.mark.parametrize("format", ["arrow", "parquet"])
def test_minari_leaves_damaged_episodes_out(tmp_path: Path, format: str) -> None:
    rng, root = np.random.default_rng(0), tmp_path / "data"
    for k, steps in enumerate((3, 5, 4)):
        (root / str(k)).mkdir(parents=True)
        rows = {name: list(rng.normal(size=(steps + 1, 2))) for name in ("observations", "actions")}
        flags = {name: [False] * (steps + 1) for name in ("terminations", "truncations")}
        table = pa.table(rows | flags | {"rewards": rng.normal(size=steps + 1)})
        path = root / str(k) / f"part-0.{format}"
        if format == "parquet":
            pq.write_table(table, path)
        else:
            with pa.ipc.new_file(path, table.schema) as writer:
                writer.write_table(table)
    (root / "metadata.json").write_text(json.dumps({"total_episodes": 3, "data_format": format}))
    half(root / "1" / f"part-0.{format}")
    with pytest.raises(CorruptArchive):
        import_files(root, "local/a", reader="minari")
    ds = import_files(root, "local/a", skip_bad=True)
    assert ds.episodes["length"].tolist() == [3, 4] and list(ds.episodes["group"]) == ["0", "2"]
    assert [n["where"] for n in ds.manifest.notes if n["code"] == "bad-files"] == ["1"]
