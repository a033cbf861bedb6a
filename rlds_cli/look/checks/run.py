"""Run the checks: all of them over the rows of a dataset, or the quick part over its manifest.

To add a check, write a function of a `Subject` that yields findings, and name it in ``CHECKS``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rlds_cli.base import settings
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.progress import Event, Progress, shown
from rlds_cli.base.settings import StrPath
from rlds_cli.dataset import Dataset, open_dataset
from rlds_cli.homes import Home, writing
from rlds_cli.look.checks import ages, alignment, episodes, frames, source, values
from rlds_cli.look.checks.findings import Finding, as_note, number, of_note, ranked
from rlds_cli.look.checks.subject import Skipped, Subject
from rlds_cli.store import Manifest, open_store

if TYPE_CHECKING:
    from rlds_cli.look.checks.check_report import CheckReport

Check = Callable[[Subject], Iterator[Finding]]
# The names of the checks, in the order in which they run. `defects` is last: it names only defects that no other
# finding shows.
CHECKS: tuple[tuple[str, Check], ...] = (
    ("finite", values.not_finite),
    ("frames", frames.frames),
    ("ages", ages.ages),
    ("constant", values.constant),
    ("saturated", values.saturated),
    ("bounds", values.out_of_bounds),
    ("continuity", values.jumps),
    ("boundaries", episodes.boundaries),
    ("seams", alignment.seams),
    ("empty", alignment.empty_rows),
    ("duplicates", episodes.repeats),
    ("flags", episodes.flags),
    ("limits", episodes.time_limits),
    ("counts", source.counts),
    ("next-unknown", episodes.next_unknown),
    ("rewards", episodes.isolated_rewards),
    ("alignment", alignment.early_rewards),
    ("defects", source.defects),
)
# Checks that find nothing unless they read rows.
_OF_ROWS = frozenset({"frames", "saturated", "continuity", "seams", "empty", "duplicates", "rewards", "alignment"})
# Checks whose findings are not written into manifests: later registries know more defects, and for most datasets
# "next-unknown" only repeats their counts.
_NOT_RECORDED = ("defects", "next-unknown")


def check(
    ref: str | os.PathLike[str] | Dataset,
    *,
    quick: bool = False,
    home: StrPath | None = None,
    progress: Progress | bool | None = None,
) -> CheckReport:
    """Run every check on a dataset, in bounded memory; each check reads the columns that it needs once.

    Parameters
    ----------
    ref : str, path or Dataset
        An id, the directory of a dataset, or an open one (always checked as a whole).
    quick : bool
        Read the manifest and the episode table only, and no rows.

    Raises
    ------
    DatasetNotFound, DamagedDataset, NewerFormat
        As of ``open_dataset``.

    Examples
    --------
    >>> [f.code for f in check("d4rl/antmaze-umaze-diverse-v2").findings]  # doctest: +SKIP
    ['terminated-inside', 'reward-isolated', 'next-unknown']
    """
    ds = ref if isinstance(ref, Dataset) else open_dataset(ref, home=home)
    if quick:
        return _quick(ds)
    s, tell = Subject(Dataset(ds.store)), ds.store.files.watched(shown(progress))
    found, ok, skipped = list[Finding](), list[str](), dict[str, str]()
    for k, (name, find) in enumerate(CHECKS):
        tell(Event(ds.id, "check", "", ds.num_steps * k // len(CHECKS), ds.num_steps, "steps"))  # each reads all
        try:
            of_this = list(_named(name, find, s))
        except Skipped as e:
            skipped[name] = str(e)
            continue
        found += of_this
        if not of_this:
            ok.append(name)
    return _report(ds, ranked([*found, *_reader_notes(ds)]), tuple(ok), skipped)


def _quick(ds: Dataset) -> CheckReport:
    return _report(ds, quick(ds), (), {"rows": "none was read"})


def _report(ds: Dataset, findings: tuple[Finding, ...], ok: tuple[str, ...], skipped: dict[str, str]) -> CheckReport:
    from rlds_cli.look.checks.check_report import CheckReport

    return CheckReport(
        id=ds.id,
        version=ds.version,
        path=ds.path,
        fingerprint=Dataset(ds.store).fingerprint,
        errors=number(findings, "error"),
        warnings=number(findings, "warning"),
        notes=number(findings, "note"),
        findings=findings,
        ok=ok,
        skipped=skipped,
    )


def check_archive(
    path: StrPath,
    convert: Callable[..., Dataset],
    *,
    home: StrPath | None = None,
    progress: Progress | bool | None = None,
) -> CheckReport:
    """Check a file, a directory or a glob of files: a temporary dataset is made of it, checked, and removed.

    Parameters
    ----------
    convert : callable
        ``import_files``, or another function with its signature.

    Raises
    ------
    UnknownLayout
        No reader knows the layout.
    ArchiveError
        The archive cannot be read.
    NoSpace, NoPermission
        The home has no room for the temporary dataset, or is not writable.
    """
    import tempfile

    place = Home(settings.read(home).home)
    partial = place.root / "partial"
    with writing(place):
        safe_files.directory(partial, place.root)
        work = tempfile.TemporaryDirectory(prefix="check-", dir=partial)
    with work as directory:
        ds = convert(path, "local/archive", home=directory, progress=progress)
        return replace(check(ds, progress=progress), id=str(path), path=Path(path))


def quick(ds: Dataset, *, computed: bool = False) -> tuple[Finding, ...]:
    """Findings from the manifest and the episode table, with the places that were recorded at conversion.

    ``computed`` statistics of a growing dataset, which reads all its rows once, tell as much as recorded ones.
    """
    recorded, found = dict[tuple[str, str | None], Finding](), list[Finding]()
    for note in ds.manifest.notes:
        if "severity" in note:
            known = of_note(note)
            recorded[known.code, known.field] = known
    for f in manifest_findings(ds, computed=computed):
        known = recorded.get((f.code, f.field), f)
        # A record may be cut, where the episode table tells all episodes.
        found.append(replace(known, num_episodes=f.num_episodes, episodes=f.episodes) if f.episodes else known)
    return ranked([*found, *_reader_notes(ds)])


def manifest_findings(ds: Dataset, *, without: Collection[str] = (), computed: bool = False) -> Iterator[Finding]:
    """Run the quick part of all checks but those ``without`` on the manifest and the episode table; see `quick`."""
    s = Subject(Dataset(ds.store), thorough=False, computed=computed)
    for name, find in CHECKS:
        if name not in _OF_ROWS and name not in without:
            with suppress(Skipped):
                yield from _named(name, find, s)


def _named(name: str, find: Check, s: Subject) -> Iterator[Finding]:
    return (replace(f, check=name) for f in find(s))


def _reader_notes(ds: Dataset) -> list[Finding]:
    return [of_note(n) for n in ds.manifest.reader_notes]


def record_findings(directory: Path) -> Manifest:
    """Add findings to the manifest of a complete dataset that is not published yet, and return the manifest.

    The quick checks run first. Rows are read only for checks that have found an error or a warning, to name the
    episodes and steps.
    """
    ds = Dataset(open_store(directory))
    found = list(manifest_findings(ds, without=_NOT_RECORDED))
    if not found:
        return ds.manifest
    wrong = {f.check for f in found if f.severity != "note"}
    located: dict[tuple[str, str | None], list[Finding]] = {}
    for name, find in CHECKS:
        for f in _named(name, find, Subject(ds)) if name in wrong else ():
            located.setdefault((f.code, f.field), []).append(f)
    # Several findings may have one code: "counts-differ" for steps and for episodes.
    better = [located.get((f.code, f.field)) for f in found]
    notes = tuple(as_note(those.pop(0) if those else f) for f, those in zip(found, better, strict=True))
    manifest = replace(ds.manifest, notes=(*ds.manifest.notes, *notes))
    manifest.write(directory)
    return manifest
