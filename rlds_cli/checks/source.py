"""Checks against what is known of the source: its counts, its defects, and faults of the reader that converted it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rlds_cli import ids
from rlds_cli.archives import faults
from rlds_cli.archives.faults import ConversionRecord
from rlds_cli.checks.findings import Finding, finding
from rlds_cli.checks.subject import Skipped, Subject
from rlds_cli.registry import short
from rlds_cli.store import arrays
from rlds_cli.store.paths import component

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset


def counts(s: Subject) -> Iterator[Finding]:
    """Compare the numbers of steps and episodes with those in the registry."""
    registered = {"steps": s.entry.num_steps, "episodes": s.entry.num_episodes} if s.entry else {}
    if not s.is_original:
        raise Skipped("this is not the whole archive")
    if not any(registered.values()):
        raise Skipped("the registry does not say how many steps and episodes there are")
    for what, expected in registered.items():
        found = getattr(s.ds.manifest.counts, what)
        if expected and found != expected:
            text = f"{found:,} {what} are here; the registry says {expected:,}"
            known = s.known("counts-differ")
            yield finding("counts-differ", "warning", text, abs(found - expected), known=known)


def reader_version(s: Subject) -> Iterator[Finding]:
    """Report the faults of the reader version that converted this dataset, and how to convert it again."""
    for sentence in reader_faults(s.ds):
        yield finding("old-reader", "warning", sentence)


def reader_faults(ds: Dataset) -> list[str]:
    """One sentence for each fault that an older version of the reader left in a dataset."""
    m = ds.manifest
    if m.provenance:
        return []
    made = ConversionRecord(
        m.reader,
        m.reader_version,
        {f.name: f.dtype for f in m.fields},
        m.facts,
        m.options,
        lambda n: _metadata_text(ds, n),
    )
    found = faults.faults(made)
    version = f"converted by version {m.reader_version} of the reader {m.reader}"
    return [f"{version}, which {f.text}: {_convert_again(m.id)}" for f in found]


def _convert_again(id: str) -> str:
    """The command that converts the archive of a dataset again."""
    parsed = ids.parse(id)
    if parsed.family == "local":
        return f"rlds import FILES --as {id} --force"
    part = f" with the options that made @{parsed.variant}" if parsed.variant else ""
    return f"rlds download {parsed.base} --force{part}"


def _metadata_text(ds: Dataset, name: str) -> str:
    if name not in ds.manifest.metadata:
        return ""
    found = arrays.read_strings(ds.store.beside("metadata", *map(component, name.split("/"))))
    return found[0] if found else ""


def defects(s: Subject) -> Iterator[Finding]:
    """Name the known defects of the source that no other finding shows: it must be the last check."""
    for d in s.entry.defects if s.entry else ():
        if d.code not in s.explained:
            yield finding(d.code, "note", d.text, known=tuple(map(short, d.refs)))
