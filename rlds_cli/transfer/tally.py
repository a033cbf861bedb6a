"""One line of progress for many files."""

from __future__ import annotations

from collections import Counter
from threading import Lock

from rlds_cli.progress import Event, Progress
from rlds_cli.transfer.planning import Plan

MANY = 12  # files; more than these are told of together


class Tally:
    """A ``Progress`` that adds the files of a plan up: bytes where all sizes are known, else files."""

    def __init__(self, plan: Plan, *, id: str, progress: Progress) -> None:
        self._id = id
        self._progress = progress
        self._lock = Lock()
        self._what = f"{len(plan.steps):,} files"
        self._files = len(plan.steps)
        sizes = [s.file.size for s in plan.steps]
        self._total, self._unit = (self._files, "files") if None in sizes else (sum(s or 0 for s in sizes), "B")
        self._done = {s.file.path: s.file.size or 0 for s in plan.steps if s.action == "reuse"}
        self._verdicts: Counter[str] = Counter()

    def __call__(self, event: Event) -> None:
        """Add an event of one file."""
        with self._lock:
            if event.stage == "note":
                return self._progress(event)
            if event.stage == "verify" and event.note:
                self._verdicts[event.note] += 1
            self._done[event.what] = max(event.done, self._done.get(event.what, 0))
            done = sum(self._done.values()) if self._unit == "B" else self._verdicts.total()
            return self._tell(max(0, min(done, self._total - 1)))  # all of it only when the last file has its name

    def finish(self) -> None:
        """Say that all is here, and what was found by verifying."""
        self._tell(self._total)
        found = ", ".join(f"{n:,} {verdict}" for verdict, n in self._verdicts.most_common())
        self._progress(Event(self._id, "verify", self._what, self._files, self._files, "files", found))

    def _tell(self, done: int) -> None:
        self._progress(Event(self._id, "fetch", self._what, done, self._total, self._unit))
