"""Several functions one after the other, as one result: each works on what the one before it made.

::

    source  ──a──►  <work>/1/dataset  ──b──►  <work>/2/dataset  ──c──►  ID@NAME

What lies between is a dataset like any other, so that each function has its own unit, its own first pass, and the
statistics of what it works on. It shares what is untouched, is gone on with after an interruption, and is removed when
the next one is made.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rlds_cli import ids, trees
from rlds_cli.dataset import Dataset, open_dataset
from rlds_cli.errors import NameTaken, PreprocessError
from rlds_cli.ids import DatasetId
from rlds_cli.preprocess import calling, dependencies, fitting, functions, job, making, task
from rlds_cli.preprocess.calling import undisturbed
from rlds_cli.preprocess.chain import Chain
from rlds_cli.preprocess.executors import Staff
from rlds_cli.preprocess.plan import Known
from rlds_cli.preprocess.stages import Functions, Several, Stage, importable, stages
from rlds_cli.preprocess.task import Task
from rlds_cli.progress import silent
from rlds_cli.store import publishing
from rlds_cli.store.manifest import Manifest
from rlds_cli.ted import FLAGS


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
            **({"depends": dependencies.of(len, {}, self.depends_on)} if self.depends_on else {}),
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
            return f"by {len(before)} function{'' if len(before) == 1 else 's'}; these are {len(self.stages)}"
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


def make(
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
            making.make(replace(staff, task=t), rows, made, verify=verify, checks=checks if made == target else ())
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
            t = fitting.fitted(t, rows, staff)
            runner = job.runner_of(t)
            with undisturbed():
                probes = [runner.probe(k, Known())[0] for k in range(dataset.num_episodes)]
            if all(probe.schema is None for probe in probes):
                return None
            took(min(probe.seconds for probe in probes))
            making.make(replace(staff, task=t), rows, _between(work, number + 1))
        except PreprocessError as e:
            assert t.chain is not None
            raise t.chain.told(e) from e.__cause__
        dataset = open_dataset(_between(work, number + 1))
    return dataset


def _between(work: Path, number: int) -> Path:
    """What the first ``number`` functions made."""
    return work / str(number) / "dataset"
