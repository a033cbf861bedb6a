"""The columns of the table of episodes, and the choice of episodes for the table and the viewer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlds_cli.checks.findings import Finding
from rlds_cli.dataset import Dataset
from rlds_cli.errors import RldsError
from rlds_cli.report.columns import evenly
from rlds_cli.ted import END_NAMES, Array, IntArray

_TEXT_BYTES = 300_000  # most characters of a column of text; a longer column is left out
_LONGEST = 60  # characters of a text; a longer one is cut


@dataclass(frozen=True, slots=True)
class Listing:
    """Columns over the listed episodes, ready for JSON; ``of`` is the number of episodes in the dataset.

    ``end`` has indices into END_NAMES, ``splits`` lists of indices into ``split_names``. A column that the dataset
    lacks is None. ``own`` are the user's own columns, as numbers or texts.
    """

    of: int
    number: list[int]
    length: list[int]
    total: list[float | None] | None
    score: list[float | None] | None
    end: list[int]
    observed: list[int]
    findings: list[int]
    group: list[str] | None
    seed: list[str] | None
    splits: list[list[int]] | None
    split_names: list[str]
    own: dict[str, list[Any]]

    @property
    def ends(self) -> tuple[str, ...]:
        """The names that ``end`` has indices into."""
        return END_NAMES


def list_episodes(ds: Dataset, findings: Iterable[Finding], needed: Iterable[int]) -> Listing:
    """List all episodes, or at most 10,000: the ``needed`` ones, and evenly spaced ones."""
    e, k = ds.episodes, listed(ds, needed)
    total = e.get("total_reward")
    score = None if total is None else _scores(ds, total)
    named = Counter(n for f in findings for n in {p.episode for p in f.places})
    splits = e.splits
    return Listing(
        of=ds.num_episodes,
        number=k.tolist(),
        length=e["length"][k].tolist(),
        total=None if total is None else _numbers(total[k]),
        score=None if score is None else _numbers(score[k]),
        end=[END_NAMES.index(str(end)) for end in e["end"][k]],
        observed=(e["num_observed"] > e["length"])[k].astype(int).tolist(),
        findings=[named[int(n)] for n in k],
        group=_texts(e["group"][k]),
        seed=_seeds(ds, k),
        splits=[[i for i, name in enumerate(splits) if e[name][n]] for n in k.tolist()] if splits else None,
        split_names=[cut(name) for name in splits],
        own={name: values for name in ds.store.own_columns if (values := _own(e[name][k])) is not None},
    )


def _scores(ds: Dataset, total: Array) -> Array | None:
    try:
        return 100 * ds.normalized_score(total)
    except RldsError:
        return None


def _numbers(values: Array) -> list[float | None]:
    return [float(f"{x:.7g}") if np.isfinite(x) else None for x in values.tolist()]


def _texts(values: Iterable[Any]) -> list[str] | None:
    texts = [cut(str(v)) if v else "" for v in values]
    size = sum(map(len, texts))
    return texts if 0 < size <= _TEXT_BYTES else None


def _own(values: Array) -> list[Any] | None:
    """Numbers as they are; flags and texts as words."""
    if values.dtype.kind in "iuf":
        return _numbers(values)
    words = {True: "yes", False: "no", None: ""}
    return _texts([words[v] if v is None or isinstance(v, bool) else v for v in values.tolist()])


def _seeds(ds: Dataset, k: IntArray) -> list[str] | None:
    """Seeds as text: they have up to 64 bits, and a number in JavaScript 53."""
    e: Any = ds.episodes
    if "seed" not in e or not e["has_seed"].any():
        return None
    return [str(s) if has else "" for s, has in zip(e["seed"][k].tolist(), e["has_seed"][k].tolist(), strict=True)]


def cut(text: str, longest: int = _LONGEST) -> str:
    """Shorten a text to ``longest`` characters."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


# -- the choice of episodes

MOST_LISTED = 10_000
MOST_SHOWN = 32
_MOST_OF_FINDINGS = 12  # of the episodes shown


def viewed(ds: Dataset, findings: Iterable[Finding]) -> dict[int, tuple[str, ...]]:
    """Choose the episodes of the viewer: (number -> reasons), in order.

    Of more than 32: best and worst, median, longest and shortest, those with findings, and evenly spaced ones.
    """
    reasons: dict[int, list[str]] = {}
    for number, why in _candidates(ds, findings):
        if number in reasons:
            if why and why not in reasons[number]:
                reasons[number].append(why)
        elif len(reasons) < MOST_SHOWN:
            reasons[number] = [why] if why else []
    return {k: tuple(reasons[k]) for k in sorted(reasons)}


def _candidates(ds: Dataset, findings: Iterable[Finding]) -> Iterator[tuple[int, str]]:
    if not ds.num_episodes:
        return
    lengths, returns = np.asarray(ds.episodes["length"]), ds.episodes.get("total_reward")
    if returns is not None and np.isfinite(returns).any():
        returns = np.where(np.isfinite(returns), returns, np.nan)
        middle = np.abs(returns - np.nanmedian(returns))
        yield int(np.nanargmax(returns)), "highest return"
        yield int(np.nanargmin(returns)), "lowest return"
        yield int(np.nanargmin(middle)), "median return"
    yield int(lengths.argmax()), "longest"
    yield int(lengths.argmin()), "shortest"
    named = dict.fromkeys(place.episode for f in findings for place in f.places if place.episode < ds.num_episodes)
    yield from ((k, "finding") for k in list(named)[:_MOST_OF_FINDINGS])
    yield from ((int(k), "") for k in evenly(ds.num_episodes, MOST_SHOWN))


def listed(ds: Dataset, needed: Iterable[int]) -> IntArray:
    """Choose the episodes of the table, ascending: all of them, or the ``needed`` and evenly spaced ones."""
    if ds.num_episodes <= MOST_LISTED:
        return np.arange(ds.num_episodes)
    spaced = evenly(ds.num_episodes, MOST_LISTED - MOST_SHOWN)
    return np.union1d(spaced, np.array(sorted(needed), np.int64))
