"""The origin of data: the archive's file, group and row of a transition, and the stored episodes of a batch."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_cli.base.array_types import IntArray
from rlds_cli.errors import DamagedDataset, RldsError
from rlds_cli.ted import FLAGS

if TYPE_CHECKING:
    from rlds_cli.store import Manifest, Store


UNIT, APPEND = "dataset", "append"  # units of steps: a change of a dataset, and one that adds episodes

# In place of a file, for episodes that come from no archive, beside others that do.
RECORDED: Mapping[str, Any] = {"file": "recorded", "size": None, "sha256": None, "url": None, "recorded": True}


@dataclass(frozen=True, slots=True)
class TransitionSource:
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


def source_of_step(store: Store, episode: int, step: int, *, group: str | None = None) -> TransitionSource:
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
    if file.get("recorded"):
        raise RldsError(f"Episode {episode:,} of {store.manifest.id} was recorded from values: there is no archive.")
    return TransitionSource(
        file=str(file["file"]),
        url=file.get("url"),
        sha256=file.get("sha256"),
        group=store.table.episode_strings("group")[episode] if group is None else group,
        row=int(columns["row"][episode]) + step if ReadAs.of(store.manifest, file).keeps_rows else None,
        episode=episode,
        step=step,
    )


@dataclass(frozen=True, slots=True)
class ReadAs:
    """The way in which a file of an archive became episodes.

    A dataset made of one archive says so in its manifest; one that was appended to, or merged, says it of each file.

    Attributes
    ----------
    id : str
        Of the dataset that was made of the archive.
    reader, reader_version, reader_source
        As in the manifest.
    facts : mapping
        Of the reader's plan.
    fields : mapping
        Keys of the archive by field, as the user mapped them.
    keeps_rows : bool
        Steps keep their places of the archive: no function dropped, cut or moved any.
    changed : sequence of str
        Fields that functions changed.
    """

    id: str
    reader: str
    reader_version: int
    reader_source: str
    facts: Mapping[str, Any]
    fields: Mapping[str, str]
    keeps_rows: bool
    changed: Sequence[str]

    @classmethod
    def of(cls, m: Manifest, file: Mapping[str, Any]) -> ReadAs:
        """Return how ``file``, of the sources of a dataset with manifest ``m``, was read; raises DamagedDataset."""
        try:
            before = cls(**{f.name: file["read_as"][f.name] for f in fields(cls)}) if "read_as" in file else None
        except (TypeError, KeyError) as e:
            what = str(file.get("file"))[:80]
            raise DamagedDataset(f"The sources of {m.id} do not say how {what!r} was read: {e}.") from e
        keeps_rows = all(step["keeps_steps"] for step in m.provenance)
        changed = {name for step in m.provenance for name in step["changed"]}
        if before is not None:
            return replace(
                before, keeps_rows=before.keeps_rows and keeps_rows, changed=sorted({*before.changed, *changed})
            )
        mapped = m.options.get("fields") or {}
        return cls(m.id, m.reader, m.reader_version, m.reader_source, m.facts, mapped, keeps_rows, sorted(changed))


def sources_for_another(store: Store, *, recorded_first: bool = False) -> tuple[Mapping[str, Any], ...]:
    """Return the files of a dataset's archives, for a dataset that takes over episodes of it: at least one entry.

    With ``recorded_first``, episodes that come from no archive are those of the first entry.
    """
    m = store.manifest
    if not store.sources:
        return (RECORDED, RECORDED) if recorded_first else (RECORDED,)
    first = (RECORDED,) if recorded_first else ()
    return first + tuple(s if s.get("recorded") else {**s, "read_as": asdict(ReadAs.of(m, s))} for s in store.sources)


@dataclass(frozen=True, slots=True)
class EpisodeOrigin:
    """The stored episode that a batch holds. It knows what the batch's arrays do not say, such as ends and splits."""

    store: Store
    number: int

    def __reduce__(self) -> tuple[object, ...]:
        return _reopened, (EpisodeOrigin, pickle.dumps(self.store), self.number)

    def is_held_by(self, fields: Mapping[str, Any]) -> bool:
        """Return whether fields [T, ...] still hold that episode: its flags and actions, in whatever dtype."""
        store, k = self.store, self.number
        start, length = int(store.episodes["start"][k]), int(store.episodes["length"][k])
        for name in (*FLAGS, "action"):
            if name in fields and name in store.fields and store.fields[name].kind == "array":
                given = np.asarray(fields[name])
                there = store.gather(name, np.arange(start, start + length)).astype(given.dtype)
                if given.size != there.size or given.tobytes() != there.tobytes():
                    return False
        return True


@dataclass(frozen=True, slots=True)
class EpisodeOrigins:
    """The stored episodes, ``numbers`` [B], that the rows of a batch hold whole or in part."""

    store: Store
    numbers: IntArray

    def __getitem__(self, row: int) -> EpisodeOrigin:
        return EpisodeOrigin(self.store, int(self.numbers[row]))

    def __reduce__(self) -> tuple[object, ...]:
        return _reopened, (EpisodeOrigins, pickle.dumps(self.store), self.numbers)


def _reopened(kind: Callable[[Store, Any], Any], pickled: bytes, what: Any) -> Any:
    """Unpickle. The result is None if the version is not on this machine: a batch can do without its origin."""
    try:
        return kind(pickle.loads(pickled), what)
    except (RldsError, OSError):
        return None
