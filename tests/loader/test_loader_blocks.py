from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlds_cli
from rlds_cli.base.array_types import Array
from rlds_cli.dataset import Dataset
from rlds_cli.loader.kernel import Bound, Output, Plan, Value, WindowTable
from rlds_cli.loader.storage import blocks, packed
from rlds_cli.loader.storage.blocks import BlockField, RowLayout, stored_block
from rlds_cli.loader.storage.memory import ColumnRows
from rlds_cli.loader.storage.packed import PackedContent

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


def open_block(ds: Dataset, fields: list[BlockField], budget: int = 0) -> tuple[dict[str, ColumnRows], PackedContent]:
    """The columns of a block in a file or in memory; none where there is neither."""
    layout, rows = RowLayout(fields), ds.num_rows
    size = rows * layout.row_bytes
    held = packed.open_or_build(ds, layout.key(), size, lambda: layout.tiles(0, rows), kind="rows", budget=budget)
    return ({} if held.array is None else layout.columns(held.array, None)), held


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
        assert x.flags.writeable and not any(np.shares_memory(x, y) for y in taken[i + 1 :])
        x[...] = 1
        for y, before in zip(taken[i + 1 :], again[i + 1 :], strict=True):
            np.testing.assert_array_equal(y, before)
    for name, column in columns.items():
        np.testing.assert_array_equal(take(block, first)[name], column[first])


def test_casts() -> None:
    wide = np.array([[1e300, -1e300, 0.1, np.nan, 65504.0]])
    layout = RowLayout([BlockField("x", np.dtype(np.float16), (5,), wide), BlockField("y", np.dtype("f4"), (5,), wide)])
    windows = {name: c.values for name, c in layout.columns(next(layout.tiles(0, 1)).ravel(), None).items()}
    inf = np.inf
    np.testing.assert_array_equal(windows["x"], np.array([[inf, -inf, 0.1, np.nan, 65504]], np.float16))
    np.testing.assert_array_equal(windows["y"], np.array([[inf, -inf, 0.1, np.nan, 65504]], np.float32))


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


# -- layout


def test_rows_are_padded_to_32_bytes_and_fields_in_any_order_are_one_block() -> None:
    fields = [
        BlockField("flag", np.dtype(bool), (), np.zeros(1)),
        BlockField("observation", np.dtype("f4"), (17,), np.zeros(1), after=True),
        BlockField("action", np.dtype("f4"), (6,), np.zeros(1)),
        BlockField("empty", np.dtype("f8"), (0,), np.zeros(1)),
    ]
    layout = RowLayout(fields)
    assert layout.offsets == {"empty": 0, "observation": 0, "action": 68, "flag": 92}
    assert layout.row_bytes == 96
    assert RowLayout(fields[::-1]).key() == layout.key()


@pytest.mark.thorough
@pytest.mark.parametrize(("width", "fits"), [(1, True), (128, True), (129, False)])
def test_what_is_packed(width: int, fits: bool, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [{"observation": np.ones((9, width), np.float32), "action": np.zeros((8, 0))}]
    ds = rlds_cli.create("local/wide", made)
    kind = {"observation": np.dtype(np.float32)}
    assert blocks.pack(ds, kind, 0) == ({}, "")  # it is small
    monkeypatch.setattr(blocks, "LEAST_BYTES", 0)
    columns, place = blocks.pack(ds, kind, 0)
    assert set(columns) == ({"observation"} if fits else set())
    if fits:
        (path,) = (home / "packed").iterdir()
        assert place == f"packed rows of {max(32, 4 * width)} B, {path}"
    else:
        assert place == "no packed rows: 544 B a row (at most 512 are packed)"


# -- of a dataset


@pytest.mark.thorough
def test_the_block_of_a_dataset(home: Path) -> None:
    ds = dataset()
    names = ["observation", "action", "info/count", "info/nothing", "next/reward", "next/terminated", "next/truncated"]
    fields = [stored_block(ds, n, "float32" if ds.schema[n].dtype == "float64" else None) for n in names]
    block, held = open_block(ds, fields)
    assert held.where == "packed file"
    assert set(block) == {*names} - {"info/nothing"}
    # float32 [5] + [2] + reward, int64 [1, 2] and two flags: 16 + 32 + 2, padded to 32
    assert RowLayout(fields).row_bytes == 64
    assert held.path is not None
    rows = ds.num_rows
    assert rows * 64 < held.path.stat().st_size < rows * 64 + 2000
    first = np.array([0, 7, 39, rows - 2])
    here = take(block, first)
    for name, got in here.items():
        np.testing.assert_array_equal(got, ds.column(name)[first].astype(got.dtype))
    after = take(block, first, shift=1)["observation"]
    np.testing.assert_array_equal(after, ds.column("observation")[first + 1].astype("f4"))
    again, held = open_block(ds, fields[::-1])
    assert set(again) == set(block)
    assert len(list((home / "packed").iterdir())) == 1


@pytest.mark.thorough
def test_the_block_that_loaders_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "LEAST_BYTES", 0)
    ds = dataset()
    kinds = {"observation": np.dtype(np.float32), "action": np.dtype(np.float32), "info/nothing": np.dtype(np.float64)}
    for names in (list(kinds), list(kinds)[::-1]):
        columns, place = blocks.pack(ds, {name: kinds[name] for name in names}, 0)
        (path,) = (home / "packed").iterdir()
        assert place == f"packed rows of 32 B, {path}"
        assert set(columns) == {"observation", "action"}
        for name, column in columns.items():
            assert (column.values.dtype, column.dtype) == (np.dtype(np.float32), ds.column(name).dtype)
            assert column.packed
            np.testing.assert_array_equal(column.values, ds.column(name).astype(np.float32))


@pytest.mark.thorough
def test_other_casts_are_another_file(home: Path) -> None:
    ds = dataset()
    for dtype in ("float32", "float16", None):
        block, _ = open_block(ds, [stored_block(ds, "observation", dtype)])
        expected = ds.column("observation").astype(dtype or "float64")
        np.testing.assert_array_equal(block["observation"].values, expected)
    assert len(list((home / "packed").iterdir())) == 3


@pytest.mark.thorough
def test_computed_fields_are_kept_apart_by_what_they_are_made_of() -> None:
    ds = dataset()
    for gamma in (0.5, 0.9):
        column = gamma * ds.column("next/reward")
        field = BlockField("sum", np.dtype(np.float64), (), column, made_of=f"gamma={gamma}")
        block, _ = open_block(ds, [field])
        np.testing.assert_array_equal(block["sum"].values, column)


@pytest.mark.thorough
def test_nowhere_to_put_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = dataset()
    (home / "packed").write_text("no directory")
    block, held = open_block(ds, [stored_block(ds, "observation")])
    assert (block, held.where) == ({}, None)
    assert held.reason
    block, held = open_block(ds, [stored_block(ds, "observation")], budget=1 << 20)
    assert held.where == "private memory"
    np.testing.assert_array_equal(block["observation"].values, ds.column("observation"))
    kind = {"observation": np.dtype(np.float64)}
    monkeypatch.setattr(blocks, "LEAST_BYTES", 0)
    assert blocks.pack(ds, kind, 0) == (
        {},
        f"no packed rows: {open_block(ds, [stored_block(ds, 'observation')])[1].reason}",
    )
    columns, place = blocks.pack(ds, kind, 1 << 20)
    assert place.startswith("packed rows of 64 B, private memory")
    np.testing.assert_array_equal(columns["observation"].values, ds.column("observation"))
