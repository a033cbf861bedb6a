"""The registry of known datasets: entries of ``registry/``, found by id, alias, words or glob. Imports nothing heavy.

::

    registry/families.json     facts that hold for a whole family: licence, citation, defects by code, open hub location
    registry/<family>.jsonl    one dataset a line; keys in the order of ENTRY_KEYS
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from rlds_cli import ids
from rlds_cli.errors import InvalidId, UnknownDataset
from rlds_cli.ids import DatasetId
from rlds_cli.registry.records import Defect, Entry, Family, File
from rlds_cli.text import closest

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
    """Return the directory of the registry: beside the package in a checkout, inside it in a wheel."""
    installed = _HERE / "_registry"
    return installed if installed.is_dir() else _HERE.parent / "registry"


@cache
def families() -> tuple[Family, ...]:
    """Return all families, sorted by name."""
    return tuple(_family(name, facts) for name, facts in sorted(_facts().items()))


def entries(family: str) -> tuple[Entry, ...]:
    """Return the entries of one family, in the order of its file; empty for an unknown family."""
    return _entries(family) if family in _facts() else ()


def search(query: str = "", *, family: str | None = None, present: Sequence[DatasetId] = ()) -> list[Entry]:
    """Search the registry as `home.locate.find` does, which says what ``query`` and ``family`` are.

    ``present`` are datasets on this disk, without variants. Those that the registry does not list follow its entries.
    """
    wanted = family.lower() if family else None
    if wanted is not None:
        _check_family(str(family), {id.family for id in present})
    known = [e for f in families() if wanted in (None, f.name) for e in entries(f.name)]
    added = [e for e in _unregistered(present) if wanted in (None, e.family)]
    words = query.lower().split()
    return [e for e in (*known, *added) if _matches(e, words)]


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
    name = ref.strip().partition("@")[0].rstrip("/")
    found = _index().get(name.lower()) or _unlisted(name) or _without_family().get(name.lower())
    if found is None:
        raise UnknownDataset(f'"{ref}" is not in the registry.', hint=_hint(name))
    return found


def listed(ref: str) -> Entry | None:
    """Return the entry as `get` does, or None for a dataset without a line of its own in the registry."""
    name = ref.strip().partition("@")[0].rstrip("/").lower()
    return _index().get(name) or _without_family().get(name)


def match(ref: str) -> list[Entry]:
    """Return the entries of an id, an alias, or a glob such as ``d4rl/hopper-*-v2``, without closed sources for globs.

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
    """Return the ids nearest to ``ref``, best first: those with all its words, then those with a similar spelling.

    ``among`` adds ids to those of the registry.
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
    """Return a hint for an unknown id, or None if no known id comes near."""
    key = ref.lower().strip("/")
    if key in _facts():
        return f"that is a family: rlds list --family {key} shows its datasets, '{key}/*' selects all of them"
    near = suggest(ref, among=among)
    return f"did you mean {', '.join(near)}?" if near else None


def is_glob(ref: str) -> bool:
    """Return whether ``ref`` holds ``*``, ``?`` or ``[``."""
    return any(c in ref for c in "*?[")


@cache
def _facts() -> Mapping[str, Any]:
    facts: Mapping[str, Any] = json.loads((directory() / "families.json").read_text(encoding="utf-8"))
    return facts


def lines(family: str) -> Iterator[dict[str, Any]]:
    """Yield the lines of a family's file, as JSON objects."""
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
    """Return the values that every entry of a family inherits."""
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
    """Map names without family to entries, for names that only one family has."""
    of: dict[str, list[Entry]] = {}
    for entry in _all():
        of.setdefault(entry.id.lower().partition("/")[2], []).append(entry)
    return {name: found[0] for name, found in of.items() if len(found) == 1}


def _unlisted(name: str) -> Entry | None:
    """Make an entry for a dataset of an open family, which may be any repository of its hub."""
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
    """Return the addresses of a listing at each revision of a family's datasets, best first."""
    revisions = _facts()[family].get("revisions", ())
    return tuple(f"{url}@{r}" for url in tree for r in revisions) or tree


def _unregistered(present: Sequence[DatasetId]) -> Iterator[Entry]:
    """Make entries for the datasets on this disk that the registry does not list."""
    for id in present:
        if str(id).lower() not in _index():
            yield _unlisted(str(id)) or Entry(id=str(id), family=id.family, format="")


def _matches(entry: Entry, words: list[str]) -> bool:
    names = entry.names
    return all(any(fnmatchcase(n, w) if is_glob(w) else w in n for n in names) for w in words)


def _check_family(family: str, present: Collection[str]) -> None:
    known = {*_facts(), LOCAL, *present}
    if family.lower() not in known:
        near = closest(family.lower(), known)
        hint = f"{near or ', '.join(sorted(known))}? rlds list shows all"
        raise UnknownDataset(f'There is no family "{family}".', hint=hint)


@cache
def _hint(name: str) -> str:
    """Return a hint for an unknown name. It is cached, since a page asks for the same dataset several times."""
    fallback = "rlds list shows all datasets; rlds import PATH --as local/NAME imports files of your own"
    address = ids.address_hint(name)
    if address:
        return address
    own = name.lower().startswith(f"{LOCAL}/")  # never in the registry
    return fallback if own else did_you_mean(name) or fallback


def _instead(entry: Entry) -> str:
    return f"{entry.replaced_by} has taken its place" if entry.replaced_by else "rlds list --all shows why"
