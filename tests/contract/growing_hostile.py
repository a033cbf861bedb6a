"""Growing datasets as a stranger makes them: records of episodes and of versions that point anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import rlds_cli
from rlds_cli.store import commits, layouts
from rlds_cli.store.growing import logs, segments

FAR = 1000 * layouts.PAGE_ROWS  # a row that lies a thousand segments above those that are there
HIGH = 4 * FAR  # rows of the version, so that no record is refused for being above them


def make(root: Path, episodes: int = 5, keep: int = 3) -> Path:
    """Make a dataset of episodes with one step, of which the first left; segments have 4,096 rows."""
    before, segments.rows_of_segment = segments.rows_of_segment, lambda width, most=None: layouts.PAGE_ROWS
    try:
        with rlds_cli.writer("local/x", keep=rlds_cli.Fifo(episodes=keep), home=root, durable=False) as w:
            for k in range(episodes):
                w.add(np.full(2, k, np.float32), k, reward=1.0, terminated=True, episode={"task": "press"})
                w.commit()
    finally:
        segments.rows_of_segment = before
    return w.dataset().path


def say(dataset: Path, **numbers: int) -> None:
    """Let the newest version have other numbers, and the checksum for them."""
    newest = commits.last(dataset)
    with (dataset / commits.FILE).open("r+b") as log:
        log.seek(newest.number * commits.BYTES)
        log.write(replace(newest, **numbers).packed())


def point(dataset: Path, **values: list[int]) -> None:
    """Let the records of the newest episodes have other values."""
    file = dataset / logs.EPISODES
    e = np.frombuffer(bytearray(file.read_bytes()), logs.episode(0))
    for name, column in values.items():
        e[name][len(e) - len(column) :] = column
    file.write_bytes(e.tobytes())


def below(dataset: Path) -> None:
    """The episodes lie in segment 0, and the version begins a thousand segments above it."""
    say(dataset, first_row=FAR, rows=HIGH)


def half_below(dataset: Path) -> None:
    """Only the first episode lies below the first row of the version, a thousand segments away."""
    say(dataset, first_row=FAR, rows=HIGH)
    point(dataset, start=[4, FAR, FAR + 2])


def just_below(dataset: Path) -> None:
    """The first episode lies one row below the version's, in the same segment."""
    point(dataset, start=[3, 6, 8])


def above(dataset: Path) -> None:
    """The last episode lies at the end of the addresses that anybody has."""
    say(dataset, rows=(1 << 48) - 1)
    point(dataset, start=[4, 6, (1 << 48) - 4])


def behind(dataset: Path) -> None:
    """The last episode lies behind the rows of the version."""
    point(dataset, start=[4, 6, 9])


def negative(dataset: Path) -> None:
    """Episodes lie a thousand segments before row 0."""
    point(dataset, start=[-FAR, -FAR + 2, -FAR + 4])


def overlapping(dataset: Path) -> None:
    """Each episode lies on the one before."""
    point(dataset, start=[4, 5, 5])


def long(dataset: Path) -> None:
    """An episode has so many steps that its end overflows."""
    point(dataset, length=[(1 << 63) - 2] * 3)


WAYS: dict[str, Callable[[Path], Any]] = {
    way.__name__: way for way in (below, half_below, just_below, above, behind, negative, overlapping, long)
}


def many_columns(dataset: Path, episodes: int = 4_200) -> None:
    """Every episode has a column of its own: a value of each column for each episode would take gigabytes."""
    _tell(dataset, [b'{"extra":{"%05d":1}}\n' % k for k in range(episodes)], 1)


def many_splits(dataset: Path, episodes: int = 4_200) -> None:
    """The same with splits."""
    _tell(dataset, [b'{"splits":["%05d"]}\n' % k for k in range(episodes)], 1)


def one_line_for_all(dataset: Path, episodes: int = 4_200) -> None:
    """All episodes share one long line."""
    line = b'{"extra":{' + b",".join(b'"%d":1' % k for k in range(100_000)) + b"}}\n"
    _tell(dataset, [line], episodes)


def _tell(dataset: Path, lines: list[bytes], times: int) -> None:
    """Let the dataset have as many episodes of one step as there are lines, ``times`` as many; none of them left."""
    size, count = sum(map(len, lines)), len(lines) * times
    (dataset / logs.ABOUT).write_bytes(b"".join(lines))
    (dataset / logs.DEPARTED).write_bytes(b"")
    (dataset / logs.FREED).write_bytes(bytes(16))
    e = np.zeros(count, logs.episode(0))
    e["start"], e["length"], e["num_observed"], e["num_transitions"], e["end"] = 2 * np.arange(count), 1, 1, 1, 1
    e["about"] = np.repeat(np.cumsum([0, *map(len, lines)])[:-1], times)
    e["about_bytes"] = np.repeat([len(line) for line in lines], times)
    (dataset / logs.EPISODES).write_bytes(e.tobytes())
    for name in ("action", "observation", "next/reward", "next/terminated", "next/truncated"):
        ndim = 2 if name == "observation" else 1
        inner = ["0"] * (ndim - 1)
        size_of = dataset.joinpath(name, "c", "0", *inner).stat().st_size
        for number in range(1, 2 * count // layouts.PAGE_ROWS + 1):
            file = dataset.joinpath(name, "c", str(number), *inner)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(bytes(size_of))
    say(
        dataset, rows=2 * count, episodes=count, departed=0, about=size, first_row=0, first_episode=0, kept=count,
        steps=count, transitions=count, terminated=count, truncated=0, cut=0, final_observations=0,
    )  # fmt: skip


EXPANSIONS: dict[str, Callable[..., Any]] = {way.__name__: way for way in (many_columns, many_splits, one_line_for_all)}
