from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlds_cli
from rlds_cli.dataset import Dataset
from rlds_cli.loader.kernel import Bound, Output, Plan, Value, WindowTable
from rlds_cli.loader.storage.blocks import BlockField, RowLayout
from rlds_cli.loader.storage.memory import ColumnRows
from rlds_cli.ted import Array

ROWS = 10_000  # more than two tiles
DTYPES = ("bool", "int8", "uint16", "float16", "int32", "float32", "int64", "uint64", "float64", "complex128")


def values(dtype: str, shape: tuple[int, ...], rows: int = ROWS) -> Array:
    """Any bytes that are values of the dtype."""
    rng = np.random.default_rng(len(dtype) + sum(shape))
    if dtype == "bool":
        return rng.random((rows, *shape)) < 0.5
    if np.dtype(dtype).kind in "fc":
        return rng.standard_normal((rows, *shape)).astype(dtype)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, (rows, *shape), dtype, endpoint=True)


def pack(columns: dict[str, Array], rows: int = ROWS) -> dict[str, ColumnRows]:
    """The columns of a block in memory, made of its tiles end to end; those without a byte are not in it."""
    layout = RowLayout(BlockField(n, v.dtype, v.shape[1:], v) for n, v in columns.items())
    content = np.concatenate([tile.ravel() for tile in map(np.copy, layout.tiles(0, rows))])
    assert content.size == rows * layout.row_bytes
    made = layout.columns(content, None)
    assert set(made) == {name for name, v in columns.items() if v[:1].size}
    return made


def take(block: dict[str, ColumnRows], first: Array, length: int = 0, shift: int = 0) -> dict[str, Array]:
    """The rows ``first`` [K] as the kernel reads them, or windows of ``length`` from there."""
    rows = len(next(iter(block.values())))
    none = np.zeros(1, np.int64)
    steps = np.array([rows - 1])
    table = WindowTable(none, steps, none, none, (1, 0))
    read = {n: c.values for n, c in block.items()}
    plan = Plan(table, [Output(Value.COPY, v.dtype, v.shape[1:], source=v, shift=shift) for v in read.values()])
    first = np.asarray(first, np.int64)
    made = Bound(plan, np.zeros(len(first), np.int64), first, (), length).read(0, len(first))
    return dict(zip(read, made, strict=True))


def dataset(episodes: int = 3, length: int = 40) -> Dataset:
    rng = np.random.default_rng(0)
    return rlds_cli.create(
        "local/blocks",
        [
            {
                "observation": rng.standard_normal((length + 1, 5)),
                "action": rng.standard_normal((length, 2)).astype(np.float32),
                "info": {"count": rng.integers(0, 99, (length, 1, 2)), "nothing": np.zeros((length, 0))},
                "next": {"reward": rng.standard_normal(length), "terminated": rng.random(length) < 0.1},
            }
            for _ in range(episodes)
        ],
        force=True,
    )


# -- values


@pytest.mark.thorough
def test_every_dtype_and_shape() -> None:
    columns = {f"{d}{i}": values(d, s) for d in DTYPES for i, s in enumerate([(), (3,), (2, 2), (0,)])}
    block = pack(columns)
    first = np.array([0, 1, 4094, 4095, 4096, ROWS - 2, ROWS - 2])
    here, after, two = take(block, first), take(block, first, shift=1), take(block, first[:-2], 2)
    everything = block.keys()
    for name in everything:
        column = columns[name]
        for row, got in enumerate((here[name], after[name])):
            assert got.dtype == column.dtype
            np.testing.assert_array_equal(got, column[first + row])
        np.testing.assert_array_equal(two[name], np.stack([column[first[:-2]], column[first[:-2] + 1]], 1))
        np.testing.assert_array_equal(block[name].values, column)
    whole = take(block, np.arange(ROWS - 1))
    for name in everything:
        np.testing.assert_array_equal(whole[name], columns[name][:-1])


@pytest.mark.thorough
@given(
    st.lists(st.tuples(st.sampled_from(DTYPES), st.integers(1, 3)), min_size=1, max_size=6),
    st.integers(1, 8),
    st.data(),
)
def test_any_layout(kinds: list[tuple[str, int]], length: int, data: st.DataObject) -> None:
    rows = data.draw(st.integers(length + 1, 30))
    columns = {str(i): values(d, (w,), rows) for i, (d, w) in enumerate(kinds)}
    first = np.array(data.draw(st.lists(st.integers(0, rows - 1 - length), max_size=5)), np.int64)
    for shift in (0, 1):
        windows = take(pack(columns, rows), first, length, shift)
        for name, column in columns.items():
            np.testing.assert_array_equal(windows[name], column[first[:, None] + np.arange(length) + shift])


def test_outputs_are_writable_and_contiguous_and_overlap_nothing() -> None:
    columns = {"a": values("float32", (3,)), "b": values("float32", (2,)), "c": values("bool", ())}
    block = pack(columns)
    first = np.array([5, 5, 6])
    taken = [x for shift in (0, 1) for x in take(block, first, shift=shift).values()]
    again = [x.copy() for x in taken]
    for i, x in enumerate(taken):
        assert x.flags.c_contiguous
        assert x.flags.aligned
        assert x.flags.owndata
        x[...] = 1
        for y, before in zip(taken[i + 1 :], again[i + 1 :], strict=True):
            np.testing.assert_array_equal(y, before)
    for name, column in columns.items():
        np.testing.assert_array_equal(take(block, first)[name], column[first])


def test_computed_fields_stand_beside_stored_ones() -> None:
    asked = []

    def squares(first: int, end: int) -> Array:
        asked.append((first, end))
        return np.arange(first, end) ** 2

    plain = values("float32", (2,))
    layout = RowLayout(
        [BlockField("x", plain.dtype, (2,), plain), BlockField("square", np.dtype(np.int64), (), squares, "squares")]
    )
    block = layout.columns(np.concatenate([t.ravel().copy() for t in layout.tiles(0, ROWS)]), None)
    first = np.array([9_998, 0, 5000])
    np.testing.assert_array_equal(take(block, first)["square"], first**2)
    np.testing.assert_array_equal(take(block, first, shift=1)["square"], (first + 1) ** 2)
    assert asked == [(0, 4096), (4096, 8192), (8192, 10_000)]
