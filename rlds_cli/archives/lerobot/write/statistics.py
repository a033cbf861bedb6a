"""Statistics of columns with the names and shapes that lerobot computes.

For an array of numbers they are per element of the last axis in v3 (``lerobot.datasets.compute_stats`` of 0.4), and per
element of a row in v2.1 (of 0.3). Those of images are per channel, [3, 1, 1], of values in [0, 1], from a few frames.
Statistics of episodes are joined as lerobot joins them: a quantile is the mean of those of the episodes.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.base.packages import pyarrow

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
_SAMPLE = 128  # rows of an episode, about, that quantiles are taken from
_PIECE = 1 << 17  # values that are converted at once: 1 MiB, which stays in a core's cache
_LARGE = 300  # sides of an image from which lerobot leaves out pixels, to about this
_SMALL = 150

_local = threading.local()  # memory that is used again

Statistics = dict[str, Any]  # min max mean std, quantiles, and count: float64 arrays [episodes, ...], or of all [...]


def of_rows(values: Array, lengths: IntArray, *, by_last_axis: bool) -> Statistics:
    """Return the statistics of episodes that follow each other.

    Parameters
    ----------
    values : array [n, ...]
    lengths : int array [episodes]
        Rows of each, at least one; n together.
    by_last_axis : bool
        Take all axes but the last one together, and add quantiles: v3.

    Returns
    -------
    Statistics
        Of each episode, float64 [episodes, ...].
    """
    count = len(values)
    flat = values.reshape(count, -1) if values.ndim < 2 or not by_last_axis else values.reshape(-1, values.shape[-1])
    each = lengths * (len(flat) // count)
    step = max(1, _PIECE // flat.shape[1])
    ends, parts, e = np.cumsum(each), list[Statistics](), 0
    while e < len(each):
        first = int(ends[e] - each[e])
        stop = max(e + 1, int(np.searchsorted(ends, first + step, "right")))
        parts.append(_of_episodes(flat[first : ends[stop - 1]], each[e:stop], step))
        e = stop
    found = {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
    if by_last_axis:
        rows, real = _sampled(each)
        found |= _quantiles(_columns(flat[rows.reshape(-1)]).reshape(-1, *rows.shape), real)
    shape = values.shape[1:] or (1,)
    shape = shape[-1:] if by_last_axis else shape
    found = {name: np.asarray(v).reshape(-1, *shape) for name, v in found.items() if name != "count"}
    return found | {"count": lengths[:, None]}


def of_lines(values: Array, lengths: IntArray, *, by_last_axis: bool) -> Statistics:
    """Return what `of_rows` returns, of numbers that are evenly spaced in each episode: counts and times."""
    last = np.cumsum(lengths) - 1
    low, high = values[last + 1 - lengths].astype(np.float64), values[last].astype(np.float64)
    std = (high - low) * np.sqrt((lengths + 1) / (12 * np.maximum(1, lengths - 1)))
    found = {"min": low, "max": high, "mean": (low + high) / 2, "std": std, "count": lengths}
    found |= {name: low + q * (high - low) for name, q in QUANTILES.items()} if by_last_axis else {}
    return {name: v[:, None] for name, v in found.items()}


def _of_episodes(flat: Array, each: IntArray, step: int) -> Statistics:
    """Return the statistics of some episodes, or of one that is longer than ``step``."""
    if len(flat) <= step:
        return _of_columns(_columns(flat, "x"), each)
    pieces = (flat[a : a + step] for a in range(0, len(flat), step))
    return _each(joined([_of_columns(_columns(x, "x"), np.array([len(x)])) for x in pieces]))


def _columns(flat: Array, kept: str = "") -> Array:
    """Return a copy of [n, width] as float64 [width, n]: sums over consecutive values are several times as fast.

    ``kept`` names memory of this thread that the next copy is made in.
    """
    x = _kept(kept, flat.T.shape) if kept else np.empty(flat.T.shape)
    x[...] = flat.T
    return x


def _kept(name: str, shape: tuple[int, int]) -> Array:
    """Return an array of memory that this thread keeps: that of new pages takes longer than a sum of their values."""
    size = shape[0] * shape[1]
    memory: Array | None = getattr(_local, name, None)
    if memory is None or len(memory) < size:
        memory = np.empty(max(size, _PIECE))
        if size <= _PIECE:
            setattr(_local, name, memory)
    return memory[:size].reshape(shape)


@np.errstate(over="ignore", invalid="ignore")
def _of_columns(x: Array, each: IntArray) -> Statistics:
    """Return the statistics [episodes, width] of columns [width, n] of episodes of ``each`` rows; changes ``x``."""
    first = np.cumsum(each) - each
    found = {"min": np.minimum.reduceat(x, first, axis=1), "max": np.maximum.reduceat(x, first, axis=1)}
    found["mean"] = np.add.reduceat(x, first, axis=1) / each
    if (each == each[0]).all():
        of_each = x.reshape(len(x), len(each), each[0])
        of_each -= found["mean"][:, :, None]
    else:
        episode = np.repeat(np.arange(len(each)), each)
        x -= np.take(found["mean"], episode, axis=1, out=_kept("means", x.shape), mode="clip")
    x *= x
    found["std"] = np.sqrt(np.add.reduceat(x, first, axis=1) / each)
    return {name: v.T for name, v in found.items()} | {"count": each[:, None]}


def _sampled(each: IntArray) -> tuple[IntArray, BoolArray]:
    """Return the rows of each episode that quantiles are taken from [episodes, most], and which of them are real."""
    step = -(-each // _SAMPLE)
    count = -(-each // step)
    number = np.arange(count.max())
    real: BoolArray = number < count[:, None]
    rows: IntArray = np.cumsum(each)[:, None] - each[:, None] + np.where(real, number * step[:, None], 0)
    return rows, real


@np.errstate(over="ignore", invalid="ignore")
def _quantiles(sample: Array, real: BoolArray) -> Statistics:
    """Return quantiles [episodes, width] of [width, episodes, most], of which ``real`` ones count; changes ``sample``.

    They are interpolated linearly.
    """
    sample[:, ~real] = np.nan  # sorted behind all others
    sample.sort(axis=-1)
    last = real.sum(1) - 1
    episode = np.arange(len(last))
    found = {}
    for name, q in QUANTILES.items():
        below = (q * last).astype(np.int64)
        low, high = sample[:, episode, below], sample[:, episode, np.minimum(below + 1, last)]
        found[name] = (low + (high - low) * (q * last - below)).T
    return found


def of_images(images: Iterable[bytes]) -> Statistics | None:
    """Return the statistics of encoded images of one episode, [1, C, 1, 1]; None if none can be decoded."""
    from PIL import Image

    found = []
    for data in images:
        try:
            with Image.open(io.BytesIO(data), formats=("PNG", "JPEG")) as image:
                deep = image.mode.startswith("I")  # of 16 bits, as of depth
                found.append(of_pixels(np.asarray(image)[..., None] if deep else np.asarray(image.convert("RGB"))))
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
            continue  # statistics are of a sample anyway, and the file is copied as it is
    return _each(joined(found)) if found else None


def of_pixels(image: Array) -> Statistics:
    """Return the statistics of an image, [H, W, C]: uint8 as numbers from 0 to 1, and depth as it is."""
    side = max(image.shape[:2])
    step = 1 if side < _LARGE else max(1, side // _SMALL)
    channels = image.shape[2]
    pixels = image[::step, ::step].reshape(-1, channels) / (255.0 if image.dtype == np.uint8 else 1.0)
    each, columns = np.array([len(pixels)]), _columns(pixels)
    found = _quantiles(columns[:, None].copy(), np.ones((1, len(pixels)), bool)) | _of_columns(columns, each)
    found = {name: v.reshape(1, channels, 1, 1) for name, v in found.items() if name != "count"}
    return found | {"count": np.array([[1]])}


@np.errstate(over="ignore", invalid="ignore")
def joined(parts: Sequence[Statistics]) -> Statistics:
    """Return the statistics of all episodes of some parts, at least one, weighted by their numbers of rows."""
    counts = np.concatenate([p["count"] for p in parts])[:, 0]
    if len(counts) == 1:
        return {name: v[0] for name, v in parts[0].items()}
    total = counts.sum()

    def all_of(name: str) -> Array:
        return np.concatenate([p[name] for p in parts])

    def weighted(values: Array) -> Array:
        return np.asarray(np.einsum("i,i...->...", counts.astype(np.float64), values) / total)

    means = all_of("mean")
    mean = weighted(means)
    found = {
        "min": all_of("min").min(axis=0),
        "max": all_of("max").max(axis=0),
        "mean": mean,
        "std": np.sqrt(weighted(all_of("std") ** 2 + (means - mean) ** 2)),
        "count": np.array([int(total)]),
    }
    return found | {q: weighted(all_of(q)) for q in QUANTILES if all(q in p for p in parts)}


def _each(one: Mapping[str, Any]) -> Statistics:
    """Return the statistics of one episode as those of episodes."""
    return {name: np.asarray(v)[None] for name, v in one.items()}


class EpisodeStatistics:
    """Statistics of the columns of some episodes, gathered part by part; some columns have none of some episodes."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Statistics]] = {}
        self._episodes: dict[str, list[IntArray]] = {}

    def add(self, key: str, episodes: range, found: Statistics) -> None:
        """Add the statistics of a column of some episodes, [episodes, ...], or of another piece of the last one."""
        parts, of = self._parts.setdefault(key, []), self._episodes.setdefault(key, [])
        if of and of[-1][-1] == episodes.start:
            parts[-1] = _each(joined([parts[-1], found]))
        else:
            parts.append(found)
            of.append(np.asarray(episodes))

    def joined(self) -> dict[str, Statistics]:
        """Return the statistics of each column, of all episodes."""
        return {key: joined(parts) for key, parts in self._parts.items()}

    def columns(self, episodes: range) -> dict[str, Any]:
        """Return the statistics of consecutive episodes as columns of Arrow, ``stats/KEY/NAME``; null for none."""
        pa = pyarrow()
        made: dict[str, Any] = {}
        for key, name, values, of in self._all():
            column = lists_of(values)
            if len(of) < len(episodes):
                places = np.full(len(episodes), -1)
                places[of - episodes.start] = np.arange(len(of))
                column = column.take(pa.array(places, mask=places < 0))
            made[f"stats/{key}/{name}"] = column
        return made

    def of_episodes(self, episodes: range) -> list[dict[str, dict[str, Any]]]:
        """Return the statistics of consecutive episodes as JSON values, by column."""
        made: list[dict[str, dict[str, Any]]] = [{} for _ in episodes]
        for key, name, values, of in self._all():
            for episode, value in zip(of.tolist(), values.tolist(), strict=True):
                made[episode - episodes.start].setdefault(key, {})[name] = value
        return made

    def _all(self) -> Iterator[tuple[str, str, Array, IntArray]]:
        for key, parts in self._parts.items():
            of = np.concatenate(self._episodes[key])
            for name in parts[0]:
                yield key, name, np.concatenate([p[name] for p in parts]), of


def numbers_of(values: Array) -> Any:
    """Return all numbers of an array as a column, without a copy.

    ``pa.array`` first looks for pandas, and imports NumPy's masked arrays: 40 ms.
    """
    pa = pyarrow()
    flat = np.ascontiguousarray(values).reshape(-1)
    buffer = np.packbits(flat, bitorder="little") if flat.dtype == bool else flat
    return pa.Array.from_buffers(pa.from_numpy_dtype(flat.dtype), len(flat), [None, pa.py_buffer(buffer)])


def lists_of(values: Array) -> Any:
    """Return an array [n, ...] as lists of lists."""
    column = numbers_of(values)
    for side in reversed(values.shape[1:]):
        ends = np.arange(0, len(column) + 1, side, dtype=np.int32)
        column = pyarrow().ListArray.from_arrays(numbers_of(ends), column, type=list_type(column.type))
    return column


def list_type(kind: Any) -> Any:
    """Return the type of lists of values that are never null, which pyarrow writes an eighth faster."""
    pa = pyarrow()
    return pa.list_(pa.field("item", kind, nullable=False))


def plain(found: Mapping[str, Statistics]) -> dict[str, dict[str, Any]]:
    """Return statistics by column as JSON values."""
    return {key: {name: np.asarray(v).tolist() for name, v in of.items()} for key, of in found.items()}


def of_json(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Statistics]:
    """Return the statistics of `plain`, of one part."""
    return {key: _each(of) for key, of in found.items()}
