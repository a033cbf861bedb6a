"""Import a user's own files, in any layout that a reader supports, as a dataset.

A mapping file assigns keys of the user's files to fields:

::

    {"fields": {"observation": "state/q", "action": "cmd"}, "episodes_by": "field:trial"}   JSON, or the same in TOML
    {"observation": "state/q", "action": "cmd"}                                             the fields alone
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote_from_bytes as quote

from rlds_cli import archives, homes
from rlds_cli.archives import Archive, Entry, Plan, ReaderName, plan_files, planner
from rlds_cli.base import ids, settings
from rlds_cli.base.files import bundles, child
from rlds_cli.base.files import json as documents
from rlds_cli.base.files.names import below
from rlds_cli.base.ids import DatasetId
from rlds_cli.base.progress import Event, Progress, shown
from rlds_cli.base.settings import Settings, StrPath
from rlds_cli.base.text import natural
from rlds_cli.dataset import Dataset, open_dataset
from rlds_cli.errors import InvalidArgument, InvalidId, NameTaken, RldsError, UnknownLayout, UnsafeArchive
from rlds_cli.homes import Home, exclusive
from rlds_cli.look import choose_files, files_to_import
from rlds_cli.make.convert import reading
from rlds_cli.make.convert.archive import Conversion, check_plan, convert, identities
from rlds_cli.make.convert.decoding import decoded_field
from rlds_cli.make.convert.stated import rate, texts
from rlds_cli.store import Facts, Manifest, StoredDataset
from rlds_cli.ted import Field

KEYS = ("fields", "episodes_by", "rewards")
_MOST_TRIED = 64  # folders in which a dataset is sought
_MOST_FILES = 100_000  # of one


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """The plan of an import.

    ``rows`` is the number of rows (T+1 per episode) if it is known in advance. ``episodes`` holds statistics as far as
    known: ``episodes``, ``steps``, ``shortest``, ``median``, ``longest`` and ``ends``. ``notes`` are remarks of the
    reader, ``account`` the fate of each file, and of each column, key, attribute and group in it. ``beside`` are the
    images and videos beside ``files`` that rows have; ``bytes`` is the size of both.
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
    account: tuple[Entry, ...]
    plan: Plan = field(repr=False)
    beside: tuple[Path, ...] = ()
    episodes: Mapping[str, Any] | None = None

    @property
    def array_bytes(self) -> int | None:
        """Bytes of all rows of the fields that are arrays; None if the number of rows is not known in advance."""
        return None if self.rows is None else self.rows * sum(f.row_bytes for f in self.fields if f.kind == "array")

    def stored(self, frames: str) -> ImportPlan:
        """Return the plan with the fields that `import_files` makes with ``frames``."""
        ids.frames_variant(frames)
        return replace(self, fields=tuple(decoded_field(f, frames) for f in self.fields))

    def summary(self) -> dict[str, Any]:
        """Return the plan as JSON values, without the reader's own plan."""
        return {n: getattr(self, n) for n in self.__slots__ if n != "plan"}


def plan_import(
    paths: StrPath | Sequence[StrPath],
    name: str,
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
    home: StrPath | None = None,
    progress: Progress | bool | None = None,
) -> ImportPlan:
    """Recognise files and plan their import. Reads no bulk data and writes nothing.

    Parameters
    ----------
    paths : path or paths
        Files, directories or glob patterns; several files are one archive, in natural order.
    name : str
        Id of the new dataset: ``local/NAME``.
    reader : str, optional
        The reader to use: a name, or ``FILE.py:NAME`` for one of your own, see docs/reference/writing-a-reader.md. By
        default the one that recognises the content.
    fields : mapping, optional
        Key of the archive for each TED field, as in ``{"observation": "state/q"}``, or a list of keys whose columns are
        joined.
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
    missing : {"fill", "drop", "refuse"}, optional
        What becomes of a field of tables, or of files and groups of an episode each, that some of them or some of
        their rows do not have: ``fill`` writes NaN, 0, False or no text there, and ``drop`` leaves the field out. By
        default it is refused, in words that name the file and the column.
    topics : sequence of str, optional
        Topics of recordings, or patterns of them; by default all. See docs/reference/recordings.md.
    hz : float, optional
        Steps per second of recordings; by default each message of the action makes a step.
    nearest : bool, optional
        Of each topic of a recording a step has the nearest message; by default the latest.
    episode_info : str, optional
        A pattern of files that describe episodes, JSON objects or texts of one line: ``labels/*.json``, relative to the
        folder of the data or one above it, where ``*`` stands for the name or the number of an episode. Files whose
        names or folders are those of an episode need none. See docs/reference/episode-info.md.
    fps, license, description, depth_unit : optional
        As in ``import_files``; a plan only checks them.
    home : path, optional
        The home, which is left out where the files are those of a directory around it.
    progress : callable or bool, optional
        As in ``import_files``; it is told which file is being read, while that takes long.

    Raises
    ------
    InvalidArgument
        ``rewards``, ``missing`` or ``hz`` is not valid, or the files are not tables or recordings.
    UnknownLayout
        No reader recognises the files; the hint is a command to try.
    ArchiveError
        The layout is known, but the files cannot be read.
    """
    stated(fps=fps, license=license, description=description, depth_unit=depth_unit)
    id = ids.parse(name)
    if id.family != "local":
        raise InvalidId(f"{id} cannot be imported: only ids of the family local can.", hint=f"--name local/{id.name}")
    Archive.check_options(rewards=rewards, missing=missing)
    named = None if reader is None else ReaderName(reader).resolved()
    with planner(id=str(id), progress=shown(progress)):
        chosen = files_to_import([paths] if isinstance(paths, str | os.PathLike) else paths, id, home=home)
        files = chosen.files
        options = Archive(
            _root(files),
            files,
            episodes_by,
            keys_of(fields),
            skip_bad,
            last_step,
            left_out=chosen.notes,
            beside=chosen.entries,
            rewards=rewards,
            missing=missing,
            topics=tuple(topics or ()),
            hz=None if hz is None else rate(hz)["fps"],
            nearest=bool(nearest),
            episode_info=episode_info,
        )
        try:
            found = plan_files(options, named)
        except UnknownLayout as e:
            given = [paths] if isinstance(paths, str | os.PathLike) else [*paths]
            folder = settings.expanded(given[0])
            if len(given) == 1 and folder.is_dir() and (several := _several(folder, options, named, e)):
                raise several from e
            raise
    plan = found.plan
    check_plan(plan, files, named)
    if found.reader != "plain" and options.may_lack:
        raise InvalidArgument(
            f"missing is for tables and files of an episode each; {files[0].name} is read as {found.reader}.",
            hint="leave out --missing",
        )
    if found.reader != "recordings" and (topics or hz is not None or nearest is not None):
        raise InvalidArgument(
            f"topics, hz and nearest are for recordings; {files[0].name} is read as {found.reader}.",
            hint="leave out --topics, --hz and --nearest",
        )
    more = _beside(plan, files if isinstance(paths, str | os.PathLike) or len(paths) == 1 else ())
    return ImportPlan(
        id=str(id),
        reader=found.reader,
        recognised=found.how,
        files=plan.archive.files,
        bytes=sum(map(bundles.size_of, (*plan.archive.files, *more))),
        episodes_by=plan.episodes_by,
        fields=plan.schema,
        rows=found.rows,
        facts=plan.facts,
        notes=found.notes,
        account=found.account,
        plan=plan,
        beside=more,
        episodes=plan.episode_summary.numbers() if plan.episode_summary else None,
    )


def _several(folder: Path, options: Archive, named: Any, whole: UnknownLayout) -> UnknownLayout | None:
    """Return the error that names the folders in a folder of which each can be imported by itself; None for no two.

    ``whole`` says why they are not one dataset.
    """
    waiting, found, tried = [folder], list[Path](), 0
    while waiting and tried < _MOST_TRIED:
        inner = [p for p in waiting.pop(0).iterdir() if p.is_dir() and not p.name.startswith(".")]
        for place in sorted(inner, key=lambda p: natural(p.name))[: _MOST_TRIED - tried]:
            tried += 1
            try:
                files = choose_files([place], most=_MOST_FILES).files
                plan_files(replace(options, root=_root(files), files=files, left_out=(), beside=()), named)
                found.append(place)
            except (RldsError, OSError):
                waiting.append(place)
    if len(found) < 2:
        return None
    said = ", ".join(p.relative_to(folder).as_posix() for p in found)
    count = f"{len(found)} datasets or more" if tried == _MOST_TRIED else f"{len(found)} datasets"
    error = UnknownLayout(
        f"{folder} holds {count}, each in a folder of its own: {said}. They are not one: {whole.message}",
        hint=f"rlds import {shlex.quote(str(found[0]))} --name local/NAME",
    )
    error.folders = tuple(found)
    return error


def is_recognised(paths: Sequence[StrPath]) -> bool:
    """Return whether a reader recognises files, also where it cannot plan to read them."""
    try:
        return archives.is_recognised(choose_files(paths).files)
    except RldsError:
        return False


def import_files(
    paths: StrPath | Sequence[StrPath],
    name: str,
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
    storage: Literal["memmap", "zarr"] = "memmap",
    frames: str = "encoded",
    jobs: int | None = None,
    force: bool = False,
    home: StrPath | None = None,
    progress: Progress | bool | None = None,
) -> Dataset:
    """Convert a user's own files into the dataset ``local/NAME``; the files stay where they are.

    Repeating the same import returns at once. For the parameters see ``plan_import`` and ``rlds_cli.download``;
    ``fps``, ``license``, ``description`` and ``depth_unit`` are those of ``rlds_cli.create``, and come before what the
    files say.

    Raises
    ------
    InvalidArgument
        ``fps`` is not a positive number, or a text is not a string.
    NameTaken
        The id exists, and was made of other files or with other options.
    """
    tell = shown(progress)
    ids.frames_variant(frames)
    about = stated(fps=fps, license=license, description=description, depth_unit=depth_unit)
    keys = keys_of(fields)
    how: dict[str, Any] = {"reader": reader, "fields": keys, "episodes_by": episodes_by, "skip_bad": skip_bad}
    how |= {"last_step": last_step, "rewards": rewards, "missing": missing}
    how |= {"topics": topics, "hz": hz, "nearest": nearest, "episode_info": episode_info}
    with child.reading(reading.__name__, id=str(ids.parse(name)), progress=tell):
        planned = plan_import(paths, name, **how, home=home)
        where = settings.read(home)
        place, id = Home(where.home), ids.parse(planned.id)
        options: dict[str, Any] = {"fields": keys, "episodes_by": episodes_by}
        options |= {"storage": storage, "frames": frames}
        options |= {"skip_bad": True} if skip_bad else {}
        given: dict[str, Any] = {
            "last_step": last_step,
            "rewards": rewards,
            "missing": missing,
            "fps": fps,
            "license": license,
            "description": description,
            "depth_unit": depth_unit,
        }
        given |= {"topics": [*topics] if topics else None, "hz": hz, "nearest": nearest}
        given |= {"episode_info": episode_info}
        options |= {n: v for n, v in given.items() if v}
        seen = identities(planned.files, planned.beside)
        sources = _describe_files(planned, tell)
        made_by = (ReaderName(planned.reader).recorded, ReaderName(planned.reader).source())
        if not force and _is_done(id, where, made_by, options, sources):
            return open_dataset(planned.id, home=home)
        work = Conversion(
            id=id,
            reader=planned.reader,
            archive=planned.plan.archive,
            beside=planned.beside,
            account=planned.account,
            plan=planned.plan,
            encoding=storage,
            frames=frames,
            sources=sources,
            options=options,
            stated=about,
            seen=seen,
        )
        del planned
        with exclusive(place, id, tell):
            if (there := homes.path_of(id, where)) is not None:
                StoredDataset(there).check_not_written()
            if force or not _is_done(id, where, made_by, options, sources):  # another process may have held the lock
                convert(work, place, jobs=jobs or 0, progress=tell)
    return open_dataset(str(id), home=home)


def stated(
    *,
    fps: float | None = None,
    license: str | None = None,
    description: str | None = None,
    depth_unit: str | None = None,
) -> dict[str, dict[str, Any]]:
    """Return what a user states about a dataset, for ``env`` and ``facts`` of its manifest.

    Raises
    ------
    InvalidArgument
        ``fps`` is not a positive number, a text is not a string, or ``depth_unit`` not a unit.
    """
    Facts.check_unit(depth_unit)
    return {"env": rate(fps), "facts": texts(license=license, description=description, depth_unit=depth_unit)}


def keys_of(fields: Mapping[str, str | Sequence[str]] | None) -> dict[str, str]:
    """Return the key of each field as text: a list of keys, whose columns are joined, as ``[x, y]``.

    Raises
    ------
    InvalidArgument
        A key is neither a text nor a list of texts.
    """
    keys: dict[str, str] = {}
    for name, key in (fields or {}).items():
        if isinstance(key, list | tuple) and key and all(isinstance(k, str) for k in key):
            key = f"[{', '.join(key)}]"
        if not isinstance(key, str):
            raise InvalidArgument(f"{name} is {key!r}; the name of a key is expected, or a list of names.")
        keys[name] = key
    return keys


def _is_done(
    id: DatasetId,
    where: Settings,
    made_by: tuple[str, str],
    options: Mapping[str, Any],
    sources: Sequence[Mapping[str, Any]],
) -> bool:
    """Return whether the same import was made before; raises NameTaken for another one."""
    there = homes.path_of(id, where)
    if there and not _same(Manifest.read(there), made_by, options, sources):
        raise NameTaken(
            f"{id} exists, made from other files, with other options or by another reader.",
            hint=f"another name; --force to replace it; rlds append {id} FILES appends to it",
        )
    return there is not None


def _root(files: Sequence[Path]) -> Path:
    return Path(os.path.commonpath({os.path.dirname(f) for f in files}))  # noqa: PTH120  (of thousands)


def _beside(plan: Plan, given: Sequence[Path]) -> tuple[Path, ...]:
    """Return the files that are read beside those of the archive, by its account, in natural order.

    ``given`` are files that may be among them, in that order: making and sorting thousands of paths again takes long.
    """
    root, read = plan.archive.root, {plan.archive.name_of(i) for i in range(len(plan.archive.files))}
    files = {} if plan.account is None else plan.account.files
    beside = {name for name, fate in files.items() if fate.used_as and name not in read}
    if out := sorted(name for name in beside if name.startswith("/") or (".." in name and ".." in name.split("/"))):
        raise UnsafeArchive(f"{plan.archive.files[0]}: the plan to read it names another file, {out[0]}.")
    start = f"{root}/"
    known = {name: path for path in given if (name := os.fspath(path).removeprefix(start)) in beside}
    if len(known) == len(beside):
        return tuple(known.values())
    return tuple(root / name for name in sorted(beside, key=natural))


def _describe_files(planned: ImportPlan, tell: Progress) -> tuple[dict[str, Any], ...]:
    """Describe the files of the archive, and behind them, since episodes name files by number, those beside them."""
    described, done, root = list[dict[str, Any]](), 0, planned.plan.archive.root
    above = root.as_uri().rstrip("/")
    files = (*planned.files, *planned.beside)
    for file, (size, sha256) in zip(files, bundles.contents_of(files), strict=True):
        name = below(file, root)
        described.append({"file": name, "size": size, "sha256": sha256, "url": f"{above}/{quote(os.fsencode(name))}"})
        done += size
        tell(Event(planned.id, "verify", "", done, planned.bytes))
    return tuple(described)


def _same(
    there: Manifest, made_by: tuple[str, str], options: Mapping[str, Any], sources: Sequence[Mapping[str, Any]]
) -> bool:
    as_now = (there.reader, there.reader_source) == made_by and dict(there.options) == dict(options)
    return as_now and there.is_made_of(sources)


@dataclass(frozen=True, slots=True)
class FieldMapping:
    """The content of a mapping file: keys by field, the rule for episode ends, and the step of a row's reward."""

    fields: Mapping[str, str] = field(default_factory=dict)
    episodes_by: str | None = None
    rewards: str | None = None


def read_mapping(path: StrPath) -> FieldMapping:
    """Read a mapping file, TOML by its suffix, else JSON.

    Raises
    ------
    RldsError
        The file is missing, not JSON or TOML, or not a mapping.

    Examples
    --------
    >>> read_mapping("press.json")  # doctest: +SKIP
    FieldMapping(fields={'observation': 'state/q', 'action': 'cmd'}, episodes_by='field:trial', rewards=None)
    """
    import tomllib  # slow to import, for files that few have

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
    try:
        return FieldMapping(keys_of(fields), rule, rewards)
    except InvalidArgument as e:
        raise RldsError(f"{file}: {e.message}") from e
