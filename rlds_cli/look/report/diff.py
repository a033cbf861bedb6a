"""Compare two datasets: fields, counts, drift of the statistics, hashes, values, and episodes that one of them lacks.

Values are compared field by field, in bounded memory, if both datasets have episodes of the same lengths.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rlds_cli.base.array_types import Array, BoolArray, IntArray
from rlds_cli.base.settings import StrPath
from rlds_cli.base.text import is_below
from rlds_cli.dataset import Dataset, ProvenanceStep, open_dataset
from rlds_cli.errors import RldsError
from rlds_cli.look.checks.episodes import episode_keys
from rlds_cli.look.checks.findings import FindingPlace
from rlds_cli.look.checks.subject import Subject
from rlds_cli.look.report import labels
from rlds_cli.look.report.columns import Distribution, distribution
from rlds_cli.look.report.labels import ColumnDifference, FactDifference
from rlds_cli.look.report.order import rank
from rlds_cli.look.report.summary import of_episodes
from rlds_cli.store import ContentDigests
from rlds_cli.store.manifest import Counts, StoredField
from rlds_cli.ted import Field

Change = Literal["same", "content", "type", "added", "removed"]
Range = tuple[int, int]
FEW = 8  # episodes that are listed on each side
_TILE_BYTES = 1 << 20  # fits the cache of a core
_NUMBERS = "biuf"  # NumPy's kinds of numeric fields
_ROOTS = ("observation", "action", "next/reward")


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two datasets."""

    id: str
    path: Path
    fingerprint: str
    encoding: str
    version: int = 1


@dataclass(frozen=True, slots=True)
class CountDifference:
    """One of the counts of the manifest, ``rows`` to ``terminated_inside``."""

    name: str
    a: int
    b: int


@dataclass(frozen=True, slots=True)
class Drift:
    """Change of the statistics of a field from ``a`` to ``b``.

    ``shift`` is the greatest change of the mean of an element, in standard deviations of ``a`` (infinite if that is 0),
    and ``element`` is the index of that element. ``spread`` is the ratio of standard deviations (b / a) that is
    farthest from 1. The other values are over all elements.
    """

    shift: float
    element: str
    spread: float
    mean_a: float
    mean_b: float
    min_a: float
    min_b: float
    max_a: float
    max_b: float


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Two values are close where ``|a - b| <= atol + rtol * |b|``, as in ``numpy.isclose``; NaN is close to NaN."""

    rtol: float = 0.0
    atol: float = 0.0

    @property
    def is_exact(self) -> bool:
        """True if only equal values are close."""
        return self.rtol == self.atol == 0


@dataclass(frozen=True, slots=True)
class Deviation:
    """Difference of the values of one field.

    ``greatest`` is the greatest absolute difference (infinite if a value is finite in one dataset only) and ``at`` its
    first place. ``beyond`` counts values that are not close, of ``values`` compared.
    """

    greatest: float
    at: FindingPlace | None
    beyond: int
    values: int


@dataclass(frozen=True, slots=True)
class FieldDifference:
    """One field in both datasets.

    ``a`` and ``b`` are its dtype, shape, placement and codec, the digests hashes of its content; they are None where a
    dataset lacks the field. If both datasets have the same number of episodes, ``differing`` of them have other values,
    the first of them number ``first``. ``deviation`` measures the difference of the numbers, if episodes have the same
    lengths.
    """

    name: str
    change: Change
    a: str | None
    b: str | None
    digest_a: str | None
    digest_b: str | None
    differing: int | None = None
    first: int | None = None
    drift: Drift | None = None
    deviation: Deviation | None = None


@dataclass(frozen=True, slots=True)
class EpisodesDifference:
    """Episodes of both datasets, matched by their ``origin`` in the archive or by their ``content``.

    ``removed`` are the first episodes of ``a`` that ``b`` lacks, ``added`` the first episodes of ``b`` that ``a``
    lacks. ``reordered``: the common episodes have different orders.
    """

    told_by: Literal["origin", "content"]
    in_both: int
    num_removed: int
    num_added: int
    removed: tuple[int, ...]
    added: tuple[int, ...]
    reordered: bool


@dataclass(frozen=True, slots=True)
class Difference:
    """Result of ``rlds diff``.

    ``same``: content and fingerprint are equal, in any encoding. ``close``: the same, or within a given tolerance, with
    everything else equal: names of fields, texts, lengths, ends, seeds, splits. ``columns`` are the users' episode
    columns that differ. ``facts`` are not content: also of the same content they may differ. ``why`` says by which
    measures episodes and steps of either dataset were chosen, see docs/guides/findings.md.
    """

    a: Side
    b: Side
    same: bool
    close: bool
    tolerance: Tolerance
    counts: tuple[CountDifference, ...]
    fields: tuple[FieldDifference, ...]
    returns: tuple[Distribution | None, Distribution | None]
    lengths: tuple[Distribution | None, Distribution | None]
    episodes: EpisodesDifference | None
    columns: tuple[ColumnDifference, ...] = ()
    facts: tuple[FactDifference, ...] = ()
    why: tuple[str, ...] = ()


def compare(
    a: str | os.PathLike[str] | Dataset,
    b: str | os.PathLike[str] | Dataset,
    *,
    rtol: float = 0.0,
    atol: float = 0.0,
    home: StrPath | None = None,
) -> Difference:
    """Compare two datasets by their manifests and episode tables, and by the rows of the blocks that differ.

    Parameters
    ----------
    a, b : str, path or Dataset
        Ids, directories, or open datasets (compared as a whole).
    rtol, atol : float
        Two numbers are close where ``|a - b| <= atol + rtol * |b|``, as in ``numpy.isclose``.

    Raises
    ------
    DatasetNotFound, DamagedDataset, NewerFormat
        As of ``open_dataset``.
    RldsError
        A tolerance is negative or NaN.

    Examples
    --------
    >>> compare("local/press", "local/press-again", rtol=1e-5, atol=1e-8).close  # doctest: +SKIP
    True
    """
    if not (rtol >= 0 and atol >= 0):
        raise RldsError(f"rtol={rtol} and atol={atol} must not be negative.", hint="0 requires equal values")
    tolerance = Tolerance(rtol, atol)
    one, other = (x if isinstance(x, Dataset) else open_dataset(x, home=home) for x in (a, b))
    one, other = Dataset(one.store), Dataset(other.store)
    same = one.fingerprint == other.fingerprint
    found = tuple(_fields(one, other, tolerance))
    return Difference(
        a=_side(one),
        b=_side(other),
        same=same,
        close=same or (not tolerance.is_exact and all(map(_is_close, found)) and _same_episodes(one, other)),
        tolerance=tolerance,
        counts=tuple(_counts(of_episodes(one.manifest.counts), of_episodes(other.manifest.counts))),
        fields=found,
        returns=(_returns(one), _returns(other)),
        lengths=(distribution(one.episodes["length"]), distribution(other.episodes["length"])),
        episodes=None if same else _episodes(one, other),
        columns=() if same else tuple(labels.of_columns(one, other)),
        facts=tuple(labels.of_facts(one, other)),
        why=() if same else tuple(_whys(one, other)),
    )


def _whys(one: Dataset, other: Dataset) -> Iterator[str]:
    """Say why two datasets have other episodes and labels, as far as it is not why both have theirs."""
    a, b = list(_why(one)), list(_why(other))
    yield from (f"a: {says}" for says in a if says not in b)
    yield from (f"b: {says}" for says in b if says not in a)


def _why(ds: Dataset) -> Iterator[str]:
    """Say by which measures and decisions episodes and steps were chosen and labelled, as the provenance has it."""
    grows = ds.manifest.growing and not ds.store.address
    yield from (said for v in (ds.versions if grows else ()) if v.number <= ds.version for said in v.decided)
    for step in ds.manifest.provenance:
        yield from ProvenanceStep(step).decided
        for account in step.get("args", {}).get("measured", ()):
            with suppress(AttributeError, KeyError, TypeError):  # the manifest may be a stranger's
                yield from _told(account, str(step["from"]))


def _told(account: Mapping[str, Any], source: str) -> Iterator[str]:
    if "where" in account:
        yield f"chosen from {source} where {account['where']}"
    for f in account.get("findings", ()):
        numbers, does = list(map(int, f["episodes"])), "trimmed" if "trim" in account else "left out"
        named = f"{', '.join(map(str, numbers[:FEW]))}{', ...' if len(numbers) > FEW else ''}"
        by = f" by {f['measure']}" if f["measure"] else ""
        yield f"{f['code']}{by}: {does} of {source}: {named}"
    if "rule" in account:
        yield f"{account['trim']}: a rule for all episodes of {source}"


def _side(ds: Dataset) -> Side:
    return Side(ds.id, ds.path, ds.fingerprint, ds.encoding, ds.version)


def _counts(a: Counts, b: Counts) -> list[CountDifference]:
    return [CountDifference(f.name, getattr(a, f.name), getattr(b, f.name)) for f in fields(a)]


def _returns(ds: Dataset) -> Distribution | None:
    returns = ds.episodes.get("total_reward")
    return None if returns is None else distribution(returns)


# -- fields


def _is_close(f: FieldDifference) -> bool:
    return f.change == "same" or (f.deviation is not None and not f.deviation.beyond)


def _fields(a: Dataset, b: Dataset, tolerance: Tolerance) -> Iterator[FieldDifference]:
    names = {f.name: f for f in (*a.schema.values(), *b.schema.values())}
    stored_a, stored_b = ({f.name: _with_digest(ds, f) for f in ds.manifest.fields} for ds in (a, b))
    subjects, alike = (Subject(a), Subject(b)), _same_lengths(a, b)
    for name in (f.name for f in sorted(names.values(), key=rank)):
        one, other = stored_a.get(name), stored_b.get(name)
        found = _field(a, b, one, other, name)
        if one and other and alike and found.change in ("content", "type"):
            ranges = _ranges(a, b, one, other) if found.change == "content" else [(0, _num_rows(a))]
            found = replace(found, deviation=deviation(*subjects, name, ranges, tolerance))
        yield found


def _same_lengths(a: Dataset, b: Dataset) -> bool:
    return np.array_equal(a.episodes["length"], b.episodes["length"])


def _field(a: Dataset, b: Dataset, one: StoredField | None, other: StoredField | None, name: str) -> FieldDifference:
    kinds = [_kind(ds.schema[name]) if name in ds.schema else None for ds in (a, b)]
    known = [f.digest if f else None for f in (one, other)]
    found = FieldDifference(name, "same", kinds[0], kinds[1], known[0], known[1])
    if one is None or other is None:
        return replace(found, change="added" if one is None else "removed")
    if kinds[0] != kinds[1]:
        return replace(found, change="type", drift=_drift(a, b, name))
    if known[0] == known[1]:
        return found
    differ = _differing(a, b, one, other)
    found = replace(found, change="content", drift=_drift(a, b, name))
    if differ is None or not differ.any():
        return found
    return replace(found, differing=int(differ.sum()), first=int(np.argmax(differ)))


def _kind(f: Field) -> str:
    return f"{f.codec or f.dtype} {list(f.shape)} {f.placement}"


def _differing(a: Dataset, b: Dataset, one: StoredField, other: StoredField) -> BoolArray | None:
    """Return a mask of the episodes whose values differ; None if the datasets have other numbers of episodes."""
    if a.num_episodes != b.num_episodes:
        return None
    x, y = (ds.store.digests(f.name)[ds.episodes.index] for ds, f in ((a, one), (b, other)))
    return np.asarray((x != y).any(axis=1))


def _num_rows(ds: Dataset) -> int:
    return ds.num_steps + ds.num_episodes


def _with_digest(ds: Dataset, f: StoredField) -> StoredField:
    """Return a field with the digest of the episodes of the dataset; the manifest of a growing one has none."""
    return replace(f, digest=ds.store.table.field_digest(f.name))


def _ranges(a: Dataset, b: Dataset, one: StoredField, other: StoredField) -> list[Range]:
    """Return the rows of differing episodes of equal lengths, as runs; all rows if episodes do not correspond."""
    differ = _differing(a, b, one, other)
    if differ is None:
        return [(0, _num_rows(a))]
    edges = np.concatenate([[0], np.cumsum(a.episodes["length"] + 1)])
    changes = np.flatnonzero(np.diff(np.concatenate([[False], differ, [False]]).astype(np.int8)))
    return [(int(edges[i]), int(edges[j])) for i, j in changes.reshape(-1, 2)]


def _drift(a: Dataset, b: Dataset, name: str) -> Drift | None:
    one, other = a.stats.get(name), b.stats.get(name)
    if one is None or other is None or np.shape(one.mean) != np.shape(other.mean) or np.size(one.mean) == 0:
        return None
    mean_a, mean_b, std_a, std_b = (np.ravel(np.asarray(x, float)) for x in (one.mean, other.mean, one.std, other.std))
    known = np.isfinite(mean_a) & np.isfinite(mean_b)
    if not known.any():
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        moved = np.where(known & (mean_a != mean_b), np.abs(mean_b - mean_a) / std_a, 0)
        ratio = np.where(known & (std_a != std_b), std_b / std_a, 1)
    k = int(np.argmax(moved))
    wide = int(np.argmax(np.abs(np.log(np.where(ratio > 0, ratio, np.inf)))))
    index = str([int(i) for i in np.unravel_index(k, np.shape(one.mean))]) if np.shape(one.mean) else ""
    ends = (_least(one.min), _least(other.min), _greatest(one.max), _greatest(other.max))
    return Drift(float(moved[k]), index, float(ratio[wide]), _mean(mean_a), _mean(mean_b), *ends)


def _mean(x: Array) -> float:
    return float(np.nanmean(x))


def _least(x: Any) -> float:
    return float(np.nanmin(np.asarray(x, float)))


def _greatest(x: Any) -> float:
    return float(np.nanmax(np.asarray(x, float)))


# -- episodes


def _same_episodes(a: Dataset, b: Dataset) -> bool:
    """Compare the columns of the episode tables that are content: all except sources, sums and counts."""
    one, other = (ContentDigests.of({}, ds.store.episode_table()) for ds in (a, b))
    return one == other


def _episodes(a: Dataset, b: Dataset) -> EpisodesDifference | None:
    origins = _origins(a), _origins(b)
    if _one_archive(a, b) and all(len(np.unique(o)) == len(o) for o in origins):
        return _matched("origin", *origins)
    columns = _common(a, b)
    if not columns:
        return None
    return _matched("content", *(episode_keys(Subject(ds), columns) for ds in (a, b)))


def _one_archive(a: Dataset, b: Dataset) -> bool:
    sources = [ds.manifest.archive.get("sha256") for ds in (a, b)]
    return sources[0] is not None and sources[0] == sources[1]


def _origins(ds: Dataset) -> Array:
    """The file, group and first row of every episode, as one key."""
    e = ds.episodes
    groups = np.asarray([_hash_text(g) for g in e["group"]], np.uint64)
    keys = np.stack([np.asarray(e["source"], np.uint64), np.asarray(e["row"], np.uint64), groups], 1)
    return np.ascontiguousarray(keys).view([("", np.uint64)] * 3).ravel()


def _hash_text(text: str) -> int:
    """64 bits of a text, the same in every process."""
    return zlib.crc32(text.encode()) << 32 | zlib.adler32(text.encode())


def _common(a: Dataset, b: Dataset) -> list[Field]:
    """Fields by which episodes can be matched: observations, actions and rewards with the same type in both."""
    named = [f for f in a.schema.values() if any(is_below(f.name, r) for r in _ROOTS)]
    return [f for f in named if b.schema.get(f.name) == f and f.kind != "text" and 0 not in f.shape]


def _matched(told_by: Literal["origin", "content"], a: Array, b: Array) -> EpisodesDifference:
    """Match keys; equal keys are matched in their order, as often as both datasets have them."""
    numbers = np.unique(np.concatenate([a, b]), return_inverse=True)[1].ravel()
    one, other = _occurrence(numbers[: len(a)]), _occurrence(numbers[len(a) :])
    removed = np.flatnonzero(~np.isin(one, other))
    added = np.flatnonzero(~np.isin(other, one))
    kept_a, kept_b = one[np.isin(one, other)], other[np.isin(other, one)]
    first = tuple(int(k) for k in removed[:FEW]), tuple(int(k) for k in added[:FEW])
    return EpisodesDifference(
        told_by, len(kept_a), len(removed), len(added), *first, reordered=not np.array_equal(kept_a, kept_b)
    )


def _occurrence(numbers: IntArray) -> IntArray:
    """Make repeated ``numbers`` different: the k-th occurrence of a number gets a value of its own."""
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ordered) else np.zeros(0, np.int64)
    times = np.arange(len(ordered)) - np.repeat(starts, np.diff(np.r_[starts, len(ordered)]))
    out = np.empty(len(numbers), np.int64)
    out[order] = times * (int(numbers.max(initial=0)) + 1) + ordered
    return out


# -- values


def deviation(a: Subject, b: Subject, name: str, ranges: Iterable[Range], tolerance: Tolerance) -> Deviation | None:
    """Compare the rows in ``ranges`` of a field; None unless it is numeric with the same row shape in both datasets.

    Flags have no tolerance: they are close only if they are equal.
    """
    fields = a.ds.schema[name], b.ds.schema[name]
    if not all(_is_numeric(f) for f in fields) or fields[0].shape != fields[1].shape:
        return None
    if any(f.dtype == "bool" for f in fields):
        tolerance = Tolerance()
    greatest, row, beyond, values = 0.0, -1, 0, 0
    for start, one, other in _tiles(a, b, name, ranges):
        apart = _apart(one, other)
        values += apart.size
        with np.errstate(invalid="ignore"):
            room = tolerance.atol + tolerance.rtol * np.abs(other)
        beyond += int((apart > np.where(np.isfinite(room), room, 0)).sum())
        most = float(apart.max(initial=0))
        if most > greatest:
            greatest, row = most, start + int(np.argmax(apart.max(axis=1)))
    return Deviation(greatest, a.place(row) if row >= 0 else None, beyond, values)


def _is_numeric(f: Field) -> bool:
    return f.kind == "array" and np.dtype(f.dtype).kind in _NUMBERS


def _tiles(a: Subject, b: Subject, name: str, ranges: Iterable[Range]) -> Iterator[tuple[int, Array, Array]]:
    """First row, and the values [n, width] of both in float64, about 1 MiB at a time."""
    width = int(np.prod(a.ds.schema[name].shape, dtype=np.int64))
    rows = max(1, _TILE_BYTES // max(1, 8 * width))
    for start, stop in ranges:
        for at in range(start, stop, rows):
            end = min(at + rows, stop)
            one, other = (x.rows.between(name, at, end).reshape(end - at, width) for x in (a, b))
            yield at, one.astype(np.float64), other.astype(np.float64)


def _apart(a: Array, b: Array) -> Array:
    """Absolute differences: 0 between equal infinities and between NaN, infinite if only one value is finite."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(a - b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.asarray(np.where(same, 0, np.where(np.isnan(apart), np.inf, apart)))
