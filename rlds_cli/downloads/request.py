"""A request to download a dataset."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from rlds_cli import ids, settings
from rlds_cli.registry.records import File
from rlds_cli.settings import Settings, StrPath
from rlds_cli.subset import EVERYTHING, Subset

Encoding = Literal["memmap", "zarr"]
Withheld = Literal["", "user", "query"]


@dataclass(frozen=True, slots=True)
class DownloadRequest:
    """A dataset to download, with all options."""

    ref: str
    source: str | None = None
    store: Encoding = "memmap"
    frames: str = "encoded"
    force: bool = False
    keep_archive: bool = True
    offline: bool = False
    cache_dir: StrPath | None = None
    skip_bad: bool = False
    portion: Subset = EVERYTHING
    files: tuple[File, ...] = ()  # exactly these files, from a lock, instead of those of the registry or a listing
    pinned: tuple[File, ...] = ()  # files of a lock, to be found in a listing
    revision: str | None = None  # of the repository to list
    withheld: Withheld = ""  # where ``source`` had credentials that were not written down

    @property
    def variant(self) -> str | None:
        """The variant in the id of the dataset; None for the whole archive as published."""
        return "_".join(filter(None, (self.portion.name, ids.frames_variant(self.frames)))) or None

    @property
    def where(self) -> Settings:
        """The settings, with those of the request."""
        read = settings.read(self.cache_dir)
        return replace(read, offline=read.offline or self.offline)
