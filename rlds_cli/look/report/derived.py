"""The summary of the result of a preprocess run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rlds_cli.base.files.sizes import size_on_disk
from rlds_cli.dataset import Dataset
from rlds_cli.look.checks.findings import Finding, ranked
from rlds_cli.look.checks.run import manifest_findings
from rlds_cli.store import FAILURES


@dataclass(frozen=True, slots=True)
class Outcome:
    """A preprocessed dataset. Its ``bytes`` on disk are either ``added`` or ``shared`` with its source.

    ``copied`` are fields that could not be shared. ``notes`` tell the user about such things as omitted episodes.
    ``findings`` are errors and warnings of the quick checks about changed fields, such as NaN. ``errors`` is the file
    that lists the episodes on which the function failed.
    """

    id: str
    path: Path
    fingerprint: str
    episodes: int
    steps: int
    bytes: int
    added: int
    shared: int
    copied: tuple[str, ...]
    notes: tuple[str, ...]
    findings: tuple[Finding, ...] = ()
    errors: Path | None = None


def summarise_derived(ds: Dataset) -> Outcome:
    """Measure the files of a dataset that `rlds_cli.preprocess.run` made, and check it."""
    m = ds.manifest
    errors = ds.path / FAILURES
    whole = size_on_disk(ds.path)
    linked = [f for f in m.fields if m.shared.get(f.name) in ("link", "reflink")]
    shared = sum(size_on_disk(ds.path / above / f.path) for f in linked for above in ("", "digests", "text"))
    return Outcome(
        id=ds.id,
        path=ds.path,
        fingerprint=ds.fingerprint,
        episodes=m.counts.episodes,
        steps=m.counts.steps,
        bytes=whole,
        added=whole - shared,
        shared=shared,
        copied=tuple(sorted(n for n, how in m.shared.items() if how == "copy")),
        notes=tuple(f"{n['text']} ({n['count']:,})" for n in m.notes),
        findings=_findings_of_changed(ds),
        errors=errors if errors.exists() else None,
    )


def _findings_of_changed(ds: Dataset) -> tuple[Finding, ...]:
    """Return findings about new and changed fields; checks of the source report the others."""
    changed = {n for step in ds.manifest.provenance[-1:] for n in step["changed"]}
    about = (f for f in manifest_findings(ds) if f.severity != "note" and f.check != "defects")
    return ranked(f for f in about if f.field is not None and f.field in changed)
