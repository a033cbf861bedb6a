"""Statistics of columns with the names and shapes that lerobot computes.

For an array of numbers they are per element of the last axis in v3 (``lerobot.datasets.compute_stats`` of 0.4), and per
element of a row in v2.1 (of 0.3). Those of images are per channel, [3, 1, 1], of values in [0, 1], from a few frames.
Statistics of episodes are joined as lerobot joins them: a quantile is the mean of those of the episodes.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rlds_cli.formats import parquet
from rlds_cli.ted import Array

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
_SAMPLE = 128  # rows of an episode, about, that quantiles are taken from
_PIECE = 1 << 20  # values that are converted at once
_SIDE_BY_SIDE = 512  # values
_LARGE = 300  # sides of an image from which lerobot leaves out pixels, to about this
_SMALL = 150

Statistics = dict[str, Any]  # min max mean std count, quantiles: float64 arrays


@np.errstate(over="ignore", invalid="ignore")
def of_rows(values: Array, *, by_last_axis: bool) -> Statistics:
    """Return the statistics of rows [n, ...], n > 0.

    Parameters
    ----------
    by_last_axis : bool
        Take all axes but the last one together, and add quantiles: v3.
    """
    count = len(values)
    flat = values.reshape(count, -1) if values.ndim < 2 or not by_last_axis else values.reshape(-1, values.shape[-1])
    step = max(1, _PIECE // flat.shape[1])
    pieces = [_of_piece(flat[a : a + step]) for a in range(0, len(flat), step)]
    found = joined(pieces)
    if by_last_axis:
        found |= _quantiles(flat[:: -(-len(flat) // _SAMPLE)])
    shape = values.shape[1:] or (1,)
    shape = shape[-1:] if by_last_axis else shape
    found = {name: np.asarray(v).reshape(shape) for name, v in found.items() if name != "count"}
    return found | {"count": np.array([count])}


def of_line(values: Array, *, by_last_axis: bool) -> Statistics:
    """Return what `of_rows` returns, of numbers that are evenly spaced: counts and times."""
    count, low, high = len(values), float(values[0]), float(values[-1])
    std = (high - low) * np.sqrt((count + 1) / (12 * (count - 1))) if count > 1 else 0.0
    found = {"min": low, "max": high, "mean": (low + high) / 2, "std": std}
    found |= {name: low + q * (high - low) for name, q in QUANTILES.items()} if by_last_axis else {}
    return {name: np.array([v]) for name, v in found.items()} | {"count": np.array([count])}


def _of_piece(flat: Array) -> Statistics:
    """Return the statistics of [n, width]; narrow rows are added up side by side, which is faster."""
    count, width = flat.shape
    if width == 1:
        x = flat[:, 0].astype(np.float64)
        found = {"min": x.min(), "max": x.max(), "mean": x.mean(), "std": x.std()}
        return {name: v[None] for name, v in found.items()} | {"count": np.array([count])}
    beside = next(k for k in range(max(1, min(count, _SIDE_BY_SIDE // width)), 0, -1) if count % k == 0)
    folded = flat.reshape(-1, beside * width)
    x = folded.astype(np.float64)
    mean = x.sum(0).reshape(beside, width).sum(0) / count
    x -= np.tile(mean, beside)
    squares = np.einsum("ij,ij->j", x, x).reshape(beside, width).sum(0)
    return {
        "min": folded.min(0).reshape(beside, width).min(0).astype(np.float64),
        "max": folded.max(0).reshape(beside, width).max(0).astype(np.float64),
        "mean": mean,
        "std": np.sqrt(squares / count),
        "count": np.array([count]),
    }


def _quantiles(sample: Array) -> Statistics:
    """Return quantiles of [n, width] by linear interpolation."""
    ordered = np.sort(sample.astype(np.float64), axis=0)
    at = np.array(list(QUANTILES.values())) * (len(ordered) - 1)
    below = at.astype(np.int64)
    above = np.minimum(below + 1, len(ordered) - 1)
    values = ordered[below] + (ordered[above] - ordered[below]) * (at - below)[:, None]
    return dict(zip(QUANTILES, values, strict=True))


def of_images(images: Iterable[bytes]) -> Statistics | None:
    """Return the statistics of encoded images; None if none can be decoded."""
    from PIL import Image

    found = []
    for data in images:
        try:
            with Image.open(io.BytesIO(data), formats=("PNG", "JPEG")) as image:
                found.append(of_pixels(np.asarray(image.convert("RGB"))))
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
            continue  # statistics are of a sample anyway, and the file is copied as it is
    return joined(found) if found else None


def of_pixels(image: Array) -> Statistics:
    """Return the statistics of an image, uint8 [H, W, 3]."""
    side = max(image.shape[:2])
    step = 1 if side < _LARGE else max(1, side // _SMALL)
    pixels = image[::step, ::step].reshape(-1, 3) / 255.0
    found = _of_piece(pixels)
    found |= _quantiles(pixels)
    return {name: v.reshape(3, 1, 1) for name, v in found.items() if name != "count"} | {"count": np.array([1])}


@np.errstate(over="ignore", invalid="ignore")
def joined(parts: list[Statistics]) -> Statistics:
    """Join the statistics of parts, at least one, weighted by their numbers of rows."""
    if len(parts) == 1:
        return parts[0]
    counts = np.array([float(p["count"][0]) for p in parts])
    total = counts.sum()

    def weighted(values: Array) -> Array:
        mean: Array = np.tensordot(counts, values, 1) / total
        return mean

    means = np.stack([p["mean"] for p in parts])
    mean = weighted(means)
    found = {
        "min": np.min([p["min"] for p in parts], axis=0),
        "max": np.max([p["max"] for p in parts], axis=0),
        "mean": mean,
        "std": np.sqrt(weighted(np.stack([p["std"] for p in parts]) ** 2 + (means - mean) ** 2)),
        "count": np.array([int(total)]),
    }
    return found | {q: weighted(np.stack([p[q] for p in parts])) for q in QUANTILES if all(q in p for p in parts)}


def columns(found: Sequence[Mapping[str, Statistics]]) -> dict[str, Any]:
    """Return statistics of episodes as columns of Arrow, ``stats/KEY/NAME``; null where an episode has none."""
    pa = parquet.pyarrow()
    names = dict.fromkeys((key, name) for of in found for key, s in of.items() for name in s)
    made: dict[str, Any] = {}
    for key, name in names:
        values = [of[key][name] if key in of else None for of in found]
        if any(v is None for v in values):
            made[f"stats/{key}/{name}"] = pa.array([None if v is None else v.tolist() for v in values])
        else:
            made[f"stats/{key}/{name}"] = lists_of(np.stack(values))  # type: ignore[arg-type]
    return made


def lists_of(values: Array) -> Any:
    """Return an array [n, ...] as lists of lists."""
    pa = parquet.pyarrow()
    column = pa.array(np.ascontiguousarray(values).reshape(-1))
    for side in reversed(values.shape[1:]):
        ends = np.arange(0, len(column) + 1, side, dtype=np.int32)
        column = pa.ListArray.from_arrays(pa.array(ends), column)
    return column


def plain(found: Mapping[str, Statistics]) -> dict[str, dict[str, Any]]:
    """Return statistics by column as JSON values."""
    return {key: {name: np.asarray(v).tolist() for name, v in of.items()} for key, of in found.items()}


def of_json(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Statistics]:
    """Return the statistics of `plain`."""
    return {key: {name: np.asarray(v) for name, v in of.items()} for key, of in found.items()}
