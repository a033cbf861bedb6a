"""From a transition back to the archive: file, group and row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_cli.dataset import selection
from rlds_cli.errors import RldsError
from rlds_cli.store.manifest import Manifest
from rlds_cli.store.opening import Store
from rlds_cli.ted import FLAGS, IntArray

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset


@dataclass(frozen=True, slots=True)
class Source:
    """Where one transition is in the archive.

    Attributes
    ----------
    file : str
        As the manifest names it; ``url`` and ``sha256`` where they are known.
    group : str
        What the episode is called in the file, such as ``episode_12``; empty where a file holds rows and no more.
    row : int or None
        The step's row in that group or file, as its reader counts them; None for datasets that were made of others
        in a way that moved steps.
    episode, step : int
        Its episode among all of the store, and its step there.
    """

    file: str
    url: str | None
    sha256: str | None
    group: str
    row: int | None
    episode: int
    step: int


def source_of(ds: Dataset, index: int) -> Source:
    """Where transition ``index`` of a dataset is in its archive.

    Raises
    ------
    IndexError
        There is no such transition.
    RldsError
        The dataset was made in memory: there is no archive.
    """
    number = selection.within(index, len(ds), f"transitions in {ds.id}")
    row = int(ds.rows_of(np.array([number]))[0])
    starts = ds.store.episodes["start"]
    episode = int(np.searchsorted(starts, row, "right")) - 1
    return place(ds, episode, row - int(starts[episode]))


def place(ds: Dataset, episode: int, step: int, *, group: str | None = None) -> Source:
    """Where step ``step`` of episode ``episode`` of the whole store is in the archive; raises as ``source_of`` does.

    ``group`` is the episode's, where it is at hand.
    """
    if not ds.sources:
        raise RldsError(f"{ds.id} was not made of an archive: its values were given in Python.")
    columns = ds.store.episodes
    file = ds.sources[int(columns["source"][episode])]
    return Source(
        file=str(file["file"]),
        url=file.get("url"),
        sha256=file.get("sha256"),
        group=ds.store.episode_strings("group")[episode] if group is None else group,
        row=int(columns["row"][episode]) + step if keeps_rows(ds.manifest) else None,
        episode=episode,
        step=step,
    )


def keeps_rows(m: Manifest) -> bool:
    """Whether steps are where they were in the archive: no function dropped, cut or moved any."""
    return all(step.get("keeps_steps", False) for step in m.provenance)


@dataclass(frozen=True, slots=True)
class Origin:
    """Episode ``number`` of a dataset, which a batch holds: what its arrays do not say is known from there."""

    store: Store
    number: int

    def __reduce__(self) -> tuple[object, ...]:
        return _reopened, (Origin, self.store.path, self.store.manifest.fingerprint, self.number)


@dataclass(frozen=True, slots=True)
class Origins:
    """The episodes of a dataset, ``numbers`` [B] there, that the rows of a batch hold or are parts of."""

    store: Store
    numbers: IntArray

    def __getitem__(self, row: int) -> Origin:
        return Origin(self.store, int(self.numbers[row]))

    def __reduce__(self) -> tuple[object, ...]:
        return _reopened, (Origins, self.store.path, self.store.manifest.fingerprint, self.numbers)


def _reopened(kind: Callable[[Store, Any], Any], path: Path, fingerprint: str, what: Any) -> Any:
    """Unpickle: None where the dataset is not there; the batch is whole without it."""
    try:
        store = Store(path)
    except (RldsError, OSError):
        return None
    return kind(store, what) if store.manifest.fingerprint == fingerprint else None


def is_of(origin: Origin, fields: Mapping[str, Any]) -> bool:
    """Whether fields [T, ...] still are of that episode: its flags and actions, cast as they may be."""
    store, k = origin.store, origin.number
    start, length = int(store.episodes["start"][k]), int(store.episodes["length"][k])
    for name in (*FLAGS, "action"):
        if name in fields and name in store.fields and store.fields[name].kind == "array":
            given = np.asarray(fields[name])
            there = store.gather(name, np.arange(start, start + length)).astype(given.dtype)
            if given.size != there.size or given.tobytes() != there.tobytes():
                return False
    return True
