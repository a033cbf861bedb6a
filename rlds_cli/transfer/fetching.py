"""Doing what a plan says: files appear whole and checked, or not at all, and what came so far is kept."""

from __future__ import annotations

from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from rlds_cli import space
from rlds_cli.progress import Progress, silent
from rlds_cli.settings import Settings
from rlds_cli.transfer.bringing import Bringer, Fetched, reused
from rlds_cli.transfer.client import Client, Patience, Stopped, Width
from rlds_cli.transfer.planning import Plan, check_listing, remember
from rlds_cli.transfer.tally import MANY, Tally

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
    space.check_space(plan.to_write, plan.destination)
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
