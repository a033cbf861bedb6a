"""Plan the output of a task: its fields, which of them stay untouched, and whether episodes keep their lengths.

A plan follows from a few probed episodes and is checked on every episode. If one contradicts it, a new plan with weaker
assumptions replaces it, and finished parts are completed, see `completing`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from rlds_cli.base import settings, text
from rlds_cli.dataset import Rows
from rlds_cli.errors import PreprocessError
from rlds_cli.preprocess import builtin
from rlds_cli.preprocess.task import Task
from rlds_cli.store import assign_paths
from rlds_cli.ted import TASK, TASK_AT, VIDEO, Field, Flat, Placement, Scalar, field_of


@dataclass(frozen=True)
class Assumptions:
    """Observations so far that restrict every later plan: touched fields, lengths kept, separate next values."""

    touched: frozenset[str] = frozenset()
    kept: bool = True
    apart: frozenset[str] = frozenset()

    def __or__(self, other: Assumptions) -> Assumptions:
        return Assumptions(self.touched | other.touched, self.kept and other.kept, self.apart | other.apart)

    def describe(self) -> str:
        """Say in words what the plan did not assume."""
        what = [] if self.kept else ["episode lengths change"]
        what += [f"{', '.join(sorted(self.touched))} changed in a later episode"] if self.touched else []
        what += [f"{n} and next/{n} differ" for n in sorted(self.apart)]
        return "; ".join(what)

    def to_json(self) -> str:
        """Encode as text, for a later run."""
        return json.dumps({"touched": sorted(self.touched), "kept": self.kept, "apart": sorted(self.apart)})

    @classmethod
    def from_json(cls, written: str) -> Assumptions:
        """Decode text from `to_json`; other text gives no assumptions."""
        try:
            d = json.loads(written)
            return cls(frozenset(d["touched"]), d["kept"], frozenset(d["apart"]))
        except (ValueError, KeyError, TypeError):
            return cls()


_NAMED = 8  # fields that a message names


class AssumptionBroken(Exception):
    """An episode contradicts the plan; plan again with these assumptions."""

    def __init__(self, assumptions: Assumptions) -> None:
        super().__init__(assumptions)
        self.assumptions = assumptions


@dataclass(frozen=True)
class WritePlan:
    """The fields of the result, and assumptions about all episodes.

    Parameters
    ----------
    schema : tuple of Field
        All fields of the result.
    untouched : frozenset of str
        Fields that the function returns unchanged.
    carried : frozenset of str
        Fields of the source that the function does not receive, under their names in the result.
    kept : bool
        All episodes are returned with their lengths.
    linked : bool
        ``untouched`` and ``carried`` share the files of the source and are not written.
    apart : frozenset of str
        Fields whose next value is a separate field.
    renamed : mapping of str to str
        Carried fields with a new name, and their names in the source.
    joined : bool
        The rows of the source do not lie end to end: in the result, they lie where those files have them.
    """

    schema: tuple[Field, ...]
    untouched: frozenset[str]
    carried: frozenset[str]
    kept: bool
    linked: bool
    apart: frozenset[str]
    renamed: Mapping[str, str] = field(default_factory=dict)
    joined: bool = False

    @cached_property
    def same(self) -> frozenset[str]:
        """Fields that equal those of the source, under the same names."""
        return (self.untouched | self.carried) - frozenset(self.renamed)

    @cached_property
    def shared(self) -> frozenset[str]:
        """Fields that share the files of the source."""
        return self.untouched | self.carried if self.linked else frozenset()

    @cached_property
    def written(self) -> tuple[Field, ...]:
        """Fields to write."""
        return tuple(f for f in self.schema if f.name not in self.shared)

    @cached_property
    def copied(self) -> frozenset[str]:
        """Fields to write whose stored rows are copied from the source."""
        return frozenset() if self.linked else self.carried | self.encoded

    @cached_property
    def encoded(self) -> frozenset[str]:
        """Untouched frames, which are copied without decoding them."""
        return self.untouched & {f.name for f in self.schema if f.kind == "frames"}


@dataclass(frozen=True)
class Probe:
    """The outcome of probing one episode. ``schema`` is None if it was dropped; ``seconds`` is the time per step."""

    schema: tuple[Field, ...] | None
    untouched: frozenset[str]
    kept: bool
    seconds: float = 0.0
    apart: frozenset[str] = field(default_factory=frozenset)


def infer(
    flat: Flat, placements: dict[str, Placement], source: Mapping[str, Field], untouched: frozenset[str]
) -> tuple[Field, ...]:
    """Infer the fields of a result from its first episode; untouched fields keep their definition."""
    return tuple(
        source[name]
        if name in untouched and source[name].placement == placements[name]
        else field_of(name, values, placements[name])
        for name, values in sorted(flat.items())
    )


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """One returned episode.

    ``rows[name]`` are the rows of the source that a field equals, if it is a slice of them; ``flat[name]`` may then be
    a LazyArray. ``columns`` are those of the episode table that the function set.
    """

    flat: Flat
    length: int
    end: int
    observed: bool
    rows: Mapping[str, slice]
    columns: Mapping[str, Scalar] = field(default_factory=dict)


class Runner(Protocol):
    """Runs the function of a task on episodes, or on the steps of episodes."""

    def probe(self, k: int, assumptions: Assumptions) -> tuple[Probe, *tuple[Any, ...]]:
        """Call the function on episode ``k`` of the selection."""


def make_plan(task: Task, runner: Runner, assumptions: Assumptions) -> tuple[WritePlan, float]:
    """Plan the output of a task from a few episodes, and measure the seconds per step.

    They are the first, middle and last one, of those with a final observation if there are any.

    Raises
    ------
    PreprocessError
        The function failed on one of them, or dropped all episodes.
    """
    episodes = task.dataset.episodes
    observed = np.flatnonzero(episodes["num_observed"] > episodes["length"])
    of = observed if len(observed) else np.arange(len(episodes))
    probes: list[Probe] = []
    for k in sorted({int(of[0]), int(of[len(of) // 2]), int(of[-1])}):
        try:
            probes.append(runner.probe(k, assumptions)[0])
        except PreprocessError:
            if not task.keep_going:
                raise
            probes.append(Probe(None, frozenset(), kept=False))  # as if it was dropped
    made = [p for p in probes if p.schema]
    first = made[0] if made else _first_kept(task, runner, assumptions)
    assumptions = replace(assumptions, kept=assumptions.kept and all(p.kept for p in probes))
    seconds = min((p.seconds for p in made), default=first.seconds)  # the first call may import things
    return plan_of(task, assumptions, first, made), seconds


def _first_kept(task: Task, runner: Runner, assumptions: Assumptions) -> Probe:
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
        f"{task.function.reference} returned no episode for all {of}.",
        hint="a function returns the episode, also when it changed it in place; None drops it, and so does False",
    )


def plan_of(task: Task, assumptions: Assumptions, first: Probe, probes: Sequence[Probe] = ()) -> WritePlan:
    """Plan the output, assuming that all episodes are like these and have the fields of ``first``."""
    assert first.schema is not None
    source = task.dataset.schema
    schema = {f.name: f for f in first.schema}
    if TASK in schema and schema[TASK].kind == "text":
        raise PreprocessError(
            f"{task.function.reference} returned a field {TASK}, which is what a column says of each episode.",
            hint=f'data["episode/{TASK}"] = ... sets it; data["{TASK_AT}"] has a text for each step',
        )
    kept = assumptions.kept and all(p.kept for p in (first, *probes)) and (task.whole or task.unit != "episode")
    rows, store = Rows(task.dataset), task.dataset.store
    linked = kept and task.whole and not store.address  # at an address, rows are in no file
    joined = linked and (store.table.segment_rows > 0 or not rows.is_dense)
    untouched = frozenset.intersection(first.untouched, *(p.untouched for p in probes)) - assumptions.touched
    untouched &= {n for n in untouched if schema.get(n) == source[n] and n not in task.decoded}
    touched_frames = [n for n, f in schema.items() if f.kind == "frames" and n in first.untouched - untouched]
    for n in touched_frames:  # changed in only some of the probed episodes
        schema[n] = Field(n, source[n].dtype, source[n].shape, schema[n].placement)
    carried = _carried(task, schema)
    _check_nesting(schema, carried)
    schema |= {new: replace(source[old], name=new) for new, old in carried.items()}
    new = frozenset(schema) - untouched - (frozenset(carried) & frozenset(source))
    taken = set(map(str.lower, assign_paths(new).values()))  # an untouched field in such a place is written to another
    untouched = frozenset(n for n in untouched if store.table.path_of(n).lower() not in taken)
    if joined:
        written = [f for n, f in schema.items() if n not in untouched | frozenset(carried)]
        linked = _has_places(rows, written) and store.files.can_link(store.table.columns(), settings.read(None).home)
    if not linked and task.unit == "episode":
        # Written anyway: untouched only matters for frames, which stay encoded, and for fields with a space.
        untouched &= {n for n, f in schema.items() if f.kind == "frames" or _has_space(n)}
    return WritePlan(
        schema=tuple(schema[n] for n in sorted(schema)),
        untouched=untouched,
        carried=frozenset(carried),
        kept=kept,
        linked=linked,
        apart=task.apart | assumptions.apart | frozenset(a for p in (first, *probes) for a in p.apart),
        renamed={new: old for new, old in carried.items() if new != old},
        joined=joined and linked,
    )


def _has_places(rows: Rows, written: Iterable[Field]) -> bool:
    """Return whether the values of these fields can be written to the rows of the source.

    A last row that is a step of another episode, too, has place for one value, and images lie in the order of rows.
    """
    both = any(f.placement == "both" for f in written)
    images = any(f.kind == "frames" and f.codec != VIDEO for f in written)
    return (not both or rows.is_apart) and (not images or rows.is_ordered)


def removal(task: Task, plan: WritePlan) -> str:
    """Describe the fields of the source that a user's function does not return; empty if there are none."""
    stay = {f.name for f in plan.schema} | set(plan.renamed.values())
    names = [n for n in task.dataset.schema if n not in stay]
    if not names or builtin.get(task.function.reference):
        return ""
    some = ", ".join(names[:_NAMED]) + (f", {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    return (
        f"{text.plural(len(names), 'field')} would be removed, which {task.function.name} does not return: {some}."
        "  return {**data, ...} keeps them"
    )


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
