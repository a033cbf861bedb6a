"""Run a plan: files appear complete and checked, or not at all. Partial downloads are kept and resumed."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from threading import Lock

from rlds_cli.downloads.fetch.client import Client, Parallelism, RetryPolicy, Stopped
from rlds_cli.downloads.fetch.file import Fetched, FileFetcher, reused
from rlds_cli.downloads.fetch.planning import FetchPlan, check_listing, remember
from rlds_cli.files import disk
from rlds_cli.progress import Event, Progress, silent
from rlds_cli.settings import Settings

JOBS = 8


def fetch(
    plan: FetchPlan,
    where: Settings,
    *,
    id: str = "",
    jobs: int | None = None,
    progress: Progress = silent,
    policy: RetryPolicy | None = None,
    width: Parallelism | None = None,
) -> tuple[Fetched, ...]:
    """Fetch the files of a plan, several at a time, and save the listing.

    Parameters
    ----------
    id : str
        Id of the dataset, for the events.
    jobs : int, optional
        Number of files at a time; 8 by default.
    progress : callable
        Receives events of the stages ``fetch``, ``verify`` and ``adopt``, in bytes, from several threads. More
        than 12 files are reported as one sum.

    Returns
    -------
    tuple of Fetched
        In the order of the plan.

    Raises
    ------
    DownloadFailed
        No source has a file; the message names each source and its failure.
    WrongHash
        The hash is wrong. Fetched bytes are removed; a local copy is left alone.
    Offline
        A file must be fetched, and network access is off.
    NoSpace, NoPermission
        Before the first byte, or while writing.

    After any of these, Ctrl-C or a kill, complete files stay, and the next call resumes the others.
    """
    if plan.finished:
        return tuple(map(reused, plan.steps))
    check_listing(plan)
    disk.check_space(plan.to_write, plan.destination)
    jobs = max(1, min(jobs or JOBS, len(plan.steps)))
    tally = TotalProgress(plan, id=id, progress=progress) if len(plan.steps) > MANY else None
    with Client(where, policy=policy, width=width, jobs=jobs) as client:
        brought = _all(plan, FileFetcher(client, plan, id=id, progress=tally or progress), jobs)
    remember(plan)
    if tally:
        tally.finish()
    return brought


def _all(plan: FetchPlan, fetcher: FileFetcher, jobs: int) -> tuple[Fetched, ...]:
    if jobs == 1:
        return tuple(fetcher.fetch(step) for step in plan.steps)
    with ThreadPoolExecutor(jobs, thread_name_prefix="rlds-fetch") as pool:
        futures = [pool.submit(fetcher.fetch, step) for step in plan.steps]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            unfinished = [f for f in futures if not f.cancel() and not f.done()]
            if unfinished:
                fetcher.client.stop()
    failed = [e for f in futures if not f.cancelled() and (e := f.exception()) and not isinstance(e, Stopped)]
    if failed:
        raise failed[0]
    return tuple(f.result() for f in futures)


MANY = 12  # files; more are reported as one sum


class TotalProgress:
    """A ``Progress`` that sums the files of a plan: in bytes if all sizes are known, else in files."""

    def __init__(self, plan: FetchPlan, *, id: str, progress: Progress) -> None:
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
            return self._tell(max(0, min(done, self._total - 1)))  # the total is reached when the last file is complete

    def finish(self) -> None:
        """Report the total, and counts of what verification found."""
        self._tell(self._total)
        found = ", ".join(f"{n:,} {verdict}" for verdict, n in self._verdicts.most_common())
        self._progress(Event(self._id, "verify", self._what, self._files, self._files, "files", found))

    def _tell(self, done: int) -> None:
        self._progress(Event(self._id, "fetch", self._what, done, self._total, self._unit))
