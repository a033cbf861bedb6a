"""What the decisions on a dataset come to, the file of them, and the version that they make."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from starlette.responses import Response

from rlds_cli.dataset import Dataset
from rlds_cli.errors import InvalidArgument
from rlds_cli.view.deciding import decidable, may, number_of
from rlds_cli.view.kept import Json, people
from rlds_cli.view.query import Query, record

_MOST_NAMED = 100
_BEFORE = ("id", "do", "first", "stop", "text")
_BEHIND = ("by", "time", "version", "comment", "reviews")


def plan(query: Query) -> Response:
    """Answer with what the decisions would make of the newest version."""
    ds = query.dataset
    allowed = may(query, ds)
    found: Json = {"id": ds.id, "version": ds.version, "may": allowed, "before": ds.num_episodes, "decisions": 0}
    if not allowed["decide"]:
        return record(query, found | {"people": ()})
    with query.kept(ds) as kept:
        decisions, found["revision"] = kept.journal.pending(), kept.revision
    found |= {"decisions": len(decisions), "people": people(decisions)}
    planned = ds.plan(decisions)
    of = _by_kind(decisions)
    listed = [
        {"what": what, "episodes": len(ids), "some": [_episode(query, ds, id) for id in ids[:_MOST_NAMED]]}
        for what, ids in of.items()
    ]
    clashes = [
        {**_episode(query, ds, c.id), "column": c.column, "values": [{"by": v.by, "value": v.value} for v in c.values]}
        for c in planned.clashes
    ]
    ref = query.subjects.ref(query.text("d"))
    home = ["--home", query.subjects.home] if query.subjects.home else []
    command = shlex.join(["rlds", "apply", ref or ds.id, "decisions.csv", *home])
    return record(
        query,
        found
        | {"counts": listed, "clashes": clashes, "trims": planned.trims, "after": planned.episodes, "command": command},
    )


def _episode(query: Query, ds: Dataset, id: str) -> Json:
    return {"id": id, "number": number_of(query, ds, id)}


def _by_kind(decisions: Iterable[Any]) -> dict[str, list[str]]:
    """Return the ids of episodes, in words of what is decided on them."""
    found: dict[str, dict[str, None]] = {}

    def add(what: str, id: str) -> None:
        found.setdefault(what, {})[id] = None

    for d in decisions:
        if d.do:
            add(
                {"drop": "rejected", "keep": "accepted, or kept in part", "subtask": "with other sub-tasks"}[d.do], d.id
            )
        for name in d.labels:
            add(f"with a label {name}", d.id)
        if d.comment:
            add("with a comment", d.id)
    return {what: list(ids) for what, ids in found.items()}


def exported(query: Query) -> Response:
    """Answer with the decisions as a file of `rlds apply`."""
    ds = decidable(query)
    with query.kept(ds) as kept:
        decisions = kept.journal.pending()
    headers = {"content-disposition": 'attachment; filename="decisions.csv"'}
    return Response(as_csv(decisions), headers=headers, media_type="text/csv; charset=utf-8")


def as_csv(decisions: Sequence[Any]) -> str:
    """Return decisions as a file of comma-separated values, with a column for each label."""
    labels = list(dict.fromkeys(name for d in decisions for name in d.labels))
    file = io.StringIO()
    table = csv.writer(file, lineterminator="\n")
    table.writerow([*_BEFORE, *labels, *_BEHIND])
    for d in decisions:
        own = [_cell(d.labels[name]) if name in d.labels else "" for name in labels]
        table.writerow([*(_cell(getattr(d, n), "") for n in _BEFORE), *own, *(getattr(d, n) or "" for n in _BEHIND)])
    return file.getvalue()


def _cell(value: Any, none: str = "null") -> str:
    return none if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def apply(query: Query) -> Response:
    """Make a version of all decisions that the newest one does not have, or ``ID@NAME``."""
    ds = decidable(query)
    name, revision = query.body.get("as", ""), query.body.get("revision")
    if not isinstance(name, str) or len(name) > 100:
        raise InvalidArgument("as is no name.")
    with query.kept(ds) as kept:
        if revision != kept.revision:
            raise InvalidArgument(
                "Somebody has decided something since this page was shown. Nothing was saved.", hint="load it again"
            )
        made = ds.apply(kept.journal.pending(), as_=name or None)
    return record(query, _made(query, ds, made, name))


def _made(query: Query, ds: Dataset, made: Dataset, name: str) -> Mapping[str, Any]:
    home = ["--home", query.subjects.home] if query.subjects.home else []
    restore = None if name else shlex.join(["rlds", "restore", f"{ds.id}#v{ds.version}", *home])
    return {
        "id": made.id,
        "version": made.version,
        "episodes": made.num_episodes,
        "fingerprint": made.manifest.fingerprint,
        "restore": restore,
    }
