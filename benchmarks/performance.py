"""The figures of the last run as tables in benchmarks/RESULTS.md, between its marks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import published
from loader import report
from loader.report import Line
from loader.session import Timed
from results import RESULTS

PAGE = Path(__file__).parent / "RESULTS.md"
START, END = "<!-- figures: written by python benchmarks --markdown -->\n", "<!-- end of figures -->\n"
PREPROCESS = "<!-- figures of preprocess: written by python benchmarks --markdown -->\n"
ARCHIVES = "<!-- figures of archives: written by python benchmarks --markdown -->\n"
IMPORTS = "<!-- figures of imports: written by python benchmarks --markdown -->\n"
FORMATS = "<!-- figures of formats: written by python benchmarks --markdown -->\n"
GROWTH = "<!-- figures of growth: written by python benchmarks --markdown -->\n"
GROWING = "<!-- figures of growing: written by python benchmarks --markdown -->\n"
SHARING = "<!-- figures of sharing: written by python benchmarks --markdown -->\n"
VIDEO = "<!-- figures of video: written by python benchmarks --markdown -->\n"
REMOTE = "<!-- figures of remote: written by python benchmarks --markdown -->\n"
HEADER = ("work", "ours", "peer", "its figure", "ratio", "ratio, two threads", "aim", "")


def write() -> None:
    """Put the tables of what was measured in place of those that are there, and the run beside the earlier ones."""
    for name in ("loader", "formats"):
        if (RESULTS / f"{name}.json").exists():
            published.keep(json.loads((RESULTS / f"{name}.json").read_text()))
    if (RESULTS / "growth.json").exists():
        shutil.copyfile(RESULTS / "growth.json", published.GROWTH)
    published.write()
    places = (
        (START, "loader", tables),
        (FORMATS, "formats", formats),
        (PREPROCESS, "preprocess", preprocess_tables),
        (ARCHIVES, "images", archives),
        (IMPORTS, "imports", partial(single, "imports", "benchmarks/imports.py")),
        (GROWTH, "growth", partial(single, "growth", "benchmarks/growth.py")),
        (GROWING, "growing", partial(single, "growing", "make bench-grow")),
        (SHARING, "sharing", partial(single, "sharing", "make bench-share")),
        (VIDEO, "video", partial(single, "video", "make bench-video")),
        (REMOTE, "remote", partial(single, "remote", "make bench-remote")),
    )
    for start, name, made in places:
        if (RESULTS / f"{name}.json").exists():
            before, _, rest = PAGE.read_text().partition(start)
            _, _, after = rest.partition(END)
            PAGE.write_text(f"{before}{start}\n{made()}\n\n{END}{after}")


def tables() -> str:
    """All tables as Markdown."""
    run = json.loads((RESULTS / "loader.json").read_text())
    parts = [_about(run), *_summaries(run["rows"]), "### Every case", _LEGEND, *_cases(run["rows"])]
    for name in ("conversion", "download", "startup"):
        file = RESULTS / f"{name}.json"
        if file.exists():
            found = json.loads(file.read_text())
            load = f"; load average before the run: {found['load']:.1f}" if "load" in found else ""
            parts += [f"### {name.capitalize()}", f"{found['when'][:10]}{load}.", _plain(found["rows"])]
    return "\n\n".join(parts)


def formats() -> str:
    """The tables of formats and their loaders."""
    run = json.loads((RESULTS / "formats.json").read_text())
    return "\n\n".join([_about(run), *_summaries(run["rows"]), *_cases(run["rows"])])


def archives() -> str:
    """The tables of readers of archives: images, and TFRecords where they were measured."""
    parts = []
    for name, title in (("images", "Images"), ("records", "TFRecords")):
        if (RESULTS / f"{name}.json").exists():
            run = json.loads((RESULTS / f"{name}.json").read_text())
            parts += [f"### {title}", _about(run, "make bench-convert"), _plain(run["rows"])]
    return "\n\n".join(parts)


def single(name: str, command: str) -> str:
    """The table of a benchmark with one."""
    run = json.loads((RESULTS / f"{name}.json").read_text())
    return "\n\n".join([_about(run, command), _plain(run["rows"])])


def preprocess_tables() -> str:
    """The tables of preprocess and inspect."""
    run = json.loads((RESULTS / "preprocess.json").read_text())
    parts = [_about(run, "make bench-preprocess")]
    for g in run["rows"]:
        lines = [Line(**row).cells() for row in g["rows"]]
        parts += [f"### {g['title']}", report.markdown(report.HEADER, lines), g["note"]]
    return "\n\n".join(parts)


_LEGEND = (
    "Median and best of the rounds; the memory that a case adds to its process, in MiB: anonymous (RssAnon), which"
    " belongs to the process alone, and mapped (RssFile), which processes share; page faults of one call. The cases of"
    " a library run in one process one after the other; memory that the first one loads is counted for it alone."
)


def _about(run: dict[str, Any], command: str = "make bench") -> str:
    where = f"{run['machine']}, Python {run['python']}"
    return f"`{command}` on {where}, {run['when'][:10]}; load average before the run: {run['load']:.1f}."


def _summaries(groups: list[dict[str, Any]]) -> Iterator[str]:
    """One table per group, with what two threads change beside it."""
    for one in groups:
        if one["threads"] not in (None, 1):
            continue
        two = next((g for g in groups if g["group"] == one["group"] and g["threads"] == 2), None)
        yield f"### {one['title'][0].upper()}{one['title'][1:]}"
        others = two["rows"] if two else [None] * len(one["rows"])
        rows = [_merged(Line(**a), b and Line(**b)) for a, b in zip(one["rows"], others, strict=True)]
        if not two:
            rows = [r[:5] + r[6:] for r in rows]
        yield report.markdown(HEADER if two else HEADER[:5] + HEADER[6:], rows)
        if one["note"]:
            yield one["note"]


def _merged(one: Line, two: Line | None) -> tuple[str, ...]:
    work, ours, peer, figure, ratio, aim, verdict = one.cells()
    beside = "" if two is None else two.cells()[4] or two.cells()[1]
    if two is not None and two.verdict != one.verdict:
        verdict = f"{verdict}; two threads: {two.verdict}"
    return work, ours, peer, figure, ratio, beside, aim, verdict


def _cases(groups: list[dict[str, Any]]) -> Iterator[str]:
    for g in groups:
        threads = "" if g["threads"] is None else f", {g['threads']} thread{'s' if g['threads'] > 1 else ''}"
        yield f"**{g['title']}{threads}**"
        yield report.markdown(report.CASES, report.case_rows({k: Timed(**t) for k, t in g["cases"].items()}))


def _plain(rows: list[dict[str, Any]]) -> str:
    cells = [(str(r["what"]), f"{r['value']:,.3g} {r['unit']}", str(r["note"])) for r in rows]
    return report.markdown(("", "", ""), cells)
