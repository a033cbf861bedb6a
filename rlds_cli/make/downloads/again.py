"""Files of archives that are fetched for others than a conversion: damaged ones again, and those of a mirror."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from rlds_cli.base import ids
from rlds_cli.base.progress import Progress
from rlds_cli.base.settings import Settings
from rlds_cli.make.downloads.archive import plan_transfer
from rlds_cli.make.downloads.fetch import fetching, planning
from rlds_cli.make.downloads.fetch.fetching import Fetched
from rlds_cli.make.downloads.request import DownloadRequest
from rlds_cli.places import RemoteFile
from rlds_cli.registry import Entry


def fetch_again(request: DownloadRequest, entry: Entry, names: Collection[str], progress: Progress) -> tuple[str, ...]:
    """Fetch files of an archive by name, those that have changed; return their names. The caller holds the lock."""
    id = ids.parse(request.ref)
    plan = plan_transfer(request, id, entry, request.where).plan
    steps = tuple(s for s in plan.steps if s.file.path in names)
    listed = plan.listed or tuple(s.file for s in plan.steps)
    came = fetching.fetch(replace(plan, steps=steps, listed=listed), request.where, id=str(id), progress=progress)
    return tuple(f.file.path for f in came if f.action != "verify")


def fetch_into(
    directory: Path, files: Sequence[RemoteFile], where: Settings, *, id: str, progress: Progress
) -> tuple[Fetched, ...]:
    """Fetch files into a directory, unless they exist already; in their order."""
    return fetching.fetch(planning.plan(files, directory, where), where, id=id, progress=progress)
