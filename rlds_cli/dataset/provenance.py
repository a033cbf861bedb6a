"""The origin of data: the archive's file, group and row of a transition, and the stored episodes of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_cli.errors import RldsError
from rlds_cli.ted import FLAGS, IntArray

if TYPE_CHECKING:
    from rlds_cli.store.manifest import Manifest
    from rlds_cli.store.opening import Store


@dataclass(frozen=True, slots=True)
class Source:
    """The place of one transition in the archive.

    Attributes
    ----------
    file : str
        As the manifest names it; ``url`` and ``sha256`` where they are known.
    group : str
        Name of the episode in the file, such as ``episode_12``; empty if the file has no groups.
    row : int or None
        The step's row in that group or file, as the reader counts rows; None if a preprocess function moved steps.
    episode, step : int
        Number of the episode in the whole store, and of the step in that episode.
    """

    file: str
    url: str | None
    sha256: str | None
    group: str
    row: int | None
    episode: int
    step: int


def place(store: Store, episode: int, step: int, *, group: str | None = None) -> Source:
    """Trace step ``step`` of episode ``episode`` of a store back to its archive.

    ``group`` is the episode's, if the caller knows it already.

    Raises
    ------
    RldsError
        The dataset was made in memory: there is no archive.
    """
    if not store.sources:
        raise RldsError(f"{store.manifest.id} has no archive: it was created from values in Python.")
    columns = store.episodes
    file = store.sources[int(columns["source"][episode])]
    return Source(
        file=str(file["file"]),
        url=file.get("url"),
        sha256=file.get("sha256"),
        group=store.episode_strings("group")[episode] if group is None else group,
        row=int(columns["row"][episode]) + step if keeps_rows(store.manifest) else None,
        episode=episode,
        step=step,
    )


def keeps_rows(m: Manifest) -> bool:
    """Return whether steps keep their places of the archive: no function dropped, cut or moved any."""
    return all(step.get("keeps_steps", False) for step in m.provenance)


@dataclass(frozen=True, slots=True)
class EpisodeOrigin:
    """The stored episode that a batch holds. It knows what the batch's arrays do not say, such as ends and splits."""

    store: Store
    number: int

    def __reduce__(self) -> tuple[object, ...]:
        return _reopened, (EpisodeOrigin, self.store.path, self.store.manifest.fingerprint, self.number)


@dataclass(frozen=True, slots=True)
class EpisodeOrigins:
    """The stored episodes, ``numbers`` [B], that the rows of a batch hold whole or in part."""

    store: Store
    numbers: IntArray

    def __getitem__(self, row: int) -> EpisodeOrigin:
        return EpisodeOrigin(self.store, int(self.numbers[row]))

    def __reduce__(self) -> tuple[object, ...]:
        return _reopened, (EpisodeOrigins, self.store.path, self.store.manifest.fingerprint, self.numbers)


def _reopened(kind: Callable[[Store, Any], Any], path: Path, fingerprint: str, what: Any) -> Any:
    """Unpickle. The result is None if the dataset is not there: a batch can do without its origin."""
    from rlds_cli.store.opening import Store

    try:
        store = Store(path)
    except (RldsError, OSError):
        return None
    return kind(store, what) if store.manifest.fingerprint == fingerprint else None


def is_of(origin: EpisodeOrigin, fields: Mapping[str, Any]) -> bool:
    """Return whether fields [T, ...] still hold that episode: its flags and actions, in whatever dtype."""
    store, k = origin.store, origin.number
    start, length = int(store.episodes["start"][k]), int(store.episodes["length"][k])
    for name in (*FLAGS, "action"):
        if name in fields and name in store.fields and store.fields[name].kind == "array":
            given = np.asarray(fields[name])
            there = store.gather(name, np.arange(start, start + length)).astype(given.dtype)
            if given.size != there.size or given.tobytes() != there.tobytes():
                return False
    return True
