"""Imports of a user's own files: errors name the file that is meant, and what no data has is left out and said."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from rlds_cli.archives.formats.tfrecord import masked
from rlds_cli.errors import ArchiveError, CorruptArchive, UnknownLayout
from rlds_cli.look.report import describe_file
from rlds_cli.make.importing import import_files, plan_import

POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0f' * 32}\nsize 14694696\n"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory that is not that of the home."""
    made = tmp_path / "data"
    made.mkdir()
    return made


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("lines", "blanks"), [(7, 0), (1_000, 9_000)])  # of the latter several blocks are read
def test_a_line_of_json_that_is_cut_short_is_named(data: Path, lines: int, blanks: int) -> None:
    line = f'{{"observation": 0.5,{" " * blanks} "action": 1.0}}'
    (data / "rows.jsonl").write_text(f"{line}\n" * lines + line[:-9])
    with pytest.raises(CorruptArchive, match=rf"rows.jsonl: line {lines + 1:,} is not JSON, or is cut short"):
        plan_import(data / "rows.jsonl", "local/x")


def zarr_2(path: Path) -> Path:
    (path / "data").mkdir(parents=True)
    (path / ".zgroup").write_text('{"zarr_format": 2}')
    (path / "data/.zarray").write_text("{}")
    (path / "data/0.0").write_bytes(bytes(range(64)))
    return path


def zarr_3(path: Path) -> Path:
    (path / "data/c/0").mkdir(parents=True)
    (path / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    (path / "data/c/0/0").write_bytes(bytes(range(64)))
    return path


def archive_of_files(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as f:
        f.writestr("rows.csv", "observation,action\n0,1\n")
    return path


def test_a_damaged_document_of_a_zarr_store_is_named(data: Path) -> None:
    with pytest.raises(CorruptArchive, match="run: the document of data is damaged"):
        plan_import(zarr_2(data / "run"), "local/x")


def test_a_part_of_a_zarr_store_names_the_store(data: Path) -> None:
    with pytest.raises(UnknownLayout, match="is a part of the Zarr store"):
        plan_import(zarr_2(data / "run") / "data/0.0", "local/x")


@pytest.mark.parametrize(
    ("name", "write", "said"),
    [
        ("run", zarr_3, "run has no rows"),
        ("rows.zip", archive_of_files, "rows.zip is a zip archive, which is not read"),
    ],
)
def test_a_format_that_is_not_read_is_named(data: Path, name: str, write: Callable[[Path], Path], said: str) -> None:
    with pytest.raises(UnknownLayout, match=said):
        plan_import(write(data / name), "local/x")


def table(path: Path, length: int = 4, **more: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, observation=np.arange(2.0 * length).reshape(length, 2), action=np.ones((length, 1)), **more)


def picture(path: Path, value: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((8, 8, 3), value, np.uint8)).save(path)


def refused(path: Path, **how: Any) -> ArchiveError:
    with pytest.raises(ArchiveError) as e:
        plan_import(path, "local/own", **how)
    return e.value


# -- files without data


JUNK = ["_SUCCESS", "Thumbs.db", "desktop.ini", "convert.py", "ep_0.npz.md5", "SHA256SUMS", "README.md", ".DS_Store"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", JUNK)
def test_a_file_without_data_is_left_out_and_said(data: Path, name: str) -> None:
    table(data / "ep_0.npz", success=True)
    table(data / "ep_1.npz", success=True)
    (data / name).write_bytes(b"d41d8cd98f00b204e9800998ecf8427e")
    assert any(name in note for note in plan_import(data, "local/own").notes)
    ds = import_files(data, "local/own", progress=False)
    assert ds.num_episodes == 2 and any(name in note["text"] for note in ds.manifest.notes)


def test_files_of_a_hidden_directory_count_together(data: Path) -> None:
    table(data / "ep_0.npz")
    for k in range(30):
        (data / f".git/objects/{k:02d}").mkdir(parents=True)
        (data / f".git/objects/{k:02d}/x").write_bytes(b"x")
    assert any(".git/ (30 files)" in note for note in plan_import(data, "local/own").notes)


def test_a_pattern_leaves_them_out_too(data: Path) -> None:
    table(data / "ep_0.npz")
    (data / "Thumbs.db").write_bytes(b"x")
    planned = plan_import(data / "*", "local/own")
    assert [f.name for f in planned.files] == ["ep_0.npz"] and any("Thumbs.db" in note for note in planned.notes)


def test_descriptions_beside_episodes_are_said_by_the_import(data: Path) -> None:
    for k in range(2):
        table(data / f"ep_{k}.npz", success=True)
        (data / f"rig_{k}.json").write_text(json.dumps({"arm": "left"}))
    planned = plan_import(data, "local/own").notes
    made = [n["text"] for n in import_files(data, "local/own", progress=False).manifest.notes]
    for said in (planned, made):
        assert any("rig_0.json" in note and "rig_1.json" in note for note in said)


# -- Git LFS


@pytest.mark.parametrize(
    "name", ["x.hdf5", "x.npz", "x.parquet", "x.csv", "x.jsonl", "x.mp4", "x.png", "x.tfrecord", "x.mcap"]
)
def test_a_pointer_of_git_lfs_is_named_as_one(data: Path, name: str) -> None:
    (data / name).write_text(POINTER)
    e = refused(data)
    assert isinstance(e, CorruptArchive) and f"{name} is a pointer of Git LFS" in e.message
    assert e.hint == f"git -C {data} lfs pull"
    with pytest.raises(CorruptArchive, match="Git LFS"):
        describe_file(data / name)


def test_pointers_beside_files_that_were_fetched(data: Path) -> None:
    table(data / "ep_0.npz", success=True)
    for k in (1, 2):
        (data / f"ep_{k}.npz").write_text(POINTER)
    e = refused(data)
    assert "ep_1.npz" in e.message and "1 other file" in e.message
    ds = import_files(data, "local/own", skip_bad=True, progress=False)
    assert ds.num_episodes == 1 and any("Git LFS" in note["where"] for note in ds.manifest.notes)


def test_a_lerobot_dataset_whose_files_are_pointers(data: Path) -> None:
    (data / "meta").mkdir()
    (data / "data").mkdir()
    (data / "meta/info.json").write_text(json.dumps({"codebase_version": "v2.1", "features": {}}))
    (data / "data/episode_000000.parquet").write_text(POINTER)
    assert "git" in str(refused(data).hint) and "lfs pull" in str(refused(data).hint)


# -- the file that is meant


def test_a_table_that_lacks_names_is_named_and_not_an_image(data: Path) -> None:
    (data / "log.csv").write_text("center,steering\nIMG/0.png,0.5\nIMG/1.png,0.25\n")
    for k in range(2):
        picture(data / f"IMG/{k}.png", k)
    e = refused(data)
    assert "log.csv" in e.message and "center [2], steering [2]" in e.message and "--map" in str(e.hint)


def test_a_directory_per_trajectory_names_its_table(data: Path) -> None:
    for k in range(2):
        made = data / f"v3_potato-{k}"
        made.mkdir()
        np.savez(made / "rendered.npz", **{"observation$angle": np.zeros(5), "action$camera": np.zeros((4, 2))})
        (made / "metadata.json").write_text("{}")
        picture(made / "poster.png")
    e = refused(data)
    assert "rendered.npz" in e.message and "action$camera [4, 2]" in e.message


def test_files_of_steps_beside_an_index_name_the_first_step(data: Path) -> None:
    for t in range(4):
        np.savez(data / f"episode_{t:07d}.npz", actions=np.zeros(7), robot_obs=np.zeros(15))
    np.save(data / "ep_start_end_ids.npy", np.array([[0, 3]]))
    assert "episode_0000000.npz" in refused(data).message


def test_json_of_an_episode_is_named_and_not_its_images(data: Path) -> None:
    (data / "episode_0").mkdir()
    (data / "episode_0/data.json").write_text(json.dumps({"data": [{"idx": 0, "colors": {"c": "colors/0.png"}}]}))
    picture(data / "episode_0/colors/0.png")
    e = refused(data)
    assert "data.json" in e.message and "create" in str(e.hint)


def test_a_tfrecord_alone_says_what_is_missing(data: Path) -> None:
    size, content = struct.pack("<Q", 40), b"x" * 40
    framed = [size, struct.pack("<I", masked(google_crc32c.value(size))), content]
    (data / "a.tfrecord").write_bytes(b"".join([*framed, struct.pack("<I", masked(google_crc32c.value(content)))]))
    e = refused(data / "a.tfrecord")
    assert "features.json" in e.message


def test_a_file_of_another_format_is_named(data: Path) -> None:
    for k in range(3):
        table(data / f"ep_{k}.npz", success=True)
    (data / "ep_1.dat").write_bytes(bytes(100))
    assert "ep_1.dat" in refused(data).message


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_the_file_of_another_layout_is_named(data: Path, odd: int) -> None:
    for k in range(3):
        if k == odd:
            pa.parquet.write_table(pa.table({"x": [1.0], "y": [2.0]}), data / f"ep_{k}.parquet")
        else:
            table(data / f"ep_{k}.npz", success=True)
    assert f"ep_{odd}.parquet" in refused(data).message


WRITERS: dict[str, Callable[[Path, Any], None]] = {
    "npz": lambda path, images: np.savez(
        path, observation=np.zeros((len(images), 2)), action=np.ones((len(images), 1)), cam=np.array(images, "S")
    ),
}


def encoded(value: int, size: int = 8) -> bytes:
    import io

    file = io.BytesIO()
    Image.fromarray(np.full((size, size, 3), value, np.uint8)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_the_file_and_the_row_of_a_damaged_image_are_named(data: Path, bad: int) -> None:
    for k in range(3):
        images = [encoded(10 * t + k) for t in range(4)]
        if k == bad:
            images[2] = b"\x01" * 60
        WRITERS["npz"](data / f"run_{k}.npz", images)
    with pytest.raises(CorruptArchive) as e:
        import_files(data, "local/own", progress=False)
    assert f"run_{bad}.npz" in e.value.message and "row 2 " in e.value.message


def test_the_last_episode_is_that_of_the_last_file(data: Path) -> None:
    for k, length in enumerate((4, 7)):
        table(data / f"run_{k}.npz", length, terminals=np.zeros(length, bool))
    ds = import_files(data, "local/own", progress=False)
    said = [n for n in ds.manifest.notes if n["code"] == "open-end"]
    assert said and "7 steps" in said[0]["text"] and said[0]["where"] == "run_1.npz"


# -- headers, and recorders that died


HEADERLESS = [
    "a.png,0.5,0\nb.png,0.25,1\n",
    "0.5,0.5\n0.25,1\n",
    "1.5,-2,3e-4\n1,2,3\n",
    "7,8\n9,10\n",
    '"[0.1, 0.2]",1.5\n"[1, 2]",1\n',
]


@pytest.mark.parametrize("text", HEADERLESS)
def test_a_first_line_of_values_is_no_header(data: Path, text: str) -> None:
    (data / "log.csv").write_text(text)
    for fields in (None, {"observation": text.split(",")[0], "action": "x"}):
        e = refused(data / "log.csv", fields=fields)
        assert isinstance(e, UnknownLayout) and "no header" in e.message


@pytest.mark.parametrize(
    "text", ["0,1\n0.5,2\n", ",0,1\n0,0.5,2\n", "1,2\n0.5,2\n", "action,400.5,401.5\n1,2,3\n", "a.png,b\n1,2\n"]
)
def test_numbers_that_name_columns_are_a_header(data: Path, text: str) -> None:
    (data / "log.csv").write_text(text)
    names = [name for name in text.split("\n")[0].split(",") if name]
    planned = plan_import(data / "log.csv", "local/own", fields={"observation": names[1], "action": names[0]})
    assert planned.rows == 2


def test_a_file_of_a_recorder_that_died_names_h5clear(data: Path) -> None:
    code = (
        "import h5py, os, sys; f = h5py.File(sys.argv[1], 'w', libver='latest');"
        "f.create_dataset('observations', data=[[1.0]], maxshape=(None, 1), chunks=(5, 1));"
        "f.create_dataset('actions', data=[[1.0]], maxshape=(None, 1), chunks=(5, 1));"
        "f.swmr_mode = True; f.flush(); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code, str(data / "run.h5")], check=True, env={**os.environ})
    e = refused(data)
    assert f"h5clear -s {data / 'run.h5'}" in str(e.hint)


def test_a_truncated_hdf5_file_does_not_name_h5clear(data: Path) -> None:
    with h5py.File(data / "run.h5", "w") as f:
        f["observations"], f["actions"] = np.zeros((400, 3)), np.ones((400, 1))
    whole = (data / "run.h5").read_bytes()
    (data / "run.h5").write_bytes(whole[: len(whole) // 2])
    assert "h5clear" not in str(refused(data).hint)


def test_all_remarks_of_a_plan_are_in_the_dataset(data: Path) -> None:
    columns = {"observation_0": [0.0, 1.0], "observation_1": [0.0, 1.0], "action_0": [1.0, 1.0], "action_1": [1.0, 2.0]}
    pa.parquet.write_table(pa.table(columns), data / "rows.parquet")
    planned = [note for note in plan_import(data, "local/own").notes if "is made of the columns" in note]
    made = [
        n["text"] for n in import_files(data, "local/own", progress=False).manifest.notes if n["code"] == "gathered"
    ]
    assert len(planned) == 2 and sorted(made) == sorted(planned)


@pytest.mark.parametrize(("name", "what"), [("run_0.db3.zstd", "bag of ROS 2"), ("a.jsonl.zst", "compressed by zstd")])
def test_a_file_compressed_as_a_whole_is_named_with_the_way(tmp_path: Path, name: str, what: str) -> None:
    (tmp_path / name).write_bytes(b"\x28\xb5\x2f\xfd" + bytes(40))
    with pytest.raises(UnknownLayout, match=what) as e:
        plan_import(tmp_path / name, "local/x")
    assert f"zstd -d {tmp_path / name}" in str(e.value.hint)


def test_a_tub_of_donkeycar_is_named(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('["cam/image_array"]\n["image_array"]\n{"deleted_indexes": [0]}\n')
    (tmp_path / "catalog_0.catalog").write_text('{"_index": 0, "cam/image_array": "0_cam.jpg", "user/angle": 0.5}\n')
    with pytest.raises(UnknownLayout, match="part of a donkeycar tub") as e:
        plan_import(tmp_path, "local/x")
    assert "rlds_cli.create" in str(e.value.hint)
