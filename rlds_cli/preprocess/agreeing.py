"""What shards agree on that do not speak to each other: files that each reads before it begins a chunk.

::

    <work>/chunks.json           how many rows a chunk has
    <work>/known-<hash>.json     what some shard learned of episodes that are not as planned
    <work>/<plan>/known.json     what was known when this was the plan
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from rlds_cli import safe_files
from rlds_cli.preprocess import division, job, replanning
from rlds_cli.preprocess.job import PreprocessJob
from rlds_cli.preprocess.plan import Known, Otherwise
from rlds_cli.preprocess.task import Task
from rlds_cli.store import shards
from rlds_cli.store.shards import Finished


@dataclass(frozen=True, slots=True)
class Planned:
    """What is to be written as far as is ``known``, and ``below`` which directory of the ``work``."""

    job: PreprocessJob
    known: Known
    work: Path

    @property
    def below(self) -> Path:
        """Where its parts are."""
        return self.work / self.job.key[:16]

    def check(self) -> None:
        """Raise Otherwise where another shard has learned something."""
        now = _recall(self.work)
        if now != self.known:
            raise Otherwise(now)

    def finished(self, numbers: Collection[int]) -> Finished:
        """The parts that are there; of earlier plans those that can be completed, and are."""
        done = shards.finished(self.job, self.below, numbers)
        for earlier in self._earlier() if len(done) < len(numbers) else ():
            left = set(numbers) - done.keys()
            for number, (where, written) in shards.finished(earlier.job, earlier.below, left).items():
                segment = earlier.below / where
                done[number] = replanning.complete(earlier.job, self.job, number, segment, written, self.below)
        return done

    def said(self) -> set[int]:
        """The parts that somebody says are there."""
        return set().union(*(shards.said(p.job, p.below) for p in (self, *self._earlier())))

    def _earlier(self) -> list[Planned]:
        """Plans made when less was known, whose parts can be completed."""
        found = []
        for file in sorted(self.work.glob("*/known.json")):
            known = Known.from_json(file.read_text())
            if known != self.known and known | self.known == self.known:
                plan = _planned_as(self.job.task, self.work, known)[0]
                if plan.below == file.parent and replanning.fits(plan.job, self.job):
                    found.append(plan)
        return found


def planned(t: Task, work: Path) -> tuple[Planned, float]:
    """What is to be written as far as any shard knows, and the seconds that a step takes."""
    plan, seconds = _planned_as(t, work, _recall(work))
    plan.below.mkdir(parents=True, exist_ok=True)
    write_once(plan.below / "known.json", plan.known.to_json())
    return plan, seconds


def _planned_as(t: Task, work: Path, known: Known) -> tuple[Planned, float]:
    plan, seconds = job.plan(t, known)
    rows = division.decided(work, seconds, t.dataset.num_steps)
    return Planned(job.divided(t, plan, rows), known, work), seconds


def _recall(work: Path) -> Known:
    known = Known()
    for file in sorted(work.glob("known-*.json")):
        known |= Known.from_json(file.read_text())
    return known


def learn(work: Path, known: Known) -> None:
    """Tell the others."""
    text = known.to_json()
    write_once(work / f"known-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json", text)


def write_once(file: Path, text: str) -> None:
    """Write a file in one step, unless it is there."""
    if not file.exists():
        safe_files.replace_text(file, text)
