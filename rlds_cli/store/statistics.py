"""Digests of episodes and statistics of a dataset's rows, computed in one pass by several threads.

Statistics are over the steps of a field, in float64. Those of raw images (bytes, all elements of a row as one) come
from sums of integers, which are exact. Blocks of other fields are small enough to stay in a core's cache, and several
narrow rows are added up side by side, as one wide row. Threads read blocks in any order, and the results are combined
in block order, so that the number of threads does not change a bit.

Quantiles and histograms are those of at most 65,536 steps, and of fewer whose rows have more than 32 elements. Of n
sampled steps, the share below the 1 % quantile lies within 3 sqrt(0.01 * 0.99 / n) of 1 % in 997 of 1,000 cases: 0.17
percent points of at least 32,768 steps. That is the error of steps drawn independently; one of each run has a smaller
one (Cochran, Sampling Techniques, 1977, section 5.6).

Mean and variance of blocks are combined by Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for
computing sample variances" (1979); ``std`` is the population's (divided by n), as NumPy's default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.bins import in_bins
from rlds_cli.base.mixing import mixed
from rlds_cli.store import digests
from rlds_cli.store.columns import has_row_digests, has_statistics
from rlds_cli.store.digests import Digests
from rlds_cli.store.manifest import Stats
from rlds_cli.store.validation import MAX_WIDTH
from rlds_cli.ted import EpisodeTable, Field

if TYPE_CHECKING:
    from concurrent.futures import Executor

BLOCK_ROWS = 1 << 16
SAMPLE = 1 << 16
BINS = 16
_QUANTILE_ELEMENTS = 1 << 21
_BLOCK_ELEMENTS = 1 << 17  # 1 MiB in float64
_SIDE_BY_SIDE = 512  # elements that are added up in one go: NumPy takes as long for a row of 17
_EXACT = 256  # bytes whose squares add up to less than 2**24
_NARROW = 2.0**-20  # of the mean: the rounding of a sum of 2**17 values shows in the deviations of a narrower range
_BYTES_AT_ONCE = 1 << 16  # 256 KiB in float32
_IMAGES_AT_ONCE = 1 << 19  # bytes
Float = npt.NDArray[np.float64]
Read = Callable[[int, int], Array]  # rows from one to another
_PIECE = 64 << 20  # bytes that are read at once
_LONG = 32  # steps of an episode, on average, from which copying episode by episode is faster than picking rows


# -- statistics of values


class Moments(NamedTuple):
    """Moments of some rows, per element: number of finite values, mean, sum of squared deviations, minimum, maximum."""

    missing: int  # values that are not finite, of all elements
    n: Float
    mean: Float
    m2: Float
    low: Float
    high: Float


class ByteSums(NamedTuple):
    """Exact sums over bytes: their number, sum, sum of squares, minimum and maximum."""

    n: int
    sum: int
    squares: int
    low: int
    high: int


@dataclass(slots=True)
class Accumulator:
    """Running statistics of one numeric field. Its blocks are added in order, without rows that are not steps."""

    shape: tuple[int, ...]
    steps: int = 0
    _moments: Moments | None = None
    _bytes: ByteSums | None = None

    @property
    def pooled(self) -> bool:
        """True if all elements of a row count as one."""
        return prod(self.shape) > MAX_WIDTH

    def add(self, values: Array) -> None:
        """Add a block [n, ...]."""
        self.merge(*self.moments(values))

    @np.errstate(over="ignore", invalid="ignore")  # infinities and numbers near them are data, not mistakes
    def moments(self, values: Array) -> tuple[int, list[Moments | ByteSums]]:
        """Return the moments of a block [n, ...] of steps, for `merge`. Several threads may call this."""
        if values.size == 0:  # no steps, or no elements
            return len(values), []
        if self.pooled and values.dtype == np.uint8:
            return len(values), [_byte_sums(values)]
        flat = values.reshape(-1, 1) if self.pooled else values.reshape(len(values), -1)
        beside = max(1, _SIDE_BY_SIDE // flat.shape[1])
        whole = len(flat) - len(flat) % beside
        return len(values), [_moments(f, k) for f, k in ((flat[:whole], beside), (flat[whole:], 1)) if len(f)]

    @np.errstate(over="ignore", invalid="ignore")
    def merge(self, steps: int, found: Iterable[Moments | ByteSums]) -> None:
        """Add the result of ``moments`` for the next block."""
        self.steps += steps
        for m in found:
            if isinstance(m, ByteSums):
                self._bytes = m if self._bytes is None else _added(self._bytes, m)
                continue
            if (k := self._moments) is None:
                self._moments = m
                continue
            n = k.n + m.n
            safe = np.maximum(n, 1)
            delta = m.mean - k.mean
            mean = k.mean + delta * (m.n / safe)
            m2 = k.m2 + m.m2 + delta**2 * (k.n * m.n / safe)
            self._moments = Moments(k.missing + m.missing, n, mean, m2, np.fmin(k.low, m.low), np.fmax(k.high, m.high))

    @np.errstate(over="ignore", invalid="ignore")
    def result(self, sample: Array) -> Stats:
        """Return the statistics; ``sample`` [n, ...] holds the steps `sampled`, for quantiles and the histogram."""
        shape = () if self.pooled else self.shape
        if self._bytes is not None:
            self.merge(0, [_moments_of_bytes(self._bytes)])
            self._bytes = None
        if (m := self._moments) is None:
            nothing = np.full(shape, np.nan).tolist()
            return Stats(nothing, nothing, nothing, nothing, nothing, nothing, self.steps)
        std = np.sqrt(np.where(m.n > 0, m.m2 / np.maximum(m.n, 1), np.nan))
        mean = np.where(m.n > 0, m.mean, np.nan)
        if self.pooled and sample.dtype == np.uint8 and sample.size:
            q01, q99, counts, low, high = _of_bytes(sample)
        else:
            q01, q99 = _quantiles(sample, prod(shape))
            counts, low, high = _histogram(sample)

        found = {"mean": mean, "std": std, "min": m.low, "max": m.high, "q01": q01, "q99": q99}
        shaped: dict[str, Any] = {name: x.reshape(shape).tolist() for name, x in found.items()}
        return Stats(**shaped, count=self.steps, nonfinite=m.missing, histogram=counts, low=low, high=high)


def _moments(flat: Array, beside: int) -> Moments:
    """Return the moments of [n, width], adding up ``beside`` rows at a time."""
    rows, width = flat.shape
    folded = flat.reshape(-1, beside * width)
    x = folded.astype(np.float64)
    total = _unfold(np.add, x, width)
    if np.isfinite(total).all():
        mean = total / rows
        x -= np.tile(mean, beside)
        low = _unfold(np.minimum, folded, width).astype(np.float64)
        high = _unfold(np.maximum, folded, width).astype(np.float64)
        if (high - low < _NARROW * np.abs(mean)).any():
            rest = _unfold(np.add, x, width) / rows
            mean += rest
            x -= np.tile(rest, beside)
        np.multiply(x, x, out=x)
        return Moments(0, np.full(width, float(rows)), mean, _unfold(np.add, x, width), low, high)
    x = x.reshape(-1, width)
    finite = np.isfinite(x)
    n = finite.sum(0).astype(np.float64)
    mean = np.where(finite, x, 0).sum(0) / np.maximum(n, 1)
    deviation = np.where(finite, x - mean, 0)
    rest = deviation.sum(0) / np.maximum(n, 1)
    mean, deviation = mean + rest, np.where(finite, deviation - rest, 0)
    low = np.where(finite, x, np.inf).min(0)
    high = np.where(finite, x, -np.inf).max(0)
    low, high = np.where(n > 0, low, np.nan), np.where(n > 0, high, np.nan)
    return Moments(int(x.size - n.sum()), n, mean, np.einsum("ij,ij->j", deviation, deviation), low, high)


def _byte_sums(values: Array) -> ByteSums:
    """Add up bytes.

    Sums of `_EXACT` of their squares are below 2**24, so that float32 holds them exactly, in any order: 0.5 ns a byte,
    where float64 took 1.7. Rows are too short for a BLAS to divide them among threads of its own.
    """
    flat = values.reshape(-1)
    total = squares = 0
    for a in range(0, len(flat) - len(flat) % _EXACT, _BYTES_AT_ONCE):
        x = flat[a : min(a + _BYTES_AT_ONCE, len(flat) - len(flat) % _EXACT)].reshape(-1, _EXACT).astype(np.float32)
        total += int(np.einsum("ij->i", x).sum(dtype=np.float64))
        squares += int(np.vecdot(x, x).sum(dtype=np.float64))
    rest = flat[len(flat) - len(flat) % _EXACT :].astype(np.int64)
    total, squares = total + int(rest.sum()), squares + int((rest * rest).sum())
    return ByteSums(len(flat), total, squares, int(flat.min()), int(flat.max()))


def _added(a: ByteSums, b: ByteSums) -> ByteSums:
    return ByteSums(a.n + b.n, a.sum + b.sum, a.squares + b.squares, min(a.low, b.low), max(a.high, b.high))


def _moments_of_bytes(m: ByteSums) -> Moments:
    """Return moments that are rounded once, since division of Python's integers is."""
    n, mean, m2 = (np.array([x], np.float64) for x in (m.n, m.sum / m.n, (m.n * m.squares - m.sum**2) / m.n))
    return Moments(0, n, mean, m2, np.array([m.low], np.float64), np.array([m.high], np.float64))


def _unfold(f: np.ufunc, folded: Array, width: int) -> Array:
    """Reduce all rows by ``f``, from rows that lie side by side."""
    one: Array = f.reduce(f.reduce(folded, axis=0).reshape(-1, width), axis=0)
    return one


def _at_once(shape: tuple[int, ...], dtype: str) -> int:
    """Return the number of rows to look at together."""
    width = prod(shape)
    if dtype == "uint8" and width > MAX_WIDTH:
        return max(1, _IMAGES_AT_ONCE // width)
    return max(1, min(1 << 16, _BLOCK_ELEMENTS // max(1, width)))


def sampled(steps: int, width: int) -> IntArray:
    """Return the steps that quantiles are computed from, of ``steps`` whose rows have ``width`` elements.

    Each run of k steps gives one, at a place that looks random: evenly spaced ones would all lie at the same step of
    their episodes where these are k steps long. All steps are taken if they are few; then quantiles are exact.
    """
    most = max(1, min(SAMPLE, _QUANTILE_ELEMENTS // max(1, width)))
    k = max(1, -(-steps // most))
    first = np.arange(0, steps, k)
    if k == 1:
        return first
    length = np.minimum(k, steps - first)
    return np.asarray(first + (mixed(first.astype(np.uint64), 1) % length.astype(np.uint64)).astype(np.int64))


def of_episodes(values: Array, start: IntArray, length: IntArray) -> Stats:
    """Compute statistics over the steps of episodes that start at rows and have so many steps."""
    ends = np.cumsum(length)
    steps = int(ends[-1]) if len(ends) else 0
    accumulator = Accumulator(values.shape[1:])
    width = prod(values.shape[1:])
    at_once = _at_once(values.shape[1:], values.dtype.name)

    def rows(wanted: IntArray) -> IntArray:
        episode = np.searchsorted(ends, wanted, "right")
        found: IntArray = start[episode] + wanted - (ends - length)[episode]
        return found

    for a in range(0, steps, at_once):
        accumulator.add(values[rows(np.arange(a, min(a + at_once, steps)))])
    return accumulator.result(values[rows(sampled(steps, width))])


def _of_bytes(sample: Array) -> tuple[Float, Float, tuple[int, ...], float, float]:
    """Compute the results of ``_quantiles`` and ``_histogram`` for bytes, from the number of times each one occurs."""
    often = np.bincount(sample.reshape(-1), minlength=256)
    there = np.flatnonzero(often)
    before = np.cumsum(often[there])  # elements up to each byte that occurs
    places = np.array([0.01, 0.99]) * (before[-1] - 1)
    below = np.floor(places)
    left, right = (there[np.searchsorted(before, k, "right")] for k in (below, np.ceil(places)))
    found = left + (right - left) * (places - below)
    low, high = float(there[0]), float(there[-1])
    if low == high:
        return found[:1], found[1:], (int(before[-1]),), low, high
    scaled = ((there - low) * (BINS / (high - low))).astype(np.int64)
    counts = np.bincount(np.minimum(scaled, BINS - 1), often[there], BINS)
    return found[:1], found[1:], tuple(int(c) for c in counts), low, high


def _quantiles(sample: Array, width: int) -> tuple[Float, Float]:
    x = sample.reshape(-1, 1) if width == 1 and sample.ndim > 1 else sample.reshape(len(sample), -1)
    if x.size == 0:
        return np.full(width, np.nan), np.full(width, np.nan)
    x = x.astype(np.float64)
    finite = np.isfinite(x)
    if finite.all():
        return _outer(x)
    columns = [c[f] for c, f in zip(x.T, finite.T, strict=True)]
    pairs = np.array([_outer(c) if c.size else (np.nan, np.nan) for c in columns])
    return pairs[:, 0], pairs[:, 1]


def _outer(x: Float) -> tuple[Float, Float]:
    """Return `numpy.quantile` of 0.01 and 0.99 along the first axis; that one loads masked arrays first: 15 ms."""
    places = [q * (len(x) - 1) for q in (0.01, 0.99)]
    around = [(int(p), min(int(p) + 1, len(x) - 1)) for p in places]
    x = np.partition(x, sorted({*around[0], *around[1]}), axis=0)
    low, high = (_between(x[k], x[after], p - k) for p, (k, after) in zip(places, around, strict=True))
    return low, high


def _between(a: Float, b: Float, share: float) -> Float:
    return np.asarray(a + (b - a) * share if share < 0.5 else b - (b - a) * (1 - share))


def _histogram(sample: Array) -> tuple[tuple[int, ...], float, float]:
    x = sample.reshape(-1).astype(np.float64)
    x = x[np.isfinite(x)]
    if x.size == 0:
        return (), 0.0, 0.0
    low, high = float(x.min()), float(x.max())
    if low == high or not np.isfinite(high - low):
        return (int(x.size),), low, high
    scaled = in_bins(x, low, high - low, BINS).astype(np.int64)
    counts = np.bincount(np.minimum(scaled, BINS - 1), minlength=BINS)
    return tuple(counts.tolist()), low, high


# -- one pass over the rows of a field


@dataclass(frozen=True, slots=True)
class Scanned:
    """What one pass over a field gives: digests of its episodes, and of its rows if they are large; its statistics."""

    episodes: Digests
    rows: Digests | None
    stats: Stats | None  # None for fields of other values than numbers


def scan(values: Array, f: Field, table: EpisodeTable, threads: Executor | None) -> Scanned:
    """Hash the episodes of a field and compute its statistics, in this thread if there are no other ``threads``.

    Parameters
    ----------
    values : array [rows, ...]
        The rows of the episodes, end to end as ``table.start`` has them.
    """
    accumulator = Accumulator(f.shape) if values.dtype.kind in "biuf" else None
    at_once = _at_once(f.shape, f.dtype)
    start, last_rows = table.start, table.start + table.length
    count = digests.counted(f, table.length, table.num_observed)
    large = has_row_digests(f)
    # Some gigabytes of images are a single block: one thread hashes it while another one computes the statistics.
    apart = accumulator is not None and accumulator.pooled and f.dtype == "uint8" and len(values) <= BLOCK_ROWS
    works = ("hash", "count") if apart else ("both",)

    def look(task: tuple[int, str]) -> tuple[list[Digests], list[tuple[int, list[Moments | ByteSums]]]]:
        a, work = task
        hashes, found = [], []
        for rows, ends in _pieces(values[a : a + BLOCK_ROWS], a, last_rows, at_once):
            if work != "count" and large:  # the bytes of a piece are then in the core's cache for their statistics
                hashes.append(digests.of_rows(rows))
            elif work != "count":
                first, stop = np.searchsorted(start, (a, a + len(rows)))  # the episodes that begin in these rows
                end = int(start[stop - 1] + count[stop - 1]) if stop > first else a
                begun = slice(first, stop)
                hashes.append(digests.of_episodes(values[a : max(a, end)], start[begun] - a, count[begun]))
            if accumulator and work != "hash":
                found.append(accumulator.moments(_steps(rows, ends)))
            a += len(rows)
        return hashes, found

    tasks = [(a, work) for a in range(0, len(values), BLOCK_ROWS) for work in works]
    looked_at = threads.map(look, tasks) if threads else map(look, tasks)
    sample = values[_sampled_rows(len(values), last_rows, prod(f.shape))] if accumulator else None
    hashes = [np.zeros((0, 32), np.uint8)]
    for some, found in looked_at:
        hashes += some
        for steps, moments in found:
            assert accumulator is not None
            accumulator.merge(steps, moments)
    stats = accumulator.result(sample) if accumulator and sample is not None else None
    hashed = np.concatenate(hashes)
    return Scanned(digests.of_episodes(hashed, start, count), hashed, stats) if large else Scanned(hashed, None, stats)


def recount(read: Read, rows: int, f: Field, last_rows: IntArray) -> Stats:
    """Compute the statistics of a numeric field as `scan` does, in bounded memory, from rows that ``read`` returns."""
    accumulator, width = Accumulator(f.shape), prod(f.shape)
    wanted, sample = _sampled_rows(rows, last_rows, width), []
    at_once = _at_once(f.shape, f.dtype)
    step = at_once * max(1, _PIECE // max(1, at_once * width * np.dtype(f.dtype).itemsize))
    for block in range(0, rows, BLOCK_ROWS):
        stop = min(rows, block + BLOCK_ROWS)
        for a in range(block, stop, step):
            piece = read(a, min(stop, a + step))
            for some, ends in _pieces(piece, a, last_rows, at_once):
                accumulator.merge(*accumulator.moments(_steps(some, ends)))
            i, j = np.searchsorted(wanted, (a, a + len(piece)))
            sample.append(piece[wanted[i:j] - a])
    return accumulator.result(np.concatenate([np.zeros((0, *f.shape), f.dtype), *sample]))


def _pieces(block: Array, start: int, last_rows: IntArray, at_once: int) -> Iterator[tuple[Array, IntArray]]:
    """Divide a ``block`` of rows that begins at row ``start``; also yield which rows of a piece are not steps."""
    edges = [*range(0, len(block), at_once), len(block)]
    places = np.searchsorted(last_rows, np.add(edges, start)).tolist()
    for (a, b), (i, j) in zip(pairwise(edges), pairwise(places), strict=True):
        yield block[a:b], last_rows[i:j] - start - a


def _steps(rows: Array, ends: IntArray) -> Array:
    """Return ``rows`` without those numbered ``ends``."""
    if len(ends) == 0:
        return rows
    if len(ends) * _LONG > len(rows):
        return np.delete(rows, ends, axis=0)
    edges = [-1, *ends.tolist(), len(rows)]
    return np.concatenate([rows[a + 1 : b] for a, b in pairwise(edges)])


def _sampled_rows(rows: int, last_rows: IntArray, width: int) -> IntArray:
    """Return the rows of the steps that quantiles are computed from."""
    steps = rows - len(last_rows)
    index = sampled(steps, width)
    # Step k lies in the first episode that ends behind it. Each episode before adds one row that is no step.
    ends = np.arange(len(last_rows))
    np.subtract(last_rows, ends, out=ends)
    found: IntArray = index + np.searchsorted(ends, index, "right")
    return found


class LazyStats(Mapping[str, Mapping[str, Any]]):
    """Statistics of fields, computed when they are asked for.

    Parameters
    ----------
    fields : mapping of str to Field
    compute : callable
        Returns the statistics of a field, by its name.
    """

    def __init__(self, fields: Mapping[str, Field], compute: Callable[[str], Stats]) -> None:
        self._names = tuple(name for name, f in fields.items() if has_statistics(f))
        self._compute, self._known = compute, dict[str, Mapping[str, Any]]()

    @classmethod
    def over(
        cls,
        fields: Mapping[str, Field],
        rows: Callable[[str], Array],
        episodes: Callable[[], Mapping[str, Array]],
        index: IntArray | None = None,
    ) -> LazyStats:
        """Return those over the steps of all episodes, or of the episodes ``index`` [n].

        ``rows`` opens a field, and ``episodes`` the episode table.
        """

        def compute(name: str) -> Stats:
            start, length = (episodes()[name] for name in ("start", "length"))
            chosen = (start, length) if index is None else (start[index], length[index])
            return of_episodes(rows(name), *chosen)

        return cls(fields, compute)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> Mapping[str, Any]:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._known:
            self._known[name] = asdict(self._compute(name))
        return self._known[name]
