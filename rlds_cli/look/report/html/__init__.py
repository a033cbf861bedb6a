"""A report on a dataset as one HTML document, which fetches nothing and runs only its own script.

::

    content.gather    the content of the page: histograms of a sample, the list of episodes, some episodes to view
    render            texts and tables by templates/report.html, and the content as JSON, from which
                      templates/report.js draws the charts and the viewer
    write_page        the file, written completely or not at all; a file of another kind is not replaced
"""

from __future__ import annotations

import math
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from rlds_cli.base.citing import link
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.files.disk import is_full
from rlds_cli.base.progress import Progress
from rlds_cli.base.settings import StrPath
from rlds_cli.dataset import Dataset, open_dataset
from rlds_cli.errors import NameTaken, NoPermission, NoSpace, RldsError
from rlds_cli.look.checks.run import check
from rlds_cli.look.report import rendering
from rlds_cli.look.report.html.content import PageContent, gather
from rlds_cli.look.report.summary import summarise
from rlds_cli.ted import END_NAMES

_HEAD = 1024  # bytes at the start of a file that contain the generator of a report
GENERATOR = "rlds-report"  # the content of the meta tag by which `is_report` recognises a report
_ROWS = 25  # of a page of the table of episodes


@dataclass(frozen=True, slots=True)
class PageReport:
    """Result of `write_page`; ``path`` is None for a stream.

    ``episodes_listed`` and ``episodes_viewed`` count those in the table and in the viewer, of ``episodes``.
    """

    id: str
    path: Path | None
    bytes: int
    episodes: int
    episodes_listed: int
    episodes_viewed: int
    errors: int
    warnings: int
    notes: int


def write_page(
    ref: str | os.PathLike[str] | Dataset,
    to: StrPath | BinaryIO,
    *,
    force: bool = False,
    home: StrPath | None = None,
    progress: Progress | bool | None = None,
) -> PageReport:
    """Write a report on a dataset as one HTML file that needs neither network nor server.

    The checks read every row once, in bounded memory. Histograms are of at most 65,536 steps, the viewer has at most 32
    episodes, the table 10,000. The page marks samples.

    Parameters
    ----------
    ref : str, path or Dataset
        An id, the directory of a dataset, or an open one (always as a whole).
    to : path or binary stream
        An existing report at the path is replaced.
    force : bool
        Also replace a file that is not a report.

    Raises
    ------
    NameTaken
        ``to`` is a file of another kind.
    NoPermission, NoSpace
        The file cannot be written; an existing one is unchanged.
    RldsError
        ``to`` is a directory, or its directory does not exist.
    DatasetNotFound, DamagedDataset, NewerFormat
        As of ``open_dataset``.
    """
    path = Path(to).expanduser() if isinstance(to, str | os.PathLike) else None
    if path is not None:
        check_target(path, force=force)
    ds = ref if isinstance(ref, Dataset) else open_dataset(ref, home=home)
    content = read_content(ds, progress=progress)
    page = render(content).encode("utf-8", "replace")
    if isinstance(to, str | os.PathLike):
        _write(Path(to).expanduser(), page)
    else:
        to.write(page)
    return _report(content, path, len(page))


def read_content(ds: Dataset, *, share: float = 1.0, progress: Progress | bool | None = None) -> PageContent:
    """Summarise, check and sample a dataset for `render`; ``share`` is that of `gather`."""
    ds = Dataset(ds.store)
    return gather(ds, summarise(ds), check(ds, progress=progress), share=share)


def check_target(path: Path, *, force: bool = False) -> None:
    """Check before anything is read that a report can be written to ``path``.

    Raises
    ------
    NameTaken, NoPermission, RldsError
    """
    if path.is_dir():
        raise RldsError(f"{path} is a directory.", hint=f"--html {path / 'report.html'}")
    if not path.parent.is_dir():
        raise RldsError(f"There is no directory {path.parent}.", hint=f"mkdir -p {path.parent}")
    if path.is_file() and path.stat().st_size and not force and not is_report(path):
        raise NameTaken(f"{path} exists and is not a report of rlds.", hint="--force replaces it")


def is_report(path: Path) -> bool:
    """Recognise a report by its generator tag.

    Raises
    ------
    NoPermission
        It may not be read.
    """
    try:
        with path.open("rb") as file:
            return f'<meta name="generator" content="{GENERATOR}'.encode() in file.read(_HEAD)
    except PermissionError as e:
        raise NoPermission(f"{path} may not be read.") from e


def _write(path: Path, page: bytes) -> None:
    try:
        target = path.resolve()  # a link stays one
        if target.exists() and not stat.S_ISREG(target.stat().st_mode):
            target.write_bytes(page)  # a pipe or a device
            return
        with safe_files.replacing(target) as file:
            file.write(page)
    except PermissionError as e:
        raise NoPermission(f"{path} may not be written: {e.strerror}.") from e
    except OSError as e:
        if is_full(e):
            raise NoSpace(f"The disk of {path} is full. Nothing was written.") from e
        raise RldsError(f"{path} cannot be written: {e.strerror}.") from e


def _report(c: PageContent, path: Path | None, size: int) -> PageReport:
    return PageReport(
        id=c.summary.id,
        path=path,
        bytes=size,
        episodes=c.summary.counts.episodes,
        episodes_listed=len(c.columns[0].values),
        episodes_viewed=len(c.viewing.episodes),
        errors=c.check.errors,
        warnings=c.check.warnings,
        notes=c.check.notes,
    )


# -- the document


def render(c: PageContent) -> str:
    """Render the document."""
    return rendering.render(
        "report.html",
        title=f"{c.summary.id} · dataset report",
        generator=GENERATOR,
        scripted=True,
        c=c,
        s=c.summary,
        fields={f.name: f for f in c.summary.fields},
        viewed={e["number"] for e in c.viewing.episodes},
        listed=len(c.columns[0].values),
        rows=_ROWS,
        ends=END_NAMES,
        link=link,
        data=_script_data(c),
    )


def _script_data(c: PageContent) -> dict[str, Any]:
    """Return the data of the page's script; ``charts`` are drawn in the elements that name them."""
    n, charts = c.summary.counts, dict[str, Any]()
    charts["ends"] = {"kind": "shares", "parts": [n.terminated, n.truncated, n.cut]}
    for name, x, d in (("returns", "return", c.returns), ("lengths", "steps", c.lengths)):
        if d is not None:
            h = d.histogram
            charts[name] = {"kind": "bars", "x": x, "counts": h.counts, "low": h.low, "high": h.high}
    charts["dots"] = {"kind": "dots", "points": [(x, y, END_NAMES.index(end)) for x, y, end in c.dots]}
    for i, of in enumerate(c.spreads):
        for j, e in enumerate(of.elements):
            h, mean = e.histogram, e.mean if math.isfinite(e.mean) else None
            charts[f"{i}-{j}"] = {"kind": "small", "counts": h.counts, "low": h.low, "high": h.high, "mean": mean}
    return {
        "id": c.summary.id,
        "rows": _ROWS,
        "ends": END_NAMES,
        "splits": c.splits,
        "columns": {column.key: column.values for column in c.columns},
        "charts": charts,
        "fields": [{"name": f.name, "indices": f.indices, "hold": f.hold} for f in c.viewing.fields],
        "images": c.viewing.images,
        "episodes": c.viewing.episodes,
        "places": [(p.episode, p.step, f.severity, f.text) for f in c.check.findings for p in f.places],
    }
