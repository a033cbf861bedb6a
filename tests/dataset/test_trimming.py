"""Chunks without some of their episodes, against lists of the rows that should be left."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from rlds_cli.base.subset import Subset
from rlds_cli.make.convert.reading import trimmed
from rlds_cli.ted import Chunk, EncodedFrames, EpisodeTable, Note, VideoFrames

LENGTHS = [1, 3, 2, 5, 1, 4]
SPLITS = {"train": [0, 2, 3, 5], "val": [1, 4], "all": range(6)}
ROWS = [(e, r) for e, n in enumerate(LENGTHS) for r in range(n + 1)]


def chunks(size: int) -> Iterator[Chunk]:
    """The rows of six episodes, ``size`` at a time; the values of a row say which row it is."""
    for a in range(0, len(ROWS), size):
        here = ROWS[a : a + size]
        last = np.array([r == LENGTHS[e] for e, r in here])
        ended = [e for (e, _), end in zip(here, last, strict=True) if end]
        number = np.arange(a, a + len(here))
        frames = [bytes([n]) * (n % 3) for n in number]
        columns = {
            "observation": np.stack([number, -number], 1),
            "task": [f"row {n}" if n % 2 else None for n in number],
            "image": EncodedFrames(
                np.frombuffer(b"".join(frames), np.uint8), np.array([len(f) for f in frames], np.int64)
            ),
            "video": VideoFrames(("a.mp4",), np.stack([0 * number, number], 1).astype(np.int32)),
        }
        n = np.array([LENGTHS[e] for e in ended], np.int64)
        table = EpisodeTable(
            n,
            np.zeros(len(n), np.uint8),
            np.ones(len(n), bool),
            np.zeros(len(n), np.int32),
            n * 0,
            group=[f"g{e}" for e in ended],
            splits={s: np.array([e in of for e in ended], bool) for s, of in SPLITS.items()},
        )
        yield Chunk(columns, last, table, (Note("seen", "a note"),) if a == 0 else ())


def expected(portion: Subset) -> list[int]:
    """The numbers of the episodes that should be left."""
    episodes = list(SPLITS[portion.split]) if portion.split else list(range(6))
    start, stop = portion.episodes or (0, None)
    return episodes[start:stop]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize(
    "portion",
    [
        Subset.of(episodes="0:2"),
        Subset.of(episodes="1:4"),
        Subset.of(episodes="5"),
        Subset.of(episodes="3:"),
        Subset.of(split="train"),
        Subset.of(split="val"),
        Subset.of(split="all"),
        Subset.of(split="train", episodes="1:3"),
    ],
    ids=lambda p: p.name,
)
def test_the_rows_of_the_episodes_wanted_are_left(size: int, portion: Subset) -> None:
    kept = list(trimmed(chunks(size), portion))
    episodes = expected(portion)
    rows = [i for i, (e, _) in enumerate(ROWS) if e in episodes]
    assert np.concatenate([c.columns["observation"] for c in kept])[:, 0].tolist() == rows
    assert [t for c in kept for t in c.columns["task"]] == [f"row {n}" if n % 2 else None for n in rows]
    assert b"".join(c.columns["image"].data.tobytes() for c in kept) == b"".join(bytes([n]) * (n % 3) for n in rows)
    assert [n for c in kept for n in c.columns["image"].lengths] == [n % 3 for n in rows]
    assert [n for c in kept for n in c.columns["video"].index[:, 1]] == rows
    assert (
        np.flatnonzero(np.concatenate([c.last for c in kept])).tolist()
        == (np.cumsum([LENGTHS[e] + 1 for e in episodes]) - 1).tolist()
    )
    table = EpisodeTable.concat([c.episodes for c in kept])
    assert table.group == [f"g{e}" for e in episodes]
    assert [n.code for c in kept for n in c.notes] == ["seen"]


def test_reading_stops_where_the_range_ends() -> None:
    read = 0

    def counted() -> Iterator[Chunk]:
        nonlocal read
        for chunk in chunks(1):
            read += 1
            yield chunk

    list(trimmed(counted(), Subset.of(episodes="1:3")))
    assert read == sum(LENGTHS[:3]) + 3


def test_the_names_of_splits_are_told_where_no_episode_is_left() -> None:
    kept = list(trimmed(chunks(7), Subset.of(split="test")))
    assert sum(map(len, kept)) == 0
    assert set(EpisodeTable.concat([c.episodes for c in kept]).splits) == set(SPLITS)
