"""Episodes laid out in chunks of any size: the rows are those of one chunk, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds_cli.archives.tfds.steps import EncodedImages
from rlds_cli.base.array_types import Array
from rlds_cli.ted import CUT, TERMINATED, EncodedFrames, EpisodeData, Field, LazyColumn, Note, chunks

SCHEMA = (
    Field("observation", "int64", (2,), "both"),
    Field("action", "int64"),
    Field("image", "uint8", (1, 1, 3), "both", "frames", "png"),
    Field("thumb", "uint8", (1, 1, 3), "root", "frames", "png"),
    Field("text", "str", (), "root", "text"),
    Field("depth", "int64", (), "both"),
)


class Doubled(LazyColumn):
    def __init__(self, values: Array) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    @property
    def nbytes(self) -> int:
        return self.values.nbytes

    def cut(self, start: int, stop: int) -> Array:
        return self.values[start:stop] * 2


def images(rows: list[bytes]) -> EncodedImages:
    ends = np.cumsum([len(r) for r in rows])
    return EncodedImages(b"??" + b"".join(rows), ends - [len(r) for r in rows] + 2, ends + 2)


def whole(number: int, length: int, *, observed: bool) -> EpisodeData:
    rows = length + observed
    base = 100 * number
    return EpisodeData(
        {
            "observation": np.arange(base, base + rows)[:, None] * [1, -1],
            "action": np.arange(base, base + length),
            "image": images([b"%d," % (base + i) for i in range(rows)]),
            "thumb": images([b"t%d," % i for i in range(length)]),
            "text": [f"text {base + i}" for i in range(length)],
            "depth": Doubled(np.arange(rows)),
        },
        length,
        TERMINATED if observed else CUT,
        observed=observed,
        source=number,
        group=f"record_{number}",
        splits=("val",) if number % 2 else (),
        notes=(Note("seen", "episodes were seen"),),
    )


def bytes_of(column: EncodedFrames) -> list[bytes]:
    ends = np.cumsum(column.lengths)
    return [column.data[b - n : b].tobytes() for b, n in zip(ends, column.lengths, strict=True)]


@pytest.mark.thorough
@given(
    st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=6),
    st.integers(1, 12),
    st.integers(1, 600),
)
def test_any_size_of_chunk_gives_the_same_rows(episodes: list[tuple[int, bool]], rows: int, size: int) -> None:
    wholes = [whole(i, n, observed=seen) for i, (n, seen) in enumerate(episodes)]
    found = list(chunks(SCHEMA, wholes, rows=rows, size=size))
    expected: dict[str, list[object]] = {f.name: [] for f in SCHEMA}
    for i, (n, seen) in enumerate(episodes):
        after = [*range(n), n if seen else n - 1]  # the final row, or the last one again
        expected["observation"] += [[100 * i + k, -100 * i - k] for k in after]
        expected["action"] += [*range(100 * i, 100 * i + n), 0]
        expected["image"] += [b"%d," % (100 * i + k) for k in after]
        expected["thumb"] += [*(b"t%d," % k for k in range(n)), b""]
        expected["text"] += [*(f"text {100 * i + k}" for k in range(n)), None]
        expected["depth"] += [2 * k for k in after]
    got: dict[str, list[object]] = {f.name: [] for f in SCHEMA}
    for chunk in found:
        for name, column in chunk.columns.items():
            assert len(column) == len(chunk)
            got[name] += (
                column
                if isinstance(column, list)
                else bytes_of(column)
                if isinstance(column, EncodedFrames)
                else column.tolist()
            )
    assert got == expected
    last = np.concatenate([c.last for c in found])
    assert np.flatnonzero(last).tolist() == (np.cumsum([n + 1 for n, _ in episodes]) - 1).tolist()
    assert [g for c in found for g in c.episodes.group] == [f"record_{i}" for i in range(len(episodes))]
    assert [int(n) for c in found for n in c.episodes.length] == [n for n, _ in episodes]
    assert [bool(x) for c in found for x in c.episodes.observed] == [seen for _, seen in episodes]
    assert sum(n.count for c in found for n in c.notes) == len(episodes)


def test_chunks_are_of_bounded_size() -> None:
    found = list(chunks(SCHEMA, [whole(0, 90, observed=True), whole(1, 3, observed=True)], rows=10))
    assert max(map(len, found)) <= 10
    assert sum(len(c.episodes) for c in found) == 2


def test_no_episodes_are_no_chunks() -> None:
    assert list(chunks(SCHEMA, [])) == []


def test_splits_of_a_chunk() -> None:
    (chunk,) = chunks(SCHEMA, [whole(0, 2, observed=True), whole(1, 2, observed=True)])
    assert chunk.episodes.splits["val"].tolist() == [False, True]


def test_a_base_that_is_not_filled_in() -> None:
    with pytest.raises(NotImplementedError):
        len(LazyColumn())
