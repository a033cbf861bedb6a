"""``rlds check`` with measures: findings of both kinds, those that are new since a version, and suppressed ones."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from rlds_cli.base import refs
from rlds_cli.base.progress import Progress
from rlds_cli.base.settings import StrPath
from rlds_cli.base.text import plural
from rlds_cli.dataset import Dataset, open_dataset
from rlds_cli.errors import InvalidArgument
from rlds_cli.look.checks import run
from rlds_cli.look.checks.check_report import CheckReport, MeasureSummary, SuppressedFinding
from rlds_cli.look.checks.findings import Finding, number, ranked
from rlds_cli.look.measures import catalogue, suppressing, whole
from rlds_cli.look.measures.asking import Measures
from rlds_cli.look.measures.found import findings
from rlds_cli.store import History

MEASURED, AGAINST, SPLITS = "measures", "against", "splits"  # names of checks


def check(
    ref: str | os.PathLike[str] | Dataset,
    *,
    quick: bool = False,
    measures: Iterable[str] = (),
    since: str | None = None,
    against: str | os.PathLike[str] | Dataset | None = None,
    jobs: int | None = None,
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
    measures : iterable of str
        Groups of measures, or ``"all"``: those that are not known yet are computed and kept in the home, and episodes
        that differ from their siblings are findings, too. See docs/reference/measures.md.
    since : str, optional
        A version of the dataset, ``"v3"``, or a tag: findings that it has, too, are in ``known`` of the report.
    against : str, path or Dataset, optional
        Another dataset, such as that of validation: episodes that are in both are findings. Measures of motions are
        computed for both, unless ``quick``: then equal episodes are found alone.
    jobs : int, optional
        Processes that compute measures; 0 starts none.

    Raises
    ------
    DatasetNotFound, DamagedDataset, NewerFormat
        As of ``open_dataset``.
    InvalidArgument
        There is no such group of measures, or ``against`` has no field in common with the dataset.

    Examples
    --------
    >>> [f.code for f in check("d4rl/antmaze-umaze-diverse-v2").findings]  # doctest: +SKIP
    ['terminated-inside', 'reward-isolated', 'next-unknown']
    """
    groups = catalogue.groups(measures)
    if quick and groups:
        raise InvalidArgument(
            "Measures are computed from rows, of which a quick check reads none.", hint="--measure or --quick"
        )
    ds = ref if isinstance(ref, Dataset) else open_dataset(ref, home=home)
    report = run.check(ds, quick=quick, progress=progress)
    if groups:
        report = _measured(report, ds, groups, jobs, home, progress)
    if not quick and whole.kept_apart(ds.store):
        m = Measures(Dataset(ds.store), home=home)
        report = _with(report, SPLITS, tuple(whole.in_two_splits(m, motions="labels" in groups)))
    if against is not None:
        other = against if isinstance(against, Dataset) else open_dataset(against, home=home)
        report = _against(report, ds, other, quick=quick, jobs=jobs, home=home, progress=progress)
    if since is not None:
        how = {"quick": quick, "measures": groups, "jobs": jobs, "home": home, "progress": progress}
        before = open_dataset(f"{_place(ref, ds)}#{since}", home=home)
        report = _only_new(report, ds, check(before, **how), before)  # type: ignore[arg-type]
    return _without_suppressed(report, ds, home)


def _place(ref: str | os.PathLike[str] | Dataset, ds: Dataset) -> str:
    """Return what names a dataset without a version."""
    if not isinstance(ref, Dataset):
        return str(refs.parse(str(ref)).place)
    return ds.store.address.partition("#")[0] or str(History.of(ds.path).path)


def _measured(
    report: CheckReport,
    ds: Dataset,
    groups: Sequence[catalogue.Group],
    jobs: int | None,
    home: StrPath | None,
    progress: Progress | bool | None,
) -> CheckReport:
    needed: set[str] = {*groups, "motion"} if "labels" in groups else {*groups}  # by motions, siblings are compared
    m = _computed(ds, needed, jobs, home, progress)
    found = tuple(replace(f, check=MEASURED) for f in (*findings(m, tuple(groups)), *whole.drifts(m, tuple(groups))))
    names = [x.name for x in catalogue.MEASURES if x.group in groups]
    lacking = {n: f"the dataset has no {needs}" for n in names if (needs := m.lacks(n))}
    told = tuple(_summary(m, n) for n in names if n not in lacking)
    return _with(replace(report, skipped={**report.skipped, **lacking}, measures=told), MEASURED, found)


def _computed(
    ds: Dataset,
    groups: Iterable[str],
    jobs: int | None,
    home: StrPath | None,
    progress: Progress | bool | None,
) -> Measures:
    """Compute groups of measures of the whole version."""
    Measures(Dataset(ds.store), home=home).compute(groups, jobs=jobs, progress=progress)
    return Measures(Dataset(ds.store), home=home)


def _against(
    report: CheckReport,
    ds: Dataset,
    other: Dataset,
    *,
    quick: bool,
    jobs: int | None,
    home: StrPath | None,
    progress: Progress | bool | None,
) -> CheckReport:
    """Add the findings that episodes are in another dataset as well."""
    groups = () if quick else ("motion",)
    one, two = (_computed(x, groups, jobs, home, progress) for x in (ds, other))
    found = tuple(whole.shared(one, two, motions=not quick))
    skipped = dict(report.skipped)
    if quick:
        skipped[whole.NEAR_IN_BOTH] = "no rows are read"
    elif one.roles.states != two.roles.states or not one.roles.states:
        skipped[whole.NEAR_IN_BOTH] = "the datasets have no states of the same names"
    return _with(replace(report, skipped=skipped), AGAINST, found)


def _summary(m: Measures, name: str) -> MeasureSummary:
    values = m.column(name)
    known = values[np.isfinite(values)]
    low, middle, high = np.quantile(known, [0, 0.5, 1]).tolist() if len(known) else (None, None, None)
    unit = catalogue.measure(name).unit
    return MeasureSummary(name=name, unit=unit, episodes=len(known), least=low, median=middle, greatest=high)


def _with(report: CheckReport, check: str, found: tuple[Finding, ...]) -> CheckReport:
    """Return a report with the findings of one more check."""
    ok = report.ok if found else (*report.ok, check)
    return _counted(replace(report, findings=ranked((*report.findings, *found)), ok=ok))


def _counted(report: CheckReport) -> CheckReport:
    found = report.findings
    errors, warnings, notes = (number(found, s) for s in ("error", "warning", "note"))
    return replace(report, errors=errors, warnings=warnings, notes=notes)


# -- since a version


def _only_new(report: CheckReport, ds: Dataset, before: CheckReport, earlier: Dataset) -> CheckReport:
    """Move findings to ``known`` that an earlier version has, too; of others, only new episodes are named."""
    ids = [id.tobytes() for id in ds.store.episodes["id"]]
    of_earlier = [id.tobytes() for id in earlier.store.episodes["id"]]
    held: dict[tuple[str, str | None], set[bytes]] = {}
    for f in (*before.findings, *(s.finding for s in before.suppressed)):
        held.setdefault(_key(f), set()).update(of_earlier[k] for k in f.episodes)
    new, known = list[Finding](), list[Finding]()
    for f in report.findings:
        if _key(f) not in held:
            new.append(f)
            continue
        more = tuple(k for k in f.episodes if ids[k] not in held[_key(f)])
        if not more:
            known.append(f)
            continue
        places = tuple(p for p in f.places if p.episode in more)
        ranges = tuple(r for r in f.ranges if r.episode in more)
        text = f"{f.text}; {plural(len(more), 'episode')} of them {'is' if len(more) == 1 else 'are'} new"
        new.append(
            replace(f, text=text, count=len(more), places=places, ranges=ranges, num_episodes=len(more), episodes=more)
        )
    return _counted(replace(report, findings=tuple(new), known=tuple(known), since=earlier.version))


def _key(f: Finding) -> tuple[str, str | None]:
    return f.code, None if f.check == MEASURED else f.field  # of a measure, the element is the worst of several


# -- suppressed findings


def _without_suppressed(report: CheckReport, ds: Dataset, home: StrPath | None) -> CheckReport:
    known = suppressing.read(ds.store, home)
    if not known:
        return report
    ids = [id.tobytes().hex() for id in ds.store.episodes["id"]]
    stays, gone = list[Finding](), list[SuppressedFinding]()
    for f in report.findings:
        reason = next((s.reason for s in known if s.covers(f, ids)), None)
        if reason is None:
            stays.append(f)
        else:
            gone.append(SuppressedFinding(f, reason))
    return _counted(replace(report, findings=tuple(stays), suppressed=tuple(gone)))
