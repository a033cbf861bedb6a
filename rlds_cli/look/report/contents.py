"""What a home holds, for a page that searches it: facts of manifests, and what takes longer to find out.

It remembers what it has read of each dataset while the files stay as they are.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlds_cli import homes, registry
from rlds_cli.base import ids, settings
from rlds_cli.base.files.sizes import size_on_disk
from rlds_cli.base.ids import DatasetId
from rlds_cli.base.settings import StrPath
from rlds_cli.errors import DamagedDataset, DatasetNotFound, InvalidId, RldsError
from rlds_cli.store import History, Manifest
from rlds_cli.ted import TASK

_MOST_TASKS = 24
_LONGEST = 300  # characters of a text
_STATE = ("", "zarr.json", "tags.json", "commits.log")  # files that change when a dataset does


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeEntry:
    """A dataset of a home; the counts are None if it cannot be read, for the reason ``damage``.

    ``errors`` and ``warnings`` count the findings that were recorded when it was made. ``description`` is what the
    archive says, or else the registry.
    """

    id: str
    family: str
    version: int | None = None
    steps: int | None = None
    episodes: int | None = None
    licence: str | None = None
    description: str | None = None
    env_id: str | None = None
    created: str | None = None
    tags: tuple[str, ...] = ()
    grows: bool = False
    errors: int = 0
    warnings: int = 0
    damage: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeDetails:
    """What takes longer: the bytes of a dataset on disk, and the first texts of its episode column ``task``."""

    bytes: int
    tasks: tuple[str, ...]


class HomeContents:
    """The datasets of the homes, those of the own home first.

    Parameters
    ----------
    home : path, optional
        A home instead of ``RLDS_HOME``.
    """

    def __init__(self, home: StrPath | None = None) -> None:
        self._home = home
        self._known: dict[tuple[str, Path], tuple[object, Any]] = {}
        self._entries: tuple[HomeEntry, ...] = ()
        self._locks = {"entry": threading.Lock(), "details": threading.Lock()}

    def entries(self) -> tuple[HomeEntry, ...]:
        """Return a record of each dataset, in the order of ids: the same tuple as before while nothing has changed."""
        found = tuple(self._of_each("entry", _entry).values())
        if found != self._entries:
            self._entries = found
        return self._entries

    def details(self) -> dict[str, HomeDetails]:
        """Return what takes longer, by id."""
        return self._of_each("details", _details)

    def path_of(self, name: str) -> Path:
        """Return the directory of the dataset with an id; raises DatasetNotFound if there is none."""
        try:
            path = homes.path_of(ids.parse(name), settings.read(self._home))
        except InvalidId:
            path = None
        if path is None:
            raise DatasetNotFound(
                f"{name} is not in this home.", hint="rlds list --local shows the datasets on this disk"
            )
        return path

    def _of_each(self, what: str, make: Callable[[DatasetId, Path], Any]) -> dict[str, Any]:
        with self._locks[what]:  # whoever asks meanwhile gets what is found now
            return self._read(what, make)

    def _read(self, what: str, make: Callable[[DatasetId, Path], Any]) -> dict[str, Any]:
        found, seen = dict[str, Any](), set[tuple[str, Path]]()
        for copies in homes.here(settings.read(self._home)).values():
            for id, path in copies:
                if str(id) in found:
                    continue  # in an earlier home
                state, known = _state(path), self._known.get((what, path))
                if known is None or known[0] != state:
                    known = self._known[what, path] = (state, make(id, path))
                found[str(id)] = known[1]
                seen.add((what, path))
        for key in [key for key in self._known if key[0] == what and key not in seen]:
            self._known.pop(key, None)
        return {id: found[id] for id in sorted(found)}


def _state(path: Path) -> tuple[tuple[int, int, int] | None, ...]:
    """Return what changes when a dataset does."""
    found = list[tuple[int, int, int] | None]()
    for name in _STATE:
        try:
            status = os.stat(f"{path}/{name}")  # noqa: PTH116  (a Path for each of thousands would take long)
            found.append((status.st_ino, status.st_mtime_ns, status.st_size))
        except OSError:
            found.append(None)
    return tuple(found)


def _entry(id: DatasetId, path: Path) -> HomeEntry:
    try:
        m = Manifest.read(path)
        history = History(path)
        version, tags = (history.newest if m.growing else m.version), tuple(history.tags)
    except (RldsError, OSError) as e:
        return HomeEntry(id=str(id), family=id.family, damage=str(e))
    listed = registry.known(str(id.base))
    severities = [n.get("severity") for n in m.notes]
    description = m.facts.get("description")
    return HomeEntry(
        id=str(id),
        family=id.family,
        version=version,
        steps=m.counts.steps,
        episodes=m.counts.episodes,
        licence=_text(m.facts.get("licence")) or (listed.licence if listed else None),
        description=_text(description),
        env_id=_text(m.env.get("id")) or (listed.env_id if listed else None),
        created=m.created,
        tags=tags,
        grows=bool(m.growing),
        errors=severities.count("error"),
        warnings=severities.count("warning"),
    )


def _text(value: object) -> str | None:
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value) if value else ""
    return text[:_LONGEST] or None


def _details(id: DatasetId, path: Path) -> HomeDetails:
    size, tasks = size_on_disk(path), tuple[str, ...]()
    with suppress(DamagedDataset, OSError):
        if TASK in Manifest.read(path).episode_columns:
            from rlds_cli.dataset import open_dataset

            coded = open_dataset(path).episodes.coded(TASK)
            tasks = (
                () if coded is None else tuple(v[:_LONGEST] for v in coded.values[:_MOST_TASKS] if isinstance(v, str))
            )
    return HomeDetails(bytes=size, tasks=tasks)
