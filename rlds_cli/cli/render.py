"""How results that several commands show look to people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlds_cli import text, visible
from rlds_cli.cli import out
from rlds_cli.errors import UnknownLayout
from rlds_cli.files.hashing import short

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset
    from rlds_cli.downloads.download import Deliveries, Delivery
    from rlds_cli.importing import ImportPlan


def deliveries(p: Deliveries) -> str:
    """What is to be fetched and made."""
    todo = [d for d in p.datasets if d.here is None]
    here = [d for d in p.datasets if d.here is not None]
    lines = [f"{d.id}  is here: {d.here}" + (f"  ({d.note})" if d.note else "") for d in here]
    if todo:
        files = sum(d.files for d in todo)
        unknown = sum(d.unknown for d in todo)
        to_fetch = out.size(p.to_fetch) + (f" and {unknown} of unknown size" if unknown else "") + " to fetch"
        estimates = [d.cache for d in todo if d.cache]
        cache = f"cache about {out.size(sum(estimates))}" if len(estimates) == len(todo) else "cache of unknown size"
        unlisted = sum(d.actions is None for d in todo)
        more = f" and those of {text.plural(unlisted, 'listing')}" if unlisted else ""
        counts = f"{text.plural(len(todo), 'dataset')}, {text.plural(files, 'file')}{more}"
        room = "free" if p.needed <= p.free else "free: too few"
        lines.append(f"{counts}, {to_fetch}; {cache}; {out.size(p.free)} {room}")
        lines += [f"  {d.id}  {_actions(d)}" for d in todo]
    return visible.lines(lines)


def _actions(d: Delivery) -> str:
    return d.note if d.actions is None else ", ".join(f"{n} to {a}" for a, n in d.actions.items())


def delivered(p: Deliveries, made: list[Dataset]) -> None:
    """What is there now; what was there before stands in the plan."""
    if out.wants_json():
        from rlds_cli.dataset import open_dataset

        here = [open_dataset(d.here) for d in p.datasets if d.here]
        out.result([*({**facts(ds), "made": False} for ds in here), *({**facts(ds), "made": True} for ds in made)])
        return
    for ds in made:
        ready(ds)


def made(datasets: list[Dataset]) -> None:
    """What is there now."""
    if out.wants_json():
        return out.result([{**facts(ds), "made": True} for ds in datasets])
    for ds in datasets:
        ready(ds)
    return None


def facts(ds: Dataset) -> dict[str, object]:
    """A dataset that is there, for ``--json``."""
    m = ds.manifest
    return {"id": ds.id, "path": ds.path, "fingerprint": ds.fingerprint, "counts": m.counts, "notes": m.notes}


def ready(ds: Dataset) -> None:
    """One line on a dataset that is there now, its notes, and what to type next."""
    m = ds.manifest
    counts = f"{text.plural(m.counts.steps, 'step')}  {text.plural(m.counts.episodes, 'episode')}"
    out.result(facts(ds), f"{ds.id}  {counts}  {short(ds.fingerprint)}")
    for note in m.notes:
        out.note(f"{note.get('severity', 'note')}: {note_line(note)}")
    held_out = ds.held_out
    if held_out:
        out.note(f"note: outside the split train: {text.plural(held_out, 'episode')} of {m.counts.episodes:,}")
        out.note(f'use:  Loader(rlds_cli.open_dataset("{ds.id}").select(split="train"), batch_size=256)')
    else:
        out.note(f'use:  Loader("{ds.id}", batch_size=256)')


def note_line(note: Mapping[str, Any]) -> str:
    """A note with, for example, where; a reader's with how often, which findings say themselves."""
    count, where = note["count"], note["where"]
    often = f" ({count:,} times)" if count > 1 and "severity" not in note else ""
    return f"{note['text']}{often}" + (f", e.g. {where}" if where and count > 1 else f": {where}" if where else "")


def import_plan(p: ImportPlan) -> str:
    """What an import would do."""
    from rlds_cli.report.columns import rank

    lines = [f"{p.files[0].name}{f' and {len(p.files) - 1} more' if len(p.files) > 1 else ''}: {p.recognised}"]
    lines += [f"reader {p.reader}, {out.size(p.bytes)}, episodes end by {p.episodes_by}"]
    width = max(len(f.name) for f in p.fields)
    for f in sorted(p.fields, key=rank):
        kept = f" kept as {f.codec}" if f.codec else ""
        lines.append(f"  {f.name:{width}}  {f.placement:4}  {f.dtype:8} {list(f.shape)}{kept}")
    keys = p.facts.get("fields", {})
    lines = [
        *lines[:2],
        *(line + (f"  from {keys[n]}" if (n := line.split()[0]) in keys else "") for line in lines[2:]),
    ]
    if p.rows is not None:
        lines.append(f"{p.rows:,} rows")
    if p.episodes is not None:
        lines += _episodes(p.episodes)
    if columns := p.facts.get("per_episode"):
        lines.append(f"columns per episode: {', '.join(columns)}")
    lines += [f"note: {n}" for n in p.notes]
    return visible.lines([*lines, f"Run without --dry-run to make {p.id}"])


def _episodes(seen: Mapping[str, Any]) -> list[str]:
    ends = ", ".join(f"{count:,} {end}" for end, count in seen["ends"].items() if count)
    span = f"{seen['shortest']:,} to {seen['longest']:,}, median {seen['median']:,}"
    episodes = text.plural(seen["episodes"], "episode")
    return [f"{episodes} of {seen['steps']:,} steps ({span}): {ends}"]


def unknown(path: str, id: str, error: UnknownLayout) -> UnknownLayout:
    """Show what is in files that no reader knows; the error, with a command to try."""
    from rlds_cli.cli.pages.file import FilePage
    from rlds_cli.report import describe_file
    from rlds_cli.report.files import name_for

    found = describe_file(path)
    out.aside(FilePage(replace(found, suggestion=None)))
    command = found.suggestion and found.suggestion.replace(f" --as local/{name_for(found.path)} ", f" --as {id} ")
    return UnknownLayout(error.message, hint=command or error.hint)
