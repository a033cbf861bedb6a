"""What the decisions on a dataset come to, the file of them, and the version that they make."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from starlette.responses import Response

from rlds_cli.dataset import Dataset
from rlds_cli.errors import InvalidArgument
from rlds_cli.view.deciding import decidable, may, number_of
from rlds_cli.view.kept import Json, people
from rlds_cli.view.query import Query, record

_MOST_NAMED = 100
_MOST_CLASHES = 200
_SIDES = ("mine", "theirs")
_WORDS = {"drop": "rejected", "keep": "accepted", "subtask": "with other sub-tasks"}
_CUT = "of which some steps stay"


def plan(query: Query) -> Response:
    """Answer with what the decisions that the newest version lacks would make of it."""
    ds = query.dataset
    allowed = may(query, ds)
    found: Json = {"id": ds.id, "version": ds.version, "may": allowed, "episodes": ds.num_episodes, "people": ()}
    if not allowed["decide"]:
        return record(query, found | {"decisions": 0})
    with query.kept(ds) as kept:
        pending, revision, agreement = kept.journal.pending(), kept.revision, kept.journal.agreement()
    take = _take(query.fields, pending)
    planned = ds.plan(pending, take=take)
    counts = [
        {"what": what, "episodes": len(ids), "some": [_episode(query, ds, id) for id in ids[:_MOST_NAMED]]}
        for what, ids in _by_kind(pending, cut=lambda d: _is_cut(query, ds, d)).items()
    ]
    clashes = [
        {
            **_episode(query, ds, c.id),
            "about": c.about,
            "kind": c.kind,
            "sides": [{"by": side.by, "value": side.value} for side in c.sides],
        }
        for c in planned.clashes[:_MOST_CLASHES]
    ]
    found |= {"decisions": len(pending), "people": people(pending), "revision": revision, "counts": counts}
    found |= {"clashes": clashes, "num_clashes": len(planned.clashes), "trims": planned.trimmed > 0}
    found |= {"agreement": [_compared(query, ds, of) for of in agreement.labels[:_MOST_NAMED]]}
    found |= {"reviews": [asdict(of) for of in agreement.reviews[:_MOST_NAMED]]}
    after = ds.num_episodes - planned.dropped - planned.trimmed + planned.parts
    return record(query, found | {"after": after, "command": _command(query, ds, take)})


def _episode(query: Query, ds: Dataset, id: str) -> Json:
    return {"id": id, "number": number_of(query, ds, id)}


def _compared(query: Query, ds: Dataset, of: Any) -> Json:
    """Return how far two annotators agree on one thing, and some episodes on which they do not."""
    apart = [{**_episode(query, ds, d.id), "a": d.a, "b": d.b} for d in of.disagreements[:_MOST_NAMED]]
    return {name: getattr(of, name) for name in ("about", "a", "b", "episodes", "agreed", "kappa")} | {"apart": apart}


def _is_cut(query: Query, ds: Dataset, decision: Any) -> bool:
    """Return whether a decision leaves out steps of its episode."""
    number = number_of(query, ds, decision.id)
    whole = None if number is None else int(ds.episodes["length"][number])
    return decision.do == "keep" and (decision.first, decision.stop) != (0, whole)


def _by_kind(decisions: Iterable[Any], cut: Callable[[Any], bool]) -> dict[str, list[str]]:
    """Return the ids of episodes, in words of what is decided on them."""
    found: dict[str, dict[str, None]] = {}
    for d in decisions:
        kinds = [
            *([_CUT if cut(d) else _WORDS[d.do]] if d.do else []),
            *(f"with the label {name}" for name in d.labels),
        ]
        for kind in [*kinds, *(["with a comment"] if d.comment else [])]:
            found.setdefault(kind, {})[d.id] = None
    return {kind: list(ids) for kind, ids in found.items()}


def _take(given: object, decisions: Iterable[Any]) -> Sequence[str]:
    """Return what wins where decisions clash: a side, or names of people who have decided."""
    known = {*_SIDES, *(d.by for d in decisions)}
    if not isinstance(given, list | tuple) or not all(isinstance(name, str) and name in known for name in given):
        raise InvalidArgument("What is taken is mine, theirs, or the name of somebody who has decided.")
    return [str(name) for name in given]


def _command(query: Query, ds: Dataset, take: Sequence[str]) -> str:
    taken = [word for name in take for word in ("--take", name)]
    ref = query.subjects.ref(query.text("d")) or ds.id
    return shlex.join(["rlds", "apply", ref, "decisions.csv", *taken, *_home(query)])


def _home(query: Query) -> list[str]:
    return ["--home", query.subjects.home] if query.subjects.home else []


def exported(query: Query) -> Response:
    """Answer with all decisions as a file that `rlds apply` reads."""
    ds = decidable(query)
    with query.kept(ds) as kept, tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "decisions.csv"
        kept.journal.export(file)
        data = file.read_bytes()
    headers = {"content-disposition": 'attachment; filename="decisions.csv"'}
    return Response(data, headers=headers, media_type="text/csv; charset=utf-8")


def apply(query: Query) -> Response:
    """Make the next version, or ``ID@NAME``, of the decisions that the newest version lacks."""
    ds = decidable(query)
    name, revision = query.body.get("as", ""), query.body.get("revision")
    if not isinstance(name, str) or len(name) > 100:
        raise InvalidArgument("as is not a name.")
    with query.kept(ds) as kept:
        if revision != kept.revision:
            raise InvalidArgument(
                "Something was decided since this page was shown. Nothing was saved.", hint="show the page again"
            )
        pending = kept.journal.pending()
        if not pending:
            raise InvalidArgument(f"{ds.id} has all decisions already.")
        take = _take(query.body.get("take", []), pending)
        made = ds.apply(pending, take=take, name=name or None, home=query.subjects.home)
    back = ["rm", made.id] if made.id != ds.id else ["restore", f"{ds.id}#v{ds.version}"]
    changed = made.id != ds.id or made.version != ds.version
    return record(
        query,
        {
            "id": made.id,
            "version": made.version,
            "episodes": made.num_episodes,
            "fingerprint": made.manifest.fingerprint,
            "back": shlex.join(["rlds", *back, *_home(query)]) if changed else None,
        },
    )
