"""The registry of the package: the files of ``registry/``.

::

    registry/families.json     facts that hold for a whole family: licence, citation, defects by code, open hub location
    registry/<family>.jsonl    one dataset a line; keys in the order of ENTRY_KEYS
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from rlds_cli.base import ids
from rlds_cli.base.files.packaged import registry_directory
from rlds_cli.errors import InvalidId
from rlds_cli.registry.facts import Defect, Entry, Family, described


@dataclass(frozen=True, slots=True)
class Reserved:
    """What no other registry may take: names in lower case with the ids that they mean, and families."""

    names: Mapping[str, str]
    families: Collection[str]


@cache
def reserved() -> Reserved:
    """Return the names and families of the package, which no other registry may take."""
    tails = {e.id.lower().partition("/")[2]: e.id for e in every()}
    return Reserved({**tails, **{name: e.id for name, e in by_name().items()}}, frozenset(facts_of_families()))


@cache
def facts_of_families() -> Mapping[str, Any]:
    """Return what ``families.json`` says, by the name of the family."""
    facts: Mapping[str, Any] = json.loads((registry_directory() / "families.json").read_text(encoding="utf-8"))
    return facts


def lines(family: str) -> list[dict[str, Any]]:
    """Return the lines of a family's file, as JSON objects."""
    text = (registry_directory() / f"{family}.jsonl").read_text(encoding="utf-8")
    joined = text.strip().replace("\n", ",")
    found: list[dict[str, Any]] = json.loads(f"[{joined}]")  # one by one they take four times as long
    return found


@cache
def family(name: str) -> Family:
    """Return a family."""
    facts = facts_of_families()[name]
    statuses = [line.get("status") for line in lines(name)]  # entries take three times as long
    closed = statuses.count("closed")
    listed = {k: tuple(facts[k]) for k in ("revisions", "only") if k in facts}
    values = {**facts, **listed, "defects": _defects(facts)}
    return Family(name=name, num_entries=len(statuses) - closed, num_closed=closed, **values)


def _defects(facts: Mapping[str, Any]) -> Mapping[str, Defect]:
    found = facts.get("defects", {}).items()
    return {c: Defect(c, d["text"], tuple(d["refs"]), tuple(d.get("shows_as", ()))) for c, d in found}


@cache
def entries(family: str) -> tuple[Entry, ...]:
    """Return the entries of a family, in the order of its file."""
    common, defects, found = _common(family), _defects(facts_of_families()[family]), []
    for line in lines(family):
        entry = described(line, common, defects)
        found.append(replace(entry, tree=_revisions(entry.tree, family)) if entry.tree else entry)
    return tuple(found)


def _common(family: str) -> dict[str, Any]:
    """Return the values that every entry of a family inherits."""
    keys = ("format", "expansion", "episodes_by", "licence", "paper", "homepage", "host", "citation")
    facts = facts_of_families()[family]
    return {"family": family, "only": tuple(facts.get("only", ()))} | {k: v for k, v in facts.items() if k in keys}


def every() -> Iterator[Entry]:
    """Yield all entries."""
    for name in sorted(facts_of_families()):
        yield from entries(name)


@cache
def by_name() -> Mapping[str, Entry]:
    """Map all names to entries, in lower case."""
    return {name: entry for entry in every() for name in reversed(entry.names)}


@cache
def by_id(family: str) -> Mapping[str, Entry]:
    """Map the ids of one family to entries."""
    return {entry.id.lower(): entry for entry in entries(family)}


@cache
def by_name_alone() -> Mapping[str, Entry]:
    """Map names without family to entries, for names that only one family has."""
    of: dict[str, list[Entry]] = {}
    for entry in every():
        of.setdefault(entry.id.lower().partition("/")[2], []).append(entry)
    return {name: found[0] for name, found in of.items() if len(found) == 1}


def unlisted(name: str) -> Entry | None:
    """Make an entry for a dataset of an open family, which may be any repository of its hub."""
    try:
        id = ids.parse(name)
    except InvalidId:
        return None
    where = facts_of_families().get(id.family, {}).get("open")
    if where is None:
        return None
    repository = id.name if "/" in id.name else f"{id.family}/{id.name}"
    tree = (where.format(name=id.name, repo=repository),)
    return Entry(id=str(id.base), tree=_revisions(tree, id.family), **_common(id.family))


def _revisions(tree: tuple[str, ...], family: str) -> tuple[str, ...]:
    """Return the addresses of a listing at each revision of a family's datasets, best first."""
    revisions = facts_of_families()[family].get("revisions", ())
    return tuple(f"{url}@{r}" for url in tree for r in revisions) or tree
