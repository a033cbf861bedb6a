"""Lines about a dataset that was just made, for ``rlds download`` and ``rlds import``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlds_cli import text
from rlds_cli.cli import out
from rlds_cli.files.hashing import short

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset


def facts(ds: Dataset) -> dict[str, object]:
    """Facts of a dataset for ``--json``."""
    m = ds.manifest
    return {"id": ds.id, "path": ds.path, "fingerprint": ds.fingerprint, "counts": m.counts, "notes": m.notes}


def ready(ds: Dataset) -> None:
    """Print one line on a new dataset, its notes, and the line of code that loads it."""
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
    """A note with its first place; with its count if it is a reader's, since the text of a finding contains it."""
    count, where = note["count"], note["where"]
    often = f" ({count:,} times)" if count > 1 and "severity" not in note else ""
    return f"{note['text']}{often}" + (f", e.g. {where}" if where and count > 1 else f": {where}" if where else "")
