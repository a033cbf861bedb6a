"""The columns of a batch: what the kernel writes for each, and what Python then makes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.loader import kernel
from rlds_cli.loader.index import Located, WindowIndex
from rlds_cli.loader.kernel import OF_PLACE, OF_WINDOW, Output, RowPlace, Value
from rlds_cli.loader.slabs import Slabs
from rlds_cli.loader.storage.memory import ColumnRows
from rlds_cli.loader.storage.remote import EncodedRows, blocks_of
from rlds_cli.ted import VIDEO

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset

INT64, BOOL, FLOAT64 = np.dtype(np.int64), np.dtype(np.bool_), np.dtype(np.float64)
Memo = dict[str, Any]  # what the columns of one batch share
Finish = Callable[..., Array]  # (memo, *outputs) -> values


@dataclass(frozen=True, slots=True, eq=False)
class BatchColumn:
    """One field of the batch.

    Attributes
    ----------
    outputs : tuple of Output
        Arrays that the kernel writes; without ``finish`` one, which is the field.
    row_bytes : int
        Bytes per step of a sample.
    finish : callable, optional
        Makes the field [n, ...] of a memo of the batch and of the outputs; in new memory, or in that of an output.
    mask : int
        What counts as outside its episode and is zero, also after transforms: `OF_WINDOW`, `OF_PLACE`.
    rows : ColumnRows, optional
        The stored rows that are read.
    like : str
        Name of another field whose transforms apply; empty for none.
    summed : bool
        Each value was transformed before it was summed.
    about : str
        Where the values come from, for `Loader.describe`; with ``stored``, after the place of the rows.
    stored : bool
        Whether rows of the dataset are read.
    axis : bool
        Whether the field is a scalar, to which an axis of one element is added, see `Field.is_column`.
    decoding : Decoding, optional
        What ``finish`` decodes.
    as_read : bool
        Whether it is decoded at the rows of its output and its shift.
    """

    outputs: tuple[Output, ...]
    row_bytes: int
    finish: Finish | None = None
    mask: int = 0
    rows: ColumnRows | None = None
    like: str = ""
    summed: bool = False
    about: str = "computed"
    stored: bool = False
    axis: bool = False
    decoding: Decoding | None = None
    as_read: bool = False

    def inside(self) -> Output:
        """Return the output that says which values are real."""
        o = self.outputs[0]
        return replace(
            o,
            value=Value.INSIDE,
            dtype=BOOL,
            shape=(),
            source=None,
            other=None,
            given=None,
            mask=self.mask,
            scale=None,
            also=(),
        )

    def without_axis(self) -> BatchColumn:
        """Return the column of a field of scalars, without the axis of one element that a loader adds."""
        return replace(self, outputs=tuple(replace(o, shape=()) for o in self.outputs), axis=False)


def _plain(output: Output, row_bytes: int = 8, mask: int = 0) -> BatchColumn:
    return BatchColumn((output,), row_bytes, mask=mask, axis=output.shape == (1,))


def values_of(rows: ColumnRows, floats: str | None, *, axis: bool = False, **where: Any) -> Output:
    """Return the output of a stored column's values; ``axis`` adds an axis of one element, ``where`` says the place."""
    value, dtype = kernel.cast(rows.values.dtype, floats)
    shape = (*rows.values.shape[1:], *((1,) if axis else ()))
    return Output(value, dtype, shape, source=rows.values, **where)


def read_from(column: BatchColumn, rows: ColumnRows, floats: str | None) -> BatchColumn:
    """Return a column of stored values that reads them from other rows."""
    output = column.outputs[0]
    output = values_of(rows, floats, axis=column.axis, place=output.place, given=output.given)
    return replace(column, outputs=(output,), row_bytes=rows.row_bytes, rows=rows)


def field(rows: ColumnRows, floats: str | None, *, late: bool, shift: int, axis: bool, mask: int) -> BatchColumn:
    """A field of the store.

    ``late`` reads the outcome, at the last step that a sample sums; ``shift=1`` reads the row after it; ``axis`` adds
    an axis of one element, see `Field.is_column`.
    """
    place = RowPlace.LAST if late else RowPlace.HERE
    output = values_of(rows, floats, axis=axis, place=place, shift=shift)
    about = f"{', row after' if shift else ''}, {{kind}}"
    return BatchColumn((output,), rows.row_bytes, mask=mask, rows=rows, about=about, stored=True, axis=axis)


def decoded(dataset: Dataset, name: str, *, late: bool, shift: int, mask: int) -> BatchColumn:
    """A field of frames or text, decoded by the dataset."""
    output = Output(Value.ROW, INT64, place=RowPlace.LAST if late else RowPlace.HERE)
    about = f"decoded at each gather{', row after' if shift else ''}"
    return _decoding(Decoding(dataset, name), output, shift, mask=mask, about=about)


def decoded_by(column: BatchColumn, decode: Decoding, about: str) -> BatchColumn:
    """Return a column of frames that are decoded in another way."""
    made = _decoding(decode, column.outputs[0], column.outputs[0].shift)
    return replace(made, mask=column.mask, like=column.like, stored=column.stored, about=about)


def _decoding(decode: Decoding, output: Output, shift: int = 0, **rest: Any) -> BatchColumn:
    row_bytes = decode.row_bytes * max(1, len(output.offsets))
    output = replace(output, shift=shift, also=decode.tables)

    def finish(memo: Memo, rows: Array) -> Array:
        return decode(memo, rows + shift if shift else rows)

    return BatchColumn((output,), row_bytes, finish, decoding=decode, as_read=True, **rest)


def stacked(
    rows: ColumnRows | Decoding, floats: str | None, grid: Grid, *, axis: bool = False, zeroed: bool = False
) -> BatchColumn:
    """The rows of a field at several offsets: [K, k, ...]; ``axis`` is as in `field`."""
    mask = OF_PLACE if zeroed else 0
    about = f"{len(grid.offsets)} rows of it at each step"
    if isinstance(rows, Decoding):
        output = Output(Value.ROW, INT64, **grid.where)
        return _decoding(rows, output, mask=mask, about=about)
    output = values_of(rows, floats, axis=axis, **grid.where)
    return BatchColumn((output,), len(grid.offsets) * rows.row_bytes, mask=mask, rows=rows, about=about, axis=axis)


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """Rows at offsets from the step; ``limit`` [episodes] are the rows that they may reach."""

    offsets: tuple[int, ...]
    limit: IntArray

    @property
    def where(self) -> dict[str, Any]:
        """The place of an output."""
        return {"place": RowPlace.OFFSETS, "offsets": self.offsets, "limit": self.limit}


def grid_mask(grid: Grid) -> BatchColumn:
    """``mask/FIELD`` [B, k]: False where an offset lies outside the episode."""
    return _plain(Output(Value.INSIDE, BOOL, mask=OF_PLACE, **grid.where), len(grid.offsets))


def done(terminated: ColumnRows, truncated: ColumnRows, grid: Grid | None, *, late: bool, mask: int) -> BatchColumn:
    """``next/done`` [B, 1]: terminated or truncated."""
    where: dict[str, Any] = {"place": RowPlace.LAST if late else RowPlace.HERE} if grid is None else grid.where
    output = Output(Value.EITHER, BOOL, (1,), source=terminated.values, other=truncated.values, **where)
    about = "computed" if grid is None else f"{len(grid.offsets)} rows of it at each step"
    return BatchColumn((output,), max(1, len(output.offsets)), mask=mask, about=about, axis=True)


def reward_sum(
    rows: ColumnRows,
    transform: Callable[[Array], Array] | None,
    gamma: float,
    n_step: int,
    limit: IntArray,
    dtype: np.dtype[Any],
) -> BatchColumn:
    """The sum of ``gamma**j * transform(reward)`` over an n-step sample, added up in float64, in ``dtype``.

    ``limit`` [episodes] are the rows of each episode that have a reward.
    """
    axis = rows.values.ndim == 1
    shape = (1,) if axis else rows.values.shape[1:]
    powers = np.array([gamma**j for j in range(n_step)])
    about = ", summed up, {kind}"
    kinds = {rows.values.dtype, dtype} <= {np.dtype(np.float32), FLOAT64}
    if transform is None and kinds and all(k.isnative for k in (rows.values.dtype, dtype)):
        output = Output(Value.SUM, dtype, shape, source=rows.values, other=powers)
        return BatchColumn((output,), rows.row_bytes, rows=rows, summed=True, about=about, stored=True, axis=axis)

    def add(memo: Memo, rewards: Array, span: Array) -> Array:
        total = np.zeros((len(rewards), *rewards.shape[2:]))
        for j in range(int(span.max(initial=0))):
            value = (rewards[:, j] if transform is None else transform(rewards[:, j])).astype(np.float64)
            total += np.where((j < span).reshape(-1, *(1,) * (value.ndim - 1)), powers[j] * value, 0.0)
        return total.astype(dtype, copy=False).reshape(len(total), *shape)

    grid = Grid(tuple(range(n_step)), limit)
    each = Output(Value.COPY, rows.values.dtype, rows.values.shape[1:], source=rows.values, **grid.where)
    steps = Output(Value.ROW, INT64, place=RowPlace.SPAN)
    return BatchColumn((each, steps), rows.row_bytes, add, rows=rows, summed=True, about=about, stored=True, axis=axis)


def sum_dtype(reward: np.dtype[Any], floats: str | None) -> np.dtype[Any]:
    """Return the dtype of sums and discounts for the working dtype ``floats``; None is the archive's own."""
    return np.result_type(reward, np.float32) if floats is None else np.dtype(floats)


def discount(gamma: float, n_step: int, dtype: np.dtype[Any]) -> BatchColumn:
    """``next/discount`` [B, 1]: gamma to the power of the steps summed."""
    powers = (gamma ** np.arange(n_step + 1.0)).astype(dtype)
    return _plain(Output(Value.COPY, dtype, (1,), place=RowPlace.SPAN, source=powers))


def span() -> BatchColumn:
    """``steps_to_next_obs`` [B, 1]: the number of steps summed."""
    return _plain(Output(Value.ROW, INT64, (1,), place=RowPlace.SPAN))


def observed(mask: int) -> BatchColumn:
    """``next/observed`` [B, 1]: True if the next observation is recorded and not a repeat of the last one."""
    return _plain(Output(Value.OBSERVED, BOOL, (1,)), 1, mask)


def step() -> BatchColumn:
    """``step``: number of the step within its episode."""
    return _plain(Output(Value.STEP, INT64))


def of_episode(numbers: IntArray) -> BatchColumn:
    """A number of the episode: ``episode``, k of ``ds.episode(k)``; ``source``, that of the archive file."""
    return _plain(Output(Value.COPY, INT64, place=RowPlace.EPISODE, source=np.ascontiguousarray(numbers, np.int64)))


def index(first: IntArray) -> BatchColumn:
    """``index``: i of ``ds[i]``; -1 for a step that is not a transition, since its next observation is not known.

    ``first`` [episodes] are the numbers of the first transitions.
    """
    return _plain(Output(Value.INDEX, INT64, place=RowPlace.EPISODE, source=np.ascontiguousarray(first, np.int64)))


def mask() -> BatchColumn:
    """``mask`` [B, L]: False where a step lies outside its episode."""
    return _plain(Output(Value.INSIDE, BOOL, mask=OF_WINDOW), 1)


def probability(floats: str | None) -> BatchColumn:
    """``probability`` [B] or [B, L]: the chance with which a draw gives this sample."""
    return _given(lambda located: np.ascontiguousarray(located.drawn.probability(), np.float64), floats)


def weight(floats: str | None) -> BatchColumn:
    """``weight`` [B, 1] or [B, L, 1]: importance weights of prioritised draws, the largest possible one being 1.

    Other draws have weight 1.
    """

    def weights(located: Located) -> Array:
        given = located.drawn.weight
        return np.ones(len(located)) if given is None else np.ascontiguousarray(given, np.float64)

    return _given(weights, floats, (1,))


def _given(values: Callable[[Located], Array], floats: str | None, shape: tuple[int, ...] = ()) -> BatchColumn:
    value, dtype = kernel.cast(FLOAT64, floats)
    return _plain(Output(value, dtype, shape, place=RowPlace.SAMPLE, given=values))


def window(pool: WindowIndex) -> BatchColumn:
    """``window`` [B] or [B, L]: the number of the window, by which priorities are updated."""

    def numbers(located: Located) -> Array:
        if located.drawn.names is not None:
            return located.drawn.names
        return pool.name(located.drawn.episode, located.drawn.number)

    return _plain(Output(Value.COPY, INT64, place=RowPlace.SAMPLE, given=numbers))


def neighbour(
    rows: ColumnRows | Decoding, floats: str | None, distance: int, *, axis: bool, zeroed: bool, like: str
) -> BatchColumn:
    """A field at the step after a sample's last one, or before its first.

    Where the episode has no such step, values are zero, also after transforms. ``zeroed`` windows have zeros outside.
    """
    mask = OF_PLACE | (OF_WINDOW if zeroed else 0)
    where: dict[str, Any] = {"place": RowPlace.NEIGHBOUR, "amount": distance}
    about = f", step {'after' if distance > 0 else 'before'}"
    if isinstance(rows, Decoding):
        output = Output(Value.ROW, INT64, **where)
        return replace(_decoding(rows, output, mask=mask, like=like, about=about), stored=True)
    output = values_of(rows, floats, axis=axis, **where)
    return BatchColumn((output,), rows.row_bytes, mask=mask, rows=rows, like=like, about=about, stored=True, axis=axis)


def root_flag() -> BatchColumn:
    """``done``, ``terminated`` or ``truncated`` at the root [B, 1]: False on every step."""
    return _plain(Output(Value.ZERO, BOOL, (1,)), 1)


class Decoding:
    """A field stored as frames or text; the columns of a batch share what is decoded.

    Parameters
    ----------
    dataset : Dataset
    name : str

    Attributes
    ----------
    key : str
        The columns of a batch that have the same one share what is decoded.
    row_bytes : int
        Of a decoded value.
    """

    def __init__(self, dataset: Dataset, name: str) -> None:
        self.dataset, self.name, self.key = dataset, name, name
        self.row_bytes = dataset.schema[name].row_bytes
        self._shared = dataset.schema[name].kind == "frames"
        self.encoded = None if blocks_of(dataset) is None else EncodedRows(dataset, name)
        field = dataset.schema[name]
        self._slabs = Slabs([(np.dtype(field.dtype), field.shape)]) if field.codec == VIDEO else None
        dataset.gather(name, np.zeros(0, np.int64))  # open it now: its content stays the same if files are replaced

    def __call__(self, memo: Memo, rows: IntArray) -> Array:
        """Return the values of ``rows`` [...], in new memory; frames that ``memo`` holds are copied."""
        if not self._shared:
            return self._gather(rows)
        first: _First | None = memo.get(self.key)
        if first is None:
            memo[self.key] = first = _First(rows, self._gather(rows))
            return first.values
        return first.take(self, rows)

    @property
    def together(self) -> bool:
        """Whether frames of several batches are decoded with less work at once: those of a video follow each other."""
        return self._slabs is not None

    def decode_together(self, memos: Sequence[Memo], rows: Sequence[IntArray]) -> None:
        """Decode the ``rows`` [...] of the first column of each batch at once, in memory of its own for each.

        Memory of batches that are gone is used again: to clear pages of the system takes a tenth of the time.
        """
        assert self._slabs is not None
        made = [self._slabs.take((each.size,), 1)[0][0][0] for each in rows]
        flat = np.concatenate([each.reshape(-1) for each in rows])
        field, store = self.dataset.schema[self.name], self.dataset.store
        frames = [frame for each in made for frame in each]
        if self.encoded is None:
            store.videos(self.name).decode_into(frames, field, store.rows(self.name)[flat], flat, store.check_absent)
        else:  # their blocks are held
            self.encoded.decode_into(frames, flat)
        for memo, each, values in zip(memos, rows, made, strict=True):
            memo[self.key] = _First(each, values.reshape(*each.shape, *field.shape), is_taken=False)

    @property
    def tables(self) -> tuple[Array, ...]:
        """Arrays that are read at the rows, of a remote dataset."""
        return () if self.encoded is None else self.encoded.tables

    def _gather(self, rows: IntArray) -> Array:
        if self.encoded is None or self.encoded.media is None:
            values = self.dataset.gather(self.name, rows.reshape(-1))
        else:  # their blocks are held
            values = self.encoded.gather(rows.reshape(-1))
        return values.reshape(*rows.shape, *values.shape[1:])


class _First:
    """The ``rows`` [...] that a batch's first column has decoded, and their values [..., *shape]."""

    def __init__(self, rows: IntArray, values: Array, *, is_taken: bool = True) -> None:
        self.rows, self.values, self._is_taken = rows, values, is_taken
        self._distinct, self._place = np.unique(rows, return_index=True)

    def take(self, decoding: Decoding, rows: IntArray) -> Array:
        """Return the values of the first column where they were decoded for it beforehand, else those of ``rows``."""
        if self._is_taken:
            return self.shared(decoding, rows)
        self._is_taken = True
        return self.values

    def shared(self, decoding: Decoding, rows: IntArray) -> Array:
        """Return the values of other ``rows``, copied where they are decoded."""
        shape = self.values.shape[self.rows.ndim :]
        at = np.searchsorted(self._distinct, rows)
        found = self._distinct.take(at, mode="clip") == rows
        if not found.any():
            return decoding._gather(rows)
        values = np.empty((*rows.shape, *shape), self.values.dtype)
        values[found] = self.values.reshape(-1, *shape)[self._place[at[found]]]
        if not found.all():
            values[~found] = decoding._gather(rows[~found])
        return values
