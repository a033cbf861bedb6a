"""Plan a task from a few of its episodes, and divide it into chunks for ``store.build``.

A worker receives one chunk at a time, and finished chunks are recorded; the result does not depend on them. Their size
follows from the measured cost of a step: small enough to keep all workers busy and to lose little when work stops.
Later runs of the same work keep the size that the first one chose.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli.errors import PreprocessError
from rlds_cli.files import safe as safe_files
from rlds_cli.preprocess.calling import undisturbed
from rlds_cli.preprocess.episodes import EpisodeRunner
from rlds_cli.preprocess.plan import Assumptions, Probe, WritePlan
from rlds_cli.preprocess.steps import StepRunner, at_once, runs
from rlds_cli.preprocess.task import PART_ROWS, Task
from rlds_cli.progress import Stage
from rlds_cli.store.paths import assign_paths
from rlds_cli.ted import Chunk, Field, Part


@dataclass(frozen=True)
class PreprocessJob:
    """A planned task in chunks, as `store.build.Job`; picklable if the function is."""

    task: Task
    plan: WritePlan
    parts: Sequence[Part]
    stage: Stage = "preprocess"

    @property
    def id(self) -> str:
        """The id of the result."""
        return str(self.task.id)

    @property
    def key(self) -> str:
        """Hash of the task, its plan and its chunks, which identifies the work."""
        plan = [sorted(self.plan.shared), self.plan.kept, [asdict(f) for f in self.plan.schema], self.task.state]
        firsts = [p.args["first"] for p in self.parts]
        return hashlib.sha256(json.dumps([self.task.key, plan, firsts]).encode()).hexdigest()

    @property
    def schema(self) -> tuple[Field, ...]:
        """The fields that are written."""
        return self.plan.written

    def read(self, part: Part) -> Iterator[Chunk]:
        """Yield the rows of one part; raise AssumptionBroken if the plan does not hold."""
        # A worker's standard output belongs to the program: redirect what the function prints.
        with redirect_stdout(sys.stderr) if parent_process() else nullcontext():
            runner = runner_of(self.task)
            with undisturbed(self.task):
                yield from runner.chunks(part, self.plan)

    def name(self, number: int) -> str:
        """Return the name of a part in messages: the chunk and its episodes."""
        first, last = (self.parts[number].args[n] for n in ("first", "last"))
        return f"chunk {number + 1:,} of {len(self.parts):,} (episodes {first:,} to {last - 1:,})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "parts": ()}  # a worker receives its own part


def runner_of(task: Task) -> EpisodeRunner | StepRunner:
    """Return the runner for the unit of a task."""
    return EpisodeRunner(task) if task.unit == "episode" else StepRunner(task)


def plan(task: Task, assumptions: Assumptions) -> tuple[WritePlan, float]:
    """Plan the output of a task from a few episodes, and measure the seconds per step.

    Raises
    ------
    PreprocessError
        The function failed on one of them, or dropped all episodes.
    """
    runner = runner_of(task)
    with undisturbed(task):
        probes = [_probe(task, runner, k, assumptions) for k in _looked_at(task)]
        first = next((p for p in probes if p.schema), None) or _first_kept(task, runner, assumptions)
    assumptions = replace(assumptions, kept=assumptions.kept and all(p.kept for p in probes))
    seconds = min((p.seconds for p in probes if p.schema), default=first.seconds)  # the first call may import things
    return plan_of(task, assumptions, first, [p for p in probes if p.schema]), seconds


def _probe(task: Task, runner: EpisodeRunner | StepRunner, k: int, assumptions: Assumptions) -> Probe:
    """Probe an episode; with keep_going, a failing episode counts as dropped."""
    try:
        return runner.probe(k, assumptions)[0]
    except PreprocessError:
        if not task.keep_going:
            raise
        return Probe(None, frozenset(), kept=False)


def _looked_at(task: Task) -> list[int]:
    """Return the first, middle and last episode, preferring episodes with a final observation."""
    observed = np.flatnonzero(task.dataset.episodes["num_observed"] > task.dataset.episodes["length"])
    of = observed if len(observed) else np.arange(len(task.dataset.episodes))
    return sorted({int(of[0]), int(of[len(of) // 2]), int(of[-1])})


def _first_kept(task: Task, runner: EpisodeRunner | StepRunner, assumptions: Assumptions) -> Probe:
    failure: PreprocessError | None = None
    for k in range(len(task.dataset.episodes)):
        try:
            probe = runner.probe(k, assumptions)[0]
        except PreprocessError as e:
            if not task.keep_going:
                raise
            failure = failure or e
            continue
        if probe.schema is not None:
            return probe
    of = f"{len(task.dataset.episodes):,} episodes: nothing is left"
    if failure is not None:
        message = f"No episode came back of {of}. The first failure: {failure.message}"
        raise PreprocessError(message, hint=failure.hint) from failure.__cause__
    raise PreprocessError(
        f"{task.function.reference} returned None for all {of}.",
        hint="a function returns the episode, also when it changed it in place; None drops it",
    )


def plan_of(task: Task, assumptions: Assumptions, first: Probe, probes: Sequence[Probe] = ()) -> WritePlan:
    """Plan the output, assuming that all episodes are like these and have the fields of ``first``."""
    assert first.schema is not None
    source = task.dataset.schema
    schema = {f.name: f for f in first.schema}
    kept = assumptions.kept and all(p.kept for p in (first, *probes)) and (task.whole or task.unit != "episode")
    linked = kept and task.whole
    untouched = frozenset.intersection(first.untouched, *(p.untouched for p in probes)) - assumptions.touched
    untouched &= {n for n in untouched if schema.get(n) == source[n] and n not in task.decoded}
    touched_frames = [n for n, f in schema.items() if f.kind == "frames" and n in first.untouched - untouched]
    for n in touched_frames:  # changed in only some of the probed episodes
        schema[n] = Field(n, source[n].dtype, source[n].shape, schema[n].placement)
    carried = _carried(task, schema)
    _check_nesting(schema, carried)
    schema |= {new: replace(source[old], name=new) for new, old in carried.items()}
    if not linked and task.unit == "episode":
        # Written anyway: untouched only matters for frames, which stay encoded, and for fields with a space.
        untouched &= {n for n, f in schema.items() if f.kind == "frames" or _has_space(n)}
    untouched -= _crowded(frozenset(schema) - untouched - (frozenset(carried) & frozenset(source)), untouched, task)
    fields = tuple(schema[n] for n in sorted(schema))
    apart = task.apart | assumptions.apart | frozenset(a for p in (first, *probes) for a in p.apart)
    renamed = {new: old for new, old in carried.items() if new != old}
    return WritePlan(fields, untouched, frozenset(carried), kept, linked, apart, renamed)


def _carried(task: Task, made: Mapping[str, Field]) -> dict[str, str]:
    """Map the fields that the function did not receive: name in the result to name in the source."""
    source = [n for n in task.dataset.schema if n not in task.read]
    if task.carried is None:
        return {n: n for n in source if n not in made}
    return {task.carried[n]: n for n in source if n in task.carried and task.carried[n] not in made}


def _check_nesting(made: Iterable[str], carried: Iterable[str]) -> None:
    """Raise PreprocessError if a field is also a group: a file and a directory cannot share a name."""
    for a in made:
        for b in carried:
            if a.startswith(f"{b}/") or b.startswith(f"{a}/"):
                raise PreprocessError(f"{a} was returned, but the source has {b}, which is carried over.")


def _has_space(name: str) -> bool:
    return name.split("/")[0] in ("observation", "action")


def _crowded(written: frozenset[str], untouched: frozenset[str], task: Task) -> frozenset[str]:
    """Return untouched fields whose path in the source a new field takes; they are written to another path."""
    places = {f.name: f.path for f in task.dataset.manifest.fields}
    taken = {path.lower() for path in assign_paths(written).values()}
    return frozenset(n for n in untouched if places[n].lower() in taken)


def parts(task: Task, *, kept: bool, made: int = 0, rows: int = PART_ROWS) -> tuple[Part, ...]:
    """Divide a task into chunks of whole episodes: about ``rows`` rows each, at most ``PART_ROWS``, or one episode.

    Parameters
    ----------
    kept : bool
        All episodes keep their lengths, so the number of rows to write is known.
    made : int
        Bytes written per step. With the bytes read, they determine how many steps one call of a function of
        transitions receives; a chunk holds whole calls.
    """
    lengths = task.dataset.episodes["length"]
    steps = min(at_once(task, made), PART_ROWS)
    grains = np.arange(len(lengths)) if task.unit == "episode" else np.array(runs(lengths, steps))
    behind = np.append(grains[1:], len(lengths))
    ends = np.append(0, np.cumsum(lengths + 1))
    chunk = ends[behind] // min(rows, PART_ROWS)
    firsts = [*grains[np.flatnonzero(np.diff(chunk, prepend=-1))].tolist(), len(lengths)]
    return tuple(
        Part(int(ends[b] - ends[a]) if kept else None, {"first": a, "last": b, "steps": steps})
        for a, b in pairwise(firsts)
    )


def divided(task: Task, plan: WritePlan, rows: int) -> PreprocessJob:
    """Divide a planned task into chunks of about ``rows`` rows."""
    made = sum(f.row_bytes for f in plan.schema)
    return PreprocessJob(task, plan, parts(task, kept=plan.kept, made=made, rows=rows))


FILE = "chunks.json"
_COUNT = 64  # chunks to aim for, within the bounds below
_LEAST, _MOST = 0.2, 2.0  # seconds per chunk: little overhead, and little lost when work stops


def rows_of_chunk(seconds: float, steps: int) -> int:
    """Return the rows of a chunk, given ``seconds`` per step and the number of ``steps``."""
    aim = min(max(seconds * steps / _COUNT, _LEAST), _MOST)
    return max(1, min(PART_ROWS, int(aim / max(seconds, 1e-9))))


def decided(work: Path, seconds: float, steps: int) -> int:
    """Return the rows per chunk that an earlier run recorded in ``work``; else choose and record them."""
    file = work / FILE
    if (rows := _read(file)) is not None:
        return rows
    rows = rows_of_chunk(seconds, steps)
    new = work / safe_files.temporary_name(FILE)
    safe_files.write_bytes(new, json.dumps({"rows": rows}).encode())
    try:
        os.link(new, file, follow_symlinks=False)  # the first of several shards decides
    except FileExistsError:
        new.unlink()
        return _read(file) or rows
    except OSError:  # a file system without links
        new.replace(file)
        return _read(file) or rows
    new.unlink()
    return rows


def _read(file: Path) -> int | None:
    try:
        rows = json.loads(file.read_text())["rows"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return rows if isinstance(rows, int) and rows > 0 else None
