"""The user's own files: flat files with one row per step, and files or HDF5 groups that hold one episode each.

npz, HDF5, Parquet, Arrow, CSV and JSON lines are recognised by the names of their columns. Row t holds the observation,
the action taken there, and its reward and flags, as in D4RL. ``survey`` looks at the columns and groups of files and
joins flat files to one table, ``boundaries`` finds the episodes of flat rows, ``flat`` reads these, and ``grouped``
reads one episode per file or group; this module decides between the two.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from rlds_cli.archives import tasks
from rlds_cli.archives.account import LEFT_OUT_FILES, SPLITS, notes_of_files, used_as
from rlds_cli.archives.beside import divided
from rlds_cli.archives.d4rl import read as d4rl
from rlds_cli.archives.formats import arrow_files
from rlds_cli.archives.formats.tables import IN_WORDS, Table, container_of, is_flat, open_flat
from rlds_cli.archives.names import chosen_of, flags_of, has_essentials, is_observation, meaning
from rlds_cli.archives.plain import accounting, camera_names, camera_search, cameras, flat, grouped
from rlds_cli.archives.plain.camera_search import CamerasFound
from rlds_cli.archives.plain.survey import groups_of, is_one_episode, understood
from rlds_cli.archives.readers import (
    DROP,
    FILL,
    Archive,
    ArchivedStep,
    ArchivedValue,
    Part,
    Plan,
    every_file,
    skipped_file,
)
from rlds_cli.base.array_types import Array
from rlds_cli.errors import ArchiveError, UnknownLayout
from rlds_cli.ted import Chunk, Note

VERSION = 1
TASKS = tasks.NAMES  # columns of texts that say what an episode is about
choose = every_file


def recognise(paths: Sequence[Path]) -> str | None:
    """Describe the columns in one line; None if observations or actions are missing."""
    given = divided(paths)
    media, paths = given.media, given.data
    if not paths or not all(map(is_flat, paths)):
        return None
    files = f"{len(paths)} {_kind(paths[0])} files, the first with " if len(paths) > 1 else f"{_kind(paths[0])}, "
    with open_flat(paths[0], fill=True) as table:
        groups = groups_of(table, {})
        if groups is not None:
            level, found = groups
            return (
                f"one episode per group: {files}{len(found):,} groups {level}; {', '.join(next(iter(found.values())))}"
            )
        what = meaning(table.columns, {}, paths[0].name)
        if not has_essentials(what):  # a camera may be the observation
            beside = camera_search.fields_with_cameras(paths, media) if media else {}
            what = meaning(table.columns, beside, paths[0].name)
        if not has_essentials(what):
            return None
        columns = ", ".join(what.fields.values())
        if is_one_episode(table, what.fields, len(paths)):
            return f"one episode per file: {len(paths)} {_kind(paths[0])}; {columns}"
        fields = flags_of(what)[0]
        table.derive(list(fields.values()))
        rows = max(
            (table[k].shape[0] for n, k in fields.items() if n.startswith("action") and table[k].shape), default=0
        )
    return f"columns of rows: {files}{rows:,} rows; {columns}"


def _kind(path: Path) -> str:
    return IN_WORDS[container_of(path) or "hdf5"]


def plan(archive: Archive) -> Plan:
    """Find the fields, the parts and the rule for episodes; reads only the columns that mark episodes.

    Raises
    ------
    UnknownLayout
        A file has an unknown format or no observations or actions, or columns contradict each other about episodes.
    """
    given = divided(archive.files)
    beside, media = given.beside, given.media
    if given.data:
        archive = replace(archive, files=given.data)
    if not archive.skip_bad and not all(map(is_flat, archive.files)):
        odd = next(p for p in archive.files if not is_flat(p))
        raise UnknownLayout(
            f"{odd.name} is neither {' nor '.join(IN_WORDS.values())}.",
            hint=f"rlds inspect {odd} shows what is in it; a pattern that matches the tables alone leaves it out",
        )
    found = _cameras(archive, media)
    skipped = [skipped_file(p.relative_to(archive.root).as_posix(), e) for p, e in found.bad.items()]
    archive = replace(archive, fields=found.fields, files=tuple(p for p in archive.files if p not in found.bad))
    if not archive.files:
        raise next(iter(found.bad.values()))
    if _is_grouped(archive):
        made = grouped.plan(archive)
    else:
        made = _by_jumps(archive) if archive.episodes_by == "jumps" else flat.plan(archive)
    described = given.descriptions
    documents = [p for p in described if p.name == arrow_files.SPLITS and "splits" in made.facts]
    others = [p for p in described if p not in documents]
    left_out = {**dict.fromkeys(others, "not a table"), **found.left_out}
    fates = accounting.of_beside(made.archive, beside, found.files, left_out)
    fates |= dict.fromkeys(map(os.fspath, documents), used_as(SPLITS))
    left_out |= {Path(path): fate.left_out for path, fate in fates.items() if fate.left_out}
    absent = [note for path in documents for note in _absent(path, made)]
    notes = (*skipped, *found.notes, *notes_of_files(archive.root, left_out), *absent)
    if made.account is not None:
        start = f"{archive.root}/"
        names = {path.removeprefix(start): fate for path, fate in fates.items()}
        made = replace(made, account=replace(made.account, files={**made.account.files, **names}))
    return replace(made, notes=(*made.notes, *notes)) if notes else made


def _absent(document: Path, made: Plan) -> Iterator[Note]:
    """Note the splits that the document names and the archive lacks."""
    absent = [name for name in arrow_files.split_names(document) if name not in made.facts["splits"]]
    if absent:
        text = f"splits that {document.name} names have no files here: {', '.join(absent)}"
        yield Note("missing-splits", text, len(absent), absent[0])


def _cameras(archive: Archive, media: Sequence[Path]) -> CamerasFound:
    """Find the cameras among the images and videos that lie beside the files."""
    notes: tuple[Note, ...] = ()
    known = cameras.of(archive.fields) or any(n.code == LEFT_OUT_FILES for n in archive.left_out)
    if not media and not known:  # a second plan knows them by the first
        with _first_readable(archive) as table:
            notes = tuple(camera_names.not_given(table, archive.fields))
    if media or cameras.of(archive.fields) or any(map(is_observation, archive.fields)):
        lenient = archive.missing in (FILL, DROP)
        found = camera_search.find(archive.files, media, archive.fields, skip_bad=archive.skip_bad, lenient=lenient)
        return replace(found, notes=(*found.notes, *notes))
    return CamerasFound(fields=archive.fields, notes=notes)


def _is_grouped(archive: Archive) -> bool:
    """Tell whether each file or group is one episode."""
    with _first_readable(archive) as table:
        if groups_of(table, archive.fields) is not None:
            return True
        if archive.episodes_by not in (None, "file"):
            return False
        return is_one_episode(table, chosen_of(archive, table.columns), len(archive.files))


@contextmanager
def _first_readable(archive: Archive) -> Iterator[Table]:
    """Open the first file; with ``skip_bad``, the first one that can be opened."""
    with ExitStack() as stack:
        for path in archive.files[:-1] if archive.skip_bad else ():
            try:
                table = stack.enter_context(open_flat(path, fill=True))
            except ArchiveError:
                continue
            break
        else:
            table = stack.enter_context(open_flat(archive.files[-1 if archive.skip_bad else 0], fill=True))
        yield table


def _by_jumps(archive: Archive) -> Plan:
    if archive.arrive:
        raise UnknownLayout(
            "--episodes-by jumps finds the ends between rows of steps; with --rewards arrive some rows are none.",
            hint="--episodes-by field:KEY, steps:KEY, starts:KEY or flags",
        )
    with open_flat(archive.files[0]) as table:
        fields = flags_of(understood(table, archive.fields, rule="jumps"))[0]
    made = d4rl.READER.plan(replace(archive, fields=fields))
    return replace(made, reader="plain", facts={**made.facts, "fields": fields, "read": "jumps"})


def read(plan: Plan, part: Part) -> Iterator[Chunk]:
    """Read the rows of one part, in chunks of bounded size.

    Raises
    ------
    Replan
        Next observations differ from the rows after at most steps.
    CorruptArchive
        A file is damaged.
    """
    how = {"grouped": grouped.read, "jumps": d4rl.READER.read}.get(plan.facts["read"], flat.read)
    return how(plan, part)


def metadata(plan: Plan) -> Iterator[tuple[str, Array | str]]:
    """Read the columns that do not have one value per row, and attributes."""
    how = {"grouped": grouped.metadata, "jumps": d4rl.READER.metadata}.get(plan.facts["read"], flat.metadata)
    return how(plan)


def look_up(place: ArchivedStep) -> Iterator[ArchivedValue]:
    """Look up the values of one step and the next observation."""
    return grouped.look_up(place) if place.facts["read"] == "grouped" else flat.look_up(place)
