"""Directories of growing datasets, from a stranger: refused in words, without much time or memory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import growing_hostile
import numpy as np
import pytest
from growing_hostile import FAR

import rlds_cli
from rlds_cli.errors import DamagedDataset, RldsError
from rlds_cli.store import commits, files, layouts
from rlds_cli.store.columns import Column
from rlds_cli.store.growing import logs, segments, table
from rlds_cli.store.growing.verification import verify_directory
from rlds_cli.store.segment_map import SegmentMap

LOGS = ("episodes.log", "departed.log", "about.log", "strings.log", "sources.log")


@pytest.fixture
def dataset(monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(segments, "rows_of_segment", lambda width, most=None: 4096)
    monkeypatch.setattr(table, "_LONGEST_FREEING", 0.05)
    with rlds_cli.writer("local/x", keep=rlds_cli.Fifo(episodes=3), durable=False) as w:
        for k in range(5):
            w.add(np.full(2, k, np.float32), k, reward=1.0, terminated=True, word=f"w{k}", episode={"task": "press"})
            w.commit()
    return w.dataset().path


def read(path: Path) -> None:
    ds = rlds_cli.open_dataset(path)
    for k in range(ds.num_episodes):
        ds.episode(k)
    dict(ds.stats)
    [ds.episodes[name] for name in ds.episodes]
    assert ds.sources is not None


def refused(path: Path) -> None:
    """Reading is refused, and so is writing, or it goes on without looking at what is wrong."""
    with pytest.raises(RldsError):
        read(path)
    with suppress(RldsError):
        rlds_cli.writer("local/x", durable=False).close()


def say(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads((path / "zarr.json").read_text())
    change(document["attributes"]["rlds"])
    (path / "zarr.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["growing"].update(segment_rows=4095),
        lambda m: m["growing"].update(segment_rows=1 << 40),
        lambda m: m["growing"].update(segment_rows=True),
        lambda m: m["growing"].update(segment_rows=8192),  # segments have another size
        lambda m: m["growing"].pop("segment_rows"),
        lambda m: m.update(encoding="zarr"),
        lambda m: m["fields"][0].update(kind="frames", codec="png", dtype="uint8", shape=[2, 2, 3]),
        lambda m: m.update(growing={}),
    ],
)
def test_manifests_that_nothing_writes(dataset: Path, change: Callable[[dict[str, Any]], object]) -> None:
    say(dataset, change)
    refused(dataset)


@pytest.mark.parametrize("keep", [{"policy": "fifo", "seed": 3}, {"policy": "top"}, {"policy": "fifo"}])
def test_policies_that_there_are_not(dataset: Path, keep: dict[str, Any]) -> None:
    say(dataset, lambda m: m["growing"].update(keep=keep))
    with pytest.raises(DamagedDataset, match="no policy that there is"):
        rlds_cli.writer("local/x")


@pytest.mark.parametrize(
    "numbers",
    [
        {"rows": 1 << 47},
        {"rows": 1 << 47, "steps": 1 << 46},
        {"rows": 1 << 47, "episodes": 1 << 45, "departed": (1 << 45) - 3},
        {"episodes": 4},
        {"episodes": 6, "kept": 4},
        {"departed": 1 << 40, "episodes": (1 << 40) + 3, "rows": 1 << 47},
        {"about": 1 << 50},
        {"strings": 1 << 50},
        {"sources": 1 << 50},
        {"first_episode": 5},
        {"first_row": 11},
        {"rows": -1},
        {"number": 3},
    ],
)
def test_versions_with_numbers_that_are_not_so(dataset: Path, numbers: dict[str, int]) -> None:
    newest = commits.last(dataset)
    wrong = replace(newest, **numbers)
    with (dataset / commits.FILE).open("r+b") as log:
        log.seek(newest.number * commits.BYTES)
        log.write(wrong.packed())
        log.truncate((newest.number + 1) * commits.BYTES)
    for name in LOGS:  # sparse files are long at no cost
        os.truncate(dataset / name, 1 << 41)
    with suppress(RldsError):
        if rlds_cli.open_dataset(dataset).version == newest.number - 1:
            return  # the one before counts
    if "about" in numbers:
        read(dataset)  # of this log only the lines of episodes are read
    else:
        refused(dataset)


@pytest.mark.parametrize("name", [*LOGS[:-1], "commits.log", "readers", "freed", "observation/c/0/0", "zarr.json"])
@pytest.mark.parametrize("how", ["link", "pipe", "directory"])
def test_what_is_no_file(dataset: Path, name: str, how: str, tmp_path: Path) -> None:
    file = dataset / name
    if how == "link":
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    else:
        file.unlink()
        os.mkfifo(file) if how == "pipe" else file.mkdir()
    refused(dataset)


@pytest.mark.parametrize("name", ["writers", "commit", "digests.log"])
def test_files_of_writers_that_are_links_are_not_written(dataset: Path, name: str, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"mine")
    (dataset / name).unlink()
    (dataset / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RldsError), rlds_cli.writer("local/x", durable=False) as w:
        w.add(np.zeros(2, np.float32), 0, reward=1.0, terminated=True, word="w")
    assert (tmp_path / "elsewhere").read_bytes() == b"mine"


@pytest.mark.parametrize("size", [0, 5, 4096 * 8 - 1, 4096 * 8 + 1])
def test_segments_of_another_size(dataset: Path, size: int) -> None:
    os.truncate(dataset / "observation" / "c" / "0" / "0", size)
    with pytest.raises(DamagedDataset, match=rf"has {size:,} bytes; 32,768 expected"):
        read(dataset)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *(("start", v) for v in (-1, 3, 1 << 62, (1 << 63) - 2)),
        *(("length", v) for v in (0, -5, 1 << 62, 4)),
        *(("num_observed", v) for v in (0, 9)),
        *(("num_transitions", v) for v in (-1, 5)),
        *(("about", v) for v in (-3, 1 << 50, 7)),
        *(("about_bytes", v) for v in (-1, 1 << 30, 3)),
        *(("source", v) for v in (-1, 4)),
        ("end", 3),
    ],
)
def test_records_of_episodes_that_are_not_possible(dataset: Path, column: str, value: int) -> None:
    e = logs.read_episodes(dataset, 0, 5, 0).copy()
    e[column][3] = value
    (dataset / "episodes.log").write_bytes(e.tobytes())
    with pytest.raises(DamagedDataset):
        read(dataset)


READ_ALL = """
import sys
from pathlib import Path
import numpy as np
import rlds_cli
from rlds_cli.errors import RldsError
from rlds_cli.store.growing.verification import verify_directory
from rlds_cli.loader import Loader

def columns(ref):
    ds = rlds_cli.open_dataset(ref, home=Path(ref.removeprefix("file://")).parent / "home")
    for name in ds.schema:
        np.array(ds.column(name))

def batches(path):
    next(iter(Loader(rlds_cli.open_dataset(path), 64)))

for path in sys.argv[1:]:
    for read in (columns, lambda p: columns(f"file://{p}"), batches):
        try:
            read(path)
            print("read", path)
        except RldsError as e:
            print("refused", type(e).__name__)
    print("refused" if not verify_directory(Path(path)).ok else "verified", path)
"""


def test_records_that_point_outside_are_refused_before_anything_is_mapped(tmp_path: Path) -> None:
    """In another process: a map over the memory of this one would end it."""
    made, paths = growing_hostile.make(tmp_path / "home"), []
    for name, way in growing_hostile.WAYS.items():
        paths.append(tmp_path / name)
        shutil.copytree(made, paths[-1])
        way(paths[-1])
    done = subprocess.run([sys.executable, "-c", READ_ALL, *paths], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["refused"] * 4 * len(paths), done.stdout


@pytest.mark.parametrize("numbers", [{"first_row": FAR, "rows": 4 * FAR}, {"first_row": 5, "rows": 14}])
def test_episodes_that_are_known_lie_in_the_rows_of_a_later_version(tmp_path: Path, numbers: dict[str, int]) -> None:
    """A version that says that rows begin behind episodes which it keeps, and which a reader has read before."""
    dataset = growing_hostile.make(tmp_path)
    older, newest = commits.at(dataset, 4), commits.last(dataset)
    os.truncate(dataset / commits.FILE, (older.number + 1) * commits.BYTES)
    (dataset / "freed").write_bytes(bytes(16))
    ds = rlds_cli.open_dataset(dataset)
    np.array(ds.column("action"))
    with (dataset / commits.FILE).open("ab") as log:
        log.write(replace(newest, **numbers).packed())
    with pytest.raises(DamagedDataset, match=r"episodes\.log"):
        ds.refresh().column("action")


@pytest.mark.parametrize("number", [-1000, 2, 5, 7, 1000])
def test_no_segment_is_mapped_outside_of_its_addresses(dataset: Path, number: int) -> None:
    """Rows [12288, 20480) in segments of 4,096: the addresses of segments 3 to 4, and of those to come."""
    if number >= 5:  # as if all of them were there
        (dataset / "action" / "c" / str(number)).write_bytes(bytes(8 * 4096))
    rows = Column(
        field="action",
        part="rows",
        directory=Path("action"),
        dtype=np.dtype("i8"),
        first=12288,
        stop=20480,
        segment_rows=4096,
    )
    mapped = SegmentMap(rows, lambda k: layouts.descriptor(dataset / rows.file(k), rows.size))
    mapped._capacity = 2
    with pytest.raises(DamagedDataset, match=rf"segment {number:,} is none of 3 to 4"):
        mapped.rows(12288, 20480, [number])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("about.log", b'{"extra":{"task":[1,2]}}'),
        ("about.log", b'{"extra":{"length":3}}'),
        ("about.log", b'{"extra":5,"a":"aaaaaaa"}'),
        ("about.log", b'{"splits":7,"aaa":"aaaaa"}'),
        ("about.log", b'{"group":[3],"aaa":"aaaa"}'),
        ("strings.log", b'["word", 5]'),
        ("strings.log", b'[[], "aaa"]'),
        ("strings.log", b'{"a": "bb"}'),
    ],
)
def test_lines_of_other_types(dataset: Path, name: str, text: bytes) -> None:
    lines = (dataset / name).read_bytes().split(b"\n")
    lines[3] = text + b" " * (len(lines[3]) - len(text))
    if len(text) > len(lines[2]):
        pytest.fail("the line has to fit")
    (dataset / name).write_bytes(b"\n".join(lines))
    with pytest.raises(DamagedDataset):
        read(dataset)


@pytest.mark.parametrize("name", LOGS)
def test_holes_in_logs(dataset: Path, name: str) -> None:
    size = (dataset / name).stat().st_size
    (dataset / name).unlink()
    with (dataset / name).open("wb") as file:
        file.truncate(size)
    if size:
        refused(dataset)


@pytest.mark.parametrize("way", growing_hostile.EXPANSIONS)
def test_short_logs_that_have_much_to_say(tmp_path: Path, way: str) -> None:
    """A value of each of 4,200 columns for each of 4,200 episodes; a line of a megabyte for each episode."""
    dataset = growing_hostile.make(tmp_path)
    growing_hostile.EXPANSIONS[way](dataset)
    with pytest.raises(DamagedDataset, match=r"names 4,200|episode 1 is not possible"):
        read(dataset)
    assert not verify_directory(dataset).ok


def test_columns_that_few_episodes_have(tmp_path: Path) -> None:
    """Each of 300 episodes has a column of its own: every value is read, and the others are missing."""
    with rlds_cli.writer("local/own", home=tmp_path, durable=False) as w:
        for k in range(300):
            w.add(np.zeros(2, np.float32), 0, reward=1.0, terminated=True, episode={f"own_{k:03}": k})
    ds = w.dataset()
    assert [ds.episodes[f"own_{k:03}"][k] for k in (0, 150, 299)] == [0, 150, 299]
    assert sum(name.startswith("own_") for name in ds.episodes) == 300


def test_what_was_freed_can_be_no_more_than_what_left(dataset: Path) -> None:
    (dataset / "freed").write_bytes((99).to_bytes(8, "little") * 2)
    with pytest.raises(DamagedDataset, match="frees more than has left"):
        read(dataset)
    (dataset / "freed").write_bytes(bytes(3))
    refused(dataset)


def test_files_that_vanish_while_a_tree_is_checked(dataset: Path) -> None:
    """A writer removes segments while others open the dataset."""
    stop = threading.Event()

    def come_and_go() -> None:
        while not stop.is_set():
            there = dataset / "observation" / "c" / "77"
            there.mkdir()
            (there / "0").write_bytes(b"")
            (there / "0").unlink()
            there.rmdir()

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        for _ in range(300):
            files.check_tree(dataset, changing=True)
    finally:
        stop.set()
        thread.join()
