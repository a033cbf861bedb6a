"""The columns of a dataset as the kernel reads them, and what is made of its outputs: frames that are decoded."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.loader.fields.columns import BatchColumn, Decoding
from rlds_cli.loader.index import Located, WindowIndex
from rlds_cli.loader.kernel import Bound, NStep, Output, Plan, RowPlace
from rlds_cli.loader.slabs import Kinds
from rlds_cli.loader.storage.page_cache import PlannedRead
from rlds_cli.loader.storage.remote import Arrival, RemoteReads, blocks_of


class CompiledColumns:
    """Columns, and the plan that the kernel follows to write their outputs."""

    def __init__(
        self,
        pool: WindowIndex,
        columns: Mapping[str, BatchColumn],
        changed: Collection[str],
        n_step: NStep | None,
    ) -> None:
        self._names, self._starts = tuple(columns), pool.starts
        self._read = [(c.rows.file, c.outputs[0]) for c in columns.values() if c.rows is not None and c.rows.file]
        self._finished: list[tuple[str, int, BatchColumn]] = []  # columns made of outputs, and their first one
        self._direct: list[tuple[str, int]] = []  # columns that are an output
        self._inside: list[tuple[str, int]] = []  # outputs that say which values are real
        outputs: list[Output] = []
        for name, c in columns.items():
            late = c.mask and (c.finish is not None or name in changed)
            if c.finish is not None:
                self._finished.append((name, len(outputs), c))
                outputs += c.outputs
            else:
                self._direct.append((name, len(outputs)))
                outputs.append(c.outputs[0] if late or not c.mask else replace(c.outputs[0], mask=c.mask, blank=True))
            if late:
                self._inside.append((name, len(outputs)))
                outputs.append(c.inside())
        self._plan, self._summed = Plan(pool.windows, outputs, n_step), n_step.most if n_step else 1
        self._plain = not self._finished and not self._inside
        self._together: list[tuple[int, int, Decoding]] = []  # of each field in videos, the output that is decoded
        firsts: dict[str, tuple[int, BatchColumn]] = {}
        for _, i, c in self._finished:
            if c.decoding is not None:
                firsts.setdefault(c.decoding.key, (i, c))
        for i, c in firsts.values():
            if c.decoding is not None and c.decoding.together and c.as_read:
                self._together.append((i, c.outputs[0].shift, c.decoding))
        self.remote: RemoteReads | None = None
        self._encoded: Plan | None = None  # the rows of encoded frames of a remote dataset
        if blocks_of(pool.dataset) is not None:
            frames = [
                (c.outputs[0], c.decoding.encoded)
                for c in columns.values()
                if c.decoding is not None and c.decoding.encoded is not None and c.decoding.encoded.place is not None
            ]
            if frames:
                self._encoded = Plan(pool.windows, [replace(o, also=()) for o, _ in frames], n_step)
            encoded = [(of, o.shift) for o, of in frames]
            sums = n_step is not None and n_step.terminated is not None
            self.remote = RemoteReads(pool.dataset, self._plan, sums=sums, encoded=encoded)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return self._names

    @property
    def kinds(self) -> Kinds:
        """Dtype and shape of a step of each output; each is a column if they are final."""
        return self._plan.made

    def is_final(self, floats: str | None) -> bool:
        """Return whether each column is an output, with floats in the dtype ``floats``."""
        kinds = [o.dtype for o in self._plan.outputs if o.dtype.kind == "f"]
        return self._plain and all(floats is None or kind.name == floats for kind in kinds)

    def arrival(self, located: Located) -> Arrival | None:
        """Return the blocks that reading these samples takes, announced; None where all are cached."""
        remote = self.remote
        if remote is None:
            return None

        def announced() -> Arrival | None:
            rows = None if self._encoded is None else self._bound(self._encoded, located)
            return remote.announce(self._bound_to(located), rows, len(located))

        return located.once(remote, announced)

    def writer(self, located: Located) -> Bound:
        """Return the samples, once all blocks that they are read from are cached."""
        return self.samples(located)

    def samples(self, located: Located) -> Bound:
        """Return the samples, once all blocks that they are read from are cached."""
        arrival = None if self.remote is None else self.arrival(located)
        if arrival is not None:
            arrival.wait()
        return self._bound_to(located)

    def _bound_to(self, located: Located) -> Bound:
        bound: Bound = located.once(self, self._bound, self._plan, located)
        return bound

    def read(self, located: Located, first: int, n: int) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return the columns of samples [n] by name, and which values are real of those that are to be zeroed later."""
        return next(self.read_each(located, first, n, 1))

    def read_each(
        self, located: Located, first: int, n: int, batches: int
    ) -> Iterator[tuple[dict[str, Array], dict[str, Array]]]:
        """Yield what `read` returns of each of some batches [n], one after the other; videos are decoded at once."""
        samples = self.samples(located)
        at_once = batches if self._together else 1
        for start in range(0, batches, at_once):
            made = [samples.read(first + k * n, n) for k in range(start, start + at_once)]
            memos = [dict[str, Any]() for _ in made]
            for i, shift, decoding in self._together:
                decoding.decode_together(memos, [outputs[i] + shift for outputs in made])
            made.reverse()
            memos.reverse()
            while made:  # none is kept: the memory of each is used again when it is gone
                yield self._values(made.pop(), memos.pop())

    def _values(self, made: list[Array], memo: dict[str, Any]) -> tuple[dict[str, Array], dict[str, Array]]:
        if self._plain:
            return dict(zip(self._names, made, strict=True)), {}
        values = {name: made[i] for name, i in self._direct}
        for name, i, c in self._finished:
            assert c.finish is not None
            values[name] = c.finish(memo, *made[i : i + len(c.outputs)])
        return {name: values[name] for name in self._names}, {name: made[i] for name, i in self._inside}

    @property
    def merges(self) -> bool:
        """Whether several batches take less work at once."""
        return bool(self._together)

    @property
    def of_steps(self) -> Plan | None:
        """The plan, if each column is an output that depends on a step alone, of rows on this disk; else None."""
        alone = self._plain and not self._plan.givens and self.remote is None
        return self._plan if alone else None

    @staticmethod
    def _bound(plan: Plan, located: Located) -> Bound:
        given = [located.once(make, make, located) for make in plan.givens]
        drawn = located.drawn
        bounds = drawn.bounds
        bound: Bound | None = None if bounds is None else bounds.get(plan)
        if bound is None or not bound.is_of(given, located.length):
            bound = Bound(plan, drawn.episode, drawn.number, given, located.length)
            if bounds is not None:
                bounds[plan] = bound
        return bound

    def planned_reads(self, located: Located) -> list[PlannedRead]:
        """Return the reads of files that `read` will make, about; none of files that are not all here."""
        if self.remote is not None and not self.remote.whole:
            return []
        seen: dict[tuple[object, ...], PlannedRead] = {}
        for file, o in self._read:
            where = (o.place, o.given, o.offsets, o.amount)
            first, length = located.once(where, self._stretches, located, o)
            seen[id(file), where] = PlannedRead(file, first, length + 1)  # also the row after, which is often read
        return list(seen.values())

    def _stretches(self, located: Located, o: Output) -> tuple[IntArray, int]:
        """Return the first row that an output reads of each sample [K], and how many follow each other."""
        if o.place is RowPlace.GIVEN:
            assert o.given is not None
            return located.once(o.given, o.given, located), 1
        stride, offset = self._starts
        drawn, table = located.drawn, located.table
        step = drawn.number * stride + offset
        if o.place is RowPlace.OFFSETS:
            step, length = step + min(o.offsets), max(o.offsets) - min(o.offsets) + 1
        else:
            length = self._summed if o.place is RowPlace.LAST else max(1, located.length)
            step = step + o.amount
        steps, start = table.steps.take(drawn.episode), table.start.take(drawn.episode)
        return start + np.clip(step, 0, steps - 1), length
