"""Decisions of people on the episodes that they look at: what was decided, and what is decided now.

A page says what one person decides on an episode, all of it at once; what differs from before is written to the journal
of the home before it is answered. Episodes are named by their ids, and labels are those of the file of labels: nothing
else of what a page sends is used.
"""

from __future__ import annotations

import getpass
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from starlette.responses import Response

from rlds_cli.base.array_types import IntArray
from rlds_cli.dataset import Dataset
from rlds_cli.errors import InvalidArgument
from rlds_cli.view.kept import NOTHING, SAID, Json, said
from rlds_cli.view.labels import USUAL, Labels, read_labels
from rlds_cli.view.query import NotThere, Query, plain, record

_MOST_EPISODES = 100  # that one request decides on
_MOST_DECISIONS = 1000  # on an episode
_MOST_LISTED = 1000
_LONGEST = {"by": 60, "comment": 2000, "text": 400}  # characters


def shown(decision: Any) -> Json:
    """Return a decision as pages have it."""
    found: Json = said(decision) | {name: getattr(decision, name) for name in ("id", "by", "time", "version", "key")}
    return found


# -- what a page asks


def labels_of(query: Query, ds: Dataset) -> Labels:
    """Return the labels that the pages of a dataset offer: of the command, or of the file beside its decisions."""
    if query.labels is not None:
        return query.labels.fitting(ds)
    beside = query.kept(ds).journal.labels
    return (read_labels(beside) if beside.exists() else replace(USUAL, beside=_said_path(beside))).fitting(ds)


def _said_path(path: Path) -> str:
    """Return a path as people say it: from their own directory on."""
    own = Path.home()
    return f"~/{path.relative_to(own)}" if path.is_relative_to(own) else str(path)


def decisions(query: Query) -> Response:
    """Answer with what may be decided on a dataset, and what is; on one episode with ``episode``."""
    ds = query.dataset
    allowed = may(query, ds)
    found: Json = {
        "id": ds.id,
        "version": ds.version,
        "may": allowed,
        "by": query.by or _user(),
        "named": bool(query.by),
        "of": ds.num_episodes,
    }
    found |= {"labels": (), "guideline": "", "file": None, "beside": None, "people": [], "decided": 0}
    if not allowed["decide"]:
        return record(query, found)
    labels = labels_of(query, ds)
    found |= {"labels": labels.labels, "guideline": labels.guideline, "file": labels.file, "beside": labels.beside}
    with query.kept(ds) as kept:
        found |= {"people": kept.people, "decided": len(kept.decided(query.text("by", "") or None))}
        if "episode" in query.values:
            id = ds.episodes["id"][query.episode(ds)].tobytes().hex()
            found["decisions"] = [shown(d) for d in kept.of(id)]
    return record(query, found)


_READ_ONLY = "The viewer was started with --read-only: nothing is decided."


def may(query: Query, ds: Dataset) -> Json:
    """Return whether decisions are kept, and what they may become; ``why`` not a next version, in words."""
    if query.read_only:
        return {"decide": False, "version": False, "why": _READ_ONLY}
    return dict(plain(query.kept(ds).journal.allowed))


def decide(query: Query) -> Response:
    """Keep what a person decides on episodes, instead of what this person has decided on them before."""
    ds = decidable(query)
    labels, by = labels_of(query, ds), _by(query)
    episodes = query.body.get("episodes")
    if not isinstance(episodes, list) or not 1 <= len(episodes) <= _MOST_EPISODES:
        raise InvalidArgument(f"episodes is not a list of 1 to {_MOST_EPISODES} episodes.")
    wanted = [_wanted(one, labels) for one in episodes]
    if len({id for id, _ in wanted}) < len(wanted):
        raise InvalidArgument("Two entries have the same id.")
    with query.kept(ds) as kept:
        kept.decide(wanted, by)
        found = [{"id": id, "decisions": [shown(d) for d in kept.of(id, by)]} for id, _ in wanted]
        return record(query, {"episodes": found, "decided": len(kept.decided(by))})


def undo(query: Query) -> Response:
    """Take back the last thing that a person has decided since the viewer was started."""
    ds, by = decidable(query), _by(query)
    with query.kept(ds) as kept:
        id = kept.undo(by)
        if id is None:
            raise NotThere("Nothing was decided since the viewer was started.")
        return record(
            query, {"id": id, "decisions": [shown(d) for d in kept.of(id, by)], "number": number_of(query, ds, id)}
        )


def decidable(query: Query) -> Dataset:
    """Return the dataset; raises InvalidArgument where nothing may be decided."""
    ds = query.dataset
    allowed = may(query, ds)
    if not allowed["decide"]:
        raise InvalidArgument(allowed["why"])
    return ds


def _by(query: Query) -> str:
    by = _text(query.body.get("by"), "by").strip()
    if not by:
        raise InvalidArgument("A decision has somebody who made it: by is missing.")
    return by


def _wanted(given: object, labels: Labels) -> tuple[str, list[Json]]:
    if not isinstance(given, dict) or given.keys() != {"id", "decisions"}:
        raise InvalidArgument("An episode has an id and decisions.")
    decisions = given["decisions"]
    if not isinstance(decisions, list) or len(decisions) > _MOST_DECISIONS:
        raise InvalidArgument(f"decisions is not a list of at most {_MOST_DECISIONS:,} decisions.")
    return _id(given["id"]), [_said(one, labels) for one in decisions]


def _said(given: object, labels: Labels) -> Json:
    """Return what a page says of an episode, if it is understood; the journal checks the rest."""
    if not isinstance(given, dict) or not given.keys() <= set(SAID):
        raise InvalidArgument(f"A decision has {', '.join(SAID)} and nothing else.")
    found = dict(NOTHING) | given
    found["comment"] = _text(found["comment"], "comment")
    if found["text"] is not None:
        found["text"] = _text(found["text"], "text")
    if not isinstance(found["reviews"], str):
        raise InvalidArgument("reviews is not the key of a decision.")
    if not isinstance(found["labels"], dict):
        raise InvalidArgument("labels is not a JSON object.")
    for name, value in found["labels"].items():
        if not labels[name].takes(value):
            raise InvalidArgument(f"{str(value)[:80]} is not a choice of {name}.")
    return found


def _id(given: object) -> str:
    if not isinstance(given, str) or len(given) != 32 or not set(given) <= set("0123456789abcdef"):
        raise InvalidArgument(f"{str(given)[:40]} is not the id of an episode: 32 hexadecimal digits.")
    return given


def _text(given: object, name: str) -> str:
    if not isinstance(given, str) or len(given) > _LONGEST[name]:
        raise InvalidArgument(f"{name} is not a text of at most {_LONGEST[name]:,} characters.")
    return given


def _user() -> str:
    """Return the name of who has started the viewer, which a page suggests."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""


# -- episodes by their ids


def ids(ds: Dataset) -> IntArray:
    """Return the first eight bytes of the id of each episode."""
    found: IntArray = np.ascontiguousarray(ds.episodes["id"][:, :8]).view("<i8").reshape(-1)
    return found


def heads(some: Iterable[str]) -> IntArray:
    """Return what `ids` has for the episodes of these ids."""
    return np.array([int.from_bytes(bytes.fromhex(id[:16]), "little", signed=True) for id in some], "<i8")


def _in_order(ds: Dataset) -> tuple[IntArray, IntArray]:
    """Return what `ids` has, ascending, and the numbers of the episodes in this order."""
    order = np.argsort(ids(ds), kind="stable")
    return ids(ds)[order], order


def number_of(query: Query, ds: Dataset, id: str) -> int | None:
    """Return the number of the episode of an id; None if this version has none."""
    ascending, order = query.once(ds, _in_order)
    place = int(np.searchsorted(ascending, heads([id])[0]))
    number = int(order[place]) if place < len(order) else 0
    return number if len(order) and ds.episodes["id"][number].tobytes().hex() == id else None
