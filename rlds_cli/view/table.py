"""The home, a dataset, and the table of its episodes: what is answered about more than one episode."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from rlds_cli import look
from rlds_cli.dataset import Dataset, ProvenanceStep, expression_of, named_versions
from rlds_cli.errors import RldsError
from rlds_cli.look import EpisodeTable
from rlds_cli.view.query import Query, record
from rlds_cli.view.ranges import is_known

if TYPE_CHECKING:
    from rlds_cli.look.checks.findings import Finding

_MOST_NAMED = 100  # episodes of a finding
_EXACT = 2**53 - 1
_LONGEST = 4000  # characters of an expression that a page puts into its address


def contents(query: Query) -> Response:
    """Answer with the datasets of the home, or with 304; with ``details=1`` with what takes longer, by id."""
    if query.text("details", ""):
        return record(query, {"datasets": query.subjects.contents.details()})
    found = query.subjects.listing(query.headers.get("if-none-match", "").strip('"'))
    if is_known(f'"{found.etag}"', query.headers):
        return record(query, None, etag=found.etag)
    return record(query, {"datasets": [{"key": e.id, **_values(e)} for e in found.entries]}, etag=found.etag)


def dataset(query: Query) -> Response:
    """Answer with what a dataset is, its versions, and what checks say of it."""
    ds = query.dataset
    return record(query, query.once(ds, _described) | {"ref": _ref(query), "versions": _versions(query, ds)})


def changed(query: Query) -> Response:
    """Answer with the size of the newest version; with 304 if it is the one that is known."""
    ds = query.subjects.dataset(query.text("d"))
    counts = {"version": ds.version, "episodes": ds.num_episodes, "steps": ds.num_steps, "created": ds.manifest.created}
    state = f"{ds.version} {ds.num_episodes} {ds.manifest.created} {ds.manifest.fingerprint}"
    return record(query, counts, etag=hashlib.sha256(state.encode()).hexdigest()[:20])


def episodes(query: Query) -> Response:
    """Answer with a page of the table."""
    page = query.once(query.dataset, EpisodeTable).page(
        where=query.text("where", "") or None,
        sort=query.text("sort", "") or None,
        descending=query.text("descending", "") == "1",
        first=query.integer("first", 0),
        count=query.integer("count", 100),
        ref=_ref(query),
        home=query.subjects.home,
    )
    rows = [replace(r, values={name: _exact(v) for name, v in r.values.items()}) for r in page.episodes]
    return record(query, replace(page, episodes=tuple(rows)))


def _exact(value: Any) -> Any:
    """Return a whole number as text where JavaScript has no number for it."""
    return str(value) if type(value) is int and abs(value) > _EXACT else value


def columns(query: Query) -> Response:
    """Answer with how columns are distributed: those that ``field`` names, or the usual ones."""
    table = query.once(query.dataset, EpisodeTable)
    return record(query, table.spreads(query.text("where", "") or None, query.fields or None))


def _ref(query: Query) -> str | None:
    return query.subjects.ref(query.text("d"), query.integer("v", None))


def _described(ds: Dataset) -> dict[str, Any]:
    summary = look.summarise(ds)
    found = look.quick(ds)
    if ds.is_selection:
        numbers = {int(number): k for k, number in enumerate(ds.episodes.index)}
        found = tuple(f for f in (_within(f, numbers) for f in found) if f is not None)
    return {
        "id": ds.id,
        "version": ds.version,
        "address": ds.store.address,
        "selected": ds.num_episodes if ds.is_selection else None,
        "summary": replace(summary, findings=()),
        "findings": [_finding(f) for f in found],
        "made": [{"text": ProvenanceStep(s).described(), "from": s.get("from")} for s in summary.provenance],
    }


def _within(f: Finding, numbers: Mapping[int, int]) -> Finding | None:
    """Return a finding by the numbers that episodes have in a selection; None if it names others alone."""
    if not (f.episodes or f.places):
        return f
    episodes = tuple(sorted(numbers[k] for k in f.episodes if k in numbers))
    places = tuple(replace(p, episode=numbers[p.episode]) for p in f.places if p.episode in numbers)
    return replace(f, episodes=episodes, places=places, num_episodes=len(episodes)) if episodes or places else None


def _finding(f: Finding) -> dict[str, Any]:
    """Return a finding with the first of its episodes, and the expression that selects all of them."""
    where = expression_of(f.episodes) if f.episodes else ""
    return _values(replace(f, episodes=f.episodes[:_MOST_NAMED])) | {"where": where if len(where) < _LONGEST else ""}


def _versions(query: Query, ds: Dataset) -> Sequence[Any]:
    """Return the versions of a dataset; none of a selection, and none if the place of an address does not answer."""
    if not ds.is_selection:
        with suppress(RldsError):
            return named_versions(ds.store.address, home=query.subjects.home) if ds.store.address else ds.versions
    return ()


def _values(of: Any) -> dict[str, Any]:
    return {f.name: getattr(of, f.name) for f in fields(of)}
