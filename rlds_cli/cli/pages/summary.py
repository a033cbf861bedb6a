"""``rlds inspect ID``: one dataset on one page."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table

from rlds_cli import sizes
from rlds_cli.checks.findings import SEVERITIES
from rlds_cli.cli import out
from rlds_cli.cli.pages import elements, fields
from rlds_cli.cli.pages.checks import findings, tally
from rlds_cli.cli.pages.figures import figure, fitting, grid, line, plain
from rlds_cli.cli.pages.spaces import in_words
from rlds_cli.hashing import short
from rlds_cli.report.histograms import Distribution, sparkline
from rlds_cli.report.own_columns import OwnColumn
from rlds_cli.report.summaries import Summary

_DESCRIPTION = 240
_SPACES = 300
_LONGEST = 40  # characters of a value of an episode column
_KINDS = ("terminated", "truncated", "cut")
_SHADES = {False: "█▓░", True: "#+."}


class SummaryPage:
    """The page of a dataset; rich asks it for its lines."""

    def __init__(self, summary: Summary) -> None:
        self.summary = summary

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        s, ascii_only = self.summary, options.ascii_only
        yield line(console, _heading(s), "bold")
        yield from (line(console, text) for text in (*_about(s), _counts(s)))
        tables = [partial(fields.table, s.fields, names, w, ascii_only) for names, w in fields.DETAIL]
        table = fitting(console, options, tables)
        yield table
        yield from (line(console, text, "dim") for text in _below(s, remarks=table.columns[-1].header == ""))
        if any(f.elements for f in s.fields):
            yield fitting(
                console,
                options,
                [partial(elements.table, s.fields, names, w, ascii_only) for names, w in elements.DETAIL],
            )
        yield fitting(console, options, [partial(_distributions, s, w, ascii_only) for w in (16, 8, 0)])
        yield from (line(console, text) for text in (*_ends(s, 16, ascii_only), *_more(s)))
        if s.findings:
            yield findings(console, options, s.findings)
        yield line(console, _verdict(s), "dim")


def _heading(s: Summary) -> str:
    return "   ".join([s.id, short(s.fingerprint), out.size(s.bytes), s.encoding, *_source(s)])


def _about(s: Summary) -> Iterator[str]:
    """What it is and where it is from, in a few lines."""
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


def _verdict(s: Summary) -> str:
    counted = (sum(f.severity == kind for f in s.findings) for kind in SEVERITIES)
    return f"{tally(*counted)} at a glance; rlds check {s.id} reads the rows, too"


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


def _distributions(s: Summary, width: int, ascii_only: bool) -> Table:
    table = grid([("", "left")] * 4)
    for name, found, score in (("returns", s.returns, s.scores), ("lengths", s.lengths, None)):
        if found is None:
            continue
        chart = sparkline(found.histogram.counts, width=width, ascii_only=ascii_only) if width else ""
        scored = f"score {_three(score, ascii_only)}" if score else ""
        table.add_row(*(plain(cell) for cell in (name, chart, _three(found, ascii_only), scored)))
    return table


def _ends(s: Summary, width: int, ascii_only: bool) -> Iterator[str]:
    """Shares of the kinds of ends, where there are several."""
    total, c = s.counts.episodes, s.counts
    kinds = list(zip(_KINDS, (c.terminated, c.truncated, c.cut), _SHADES[ascii_only], strict=True))
    if total and len([n for _, n, _ in kinds if n]) > 1:
        bar = "".join(mark * _share(n, total, width) for _, n, mark in kinds)
        said = ", ".join(f"{100 * n / total:.0f} % {kind}" for kind, n, _ in kinds if n)
        yield f"ends     {bar}  {said}"


def _share(n: int, total: int, width: int) -> int:
    """Characters of a bar; what is there at all is seen."""
    return max(1, round(width * n / total)) if n and width else 0


def _three(d: Distribution, ascii_only: bool) -> str:
    return (" .. " if ascii_only else " … ").join(figure(x) for x in (d.min, d.median, d.max))


def _made(step: Mapping[str, Any]) -> str:
    """One step of the chain that made a derived dataset."""
    args = ", ".join(f"{k}={v}" for k, v in (step.get("args") or {}).items())
    function = f"{step.get('reference') or step.get('function')}{f' ({args})' if args else ''}"
    source = short(str(step.get("source", "")).partition("+")[0])
    reads = ", ".join(f"{name} (sha256 {sha[:12]})" for name, sha in (step.get("depends") or {}).items())
    reads = f", which reads {reads}" if reads else ""
    return f"made by  {function}{reads}, unit {step.get('unit')}, from {step.get('from')} ({source})"


def _spaces(s: Summary) -> str:
    return "; ".join(f"{name} {in_words(space)}" for name, space in s.spaces.items())


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
        yield "splits  " + ", ".join(f"{name} {sizes.plural(n, 'episode')}" for name, n in s.splits.items())
    if s.episode_columns:
        yield "episode columns  " + "; ".join(_own_column(c) for c in s.episode_columns)
    if s.metadata:
        more = len(s.metadata) - 4
        yield f"metadata  {', '.join(s.metadata[:4])}{f', {more} more' if more > 0 else ''}"
    for step in s.provenance:
        yield _made(step)
    if s.shared:
        how = {kind: [n for n, h in s.shared.items() if h == kind] for kind in ("link", "reflink", "copy")}
        yield "shared with its source  " + "; ".join(f"by {k}: {', '.join(v)}" for k, v in how.items() if v)
