"""``rlds inspect ID``: one dataset on one page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table

from rlds_cli import sizes
from rlds_cli.cli import out
from rlds_cli.cli.pages.figures import figure, fitting, grid, line, number, plain, shape
from rlds_cli.cli.render import note_line
from rlds_cli.hashing import short
from rlds_cli.report.columns import FieldSummary
from rlds_cli.report.histograms import Distribution, sparkline
from rlds_cli.report.summaries import Summary

_NARROW = ("FIELD", "DTYPE", "SHAPE", "MIN", "MAX")
_MEDIUM = ("FIELD", "AT", "DTYPE", "SHAPE", "SIZE", "MIN", "MAX", "")
_ALL = ("FIELD", "AT", "DTYPE", "SHAPE", "SIZE", "MEAN", "STD", "MIN", "MAX", "")
# Columns and the width of histograms: the first that fits is taken.
_DETAIL = (
    (_ALL, 16),
    (_ALL, 8),
    (_MEDIUM, 8),
    (_MEDIUM, 0),
    (_MEDIUM[:-1], 0),
    (_NARROW, 0),
    (("FIELD", "MIN", "MAX"), 0),
)
_LEFT = ("FIELD", "AT", "DTYPE", "SHAPE", "")
_NAMES = 40  # characters of the names of fields that share a line; the others are counted


class SummaryPage:
    """The page of a dataset; rich asks it for its lines."""

    def __init__(self, summary: Summary) -> None:
        self.summary = summary

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        s, ascii_only = self.summary, options.ascii_only
        yield line(console, _heading(s), "bold")
        yield line(console, _counts(s))
        fields = fitting(console, options, [partial(_fields, s, names, w, ascii_only) for names, w in _DETAIL])
        yield fields
        yield from (line(console, text, "dim") for text in _below(s, remarks=fields.columns[-1].header == ""))
        if any(f.elements for f in s.fields):
            yield fitting(console, options, [partial(_elements, s)])
        yield fitting(console, options, [partial(_distributions, s, w, ascii_only) for w in (16, 8, 0)])
        yield from (line(console, text) for text in _more(s))


def _heading(s: Summary) -> str:
    return "   ".join([s.id, short(s.fingerprint), out.size(s.bytes), s.encoding, *_source(s)])


def _source(s: Summary) -> list[str]:
    first = s.archive.get("first") or {}
    if not first:
        return [f"made by {s.reader}"] if s.reader == "create" else []
    more = s.archive.get("files", 1) - 1
    sha = s.archive.get("sha256")
    return [f"from {first.get('file')}{f' and {more} more' if more else ''}{f' (sha256 {sha[:8]}…)' if sha else ''}"]


def _counts(s: Summary) -> str:
    c = s.counts
    kinds = [(c.terminated, "terminated"), (c.truncated, "truncated"), (c.cut, "cut")]
    ends = ", ".join(f"{n:,} {kind}" for n, kind in kinds if n)
    inside = f"   {c.terminated_inside:,} terminated steps inside episodes" if c.terminated_inside else ""
    episodes = sizes.plural(c.episodes, "episode") + (f": {ends}" if ends else "")
    steps, transitions = sizes.plural(c.steps, "step"), sizes.plural(c.transitions, "transition")
    return f"{steps}   {episodes}   {transitions} ({_final(s)}){inside}"


def _final(s: Summary) -> str:
    known, of = s.counts.final_observations, s.counts.episodes
    if known == of:
        return "final observations recorded"
    return f"final observations recorded for {known:,}" if known else "no final observations recorded"


def _fields(s: Summary, names: Sequence[str], width: int, ascii_only: bool) -> Table:
    table = grid((name, "left" if name in _LEFT else "right") for name in names)
    for group in _groups(s):
        cells = _cells(group, width, ascii_only)
        table.add_row(*(plain(cells.get(name, "")) for name in names))
    return table


def _groups(s: Summary) -> list[list[FieldSummary]]:
    """Fields one by one; of those that a loader leaves out, the like ones together."""
    groups: dict[object, list[FieldSummary]] = {}
    for f in s.fields:
        alike = (f.placement, f.dtype, f.shape, f.kind) if not f.default and f.elements is None else f.name
        groups.setdefault(alike, []).append(f)
    return list(groups.values())


def _cells(group: Sequence[FieldSummary], width: int, ascii_only: bool) -> dict[str, str]:
    f = group[0]
    cells = {
        "FIELD": _names(group),
        "AT": f.placement,
        "DTYPE": f.codec or ("text" if f.kind == "text" else f.dtype),
        "SHAPE": shape(f.shape),
        "SIZE": out.size(sum(g.bytes for g in group)),
    }
    if len(group) > 1:
        return cells
    if f.mean is not None:
        cells |= {"MEAN": number(f.mean), "STD": number(f.std), "MIN": number(f.min, f.dtype)}
        cells["MAX"] = number(f.max, f.dtype)
    chart = sparkline(f.histogram.counts, width=width, ascii_only=ascii_only) if width and f.histogram else ""
    return cells | {"": f"{chart.ljust(width)}  {_remark(f)}".rstrip() if width else _remark(f)}


def _names(group: Sequence[FieldSummary]) -> str:
    names = [f.name for f in group]
    shown = max(k for k in range(1, len(names) + 1) if k == 1 or len(", ".join(names[:k])) <= _NAMES)
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f", {more} more" if more else "")


def _remark(f: FieldSummary) -> str:
    remarks = [f"{100 * f.saturation.share:.0f} % saturated"] if f.saturation else []
    remarks += [f"{f.nonfinite:,} not finite"] if f.nonfinite else []
    remarks += [sizes.plural(f.distinct, "text")] if f.distinct is not None else []
    return ", ".join(remarks)


def _below(s: Summary, *, remarks: bool) -> Iterator[str]:
    extra = [f.name for f in s.fields if not f.default]
    if extra:
        names = ", ".join(extra[:3]) + (", ..." if len(extra) > 3 else "")
        yield f'not loaded by default: {names}   extra=("{extra[0]}",)'
    found = next((f.saturation for f in s.fields if f.saturation), None)
    if found and remarks:
        bounds = "the bounds of the action space" if found.of == "space" else "the least or greatest value"
        steps = sizes.plural(found.steps, "step")
        yield f"saturated: share of {steps} with an element at {bounds} (within 0.1 % of the range)"


def _elements(s: Summary) -> Table:
    headings = ("MEAN", "STD", "MIN", "1 %", "99 %", "MAX")
    table = grid([("ELEMENT", "left"), *((h, "right") for h in headings)])
    for f in s.fields:
        for e in f.elements or ():
            values = (e.mean, e.std, e.min, e.q01, e.q99, e.max)
            table.add_row(plain(f"{f.name}{e.index}"), *(plain(number(v, "float64")) for v in values))
    return table


def _distributions(s: Summary, width: int, ascii_only: bool) -> Table:
    table = grid([("", "left")] * 4)
    for name, found, score in (("returns", s.returns, s.scores), ("lengths", s.lengths, None)):
        if found is None:
            continue
        chart = sparkline(found.histogram.counts, width=width, ascii_only=ascii_only) if width else ""
        scored = f"score {_three(score, ascii_only)}" if score else ""
        table.add_row(*(plain(cell) for cell in (name, chart, _three(found, ascii_only), scored)))
    return table


def _three(d: Distribution, ascii_only: bool) -> str:
    return (" .. " if ascii_only else " … ").join(figure(x) for x in (d.min, d.median, d.max))


def _made(step: Mapping[str, Any]) -> str:
    """One step of the chain that made a derived dataset."""
    args = ", ".join(f"{k}={v}" for k, v in (step.get("args") or {}).items())
    function = f"{step.get('reference') or step.get('function')}{f' ({args})' if args else ''}"
    source = short(str(step.get("source", "")).partition("+")[0])
    return f"made by  {function}, unit {step.get('unit')}, from {step.get('from')} ({source})"


def _more(s: Summary) -> Iterator[str]:
    if s.env_id:
        yield f"environment  {s.env_id}"
    if s.splits:
        yield "splits  " + ", ".join(f"{name} {sizes.plural(n, 'episode')}" for name, n in s.splits.items())
    if s.metadata:
        more = len(s.metadata) - 4
        yield f"metadata  {', '.join(s.metadata[:4])}{f', {more} more' if more > 0 else ''}"
    for step in s.provenance:
        yield _made(step)
    if s.shared:
        how = {kind: [n for n, h in s.shared.items() if h == kind] for kind in ("link", "reflink", "copy")}
        yield "shared with its source  " + "; ".join(f"by {k}: {', '.join(v)}" for k, v in how.items() if v)
    for note in s.notes:
        yield f"note: {note_line(note['text'], note['count'], note['where'])}"
