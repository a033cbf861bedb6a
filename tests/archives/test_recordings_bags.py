"""Bags of ROS 1 and, in SQLite, of ROS 2, as the package rosbags writes them; and bags of several files."""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from robot_recordings import jpeg

import rlds_cli
from rlds_cli import import_files
from rlds_cli.errors import ArchiveError, CorruptArchive, UnknownLayout
from rlds_cli.look.report.tracing import trace
from rlds_cli.make import importing

pytest.importorskip("rosbags.rosbag1")
from rosbags.rosbag1 import Writer as Writer1
from rosbags.rosbag2 import CompressionFormat, CompressionMode
from rosbags.rosbag2 import Writer as Writer2
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

MS = 1_000_000
OWN = "float32[2] tip\nuint8 mode\nlab/Joint[] joints # two\nint8 A=1\n" + "=" * 80
OWN += "\nMSG: lab/Joint\nstring name\nint16 n\n"


def sent(store: Any, start: int, stop: int) -> Iterator[tuple[int, str, str, Any]]:
    """Joints at 100 Hz, commands at 50 Hz and a camera at 10 Hz, from and to a number of commands."""
    t = store.types
    stamp = t["builtin_interfaces/msg/Time"](1, 2)
    ros1 = {"seq": 7} if "seq" in t["std_msgs/msg/Header"].__annotations__ else {}
    header = t["std_msgs/msg/Header"](**ros1, stamp=stamp, frame_id="base")
    none = np.zeros(0)
    layout = t["std_msgs/msg/MultiArrayLayout"]([], 0)
    for k in range(2 * start, 2 * stop):
        q = t["sensor_msgs/msg/JointState"](header, ["a", "b"], np.array([k / 4, -k]), none, none)
        yield 10 * k * MS, "/joints", "sensor_msgs/msg/JointState", q
    for k in range(start, stop):
        command = t["std_msgs/msg/Float64MultiArray"](layout, np.array([k, 0.5]))
        yield (20 * k + 3) * MS, "/cmd", "std_msgs/msg/Float64MultiArray", command
        if k % 5 == 0:
            image = t["sensor_msgs/msg/CompressedImage"](header, "jpeg", np.frombuffer(jpeg(k), np.uint8))
            yield (20 * k + 1) * MS, "/cam", "sensor_msgs/msg/CompressedImage", image


def ros2(directory: Path, first: int = 0, stop: int = 20, *, squeezed: bool = False) -> Path:
    """A bag in SQLite; each message may be compressed."""
    store = get_typestore(Stores.ROS2_HUMBLE)
    writer = Writer2(directory, version=9)
    if squeezed:
        writer.set_compression(CompressionMode.MESSAGE, CompressionFormat.ZSTD)
    with writer:
        of: dict[str, Any] = {}
        for at, topic, kind, message in sent(store, first, stop):
            of[topic] = of.get(topic) or writer.add_connection(topic, kind, typestore=store)
            writer.write(of[topic], at, store.serialize_cdr(message, kind))
    (found,) = directory.glob("*.db3")
    return found


def ros1(path: Path, compression: str = "") -> Path:
    """A bag of ROS 1, with a topic of a type that comes with no ROS."""
    store = get_typestore(Stores.ROS1_NOETIC)
    store.register(get_types_from_msg(OWN, "lab/msg/Own"))
    writer = Writer1(path)
    if compression:
        writer.set_compression(Writer1.CompressionFormat[compression])
    own, joint = store.types["lab/msg/Own"], store.types["lab/msg/Joint"]
    with writer:
        of: dict[str, Any] = {}
        more = (
            (30 * k * MS, "/own", "lab/msg/Own", own(np.array([k, 0.25], "f4"), k, [joint("a", -k), joint("b", 5)]))
            for k in range(14)
        )
        for at, topic, kind, message in sorted([*sent(store, 0, 20), *more], key=lambda m: m[0]):
            of[topic] = of.get(topic) or writer.add_connection(topic, kind, typestore=store)
            writer.write(of[topic], at, store.serialize_ros1(message, kind))
    return path


def check(ds: rlds_cli.Dataset, steps: int) -> None:
    """Each step has the latest message: step k is at 20k + 3 ms."""
    e = ds.episode(0)
    assert e["action"].tolist() == [[k, 0.5] for k in range(steps)]
    assert e["observation/joints/position"].tolist() == [[2 * k / 4, -2 * k] for k in range(steps)]
    shown = [np.asarray(Image.open(io.BytesIO(jpeg(k - k % 5)))) for k in range(steps)]
    assert np.array_equal(e["observation/cam"], shown) and ds.schema["observation/cam"].codec == "jpeg"
    np.testing.assert_allclose(e["info/age/joints"].ravel(), 0.003, atol=1e-6)


def test_a_database_of_ros2(tmp_path: Path) -> None:
    bag = ros2(tmp_path / "bag", squeezed=True)
    ds = import_files(tmp_path / "bag", "local/bag", progress=False)
    check(ds, 14)  # the camera ends at 301 ms: the command of 283 ms is the last row
    assert trace(ds, 5).ok
    said = {(e["kind"], e["name"]): e.get("used_as") or e["left_out"] for e in ds.manifest.account}
    assert said["file", bag.name] == ["episodes"] and said["file", "metadata.yaml"] == ["the layout"]
    assert said["column", "/joints/name"] == "no field holds such a value"


def test_the_files_of_a_bag_are_one_episode(tmp_path: Path) -> None:
    directory = tmp_path / "bag"
    for name, (a, b) in {"b": (0, 9), "a": (9, 20)}.items():
        ros2(tmp_path / name, a, b).rename(tmp_path / f"{name}.db3")
    directory.mkdir()
    for name in ("b", "a"):
        (tmp_path / f"{name}.db3").rename(directory / f"{name}.db3")
    listed = "  relative_file_paths:\n    - b.db3\n    - a.db3\n  duration: 1\n"
    (directory / "metadata.yaml").write_text(f"rosbag2_bagfile_information:\n  version: 9\n{listed}")
    ds = import_files(directory, "local/bag", progress=False)
    assert ds.num_episodes == 1
    check(ds, 14)
    assert trace(ds, 15).ok, "values are looked up in both files"
    apart = importing.plan_import([directory / "b.db3", directory / "a.db3"], "local/x")
    assert len(apart.plan.parts) == 2, "without metadata.yaml each file is one"
    (directory / "a.db3").unlink()
    with pytest.raises(CorruptArchive, match=r"names a\.db3, which is not there"):
        importing.plan_import(directory, "local/x")


@pytest.mark.parametrize("compression", ["", pytest.param("BZ2", marks=pytest.mark.thorough), "LZ4"])
def test_a_bag_of_ros1(tmp_path: Path, compression: str) -> None:
    ds = import_files(ros1(tmp_path / "a.bag", compression), "local/bag", progress=False)
    check(ds, 14)
    e, last = ds.episode(0), [(20 * k + 3) // 30 for k in range(14)]
    assert e["observation/own/tip"].tolist() == [[k, 0.25] for k in last]
    assert e["observation/own/joints/n"].tolist() == [[-k, 5] for k in last]
    types = {n: ds.schema[f"observation/own/{n}"].dtype for n in ("tip", "mode", "joints/n")}
    assert types == {"tip": "float32", "mode": "uint8", "joints/n": "int16"}


def test_bags_that_are_damaged_are_refused(tmp_path: Path) -> None:
    whole = ros1(tmp_path / "a.bag").read_bytes()
    bad = tmp_path / "bad.bag"
    for content in (whole[: len(whole) // 2], whole[:5000] + bytes(3000) + whole[8000:], whole[:13]):
        bad.write_bytes(content)
        with pytest.raises(CorruptArchive, match=r"bad\.bag"):
            importing.plan_import(bad, "local/x")
    at = whole.index(b"index_pos=") + 10
    bad.write_bytes(whole[:at] + bytes(8) + whole[at + 8 :])
    with pytest.raises(CorruptArchive, match="it was not finished") as refused:
        importing.plan_import(bad, "local/x")
    assert "rosbag reindex" in (refused.value.hint or "")


def test_a_database_that_is_none_of_ros_or_would_run_something_is_refused(tmp_path: Path) -> None:
    whole = ros2(tmp_path / "bag").read_bytes()
    views = "DROP TABLE messages; CREATE VIEW messages AS SELECT 1 AS topic_id, 2 AS timestamp, zeroblob(9) AS data"
    wrong = {
        "DROP TABLE messages": "lacks a table of bags of ROS 2: messages",
        views: "lacks a table of bags of ROS 2: messages",
        "UPDATE messages SET topic_id = 'x'": "damaged",
        "UPDATE messages SET data = 'text'": "damaged|decoded",
        "UPDATE messages SET data = x'00010000ff'": "cannot be decoded",
    }
    for change, said in wrong.items():
        path = tmp_path / "bad.db3"
        path.write_bytes(whole)
        with sqlite3.connect(path) as base:
            base.executescript(change)
        base.close()
        with pytest.raises(ArchiveError, match=said):
            importing.plan_import(path, "local/x")
    (tmp_path / "cut.db3").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorruptArchive, match=r"cut\.db3"):
        importing.plan_import(tmp_path / "cut.db3", "local/x")


def test_a_type_that_nobody_defines_is_left_out(tmp_path: Path) -> None:
    path = ros2(tmp_path / "bag")
    with sqlite3.connect(path) as base:
        base.execute("DROP TABLE IF EXISTS message_definitions")
        base.execute("UPDATE topics SET type = 'lab/msg/Gone' WHERE name = '/cam'")
    base.close()
    account = importing.plan_import(path, "local/x").account
    assert ("/cam", "the bag has no definition of its messages") in {(e.name, e.left_out) for e in account}
    assert any(e.name == "/joints/position" and e.used_as for e in account), "ROS 2 itself defines its type"
    with sqlite3.connect(path) as base:
        base.execute("UPDATE topics SET type = 'lab/msg/Gone'")
    base.close()
    with pytest.raises(UnknownLayout, match=r"/cmd \(lab/msg/Gone\)"):
        importing.plan_import(path, "local/x")
