"""What the quick checks find when a dataset is made, written among the notes of its manifest before it is published."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rlds_cli.checks.findings import Finding, as_note
from rlds_cli.checks.running import CHECKS, manifest_findings
from rlds_cli.checks.subject import Subject
from rlds_cli.dataset import Dataset
from rlds_cli.store import sealing
from rlds_cli.store.manifest import Manifest
from rlds_cli.store.opening import Store

# Of what the registry says, later versions know more; the others would say the same again and again.
_LEFT_OUT = ("defects", "next-unknown")


def record(directory: Path) -> Manifest:
    """Add findings to the manifest of a complete dataset that is not published yet, and return it.

    Only statistics and the episode table are looked at. Where they show that something is wrong, the columns that it is
    about are read once more, to say at which episode and step.
    """
    ds = Dataset(Store(directory))
    found = [f for f in manifest_findings(ds) if f.check not in _LEFT_OUT]
    if not found:
        return ds.manifest
    wrong = {f.check for f in found if f.severity != "note"}
    located: dict[tuple[str, str | None], list[Finding]] = {}
    for name, find in CHECKS:
        for f in find(Subject(ds)) if name in wrong else ():
            located.setdefault((f.code, f.field), []).append(f)
    # Several may be of one code, such as steps and episodes that are not as many as they should be.
    better = [located.get((f.code, f.field)) for f in found]
    notes = tuple(as_note(those.pop(0) if those else f) for f, those in zip(found, better, strict=True))
    manifest = replace(ds.manifest, notes=(*ds.manifest.notes, *notes))
    sealing.write_manifest(directory, manifest)
    return manifest
