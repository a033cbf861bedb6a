"""Find entries of the package's registry, and of those of a user's own, by id, alias, words or glob.

Entries of own registries (`registry.own`) follow those of the package in every list and search.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any

from rlds_cli.base import ids, refs, settings, visible
from rlds_cli.base.ids import DatasetId
from rlds_cli.base.text import closest, plural, screen, similar
from rlds_cli.errors import UnknownDataset
from rlds_cli.registry import facts, package
from rlds_cli.registry.facts import OWN, Entry, Family

if TYPE_CHECKING:
    from rlds_cli.registry.own import Registry


def families(name: str | None = None) -> tuple[Family, ...]:
    """Return the families of the package, sorted by name, then those of own registries; or those called ``name``."""
    own = () if name in package.facts_of_families() else _names_of_own_families()
    return (
        *(package.family(n) for n in sorted(package.facts_of_families()) if name in (None, n)),
        *(_own_family(n) for n in own if name in (None, n)),
    )


def _names_of_families() -> tuple[str, ...]:
    """Return the names of `families`, without counting their entries."""
    return (*sorted(package.facts_of_families()), *_names_of_own_families())


def _names_of_own_families() -> list[str]:
    return sorted({f for r in own_registries() for f in r.families})


def entries(family: str) -> tuple[Entry, ...]:
    """Return the entries of one family, in the order of its file; empty for an unknown family."""
    if family in package.facts_of_families():
        return package.entries(family)
    return tuple(e for r in own_registries() for e in r.entries if e.family == family)


def own_registries() -> tuple[Registry, ...]:
    """Return the registries of the user's own, as they are now; see `registry.own`."""
    where = settings.read()
    if not where.registries and not (where.home / OWN).is_dir():
        return ()
    from rlds_cli.registry.own import OwnRegistries  # 10 ms to import, and few have any

    return OwnRegistries(where).read()


def is_own(id: str) -> bool:
    """Return whether an id may be described by a user: its family is not one of the package."""
    return id.partition("/")[0].lower() not in package.facts_of_families()


def is_new(id: str) -> bool:
    """Return whether only a registry of a user's own can list an id."""
    return is_own(id) and not id.lower().startswith(f"{ids.LOCAL}/")


class Entries(list[Entry]):
    """A list of entries, which shows their ids."""

    def __repr__(self) -> str:
        return screen(plural(len(self), "dataset"), [e.id for e in self])


def search(
    query: str = "", *, family: str | None = None, present: Sequence[DatasetId] = (), local: bool = False
) -> Entries:
    """Search the registry as `homes.find` does, which says what ``query``, ``family`` and ``local`` are.

    ``present`` are datasets on this disk, without variants. Those that the registry does not list follow its entries.
    """
    wanted = family.lower() if family else None
    if wanted is not None:
        _check_family(str(family), {id.family for id in present})
    here = {str(id).lower(): id.family.lower() for id in present}
    looked_at = {*here.values()} if local else {*_names_of_families()}
    names = [name for name in _names_of_families() if name in looked_at and wanted in (None, name)]
    known = [e for name in names for e in entries(name) if not local or e.id.lower() in here]
    added = [e for e in _unregistered(present) if wanted in (None, e.family)]
    words = query.lower().split()
    found = [e for e in (*known, *added) if _matches(e, words)]
    return Entries(sorted(found, key=lambda e: _rank(e, words)))


def get(ref: str) -> Entry:
    """Return the entry of an id, in any case and with any variant, of an alias, or of a name without its family.

    A name without its family (``hopper-medium-v2``, Minari's ``D4RL/door/human-v2``) must be unique among families.

    Raises
    ------
    UnknownDataset
        With the nearest ids as a hint.

    Examples
    --------
    >>> get("DAPG(expert)/door_v2d-v1").id
    'roboset/dapg-expert/door_v2d-v1'
    """
    found = known(ref)
    if found is None:
        raise UnknownDataset(f'"{ref}" is not in the registry{_problem(_name(ref))}.', hint=_hint(_name(ref)))
    return found


def described(id: str, line: Mapping[str, Any]) -> Entry | None:
    """Return the entry that a line of a manifest, a lock file or a request describes.

    None if the package has the family of the id: then only its registry says what the dataset is.
    """
    return facts.entry_of(line) if is_own(id) else None


def _problem(name: str) -> str:
    """Say why an own registry does not have a name: a line that is not valid, or a registry that cannot be read."""
    found = own_registries() if is_own(name) and not name.lower().startswith(f"{ids.LOCAL}/") else ()
    lines = [p for r in found for p in r.problems if f": {name.lower()}: " in p.lower()]
    unread = [p for r in found for p in r.problems if not r.entries]
    return "".join(f": {p}" for p in [*lines, *unread][:1])


def listed(ref: str) -> Entry | None:
    """Return the entry as `get` does, or None for a dataset without a line of its own in the registry."""
    return known(ref, unlisted=False)


def known(ref: str, *, unlisted: bool = True) -> Entry | None:
    """Return the entry as `get` does, or None; those that no line describes only if ``unlisted``.

    An id costs reading the file of its family, a user's own dataset none, an alias all of them.
    """
    name = _name(ref)
    key = name.lower()
    family = key.partition("/")[0]
    if family == ids.LOCAL:
        return None
    if family in package.facts_of_families() and (found := package.by_id(family).get(key)):
        return found
    found = (
        package.by_name().get(key) or (package.unlisted(name) if unlisted else None) or package.by_name_alone().get(key)
    )
    return found or (_own_index().get(key) if family not in package.facts_of_families() else None)


def _name(ref: str) -> str:
    return ref.strip().partition("@")[0].rstrip("/")


def _own_index() -> Mapping[str, Entry]:
    from rlds_cli.registry.own import OwnRegistries

    return OwnRegistries().index()


def match(ref: str) -> list[Entry]:
    """Return the entries of an id, an alias, or a glob such as ``d4rl/hopper-*-v2``, without closed sources for globs.

    Raises
    ------
    UnknownDataset
        Nothing matches, or nothing that can still be downloaded.
    """
    if not refs.is_glob(ref):
        return [get(ref)]
    pattern = ref.lower()
    known = chain(package.every(), (e for r in own_registries() for e in r.entries))
    found = [e for e in known if any(fnmatchcase(n, pattern) for n in e.names)]
    usable = [e for e in found if e.status != "closed"]
    if not found:
        raise UnknownDataset(f'"{ref}" matches no dataset of the registry.', hint=_hint(re.sub(r"[*?\[\]]+", "", ref)))
    if not usable:
        raise UnknownDataset(f'All {len(found)} datasets that "{ref}" matches are closed.', hint=_instead(found[0]))
    return usable


def suggest(ref: str, count: int = 3, among: Iterable[str] = ()) -> list[str]:
    """Return the ids nearest to ``ref``, best first: those with all its words, then those with a similar spelling.

    ``among`` adds ids to those of the registry.
    """
    from difflib import SequenceMatcher  # 3 ms, and only messages of errors need it

    known = {n: e.id for n, e in (*_own_index().items(), *package.by_name().items())} | {i.lower(): i for i in among}
    key = ref.lower().partition("@")[0]
    words = _words(key)
    holding = [n for n in known if words and all(w in n for w in words)]
    if not holding and "/" not in key:
        holding = _spelt(words, known)
    of_families = tuple(f"{name}/" for name in _names_of_families())
    tails = {n.partition("/")[2]: n for n in known if n.startswith(of_families)}
    spelt = similar(key, known, count)
    by_tail = [tails[t] for t in similar(key, tails, count)]
    asked = _version(key)

    def nearness(name: str) -> tuple[float, str, bool, float]:
        stem = name.removesuffix(f"-v{_version(name)}")
        return -SequenceMatcher(None, key, stem).ratio(), stem, _version(name) != asked, -_version(name)

    holding.sort(key=nearness)  # of versions the one that was asked for, then the newest
    ranked = [*holding, *spelt, *by_tail] if "/" in key else [*holding, *by_tail, *spelt]
    return list(dict.fromkeys(known[n] for n in ranked))[:count]


def _version(name: str) -> int:
    """Return the version at the end of a name, as in ``hopper-medium-v2``; -1 without one."""
    found = re.search(r"-v(\d{1,9})$", name)
    return int(found[1]) if found else -1


def _words(text: str) -> list[str]:
    return [w for w in re.split(r"[^a-z0-9.+*?\[\]]+", text) if w]


def _spelt(words: Sequence[str], known: Iterable[str]) -> list[str]:
    """Return the names that have all of the words, each in the spelling that names have."""
    of = {n: set(_words(n)) for n in known}
    spelling = {w for found in of.values() for w in found}
    meant = [w if w in spelling else closest(w, spelling, 0.75) for w in words]
    return [n for n, found in of.items() if meant and all(w in found for w in meant)]


def did_you_mean(ref: str, among: Iterable[str] = ()) -> str | None:
    """Return a hint for an unknown id, or None if no known id comes near."""
    key = ref.lower().strip("/")
    if key in _names_of_families():
        return f"that is a family: rlds list --family {key} shows its datasets, '{key}/*' selects all of them"
    near = suggest(ref, among=among)
    return f"did you mean {', '.join(near)}?" if near else None


def _own_family(name: str) -> Family:
    found = entries(name)
    closed = sum(e.status == "closed" for e in found)
    places = dict.fromkeys(r.source.place for r in own_registries() if name in r.families)
    return Family(name, f"of {', '.join(map(visible.shown, places))}", "", len(found) - closed, closed, 1.0)


def _unregistered(present: Sequence[DatasetId]) -> Iterator[Entry]:
    """Make entries for the datasets on this disk that the registry does not list."""
    may_be_listed = any(id.family != ids.LOCAL for id in present)
    known = {**package.by_name(), **_own_index()} if may_be_listed else {}
    for id in present:
        if str(id).lower() not in known:
            yield package.unlisted(str(id)) or Entry(id=str(id), family=id.family, format="")


def _matches(entry: Entry, words: list[str]) -> bool:
    names = entry.names
    return all(any(fnmatchcase(n, w) if refs.is_glob(w) else w in n for n in names) for w in words)


def _rank(entry: Entry, words: Sequence[str]) -> int:
    """Return the place of a match: the family that is named, then whole words of a name, then parts of words."""
    if len(words) == 1 and words[0] == entry.family:
        return 0
    whole = {w for name in entry.names for w in _words(name)}
    return 1 if all(refs.is_glob(w) or whole.issuperset(_words(w)) for w in words) else 2


def _check_family(family: str, present: Collection[str]) -> None:
    known = {*_names_of_families(), ids.LOCAL, *present}
    if family.lower() not in known:
        near = closest(family.lower(), known)
        hint = f"{near or ', '.join(sorted(known))}? rlds list shows all"
        raise UnknownDataset(f'There is no family "{family}".', hint=hint)


@cache
def _hint(name: str) -> str:
    """Return a hint for an unknown name. It is cached, since a page asks for the same dataset several times."""
    fallback = "rlds list shows all datasets; rlds import PATH --name local/NAME imports files of your own"
    address = ids.address_hint(name)
    if address:
        return address
    if "#" in name:
        return "versions are those of a dataset on this disk or at an address: rlds log ID|ADDRESS"
    own = name.lower().startswith(f"{ids.LOCAL}/")  # never in the registry
    return fallback if own else did_you_mean(name) or fallback


def _instead(entry: Entry) -> str:
    return f"{entry.replaced_by} has taken its place" if entry.replaced_by else "rlds list --all shows why"
