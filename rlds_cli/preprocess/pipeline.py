"""Run several functions one after the other, each on the result of the one before.

::

    source  ──a──►  <work>/1/dataset  ──b──►  <work>/2/dataset  ──c──►  ID@NAME

Each intermediate result is an ordinary dataset, so every function has its own unit, its own first pass, and the
statistics of its input. It shares untouched fields, survives an interruption, and is removed once the next one exists.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rlds_cli import text
from rlds_cli.dataset import Dataset, open_dataset
from rlds_cli.errors import NameTaken, PreprocessError
from rlds_cli.files import modules, trees
from rlds_cli.ids import DatasetId
from rlds_cli.preprocess import builtin, calling, functions, job, sources, task
from rlds_cli.preprocess.calling import undisturbed
from rlds_cli.preprocess.functions import Function
from rlds_cli.preprocess.plan import Assumptions
from rlds_cli.preprocess.publish import run_task
from rlds_cli.preprocess.task import StagePosition, Task
from rlds_cli.preprocess.workers import WorkerPool
from rlds_cli.progress import silent
from rlds_cli.store import publishing
from rlds_cli.store.manifest import Manifest
from rlds_cli.ted import FLAGS

Functions = Sequence[Callable[..., Any] | str]
Several = str | None | Sequence[str | None]  # one for all functions, or one for each


@dataclass(frozen=True, slots=True)
class Stage:
    """One function of a pipeline, with its unit, its kind of arrays and its arguments."""

    function: Function
    unit: str
    span: tuple[int, int]
    arrays: str
    args: Mapping[str, Any]

    @property
    def identity(self) -> dict[str, Any]:
        """The inputs that its result depends on, except its source."""
        return task.identity(self.function, self.args, self.unit, self.span, self.arrays)


@dataclass(frozen=True)
class Pipeline:
    """A list of functions to run on a dataset, one after the other."""

    dataset: Dataset
    stages: tuple[Stage, ...]
    id: DatasetId
    fields: tuple[str, ...] | None
    keep_going: bool
    depends_on: tuple[str, ...] = ()

    @cached_property
    def parts_of_key(self) -> dict[str, Any]:
        """The inputs that the result depends on."""
        return {
            "source": task.source_of(self.dataset),
            **task.seen_of(self.dataset),
            "fields": sorted(self.fields) if self.fields is not None else None,
            **({"keep_going": True} if self.keep_going else {}),
            **({"depends": sources.of(len, {}, self.depends_on)} if self.depends_on else {}),
            "functions": [s.identity for s in self.stages],
        }

    @cached_property
    def key(self) -> str:
        """Hash that identifies the result."""
        return hashlib.sha256(json.dumps({"format": 1, **self.parts_of_key}, sort_keys=True).encode()).hexdigest()

    def continues(self, made: Mapping[str, Any]) -> bool:
        """Return whether a step of a provenance is the same pipeline on another version of its dataset."""
        before = dict(made.get("pipeline", {}))
        mine = {k: v for k, v in self.parts_of_key.items() if k not in task.SOURCES}
        return (
            self.dataset.store.pinned_version is not None
            and str(made.get("id")).lower() == str(self.id).lower()
            and bool(before)
            and {k: v for k, v in before.items() if k not in (*task.SOURCES, "key")} == mine
        )

    def check_name(self, m: Manifest) -> None:
        """Raise NameTaken if ``m``, the manifest of the dataset with this id, belongs to another result."""
        made = dict(m.provenance[-1].get("pipeline", {})) if m.provenance else {}
        if made.get("key") == self.key:
            return
        hint = "another name (--as, name=), or --force (force=True) to replace it"
        if not m.provenance or str(m.provenance[-1].get("id")).lower() != str(self.id).lower():
            raise NameTaken(f"{self.id} exists, and was not made by preprocess.", hint=hint)
        raise NameTaken(f"{self.id} exists and was made differently: {self._differs(made)}.", hint=hint)

    def _differs(self, made: Mapping[str, Any]) -> str:
        before = made.get("functions", [{}])
        if len(before) != len(self.stages):
            return f"by {text.plural(len(before), 'function')}; these are {len(self.stages)}"
        whole = task.differences({k: v for k, v in made.items() if k != "key"}, self.parts_of_key)
        each = (task.differences(old, new.identity) for old, new in zip(before, self.stages, strict=True))
        return "; ".join(filter(None, [whole, *(f"function {i + 1}: {d}" for i, d in enumerate(each) if d)]))

    def task(self, number: int, dataset: Dataset) -> Task:
        """Return the task of function ``number``, with the result of the functions before it as its source."""
        stage, last = self.stages[number], number == len(self.stages) - 1
        name = self.id.variant or ""
        t = task.describe(
            dataset,
            stage.function,
            name if last else f"{name}.{number + 1}",
            unit=stage.unit,
            arrays=stage.arrays,
            args=stage.args,
            fields=self._fields(dataset),
            span=stage.span,
            keep_going=self.keep_going,
            depends_on=self.depends_on,
        )
        record = {"key": self.key, **self.parts_of_key} if last else {}
        return replace(t, chain=StagePosition(self.dataset, dataset, number, len(self.stages), self._again, record))

    def _fields(self, dataset: Dataset) -> list[str] | None:
        """Return the fields to read of ``dataset``: those of ``fields=`` that it still has, and all new ones."""
        if self.fields is None or dataset is self.dataset:
            return None if self.fields is None else list(self.fields)
        there = dataset.schema
        asked = {n for key in self.fields for n in task.matching(dataset, key)}
        steps = dataset.manifest.provenance[len(self.dataset.manifest.provenance) :]
        changed = {n for step in steps for n in step["changed"] if n in there}
        return sorted(asked | changed | {n for n in FLAGS if n in there})

    @property
    def _again(self) -> str:
        """The command that runs an episode of the source again, with EPISODE as a placeholder."""
        references = [
            calling.command_words(s.function, s.unit, s.span, s.arrays, s.args, f"{i + 1}.")
            for i, s in enumerate(self.stages)
        ]
        if None in references:
            names = ", ".join(s.function.name for s in self.stages)
            return f"rlds_cli.preprocess.attempt(dataset, [{names}], episode=EPISODE) runs that episode alone"
        return f"rlds preprocess {calling.named(self.dataset)} {' '.join(map(str, references))} --episode EPISODE -j 0"


@contextmanager
def described(
    dataset: Dataset,
    fns: Functions,
    name: str | None,
    *,
    unit: Several,
    span: tuple[int | None, int | None],
    arrays: Several,
    args: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    fields: Sequence[str] | None,
    keep_going: bool = False,
    depends_on: Sequence[str | os.PathLike[str]] = (),
) -> Iterator[Pipeline]:
    """Describe the pipeline of functions; their modules can be imported inside the block."""
    with modules.importable(functions.search_path(fns)):
        made = stages(fns, unit=unit, span=span, arrays=arrays, args=args)
        id = task.id_of(dataset, "-".join(s.function.name.rpartition(".")[2] for s in made), name)
        depends = tuple(os.fspath(p) for p in depends_on)
        p = Pipeline(dataset, made, id, task.names_of(fields), keep_going, depends)
        with importable(made):
            yield p


def run_pipeline(
    p: Pipeline,
    pool: WorkerPool,
    work: Path,
    target: Path,
    *,
    checks: Sequence[Callable[[Dataset], None]] = (),
) -> None:
    """Run the functions and publish the last result as ``target``; an interrupted run continues.

    Parameters
    ----------
    pool : WorkerPool
        The workers, for the task of each function in turn.
    checks : sequence of callables
        Called with the last result before it is published; if one raises, nothing is published.
    """
    count = len(p.stages)
    there = [number for number in range(1, count) if (_between(work, number) / "zarr.json").exists()]
    first = max(there, default=0)
    dataset = open_dataset(_between(work, first)) if first else p.dataset
    for number in range(first, count):
        t = p.task(number, dataset)
        made = target if number == count - 1 else _between(work, number + 1)
        rows = work / str(number + 1) / "rows"
        rows.mkdir(parents=True, exist_ok=True)
        try:
            last: dict[str, Any] = {"checks": checks} if made == target else {}
            run_task(replace(pool, task=t), rows, made, **last)
        except PreprocessError as e:
            assert t.chain is not None
            raise t.chain.explain(e) from e.__cause__
        if number:
            publishing.remove(_between(work, number))
        if made != target:
            dataset = open_dataset(made)
    trees.discard(work)


def rehearse(p: Pipeline, work: Path, took: Callable[[float], None]) -> Dataset | None:
    """Run the functions on a few episodes, and return the result; None if one of them drops all episodes.

    ``took`` is called for each function with the seconds per step.
    """
    dataset = p.dataset
    for number in range(len(p.stages)):
        t = p.task(number, dataset)
        pool = WorkerPool(t, 0, silent)
        rows = work / str(number + 1) / "rows"
        rows.mkdir(parents=True)
        try:
            t = job.with_state(t, rows, pool)
            runner = job.runner_of(t)
            with undisturbed(t):
                probes = [runner.probe(k, Assumptions())[0] for k in range(dataset.num_episodes)]
            if all(probe.schema is None for probe in probes):
                return None
            took(min(probe.seconds for probe in probes))
            run_task(replace(pool, task=t), rows, _between(work, number + 1))
        except PreprocessError as e:
            assert t.chain is not None
            raise t.chain.explain(e) from e.__cause__
        dataset = open_dataset(_between(work, number + 1))
    return dataset


def _between(work: Path, number: int) -> Path:
    """Return the directory of the result of the first ``number`` functions."""
    return work / str(number) / "dataset"


def stages(
    fns: Functions,
    *,
    unit: Several,
    span: tuple[int | None, int | None],
    arrays: Several,
    args: Mapping[str, Any] | Sequence[Mapping[str, Any]],
) -> tuple[Stage, ...]:
    """Find the functions, and assign each its unit, kind of arrays and arguments.

    Parameters
    ----------
    unit, arrays : str or sequence of str
        One for all functions, or one for each.
    args : mapping or sequence of mappings
        One mapping for each function; or one for all, from which each function gets the arguments that it accepts.
        ``norm.eps`` or ``2.eps``, with a function's name or number (from 1), is for that function alone.

    Raises
    ------
    PreprocessError
        There are no functions, one is not found, the numbers of values differ, or no function accepts an argument.
    """
    if not fns:
        raise PreprocessError("The list of functions is empty.", hint="a pipeline is a list of functions")
    found = [functions.find(fn) for fn in fns]
    made = []
    for f, kind, what, given in zip(
        found, _each("unit", unit, found), _each("arrays", arrays, found), _shares(args, found), strict=True
    ):
        assert f.call is not None
        builtin.check(f.call, given)
        own, reach = task.unit_of(f, kind, span if (kind or f.unit) == "window" else (None, None))
        made.append(Stage(f, own, reach, what or "numpy", given))
    if span != (None, None) and not any(s.unit == "window" for s in made):
        raise PreprocessError("history= and future= are for unit window, which no function has.", hint="unit=window")
    return tuple(made)


@contextmanager
def importable(made: Sequence[Stage]) -> Iterator[None]:
    """Make the modules of all functions importable inside the block."""
    with ExitStack() as held:
        for stage in made:
            held.enter_context(modules.importable(stage.function.path))
        yield


def _each(name: str, given: Several, found: Sequence[Function]) -> Sequence[str | None]:
    if given is None or isinstance(given, str):
        return [given] * len(found)
    if len(given) not in (1, len(found)):
        raise PreprocessError(
            f"{len(found)} functions and {len(given)} of {name}.", hint="one for all, or one for each"
        )
    return list(given) * (len(found) // len(given))


def _shares(
    args: Mapping[str, Any] | Sequence[Mapping[str, Any]], found: Sequence[Function]
) -> Sequence[dict[str, Any]]:
    if not isinstance(args, Mapping):
        if len(args) != len(found):
            raise PreprocessError(f"{len(found)} functions and {len(args)} mappings of arguments.")
        return [dict(a) for a in args]
    shares: list[dict[str, Any]] = [{} for _ in found]
    for key, value in args.items():
        which, _, name = key.rpartition(".")
        takers = [i for i, f in enumerate(found) if _meant(which, i, f) and (which or _takes(f, name))]
        if not takers:
            names = ", ".join(f"{i + 1}. {f.name}" for i, f in enumerate(found))
            raise PreprocessError(
                f"No function takes the argument {key}: {names}.",
                hint="FUNCTION.NAME or NUMBER.NAME is for one of them",
            )
        for i in takers:
            shares[i][name] = value
    return shares


def _meant(which: str, number: int, f: Function) -> bool:
    return which in ("", str(number + 1), f.name)


def _takes(f: Function, name: str) -> bool:
    assert f.call is not None
    try:
        parameters = inspect.signature(f.call).parameters
    except (TypeError, ValueError):
        return True
    first = next(iter(parameters), None)
    return (name in parameters and name != first) or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
