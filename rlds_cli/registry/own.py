"""Registries of a user's own: files of JSON lines, directories of such files, and addresses of them.

``RLDS_REGISTRY`` names some, and ``rlds registry add`` notes others in the home::

    <home>/registries/list.json       sources and prefixes, in the order in which they were added
    <home>/registries/<hash>.jsonl    the kept copy of a registry at an address
    <home>/registries/<hash>.json     its address, its sha256, when it was fetched, and why the last attempt failed

A line has the keys of the package's registry. Its id belongs to a family that the package does not have. A line that is
not valid is left out, and reported as a problem. The package's names always come first: no line can replace an id of
the package or be an alias of one.

A registry at an address is fetched again when its copy is older than a day. If that fails, the copy is used.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from rlds_cli.base import ids, settings
from rlds_cli.base.files import json as documents
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.settings import Settings
from rlds_cli.base.text import natural
from rlds_cli.base.visible import shown
from rlds_cli.errors import InvalidId, RldsError, TransferError
from rlds_cli.registry import check, facts, package
from rlds_cli.registry.facts import Entry

VARIABLE = "RLDS_REGISTRY"
STALE = 86_400.0  # seconds after which a copy is fetched again: registries change by hand
_AGAIN = 3_600.0  # seconds after a failed attempt, if there is a copy
_SOON = 60.0  # the same without one
_MOST = 10_000  # lines of a registry: each command reads them all, in 65 µs each
_PROBLEMS = 5  # in one message


@dataclass(frozen=True, slots=True)
class RegistrySource:
    """Where a registry is: a path or an address, the prefix of its ids, and who named it."""

    place: str
    prefix: str | None = None
    named_by: Literal["RLDS_REGISTRY", "rlds registry add"] = "rlds registry add"

    @property
    def remote(self) -> bool:
        """True for an address."""
        return "://" in self.place and not self.place.startswith("file:")


@dataclass(frozen=True, slots=True)
class Registry:
    """A registry of a user's own, as it was read.

    ``problems`` name the lines that were left out, or say why the whole registry cannot be read. For one at an address,
    ``fetched`` is when its copy came (seconds since 1970), ``sha256`` its hash, and ``failed`` why it is not newer.
    """

    source: RegistrySource
    entries: tuple[Entry, ...] = ()
    problems: tuple[str, ...] = ()
    sha256: str | None = None
    fetched: float | None = None
    failed: str | None = None

    @property
    def families(self) -> tuple[str, ...]:
        """Names of the families of its entries."""
        return tuple(dict.fromkeys(e.family for e in self.entries))


# -- the list


class OwnRegistries:
    """The registries of a user's own: those that ``RLDS_REGISTRY`` names, then those that were added."""

    def __init__(self, where: Settings | None = None) -> None:
        self.where = where or settings.read()

    def sources(self) -> tuple[RegistrySource, ...]:
        """Return where the registries are."""
        named = [RegistrySource(place, None, "RLDS_REGISTRY") for place in self.where.registries]
        return (*named, *(s for s in _added(self.where) if s.place not in {n.place for n in named}))

    def read(self) -> tuple[Registry, ...]:
        """Read all of them. An id that two of them have belongs to the first; the other one reports it."""
        return _load(self.where).registries

    def index(self) -> Mapping[str, Entry]:
        """Map names in lower case to entries: ids, aliases, and names without a family that only one entry has."""
        return _load(self.where).index

    def add(self, place: str, *, prefix: str | None = None) -> Registry:
        """Note a registry in the home, after reading all of it. The same place again replaces the prefix.

        Parameters
        ----------
        place : str
            A file of JSON lines, a directory of ``*.jsonl`` files, or an ``http(s)://`` address of such a file.
        prefix : str, optional
            Family of all ids: ``press`` and ``lab/press`` both become ``lab/press``.

        Raises
        ------
        RldsError
            It cannot be read, or one of its lines is not valid; the message names the lines. Nothing is noted.
        """
        where = self.where
        source = _source(place, prefix)
        before = [s for s in _added(where) if s.place != source.place]
        found = self.examine(place, prefix=prefix)
        taken = {e.id.lower(): r for r in self.read() if r.source.place != source.place for e in r.entries}
        twice = [
            f"{e.id} is also in {taken[e.id.lower()].source.place}" for e in found.entries if e.id.lower() in taken
        ]
        if problems := (*found.problems, *twice):
            raise RldsError(
                f"{shown(source.place)} was not added. {_first(problems)}",
                hint=f"rlds registry check {shown(source.place)} prints every problem, a line each",
            )
        if source.remote:
            _fetch(source, where)
        _write([*before, source], where)
        return found

    def remove(self, place: str) -> RegistrySource:
        """Forget a registry that was added, and the copy of one at an address; datasets stay.

        Raises
        ------
        RldsError
            It was not added.
        """
        where = self.where
        found = next((s for s in _added(where) if s.place in (place, _absolute(place))), None)
        if found is None:
            named = any(s.place in (place, _absolute(place)) for s in self.sources())
            how = (
                f"{VARIABLE} names it: change the variable"
                if named
                else "rlds registry list shows those that were added"
            )
            raise RldsError(f"{shown(place)} was not added.", hint=how)
        _write([s for s in _added(where) if s.place != found.place], where)
        for path in _copy(found, where):
            path.unlink(missing_ok=True)
        return found

    def refresh(self) -> tuple[Registry, ...]:
        """Fetch all registries at an address again.

        Raises
        ------
        TransferError
            One cannot be fetched, after all others were; its copy stays.
        """
        where = self.where
        failed: list[TransferError] = []
        for source in self.sources():
            if source.remote:
                try:
                    _fetch(source, where)
                except TransferError as e:
                    failed.append(e)
        if failed:
            raise failed[0]
        return self.read()

    def examine(self, place: str, *, prefix: str | None = None, readers: Sequence[str] | None = None) -> Registry:
        """Read a registry that need not be added, for ``rlds registry check``; writes nothing.

        Raises
        ------
        TransferError
            It is at an address, and cannot be fetched.
        """
        source, where = RegistrySource(_absolute(place), prefix), self.where
        if not source.remote:
            return _read_one(source, where, readers=readers)
        entries, wrong = _entries([_Text(shown(place), _get(place, where))], source, readers)
        return Registry(source, tuple(entries), tuple(wrong))


def _added(where: Settings) -> tuple[RegistrySource, ...]:
    values = (documents.load_own(_directory(where) / "list.json") or {}).get("registries")
    listed = [v for v in values if isinstance(v, dict)] if isinstance(values, list) else []
    return tuple(
        RegistrySource(v["place"], v.get("prefix"))
        for v in listed
        if isinstance(v.get("place"), str) and isinstance(v.get("prefix"), str | None)
    )


def _write(found: Sequence[RegistrySource], where: Settings) -> None:
    directory = safe_files.directory(_directory(where), where.home)
    listed = [{"place": s.place} | ({"prefix": s.prefix} if s.prefix else {}) for s in found]
    documents.save_own(directory / "list.json", {"registries": listed})


def _source(place: str, prefix: str | None) -> RegistrySource:
    if prefix is not None:
        try:
            wrong = ids.parse(f"{prefix}/x").family != prefix
        except InvalidId:
            wrong = True
        if wrong:
            raise InvalidId(
                f'"{prefix}" is not the name of a family.', hint="lower-case letters, digits, `_` and `-`: --prefix lab"
            )
    if "://" in place and shown(place) != place:
        raise RldsError(
            f"{shown(place)} holds a user, a token or a parameter that may be one, which would be kept on the disk.",
            hint=f"~/.netrc is the place for users; {VARIABLE} may name such an address",
        )
    return RegistrySource(_absolute(place), prefix)


def _absolute(place: str) -> str:
    """Return a place as it means the same in every directory."""
    if place.startswith("file://"):
        place = place.removeprefix("file://")
    return place if "://" in place else str(settings.expanded(place).absolute())


# -- reading


@dataclass(frozen=True, slots=True)
class _Text:
    """The content of a file of a registry, and what begins messages about it."""

    name: str
    content: bytes


@dataclass(frozen=True, slots=True)
class _Loaded:
    """All registries as they were read last, and their entries by name."""

    read: tuple[Registry, ...] = ()
    registries: tuple[Registry, ...] = ()
    index: Mapping[str, Entry] = field(default_factory=dict)


_loaded = [_Loaded()]
_read: dict[tuple[RegistrySource, Path], tuple[object, Registry]] = {}  # what was read last, and the state of its files


def _load(where: Settings) -> _Loaded:
    """Read all registries. The registry of the package is read only if there are any."""
    named = OwnRegistries(where).sources()
    if not named:
        return _Loaded()
    read = tuple(_remembered(source, where) for source in named)
    known = _loaded[0]
    if len(read) != len(known.read) or any(a is not b for a, b in zip(read, known.read, strict=True)):
        registries = _without_clashes(read)
        _loaded[0] = known = _Loaded(read, registries, _by_name(registries))
    return known


def _by_name(registries: Sequence[Registry]) -> dict[str, Entry]:
    entries = [e for r in registries for e in r.entries]
    tails = [e.id.lower().partition("/")[2] for e in entries]
    alone = {t for t, count in Counter(tails).items() if count == 1 and t not in package.reserved().names}
    short = {t: e for t, e in zip(tails, entries, strict=True) if t in alone}
    return short | {name: e for e in entries for name in e.names}


def _without_clashes(read: Sequence[Registry]) -> tuple[Registry, ...]:
    found: list[Registry] = []
    taken: dict[str, str] = {}
    for registry in read:
        source = registry.source
        kept, wrong = [], list(registry.problems)
        for entry in registry.entries:
            clash = next((n for n in entry.names if n in taken), None)
            if clash is None:
                kept.append(entry)
            else:
                wrong.append(f"{shown(source.place)}: {entry.id}: {clash} is in {taken[clash]}, too")
        for entry in kept:
            taken |= dict.fromkeys(entry.names, shown(source.place))
        found.append(replace(registry, entries=tuple(kept), problems=tuple(wrong)))
    return tuple(found)


def _remembered(source: RegistrySource, where: Settings) -> Registry:
    if source.remote:
        _refresh(source, where)
    state = _state(source, where)
    known = _read.get((source, where.home))
    if known is None or known[0] != state:
        known = (state, _read_one(source, where))
        _read[source, where.home] = known
    return known[1]


def _state(source: RegistrySource, where: Settings) -> object:
    """Return names, sizes and times of the files of a registry, which differ after a write."""
    paths = _copy(source, where) if source.remote else _files(Path(_absolute(source.place)))
    found = []
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            continue
        found.append((path, status.st_size, status.st_mtime_ns, status.st_ino))
    return found


def _read_one(source: RegistrySource, where: Settings, *, readers: Sequence[str] | None = None) -> Registry:
    """Read one registry, or the copy of one at an address; lines that are not valid become problems."""
    about: dict[str, Any] = {}
    if source.remote:
        copy, description = _copy(source, where)
        about = documents.load_own(description) or {}
        texts, wrong = _content([copy], shown(source.place))
        if wrong:
            why = about.get("failed") or "there is no copy of it, and network access is off"
            wrong = [f"{shown(source.place)}: {why}"]
    else:
        path = Path(_absolute(source.place))
        files = _files(path)
        texts, wrong = _content(files) if files else ([], [f"{path}: the directory holds no *.jsonl file"])
        if wrong and source.named_by == VARIABLE:
            wrong = [f"{w}; {VARIABLE} names it, and separates several registries by commas" for w in wrong]
    entries, more = _entries(texts, source, readers)
    fetched, sha256, failed = map(about.get, ("fetched", "sha256", "failed"))
    return Registry(
        source,
        tuple(entries),
        (*wrong, *more),
        sha256 if isinstance(sha256, str) else None,
        fetched if isinstance(fetched, int | float) else None,
        failed if isinstance(failed, str) else None,
    )


def _files(path: Path) -> list[Path]:
    try:
        return sorted(path.glob("*.jsonl"), key=lambda p: natural(p.name)) if path.is_dir() else [path]
    except OSError:
        return [path]


def _content(paths: Iterable[Path], name: str | None = None) -> tuple[list[_Text], list[str]]:
    found, wrong = [], []
    for path in paths:
        try:
            with path.open("rb") as file:
                found.append(_Text(name or str(path), documents.read(file, longest=check.LONGEST)))
        except OSError as e:
            wrong.append(f"{name or path}: it cannot be read ({e.strerror})")
        except ValueError as e:
            wrong.append(f"{name or path}: {e}")
    return found, wrong


def _entries(
    texts: Sequence[_Text], source: RegistrySource, readers: Sequence[str] | None
) -> tuple[list[Entry], list[str]]:
    lines: list[tuple[str, check.Line]] = []
    wrong: list[str] = []
    if (count := sum(text.content.count(b"\n") for text in texts)) > _MOST:
        return [], [f"{shown(source.place)}: {count:,} lines are too many; at most {_MOST:,} are read"]
    for text in texts:
        parsed, odd = check.parse(text.content, text.name)
        wrong += odd
        lines += [(f"{text.name}:{number}", _prefixed(line, source.prefix)) for number, line in parsed]
    known = {line["id"] for _, line in lines if isinstance(line.get("id"), str)}
    found: list[Entry] = []
    taken: dict[str, str] = {}
    for at, line in lines:
        problems = list(_problems(line, known, taken, readers, local=not source.remote))
        if problems:
            wrong += [f"{at}: {line['id']}: {p}" if isinstance(line.get("id"), str) else f"{at}: {p}" for p in problems]
            continue
        entry = facts.entry_of(line)
        taken |= dict.fromkeys(entry.names, entry.id)
        found.append(entry)
    return found, sorted(wrong, key=natural)


def _prefixed(line: check.Line, prefix: str | None) -> check.Line:
    """Put the ids of a line below a family, unless they are."""
    if prefix is None:
        return line
    below = {k: line[k] for k in ("id", "replaced_by") if isinstance(line.get(k), str)}
    return line | {k: v if v.startswith(f"{prefix}/") else f"{prefix}/{v}" for k, v in below.items()}


def _problems(
    line: check.Line,
    known: Collection[str],
    taken: Mapping[str, str],
    readers: Sequence[str] | None,
    *,
    local: bool,
) -> Iterator[str]:
    if odd := list(check.types(line)):
        yield from odd
        return
    yield from _id(line["id"])
    if "defects" in line:
        yield "defects are codes that the package explains; notes takes a text"
    yield from check.entry(line, known, readers)
    yield from check.own_places(line, local=local)
    family = line["id"].partition("/")[0]
    for alias in line.get("aliases", ()):
        head = alias.lower().partition("/")[0]
        name = next((n for n in (alias.lower(), f"{family}/{alias}".lower()) if n in package.reserved().names), None)
        if name is not None or head in (*package.reserved().families, ids.LOCAL):
            meant = package.reserved().names[name] if name is not None else f"the family {head}"
            yield f"the alias {alias!r} is a name of {meant}, in the package"
    for name in _names(line):
        if name in taken:
            yield f"{name} is already a name of {taken[name]}"


def _names(line: check.Line) -> Iterator[str]:
    family = line["id"].partition("/")[0]
    yield line["id"].lower()
    yield from (n.lower() for a in line.get("aliases", ()) for n in (a, f"{family}/{a}"))


def _id(id: str) -> Iterator[str]:
    try:
        parsed = ids.parse(id)
    except InvalidId as e:
        yield f"{e.message} family/name is expected, as in lab/press; --prefix lab puts ids below lab/"
        return
    if parsed.variant:
        yield "an id names no variant"
    if parsed.family == ids.LOCAL:
        yield "the family local is for imports and datasets made here; another family is expected, as in lab/press"
    elif parsed.family in package.reserved().families:
        yield f"{parsed.family} is a family of the package; another one is expected: --prefix lab makes lab/{id} of it"
    elif id.lower() in package.reserved().names:
        yield f"it is a name of {package.reserved().names[id.lower()]}, in the package"


def _first(problems: Sequence[str]) -> str:
    more = f" And {len(problems) - _PROBLEMS:,} more." if len(problems) > _PROBLEMS else ""
    return f"{'; '.join(problems[:_PROBLEMS])}.{more}"


# -- registries at an address


def _refresh(source: RegistrySource, where: Settings) -> None:
    """Fetch a registry whose copy is missing or older than a day; a failure is noted beside the copy."""
    copy, description = _copy(source, where)
    about = documents.load_own(description) or {}
    now = time.time()
    fetched, tried = (v if isinstance(v, int | float) else 0.0 for v in map(about.get, ("fetched", "tried")))
    there = copy.exists()
    pause = 0.0 if not about.get("failed") else _AGAIN if there else _SOON
    if where.offline or (there and 0 <= now - fetched < STALE) or 0 <= now - tried < pause:
        return
    try:
        _fetch(source, where)
    except (RldsError, OSError) as e:
        why = e.message if isinstance(e, RldsError) else str(e)
        try:
            safe_files.directory(_directory(where), where.home)
            documents.save_own(description, {**about, "place": shown(source.place), "tried": now, "failed": why})
        except (RldsError, OSError):  # a home that may not be written: the next command tries again
            return


def _fetch(source: RegistrySource, where: Settings) -> None:
    """Fetch a registry, and keep it if at least one line of it is valid, or there was none before."""
    content = _get(source.place, where)
    copy, description = _copy(source, where)
    entries, wrong = _entries([_Text(shown(source.place), content)], source, None)
    if wrong and not entries:
        raise TransferError(f"{shown(source.place)} is not a registry. {_first(wrong)} The copy here is unchanged.")
    safe_files.directory(copy.parent, where.home)
    with safe_files.replacing(copy, mode=0o600) as file:
        file.write(content)
    about = {"place": shown(source.place), "sha256": hashlib.sha256(content).hexdigest(), "fetched": time.time()}
    documents.save_own(description, about)


def _get(url: str, where: Settings) -> bytes:
    from rlds_cli.base.http.client import Client, RetryPolicy
    from rlds_cli.base.http.connections import Permanent
    from rlds_cli.errors import DownloadFailed, Offline

    if where.offline:
        raise Offline(f"{shown(url)} is on the network, which is off (RLDS_OFFLINE or --offline).")
    if urlsplit(url).scheme.lower() not in ("http", "https"):
        raise DownloadFailed(
            f"{shown(url)} is not an address of a registry.", hint="a file, a directory, or https://HOST/lab.jsonl"
        )
    if url.partition("?")[0].endswith("/"):
        raise DownloadFailed(
            f"{shown(url)} names a directory of a web server.", hint="the address of a file: https://HOST/lab.jsonl"
        )
    policy = RetryPolicy(attempts=2, connect=5.0, read=10.0, idle=15.0)
    with Client(where, policy=policy) as client:
        try:
            content, _ = client.document(url)
        except Permanent as exc:
            raise DownloadFailed(f"{shown(url)} could not be fetched: {exc.reason}.") from exc
    if len(content) > check.LONGEST:
        raise DownloadFailed(f"{shown(url)} has {len(content):,} bytes, which are too many for a registry.")
    if content.lstrip()[:1] == b"<":
        raise DownloadFailed(f"{shown(url)} answered a web page and not a registry.", hint=_page_hint(url))
    return content


def _page_hint(url: str) -> str:
    raw = url.replace("/blob/", "/raw/", 1)
    return f"its raw form: {raw}" if raw != url else "the address of the file itself: https://HOST/lab.jsonl"


def _directory(where: Settings) -> Path:
    return where.home / facts.OWN


def _copy(source: RegistrySource, where: Settings) -> tuple[Path, Path]:
    """Return the path of the kept copy of a registry at an address, and of its description."""
    name = hashlib.sha256(source.place.encode()).hexdigest()[:24]
    return _directory(where) / f"{name}.jsonl", _directory(where) / f"{name}.json"
