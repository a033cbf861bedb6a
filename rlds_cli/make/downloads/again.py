"""Files of archives that are fetched for others than a conversion: damaged ones again, and those of a mirror."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from rlds_cli import registry
from rlds_cli.base import ids
from rlds_cli.base.progress import Progress
from rlds_cli.base.settings import Settings
from rlds_cli.errors import DownloadFailed
from rlds_cli.make.downloads.archive import plan_transfer
from rlds_cli.make.downloads.download import expand_refs
from rlds_cli.make.downloads.fetch import fetching, planning
from rlds_cli.make.downloads.fetch.fetching import Fetched
from rlds_cli.make.downloads.fetch.planning import FetchStep
from rlds_cli.make.downloads.request import DownloadRequest
from rlds_cli.places import RemoteFile
from rlds_cli.registry import Entry


@dataclass(frozen=True, slots=True)
class RegisteredArchive:
    """An archive of the registry, with all files that its entry names or its source lists."""

    entry: Entry

    @classmethod
    def named(cls, refs: Sequence[str]) -> list[Self]:
        """Return the archives that ids, aliases and globs stand for, each once, in order.

        Raises
        ------
        UnknownDataset
            The registry has no such id, or a glob matches nothing.
        """
        return [cls(registry.get(id)) for id in expand_refs(refs)]

    @property
    def id(self) -> str:
        """The id of the entry."""
        return self.entry.id

    @property
    def urls(self) -> Mapping[str, str]:
        """The first URL of each file that the entry names."""
        return {f.path: f.urls[0] for f in self.entry.files}

    def plan(self, where: Settings, progress: Progress) -> tuple[FetchStep, ...]:
        """Plan to fetch all files; the source is asked only for files that are missing.

        Raises
        ------
        DownloadFailed
            No source is known, or it does not list its files.
        """
        if not self.entry.files and not self.entry.tree:
            raise DownloadFailed(f"No source is known for {self.id}.")
        request = DownloadRequest(self.id, home=where.home)
        return plan_transfer(request, ids.parse(self.id), self.entry, where, progress).plan.steps

    def fetch(
        self, files: Sequence[RemoteFile], directory: Path, where: Settings, progress: Progress
    ) -> tuple[Fetched, ...]:
        """Fetch files into a directory, unless they exist already; in their order."""
        return fetching.fetch(planning.plan(files, directory, where), where, id=self.id, progress=progress)


def fetch_again(request: DownloadRequest, entry: Entry, names: Collection[str], progress: Progress) -> tuple[str, ...]:
    """Fetch files of an archive by name, those that have changed; return their names. The caller holds the lock."""
    id = ids.parse(request.ref)
    plan = plan_transfer(request, id, entry, request.where).plan
    steps = tuple(s for s in plan.steps if s.file.path in names)
    listed = plan.listed or tuple(s.file for s in plan.steps)
    came = fetching.fetch(replace(plan, steps=steps, listed=listed), request.where, id=str(id), progress=progress)
    return tuple(f.file.path for f in came if f.action != "verify")
