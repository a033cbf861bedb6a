"""Who decided what, and when: the account of decisions in the step of a version's provenance.

::

    {"by": "ann", "do": "drop", "version": 3,        what several decisions have in common; what is not said is missing
     "episodes": ["0f3a...", "91c2..."],             ids
     "from": "2026-03-01T09:30:00+00:00",            the time of the first of them
     "after": [0, 4.25],                             seconds from then to each
     "steps": [[12, 90], [0, 41]],                   of keep and subtask: first and stop of each
     "comments": ["blurred", ""]}                    if one has a comment

The account makes nothing, and the fingerprint does not cover it. It has all that decisions say: so a version tells
which of those in a journal it has.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from rlds_cli.base.text import plural
from rlds_cli.dataset.decisions.decision import Decision
from rlds_cli.dataset.fixed import OpenDataset
from rlds_cli.errors import InvalidArgument
from rlds_cli.store import StoredDataset

APPLY, DECISIONS = "apply", "decisions"  # the function of a step, and its argument that is an account
_NAMED = 3  # episodes that a line names
_COMMON = ("by", "do", "text", "labels", "version", "reviews")


def told(decisions: Sequence[Decision]) -> list[dict[str, Any]]:
    """Return the account of decisions."""
    groups: dict[str, list[Decision]] = {}
    for d in decisions:
        labels = [(n, type(v), v) for n, v in d.labels.items()]  # True is equal to 1
        groups.setdefault(repr((d.by, d.do, d.text, labels, d.version, d.reviews)), []).append(d)
    return [_group(of) for of in groups.values()]


def _group(of: Sequence[Decision]) -> dict[str, Any]:
    said = of[0].record()
    found = {name: said[name] for name in _COMMON if name in said} | {"episodes": [d.id for d in of]}
    times = [datetime.fromisoformat(d.time) if d.time else None for d in of]
    if (first := next((t for t in times if t is not None), None)) is not None:
        seconds = [None if t is None else (t - first).total_seconds() for t in times]
        found["from"] = first.isoformat()
        found["after"] = [int(s) if s is not None and s.is_integer() else s for s in seconds]
    if of[0].first is not None:
        found["steps"] = [[d.first, d.stop] for d in of]
    if any(d.comment for d in of):
        found["comments"] = [d.comment for d in of]
    return found


def read(account: Any) -> Iterator[Decision]:
    """Yield the decisions of an account, which may come from a stranger: what is none is passed over."""
    for group in _groups(account):
        try:
            yield from list(_decisions(group))
        except (AttributeError, InvalidArgument, KeyError, OverflowError, TypeError, ValueError):
            continue


def _decisions(group: Mapping[str, Any]) -> Iterator[Decision]:
    common = {name: group[name] for name in _COMMON if name in group}
    ids = group["episodes"]
    first = datetime.fromisoformat(group["from"]) if "from" in group else None
    after, steps = group.get("after", [None] * len(ids)), group.get("steps", [(None, None)] * len(ids))
    for id, s, (start, stop), comment in zip(ids, after, steps, group.get("comments", [""] * len(ids)), strict=True):
        time = "" if first is None or s is None else (first + timedelta(seconds=s)).isoformat()
        yield Decision(id=id, time=time, first=start, stop=stop, comment=comment, **common)


def lines(account: Any) -> Iterator[str]:
    """Yield an account for people, which may come from a stranger: a line for decisions that have much in common."""
    together: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for group in _groups(account):
        together.setdefault((str(group.get("by", "")), _what(group)), []).append(group)
    for (by, what), of in together.items():
        ids = [str(id) for group in of for id in group["episodes"]]
        begins = sorted(str(group["from"]) for group in of if "from" in group)
        named = ", ".join(ids[:_NAMED]) + (", ..." if len(ids) > _NAMED else "")
        when = f", from {begins[0]} on" if begins else ""
        yield f"{by or 'somebody'} decided{when}: {what}: {plural(len(ids), 'episode')}: {named}"


def _what(group: Mapping[str, Any]) -> str:
    labels, text = group.get("labels"), json.dumps(group.get("text"), ensure_ascii=False)
    does = {"keep": "keep steps", "subtask": f"subtask {text}"}.get(str(group.get("do")), str(group.get("do", "")))
    pairs = labels.items() if isinstance(labels, Mapping) else ()
    return " ".join([does, *(f"{n}={json.dumps(v, ensure_ascii=False)}" for n, v in pairs)]).strip() or "nothing"


def counted(account: Any) -> str:
    """Return how many decisions of whom an account has: ``28 decisions of ann, 12 of bob``."""
    by = Counter[str]()
    for group in _groups(account):
        by[str(group.get("by", ""))] += len(group["episodes"])
    named = ", ".join(f"{n:,} of {name}" for name, n in by.items() if name)
    return plural(by.total(), "decision") + (f": {named}" if named else "")


def keeps_episodes(account: Any) -> bool:
    """Return whether an account has labels and sub-tasks alone, which leave all episodes as they are."""
    return all(group.get("do", "") in ("", "subtask") for group in _groups(account))


def _groups(account: Any) -> Iterator[Mapping[str, Any]]:
    """Yield what decisions have in common, and which episodes they are on, as far as it can be read."""
    for group in account if isinstance(account, list | tuple) else ():
        if isinstance(group, Mapping) and isinstance(group.get("episodes"), list | tuple):
            yield group


def applied(ds: OpenDataset) -> list[Decision]:
    """Return the decisions that an open version has, the oldest first: not those that `Dataset.restore` has undone."""
    at: dict[int, list[Decision]] = {}
    now: list[Decision] = []
    for version, step in _steps(ds):
        at[version] = now
        args = step.get("args", {})
        if step.get("function") == "restore":
            behind = [
                v for v in at if v >= args.get("version", 0)
            ]  # a step has the state of the version that it changed
            now = at[min(behind)] if behind else now
        elif args.get(DECISIONS):
            now = [*now, *read(args[DECISIONS])]
    return now


def _steps(ds: OpenDataset) -> Iterable[tuple[int, Mapping[str, Any]]]:
    """Return the changes of a dataset in its place, each with the number of the version that it changed."""
    m = ds.manifest
    if m.growing and not ds.store.address:
        made = StoredDataset(ds.path).made()
        return [(v.number - 1, v.step) for v in made if v.step is not None and v.number <= ds.store.version]
    own = [s for s in m.provenance if s.get("id") == s.get("from") == m.id]
    return [(s["version"], s) for s in own if type(s.get("version")) is int]
