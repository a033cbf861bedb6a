"""Lines and tables of rich pages, and the choice of the most detailed table that fits the width."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from rlds_cli.base import visible

if TYPE_CHECKING:
    from rich.table import Table

_APART = 2  # blanks between columns


def plain(text: str, style: str = "") -> Text:
    """Text without markup, with control characters escaped."""
    return Text(visible.line(text), style=style)


def line(console: Console, text: str, style: str = "", *, whole: bool = False) -> Text:
    """A line of its own: wrapped on a terminal unless ``whole`` (a command to copy), never wrapped in a pipe."""
    broken = console.is_terminal and not whole
    return Text(visible.line(text), style=style, no_wrap=not broken, overflow="fold" if broken else "ignore")


class Grid:
    """A table without borders; columns are (heading, ``left`` or ``right``). Without any heading it has no header.

    Where it fits, it is lines of text: a table of rich takes five times as long, and only folds the cells of a wider
    one.
    """

    def __init__(self, columns: Iterable[tuple[str, str]]) -> None:
        self.columns = [*columns]
        self._rows: list[tuple[tuple[Text, ...], str]] = []
        self._heads = 0
        if any(heading for heading, _ in self.columns):
            self.add_row(*(Text(heading) for heading, _ in self.columns), style="dim")
            self._heads = 1

    def add_row(self, *cells: Text, style: str = "") -> None:
        """Add a cell for each column; those at the end may be left out."""
        self._rows.append(((*cells, *[Text()] * (len(self.columns) - len(cells))), style))

    def fits(self, width: int) -> bool:
        """Return whether no cell has to be folded."""
        return sum(self._widths()) + _APART * (len(self.columns) - 1) <= width

    def _widths(self) -> list[int]:
        cells = (cells for cells, _ in self._rows)
        return [max(cell.cell_len for cell in column) for column in zip(*cells, strict=True)]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        if self.fits(options.max_width):
            yield from self._lines()
        else:
            yield self._folded()

    def _lines(self) -> Iterator[Text]:
        widths = self._widths()
        for cells, style in self._rows:
            row = Text(style=style, no_wrap=True, overflow="ignore")
            for k, (cell, width, (_, side)) in enumerate(zip(cells, widths, self.columns, strict=True)):
                blank = " " * (width - cell.cell_len)
                row.append(" " * _APART if k else "")
                row.append(blank if side == "right" else "").append(cell).append(blank if side == "left" else "")
            yield row

    def _folded(self) -> Table:
        from rich.table import Table

        table = Table(box=None, pad_edge=False, padding=(0, _APART, 0, 0), header_style="dim")
        table.show_header = self._heads > 0
        for heading, side in self.columns:
            table.add_column(heading, justify="right" if side == "right" else "left", overflow="fold")
        for cells, style in self._rows[self._heads :]:
            table.add_row(*cells, style=style)
        return table


def fitting(options: ConsoleOptions, grids: Iterable[Callable[[], Grid]]) -> Grid:
    """The first of ``grids``, most detailed first, that fits the width; the last if none fits."""
    grid = Grid(())
    for build in grids:
        grid = build()
        if grid.fits(options.max_width):
            break
    return grid
