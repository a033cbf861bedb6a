"""One distribution, or the curves of one episode, as an SVG file."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from rlds_cli.dataset import Dataset
from rlds_cli.errors import RldsError, UnknownField
from rlds_cli.report import svg
from rlds_cli.report.elements import sampled_steps
from rlds_cli.report.episodes import number_of
from rlds_cli.report.histograms import distribution
from rlds_cli.store.ranges import read_range
from rlds_cli.ted import Array, Field

_BINS = 60
_POINTS = 2000  # more than a chart has pixels
_EPISODE_COLUMNS = {"returns": "total_reward", "lengths": "length"}
_ELEMENT = re.compile(r"(.+)\[([\d, ]+)\]")


def plot(ds: Dataset, what: str, *, episode: int | None = None) -> str:
    """Draw a histogram, or with ``episode`` a field over its steps.

    Parameters
    ----------
    what : str
        ``returns``, ``lengths``, a numeric column of the episode table, a numeric field (``action``), or one element
        of its rows (``action[2]``). Fields are drawn from a sample of at most 65,536 steps.
    episode : int, optional
        Its number; negative ones count from the end.

    Returns
    -------
    str
        An SVG document.

    Raises
    ------
    UnknownField, RldsError
        There is nothing of that name, or no numbers in it; there is no such episode.
    """
    if episode is not None:
        return _curves(ds, *_field(ds, what), number_of(ds, episode))
    column = _EPISODE_COLUMNS.get(what, what)
    if column in ds.episodes and what not in ds.schema:
        return _histogram(_numbers(ds, column), f"{what} of {ds.id}", what, "episodes")
    if what in _EPISODE_COLUMNS:
        raise UnknownField(f"{ds.id} has no {what}: it has no rewards.")
    f, element = _field(ds, what)
    values = sampled_steps(ds, f).reshape(-1, max(1, int(np.prod(f.shape, dtype=np.int64))))
    values = values if element is None else values[:, element]
    return _histogram(values, f"{what} of {ds.id}", what, "steps" if element is not None or not f.shape else "values")


def _numbers(ds: Dataset, column: str) -> Array:
    values = np.asarray(ds.episodes[column])
    if values.dtype.kind not in "biuf":
        raise RldsError(f"{column} is no column of numbers.", hint="rlds inspect --plot returns, lengths or a field")
    return values


def _histogram(values: Array, title: str, x: str, y: str) -> str:
    found = distribution(values, bins=_BINS)
    if found is None:
        raise RldsError(f"{title}: there are no finite numbers to draw.")
    return svg.bars(found.histogram, title=title, x=x, y=y)


def _field(ds: Dataset, what: str) -> tuple[Field, int | None]:
    """A numeric field, and the element of its rows that is asked for; None for all."""
    match = _ELEMENT.fullmatch(what) if what not in ds.schema else None
    f = ds.field(match[1] if match else what)
    if f.kind != "array" or np.dtype(f.dtype).kind not in "biuf" or 0 in f.shape:
        raise RldsError(f"{f.name} of {ds.id} holds no numbers to draw.")
    if match is None:
        return f, None
    place = tuple(int(k) for k in match[2].split(","))
    if len(place) != len(f.shape) or any(k >= n for k, n in zip(place, f.shape, strict=True)):
        raise RldsError(f"{f.name} has rows of shape {list(f.shape)}: there is no element {list(place)}.")
    return f, int(np.ravel_multi_index(place, f.shape))


def _curves(ds: Dataset, f: Field, element: int | None, episode: int) -> str:
    start = int(ds.episodes["start"][episode])
    stop = start + int(ds.episodes["num_observed" if f.placement == "both" else "length"][episode])
    values = np.asarray(read_range(ds.store.directory(f.name), start, stop), np.float64).reshape(stop - start, -1)
    shown = range(min(values.shape[1], svg.COLOURS)) if element is None else [element]
    places = [list(map(int, np.unravel_index(k, f.shape))) if f.shape else [] for k in shown]
    lines = [_curve(str(p) if p else f.name, values[:, k]) for k, p in zip(shown, places, strict=True)]
    more = values.shape[1] - len(lines) if element is None else 0
    name = f.name + (str(places[0]) if element is not None else "")
    title = f"{name}, episode {episode:,} of {ds.id}"
    return svg.curves(lines, title=title, x="step" + (f"   ({more} more elements are not drawn)" if more else ""))


def _curve(name: str, values: npt.NDArray[np.float64]) -> svg.Curve:
    """A curve of at most about 2,000 points: of longer stretches the least and the greatest value, in their order."""
    if len(values) <= _POINTS:
        return svg.Curve(name, values.tolist())
    edges = np.linspace(0, len(values), _POINTS // 2 + 1).astype(np.int64)
    kept = set[int]()
    for a, b in pairwise(edges):
        part = values[a:b]
        if np.isfinite(part).any():
            kept |= {int(a + np.nanargmin(part)), int(a + np.nanargmax(part))}
    at = sorted(kept)
    return svg.Curve(name, values[at].tolist(), [float(k) for k in at])
