"""Recognise the files of a user, plan to read them, and look values up: what is asked of a process that reads.

The functions are called with `files.child.ask`, and their results consist of `recognised.ANSWERS`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rlds_cli.archives import episode_info
from rlds_cli.archives.account import NOT_READ, UNTOLD, Account, Entry, left_out, sorted_entries, used_as
from rlds_cli.archives.beside import is_beside, is_description
from rlds_cli.archives.boundary import reader, recognise, recognise_most, without_bad_files
from rlds_cli.archives.formats import git_lfs, unfit
from rlds_cli.archives.formats.camera_files import is_media
from rlds_cli.archives.formats.tables import is_empty, is_flat, no_rows
from rlds_cli.archives.readers import (
    ARRIVE,
    Archive,
    ArchivedStep,
    ArchivedValue,
    Plan,
    skipped_file,
)
from rlds_cli.archives.recognised import Recognised
from rlds_cli.base.files import bundles, child
from rlds_cli.errors import ArchiveError, InvalidArgument, ReaderError, UnknownLayout
from rlds_cli.ted import FLAGS


@dataclass(frozen=True, slots=True)
class _Made:
    """A plan, the archive that it was made of, and the states of its files then."""

    plan: Plan
    given: Archive
    states: Mapping[Path, tuple[int, int, int]]

    def is_of(self, name: str, archive: Archive) -> bool:
        """Tell whether it is the plan of an archive: of the one that was given, or that the plan has made of it.

        A plan's own archive may have more notes by now, which change no plan.
        """
        own = replace(archive, left_out=()) == replace(self.plan.archive, left_out=())
        is_known = self.plan.reader == name and (own or archive == self.given)
        return is_known and all(self.states.get(file) == _state(file) for file in archive.files if not is_media(file))


_last: list[_Made] = []  # the last plan of this process


def plan(archive: Archive, format: str | None) -> Recognised:
    """Find the reader of files, and plan to read them; raises as `reader_for` and `Reader.plan`.

    Pointers of Git LFS are CorruptArchive; with ``skip_bad`` they are left out.

    Parameters
    ----------
    archive : Archive
    format : str or None
        The name of the reader; None recognises the files.
    """
    archive = _with_info(archive, format)
    given, archive = archive, _without_pointers(archive)
    name, how = reader_for(archive.files, format, bool(archive.fields), archive.skip_bad, archive.rewards)
    archive = without_bad_files(name, archive) if archive.skip_bad else archive
    made = _plan_known(name, archive)
    return Recognised(name, how, archive, made, account_of(made, given))


def _with_info(archive: Archive, format: str | None) -> Archive:
    """Take the files that describe episodes from those of an archive, unless its family reads them itself."""
    described = any(map(is_description, archive.files))
    if not archive.episode_info and not described:
        return archive
    if described and (name := _family(archive.files, format)) is not None:
        if archive.episode_info:
            raise InvalidArgument(
                f"episode_info does not apply: the layout of {name} says which of its files describe the others.",
                hint="leave out --episode-info",
            )
        return archive
    taken = episode_info.taken(archive)
    alone = episode_info.data_alone(taken)
    if alone.files and _family(alone.files, format) is not None:
        return alone
    return taken if format in (None, "plain") else archive  # of other readers, those who asked know the files


def _family(files: Sequence[Path], format: str | None) -> str | None:
    """Return the reader of a family that recognises files, by its name if one was asked for; None if none does."""
    try:
        if format is None:
            return (recognise(files, tables=False) or (None,))[0]
        return format if format != "plain" and reader(format).recognise(files) else None
    except ArchiveError:
        return None


def account_of(plan: Plan, given: Archive) -> tuple[Entry, ...]:
    """Return the fate of all files that a user gave, and of all that they hold.

    Raises
    ------
    ReaderError
        The reader gives an account that lacks a file that it reads, or the source of a field.
    """
    told = plan.account
    read = {plan.archive.name_of(i) for i in range(len(plan.archive.files))}
    if told is None:
        told = Account(dict.fromkeys(read, used_as(UNTOLD)))
    else:
        _check(plan, told, read)
    files = dict(told.files)
    for index in range(len(given.files)):
        files.setdefault(given.name_of(index), left_out(NOT_READ))
    return sorted_entries((*replace(told, files=files).entries, *given.beside))


def _check(plan: Plan, told: Account, read: Collection[str]) -> None:
    """Refuse an account without a file that is read, or without the source of a field."""
    if missing := [name for name in read if name not in told.files]:
        raise ReaderError(f"The account of the reader {plan.reader} lacks {min(missing)}.")
    uses = {name for fate in {*told.files.values()} for name in fate.used_as}
    uses |= {name for entry in told.things for name in entry.used_as}
    made = {f.name for f in plan.schema if f.name not in FLAGS and f.name not in plan.computed}
    if unknown := made - uses:
        raise ReaderError(f"The account of the reader {plan.reader} does not say what {min(unknown)} is made of.")


def is_last(name: str, archive: Archive) -> bool:
    """Tell whether the last plan of this process is that of an archive, and still would be."""
    return child.is_apart() and bool(_last) and _last[0].is_of(name, archive)


def plan_known(name: str, archive: Archive) -> Plan:
    """Plan to read an archive of the family ``name``; a process keeps its last plan, which imports ask for again."""
    if is_last(name, archive):
        return replace(_last[0].plan, archive=archive) if archive != _last[0].given else _last[0].plan
    git_lfs.check(archive.files)
    return _plan_known(name, archive)


def _plan_known(name: str, archive: Archive) -> Plan:
    """Plan to read an archive that holds no pointers of Git LFS."""
    states = {file: _state(file) for file in archive.files if not is_media(file)}
    _last[:] = [_Made(reader(name).plan(archive), archive, states)]
    return _last[0].plan


def _without_pointers(archive: Archive) -> Archive:
    """Refuse pointers of Git LFS; with ``skip_bad``, leave them out with a note for each."""
    pointers = [path for path in archive.files if git_lfs.is_pointer(path)]
    if not pointers:
        return archive
    rest = tuple(path for path in archive.files if path not in pointers)
    if not (archive.skip_bad and rest):
        raise git_lfs.not_fetched(pointers)
    names = {path: archive.name_of(k) for k, path in enumerate(archive.files)}
    notes = [skipped_file(names[path], git_lfs.not_fetched([path])) for path in pointers]
    return replace(archive, files=rest, left_out=(*archive.left_out, *notes))


def _state(file: Path) -> tuple[int, int, int]:
    try:
        return bundles.state_of(file)
    except OSError:
        return (0, 0, 0)


def look_up(name: str, place: ArchivedStep, files: Sequence[Path]) -> list[ArchivedValue]:
    """Look up the values of one step; without ``name`` by the reader that recognises ``files``."""
    return [*reader(name or (recognise(files) or ("",))[0]).look_up(place)]


def reader_for(
    files: Sequence[Path], format: str | None, mapped: bool, skip_bad: bool, rewards: str | None = None
) -> tuple[str, str]:
    """Return the reader of files, and in words how they were recognised.

    Parameters
    ----------
    format : str, optional
        The reader that was asked for.
    mapped : bool
        Whether keys are assigned to fields: the plain reader then takes files that none recognises.
    skip_bad : bool
        Whether some files may be unreadable.
    rewards : {"action", "arrive"}, optional
        ``arrive`` is for tables, whose reader reads other files of columns, too.

    Raises
    ------
    UnknownLayout, ArchiveError
        No reader recognises the files, or all but one.
    InvalidArgument
        ``rewards`` is ``arrive``, and the files say themselves what their rewards belong to.
    """
    if rewards == ARRIVE:
        name, what = reader_for(files, format, mapped, skip_bad)
        if name in ("plain", "d4rl", "vd4rl"):
            return "plain", what
        own = "; --reader plain reads the columns as a table of your own" if reader("plain").recognise(files) else ""
        raise InvalidArgument(
            f"--rewards arrive is for tables and files of episodes; {files[0].name} is read as {name}, "
            "which says what its rewards belong to.",
            hint=f"leave out --rewards{own}",
        )
    if format is not None:
        reader(format)
        return format, f"read as {format}, as requested"
    found = _recognised(files, skip_bad)
    if found:
        return found
    empty = next((f for f in files if is_empty(f)), None)
    if empty is not None and not skip_bad:
        raise no_rows(empty.name)
    if mapped:
        return "plain", "columns of rows, by --map"
    raise _unknown(files, rewards)


def telling(files: Sequence[Path]) -> Path:
    """Return the file that says most of why no reader knows the files: a table, else data, else what describes them."""
    data = [path for path in files if not is_beside(path)]
    tables = (path for path in data if is_flat(path))
    return next(tables, None) or next(iter(data), None) or next((p for p in files if not is_media(p)), files[0])


def _unknown(files: Sequence[Path], rewards: str | None) -> ArchiveError:
    """Return the error for files that no reader knows; it names the file because of which that is so."""
    data = [path for path in files if not is_beside(path)]
    tables = tuple(filter(is_flat, data))
    if len(data) > 1 and (most := recognise_most(data)) is not None:
        return _odd(data, most[0])
    if tables:
        root = Path(os.path.commonpath([path.parent for path in tables]))
        try:
            reader("plain").plan(Archive(root, tables, rewards=rewards))
        except ArchiveError as e:
            return e
    from rlds_cli.archives.formats.tfrecord import is_tfrecord

    file = telling(files)
    try:
        unfit.check(file)
    except ArchiveError as e:
        return e
    if (known := unfit.not_read(file)) is not None:
        return known
    inspect = f"rlds inspect {file} shows what is in it"
    if is_tfrecord(file):
        return _without_features(file)
    if is_media(file):
        return UnknownLayout(
            f"{file.name} is an image or a video, and there is no table beside it, with a row for each step.",
            hint="import the directory of both; rlds_cli.create takes lists of images, and videos",
        )
    if not data:
        return UnknownLayout(
            f"{file.name} describes data to all readers, and there is no table beside it, with a row for each step.",
            hint="JSON lines (.jsonl, an object for each step) are read; rlds_cli.create takes what you read yourself",
        )
    return UnknownLayout(f"{file.name} has no layout that a reader recognises.", hint=inspect)


def _without_features(file: Path) -> UnknownLayout:
    """Return the error for TFRecords that no description says how to read; it lists what the first record holds."""
    from rlds_cli.archives.formats.tfrecord import parse, records

    record = next(records(file), None)
    keys = sorted(parse(record.data, where=f"{file.name}: record 0")) if record is not None else []
    held = f"they hold {', '.join(keys[:12])}" if keys else "the first holds no lists"
    return UnknownLayout(
        f"{file.name} is a TFRecord without features.json: nothing says what its records are; {held}.",
        hint="put features.json and dataset_info.json beside it, which TFDS writes, and import the directory; episodes "
        "whose lists are called steps/observation, steps/action and steps/is_first need none",
    )


def _odd(files: Sequence[Path], name: str) -> ArchiveError:
    """Return the error for the first file that the reader called ``name``, which most have, does not recognise."""
    readers = {path: _known_by(path) for path in files}
    unknown = next((path for path, known in readers.items() if known is None), None)
    if unknown is not None:
        return ArchiveError(
            f"{unknown.name} cannot be read like the other files ({name}): it is damaged, or has another layout.",
            hint=f"--skip-bad leaves it out; rlds inspect {unknown} shows what is in it",
        )
    usual = next(path for path, known in readers.items() if known == name)
    other = next((path for path, known in readers.items() if known != name), files[-1])
    return UnknownLayout(
        f"{usual.name} and {other.name} have different layouts.",
        hint="import files of one layout: name them, or one of their directories",
    )


def _known_by(file: Path) -> str | None:
    """Return the reader that recognises a file by itself; None if none does."""
    try:
        found = recognise([file])
    except ArchiveError:
        return None
    return found[0] if found else None


def _recognised(files: Sequence[Path], skip_bad: bool) -> tuple[str, str] | None:
    """Return the reader that recognises the files; with ``skip_bad``, the one that recognises most of them."""
    try:
        found = recognise(files)
    except ArchiveError:
        if not skip_bad:
            raise
        found = None
    return found or (recognise_most(files) if skip_bad and len(files) > 1 else None)
