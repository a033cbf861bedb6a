"""Append the episodes of a user's own files to a dataset: to its log if it grows, and else as its next version."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from rlds_cli import homes
from rlds_cli.archives import Entry, ReaderName, is_beside
from rlds_cli.base import ids, settings
from rlds_cli.base.array_types import Array, BoolArray
from rlds_cli.base.files import bundles, trees
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.ids import FRAME_CODECS, DatasetId
from rlds_cli.base.progress import Progress, shown
from rlds_cli.base.refs import Ref
from rlds_cli.base.settings import StrPath
from rlds_cli.dataset import Dataset, Rows, Tasks, sources_for_another
from rlds_cli.errors import InvalidArgument, InvalidEpisode, ReaderError, UnknownLayout
from rlds_cli.homes import Home, exclusive
from rlds_cli.look import choose_files
from rlds_cli.make import importing
from rlds_cli.make.convert import extending
from rlds_cli.make.convert.create import VideoSources, of_videos
from rlds_cli.make.convert.decoding import decoded_field
from rlds_cli.make.convert.merging import differences
from rlds_cli.make.importing import ImportPlan
from rlds_cli.store import Appender, GrowingDataset, Keep, Manifest, Store, make_growing, open_store
from rlds_cli.ted import TASK, TASK_AT, VIDEO, Chunk, Column, Field, Note


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
    left_out : tuple of Note
        Notes on files that hold no data.
    """

    id: str
    new: bool
    files: tuple[Path, ...]
    skipped: tuple[Path, ...]
    fields: tuple[Field, ...]
    reader: ImportPlan | None = field(repr=False)
    remembered: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    left_out: tuple[Note, ...] = field(default=(), repr=False)

    def summary(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        reader = None if self.reader is None else self.reader.summary()
        members = [n for n in self.__slots__ if n not in ("reader", "options", "left_out")]
        return {**{n: getattr(self, n) for n in members}, "reader": reader}


@dataclass(frozen=True, slots=True)
class Appended:
    """The result of an append: its version, and the numbers of episodes and steps that it added.

    ``account`` states the fate of the files that were appended and of all that they hold, and ``notes`` are remarks on
    them.
    """

    id: str
    path: Path
    version: int
    fingerprint: str
    episodes: int
    steps: int
    files: tuple[Path, ...]
    skipped: tuple[Path, ...]
    account: tuple[Entry, ...] = ()
    notes: tuple[Mapping[str, Any], ...] = ()


def plan_append(
    ref: str,
    paths: StrPath | Sequence[StrPath],
    *,
    reader: str | None = None,
    fields: Mapping[str, str | Sequence[str]] | None = None,
    episodes_by: str | None = None,
    skip_bad: bool = False,
    last_step: str | None = None,
    rewards: str | None = None,
    missing: str | None = None,
    topics: Sequence[str] | None = None,
    hz: float | None = None,
    nearest: bool | None = None,
    episode_info: str | None = None,
    fps: float | None = None,
    license: str | None = None,
    description: str | None = None,
    depth_unit: str | None = None,
    again: bool = False,
    home: StrPath | None = None,
) -> AppendPlan:
    """Recognise files and plan to append them. Nothing is written. Parameters and errors are those of `append`."""
    id = ids.parse(ref)
    how: dict[str, Any] = {"reader": reader, "fields": importing.keys_of(fields), "episodes_by": episodes_by}
    how |= {"last_step": last_step, "rewards": rewards, "missing": missing}
    how |= {"topics": topics, "hz": hz, "nearest": nearest, "episode_info": episode_info}
    about = importing.stated(fps=fps, license=license, description=description, depth_unit=depth_unit)
    there = _there(id, home)
    remembered: dict[str, Any] = {}
    if there is not None:
        _check_stated(there.manifest, about)
        how, remembered = _as_before(there.manifest.options, how)
        if reader is None and ReaderName(how["reader"] or "").is_file:
            raise ReaderError(
                f"{id} was appended to by {how['reader']}, a file of code, which is not run unless it is named.",
                hint=f"--reader {how['reader']}, with its directory if it is another one; --reader NAME names another",
            )
    how["skip_bad"] = skip_bad
    all_of = [paths] if isinstance(paths, str) or not isinstance(paths, Sequence) else paths
    chosen = choose_files(all_of, home=home)
    known = () if there is None or again else _known(there, chosen.files)
    files = tuple(f for f in chosen.files if f not in known)
    if known and all(map(is_beside, files)):
        files = ()  # images and texts beside tables that were appended before
    schema = () if there is None else tuple(there.fields.values())
    if not files:
        return AppendPlan(str(id), there is None, (), known, schema, None)
    try:
        planned = importing.plan_import(files, ref, **how, home=home)
    except UnknownLayout as e:
        if not remembered:
            raise
        said = "; the options of the first append hold for this one, too, unless others are given"
        raise UnknownLayout(e.message, hint=f"{e.hint}{said}" if e.hint else said.removeprefix("; ")) from e
    notes = (*planned.notes, *(n.text for n in chosen.notes))
    planned = replace(planned, notes=notes, account=(*planned.account, *chosen.entries))
    frames = _frames(planned.fields, there)
    found = tuple(decoded_field(f, frames) if frames != "encoded" else f for f in planned.fields)
    if there is not None:
        _check_fields(str(id), schema, found, grows=there.table.keeps is not None)
    return AppendPlan(str(id), there is None, files, known, schema or found, planned, remembered, how, chosen.notes)


_REMEMBERED = (
    *("reader", "fields", "episodes_by", "last_step", "rewards", "missing"),
    *("topics", "hz", "nearest", "episode_info"),
)


def _frames(given: Sequence[Field], there: Store | None) -> str:
    """Return how the frames of files are kept in a dataset, which may have to be made."""
    held = {} if there is None else there.fields
    pairs = [(f, held[f.name]) for f in given if f.name in held]
    if any(f.kind == "frames" and as_.kind == "array" for f, as_ in pairs):
        return "raw"
    codecs = {as_.codec for f, as_ in pairs if f.kind == "array" and decoded_field(f, str(as_.codec)) == as_}
    return next((codec for codec in codecs if codec in FRAME_CODECS), "encoded")


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
    reader: str | None = None,
    fields: Mapping[str, str | Sequence[str]] | None = None,
    episodes_by: str | None = None,
    skip_bad: bool = False,
    last_step: str | None = None,
    rewards: str | None = None,
    missing: str | None = None,
    topics: Sequence[str] | None = None,
    hz: float | None = None,
    nearest: bool | None = None,
    episode_info: str | None = None,
    fps: float | None = None,
    license: str | None = None,
    description: str | None = None,
    depth_unit: str | None = None,
    keep: Keep | None = None,
    protected: bool = False,
    again: bool = False,
    jobs: int | None = None,
    home: StrPath | None = None,
    progress: Progress | bool | None = None,
) -> Appended:
    """Append the episodes of a user's own files to a dataset; one that grows is made if it is not there.

    The files are read as ``rlds import`` reads them, and their episodes are committed together: readers see all of them
    or none. A file that was appended before is left out, by its sha256. Options of reading that are not given are those
    of the import or append that made the dataset: ``reader``, ``episodes_by``, ``last_step``, ``rewards``,
    ``missing``, ``topics``, ``hz``, ``nearest``, ``episode_info``, and each of ``fields``.

    Images and videos stay encoded, unless the dataset holds arrays. The result for a dataset that does not grow is its
    next version, which shares the files of rows of the one before.

    Parameters
    ----------
    ref : str
        Id of the dataset, ``local/NAME``.
    paths : path or paths
        Files, directories or glob patterns.
    reader, fields, episodes_by, skip_bad, last_step, rewards, missing, topics, hz, nearest, episode_info, jobs
        As in ``import_files``.
    fps, license, description, depth_unit : optional
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
        The dataset is one of the registry, or a writer that does not share is at work.
    InvalidEpisode
        The fields of the files are not those of the dataset; the message lists the differences. Nothing is appended.
    InvalidArgument
        ``fps``, ``license``, ``description`` or ``depth_unit`` is not what the dataset was made with; or ``keep`` or
        ``protected`` is given for one that does not grow, or some of the episodes are in it.
    UnknownLayout, ArchiveError
        The files cannot be read.
    """
    tell, id = shown(progress), ids.parse(ref)
    how: dict[str, Any] = {"reader": reader, "fields": importing.keys_of(fields), "episodes_by": episodes_by}
    how |= {"skip_bad": skip_bad, "last_step": last_step, "rewards": rewards, "missing": missing}
    how |= {"topics": topics, "hz": hz, "nearest": nearest, "episode_info": episode_info}
    about: dict[str, Any] = {"fps": fps, "license": license, "description": description, "depth_unit": depth_unit}
    where = settings.read(home)
    place = Home(where.home)
    with exclusive(place, id, tell):
        planned = plan_append(ref, paths, again=again, home=home, **how, **about)
        if planned.reader is None:
            return _nothing(planned, home)
        there = _there(id, home)
        if there is not None and there.table.keeps is None and (protected or keep is not None):
            raise InvalidArgument(f"{id} does not grow: no episode of it leaves.", hint="leave out keep and protected")
        frames = _frames(planned.reader.fields, there)
        how = {**planned.options, **(about if planned.new else {})}
        with _converted(place, id, planned.files, frames, how, jobs, tell) as made:
            if not planned.new:  # a plan may be wrong about fields, where a reader finds more in the rows
                grows = there is not None and there.table.keeps is not None
                _check_fields(str(id), planned.fields, tuple(made.schema.values()), grows=grows)
            if there is not None and there.table.keeps is None:
                store = open_store(extending.extend(Dataset(there), made, planned.files, place, tell))
            else:
                path = _new(place, id, made, keep, how) if there is None else there.path
                store = _committed(path, made, protected)
            return _appended(planned, store, made)


def _committed(path: Path, made: Dataset, protected: bool) -> Store:
    """Append the episodes of ``made`` to a growing dataset; return it at the version that has them."""
    writer_of = Appender(path, shared=True)
    try:
        known = bool(writer_of.newest.sources)
        sources = sources_for_another(made.store, recorded_first=not known)
        chunk, videos = _all_rows(made)
        if TASK_AT in {f.name for f in writer_of.schema} - made.schema.keys():
            chunk.columns[TASK_AT] = _tasks_of(made)
        if not known:  # earlier episodes that were recorded from values have source 0
            chunk.episodes.source = chunk.episodes.source + 1
        commit, _ = writer_of.commit(
            chunk, protected=[protected] * len(chunk.episodes), sources=sources, locate=videos.locate
        )
    finally:
        writer_of.close()
    return open_store(path, Ref(path, version=commit.number))


def _appended(planned: AppendPlan, store: Store, made: Dataset | None) -> Appended:
    """Describe a dataset after an append of the episodes of ``made``."""
    episodes, steps = (made.num_episodes, made.num_steps) if made else (0, 0)
    fingerprint = store.fingerprint()
    return Appended(
        planned.id,
        store.path,
        store.version,
        fingerprint,
        episodes,
        steps,
        planned.files,
        planned.skipped,
        account=planned.reader.account if planned.reader else (),
        notes=(*made.manifest.notes, *map(asdict, planned.left_out)) if made else (),
    )


def _there(id: DatasetId, home: StrPath | None) -> Store | None:
    """Return the existing dataset; raises NameTaken if nothing can be appended to it."""
    where = settings.read(home)
    found = homes.path_of(id, where)
    if found is None:
        return None
    store = open_store(found)
    if store.table.keeps is None:
        extending.check(store, Home(where.home))
    else:
        GrowingDataset.of(found).check_shared()
    return store


def _known(there: Store, files: Sequence[Path]) -> tuple[Path, ...]:
    """Return the files that were appended before, by size and sha256.

    A file without episodes, which describes others of an archive, is one of them only if all files are.
    """
    known = {(s.get("size"), s.get("sha256")): k for k, s in enumerate(there.sources)}
    sizes = {size for size, _ in known}
    keys = {f: (size, bundles.sha256_of(f)) for f in files if (size := bundles.size_of(f)) in sizes}
    found = {f: known[key] for f, key in keys.items() if key in known}
    if len(found) == len(files):
        return tuple(found)
    of_episodes = set(np.unique(there.episodes["source"]).tolist()) if "source" in there.episodes else set()
    return tuple(f for f, source in found.items() if source in of_episodes)


def _check_fields(id: str, wanted: Sequence[Field], found: Sequence[Field], *, grows: bool) -> None:
    """Refuse fields that are not those of the dataset; ``task_at`` is filled, where one of both lacks it."""
    there, given = ({f.name: f for f in fields} for fields in (wanted, found))
    if grows and TASK_AT in given and TASK_AT not in there:
        raise InvalidEpisode(
            f"An episode of the files has several tasks, one after the other; {id} grows, and has one for each episode "
            "alone. Nothing is appended.",
            hint=f"rlds import FILES local/NEW, then rlds merge {id} local/NEW --name local/ALL: the result has both",
        )
    either = {n: f for fields in (there, given) for n, f in fields.items() if n == TASK_AT}
    wrong = differences(either | there, either | given)
    if wrong:
        raise InvalidEpisode(
            f"The files do not fit {id}: {'; '.join(wrong)}. Nothing is appended.",
            hint="--map FIELD=KEY reads a field from another key; rlds import and rlds preprocess change types",
        )


def _nothing(planned: AppendPlan, home: StrPath | None) -> Appended:
    there = _there(ids.parse(planned.id), home)
    assert there is not None
    return _appended(planned, there, None)


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
    """Convert files into a temporary dataset, whose rows are mapped."""
    work = place.partial(id, f"append-{secrets.token_hex(4)}")
    safe_files.work_directory(work, place.root)
    try:
        yield importing.import_files(
            files, str(id), **how, frames=frames, jobs=jobs, force=True, home=work, progress=tell
        )
    finally:
        trees.discard(work)


def _new(place: Home, id: DatasetId, made: Dataset, keep: Keep | None, how: Mapping[str, Any]) -> Path:
    """Make a growing dataset with the fields, spaces and facts of another, and return its directory."""
    target, work = place.dataset(id), place.partial(id, f"writer-{secrets.token_hex(4)}")
    facts = {n: made.manifest.facts[n] for n in ("licence", "description", "depth_unit") if n in made.manifest.facts}
    about = {"spaces": made.manifest.spaces, "env": made.manifest.env, "facts": facts}
    how = {**how, "reader": how["reader"] and ReaderName(how["reader"]).recorded}
    about["options"] = {n: how[n] for n in _REMEMBERED if how.get(n)}
    safe_files.work_directory(work, place.root)
    try:
        make_growing(work, str(id), tuple(made.schema.values()), keep=keep, about=about)
        safe_files.directory(target.parent, place.root)
        work.rename(target)
    finally:
        trees.discard(work)
    return target


def _tasks_of(ds: Dataset) -> list[str | None]:
    """Return the text of each row of a dataset that has one for each episode."""
    known = TASK in Tasks(ds.store).told
    return Tasks(ds.store).gather(np.arange(ds.num_rows)).tolist() if known else [None] * ds.num_rows


def _all_rows(ds: Dataset) -> tuple[Chunk, VideoSources]:
    """Return all rows of a dataset as one chunk, whose arrays are mapped, and its videos."""
    videos = VideoSources()
    table, stored = replace(ds.store.episode_table()), Rows(ds)
    last: BoolArray = np.zeros(ds.num_rows, bool)
    last[table.start + table.length] = True
    columns: dict[str, Column] = {}
    for f in ds.schema.values():
        if f.codec == VIDEO:
            columns[f.name] = of_videos(ds.store, f, ds.store.rows(f.name), videos)
            continue
        if f.kind == "frames":
            columns[f.name] = stored.encoded(f.name, np.arange(ds.num_rows))
            continue
        rows: Array = ds.store.rows(f.name)
        columns[f.name] = ds.store.texts(f.name, rows).tolist() if f.kind == "text" else rows
    return Chunk(columns, last, table), videos
