from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlds_cli
from rlds_cli.dataset import Dataset
from rlds_cli.loader.storage.blocks import BlockField, PackedBlock, RowLayout, obstacle, open_block, stored_block
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


def pack(columns: dict[str, Array], rows: int = ROWS) -> PackedBlock:
    """A block in memory, from its tiles end to end."""
    layout = RowLayout(BlockField(n, v.dtype, v.shape[1:], v) for n, v in columns.items())
    tiles = [tile.copy() for tile in layout.tiles(rows)]
    content = np.concatenate([t.ravel() for t in tiles])
    assert content.size == rows * layout.row_bytes
    return PackedBlock(layout, rows, content)


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


def test_every_dtype_and_shape() -> None:
    columns = {f"{d}{i}": values(d, s) for d in DTYPES for i, s in enumerate([(), (3,), (2, 2), (0,)])}
    block = pack(columns)
    first = np.array([0, 1, 4094, 4095, 4096, ROWS - 2, ROWS - 2])
    two = block.take(first, 2)
    for name, column in columns.items():
        for row in (0, 1):
            for view in (False, True):
                got = two.row(name, row, view=view)
                assert got.dtype == column.dtype
                np.testing.assert_array_equal(got, column[first + row])
        np.testing.assert_array_equal(two.rows(name), np.stack([column[first], column[first + 1]], 1))
    one = block.take(np.arange(ROWS))
    for name, column in columns.items():
        np.testing.assert_array_equal(one.row(name), column)


@given(
    st.lists(st.tuples(st.sampled_from(DTYPES), st.integers(0, 3)), min_size=1, max_size=6),
    st.integers(1, 8),
    st.data(),
)
def test_any_layout(kinds: list[tuple[str, int]], length: int, data: st.DataObject) -> None:
    rows = data.draw(st.integers(length, 30))
    columns = {str(i): values(d, (w,), rows) for i, (d, w) in enumerate(kinds)}
    first = np.array(data.draw(st.lists(st.integers(0, rows - length), max_size=5)), np.int64)
    last = data.draw(st.sets(st.sampled_from(sorted(columns))))
    windows = pack(columns, rows).take(first, length, last=last)
    for name, column in columns.items():
        whole = length if name in last else length - 1
        for row in range(whole):
            np.testing.assert_array_equal(windows.row(name, row), column[first + row])
            np.testing.assert_array_equal(windows.row(name, row, view=True), column[first + row])
        if name in last:
            expected = column[first[:, None] + np.arange(length)]
            np.testing.assert_array_equal(windows.rows(name), expected)
            np.testing.assert_array_equal(windows.rows(name, view=True), expected)


def test_outputs_are_writable_and_contiguous_and_overlap_nothing() -> None:
    columns = {"a": values("float32", (3,)), "b": values("float32", (2,)), "c": values("bool", ())}
    block = pack(columns)
    first = np.array([5, 5, 6])
    windows = block.take(first, 2)
    before = {name: windows.row(name).copy() for name in columns}
    taken = [windows.row(name, row) for name in columns for row in (0, 1)]
    for values_ in taken:
        assert values_.flags.c_contiguous
        assert values_.flags.aligned
        values_[...] = 1
    for name in columns:
        np.testing.assert_array_equal(windows.row(name), before[name])
        np.testing.assert_array_equal(block.take(first).row(name), before[name])


def test_views_are_writable_and_of_the_gather_alone() -> None:
    columns = {"a": values("float64", (3,)), "b": values("float32", (3,)), "c": values("bool", ())}
    block = pack(columns)
    first = np.array([5, 5, 6])
    windows = block.take(first, 2, last=("b",))
    view = windows.row("b", 1, view=True)
    assert view.flags.aligned
    assert not view.flags.c_contiguous
    view[0] = 7
    np.testing.assert_array_equal(windows.row("b", 1)[0], 7)
    np.testing.assert_array_equal(windows.row("b", 1)[1:], columns["b"][[6, 7]])
    np.testing.assert_array_equal(windows.row("a", 0), columns["a"][first])
    np.testing.assert_array_equal(block.take(first, 2).row("b", 1), columns["b"][first + 1])


def test_casts() -> None:
    wide = np.array([[1e300, -1e300, 0.1, np.nan, 65504.0]])
    layout = RowLayout([BlockField("x", np.dtype(np.float16), (5,), wide), BlockField("y", np.dtype("f4"), (5,), wide)])
    content = next(layout.tiles(1)).ravel()
    windows = PackedBlock(layout, 1, content).take(np.array([0]))
    inf = np.inf
    np.testing.assert_array_equal(windows.row("x"), np.array([[inf, -inf, 0.1, np.nan, 65504]], np.float16))
    np.testing.assert_array_equal(windows.row("y"), np.array([[inf, -inf, 0.1, np.nan, 65504]], np.float32))


def test_computed_fields_stand_beside_stored_ones() -> None:
    asked = []

    def squares(first: int, end: int) -> Array:
        asked.append((first, end))
        return np.arange(first, end) ** 2

    plain = values("float32", (2,))
    layout = RowLayout(
        [BlockField("x", plain.dtype, (2,), plain), BlockField("square", np.dtype(np.int64), (), squares, "squares")]
    )
    block = PackedBlock(layout, ROWS, np.concatenate([t.ravel().copy() for t in layout.tiles(ROWS)]))
    first = np.array([9_999, 0, 5000])
    np.testing.assert_array_equal(block.take(first).row("square"), first**2)
    assert asked == [(0, 4096), (4096, 8192), (8192, 10_000)]


# -- layout


def test_rows_are_padded_to_the_widest_item_and_fields_in_any_order_are_one_block() -> None:
    fields = [
        BlockField("flag", np.dtype(bool), (), np.zeros(1)),
        BlockField("observation", np.dtype("f4"), (17,), np.zeros(1), after=True),
        BlockField("action", np.dtype("f4"), (6,), np.zeros(1)),
        BlockField("empty", np.dtype("f8"), (0,), np.zeros(1)),
    ]
    layout = RowLayout(fields)
    assert layout.offsets == {"empty": 0, "observation": 0, "action": 68, "flag": 92}
    assert layout.row_bytes == 96
    assert layout.until(["observation"]) == 68
    assert layout.until(["flag", "observation"]) == 96
    assert layout.until([]) == 0
    assert RowLayout(fields[::-1]).key() == layout.key()


@pytest.mark.parametrize(("row_bytes", "rows", "fits"), [(256, 8, True), (0, 1, True), (257, 1, False), (8, 9, False)])
def test_what_is_packed(row_bytes: int, rows: int, fits: bool) -> None:
    assert (obstacle(row_bytes, rows) is None) == fits


# -- of a dataset


def test_the_block_of_a_dataset(home: Path) -> None:
    ds = dataset()
    names = ["observation", "action", "info/count", "info/nothing", "next/reward", "next/terminated", "next/truncated"]
    fields = [stored_block(ds, n, "float32" if ds.schema[n].dtype == "float64" else None) for n in names]
    block, held = open_block(ds, fields, budget=0)
    assert block is not None
    assert held.where == "packed file"
    assert "observation" in block
    assert "next/observation" not in block
    # float32 [5] + [2] + reward, int64 [1, 2] and two flags: 16 + 32 + 2, padded to 8
    assert block.layout.row_bytes == 56
    assert held.path is not None
    rows = ds.num_rows
    assert rows * 56 < held.path.stat().st_size < rows * 56 + 2000
    first = np.array([0, 7, 39, rows - 2])
    windows = block.take(first, 2, last=("observation",))
    for name in names:
        np.testing.assert_array_equal(windows.row(name), ds.column(name)[first].astype(windows.row(name).dtype))
    np.testing.assert_array_equal(windows.row("observation", 1), ds.column("observation")[first + 1].astype("f4"))
    again, held = open_block(ds, fields[::-1], budget=0)
    assert again is not None
    assert len(list((home / "packed").iterdir())) == 1


def test_other_casts_are_another_file(home: Path) -> None:
    ds = dataset()
    for dtype in ("float32", "float16", None):
        block, _ = open_block(ds, [stored_block(ds, "observation", dtype)], budget=0)
        assert block is not None
        expected = ds.column("observation").astype(dtype or "float64")
        np.testing.assert_array_equal(block.take(np.arange(ds.num_rows)).row("observation"), expected)
    assert len(list((home / "packed").iterdir())) == 3


def test_computed_fields_are_kept_apart_by_what_they_are_made_of() -> None:
    ds = dataset()
    for gamma in (0.5, 0.9):
        column = gamma * ds.column("next/reward")
        field = BlockField("sum", np.dtype(np.float64), (), column, made_of=f"gamma={gamma}")
        block, _ = open_block(ds, [field], budget=0)
        assert block is not None
        np.testing.assert_array_equal(block.take(np.arange(ds.num_rows)).row("sum"), column)


def test_nowhere_to_put_it(home: Path) -> None:
    ds = dataset()
    (home / "packed").write_text("no directory")
    block, held = open_block(ds, [stored_block(ds, "observation")], budget=0)
    assert (block, held.where) == (None, None)
    assert held.reason
    block, held = open_block(ds, [stored_block(ds, "observation")], budget=1 << 20)
    assert block is not None
    assert held.where == "private memory"
    np.testing.assert_array_equal(block.take(np.arange(ds.num_rows)).row("observation"), ds.column("observation"))
