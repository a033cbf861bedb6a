"""Push a result while it is made: parts of its files whose rows are final go to the address, the rest at the end.

Only arrays of rows that are stored as they are can be sent before the end, and only if the function keeps the lengths
of episodes: then the place of every row is known. Texts get their codes and frames their places at the end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rlds_cli.dataset import Dataset
from rlds_cli.errors import InvalidArgument
from rlds_cli.preprocess.job import PreprocessJob
from rlds_cli.progress import Event, Progress
from rlds_cli.refs import Ref
from rlds_cli.remote.store import address_of
from rlds_cli.settings import Settings, StrPath
from rlds_cli.sharing import ahead, pushing
from rlds_cli.sharing.ahead import Sender
from rlds_cli.sharing.packing import Cuts, Span
from rlds_cli.sources import addresses
from rlds_cli.sources.addresses import Address
from rlds_cli.store import build, manifest
from rlds_cli.store.build import Finished, Placed
from rlds_cli.store.paths import assign_paths
from rlds_cli.store.snapshots import LocalFile
from rlds_cli.ted import Field


@dataclass(frozen=True, slots=True)
class Destination:
    """The address that a result is pushed to."""

    address: Address
    where: Settings
    force: bool = False  # replace a dataset with another id that is there

    @contextmanager
    def sending(self, job: PreprocessJob, work: Path, progress: Progress, first: int = 0) -> Iterator[Placed]:
        """Yield a function that sends what finished parts complete, from part number ``first`` on.

        ``work`` is the directory that the parts' directories are relative to. They must stay until the block ends.
        """
        if (why := _only_at_the_end(job)) is not None:
            progress(Event(job.id, "note", note=f"sent to {self.address} when it is made: {why}"))
            yield build.ignore
            return
        with Sender(self.address, self.where, job.id, progress) as sender:
            if sender.is_useful:
                yield _Outbox(job, work, first, self._fields(job), sender.offer).placed
            else:
                yield build.ignore

    def _fields(self, job: PreprocessJob) -> list[Field]:
        """Return the fields to send: not those that the store copies from the source."""
        there = address_of(job.task.dataset.store)
        store = job.task.dataset.store
        copied = not store.segment_rows and there is not None and self._is_beside(there)
        return [f for f in job.schema if f.kind == "array" and not (copied and f.name in job.plan.repeated)]

    def _is_beside(self, other: Address) -> bool:
        return self.address.sibling(other.name) == other.unpinned

    def push(self, path: Path, progress: Progress) -> None:
        """Push the finished dataset; raises as `pushing.push` does."""
        m = manifest.read(path)
        cuts = ahead.cuts(m.fields, {f.name: f.path for f in m.fields}, m.counts.rows)
        pushing.push_from(Ref(path), self.address, self.where, force=self.force, cuts=cuts, progress=progress)


def destination(push: StrPath, where: Settings, source: Dataset, id: str, *, force: bool) -> Destination:
    """Return where a result is to be pushed.

    Raises
    ------
    InvalidArgument
        The address is that of the source, or names a version.
    NameTaken
        It holds a dataset with another id, and ``force`` is not set.
    UploadFailed
        It can only be read.
    """
    address = addresses.parse(push)
    pushing.check_writable(address)
    there = address_of(source.store)
    if there is not None and there.unpinned == address:
        raise InvalidArgument(f"The result would replace its own source, {address}.", hint="push to another address")
    if not force:
        pushing.check_address(address, where, id)
    return Destination(address, where, force)


def _only_at_the_end(job: PreprocessJob) -> str | None:
    """Return why nothing of the result is final before it is whole; None if something is."""
    if not job.plan.kept:
        return "the function may change lengths of episodes, so the place of a row is known at the end"
    if job.plan.joined:
        return "its rows lie among those of its source, where they are put at the end"
    return "its rows are compressed at the end" if job.task.dataset.encoding != "memmap" else None


@dataclass(frozen=True, slots=True)
class _Run:
    """Rows that lie in the same files: row ``first`` of the dataset is row ``at`` there."""

    first: int
    rows: int
    directory: Path
    at: int


class _Outbox:
    """Makes spans of finished parts, in order, and offers those that are whole."""

    def __init__(
        self, job: PreprocessJob, work: Path, first: int, fields: list[Field], offer: Callable[[list[Span]], None]
    ) -> None:
        self._job, self._work, self._offer = job, work, offer
        self._paths = assign_paths(f.name for f in job.schema)
        self._rows = [int(p.rows or 0) for p in job.parts]
        self._part, self._row = first, sum(self._rows[:first])
        self._runs: list[_Run] = []
        cuts = ahead.cuts(job.plan.schema, self._paths, sum(self._rows))
        self._left = {f.name: self._behind(f, cuts[self._file(f)]) for f in fields}
        self._fields = {f.name: f for f in fields}

    def _file(self, f: Field) -> str:
        return ahead.file_of(f, self._paths[f.name])

    def _behind(self, f: Field, cuts: Cuts) -> list[tuple[int, int]]:
        """Return the cuts that lie behind the first row, the last one first."""
        return [c for c in reversed(cuts) if c[0] >= self._row * ahead.width_of(f)]

    def placed(self, done: Finished) -> None:
        """Take finished parts: their directories, and what they wrote."""
        while self._part in done:
            where, _ = done[self._part]
            rows = self._rows[self._part]
            at = self._row if where == build.PLACE else 0
            self._runs.append(_Run(self._row, rows, self._work / where, at))
            self._part, self._row = self._part + 1, self._row + rows
        for name, left in self._left.items():
            f = self._fields[name]
            while left and sum(left[-1]) <= self._row * ahead.width_of(f):
                self._offer(list(self._spans(f, *left.pop())))

    def _spans(self, f: Field, at: int, length: int) -> Iterator[Span]:
        """Yield the bytes [at, at + length) of the rows of a field, from the files in which they lie."""
        width, stop = ahead.width_of(f), at + length
        k = bisect_right(self._runs, at, key=lambda r: r.first * width) - 1
        while at < stop:
            run = self._runs[k]
            end = min(stop, (run.first + run.rows) * width)
            path = self._file(f)
            file = LocalFile(path, (run.at + run.rows) * width, (), run.directory / path)
            if end > at:
                yield Span(file, run.at * width + at - run.first * width, end - at)
            at, k = end, k + 1
