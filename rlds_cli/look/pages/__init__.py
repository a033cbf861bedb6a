"""Lines and tables of rich pages, and the choice of the most detailed table that fits the width."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from rlds_cli.base import visible


def plain(text: str, style: str = "") -> Text:
    """Text without markup, with control characters escaped."""
    return Text(visible.line(text), style=style)


def line(console: Console, text: str, style: str = "", *, whole: bool = False) -> Text:
    """A line of its own: wrapped on a terminal unless ``whole`` (a command to copy), never wrapped in a pipe."""
    broken = console.is_terminal and not whole
    return Text(visible.line(text), style=style, no_wrap=not broken, overflow="fold" if broken else "ignore")


def grid(columns: Iterable[tuple[str, str]]) -> Table:
    """A table without borders; columns are (heading, ``left`` or ``right``). Without any heading it has no header."""
    columns = list(columns)
    shown = any(heading for heading, _ in columns)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=shown, header_style="dim")
    for heading, side in columns:
        table.add_column(heading, justify="right" if side == "right" else "left", overflow="fold")
    return table


def fitting(console: Console, options: ConsoleOptions, tables: Iterable[Callable[[], Table]]) -> Table:
    """The first of ``tables``, most detailed first, that fits the width; the last if none fits."""
    table = Table()
    for build in tables:
        table = build()
        if Measurement.get(console, options.update(width=10_000), table).maximum <= options.max_width:
            break
    return table
