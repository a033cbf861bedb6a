"""Datasets that grow, of strangers: records that point anywhere, short logs with much to say, a table that changes."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import growing_hostile
import numpy as np
from datasets import everything
from scene import Scene, attacks

ATTACKS, attack = attacks()

_MANY = 33_000  # episodes, in a log of a megabyte


def _each(scene: Scene, ways: dict[str, Callable[..., Any]], *more: int) -> Iterator[Path]:
    """Yield a dataset that grows, altered in each of several ways."""
    made = growing_hostile.make(scene.work / "made")
    for way in ways.values():
        dataset = scene.home / "datasets" / "local" / "hostile"
        shutil.rmtree(dataset, ignore_errors=True)
        shutil.copytree(made, dataset)
        way(dataset, *more)
        yield dataset


@attack(quick=True)
def records_that_point_outside(scene: Scene) -> None:
    """Segments would be mapped over other memory of the process."""
    for dataset in _each(scene, growing_hostile.WAYS):
        scene.refused(scene.run("verify", dataset))
        scene.refused(scene.run("check", dataset))
        everything(scene, dataset)
        scene.refused(scene.run("download", f"file://{dataset}", "--name", "local/copy"))
        scene.refused(scene.run("check", f"file://{dataset}"))
        scene.run("compact", "local/hostile")
        scene.run("clear", "local/hostile", "--yes")


@attack()
def short_logs_that_have_much_to_say(scene: Scene) -> None:
    """A log of a megabyte describes a table of gigabytes."""
    for dataset in _each(scene, growing_hostile.EXPANSIONS, _MANY):
        scene.refused(scene.run("inspect", dataset))
        scene.refused(scene.run("verify", dataset))
        everything(scene, dataset)
        scene.run("download", f"file://{dataset}", "--name", "local/copy")
        scene.run("check", f"file://{dataset}")


@attack()
def a_table_that_changes_while_it_is_read(scene: Scene) -> None:
    """The columns of the episode table have other numbers, again and again, while batches are loaded."""
    columns = [scene.dataset / "episodes" / c / "c" / "0" for c in ("start", "length", "num_transitions")]
    for value in (-1, 1 << 20, 1 << 40, (1 << 63) - 1):
        with _changing(columns, value):
            for window in ("Transition(3)", "Slice(8)"):
                scene.run("bench", "sample/pendulum-d4rl", "--window", window, "--seconds", 1)


@contextmanager
def _changing(files: list[Path], value: int) -> Iterator[None]:
    """Write other numbers into files and the old ones back, by turns, as long as the block lasts."""
    before = {file: file.read_bytes() for file in files}
    for file in files:
        file.chmod(0o644)
    stop = threading.Event()

    def change() -> None:
        while not stop.wait(0.01):
            for file, data in before.items():
                wrong = np.full(len(data) // 8, value, "<i8").tobytes()
                for content in (wrong, data):
                    with file.open("r+b") as f:
                        f.write(content.ljust(len(data), b"\0"))

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
