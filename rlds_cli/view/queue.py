"""Which episodes are to be decided next: those of a filter that a person has not decided on, in an order."""

from __future__ import annotations

import numpy as np
from starlette.responses import Response

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.mixing import mixed
from rlds_cli.dataset import Dataset
from rlds_cli.errors import InvalidArgument
from rlds_cli.look import EpisodeTable
from rlds_cli.view.deciding import heads, ids
from rlds_cli.view.query import Query, record

_MEASURE, _TWINS = "quality_", "quality_twin_distance"
_NO_NUMBERS = ("str", "bool")
_NORMAL = 1.4826  # times the median absolute deviation: the standard deviation of normal values
_MOST = 200


def queue(query: Query) -> Response:
    """Answer with the next episodes, and how many of all are decided."""
    ds = query.dataset
    table, by = query.once(ds, EpisodeTable), query.text("by", "")
    numbers = table.numbers(
        where=query.text("where", "") or None,
        sort=query.text("sort", "") or None,
        descending=query.text("descending", "") == "1",
    )
    of = query.once(ds, ids)
    with query.kept(ds) as kept:
        mine = heads(kept.decided(by))
        others = heads(kept.decided()) if query.text("of", "") == "others" else None
    if others is not None:
        numbers = numbers[np.isin(of[numbers], others)]
    left = ~np.isin(of[numbers], mine)
    ordered = in_order(ds, of, numbers[left], query.text("order", "table"), query.integer("seed", 0))
    first, count = query.integer("first", 0), query.integer("count", 20)
    if first < 0 or not 0 <= count <= _MOST:
        raise InvalidArgument(f"{count:,} episodes from {first:,} on are not listed.", hint=f"at most {_MOST}")
    return record(
        query,
        {
            "of": len(numbers),
            "decided": len(numbers) - len(ordered),
            "orders": orders(ds),
            "episodes": ordered[first : first + count].tolist(),
        },
    )


def measures(ds: Dataset) -> list[str]:
    """Return the names of the measures that a dataset has: computed ones, and those that are columns of it."""
    own = [
        n for n in ds.store.own_columns if n.startswith(_MEASURE) and ds.store.own_column(n).dtype not in _NO_NUMBERS
    ]
    return [*ds.episodes.measures, *own]


def orders(ds: Dataset) -> list[str]:
    """Return the orders that a dataset has: some take measures."""
    found = measures(ds)
    return ["table", "random", *(["outliers"] if found else []), *(["twins"] if _TWINS in found else [])]


def in_order(ds: Dataset, ids: IntArray, numbers: IntArray, order: str, seed: int) -> IntArray:
    """Return numbers of episodes in an order, which does not depend on those that are gone.

    Parameters
    ----------
    ids : int64 array [episodes]
        The first bytes of the ids of all episodes.
    numbers : int array [n]
    order : {"table", "random", "outliers", "twins"}
        As given; by a hash of ids and ``seed``; by the greatest robust deviation of any measure, greatest first; by the
        distance to the nearest other episode, least first.

    Raises
    ------
    InvalidArgument
        There is no such order, or the measures that it takes were not computed.
    """
    if order == "table":
        return numbers
    if order not in orders(ds):
        raise InvalidArgument(
            f"{ds.id} has no order {order[:40]}: there are {', '.join(orders(ds))}.",
            hint=f"rlds check {ds.id} --measure all computes the measures that outliers and twins take",
        )
    if order == "random":
        keys: Array = mixed(ids[numbers].view(np.uint64), seed)
    elif order == "twins":
        keys = np.nan_to_num(ds.episodes[_TWINS][numbers].astype(np.float64), nan=np.inf)
    else:
        keys = -_deviation(ds)[numbers]
    return np.asarray(numbers[np.argsort(keys, kind="stable")])


def _deviation(ds: Dataset) -> Array:
    """Return how far each episode is from the others: the most robust standard deviations that a measure has."""
    found = np.zeros(ds.num_episodes)
    for name in measures(ds):
        values = ds.episodes[name].astype(np.float64)
        if not np.isfinite(values).any():
            continue
        away = np.abs(values - np.nanmedian(values))
        usual = _NORMAL * np.nanmedian(away)
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.fmax(found, np.where(away == 0, 0.0, away / usual))
    return found
