"""Import a user's own files, in any layout that a reader supports, as a dataset.

A mapping file assigns keys of the user's files to fields:

::

    {"fields": {"observation": "state/q", "action": "cmd"}, "episodes_by": "field:trial"}   JSON, or the same in TOML
    {"observation": "state/q", "action": "cmd"}                                             the fields alone
"""

from __future__ import annotations

import glob
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rlds_cli import home, ids, settings
from rlds_cli.archives import (
    ARRIVE,
    REWARDS,
    Archive,
    Plan,
    reader,
    recognise,
    recognise_most,
    without_bad_files,
)
from rlds_cli.convert.archive import Conversion, convert, identities
from rlds_cli.convert.create import rate, texts
from rlds_cli.dataset import Dataset, open_dataset
from rlds_cli.errors import ArchiveError, InvalidArgument, InvalidId, NameTaken, RldsError, UnknownLayout
from rlds_cli.files import json as documents
from rlds_cli.files import trees
from rlds_cli.files.hashing import sha256_of
from rlds_cli.files.names import is_unfinished
from rlds_cli.formats.tables import is_empty, no_rows
from rlds_cli.growing import logs
from rlds_cli.home import Home, locate
from rlds_cli.home.locks import exclusive
from rlds_cli.ids import DatasetId
from rlds_cli.progress import Event, Progress, shown
from rlds_cli.settings import Settings, StrPath
from rlds_cli.store import manifest
from rlds_cli.store.manifest import Manifest
from rlds_cli.ted import Field

_SKIPPED = ("skipped-file", "skipped-files")  # codes of notes about files that a reader left out with skip_bad
# Suffixes of lock and backup files, which are not data.
_NOT_DATA = (".lock", "~")
# Texts about the data in a directory; imported only if they are named explicitly.
_ABOUT = (".md", ".rst")
_ABOUT_NAMES = ("readme", "license", "licence", "citation", "notice")
KEYS = ("fields", "episodes_by", "rewards")


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """The plan of an import.

    ``rows`` is the number of rows (T+1 per episode) if it is known in advance. ``episodes`` holds statistics as far as
    known: ``episodes``, ``steps``, ``shortest``, ``median``, ``longest`` and ``ends``. ``notes`` are remarks of the
    reader.
    """

    id: str
    reader: str
    recognised: str
    files: tuple[Path, ...]
    bytes: int
    episodes_by: str
    fields: tuple[Field, ...]
    rows: int | None
    facts: Mapping[str, Any]
    notes: tuple[str, ...]
    plan: Plan = field(repr=False)
    episodes: Mapping[str, Any] | None = None

    def summary(self) -> dict[str, Any]:
        """Return the plan as JSON values, without the reader's own plan."""
        return {n: getattr(self, n) for n in self.__slots__ if n != "plan"}


def plan_import(
    paths: StrPath | Sequence[StrPath],
    ref: str,
    *,
    format: str | None = None,
    fields: Mapping[str, str] | None = None,
    episodes_by: str | None = None,
    skip_bad: bool = False,
    last_step: str | None = None,
    rewards: str | None = None,
) -> ImportPlan:
    """Recognise files and plan their import. Reads no bulk data and writes nothing.

    Parameters
    ----------
    paths : path or paths
        Files, directories or glob patterns; several files are one archive, in natural order.
    ref : str
        Id of the new dataset: ``local/NAME``.
    format : str, optional
        The reader to use; by default the one that recognises the content.
    fields : mapping, optional
        Key of the archive for each TED field, as in ``{"observation": "state/q"}``.
    episodes_by : str, optional
        ``flags``, ``timeouts``, ``jumps``, ``field:KEY`` or ``file``.
    skip_bad : bool
        Leave out files that cannot be read; the notes name them.
    last_step : {"action", "observation"}, optional
        Content of the last step of an RLDS episode; by default it is inferred.
    rewards : {"action", "arrive"}, optional
        The step that the reward and the flags of a row of a table belong to: the action of that row, or, as in dm_env,
        the action of the row before. By default the action of that row; a last row with a reward and no action is
        then refused.

    Raises
    ------
    InvalidArgument
        ``rewards`` is neither of these, or the files are not tables.
    UnknownLayout
        No reader recognises the files; the hint is a command to try.
    ArchiveError
        The layout is known, but the files cannot be read.
    """
    id = ids.parse(ref)
    if id.family != "local":
        raise InvalidId(f"{id} cannot be imported: only ids of the family local can.", hint=f"--as local/{id.name}")
    given = [paths] if isinstance(paths, str | os.PathLike) else paths
    for path in given:
        if ids.address_hint(str(path)):
            _refuse_address(str(path), str(id))
        _refuse_dataset(settings.expanded(path).absolute())
    files = expand(given)
    if rewards not in (None, *REWARDS):
        raise InvalidArgument(f"rewards={rewards!r} is neither of {', '.join(REWARDS)}.")
    name, what = reader_for(files, format, bool(fields), skip_bad, rewards)
    archive = Archive(_root(files), files, episodes_by, dict(fields or {}), skip_bad, last_step, rewards=rewards)
    archive = without_bad_files(name, archive) if skip_bad else archive
    plan = reader(name).plan(archive)
    known = [p.rows for p in plan.parts]
    told = (*archive.left_out, *plan.notes)
    kept = _with_left_out(plan, archive)
    return ImportPlan(
        id=str(id),
        reader=name,
        recognised=what,
        files=plan.archive.files,
        bytes=sum(f.stat().st_size for f in plan.archive.files),
        episodes_by=plan.episodes_by,
        fields=plan.schema,
        rows=None if None in known else sum(r for r in known if r is not None),
        facts=plan.facts,
        notes=tuple(n.text if n.where in n.text else f"{n.text} ({n.where})" for n in told),
        plan=kept,
        episodes=plan.episode_summary.numbers() if plan.episode_summary else None,
    )


def import_archive(
    paths: StrPath | Sequence[StrPath],
    ref: str,
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
    store: Literal["memmap", "zarr"] = "memmap",
    frames: str = "encoded",
    jobs: int | None = None,
    force: bool = False,
    cache_dir: StrPath | None = None,
    progress: Progress | bool | None = None,
) -> Dataset:
    """Convert a user's own files into the dataset ``local/NAME``; the files stay where they are.

    Repeating the same import returns at once. For the parameters see ``plan_import`` and ``rlds_cli.download``;
    ``fps``, ``license`` and ``description`` are those of ``rlds_cli.create``, and come before what the files say.

    Raises
    ------
    InvalidArgument
        ``fps`` is not a positive number, or a text is not a string.
    NameTaken
        The id exists, and was made of other files or with other options.
    """
    tell = shown(progress)
    ids.frames_variant(frames)
    about = stated(fps=fps, license=license, description=description)
    how: dict[str, Any] = {"format": format, "fields": fields, "episodes_by": episodes_by, "skip_bad": skip_bad}
    how |= {"last_step": last_step, "rewards": rewards}
    planned = plan_import(paths, ref, **how)
    where = settings.read(cache_dir)
    place, id = Home(where.home), ids.parse(planned.id)
    options: dict[str, Any] = {"fields": dict(fields or {}), "episodes_by": episodes_by}
    options |= {"store": store, "frames": frames}
    options |= {"skip_bad": True} if skip_bad else {}
    given = {"last_step": last_step, "rewards": rewards, "fps": fps, "license": license, "description": description}
    options |= {n: v for n, v in given.items() if v}
    seen = identities(planned.plan.archive.files)
    sources = _describe_files(planned, tell)
    if not force and _is_done(id, where, options, sources):
        return open_dataset(planned.id, cache_dir=cache_dir)
    work = Conversion(
        id=id,
        reader=planned.reader,
        archive=planned.plan.archive,
        encoding=store,
        frames=frames,
        sources=sources,
        options=options,
        stated=about,
        seen=seen,
    )
    del planned  # it is large for millions of episodes, and the conversion makes its own
    with exclusive(place, id, tell):
        if (there := home.find(id, where)) is not None:
            logs.check_not_written(there)
        if force or not _is_done(id, where, options, sources):  # another process may have held the lock
            convert(work, place, jobs=jobs or 0, progress=tell)
    return open_dataset(str(id), cache_dir=cache_dir)


def _refuse_address(url: str, id: str) -> None:
    """Raise ArchiveError for an address, with the command that downloads what is there."""
    url = re.sub(r"^([a-z0-9+.-]+):/(?=[^/])", r"\1://", url)  # a Path has lost a slash
    if url.startswith("file:"):
        raise ArchiveError(f'"{url}" is an address; a path is expected.', hint=url.removeprefix("file://"))
    message = f'"{url}" is an address; only files on this machine can be imported.'
    known = ids.lerobot_id(url)
    if known or not url.startswith("http"):
        raise ArchiveError(message, hint=ids.address_hint(url))
    raise ArchiveError(
        message, hint=f"rlds download {url} --as {id} downloads the archive, and reads it as rlds import does"
    )


def stated(
    *, fps: float | None = None, license: str | None = None, description: str | None = None
) -> dict[str, dict[str, Any]]:
    """Return what a user states about a dataset, for ``env`` and ``facts`` of its manifest.

    Raises
    ------
    InvalidArgument
        ``fps`` is not a positive number, or a text is not a string.
    """
    return {"env": rate(fps), "facts": texts(license=license, description=description)}


def _refuse_dataset(path: Path) -> None:
    """Raise ArchiveError for a path in a dataset of rlds: it can be opened as it is."""
    found = next((p for p in (path, *path.parents) if locate.is_dataset(p)), None)
    if found is None:
        return
    id = manifest.read(found).id
    own = Home(settings.read().home).dataset(ids.parse(id))
    hint = f'open_dataset("{found}") and rlds inspect {found} read it where it is'
    copied = "" if own.exists() else f"; mkdir -p {own.parent} && cp -r {found} {own} makes it {id} here"
    raise ArchiveError(f"{found} is the dataset {id} already, and needs no import.", hint=hint + copied)


def _is_done(id: DatasetId, where: Settings, options: Mapping[str, Any], sources: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the same import was made before; raises NameTaken for another one."""
    there = home.find(id, where)
    if there and not _same(manifest.read(there), options, sources):
        raise NameTaken(
            f"{id} exists, made from other files or with other options.",
            hint=f"another name; --force to replace it; rlds append {id} FILES appends to it",
        )
    return there is not None


def expand(paths: Sequence[StrPath], *, most: int | None = None) -> tuple[Path, ...]:
    """Return the files that paths, directories and patterns stand for: absolute, in natural order, each once.

    Directories that cannot be read are skipped.

    Raises
    ------
    ArchiveError
        One of them stands for no file, or for more than ``most``.
    """
    from rlds_cli.text import natural

    found: dict[Path, None] = {}
    for given in paths:
        address = ids.address_hint(str(given))
        if address:
            raise ArchiveError(f'"{given}" is an address; only files on this machine can be imported.', hint=address)
        path = settings.expanded(given)
        matches = [path] if path.exists() else _matches(path)
        files = [f for m in matches for f in (_below(m, most) if m.is_dir() else [m] if m.is_file() else [])]
        data = [f.absolute() for f in files if not f.name.endswith(_NOT_DATA) and not is_unfinished(f.name)]
        if not data:
            raise ArchiveError(
                f"{given}: there is no such file, and no file matches.", hint=f"paths are relative to {Path.cwd()}"
            )
        found.update(dict.fromkeys(sorted(data, key=lambda f: natural(f.as_posix()))))
    return tuple(found)


def _matches(pattern: Path) -> list[Path]:
    try:
        return [Path(p) for p in glob.glob(str(pattern), recursive=True)]  # noqa: PTH207  (absolute patterns)
    except RecursionError:  # it calls itself for each directory
        raise ArchiveError(
            f"{pattern} matches directories that are nested too deeply.", hint="a pattern without **"
        ) from None


def _below(directory: Path, most: int | None) -> list[Path]:
    """Return all regular files below a directory, sorted, except those that vanish or cannot be read.

    Hidden files, and texts about the data, are left out.
    """
    found = trees.files(directory, most)
    if most is not None and len(found) > most:
        raise ArchiveError(
            f"{directory} holds more than {most:,} files: too many for one archive.",
            hint="name a directory that holds one archive and nothing else",
        )
    shown = [f for f in found if not _is_about(f.relative_to(directory))]
    return sorted(shown or found)


def _is_about(path: Path) -> bool:
    """Return whether a file is hidden, or a text about the data."""
    hidden = any(part.startswith(".") for part in path.parts)
    return hidden or path.suffix.lower() in _ABOUT or path.stem.lower() in _ABOUT_NAMES


def _with_left_out(plan: Plan, given: Archive) -> Plan:
    """Add notes about files that the reader left out to the archive: a second plan of it would not repeat them."""
    if plan.archive.files == given.files:
        return plan
    gone = tuple(n for n in plan.notes if n.code in _SKIPPED)
    return replace(plan, archive=replace(plan.archive, left_out=(*plan.archive.left_out, *gone)))


def _root(files: Sequence[Path]) -> Path:
    return Path(os.path.commonpath([f.parent for f in files]))


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
        raise InvalidArgument(
            f"--rewards arrive is for tables and files of episodes; {files[0].name} is read as {name}, "
            "which says what its rewards belong to.",
            hint="leave out --rewards",
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
    _blame_one(files)
    raise UnknownLayout(
        f"{files[0].name} has no layout that a reader recognises.", hint=f"rlds inspect {files[0]} shows what is in it"
    )


def _blame_one(files: Sequence[Path]) -> None:
    """Raise ArchiveError for the first file that no reader recognises, if one recognises most of the others."""
    most = recognise_most(files) if len(files) > 1 else None
    odd = next((f for f in files if most and not _is_known(f)), None)
    if most and odd is not None:
        raise ArchiveError(
            f"{odd.name} cannot be read like the other files ({most[0]}): it is damaged, or has another layout.",
            hint=f"--skip-bad leaves it out; rlds inspect {odd} shows what is in it",
        )


def _is_known(file: Path) -> bool:
    try:
        return recognise([file]) is not None
    except ArchiveError:
        return False


def _recognised(files: Sequence[Path], skip_bad: bool) -> tuple[str, str] | None:
    """Return the reader that recognises the files; with ``skip_bad``, the one that recognises most of them."""
    try:
        found = recognise(files)
    except ArchiveError:
        if not skip_bad:
            raise
        found = None
    return found or (recognise_most(files) if skip_bad and len(files) > 1 else None)


def _describe_files(planned: ImportPlan, tell: Progress) -> tuple[dict[str, Any], ...]:
    described, done = [], 0
    for i, file in enumerate(planned.files):
        size = file.stat().st_size
        name = planned.plan.archive.name_of(i)
        described.append({"file": name, "size": size, "sha256": sha256_of(file), "url": file.as_uri()})
        done += size
        tell(Event(planned.id, "verify", "", done, planned.bytes))
    return tuple(described)


def _same(there: Manifest, options: Mapping[str, Any], sources: Sequence[Mapping[str, Any]]) -> bool:
    from rlds_cli.store.finish import summarise_sources

    before, now = dict(there.archive), summarise_sources(sources)
    same = all(before.get(k) == now[k] for k in ("files", "bytes", "sha256"))  # the files may have moved
    return same and dict(there.options) == dict(options)


@dataclass(frozen=True, slots=True)
class FieldMapping:
    """The content of a mapping file: keys by field, the rule for episode ends, and the step of a row's reward."""

    fields: Mapping[str, str] = field(default_factory=dict)
    episodes_by: str | None = None
    rewards: str | None = None


def read(path: StrPath) -> FieldMapping:
    """Read a mapping file, TOML by its suffix, else JSON.

    Raises
    ------
    RldsError
        The file is missing, not JSON or TOML, or not a mapping.

    Examples
    --------
    >>> read("press.json")  # doctest: +SKIP
    FieldMapping(fields={'observation': 'state/q', 'action': 'cmd'}, episodes_by='field:trial', rewards=None)
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
        said: Any = tomllib.loads(text) if file.suffix == ".toml" else documents.loads(text)
    except (OSError, ValueError, RecursionError) as e:
        raise RldsError(f"{file} cannot be read as a mapping: {e}", hint='as in {"observation": "state/q"}') from e
    if not isinstance(said, dict):
        raise RldsError(f"{file} holds no mapping.", hint='as in {"observation": "state/q", "action": "cmd"}')
    fields = said.get("fields", {k: v for k, v in said.items() if k not in KEYS})
    rule, rewards = said.get("episodes_by"), said.get("rewards")
    odd = sorted(set(said) - set(KEYS)) if "fields" in said else []
    if odd or not isinstance(fields, dict) or not isinstance(rule, str | None) or not isinstance(rewards, str | None):
        raise RldsError(
            f"{file}: {', '.join(odd) or ', '.join(KEYS)} is not a valid entry.",
            hint=f"valid entries: {', '.join(KEYS)}",
        )
    wrong = [k for k, v in fields.items() if not isinstance(v, str)]
    if wrong:
        raise RldsError(f"{file}: {wrong[0]} is {fields[wrong[0]]!r}; the name of a key is expected.")
    return FieldMapping(fields, rule, rewards)
