"""Recordings of topics: MCAP files as ROS 2 writes them, by mcap's own writer, and JSON lines.

What is expected is worked out from the messages that were written: for each step the latest one.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import run_rlds
from mcap.writer import Writer as PlainWriter
from robot_recordings import CAMERA, COMMAND, DEPTH, JOINTS, Sent, record, write

import rlds_cli
from rlds_cli import Loader, append, import_files, verify
from rlds_cli.dataset import Dataset
from rlds_cli.errors import CorruptArchive, InvalidArgument, NameTaken, UnknownLayout, UnsafeArchive
from rlds_cli.look.report.tracing import trace


def latest(of: Sequence[tuple[int, Any]], at: int) -> tuple[int, Any]:
    return [m for m in of if m[0] <= at][-1]


def check_values(ds: Dataset, episode: int, sent: Sent, rows: Sequence[int], pick: Callable[..., Any] = latest) -> None:
    e = ds.episode(episode)
    assert len(e["action"]) == len(rows) - 1
    names = {f"observation{JOINTS}/position": JOINTS, f"observation{CAMERA}": CAMERA, f"observation{DEPTH}": DEPTH}
    for name, topic in {**names, "action": COMMAND}.items():
        if name not in ds.schema:
            continue
        picked = [pick(sent[topic], at) for at in rows]
        assert np.array_equal(e[name], [value for _, value in picked[:-1]]), name
        if name != "action":
            assert np.array_equal(e[f"next/{name}"], [value for _, value in picked[1:]]), name
        ages = [(at - time) / 1e9 for at, (time, _) in zip(rows[:-1], picked[:-1], strict=True)]
        np.testing.assert_allclose(e[f"info/age{topic}"].ravel(), ages, atol=1e-6)


def grid(sent: Sent, hz: float) -> list[int]:
    first = max(of[0][0] for of in sent.values())
    last = min(of[-1][0] for of in sent.values() if len(of) > 1)
    return [first + round(k * 1e9 / hz) for k in range(int((last - first) * hz / 1e9) + 1)]


def test_steps_at_a_rate_have_the_latest_message_of_each_topic(tmp_path: Path) -> None:
    sent = [record(tmp_path / f"run{k}.mcap", seconds=1 + k / 2, seed=k) for k in range(2)]
    ds = import_files(tmp_path / "run*.mcap", "local/arm", hz=20)
    assert ds.schema[f"observation{CAMERA}"].codec == "jpeg" and ds.num_episodes == 2
    assert f"observation{JOINTS}/effort" not in ds.schema  # which is empty
    for k in range(2):
        check_values(ds, k, sent[k], grid(sent[k], 20))
        assert set(ds.episode(k)["task"]) == {"press"} and ds.episodes["task"][k] == "press"
    assert ds.manifest.env["fps"] == 20 and verify("local/arm").ok
    assert trace(ds, 20).ok and f"observation{CAMERA}" in trace(ds, 20).fields
    batch = next(iter(Loader(ds, batch_size=8, backend="numpy")))
    assert batch[f"observation{CAMERA}"].shape == (8, 24, 32, 3)


def test_without_a_rate_each_message_of_the_action_is_a_step(tmp_path: Path) -> None:
    sent = record(tmp_path / "run.mcap")
    ds = import_files(tmp_path / "run.mcap", "local/arm", topics=["/joint*", COMMAND])
    used = {t: sent[t] for t in (JOINTS, COMMAND)}
    first, last = max(of[0][0] for of in used.values()), min(of[-1][0] for of in used.values())
    check_values(ds, 0, used, [t for t, _ in sent[COMMAND] if first <= t <= last])


def test_the_nearest_message(tmp_path: Path) -> None:
    sent = record(tmp_path / "run.mcap")
    ds = import_files(tmp_path / "run.mcap", "local/arm", hz=30, nearest=True)
    check_values(ds, 0, sent, grid(sent, 30), lambda of, at: min(of, key=lambda m: (abs(m[0] - at), m[0] > at)))
    assert trace(ds, 20).ok
    with pytest.raises(NameTaken):
        import_files(tmp_path / "run.mcap", "local/arm", hz=30)


def test_days_are_appended_with_the_options_of_the_first(tmp_path: Path) -> None:
    sent = [record(tmp_path / f"run{k}.mcap", seed=k) for k in range(2)]
    append("local/days", tmp_path / "run0.mcap", hz=10)
    append("local/days", tmp_path / "run1.mcap")
    ds = rlds_cli.open_dataset("local/days")
    for k in range(2):
        check_values(ds, k, sent[k], grid(sent[k], 10))


def test_commands(tmp_path: Path) -> None:
    record(tmp_path / "run.mcap")
    shown = run_rlds("inspect", tmp_path / "run.mcap").stdout.decode()
    assert "recording of 5 topics" in shown and "/arm/command (std_msgs/msg/Float64MultiArray)" in shown
    words = ("import", tmp_path / "run.mcap", "--name", "local/arm", "--topics", f"{JOINTS},{COMMAND}", "--hz", "20")
    assert run_rlds(*words, "--dry-run").returncode == run_rlds(*words, "--latest").returncode == 0
    assert rlds_cli.open_dataset("local/arm").manifest.options["hz"] == 20


def test_columns_are_mapped_and_flags_end_the_episode(tmp_path: Path) -> None:
    twist = [{"linear": {"x": float(k), "y": 0.0, "z": 0.0}, "angular": dict.fromkeys("xyz", 1.0)} for k in range(6)]
    write(
        tmp_path / "base.mcap",
        [
            *((10 * k, "/cmd_vel", "geometry_msgs/msg/Twist", m) for k, m in enumerate(twist)),
            *((10 * k, "/odom", "std_msgs/msg/Float64MultiArray", {"data": [k / 2]}) for k in range(6)),
            *((10 * k, "/done", "std_msgs/msg/Bool", {"data": k == 5}) for k in range(6)),
        ],
    )
    fields = {"observation": "/odom", "action": "/cmd_vel/linear/x", "terminated": "/done"}
    ds = import_files(tmp_path / "base.mcap", "local/base", fields=fields)
    e = ds.episode(0)
    assert e["action"].ravel().tolist() == [0, 1, 2, 3, 4] and e["next/observation"].ravel().tolist() == [
        0.5,
        1,
        1.5,
        2,
        2.5,
    ]
    assert ds.episodes["end"].tolist() == ["terminated"]
    with pytest.raises(UnknownLayout, match=r"/cmd_vel/linear/w"):
        import_files(tmp_path / "base.mcap", "local/no", fields=fields | {"action": "/cmd_vel/linear/w"})


def test_json_lines_by_the_same_rule(tmp_path: Path) -> None:
    lines = [{"topic": "state", "time": k / 100, "q": [k, k + 1]} for k in range(100)]
    lines += [{"topic": "action", "time": k / 20 + 0.003, "v": k * 1.5} for k in range(20)]
    np.random.default_rng(0).shuffle(lines)  # type: ignore[arg-type]
    (tmp_path / "run.jsonl").write_text("\n".join(map(json.dumps, lines)))
    ds = import_files(tmp_path / "run.jsonl", "local/lines")
    e = ds.episode(0)
    assert e["action"].ravel().tolist() == [k * 1.5 for k in range(19)]
    assert e["observation"].tolist() == [[5 * k, 5 * k + 1] for k in range(19)]
    assert e["next/observation"][-1].tolist() == [95, 96]
    assert trace(ds, 10).ok
    lines[3].pop("time")
    (tmp_path / "bad.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(CorruptArchive, match="line 4"):
        import_files(tmp_path / "bad.jsonl", "local/bad")


def test_messages_that_are_not_understood_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "run.mcap"
    with path.open("wb") as f:
        writer = PlainWriter(f)
        writer.start()
        schema = writer.register_schema("lab.Arm", "flatbuffer", b"")
        channel = writer.register_channel("/arm", "flatbuffer", schema)
        writer.add_message(channel, log_time=1, data=b"\x08\x01", publish_time=1)
        writer.finish()
    with pytest.raises(UnknownLayout, match=r"/arm \(lab\.Arm\).*flatbuffer"):
        import_files(path, "local/arm")


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.mcap"
    record(path)
    data = path.read_bytes()
    with pytest.raises(UnknownLayout, match="action"):
        import_files(path, "local/arm", topics=[JOINTS])
    with pytest.raises(UnknownLayout, match="no topic /joints"):
        import_files(path, "local/arm", topics=["/joints"])
    with pytest.raises(InvalidArgument, match="positive"):
        import_files(path, "local/arm", hz=-1)
    (tmp_path / "table.csv").write_text("observation,action\n1,2\n3,4\n")
    with pytest.raises(InvalidArgument, match="recordings"):
        import_files(tmp_path / "table.csv", "local/table", hz=10)
    for bad in (data[: len(data) // 2], data[:4000] + bytes(200) + data[4200:]):
        (tmp_path / "bad.mcap").write_bytes(bad)
        with pytest.raises(CorruptArchive, match=r"bad\.mcap"):
            import_files(tmp_path / "bad.mcap", "local/bad")
    ds = import_files([path, tmp_path / "bad.mcap"], "local/good", skip_bad=True)
    assert ds.num_episodes == 1 and "bad.mcap" in str(ds.manifest.notes)


# -- files that were made to do harm


def mcap(path: Path, topics: dict[str, tuple[str, list[bytes]]]) -> Path:
    """Write an MCAP file by hand: of each topic the definition of its messages, and these, 20 ms apart."""
    with path.open("wb") as f:
        writer = PlainWriter(f)
        writer.start()
        for topic, (definition, messages) in topics.items():
            schema = writer.register_schema("lab/msg/Any", "ros2msg", definition.encode())
            channel = writer.register_channel(topic, "cdr", schema)
            for k, data in enumerate(messages):
                writer.add_message(channel, 20_000_000 * k, b"\0\1\0\0" + data, 20_000_000 * k)
        writer.finish()
    return path


NUMBERS = {topic: ("float64 x\n", [struct.pack("<d", k) for k in range(4)]) for topic in ("/state", "/cmd")}


@pytest.mark.parametrize("stated", [8, 600, 3, 0xFFFFFFFF])
def test_a_text_that_lies_about_its_length_is_refused(stated: int, tmp_path: Path) -> None:
    text = struct.pack("<I", 6) + b"press\0"
    good = mcap(tmp_path / "good.mcap", NUMBERS | {"/mode": ("string data\n", [text])})
    assert import_files(good, "local/good").episode(0)["observation/mode"][0] == "press"
    bad = mcap(tmp_path / "bad.mcap", NUMBERS | {"/mode": ("string data\n", [struct.pack("<I", stated) + text[4:]])})
    with pytest.raises(CorruptArchive, match=r"bad\.mcap: /mode at 0\.000 s cannot be decoded"):
        import_files(bad, "local/bad")


def test_bytes_that_lie_about_their_number_are_refused(tmp_path: Path) -> None:
    for stated, error in ((4, None), (9, CorruptArchive)):
        messages = [struct.pack("<I4B", stated, k, 2, 3, 4) for k in range(4)]
        path = mcap(tmp_path / f"{stated}.mcap", NUMBERS | {"/touch": ("uint8[] data\n", messages)})
        if error is None:
            assert import_files(path, f"local/b{stated}").episode(0)["observation/touch"].tolist()[2] == [2, 2, 3, 4]
            continue
        with pytest.raises(error, match="/touch"):
            import_files(path, f"local/b{stated}")


def test_definitions_columns_and_keys_have_bounds(tmp_path: Path) -> None:
    many = "".join(f"float64 f{k}\n" for k in range(70_000))
    with pytest.raises(UnsafeArchive, match="70,000 lines"):
        import_files(mcap(tmp_path / "a.mcap", {"/cmd": (many, [bytes(8)])}), "local/a")
    some = "".join(f"float64 f{k}\n" for k in range(2_100))
    topics = {topic: (some, [bytes(8 * 2_100)] * 2) for topic in ("/state", "/cmd")}
    with pytest.raises(UnsafeArchive, match="more than 4,096 columns"):
        import_files(mcap(tmp_path / "b.mcap", topics), "local/b")
    keys = {f"k{k}": k for k in range(5_000)}
    lines = [{"topic": topic, "time": k / 50, **keys} for k in range(2) for topic in ("state", "cmd")]
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(UnsafeArchive, match="more than 4,096 values"):
        import_files(tmp_path / "c.jsonl", "local/c")


def test_a_gap_of_time_is_said_and_is_no_lack_of_memory(tmp_path: Path) -> None:
    """Of 40 messages at 50 Hz, 20 are of a day that is 20,000 days later: 86.4e9 rows."""
    times = [k / 50 + 20_000 * 86_400 * (k >= 10) for k in range(20)]
    lines = [{"topic": topic, "time": t, "x": k} for k, t in enumerate(times) for topic in ("state", "cmd")]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(UnknownLayout, match=r"40 messages would make 86,400,000,0\d\d rows .* from 0\.180 to 17280000"):
        import_files(tmp_path / "a.jsonl", "local/a", hz=50)
    assert import_files(tmp_path / "a.jsonl", "local/b").num_steps == 19, "without a rate, each message is a step"
