"""Files of a dataset that grows, for ``fuzz.py``: its logs, and the numbers that its locks and commits go by."""

from __future__ import annotations

import atexit
import shutil
import struct
import sys
import tempfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.extend(str(Path(__file__).resolve().parents[1] / "tests" / name) for name in ("support", "contract"))

import manifest_mutants

import rlds_cli
from rlds_cli.errors import RldsError
from rlds_cli.store import Appender, commits, layouts
from rlds_cli.store.growing import logs, segments
from rlds_cli.ted import EpisodeData, lay_out

FILES = (commits.FILE, *logs.ALL, logs.FREED)
Targets = dict[str, tuple[tuple[bytes, ...], Callable[[bytes], object]]]


@cache
def made() -> Path:
    """A small dataset with departed, open, dropped and labelled episodes, texts, splits, options and columns."""
    root = Path(tempfile.mkdtemp(prefix="rlds-fuzz-growing-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    before, segments.rows_of_segment = segments.rows_of_segment, lambda width, most=None: layouts.PAGE_ROWS
    try:
        with rlds_cli.writer("local/x", keep=rlds_cli.Top(episodes=4), home=root, durable=False) as w:
            for k in range(7):
                w.begin(seed=k, options='{"level": 1}' if k % 2 else None)
                for t in range(3):
                    w.add(
                        {"a": np.full(2, t, np.float32), "text": f"word {k}"},
                        t, reward=float(k % 5), terminated=t == 2,
                        next_observation={"a": np.full(2, t + 1, np.float32), "text": f"word {k}"},
                        episode={"score": k / 2, "task": "press"},
                    )  # fmt: skip
                w.commit()
            w.add({"a": np.zeros(2, np.float32), "text": "open"}, 0, reward=0.0)
        path = w.dataset().path
        own = Appender(path, durable=False)
        columns: dict[str, Any] = {name: np.zeros(3, np.int64) for name in ("action",)}
        columns |= {"next/reward": np.ones(3) * 9, "next/truncated": np.arange(3) == 2}
        columns |= {"next/terminated": np.zeros(3, bool), "observation/text": ["a"] * 4}
        columns |= {"observation/a": np.zeros((4, 2), np.float32)}
        e = EpisodeData(columns, 3, 1, group="g", splits=("train",), extra={"score": 1.5})
        file = {"file": "x.hdf5", "size": 3, "sha256": "1" * 64, "url": None, "revision": None}
        own.commit(lay_out(own.schema, [e]), sources=[file])
        own.close()
        ds = rlds_cli.open_dataset(path)
        ds = ds.select(episodes=[0, 2]).label(score=[1.0, None], quality="bad").label(facts={"fps": 10.0})
        ds.select(episodes=[1]).drop()
        ds.restore().select(episodes=[0]).drop()
    finally:
        segments.rows_of_segment = before
    return path


def sound(records: bytes) -> bytes:
    """Give records of versions the checksums that they need, so that more than these is tried."""
    found = bytearray(records)
    for at in range(0, len(found) - commits.BYTES + 1, commits.BYTES):
        end = at + commits.BYTES - 4
        struct.pack_into("<I", found, end, zlib.crc32(found[at:end]))
    return bytes(found)


def look(content: bytes) -> None:
    """Do what commands and writers do with a dataset of which one file, by the first byte, has the other bytes.

    Raises the last refusal.
    """
    name, rest = FILES[content[0] % len(FILES)] if content else FILES[0], content[1:]
    _look({name: sound(rest) if name == commits.FILE else rest})


def look_at_both(content: bytes) -> None:
    """The same of a dataset whose newest version and records of episodes are the bytes, one after the other."""
    log = (made() / commits.FILE).read_bytes()
    newest = sound(content[: commits.BYTES])
    _look({commits.FILE: log[: -commits.BYTES] + newest, logs.EPISODES: content[commits.BYTES :]})


def _look(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory(prefix="rlds-fuzz-", dir=made().parents[3]) as directory:
        path = Path(directory) / "datasets" / "local" / "x"
        shutil.copytree(made(), path)
        for name, data in files.items():
            (path / name).write_bytes(data)
        looks = manifest_mutants.looks(path)
        refused = None
        for act in (*(looks[n] for n in ("open", "verify", "load")), partial(_write, Path(directory))):
            try:
                act()
            except RldsError as e:
                refused = e
        if refused is not None:
            raise refused


def _write(home: Path) -> None:
    with rlds_cli.writer("local/x", home=home, durable=False) as w, suppress(RldsError):
        w.add({"a": np.zeros(2, np.float32), "text": "new"}, 0, reward=1.0, terminated=True)
        w.commit()


def targets() -> Targets:
    """Return the targets by name."""
    both = (made() / commits.FILE).read_bytes()[-commits.BYTES :] + (made() / logs.EPISODES).read_bytes()
    contents = tuple(bytes([k]) + (made() / name).read_bytes() for k, name in enumerate(FILES))
    return {"growing": (contents, look), "growing-records": ((both,), look_at_both)}
