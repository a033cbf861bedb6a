"""Append the episodes of a user's own files to a dataset that grows."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli import home, ids, importing, settings
from rlds_cli.convert.archive import decoded_field
from rlds_cli.dataset import Dataset, provenance
from rlds_cli.dataset.provenance import RECORDED
from rlds_cli.dataset.rows import Rows
from rlds_cli.errors import InvalidArgument, InvalidEpisode, NameTaken, UnknownLayout
from rlds_cli.files import safe as safe_files
from rlds_cli.files import trees
from rlds_cli.files.hashing import sha256_of
from rlds_cli.growing import logs, making
from rlds_cli.growing.appender import Appender
from rlds_cli.growing.retention import Keep
from rlds_cli.growing.store import GrowingStore, fingerprint_of, is_growing
from rlds_cli.home import Home
from rlds_cli.home.locks import exclusive
from rlds_cli.ids import DatasetId
from rlds_cli.importing import ImportPlan
from rlds_cli.progress import Progress, shown
from rlds_cli.settings import StrPath
from rlds_cli.store.manifest import Manifest
from rlds_cli.ted import VIDEO, Array, BoolArray, Chunk, Column, Field


@dataclass(frozen=True, slots=True)
class AppendPlan:
    """The plan of an append.

    Attributes
    ----------
    id : str
    new : bool
        There is no such dataset yet: it will be made.
    files : tuple of Path
        Files whose episodes will be appended.
    skipped : tuple of Path
        Files that were appended before, by their sha256.
    fields : tuple of Field
        Of the dataset.
    reader : ImportPlan or None
        How the files will be read; None if there is no file to append.
    remembered : mapping
        Options of the append that made the dataset which hold for this one, too.
    options : mapping
        All options by which the files are read, with the remembered ones.
    """

    id: str
    new: bool
    files: tuple[Path, ...]
    skipped: tuple[Path, ...]
    fields: tuple[Field, ...]
    reader: ImportPlan | None = field(repr=False)
    remembered: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def summary(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        reader = None if self.reader is None else self.reader.summary()
        members = [n for n in self.__slots__ if n not in ("reader", "options")]
        return {**{n: getattr(self, n) for n in members}, "reader": reader}


@dataclass(frozen=True, slots=True)
class Appended:
    """The result of an append: its version, and the numbers of episodes and steps that it added."""

    id: str
    path: Path
    version: int
    fingerprint: str
    episodes: int
    steps: int
    files: tuple[Path, ...]
    skipped: tuple[Path, ...]


def plan_append(
    ref: str,
    paths: StrPath | Sequence[StrPath],
    *,
    format: str | None = None,
    fields: Mapping[str, str] | None = None,
    episodes_by: str | None = None,
    skip_bad: bool = False,
    last_step: str | None = None,
    rewards: str | None = None,
    fps: float | None = None,
    license: str | None = None,
    description: str | None = None,
    again: bool = False,
    cache_dir: StrPath | None = None,
) -> AppendPlan:
    """Recognise files and plan to append them. Nothing is written. Parameters and errors are those of `append`."""
    id = ids.parse(ref)
    how: dict[str, Any] = {"format": format, "fields": fields, "episodes_by": episodes_by}
    how |= {"last_step": last_step, "rewards": rewards}
    about = importing.stated(fps=fps, license=license, description=description)
    there = _there(id, cache_dir)
    remembered: dict[str, Any] = {}
    if there is not None:
        _check_stated(there.manifest, about)
        how, remembered = _as_before(there.manifest.options, how)
    how["skip_bad"] = skip_bad
    given = importing.expand([paths] if isinstance(paths, str) or not isinstance(paths, Sequence) else paths)
    known = () if there is None or again else _known(there, given)
    files = tuple(f for f in given if f not in known)
    schema = () if there is None else tuple(there.fields.values())
    if not files:
        return AppendPlan(str(id), there is None, (), known, schema, None)
    try:
        planned = importing.plan_import(files, ref, **how)
    except UnknownLayout as e:
        if not remembered:
            raise
        said = "; the options of the first append hold for this one, too, unless others are given"
        raise UnknownLayout(e.message, hint=f"{e.hint}{said}" if e.hint else said.removeprefix("; ")) from e
    frames = _frames(planned.fields, schema)
    found = tuple(decoded_field(f, frames) if f.kind == "frames" else f for f in planned.fields)
    if there is not None:
        _check_fields(str(id), schema, found)
    return AppendPlan(str(id), there is None, files, known, schema or found, planned, remembered, how)


def _frames(given: Sequence[Field], there: Sequence[Field]) -> str:
    """Return how frames of files are kept, for a dataset that has the fields ``there``."""
    held = {f.name for f in there if f.kind == "array"}
    decoded = any(f.codec == VIDEO or (f.kind == "frames" and f.name in held) for f in given)
    return "raw" if decoded else "encoded"


def _as_before(before: Mapping[str, Any], how: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Complete options of reading by those of the first append; also return the ones that come from there."""
    fields = {**before.get("fields", {}), **(how["fields"] or {})}
    kept = {n: before[n] for n in how if n != "fields" and before.get(n) is not None and how[n] is None}
    mapped = {n: key for n, key in before.get("fields", {}).items() if n not in (how["fields"] or {})}
    return {**how, **kept, "fields": fields}, {**({"fields": mapped} if mapped else {}), **kept}


def _check_stated(there: Manifest, about: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse facts that differ from those that the dataset was made with."""
    for name, value in {**about["env"], **about["facts"]}.items():
        before = there.env.get(name) if name in about["env"] else there.facts.get(name)
        if before != value:
            was = "none was given" if before is None else f"it has {before!r}"
            raise InvalidArgument(
                f"{name} of {there.id} cannot become {value!r}: {was} when it was made. Nothing is appended.",
                hint=f"leave out --{'license' if name == 'licence' else name}",
            )


def append(
    ref: str,
    paths: StrPath | Sequence[StrPath],
    *,
    format: str | None = None,
    fields: Mapping[str, str] | None = None,
    episodes_by: str | None = None,
    skip_bad: bool = False,
    last_step: str | None = None,
    rewards: str | None = None,
    fps: float | None = None,
    license: str | None = None,
    description: str | None = None,
    keep: Keep | None = None,
    protected: bool = False,
    again: bool = False,
    jobs: int | None = None,
    cache_dir: StrPath | None = None,
    progress: Progress | bool | None = None,
) -> Appended:
    """Append the episodes of a user's own files to a dataset that grows; it is made if it is not there.

    The files are read as ``rlds import`` reads them, and their episodes are committed together: readers see all of them
    or none. Images stay encoded. All frames are decoded if the files have videos, or if the dataset holds arrays. A
    file that was appended before is left out, by its sha256. Options of reading that are not given are those of the
    append that made the dataset: ``format``, ``episodes_by``, ``last_step``, ``rewards``, and each of ``fields``.

    Parameters
    ----------
    ref : str
        Id of the dataset, ``local/NAME``.
    paths : path or paths
        Files, directories or glob patterns.
    format, fields, episodes_by, skip_bad, last_step, rewards, jobs
        As in ``importing.import_archive``.
    fps, license, description : optional
        As in ``rlds_cli.create``; they belong to the dataset, and an append that does not make it may repeat them.
    keep : Fifo, Reservoir or Top, optional
        What a new dataset keeps; everything without it.
    protected : bool
        The policy of the dataset never lets these episodes leave.
    again : bool
        Append files that were appended before once more.

    Raises
    ------
    NameTaken
        The dataset does not grow, or a writer that does not share is at work.
    InvalidEpisode
        The fields of the files are not those of the dataset; the message lists the differences. Nothing is appended.
    InvalidArgument
        ``fps``, ``license`` or ``description`` is not what the dataset was made with.
    UnknownLayout, ArchiveError
        The files cannot be read.
    """
    tell, id = shown(progress), ids.parse(ref)
    how: dict[str, Any] = {"format": format, "fields": fields, "episodes_by": episodes_by}
    how |= {"skip_bad": skip_bad, "last_step": last_step, "rewards": rewards}
    about: dict[str, Any] = {"fps": fps, "license": license, "description": description}
    where = settings.read(cache_dir)
    place = Home(where.home)
    with exclusive(place, id, tell):
        planned = plan_append(ref, paths, again=again, cache_dir=cache_dir, **how, **about)
        if planned.reader is None:
            return _nothing(planned, cache_dir)
        frames = _frames(planned.reader.fields, () if planned.new else planned.fields)
        how = {**planned.options, **(about if planned.new else {})}
        with _converted(place, id, planned.files, frames, how, jobs, tell) as made:
            if not planned.new:  # a plan may be wrong about fields, where a reader finds more in the rows
                _check_fields(str(id), planned.fields, tuple(made.schema.values()))
            path = _new(place, id, made, keep, how) if planned.new else home.find(id, where)
            assert path is not None
            writer_of = Appender(path, shared=True)
            try:
                known = bool(writer_of.newest.sources)
                sources = provenance.sources_for_another(made.store)
                chunk = _all_rows(made)
                if not known:  # earlier episodes that were recorded from values have source 0
                    sources, chunk.episodes.source = (RECORDED, *sources), chunk.episodes.source + 1
                kept = [protected] * len(chunk.episodes)
                commit, _ = writer_of.commit(chunk, protected=kept, sources=sources)
            finally:
                writer_of.close()
            counts = made.manifest.counts
            return Appended(
                str(id),
                path,
                commit.number,
                fingerprint_of(path),
                counts.episodes,
                counts.steps,
                planned.files,
                planned.skipped,
            )


def _there(id: DatasetId, cache_dir: StrPath | None) -> GrowingStore | None:
    """Return the dataset that is there; raises NameTaken if it does not grow."""
    found = home.find(id, settings.read(cache_dir))
    if found is None:
        return None
    if not is_growing(found):
        raise NameTaken(
            f"{id} is here, and does not grow: nothing can be appended to it.",
            hint=f"rlds append local/NAME FILES makes another; rlds merge {id} local/NAME --as local/ALL joins them",
        )
    lock = logs.lock_writers(found, shared=True)
    if lock is None:
        raise NameTaken(
            f"{id} is being written by a process that does not share it.",
            hint="wait for it; or let it share: writer(..., shared=True)",
        )
    os.close(lock)
    return GrowingStore(found)


def _known(there: GrowingStore, files: Iterable[Path]) -> tuple[Path, ...]:
    """Return the files that were appended before, by size and sha256."""
    known = {(s.get("size"), s.get("sha256")) for s in there.sources}
    sizes = {size for size, _ in known}
    return tuple(f for f in files if (size := f.stat().st_size) in sizes and (size, sha256_of(f)) in known)


def _check_fields(id: str, wanted: Sequence[Field], found: Sequence[Field]) -> None:
    """Refuse fields that are not those of the dataset."""
    wrong = differences({f.name: f for f in wanted}, {f.name: f for f in found})
    if wrong:
        raise InvalidEpisode(
            f"The files do not fit {id}: {'; '.join(wrong)}. Nothing is appended.",
            hint="--map FIELD=KEY reads a field from another key; rlds import and rlds preprocess change types",
        )


def differences(a: Mapping[str, Field], b: Mapping[str, Field]) -> list[str]:
    """Describe in words, field by field, how fields ``b`` differ from ``a``."""
    return [
        f"{name} is {_described(b.get(name))}, not {_described(a.get(name))}"
        if name in a and name in b
        else f"{name} is {'missing' if name in a else 'not in the dataset'}"
        for name in sorted({*a, *b})
        if a.get(name) != b.get(name)
    ]


def _described(f: Field | None) -> str:
    assert f is not None
    values = f"{f.dtype} {list(f.shape)}" if f.kind == "array" else f.codec or f.kind
    return f"{values} ({f.placement})"


def _nothing(planned: AppendPlan, cache_dir: StrPath | None) -> Appended:
    there = _there(ids.parse(planned.id), cache_dir)
    assert there is not None
    g = there.commit
    return Appended(planned.id, there.path, g.number, there.fingerprint(), 0, 0, (), planned.skipped)


@contextmanager
def _converted(
    place: Home,
    id: DatasetId,
    files: Sequence[Path],
    frames: str,
    how: Mapping[str, Any],
    jobs: int | None,
    tell: Progress,
) -> Iterator[Dataset]:
    """Convert files into a dataset that is there for a while, whose rows are mapped."""
    work = place.partial(id, f"append-{secrets.token_hex(4)}")
    safe_files.work_directory(work, place.root)
    try:
        yield importing.import_archive(
            files, str(id), **how, frames=frames, jobs=jobs, force=True, cache_dir=work, progress=tell
        )
    finally:
        trees.discard(work)


def _new(place: Home, id: DatasetId, made: Dataset, keep: Keep | None, how: Mapping[str, Any]) -> Path:
    """Make a growing dataset with the fields, spaces and facts of another, and return its directory."""
    target, work = place.dataset(id), place.partial(id, f"writer-{secrets.token_hex(4)}")
    facts = {n: made.manifest.facts[n] for n in ("licence", "description") if n in made.manifest.facts}
    about = {"spaces": made.manifest.spaces, "env": made.manifest.env, "facts": facts}
    about["options"] = {n: how[n] for n in ("format", "fields", "episodes_by", "last_step", "rewards") if how.get(n)}
    safe_files.work_directory(work, place.root)
    try:
        making.make(work, str(id), tuple(made.schema.values()), keep=keep, about=about)
        safe_files.directory(target.parent, place.root)
        work.rename(target)
    finally:
        trees.discard(work)
    return target


def _all_rows(ds: Dataset) -> Chunk:
    """Return all rows of a dataset as one chunk, whose arrays are mapped."""
    table, stored = replace(ds.store.table()), Rows(ds)
    last: BoolArray = np.zeros(ds.num_rows, bool)
    last[table.start + table.length] = True
    columns: dict[str, Column] = {}
    for f in ds.schema.values():
        if f.kind == "frames":
            columns[f.name] = stored.encoded(f.name, np.arange(ds.num_rows))
            continue
        rows: Array = ds.store.rows(f.name)
        columns[f.name] = ds.store.texts(f.name, rows).tolist() if f.kind == "text" else rows
    return Chunk(columns, last, table)
