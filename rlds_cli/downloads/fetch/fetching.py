"""Doing what a plan says: files appear whole and checked, or not at all, and what came so far is kept.

One line of progress for many files.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from threading import Lock

from rlds_cli.downloads.fetch.client import Client, Patience, Stopped, Width
from rlds_cli.downloads.fetch.file import Bringer, Fetched, reused
from rlds_cli.downloads.fetch.planning import Plan, check_listing, remember
from rlds_cli.files import disk
from rlds_cli.progress import Event, Progress, silent
from rlds_cli.settings import Settings

JOBS = 8


def fetch(
    plan: Plan,
    where: Settings,
    *,
    id: str = "",
    jobs: int | None = None,
    progress: Progress = silent,
    patience: Patience | None = None,
    width: Width | None = None,
) -> tuple[Fetched, ...]:
    """Bring the files of a plan, several at a time, and remember what was listed.

    Parameters
    ----------
    id : str
        The dataset, for the events.
    jobs : int, optional
        Files at a time; 8 unless given.
    progress : callable
        Receives events of the stages ``fetch``, ``verify`` and ``adopt``, in bytes, from several threads; of more
        than 12 files, one sum.

    Returns
    -------
    tuple of Fetched
        In the order of the plan.

    Raises
    ------
    DownloadFailed
        No source gave a file; names each source and why.
    WrongHash
        The bytes are not those promised. Fetched bytes are removed; a copy that was to be adopted is left alone.
    Offline
        Something must be fetched and the network is forbidden.
    NoSpace, NoPermission
        Before the first byte, or while writing.

    After any of these, after Ctrl-C and after a kill, whole files stay whole and the next call goes on with the others.
    """
    if plan.finished:
        return tuple(map(reused, plan.steps))
    check_listing(plan)
    disk.check_space(plan.to_write, plan.destination)
    jobs = max(1, min(jobs or JOBS, len(plan.steps)))
    tally = Tally(plan, id=id, progress=progress) if len(plan.steps) > MANY else None
    with Client(where, patience=patience, width=width, jobs=jobs) as client:
        brought = _all(plan, Bringer(client, plan, id=id, progress=tally or progress), jobs)
    remember(plan)
    if tally:
        tally.finish()
    return brought


def _all(plan: Plan, bringer: Bringer, jobs: int) -> tuple[Fetched, ...]:
    if jobs == 1:
        return tuple(bringer.bring(step) for step in plan.steps)
    with ThreadPoolExecutor(jobs, thread_name_prefix="rlds-fetch") as pool:
        futures = [pool.submit(bringer.bring, step) for step in plan.steps]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            unfinished = [f for f in futures if not f.cancel() and not f.done()]
            if unfinished:
                bringer.client.stop()
    failed = [e for f in futures if not f.cancelled() and (e := f.exception()) and not isinstance(e, Stopped)]
    if failed:
        raise failed[0]
    return tuple(f.result() for f in futures)


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
