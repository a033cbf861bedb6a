"""All checks of a dataset: the quick ones from its manifest, or everything, streaming its rows.

What the quick checks find when a dataset is made, written among the notes of its manifest before it is published.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlds_cli.checks import (
    boundaries,
    bounds,
    constant,
    continuity,
    counts,
    defects,
    duplicates,
    finite,
    flags,
    limits,
    outdated,
    rewards,
    saturated,
    unknown,
)
from rlds_cli.checks.findings import CheckReport, Finding, as_note, number, of_note, ranked
from rlds_cli.checks.subject import Skipped, Subject
from rlds_cli.dataset import Dataset, open_dataset
from rlds_cli.progress import Event, Progress, shown
from rlds_cli.settings import StrPath
from rlds_cli.store import sealing
from rlds_cli.store.manifest import Manifest
from rlds_cli.store.opening import Store

Check = Callable[[Subject], Iterator[Finding]]
# In the order in which they are named; `defects` last, as it leaves out what another finding shows.
CHECKS: tuple[tuple[str, Check], ...] = tuple(
    (module.NAME, module.find)
    for module in (
        *(finite, constant, saturated, bounds, continuity, boundaries, duplicates),
        *(flags, limits, counts, unknown, rewards, outdated, defects),
    )
)


def check(
    ref: str | os.PathLike[str] | Dataset, *, cache_dir: StrPath | None = None, progress: Progress | bool | None = None
) -> CheckReport:
    """Run every check on a dataset: each column that one needs is read once, in bounded memory.

    Parameters
    ----------
    ref : str, path or Dataset
        An id, the directory of a dataset, or an open one (always checked as a whole).

    Raises
    ------
    DatasetNotFound, DamagedDataset, NewerFormat
        As of ``open_dataset``.

    Examples
    --------
    >>> [f.code for f in check("d4rl/antmaze-umaze-diverse-v2").findings]  # doctest: +SKIP
    ['terminated-inside', 'reward-isolated', 'next-unknown']
    """
    ds = ref if isinstance(ref, Dataset) else open_dataset(ref, cache_dir=cache_dir)
    s, tell = Subject(Dataset(ds.store)), shown(progress)
    found, ok, skipped = list[Finding](), list[str](), dict[str, str]()
    for k, (name, find) in enumerate(CHECKS):
        tell(Event(ds.id, "check", "", k, len(CHECKS), "checks"))
        try:
            of_this = list(find(s))
        except Skipped as e:
            skipped[name] = str(e)
            continue
        found += of_this
        if not of_this:
            ok.append(name)
    findings = ranked([*found, *_of_reader(ds)])
    return CheckReport(
        id=ds.id,
        path=ds.path,
        fingerprint=Dataset(ds.store).fingerprint,
        errors=number(findings, "error"),
        warnings=number(findings, "warning"),
        notes=number(findings, "note"),
        findings=findings,
        ok=tuple(ok),
        skipped=skipped,
    )


def quick(ds: Dataset) -> tuple[Finding, ...]:
    """What manifest and episode table tell at once, and what was found when the dataset was made."""
    stored = {(f.code, f.field): f for f in map(of_note, _checked(ds))}
    found = [stored.get((f.code, f.field), f) for f in manifest_findings(ds)]
    return ranked([*found, *_of_reader(ds)])


def manifest_findings(ds: Dataset) -> Iterator[Finding]:
    """The quick part of every check, as the manifest and the episode table are now."""
    s = Subject(Dataset(ds.store), thorough=False)
    for _, find in CHECKS:
        try:
            yield from find(s)
        except Skipped:
            continue


def _checked(ds: Dataset) -> list[Mapping[str, Any]]:
    return [n for n in ds.manifest.notes if "severity" in n]


def _of_reader(ds: Dataset) -> list[Finding]:
    return [of_note(n) for n in ds.manifest.notes if "severity" not in n]


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
