"""Several functions one after the other, as one result: each works on what the one before it made.

::

    source  ──a──►  <work>/1/dataset  ──b──►  <work>/2/dataset  ──c──►  ID@NAME

What lies between is a dataset like any other, so that each function has its own unit, its own first pass, and the
statistics of what it works on. It shares what is untouched, is gone on with after an interruption, and is removed when
the next one is made.

A task from its plan to its published result: done in parts, gone on with, and planned anew where need be.

From the rows that a task wrote to its published dataset: what the manifest says of it, and what it shares.

The functions of a pipeline, each with its unit, its kind of arrays and its share of the arguments.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, count
from pathlib import Path
from typing import Any

from rlds_cli import home, ids, text
from rlds_cli.dataset import Dataset, open_dataset
from rlds_cli.errors import NameTaken, PreprocessError
from rlds_cli.files import safe as safe_files
from rlds_cli.files import trees
from rlds_cli.ids import DatasetId
from rlds_cli.preprocess import calling, fit, functions, job, sources, task, traits, verifying
from rlds_cli.preprocess.calling import undisturbed
from rlds_cli.preprocess.functions import Function
from rlds_cli.preprocess.job import PreprocessJob, Staff
from rlds_cli.preprocess.plan import Known, Otherwise, Plan
from rlds_cli.preprocess.task import Chain, Task
from rlds_cli.progress import Event, Progress, silent
from rlds_cli.settings import Settings
from rlds_cli.store import arrays, manifest, publishing
from rlds_cli.store.build import Built, write_rows
from rlds_cli.store.files import component
from rlds_cli.store.finish import Description, finish
from rlds_cli.store.manifest import Manifest, Stats
from rlds_cli.store.publishing import Shared
from rlds_cli.store.videos import Extent
from rlds_cli.store.workers import Executor
from rlds_cli.ted import FLAGS, Array


@dataclass(frozen=True)
class Pipeline:
    """Functions on a dataset, one after the other."""

    dataset: Dataset
    stages: tuple[Stage, ...]
    id: DatasetId
    fields: tuple[str, ...] | None
    keep_going: bool
    depends_on: tuple[str, ...] = ()

    @cached_property
    def parts_of_key(self) -> dict[str, Any]:
        """What the result depends on."""
        return {
            "source": task.source_of(self.dataset),
            "fields": sorted(self.fields) if self.fields is not None else None,
            **({"keep_going": True} if self.keep_going else {}),
            **({"depends": sources.of(len, {}, self.depends_on)} if self.depends_on else {}),
            "functions": [s.identity for s in self.stages],
        }

    @cached_property
    def key(self) -> str:
        """Identifies the result."""
        return hashlib.sha256(json.dumps({"format": 1, **self.parts_of_key}, sort_keys=True).encode()).hexdigest()

    def check_name(self, m: Manifest) -> None:
        """Raise NameTaken when ``m``, of the dataset of this name, is of something else."""
        made = dict(m.provenance[-1].get("pipeline", {})) if m.provenance else {}
        if made.get("key") == self.key:
            return
        hint = "another name (--name, name=), or --force (force=True) to replace it"
        if not m.provenance or str(m.provenance[-1].get("id")).lower() != str(self.id).lower():
            raise NameTaken(f"{self.id} exists, and preprocess did not make it.", hint=hint)
        raise NameTaken(f"{self.id} exists and was made otherwise: {self._differs(made)}.", hint=hint)

    def _differs(self, made: Mapping[str, Any]) -> str:
        before = made.get("functions", [{}])
        if len(before) != len(self.stages):
            return f"by {text.plural(len(before), 'function')}; these are {len(self.stages)}"
        whole = task.differences({k: v for k, v in made.items() if k != "key"}, self.parts_of_key)
        each = (task.differences(old, new.identity) for old, new in zip(before, self.stages, strict=True))
        return "; ".join(filter(None, [whole, *(f"function {i + 1}: {d}" for i, d in enumerate(each) if d)]))

    def task(self, number: int, dataset: Dataset) -> Task:
        """What function ``number`` has to do with ``dataset``, which those before it made."""
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
        return replace(t, chain=Chain(self.dataset, dataset, number, len(self.stages), self._again, record))

    def _fields(self, dataset: Dataset) -> list[str] | None:
        """What is read of ``dataset``: the fields asked for that it still has, and all that are new."""
        if self.fields is None or dataset is self.dataset:
            return None if self.fields is None else list(self.fields)
        there = dataset.schema
        asked = {n for key in self.fields for n in task.matching(dataset, key)}
        steps = dataset.manifest.provenance[len(self.dataset.manifest.provenance) :]
        changed = {n for step in steps for n in step.get("changed", ()) if n in there}
        return sorted(asked | changed | {n for n in FLAGS if n in there})

    @property
    def _again(self) -> str:
        """The command that runs an episode of the source again."""
        references = [
            calling.words_of(s.function, s.unit, s.span, s.arrays, s.args, f"{i + 1}.")
            for i, s in enumerate(self.stages)
        ]
        if None in references:
            names = ", ".join(s.function.name for s in self.stages)
            return f"rlds_cli.preprocess.attempt(dataset, [{names}], episode=EPISODE) runs that episode alone"
        return f"rlds preprocess {self.dataset.id} {' '.join(map(str, references))} --episode EPISODE -j 0"


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
    """The pipeline of functions; their modules can be imported meanwhile."""
    with functions.importable(functions.searched(fns)):
        made = stages(fns, unit=unit, span=span, arrays=arrays, args=args)
        name = name or "-".join(s.function.name.rpartition(".")[2] for s in made)
        if "<lambda>" in name:
            raise PreprocessError("A lambda has no name to call the result by.", hint='name="..."')
        id = ids.parse(dataset.id).with_variant(name)
        if id == ids.parse(dataset.id):
            raise PreprocessError(f"The result would replace its own source, {id}.", hint="another name: --name, name=")
        depends = tuple(os.fspath(p) for p in depends_on)
        p = Pipeline(dataset, made, id, task.names_of(fields), keep_going, depends)
        with importable(made):
            yield p


def make_pipeline(
    p: Pipeline,
    staff: Staff,
    work: Path,
    target: Path,
    *,
    verify: bool = False,
    checks: Sequence[Callable[[Dataset], None]] = (),
) -> None:
    """Run the functions and publish what the last one makes as ``target``; what is finished is gone on with.

    Parameters
    ----------
    staff : Staff
        Who works; it is given each function's task in turn.
    verify : bool
        Do one chunk of each again, and compare.
    checks : sequence of callables
        Are given what the last one made before it is published; nothing is where one raises.
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
            make(replace(staff, task=t), rows, made, verify=verify, checks=checks if made == target else ())
        except PreprocessError as e:
            assert t.chain is not None
            raise t.chain.told(e) from e.__cause__
        if number:
            publishing.remove(_between(work, number))
        if made != target:
            dataset = open_dataset(made)
    trees.discard(work)


def rehearse(p: Pipeline, work: Path, took: Callable[[float], None]) -> Dataset | None:
    """Run the functions on few episodes; what they make, or None where one of them drops all.

    ``took`` is told for every function the seconds of a step.
    """
    dataset = p.dataset
    for number in range(len(p.stages)):
        t = p.task(number, dataset)
        staff = Staff(t, 0, silent)
        rows = work / str(number + 1) / "rows"
        rows.mkdir(parents=True)
        try:
            t = fit.fitted(t, rows, staff)
            runner = job.runner_of(t)
            with undisturbed():
                probes = [runner.probe(k, Known())[0] for k in range(dataset.num_episodes)]
            if all(probe.schema is None for probe in probes):
                return None
            took(min(probe.seconds for probe in probes))
            make(replace(staff, task=t), rows, _between(work, number + 1))
        except PreprocessError as e:
            assert t.chain is not None
            raise t.chain.told(e) from e.__cause__
        dataset = open_dataset(_between(work, number + 1))
    return dataset


def _between(work: Path, number: int) -> Path:
    """What the first ``number`` functions made."""
    return work / str(number) / "dataset"


_LONG = 20.0  # seconds


def make(
    staff: Staff, work: Path, target: Path, *, verify: bool = False, checks: Iterable[Callable[[Dataset], None]] = ()
) -> None:
    """Do the task and publish its result as ``target``.

    Parameters
    ----------
    work : Path
        Where it is done; what an interrupted run of the same task left there is gone on with. Removed at the end.
    verify : bool
        Do one chunk again before it is published, and compare.
    checks : iterable of callables
        Are given the result before it is published; nothing is where one raises.

    Raises
    ------
    PreprocessError
        The function failed; finished chunks are kept. Or a chunk is not the same again; nothing is kept.
    """
    known = _recall(work)
    t = fit.fitted(staff.task, work, staff)
    while True:
        plan, seconds = job.plan(t, known)
        todo = job.divided(t, plan, job.decided(work, seconds, t.dataset.num_steps))
        executor = staff.executor(seconds * t.dataset.num_steps, len(todo.parts))
        _tell_long(todo, seconds * t.dataset.num_steps, executor, staff.progress)
        try:
            built = write_rows(todo, work, jobs=0, progress=staff.progress, executor=executor)
        except Otherwise as e:
            known = known | e.known
            _remember(work, known)
            staff.progress(Event(str(t.id), "note", note=f"writing anew, as a later episode showed: {e.known.told()}"))
            continue
        except PreprocessError as e:
            raise _with_what_is_kept(e, work, len(todo.parts)) from e.__cause__
        except KeyboardInterrupt:
            kept = f"{_finished(work)} of {len(todo.parts)} chunks are kept"
            staff.progress(Event(str(t.id), "note", note=f"{kept}; the same again goes on from there"))
            raise
        again = [verifying.checking(todo, built, work, staff)] if verify else []
        publish(built, t, plan, target, threads=staff.threads, checks=[*again, *checks])
        trees.discard(work)
        return


def _recall(work: Path) -> Known:
    """What an earlier run learned before it was interrupted."""
    try:
        return Known.from_json((work / "known.json").read_text())
    except OSError:
        return Known()


def _remember(work: Path, known: Known) -> None:
    for path in work.iterdir():
        if path.name not in (fit.JOURNAL, job.FILE):
            trees.remove(path) if path.is_dir() else path.unlink()
    safe_files.replace_text(work / "known.json", known.to_json())


def _tell_long(todo: PreprocessJob, seconds: float, executor: Executor | None, tell: Progress) -> None:
    """Say of long work that it may be stopped."""
    workers = getattr(executor, "count", 1)
    if seconds / workers > _LONG:
        takes = f"about {text.duration(seconds / workers)} with {text.plural(workers, 'worker')}"
        kept = f"{text.plural(len(todo.parts), 'chunk')}, each kept when it is finished"
        tell(Event(todo.id, "note", note=f"{takes}, {kept}: stopped (Ctrl-C), the same again goes on from there"))


def _with_what_is_kept(e: PreprocessError, work: Path, parts: int) -> PreprocessError:
    tail = f" {_finished(work)} of {parts} chunks are kept." if parts > 1 else ""
    told = PreprocessError(f"{e.message.rstrip('.')}. Nothing was published.{tail}", hint=e.hint)
    told.episode, told.step = e.episode, e.step
    return told


def _finished(work: Path) -> int:
    """How many chunks the journal has."""
    try:
        return max(0, (work / "journal.jsonl").read_text().count("\n") - 1)
    except OSError:
        return 0


def is_made(t: Task | Pipeline, where: Settings) -> bool:
    """Whether the result is there already.

    Raises
    ------
    NameTaken
        Something else is there, under its name.
    """
    path = home.find(t.id, where)
    if path is None:
        return False
    t.check_name(manifest.read(path))
    return True


def publish(
    built: Built,
    t: Task,
    plan: Plan,
    target: Path,
    *,
    threads: int,
    checks: Iterable[Callable[[Dataset], None]] = (),
) -> None:
    """Complete the dataset and move it to ``target``, where it is seen as a whole, unless one of ``checks`` raises."""
    found = t.chain.failures(built.notes) if t.chain else tuple(task.of(built.notes))
    task.write(built.directory, found)
    built = replace(built, notes=(*(t.chain.notes() if t.chain else ()), *task.told(built.notes)))
    store = t.dataset.store

    def locate(field: str, number: str) -> Extent:
        return store.videos(plan.renamed.get(field, field)).extent(int(number))

    described = _description(t, plan)
    finish(built, described, metadata=_metadata(t), shared=_shared(t, plan), locate=locate, threads=threads)
    for check in checks:
        check(open_dataset(built.directory))
    publishing.publish(built.directory, target)


def _description(t: Task, plan: Plan) -> Description:
    m = t.dataset.manifest
    spaces = {k: v for k, v in m.spaces.items() if _keeps_space(k, t, plan)}
    return Description(
        id=str(t.id),
        encoding=m.encoding,
        reader="preprocess",
        reader_version=1,
        episodes_by=m.episodes_by,
        facts=m.facts,
        spaces=spaces,
        env=m.env,
        options=m.options,
        provenance=(
            *m.provenance,
            {**t.provenance(), **_state(t), "changed": _changed(t, plan), "keeps_steps": plan.kept},
        ),
        sources=t.dataset.store.sources,
    )


def _state(t: Task) -> dict[str, Any]:
    return {} if t.state is None else {"state": calling.in_provenance(t.state, _state_name(t))}


def _changed(t: Task, plan: Plan) -> list[str]:
    """Fields that are not as they were in the source; new ones and those left out are among them."""
    names = {*t.dataset.schema, *(f.name for f in plan.schema)}
    return sorted(names - plan.same)


def _keeps_space(name: str, t: Task, plan: Plan) -> bool:
    """Whether a space still describes its fields: all are there, and as they were."""
    before = {n for n in t.dataset.schema if n.split("/")[0] == name}
    after = {f.name for f in plan.schema if f.name.split("/")[0] == name}
    return before == after and before <= plan.same


def _metadata(t: Task) -> Iterable[tuple[str, Array | str]]:
    for name in t.dataset.manifest.metadata:
        path = t.dataset.path.joinpath("metadata", *(component(c) for c in name.split("/")))
        yield name, arrays.read(path) if arrays.is_array(path) else arrays.read_string(path)
    if t.state is not None:
        yield _state_name(t), t.state


def _state_name(t: Task) -> str:
    """Where the metadata keep what the first pass found out: under the function's name, the first that is free."""
    name = f"state/{t.function.name}"
    numbered = chain([name], (f"{name}-{n}" for n in count(2)))
    return next(n for n in numbered if n not in t.dataset.manifest.metadata)


def _shared(t: Task, plan: Plan) -> dict[str, Shared]:
    m = t.dataset.manifest
    stats = {n: Stats(**s) for n, s in m.stats.items()}
    fields = {f.name: f for f in m.fields}
    before = {n: plan.renamed.get(n, n) for n in plan.shared}
    # What lies between two functions is removed: only what it shares with the source itself is shared in the end.
    lasting = m.shared if t.chain and t.chain.number else fields
    return {n: Shared(t.dataset.path, fields[old], stats.get(old), n, old in lasting) for n, old in before.items()}


Functions = Sequence[Callable[..., Any] | str]
Several = str | None | Sequence[str | None]  # one for all functions, or one for each


@dataclass(frozen=True, slots=True)
class Stage:
    """One function of a pipeline; ``unit`` and ``span`` as its decorator says unless given."""

    function: Function
    unit: str
    span: tuple[int, int]
    arrays: str
    args: Mapping[str, Any]

    @property
    def identity(self) -> dict[str, Any]:
        """What its result depends on, but for what it is given."""
        return task.identity(self.function, self.args, self.unit, self.span, self.arrays)


def stages(
    fns: Functions,
    *,
    unit: Several,
    span: tuple[int | None, int | None],
    arrays: Several,
    args: Mapping[str, Any] | Sequence[Mapping[str, Any]],
) -> tuple[Stage, ...]:
    """Find the functions, and give each what is its.

    Parameters
    ----------
    unit, arrays : str or sequence of str
        One for all, or one for each.
    args : mapping or sequence of mappings
        One mapping for each; or one for all, of which each function gets what it takes by name. A name with the
        function's name or number (from 1) before it, ``norm.eps`` or ``2.eps``, is for that one alone.

    Raises
    ------
    PreprocessError
        There are no functions; one is not found; there is not one of each; or an argument is taken by none.
    """
    if not fns:
        raise PreprocessError("There is no function in the list.", hint="a pipeline is a list of functions")
    found = [functions.find(fn) for fn in fns]
    made = []
    for f, kind, what, given in zip(
        found, _each("unit", unit, found), _each("arrays", arrays, found), _shares(args, found), strict=True
    ):
        assert f.call is not None
        traits.check(f.call, given)
        own, reach = task.unit_of(f, kind, span if (kind or f.unit) == "window" else (None, None))
        made.append(Stage(f, own, reach, what or "numpy", given))
    if span != (None, None) and not any(s.unit == "window" for s in made):
        raise PreprocessError("history= and future= are for unit window, which no function has.", hint="unit=window")
    return tuple(made)


@contextmanager
def importable(made: Sequence[Stage]) -> Iterator[None]:
    """The modules of all functions can be imported meanwhile."""
    with ExitStack() as held:
        for stage in made:
            held.enter_context(functions.importable(stage.function.path))
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
