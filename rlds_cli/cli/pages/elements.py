"""``rlds inspect ID --stats``: a line for every element of a row."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from rlds_cli.cli.pages.figures import grid, number, plain
from rlds_cli.report.columns import FieldSummary
from rlds_cli.report.histograms import sparkline

_HEADINGS = ("MEAN", "STD", "MIN", "1 %", "99 %", "MAX")


def table(fields: Sequence[FieldSummary], width: int, ascii_only: bool) -> Table:
    """Statistics and a histogram, ``width`` wide, of every element of the fields."""
    found = grid([("ELEMENT", "left"), *((h, "right") for h in _HEADINGS), *([("", "left")] if width else [])])
    for f in fields:
        for e in f.elements or ():
            values = (number(v) for v in (e.mean, e.std, e.min, e.q01, e.q99, e.max))
            chart = sparkline(e.histogram.counts, width=width, ascii_only=ascii_only) if e.histogram else ""
            cells = (f"{f.name}{e.index}", *values, *([chart] if width else []))
            found.add_row(*(plain(cell) for cell in cells))
    return found
