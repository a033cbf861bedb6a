"""Run a plan: files appear complete and checked, or not at all. Partial downloads are kept and resumed.

`fetch` handles several files at a time. `FileFetcher` tries every way to obtain one of them, and checks its bytes
before the file gets its name.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from urllib.parse import urlsplit

from rlds_cli.base import text, visible
from rlds_cli.base.files import disk, hashing
from rlds_cli.base.http.client import Client, Parallelism, RetryPolicy
from rlds_cli.base.http.connections import Permanent
from rlds_cli.base.progress import Event, Progress, Stage, silent
from rlds_cli.base.settings import Settings
from rlds_cli.errors import DownloadFailed, Offline, RldsError, WrongHash
from rlds_cli.make.downloads.fetch.planning import Action, FetchPlan, FetchStep, listing_of, remember, ways
from rlds_cli.places import (
    FileDownload,
    FileRecord,
    RemoteFile,
    as_url,
)

JOBS = 8  # files at a time
MANY = 12  # files; more are reported as one sum
_MOST_TIMEOUTS = 2  # stalled addresses of a server before it is skipped; one that is silent is skipped at once
_EVERY = 0.1  # seconds between two events of a file


@dataclass(frozen=True, slots=True)
class Fetched:
    """A complete file: how it was obtained, and its record.

    ``shared`` is how an adopted or linked file was made: by hard link, reflink or copy.
    """

    file: RemoteFile
    path: Path
    action: Action
    record: FileRecord
    shared: disk.How | None = None


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
    listing = listing_of(plan)  # before anything is fetched: it may be too long
    disk.check_space(plan.to_write, plan.destination)
    jobs = max(1, min(jobs or JOBS, len(plan.steps)))
    tally = TotalProgress(plan, id=id, progress=progress) if len(plan.steps) > MANY else None
    with Client(where, policy=policy, width=width, jobs=jobs) as client:
        fetcher = FileFetcher(client, plan, id=id, progress=tally or progress)
        brought = client.each(fetcher.fetch, plan.steps, jobs)
    remember(plan, listing)
    if tally:
        tally.finish()
    return brought


class _SourceFailed(Exception):
    """A way to obtain a file failed; ``wrong`` if it gave other bytes, ``error`` if the disk is the cause."""

    def __init__(self, source: str, reason: str, *, wrong: bool = False, error: RldsError | None = None) -> None:
        super().__init__(reason)
        self.text = f"{source}: {reason}"
        self.wrong = wrong
        self.error = error


def reused(step: FetchStep) -> Fetched:
    """Return an existing file that is recorded."""
    record = FileRecord.read(step.target)
    if record is None:
        raise DownloadFailed(
            f"The record of {step.target} was removed during the download.", hint="run the same command again"
        )
    return Fetched(step.file, step.target, "reuse", record)


class FileFetcher:
    """Fetches the files of a plan, one per call; shared by several threads."""

    def __init__(self, client: Client, plan: FetchPlan, *, id: str, progress: Progress) -> None:
        self.client = client
        self._plan = plan
        self._id = id
        self._progress = progress
        self._timeouts: Counter[str] = Counter()  # timeouts by host and port

    def fetch(self, asked: FetchStep) -> Fetched:
        """Obtain the file of a step; raises as `fetching.fetch` does."""
        if asked.action == "reuse":
            return reused(asked)

        def say(note: str) -> None:
            self._progress(Event(self._id, "note", asked.file.path, note=note))

        destination, failures = self._plan.destination, list[_SourceFailed]()
        with FileDownload.locked(asked.target, destination, self.client.check, say), self.client.occupied():
            # Another process may have fetched it while this one waited: its ways are planned again.
            for step in ways(asked.file, destination, self.client.where, rehash=asked.action == "verify"):
                self.client.check()
                try:
                    match step.action:
                        case "reuse":
                            return reused(step)
                        case "verify":
                            return self._verify(step)
                        case "fetch":
                            return self._fetch(step, failures)
                        case _:
                            return self._share(step)
                except _SourceFailed as exc:
                    exc.wrong &= step.action == "link"  # a wrong copy of another tool is no fault of the source
                    failures.append(exc)
            raise _failed(asked, failures) from _cause(failures)

    def _verify(self, step: FetchStep) -> Fetched:
        """Compare the hash of a file with the published one, else with the recorded one."""
        file, old = step.file, FileRecord.read(step.target)
        if old and not file.hashed:
            file = replace(file, sha256=old.sha256)
        record = self._examine(file, step.target)
        if old:
            record = old.renewed(record)
        record.write(step.target)
        return Fetched(step.file, step.target, "verify", record)

    def _share(self, step: FetchStep) -> Fetched:
        """Link or copy a file that is on this machine."""
        assert step.origin is not None
        record = self._examine(step.file, step.origin)
        try:
            how = disk.share(step.origin, step.target)
            disk.sync_directory(step.target.parent)
            record = replace(record, mtime_ns=step.target.stat().st_mtime_ns)
            record.write(step.target)
        except OSError as exc:
            raise disk.disk_error(exc, step.target) from exc
        note = {"link": "hard link", "reflink": "reflink", "copy": "copy"}[how]
        self._tell(step.file, "adopt", record.size, record.size, f"{note} of {step.origin}")
        return Fetched(step.file, step.target, step.action, record, how)

    def _examine(self, file: RemoteFile, path: Path) -> FileRecord:
        """Return the record of a local file; raises _SourceFailed if its hash or size is wrong."""
        try:
            total = path.stat().st_size
            sha256 = hashing.sha256_of(
                path, _ThrottledProgress(lambda done: self._tell(file, "verify", done, total), total)
            )
            promised = file.promise and file.promise[0]
            record = FileRecord.of(
                path, url=visible.shown(file.urls[0]), revision=file.revision, sha256=sha256, promised=promised
            )
        except OSError as exc:
            raise _SourceFailed(str(path), f"cannot be read ({exc.strerror})") from None
        if misfit := file.misfit(record):
            raise _SourceFailed(f"{path} (left as it is)", misfit, wrong=True)
        self._tell(file, "verify", total, total, _verdict(file))
        return record

    def _fetch(self, step: FetchStep, failures: list[_SourceFailed]) -> Fetched:
        paths = {url: as_url(url).local_path for url in step.file.urls}
        remote = [url for url, path in paths.items() if path is None]
        gone = [url for url, path in paths.items() if path is not None and not path.is_file()]
        failures += [_SourceFailed(u, "does not exist") for u in gone]
        if remote and self.client.where.offline:
            raise _offline(step, failures)
        most = self.client.policy.sources
        with FileDownload.begun(step.target, step.file) as download:
            for url in remote[:most]:
                try:
                    return self._from_url(download, step.target, self._address(url))
                except _SourceFailed as exc:
                    failures.append(exc)
        if len(remote) > most:
            failures.append(_SourceFailed(f"{len(remote) - most:,} further sources", "not tried"))
        raise _failed(step, failures) from _cause(failures)

    def _address(self, url: str) -> str:
        """Return the HTTP address of a source; raises _SourceFailed if it has none, so that others are tried."""
        try:
            return as_url(url).request(self.client.where)
        except RldsError as exc:
            raise _SourceFailed(visible.shown(url), exc.message, error=exc) from exc

    def _from_url(self, download: FileDownload, target: Path, url: str) -> Fetched:
        """Complete a file from one URL; raises _SourceFailed where another one may give it."""
        file = download.file

        def tell(done: int) -> None:
            note = f"resumed at {text.size_of(download.resumed)}" if download.resumed else ""
            self._tell(file, "fetch", done, download.size, note)

        def say(note: str) -> None:
            self._progress(Event(self._id, "note", file.path, download.there, note=note))

        paced, server = _ThrottledProgress(tell), urlsplit(url).netloc
        try:
            if self._timeouts[server] >= _MOST_TIMEOUTS:
                raise Permanent("its server has timed out before")
            record = download.bring(self.client, url, told=lambda last: paced(download.there, last=last), say=say)
        except Permanent as exc:
            if exc.late:
                self._timeouts[server] += _MOST_TIMEOUTS if exc.silent else 1
            source = visible.shown(url) + (" (the download is removed)" if exc.wrong else "")
            raise _SourceFailed(source, exc.reason, wrong=exc.wrong, error=exc.error) from exc.__cause__
        self._tell(file, "verify", record.size, record.size, _verdict(file))
        return Fetched(file, target, "fetch", record)

    def _tell(self, file: RemoteFile, stage: Stage, done: int, total: int | None, note: str = "") -> None:
        self._progress(Event(self._id, stage, file.path, done, total, note=note))


def _verdict(file: RemoteFile) -> str:
    return f"{file.hash_name} ok" if file.promise else "sha256 recorded, none is published"


def _cause(failures: list[_SourceFailed]) -> BaseException | None:
    """Return the first exception behind the failures, for ``--verbose``."""
    return next((f.__cause__ for f in failures if f.__cause__), None)


def _failed(step: FetchStep, failures: list[_SourceFailed]) -> RldsError:
    """Return the error after all ways failed. It names each failure, and what is kept on the disk."""
    why = "; ".join(f.text for f in failures) or "no source is known for it"
    left = FileDownload.kept(step.target)
    kept = f"{text.size_of(left)} are kept in {step.target.name}.part." if left else "Nothing was kept."
    name = f"{step.file.path} ({text.size_of(step.file.size)})" if step.file.size is not None else step.file.path
    if any(f.wrong for f in failures):
        return WrongHash(
            f"{step.file.path} does not have the published hash or size. {why}.",
            hint="a proxy or an altered mirror may be the cause; --from DIR|URL takes the file from another source",
        )
    if error := next((f.error for f in failures if f.error), None):
        return error
    again = "the same command resumes it; " if left else ""
    return DownloadFailed(
        f"{name} could not be downloaded. {why}. {kept}",
        hint=f"{again}--from DIR|URL, or RLDS_MIRROR, takes the file from another source",
    )


def _offline(step: FetchStep, failures: list[_SourceFailed]) -> Offline:
    size = f" ({text.size_of(step.file.size)})" if step.file.size is not None else ""
    tried = "".join(f" {f.text}." for f in failures)
    return Offline(
        f"{step.file.path}{size} must be fetched, and network access is off (RLDS_OFFLINE or --offline).{tried}",
        hint="--from DIR takes it from a local copy",
    )


class _ThrottledProgress:
    """Reports progress at most every tenth of a second, and at the end; others report ``total``."""

    def __init__(self, tell: Callable[[int], None], total: int | None = None) -> None:
        self._tell = tell
        self._total = total
        self._next = 0.0
        self._told: int | None = None

    def __call__(self, done: int, *, last: bool = False) -> None:
        if done not in (self._told, self._total) and (last or time.monotonic() >= self._next):
            self._next, self._told = time.monotonic() + _EVERY, done
            self._tell(done)
        if last:
            self._next, self._told = 0.0, None  # what follows begins anew


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
