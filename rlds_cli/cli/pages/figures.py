"""Numbers, shapes and small charts as text; and the choice of the most detailed table that fits.

A space in a word, as Gymnasium prints it, from its JSON form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from rlds_cli import visible


def number(x: float | None, dtype: str = "float64") -> str:
    """A value of a field: ``-9.98``, ``1.2e-05``; whole for integers, ``·`` for none."""
    if x is None or x != x:
        return "·"
    if dtype.startswith(("int", "uint", "bool")) and abs(x) < 1e6:
        return f"{int(x):,}"
    return f"{x:.1e}" if x and not 5e-3 <= abs(x) < 1e5 else f"{x:,.2f}"


def figure(x: float) -> str:
    """A return or a length, with about three digits: ``3,222``, ``15.2``."""
    return f"{x:,.0f}" if abs(x) >= 100 or x == int(x) else f"{x:.1f}" if abs(x) >= 10 else f"{x:.2f}"


def shape(dims: Sequence[int]) -> str:
    """``[11]``; ``[]`` for a scalar."""
    return str(list(dims))


def plain(text: str, style: str = "") -> Text:
    """Text in which brackets are brackets, and control characters are escapes."""
    return Text(visible.line(text), style=style)


def line(console: Console, text: str, style: str = "", *, whole: bool = False) -> Text:
    """A line of its own: wrapped on terminals, but for those to be copied (``whole``); never in pipes."""
    broken = console.is_terminal and not whole
    return Text(visible.line(text), style=style, no_wrap=not broken, overflow="fold" if broken else "ignore")


def grid(columns: Iterable[tuple[str, str]]) -> Table:
    """A table without lines; columns are (heading, ``left`` or ``right``), and no heading at all hides the row."""
    columns = list(columns)
    shown = any(heading for heading, _ in columns)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=shown, header_style="dim")
    for heading, side in columns:
        table.add_column(heading, justify="right" if side == "right" else "left", overflow="fold")
    return table


def fitting(console: Console, options: ConsoleOptions, tables: Iterable[Callable[[], Table]]) -> Table:
    """The first of ``tables``, most detailed first, that fits the width; else the last."""
    table = Table()
    for build in tables:
        table = build()
        if Measurement.get(console, options.update(width=10_000), table).maximum <= options.max_width:
            break
    return table


def in_words(space: Mapping[str, Any]) -> str:
    """Its type with its shape, its number of values, or the names of its parts."""
    inner = space.get("subspaces", ())
    if isinstance(inner, Mapping):
        size = ", ".join(f"{name}: {in_words(part)}" for name, part in inner.items())
    elif inner:
        size = ", ".join(map(in_words, inner))
    else:
        found = space.get("shape", space.get("nvec", space.get("n", "")))
        size = ", ".join(map(str, found)) if isinstance(found, list | tuple) else str(found)
    return f"{space.get('type')}({size})"
