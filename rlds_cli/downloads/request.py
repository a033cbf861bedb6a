"""What is asked for when a dataset is ordered."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from rlds_cli import ids, settings
from rlds_cli.registry.records import File
from rlds_cli.settings import Settings, StrPath
from rlds_cli.subset import EVERYTHING, Portion

Store = Literal["memmap", "zarr"]
Withheld = Literal["", "user", "query"]


@dataclass(frozen=True, slots=True)
class Order:
    """One dataset as asked for."""

    ref: str
    source: str | None = None
    store: Store = "memmap"
    frames: str = "encoded"
    force: bool = False
    keep_archive: bool = True
    offline: bool = False
    cache_dir: StrPath | None = None
    skip_bad: bool = False
    portion: Portion = EVERYTHING
    limit_rate: int | None = None  # bytes a second
    files: tuple[File, ...] = ()  # the very files of a lock, instead of what the registry or a listing says
    pinned: tuple[File, ...] = ()  # files of a lock, which are looked for among those that a listing says
    revision: str | None = None  # of the repository that is listed
    withheld: Withheld = ""  # where ``source`` had credentials that were not written down with the order

    @property
    def variant(self) -> str | None:
        """The variant under which it will stand; None where all of it is wanted as published."""
        return "_".join(filter(None, (self.portion.name, ids.frames_variant(self.frames)))) or None

    @property
    def where(self) -> Settings:
        """The settings, with what the order says."""
        read = settings.read(self.cache_dir)
        return replace(read, offline=read.offline or self.offline, limit_rate=self.limit_rate or read.limit_rate)
