"""What lies beside an episode and describes it, a JSON object or a text of one line: columns of the episode table.

::

    ep_3.npz       ep_3.json, ep_3_lang.txt       of the episode by name
    ep_3/data.h5   ep_3/meta.json, ep_3/lang.txt  of the episode by folder, in which one file of data lies
    demo.h5        demo.json: {"episodes": [{"episode_id": 0, ...}, ...]}    of the groups of a file, by number
    any            labels/*.json                  of what ``*`` is the name or the number of: --episode-info

`taken` finds the files before a reader sees them, `told` adds them to its plan, and `completed` to what it reads. Keys
of nested objects are joined by ``/``, and by ``_`` in names of columns. What is not a single value is metadata. What
the data say themselves goes before.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from rlds_cli.archives import beside, tasks
from rlds_cli.archives.account import COLUMN, METADATA, Entry, Fate, Ledger, left_out, used_as
from rlds_cli.archives.formats.camera_files import is_media
from rlds_cli.archives.formats.inventory import KEY
from rlds_cli.archives.readers import Archive, InfoFile, Plan
from rlds_cli.archives.tasks import MAX_TEXT, episode_column
from rlds_cli.base.array_types import Array
from rlds_cli.base.files import json as documents
from rlds_cli.errors import CorruptArchive, InvalidEpisode, UnknownLayout
from rlds_cli.ted import TASK, Chunk, EpisodeTable, Note, Scalar, Subtasks

FACT = "episode_info"  # in the facts of a plan: the key of each column
SEED, OPTIONS = "seed", "options"  # TED's own columns, and members of the object that resets an environment
RESET, EPISODES, ENVIRONMENT = "reset_kwargs", "episodes", "env_info"
_OWN = {f"{RESET}/{SEED}": SEED, f"{RESET}/{OPTIONS}": OPTIONS}
_IDS = ("episode_id", "episode_index", "id", "name", "episode")  # of an object in a list: the first that it has
_WORDS = (*tasks.NAMES, "lang", "language", "prompt")  # names of the text that says what an episode is about
# Lists of sub-tasks, of AgiBot World and of the user's own, and the members of an object in them.
_LISTS = (Subtasks.COLUMN, "action_config")
_INTERVAL = (("first", "stop", "text"), ("start_frame", "end_frame", "action_text"))
_TEXT = "text"  # the key of a text that is called as its episode
_MOST = 256  # columns of an object; of one with more, those of its own members
_MOST_NAME = 100  # bytes of the name of a column
_EXACT = 1 << 53
_NUMBER, _WORD = re.compile(r"(\d+)(?!.*\d)"), re.compile(r"[0-9A-Za-z]+")
_MOST_WORDS = 32  # of a name that are looked at
OF_NO_EPISODE = "no episode has its name, or lies alone in its folder"
OF_SEVERAL = "several episodes lie in its folder, and none has its name"
NOTHING, AGAIN = "it has no value", "the data, or another file beside them, say it"
MIXED, UNNAMED = "it is of several types", "it has no name that a column can have beside the others"
BAD = "its episode is left out"


# -- which file describes which


def taken(archive: Archive) -> Archive:
    """Move the files that describe episodes by name, by folder or by the user's pattern from ``files`` to ``info``.

    Raises
    ------
    UnknownLayout
        No file fits the pattern, or one that fits names no file of the archive.
    """
    apart = _apart(archive)
    data = _Data([path for path in archive.files if path not in apart and not is_media(path)], archive.root)
    found = {one.path: one for one in map(data.owner, apart) if one and read(one.path) is not None}
    found |= {one.path: one for one in _stated(archive, data)} if archive.episode_info else {}
    rest = tuple(path for path in archive.files if path not in found)
    return replace(archive, files=rest, info=tuple(found.values())) if found and data.files else archive


def data_alone(archive: Archive) -> Archive:
    """Leave out all files that describe others and not an episode, for readers of data alone."""
    apart = _apart(archive)
    names = [path.relative_to(archive.root).as_posix() for path in apart]
    entries = tuple(Entry.of_files(name, 1, left_out=OF_NO_EPISODE) for name in names)
    rest = tuple(path for path in archive.files if path not in apart)
    return replace(archive, files=rest, beside=(*archive.beside, *entries))


def _apart(archive: Archive) -> dict[Path, None]:
    return dict.fromkeys(path for path in archive.files if not is_media(path) and beside.is_description(path))


class _Data:
    """The files of data of an archive, by their folders and names."""

    def __init__(self, files: Sequence[Path], root: Path) -> None:
        self.files, self.root = files, root
        self._near: dict[Path, list[Path]] = {}
        self._stems: dict[tuple[Path | None, str], list[Path]] = {}  # by folder, and None for any
        for f in files:
            self._near.setdefault(f.parent, []).append(f)
            for stem in {f.stem, _stem(f)}:
                self._stems.setdefault((f.parent, stem), []).append(f)
                self._stems.setdefault((None, stem), []).append(f)

    def owner(self, path: Path) -> InfoFile | None:
        """Find the file that another describes: by name, best in its own folder, or because it is alone there."""
        near = self._near.get(path.parent, [])
        parts = _parts(path.stem) if near else [path.stem]
        named = next((hits for part in parts if (hits := self._stems.get((path.parent if near else None, part)))), [])
        if named or not near:
            return InfoFile(path=path, of=named[0]) if len(named) == 1 else None
        return InfoFile(path=path, of=near[0], alone=True) if len(near) == 1 else None

    @cached_property
    def _called(self) -> tuple[dict[str, list[Path]], dict[str, list[Path]]]:
        names, numbers = dict[str, list[Path]](), dict[str, list[Path]]()
        for f in self.files:
            for found, said in ((names, _names(f, self.root)), (numbers, _numbers(f, self.root))):
                for name in said:
                    found.setdefault(name, []).append(f)
        return names, numbers

    def named(self, path: Path, said: Sequence[str]) -> InfoFile:
        """Find the file that what stands for the stars of a pattern is the name of, or else the number."""
        if not said:
            owner = self.owner(path)
            return owner if owner and len(self.files) > 1 else InfoFile(path=path, of=None)
        names, numbers = self._called
        hits: list[Path] = []
        for found, called in ((names, {*said}), (numbers, {n for text in said for n in _number_of(text)})):
            hits = [*dict.fromkeys(f for name in sorted(called) for f in found.get(name, ()))]
            if len(hits) == 1:
                return InfoFile(path=path, of=hits[0])
        if len(self.files) == 1:
            return InfoFile(path=path, of=None, member=said[-1])
        raise UnknownLayout(
            f"{path.relative_to(self.root).as_posix()}: {'/'.join(said)!r} is the name or the number of "
            f"{'several files' if hits else 'no file'} of {len(self.files):,}, such as "
            f"{self.files[0].relative_to(self.root).as_posix()}.",
            hint="rename it, or give a pattern whose * stands for the name of an episode",
        )


def _stem(path: Path) -> str:
    return path.name.partition(".")[0] or path.name


def _parts(name: str) -> list[str]:
    """Return the parts of a name that no letter or digit continues, the longest first: of ``ep_3_meta`` ``ep_3``."""
    at = [m.span() for m in _WORD.finditer(name)][:_MOST_WORDS]
    found = {name[a:b] for k, (a, _) in enumerate(at) for _, b in at[k:]}
    return sorted({name, *found}, key=lambda part: (-len(part), part))


def _stated(archive: Archive, data: _Data) -> Iterator[InfoFile]:
    """Find the files of the user's pattern, which is relative to folders of the data and those above them."""
    pattern = str(archive.episode_info)
    parts = PurePosixPath(pattern).parts
    if not parts or PurePosixPath(pattern).is_absolute() or ".." in parts:
        raise UnknownLayout(
            f'episode_info="{pattern}" is not a pattern of files below the folder of the data.',
            hint="--episode-info 'labels/*.json', where * is the name or the number of an episode",
        )
    shape = re.compile("([^/]*)".join(map(re.escape, re.split(r"\*+", pattern))))
    known, found = {*data.files}, dict[Path, InfoFile]()
    for folder in dict.fromkeys(d for f in data.files for d in f.parents if d.is_relative_to(archive.root)):
        for path in sorted(folder.glob(pattern)):
            if path.is_file() and path not in found and path not in known:
                at = shape.fullmatch(path.relative_to(folder).as_posix())
                found[path] = data.named(path, at.groups() if at else ())
    if not found:
        raise UnknownLayout(
            f'episode_info="{pattern}" fits no file in {archive.root}.',
            hint="the pattern is relative to the folder of the data, or to one above it that was named",
        )
    if bad := next((path for path in found if read(path) is None), None):
        raise UnknownLayout(f"{bad.name} is neither a JSON object, nor a text of one line.")
    yield from found.values()


def _names(file: Path, root: Path) -> set[str]:
    """Return what a file is called: by its path, its name, and its folder if that has a name of its own."""
    path = file.relative_to(root)
    return {path.as_posix(), path.with_suffix("").as_posix(), path.name, path.stem, _stem(path), *path.parts[-2:-1]}


def _numbers(file: Path, root: Path) -> set[str]:
    """Return the last number in the name of a file, or else of its folder."""
    path = file.relative_to(root)
    return next((found for name in (_stem(path), *path.parts[-2:-1]) if (found := _number_of(name))), set())


def _number_of(name: str) -> set[str]:
    """Return the last number in a name, as it stands there and without zeros."""
    found = _NUMBER.search(name)
    return {found[1], str(int(found[1]))} if found else set()


# -- what a file says


def read(path: Path) -> Mapping[str, Any] | None:
    """Read what a file says as an object; that of a text of one line has one member. None for other files."""
    try:
        stat = path.stat()
        return _read(path, (stat.st_mtime_ns, stat.st_size)) if stat.st_size <= documents.LONGEST else None
    except (OSError, ValueError):
        return None


@lru_cache(1 << 4)  # of an episode, or of all episodes of a file
def _read(path: Path, state: tuple[int, int]) -> Mapping[str, Any] | None:
    text = path.read_text(encoding="utf-8-sig")
    if path.suffix.lower() == ".txt":
        line = text.strip()
        return {"": line} if line and len(line.splitlines()) == 1 and len(line) <= MAX_TEXT else None
    if path.suffix.lower() != ".json":
        return None
    said = documents.loads(text)
    said = {EPISODES: said} if isinstance(said, list) else said
    return said if isinstance(said, dict) and said else None


def _key_of_line(one: InfoFile) -> str:
    """Return the key of a text: the name of its file without that of the episode and numbers at its end."""
    stem = one.path.stem if one.of is None else one.path.stem.replace(_stem(one.of), "")
    return re.sub(r"[\W_\d]+$", "", stem).strip("_-. ") or _TEXT


def _objects(one: InfoFile) -> Mapping[str, Mapping[str, Any]]:
    """Return the objects of a file by the names of episodes; the name of one that is of all is empty."""
    said = read(one.path) or {}
    listed = said.get(EPISODES)
    if [*said] == [""]:
        return {one.member: {_key_of_line(one): said[""]}}
    if isinstance(listed, list) and listed and all(isinstance(o, dict) for o in listed):
        return {
            next((str(o[key]) for key in _IDS if isinstance(o.get(key), int | str)), str(k)): o
            for k, o in enumerate(listed)
        }
    if one.of is None and not one.member and said and all(isinstance(o, dict) for o in said.values()):
        return said
    return {one.member: said}


def _rest(one: InfoFile) -> Mapping[str, Any]:
    """Return what a file says beside the objects of episodes."""
    said = read(one.path) or {}
    return {} if "" in _objects(one) or EPISODES not in said else {k: v for k, v in said.items() if k != EPISODES}


@dataclass(frozen=True, slots=True)
class Singles:
    """The single values of an object by key, and what is none."""

    values: Mapping[str, Scalar]
    other: Mapping[str, Any]


def singles(said: Mapping[str, Any]) -> Singles:
    """Return the single values of an object and of those in it; the object that resets an environment is TED's own."""
    values: dict[str, Scalar] = {}
    other: dict[str, Any] = {}
    reset = said.get(RESET)
    if isinstance(reset, dict):
        seed, options = reset.get(SEED), reset.get(OPTIONS)
        seed = seed[0] if isinstance(seed, list) and len(seed) == 1 else seed
        more = {k: v for k, v in reset.items() if k not in (SEED, OPTIONS)}
        more |= {SEED: seed} if SEED in reset else {}
        more |= {OPTIONS: json.dumps(options, sort_keys=True)} if options else {}
        said = {**said, RESET: more}
    for key, value in _leaves(said, ""):
        if (intervals := _intervals(key, value)) is not None:
            values[key] = intervals
        elif is_single(value):
            values[key] = value
        else:
            other[key] = value
    if len(values) > _MOST:
        other |= {key: value for key, value in values.items() if "/" in key}
        values = {key: value for key, value in values.items() if "/" not in key}
    return Singles(values, other)


def _intervals(key: str, value: Any) -> str | None:
    """Return a list of sub-tasks as `Subtasks`; None for other values, which are not called so."""
    if not _is_list_of_subtasks(key) or not isinstance(value, list) or not value:
        return None
    for members in _INTERVAL:
        if all(isinstance(o, dict) and o.keys() >= {*members} for o in value):
            value = [[o[name] for name in members] for o in value]
    if not all(isinstance(o, list) and len(o) == len(_INTERVAL[0]) for o in value):
        return None
    return str(Subtasks.of(value, key))


def _is_list_of_subtasks(key: str) -> bool:
    return key.rpartition("/")[2] in _LISTS


def _leaves(value: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    for name, inner in value.items():
        if isinstance(inner, dict):
            yield from _leaves(inner, f"{above}{name}/")
        else:
            yield f"{above}{name}", inner


def is_single(value: Any) -> bool:
    """Tell whether the episode table can hold a value of JSON; null is none."""
    if isinstance(value, str):
        return len(value) <= MAX_TEXT and not any("\ud800" <= c <= "\udfff" for c in value)
    return value is None or isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 1 << 63)


# -- columns


@dataclass(slots=True)
class _Seen:
    """The values of all episodes: their keys with the types of each, and the keys of what is not a single value."""

    kinds: dict[str, set[type]] = field(default_factory=dict)
    large: set[str] = field(default_factory=set)  # keys of whole numbers that a float cannot hold
    other: dict[str, None] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, said: Mapping[str, Any]) -> None:
        found = singles(said)
        for key, value in found.values.items():
            self.kinds.setdefault(key, set()).update(() if value is None else {type(value)})
            self.large.update([key] if type(value) is int and abs(value) > _EXACT else ())
        self.other |= dict.fromkeys(found.other)
        self.counts.update((*found.values, *found.other))

    def is_mixed(self, key: str) -> bool:
        kinds = self.kinds[key]
        return len(kinds) > 1 and (kinds != {int, float} or key in self.large)


def column_of(key: str) -> str:
    """Return the column of a key: the task, TED's own of a reset, or one of the user's."""
    if _is_list_of_subtasks(key):
        return Subtasks.COLUMN
    return TASK if key in _WORDS else _OWN.get(key) or episode_column(key)


def told(plan: Plan) -> Plan:
    """Add to a reader's plan what the files beside its own say of the episodes."""
    infos = plan.archive.info
    if not infos or FACT in plan.facts or plan.account is None:
        return plan
    used = {one.path: one for one in _used(plan)}
    seen = _Seen()
    for one in used.values():
        for name, said in _objects(one).items():
            try:
                seen.add(said)
            except InvalidEpisode as e:
                of = f", {name}" if name else ""
                raise CorruptArchive(f"{one.path.name}{of}: {e.message}", hint=e.hint) from e
    uses = {use for e in plan.account.things for use in e.used_as}
    uses |= {COLUMN + TASK} if plan.task is not None else set()
    columns, fates = _columns(seen, uses)
    account = Ledger()
    for key in seen.counts:
        account.add(KEY, key, fates[key], seen.counts[key])
    files = dict(plan.account.files)
    for one in infos:
        name = one.path.relative_to(plan.archive.root).as_posix()
        if one.path not in used:
            files[name] = left_out(OF_SEVERAL if one.alone else BAD)
            continue
        keys = {key for said in _objects(one).values() for key in singles(said).values}
        uses_of = [use for key in columns.values() if key in keys for use in fates[key].used_as]
        uses_of += [METADATA] if any(True for _ in _metadata(one, name)) else []
        files[name] = used_as(*uses_of) if uses_of else left_out(AGAIN)
        for key in _rest(one):
            account.add(KEY, key, used_as(METADATA))
    things = (*plan.account.things, *account.account().things)
    env = plan.env or next((found for one in used.values() if (found := _environment(one))), {})
    made = replace(plan.account, files=files, things=things)
    return replace(plan, account=made, env=env, facts={**plan.facts, FACT: columns} if columns else plan.facts)


def _columns(seen: _Seen, uses: set[str]) -> tuple[dict[str, str], dict[str, Fate]]:
    """Return the key of each column, and the fate of each key; ``uses`` are what the data are used as."""
    columns, fates = dict[str, str](), {key: used_as(METADATA) for key in seen.other}
    taken_names = {use.removeprefix(COLUMN).lower() for use in uses if use.startswith(COLUMN)}
    for key in seen.kinds:
        name = column_of(key)
        if key in fates:
            fates[key] = left_out(MIXED)
        elif not seen.kinds[key]:
            fates[key] = left_out(NOTHING)
        elif seen.is_mixed(key) or (name in (TASK, OPTIONS) and seen.kinds[key] != {str}):
            fates[key] = left_out(MIXED)
        elif name.lower() in taken_names:
            fates[key] = left_out(AGAIN)
        elif not name.strip("._") or len(name.encode("utf-8", "replace")) > _MOST_NAME or not is_single(name):
            fates[key] = left_out(UNNAMED)
        elif name == SEED and seen.kinds[key] != {int}:
            fates[key] = left_out(MIXED)
        else:
            taken_names.add(name.lower())
            columns[name], fates[key] = key, used_as(name if key in _OWN else COLUMN + name)
    return columns, fates


def _used(plan: Plan) -> list[InfoFile]:
    """Return the files of what is read: those that only their folder assigns, if each file is one episode."""
    read_files, each = {*plan.archive.files}, _is_episode_each(plan)
    return [one for one in plan.archive.info if one.of is None or (one.of in read_files and (each or not one.alone))]


def _is_episode_each(plan: Plan) -> bool:
    """Tell whether each file of a plan is one episode."""
    count = len(plan.archive.files)
    if plan.episode_summary is not None:
        return len(plan.episode_summary.lengths) == count
    groups = [g for p in plan.parts for g in p.args.get("groups", ())]
    return len(groups) == count if groups else plan.episodes_by == "file"


def _environment(one: InfoFile) -> Mapping[str, Any]:
    """Return the environment that a file names."""
    said = _rest(one).get(ENVIRONMENT)
    known = isinstance(said, dict) and isinstance(said.get("env_id"), str)
    return {"id": said["env_id"], "args": said} if known and isinstance(said, dict) else {}


def metadata(plan: Plan) -> Iterator[tuple[str, Array | str]]:
    """Yield what is not a single value, with the name of its file before its key: arrays of numbers, else JSON."""
    for one in _used(plan):
        yield from _metadata(one, one.path.relative_to(plan.archive.root).as_posix())


def _metadata(one: InfoFile, name: str) -> Iterator[tuple[str, Array | str]]:
    if rest := _rest(one):
        yield name, json.dumps(rest, sort_keys=True)
    for member, said in _objects(one).items():
        above = f"{name}/{member}" if member and not one.member else name
        for key, value in singles(said).other.items():
            yield f"{above}/{key}", _array(value)


def _array(value: Any) -> Array | str:
    """Return the numbers of a list of lists as an array, and anything else as JSON."""
    try:
        found = np.asarray(value)
    except ValueError:
        return json.dumps(value)
    return found if found.dtype.kind in "biuf" else json.dumps(value)


# -- reading


def completed(chunks: Iterator[Chunk], plan: Plan) -> Iterator[Chunk]:
    """Add the columns to the episodes that end in each chunk."""
    columns: Mapping[str, str] = plan.facts[FACT]
    lookup = _Lookup(plan)
    for chunk in chunks:
        table, missing = chunk.episodes, 0
        values: dict[str, list[Scalar]] = {name: [] for name in columns}
        for source, group in zip(table.source.tolist(), table.group, strict=True):
            said = lookup.of(source, group)
            missing += not said
            for name, key in columns.items():
                values[name].append(said.get(key))
        text = "episodes have no values in the files that describe the others"
        notes = (Note("episode-info", text, missing),) if missing else ()
        yield Chunk(chunk.columns, chunk.last, _with(table, values), (*chunk.notes, *notes))


def _with(table: EpisodeTable, values: dict[str, list[Any]]) -> EpisodeTable:
    seeds, options = values.pop(SEED, table.seed), values.pop(OPTIONS, table.options)
    seeds = [None if seed is None or seed < 0 else seed for seed in seeds]
    return replace(table, seed=seeds, options=options, extra={**table.extra, **values})


class _Lookup:
    """Finds what files say of an episode, by its file and group; episodes come file by file."""

    def __init__(self, plan: Plan) -> None:
        self._archive = plan.archive
        used = _used(plan)
        self._of_all = [_objects(one) for one in used if one.of is None]
        self._infos: dict[Path, list[InfoFile]] = {}
        for one in used:
            if one.of is not None:
                self._infos.setdefault(one.of, []).append(one)
        self._last: Path | None = None
        self._of_file: list[Mapping[str, Mapping[str, Any]]] = []

    def of(self, source: int, group: str) -> Mapping[str, Scalar]:
        """Return the single values by key; of two files that say a thing, the first counts."""
        file, root = self._archive.files[source], self._archive.root
        if file != self._last:
            self._last, self._of_file = file, [*map(_objects, self._infos.get(file, ()))]
        groups = _of_group(group) if group else ()
        files = () if group else (*sorted(_names(file, root)), *sorted(_numbers(file, root)))
        found: dict[str, Scalar] = {}
        for objects, called in (
            (o, c) for of, c in ((self._of_file, groups), (self._of_all, (*groups, *files))) for o in of
        ):
            said = objects.get("") if "" in objects else next((objects[n] for n in called if n in objects), None)
            found = {**singles(said).values, **found} if said is not None else found
        return found


def _of_group(group: str) -> tuple[str, ...]:
    name = group.rpartition("/")[2]
    return (group, name, *sorted(_number_of(name)))
