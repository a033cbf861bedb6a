"""Images and videos beside tables: what a table says of them goes before what their names suggest, and all are said."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from rlds_cli.archives.formats import camera_files
from rlds_cli.dataset import Dataset
from rlds_cli.errors import ArchiveError, CorruptArchive, UnknownLayout, UnsafeArchive
from rlds_cli.look.report.tracing import trace
from rlds_cli.make.importing import import_files, plan_import

NAMES = ["9c1e", "03ab", "f7d0", "5a5a", "1b2c"]  # in another order than that of names
VALUES = [0, 40, 80, 120, 160]  # of the pixels of row t
BY_NAME = [160, 40, 120, 0, 80]  # the same in natural order of names: 1b2c, 03ab, 5a5a, 9c1e, f7d0


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory that is not that of the home."""
    return tmp_path / "data"


def picture(path: Path, value: int, dtype: Any = np.uint8) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (8, 8, 3) if dtype is np.uint8 else (8, 8)
    Image.fromarray(np.full(shape, value, dtype)).save(path, "PNG")


def pictures(folder: Path, names: Sequence[str] = NAMES, suffix: str = ".png", values: Sequence[int] = VALUES) -> None:
    for name, value in zip(names, values, strict=True):
        picture(folder / f"{name}{suffix}", value)


def rows_of(length: int, **more: Sequence[Any]) -> dict[str, list[Any]]:
    return {
        "observation": [float(t) for t in range(length)],
        "action": [1.0] * length,
        **{k: [*v] for k, v in more.items()},
    }


def csv_file(path: Path, columns: Mapping[str, Sequence[Any]], encoding: str = "utf-8") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding=encoding) as f:
        csv.writer(f).writerows([[*columns], *zip(*columns.values(), strict=True)])


def film(path: Path, values: Sequence[int], fps: int = 10) -> None:
    """A video whose frame k has pixels of about ``values[k]``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=fps, options={"crf": "1"})
        stream.height = stream.width = 32
        stream.pix_fmt = "yuv420p"
        for value in values:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.full((32, 32, 3), value, np.uint8), "rgb24")))
        container.mux(stream.encode())


def cameras(ds: Dataset) -> list[str]:
    return [name for name, f in ds.schema.items() if f.kind == "frames"]


def seen(ds: Dataset, camera: str, episode: int = 0) -> list[int]:
    """The pixels of the rows of the steps, to the next multiple of ten, which codecs keep."""
    images = ds.episode(episode)[tuple(camera.split("/"))][: ds.episodes["length"][episode]]
    return [round(float(image.mean()) / 10) * 10 for image in images]


def noted(ds: Dataset) -> str:
    return " | ".join(f"{n['text']} {n['where']}" for n in ds.manifest.notes)


def imported(path: Path, **how: Any) -> Dataset:
    return import_files(path, "local/named", progress=False, **how)


# -- columns of names


@pytest.mark.sampled(4)
@pytest.mark.parametrize("folder", ["", "images/", "images/left/"])
@pytest.mark.parametrize("above", ["", " ", "./", "C:\\data\\run\\", "/home/me/run/"])
def test_a_column_says_which_image_belongs_to_a_row(data: Path, folder: str, above: str) -> None:
    pictures(data / folder)
    names = [f"{above}{folder}{name}.png" for name in NAMES]
    if "\\" in above:
        names = [name.replace("/", "\\") for name in names]
    csv_file(data / "log.csv", rows_of(5, image=names))
    ds = imported(data)
    assert cameras(ds) == ["image"] and seen(ds, "image") == VALUES
    assert trace(ds, 5).ok
    assert ("C:/data/run/" in noted(ds)) == ("\\" in above) and ("/home/me/run/" in noted(ds)) == (above[:5] == "/home")


@pytest.mark.parametrize("suffix", [".png", ""])
@pytest.mark.parametrize("folder", ["images", "a/b"])
def test_names_relative_to_the_folder_of_the_images(data: Path, folder: str, suffix: str) -> None:
    pictures(data / folder)
    csv_file(data / "metadata.csv", rows_of(5, file_name=[name + suffix for name in NAMES]), "utf-8-sig")
    ds = imported(data)
    assert cameras(ds) == ["file_name"] and seen(ds, "file_name") == VALUES and "kept as text" not in noted(ds)
    assert ds.manifest.facts["cameras"]["file_name"]["files"] == f"files:{folder}/{{file_name}}"
    assert trace(ds, 5).ok


def test_names_that_begin_with_the_directory_of_the_table(data: Path) -> None:
    pictures(data / "runs/7/img", suffix=".PNG")
    csv_file(data / "runs/7/log.csv", rows_of(5, image=[f"runs/7/img/{name}.PNG" for name in NAMES]))
    assert seen(imported(data / "runs"), "image") == VALUES


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "npz"])
def test_names_in_tables_of_other_formats(data: Path, kind: str) -> None:
    pictures(data / "images")
    columns = rows_of(5, image=[f"{name}.png" for name in NAMES])
    if kind == "parquet":
        pa.parquet.write_table(pa.table(columns), data / "log.parquet")
    elif kind == "npz":
        np.savez(data / "log.npz", **{k: np.array(v) for k, v in columns.items()})
    else:
        lines = [json.dumps(dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]
        (data / "log.jsonl").write_text("\n".join(lines))
    assert seen(imported(data), "image") == VALUES


def test_structs_of_the_datasets_library_that_have_paths_alone(data: Path) -> None:
    pictures(data / "images")
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    cells = pa.array([{"bytes": None, "path": f"images/{name}.png"} for name in NAMES], kind)
    pa.parquet.write_table(pa.table({**rows_of(5), "image": cells}), data / "log.parquet")
    assert seen(imported(data), "image") == VALUES


def test_names_that_are_in_the_folders_of_several_episodes_are_refused(data: Path) -> None:
    for k, length in enumerate((2, 3)):
        pictures(
            data / f"images/ep_{k}", [f"{t}" for t in range(length)], values=[50 * k + 10 * t for t in range(length)]
        )
    csv_file(data / "log.csv", rows_of(5, episode=[0, 0, 1, 1, 1], image=[f"{t}.png" for t in (1, 0, 2, 0, 1)]))
    assert "images/ep_0, images/ep_1" in refused(data)
    names = [f"ep_{e}/{t}.png" for e, t in ((0, 1), (0, 0), (1, 2), (1, 0), (1, 1))]
    csv_file(data / "log.csv", rows_of(5, episode=[0, 0, 1, 1, 1], image=names))
    ds = imported(data)
    assert [seen(ds, "image", k) for k in (0, 1)] == [[10, 0], [70, 50, 60]]


def test_several_columns_name_images_of_one_folder(data: Path) -> None:
    for k, side in enumerate(("left", "right")):
        pictures(data / "IMG", [f"{side}_{name}" for name in NAMES], values=[v + 20 * k for v in VALUES])
    left, right = ([f" IMG/{side}_{name}.png" for name in NAMES] for side in ("left", "right"))
    csv_file(data / "log.csv", rows_of(5, left=left, right=right))
    ds = imported(data)
    assert sorted(cameras(ds)) == ["left", "right"]
    assert seen(ds, "left") == VALUES and seen(ds, "right") == [v + 20 for v in VALUES]


def test_tables_beside_each_other_name_images_of_their_own(data: Path) -> None:
    for k in (0, 1):
        pictures(data / f"ep_{k}/cam", values=[v + 20 * k for v in VALUES])  # the same names in both
        csv_file(data / f"ep_{k}.csv", rows_of(5, image=[f"{name}.png" for name in NAMES]))
    ds = imported(data)
    assert [seen(ds, "image", k) for k in (0, 1)] == [VALUES, [v + 20 for v in VALUES]]


def test_several_tables_name_images_of_one_folder(data: Path) -> None:
    for k in (0, 1):
        names = [f"{name}_{k}" for name in NAMES]
        pictures(data / "images", names, values=[v + 20 * k for v in VALUES])
        csv_file(data / f"run{k}.csv", rows_of(5, image=[f"{name}.png" for name in names]))
    ds = imported(data)
    assert [seen(ds, "image", k) for k in (0, 1)] == [VALUES, [v + 20 for v in VALUES]]


def test_images_that_no_row_names_are_said(data: Path) -> None:
    pictures(data / "images")
    kept = [0, 1, 3, 4]
    csv_file(data / "log.csv", rows_of(4, image=[f"{NAMES[k]}.png" for k in kept]))
    ds = imported(data)
    assert seen(ds, "image") == [VALUES[k] for k in kept]
    assert f"images/{NAMES[2]}.png (no row names it)" in noted(ds)


def test_an_observation_of_names_is_a_camera(data: Path) -> None:
    pictures(data / "IMG")
    columns = {"center": [f"IMG/{name}.png" for name in NAMES], "speed": VALUES, "steering": [1.0] * 5}
    csv_file(data / "log.csv", columns)
    for given in (data, data / "log.csv"):
        ds = imported(given, fields={"observation/center": "center", "action": "steering"}, force=True)
        assert cameras(ds) == ["observation/center"] and seen(ds, "observation/center") == VALUES
    kept = imported(data, fields={"info/name": "center", "observation": "speed", "action": "steering"}, force=True)
    assert kept.schema["info/name"].kind == "text" and "info/name" not in cameras(kept)


def test_images_in_the_order_of_names_on_request(data: Path) -> None:
    pictures(data / "images")
    csv_file(data / "log.csv", rows_of(5, image=[f"{name}.png" for name in NAMES]))
    ds = imported(data, fields={"observation/x": "folder:images"})
    assert seen(ds, "observation/x") == BY_NAME


def test_a_table_named_alone_names_no_images(data: Path) -> None:
    pictures(data)
    csv_file(data / "log.csv", rows_of(5, image=[f"{name}.png" for name in NAMES]))
    ds = imported(data / "log.csv")
    assert not cameras(ds) and "image names images or videos, which were not named" in noted(ds)


# -- statements that differ


def refused(path: Path, error: type[ArchiveError] = UnknownLayout, **how: Any) -> str:
    with pytest.raises(error) as e:
        plan_import(path, "local/named", **how)
    return f"{e.value.message} {e.value.hint}"


def test_a_name_without_a_file_is_refused_by_its_row(data: Path) -> None:
    pictures(data / "images")
    (data / f"images/{NAMES[3]}.png").unlink()
    csv_file(data / "log.csv", rows_of(5, image=[f"{name}.png" for name in NAMES]))
    said = refused(data, CorruptArchive)
    assert f"{NAMES[3]}.png' in row 3" in said and "'*.csv'" in said
    assert not cameras(imported(data / "*.csv"))


def test_names_and_a_folder_of_other_names_are_refused(data: Path) -> None:
    pictures(data / "images")
    csv_file(data / "log.csv", rows_of(5, image=[f"{name}.jpg" for name in NAMES]))
    said = refused(data)
    assert "9c1e.jpg" in said and "images has 5 images" in said and "--map info/image=image" in said
    ds = imported(data, fields={"info/image": "image"})
    assert seen(ds, "observation/images" if "observation/images" in ds.schema else "images") == BY_NAME


def test_two_columns_that_name_the_same_images_are_refused_with_both(data: Path) -> None:
    pictures(data / "images")
    names = [f"{name}.png" for name in NAMES]
    csv_file(data / "log.csv", rows_of(5, image=names, file_name=names[::-1]))
    said = refused(data)
    assert "observation/image=files:images/{image}" in said and "observation/file_name=files:images/{file_name}" in said
    ds = imported(data, fields={"observation/file_name": "files:images/{file_name}"})
    assert seen(ds, "observation/file_name") == VALUES[::-1]


def test_two_columns_that_agree_are_one_camera(data: Path) -> None:
    pictures(data / "images")
    names = [f"{name}.png" for name in NAMES]
    csv_file(data / "log.csv", rows_of(5, image=names, path=[f"images/{name}" for name in names]))
    ds = imported(data)
    assert cameras(ds) == ["image"] and seen(ds, "image") == VALUES


def test_names_that_mean_images_of_two_folders_are_refused_with_both(data: Path) -> None:
    for folder in ("left", "right"):
        pictures(data / folder)
    csv_file(data / "log.csv", rows_of(5, image=[f"{name}.png" for name in NAMES]))
    said = refused(data)
    assert "files:left/{image}" in said and "files:right/{image}" in said
    fields = {f"observation/{side}": f"files:{side}/{{image}}" for side in ("left", "right")}
    ds = imported(data, fields=fields)
    assert seen(ds, "observation/left") == seen(ds, "observation/right") == VALUES


def test_numbers_in_another_order_than_the_images_are_refused(data: Path) -> None:
    pictures(data / "images", [f"frame_{k:03d}" for k in range(5)])
    csv_file(data / "log.csv", rows_of(5, frame=[3, 0, 1, 2, 4]))
    said = refused(data)
    assert "frame 3" in said and "frame_000.png" in said and "folder:images" in said
    csv_file(data / "log.csv", rows_of(5, frame=[0, 1, 2, 3, 4]))
    assert seen(imported(data), "images") == VALUES


def test_a_name_that_leaves_the_directory_is_refused(data: Path) -> None:
    pictures(data / "logs")
    pictures(data)
    csv_file(data / "logs/log.csv", rows_of(5, image=[f"../{name}.png" for name in NAMES]))
    refused(data / "logs", UnsafeArchive)


def test_a_name_of_the_video_of_another_table_is_refused(data: Path) -> None:
    for k in range(2):
        csv_file(data / f"run_{k}.csv", rows_of(6, video=[f"run_{1 - k}_cam.mp4"] * 6))
        film(data / f"run_{k}_cam.mp4", [40 * k] * 6)
    said = refused(data)
    assert "run_1_cam.mp4" in said and "run_0_cam.mp4" in said


def test_rows_without_an_image_are_refused_by_row(data: Path) -> None:
    pictures(data / "images")
    csv_file(data / "log.csv", rows_of(6, image=["", *(f"{name}.png" for name in NAMES)]))
    with pytest.raises(UnknownLayout, match="row 0 has no image"):
        imported(data)


def test_a_column_of_images_of_16_bits_is_a_camera_of_depth(data: Path) -> None:
    pictures(data / "color")
    for name in NAMES:
        picture(data / f"depth/{name}.png", 1000, np.uint16)
    color, depth = ([f"{folder}/{name}.png" for name in NAMES] for folder in ("color", "depth"))
    csv_file(data / "log.csv", rows_of(5, color=color, depth=depth))
    ds = imported(data)
    assert cameras(ds) == ["color", "depth"] and seen(ds, "color") == VALUES
    assert ds.schema["depth"].dtype == "uint16" and set(ds.episode(0)["depth"].flat) == {1000}


@pytest.mark.parametrize("given", [4, 7])
def test_images_that_are_not_one_for_each_row_are_refused(data: Path, given: int) -> None:
    pictures(data / "images", [f"{k}" for k in range(given)], values=range(given))
    csv_file(data / "log.csv", rows_of(5))
    assert f"{given} images for 5 rows" in refused(data)


# -- the first file decides nothing alone


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_a_video_that_is_too_short_is_left_out_with_its_episode(data: Path, bad: int) -> None:
    for k in range(3):
        data.mkdir(exist_ok=True)
        np.savez(data / f"ep_{k}.npz", observations=np.full((6, 2), k), actions=np.ones((6, 1)))
        film(data / f"ep_{k}_wrist.mp4", [40 * k + 40] * (5 if k == bad else 6))
    assert f"ep_{bad}_wrist.mp4 has 5 frames" in refused(data) or "wrist.mp4 has 5 frames" in refused(data)
    ds = imported(data, skip_bad=True)
    good = [k for k in range(3) if k != bad]
    assert [seen(ds, "observation/wrist" if "observation/wrist" in ds.schema else "wrist", e) for e in (0, 1)] == [
        [40 * k + 40] * 6 for k in good
    ]
    assert f"ep_{bad}.npz" in noted(ds) and "5 frames" in noted(ds)


@pytest.mark.parametrize("bad", [0, 1, 3])
def test_the_episode_of_other_fields_than_most_is_left_out(data: Path, bad: int) -> None:
    data.mkdir()
    for k in range(4):
        more = {"force": np.zeros((5, 3)), "operator": "A"} if k == bad else {}
        np.savez(data / f"ep_{k}.npz", observations=np.full((5, 2), k), actions=np.ones((5, 1)), success=True, **more)
    ds = imported(data, skip_bad=True)
    assert [e["observation"][0, 0] for e in map(ds.episode, range(3))] == [k for k in range(4) if k != bad]
    assert f"ep_{bad}.npz" in noted(ds) and "operator" not in ds.manifest.facts["per_episode"]


@pytest.mark.parametrize("bad", [0, 1])
def test_a_table_without_a_camera_that_another_has_is_refused(data: Path, bad: int) -> None:
    for k in range(2):
        csv_file(data / f"run_{k}/log.csv", rows_of(5))
        if k != bad:
            pictures(data / f"run_{k}/cam")
    assert f"run_{bad}/cam" in refused(data)


def test_a_few_pictures_are_no_camera(data: Path) -> None:
    pictures(data / "cam")
    picture(data / "thumbnails/0.png", 0)
    csv_file(data / "log.csv", rows_of(5))
    ds = imported(data)
    assert cameras(ds) == ["cam"]
    assert "thumbnails/0.png (1 image for 5 rows)" in noted(ds)


def test_images_of_16_bits_are_a_camera_of_depth(data: Path) -> None:
    csv_file(data / "log.csv", rows_of(5))
    pictures(data / "cam")
    for k in range(5):
        picture(data / f"depth/{k}.png", 1000 * k, np.uint16)
    ds = imported(data)
    assert cameras(ds) == ["cam", "depth"]
    assert [set(image.flat) for image in ds.episode(0)["depth"]] == [{1000 * k} for k in range(5)]


def test_a_video_of_another_tree_is_named(data: Path) -> None:
    for k in range(2):
        data.mkdir(exist_ok=True)
        np.savez(data / f"ep_{k}.npz", observations=np.zeros((6, 2)), actions=np.ones((6, 1)))
    film(data / "videos/other_0.mp4", [0] * 6)
    said = refused(data)
    assert "other_0.mp4" in said and "no table" in said


# -- time stamps


def test_stamps_inside_a_video_count_from_its_start(data: Path) -> None:
    film(data / "cam.mp4", range(10, 210, 10))  # 10 frames a second
    stamps = [0.5 + 0.05 * k for k in range(10)]
    csv_file(data / "log.csv", rows_of(10, timestamp=stamps))
    ds = imported(data, episodes_by="file")
    assert seen(ds, "cam") == [60, 60, 70, 70, 80, 80, 90, 90, 100, 100]
    ages = ds.episode(0)["info", "age", "cam"].reshape(-1)[:10]
    np.testing.assert_allclose(ages, [0, 0.05] * 5, atol=2e-6)
    assert "counts from the start" in noted(ds).replace("is taken to count", "counts") and "0.5" in noted(ds)


def test_stamps_of_another_clock_are_said(data: Path) -> None:
    film(data / "cam.mp4", range(10, 210, 10))
    csv_file(data / "log.csv", rows_of(10, timestamp=[1000 + 0.05 * k for k in range(10)]))
    ds = imported(data, episodes_by="file")
    assert seen(ds, "cam") == [10, 10, 20, 20, 30, 30, 40, 40, 50, 50]
    assert "the first row is taken to have its first frame" in noted(ds)


def test_one_clock_holds_for_all_tables(data: Path) -> None:
    """Stamps since the start of a robot lie inside the first video by chance."""
    for k, start in enumerate((0.5, 500.0)):
        film(data / f"run_{k}/cam.mp4", range(10, 210, 10))
        csv_file(data / f"run_{k}/log.csv", rows_of(4, timestamp=[start + 0.1 * t for t in range(4)]))
    ds = imported(data)
    assert [seen(ds, "cam", k) for k in (0, 1)] == [[10, 20, 30, 40]] * 2
    assert "run_1/log.csv" in noted(ds) or "500" in noted(ds)


def test_stamps_from_zero_need_no_note(data: Path) -> None:
    film(data / "cam.mp4", range(10, 210, 10))
    csv_file(data / "log.csv", rows_of(4, timestamp=[0.1 * t for t in range(4)]))
    ds = imported(data)
    assert seen(ds, "cam") == [10, 20, 30, 40] and "clock" not in json.dumps([dict(n) for n in ds.manifest.notes])


def test_a_folder_that_becomes_a_link_to_elsewhere_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "archive/log.csv"
    folder, elsewhere = tmp_path / "archive/cam", tmp_path / "elsewhere"
    folder.mkdir(parents=True)
    assert camera_files.beside(table, "cam") == folder
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)
    with pytest.raises(UnsafeArchive):
        camera_files.beside(table, "cam")
    folder.unlink()
    (tmp_path / "archive/real").mkdir()
    folder.symlink_to(tmp_path / "archive/real")
    assert camera_files.beside(table, "cam") == tmp_path / "archive/real"
    (tmp_path / "archive/real").rmdir()
    (tmp_path / "archive/real").symlink_to(elsewhere)
    with pytest.raises(UnsafeArchive):
        camera_files.beside(table, "cam")


def test_images_of_folders_are_accounted_for_by_folder_and_by_file(data: Path) -> None:
    for k in range(2):
        csv_file(data / f"ep_{k}/log.csv", rows_of(5))
        pictures(data / f"ep_{k}/top")
    pictures(data / "ep_0/more", NAMES[:2], values=VALUES[:2])
    picture(data / "alone.png", 7)
    (data / "linked").symlink_to(data / "ep_1/top")
    plan = plan_import([data, data / "linked"], "local/x", skip_bad=True)
    used = {name: fate.used_as for name, fate in plan.plan.account.files.items()}  # type: ignore[union-attr]
    assert all(used[f"ep_{k}/top/{name}.png"] == ("top",) for k in range(2) for name in NAMES)
    assert all(used[f"linked/{name}.png"] == ("top",) for name in NAMES)
    left_out = {name: fate.left_out for name, fate in plan.plan.account.files.items() if fate.left_out}  # type: ignore[union-attr]
    assert left_out == {
        "alone.png": "it belongs to no table",
        **{f"ep_0/more/{name}.png": "2 images for 5 rows" for name in NAMES[:2]},
    }
