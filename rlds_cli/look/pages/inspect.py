"""The pages of ``rlds inspect``: a dataset, with ``--stats`` every element of its rows, one ``--episode``, or a file.

Fields form a tree: nested fields stand below their common name, and similar ones share a line.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from rlds_cli.base import refs, text
from rlds_cli.base.figures import figure, number, shape, space_text
from rlds_cli.base.files.hashing import short
from rlds_cli.look.checks.findings import SEVERITIES
from rlds_cli.look.pages import Grid, fitting, line, plain
from rlds_cli.look.pages.checks import findings, tally
from rlds_cli.look.report.columns import Distribution, OwnColumn, resample, sparkline, trace

if TYPE_CHECKING:
    from rlds_cli.look.report.episode import EpisodeReport, FieldTrace
    from rlds_cli.look.report.summary import FieldSummary, Summary

_DESCRIPTION = 240
_SPACES = 300
_LONGEST = 40  # characters of a value of an episode column
_KINDS = ("terminated", "truncated", "cut")
_SHADES = {False: "█▓░", True: "#+."}
_NARROW = ("FIELD", "DTYPE", "SHAPE", "MIN", "MAX")
_MEDIUM = ("FIELD", "DTYPE", "SHAPE", "MEAN", "STD", "MIN", "MAX", "")
_ALL = ("FIELD", "AT", "DTYPE", "SHAPE", "SIZE", "MEAN", "STD", "MIN", "MAX", "")
# Columns and the width of histograms: the first that fits is taken.
DETAIL = (
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
_FLAT = ("next",)  # rewards and flags are known by their whole names
_STATISTICS = ("MEAN", "STD", "MIN", "1 %", "99 %", "MAX")
# Columns and the width of histograms: the first that fits is taken.
ELEMENT_DETAIL = (
    (_STATISTICS, 16),
    (_STATISTICS, 8),
    (_STATISTICS, 0),
    (("MEAN", "MIN", "MAX"), 0),
    (("MIN", "MAX"), 0),
)
# Width of the curves, and whether first and last values are shown: the first that fits is taken.
_DETAIL = ((64, True), (48, True), (32, True), (32, False), (16, False))


class SummaryPage:
    """The page of a dataset; ``address`` is where it is, if it is not here, and ``ref`` names it as it was typed."""

    def __init__(self, summary: Summary, address: str | None = None, ref: str = "") -> None:
        self.summary, self.address, self.ref = summary, address, ref

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        s, ascii_only = self.summary, options.ascii_only
        yield line(console, _heading(s, self.ref), "bold")
        yield from (line(console, text) for text in (*_about(s), *_growing(s), _counts(s)))
        tables = [partial(field_table, s.fields, names, w, ascii_only) for names, w in DETAIL]
        table = fitting(options, tables)
        yield table
        yield from (line(console, text, "dim") for text in _below(s, remarks=not table.columns[-1][0]))
        if any(f.elements for f in s.fields):
            yield fitting(
                options, [partial(element_table, s.fields, names, w, ascii_only) for names, w in ELEMENT_DETAIL]
            )
        yield fitting(options, [partial(_distributions, s, w, ascii_only) for w in (16, 8, 0)])
        yield from (line(console, text) for text in (*_ends(s, 16, ascii_only), *_more(s)))
        if s.findings:
            yield findings(console, options, s.findings)
        yield line(console, _verdict(s, self.address or self.ref or s.id), "dim")


def _heading(s: Summary, ref: str) -> str:
    named = f"{s.id}#v{s.version}" if s.tags else refs.named(s.id, s.version, ref)
    named += f" [{', '.join(s.tags)}]" if s.tags else ""
    return "   ".join([named, short(s.fingerprint), text.size_of(s.bytes), s.encoding, *_source(s)])


def _growing(s: Summary) -> Iterator[str]:
    if s.keeps is not None:
        yield f"grows, and keeps {s.keeps}"


def _about(s: Summary) -> Iterator[str]:
    """Environment, algorithm, description, licence and source, in a few lines."""
    a = s.about
    limit = f", at most {a.max_episode_steps:,} steps" if a.max_episode_steps else ""
    what = [f"{a.env_id}{limit}"] if a.env_id else []
    what += [f"algorithm: {a.algorithm}" + (f" ({a.author})" if a.author else "")] if a.algorithm else []
    if what:
        yield "   ".join(what)
    if a.portion:
        yield f"a part of the archive: {a.portion}"
    if a.description and a.description not in s.id:
        yield textwrap.shorten(a.description, _DESCRIPTION, placeholder=" ...")
    legal = [f"licence {a.licence}"] if a.licence else []
    legal += [f"paper {a.paper}"] if a.paper else []
    if legal:
        yield "   ".join([*legal, *([f"from {a.source}"] if a.source else [])])


def _verdict(s: Summary, ref: str) -> str:
    counted = (sum(f.severity == kind for f in s.findings) for kind in SEVERITIES)
    return f"{tally(*counted)} in the manifest; rlds check {ref} also reads the rows"


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
    episodes = text.plural(c.episodes, "episode") + (f": {ends}" if ends else "")
    steps, transitions = text.plural(c.steps, "step"), text.plural(c.transitions, "transition")
    return f"{steps}   {episodes}   {transitions} ({_final(s)}){inside}"


def _final(s: Summary) -> str:
    known, of = s.counts.final_observations, s.counts.episodes
    if known == of:
        return "final observations recorded"
    return f"final observations recorded for {known:,}" if known else "no final observations recorded"


def _below(s: Summary, *, remarks: bool) -> Iterator[str]:
    extra = [f.name for f in s.fields if not f.default]
    if extra:
        names = ", ".join(extra[:3]) + (", ..." if len(extra) > 3 else "")
        yield f'not loaded by default: {names}   fields=[..., "{extra[0]}"]'
    found = next((f.saturation for f in s.fields if f.saturation), None)
    if found and remarks:
        bounds = "the bounds of the action space" if found.of == "space" else "the least or greatest value"
        steps = text.plural(found.steps, "step")
        yield f"saturated: share of {steps} with an element at {bounds} (within 0.1 % of the range)"


def _distributions(s: Summary, width: int, ascii_only: bool) -> Grid:
    table = Grid([("", "left")] * 4)
    for name, found, score in (("returns", s.returns, s.scores), ("lengths", s.lengths, None)):
        if found is None:
            continue
        chart = sparkline(found.histogram.counts, width=width, ascii_only=ascii_only) if width else ""
        scored = f"score {_three(score, ascii_only)}" if score else ""
        table.add_row(*(plain(cell) for cell in (name, chart, _three(found, ascii_only), scored)))
    return table


def _ends(s: Summary, width: int, ascii_only: bool) -> Iterator[str]:
    """Shares of the kinds of episode ends, if there are several."""
    total, c = s.counts.episodes, s.counts
    kinds = list(zip(_KINDS, (c.terminated, c.truncated, c.cut), _SHADES[ascii_only], strict=True))
    if total and len([n for _, n, _ in kinds if n]) > 1:
        bar = "".join(mark * _share(n, total, width) for _, n, mark in kinds)
        said = ", ".join(f"{100 * n / total:.0f} % {kind}" for kind, n, _ in kinds if n)
        yield f"ends     {bar}  {said}"


def _share(n: int, total: int, width: int) -> int:
    """Characters of a bar; at least one for a count that is not 0."""
    return max(1, round(width * n / total)) if n and width else 0


def _three(d: Distribution, ascii_only: bool) -> str:
    return (" .. " if ascii_only else " … ").join(figure(x) for x in (d.min, d.median, d.max))


def _made(step: Mapping[str, Any]) -> str:
    """Describe one step of the chain that made a derived dataset."""
    from rlds_cli.dataset import ProvenanceStep  # slow to import

    if ProvenanceStep(step).is_change:
        return f"made by  {ProvenanceStep(step).described()}, from {step['from']} ({short(step['source'])})"
    args = ", ".join(f"{k}={v}" for k, v in step["args"].items())
    function = f"{step['reference']}{f' ({args})' if args else ''}"
    source = short(step.get("of", step["source"]))
    reads = ", ".join(f"{name} (sha256 {sha[:12]})" for name, sha in (step.get("depends") or {}).items())
    reads = f", which reads {reads}" if reads else ""
    return f"made by  {function}{reads}, unit {step['unit']}, from {step['from']} ({source})"


def _spaces(s: Summary) -> str:
    return "; ".join(f"{name} {space_text(space)}" for name, space in s.spaces.items())


def _own_column(c: OwnColumn) -> str:
    """The values of an episode column, the most frequent first."""
    if c.distribution:
        said = _three(c.distribution, ascii_only=True)
    else:
        left = c.distinct - len(c.counts)
        named = [f"{textwrap.shorten(value, _LONGEST, placeholder='...')} {n:,}" for value, n in c.counts.items()]
        said = ", ".join([*named, *([f"{left:,} more"] if left else [])])
    return f"{c.name}: {said}" + (f" ({c.missing:,} without)" if c.missing else "")


def _more(s: Summary) -> Iterator[str]:
    if s.spaces:
        yield "spaces  " + textwrap.shorten(_spaces(s), _SPACES, placeholder=" ...")
    if s.splits:
        yield "splits  " + ", ".join(f"{name} {text.plural(n, 'episode')}" for name, n in s.splits.items())
    if s.episode_columns:
        yield "episode columns  " + "; ".join(_own_column(c) for c in s.episode_columns)
    if s.metadata:
        more = len(s.metadata) - 4
        yield f"metadata  {', '.join(s.metadata[:4])}{f', {more} more' if more > 0 else ''}"
    for step in s.provenance:
        yield _made(step)
    for source in s.refers_to:
        yield f"rows are stored in  {source}"
    if s.shared and not s.refers_to:
        how = {kind: [n for n, h in s.shared.items() if h == kind] for kind in ("link", "reflink", "copy")}
        yield "shared with its source  " + "; ".join(f"by {k}: {', '.join(v)}" for k, v in how.items() if v)


# -- the tree of fields


@dataclass(frozen=True, slots=True)
class _Line:
    """One line of the tree: a heading, or fields; ``names`` are without the name in the heading above."""

    fields: tuple[FieldSummary, ...]
    names: tuple[str, ...]
    mark: str = ""
    heading: bool = False


def field_table(fields: Sequence[FieldSummary], names: Sequence[str], width: int, ascii_only: bool) -> Grid:
    """The tree of fields with the columns ``names`` and histograms of ``width`` characters."""
    found = Grid((name, "left" if name in _LEFT else "right") for name in names)
    for entry in tree(fields, ascii_only):
        cells = _cells(entry, width, ascii_only)
        found.add_row(*(plain(cells.get(name, "")) for name in names), style="dim" if entry.heading else "")
    return found


def tree(fields: Sequence[FieldSummary], ascii_only: bool = False) -> Iterator[_Line]:
    """Lines in the order of ``fields``; fields with a common first part, except ``next``, stand below that part."""
    roots: dict[str, list[FieldSummary]] = {}
    for f in fields:
        root = f.name.split("/")[0]
        roots.setdefault(f.name if root in _FLAT else root, []).append(f)
    branch, last = ("|-", "`-") if ascii_only else ("├─", "└─")
    for root, members in roots.items():
        groups = _grouped(members)
        if len(members) == 1:
            yield _Line(tuple(members), (members[0].name,))
            continue
        yield _Line(tuple(members), (root,), heading=True)
        for k, group in enumerate(groups):
            names = tuple(f.name.removeprefix(f"{root}/") for f in group)
            yield _Line(tuple(group), names, f"{last if k == len(groups) - 1 else branch} ")


def _grouped(fields: Sequence[FieldSummary]) -> list[list[FieldSummary]]:
    """Group fields that a loader leaves out by type and shape; every other field is a group of its own."""
    groups: dict[object, list[FieldSummary]] = {}
    for f in fields:
        alike = (f.placement, f.dtype, f.shape, f.kind) if not f.default and f.elements is None else f.name
        groups.setdefault(alike, []).append(f)
    return list(groups.values())


def _cells(entry: _Line, width: int, ascii_only: bool) -> dict[str, str]:
    size = text.size_of(sum(f.bytes for f in entry.fields))
    if entry.heading:
        return {"FIELD": entry.names[0], "SIZE": size}
    f = entry.fields[0]
    cells = {
        "FIELD": entry.mark + _joined(entry.names),
        "AT": f.placement,
        "DTYPE": f.codec or ("text" if f.kind == "text" else f.dtype),
        "SHAPE": shape(f.shape),
        "SIZE": size,
    }
    if len(entry.fields) > 1:
        return cells
    if f.mean is not None:
        cells |= {"MEAN": number(f.mean), "STD": number(f.std), "MIN": number(f.min, f.dtype)}
        cells["MAX"] = number(f.max, f.dtype)
    chart = sparkline(f.histogram.counts, width=width, ascii_only=ascii_only) if width and f.histogram else ""
    return cells | {"": f"{chart.ljust(width)}  {_remark(f)}".rstrip() if width else _remark(f)}


def _joined(names: Sequence[str]) -> str:
    shown = max(k for k in range(1, len(names) + 1) if k == 1 or len(", ".join(names[:k])) <= _NAMES)
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f", {more} more" if more else "")


def _remark(f: FieldSummary) -> str:
    remarks = [f"{100 * f.saturation.share:.0f} % saturated"] if f.saturation else []
    remarks += [f"{f.nonfinite:,} not finite"] if f.nonfinite else []
    remarks += [text.plural(f.distinct, "text")] if f.distinct is not None else []
    return ", ".join(remarks)


# -- elements of rows


def element_table(fields: Sequence[FieldSummary], headings: Sequence[str], width: int, ascii_only: bool) -> Grid:
    """Statistics of every element of the fields, and histograms of ``width`` characters."""
    found = Grid([("ELEMENT", "left"), *((h, "right") for h in headings), *([("", "left")] if width else [])])
    for f in fields:
        for e in f.elements or ():
            values = dict(zip(_STATISTICS, (e.mean, e.std, e.min, e.q01, e.q99, e.max), strict=True))
            cells = [f"{f.name}{e.index}", *(number(values[h]) for h in headings)]
            if width:
                counts = e.histogram.counts if e.histogram else ()
                cells.append(sparkline(counts, width=width, ascii_only=ascii_only))
            found.add_row(*(plain(cell) for cell in cells))
    return found


# -- one episode


class EpisodePage:
    """The page of an episode; ``ref`` names the dataset as it was typed."""

    def __init__(self, report: EpisodeReport, ref: str = "") -> None:
        self.report, self.ref = report, ref

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        r = self.report
        yield line(console, f"{refs.named(r.id, r.version, self.ref)}   episode {r.episode:,} of {r.of:,}", "bold")
        yield line(console, "   ".join(_facts(r)))
        origin = _origin(r)
        if origin:
            yield line(console, origin)
        yield fitting(options, [partial(_table, r, w, ends, options.ascii_only) for w, ends in _DETAIL])
        hidden = [f"{f.name}: {f.hidden:,} more dimensions" for f in r.fields if f.hidden]
        if hidden:
            yield line(console, f"{'; '.join(hidden)}   --stats shows all", "dim")


def _facts(r: EpisodeReport) -> list[str]:
    facts = [text.plural(r.length, "step"), r.end]
    if r.total_reward is not None:
        score = f" (score {figure(r.score)})" if r.score is not None else ""
        facts.append(f"return {figure(r.total_reward)}{score}")
    facts.append(text.plural(r.num_transitions, "transition"))
    facts.append("final observation recorded" if r.num_observed > r.length else "final observation not recorded")
    facts += [f"seed {r.seed}"] if r.seed is not None else []
    facts += [f"split {', '.join(r.splits)}"] if r.splits else []
    return facts + [f"{name} {value}" for name, value in r.columns.items() if value is not None]


def _origin(r: EpisodeReport) -> str:
    s = r.source
    where = [str(s["file"])] if s["file"] else []
    where += [str(s["group"])] if s["group"] else []
    where += [f"row {s['row']:,}"] if where else []
    rows = f"rows {r.start:,}-{r.start + r.length:,} here"
    return f"from {', '.join(where)}; {rows}" if where else rows


def _table(r: EpisodeReport, width: int, ends: bool, ascii_only: bool) -> Grid:
    sides = [("FIRST", "right"), ("LAST", "right")] if ends else []
    table = Grid([("FIELD", "left"), ("", "left"), ("MIN", "right"), ("MAX", "right"), *sides])
    for f in r.fields:
        for row in _rows(f, width, ends, ascii_only):
            table.add_row(*row)
    return table


def _rows(f: FieldTrace, width: int, ends: bool, ascii_only: bool) -> Iterator[list[Text]]:
    if not f.dimensions:
        yield [plain(f.name), plain(_without_dimensions(f))]
    for d in f.dimensions:
        points = resample(np.array([np.nan if v is None else v for v in d.trace]), width)
        numbers = (d.min, d.max, *((d.first, d.last) if ends else ()))
        name = f.name + (d.index if f.shape else "")
        yield [plain(c) for c in (name, trace(points, ascii_only=ascii_only), *(number(x, f.dtype) for x in numbers))]


def _without_dimensions(f: FieldTrace) -> str:
    if f.bytes is not None:
        encoded = " encoded" if f.kind == "frames" else ""
        return f"{text.plural(f.rows, 'frame')} {shape(f.shape)}, {text.size_of(f.bytes)}{encoded}"
    return "; ".join(f'"{text}"' for text in f.texts) or "-"


# -- the page of rlds inspect FILE
