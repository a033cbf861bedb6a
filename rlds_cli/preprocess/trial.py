"""Try a function on one episode: its fields before and after, and estimates for the whole dataset; writes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rlds_cli.base import settings
from rlds_cli.base.settings import StrPath
from rlds_cli.dataset import Dataset
from rlds_cli.errors import PreprocessError
from rlds_cli.homes import Home
from rlds_cli.preprocess import forms, job
from rlds_cli.preprocess.calling import undisturbed
from rlds_cli.preprocess.episodes import EpisodeRunner
from rlds_cli.preprocess.lazy import EPISODE
from rlds_cli.preprocess.plan import Assumptions, EpisodeResult, Probe, WritePlan, plan_of, removal
from rlds_cli.preprocess.reading import SourceEpisode
from rlds_cli.preprocess.task import Arrays, Task, Unit, described
from rlds_cli.preprocess.workers import process_count
from rlds_cli.ted import EncodedFrames, Field, Scalar, Value, VideoFrames

_WARM, _LONG = 0.02, 2.0  # seconds: a call between these is timed again


def attempt(
    source: str | os.PathLike[str] | Dataset,
    fn: Callable[..., Any] | str,
    name: str | None = None,
    *,
    episode: int = 0,
    step: int | None = None,
    unit: Unit | None = None,
    history: int | None = None,
    future: int | None = None,
    arrays: Arrays = "numpy",
    args: Mapping[str, Any] = {},
    fields: Sequence[str] | None = None,
    jobs: int | None = None,
    home: StrPath | None = None,
) -> Report:
    """Run a function on one episode and report what it changes; nothing is kept. Arguments are those of ``run``.

    Parameters
    ----------
    episode : int
        Number of the episode in ``source``; negative numbers count from the end.
    step : int, optional
        Run on this step of the episode alone; not with unit ``episode``.

    Raises
    ------
    PreprocessError
        There is no such episode, step or function, or the function fails.
    """
    alone: dict[str, Any] = {"unit": unit, "arrays": arrays, "args": args, "home": home}
    with described(source, fn, name, span=(history, future), fields=fields, **alone) as t:
        number = _number(t.dataset, episode)
        work = Home(settings.read(home).home).partial(t.id, t.key[:16])
        return _try(*job.with_trial_state(t, number, work), number, _step(t, number, step), jobs)


def _number(dataset: Dataset, episode: int) -> int:
    n = dataset.num_episodes
    if not -n <= episode < n:
        raise PreprocessError(f"{dataset.id} has no episode {episode:,}.", hint=f"0 to {n - 1:,}")
    return episode % n


def _step(t: Task, episode: int, step: int | None) -> int | None:
    if step is None:
        return None
    if t.unit == "episode":
        raise PreprocessError(f"step={step}: the unit is episode, and has no single steps.", hint="omit step")
    length = int(t.dataset.episodes["length"][episode])
    if not 0 <= step < length:
        raise PreprocessError(f"Episode {episode:,} has no step {step:,}.", hint=f"0 to {length - 1:,}")
    return step


def _try(t: Task, fitted: str, k: int, step: int | None, jobs: int | None) -> Report:
    runner = job.runner_of(t)

    def look(k: int, step: int | None) -> tuple[Probe, SourceEpisode, list[EpisodeResult]]:
        return runner.probe(k, Assumptions()) if isinstance(runner, EpisodeRunner) else runner.attempt(k, step)

    with undisturbed(t):
        probe, before, results = look(k, step)
        if _WARM < probe.seconds * before.length < _LONG:  # the first call may have included imports
            probe, before, results = look(k, step)
        pace = probe.seconds
        if step is None and jobs != 0:  # 0 is for a debugger, which should stop in one call only
            pace = _pace(t.dataset, pace, before.length, lambda typical: look(typical, None)[0].seconds)
    made = plan_of(t, Assumptions(), probe) if probe.schema else None
    workers = max(1, process_count(jobs, pace * t.dataset.num_steps))
    fields = changes(t.dataset, before, results, made)
    return Report(
        source=t.dataset.id,
        id=str(t.id),
        function=t.function.name,
        unit=t.unit,
        episode=before.number,
        length=before.length,
        returned=tuple(r.length for r in results),
        seconds=probe.seconds * before.length,
        fields=fields,
        jobs=workers,
        total_seconds=pace * t.dataset.num_steps / workers,
        total_bytes=sum(f.bytes for f in fields),
        linked=bool(made and made.linked),
        fitted=fitted,
        step=step,
        note=removal(t, made) if made else "",
    )


def _pace(ds: Dataset, seconds: float, steps: int, look: Callable[[int], float]) -> float:
    """Return the seconds per step; measured on an episode of median length if this one is much shorter."""
    lengths = ds.episodes["length"]
    typical = int(np.argsort(lengths, kind="stable")[len(lengths) // 2])
    if 2 * steps >= lengths[typical]:
        return seconds
    try:
        return min(seconds, look(typical))
    except PreprocessError:
        return seconds


@dataclass(frozen=True, slots=True)
class Values:
    """One field of one episode. ``mean``, ``std``, ``min`` and ``max`` are over all elements; None if not numeric."""

    dtype: str
    shape: tuple[int, ...]
    mean: float | None = None
    std: float | None = None
    min: float | None = None
    max: float | None = None


@dataclass(frozen=True, slots=True)
class FieldChange:
    """The change of a field, or of a column ``episode/NAME`` of the episode table.

    ``bytes`` is its size on disk for the whole dataset; 0 for columns, and for fields that are shared.
    """

    name: str
    what: Literal["changed", "new", "removed", "untouched", "not read"]
    before: Values | None
    after: Values | None
    bytes: int


@dataclass(frozen=True, slots=True)
class Report:
    """The trial of a function on one episode, or on one ``step`` of it.

    ``returned`` are the lengths of the returned episodes (empty if it is dropped). ``seconds`` is the time of the call;
    ``total_seconds`` and ``total_bytes`` estimate the whole dataset with ``jobs`` workers. ``linked`` is True if
    untouched fields would be shared with the source. ``fitted`` names the data of the first pass, if there is one:
    all, or the chunk of the episode. ``note`` names the fields that the result will not have.
    """

    source: str
    id: str
    function: str
    unit: str
    episode: int
    length: int
    returned: tuple[int, ...]
    seconds: float
    fields: tuple[FieldChange, ...]
    jobs: int
    total_seconds: float
    total_bytes: int
    linked: bool
    fitted: str = ""
    step: int | None = None
    note: str = ""


def changes(
    dataset: Dataset, before: SourceEpisode, results: Sequence[EpisodeResult], made: WritePlan | None
) -> tuple[FieldChange, ...]:
    """Compare each field of an episode before and after, and estimate its size for the whole ``dataset``."""
    if not results:
        return ()
    schema, after = dataset.schema, results[0].flat
    steps = sum(r.length for r in results) / max(1, before.length)
    rows = dataset.num_steps * steps + dataset.num_episodes * len(results)
    new = {f.name: f for f in made.schema} if made else {}
    shared = made.shared if made else frozenset()
    changes = []
    for name in sorted({*schema, *after}):
        f = new.get(name)
        a, b = before.original.get(name), forms.resolved(after.get(name))
        size = int(rows * _row_bytes(f, b)) if f is not None and name not in shared else 0
        if name in schema and name not in before.original:
            changes.append(FieldChange(name, "not read", None, None, size))
        elif a is None:
            changes.append(FieldChange(name, "new", None, _values(b), size))
        elif b is None:
            changes.append(FieldChange(name, "removed", _values(a), None, 0))
        else:
            same = len(results) == 1 and results[0].rows.get(name) == slice(None)
            changes.append(FieldChange(name, "untouched" if same else "changed", _values(a), _values(b), size))
    return (*changes, *_column_changes(dataset, before.number, results[0].columns))


def _column_changes(dataset: Dataset, number: int, columns: Mapping[str, Scalar]) -> Iterator[FieldChange]:
    """Yield the columns of the episode table that a function changed or added; their size does not count."""
    known = dataset.store.own_columns
    for name, value in sorted(columns.items()):
        was = dataset.store.own_column(name).scalar(number) if name in known else None
        if name not in known or value != was:
            before = _scalar(was) if name in known else None
            yield FieldChange(f"{EPISODE}/{name}", "changed" if name in known else "new", before, _scalar(value), 0)


def _scalar(value: Scalar) -> Values:
    kind = {type(None): "missing", str: "text", int: "int64", float: "float64", bool: "bool"}[type(value)]
    return Values(kind, ())


def _row_bytes(f: Field, values: Value | None) -> float:
    """Return the bytes per row on disk; of encoded frames, the average of the episode."""
    if isinstance(values, EncodedFrames):
        return len(values.data) / max(1, len(values))
    if isinstance(values, VideoFrames):
        return f.row_bytes + sum(map(len, values.made.values())) / max(1, len(values))
    return f.row_bytes


def _values(values: Value | None) -> Values | None:
    if values is None:
        return None
    if isinstance(values, EncodedFrames):
        return Values(f"{values.codec} frames", (len(values), *values.shape))
    if isinstance(values, VideoFrames):
        return Values("frames in a video", (len(values), *values.shape))
    if isinstance(values, list) or values.dtype == object:
        return Values("text", (len(values),))
    if values.size == 0 or values.dtype.kind not in "fiub":
        return Values(values.dtype.name, values.shape)
    x = values.astype(np.float64)
    finite = x[np.isfinite(x)]
    moments = [float(m(finite)) for m in (np.mean, np.std, np.min, np.max)] if finite.size else [None] * 4
    return Values(values.dtype.name, values.shape, *moments)
