"""All checks of a dataset: the quick ones from its manifest, or everything, streaming its rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rlds_cli.bars import shown
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
from rlds_cli.checks.findings import CheckReport, Finding, number, of_note, ranked
from rlds_cli.checks.subject import Skipped, Subject
from rlds_cli.dataset import Dataset, open_dataset
from rlds_cli.progress import Event, Progress
from rlds_cli.settings import StrPath

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
