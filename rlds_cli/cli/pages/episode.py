"""``rlds inspect ID --episode N``: one episode, a line per dimension."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from rlds_cli import sizes
from rlds_cli.cli import out
from rlds_cli.cli.pages.figures import figure, fitting, grid, line, number, plain, shape
from rlds_cli.report.episodes import EpisodeReport, FieldTrace
from rlds_cli.report.histograms import resample, trace

# Width of the lines, and whether first and last values are shown: the first that fits is taken.
_DETAIL = ((64, True), (48, True), (32, True), (32, False), (16, False))


class EpisodePage:
    """The page of an episode; rich asks it for its lines."""

    def __init__(self, report: EpisodeReport) -> None:
        self.report = report

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        r = self.report
        yield line(console, f"{r.id}   episode {r.episode:,} of {r.of:,}", "bold")
        yield line(console, "   ".join(_facts(r)))
        origin = _origin(r)
        if origin:
            yield line(console, origin)
        yield fitting(console, options, [partial(_table, r, w, ends, options.ascii_only) for w, ends in _DETAIL])
        hidden = [f"{f.name}: {f.hidden:,} more dimensions" for f in r.fields if f.hidden]
        if hidden:
            yield line(console, f"{'; '.join(hidden)}   --stats shows all", "dim")


def _facts(r: EpisodeReport) -> list[str]:
    facts = [sizes.plural(r.length, "step"), r.end]
    if r.total_reward is not None:
        score = f" (score {figure(r.score)})" if r.score is not None else ""
        facts.append(f"return {figure(r.total_reward)}{score}")
    facts.append(sizes.plural(r.num_transitions, "transition"))
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


def _table(r: EpisodeReport, width: int, ends: bool, ascii_only: bool) -> Table:
    sides = [("FIRST", "right"), ("LAST", "right")] if ends else []
    table = grid([("FIELD", "left"), ("", "left"), ("MIN", "right"), ("MAX", "right"), *sides])
    for f in r.fields:
        for row in _rows(f, width, ends, ascii_only):
            table.add_row(*row)
    return table


def _rows(f: FieldTrace, width: int, ends: bool, ascii_only: bool) -> Iterator[list[Text]]:
    if not f.dimensions:
        yield [plain(f.name), plain(_in_words(f))]
    for d in f.dimensions:
        points = resample(np.array([np.nan if v is None else v for v in d.trace]), width)
        numbers = (d.min, d.max, *((d.first, d.last) if ends else ()))
        name = f.name + (d.index if f.shape else "")
        yield [plain(c) for c in (name, trace(points, ascii_only=ascii_only), *(number(x, f.dtype) for x in numbers))]


def _in_words(f: FieldTrace) -> str:
    if f.bytes is not None:
        encoded = " encoded" if f.kind == "frames" else ""
        return f"{sizes.plural(f.rows, 'frame')} {shape(f.shape)}, {out.size(f.bytes)}{encoded}"
    return "; ".join(f'"{text}"' for text in f.texts) or "-"
