"""Export a dataset: plan, write in processes, finish, prove by reading the files again, and move into place.

::

    <parent>/.<name>.rlds-export/
        lock  journal       the export that is at work; its key, and a line for each finished unit
        files/              becomes <parent>/<name>
            .rlds-export.json   the mark of an export, which --force replaces; readers skip hidden files
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from rlds_cli import __version__
from rlds_cli.archives.exports.content import Content, Loss
from rlds_cli.archives.exports.format import Format, Unit
from rlds_cli.archives.libraries import FORMATS
from rlds_cli.base import settings, text
from rlds_cli.base.files import disk, trees
from rlds_cli.base.files import json as documents
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files.disk import sync_directory
from rlds_cli.base.files.journal import Journal
from rlds_cli.base.files.locks import LockHeld, file_lock
from rlds_cli.base.progress import Event, Progress, shown
from rlds_cli.base.settings import StrPath
from rlds_cli.base.workers import Executor, Processes, Threads, check_started, run_items
from rlds_cli.dataset import Dataset, open_dataset
from rlds_cli.errors import ExportError, InvalidArgument, LossyExport, NameTaken, NoPermission, NoSpace, RldsError

MARK = ".rlds-export.json"
_PUBLISHED = "#published"  # a line of the journal; units have other names
_THREADS = 4  # that hash, or write
_NAMED = 5  # names that an error lists
_ALONE = 8  # units that this process writes unless the user says otherwise: starting others takes longer


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """The plan of an export: where to, how many bytes about, and what would be lost."""

    id: str
    format: str
    form: str
    directory: Path
    episodes: int
    steps: int
    bytes: int
    losses: tuple[Loss, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of an export.

    ``fingerprint`` is that of the dataset that importing ``directory`` makes; ``proved`` says that this was done.
    """

    id: str
    format: str
    form: str
    directory: Path
    episodes: int
    steps: int
    files: int
    bytes: int
    losses: tuple[Loss, ...]
    fingerprint: str
    proved: bool
    notes: tuple[str, ...] = ()


def plan_export(
    ref: str | os.PathLike[str] | Dataset,
    to: str,
    directory: StrPath,
    *,
    form: str | None = None,
    task: str | None = None,
    home: StrPath | None = None,
) -> ExportPlan:
    """Say what an export would write and lose, and write nothing. For the parameters see `export`."""
    ds = ref if isinstance(ref, Dataset) else open_dataset(ref, home=home)
    target = settings.expanded(directory).absolute()
    made, losses = _made(ds, to, target, form, task)
    amount, notes = (ds.num_episodes, ds.num_steps, made.size()), tuple(made.notes())
    return ExportPlan(ds.id, to, made.form, target, *amount, losses, notes)


def export(
    ref: str | os.PathLike[str] | Dataset,
    to: str,
    directory: StrPath,
    *,
    form: str | None = None,
    task: str | None = None,
    lossy: bool = False,
    verify: bool = True,
    force: bool = False,
    jobs: int | None = None,
    home: StrPath | None = None,
    progress: Progress | bool | None = None,
) -> Exported:
    """Write a dataset or a selection in the format of another library.

    An export that was killed continues when the same one is started again. ``directory`` appears when it is complete.

    Parameters
    ----------
    ref : str, path or Dataset
        An id, the directory of a dataset, or an open dataset: a selection writes its episodes.
    to : str
        A format of `FORMATS`: ``minari``, ``lerobot``, ...
    directory : path
        The exported dataset's own directory; it must not exist yet, or be empty, or be an earlier export.
    form : str, optional
        A form of the format, where it has several.
    task : str, optional
        The text that is the instruction, for formats that have any: an episode column, or a field of texts. Without it
        ``task``, else the only text; an empty string for none.
    lossy : bool
        Accept that the format cannot represent everything.
    verify : bool
        Read the files as an import does, and compare the fingerprint.
    force : bool
        Replace ``directory`` if it is an earlier export that holds nothing else.
    jobs : int, optional
        Processes that write; by default one for each core, or, for few units of some formats, threads of this process.

    Raises
    ------
    LossyExport
        Something would be lost; ``losses`` of the error lists it. Nothing was written.
    NameTaken
        ``directory`` exists, is not empty, and is not an earlier export or ``force`` is not given; it lies in a home;
        or another export writes to it. Nothing was removed.
    ExportError
        Importing the files again gives other content. ``directory`` was not written.
    InvalidArgument
        The dataset has several texts that could be the instruction, or none of the name ``task``.
    """
    ds = ref if isinstance(ref, Dataset) else open_dataset(ref, home=home)
    tell = ds.store.files.watched(shown(progress))
    target = settings.expanded(directory).absolute()
    inside = next((h for h in settings.read(home).homes if target.is_relative_to(h)), None)
    if inside is not None:
        raise NameTaken(f"{target} lies in the home {inside}, which rlds keeps.", hint="name a directory outside of it")
    made, losses = _made(ds, to, target, form, task)
    if losses and not lossy:
        raise LossyExport(
            f"{to} cannot represent all of {ds.id}. Lost would be: {'; '.join(loss.text for loss in losses)}.",
            hint="--lossy accepts this",
        ).of(losses)
    with _workplace(target) as place:
        done = _published(made, place)
        if done is None:
            _check_target(target, force)
            done = _made_in(place, made, jobs, verify, force, tell)
        trees.discard(place)
    tell(Event(ds.id, "ready", "", note=str(target)))
    amount = ds.num_episodes, ds.num_steps, done["files"], done["bytes"]
    told = losses, done["fingerprint"], done["proved"], tuple(made.notes())
    return Exported(ds.id, to, made.form, target, *amount, *told)


def _published(made: Format, place: Path) -> dict[str, Any] | None:
    """Return the result of an export that was killed after its files were moved into place; else None."""
    if (place / "files").exists() or not made.target.is_dir():
        return None
    return dict(Journal(place / "journal", _key(made)).records() or ()).get(_PUBLISHED)


def _made_in(place: Path, made: Format, jobs: int | None, verify: bool, force: bool, tell: Progress) -> dict[str, Any]:
    """Write, prove and publish, and return what the result says of it."""
    files = place / "files"
    try:
        _check_space(made, place)
        journal = _write(made, place, jobs, tell)
        expected = made.content.fingerprint(min(jobs or settings.cores(), _THREADS))
        if verify:
            _prove(made, place, expected, jobs, tell)
        written = trees.files(files)
        for folder in {f.parent for f in written} | {files}:
            sync_directory(folder)
        size = sum(f.stat().st_size for f in written)
        done = {"files": len(written), "bytes": size, "fingerprint": expected, "proved": verify}
        journal.add([_PUBLISHED, done])
        _publish(files, place / "replaced", made.target, force)
    except OSError as e:
        raise _unwritten(e, made, place) from e
    return done


def _check_space(made: Format, place: Path) -> None:
    """Raise NoSpace if the files cannot fit; those of an export that continues have their space already."""
    here = sum(f.stat().st_blocks * 512 for f in trees.files(place / "files"))
    needed, free = made.size() - here, disk.free(place)
    if needed > free:
        begun = here > 0
        if not begun:
            trees.discard(place)
        raise NoSpace(
            f"{text.size_of(needed)} are needed for {made.target}, {text.size_of(free)} are free there."
            f" {'What is written is kept.' if begun else 'Nothing was written.'}",
            hint="free some space, or name a directory on another disk",
        )


def _unwritten(exc: OSError, made: Format, place: Path) -> RldsError:
    """Return the error for a failed read or write, which says what is kept."""
    if disk.is_full(exc):
        return NoSpace(
            f"The disk is full: {made.target} could not be written. What is finished is kept in {place}.",
            hint="free some space and run the same command again: it continues; or delete that directory",
        )
    if exc.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return NoPermission(f"{exc.filename or made.target} may not be written: {exc.strerror}.")
    return ExportError(
        f"{made.content.id} could not be exported: {exc.strerror or exc}. What is finished is kept in {place}.",
        hint="run the same command again: it continues",
    )


def format_of(name: str) -> type[Format]:
    """Return the class of a format; raises InvalidArgument for an unknown name."""
    if name not in FORMATS:
        raise InvalidArgument(f"{name} is not a format that rlds writes.", hint=f"--to {'|'.join(FORMATS)}")
    module, _, cls = FORMATS[name].partition(":")
    found: type[Format] = getattr(import_module(f"rlds_cli.archives.{module}"), cls)
    return found


def _made(ds: Dataset, to: str, target: Path, form: str | None, task: str | None) -> tuple[Format, tuple[Loss, ...]]:
    """Return the format with the content that it will write, and what it lacks of the dataset."""
    cls = format_of(to)
    if not ds.num_episodes:
        raise ExportError(f"{ds.id} has no episodes that could be exported.")
    whole = Content(ds)
    first = cls(whole, target, form, task)
    losses = tuple(first.losses())
    said = None if first.instructions is None else _after(losses, first.instructions.name)
    made = cls(whole.after(losses), target, form, said)
    made.check()
    return made, losses


def _after(losses: Sequence[Loss], name: str) -> str:
    """Return the name that a text has after the losses; empty if it is left out."""
    becomes = {loss.field: loss.becomes for loss in losses if loss.kind in ("name", "field")}
    return becomes.get(name, name)


def _check_target(target: Path, force: bool) -> None:
    if target.is_symlink():
        leads = target.resolve()
        raise NameTaken(
            f"{target} is a symbolic link to {leads}; an export replaces a directory, and would replace the link.",
            hint=f"name the directory itself: {leads}",
        )
    if target.exists() and not target.is_dir():
        raise NameTaken(f"{target} is not a directory.", hint="name a directory that does not exist yet")
    _check_replaceable(target, force)


def _check_replaceable(target: Path, force: bool) -> None:
    """Refuse to replace a directory that is not empty, unless ``force`` is given and it is an export and nothing else.

    Raises
    ------
    NameTaken
    """
    there = {path.name for path in target.iterdir()} if target.is_dir() else set()
    if not there:
        return
    written = _marked(target)
    if written is None:
        what = f"{target} is not empty, and rlds export did not write it (it has no {MARK})"
        raise NameTaken(f"{what}. Nothing was removed.", hint="name another directory, or remove this one yourself")
    if not force:
        raise NameTaken(f"{target} exists: an earlier export.", hint="another directory, or --force to replace it")
    others = sorted(there - written)
    if others:
        named = f"{', '.join(others[:_NAMED])}{', ...' if len(others) > _NAMED else ''}"
        what = f"{target} is an earlier export, and holds what rlds export did not write: {named}"
        raise NameTaken(f"{what}. Nothing was removed.", hint="move that elsewhere, or name another directory")


def _mark(made: Format, files: Path) -> None:
    """Write the mark of an export, with the names in its directory."""
    written = sorted({path.name for path in files.iterdir()} | {MARK})
    about = {"format": made.name, "id": made.content.dataset.id, "written": written}
    safe_files.replace_text(files / MARK, documents.dumps({"rlds export": about}, MARK))


def _marked(directory: Path) -> set[str] | None:
    """Return the names that an export wrote into a directory; None if it is not an export."""
    about = (documents.load_own(directory / MARK) or {}).get("rlds export")
    written = about.get("written") if isinstance(about, dict) else None
    return set(map(str, written)) if isinstance(written, list) else None


@contextmanager
def _workplace(target: Path) -> Iterator[Path]:
    """Hold the lock of the hidden directory beside the target; one without an export that was begun is removed."""
    check_started()
    place = target.with_name(f".{target.name}.rlds-export")
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise NoPermission(f"{place} cannot be made: {e.strerror}.", hint="name another directory") from e
    lock = file_lock(place / "lock")
    try:
        lock.acquire(timeout=0)
    except (LockHeld, FileNotFoundError):  # the other one has finished meanwhile, and removes the directory
        raise NameTaken(f"Another export writes to {target}.", hint="wait for it, or name another directory") from None
    except OSError as e:
        raise NoPermission(f"{place} cannot be locked: {e.strerror}.", hint="name another directory") from e
    try:
        yield place
    finally:
        if place.exists() and not (place / "journal").exists():
            trees.discard(place)
        lock.release()


def _write(made: Format, place: Path, jobs: int | None, tell: Progress) -> Journal:
    """Write all units that the journal does not have, then finish."""
    files, journal = place / "files", Journal(place / "journal", _key(made))
    if journal.records() is None:
        trees.discard(files)
        files.mkdir()
        made.prepare(files)
    finished = dict(journal.resume())
    units = made.units()
    steps = [int(made.content.table.length[unit.first : unit.stop].sum()) for unit in units]
    done, total = sum(n for n, unit in zip(steps, units, strict=True) if unit.name in finished), sum(steps)
    left = {i: (unit, files) for i, unit in enumerate(units) if unit.name not in finished}
    executor = _executor(made, len(left), jobs)
    for i, result in run_items(
        _write_unit,
        made,
        left,
        executor,
        id=made.content.id,
        name=lambda i: f"episodes {units[i].name}",
        progress=tell,
    ):
        journal.add([units[i].name, result])
        done += steps[i]
        tell(Event(made.content.id, "export", "", done, total, "steps"))
    results = dict(journal.records() or ())
    made.finish(files, {unit.name: results[unit.name] for unit in units})
    _mark(made, files)
    return journal


def _executor(made: Format, units: int, jobs: int | None) -> Executor | None:
    """Return what writes so many units: processes, or threads where there are few; None for this thread alone."""
    workers = min(settings.cores() if jobs is None else jobs, units)
    if workers < 2:
        return None
    if jobs is not None or units > _ALONE:
        return Processes(workers)
    return Threads(min(workers, _THREADS)) if made.threads else None


def _write_unit(made: Format, unit: Unit, files: Path) -> Any:
    return made.write(unit, files)


def _key(made: Format) -> str:
    """Return what tells this export from others: one with another key does not continue its files."""
    losses = [[loss.kind, loss.field, loss.becomes] for loss in made.content.losses]
    ds, said = made.content.dataset, made.instructions and made.instructions.name
    return json.dumps([__version__, made.name, made.form, said, ds.id, ds.fingerprint, losses, str(made.target)])


def _prove(made: Format, place: Path, expected: str, jobs: int | None, tell: Progress) -> None:
    """Prove the files; those that hold something else do not stay."""
    from rlds_cli.archives.exports.proof import prove

    try:
        prove(made, place / "files", expected, jobs or settings.cores(), tell)
    except ExportError:
        trees.discard(place)
        raise


def _publish(files: Path, old: Path, target: Path, force: bool) -> None:
    """Move the finished directory into place, in one step where no other exists."""
    if target.exists() and any(target.iterdir()):
        _check_replaceable(target, force)
        trees.discard(old)
        target.rename(old)
        files.rename(target)
        sync_directory(target.parent)
        return
    if target.exists():
        target.rmdir()
    files.rename(target)
    sync_directory(target.parent)
