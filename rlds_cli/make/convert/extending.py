"""Append episodes to a dataset that does not grow: its next version, which shares all files of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rlds_cli import homes
from rlds_cli.base import ids
from rlds_cli.base.progress import Progress
from rlds_cli.base.text import plural
from rlds_cli.dataset import Dataset, append_step
from rlds_cli.errors import InvalidArgument, NameTaken
from rlds_cli.homes import Home
from rlds_cli.make.convert import merging
from rlds_cli.store import History, Manifest, Store, seal

_MOST_NAMES = 3  # of files that the log of versions names
_OF_THE_RESULT: tuple[str, ...] = ("format", "fields", "counts", "fingerprint", "created", "rlds_version", "stats")
_OF_THE_RESULT += ("archive", "shared", "episode_columns")


def check(store: Store, place: Home) -> None:
    """Refuse a dataset that cannot have a version of more episodes.

    Raises
    ------
    NameTaken
        It is one of the registry, or lies in another home.
    """
    m = store.manifest
    hint = f"rlds append local/NAME FILES makes another; rlds merge {m.id} local/NAME --name local/ALL joins them"
    if homes.is_published(ids.parse(m.id), derived=bool(m.provenance)):
        raise NameTaken(f"{m.id} is a dataset of the registry, which is not changed in its place.", hint=hint)
    if store.path != place.dataset(ids.parse(m.id)):
        raise NameTaken(f"{m.id} lies in another home: {store.path}.", hint=hint)


def extend(there: Dataset, made: Dataset, files: Sequence[Path], place: Home, tell: Progress) -> Path:
    """Publish the next version of a dataset, which also has the episodes of another one; return its directory.

    The caller has the lock of the dataset.

    Parameters
    ----------
    there : Dataset
        At its newest version.
    made : Dataset
        With the same fields.
    files : sequence of Path
        Which ``made`` was read from, for the provenance.

    Raises
    ------
    InvalidArgument
        They have episodes in common.
    """
    m, id = there.manifest, ids.parse(there.id)
    if count := merging.in_common(there, made):
        raise InvalidArgument(
            f"{id} has {plural(count, 'episode')} of the files already. Nothing is appended.",
            hint="leave out their files; rlds_cli.loader.Mixture draws some data more often than others",
        )
    names = [f.name for f in files[:_MOST_NAMES]]
    names += [f"{len(files) - _MOST_NAMES:,} more"] if len(files) > _MOST_NAMES else []  # the sources list them all
    how = {"files": ", ".join(names), "episodes": made.num_episodes}
    step = {"id": str(id), **append_step(there, how)}
    target = place.dataset(id)

    def publish(built: Path) -> None:
        if m.metadata:
            there.store.table.metadata.share(built)
        joined = Manifest.read(built)
        changed = {name: getattr(joined, name) for name in _OF_THE_RESULT}
        notes, provenance = (*m.reader_notes, *made.manifest.reader_notes), (*m.provenance, step)
        described = replace(m, **changed, version=m.version + 1, notes=notes, provenance=provenance)
        seal(built, described, known=Manifest.listed(built))
        History(target).publish(built)

    todo = merging.MergeJob(id, [there, made], None, None, place, shares=m.encoding == "memmap")
    merging.make(todo, place, publish, storage=m.encoding, tell=tell)
    return target
