"""Datasets that an older version of their reader converted wrongly."""

from __future__ import annotations

from collections.abc import Iterator

from rlds_cli import ids
from rlds_cli.archives import faults
from rlds_cli.archives.faults import ConversionRecord
from rlds_cli.checks.findings import Finding
from rlds_cli.checks.subject import Subject
from rlds_cli.dataset import Dataset
from rlds_cli.store import arrays
from rlds_cli.store.files import component

NAME = "reader-version"


def find(s: Subject) -> Iterator[Finding]:
    """Report the faults of the reader version that made this dataset, and how to convert it again."""
    for sentence in sentences(s.ds):
        yield Finding(NAME, "old-reader", "warning", sentence)


def sentences(ds: Dataset) -> list[str]:
    """A sentence for each fault of the reader that a dataset has."""
    m = ds.manifest
    if m.provenance:
        return []
    made = ConversionRecord(
        m.reader, m.reader_version, {f.name: f.dtype for f in m.fields}, m.facts, m.options, lambda n: _text(ds, n)
    )
    found = faults.faults(made)
    version = f"converted by version {m.reader_version} of the reader {m.reader}"
    return [f"{version}, which {f.text}: {_again(m.id)}" for f in found]


def _again(id: str) -> str:
    """The command that converts the archive of a dataset again."""
    parsed = ids.parse(id)
    if parsed.family == "local":
        return f"rlds import FILES --as {id} --force"
    part = f" with the options that made @{parsed.variant}" if parsed.variant else ""
    return f"rlds download {parsed.base} --force{part}"


def _text(ds: Dataset, name: str) -> str:
    if name not in ds.manifest.metadata:
        return ""
    found = arrays.read_strings(ds.path.joinpath("metadata", *map(component, name.split("/"))))
    return found[0] if found else ""
