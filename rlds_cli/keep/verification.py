"""Verify datasets: their bytes and their origins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from rlds_cli import homes
from rlds_cli.base import settings
from rlds_cli.base.ids import FINGERPRINT
from rlds_cli.base.progress import Progress
from rlds_cli.base.settings import StrPath
from rlds_cli.dataset import Dataset
from rlds_cli.errors import RldsError
from rlds_cli.keep import origins
from rlds_cli.store import Problem, StoredDataset, open_store
from rlds_cli.store.integrity import Verification

_REST = "in Python ds.select(episodes=...) opens the others; rlds_cli.merge([that], ...) copies them into a new dataset"
_SHORTEST = 8  # digits that a fingerprint may be cut to


def verify(
    ref: StrPath,
    *,
    expect: str | None = None,
    jobs: int | None = None,
    home: StrPath | None = None,
    progress: Progress | bool | None = None,
) -> Verification:
    """Hash a dataset again, compare the digests, and check that its parts agree. Writes nothing.

    Parameters
    ----------
    ref : str or path
        An id on this disk, or the directory of a dataset.
    expect : str, optional
        The expected fingerprint, as ``rlds inspect`` shows it; its first digits are enough.
    jobs : int, optional
        Threads; by default up to 8.

    Raises
    ------
    DatasetNotFound, UnknownDataset
        It is not here, or has no such version. Damage raises no error: it is listed in ``problems``.
    RldsError
        ``expect`` is not a fingerprint.
    """
    wanted = None if expect is None else _digits(expect)
    named = homes.version(ref, home=home)
    path = Path(named.place)
    found = StoredDataset(path).verify(named, jobs=jobs, progress=progress)
    remarks, of_origin = origins.compare(path, found.fingerprint, home=home)
    of_packed = _check_packed(path, intact=found.ok, home=home)
    problems = [*found.problems, *of_origin, *_expected(found, wanted)]
    fix = f"rlds verify {found.id} --fix" if problems and origins.mendable(found.id, path) else None
    hint = fix or (origins.fetch_again(path) or (_REST if found.problems else None) if problems else None)
    if of_packed and not problems:
        hint = f"rlds verify {found.id} --fix deletes packed files; loaders pack them again"
    return replace(
        found,
        ok=not problems and not of_packed,
        problems=(*problems, *of_packed.values()),
        remarks=(*found.remarks, *remarks),
        hint=hint,
        packed=tuple(of_packed),
    )


def _check_packed(path: Path, *, intact: bool, home: StrPath | None) -> dict[Path, Problem]:
    """Check the files that loaders have packed from a dataset, in all homes where they may be."""
    own = path.absolute().parents
    roots = [*(own[2:3] if len(own) > 2 else ()), *settings.read(home).homes, settings.read().home]
    there = [root for root in dict.fromkeys(roots) if (root / "packed").is_dir()]
    if not there:
        return {}
    from rlds_cli.loader import check_packed  # slow to import

    try:
        found = check_packed(Dataset(open_store(path, check=False)), there, intact=intact)
    except (RldsError, OSError, ValueError, KeyError):
        return {}  # the check of the dataset itself reports it
    return {file: Problem(f"packed {file.name}", what) for file, what in found.items()}


def _digits(expect: str) -> str:
    digits = _without_prefix(expect.strip().lower()).replace("-", "")
    if not _SHORTEST <= len(digits) <= 64 or set(digits) - set("0123456789abcdef"):
        raise RldsError(f'"{expect}" is not a fingerprint.', hint="as in rlds1:7c1f-09ab-55e2, or all 64 digits")
    return digits


def _without_prefix(fingerprint: str) -> str:
    return fingerprint.removeprefix(FINGERPRINT)


def _expected(found: Verification, wanted: str | None) -> Iterable[Problem]:
    now = found.fingerprint or ""
    if wanted is None or _without_prefix(now).startswith(wanted):
        return []
    return [Problem("fingerprint", f"is {now or 'unknown'}; {FINGERPRINT}{wanted} expected")]


def verify_all(
    refs: Sequence[str] = (),
    *,
    all_: bool = False,
    expect: str | None = None,
    jobs: int | None = None,
    home: StrPath | None = None,
    progress: Progress | bool | None = None,
) -> tuple[Verification, ...]:
    """Verify several datasets. Globs match datasets on this disk; ``all_`` takes all of them."""
    found = homes.versions(refs, all_=all_, home=home)
    if expect is not None and len(found) != 1:
        raise RldsError(f"One fingerprint cannot match {len(found)} datasets.", hint="--expect takes one ID")
    how = {"expect": expect, "jobs": jobs, "home": home, "progress": progress}
    return tuple(verify(str(ref), **how) for ref in found)  # type: ignore[arg-type]
