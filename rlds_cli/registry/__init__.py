"""What datasets there are: entries of ``registry/``, found by id, alias, words or glob. Data only, nothing heavy.

::

    registry/families.json     facts that hold for a whole family: licence, citation, defects by code, open hub location
    registry/<family>.jsonl    one dataset a line; keys in the order of ENTRY_KEYS
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from rlds_cli import ids, settings
from rlds_cli.errors import InvalidId, UnknownDataset
from rlds_cli.home import Home
from rlds_cli.ids import DatasetId
from rlds_cli.registry.records import Defect, Entry, Family, File
from rlds_cli.settings import Settings, StrPath

LOCAL = "local"

_HERE = Path(__file__).parents[1]
# In the order in which a line holds them.
ENTRY_KEYS = (
    *("id", "aliases", "urls", "tree", "suffix", "files", "size", "sha256"),
    *("env_id", "eval_env_id", "max_episode_steps", "ref_min_score", "ref_max_score"),
    *("num_steps", "num_episodes", "observation", "action", "algorithm", "author"),
    *(
        "format",
        "episodes_by",
        "last_step",
        "status",
        "replaced_by",
        "defects",
        "licence",
        "paper",
        "citation",
        "notes",
    ),
)


def directory() -> Path:
    """Where the registry lies: beside the package in a checkout, inside it when installed from a wheel."""
    installed = _HERE / "_registry"
    return installed if installed.is_dir() else _HERE.parent / "registry"


@cache
def families() -> tuple[Family, ...]:
    """All families, sorted by name."""
    return tuple(_family(name, facts) for name, facts in sorted(_facts().items()))


def entries(family: str) -> tuple[Entry, ...]:
    """The entries of one family, in the order of its file; none for a family that the registry does not have."""
    return _entries(family) if family in _facts() else ()


def find(
    query: str = "", *, family: str | None = None, local: bool = False, cache_dir: StrPath | None = None
) -> list[Entry]:
    """Search the registry, and what is here without being in it.

    Parameters
    ----------
    query : str
        Words; an entry is found when its id or an alias holds all of them, whatever their case. A glob is matched
        against the whole id.
    family : str, optional
        Only this one; ``local`` for imported and created datasets.
    local : bool
        Only datasets that are here.
    cache_dir : path, optional
        A home instead of ``RLDS_HOME``.

    Returns
    -------
    list of Entry
        Closed sources included; see ``Entry.status``.

    Raises
    ------
    UnknownDataset
        No such family.

    Examples
    --------
    >>> [e.id for e in find("hopper medium expert", family="d4rl")][-1]
    'd4rl/hopper-medium-expert-v2'
    """
    present = here(settings.read(cache_dir))
    _check_family(family, present)
    wanted = family.lower() if family else None
    known = [e for f in families() if wanted in (None, f.name) for e in entries(f.name)]
    strangers = [e for e in _strangers(present) if wanted in (None, e.family)]
    words = query.lower().split()
    return [e for e in (*known, *strangers) if _matches(e, words) and (not local or e.id.lower() in present)]


def get(ref: str) -> Entry:
    """The entry of an id, whatever its case and variant, of an alias, or of a name without its family.

    A name without its family (``hopper-medium-v2``, Minari's ``D4RL/door/human-v2``) is understood where only one
    family has it.

    Raises
    ------
    UnknownDataset
        With the nearest ids as a hint.

    Examples
    --------
    >>> get("DAPG(expert)/door_v2d-v1").id
    'roboset/dapg-expert/door_v2d-v1'
    """
    name = ref.strip().partition("@")[0].rstrip("/")
    found = _index().get(name.lower()) or _unlisted(name) or _without_family().get(name.lower())
    if found is None:
        raise UnknownDataset(f'"{ref}" is not in the registry.', hint=_hint(name))
    return found


def listed(ref: str) -> Entry | None:
    """The entry that `get` gives, or None; only what has a line of its own in the registry."""
    name = ref.strip().partition("@")[0].rstrip("/").lower()
    return _index().get(name) or _without_family().get(name)


def match(ref: str) -> list[Entry]:
    """The entries of an id, an alias, or a glob such as ``d4rl/hopper-*-v2``; a glob leaves closed sources out.

    Raises
    ------
    UnknownDataset
        Nothing matches, or nothing that can still be downloaded.
    """
    if not is_glob(ref):
        return [get(ref)]
    pattern = ref.lower()
    found = [e for e in _all() if any(fnmatchcase(n, pattern) for n in e.names)]
    usable = [e for e in found if e.status != "closed"]
    if not found:
        raise UnknownDataset(f'"{ref}" matches no dataset of the registry.', hint=_hint(re.sub(r"[*?\[\]]+", "", ref)))
    if not usable:
        raise UnknownDataset(f'All {len(found)} datasets that "{ref}" matches are closed.', hint=_instead(found[0]))
    return usable


def suggest(ref: str, count: int = 3, among: Iterable[str] = ()) -> list[str]:
    """The ids nearest to ``ref``, best first: those that hold all its words, then those spelt alike.

    ``among`` names more ids than the registry's own.
    """
    known = {n: e.id for n, e in _index().items()} | {i.lower(): i for i in among}
    key = ref.lower().partition("@")[0]
    words = [w for w in re.split(r"[\s/_-]+", key) if w]
    holding = [n for n in known if words and all(w in n for w in words)]
    tails = {n.partition("/")[2]: n for n in known if n.startswith(tuple(f"{f}/" for f in _facts()))}
    spelt = difflib.get_close_matches(key, known, count, 0.6)
    by_tail = [tails[t] for t in difflib.get_close_matches(key, tails, count, 0.6)]
    holding.sort(key=lambda n: (-difflib.SequenceMatcher(None, key, n).ratio(), n))
    ranked = [*holding, *spelt, *by_tail] if "/" in key else [*holding, *by_tail, *spelt]
    return list(dict.fromkeys(known[n] for n in ranked))[:count]


def did_you_mean(ref: str, among: Iterable[str] = ()) -> str | None:
    """A hint for an id that is not known, or None when nothing comes near."""
    key = ref.lower().strip("/")
    if key in _facts():
        return f"that is a family: rlds list --family {key} shows it, '{key}/*' stands for all of it"
    near = suggest(ref, among=among)
    return f"did you mean {', '.join(near)}?" if near else None


def is_glob(ref: str) -> bool:
    """Whether ``ref`` holds ``*``, ``?`` or ``[``."""
    return any(c in ref for c in "*?[")


def here(where: Settings) -> dict[str, list[tuple[DatasetId, Path]]]:
    """What lies in the homes: lower-case base id -> (id, directory) of it and its variants, own home first."""
    present: dict[str, list[tuple[DatasetId, Path]]] = {}
    for root in where.homes:
        for id, path in Home(root).datasets():
            present.setdefault(str(id.base).lower(), []).append((id, path))
    return present


@cache
def _facts() -> Mapping[str, Any]:
    facts: Mapping[str, Any] = json.loads((directory() / "families.json").read_text(encoding="utf-8"))
    return facts


def lines(family: str) -> Iterator[dict[str, Any]]:
    """The lines of a family's file, as JSON objects."""
    with (directory() / f"{family}.jsonl").open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def _family(name: str, facts: Mapping[str, Any]) -> Family:
    closed = sum(e.status == "closed" for e in _entries(name))
    listed = {k: tuple(facts[k]) for k in ("revisions", "only") if k in facts}
    facts = {**facts, **listed, "defects": _defects(facts)}
    return Family(name=name, num_entries=len(_entries(name)) - closed, num_closed=closed, **facts)


def _defects(facts: Mapping[str, Any]) -> Mapping[str, Defect]:
    found = facts.get("defects", {}).items()
    return {c: Defect(c, d["text"], tuple(d["refs"]), tuple(d.get("shows_as", ()))) for c, d in found}


@cache
def _entries(family: str) -> tuple[Entry, ...]:
    common = _common(family)
    defects = _defects(_facts()[family])
    return tuple(_entry(line, common, defects) for line in lines(family))


def _common(family: str) -> dict[str, Any]:
    """What every entry of a family takes over from it."""
    keys = ("format", "expansion", "episodes_by", "licence", "paper", "homepage", "host", "citation")
    facts = _facts()[family]
    return {"family": family, "only": tuple(facts.get("only", ()))} | {k: v for k, v in facts.items() if k in keys}


def _entry(line: dict[str, Any], common: Mapping[str, Any], defects: Mapping[str, Defect]) -> Entry:
    urls, sha256 = line.pop("urls", ()), line.pop("sha256", None)
    if urls:
        files: tuple[File, ...] = (File(urls[0].rpartition("/")[2], tuple(urls), line.get("size"), sha256),)
    else:
        files = tuple(File(**{**f, "urls": tuple(f["urls"])}) for f in line.pop("files", ()))
    if files and all(f.size is not None for f in files):
        line["size"] = sum(f.size or 0 for f in files)
    for key in ("tree", "aliases"):
        line[key] = tuple(line.get(key, ()))
    line["tree"] = _revisions(line["tree"], common["family"])
    line["defects"] = tuple(defects[c] for c in line.get("defects", ()))
    return Entry(files=files, **{**common, **line})


def _all() -> Iterator[Entry]:
    for name in sorted(_facts()):
        yield from _entries(name)


@cache
def _index() -> Mapping[str, Entry]:
    return {name: entry for entry in _all() for name in reversed(entry.names)}


@cache
def _without_family() -> Mapping[str, Entry]:
    """Entries by what follows the family in their ids, where that is no other entry's."""
    of: dict[str, list[Entry]] = {}
    for entry in _all():
        of.setdefault(entry.id.lower().partition("/")[2], []).append(entry)
    return {name: found[0] for name, found in of.items() if len(found) == 1}


def _unlisted(name: str) -> Entry | None:
    """A dataset of an open family that has no entry: any repository of its hub."""
    try:
        id = ids.parse(name)
    except InvalidId:
        return None
    where = _facts().get(id.family, {}).get("open")
    if where is None:
        return None
    repository = id.name if "/" in id.name else f"{id.family}/{id.name}"
    tree = (where.format(name=id.name, repo=repository),)
    return Entry(id=str(id.base), tree=_revisions(tree, id.family), **_common(id.family))


def _revisions(tree: tuple[str, ...], family: str) -> tuple[str, ...]:
    """Places of a listing at each of the revisions at which a family's datasets may be, best first."""
    revisions = _facts()[family].get("revisions", ())
    return tuple(f"{url}@{r}" for url in tree for r in revisions) or tree


def _strangers(present: Mapping[str, list[tuple[DatasetId, Path]]]) -> Iterator[Entry]:
    """Entries for datasets that are here and that the registry does not list."""
    for key in sorted(present.keys() - _index().keys()):
        id = present[key][0][0].base
        yield _unlisted(str(id)) or Entry(id=str(id), family=id.family, format="")


def _matches(entry: Entry, words: list[str]) -> bool:
    names = entry.names
    return all(any(fnmatchcase(n, w) if is_glob(w) else w in n for n in names) for w in words)


def _check_family(family: str | None, present: Mapping[str, Any]) -> None:
    known = {*_facts(), LOCAL, *(key.partition("/")[0] for key in present)}
    if family is not None and family.lower() not in known:
        near = difflib.get_close_matches(family.lower(), known, 1) or sorted(known)
        raise UnknownDataset(f'There is no family "{family}".', hint=f"{', '.join(near)}? rlds list shows all")


@cache
def _hint(name: str) -> str:
    """What to do about a name that is not known; kept, for a page asks for the same dataset several times."""
    fallback = "rlds list shows what there is; rlds import PATH --as local/NAME takes files of your own"
    address = ids.address_hint(name)
    if address:
        return address
    own = name.lower().startswith(f"{LOCAL}/")  # never in the registry
    return fallback if own else did_you_mean(name) or fallback


def _instead(entry: Entry) -> str:
    return f"{entry.replaced_by} has taken its place" if entry.replaced_by else "rlds list --all shows why"
