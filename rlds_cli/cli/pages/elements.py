"""``rlds inspect ID --stats``: a line for every element of a row."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from rlds_cli.cli.pages.figures import grid, number, plain
from rlds_cli.report.columns import FieldSummary
from rlds_cli.report.histograms import sparkline

_ALL = ("MEAN", "STD", "MIN", "1 %", "99 %", "MAX")
# Columns and the width of histograms: the first that fits is taken.
DETAIL = ((_ALL, 16), (_ALL, 8), (_ALL, 0), (("MEAN", "MIN", "MAX"), 0), (("MIN", "MAX"), 0))


def table(fields: Sequence[FieldSummary], headings: Sequence[str], width: int, ascii_only: bool) -> Table:
    """Statistics and a histogram, ``width`` wide, of every element of the fields."""
    found = grid([("ELEMENT", "left"), *((h, "right") for h in headings), *([("", "left")] if width else [])])
    for f in fields:
        for e in f.elements or ():
            values = dict(zip(_ALL, (e.mean, e.std, e.min, e.q01, e.q99, e.max), strict=True))
            cells = [f"{f.name}{e.index}", *(number(values[h]) for h in headings)]
            if width:
                counts = e.histogram.counts if e.histogram else ()
                cells.append(sparkline(counts, width=width, ascii_only=ascii_only))
            found.add_row(*(plain(cell) for cell in cells))
    return found
